//! Answers to a trace's questions about the plan.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Planner;
use super::chains::unspecified;
use crate::facts::NodeFacts;
use crate::kernel_objects::Frontend;
use crate::model::{Family, ServiceName};
use crate::store::Store;
use crate::userspace::ProxyPortState;

impl Planner {
    /// The Service that a client's destination belongs to.
    #[must_use]
    pub fn owner_as_seen_by_clients(&self, frontend: &Frontend) -> Option<&ServiceName> {
        if !self.settings.mode.leads_by_rules() {
            return self.desired.owner(frontend);
        }
        let node_port = Frontend { address: unspecified(frontend.family()), ..*frontend };
        let of_node_port = || {
            let owner = self.chains.owner(&node_port)?;
            self.serves_node_ports(frontend.address).then_some(owner)
        };
        self.chains.owner(frontend).or_else(of_node_port)
    }

    /// Returns the source that the kernel takes for a connection of the node's own: the destination
    /// itself if that is at an interface, or else the address by which the cluster knows the node.
    /// None: that is not known.
    #[must_use]
    pub fn own_source(&self, destination: IpAddr) -> Option<IpAddr> {
        if self.is_local(destination) {
            return Some(destination);
        }
        self.own_address(Family::of(destination))
    }

    /// Returns the frontends that a Service claims, internal frontends included. In modes whose rules lead,
    /// that of a node port has the family's unspecified address. None: there is no such Service.
    #[must_use]
    pub fn frontends_claimed_by(&self, service: &ServiceName) -> Option<Vec<Frontend>> {
        if self.settings.mode.leads_by_rules() {
            let claims = self.chains_of(service)?.claims;
            return Some(claims.into_iter().map(|claim| claim.frontend).collect());
        }
        self.store.service(service)?;
        let claims = self.desired.fragment(service).map_or(&[][..], |it| &it.claims);
        Some(claims.iter().map(|claim| claim.frontend).collect())
    }

    /// Returns the endpoints that the relay chooses from for clients of a proxy port of a Service.
    /// None: it is not listened on.
    pub(crate) fn endpoints_of_proxy_port(
        &self,
        service: &ServiceName,
        socket: SocketAddr,
    ) -> Option<Arc<[SocketAddr]>> {
        let known = self.store.proxy_ports(service)?;
        let ports = self.relay.get(service)?.iter();
        let mut each = ports.flat_map(|port| port.proxy_ports(service));
        let listening = Some(&ProxyPortState::Listening(socket));
        let (_, endpoints) = each.find(|(id, _)| known.get(id) == listening)?;
        Some(Arc::clone(endpoints))
    }

    /// The objects.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The facts about this node.
    pub(crate) fn facts(&self) -> &NodeFacts {
        self.store.facts()
    }

    /// True if an address is of an endpoint on this node, by what its slice says.
    pub(crate) fn has_endpoint_here(&self, address: IpAddr) -> bool {
        self.store.has_endpoint_on(&self.settings.node_name, address)
    }

    /// True if packets to an address are for this node.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback()
            || self.local_addresses().contains(&address)
            || self.desired.has_address(address)
            || self.is_balanced_here(address)
    }

    /// True inside a network that is local by a route in ipvs mode.
    fn is_balanced_here(&self, address: IpAddr) -> bool {
        !self.settings.mode.leads_by_rules() && self.settings.is_routed(address)
    }
}
