//! Tables of our own on the running kernel, and what `nft` says of them.

use std::path::Path;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use netlink::Namespace;
use plan::capacity::SetSize;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Family, Protocol};
use plan::op::Op;
use plan::rule_set::nft::{self, SourceRanges};
use plan::rule_set::{LocalTraffic, RuleSetSettings};
use plan::sets::{SetId, SetKind};
use plan::settings::ShortCircuitNetworks;

use crate::RefusalClass;
use crate::nftables::own_tables::OwnTables;

/// A network namespace of a test's own.
struct Host(String);

impl Host {
    fn run(test: impl FnOnce() + Send) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let host = Self(format!("nft-{}-{number}", process::id()));
        succeed("ip", &["netns", "add", &host.0], "");
        let namespace = Namespace::at(&Path::new("/run/netns").join(&host.0)).unwrap();
        namespace.run(test).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        succeed("ip", &["netns", "del", &self.0], "");
    }
}

fn run(program: &str, arguments: &[&str], input: &str) -> (bool, String) {
    let finished = crate::program::run(program, arguments, input, Duration::from_secs(60)).unwrap();
    (
        finished.status.success(),
        if finished.status.success() { finished.stdout } else { finished.stderr },
    )
}

fn succeed(program: &str, arguments: &[&str], input: &str) -> String {
    let (is_success, said) = run(program, arguments, input);
    assert!(is_success, "{program} {arguments:?}: {said}");
    said
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Every way to know local traffic, with and without short circuits and routes.
fn settings(family: Family) -> Vec<RuleSetSettings> {
    let [pods, node, route, own] = match family {
        Family::V4 => ["10.244.0.0/16", "10.244.1.0/24", "10.96.0.0/12", "10.96.0.9"],
        Family::V6 => ["fd00:10::/32", "fd00:10:0:1::/64", "fd00:96::/112", "fd00:96::9"],
    };
    let locals = [
        LocalTraffic::Unknown,
        LocalTraffic::Cidr(net(pods)),
        LocalTraffic::ClusterCidr { cluster: net(pods), node: Some(net(node)) },
        LocalTraffic::Bridge(Arc::from("cni0")),
        LocalTraffic::Prefix(Arc::from("veth")),
    ];
    let mut all = Vec::new();
    for local in locals {
        let plain = RuleSetSettings::new(false, 14, local.clone(), true).unwrap();
        all.push(plain.clone());
        let network = ShortCircuitNetworks::default().of(family);
        let own = [own.parse().unwrap()].into_iter().collect();
        let full = plain.with_short_circuit_network(network).with_health_port(Some(10256));
        all.push(full.with_routes(vec![net(route)], &own));
    }
    all.push(RuleSetSettings::new(true, 3, LocalTraffic::Unknown, false).unwrap());
    all
}

fn set(kind: SetKind, family: Family) -> SetId {
    SetId { kind, family }
}

fn frontend(family: Family, last: u8) -> Frontend {
    let address = match family {
        Family::V4 => [10, 96, 0, last].into(),
        Family::V6 => [0xfd00, 0x96, 0, 0, 0, 0, 0, u16::from(last)].into(),
    };
    Frontend { address, protocol: Protocol::Tcp, port: 80 }
}

fn size() -> SetSize {
    SetSize { capacity: plan::capacity::Capacity::FIRST, expected: 0 }
}

/// The rules of a chain as `nft` prints them.
fn listed(family: &str, chain: &str) -> Vec<String> {
    let text = succeed("nft", &["-y", "list", "chain", family, nft::TABLE, chain], "");
    let lines = text.lines().skip(2).map(str::trim);
    let lines = lines.filter(|line| !line.starts_with("type ") && !line.starts_with('}'));
    lines.map(str::to_owned).collect()
}

#[test]
fn rules_are_read_back_as_written_and_listed_in_the_words_of_nft() {
    Host::run(|| {
        let mut tables = OwnTables::open(&Family::BOTH).unwrap();
        for (family, name) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
            for settings in settings(family) {
                tables.desire(family, settings.clone());
                assert!(tables.compare_rules(family).unwrap().is_some());
                tables.write_rules(family).unwrap();
                assert_eq!(tables.compare_rules(family).unwrap(), None, "{settings:?}");
                for chain in nft::chains(family, &settings, &SourceRanges::default()) {
                    let texts: Vec<String> =
                        chain.rules.iter().map(|rule| rule.text(family)).collect();
                    assert_eq!(listed(name, chain.name), texts, "{}: {settings:?}", chain.name);
                }
            }
        }
    });
}

#[test]
fn what_nft_saves_it_restores_as_the_same_rules() {
    Host::run(|| {
        let settings = settings(Family::V4).remove(5);
        let mut tables = OwnTables::open(&[Family::V4]).unwrap();
        tables.desire(Family::V4, settings.clone());
        tables.write_rules(Family::V4).unwrap();
        let saved = succeed("nft", &["list", "ruleset"], "");
        // A table with an owner is restored by another name.
        let saved = saved.replace("flags owner,persist", "").replace("flags owner", "");
        let saved = saved.replace("table ip kube-ipvs {", "table ip copied {");
        succeed("nft", &["-f", "-"], &saved);
        let rules_of = |table: &str| {
            let text = succeed("nft", &["list", "table", "ip", table], "");
            text.lines()
                .filter(|line| !line.contains("flags owner") && !line.is_empty())
                .skip(1)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let ours: Vec<String> =
            rules_of("kube-ipvs").into_iter().filter(|line| !line.contains("progname")).collect();
        assert_eq!(rules_of("copied"), ours);
    });
}

#[test]
fn entries_of_every_kind_are_read_back_and_one_refusal_harms_no_other() {
    Host::run(|| {
        let mut tables = OwnTables::open(&Family::BOTH).unwrap();
        for family in Family::BOTH {
            let creations: Vec<Op> = SetId::all(family)
                .filter(|set| set.kind != SetKind::NodePortUdp)
                .map(|set| Op::CreateSet(set, size()))
                .collect();
            assert!(tables.apply(&creations).iter().all(Result::is_ok));
            let address = frontend(family, 7).address;
            let networks = match family {
                Family::V4 => ["192.0.2.0/24", "10.0.0.0/8", "198.51.100.7/32"],
                Family::V6 => ["2001:db8::/32", "2001:db8:1::/48", "2001:db8:2::7/128"],
            };
            let mut entries = vec![
                (SetKind::IpvsAddresses, Entry::Address(address)),
                (SetKind::ClusterIp, Entry::AddressPort(frontend(family, 1))),
                (SetKind::LoopBack, Entry::AddressPortAddress(frontend(family, 2), address)),
                (SetKind::NodePortTcp, Entry::Port(30_080)),
            ];
            entries.extend(networks.map(|network| {
                let entry = Entry::AddressPortNet(frontend(family, 3), net(network));
                (SetKind::LoadBalancerSourceCidr, entry)
            }));
            let add = |(kind, entry): &(SetKind, Entry)| Op::AddEntry(set(*kind, family), *entry);
            let additions: Vec<Op> = entries.iter().map(add).collect();
            assert!(tables.apply(&additions).iter().all(Result::is_ok));
            assert!(tables.apply(&additions).iter().all(Result::is_ok), "they are there");
            for (kind, entry) in &entries {
                let read = tables.read_set(set(*kind, family)).unwrap().unwrap();
                assert!(read.entries.contains(entry) && read.n_unknown == 0, "{kind:?}: {read:?}");
            }
            let networks = tables.read_set(nft::networks(family)).unwrap().unwrap();
            assert_eq!(networks.entries.len(), 3);

            let removals = [
                Op::RemoveEntry(set(SetKind::ClusterIp, family), entries[1].1),
                Op::RemoveEntry(
                    set(SetKind::ClusterIp, family),
                    Entry::AddressPort(frontend(family, 99)),
                ),
                Op::AddEntry(set(SetKind::NodePortUdp, family), Entry::Port(53)),
                Op::GrowSet(set(SetKind::ClusterIp, family), size()),
                Op::AddEntry(
                    set(SetKind::ClusterIp, family),
                    Entry::AddressPort(frontend(family, 5)),
                ),
            ];
            let results = tables.apply(&removals);
            let classes: Vec<_> =
                results.iter().map(|it| it.as_ref().err().map(|it| it.class)).collect();
            assert_eq!(classes, [None, None, Some(RefusalClass::Conflict), None, None]);
            let read = tables.read_set(set(SetKind::ClusterIp, family)).unwrap().unwrap();
            assert_eq!(
                read.entries,
                [Entry::AddressPort(frontend(family, 5))].into_iter().collect()
            );
        }
    });
}
