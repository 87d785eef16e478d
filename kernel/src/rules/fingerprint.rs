//! Check that rules are still those that were found complete, without a process.
//!
//! `iptables-save` prints rules so that they can be compared with what they should be, but it is a
//! program, and slow where others keep many rules. That nothing has changed since can be asked of
//! the kernel, of nf_tables ([`nft`]) and of x_tables ([`legacy`]). Only our own chains and the
//! jumps into them count: rules that others come and go with, in the same built-in chains, change
//! no fingerprint.
//!
//! In other modes than ipvs the chains of Services count too, which we change all the time. So each of them
//! has a print of its own ([`prints`]), and a change of ours explains a difference.

pub(super) mod legacy;
pub(super) mod nft;
mod prints;

use std::time::{Duration, Instant};

use plan::chains::{ActualChains, ChainOp};
use plan::mode::Mode;
use plan::model::Family;
use plan::rule_set::{Comparison, Jump, RuleSet, Table};

use super::{Backend, Rules, RulesError};
use crate::rules::chains::ChainsWritten;
use prints::{Changes, Prints};

/// The part of all time, as one of so many, that looks at the chains of Services may take where
/// other programs write rules all the time.
const SHARE: u32 = 50;

/// Longest time without a look, however long one takes.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Number of chains, at most, that are read one by one after they were written. More are looked at
/// with all others.
const READ_BACK: usize = 1_000;

/// State of one family's rules when they were last found complete.
#[derive(Debug)]
pub(crate) struct RulesWatch {
    tables: Tables,
    watched: Watched,
    /// The constant rules that were found complete.
    seen: Option<Fingerprint>,
    /// The chains of Services that were read, with what we have changed since, but for `changes`.
    services: Option<Prints>,
    /// Changes of ours that no look has shown so far.
    changes: Changes,
    /// The chains that the last check read, until anything else is done.
    read: Option<KeptChains>,
    /// The differences that the last check found, and the mark of the rules that have them.
    differences: Option<(Comparison, Mark)>,
    /// Time of the next look, if others write all the time.
    next_look: Instant,
}

/// The chains and jumps that count.
#[derive(Debug, Default)]
struct Watched {
    chains: Vec<(Table, &'static str)>,
    jumps: Vec<Jump>,
    /// True if the chains of Services count.
    services: bool,
}

/// Current values of the fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Look {
    /// None if another program wrote meanwhile, or tables are missing.
    mark: Option<Mark>,
    /// None while jumps are missing.
    constant: Option<Fingerprint>,
    services: Prints,
}

#[derive(Debug)]
enum Tables {
    Nft(nft::NftTables),
    Legacy(legacy::LegacyTables),
}

/// Chains that a check read.
#[derive(Debug)]
struct KeptChains {
    chains: ActualChains,
    prints: Prints,
    mark: Option<Mark>,
}

/// Rules as a program printed them, and a look at them.
struct Reading {
    text: String,
    look: Option<Look>,
    /// True if the look shows the constant rules of the text.
    is_of_constant: bool,
    /// True if the look shows the chains of Services of the text.
    is_of_services: bool,
}

/// Equal if, and only if, our constant chains and the jumps into them are the same.
type Fingerprint = u64;

/// Equal only if all rules are the same, those of others included: nf_tables' generation, or a hash of
/// the tables of x_tables.
type Mark = u64;

impl RulesWatch {
    /// Opens the sockets that it needs in the calling thread's network namespace.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub(crate) fn open(rules: &Rules) -> Result<Self, netlink::Error> {
        let tables = match rules.backend() {
            Backend::Nft => Tables::Nft(nft::NftTables::open(rules.family())?),
            Backend::Legacy => Tables::Legacy(legacy::LegacyTables::open(rules.family())?),
        };
        Ok(Self {
            tables,
            watched: Watched::default(),
            seen: None,
            services: None,
            changes: Changes::default(),
            read: None,
            differences: None,
            next_look: Instant::now(),
        })
    }

    /// Returns true if the rules are those that [`RulesWatch::check`] has last found complete, and
    /// the chains of Services those that [`RulesWatch::read_chains`] has last read, with our own
    /// changes.
    pub(crate) fn untouched(&mut self) -> Result<bool, netlink::Error> {
        self.read = None;
        if self.seen.is_none() || self.services.is_none() {
            return Ok(false);
        }
        if self.changes.is_empty() && self.tables.seem_unchanged() {
            return Ok(true);
        }
        // Without Services, a look costs next to nothing.
        if self.watched.services && Instant::now() < self.next_look {
            return Ok(true);
        }
        let look = self.look()?;
        self.compare(look);
        Ok(self.seen.is_some() && self.services.is_some())
    }

    /// Forgets the rules that were seen: the desired ones have changed.
    pub(crate) fn forget(&mut self) {
        (self.seen, self.differences) = (None, None);
    }

    /// Takes the differences that the last check found, if all rules are still the same.
    pub(crate) fn take_differences(&mut self) -> Option<Comparison> {
        let (comparison, mark) = self.differences.take()?;
        (self.tables.mark().ok()? == Some(mark)).then_some(comparison)
    }

    /// Looks again at once, however long the last look took.
    #[cfg(all(test, feature = "kernel-tests"))]
    pub(crate) fn end_pause(&mut self) {
        self.next_look = Instant::now();
    }

    /// Compares the present rules with the desired ones, and remembers them if they match.
    pub(crate) fn check(
        &mut self,
        rules: &Rules,
        rule_set: &RuleSet,
    ) -> Result<Comparison, RulesError> {
        self.check_text(rules, rule_set, false)
    }

    /// As [`RulesWatch::check`]. If [`RulesWatch::read_chains`] follows, it starts no program, unless
    /// the chains have changed meanwhile.
    pub(crate) fn check_and_read(
        &mut self,
        rules: &Rules,
        rule_set: &RuleSet,
    ) -> Result<Comparison, RulesError> {
        self.check_text(rules, rule_set, true)
    }

    fn check_text(
        &mut self,
        rules: &Rules,
        rule_set: &RuleSet,
        is_kept: bool,
    ) -> Result<Comparison, RulesError> {
        (self.seen, self.read, self.differences) = (None, None, None);
        self.watched = Watched::of(rule_set);
        let mut reading = self.read_and_look(rules)?;
        let mut comparison = rule_set.compare(&reading.text);
        if comparison.matches() && reading.look.is_some() && !reading.is_of_constant {
            reading = self.read_again(rules, reading)?;
            comparison = rule_set.compare(&reading.text);
        }
        let Reading { text, look, is_of_constant, is_of_services } = reading;
        let mark = look.as_ref().and_then(|look| look.mark);
        if comparison.matches() && is_of_constant {
            self.seen = look.as_ref().and_then(|look| look.constant);
        } else if let Some(mark) = mark.filter(|_| is_of_constant && is_of_services) {
            self.differences = Some((comparison.clone(), mark));
        }
        if !self.watched.services {
            self.services = Some(Prints::default());
        } else if let Some(look) = look {
            if is_kept && is_of_services {
                let chains = ActualChains::parse(rule_set.mode(), rules.family(), &text);
                self.read = Some(KeptChains { chains, prints: look.services.clone(), mark });
            }
            self.compare(Look { constant: self.seen, ..look });
        }
        Ok(comparison)
    }

    /// Reads the chains of Services of a mode, and remembers them.
    pub(crate) fn read_chains(
        &mut self,
        rules: &Rules,
        mode: Mode,
    ) -> Result<ActualChains, RulesError> {
        self.watched.services = true;
        let kept = self.read.take().filter(|kept| kept.mark.is_some());
        if let Some(KeptChains { chains, prints, mark }) = kept
            && self.tables.mark().is_ok_and(|now| now == mark)
        {
            (self.changes, self.services) = (Changes::default(), Some(prints));
            return Ok(chains);
        }
        let mut reading = self.read_and_look(rules)?;
        if reading.look.is_some() && !reading.is_of_services {
            reading = self.read_again(rules, reading)?;
        }
        self.changes = Changes::default();
        let look = reading.look.filter(|_| reading.is_of_services);
        self.services = look.map(|look| look.services);
        Ok(ActualChains::parse(mode, rules.family(), &reading.text))
    }

    /// Reads the rules, then looks at them. The look shows those that were read if no program wrote
    /// meanwhile.
    fn read_and_look(&mut self, rules: &Rules) -> Result<Reading, RulesError> {
        let before = self.tables.mark().ok().flatten();
        let text = rules.read(&self.watched.jumps)?;
        let look = self.try_look(rules.family());
        let after = look.as_ref().and_then(|look| look.mark);
        let is_same = before.is_some() && before == after;
        Ok(Reading { text, look, is_of_constant: is_same, is_of_services: is_same })
    }

    /// Reads and looks once more. What both looks show did not change between them, whatever else
    /// other programs write.
    fn read_again(&mut self, rules: &Rules, former: Reading) -> Result<Reading, RulesError> {
        let text = rules.read(&self.watched.jumps)?;
        let (before, look) = (former.look, self.try_look(rules.family()));
        let both = || before.as_ref().zip(look.as_ref());
        let is_of_constant = both().is_some_and(|(one, other)| one.constant == other.constant);
        let is_of_services = both().is_some_and(|(one, other)| one.services == other.services);
        Ok(Reading { text, look, is_of_constant, is_of_services })
    }

    /// Number of transactions of all programs so far, where the kernel counts them.
    pub(crate) fn generation(&mut self) -> Option<u32> {
        match &mut self.tables {
            Tables::Nft(tables) => tables.current_generation().ok(),
            Tables::Legacy(_) => None,
        }
    }

    /// Takes in changes of ours to chains of this family. `before` is the generation before them.
    pub(crate) fn wrote(&mut self, ops: &[&ChainOp], written: &ChainsWritten, before: Option<u32>) {
        self.read = None;
        if self.services.is_none() {
            return;
        }
        let Some(transactions) = written.transactions else {
            // It is not known what was done.
            self.services = None;
            return;
        };
        let mut changes = Changes::default();
        for (op, result) in ops.iter().zip(&written.results) {
            if result.is_ok() {
                changes.add(op);
            }
        }
        let Tables::Nft(tables) = &mut self.tables else { return self.changes.extend(changes) };
        let mut read = None;
        if self.changes.is_empty() && changes.len() <= READ_BACK {
            // If this fails, the next look shows the changes.
            read = tables.read_back(&changes, before, transactions).unwrap_or_default();
        }
        match (read, &mut self.services) {
            (Some(prints), Some(services)) => services.update(prints),
            _ => self.changes.extend(changes),
        }
    }

    /// Takes in changes of ours to another family, which raise the same generation.
    pub(crate) fn wrote_elsewhere(&mut self, before: Option<u32>, transactions: Option<u32>) {
        if let (Tables::Nft(tables), Some(before), Some(transactions)) =
            (&mut self.tables, before, transactions)
        {
            tables.advance(before, transactions);
            if let Some((_, mark)) = &mut self.differences
                && *mark == Mark::from(before)
            {
                *mark = before.wrapping_add(transactions).into();
            }
        }
    }

    /// Forgets what is not as it was, but for changes of ours.
    fn compare(&mut self, look: Look) {
        let changes = std::mem::take(&mut self.changes);
        if self.seen != look.constant {
            self.seen = None;
        }
        let known = self.services.take();
        if known.is_some_and(|known| changes.explain(&known, &look.services)) {
            self.services = Some(look.services);
        }
    }

    fn look(&mut self) -> Result<Look, netlink::Error> {
        let began = Instant::now();
        let look = match &mut self.tables {
            Tables::Nft(tables) => tables.look(&self.watched),
            Tables::Legacy(tables) => tables.look(&self.watched),
        };
        let pause = began.elapsed().saturating_mul(SHARE).min(LONGEST_PAUSE);
        self.next_look = Instant::now();
        // A drift check comes every second anyway.
        if pause > Duration::from_secs(1) {
            self.next_look += pause;
        }
        look
    }

    fn try_look(&mut self, family: Family) -> Option<Look> {
        self.look()
            .inspect_err(|error| {
                tracing::debug!(%family, "cannot read the rules' fingerprint: {error}");
            })
            .ok()
    }
}

impl Tables {
    fn seem_unchanged(&mut self) -> bool {
        match self {
            Self::Nft(tables) => tables.unchanged(),
            Self::Legacy(tables) => tables.seems_unchanged(),
        }
    }

    /// None while tables are missing.
    fn mark(&mut self) -> Result<Option<Mark>, netlink::Error> {
        match self {
            Self::Nft(tables) => tables.current_generation().map(|it| Some(it.into())),
            Self::Legacy(tables) => tables.mark(),
        }
    }
}

impl Watched {
    fn of(rule_set: &RuleSet) -> Self {
        let chains = rule_set.chains().iter().map(|chain| (chain.table, chain.name));
        let services = rule_set.mode().leads_by_rules();
        // The kubelet has a hand in this one too: it is unowned, but its rule is.
        let shared = rule_set.shared().iter().filter(|chain| !chain.rules.is_empty());
        let shared = shared.map(|chain| (chain.table, chain.name));
        Self { chains: chains.chain(shared).collect(), jumps: rule_set.jumps().to_vec(), services }
    }

    /// Our chains in a table.
    fn chains(&self, table: Table) -> impl Iterator<Item = &'static str> {
        self.chains.iter().filter(move |(of, _)| *of == table).map(|(_, name)| *name)
    }

    /// The chains that jumps from the built-in chains lead to, and others of ours.
    fn destinations(&self, table: Table) -> Vec<&'static str> {
        let mut names: Vec<&str> =
            self.chains(table).chain(self.jumps(table).map(|jump| jump.to)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn jumps(&self, table: Table) -> impl Iterator<Item = &Jump> {
        self.jumps.iter().filter(move |jump| jump.table == table)
    }

    /// The built-in chains of a table that lead into ours, each once.
    fn origins(&self, table: Table) -> impl Iterator<Item = &'static str> {
        let mut names: Vec<&str> = self.jumps(table).map(|jump| jump.from).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter()
    }

    /// True if these are all the jumps out of a built-in chain into ours, or more.
    fn has_all_jumps(&self, table: Table, from: &str, found: &[String]) -> bool {
        self.jumps(table)
            .filter(|jump| jump.from == from)
            .all(|jump| found.iter().any(|to| to == jump.to))
    }
}
