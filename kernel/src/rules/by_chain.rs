//! A table of which iptables cannot show some rules of other programs, read chain by chain.
//!
//! One rule that `nft` made, in any chain of a table, and `iptables-nft-save` prints nothing of the whole
//! table (`nft_is_table_compatible` in iptables/nft.c). One rule with a match or a target whose extension is
//! not installed, and the programs for saving fail (`print_match_save` in iptables/iptables.c). The programs
//! write, check and delete rules there all the same, and list every other chain. So the kernel is asked for
//! the names of the chains, the program for restoring lists each (it takes all commands), and for a
//! built-in chain that has such a rule, `iptables -C` is asked for every jump that may be there.
//!
//! `iptables-nft -C` fails where the chain has a rule with an unknown extension. `iptables-legacy -C` does
//! not.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plan::backend::jumps_of_all_modes;
use plan::rule_set::{COPY_JUMPS, Jump, Table};

use super::error::Cause;
use super::fingerprint::{legacy, nft};
use super::{Backend, LOCK_WAIT, Rules, RulesError, installed, present};

/// Purpose of a reading, which decides what is said of chains and rules that cannot be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose<'a> {
    /// To compare rules with the desired ones, which have these jumps. A chain that cannot be shown counts
    /// as absent, so that it is written from scratch. Of chains that are not Kubernetes' only the
    /// built-in ones count.
    Compare(&'a [Jump]),
    /// To see what there is, and what leads where.
    Survey,
}

/// A table's chains as listed, by name.
#[derive(Debug, Default)]
struct Listed {
    policies: BTreeMap<String, String>,
    rules: BTreeMap<String, Vec<String>>,
    /// Chains of which iptables cannot show a rule.
    unshown: Vec<String>,
}

/// Start of the line that says of a table that it was read chain by chain.
pub const READ_BY_CHAIN: &str =
    "# Read chain by chain, since it has rules that iptables cannot show: ";
/// Start of the line that says of a table that it could not be read in this way either.
pub const UNREAD: &str = "# Left out, since it has rules that iptables cannot show: ";

/// Longest name of a chain that iptables takes (`XT_EXTENSION_MAXNAMELEN` without the end of the text, in
/// include/uapi/linux/netfilter/x_tables.h). `nft` makes longer ones.
const LONGEST_NAME: usize = 28;

/// Chains that iptables-legacy lists under one lock. For each it goes through the names of all chains
/// (`list_rules` in iptables/iptables.c), and other programs have the lock in between.
const LISTED_AT_ONCE: usize = 1_024;

const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Rule that stands for one that leads to a chain, and that iptables cannot show.
const UNSHOWN: &str = "-m comment --comment \"a rule that iptables cannot show\"";

/// Returns the table that a line of `iptables-nft-save` says that it does not show.
pub(super) fn unshown_table(line: &str) -> Option<Table> {
    if !(line.starts_with('#') && line.contains("is incompatible, use")) {
        return None;
    }
    let name = line.split(['`', '\'']).nth(1)?;
    Table::ALL.into_iter().find(|table| table.name() == name)
}

impl Rules {
    /// Puts the tables into what `iptables-nft-save` printed that it did not show.
    ///
    /// # Errors
    /// When such a table cannot be read in the other way either. A survey leaves it out, with a line
    /// that says so.
    pub(super) fn with_unshown(
        &self,
        saved: String,
        purpose: Purpose<'_>,
    ) -> Result<String, RulesError> {
        let tables: Vec<Table> = saved.lines().filter_map(unshown_table).collect();
        if tables.is_empty() {
            return Ok(saved);
        }
        let is_shown = |line: &&str| unshown_table(line).is_none();
        let mut text: String =
            saved.lines().filter(is_shown).flat_map(|line| [line, "\n"]).collect();
        for table in tables {
            text.push_str(&self.unshown(table, purpose)?);
        }
        Ok(text)
    }

    /// Returns these tables as the program saves each of them, or read chain by chain if it cannot show one.
    ///
    /// # Errors
    /// As those of [`with_unshown`](Self::with_unshown), and when one cannot be saved for another reason.
    pub(super) fn saved_each(
        &self,
        tables: &[Table],
        purpose: Purpose<'_>,
    ) -> Result<String, RulesError> {
        let mut text = String::new();
        for table in tables {
            let saved = installed::run(&self.programs.save, &["-t", table.name()], "");
            text.push_str(&match saved {
                Err(error) if error.cause().is_unshown() => self.unshown(*table, purpose)?,
                saved => self.with_unshown(saved?, purpose)?,
            });
        }
        Ok(text)
    }

    /// Returns the same of the tables that are there; none if the kernel does not say which these are.
    pub(super) fn saved_each_present(
        &self,
        purpose: Purpose<'_>,
    ) -> Option<Result<String, RulesError>> {
        let chains = present::chain_names(self.family(), self.backend())?;
        let is_there = |table: &Table| chains.iter().any(|(of, _)| of == table);
        let tables: Vec<Table> = Table::ALL.into_iter().filter(is_there).collect();
        Some(self.saved_each(&tables, purpose))
    }

    /// Returns a table that the program for saving does not show.
    fn unshown(&self, table: Table, purpose: Purpose<'_>) -> Result<String, RulesError> {
        match self.table_by_chain(table, purpose) {
            // After a moment it may be read.
            Err(error) if purpose == Purpose::Survey && !error.is_momentary() => {
                tracing::warn!("cannot read the {} table {table}: {error}", self.family());
                Ok(format!("{UNREAD}{table}\n"))
            }
            read => read,
        }
    }

    /// Returns a table as `iptables-save` prints it.
    fn table_by_chain(&self, table: Table, purpose: Purpose<'_>) -> Result<String, RulesError> {
        let family = self.family();
        let listed = match self.backend() {
            Backend::Nft => nft::chain_names(family),
            Backend::Legacy => legacy::chain_names(family, &[table]),
        };
        let all = listed.map_err(|source| RulesError::Unlisted { family, source })?;
        let counts = |name: &&str| {
            let is_word = name.len() <= LONGEST_NAME
                && !name.contains(|it: char| !it.is_ascii_graphic() || "\"'\\".contains(it));
            let is_known = name.starts_with("KUBE-") || BUILT_IN.contains(name);
            is_word && (purpose == Purpose::Survey || is_known)
        };
        let of_table = all.iter().filter(|(of, _)| *of == table).map(|(_, name)| name.as_str());
        let chains: Vec<&str> = of_table.filter(counts).collect();
        let mut listed = Listed::default();
        let at_once = match self.backend() {
            Backend::Nft => usize::MAX,
            Backend::Legacy => LISTED_AT_ONCE,
        };
        for chains in chains.chunks(at_once) {
            let mut left = chains.to_vec();
            while !left.is_empty() {
                left = self.list(table, &left, &mut listed)?;
            }
        }
        let mut unshown_rules = BTreeMap::new();
        let leads = |name: &&String| match purpose {
            Purpose::Compare(_) => BUILT_IN.contains(&name.as_str()),
            Purpose::Survey => !name.starts_with("KUBE-"),
        };
        for name in listed.unshown.iter().filter(leads) {
            unshown_rules.insert(name.clone(), self.jumps_from(table, name, purpose)?);
        }
        let is_absent = |name: &str| {
            matches!(purpose, Purpose::Compare(_))
                && listed.unshown.iter().any(|it| it == name)
                && !BUILT_IN.contains(&name)
        };
        let mut text = format!("{READ_BY_CHAIN}{table}\n*{table}\n");
        let names = || chains.iter().filter(|name| !is_absent(name));
        for name in names() {
            let policy = listed.policies.get(*name).map_or("-", String::as_str);
            let _ = writeln!(text, ":{name} {policy} [0:0]");
        }
        for name in names() {
            for rule in listed.rules.get(*name).or(unshown_rules.get(*name)).into_iter().flatten() {
                let _ = writeln!(text, "-A {name} {rule}");
            }
        }
        text.push_str("COMMIT\n");
        Ok(text)
    }

    /// Lists chains until the program ends at one that it cannot show. Returns those after that one.
    fn list<'a>(
        &self,
        table: Table,
        chains: &[&'a str],
        listed: &mut Listed,
    ) -> Result<Vec<&'a str>, RulesError> {
        let lines: String = chains.iter().map(|chain| format!("-S {chain}\n")).collect();
        let input = format!("*{table}\n{lines}COMMIT\n");
        let (program, arguments) = (&self.programs.restore, self.restore_arguments());
        let finished = installed::start(program, &arguments, &input)?;
        listed.add(&finished.stdout);
        if finished.status.success() {
            return Ok(Vec::new());
        }
        let is_unlisted = |chain: &&str| !listed.rules.contains_key(*chain);
        let first = chains.iter().position(is_unlisted).unwrap_or(chains.len());
        let unshown = match Cause::of(&finished.stderr) {
            Cause::ForeignRules => Some(first),
            // The program begins to list the chain, and ends in the middle of the rule.
            Cause::ForeignExtension => first.checked_sub(1),
            _ => None,
        };
        let Some((chain, left)) =
            unshown.and_then(|at| chains.get(at..)).and_then(<[&str]>::split_first)
        else {
            return Err(RulesError::failed(program, &arguments, &input, finished));
        };
        tracing::debug!("{table}: cannot show {chain}: {}", finished.stderr.trim());
        listed.rules.remove(*chain);
        listed.unshown.push((*chain).to_owned());
        Ok(left.to_vec())
    }

    /// Returns the rules of a chain that lead to chains of Kubernetes, in their order, as far as they are
    /// known jumps. A survey has all of them.
    fn jumps_from(
        &self,
        table: Table,
        chain: &str,
        purpose: Purpose<'_>,
    ) -> Result<Vec<String>, RulesError> {
        let family = self.family();
        let read = match self.backend() {
            Backend::Nft => nft::destinations(family, table, chain),
            Backend::Legacy => legacy::destinations(family, table, chain),
        };
        let destinations = read.map_err(|source| RulesError::Unlisted { family, source })?;
        let candidates = candidates(table, chain, purpose);
        let mut rules = Vec::new();
        let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for to in destinations.iter().filter(|to| to.starts_with("KUBE-")) {
            if !found.contains_key(to.as_str()) {
                let mut there = Vec::new();
                for jump in candidates.iter().filter(|jump| jump.to == to) {
                    if self.has_rule(table, chain, &jump.rule())? {
                        there.push(jump.rule());
                    }
                }
                // The last one stands for all copies that are left.
                there.reverse();
                found.insert(to, there);
            }
            let there = found.get_mut(to.as_str());
            let rule = there.and_then(|there| match there.len() {
                0 | 1 => there.first().cloned(),
                _ => there.pop(),
            });
            match rule {
                Some(rule) => rules.push(rule),
                None if purpose == Purpose::Survey => rules.push(format!("{UNSHOWN} -j {to}")),
                None => {}
            }
        }
        Ok(rules)
    }

    /// True if a chain has this rule, whatever else it has.
    fn has_rule(&self, table: Table, chain: &str, rule: &str) -> Result<bool, RulesError> {
        let words = plan::rule_set::words(rule);
        let mut arguments = vec!["-w", LOCK_WAIT, "-t", table.name(), "-C", chain];
        arguments.extend(words.iter().map(String::as_str));
        match installed::run(&self.programs.plain, &arguments, "") {
            Ok(_) => Ok(true),
            // Exit status 1: there is none. Others: it could not be tried.
            Err(RulesError::Failed(failure)) if failure.status.code() == Some(1) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Returns the jumps that a proxy may have in a built-in chain, each once.
fn candidates(table: Table, chain: &str, purpose: Purpose<'_>) -> Vec<Jump> {
    let desired = match purpose {
        Purpose::Compare(jumps) => jumps,
        Purpose::Survey => &[],
    };
    let mut candidates: Vec<Jump> = Vec::new();
    let all = desired.iter().copied().chain(jumps_of_all_modes().copied()).chain(COPY_JUMPS);
    for jump in all {
        let is_known = candidates.iter().any(|known| known.rule() == jump.rule());
        if (jump.table, jump.from) == (table, chain) && !is_known {
            candidates.push(jump);
        }
    }
    candidates
}

impl Listed {
    /// Takes in what `-S` printed of chains: `-P` or `-N`, and then the rules.
    fn add(&mut self, printed: &str) {
        for line in printed.lines() {
            let Some((option, rest)) = line.split_once(' ') else { continue };
            let (name, rule) = rest.split_once(' ').unwrap_or((rest, ""));
            match option {
                "-P" => {
                    self.policies.insert(name.to_owned(), rule.trim_end().to_owned());
                    self.rules.entry(name.to_owned()).or_default();
                }
                "-N" => drop(self.rules.entry(name.to_owned()).or_default()),
                "-A" => {
                    self.rules.entry(name.to_owned()).or_default().push(rule.trim_end().to_owned());
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_are_not_shown_are_those_of_ours() {
        let of = |table: &str| format!("# Table `{table}' is incompatible, use 'nft' tool.");
        assert_eq!(unshown_table(&of("nat")), Some(Table::Nat));
        assert_eq!(unshown_table(&of("raw")), None);
        assert_eq!(unshown_table("-A X -m comment --comment \"is incompatible, use `nat'\""), None);
        let other = "# Table `nat' contains incompatible base-chains, use 'nft' tool to list them.";
        assert_eq!(unshown_table(other), None);
    }

    #[test]
    fn every_jump_that_a_proxy_may_have_is_asked_for_once() {
        for jump in jumps_of_all_modes() {
            let all = candidates(jump.table, jump.from, Purpose::Survey);
            assert_eq!(all.iter().filter(|it| it.rule() == jump.rule()).count(), 1, "{jump}");
        }
    }
}
