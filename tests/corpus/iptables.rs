//! Mode iptables: the chains are kube-proxy's, line for line, but for exceptions.

use std::collections::BTreeMap;

use plan::mode::Mode;
use plan::model::Family;

use crate::cluster::{Node, Stage, clusters, settings};
use crate::lint::lint;
use crate::saved::{Saved, difference};

/// Chains with rules of many Services, which kube-proxy writes in an order of Services that is random
/// in every sync.
const SHARED: [&str; 4] =
    ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"];

/// Exception: kube-proxy sees by its canaries, which have no rules, that another program has emptied
/// a table. Here the table itself is watched.
const CANARY: &str = "KUBE-PROXY-CANARY";

/// The frontend that a rule is about: destination, protocol and port; none: it is the last rule of
/// its chain.
fn frontend(chain: &str, rule: &str) -> Option<[String; 3]> {
    let words: Vec<_> = rule.split(' ').collect();
    let after = |word: &str| {
        let at = words.iter().position(|it| *it == word)?;
        Some(words[at + 1].to_owned())
    };
    let port = after("--dport")?;
    // A node port on loopback addresses is the same node port.
    let destination = after("-d").filter(|_| chain != "KUBE-NODEPORTS").unwrap_or_default();
    Some([destination, after("-p")?, port])
}

/// The Service that a rule is about, by its comment.
fn owner(rule: &str) -> &str {
    let comment = rule.split('"').nth(1).unwrap();
    comment.split([' ', ':']).next().unwrap()
}

/// The rules of a shared chain by frontend, each list in its order, and the last rules.
fn by_frontend(chain: &str, rules: &[String]) -> (BTreeMap<[String; 3], Vec<String>>, Vec<String>) {
    let mut frontends = BTreeMap::<_, Vec<String>>::new();
    let mut last = Vec::new();
    for rule in rules {
        match frontend(chain, rule) {
            Some(frontend) => {
                assert!(last.is_empty(), "{chain}: {rule} comes after the last rule");
                let rules = frontends.entry(frontend).or_default();
                // Exception: an address that a Service has for two reasons has the same verdict
                // twice in kube-proxy.
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
            None => last.push(rule.clone()),
        }
    }
    (frontends, last)
}

/// Exception: of several Services with one frontend, one has it. kube-proxy has the rules of all, in
/// an order that changes from sync to sync.
fn with_one_owner(theirs: &mut Vec<String>, ours: &[String]) {
    if let Some(rule) = ours.first() {
        theirs.retain(|it| owner(it) == owner(rule));
    }
}

fn assert_as_left(stage: &Stage, node: &Node, family: Family, how: &str) {
    let Some(left) = stage.rules("iptables", family) else { return };
    // Exception: of IPv6, kube-proxy has a chain without rules by this name, and jumps to it.
    let counts = |line: &&str| family == Family::V4 || !line.contains("KUBE-FIREWALL");
    let left: String = left.lines().filter(counts).flat_map(|line| [line, "\n"]).collect();
    let (left, here) = (Saved::parse(&left), node.rules(family));
    let names = |saved: &Saved| -> Vec<String> {
        let chains = saved.ours().filter(|(_, chain, _)| *chain != CANARY);
        chains.map(|(table, chain, _)| format!("{table} {chain}")).collect()
    };
    let place = format!("{} {family} {how}", stage.name());
    let difference_of_names = difference(&names(&left), &names(&here));
    assert!(difference_of_names.is_empty(), "{place}:\n{difference_of_names}");
    for (table, chain, theirs) in left.ours() {
        let ours = here.rules(table, chain);
        if !SHARED.contains(&chain) {
            assert_eq!(theirs, ours, "{place} {table} {chain}:\n{}", difference(theirs, ours));
            continue;
        }
        let (mut theirs, their_last) = by_frontend(chain, theirs);
        let (ours, our_last) = by_frontend(chain, ours);
        for (frontend, rules) in &mut theirs {
            with_one_owner(rules, ours.get(frontend).map_or(&[], Vec::as_slice));
        }
        let lines = difference(theirs.values().flatten(), ours.values().flatten());
        assert_eq!(theirs, ours, "{place} {table} {chain}:\n{lines}");
        assert_eq!(their_last, our_last, "{place} {table} {chain}");
    }
    for ((table, chain), rules) in
        left.chains.iter().filter(|((_, it), _)| !it.starts_with("KUBE-"))
    {
        // The jumps, in their order: what else is in a built-in chain is not kube-proxy's.
        let jumps = rules.iter().filter(|rule| rule.contains("-j KUBE-"));
        assert!(jumps.eq(here.rules(table, chain)), "{place} {table} {chain}");
    }
}

#[test]
fn chains_are_kube_proxys() {
    for cluster in clusters() {
        let mut node = Node::new(settings(Mode::Iptables));
        for stage in &cluster {
            node.move_to(stage);
            let alone = Node::at(stage, settings(Mode::Iptables));
            for family in Family::BOTH {
                assert_as_left(stage, &alone, family, "from scratch");
                assert_as_left(stage, &node, family, "change by change");
            }
        }
    }
}

#[test]
fn no_jump_leads_nowhere_and_no_chain_is_unused() {
    for stage in clusters().iter().flatten() {
        let node = Node::at(stage, settings(Mode::Iptables));
        for family in Family::BOTH {
            assert_eq!(lint(&node.rules(family)), [""; 0], "{} {family}", stage.name());
            // What is asked of ours is true of kube-proxy's.
            let left = stage.rules("iptables", family).map(|saved| lint(&Saved::parse(&saved)));
            assert_eq!(left.unwrap_or_default(), [""; 0], "{} {family}", stage.name());
        }
    }
}
