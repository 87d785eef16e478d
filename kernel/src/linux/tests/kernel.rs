//! On a real kernel, each test in a network namespace of its own. They need root, `ip`, `ipvsadm`,
//! `ipset`, `modprobe` and both iptables variants.

mod iptables;

use std::net::IpAddr;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use plan::capacity::{Capacity, SetSize};
use plan::kernel_objects::{Entry, RealServer, VirtualServer};
use plan::model::Protocol;
use plan::rule_set::{LocalTraffic, RuleSetSettings};
use plan::scheduler::SchedulerName;
use plan::sets::SetKind;

use super::super::tables::SharedTables;
use super::super::*;
use crate::nftables::OwnTables;
use crate::program;
use crate::rules::{Rules, TIMEOUT, Variant};

const CLUSTER_IP: SetId = SetId { kind: SetKind::ClusterIp, family: Family::V4 };

/// A network namespace that goes with the test.
struct Host(String);

impl Host {
    /// Runs a test in a new namespace.
    fn run(test: impl FnOnce() + Send) {
        // Linux 5.10 does not load the module by itself.
        tool("modprobe -a ip_vs dummy");
        Self::run_without_ipvs(test);
    }

    /// The same, on a kernel that may lack IPVS.
    fn run_without_ipvs(test: impl FnOnce() + Send) {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let host = Self(format!("linux-{}-{number}", process::id()));
        tool(&format!("ip netns add {}", host.0));
        let path = Path::new("/run/netns").join(&host.0);
        netlink::Namespace::at(&path).unwrap().run(test).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        tool(&format!("ip netns del {}", self.0));
    }
}

/// Runs a program on the calling thread's namespace.
fn tool(command: &str) {
    let mut words = command.split(' ');
    let program = words.next().unwrap();
    let arguments: Vec<&str> = words.collect();
    let finished = program::run(program, &arguments, "", TIMEOUT).unwrap();
    assert!(finished.status.success(), "{command}: {}", finished.stderr);
}

fn mk_frontend(family: Family, number: u16) -> Frontend {
    let address = match family {
        Family::V4 => std::net::Ipv4Addr::from(0x0a60_0000 + u32::from(number)).into(),
        Family::V6 => std::net::Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, number).into(),
    };
    Frontend { address, protocol: Protocol::Tcp, port: 80 }
}

fn mk_real_server(family: Family) -> RealServer {
    let address = match family {
        Family::V4 => "10.244.0.7",
        Family::V6 => "fd00:244::7",
    };
    RealServer { address: address.parse().unwrap(), port: 8080, weight: 3 }
}

/// Everything that a drift check looks at, with so many virtual servers of each family, each with
/// an entry.
fn mk_linux(variant: Variant, n_of_each: u16) -> Linux {
    let rules = Family::BOTH.map(|family| (family, Rules::open(family, variant).unwrap()));
    let mut linux = Linux::open(rules.into_iter().collect(), Mode::Ipvs).unwrap();
    let mut ops = vec![Op::CreateLink];
    let size = SetSize { capacity: Capacity::FIRST, expected: 0 };
    for family in Family::BOTH {
        let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
        linux.set_desired_rules(RuleSet::new(family, &settings));
        ops.extend(SetId::all(family).map(|set| Op::CreateSet(set, size)));
        ops.push(Op::WriteRuleSet(family));
        let server = VirtualServer {
            scheduler: SchedulerName::new("rr").unwrap(),
            persistence: None,
            scheduler_flags: 0,
        };
        for number in 1..=n_of_each {
            let frontend = mk_frontend(family, number);
            let set = SetId { kind: SetKind::ClusterIp, family };
            ops.push(Op::AddEntry(set, Entry::AddressPort(frontend)));
            ops.push(Op::CreateVirtualServer(frontend, server.clone()));
        }
    }
    for (op, result) in ops.iter().zip(linux.apply(&ops)) {
        assert_eq!(result, Ok(()), "{op:?}");
    }
    linux
}

#[test]
fn a_drift_check_sees_what_others_do_with_nft() {
    sees_what_others_do(Variant::Nft, "nft");
}

#[test]
fn a_drift_check_sees_what_others_do_with_legacy() {
    sees_what_others_do(Variant::Legacy, "legacy");
}

#[test]
fn a_drift_check_costs_little_whatever_there_is_with_nft() {
    costs_little(Variant::Nft);
}

#[test]
fn a_drift_check_costs_little_whatever_there_is_with_legacy() {
    costs_little(Variant::Legacy);
}

fn sees_what_others_do(variant: Variant, name: &str) {
    Host::run(|| {
        let mut linux = mk_linux(variant, 5);
        let mut whole = linux.drift_check().unwrap();
        assert!(std::mem::take(&mut whole.has_listed), "nothing was known");
        assert!(whole.link);
        assert_eq!(whole.n_virtual_servers, Some(10));
        assert_eq!(whole.set_entries.len(), 2 * plan::sets::ALL.len());
        assert_eq!(whole.set_entries[&CLUSTER_IP], 5);
        assert_eq!(whole.untouched, Family::BOTH.into_iter().collect());
        assert_eq!(linux.drift_check().unwrap(), whole);

        let number = |linux: &mut Linux| linux.drift_check().unwrap().n_virtual_servers;
        tool("ipvsadm -D -t [fd00:96::1]:80");
        assert_eq!(number(&mut linux), Some(9));
        tool("ipvsadm -D -t 10.96.0.1:80");
        assert_eq!(number(&mut linux), Some(8));
        // By firewall mark, without a frontend.
        tool("ipvsadm -A -f 7 -s rr");
        assert_eq!(number(&mut linux), Some(9), "until they are listed");
        let listing = linux.list_virtual_servers().unwrap();
        assert_eq!(listing.virtual_servers.len(), 8);
        assert_eq!(listing.order.len(), 8, "{listing:?}");
        assert_eq!(number(&mut linux), Some(8));
        let ours = Op::RemoveVirtualServer(mk_frontend(Family::V6, 2));
        assert_eq!(linux.apply(std::slice::from_ref(&ours)), [Ok(())]);
        assert_eq!(number(&mut linux), Some(7));
        assert_eq!(linux.apply(&[ours]), [Ok(())], "it is gone");
        assert_eq!(number(&mut linux), Some(7));
        tool("ipvsadm -C");
        assert_eq!(number(&mut linux), Some(0));
        assert_eq!(linux.list_virtual_servers().unwrap().order, listing.order, "it is remembered");

        tool("ipset flush KUBE-CLUSTER-IP");
        assert_eq!(linux.drift_check().unwrap().set_entries[&CLUSTER_IP], 0);
        tool(&format!("ip6tables-{name} -t nat -F KUBE-SERVICES"));
        assert_eq!(linux.drift_check().unwrap().untouched, [Family::V4].into_iter().collect());
        assert_eq!(
            Family::BOTH.map(|family| linux.read_rule_set(family).unwrap().is_complete),
            [true, false]
        );
        assert_eq!(linux.apply(&[Op::WriteRuleSet(Family::V6)]), [Ok(())]);
        assert_eq!(linux.drift_check().unwrap().untouched, Family::BOTH.into_iter().collect());
        tool("ip link del kube-ipvs0");
        assert!(!linux.drift_check().unwrap().link);
        tool(&format!("iptables-{name} -t nat -F"));
        tool(&format!("iptables-{name} -t nat -X KUBE-LOAD-BALANCER"));
        assert_eq!(linux.drift_check().unwrap().untouched, [Family::V6].into_iter().collect());
    });
}

#[test]
fn those_that_were_listed_are_read_with_a_request_each() {
    Host::run(|| {
        let mut linux = mk_linux(Variant::Legacy, 3);
        tool("ip link set lo up");
        let servers = Family::BOTH
            .map(|family| Op::AddRealServer(mk_frontend(family, 1), mk_real_server(family)));
        assert_eq!(linux.apply(&servers), [Ok(()), Ok(())]);
        tool("ipvsadm -E -t 10.96.0.1:80 -s wlc -p 60");
        let listed = linux.list_virtual_servers().unwrap().virtual_servers;
        assert_eq!(listed.len(), 6);
        let frontends: Vec<Frontend> = listed.iter().map(|it| it.frontend).collect();
        let read = linux.read_virtual_servers(&frontends).unwrap();
        assert_eq!(linux.read_listed(&listed).unwrap(), read);
        let full: Vec<_> = listed
            .iter()
            .filter(|it| it.frontend.address.to_string().ends_with('1'))
            .cloned()
            .collect();
        let before = linux.traffic().requests;
        let found = linux.read_listed(&full).unwrap();
        assert!(
            found.iter().all(|it| it.as_ref().unwrap().as_ref().unwrap().real_servers.len() == 1)
        );
        assert_eq!(linux.traffic().requests - before, 2);
        tool("ipvsadm -C");
        assert_eq!(linux.read_listed(&listed).unwrap(), vec![Ok(None); 6]);
    });
}

#[test]
fn an_address_goes_whatever_its_prefix_is() {
    Host::run(|| {
        let mut linux = mk_linux(Variant::Legacy, 0);
        let prefixes = ["10.96.0.1/24", "10.96.0.2/24", "fd00:96::1/64", "10.96.0.3/32"];
        for address in prefixes.into_iter().chain(["10.96.0.4 peer 10.0.0.9/32"]) {
            tool(&format!("ip address add {address} dev kube-ipvs0"));
        }
        let addresses: [IpAddr; 5] =
            ["10.96.0.1", "10.96.0.2", "fd00:96::1", "10.96.0.3", "10.96.0.4"]
                .map(|text| text.parse().unwrap());
        assert_eq!(linux.read_addresses().unwrap().bound, addresses.into_iter().collect());
        let absent = Op::UnbindAddress("10.96.0.9".parse().unwrap());
        let ops: Vec<Op> = addresses.map(Op::UnbindAddress).into_iter().chain([absent]).collect();
        assert_eq!(linux.apply(&ops), vec![Ok(()); 6]);
        assert_eq!(linux.read_addresses().unwrap().bound, HashSet::default());
    });
}

#[test]
fn the_kernels_order_is_known_when_it_has_been_listed_before_a_flush() {
    Host::run(|| {
        let mut linux = mk_linux(Variant::Legacy, 0);
        assert!(!linux.drift_check().unwrap().untouched.is_empty());
        let server = VirtualServer {
            scheduler: SchedulerName::new("rr").unwrap(),
            persistence: None,
            scheduler_flags: 0,
        };
        let create =
            |number| Op::CreateVirtualServer(mk_frontend(Family::V4, number), server.clone());
        let ops: Vec<Op> = (1..=300).map(create).collect();
        assert!(linux.apply(&ops).iter().all(Result::is_ok));
        assert!(!linux.drift_check().unwrap().has_listed, "the count is as expected");
        // As the audit does.
        assert_eq!(linux.listing().unwrap().virtual_servers.len(), 300);
        tool("ipvsadm -C");
        let listing = linux.listing().unwrap();
        assert!(listing.virtual_servers.is_empty());
        let mut sorted: Vec<Frontend> = listing.order.iter().copied().collect();
        assert_eq!(sorted.len(), 300);
        sorted.sort_unstable();
        listing.sort_for_return(&mut sorted);
        assert!(sorted.iter().eq(listing.order.iter().rev()), "the last removed comes first");
    });
}

#[test]
fn among_many_sets_of_others_only_ours_are_looked_at() {
    Host::run(|| {
        let mut linux = mk_linux(Variant::Nft, 3);
        let mut whole = linux.drift_check().unwrap();
        assert!(std::mem::take(&mut whole.has_listed), "nothing was known");
        let mut batch = ipset::Batch::new();
        for number in 0..400 {
            let name = ipset::Name::new(format!("OTHERS-{number}")).unwrap();
            batch.create(name, ipset::SetSpec::new(ipset::SetType::HashIp, ipset::Family::Ipv4));
        }
        assert!(linux.ipset.as_mut().unwrap().send(&batch).unwrap().iter().all(Result::is_ok));
        assert_eq!(linux.drift_check().unwrap(), whole);
        let before = linux.traffic();
        assert_eq!(linux.drift_check().unwrap(), whole);
        let receives = linux.traffic().receives - before.receives;
        assert!(receives < 200, "{receives}");
        tool("ipset destroy OTHERS-7");
        tool("ipset flush KUBE-CLUSTER-IP");
        assert_eq!(linux.drift_check().unwrap().set_entries[&CLUSTER_IP], 0);
    });
}

/// Printed, and not asserted: what a drift check costs, with little and with much in the kernel.
fn costs_little(variant: Variant) {
    const DRIFT_CHECKS: u32 = 20;
    for n_of_each in [10, 5_000] {
        Host::run(move || {
            let mut linux = mk_linux(variant, n_of_each);
            linux.drift_check().unwrap();
            let (before, begin) = (linux.traffic(), Instant::now());
            for _ in 0..DRIFT_CHECKS {
                linux.drift_check().unwrap();
            }
            let (took, traffic) = (begin.elapsed() / DRIFT_CHECKS, linux.traffic());
            let requests = (traffic.requests - before.requests) / u64::from(DRIFT_CHECKS);
            let receives = (traffic.receives - before.receives) / u64::from(DRIFT_CHECKS);
            println!(
                "{n_of_each} virtual servers of each family: a drift check takes {took:?}, {requests} \
                 requests, {receives} datagrams"
            );
            assert!(requests <= 2 && receives <= 60, "{requests} {receives}");
            let begin = Instant::now();
            let listed = linux.list_virtual_servers().unwrap().virtual_servers;
            println!("listing {} virtual servers takes {:?}", listed.len(), begin.elapsed());
        });
    }
}

#[test]
fn a_reading_beside_the_writer_puts_the_count_of_a_set_in_nf_tables_right() {
    Host::run_without_ipvs(|| {
        let families = [Family::V4];
        let reader = OwnTables::open_to_read(&families).unwrap();
        let tables = SharedTables::new(OwnTables::open(&families).unwrap(), reader);
        let entry = Entry::AddressPort(mk_frontend(Family::V4, 1));
        let size = SetSize { capacity: Capacity::FIRST, expected: 0 };
        // An entry that another program took out, and that is put back without its being seen.
        let add = || Op::AddEntry(CLUSTER_IP, entry);
        let ops = [Op::CreateSet(CLUSTER_IP, size), add(), add()];
        assert!(tables.lock().apply(&ops).iter().all(Result::is_ok));
        let counted = || tables.look(&families).1.get(&CLUSTER_IP).copied();
        assert_eq!(counted(), Some(2));
        assert_eq!(tables.read_set(CLUSTER_IP).unwrap().unwrap().entries.len(), 1);
        assert_eq!(counted(), Some(1));
    });
}
