//! Faults of a table of rules that do not depend on Services, as kube-proxy's own tests check them
//! (`checkIPTablesRuleJumps` in pkg/proxy/iptables/proxier_test.go).

use std::collections::{BTreeMap, BTreeSet};

use crate::saved::Saved;
use crate::tracer::{Rule, Target};

/// `XT_EXTENSION_MAXNAMELEN` in include/uapi/linux/netfilter/x_tables.h, without the ending zero.
const LONGEST_NAME: usize = 28;

const OF_PORTS: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"];

/// Returns what is wrong: jumps to chains that are not there or that, belonging to one service port,
/// have no rules; such chains to which nothing leads; names that are too long; rules that are there
/// twice; and the list of one endpoint's clients used in another's chain.
pub(crate) fn lint(saved: &Saved) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut targets = BTreeMap::<&str, BTreeSet<String>>::new();
    for ((table, chain), rules) in &saved.chains {
        if chain.len() > LONGEST_NAME {
            wrong.push(format!("{table} {chain}: the name is too long"));
        }
        let distinct: BTreeSet<_> = rules.iter().collect();
        if distinct.len() != rules.len() {
            wrong.push(format!("{table} {chain}: a rule is there twice"));
        }
        for text in rules {
            let rule = Rule::parse(text);
            let target = match rule.target {
                Target::Chain(chain) => Some(chain),
                _ => None,
            };
            let owner = target.as_ref().filter(|it| it.starts_with("KUBE-SEP-")).unwrap_or(chain);
            if rule.lists.iter().any(|list| list != owner) {
                wrong.push(format!("{table} {chain}: {text}: not the list of {owner}"));
            }
            targets.entry(table).or_default().extend(target);
        }
    }
    for (table, targets) in &targets {
        for target in targets {
            match saved.chains.get(&((*table).into(), target.clone())) {
                None => wrong.push(format!("{table}: no chain {target}")),
                Some(rules) if rules.is_empty() && is_of_port(target) => {
                    wrong.push(format!("{table} {target}: no rules"));
                }
                Some(_) => {}
            }
        }
    }
    for (table, chain) in saved.chains.keys().filter(|(_, chain)| is_of_port(chain)) {
        if !targets.get(table.as_str()).is_some_and(|targets| targets.contains(chain)) {
            wrong.push(format!("{table} {chain}: nothing leads there"));
        }
    }
    wrong
}

fn is_of_port(chain: &str) -> bool {
    OF_PORTS.iter().any(|prefix| chain.starts_with(prefix))
}

#[test]
fn everything_wrong_is_found() {
    let saved = Saved::parse(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SVC-A - [0:0]\n:KUBE-SVC-B - [0:0]\n\
         :KUBE-SEP-ABCDEFGHIJKLMNOPQRSTU - [0:0]\n-A PREROUTING -j KUBE-SVC-A\n\
         -A PREROUTING -j KUBE-SVC-C\n-A KUBE-SVC-B -j RETURN\n-A KUBE-SVC-B -j RETURN\n\
         -A KUBE-SVC-B -m recent --rcheck --name KUBE-SEP-B --rsource \
         -j KUBE-SEP-ABCDEFGHIJKLMNOPQRSTU\nCOMMIT\n",
    );
    assert_eq!(
        lint(&saved),
        [
            "nat KUBE-SEP-ABCDEFGHIJKLMNOPQRSTU: the name is too long",
            "nat KUBE-SVC-B: a rule is there twice",
            "nat KUBE-SVC-B: -m recent --rcheck --name KUBE-SEP-B --rsource \
             -j KUBE-SEP-ABCDEFGHIJKLMNOPQRSTU: not the list of KUBE-SEP-ABCDEFGHIJKLMNOPQRSTU",
            "nat KUBE-SEP-ABCDEFGHIJKLMNOPQRSTU: no rules",
            "nat KUBE-SVC-A: no rules",
            "nat: no chain KUBE-SVC-C",
            "nat KUBE-SVC-B: nothing leads there",
        ]
    );
}
