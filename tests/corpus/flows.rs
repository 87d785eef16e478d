//! Flows through the rules of small clusters, in tables of their own, in the themes of kube-proxy's
//! tests (pkg/proxy/iptables/proxier_test.go).
//!
//! A cell says which endpoints a client gets, each with the same probability: `all`, or those `here`;
//! `+m`: masqueraded. Or it says `dropped`, `rejected`, or `passed`: to where it was sent.

pub(crate) mod objects;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use plan::mode::Mode;
use plan::model::{Family, Protocol};
use plan::settings::{LocalDetection, NodePortAddresses, Settings};

use crate::cluster::{Node, settings};
use crate::lint::lint;
use crate::tracer::{Fate, Packet, Tracer};
use objects::{ADDRESSES, HERE, THERE, cluster, endpoints, service};

/// Clients: a pod of this node, an endpoint, the node, clients outside, one of which no load
/// balancer's source ranges have.
const POD: Client = Client("10.128.0.9", Some("veth1"));
const NODE: Client = Client("192.168.0.2", None);
const OUTSIDE: Client = Client("203.0.113.2", Some("eth0"));
const STRANGER: Client = Client("203.0.113.200", Some("eth0"));
const LOOPBACK: Client = Client("127.0.0.1", None);

const CLUSTER_IP: &str = "172.30.0.41:80";
const NODE_PORT: &str = "192.168.0.2:3001";
const LOAD_BALANCER: &str = "1.2.3.4:80";

#[derive(Clone, Copy)]
struct Client(&'static str, Option<&'static str>);

/// Settings for small clusters.
fn base() -> Settings {
    settings(Mode::Iptables)
}

fn without_detector() -> Settings {
    Settings { local_detection: LocalDetection::None, ..base() }
}

fn fate(settings: &Settings, objects: &str, client: Client, destination: &str) -> String {
    let node = Node::with(settings.clone(), &ADDRESSES, objects);
    let destination: SocketAddr = destination.parse().unwrap();
    let saved = node.rules(Family::of(destination.ip()));
    assert_eq!(lint(&saved), [""; 0], "{objects}");
    let own = ADDRESSES.iter().map(|address| address.parse::<IpAddr>().unwrap());
    let Client(source, arrives_by) = client;
    let packet = Packet {
        protocol: Protocol::Tcp,
        source: source.parse().unwrap(),
        destination,
        arrives_by,
        known_to: Vec::new(),
    };
    cell(&Tracer::new(&saved, own).trace(packet), destination)
}

fn cell(fates: &crate::tracer::Fates, destination: SocketAddr) -> String {
    let share = 1.0 / fates.len() as f64;
    assert!(fates.values().all(|it| (it - share).abs() < 1e-9), "{fates:?}");
    let fates: Vec<_> = fates.keys().copied().collect();
    let at = |to: SocketAddr, masqueraded: bool| Fate::Delivered { to, masqueraded };
    let here = |masqueraded| at(HERE.parse().unwrap(), masqueraded);
    let there = |masqueraded| at(THERE.parse().unwrap(), masqueraded);
    match fates.as_slice() {
        [Fate::Dropped] => "dropped".into(),
        [Fate::Rejected] => "rejected".into(),
        [fate] if *fate == at(destination, false) => "passed".into(),
        [fate] if *fate == here(false) => "here".into(),
        [fate] if *fate == here(true) => "here+m".into(),
        [one, other] if [*one, *other] == [here(false), there(false)] => "all".into(),
        [one, other] if [*one, *other] == [here(true), there(true)] => "all+m".into(),
        fates => fates.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Policies, client, destination, and the fates: as it is by default, without a detector, with
/// `masqueradeAll`, with `masqueradeAll` and without a detector.
type MasqueradeRow = (&'static str, Client, &'static str, [&'static str; 4]);

#[test]
fn masquerading_depends_on_client_policy_and_settings() {
    const EXTERNAL: &str = "externalTrafficPolicy: Local";
    const INTERNAL: &str = "internalTrafficPolicy: Local";
    let rows: [MasqueradeRow; 27] = [
        ("", POD, CLUSTER_IP, ["all", "all", "all+m", "all+m"]),
        ("", NODE, CLUSTER_IP, ["all+m", "all", "all+m", "all+m"]),
        ("", OUTSIDE, CLUSTER_IP, ["all+m", "all", "all+m", "all+m"]),
        ("", POD, NODE_PORT, ["all+m"; 4]),
        ("", NODE, NODE_PORT, ["all+m"; 4]),
        ("", OUTSIDE, NODE_PORT, ["all+m"; 4]),
        ("", POD, LOAD_BALANCER, ["all+m"; 4]),
        ("", NODE, LOAD_BALANCER, ["all+m"; 4]),
        ("", OUTSIDE, LOAD_BALANCER, ["all+m"; 4]),
        (EXTERNAL, POD, CLUSTER_IP, ["all", "all", "all+m", "all+m"]),
        (EXTERNAL, NODE, CLUSTER_IP, ["all+m", "all", "all+m", "all+m"]),
        (EXTERNAL, OUTSIDE, CLUSTER_IP, ["all+m", "all", "all+m", "all+m"]),
        (EXTERNAL, POD, NODE_PORT, ["all", "here", "all", "here"]),
        (EXTERNAL, NODE, NODE_PORT, ["all+m"; 4]),
        (EXTERNAL, OUTSIDE, NODE_PORT, ["here"; 4]),
        (EXTERNAL, POD, LOAD_BALANCER, ["all", "here", "all", "here"]),
        (EXTERNAL, NODE, LOAD_BALANCER, ["all+m"; 4]),
        (EXTERNAL, OUTSIDE, LOAD_BALANCER, ["here"; 4]),
        (INTERNAL, POD, CLUSTER_IP, ["here", "here", "here+m", "here+m"]),
        (INTERNAL, NODE, CLUSTER_IP, ["here+m", "here", "here+m", "here+m"]),
        (INTERNAL, OUTSIDE, CLUSTER_IP, ["here+m", "here", "here+m", "here+m"]),
        (INTERNAL, POD, NODE_PORT, ["all+m"; 4]),
        (INTERNAL, NODE, NODE_PORT, ["all+m"; 4]),
        (INTERNAL, OUTSIDE, NODE_PORT, ["all+m"; 4]),
        (INTERNAL, POD, LOAD_BALANCER, ["all+m"; 4]),
        (INTERNAL, NODE, LOAD_BALANCER, ["all+m"; 4]),
        (INTERNAL, OUTSIDE, LOAD_BALANCER, ["all+m"; 4]),
    ];
    let columns = [
        base(),
        without_detector(),
        Settings { masquerade_all: true, ..base() },
        Settings { masquerade_all: true, ..without_detector() },
    ];
    for (policy, client, destination, expected) in rows {
        let objects = cluster(&service(policy), &endpoints(&["ready"], &["ready"]));
        let found = columns.each_ref().map(|it| fate(it, &objects, client, destination));
        assert_eq!(found, expected, "{policy} {} to {destination}", client.0);
    }
}

#[test]
fn an_endpoint_that_comes_to_itself_is_masqueraded() {
    let objects = cluster(&service(""), &endpoints(&["ready"], &["ready"]));
    let itself = Client("10.128.0.1", Some("veth0"));
    let expected = format!("{HERE} masqueraded, {THERE}");
    assert_eq!(fate(&base(), &objects, itself, CLUSTER_IP), expected);
    assert_eq!(fate(&without_detector(), &objects, itself, CLUSTER_IP), expected);
}

#[test]
fn pods_are_known_by_the_interface_by_which_they_come() {
    let objects =
        cluster(&service("externalTrafficPolicy: Local"), &endpoints(&["ready"], &["ready"]));
    for detector in [
        LocalDetection::InterfaceNamePrefix(Arc::from("veth")),
        LocalDetection::BridgeInterface(Arc::from("veth1")),
    ] {
        let settings = Settings { local_detection: detector, ..base() };
        for (client, destination, expected) in [
            (POD, CLUSTER_IP, "all"),
            (NODE, CLUSTER_IP, "all+m"),
            (OUTSIDE, CLUSTER_IP, "all+m"),
            (POD, NODE_PORT, "all"),
            (NODE, NODE_PORT, "all+m"),
            (OUTSIDE, NODE_PORT, "here"),
        ] {
            assert_eq!(fate(&settings, &objects, client, destination), expected, "{destination}");
        }
    }
}

#[test]
fn source_ranges_restrict_load_balancers_addresses_alone() {
    let ranges = "loadBalancerSourceRanges: [192.168.0.0/24, 203.0.113.0/25]";
    let objects = cluster(&service(ranges), &endpoints(&["ready"], &["ready"]));
    // What the node sends to a load balancer may have that balancer's address as its source.
    let as_balancer = Client("1.2.3.4", None);
    for (client, destination, expected) in [
        (OUTSIDE, LOAD_BALANCER, "all+m"),
        (OUTSIDE, "5.6.7.8:80", "all+m"),
        (STRANGER, LOAD_BALANCER, "dropped"),
        (STRANGER, "5.6.7.8:80", "dropped"),
        (POD, LOAD_BALANCER, "dropped"),
        (NODE, LOAD_BALANCER, "all+m"),
        (NODE, "5.6.7.8:80", "all+m"),
        (as_balancer, LOAD_BALANCER, "all+m"),
        (as_balancer, "5.6.7.8:80", "all+m"),
        (STRANGER, NODE_PORT, "all+m"),
        (STRANGER, CLUSTER_IP, "all+m"),
        (POD, CLUSTER_IP, "all"),
        // Another port of the balancer is unowned.
        (STRANGER, "1.2.3.4:81", "passed"),
    ] {
        let found = fate(&base(), &objects, client, destination);
        assert_eq!(found, expected, "{} to {destination}", client.0);
    }
    let others = "loadBalancerSourceRanges: [203.0.113.0/25]";
    let objects = cluster(&service(others), &endpoints(&["ready"], &["ready"]));
    for client in [NODE, as_balancer] {
        assert_eq!(fate(&base(), &objects, client, LOAD_BALANCER), "dropped");
    }
}

#[test]
fn node_ports_are_served_at_the_chosen_addresses() {
    let objects = cluster(&service(""), &endpoints(&["ready"], &["ready"]));
    let networks = |nets: &[&str]| {
        NodePortAddresses::Networks(nets.iter().map(|net| net.parse().unwrap()).collect())
    };
    let at = |node_port_addresses, localhost| Settings {
        node_port_addresses,
        iptables_localhost_node_ports: localhost,
        ..base()
    };
    let columns = [
        at(NodePortAddresses::All, true),
        at(NodePortAddresses::All, false),
        at(networks(&["192.168.0.0/24"]), false),
        at(networks(&["192.168.0.0/24", "127.0.0.0/8"]), true),
        Settings { nfacct: false, ..at(NodePortAddresses::All, true) },
    ];
    for (client, destination, expected) in [
        (OUTSIDE, NODE_PORT, ["all+m"; 5]),
        (NODE, NODE_PORT, ["all+m"; 5]),
        (OUTSIDE, "172.18.0.2:3001", ["all+m", "all+m", "passed", "passed", "all+m"]),
        (LOOPBACK, "127.0.0.1:3001", ["all+m", "passed", "passed", "all+m", "all+m"]),
        (OUTSIDE, "192.168.0.3:3001", ["passed"; 5]),
        // The rule of KUBE-FIREWALL drops packets from elsewhere to loopback addresses.
        (OUTSIDE, "127.0.0.1:80", ["dropped", "passed", "passed", "dropped", "dropped"]),
    ] {
        let found = columns.each_ref().map(|it| fate(it, &objects, client, destination));
        assert_eq!(found, expected, "{} to {destination}", client.0);
    }
}

/// States of the endpoints here and elsewhere, policies, and the fates of clients: a pod at the
/// cluster address; outside, a pod and the node at the load balancer; outside at the node port.
type PolicyRow<'a> = (&'a [&'a str], &'a [&'a str], &'a str, [&'a str; 5]);

#[test]
fn policies_and_terminating_endpoints_decide_who_gets_what() {
    const EXTERNAL: &str = "externalTrafficPolicy: Local";
    const INTERNAL: &str = "internalTrafficPolicy: Local";
    const BOTH: &str = "externalTrafficPolicy: Local, internalTrafficPolicy: Local";
    let to_here = ["here", "here+m", "here+m", "here+m", "here+m"];
    // Refusals of external addresses are not on the way of what the node itself sends.
    let none = ["rejected", "rejected", "rejected", "passed", "rejected"];
    let there_m = format!("{THERE} masqueraded");
    let (there, there_m) = (THERE, there_m.as_str());
    let rows: [PolicyRow<'_>; 15] = [
        (&[], &[], "", none),
        (&[], &[], BOTH, none),
        (&["unready"], &["unready"], "", none),
        (&["ended"], &["ended"], EXTERNAL, none),
        (&["ready"], &[], "", to_here),
        (&[], &["ready"], EXTERNAL, [there, "dropped", there, there_m, "dropped"]),
        (&[], &["ready"], INTERNAL, ["dropped", there_m, there_m, there_m, there_m]),
        (&[], &["ready"], BOTH, ["dropped", "dropped", there, there_m, "dropped"]),
        (&["unready"], &["ready"], EXTERNAL, [there, "dropped", there, there_m, "dropped"]),
        (&["terminating"], &["terminating"], "", ["all", "all+m", "all+m", "all+m", "all+m"]),
        (&["terminating"], &["terminating"], EXTERNAL, ["all", "here", "all", "all+m", "here"]),
        (&["terminating"], &["ready"], "", [there, there_m, there_m, there_m, there_m]),
        (&["terminating"], &["ready"], EXTERNAL, [there, "here", there, there_m, "here"]),
        (&["terminating"], &["ready"], INTERNAL, ["here", there_m, there_m, there_m, there_m]),
        (&["ready"], &["terminating"], EXTERNAL, ["here", "here", "here", "here+m", "here"]),
    ];
    for (here, elsewhere, policy, expected) in rows {
        let objects = cluster(&service(policy), &endpoints(here, elsewhere));
        let clients = [
            (POD, CLUSTER_IP),
            (OUTSIDE, LOAD_BALANCER),
            (POD, LOAD_BALANCER),
            (NODE, LOAD_BALANCER),
            (OUTSIDE, NODE_PORT),
        ];
        let found = clients.map(|(client, to)| fate(&base(), &objects, client, to));
        assert_eq!(found, expected, "{here:?} {elsewhere:?} {policy}");
    }
}

#[test]
fn a_client_with_affinity_gets_the_endpoint_that_knows_it() {
    let objects = cluster(
        &service(
            "sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 90}}",
        ),
        &endpoints(&["ready"], &["ready"]),
    );
    assert_eq!(fate(&base(), &objects, POD, CLUSTER_IP), "all");
    let node = Node::with(base(), &ADDRESSES, &objects);
    let saved = node.rules(Family::V4);
    let own = ADDRESSES.iter().map(|address| address.parse::<IpAddr>().unwrap());
    let tracer = Tracer::new(&saved, own);
    for endpoint in [HERE, THERE] {
        let to: SocketAddr = endpoint.parse().unwrap();
        let is_its = |rules: &[String]| rules.iter().any(|it| it.ends_with(&format!(" {to}")));
        let (_, list, _) = saved.ours().find(|(_, _, rules)| is_its(rules)).unwrap();
        let packet = Packet {
            protocol: Protocol::Tcp,
            source: "10.128.0.9".parse().unwrap(),
            destination: CLUSTER_IP.parse().unwrap(),
            arrives_by: Some("veth1"),
            known_to: vec![list.to_owned()],
        };
        let expected = Fate::Delivered { to, masqueraded: false };
        assert_eq!(tracer.trace(packet).into_keys().collect::<Vec<_>>(), [expected]);
    }
}
