//! Reading what `iptables-save` prints, and comparing.

use std::borrow::Cow;
use std::fmt;

use ipnet::IpNet;

use super::dispatch;
use super::{COPY_JUMPS, Chain, Jump, JumpDestination, RuleSet, Table};
use crate::hash::HashMap;
use crate::mode::OtherRules;

/// Differences between the rules that are there and those that should be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Comparison {
    /// Jumps that are not there, in the order of [`RuleSet::jumps`].
    pub missing_jumps: Vec<Jump>,
    /// Jumps of another mode, or to be replaced by others of this one, that must not be there, and are:
    /// each once for each copy.
    pub superseded_jumps: Vec<Jump>,
    /// Jumps that are there, and in another order than they would be written, or more than once: each once
    /// for each copy, with all others of their built-in chain.
    pub misplaced_jumps: Vec<Jump>,
    /// Rules of nat's built-in chains, each with its chain, that lead to a relay of mode userspace and
    /// must not be there.
    pub portal_jumps: Vec<(&'static str, String)>,
    /// Shared chains that are not there.
    pub absent_shared: Vec<(Table, &'static str)>,
    /// Rules that the shared chains lack.
    pub missing_rules: Vec<(Table, &'static str, String)>,
    /// Chains of ours that are not as they should be, each with what differs first.
    pub differing: Vec<ChainDifference>,
    /// True if rules that come before those of this mode lead connections to Services: in ipvs mode any
    /// of another mode, in iptables mode portals of mode userspace. By itself that is no difference.
    pub is_led_by_rules: bool,
}

/// First difference in a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainDifference {
    /// There is no such chain.
    Absent {
        table: Table,
        /// Its name.
        chain: &'static str,
    },
    /// A rule is missing, is another one, or is one too many.
    Rule {
        /// The chain's table.
        table: Table,
        chain: &'static str,
        /// The rule's place in the chain, from 1.
        number: usize,
        /// The rule that should be there; none: the chain should have ended.
        wanted: Option<String>,
        /// The rule that is there; none: the chain ended.
        found: Option<String>,
    },
}

/// The rules of our tables, as saved.
pub(super) struct Saved<'a> {
    by_chain: HashMap<(Table, &'a str), Vec<&'a str>>,
}

/// A rule's words, in groups that can stand in any order: `-s …`, `! -i …`, `-m set …`, `-j …`.
pub(crate) type Meaning<'a> = Vec<Vec<Cow<'a, str>>>;

/// Iterator over the words of a rule.
struct Words<'a> {
    rest: &'a str,
}

pub(super) fn compare(rule_set: &RuleSet, saved: &Saved<'_>) -> Comparison {
    let is_missing = |jump: &&Jump| !saved.has((jump.table, jump.from), &jump.rule());
    let missing_jumps: Vec<Jump> = rule_set.jumps().iter().filter(is_missing).copied().collect();
    // Such a mode is come to in two steps, and kube-proxy's jumps are inserted into the same chains.
    let led_by = rule_set.mode().properties().led_by;
    let misplaced_jumps = if led_by == OtherRules::Any {
        saved.misplaced(rule_set.jumps(), &missing_jumps)
    } else {
        Vec::new()
    };
    let is_there = |jump: &&Jump| saved.has((jump.table, jump.from), &jump.rule());
    let copies = COPY_JUMPS.iter().filter(|_| !rule_set.spares_copies);
    let elsewhere = rule_set.jumps().iter().flat_map(|jump| saved.elsewhere(jump));
    let is_desired = |jump: &Jump| rule_set.jumps().contains(jump);
    let mut superseded_jumps: Vec<Jump> =
        rule_set.superseded.iter().chain(copies).filter(is_there).copied().collect();
    for jump in elsewhere.filter(|jump| !is_desired(jump)) {
        if !superseded_jumps.contains(&jump) {
            superseded_jumps.push(jump);
        }
    }
    let copies = |jump: Jump| std::iter::repeat_n(jump, saved.count(&jump));
    let superseded_jumps = superseded_jumps.into_iter().flat_map(copies).collect();
    let mut portal_jumps =
        if led_by == OtherRules::None { Vec::new() } else { dispatch::portal_jumps(saved) };
    let is_led_by_rules = match led_by {
        OtherRules::Any => dispatch::is_led_by_rules(saved),
        OtherRules::Portals | OtherRules::None => !portal_jumps.is_empty(),
    };
    if !rule_set.has_dispatch() {
        portal_jumps.clear();
    }
    let is_absent = |(table, chain): &(Table, &'static str)| !saved.has_chain((*table, chain));
    let shared = rule_set.shared().iter().map(|chain| (chain.table, chain.name));
    let absent_shared = shared.filter(is_absent).collect();
    let missing_rules = rule_set.shared().iter().flat_map(|chain| saved.lacking(chain)).collect();
    let differing = rule_set
        .chains()
        .iter()
        .filter_map(|chain| {
            let (table, name) = (chain.table, chain.name);
            let Some(found) = saved.by_chain.get(&(table, name)) else {
                return Some(ChainDifference::Absent { table, chain: name });
            };
            let wanted = &chain.rules;
            (0..wanted.len().max(found.len()))
                .map(|at| (at, wanted.get(at), found.get(at)))
                .find(|(_, wanted, found)| {
                    wanted.map(|rule| meaning(rule)) != found.map(|rule| meaning(rule))
                })
                .map(|(at, wanted, found)| ChainDifference::Rule {
                    table,
                    chain: name,
                    number: at + 1,
                    wanted: wanted.cloned(),
                    found: found.map(|rule| (*rule).to_owned()),
                })
        })
        .collect();
    Comparison {
        missing_jumps,
        superseded_jumps,
        misplaced_jumps,
        portal_jumps,
        absent_shared,
        missing_rules,
        differing,
        is_led_by_rules,
    }
}

impl Comparison {
    /// True if everything is as it should be.
    #[must_use]
    pub fn matches(&self) -> bool {
        self.missing_jumps.is_empty()
            && self.superseded_jumps.is_empty()
            && self.misplaced_jumps.is_empty()
            && self.portal_jumps.is_empty()
            && self.absent_shared.is_empty()
            && self.missing_rules.is_empty()
            && self.differing.is_empty()
    }
}

impl fmt::Display for Comparison {
    /// Writes what is not as it should be, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.matches() {
            return f.write_str("all rules are as desired");
        }
        let jumps = self.missing_jumps.iter().map(|jump| format!("{jump}: jump missing"));
        let superseded = self.superseded_jumps.iter();
        let superseded =
            superseded.map(|jump| format!("{jump}: jump to be removed: `{}`", jump.rule()));
        let misplaced = self.misplaced_jumps.iter();
        let misplaced =
            misplaced.map(|jump| format!("{jump}: jump in the wrong order, or more than once"));
        let portals = self.portal_jumps.iter();
        let portals = portals
            .map(|(from, rule)| format!("nat: {from} has `{rule}`, which belongs to another mode"));
        let absent = self.absent_shared.iter();
        let absent = absent.map(|(table, chain)| format!("{table}: chain {chain} is missing"));
        let rules = self.missing_rules.iter();
        let rules = rules.map(|(table, chain, rule)| format!("{table}: {chain} lacks `{rule}`"));
        let chains = self.differing.iter().map(ToString::to_string);
        let all = jumps
            .chain(superseded)
            .chain(misplaced)
            .chain(portals)
            .chain(absent)
            .chain(rules)
            .chain(chains);
        f.write_str(&all.collect::<Vec<_>>().join("; "))
    }
}

impl fmt::Display for ChainDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { table, chain } => write!(f, "{table}: chain {chain} is missing"),
            Self::Rule { table, chain, number, wanted, found } => {
                write!(f, "{table}: {chain} rule {number} ")?;
                match (wanted, found) {
                    (Some(wanted), Some(found)) => {
                        write!(f, "should be `{wanted}` and is `{found}`")
                    }
                    (Some(wanted), None) => write!(f, "is missing: `{wanted}`"),
                    (None, Some(found)) => write!(f, "should not be there: `{found}`"),
                    (None, None) => f.write_str("is as it should be"),
                }
            }
        }
    }
}

impl<'a> Saved<'a> {
    pub(super) fn parse(text: &'a str) -> Self {
        let mut by_chain: HashMap<_, Vec<&str>> = HashMap::default();
        let mut current = None;
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('*') {
                current = Table::ALL.into_iter().find(|table| table.name() == name);
            }
            let Some(table) = current else { continue };
            if let Some(declaration) = line.strip_prefix(':') {
                let name = declaration.split_whitespace().next().unwrap_or_default();
                by_chain.entry((table, name)).or_default();
            } else if let Some((chain, rule)) =
                without_counters(line).strip_prefix("-A ").map(first_word)
            {
                by_chain.entry((table, chain)).or_default().push(rule);
            }
        }
        Self { by_chain }
    }

    /// True if a rule is there, anywhere in its chain.
    fn has(&self, chain: (Table, &str), rule: &str) -> bool {
        let wanted = meaning(rule);
        self.by_chain
            .get(&chain)
            .is_some_and(|rules| rules.iter().any(|rule| meaning(rule) == wanted))
    }

    /// Number of copies of a jump.
    fn count(&self, jump: &Jump) -> usize {
        let (rule, rules) = (jump.rule(), self.rules(jump.table, jump.from));
        let wanted = meaning(&rule);
        rules.iter().filter(|rule| meaning(rule) == wanted).count()
    }

    /// The jumps that are there, of the built-in chains where they would not be in the order of `jumps`, each
    /// before the one written before it, once the missing ones are written.
    fn misplaced(&self, jumps: &[Jump], missing: &[Jump]) -> Vec<Jump> {
        let mut misplaced = Vec::new();
        let mut origins: Vec<(Table, &str)> =
            jumps.iter().map(|jump| (jump.table, jump.from)).collect();
        origins.sort_unstable();
        origins.dedup();
        for (table, from) in origins {
            let of_chain = |jump: &&Jump| (jump.table, jump.from) == (table, from);
            let wanted: Vec<Jump> = jumps.iter().rev().filter(of_chain).copied().collect();
            let texts: Vec<String> = wanted.iter().map(Jump::rule).collect();
            let meanings: Vec<Meaning<'_>> = texts.iter().map(|rule| meaning(rule)).collect();
            let known = |rule: &&str| {
                let found = meaning(rule);
                let at = meanings.iter().position(|wanted| *wanted == found)?;
                wanted.get(at).copied()
            };
            let rules = self.rules(table, from).iter().filter(|rule| rule.contains("KUBE-"));
            let found: Vec<Jump> = rules.filter_map(known).collect();
            let before = wanted.iter().filter(|jump| missing.contains(jump));
            if !wanted.iter().eq(before.chain(&found)) {
                misplaced.extend(found);
            }
        }
        misplaced
    }

    /// The same jump for other destinations, where there is one and the jump is for some
    /// destinations only: left from when node ports were at other addresses of the node.
    fn elsewhere<'b>(&'b self, jump: &Jump) -> impl Iterator<Item = Jump> + use<'a, 'b> {
        let is_for_some = jump.destination != JumpDestination::Any;
        let rules = self.by_chain.get(&(jump.table, jump.from)).filter(|_| is_for_some);
        let jump = *jump;
        rules.into_iter().flatten().filter_map(move |rule| {
            let words = words(rule);
            let after = |option: &str| {
                let at = words.iter().position(|word| word == option)?;
                words.get(at + 1)
            };
            if after("-j")? != jump.to {
                return None;
            }
            let host = |net: &String| net.parse().ok().map(|net: IpNet| net.addr());
            let destination = match after("-d") {
                Some(net) => JumpDestination::Host(net.parse().ok().or_else(|| host(net))?),
                None => JumpDestination::Local,
            };
            let other = jump.with_destination(destination);
            (meaning(&other.rule()) == meaning(rule)).then_some(other)
        })
    }

    fn has_chain(&self, chain: (Table, &str)) -> bool {
        self.by_chain.contains_key(&chain)
    }

    /// The rules that are in a chain.
    pub(super) fn rules<'b>(&'b self, table: Table, chain: &'b str) -> &'b [&'b str] {
        self.by_chain.get(&(table, chain)).map_or(&[], Vec::as_slice)
    }

    /// The rules of a chain that are not in it.
    fn lacking<'b>(
        &'b self,
        chain: &'b Chain,
    ) -> impl Iterator<Item = (Table, &'static str, String)> + use<'a, 'b> {
        let is_missing = |rule: &&String| !self.has((chain.table, chain.name), rule);
        let missing = chain.rules.iter().filter(is_missing);
        missing.map(|rule| (chain.table, chain.name, rule.clone()))
    }
}

/// `[12:3456] -A …` is how `iptables-save --counters` begins a rule.
fn without_counters(line: &str) -> &str {
    match line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((_, rule)) => rule,
        None => line,
    }
}

/// The first word and what follows it, which may be nothing.
fn first_word(text: &str) -> (&str, &str) {
    text.split_once(' ').unwrap_or((text, ""))
}

/// Meaning of a rule, independent of how the iptables of this host prints it.
pub(crate) fn meaning(rule: &str) -> Meaning<'_> {
    let mut groups: Meaning<'_> = Vec::new();
    let mut words = Words { rest: rule }.peekable();
    while let Some(word) = words.next() {
        let is_negated_start = word == "!" && words.peek().is_some_and(|next| starts_group(next));
        let follows_negation = matches!(
            groups.last().map(Vec::as_slice),
            Some([negation]) if negation == "!"
        );
        match groups.last_mut() {
            Some(group) if follows_negation || !(is_negated_start || starts_group(&word)) => {
                group.push(address_form(word));
            }
            _ => groups.push(vec![word]),
        }
    }
    groups.sort_unstable();
    groups
}

/// True if two rules mean the same, however they are printed.
#[must_use]
pub fn is_same_rule(one: &str, other: &str) -> bool {
    one == other || meaning(one) == meaning(other)
}

/// Options with one dash begin a match, a target or a match on the packet's header; those with two
/// belong to the match or target before them.
fn starts_group(word: &str) -> bool {
    matches!(word, "-m" | "-j" | "-g" | "-p" | "-s" | "-d" | "-i" | "-o")
}

/// One form for a network that can be written in several.
fn address_form(word: Cow<'_, str>) -> Cow<'_, str> {
    if !word.contains('/') {
        return word;
    }
    match word.parse::<IpNet>().map(|net| net.trunc().to_string()) {
        Ok(net) if net != *word => Cow::Owned(net),
        _ => word,
    }
}

/// The words of a rule. iptables quotes with `"` and puts `\` before quotes and backslashes.
#[must_use]
pub fn words(rule: &str) -> Vec<String> {
    Words { rest: rule }.map(Cow::into_owned).collect()
}

impl<'a> Words<'a> {
    /// A word that is in the rule as it is: without quotes, or inside a pair of them.
    fn plain(&mut self) -> Option<&'a str> {
        let (word, rest) = match self.rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => {
                let end = self.rest.find(char::is_whitespace).unwrap_or(self.rest.len());
                self.rest.split_at_checked(end)?
            }
        };
        let ends = rest.is_empty() || rest.starts_with(char::is_whitespace);
        if !ends || word.contains(['"', '\\']) {
            return None;
        }
        self.rest = rest;
        Some(word)
    }

    fn unquoted(&mut self) -> String {
        let mut word = String::new();
        let mut quoted = false;
        let mut characters = self.rest.chars();
        while let Some(character) = characters.next() {
            match character {
                '"' => quoted = !quoted,
                '\\' => word.extend(characters.next()),
                space if space.is_whitespace() && !quoted => break,
                other => word.push(other),
            }
        }
        self.rest = characters.as_str();
        word
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = Cow<'a, str>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rest = self.rest.trim_start();
        if self.rest.is_empty() {
            return None;
        }
        Some(self.plain().map_or_else(|| Cow::Owned(self.unquoted()), Cow::Borrowed))
    }
}
