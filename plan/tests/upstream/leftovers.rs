//! TestCleanLegacyService, …6, …WithRealServers, TestCleanLegacyRealServersExcludeCIDRs,
//! TestFilterCIDRs: state that is found at the start and that no Service desires.
//!
//! kube-proxy removes every virtual server that it does not desire, also other programs'. We remove
//! only those with an ownership marker, ours or kube-proxy's.

use plan::actual::{Actual, ActualVirtualServer};
use plan::kernel_objects::{Entry, Frontend, VirtualServer};
use plan::model::{Family, Protocol};
use plan::scheduler::SchedulerName;
use plan::sets::SetId;
use plan::settings::Settings;

use crate::node::{Node, THIS, check, made};
use crate::words::{applied, ip, service, slice, sliced};

/// The kernel as another proxy left it: virtual servers that have an address on `kube-ipvs0`, some
/// with connections, and one that has nothing.
fn leave(node: &mut Node, addresses: &[&str]) {
    for address in addresses {
        let frontend = frontend(address, 80);
        let actual = node.kernel.actual_mut();
        actual.addresses.insert(frontend.address);
        actual.virtual_servers.insert(frontend, left_server(frontend.family()));
        let kind = plan::sets::SetKind::IpvsAddresses;
        let set = SetId { kind, family: frontend.family() };
        actual.sets.entry(set).or_default().entries.insert(Entry::Address(frontend.address));
    }
}

fn frontend(address: &str, port: u16) -> Frontend {
    Frontend { address: ip(address), protocol: Protocol::Tcp, port }
}

fn left_server(family: Family) -> ActualVirtualServer {
    let real = match family {
        Family::V4 => "10.244.9.9:8080",
        Family::V6 => "[fd00:244:9::9]:8080",
    };
    let scheduler = SchedulerName::default();
    made(&VirtualServer { scheduler, persistence: None, scheduler_flags: 0 }, &[(real, 1)])
}

const LEFT_V4: [&str; 3] = ["10.96.3.3", "10.96.4.4", "192.168.55.5"];
const LEFT_V6: [&str; 3] = ["fd00:96::3", "fd00:96::4", "2001:db8:55::5"];

fn with(families: &[Family], exclude: &[&str]) -> Settings {
    let mut settings = Settings::new(THIS);
    settings.families = families.to_vec();
    settings.exclude = exclude.iter().map(|net| net.parse().unwrap()).collect();
    settings
}

#[test]
fn what_was_left_is_removed_but_for_what_is_excluded_and_other_families() {
    use Family::{V4, V6};
    let all = [LEFT_V4, LEFT_V6].concat();
    for (row, families, exclude, kept) in [
        ("nothing is excluded", &[V4, V6][..], &[][..], &[][..]),
        ("a network", &[V4, V6], &["10.96.3.0/24"], &["10.96.3.3"]),
        ("an address", &[V4, V6], &["10.96.4.4/32"], &["10.96.4.4"]),
        (
            "two networks",
            &[V4, V6],
            &["10.96.4.0/24", "192.168.0.0/16"],
            &["10.96.4.4", "192.168.55.5"],
        ),
        (
            "networks of both families",
            &[V4, V6],
            &["192.168.0.0/16", "fd00:96::/64"],
            &["192.168.55.5", "fd00:96::3", "fd00:96::4"],
        ),
        ("everything of a family", &[V4, V6], &["::/0"], &LEFT_V6),
        ("a network in which nothing is", &[V4, V6], &["10.97.0.0/16"], &[]),
        ("IPv4 only, IPv6 is somebody else's", &[V4], &[], &LEFT_V6),
        ("IPv6 only, IPv4 is somebody else's", &[V6], &[], &LEFT_V4),
        (
            "IPv6 only, with an exclusion",
            &[V6],
            &["2001:db8:55::/48"],
            &["10.96.3.3", "10.96.4.4", "192.168.55.5", "2001:db8:55::5"],
        ),
    ] {
        let mut node = Node::new(with(families, exclude));
        leave(&mut node, &all);
        node.compare();
        let left = |address: &&str| node.kernel.actual().addresses.contains(&ip(address));
        let addresses: Vec<&str> = all.iter().copied().filter(left).collect();
        assert_eq!(addresses, kept, "{row}: addresses");
        let left = |address: &&str| {
            let servers = &node.kernel.actual().virtual_servers;
            servers.get(&frontend(address, 80)) == Some(&left_server(Family::of(ip(address))))
        };
        let servers: Vec<&str> = all.iter().copied().filter(left).collect();
        assert_eq!(servers, kept, "{row}: virtual servers");
        assert_eq!(node.kernel.actual().virtual_servers.len(), kept.len(), "{row}");
    }
}

#[test]
fn what_is_wanted_stays_and_keeps_its_connections() {
    let mut node = Node::new(Settings::new(THIS));
    leave(&mut node, &["10.96.3.3", "10.96.4.4"]);
    let endpoints = slice("web-1", "web", &["10.244.9.9@n2"]);
    for event in [applied(&service("web", &["10.96.3.3"])), sliced(&endpoints)] {
        node.planner.apply(event);
    }
    node.planner.plan();
    let done = node.compare();
    assert!(!done.iter().any(|op| op.contains("virtual server TCP 10.96.3.3")), "{done:#?}");
    let found = &node.kernel.actual().virtual_servers[&frontend("10.96.3.3", 80)];
    assert_eq!(*found, left_server(Family::V4));
    check("addresses", &node.addresses(), &["kube-ipvs0 10.96.3.3"]);
    assert_eq!(node.kernel.actual().virtual_servers.len(), 1);
}

/// Traces that tell that a virtual server is ours or kube-proxy's; without any, it is foreign.
#[test]
fn ours_is_what_has_a_trace() {
    let entry = |set: &'static str, entry: Entry| (SetId::by_name(set).unwrap(), entry);
    let itself = |address: &str, port| Entry::AddressPort(frontend(address, port));
    let foreign = "172.16.0.1";
    let external = "198.51.100.7";
    for (row, at, trace, is_ours) in [
        ("nothing", frontend(foreign, 80), None, false),
        ("at this node's address", frontend("192.0.2.10", 30_080), None, false),
        (
            "a cluster address",
            frontend("10.96.0.9", 80),
            Some(entry("KUBE-CLUSTER-IP", itself("10.96.0.9", 80))),
            true,
        ),
        (
            "an external address",
            frontend(external, 80),
            Some(entry("KUBE-EXTERNAL-IP", itself(external, 80))),
            true,
        ),
        (
            "an external address for this node's endpoints",
            frontend(external, 80),
            Some(entry("KUBE-EXTERNAL-IP-LOCAL", itself(external, 80))),
            true,
        ),
        (
            "a load balancer's address",
            frontend(external, 80),
            Some(entry("KUBE-LOAD-BALANCER", itself(external, 80))),
            true,
        ),
        (
            "another port of a load balancer's address",
            frontend(external, 81),
            Some(entry("KUBE-LOAD-BALANCER", itself(external, 80))),
            false,
        ),
        (
            "a node port",
            frontend("192.0.2.10", 30_080),
            Some(entry("KUBE-NODE-PORT-TCP", Entry::Port(30_080))),
            true,
        ),
        (
            "a node port's number at an address that is not this node's",
            frontend(foreign, 30_080),
            Some(entry("KUBE-NODE-PORT-TCP", Entry::Port(30_080))),
            false,
        ),
        (
            "a node port of another protocol",
            frontend("192.0.2.10", 30_080),
            Some(entry("KUBE-NODE-PORT-UDP", Entry::Port(30_080))),
            false,
        ),
    ] {
        let mut node = Node::new(Settings::new(THIS));
        let actual = node.kernel.actual_mut();
        actual.virtual_servers.insert(at, left_server(Family::V4));
        if let Some((set, entry)) = trace {
            actual.sets.entry(set).or_default().entries.insert(entry);
        }
        node.compare();
        let is_gone = !node.kernel.actual().virtual_servers.contains_key(&at);
        assert_eq!(is_gone, is_ours, "{row}");
        assert_eq!(node.entries(""), [].into(), "{row}: entries of our sets are always ours");
    }
}

/// An address that no Service wants any more loses its traffic before the virtual server behind it
/// goes; kube-proxy has the same order, and its packets leave by the default route meanwhile.
#[test]
fn what_is_left_is_taken_apart_from_the_outside() {
    let mut node = Node::new(Settings::new(THIS));
    leave(&mut node, &["10.96.3.3"]);
    assert_eq!(
        node.compare(),
        [
            "remove address 10.96.3.3 from kube-ipvs0",
            "remove virtual server TCP 10.96.3.3:80",
            "remove 10.96.3.3 from set KUBE-IPVS-IPS",
        ]
    );
    let Actual { virtual_servers, addresses, .. } = node.kernel.actual();
    assert!(virtual_servers.is_empty() && addresses.is_empty());
}
