//! A load balancer that wants to be passed through: `ipMode: Proxy`.

use bed::{ClusterSpec, NodeSpec, Protocol, Server, Service};

use crate::fixture::{Bed, PROTOCOLS, TARGET, assert_shares, ip};

const PROXY: [&str; 2] = ["203.0.113.20", "fd00:203::20"];
const VIP: [&str; 2] = ["203.0.113.21", "fd00:203::21"];

/// A cluster with the load balancer outside: a host with its addresses, to which the first node
/// knows the way, and which knows the way to that node's pods.
fn with_balancer() -> (Bed, Server) {
    let spec =
        ClusterSpec { nodes: vec![NodeSpec { pods: 2 }; 2], clients: 2, ..Default::default() };
    let bed = Bed::with(&spec);
    let (host, node) = (bed.cluster.client(2).unwrap(), bed.cluster.node(1).unwrap());
    let addresses = || PROXY.into_iter().chain(VIP);
    let mut lines: Vec<String> =
        addresses().map(|address| format!("addr add {address} dev lo")).collect();
    for (pods, node) in ["10.244.1.0/24", "fd00:244:1::/64"].into_iter().zip(node.addresses()) {
        lines.push(format!("route add {pods} via {node}"));
    }
    host.namespace.configure_links(&lines).unwrap();
    let listen: Vec<_> = addresses()
        .flat_map(|address| PROTOCOLS.map(|protocol| (protocol, (ip(address), 80).into())))
        .collect();
    let balancer = Server::bind(&host.namespace, "balancer", &listen).unwrap();
    let lines: Vec<String> = addresses()
        .zip(host.addresses().into_iter().cycle())
        .map(|(address, host)| format!("route add {address} via {host}"))
        .collect();
    bed.node().configure_links(&lines).unwrap();
    (bed, balancer)
}

/// Asserts that addresses are served here, or else that nothing here knows of them and packets go
/// where routes lead.
fn assert_served_and_passed_on(bed: &Bed, served: [&str; 2], passed_on: [&str; 2]) {
    for (address, here) in
        served.map(|it| (it, true)).into_iter().chain(passed_on.map(|it| (it, false)))
    {
        let bound = bed.bound().iter().any(|it| it.starts_with(&format!("{address}/")));
        assert_eq!(bound, here, "{address}: {:?}", bed.bound());
        assert_eq!(bed.virtual_servers().contains(address), here, "{address}");
        let in_sets = bed.entries().iter().any(|entry| entry.contains(&format!("{address},")));
        assert_eq!(in_sets, here, "{address}: {:?}", bed.entries());
    }
    for address in passed_on {
        for from in [&bed.pod(1, 2).namespace, &bed.pod(1, 1).namespace, bed.node()] {
            for protocol in PROTOCOLS {
                let tally = bed.ask(from, protocol, (ip(address), 80), 1);
                assert_shares(&tally, &[("balancer", 1)]);
            }
        }
    }
    for address in served {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(address), 80), 2);
        assert_shares(&tally, &[("pod1-1", 2)]);
    }
}

#[test]
fn the_address_of_a_load_balancer_that_is_a_proxy_is_left_to_routing() {
    let (bed, _balancer) = with_balancer();
    let mut service = Service::new("public", ip("10.96.0.43"))
        .node_port(Protocol::Tcp, 80, TARGET, 30_300)
        .node_port(Protocol::Udp, 80, TARGET, 30_301)
        .node_port(Protocol::Sctp, 80, TARGET, 30_302);
    service.cluster.push(ip("fd00:96::43"));
    service.load_balancer_proxy = PROXY.map(ip).to_vec();
    service.load_balancer = VIP.map(ip).to_vec();
    // Who may use the address of a proxy is for that proxy to say.
    let ranges = "loadBalancerSourceRanges: [192.168.0.100/32, \"fd00:192::100/128\"]";
    service.more = vec![ranges.into()];
    service = service.pods([bed.pod(1, 1)]);
    bed.manifests.apply(&service).unwrap();
    let _proxy = bed.start(&[]);
    assert_served_and_passed_on(&bed, VIP, PROXY);
    // It comes back by the node port.
    let host = &bed.cluster.client(2).unwrap().namespace;
    for address in bed.cluster.node(1).unwrap().addresses() {
        for (protocol, port) in PROTOCOLS.into_iter().zip(30_300..) {
            assert_shares(&bed.ask(host, protocol, (address, port), 2), &[("pod1-1", 2)]);
        }
    }

    // Each changes its mind.
    std::mem::swap(&mut service.load_balancer, &mut service.load_balancer_proxy);
    bed.manifests.apply(&service).unwrap();
    bed.wait_until("the addresses have changed places", || {
        let (bound, listed) = (bed.bound(), bed.virtual_servers());
        let is_bound =
            |address: &&str| bound.iter().any(|it| it.starts_with(&format!("{address}/")));
        PROXY.iter().all(is_bound)
            && !VIP.iter().any(is_bound)
            && !VIP.iter().any(|address| listed.contains(address))
    });
    assert_served_and_passed_on(&bed, PROXY, VIP);
}
