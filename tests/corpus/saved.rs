//! Rules as `iptables-save` prints them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plan::rule_set::RuleSet;

/// The rules of some tables, by table and chain. A chain without rules is there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Saved {
    pub(crate) chains: BTreeMap<(String, String), Vec<String>>,
}

impl Saved {
    /// Reads what `iptables-save` prints, or `iptables-restore` takes.
    pub(crate) fn parse(text: &str) -> Self {
        let mut saved = Self::default();
        let mut table = "";
        for line in text.lines() {
            let words = line.split_once(' ').map_or((line, ""), |words| words);
            if let Some(name) = line.strip_prefix('*') {
                table = name;
                for chain in built_in(table) {
                    saved.chains.insert((table.into(), (*chain).into()), Vec::new());
                }
            } else if let (chain, _) = words
                && let Some(name) = chain.strip_prefix(':')
            {
                saved.chains.entry((table.into(), name.into())).or_default();
            } else if let ("-A", rest) = words {
                let (chain, rule) = rest.split_once(' ').unwrap();
                saved.chain(table, chain).push(rule.into());
            } else if let ("-I", rest) = words {
                let (chain, rule) = rest.split_once(" 1 ").unwrap();
                saved.chain(table, chain).insert(0, rule.into());
            } else {
                assert!(["COMMIT", "", "#"].contains(&words.0), "{line}");
            }
        }
        saved
    }

    fn chain(&mut self, table: &str, chain: &str) -> &mut Vec<String> {
        let rules = self.chains.get_mut(&(table.into(), chain.into()));
        rules.unwrap_or_else(|| panic!("{table} has no chain {chain}"))
    }

    /// The constant rules of a mode. The jumps are not among them.
    pub(crate) fn of_rule_set(rules: &RuleSet) -> Self {
        let chains = rules.chains().iter();
        let named = |chain: &plan::rule_set::Chain| {
            ((chain.table.name().into(), chain.name.into()), chain.rules.clone())
        };
        Self { chains: chains.map(named).collect() }
    }

    /// The rules of a chain; none if there is no such chain.
    pub(crate) fn rules(&self, table: &str, chain: &str) -> &[String] {
        self.chains.get(&(table.into(), chain.into())).map_or(&[], Vec::as_slice)
    }

    /// The chains of kube-proxy's names.
    pub(crate) fn ours(&self) -> impl Iterator<Item = (&str, &str, &[String])> {
        let chains = self.chains.iter();
        let chains = chains.map(|((table, name), rules)| (&**table, &**name, &**rules));
        chains.filter(|(_, name, _)| name.starts_with("KUBE-"))
    }
}

/// The built-in chains of a table.
fn built_in(table: &str) -> &'static [&'static str] {
    match table {
        "nat" => &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"],
        "filter" => &["INPUT", "FORWARD", "OUTPUT"],
        _ => &[],
    }
}

/// Lines of two texts that only one of them has, as a message.
pub(crate) fn difference<'a>(
    theirs: impl IntoIterator<Item = &'a String>,
    ours: impl IntoIterator<Item = &'a String>,
) -> String {
    let count = |lines: &mut dyn Iterator<Item = &'a String>| {
        let mut counts = BTreeMap::new();
        lines.for_each(|line| *counts.entry(line.as_str()).or_insert(0) += 1);
        counts
    };
    let (theirs, ours) = (count(&mut theirs.into_iter()), count(&mut ours.into_iter()));
    let mut text = String::new();
    let mut only = |mark: &str, these: &BTreeMap<&str, i32>, those: &BTreeMap<&str, i32>| {
        for (line, n) in these {
            let more = n - those.get(line).unwrap_or(&0);
            for _ in 0..more {
                let _ = writeln!(text, "{mark} {line}");
            }
        }
    };
    only("kube-proxy:", &theirs, &ours);
    only("here:      ", &ours, &theirs);
    text
}
