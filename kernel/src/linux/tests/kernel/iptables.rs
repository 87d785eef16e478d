//! iptables mode: only what is used is opened, and drift is noticed beside changes of ours.

use std::sync::Arc;
use std::time::{Duration, Instant};

use plan::chains::{ChainHash, ChainId, ChainOp, PortChain, ServicePortName, SharedChain};
use plan::hash::HashSet;
use plan::model::ServiceName;
use plan::rule_set::{OptionalRules, Table};

use super::*;
use crate::rules::{self, Rules};
use crate::sysctl::Sysctl;

fn mk_rule_set(family: Family) -> RuleSet {
    let optional = OptionalRules { localhost_node_ports: true, ..OptionalRules::default() };
    let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
    RuleSet::iptables(family, &settings.with_optional(optional))
}

fn all_done(linux: &mut Linux, ops: Vec<ChainOp>) {
    let ops: Vec<Op> = ops.into_iter().map(Op::Chain).collect();
    for (op, result) in ops.iter().zip(linux.apply(&ops)) {
        assert_eq!(result, Ok(()), "{op}");
    }
}

fn services(family: Family) -> ChainId {
    ChainId::shared(family, Table::Nat, SharedChain::Services)
}

fn mk_chain(family: Family, number: usize) -> ChainId {
    let port = ServicePortName::new(&ServiceName::new("ns", format!("svc{number}")), "");
    ChainId::of_port(family, PortChain::Cluster, ChainHash::of_port(&port, Protocol::Tcp))
}

fn write(family: Family, number: usize) -> ChainOp {
    ChainOp::Write(mk_chain(family, number), Arc::new(["-p tcp -j RETURN".into()]))
}

fn jump(family: Family, number: usize) -> Arc<str> {
    format!("-p tcp -j {}", mk_chain(family, number).name).into()
}

/// Both families with their constant rules and a few Services, read.
fn mk_iptables(variant: Variant) -> Linux {
    let rules = Family::BOTH.map(|family| (family, Rules::open(family, variant).unwrap()));
    let mut linux = Linux::open(rules.into_iter().collect(), Mode::Iptables).unwrap();
    for family in Family::BOTH {
        linux.set_desired_rules(mk_rule_set(family));
        assert_eq!(linux.apply(&[Op::WriteRuleSet(family)]), [Ok(())]);
        let mut ops: Vec<ChainOp> = (0..5).map(|number| write(family, number)).collect();
        ops.extend((0..5).map(|number| ChainOp::Insert(services(family), jump(family, number))));
        all_done(&mut linux, ops);
    }
    assert_eq!(untouched(&mut linux), HashSet::default(), "the chains were never read");
    read(&mut linux);
    linux
}

fn read(linux: &mut Linux) {
    for family in Family::BOTH {
        assert!(linux.read_rule_set(family).unwrap().is_complete);
        linux.read_chains(family).unwrap();
    }
    assert_eq!(untouched(linux), Family::BOTH.into_iter().collect());
}

fn untouched(linux: &mut Linux) -> HashSet<Family> {
    linux.drift_check().unwrap().untouched
}

fn on_both(test: impl Fn(&mut Linux, &str) + Sync) {
    for variant in Variant::tested() {
        let program = match variant {
            Variant::Legacy => "iptables-legacy -w 5",
            _ => "iptables-nft -w 5",
        };
        Host::run_without_ipvs(|| test(&mut mk_iptables(variant), program));
    }
}

#[test]
fn changes_of_ours_are_no_drift() {
    on_both(|linux, _| {
        for family in Family::BOTH {
            all_done(
                linux,
                vec![write(family, 7), ChainOp::Insert(services(family), jump(family, 7))],
            );
            assert_eq!(untouched(linux), Family::BOTH.into_iter().collect(), "{family}");
            all_done(
                linux,
                vec![
                    write(family, 1),
                    ChainOp::Delete(services(family), jump(family, 7)),
                    ChainOp::Delete(services(family), jump(family, 99)),
                    ChainOp::Remove(mk_chain(family, 7)),
                ],
            );
            assert_eq!(untouched(linux), Family::BOTH.into_iter().collect(), "{family}");
            // Refused, and done in parts.
            let bad = ChainOp::Write(mk_chain(family, 8), Arc::new(["-m nonsense -j X".into()]));
            let ops = [bad, write(family, 9), write(family, 10)].map(Op::Chain);
            assert_eq!(linux.apply(&ops).iter().filter(|result| result.is_err()).count(), 1);
            assert_eq!(untouched(linux), Family::BOTH.into_iter().collect(), "{family}");
        }
    });
}

#[test]
fn chains_are_not_read_again_right_after_a_check_unless_they_have_changed() {
    on_both(|linux, program| {
        let family = Family::V4;
        assert!(linux.read_rule_set(family).unwrap().is_complete);
        let before = rules::programs_run().count;
        let found = linux.read_chains(family).unwrap();
        assert_eq!(rules::programs_run().count, before);
        assert_eq!(linux.read_chains(family).unwrap(), found);
        assert!(rules::programs_run().count > before, "only right after it");
        assert_eq!(untouched(linux), Family::BOTH.into_iter().collect());

        assert!(linux.read_rule_set(family).unwrap().is_complete);
        tool(&format!("{program} -t nat -A KUBE-SERVICES -p udp -j RETURN"));
        let changed = linux.read_chains(family).unwrap();
        let added = "-p udp -j RETURN".into();
        assert!(changed.shared[&services(family)].contains(&added), "{changed:?}");
        assert!(linux.read_rule_set(family).unwrap().is_complete);
        all_done(linux, vec![ChainOp::Delete(services(family), "-p udp -j RETURN".into())]);
        assert_eq!(linux.read_chains(family).unwrap(), found);
    });
}

#[test]
fn a_change_of_ours_raises_the_generation_by_one() {
    Host::run_without_ipvs(|| {
        let linux = mk_iptables(Variant::Nft);
        let generation =
            || linux.rules.lock().watches.get_mut(&Family::V4).unwrap().generation().unwrap();
        let before = generation();
        let rules = Rules::open(Family::V4, Variant::Nft).unwrap();
        let ops: Vec<ChainOp> = (20..40).map(|number| write(Family::V4, number)).collect();
        let written = rules.write_chains(&ops.iter().collect::<Vec<_>>());
        assert_eq!(written.transactions, Some(1));
        assert_eq!(generation(), before + 1);
        let missing = ChainOp::Write(mk_chain(Family::V4, 1), Arc::new(["-j KUBE-NONE".into()]));
        let written = rules.write_chains(&[&missing]);
        assert_eq!(written.transactions, Some(0));
        assert_eq!(generation(), before + 1, "nothing was done");
    });
}

#[test]
fn what_others_do_to_our_chains_is_noticed() {
    let hash = mk_chain(Family::V4, 1).name.to_string();
    let damages = [
        (format!("-t nat -I {hash} 1 -j ACCEPT"), false),
        (format!("-t nat -F {hash}"), false),
        ("-t nat -A KUBE-SERVICES -j ACCEPT".to_owned(), false),
        ("-t nat -D KUBE-SERVICES 2".to_owned(), false),
        ("-t filter -A KUBE-NODEPORTS -j ACCEPT".to_owned(), false),
        ("-t nat -F".to_owned(), true),
        ("-t nat -D PREROUTING -m comment --comment".to_owned(), true),
        ("-t filter -F KUBE-FIREWALL".to_owned(), true),
        ("-t nat -F KUBE-MARK-MASQ".to_owned(), true),
    ];
    on_both(|linux, program| {
        let is_legacy = program.contains("legacy");
        for (number, (damage, is_constant)) in damages.iter().enumerate() {
            // By each kind of iptables one in two, and by the other kind the others.
            let is_followed = is_legacy != number.is_multiple_of(2);
            do_damage(program, damage);
            if is_followed {
                // A change of ours does not hide it.
                all_done(linux, vec![write(Family::V4, 30)]);
            }
            // A look that took long puts off the next one, which the first damage waits for.
            let begin = Instant::now();
            while untouched(linux).len() == 2 && begin.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(untouched(linux), [Family::V6].into_iter().collect(), "{program} {damage}");
            assert_eq!(
                linux.read_rule_set(Family::V4).unwrap().is_complete,
                !is_constant,
                "{damage}"
            );
            linux.read_chains(Family::V4).unwrap();
            assert_eq!(linux.apply(&[Op::WriteRuleSet(Family::V4)]), [Ok(())]);
            assert_eq!(untouched(linux), Family::BOTH.into_iter().collect(), "{program} {damage}");
            write_services_again(linux);
        }
    });
}

fn do_damage(program: &str, damage: &str) {
    let mut words: Vec<&str> = program.split(' ').chain(damage.split(' ')).collect();
    if damage.ends_with("--comment") {
        words.extend(["kubernetes service portals", "-j", "KUBE-SERVICES"]);
    }
    let finished = program::run(words[0], &words[1..], "", TIMEOUT).unwrap();
    assert!(finished.status.success(), "{damage}: {}", finished.stderr);
}

/// Writes what damage may have taken from IPv4, for the next damage to find all of it, and without
/// the pause after a look that took long.
fn write_services_again(linux: &mut Linux) {
    let family = Family::V4;
    let node_ports = ChainId::shared(family, Table::Filter, SharedChain::NodePorts);
    all_done(linux, vec![ChainOp::Write(node_ports, Arc::new([]))]);
    let jumps: Vec<Box<str>> = (0..5).rev().map(|number| (*jump(family, number)).into()).collect();
    let mut ops: Vec<ChainOp> = (0..5).map(|number| write(family, number)).collect();
    ops.push(ChainOp::Write(services(family), jumps.into()));
    all_done(linux, ops);
    linux.read_chains(family).unwrap();
    linux.rules.lock().watches.get_mut(&family).unwrap().end_pause();
    assert_eq!(untouched(linux), Family::BOTH.into_iter().collect());
}

#[test]
fn what_others_do_elsewhere_is_no_damage() {
    on_both(|linux, program| {
        for beside in [
            "-t nat -N OTHERS",
            "-t nat -A OTHERS -p tcp --dport 80 -j RETURN",
            "-t nat -I PREROUTING 1 -j OTHERS",
            "-t filter -A FORWARD -j ACCEPT",
            "-t mangle -A OUTPUT -j MARK --set-xmark 0x1",
        ] {
            tool(&format!("{program} {beside}"));
            assert_eq!(untouched(linux), Family::BOTH.into_iter().collect(), "{program} {beside}");
            tool(&format!("{program} -t nat -A OUTPUT -p udp -j RETURN"));
            all_done(linux, vec![write(Family::V4, 3)]);
            assert_eq!(untouched(linux), Family::BOTH.into_iter().collect(), "{program} {beside}");
        }
    });
}

#[test]
fn neither_ipvs_nor_sets_nor_an_interface_are_used() {
    on_both(|linux, _| {
        let frontend = mk_frontend(Family::V4, 1);
        let ops = [
            Op::CreateLink,
            Op::BindAddress(frontend.address),
            Op::AddEntry(CLUSTER_IP, Entry::Address(frontend.address)),
            Op::RemoveVirtualServer(frontend),
        ];
        for (op, result) in ops.iter().zip(linux.apply(&ops)) {
            assert_eq!(result.unwrap_err().class, RefusalClass::NotSupported, "{op}");
        }
        let signs = linux.drift_check().unwrap();
        assert!(!signs.link && signs.n_virtual_servers.is_none() && signs.set_entries.is_empty());
        assert!(linux.list_virtual_servers().is_err() && linux.read_set(CLUSTER_IP).is_err());
        assert!(!linux.read_addresses().unwrap().link);
    });
}

#[test]
fn a_sysctl_waits_for_the_rule_that_makes_it_safe() {
    Host::run_without_ipvs(|| {
        let path = Path::new("/proc/sys/net/ipv4/conf/all/route_localnet");
        let value = || std::fs::read_to_string(path).unwrap().trim().to_owned();
        let rules = [(Family::V4, Rules::open(Family::V4, Variant::Nft).unwrap())];
        let mut linux = Linux::open(rules.into_iter().collect(), Mode::Iptables).unwrap();
        let sysctl = Sysctl::new("net/ipv4/conf/all/route_localnet", 1, true, "node ports");
        linux.keep_sysctls_behind_rules(vec![sysctl.clone()]);
        linux.set_desired_rules(mk_rule_set(Family::V4));
        assert!(!linux.read_rule_set(Family::V4).unwrap().is_complete);
        assert_eq!((value().as_str(), linux.drift_check().unwrap().sysctls), ("0", vec![]));
        assert_eq!(linux.apply(&[Op::WriteRuleSet(Family::V4)]), [Ok(())]);
        linux.read_chains(Family::V4).unwrap();
        assert_eq!(linux.drift_check().unwrap().sysctls, []);
        assert_eq!(value(), "1");
        std::fs::write(path, "0").unwrap();
        assert_eq!(linux.drift_check().unwrap().sysctls, [sysctl]);
    });
}
