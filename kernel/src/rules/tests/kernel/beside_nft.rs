//! Rules that `nft` made in iptables' own tables, for which `iptables-nft-save` shows nothing of the table.

use plan::chains::{ChainHash, ChainId, ChainOp, PortChain, ServicePortName, SharedChain};
use plan::mode::Mode;
use plan::model::{Protocol, ServiceName};
use plan::rule_set::OptionalRules;

use super::*;
use crate::nftables::{Closing, FilterHook, filter_chains};
use crate::rules::fingerprint::RulesWatch;

/// A rule with a set of states, which iptables has no words for.
const STATES: &str = "ct state { established, related } accept";

/// Tables and chains of such rules. The chain is made if it is not there.
const PLACES: [(&str, &str); 6] = [
    // One in each table.
    ("filter", "INPUT"),
    ("nat", "POSTROUTING"),
    ("mangle", "OUTPUT"),
    // Nothing leads to it.
    ("filter", "HOSTFW"),
    // Chains of kube-ipvs, which are written whole.
    ("nat", "KUBE-MARK-MASQ"),
    ("filter", "KUBE-SERVICES"),
];
/// Number of the first places that are in different tables.
const TABLES: usize = 3;

fn mk_constant(family: Family) -> RuleSet {
    let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
    let localhost = OptionalRules { localhost_node_ports: true, ..OptionalRules::default() };
    RuleSet::iptables(family, &settings.with_optional(localhost))
}

fn nft_family(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// The built-in chains of these places, which the first use of iptables makes.
const BUILT_IN: &str = "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\nCOMMIT\n\
    *nat\n:PREROUTING ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n\
    *mangle\n:OUTPUT ACCEPT\nCOMMIT\n";

fn add_rule(rules: &Rules, table: &str, chain: &str) {
    let family = nft_family(rules.family());
    let commands =
        format!("add chain {family} {table} {chain}\nadd rule {family} {table} {chain} {STATES}\n");
    succeed("nft", &["-f", "-"], &commands);
    let saved = succeed(&rules.programs.save, &["-t", table], "");
    assert!(saved.contains(&format!("# Table `{table}' is incompatible")), "{saved}");
}

/// Runs a test on a host for each of these rules: in as many of the places with IPv4, and in the first one
/// with IPv6, whose tables are the same. A host takes ten seconds where it is emulated.
fn in_places(n_ipv4: usize, test: impl Fn(&Rules, &str, &str) + Sync) {
    for (family, n_places) in [(Family::V4, n_ipv4), (Family::V6, 1)] {
        for (table, chain) in &PLACES[..n_places] {
            Host::run(|| {
                let rules = Rules::open(family, Variant::Nft).unwrap();
                restore(&rules, BUILT_IN);
                test(&rules, table, chain);
            });
        }
    }
}

/// All chains as `nft` lists them, each by its table and its name.
fn listed(rules: &Rules) -> BTreeMap<(String, String), String> {
    let all = succeed("nft", &["list", "ruleset", nft_family(rules.family())], "");
    let tables = all.split("\ntable ").map(|table| table.trim_start_matches("table "));
    let chains = tables.flat_map(|table| {
        let mut chains = table.split("\n\tchain ");
        let name = chains.next().and_then(|head| head.split(' ').nth(1)).unwrap().to_owned();
        chains.map(move |chain| {
            let (chain, rules) = chain.split_once(" {\n").unwrap();
            ((name.clone(), chain.to_owned()), rules.to_owned())
        })
    });
    chains.collect()
}

#[test]
fn rules_are_written_and_repaired_beside_a_rule_that_only_nft_can_show() {
    in_places(PLACES.len(), |rules, table, chain| {
        assert_written_and_repaired(rules, &mk_constant(rules.family()), table, chain);
    });
}

#[test]
fn rules_of_ipvs_mode_are_written_and_repaired_beside_a_rule_that_only_nft_can_show() {
    in_places(TABLES, |rules, table, chain| {
        mk_sets(rules.family());
        assert_written_and_repaired(rules, &mk_rule_set(rules.family()), table, chain);
    });
}

fn assert_written_and_repaired(rules: &Rules, rule_set: &RuleSet, table: &str, chain: &str) {
    add_rule(rules, table, chain);
    rules.probe(None).unwrap();
    rules.write(rule_set).unwrap();
    assert!(rules.check(rule_set).unwrap().matches(), "{table} {chain}");
    let is_of_kube_ipvs = chain.starts_with("KUBE-");
    let listed = listed(rules);
    let of_chain = |table: &str, chain: &str| &listed[&(table.to_owned(), chain.to_owned())];
    assert_eq!(of_chain(table, chain).contains("ct state"), !is_of_kube_ipvs);
    for jump in rule_set.jumps() {
        let there = of_chain(jump.table.name(), jump.from);
        let to_it = format!("jump {}", jump.to);
        let n_there = there.lines().filter(|line| line.ends_with(&to_it)).count();
        let is_alike =
            |other: &&Jump| (other.table, other.from, other.to) == (jump.table, jump.from, jump.to);
        assert_eq!(n_there, rule_set.jumps().iter().filter(is_alike).count(), "{jump}: {there}");
    }
    // Started first, and the rule comes then.
    add_rule(rules, table, chain);
    let mut watch = RulesWatch::open(rules).unwrap();
    watch.check(rules, rule_set).unwrap();
    let read_chains = |watch: &mut RulesWatch| {
        if rule_set.mode().leads_by_rules() {
            watch.read_chains(rules, rule_set.mode()).unwrap();
        }
    };
    read_chains(&mut watch);
    // Nothing of iptables mode is in mangle.
    let jumps = rule_set.jumps();
    let jump = jumps.iter().find(|jump| jump.table.name() == table).unwrap_or(&jumps[0]);
    restore(
        rules,
        &format!(
            "*nat\n-F KUBE-POSTROUTING\nCOMMIT\n*{}\n-D {} {}\nCOMMIT\n",
            jump.table.name(),
            jump.from,
            jump.rule()
        ),
    );
    watch.end_pause();
    assert!(!watch.untouched().unwrap());
    let found = rules.check(rule_set).unwrap();
    assert_eq!(found.missing_jumps, [*jump], "{table} {chain}: {found}");
    rules.write(rule_set).unwrap();
    assert!(watch.check(rules, rule_set).unwrap().matches());
    read_chains(&mut watch);
    watch.end_pause();
    assert!(watch.untouched().unwrap(), "a reading changes nothing");
}

#[test]
fn chains_of_services_are_written_read_and_removed_beside_such_a_rule() {
    in_places(TABLES, |rules, table, chain| {
        add_rule(rules, table, chain);
        serve(rules);
    });
}

/// Writes, reads and removes the chains of a Service.
pub(super) fn serve(rules: &Rules) {
    let family = rules.family();
    rules.write(&mk_constant(family)).unwrap();
    let name = ServiceName::new("ns", "svc");
    let hash = ChainHash::of_port(&ServicePortName::new(&name, ""), Protocol::Tcp);
    let own = ChainId::of_port(family, PortChain::Cluster, hash);
    let services = ChainId::shared(family, Table::Nat, SharedChain::Services);
    let lead = format!("-m comment --comment \"ns/svc cluster IP\" -j {}", own.name);
    let ops = [
        ChainOp::Write(own, ["-j RETURN".into()].into()),
        ChainOp::Insert(services, lead.as_str().into()),
    ];
    let written = rules.write_chains(&ops.iter().collect::<Vec<_>>());
    assert!(written.results.iter().all(Result::is_ok), "{:?}", written.results);
    let found = rules.chains(Mode::Iptables).unwrap();
    assert_eq!(found.shared[&services], [lead.as_str().into()]);
    assert_eq!(found.own.len(), 1);
    let ops = [ChainOp::Delete(services, lead.as_str().into()), ChainOp::Remove(own)];
    // Deleted once more: it is not there any more, which is as good.
    for _ in 0..2 {
        let written = rules.write_chains(&[&ops[0]]);
        assert!(written.results.iter().all(Result::is_ok), "{:?}", written.results);
    }
    assert!(rules.write_chains(&[&ops[1]]).results[0].is_ok());
    assert_eq!(rules.chains(Mode::Iptables).unwrap().own.len(), 0);
}

#[test]
fn a_survey_shows_what_leads_to_chains_of_kubernetes() {
    in_places(PLACES.len(), |rules, table, chain| {
        let rule_set = mk_constant(rules.family());
        rules.write(&rule_set).unwrap();
        let before = rules.saved().unwrap();
        add_rule(rules, table, chain);
        let saved = rules.saved().unwrap();
        assert!(saved.contains(&format!("{READ_BY_CHAIN}{table}\n")), "{saved}");
        let of_kubernetes = |text: &str| {
            let rules =
                text.lines().filter(|line| line.starts_with("-A ") && line.contains(" -j KUBE-"));
            rules.map(str::to_owned).collect::<Vec<_>>()
        };
        let is_shown = |rule: &String| {
            !rule.starts_with(&format!("-A {chain} ")) || !chain.starts_with("KUBE-")
        };
        let mut expected = of_kubernetes(&before);
        expected.retain(is_shown);
        let mut found = of_kubernetes(&saved);
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
    });
}

/// Chains of the hook `input` as firewalld makes them, and people's own nftables files.
const FIREWALLS: &str = "table inet firewalld {
    chain filter_INPUT_ZONES { tcp dport 22 accept; }
    chain filter_INPUT {
        type filter hook input priority filter + 10; policy accept;
        ct state { established, related } accept; iifname lo accept
        jump filter_INPUT_ZONES
        ct state invalid drop
        reject with icmpx admin-prohibited
    }
}
table inet trusting {
    chain zones { iifname eth9 goto public; goto trusted; }
    chain public { tcp dport 22 accept; }
    chain trusted { accept; }
    chain trusting { type filter hook input priority 11; jump zones; reject; }
}
table ip6 led {
    chain closed { tcp dport 22 accept; counter drop; }
    chain further { tcp dport 179 accept; goto closed; }
    chain led { type filter hook input priority 12; iifname lo accept; jump further; }
    chain others { ip6 daddr fe80::/10 return; drop; }
    chain passing { type filter hook input priority 13; jump others; iifname eth9 jump closed; }
}
table ip mine {
    chain counted { type filter hook input priority 20; iifname lo accept; counter log drop; }
    chain open { type filter hook input priority 21; tcp dport 23 drop; }
    chain dropping { type filter hook input priority 22; policy drop; accept; }
    chain output { type filter hook output priority 23; policy drop; }
}
";

#[test]
fn a_chain_of_input_that_refuses_the_rest_is_told_from_one_that_does_not() {
    Host::run(|| {
        succeed("nft", &["-f", "-"], FIREWALLS);
        let found = filter_chains(FilterHook::Input, false).unwrap();
        let mut found: Vec<_> =
            found.iter().map(|chain| (chain.name.as_str(), chain.closing)).collect();
        found.sort_by_key(|(name, _)| *name);
        let expected = [
            ("counted", Some(Closing::Rule)),
            ("dropping", Some(Closing::Policy)),
            ("filter_INPUT", Some(Closing::Rule)),
            ("led", Some(Closing::Rule)),
            ("open", None),
            ("passing", None),
            ("trusting", None),
        ];
        assert_eq!(found, expected);
    });
}
