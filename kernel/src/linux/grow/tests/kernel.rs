//! On a real kernel, each test in a network namespace of its own. They need root, `ip`, `ipset` and
//! `iptables`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ipset::{Counters, Entry, EntryOptions, SetOptions, SetSpec, SetType};
use plan::hash::HashMap;
use plan::kernel_objects::{Entry as Planned, Frontend};
use plan::model::Protocol;
use plan::op::Op;
use plan::sets::SetKind;

use super::*;
use crate::Kernel as _;
use crate::linux::Linux;
use crate::program;
use crate::rules::TIMEOUT;

const ADDRESSES: SetId = SetId { kind: SetKind::IpvsAddresses, family: Family::V4 };
const CLUSTER: SetId = SetId { kind: SetKind::ClusterIp, family: Family::V4 };
const SOURCES: SetId = SetId { kind: SetKind::LoadBalancerSourceCidr, family: Family::V4 };

/// A network namespace that goes with the test.
struct Host(String);

impl Host {
    /// Runs a test in a new namespace.
    fn run(test: impl FnOnce(&Self) + Send) {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let host = Self(format!("grow-{}-{number}", process::id()));
        succeed("ip", &["netns", "add", &host.0]);
        host.namespace().run(|| test(&host)).unwrap();
    }

    fn namespace(&self) -> netlink::Namespace {
        netlink::Namespace::at(&Path::new("/run/netns").join(&self.0)).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        succeed("ip", &["netns", "del", &self.0]);
    }
}

fn succeed(program: &str, arguments: &[&str]) -> String {
    attempt(program, arguments)
        .unwrap_or_else(|error| panic!("{program} {}: {error}", arguments.join(" ")))
}

fn attempt(program: &str, arguments: &[&str]) -> Result<String, String> {
    let finished = program::run(program, arguments, "", TIMEOUT).unwrap();
    if finished.status.success() { Ok(finished.stdout) } else { Err(finished.stderr) }
}

fn tool(arguments: &str) -> Result<String, String> {
    attempt("ipset", &arguments.split_whitespace().collect::<Vec<_>>())
}

fn mk_linux() -> Linux {
    // The oldest kernels do not load it by themselves.
    succeed("modprobe", &["ip_vs"]);
    Linux::open(HashMap::default(), plan::mode::Mode::Ipvs).unwrap()
}

fn size(capacity: u32, expected: usize) -> SetSize {
    SetSize { capacity: Capacity::new(capacity), expected }
}

fn name(set: SetId) -> Name {
    set_name(set).unwrap()
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 96, 0, 0)) + number)
}

/// Returns `count` entries of a set of ours: several ports of each address, if it has any.
fn entries(set: SetId, count: u32) -> impl Iterator<Item = Planned> {
    (0..count).map(move |number| {
        let frontend = |address: Ipv4Addr, port| Frontend {
            address: address.into(),
            protocol: [Protocol::Tcp, Protocol::Udp][number as usize % 2],
            port,
        };
        let at = frontend(address(number / 16), 8_000 + (number % 16) as u16);
        match set.set_type().name() {
            "hash:ip" => Planned::Address(address(number).into()),
            "hash:ip,port" => Planned::AddressPort(at),
            _ => Planned::AddressPortAddress(at, at.address),
        }
    })
}

fn all_done(linux: &mut Linux, ops: &[Op]) {
    let results = linux.apply(ops);
    assert_eq!(results.len(), ops.len());
    for (op, result) in ops.iter().zip(results) {
        result.unwrap_or_else(|refusal| panic!("{op}: {refusal}"));
    }
}

fn adding(set: SetId, entries: impl Iterator<Item = Planned>) -> Vec<Op> {
    entries.map(|entry| Op::AddEntry(set, entry)).collect()
}

/// A set of this capacity with so many addresses in it.
fn made(ipset: &mut Client, capacity: u32, count: u32) {
    let mut batch = Batch::new();
    let spec = crate::translate::set_spec(ADDRESSES, size(capacity, 0));
    batch.create(name(ADDRESSES), spec);
    for number in 0..count {
        batch.add(name(ADDRESSES), Entry::Ip(address(number).into()));
    }
    for result in ipset.send(&batch).unwrap() {
        result.unwrap();
    }
}

fn left_beside(ipset: &mut Client) -> Vec<String> {
    let names = ipset.list_names().unwrap().into_iter().map(|name| name.to_string());
    names.filter(|name| name.starts_with(BESIDE)).collect()
}

#[test]
fn a_set_that_rules_refer_to_gets_larger_and_keeps_everything() {
    Host::run(|_| {
        let mut ipset = Client::open().unwrap();
        made(&mut ipset, 10, 9);
        let matching = "-A OUTPUT -m set --match-set KUBE-IPVS-IPS dst -j ACCEPT";
        succeed("iptables", &matching.split_whitespace().collect::<Vec<_>>());
        let before = ipset.list(name(ADDRESSES)).unwrap();
        assert_eq!(before.header.references, 1);

        grow(&mut ipset, ADDRESSES, size(32, 10)).unwrap();

        let after = ipset.list(name(ADDRESSES)).unwrap();
        assert_eq!(after.header.options.max_elements, Some(32));
        assert_eq!(after.header.references, 1);
        let held = |set: &Set| set.entries.iter().map(|it| it.entry).collect::<BTreeSet<_>>();
        assert_eq!(held(&after), held(&before));
        assert_eq!(left_beside(&mut ipset), [""; 0]);
        for number in 9..32 {
            ipset.add(name(ADDRESSES), Entry::Ip(address(number).into())).unwrap();
        }
        let full = ipset.add(name(ADDRESSES), Entry::Ip(address(32).into())).unwrap_err();
        assert!(full.is_set_full(), "{full}");

        grow(&mut ipset, ADDRESSES, size(32, 10)).unwrap();
        grow(&mut ipset, ADDRESSES, size(16, 10)).unwrap();
        let same = ipset.header(name(ADDRESSES)).unwrap();
        assert_eq!(same.options.max_elements, Some(32), "it is large enough");
    });
}

#[test]
fn what_others_attached_to_entries_stays() {
    Host::run(|_| {
        let mut ipset = Client::open().unwrap();
        let options = SetOptions::default()
            .with_max_elements(8)
            .with_timeout(0)
            .with_counters(true)
            .with_comment(true)
            .with_skbinfo(true);
        let spec = SetSpec::new(SetType::HashIpPort, ipset::Family::Ipv4).with_options(options);
        ipset.create(name(CLUSTER), spec).unwrap();
        let ours: Entry = "10.96.0.1,tcp:80".parse().unwrap();
        // Of a protocol that is never ours.
        let theirs: Entry = "10.96.0.2,icmp:8/0".parse().unwrap();
        let options = EntryOptions::default()
            .with_timeout(100_000)
            .with_counters(Counters { packets: 7, bytes: 490 })
            .with_comment("somebody's")
            .with_priority(65_538);
        ipset.add(name(CLUSTER), ours).unwrap();
        ipset.add_with(name(CLUSTER), theirs, options.clone()).unwrap();

        grow(&mut ipset, CLUSTER, size(64, 2)).unwrap();

        let after = ipset.list(name(CLUSTER)).unwrap();
        assert_eq!(after.header.options.max_elements, Some(64));
        assert_eq!(after.entries.len(), 2);
        let of = |entry| after.entries.iter().find(|it| it.entry == entry).unwrap().options.clone();
        let found = of(theirs).unwrap();
        let left = found.timeout.unwrap();
        assert!((99_000..=100_000).contains(&left), "{left} s left");
        assert_eq!(found.with_timeout(100_000), options);
        assert_eq!(of(ours).unwrap().timeout, Some(0), "for ever");
    });
}

#[test]
fn seventy_thousand_entries_in_sets_that_began_with_room_for_fewer() {
    Host::run(|_| {
        let mut linux = mk_linux();
        for kind in [SetKind::IpvsAddresses, SetKind::ClusterIp, SetKind::LoopBack] {
            let set = SetId { kind, family: Family::V4 };
            let first = size(Capacity::FIRST.entries(), 0);
            all_done(&mut linux, &[Op::CreateSet(set, first)]);
            all_done(&mut linux, &adding(set, entries(set, 65_536)));
            // Some more may fit: where a part of the buckets has less than its share, the kernel
            // does not look at the whole (`mtype_add` in net/netfilter/ipset/ip_set_hash_gen.h).
            let refused = linux.apply(&adding(set, entries(set, 70_000).skip(65_536)));
            let refused: Vec<Refusal> = refused.into_iter().filter_map(Result::err).collect();
            assert!(refused.len() > 2_000, "{} refused", refused.len());
            assert!(refused.iter().all(|it| it.class == RefusalClass::SetFull), "{}", refused[0]);

            let mut ops = vec![Op::GrowSet(set, size(131_072, 70_000))];
            ops.extend(adding(set, entries(set, 70_000).skip(65_536)));
            let begun = Instant::now();
            let (growth, rest) = ops.split_at(1);
            // The kernel does not swap a set while it is being listed: the growth waits for that.
            let reader = linux.set_reader();
            let beside = thread::spawn(move || reader.read_set(set));
            all_done(&mut linux, growth);
            assert!(beside.join().unwrap().unwrap().is_some());
            println!("{set}: 65,536 entries to room for 131,072: {:?}", begun.elapsed());
            all_done(&mut linux, rest);

            let there = linux.read_set(set).unwrap().unwrap();
            assert_eq!(there.capacity, Capacity::new(131_072));
            assert_eq!(there.entries, entries(set, 70_000).collect(), "{set}");
            assert_eq!(linux.set_reader().read_set(set), Ok(Some(there)), "{set}");
            assert_eq!(left_beside(linux.ipset.as_mut().unwrap()), [""; 0]);
        }
    });
}

/// Every processor is busy with packets that have to find their entry, and with questions for it.
#[test]
fn no_packet_misses_an_entry_while_the_set_grows() {
    Host::run(|host| {
        succeed("ip", &["link", "set", "lo", "up"]);
        succeed("ip", &["route", "add", "local", "10.96.0.0/16", "dev", "lo"]);
        let mut ipset = Client::open().unwrap();
        made(&mut ipset, 65_536, 20_000);
        for rule in [
            "-A OUTPUT -m set --match-set KUBE-IPVS-IPS dst -j ACCEPT",
            "-A OUTPUT -d 10.96.0.0/16 -j DROP",
        ] {
            succeed("iptables", &rule.split_whitespace().collect::<Vec<_>>());
        }
        let namespace = host.namespace();
        let over = AtomicBool::new(false);
        let sender = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let mut sent = 0_u32;
            while !over.load(Ordering::Relaxed) {
                // A packet that a rule drops in OUTPUT is EPERM.
                let to = address(sent % 20_000);
                socket.send_to(b"?", (to, 9)).unwrap_or_else(|error| panic!("{to}: {error}"));
                sent += 1;
            }
            let none = socket.send_to(b"?", (address(30_000), 9)).unwrap_err();
            assert_eq!(none.kind(), std::io::ErrorKind::PermissionDenied, "what is not in it");
            sent
        };
        let asker = || {
            let (mut ipset, mut asked) = (Client::open().unwrap(), 0_u32);
            while !over.load(Ordering::Relaxed) {
                let entry = Entry::Ip(IpAddr::from(address(asked % 20_000)));
                assert!(ipset.test(name(ADDRESSES), entry).unwrap(), "{entry}");
                asked += 1;
            }
            asked
        };
        thread::scope(|scope| {
            let sending = scope.spawn(|| namespace.run(sender).unwrap());
            let asking = scope.spawn(|| namespace.run(asker).unwrap());
            thread::sleep(Duration::from_millis(300));
            for doublings in 1..=6 {
                grow(&mut ipset, ADDRESSES, size(65_536 << doublings, 20_000)).unwrap();
            }
            thread::sleep(Duration::from_millis(300));
            over.store(true, Ordering::Relaxed);
            let (sent, asked) = (sending.join().unwrap(), asking.join().unwrap());
            println!("{sent} packets and {asked} questions during six growths");
            assert!(sent > 100 && asked > 100, "{sent} packets, {asked} questions");
        });
        let header = ipset.header(name(ADDRESSES)).unwrap();
        assert_eq!(header.options.max_elements, Some(65_536 << 6));
    });
}

/// A refusal, whatever its reason, leaves the set as it was and nothing beside it.
#[test]
fn a_growth_that_is_refused_changes_nothing() {
    Host::run(|_| {
        let mut ipset = Client::open().unwrap();
        let refusal = grow(&mut ipset, ADDRESSES, size(32, 0)).unwrap_err();
        assert_eq!(refusal.class, RefusalClass::Conflict, "{refusal}");

        // What is beside it cannot be removed.
        made(&mut ipset, 16, 9);
        let before = ipset.list(name(ADDRESSES)).unwrap();
        tool("create KTMP-IPVS-IPS hash:ip").unwrap();
        let using = "-A OUTPUT -m set --match-set KTMP-IPVS-IPS dst -j ACCEPT";
        succeed("iptables", &using.split_whitespace().collect::<Vec<_>>());
        let refusal = grow(&mut ipset, ADDRESSES, size(32, 0)).unwrap_err();
        let text = refusal.to_string();
        assert!(text.contains("destroy set KTMP-IPVS-IPS: the set is in use"), "{text}");
        assert!(text.contains("iptables-save | grep KTMP-IPVS-IPS"), "{text}");
        assert!(text.contains("KUBE-IPVS-IPS stays, with a capacity of 16 entries"), "{text}");
        assert!(ipset.list(name(ADDRESSES)).unwrap() == before);
        succeed("iptables", &["-F", "OUTPUT"]);
        // nf_tables lets go of the set some time after.
        let deadline = Instant::now() + Duration::from_secs(5);
        while grow(&mut ipset, ADDRESSES, size(32, 0)).is_err() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(100));
        }
        let after = ipset.header(name(ADDRESSES)).unwrap();
        assert_eq!(after.options.max_elements, Some(32));
        assert_eq!(left_beside(&mut ipset), [""; 0]);

        // An exception cannot be copied.
        tool("create KUBE-LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net maxelem 16").unwrap();
        tool("add KUBE-LOAD-BALANCER-SOURCE-CIDR 10.0.0.1,tcp:80,10.0.0.0/8 nomatch").unwrap();
        let refusal = grow(&mut ipset, SOURCES, size(32, 0)).unwrap_err();
        assert!(refusal.reason.contains("1 of its entries"), "{refusal}");
        assert_eq!(left_beside(&mut ipset), [""; 0]);

        // Another program's set.
        tool("create KUBE-CLUSTER-IP hash:net maxelem 16").unwrap();
        let refusal = grow(&mut ipset, CLUSTER, size(32, 0)).unwrap_err();
        assert!(refusal.reason.contains("hash:ip,port is needed"), "{refusal}");
        assert_eq!(left_beside(&mut ipset), [""; 0]);
    });
}

#[test]
fn a_set_that_somebody_lists_does_not_change_places() {
    Host::run(|_| {
        let mut ipset = Client::open().unwrap();
        made(&mut ipset, 65_536, 60_000);
        // Its pipe is full soon, and the kernel keeps the set for as long as it waits.
        let mut lister = Command::new("ipset");
        let lister = lister.args(["list", "KUBE-IPVS-IPS"]).stdout(Stdio::piped());
        let mut lister = lister.spawn().unwrap();
        thread::sleep(Duration::from_secs(1));
        let refusal = grow(&mut ipset, ADDRESSES, size(131_072, 60_000)).unwrap_err();
        assert_eq!(refusal.class, RefusalClass::Exhausted, "{refusal}");
        assert!(refusal.reason.contains("being listed"), "{refusal}");
        assert_eq!(left_beside(&mut ipset), [""; 0]);
        let header = ipset.header(name(ADDRESSES)).unwrap();
        assert_eq!(header.options.max_elements, Some(65_536));
        lister.kill().unwrap();
        lister.wait().unwrap();
        grow(&mut ipset, ADDRESSES, size(131_072, 60_000)).unwrap();
        let there = ipset.list(name(ADDRESSES)).unwrap();
        assert_eq!(there.entries.len(), 60_000);
        assert_eq!(there.header.options.max_elements, Some(131_072));
    });
}

#[test]
fn what_a_crash_left_beside_is_removed_and_nothing_else() {
    Host::run(|_| {
        let mut ipset = Client::open().unwrap();
        for set in ["KUBE-CLUSTER-IP", "KTMP-CLUSTER-IP", "KTMP-6-IPVS-IPS", "KTMP-WEB"] {
            tool(&format!("create {set} hash:ip,port")).unwrap();
        }
        assert!(remove_leftovers(&mut ipset).unwrap().is_empty());
        let left: BTreeSet<String> =
            ipset.list_names().unwrap().into_iter().map(|name| name.to_string()).collect();
        assert_eq!(left, ["KTMP-WEB", "KUBE-CLUSTER-IP"].map(str::to_owned).into());
        assert!(remove_leftovers(&mut ipset).unwrap().is_empty());
    });
}

/// Reaction of kube-proxy to a set that it finds.
#[test]
fn the_tool_takes_a_set_with_another_hash_size_for_the_same_and_one_of_another_capacity_not() {
    Host::run(|_| {
        let kube_proxys =
            "create KUBE-IPVS-IPS hash:ip family inet hashsize 1024 maxelem 65536 -exist";
        let mut linux = mk_linux();
        let first = Capacity::FIRST.entries();
        all_done(&mut linux, &[Op::CreateSet(ADDRESSES, size(first, 40_000))]);
        tool(kube_proxys).unwrap();
        all_done(&mut linux, &[Op::GrowSet(ADDRESSES, size(2 * first, 60_000))]);
        let error = tool(kube_proxys).unwrap_err();
        assert!(error.contains("set with the same name already exists"), "{error}");
        println!("{}", error.trim());
    });
}
