//! On a real kernel, each test in a network namespace of its own. They need root, `ip`, `ipset`,
//! and both iptables variants.

mod beside_extensions;
mod beside_nft;
mod chains;
mod features;
mod watch;

use std::collections::BTreeMap;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};

use netlink::Namespace;
use plan::facts::NodeFacts;
use plan::rule_set::{ChainDifference, LocalTraffic, RuleSetSettings};
use plan::sets::{SetId, SetType};
use plan::settings::{InternalFrontendNetworks, Settings};

use super::super::*;

/// A network namespace that goes with the test.
struct Host(String);

impl Host {
    fn mk() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("rules-{}-{number}", process::id());
        succeed("ip", &["netns", "add", &name], "");
        Self(name)
    }

    /// Runs a test in a new namespace.
    fn run(test: impl FnOnce() + Send) {
        let host = Self::mk();
        let namespace = Namespace::at(&Path::new("/run/netns").join(&host.0)).unwrap();
        namespace.run(test).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        succeed("ip", &["netns", "del", &self.0], "");
    }
}

fn succeed(program: &str, arguments: &[&str], input: &str) -> String {
    let finished = crate::program::run(program, arguments, input, TIMEOUT).unwrap();
    assert!(finished.status.success(), "{program} {arguments:?}: {}", finished.stderr);
    finished.stdout
}

fn mk_sets(family: Family) {
    let mut input = String::new();
    for set in SetId::all(family) {
        let options = match (set.set_type(), family) {
            (SetType::BitmapPort, _) => "range 0-65535",
            (_, Family::V4) => "family inet",
            (_, Family::V6) => "family inet6",
        };
        input += &format!("create {} {} {options}\n", set.name(), set.set_type().name());
    }
    succeed("ipset", &["restore"], &input);
}

fn mk_rule_set(family: Family) -> RuleSet {
    let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
    RuleSet::new(
        family,
        &settings.with_internal_frontend_network(InternalFrontendNetworks::default().of(family)),
    )
}

fn mk_every_rule_set(family: Family) -> Vec<RuleSet> {
    let cidrs: [&str; 3] = match family {
        Family::V4 => ["10.244.0.0/16", "10.1.2.3/32", "0.0.0.0/0"],
        Family::V6 => ["fd00:10:244::/56", "fd00::1/128", "::/0"],
    };
    let mut locals = vec![
        LocalTraffic::Unknown,
        LocalTraffic::Bridge("cbr0".into()),
        LocalTraffic::Prefix("veth".into()),
    ];
    locals.extend(cidrs.iter().map(|cidr| LocalTraffic::Cidr(cidr.parse().unwrap())));
    let [cluster, node, everything] = cidrs.map(|cidr| cidr.parse().unwrap());
    locals.push(LocalTraffic::ClusterCidr { cluster, node: Some(node) });
    locals.push(LocalTraffic::ClusterCidr { cluster: everything, node: None });
    let mut variants: Vec<_> = locals.into_iter().map(|local| (false, 14, local, true)).collect();
    variants.extend([
        (true, 14, LocalTraffic::Unknown, true),
        (false, 0, LocalTraffic::Unknown, false),
        (false, 31, LocalTraffic::Unknown, true),
    ]);
    let rule_set = |(masquerade_all, bit, local, random_fully)| {
        let settings = RuleSetSettings::new(masquerade_all, bit, local, random_fully).unwrap();
        let network = InternalFrontendNetworks::default().of(family);
        let everywhere = NodeFacts::default().node_port_networks(&Settings::new("node1"), family);
        let complete = settings
            .clone()
            .with_internal_frontend_network(network)
            .with_accepted_node_ports(Some(everywhere))
            .with_health_port(Some(10_256));
        let restricted = settings.clone().with_accepted_node_ports(Some(vec![node]));
        [settings, complete, restricted].map(|it| RuleSet::new(family, &it))
    };
    variants.into_iter().flat_map(rule_set).collect()
}

/// The rules of a chain, as saved, word for word.
fn saved_chain(saved: &str, table: Table, chain: &str) -> Vec<String> {
    let (_, from_table) = saved.split_once(&format!("*{table}\n")).unwrap();
    let (in_table, _) = from_table.split_once("COMMIT\n").unwrap();
    let start = format!("-A {chain} ");
    in_table.lines().filter_map(|line| line.strip_prefix(&start)).map(str::to_owned).collect()
}

fn restore(rules: &Rules, input: &str) {
    succeed(&rules.programs.restore, &["-w", "5", "--noflush"], input);
}

fn on_every_kind(test: impl Fn(&Rules) + Sync) {
    for family in Family::BOTH {
        for variant in Variant::tested() {
            Host::run(|| {
                mk_sets(family);
                test(&Rules::open(family, variant).unwrap());
            });
        }
    }
}

#[test]
fn what_is_saved_is_word_for_word_what_was_written() {
    on_every_kind(|rules| {
        rules.probe(None).unwrap();
        let network = InternalFrontendNetworks::default().of(rules.family()).unwrap();
        rules.try_internal_frontends(network).unwrap();
        assert!(!rules.read(&[]).unwrap().contains("KUBE-"), "nothing stays of it");
        let mut rule_sets = mk_every_rule_set(rules.family());
        let rule_set = rule_sets.pop().unwrap();
        rules.write(&rule_set).unwrap();
        // How a rule is saved does not depend on those before it, so the chains get those of all.
        let mut chains: BTreeMap<(Table, &str), Vec<String>> = BTreeMap::new();
        for chain in rule_sets.iter().flat_map(RuleSet::chains) {
            let together = chains.entry((chain.table, chain.name)).or_default();
            for rule in &chain.rules {
                if !together.contains(rule) {
                    together.push(rule.clone());
                }
            }
        }
        let mut input = String::new();
        for table in Table::ALL {
            let chains = chains.iter().filter(|((of, _), _)| *of == table);
            input += &format!("*{table}\n");
            input.extend(chains.clone().map(|((_, chain), _)| format!(":{chain} - [0:0]\n")));
            let rules =
                chains.flat_map(|((_, chain), rules)| rules.iter().map(move |it| (chain, it)));
            input.extend(rules.map(|(chain, rule)| format!("-A {chain} {rule}\n")));
            input += "COMMIT\n";
        }
        restore(rules, &input);
        let saved = rules.read(&[]).unwrap();
        for ((table, chain), rules) in &chains {
            assert_eq!(saved_chain(&saved, *table, chain), *rules);
        }
        rules.write(&rule_set).unwrap();
        let saved = rules.read(&[]).unwrap();
        for (table, chain, targets) in [
            (Table::Nat, "PREROUTING", &["KUBE-SERVICES"][..]),
            (Table::Nat, "OUTPUT", &["KUBE-SERVICES"]),
            (Table::Nat, "POSTROUTING", &["KUBE-POSTROUTING"]),
            (Table::Mangle, "OUTPUT", &["KUBE-PROXY-FIREWALL"]),
            (
                Table::Filter,
                "INPUT",
                &["KUBE-IPVS-FILTER", "KUBE-PROXY-FIREWALL", "KUBE-NODE-PORT"],
            ),
            (Table::Filter, "FORWARD", &["KUBE-PROXY-FIREWALL", "KUBE-FORWARD"]),
        ] {
            let jump = |to: &&str| {
                let is_it = |jump: &&Jump| (jump.table, jump.from, jump.to) == (table, chain, *to);
                rule_set.jumps().iter().find(is_it).unwrap().rule()
            };
            let expected: Vec<String> = targets.iter().map(jump).collect();
            assert_eq!(saved_chain(&saved, table, chain), expected);
        }
    });
}

#[test]
fn drift_is_seen_and_repaired_and_what_others_made_stays() {
    on_every_kind(|rules| {
        let rule_set = mk_rule_set(rules.family());
        let foreign = "*nat\n:CNI-X - [0:0]\n-A CNI-X -j RETURN\n-A OUTPUT -j CNI-X\nCOMMIT\n";
        restore(rules, foreign);
        rules.write(&rule_set).unwrap();

        let jump = rule_set.jumps()[4];
        restore(
            rules,
            &format!(
                "*nat\n-F KUBE-NODE-PORT\n-A KUBE-MARK-MASQ -j RETURN\n-D KUBE-SERVICES 1\nCOMMIT\n\
                 *filter\n-D {} {}\nCOMMIT\n",
                jump.from,
                jump.rule()
            ),
        );
        let comparison = rules.check(&rule_set).unwrap();
        assert_eq!(comparison.missing_jumps, [jump]);
        let places: Vec<(&str, usize)> = comparison
            .differing
            .iter()
            .map(|difference| match difference {
                ChainDifference::Rule { chain, number, .. } => (*chain, *number),
                ChainDifference::Absent { chain, .. } => panic!("{chain} is absent"),
            })
            .collect();
        assert_eq!(places, [("KUBE-SERVICES", 1), ("KUBE-NODE-PORT", 1), ("KUBE-MARK-MASQ", 2)]);

        rules.write(&rule_set).unwrap();
        assert!(rules.check(&rule_set).unwrap().matches());
        let saved = rules.read(&[]).unwrap();
        assert_eq!(saved_chain(&saved, Table::Nat, "CNI-X"), ["-j RETURN"]);
        let output = saved_chain(&saved, Table::Nat, "OUTPUT");
        assert_eq!(output, [rule_set.jumps()[0].rule(), "-j CNI-X".to_owned()]);
    });
}

#[test]
fn rules_as_kube_proxy_writes_them_are_ours_already() {
    on_every_kind(|rules| {
        let cidr = match rules.family() {
            Family::V4 => "10.244.0.0/16",
            Family::V6 => "fd00:10:244::/56",
        };
        let local = LocalTraffic::Cidr(cidr.parse().unwrap());
        let settings = RuleSetSettings::new(false, 14, local, true).unwrap();
        let settings = settings
            .with_internal_frontend_network(InternalFrontendNetworks::default().of(rules.family()));
        let rule_set = RuleSet::new(rules.family(), &settings);
        let negated = format!("! -s {cidr} ");
        let input = rule_set
            .first_input()
            .replace("MARK --set-xmark 0x4000/0x4000", "MARK --or-mark 0x00004000")
            .replace("MARK --set-xmark 0x4000/0x0", "MARK --xor-mark 0x00004000")
            .replace("--mark 0x4000/0x4000", "--mark 0x00004000/0x00004000")
            .lines()
            .map(|line| match line.split_once(&negated) {
                Some((start, end)) => {
                    let (lookup, jump) = end.split_once(" -j ").unwrap();
                    format!("{start}{lookup} {negated}-j {jump}\n")
                }
                None => format!("{line}\n"),
            })
            .collect::<String>();
        assert!(input.contains(&format!("dst,dst {negated}-j")) && input.contains("--or-mark"));
        restore(rules, &input);
        let comparison = rules.check(&rule_set).unwrap();
        assert!(comparison.matches(), "{comparison}");
    });
}

#[test]
fn a_missing_set_is_named_with_the_rule_that_wants_it() {
    for family in Family::BOTH {
        for variant in Variant::tested() {
            Host::run(|| {
                let rules = Rules::open(family, variant).unwrap();
                let error = rules.write(&mk_rule_set(family)).unwrap_err();
                assert_eq!(error.cause(), Cause::NoSet, "{error}");
                let RulesError::Failed(failure) = &error else { panic!("{error}") };
                let excerpt = failure.excerpt.as_deref().unwrap();
                let named = excerpt.lines().find(|line| line.starts_with('>')).unwrap();
                let set = SetId { kind: plan::sets::SetKind::ClusterIp, family };
                assert!(named.contains(set.name()), "{excerpt}");
            });
        }
    }
}

#[test]
fn the_kind_that_the_kubelet_uses_is_chosen() {
    for family in Family::BOTH {
        for (variant, backend) in [(Variant::Nft, Backend::Nft), (Variant::Legacy, Backend::Legacy)]
        {
            Host::run(|| {
                let rules = Rules::open(family, variant).unwrap();
                assert_eq!(rules.backend(), backend);
                assert!(rules.random_fully());
                restore(&rules, "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n");
                let chosen = Rules::open(family, Variant::Auto).unwrap();
                assert_eq!(chosen.backend(), backend);
            });
        }
    }
}
