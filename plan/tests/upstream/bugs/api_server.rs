//! Addresses that cut a node off from the API server, or from a pod.

use std::net::SocketAddr;

use plan::event::Event;
use plan::mode::Mode;
use plan::model::{EndpointSlice, Node as NodeObject, Service, ServiceName};
use plan::planner::{Plan, Planner};
use plan::problem::Problem;
use plan::settings::{InternalFrontendNetworks, Listener, LocalDetection, Settings};

use super::{ONE_HERE, node_port, run, web};
use crate::node::{Node, THIS};
use crate::words::{applied, ips, port, service, slice, sliced};

const SERVERS: [&str; 2] = ["192.0.2.200:6443", "[2001:db8::200]:6443"];

fn at(servers: &[&str]) -> Event {
    let addresses: Result<Vec<SocketAddr>, _> = servers.iter().map(|it| it.parse()).collect();
    Event::ApiServerAddresses(addresses.unwrap())
}

fn problems(plan: &Plan) -> Vec<&Problem> {
    plan.problems.iter().flat_map(|(_, problems)| problems).collect()
}

/// 66966: in both fields and both families, before and after it is known, and as it moves.
#[test]
fn the_api_servers_address_is_no_services() {
    let outer = ["192.0.2.200", "2001:db8::200"];
    let both = Service { cluster_v6: Some("fd00:96::9".parse().unwrap()), ..web() };
    let external = Service { external: ips(&outer), ..both.clone() };
    let balancer = Service { load_balancer: ips(&outer), ..both.clone() };
    let is_bound =
        |node: &Node| outer.map(|it| node.addresses().contains(&*format!("kube-ipvs0 {it}")));
    for service in [external, balancer] {
        let mut node = run(&service, &ONE_HERE);
        assert_eq!(is_bound(&node), [true; 2], "nobody's so far");
        let plan = node.run([at(&SERVERS)]);
        let problems = problems(&plan);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems.iter().all(|it| matches!(it, Problem::AddressOfApiServer { .. })));
        assert_eq!(node.kernel, run(&both, &ONE_HERE).kernel);
        // Not by rank either.
        assert!(node.real_servers("TCP 10.96.0.9:80").is_some());
        node.run([at(&SERVERS[..1])]);
        assert_eq!(is_bound(&node), [false, true]);
        // It moves to this node, which keeps its own address as any other.
        let own = ["127.0.0.1", "192.0.2.10", "192.0.2.200", "::1", "2001:db8::10"];
        node.run([Event::LocalAddresses(ips(&own))]);
        assert!(node.real_servers("TCP 192.0.2.200:80").is_some());
        node.run([Event::LocalAddresses(ips(&["127.0.0.1", "192.0.2.10", "::1", "2001:db8::10"]))]);
        assert!(node.real_servers("TCP 192.0.2.200:80").is_none());
    }
}

/// In a cluster, the way to the API server is its own Service's address. That Service has it, and no
/// other gets it as an external one.
#[test]
fn a_cluster_address_that_is_the_api_servers_stays_served() {
    let kubernetes = applied(&service("kubernetes", &["10.96.0.1"]));
    let tenant =
        Service { external: ips(&["10.96.0.1"]), ports: vec![port("http", "6443/TCP")], ..web() };
    let mut node = Node::after([at(&["10.96.0.1:443"]), kubernetes]);
    assert!(node.addresses().contains("kube-ipvs0 10.96.0.1"));
    let before = node.addresses();
    let plan = node.run([applied(&tenant)]);
    assert!(matches!(problems(&plan)[..], [Problem::AddressOfApiServer { .. }]));
    assert!(node.addresses().is_superset(&before));
    assert!(node.real_servers("TCP 10.96.0.1:6443").is_none());
}

/// Pods reach it by the endpoints of its Service, which may be in no Node.
#[test]
fn an_endpoint_of_the_api_servers_service_is_no_services_address() {
    let tenant = Service { external: ips(&["192.0.2.201"]), ..web() };
    let mut node = run(&tenant, &ONE_HERE);
    assert!(node.addresses().contains("kube-ipvs0 192.0.2.201"));
    let endpoints = EndpointSlice {
        name: ServiceName::api_server(),
        service: ServiceName::api_server(),
        ..slice("kubernetes", "kubernetes", &["192.0.2.201"])
    };
    node.run([sliced(&endpoints)]);
    assert!(!node.addresses().contains("kube-ipvs0 192.0.2.201"));
    node.run([Event::SliceRemoved(endpoints.name.clone())]);
    assert!(node.addresses().contains("kube-ipvs0 192.0.2.201"));
}

/// Rules of other modes are about a port: only that of the API server is left out.
#[test]
fn in_iptables_mode_the_api_servers_port_is_no_services() {
    let settings = Settings {
        mode: Mode::Iptables,
        internal_frontend_networks: InternalFrontendNetworks::NONE,
        ..Settings::new(THIS)
    };
    let mut planner = Planner::new(settings);
    planner.apply(at(&SERVERS));
    for (text, expected) in [("80/TCP", 0), ("6443/TCP", 1)] {
        let tenant =
            Service { external: ips(&["192.0.2.200"]), ports: vec![port("http", text)], ..web() };
        planner.apply(applied(&tenant));
        assert_eq!(problems(&planner.plan()).len(), expected, "{text}");
    }
}

/// A pod's address would become the node's.
#[test]
fn an_address_inside_a_network_of_pods_is_not_bound() {
    let detection = LocalDetection::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
    let outer = ["10.244.7.7", "172.30.1.5", "192.0.2.20"];
    let tenant = Service { external: ips(&outer), ..web() };
    let mut node = Node::new(Settings { local_detection: detection, ..Settings::new(THIS) });
    node.run([applied(&tenant)]);
    let bound =
        |node: &Node| outer.map(|it| node.addresses().contains(&*format!("kube-ipvs0 {it}")));
    assert_eq!(bound(&node), [false, true, true]);
    let pods = vec!["172.30.1.0/24".parse().unwrap()];
    let object = NodeObject { pod_cidrs: pods, ..NodeObject::default() };
    let plan = node.run([Event::NodeApplied(Box::new(object))]);
    assert_eq!(bound(&node), [false, false, true]);
    let inside = |it: &&Problem| matches!(it, Problem::InsidePodNetwork { .. });
    assert_eq!(problems(&plan).iter().filter(|it| inside(it)).count(), 2);
    // The address of the node's own bridge is local, and bound nowhere.
    let plan = node.run([Event::LocalAddresses(ips(&["192.0.2.10", "10.244.7.7"]))]);
    assert_eq!(problems(&plan).iter().filter(|it| inside(it)).count(), 1);
    // A network around everything says nothing about pods.
    let all = LocalDetection::ClusterCidr(vec!["0.0.0.0/0".parse().unwrap()]);
    let mut node = Node::new(Settings { local_detection: all, ..Settings::new(THIS) });
    node.run([applied(&tenant)]);
    assert_eq!(bound(&node), [true; 3]);
}

/// 76892: served, as kube-proxy does, and said.
#[test]
fn a_port_on_which_a_program_of_the_node_listens_is_served_and_reported() {
    let settings = Settings {
        listeners: vec![(10_256, Listener::Health), (10_250, Listener::Kubelet)],
        ..Settings::new(THIS)
    };
    let cases = [
        ("80:10250/TCP", Some((10_250, Listener::Kubelet))),
        ("80:10256/TCP", Some((10_256, Listener::Health))),
        ("80:6443/TCP", Some((6_443, Listener::ApiServer))),
        ("80:10250/UDP", None),
        ("80:30080/TCP", None),
    ];
    for (ports, expected) in cases {
        let mut node = Node::new(settings.clone());
        node.run([at(&["192.0.2.10:6443", "192.0.2.200:30080"])]);
        let plan = node.run([applied(&node_port(ports))]);
        let expected: Vec<_> = expected
            .map(|(port, listener)| Problem::PortOfListener { port, listener })
            .into_iter()
            .collect();
        assert_eq!(problems(&plan), expected.iter().collect::<Vec<_>>(), "{ports}");
        assert!(node.addresses().iter().any(|it| it.contains("10.96.0.9")), "{ports}");
    }
    let external =
        Service { external: ips(&["192.0.2.10"]), ports: vec![port("http", "10250/TCP")], ..web() };
    let mut node = Node::new(settings);
    let plan = node.run([applied(&external)]);
    let expected = Problem::PortOfListener { port: 10_250, listener: Listener::Kubelet };
    assert_eq!(problems(&plan), [&expected]);
}
