//! Tables of our own on the running kernel, and what `nft` says of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use netlink::Namespace;
use plan::capacity::SetSize;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Family, Protocol};
use plan::op::Op;
use plan::rule_set::nft;
use plan::rule_set::{LocalTraffic, RuleSet, RuleSetSettings};
use plan::sets::{SetId, SetKind};
use plan::settings::{FastPath, InternalFrontendNetworks};

use crate::RefusalClass;
use crate::nftables::{OwnTables, own_chains_lead, remove_own_chains, remove_table};

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

/// Every way to know local traffic, with and without internal frontends and routes.
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
        let network = InternalFrontendNetworks::default().of(family);
        let own = [own.parse().unwrap()].into_iter().collect();
        let full = plain.with_internal_frontend_network(network).with_health_port(Some(10256));
        all.push(full.clone().with_routes(vec![net(route)], &own));
        all.push(full.clone().with_fast_path(FastPath::Conntrack));
        all.push(full.with_fast_path(FastPath::Offload));
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

/// Every `nft` of this machine: its own, and in a guest of tests those of several releases.
fn every_nft() -> Vec<String> {
    let others = std::env::var("KUBE_IPVS_NFT").map(|folder| {
        let found = std::fs::read_dir(folder).unwrap();
        let found: Vec<_> = found.map(|it| it.unwrap().path().join("nft")).collect();
        assert!(!found.is_empty());
        found
    });
    let others = others.into_iter().flatten().map(|path| path.to_str().unwrap().to_owned());
    ["nft".to_owned()].into_iter().chain(others).collect()
}

/// The chains of a family's table as `nft` prints them, with their rules.
fn listed(nft: &str, family: &str) -> BTreeMap<String, Vec<String>> {
    let text = succeed(nft, &["-y", "list", "table", family, nft::TABLE], "");
    let (mut chains, mut chain) = (BTreeMap::<String, Vec<String>>::new(), String::new());
    for line in text.lines().map(str::trim).skip_while(|line| !line.starts_with("chain ")) {
        if let Some(name) = line.strip_prefix("chain ") {
            name.trim_end_matches(" {").clone_into(&mut chain);
            chains.insert(chain.clone(), Vec::new());
        } else if !line.is_empty() && !line.starts_with("type ") && !line.starts_with('}') {
            // Releases before 1.1 print two bits so.
            let (former, now) = (
                "ct status confirmed,dnat / confirmed,dnat",
                "ct status & (confirmed | dnat) == confirmed | dnat",
            );
            chains.get_mut(&chain).unwrap().push(line.replace(former, now));
        }
    }
    chains
}

#[test]
fn rules_are_read_back_as_written_and_listed_in_the_words_of_nft() {
    Host::run(|| {
        let mut tables = OwnTables::open(&Family::BOTH).unwrap();
        for (family, name) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
            for settings in settings(family) {
                tables.desire(RuleSet::new(family, &settings));
                assert!(tables.compare_rules(family).unwrap().is_some());
                tables.write_rules(family).unwrap();
                assert_eq!(tables.compare_rules(family).unwrap(), None, "{settings:?}");
                let chains = nft::chains(family, &settings).into_iter().map(|chain| {
                    let rules = chain.rules.iter().map(|rule| rule.text(family));
                    (chain.name.to_owned(), rules.collect())
                });
                let chains: BTreeMap<String, Vec<String>> = chains.collect();
                for nft in every_nft() {
                    assert_eq!(listed(&nft, name), chains, "{nft}: {settings:?}");
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
        tables.desire(RuleSet::new(Family::V4, &settings));
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

/// Names of the devices of a flow table, as `nft` prints them.
fn devices(family: &str) -> Vec<String> {
    let text = succeed("nft", &["list", "flowtables", family], "");
    let listed = text.lines().find_map(|line| line.trim().strip_prefix("devices = {"));
    let mut names: Vec<String> = { listed.unwrap_or_default() }
        .trim_end_matches(" }")
        .split(',')
        .map(|name| name.trim().trim_matches('"').to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn flow_tables_have_the_devices_that_there_are() {
    Host::run(|| {
        let ip = |words: &str| succeed("ip", &words.split(' ').collect::<Vec<_>>(), "");
        ip("link add v1 type veth peer name v2");
        ip("link add dummy1 type dummy");
        let mut tables = OwnTables::open(&Family::BOTH).unwrap();
        let fast = |family, path| {
            let network = InternalFrontendNetworks::default().of(family);
            let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
            RuleSet::new(
                family,
                &settings.with_internal_frontend_network(network).with_fast_path(path),
            )
        };
        let write = |tables: &mut OwnTables, path| {
            for family in Family::BOTH {
                tables.desire(fast(family, path));
                tables.write_rules(family).unwrap();
            }
        };
        write(&mut tables, FastPath::Offload);
        let require = |expected: &[&str]| {
            for family in ["ip", "ip6"] {
                assert_eq!(devices(family), expected, "{family}");
            }
        };
        require(&["v1", "v2"]);
        ip("link add a1 type veth peer name a2");
        ip("link set v1 name renamed");
        tables.follow_devices();
        require(&["a1", "a2", "renamed", "v2"]);
        // One goes before it was seen, one after, and a name is used again.
        ip("link add gone1 type veth peer name gone2");
        ip("link del gone1");
        ip("link del a1");
        ip("link add a2 type veth peer name b");
        tables.follow_devices();
        require(&["a2", "b", "renamed", "v2"]);
        let before = tables.traffic();
        tables.follow_devices();
        assert_eq!(tables.traffic().sends, before.sends, "nothing came, and nothing is written");
        write(&mut tables, FastPath::Offload);
        require(&["a2", "b", "renamed", "v2"]);
        assert_eq!(tables.compare_rules(Family::V4).unwrap(), None);
        write(&mut tables, FastPath::Conntrack);
        require(&[]);
        assert_eq!(tables.compare_rules(Family::V4).unwrap(), None);
        // More than one transaction has.
        let add = |numbers: Range<u32>, group: u8| {
            let add = |it| {
                format!(
                    "link add out-of-many{it} group {group} type veth peer name and-one-of-{it}\n"
                )
            };
            succeed("ip", &["-batch", "-"], &numbers.map(add).collect::<String>());
        };
        add(1_000..1_300, 7);
        write(&mut tables, FastPath::Offload);
        assert_eq!(devices("ip").len(), 604);
        // More than a message of a list has: no list shows the flow table.
        add(1_300..1_700, 7);
        add(1_700..1_900, 8);
        tables.follow_devices();
        require(&[]);
        assert_eq!(tables.compare_rules(Family::V4).unwrap(), None);
        ip("link add late1 type veth peer name late2");
        tables.follow_devices();
        ip("link del group 8");
        assert!(devices("ip").contains(&"late2".to_owned()));
        add(1_700..1_900, 7);
        tables.follow_devices();
        require(&[]);
        write(&mut tables, FastPath::Conntrack);
        ip("link del group 7");
        require(&[]);
    });
}

fn rule_set(family: Family) -> RuleSet {
    RuleSet::new(family, &settings(family)[0])
}

/// Tables with rules, and a set with an entry.
fn mk_tables(family: Family) -> OwnTables {
    let mut tables = OwnTables::open(&[family]).unwrap();
    tables.desire(rule_set(family));
    tables.write_rules(family).unwrap();
    let entry = Entry::AddressPort(frontend(family, 1));
    let added = tables.apply(&[Op::AddEntry(set(SetKind::ClusterIp, family), entry)]);
    assert!(added.iter().all(Result::is_ok), "{added:?}");
    tables
}

#[test]
fn chains_go_and_sets_stay() {
    Host::run(|| {
        for family in Family::BOTH {
            assert!(!own_chains_lead(family).unwrap());
            let tables = mk_tables(family);
            assert!(own_chains_lead(family).unwrap());
            assert!(remove_own_chains(family).is_err(), "another process has them");
            drop(tables);
            // A program that another test starts keeps the socket open until it begins.
            while remove_own_chains(family).is_err() {
                thread::sleep(Duration::from_millis(10));
            }
            assert!(!own_chains_lead(family).unwrap());
            let mut tables = OwnTables::open(&[family]).unwrap();
            let read = tables.read_set(set(SetKind::ClusterIp, family)).unwrap().unwrap();
            assert_eq!(read.entries.len(), 1);
        }
    });
}

#[test]
fn a_table_of_another_process_is_read_and_not_taken() {
    Host::run(|| {
        let family = Family::V4;
        let owner = mk_tables(family);
        let refused = OwnTables::open(&[family]).unwrap_err().to_string();
        assert!(refused.contains("belongs to another process"), "{refused}");
        OwnTables::try_rules(rule_set(family)).unwrap();
        let mut reader = OwnTables::open_to_read(&[family]).unwrap();
        reader.desire(rule_set(family));
        assert_eq!(reader.compare_rules(family).unwrap(), None);
        drop(owner);
        let mut next = OwnTables::open(&[family]).unwrap();
        next.desire(rule_set(family));
        assert!(!next.is_untouched(family).unwrap(), "nothing was read yet");
        assert_eq!(next.compare_rules(family).unwrap(), None);
        assert!(next.is_untouched(family).unwrap());
        let tables = succeed("nft", &["list", "tables"], "");
        assert_eq!(tables.trim(), "table ip kube-ipvs");
    });
}

#[test]
fn rules_are_tried_without_a_trace() {
    Host::run(|| {
        for family in Family::BOTH {
            OwnTables::try_rules(rule_set(family)).unwrap();
        }
        assert_eq!(succeed("nft", &["list", "ruleset"], ""), "");
    });
}

#[test]
fn a_table_that_was_restored_is_made_anew_and_sets_of_another_type_are_named() {
    Host::run(|| {
        let family = Family::V4;
        let set = "add set ip kube-ipvs KUBE-CLUSTER-IP { type ipv4_addr; }";
        succeed("nft", &["-f", "-"], &format!("add table ip kube-ipvs\n{set}"));
        // Where tables have owners, one without is not of a process of ours.
        if let Err(error) = OwnTables::open(&[family]) {
            let said = error.to_string();
            assert!(said.contains("KUBE-CLUSTER-IP") && said.contains("another type"), "{said}");
            remove_table(family, nft::TABLE).unwrap();
        }
        assert_eq!(mk_tables(family).compare_rules(family).unwrap(), None);
    });
}

#[test]
fn before_the_dispatch_there_is_no_chain_that_leads() {
    Host::run(|| {
        let family = Family::V4;
        let mut tables = OwnTables::open(&[family]).unwrap();
        tables.desire(RuleSet::before_dispatch(family, &settings(family)[5]));
        tables.write_rules(family).unwrap();
        assert_eq!(tables.compare_rules(family).unwrap(), None);
        assert!(!own_chains_lead(family).unwrap());
        let listed = listed("nft", "ip");
        assert_eq!(listed["postrouting"][0], "ip saddr @KUBE-IPVS-IPS masquerade fully-random");
        tables.desire(rule_set(family));
        assert!(tables.compare_rules(family).unwrap().is_some());
        tables.write_rules(family).unwrap();
        assert!(own_chains_lead(family).unwrap());
    });
}

/// Number of rules of another program. Its programs read all of them, and begin anew if anything was committed meanwhile.
const FOREIGN_RULES: usize = 2_000;

#[test]
fn another_programs_change_ends_beside_changes_of_ours_without_a_pause() {
    Host::run(|| {
        let mut input = "*filter\n:FOREIGN - [0:0]\n".to_owned();
        for number in 0..FOREIGN_RULES {
            let (third, last) = (number / 250, number % 250);
            input += &format!("-A FOREIGN -s 192.0.{third}.{last} -j RETURN\n");
        }
        succeed("iptables-nft-restore", &[], &(input + "COMMIT\n"));
        let family = Family::V4;
        let mut tables = mk_tables(family);
        let (set, ended) = (set(SetKind::ClusterIp, family), AtomicBool::new(false));
        thread::scope(|scope| {
            let changing = scope.spawn(|| {
                let mut n_changes = 0;
                while !ended.load(Ordering::Relaxed) {
                    let entry = Entry::AddressPort(frontend(family, 9));
                    for change in [Op::AddEntry(set, entry), Op::RemoveEntry(set, entry)] {
                        assert!(tables.apply(&[change]).iter().all(Result::is_ok));
                        n_changes += 1;
                    }
                }
                n_changes
            });
            let began = Instant::now();
            for last in 0..3 {
                let source = format!("192.0.1.{last}");
                succeed("iptables-nft", &["-D", "FOREIGN", "-s", &source, "-j", "RETURN"], "");
            }
            let took = began.elapsed();
            ended.store(true, Ordering::Relaxed);
            let n_changes = changing.join().unwrap();
            println!("three removals took {took:?}, beside {n_changes} transactions");
            assert!(n_changes > 0);
        });
    });
}

#[test]
fn many_entries_are_added_and_removed_in_few_transactions() {
    const N: u32 = 10_000;
    Host::run(|| {
        let (family, set) = (Family::V4, set(SetKind::ClusterIp, Family::V4));
        let mut tables = mk_tables(family);
        let entry = |number: u32| {
            let address = (u32::from_be_bytes([10, 97, 0, 0]) + number).to_be_bytes();
            let frontend = Frontend { address: address.into(), protocol: Protocol::Udp, port: 53 };
            Entry::AddressPort(frontend)
        };
        let mut change = |what: &str, ops: Vec<Op>| {
            let (began, before) = (Instant::now(), tables.traffic());
            assert!(tables.apply(&ops).iter().all(Result::is_ok));
            let took = began.elapsed();
            println!("{what}: {took:?}, {} sends", tables.traffic().sends - before.sends);
        };
        change("10,000 more", (0..N).map(|number| Op::AddEntry(set, entry(number))).collect());
        change("one more", vec![Op::AddEntry(set, entry(N))]);
        change("one less", vec![Op::RemoveEntry(set, entry(N))]);
        change("10,000 there", (0..N).map(|number| Op::AddEntry(set, entry(number))).collect());
        let read = tables.read_set(set).unwrap().unwrap();
        // Tables have one entry from the beginning.
        assert_eq!(read.entries.len(), N as usize + 1);
        let mut change = |ops: Vec<Op>| assert!(tables.apply(&ops).iter().all(Result::is_ok));
        change((0..N).map(|number| Op::RemoveEntry(set, entry(number))).collect());
        assert_eq!(tables.read_set(set).unwrap().unwrap().entries.len(), 1);
    });
}
