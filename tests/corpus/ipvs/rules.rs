//! The constant rules of IPVS mode.

use std::collections::BTreeSet;

use plan::mode::Mode;
use plan::model::Family;
use plan::settings::{AcceptServiceTraffic, Settings};

use crate::cluster::{Node, Stage, clusters, settings};
use crate::saved::{Saved, difference};

/// Sets and chains that kube-proxy does not have: rules about them are ours.
const OWN: [&str; 4] =
    ["INTERNAL-FRONTEND", "-NO-ENDPOINTS", "-NO-LOCAL-ENDPOINTS", "conntrack --ctstate DNAT"];

/// Exception: kube-proxy has most rules about a set only while the set has entries. Here they are
/// constant.
fn is_about_one_of(empty: &BTreeSet<&str>, rule: &str) -> bool {
    let set = rule.split("--match-set ").nth(1).and_then(|rest| rest.split(' ').next());
    set.is_some_and(|set| empty.contains(set))
}

fn empty_sets(saved: &str) -> BTreeSet<&str> {
    let of = |verb: &'static str| {
        let lines = saved.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        lines.filter(move |words| words[0] == verb).map(|words| words[1])
    };
    let filled: BTreeSet<_> = of("add").collect();
    of("create").filter(|set| !filled.contains(set)).collect()
}

/// Exception: kube-proxy has a rule for each restricted load balancer, which drops what the node
/// sends to it and is not allowed. Here one rule in mangle does it for all.
fn is_of_one_load_balancer(chain: &str, rule: &str) -> bool {
    chain == "KUBE-IPVS-OUT-FILTER" && rule.contains(" -m ipvs ") && rule.ends_with("-j DROP")
}

/// Exception: the rule for node ports comes after those for Services' own addresses.
fn is_about_node_ports(rule: &str) -> bool {
    rule == "-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT"
}

/// Exception: rules that end what is no Service's before all sets are looked into.
fn is_shortcut(rule: &str) -> bool {
    let is_not_bound = rule.starts_with("-m set ! --match-set KUBE-") && rule.contains("IPVS-IPS");
    rule == "-m addrtype ! --dst-type LOCAL -j RETURN" || is_not_bound
}

/// Exception: the node's own connections are masqueraded whatever clusterCIDR contains.
fn is_of_the_node_itself(rule: &str) -> bool {
    rule.contains("CLUSTER-IP src,dst")
}

/// Exception: new connections to frontends are let in, and `/healthz` is at service addresses, too,
/// unless the operator wants it otherwise.
fn as_with_kube_proxy(settings: Settings) -> Settings {
    Settings { accept_service_traffic: AcceptServiceTraffic::Never, health_port: None, ..settings }
}

/// Exception: health checks are TCP.
fn as_kube_proxys(chain: &str, rule: &str) -> String {
    let rule = match (chain, rule.strip_prefix("-p tcp ")) {
        ("KUBE-NODE-PORT", Some(rest)) if rest.contains("HEALTH-CHECK-NODE-PORT") => rest,
        _ => rule,
    };
    rule.to_owned()
}

/// Exception: the order is that of which most packets pass the fewest rules.
fn has_another_order(chain: &str) -> bool {
    ["KUBE-SERVICES", "KUBE-IPVS-FILTER", "KUBE-FORWARD"].contains(&chain)
}

fn assert_as_left(stage: &Stage, family: Family) {
    let left = Saved::parse(&stage.rules("ipvs", family).unwrap());
    let sets = stage.read("ipvs/ipset-save");
    let empty = empty_sets(&sets);
    let node = Node::at(stage, as_with_kube_proxy(settings(Mode::Ipvs)));
    let here = Saved::of_rule_set(&node.planner.rule_set(family).unwrap());
    for (table, chain, rules) in left.ours() {
        let known = |rules: &[String]| -> Vec<String> {
            let rules = rules.iter().filter(|rule| {
                !is_of_one_load_balancer(chain, rule)
                    && !is_about_node_ports(rule)
                    && !is_shortcut(rule)
                    && !is_of_the_node_itself(rule)
                    && !OWN.iter().any(|own| rule.contains(own))
            });
            let mut rules: Vec<String> = rules.map(|rule| as_kube_proxys(chain, rule)).collect();
            if has_another_order(chain) {
                rules.sort();
            }
            rules
        };
        let theirs = known(rules);
        assert!(here.chains.contains_key(&(table.into(), chain.into())), "{table} {chain}");
        let here = here.rules(table, chain);
        let mut ours = known(here);
        ours.retain(|rule| theirs.contains(rule) || !is_about_one_of(&empty, rule));
        let difference = difference(&theirs, &ours);
        assert_eq!(theirs, ours, "{} {family} {table} {chain}:\n{difference}", stage.name());
        let node_ports = |rules: &[String]| rules.iter().any(|rule| is_about_node_ports(rule));
        assert_eq!(node_ports(rules), node_ports(here), "{} {family} {table}", stage.name());
    }
}

#[test]
fn rules_of_mode_ipvs_are_kube_proxys() {
    for stage in clusters().iter().flatten() {
        Family::BOTH.into_iter().for_each(|family| assert_as_left(stage, family));
    }
}
