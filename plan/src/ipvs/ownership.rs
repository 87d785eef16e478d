//! Ownership of a virtual server that was found and is not desired.
//!
//! The kernel does not say who made a virtual server, and other programs make theirs too. Ours have
//! ownership markers, written before them and removed after them: their address on `kube-ipvs0` or
//! inside a local route of ours, or their entry in one of our sets. Internal frontends are known by
//! their network. kube-proxy writes the same, so what it left behind is ours too.

use std::net::IpAddr;

use crate::actual::Actual;
use crate::hash::HashSet;
use crate::ipvs::desired::Desired;
use crate::kernel_objects::{Entry, Frontend, PartKind};
use crate::model::{Family, Protocol};
use crate::sets::{SetId, SetKind};
use crate::settings::Settings;

/// The sets that mark a virtual server by address, protocol and port.
const MARKER_SETS: [SetKind; 7] = [
    SetKind::ClusterIp,
    SetKind::ExternalIp,
    SetKind::ExternalIpLocal,
    SetKind::LoadBalancer,
    SetKind::NodePortSctp,
    // What had endpoints until lately may still be there, draining.
    SetKind::NoEndpoints,
    SetKind::NoLocalEndpoints,
];

/// The sets that mark virtual servers of this protocol by port, at any address of the node.
const NODE_PORT_MARKER_SETS: [(SetKind, Protocol); 2] =
    [(SetKind::NodePortTcp, Protocol::Tcp), (SetKind::NodePortUdp, Protocol::Udp)];

/// State by which a virtual server is known to be ours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ownership<'a> {
    /// Desired state beside it, which is there or will be.
    pub(crate) desired: &'a Desired,
    /// State that was found beside it.
    pub(crate) actual: &'a Actual,
    pub(crate) settings: &'a Settings,
}

/// The frontends whose virtual servers an entry marks as ours.
pub(crate) fn marked_by(set: SetId, entry: &Entry, local: &HashSet<IpAddr>) -> Vec<Frontend> {
    match entry {
        Entry::AddressPort(frontend) if MARKER_SETS.contains(&set.kind) => vec![*frontend],
        Entry::Port(port) => {
            let known = NODE_PORT_MARKER_SETS.into_iter().find(|(kind, _)| *kind == set.kind);
            let Some((_, protocol)) = known else { return Vec::new() };
            let addresses = local.iter().filter(|address| Family::of(**address) == set.family);
            addresses.map(|address| Frontend { address: *address, protocol, port: *port }).collect()
        }
        _ => Vec::new(),
    }
}

/// The entries of which each marks a virtual server at this frontend as ours.
pub(crate) fn markers(
    frontend: &Frontend,
    local: &HashSet<IpAddr>,
) -> impl Iterator<Item = (SetId, Entry)> {
    let (frontend, family) = (*frontend, frontend.family());
    let is_local = local.contains(&frontend.address);
    let of_all = MARKER_SETS.into_iter().map(move |kind| (kind, Entry::AddressPort(frontend)));
    let of_node_ports = NODE_PORT_MARKER_SETS
        .into_iter()
        .filter(move |(_, protocol)| is_local && *protocol == frontend.protocol)
        .map(move |(kind, _)| (kind, Entry::Port(frontend.port)));
    of_all.chain(of_node_ports).map(move |(kind, entry)| (SetId { kind, family }, entry))
}

impl Ownership<'_> {
    pub(crate) fn is_ours(&self, frontend: &Frontend) -> bool {
        // A mode without virtual servers finds those that are left, of either family.
        let is_of_mode = self.settings.mode.uses(PartKind::VirtualServers);
        (!is_of_mode || self.settings.families.contains(&frontend.family()))
            && !self.settings.excludes(frontend.address)
            && (self.is_internal_frontend(frontend)
                || self.actual.addresses.contains(&frontend.address)
                || self.desired.has_address(frontend.address)
                || self.is_routed(frontend)
                || self.has_marker(frontend))
    }

    /// The networks of internal frontends are ours alone.
    fn is_internal_frontend(&self, frontend: &Frontend) -> bool {
        self.settings.internal_frontend_networks.may_have_had(frontend.address)
    }

    /// Only Services have addresses inside our routes.
    fn is_routed(&self, frontend: &Frontend) -> bool {
        let is_desired = self.settings.is_routed(frontend.address);
        is_desired || self.actual.routes.iter().any(|route| route.contains(&frontend.address))
    }

    fn has_marker(&self, frontend: &Frontend) -> bool {
        markers(frontend, &self.actual.local_addresses).any(|(set, entry)| {
            self.actual.sets.get(&set).is_some_and(|there| there.entries.contains(&entry))
                || self.desired.has_entry(set, &entry)
        })
    }
}
