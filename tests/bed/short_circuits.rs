//! Local clients are led to a short circuit only while the kernel has all of it.

use bed::{Namespace, Protocol, Service};

use crate::fixture::{Bed, TARGET, assert_shares, ip};

const NODE_PORT: u16 = 30_600;
/// An address that cannot be added to an interface on which IPv6 is off.
const REFUSES_IPV6: &str = "net/ipv6/conf/kube-ipvs0/disable_ipv6";

/// True if clients in the cluster are led to the short circuit of an IPv6 node port.
fn are_led(bed: &Bed) -> bool {
    bed.entries().iter().any(|entry| entry.starts_with("KUBE-6-SHORT-CIRCUIT "))
}

/// Asks the node port of both families from a pod and from the node itself: by IPv4 they always get
/// all endpoints, by IPv6 these.
fn assert_local_clients_get(bed: &Bed, by_ipv6: &[(&str, usize)]) {
    let clients: [&Namespace; 2] = [&bed.pod(1, 2).namespace, bed.node()];
    for from in clients {
        for (address, shares) in
            [("192.168.0.11", &[("pod1-1", 2), ("pod2-1", 2)][..]), ("fd00:192::11", by_ipv6)]
        {
            let tally = bed.ask(from, Protocol::Tcp, (ip(address), NODE_PORT), 4);
            assert_shares(&tally, shares);
        }
    }
}

/// A node port is at the node's own addresses, so that only its short circuit needs an address on
/// kube-ipvs0.
#[test]
fn local_clients_get_this_nodes_endpoints_while_the_kernel_refuses_the_short_circuits_address() {
    let bed = Bed::new();
    // kube-ipvs0 takes this over when it is made.
    bed.node().set_sysctl("net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    let mut service = Service::new("ports", ip("10.96.0.60"));
    service = service.node_port(Protocol::Tcp, 80, TARGET, NODE_PORT);
    service.cluster.push(ip("fd00:96::60"));
    service.more = vec!["externalTrafficPolicy: Local".into()];
    bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let _proxy = bed.start(&[]);
    let (here, all) = (&[("pod1-1", 4)][..], &[("pod1-1", 2), ("pod2-1", 2)][..]);
    // Its virtual server is there all the same.
    let short_circuit = "TCP  [feff:192::11]:30600";
    assert!(bed.virtual_servers().contains(short_circuit), "{}", bed.virtual_servers());
    assert!(!are_led(&bed), "{:?}", bed.entries());
    assert_local_clients_get(&bed, here);

    bed.node().set_sysctl(REFUSES_IPV6, "0").unwrap();
    bed.wait_until("they are led to the short circuit", || are_led(&bed));
    assert_local_clients_get(&bed, all);

    // This takes the addresses away, and they are refused again.
    bed.node().set_sysctl(REFUSES_IPV6, "1").unwrap();
    bed.wait_until("they are no longer led to the short circuit", || !are_led(&bed));
    assert!(bed.virtual_servers().contains(short_circuit), "{}", bed.virtual_servers());
    assert_local_clients_get(&bed, here);
}
