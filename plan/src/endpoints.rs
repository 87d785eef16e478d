//! Which endpoints a frontend may use.

mod selection;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use crate::kernel::RealServer;
use crate::model::{
    Conditions, Endpoint, EndpointSlice, Family, Service, ServicePort, TrafficPolicy,
};

pub use selection::{EndpointChoice, Selection};

/// An endpoint of one service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The port it listens on.
    pub port: u16,
    /// Everything else about it.
    pub endpoint: &'a Endpoint,
}

/// Who connects to a frontend: that decides which of the two traffic policies it follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrontendClass {
    /// The cluster's own clients, by a cluster address.
    Internal,
    /// Everyone else, by external address, load-balancer address or node port.
    External,
}

/// For what endpoints are wanted, where, and which there are.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The Service.
    pub service: &'a Service,
    /// The frontend's class.
    pub class: FrontendClass,
    /// This node's name.
    pub node_name: &'a str,
    /// This node's zone.
    pub zone: Option<&'a str>,
    /// All endpoints of the service port, from [`candidates`].
    pub candidates: &'a [Candidate<'a>],
}

/// All endpoints of a service port, ready or not, in the order of address and port.
///
/// A slice's port is matched by name and protocol. Where several slices have the same address and
/// port, which happens while an endpoint moves between them, the better one counts: not
/// terminating before terminating, then ready, then serving, then the earlier slice.
pub fn candidates<'a>(
    port: &ServicePort,
    family: Family,
    slices: &[&'a EndpointSlice],
) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for slice in slices.iter().filter(|slice| slice.family == family) {
        let matching =
            slice.ports.iter().filter(|p| p.name == port.name && p.protocol == port.protocol);
        for slice_port in matching {
            let of_family = slice.endpoints.iter().filter(|e| Family::of(e.address) == family);
            candidates.extend(
                of_family.map(|endpoint| Candidate { port: slice_port.port.get(), endpoint }),
            );
        }
    }
    candidates.sort_by_key(|candidate| {
        (candidate.socket(), Reverse(goodness(candidate.endpoint.conditions)))
    });
    candidates.dedup_by_key(|candidate| candidate.socket());
    candidates
}

// === impl Candidate ===

impl Candidate<'_> {
    fn socket(&self) -> (IpAddr, u16) {
        (self.endpoint.address, self.port)
    }
}

// === impl Request ===

impl Request<'_> {
    /// The frontend's real servers, in the order of address and port, all of the same weight: the
    /// ready endpoints, whoever asks; with the policy Local only those on this node, and none if
    /// there are none. What is not masqueraded must not be sent to another node, whose answer
    /// would not come back through this one.
    #[must_use]
    pub fn real_servers(&self) -> Arc<[RealServer]> {
        let local_only = self.is_local_only();
        let usable = self.candidates.iter().filter(|candidate| {
            let is_local = candidate.endpoint.node.as_deref() == Some(self.node_name);
            candidate.endpoint.conditions.ready && (is_local || !local_only)
        });
        usable
            .map(|candidate| RealServer {
                address: candidate.endpoint.address,
                port: candidate.port,
                weight: 1,
            })
            .collect()
    }

    fn is_local_only(&self) -> bool {
        match self.class {
            FrontendClass::Internal => self.service.internal_policy == TrafficPolicy::Local,
            FrontendClass::External => self.service.is_external_policy_local(),
        }
    }
}

fn goodness(conditions: Conditions) -> (bool, bool, bool) {
    (!conditions.terminating, conditions.ready, conditions.serving)
}
