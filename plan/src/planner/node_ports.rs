//! Counts of the virtual servers that NodePorts take, and of the addresses that they are at.

use std::net::IpAddr;

use super::Planner;
use crate::model::Family;
use crate::sets::{SetId, SetKind};

/// Addresses of this node at which each NodePort of their family has a virtual server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePortAddressCount {
    /// All of them.
    pub all: usize,
    /// Those that are Services' own: something announces load balancers' addresses from an interface of
    /// this node.
    pub of_services: usize,
}

impl Planner {
    /// Number of virtual servers for NodePorts in mode ipvs. Looks at each address, and at no Service.
    #[must_use]
    pub fn n_node_port_servers(&self) -> usize {
        let of_family = |family: Family| {
            let entries = |kind: SetKind| self.desired.n_entries(SetId { kind, family });
            let ports = entries(SetKind::NodePortTcp) + entries(SetKind::NodePortUdp);
            let addresses = self.store.facts().node_port_addresses(family).count();
            // Those of SCTP have the address.
            ports * addresses + entries(SetKind::NodePortSctp)
        };
        self.settings.families.iter().copied().map(of_family).sum()
    }

    /// Counts the addresses that serve NodePorts. Looks at each.
    #[must_use]
    pub fn count_node_port_addresses(&self) -> NodePortAddressCount {
        let families = self.settings.families.iter();
        let all: Vec<IpAddr> =
            families.flat_map(|family| self.store.facts().node_port_addresses(*family)).collect();
        let of_services = all.iter().filter(|address| self.store.has_service_at(**address)).count();
        NodePortAddressCount { all: all.len(), of_services }
    }
}
