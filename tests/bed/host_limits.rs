//! What a host has otherwise: addresses chosen as a source.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use bed::Protocol;

use crate::fixture::{Bed, assert_shares, ip, web};

const SERVICE: &str = "fd00:96::10";
/// Is reached by an interface without an address, and shares more bits with the Service's address than
/// with the node's: by these the kernel chooses a source.
const NEAR: &str = "fd00:96:1::5";

fn lead_near(bed: &Bed) {
    bed.tool("ip", &["link", "add", "near0", "type", "dummy"]);
    bed.tool("ip", &["link", "set", "near0", "up"]);
    bed.tool("ip", &["-6", "route", "add", "fd00:96:1::/64", "dev", "near0"]);
}

/// Source that a socket of the node gets now.
fn source_now(bed: &Bed) -> IpAddr {
    let connected = bed.node().enter(|| {
        let socket = UdpSocket::bind("[::]:0").unwrap();
        socket.connect(SocketAddr::new(ip(NEAR), 9)).unwrap();
        socket.local_addr().unwrap().ip()
    });
    connected.unwrap()
}

/// The same where it does not change, so that routes show it too.
fn source(bed: &Bed) -> IpAddr {
    let source = source_now(bed);
    let route = bed.tool("ip", &["-6", "route", "get", NEAR]);
    assert!(route.contains(&format!("src {source}")), "{source}: {route}");
    source
}

fn is_bound(bed: &Bed) -> bool {
    bed.bound().contains(&format!("{SERVICE}/128"))
}

#[test]
fn an_ipv6_service_address_is_no_source_of_the_nodes_own_connections() {
    let bed = Bed::new();
    lead_near(&bed);
    let own = source(&bed);
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let _proxy = bed.start(&[]);
    assert!(is_bound(&bed));
    assert_eq!(source(&bed), own);
    for from in [bed.node(), &bed.pod(1, 2).namespace, bed.client()] {
        assert_shares(&bed.ask(from, Protocol::Tcp, (ip(SERVICE), 80), 2), &[("pod1-1", 2)]);
    }
}

#[test]
fn nor_is_one_that_was_found() {
    let bed = Bed::new();
    lead_near(&bed);
    let own = source(&bed);
    bed.tool("ip", &["link", "add", "kube-ipvs0", "type", "dummy"]);
    for address in [&format!("{SERVICE}/128")[..], "fd00:96::99/128"] {
        bed.tool("ip", &["address", "add", address, "dev", "kube-ipvs0", "nodad"]);
    }
    assert_ne!(source(&bed), own, "the kernel would choose it");
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let _proxy = bed.start(&[]);
    bed.wait_until("the node's own is chosen", || source_now(&bed) == own);
    assert_eq!(source(&bed), own);
    assert!(is_bound(&bed));
    let lifetimes = bed.tool("ip", &["-6", "address", "show", "dev", "kube-ipvs0"]);
    assert!(lifetimes.contains("valid_lft forever preferred_lft 0sec"), "{lifetimes}");
    assert_shares(&bed.ask(bed.client(), Protocol::Tcp, (ip(SERVICE), 80), 2), &[("pod1-1", 2)]);
}
