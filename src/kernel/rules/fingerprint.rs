//! Check that rules are still those that were found complete, without a process.
//!
//! `iptables-save` prints rules so that they can be compared with what they should be, but it is a
//! program, and slow where others keep many rules. That nothing has changed since can be asked of
//! the kernel, of nf_tables ([`nft`]) and of x_tables ([`legacy`]). Only our own chains and the
//! jumps into them count: rules that others come and go with, in the same built-in chains, change
//! no fingerprint.

mod legacy;
mod nft;

use plan::model::Family;
use plan::rule_set::{Comparison, Jump, RuleSet, Table};

use super::{Backend, Rules, RulesError};

/// State of one family's rules when they were last found complete.
#[derive(Debug)]
pub(in crate::kernel) struct RulesWatch {
    tables: Tables,
    watched: Watched,
    seen: Option<Fingerprint>,
}

/// The chains and jumps that count.
#[derive(Debug, Default)]
struct Watched {
    chains: Vec<(Table, &'static str)>,
    jumps: &'static [Jump],
}

#[derive(Debug)]
enum Tables {
    Nft(nft::NftTables),
    Legacy(legacy::LegacyTables),
}

/// Equal if, and only if, our chains and the jumps into them are the same.
type Fingerprint = u64;

// === impl RulesWatch ===

impl RulesWatch {
    /// Opens the sockets that it needs in the calling thread's network namespace.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub(in crate::kernel) fn open(rules: &Rules) -> Result<Self, netlink::Error> {
        let tables = match rules.backend() {
            Backend::Nft => Tables::Nft(nft::NftTables::open(rules.family())?),
            Backend::Legacy => Tables::Legacy(legacy::LegacyTables::open(rules.family())?),
        };
        Ok(Self { tables, watched: Watched::default(), seen: None })
    }

    /// Returns true if the rules are those that [`RulesWatch::check`] has last found complete.
    ///
    /// # Errors
    /// When the kernel did not answer.
    pub(in crate::kernel) fn untouched(&mut self) -> Result<bool, netlink::Error> {
        let Some(seen) = self.seen else { return Ok(false) };
        let untouched = match &mut self.tables {
            Tables::Nft(tables) => {
                tables.unchanged() || tables.fingerprint(&self.watched)? == Some(seen)
            }
            Tables::Legacy(tables) => {
                tables.seems_unchanged() || tables.fingerprint(&self.watched)? == Some(seen)
            }
        };
        if !untouched {
            self.seen = None;
        }
        Ok(untouched)
    }

    /// Forgets the rules that were seen: the desired ones have changed.
    pub(in crate::kernel) fn forget(&mut self) {
        self.seen = None;
    }

    /// Compares the present rules with the desired ones, and remembers them if they match.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(in crate::kernel) fn check(
        &mut self,
        rules: &Rules,
        rule_set: &RuleSet,
    ) -> Result<Comparison, RulesError> {
        self.seen = None;
        self.watched = Watched::of(rule_set);
        let before = self.fingerprint(rules.family());
        let comparison = rules.check(rule_set)?;
        // The fingerprint is of the compared rules only if no program wrote meanwhile.
        if comparison.matches() && before.is_some() && before == self.fingerprint(rules.family()) {
            self.seen = before;
        }
        Ok(comparison)
    }

    fn fingerprint(&mut self, family: Family) -> Option<Fingerprint> {
        let taken = match &mut self.tables {
            Tables::Nft(tables) => tables.fingerprint(&self.watched),
            Tables::Legacy(tables) => tables.fingerprint(&self.watched),
        };
        taken.unwrap_or_else(|error| {
            tracing::debug!(%family, "cannot read the rules' fingerprint: {error}");
            None
        })
    }
}

// === impl Watched ===

impl Watched {
    fn of(rule_set: &RuleSet) -> Self {
        let chains = rule_set.chains().iter().map(|chain| (chain.table, chain.name));
        Self { chains: chains.collect(), jumps: rule_set.jumps() }
    }

    /// Our chains in a table.
    fn chains(&self, table: Table) -> impl Iterator<Item = &'static str> {
        self.chains.iter().filter(move |(of, _)| *of == table).map(|(_, name)| *name)
    }

    fn jumps(&self, table: Table) -> impl Iterator<Item = &'static Jump> {
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
