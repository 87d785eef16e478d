//! The address plan: which number a node, a pod or a client has on the wire.
//!
//! Nodes, pods and clients are counted from one. An IPv6 address repeats the decimal digits of its
//! IPv4 sibling (`192.168.0.11` and `fd00:192::11`), so that one look at a capture is
//! enough.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Range of the pods of all nodes; a node's own part is [`pod_range_ipv4`].
pub const POD_RANGE_IPV4: &str = "10.244.0.0/16";
/// The IPv6 sibling of [`POD_RANGE_IPV4`].
pub const POD_RANGE_IPV6: &str = "fd00:244::/32";
/// Range of the cluster addresses of services.
pub const SERVICE_RANGE_IPV4: &str = "10.96.0.0/16";
/// The IPv6 sibling of [`SERVICE_RANGE_IPV4`].
pub const SERVICE_RANGE_IPV6: &str = "fd00:96::/112";
/// Range of the load-balancer addresses of IPv4.
pub const LOAD_BALANCER_RANGE_IPV4: &str = "203.0.113.0/24";
/// Range of the external addresses of IPv4.
pub const EXTERNAL_RANGE_IPV4: &str = "198.51.100.0/24";
/// Load-balancer and external addresses of IPv6.
pub const EXTERNAL_RANGE_IPV6: &str = "fd00:203::/64";

/// The IPv4 ranges that clients send through a node.
pub const ROUTED_IPV4: [&str; 3] =
    [SERVICE_RANGE_IPV4, LOAD_BALANCER_RANGE_IPV4, EXTERNAL_RANGE_IPV4];
/// The IPv6 ranges that clients send through a node.
pub const ROUTED_IPV6: [&str; 2] = [SERVICE_RANGE_IPV6, EXTERNAL_RANGE_IPV6];

/// The underlay's own address: the default gateway of nodes, which forwards nothing.
pub const GATEWAY_IPV4: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
/// The IPv6 sibling of [`GATEWAY_IPV4`].
pub const GATEWAY_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x192, 0, 0, 0, 0, 0, 1);

/// More nodes would run into the clients' addresses.
pub const MAX_NODES: u8 = 89;
/// More pods on a node would run past the last address of their range.
pub const MAX_PODS: u8 = 244;
/// More clients would run past the last address of the underlay.
pub const MAX_CLIENTS: u8 = 155;

/// A node on the underlay: `192.168.0.11` for the first.
#[must_use]
pub fn node_ipv4(node: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 0, node.saturating_add(10))
}

/// A node on the underlay: `fd00:192::11` for the first.
#[must_use]
pub fn node_ipv6(node: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x192, 0, 0, 0, 0, 0, same_digits(node.saturating_add(10)))
}

/// An outside client on the underlay: `192.168.0.100` for the first.
#[must_use]
pub fn client_ipv4(client: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 0, client.saturating_add(99))
}

/// An outside client on the underlay: `fd00:192::100` for the first.
#[must_use]
pub fn client_ipv6(client: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x192, 0, 0, 0, 0, 0, same_digits(client.saturating_add(99)))
}

/// The address of a node's pod bridge, which is its pods' gateway: `10.244.1.1` on the first.
#[must_use]
pub fn bridge_ipv4(node: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, node, 1)
}

/// The address of a node's pod bridge: `fd00:244:1::1` on the first.
#[must_use]
pub fn bridge_ipv6(node: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x244, same_digits(node), 0, 0, 0, 0, 1)
}

/// A pod: `10.244.1.11` for the first of the first node.
#[must_use]
pub fn pod_ipv4(node: u8, pod: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, node, pod.saturating_add(10))
}

/// A pod: `fd00:244:1::11` for the first of the first node.
#[must_use]
pub fn pod_ipv6(node: u8, pod: u8) -> Ipv6Addr {
    let host = same_digits(pod.saturating_add(10));
    Ipv6Addr::new(0xfd00, 0x244, same_digits(node), 0, 0, 0, 0, host)
}

/// The pods of one node as a prefix: `10.244.1.0/24` for the first.
#[must_use]
pub fn pod_range_ipv4(node: u8) -> String {
    format!("10.244.{node}.0/24")
}

/// The pods of one node as a prefix: `fd00:244:1::/64` for the first.
#[must_use]
pub fn pod_range_ipv6(node: u8) -> String {
    format!("fd00:244:{node}::/64")
}

/// The 16 bits whose hexadecimal text is the number's decimal text: 11 becomes 0x11.
fn same_digits(number: u8) -> u16 {
    let number = u16::from(number);
    (number / 100) << 8 | (number / 10 % 10) << 4 | (number % 10)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ipv6_repeats_the_digits_of_ipv4() {
        assert_eq!(node_ipv4(1).to_string(), "192.168.0.11");
        assert_eq!(node_ipv6(1).to_string(), "fd00:192::11");
        assert_eq!(node_ipv4(12).to_string(), "192.168.0.22");
        assert_eq!(node_ipv6(12).to_string(), "fd00:192::22");
        assert_eq!(client_ipv4(1).to_string(), "192.168.0.100");
        assert_eq!(client_ipv6(1).to_string(), "fd00:192::100");
        assert_eq!(pod_ipv4(3, 2).to_string(), "10.244.3.12");
        assert_eq!(pod_ipv6(3, 2).to_string(), "fd00:244:3::12");
        assert_eq!(bridge_ipv6(10).to_string(), "fd00:244:10::1");
        assert_eq!(pod_range_ipv6(10), "fd00:244:10::/64");
    }

    #[test]
    fn no_two_addresses_of_the_underlay_are_the_same() {
        let nodes = 1..=MAX_NODES;
        let clients = 1..=MAX_CLIENTS;
        let ipv4: BTreeSet<Ipv4Addr> =
            nodes.clone().map(node_ipv4).chain(clients.clone().map(client_ipv4)).collect();
        let ipv6: BTreeSet<Ipv6Addr> =
            nodes.map(node_ipv6).chain(clients.map(client_ipv6)).collect();
        let expected = usize::from(MAX_NODES) + usize::from(MAX_CLIENTS);
        assert_eq!(ipv4.len(), expected);
        assert_eq!(ipv6.len(), expected);
        assert!(!ipv4.contains(&GATEWAY_IPV4) && !ipv6.contains(&GATEWAY_IPV6));
        assert!(!ipv4.contains(&Ipv4Addr::new(192, 168, 0, 255)), "the broadcast address");
    }

    #[test]
    fn the_last_pod_stays_inside_its_range() {
        assert_eq!(pod_ipv4(1, MAX_PODS).to_string(), "10.244.1.254");
        assert_eq!(pod_ipv6(1, MAX_PODS).to_string(), "fd00:244:1::254");
    }
}
