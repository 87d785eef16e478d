//! TestMasqueradeRule, TestDismissLocalhostRuleExist, TestAcceptIPVSTraffic, and what the tests of
//! addresses and node ports check of rules: what has to come before what. The full text is in
//! `plan/src/rule_set/ipv4.rules`.

use plan::model::Family;
use plan::rule_set::Table;
use plan::settings::Settings;

use crate::node::{Node, THIS};

/// The rules of a chain.
fn chain(settings: &Settings, family: Family, table: Table, name: &str) -> Vec<String> {
    let rule_set = Node::new(settings.clone()).planner.rule_set(family).unwrap();
    let chain = rule_set.chains().iter().find(|chain| chain.table == table && chain.name == name);
    chain.unwrap().rules.clone()
}

/// Finds the first rule that has each of these parts, and checks that it comes after the one
/// before.
#[track_caller]
fn check_order(rules: &[String], parts: &[[&str; 2]]) {
    let mut last = None;
    for [set, target] in parts {
        let set = format!(" {set} ");
        let target = format!("-j {target}");
        let at = rules.iter().position(|rule| rule.contains(&set) && rule.contains(&target));
        assert!(at.is_some(), "{set} {target} is not in {rules:#?}");
        assert!(at > last, "{set} {target} comes too early in {rules:#?}");
        last = at;
    }
}

fn name(family: Family, name: &str) -> String {
    match family {
        Family::V4 => name.to_owned(),
        Family::V6 => name.replacen("KUBE-", "KUBE-6-", 1).chars().take(31).collect(),
    }
}

#[track_caller]
fn check_sets(family: Family, table: Table, chain_name: &str, parts: &[[&str; 2]]) {
    let rules = chain(&Settings::new(THIS), family, table, chain_name);
    let named: Vec<_> = parts.iter().map(|[set, target]| (name(family, set), *target)).collect();
    let parts: Vec<_> = named.iter().map(|(set, target)| [set.as_str(), *target]).collect();
    check_order(&rules, &parts);
}

#[test]
fn masquerading_takes_random_ports_if_iptables_can() {
    for family in Family::BOTH {
        for random in [true, false] {
            let mut settings = Settings::new(THIS);
            settings.random_fully = random;
            let rules = chain(&settings, family, Table::Nat, "KUBE-POSTROUTING");
            let last = rules.last().unwrap();
            assert!(last.contains("-j MASQUERADE"), "{last}");
            assert_eq!(last.contains("--random-fully"), random, "{family}: {last}");
        }
    }
}

#[test]
fn what_comes_from_loopback_is_left_alone_first() {
    for (family, source) in
        [(Family::V4, "-s 127.0.0.0/8 -j RETURN"), (Family::V6, "-s ::1/128 -j RETURN")]
    {
        let rules = chain(&Settings::new(THIS), family, Table::Nat, "KUBE-SERVICES");
        assert_eq!(rules[0], source);
    }
}

#[test]
fn nothing_is_accepted_before_it_could_be_marked() {
    for family in Family::BOTH {
        check_sets(
            family,
            Table::Nat,
            "KUBE-SERVICES",
            &[
                ["KUBE-CLUSTER-IP", "KUBE-MARK-MASQ"],
                ["KUBE-CLUSTER-IP", "ACCEPT"],
                ["KUBE-INTERNAL-FRONTEND", "KUBE-INTERNAL-FRONTEND"],
                ["KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER"],
                ["KUBE-LOAD-BALANCER", "ACCEPT"],
                ["KUBE-EXTERNAL-IP", "KUBE-MARK-MASQ"],
                ["KUBE-EXTERNAL-IP", "ACCEPT"],
                ["KUBE-EXTERNAL-IP-LOCAL", "ACCEPT"],
                // What has one of these addresses is no node port, whatever its port is: that comes
                // after them here, and before them upstream.
                ["--dst-type", "KUBE-NODE-PORT"],
            ],
        );
    }
}

#[test]
fn what_is_for_this_nodes_endpoints_returns_before_it_is_marked() {
    for family in Family::BOTH {
        for (local, any) in [
            ("KUBE-NODE-PORT-LOCAL-TCP", "KUBE-NODE-PORT-TCP"),
            ("KUBE-NODE-PORT-LOCAL-UDP", "KUBE-NODE-PORT-UDP"),
            ("KUBE-NODE-PORT-LOCAL-SCTP-HASH", "KUBE-NODE-PORT-SCTP-HASH"),
        ] {
            let parts = [[local, "RETURN"], [any, "KUBE-MARK-MASQ"]];
            check_sets(family, Table::Nat, "KUBE-NODE-PORT", &parts);
        }
        let rules = chain(&Settings::new(THIS), family, Table::Nat, "KUBE-LOAD-BALANCER");
        assert!(rules[0].contains(&name(family, "KUBE-LOAD-BALANCER-LOCAL")), "{rules:#?}");
        assert!(rules[0].ends_with("-j RETURN") && rules[1].ends_with("-j KUBE-MARK-MASQ"));
    }
}

#[test]
fn who_may_use_a_load_balancer_returns_and_the_rest_is_dropped() {
    for family in Family::BOTH {
        for table in [Table::Filter, Table::Mangle] {
            let firewall = [["KUBE-LOAD-BALANCER-FW", "KUBE-SOURCE-RANGES-FIREWALL"]];
            check_sets(family, table, "KUBE-PROXY-FIREWALL", &firewall);
            let allowed = [
                ["KUBE-LOAD-BALANCER-SOURCE-CIDR", "RETURN"],
                ["KUBE-LOAD-BALANCER-SOURCE-IP", "RETURN"],
            ];
            check_sets(family, table, "KUBE-SOURCE-RANGES-FIREWALL", &allowed);
            let name = "KUBE-SOURCE-RANGES-FIREWALL";
            let rules = chain(&Settings::new(THIS), family, table, name);
            assert_eq!(rules.last().unwrap(), "-j DROP");
        }
    }
}

#[test]
fn health_checks_are_let_in() {
    for family in Family::BOTH {
        let accepted = [["KUBE-HEALTH-CHECK-NODE-PORT", "ACCEPT"]];
        check_sets(family, Table::Filter, "KUBE-NODE-PORT", &accepted);
        let let_pass = [["KUBE-HEALTH-CHECK-NODE-PORT", "RETURN"], ["KUBE-IPVS-IPS", "REJECT"]];
        check_sets(family, Table::Filter, "KUBE-IPVS-FILTER", &let_pass);
    }
}

#[test]
fn what_has_no_endpoints_is_refused_before_it_could_be_let_pass() {
    for family in Family::BOTH {
        for served in
            ["KUBE-LOAD-BALANCER", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL"]
        {
            for (refused, how) in
                [("KUBE-NO-LOCAL-ENDPOINTS", "DROP"), ("KUBE-NO-ENDPOINTS", "REJECT")]
            {
                let parts = [[refused, how], [served, "ACCEPT"], ["KUBE-IPVS-IPS", "REJECT"]];
                check_sets(family, Table::Filter, "KUBE-IPVS-FILTER", &parts);
            }
        }
    }
}
