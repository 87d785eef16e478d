//! A Service's addresses of one family, as far as they can be served.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::address::{can_be_bound, can_be_reached};
use crate::facts::NodeFacts;
use crate::kernel_objects::PartKind;
use crate::mode::Mode;
use crate::model::{Family, Service, ServicePort};
use crate::problem::{AddressField, Problem};
use crate::settings::Settings;

/// A Service's addresses of one family, without those that no Service can have, and the API server's;
/// in IPVS mode also without those of other nodes and pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    family: Family,
    /// The cluster address.
    pub cluster: Option<IpAddr>,
    /// `spec.externalIPs`.
    pub external: Vec<IpAddr>,
    /// The load balancer's addresses in the status.
    pub load_balancer: Vec<IpAddr>,
    /// Networks whose clients may use the load-balancer addresses; empty means all clients.
    pub source_ranges: Vec<IpNet>,
}

impl Addresses {
    pub(super) fn of(
        service: &Service,
        family: Family,
        facts: &NodeFacts,
        settings: &Settings,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let cluster = service.cluster_address(family);
        let are_bound = settings.mode.uses(PartKind::Addresses);
        let mut keep = |field: AddressField, address: IpAddr, possible: bool| {
            if Family::of(address) != family {
                return false;
            }
            // If every node bound another one's address, that one could no longer be reached. Rules
            // of iptables mode are about one port of it, and bind nothing. What the API server gives
            // is served all the same.
            let is_outer = field != AddressField::Cluster && are_bound;
            let yields = match field {
                AddressField::Cluster => false,
                AddressField::External => true,
                AddressField::LoadBalancer => !settings.load_balancers_before_nodes,
            };
            let node = facts.other_node(address).filter(|_| yields && is_outer);
            // No operator can allow this one: without its API server a node hears of no correction.
            // Rules are about a port, and lead only that one elsewhere.
            let takes =
                |port: u16| is_outer || service.ports.iter().any(|it| it.port.get() == port);
            let is_api_server =
                field != AddressField::Cluster && facts.api_server_ports(address).any(takes);
            let pods = facts.pod_network_around(address, cluster, settings).filter(|_| is_outer);
            let problem = match (node, pods) {
                _ if !possible => Problem::ImpossibleAddress { field, address },
                _ if is_api_server => Problem::AddressOfApiServer { field, address },
                (Some(node), _) => {
                    Problem::AddressOfNode { field, address, node: Arc::clone(node) }
                }
                (None, Some(network)) => Problem::InsidePodNetwork { field, address, network },
                (None, None) => return true,
            };
            problems.push(problem);
            false
        };
        let cluster = cluster.filter(|a| keep(AddressField::Cluster, *a, can_be_bound(*a)));
        let external = service.external.iter().copied();
        let external =
            external.filter(|a| keep(AddressField::External, *a, can_be_reached(*a))).collect();
        let load_balancer = service.load_balancer.iter().copied();
        let load_balancer = load_balancer
            .filter(|a| keep(AddressField::LoadBalancer, *a, can_be_reached(*a)))
            .collect();
        let source_ranges = source_ranges(service, family);
        Self { family, cluster, external, load_balancer, source_ranges }
    }

    /// Number of frontends that a service port has at these addresses and as a node port.
    pub(crate) fn n_frontends(
        &self,
        port: &ServicePort,
        facts: &NodeFacts,
        settings: &Settings,
    ) -> usize {
        let node_ports = port.node_port.map(|_| {
            // One rule for all addresses.
            let is_rule = settings.mode.leads_by_rules();
            if is_rule { 1 } else { facts.node_port_addresses(self.family).count() }
        });
        let outer = self.external.len() + self.load_balancer.len();
        usize::from(self.cluster.is_some()) + outer + node_ports.unwrap_or_default()
    }

    /// Number of rules, about, that source ranges take for a service port.
    pub(super) fn n_source_rules(&self, mode: Mode) -> usize {
        let (n_ranges, n_addresses) = (self.source_ranges.len(), self.load_balancer.len());
        if n_ranges == 0 || n_addresses == 0 {
            return 0;
        }
        (mode.properties().n_source_rules)(n_ranges, n_addresses)
    }
}

/// One network that holds everyone makes the others pointless; besides, the kernel's
/// `hash:ip,port,net` takes no prefix of length 0 (net/netfilter/ipset/ip_set_hash_ipportnet.c).
pub(crate) fn source_ranges(service: &Service, family: Family) -> Vec<IpNet> {
    let ranges = || service.source_ranges.iter().filter(|net| Family::of_net(net) == family);
    if ranges().any(|net| net.prefix_len() == 0) {
        return Vec::new();
    }
    ranges().map(IpNet::trunc).collect()
}
