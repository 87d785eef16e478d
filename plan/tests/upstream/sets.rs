//! TestSyncIPSetEntries: a set that is found with other entries than it should have.

use plan::kernel_objects::{Entry, Frontend};
use plan::model::Protocol::{Sctp, Tcp, Udp};
use plan::model::{Protocol, Service, ServiceKind};
use plan::sets::SetId;

use crate::node::Node;
use crate::words::{LOCAL, applied, ip, ips, number, port, service, slice, sliced};

fn at(address: &str, protocol: Protocol, port: u16) -> Frontend {
    Frontend { address: ip(address), protocol, port }
}

/// A node on which each set that is looked at here has one entry or two.
fn node() -> Node {
    let web = Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer: ips(&["203.0.113.5"]),
        source_ranges: vec!["10.0.0.0/8".parse().unwrap(), "192.0.2.1/32".parse().unwrap()],
        external_policy: LOCAL,
        health_check_node_port: Some(number(31_000)),
        ports: vec![port("http", "80:30080/TCP"), port("voice", "5060:30060/SCTP")],
        ..service("web", &["10.96.0.9", "fd00:96::9"])
    };
    Node::after([applied(&web), sliced(&slice("web-1", "web", &["10.244.0.2@n1"]))])
}

/// Row: its name, the set, the entries that it is found with, and the expected operations.
type Row = (&'static str, &'static str, Vec<Entry>, &'static [&'static str]);

fn check<const N: usize>(rows: [Row; N]) {
    for (row, set, found, expected) in rows {
        let mut node = node();
        let desired = node.kernel.clone();
        let found = found.into_iter().collect();
        node.kernel.actual_mut().sets.insert(SetId::by_name(set).unwrap(), found);
        assert_eq!(node.compare(), expected, "{row}");
        assert_eq!(node.kernel, desired, "{row}");
    }
}

#[test]
fn only_what_differs_is_added_and_removed() {
    let cluster = |port| Entry::AddressPort(at("10.96.0.9", Tcp, port));
    let voice = Entry::AddressPort(at("10.96.0.9", Sctp, 5060));
    check([
        ("as it should be", "KUBE-CLUSTER-IP", vec![cluster(80), voice], &[]),
        (
            "empty",
            "KUBE-CLUSTER-IP",
            vec![],
            &[
                "add 10.96.0.9,tcp:80 to set KUBE-CLUSTER-IP",
                "add 10.96.0.9,sctp:5060 to set KUBE-CLUSTER-IP",
            ],
        ),
        (
            "one is missing, one is left over",
            "KUBE-CLUSTER-IP",
            vec![cluster(81), voice],
            &[
                "add 10.96.0.9,tcp:80 to set KUBE-CLUSTER-IP",
                "remove 10.96.0.9,tcp:81 from set KUBE-CLUSTER-IP",
            ],
        ),
        (
            "of another protocol",
            "KUBE-CLUSTER-IP",
            vec![Entry::AddressPort(at("10.96.0.9", Udp, 80)), voice],
            &[
                "add 10.96.0.9,tcp:80 to set KUBE-CLUSTER-IP",
                "remove 10.96.0.9,udp:80 from set KUBE-CLUSTER-IP",
            ],
        ),
        (
            "several are left over",
            "KUBE-CLUSTER-IP",
            vec![cluster(80), voice, cluster(81), cluster(82)],
            &[
                "remove 10.96.0.9,tcp:81 from set KUBE-CLUSTER-IP",
                "remove 10.96.0.9,tcp:82 from set KUBE-CLUSTER-IP",
            ],
        ),
        (
            "IPv6",
            "KUBE-6-CLUSTER-IP",
            vec![Entry::AddressPort(at("fd00:96::8", Tcp, 80))],
            &[
                "add fd00:96::9,tcp:80 to set KUBE-6-CLUSTER-IP",
                "add fd00:96::9,sctp:5060 to set KUBE-6-CLUSTER-IP",
                "remove fd00:96::8,tcp:80 from set KUBE-6-CLUSTER-IP",
            ],
        ),
    ]);
}

#[test]
fn entries_of_every_type_are_compared() {
    let ranged =
        |net: &str| Entry::AddressPortNet(at("203.0.113.5", Tcp, 80), net.parse().unwrap());
    let voice_ranged =
        |net: &str| Entry::AddressPortNet(at("203.0.113.5", Sctp, 5060), net.parse().unwrap());
    let (ten, one) = ("10.0.0.0/8", "192.0.2.1/32");
    check([
        (
            "networks, of which one is a single address",
            "KUBE-LOAD-BALANCER-SOURCE-CIDR",
            vec![ranged(ten), ranged(one), voice_ranged("10.0.0.0/9"), voice_ranged(one)],
            &[
                "add 203.0.113.5,sctp:5060,10.0.0.0/8 to set KUBE-LOAD-BALANCER-SOURCE-CIDR",
                "add 251.0.113.5,tcp:80,10.0.0.0/8 to set KUBE-LOAD-BALANCER-SOURCE-CIDR",
                "add 251.0.113.5,tcp:80,192.0.2.1/32 to set KUBE-LOAD-BALANCER-SOURCE-CIDR",
                "remove 203.0.113.5,sctp:5060,10.0.0.0/9 from set KUBE-LOAD-BALANCER-SOURCE-CIDR",
            ],
        ),
        (
            "pods and themselves",
            "KUBE-LOOP-BACK",
            vec![Entry::AddressPortAddress(at("10.244.0.3", Tcp, 8080), ip("10.244.0.3"))],
            &[
                "add 10.244.0.2,tcp:8080,10.244.0.2 to set KUBE-LOOP-BACK",
                "remove 10.244.0.3,tcp:8080,10.244.0.3 from set KUBE-LOOP-BACK",
            ],
        ),
        (
            "ports",
            "KUBE-NODE-PORT-TCP",
            vec![Entry::Port(30_081)],
            &["add 30080 to set KUBE-NODE-PORT-TCP", "remove 30081 from set KUBE-NODE-PORT-TCP"],
        ),
        (
            "a health check's port",
            "KUBE-HEALTH-CHECK-NODE-PORT",
            vec![],
            &["add 31000 to set KUBE-HEALTH-CHECK-NODE-PORT"],
        ),
        (
            "SCTP node ports",
            "KUBE-NODE-PORT-SCTP-HASH",
            vec![Entry::AddressPort(at("192.0.2.11", Sctp, 30_060))],
            &[
                "add 192.0.2.10,sctp:30060 to set KUBE-NODE-PORT-SCTP-HASH",
                "remove 192.0.2.11,sctp:30060 from set KUBE-NODE-PORT-SCTP-HASH",
            ],
        ),
        (
            "addresses",
            "KUBE-6-IPVS-IPS",
            vec![Entry::Address(ip("fd00:96::9")), Entry::Address(ip("fd00:96::8"))],
            &["remove fd00:96::8 from set KUBE-6-IPVS-IPS"],
        ),
        (
            "nothing should be there",
            "KUBE-EXTERNAL-IP",
            vec![Entry::AddressPort(at("198.51.100.7", Tcp, 80))],
            &["remove 198.51.100.7,tcp:80 from set KUBE-EXTERNAL-IP"],
        ),
    ]);
}

#[test]
fn a_set_that_is_gone_is_made_again_with_everything() {
    let mut node = node();
    let desired = node.kernel.clone();
    let set = SetId::by_name("KUBE-CLUSTER-IP").unwrap();
    node.kernel.actual_mut().sets.remove(&set);
    assert_eq!(
        node.compare(),
        [
            "create set KUBE-CLUSTER-IP type hash:ip,port for 65536 entries",
            "add 10.96.0.9,tcp:80 to set KUBE-CLUSTER-IP",
            "add 10.96.0.9,sctp:5060 to set KUBE-CLUSTER-IP",
        ]
    );
    assert_eq!(node.kernel, desired);
}
