//! Rules and chains that are to be removed, from what `iptables-save` printed.
//!
//! Only names that kube-proxy has, in the tables where it has them, and the jumps into them by
//! their comments. What the kubelet makes (`KUBE-FIREWALL`, `KUBE-KUBELET-CANARY`,
//! `KUBE-IPTABLES-HINT`, `KUBE-MARK-DROP`) is on no list here. A `KUBE-FIREWALL` without rules is not the
//! kubelet's, which makes it for its rule.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

use plan::backend::{former_jumps, jumps};
use plan::mode::Mode;
use plan::op::PartKind;
use plan::rule_set::{self, COPY_JUMPS, Jump, RuleSet};
use plan::sets::SetId;

use crate::mode;
use kernel::rules::UNREAD;
use syntax::counted::counted;

/// Extent of the removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalScope {
    /// Everything that kube-proxy made in any mode, and that we made.
    Everything,
    /// Rules and chains that other modes than these made, ours or kube-proxy's, and these do not use.
    ModesBut(&'static [Mode]),
    /// Rules and chains that we made for mode ipvs, and kube-proxy's does not have.
    OursAlone,
}

/// Rules and chains to be removed from one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableRemoval {
    /// The table's name.
    pub(super) table: String,
    /// Input for `iptables-restore --noflush`; none if nothing of it can be removed.
    pub(super) input: Option<String>,
    /// Number of rules that are removed from chains that stay.
    pub(super) n_rules: usize,
    /// Number of chains that are removed.
    pub(super) n_chains: usize,
    /// Chains that stay, because rules of other programs lead into them.
    pub(super) held: Vec<HeldChain>,
}

/// A chain that stays, because a rule of another program leads into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldChain {
    pub(super) chain: String,
    /// Rule that leads into the chain, as saved.
    pub(super) by: String,
}

/// A table of rules, as saved.
#[derive(Debug)]
struct SavedTable<'a> {
    name: &'a str,
    chains: Vec<&'a str>,
    rules: Vec<SavedRule<'a>>,
}

#[derive(Debug)]
struct SavedRule<'a> {
    chain: &'a str,
    /// Text after the chain's name.
    text: &'a str,
    target: Option<String>,
    comment: Option<String>,
    /// Set of mode ipvs that the rule looks into.
    set: Option<SetId>,
}

/// Chains that earlier versions had in IPVS mode, and that nothing leads into any more.
const FORMER_CHAINS: [(&str, &str); 2] =
    [("nat", "KUBE-SHORT-CIRCUIT"), ("nat", "KUBE-SPARE-SHORT-CIRCUIT")];

/// Mode whose rules [`RemovalScope::OursAlone`] leaves to kube-proxy.
const HANDED_OVER: Mode = mode::ipvs::ITSELF;

/// Chains of mode ipvs that kube-proxy does not have: table and name.
const OURS_ALONE: [(&str, &str); 5] = [
    ("nat", "KUBE-INTERNAL-FRONTEND"),
    FORMER_CHAINS[0],
    FORMER_CHAINS[1],
    ("mangle", "KUBE-PROXY-FIREWALL"),
    ("mangle", "KUBE-SOURCE-RANGES-FIREWALL"),
];

/// Chains that the kubelet makes.
const KUBELET_CHAINS: [&str; 4] =
    ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT", "KUBE-MARK-DROP"];

/// The one of these that iptables mode has as well.
const FIREWALL: &str = "KUBE-FIREWALL";

/// Chain that probes make and remove. It stays where a process is killed meanwhile.
const OF_PROBES: &str = "KUBE-PROBE";

/// Other programs (host ports of containers, older kubelets) mark packets with the first of these,
/// and what is marked is masqueraded by the second. They stay together or go together.
const MARKING: [&str; 2] = ["KUBE-MARK-MASQ", "KUBE-POSTROUTING"];

/// Returns what is to be removed from the tables that `saved` has, by table. Tables with nothing to
/// remove are left out.
pub(super) fn removals(saved: &str, scope: RemovalScope) -> Vec<TableRemoval> {
    tables(saved).iter().filter_map(|table| table.removal(scope)).collect()
}

/// True if one of the chains is to be removed, or rules of it. Jumps into a chain are not there without
/// it.
pub(super) fn lists_any(chains: &[(rule_set::Table, String)], scope: RemovalScope) -> bool {
    chains.iter().any(|(table, chain)| {
        let table = SavedTable { name: table.name(), chains: Vec::new(), rules: Vec::new() };
        table.is_listed(chain, scope)
    })
}

/// Sorts the chains whose names begin with `KUBE-`. Returns the number of those that a proxy has made,
/// and those of other programs. The kubelet's are among neither.
pub(super) fn sort_chains(saved: &str) -> (usize, BTreeSet<&str>) {
    let (mut n_of_proxies, mut others) = (0, BTreeSet::new());
    for table in tables(saved) {
        for chain in table.chains.iter().filter(|chain| chain.starts_with("KUBE-")) {
            if table.is_listed(chain, RemovalScope::Everything) {
                n_of_proxies += 1;
            } else if !KUBELET_CHAINS.contains(chain) {
                others.insert(*chain);
            }
        }
    }
    (n_of_proxies, others)
}

/// The tables that were left out, because iptables cannot show rules of other programs there.
pub(super) fn unreadable(saved: &str) -> Vec<&str> {
    saved.lines().filter_map(|line| line.strip_prefix(UNREAD)).collect()
}

/// True if something is needed only while a node leaves mode ipvs, and these modes are not those of
/// such a node.
fn is_of_leaving_alone(modes: &[Mode], is_of_leaving: bool) -> bool {
    let is_ipvs = |mode: &Mode| mode.uses(PartKind::VirtualServers);
    let leaves_ipvs = modes.iter().any(is_ipvs) && !modes.iter().all(is_ipvs);
    is_of_leaving && !leaves_ipvs
}

/// True if something is another mode's, and of none of these.
fn is_of_others_alone(modes: &[Mode], is_of: impl Fn(Mode) -> bool) -> bool {
    let is_in = |mode: Mode| modes.contains(&mode);
    Mode::ALL.into_iter().any(|mode| !is_in(mode) && is_of(mode))
        && !modes.iter().any(|mode| is_of(*mode))
}

fn tables(saved: &str) -> Vec<SavedTable<'_>> {
    let mut tables: Vec<SavedTable<'_>> = Vec::new();
    for line in saved.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('*') {
            tables.push(SavedTable { name, chains: Vec::new(), rules: Vec::new() });
        }
        let Some(table) = tables.last_mut() else { continue };
        if let Some(declaration) = line.strip_prefix(':') {
            table.chains.extend(declaration.split_whitespace().next());
        } else if let Some(rule) = line.strip_prefix("-A ") {
            table.rules.push(SavedRule::parse(rule));
        }
    }
    tables
}

impl<'a> SavedTable<'a> {
    fn removal(&self, scope: RemovalScope) -> Option<TableRemoval> {
        let listed = self.chains.iter().copied().filter(|chain| self.is_listed(chain, scope));
        let mut chains: BTreeSet<&str> = listed.collect();
        let held = self.held(&chains, scope);
        let mut spared: &[&str] = &[];
        if held.iter().any(|held| held.chain == MARKING[0]) {
            spared = &MARKING;
            chains.retain(|chain| !spared.contains(chain));
        }
        if scope != RemovalScope::Everything {
            // The rules that lead into these chains may be a proxy's that is at work. These chains
            // stay as they are, and so do those that they lead into.
            let mut left = held.clone();
            while !left.is_empty() {
                chains.retain(|chain| !left.iter().any(|held| held.chain == *chain));
                left = self.held(&chains, scope);
            }
        }
        let is_held = |chain: &str| held.iter().any(|held| held.chain == chain);
        let removable: Vec<&str> = chains.iter().copied().filter(|chain| !is_held(chain)).collect();
        let rules = self.removed_rules(&chains, spared, scope);
        let is_empty = |chain: &str| !self.rules.iter().any(|rule| rule.chain == chain);
        let nothing =
            rules.is_empty() && removable.is_empty() && chains.iter().all(|c| is_empty(c));
        if nothing && held.is_empty() {
            return None;
        }
        Some(TableRemoval {
            table: self.name.to_owned(),
            input: (!nothing).then(|| self.input(&chains, &rules, &removable, scope)),
            n_rules: rules.len(),
            n_chains: removable.len(),
            held,
        })
    }

    /// Those of the chains that rules lead into which stay.
    fn held(&self, chains: &BTreeSet<&str>, scope: RemovalScope) -> Vec<HeldChain> {
        let mut held: Vec<HeldChain> = Vec::new();
        for rule in self.rules.iter().filter(|rule| !chains.contains(rule.chain)) {
            let Some(target) = rule.target.as_deref().filter(|target| chains.contains(target))
            else {
                continue;
            };
            if !self.is_removable(rule, scope) && !held.iter().any(|held| held.chain == target) {
                held.push(HeldChain { chain: target.to_owned(), by: rule.to_string() });
            }
        }
        held
    }

    /// The rules to be taken out of chains that stay.
    fn removed_rules(
        &self,
        chains: &BTreeSet<&str>,
        spared: &[&str],
        scope: RemovalScope,
    ) -> Vec<&SavedRule<'a>> {
        let is_removable = |rule: &&SavedRule<'_>| {
            if chains.contains(rule.chain) {
                return false;
            }
            let leads_to_spared = rule.target.as_deref().is_some_and(|t| spared.contains(&t));
            if self.is_removable(rule, scope) {
                return !leads_to_spared;
            }
            spared.contains(&rule.chain) && rule.set.is_some()
        };
        self.rules.iter().filter(is_removable).collect()
    }

    /// Empties the chains, takes the rules away, and removes those of the chains that are
    /// removable.
    fn input(
        &self,
        chains: &BTreeSet<&str>,
        rules: &[&SavedRule<'_>],
        removable: &[&str],
        scope: RemovalScope,
    ) -> String {
        let mut lines = vec![format!("*{}", self.name)];
        lines.extend(chains.iter().map(|chain| format!(":{chain} - [0:0]")));
        // In one step with the removal of what they replace; the last one comes to stand first.
        let replaced = rules.iter().rev().filter(|_| scope == RemovalScope::OursAlone);
        let replacements =
            replaced.filter_map(|rule| Some((rule.chain, self.kube_proxys_jump(rule)?)));
        let mut replacements: Vec<(&str, String)> = replacements.collect();
        // kube-proxy may have started already.
        replacements.retain(|(chain, jump)| !self.has(chain, jump));
        lines.extend(replacements.iter().map(|(chain, jump)| format!("-I {chain} 1 {jump}")));
        lines.extend(rules.iter().map(|rule| format!("-D {} {}", rule.chain, rule.text)));
        lines.extend(removable.iter().map(|chain| format!("-X {chain}")));
        lines.push("COMMIT\n".to_owned());
        lines.join("\n")
    }

    /// True if a chain has a rule, however it is printed.
    fn has(&self, chain: &str, rule: &str) -> bool {
        let mut rules = self.rules.iter().filter(|found| found.chain == chain);
        rules.any(|found| rule_set::is_same_rule(found.text, rule))
    }

    fn is_listed(&self, chain: &str, scope: RemovalScope) -> bool {
        let is_of = |mode| self.has_chain_of(mode, chain);
        let is_of_leaving = RuleSet::copy_chain_names()
            .any(|(table, name)| (table.name(), name) == (self.name, chain));
        let is_former = FORMER_CHAINS.contains(&(self.name, chain));
        match scope {
            RemovalScope::Everything => {
                is_former || is_of_leaving || Mode::ALL.into_iter().any(is_of) || chain == OF_PROBES
            }
            // `KUBE-SERVICES` of nat and others are chains of several modes.
            RemovalScope::ModesBut(modes) => {
                is_of_leaving_alone(modes, is_former || is_of_leaving)
                    || is_of_others_alone(modes, is_of)
            }
            RemovalScope::OursAlone => is_of_leaving || OURS_ALONE.contains(&(self.name, chain)),
        }
    }

    fn has_chain_of(&self, mode: Mode, chain: &str) -> bool {
        let mode = mode::of(mode);
        (mode.has_chain)(self.name, chain)
            || mode.has_firewall
                && (self.name, chain) == ("filter", FIREWALL)
                && self.is_emptied(chain)
    }

    /// True if a chain is there and has no rule.
    fn is_emptied(&self, chain: &str) -> bool {
        self.chains.contains(&chain) && !self.rules.iter().any(|rule| rule.chain == chain)
    }

    /// True if the rule, which stands in a chain that stays, is to be removed.
    fn is_removable(&self, rule: &SavedRule<'_>, scope: RemovalScope) -> bool {
        self.is_jump(rule, scope)
            || rule.text == "-j KUBE-FIREWALL" && self.is_listed(FIREWALL, scope)
            || scope == RemovalScope::OursAlone
                && (self.is_beside_kube_proxys(rule) || self.kube_proxys_jump(rule).is_some())
    }

    /// Returns the jump that kube-proxy has in place of one of ours, which is for unestablished
    /// connections alone: it would put its own beside ours.
    fn kube_proxys_jump(&self, rule: &SavedRule<'_>) -> Option<String> {
        let is_this = |jump: &&Jump| {
            (jump.table.name(), jump.from) == (self.name, rule.chain)
                && rule.target.as_deref() == Some(jump.to)
                && rule.comment.as_deref() == jump.comment
        };
        let former = former_jumps(HANDED_OVER).iter().find(is_this)?.rule();
        let is_of_kube_proxy = !OURS_ALONE.contains(&(self.name, rule.target.as_deref()?));
        (is_of_kube_proxy && rule.text.contains("--ctstate")).then_some(former)
    }

    /// True if the rule is one of the jumps to be removed. Other matches in the rule do not count:
    /// they have varied between versions of kube-proxy.
    fn is_jump(&self, rule: &SavedRule<'_>, scope: RemovalScope) -> bool {
        let (Some(target), Some(comment)) = (rule.target.as_deref(), &rule.comment) else {
            return false;
        };
        let is_this = |jump: &Jump| {
            (jump.table.name(), jump.from, jump.to) == (self.name, rule.chain, target)
                && jump.comment == Some(comment.as_str())
        };
        let is_of = |mode| jumps(mode).iter().chain(former_jumps(mode)).any(is_this);
        let is_of_leaving = COPY_JUMPS.iter().any(is_this);
        match scope {
            RemovalScope::Everything => is_of_leaving || Mode::ALL.into_iter().any(is_of),
            // Modes have some jumps in common: into `KUBE-SERVICES` and `KUBE-POSTROUTING` of `nat`
            // and into `KUBE-FORWARD` of `filter`, or those that lead to refusals.
            RemovalScope::ModesBut(modes) => {
                is_of_leaving_alone(modes, is_of_leaving) || is_of_others_alone(modes, is_of)
            }
            RemovalScope::OursAlone => {
                is_of_leaving || OURS_ALONE.contains(&(self.name, target)) && is_of(HANDED_OVER)
            }
        }
    }

    /// True if the rule is one of ours in a chain that kube-proxy has as well, which it does not put
    /// there.
    fn is_beside_kube_proxys(&self, rule: &SavedRule<'_>) -> bool {
        let leads_to_ours =
            rule.target.as_deref().is_some_and(|target| OURS_ALONE.contains(&(self.name, target)));
        let looks_into_ours = rule.set.is_some_and(|set| !set.kind.is_of_kube_proxy());
        let is_comment_of_ours = rule.comment.as_deref() == Some(rule_set::UNANSWERED);
        self.has_chain_of(HANDED_OVER, rule.chain)
            && (leads_to_ours || looks_into_ours || is_comment_of_ours)
    }
}

impl<'a> SavedRule<'a> {
    fn parse(rule: &'a str) -> Self {
        let (chain, text) = rule.split_once(' ').unwrap_or((rule, ""));
        let words = rule_set::words(text);
        let after = |options: &[&str]| {
            let at = words.iter().position(|word| options.contains(&word.as_str()))?;
            words.get(at + 1).cloned()
        };
        Self {
            chain,
            text,
            target: after(&["-j", "-g"]),
            comment: after(&["--comment"]),
            set: after(&["--match-set"]).and_then(|set| SetId::by_name(&set)),
        }
    }
}

impl fmt::Display for SavedRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-A {} {}", self.chain, self.text)
    }
}

impl fmt::Display for TableRemoval {
    /// `nat: 3 rules, 17 chains`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [(self.n_rules, "rule"), (self.n_chains, "chain")].into_iter();
        let parts = parts.filter(|(count, _)| *count > 0).map(|(count, what)| counted(count, what));
        write!(f, "{}: {}", self.table, parts.collect::<Vec<_>>().join(", "))
    }
}
