//! Taking over a node from kube-proxy, in ipvs mode, while its clients are connected.

use std::net::IpAddr;

use bed::{Connection, Namespace, Protocol, Question, Service};

use crate::fixture::{Bed, TARGET, assert_shares, ip};

// What kube-proxy 1.36 leaves in the kernel for the Service below, beside one that was deleted
// while no proxy ran (10.96.0.99), as `ipset save`, `iptables-save` and `ipvsadm -Sn` print it.
const SETS: &str = include_str!("left_by_kube_proxy/ipset");
const RULES: &str = include_str!("left_by_kube_proxy/iptables");
const VIRTUAL_SERVERS: &str = include_str!("left_by_kube_proxy/ipvsadm");
const ADDRESSES: [&str; 3] = ["10.96.0.10/32", "10.96.0.99/32", "203.0.113.5/32"];

/// Its three ways in: cluster address, load balancer, port of the node.
pub(crate) const TARGETS: [(&str, u16); 3] =
    [("10.96.0.10", 80), ("203.0.113.5", 80), ("192.168.0.11", 30_080)];

pub(crate) fn service(bed: &Bed) -> Service {
    let mut service =
        Service::new("web", ip("10.96.0.10")).node_port(Protocol::Tcp, 80, TARGET, 30_080);
    service.load_balancer = vec![ip("203.0.113.5")];
    service.more = vec!["loadBalancerSourceRanges: [192.168.0.96/27]".into()];
    let mut service = service.pods([bed.pod(1, 1), bed.pod(2, 1)]);
    service.endpoints.retain(|endpoint| endpoint.address.is_ipv4());
    service
}

/// Leaves the node as kube-proxy leaves it.
pub(crate) fn be_kube_proxy(node: &Namespace) {
    let tool = |program: &str, arguments: &[&str], input: &str| {
        node.command_with_input(program, arguments, input).unwrap();
    };
    tool("modprobe", &["-a", "ip_vs", "ip_vs_rr", "dummy"], "");
    for switch in ["conntrack", "expire_nodest_conn", "expire_quiescent_template"] {
        node.set_sysctl(&format!("net/ipv4/vs/{switch}"), "1").unwrap();
    }
    tool("ip", &["link", "add", "kube-ipvs0", "type", "dummy"], "");
    tool("ipset", &["restore"], SETS);
    tool("iptables-restore", &["--noflush"], RULES);
    tool("ipvsadm", &["-R"], VIRTUAL_SERVERS);
    for address in ADDRESSES {
        tool("ip", &["addr", "add", address, "dev", "kube-ipvs0"], "");
    }
}

pub(crate) fn open(from: &Namespace, (address, port): (&str, u16)) -> (Connection, String) {
    let target: (IpAddr, u16) = (ip(address), port);
    let mut connection = Connection::open(from, Question::tcp(target)).unwrap();
    let server = connection.say().unwrap().server;
    (connection, server)
}

#[test]
fn connections_made_through_kube_proxy_live_on_and_what_it_left_is_put_right() {
    let bed = Bed::new();
    be_kube_proxy(bed.node());
    let mut connections: Vec<(Connection, String)> = TARGETS
        .into_iter()
        .chain(TARGETS)
        .map(|target| open(bed.client(), target))
        .chain([open(&bed.pod(1, 2).namespace, TARGETS[0])])
        .collect();
    bed.manifests.apply(&service(&bed)).unwrap();
    let new = Service::new("new", ip("10.96.0.20")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&new.pods([bed.pod(2, 2)])).unwrap();

    let proxy = bed.start(&["--cluster-cidr", "10.244.0.0/16"]);
    for (connection, server) in &mut connections {
        assert_eq!(connection.say().unwrap().server, *server);
    }
    let shown = bed.virtual_servers();
    assert!(!shown.contains("10.96.0.99"), "deleted while no proxy ran:\n{shown}");
    assert_eq!(bed.bound().iter().filter(|address| address.contains("10.96.0.99")).count(), 0);
    assert!(!bed.entries().iter().any(|entry| entry.contains("10.96.0.99")));
    assert!(!bed.rules("iptables").contains("--vaddr"), "a rule for one Service is left");
    for target in TARGETS {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(target.0), target.1), 4);
        assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
    }
    assert_shares(
        &bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.20"), 80), 1),
        &[("pod2-2", 1)],
    );
    // What was right is left alone: nothing about the Service itself was written.
    let log = proxy.log().unwrap();
    assert!(!log.contains("another program changed"), "{log}");
    for (connection, server) in &mut connections {
        assert_eq!(connection.say().unwrap().server, *server);
    }
}
