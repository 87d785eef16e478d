//! Order in which the real servers of a new virtual server are added. The kernel puts each one in
//! front of its list (`__ip_vs_update_dest` in net/netfilter/ipvs/ip_vs_ctl.c), and never moves
//! one.
//!
//! Schedulers that hash fill their tables in the order of the list: for them the order is the same
//! on every node. Later changes leave it as it is, since a real server changes its place only by
//! being removed, which ends its connections. Schedulers that go round begin with the first of the
//! list, so that all nodes of a cluster that starts would send their first clients to the same
//! endpoint: for them the order begins elsewhere on every node.

use crate::kernel_objects::{Frontend, RealServer, VirtualServer};
use crate::model::Protocol;

/// True if a virtual server's choice of a real server depends on their order.
fn matters(server: &VirtualServer) -> bool {
    server.scheduler.known().is_some_and(|scheduler| scheduler.depends_on_order)
}

/// The real servers of a new virtual server, in the order in which they are to be added. `seed`
/// differs between nodes.
pub(crate) fn of_new<'a>(
    frontend: &Frontend,
    server: &VirtualServer,
    real_servers: &'a [RealServer],
    seed: u64,
) -> impl Iterator<Item = &'a RealServer> {
    let start = match u64::try_from(real_servers.len()) {
        Ok(count) if count > 1 && !matters(server) => {
            usize::try_from(with_frontend(seed, frontend) % count).unwrap_or(0)
        }
        _ => 0,
    };
    let (end, beginning) = real_servers.split_at(start);
    beginning.iter().chain(end)
}

/// A number for a node, by its name.
#[must_use]
pub fn seed(node_name: &str) -> u64 {
    fold(0xcbf2_9ce4_8422_2325, node_name.bytes())
}

fn with_frontend(seed: u64, frontend: &Frontend) -> u64 {
    let protocol = match frontend.protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    };
    let address = match frontend.address {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    };
    let port = frontend.port.to_be_bytes();
    let sum = fold(seed, address.into_iter().chain(port).chain([protocol]));
    // The low bits alone are poor.
    sum ^ (sum >> 32)
}

/// FNV-1a: quick, and good enough to tell nodes apart.
fn fold(start: u64, bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(start, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fixtures::addresses;
    use crate::scheduler::SchedulerName;

    fn first_of(node: &str, scheduler: &str) -> Vec<u16> {
        let frontend =
            Frontend { address: addresses(&["10.96.0.1"])[0], protocol: Protocol::Tcp, port: 443 };
        let real_servers: Vec<RealServer> = (1..=3)
            .map(|port| RealServer { address: addresses(&["10.0.0.1"])[0], port, weight: 1 })
            .collect();
        let server = VirtualServer {
            scheduler: SchedulerName::new(scheduler).unwrap(),
            persistence: None,
            scheduler_flags: 0,
        };
        let added = of_new(&frontend, &server, &real_servers, seed(node));
        added.map(|server| server.port).collect()
    }

    #[test]
    fn nodes_begin_at_different_endpoints_unless_the_scheduler_hashes() {
        let nodes: Vec<String> = (0..64).map(|number| format!("node-{number}")).collect();
        let orders = |scheduler| -> BTreeSet<Vec<u16>> {
            nodes.iter().map(|node| first_of(node, scheduler)).collect()
        };
        assert_eq!(orders("rr"), [vec![1, 2, 3], vec![2, 3, 1], vec![3, 1, 2]].into());
        for scheduler in ["sh", "mh", "dh"] {
            assert_eq!(orders(scheduler), [vec![1, 2, 3]].into());
        }
    }
}
