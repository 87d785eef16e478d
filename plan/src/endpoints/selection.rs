//! Selection of the endpoints of a service port that this node uses, by order of preference.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::Candidate;
use crate::kernel_objects::RealServer;
use crate::model::{Endpoint, TrafficPolicy, Weights};

/// Endpoints of a service port, and the node for which some of them are chosen.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// This node's name.
    pub node_name: &'a str,
    /// This node's zone.
    pub zone: Option<&'a str>,
    /// The endpoints' shares; without them, all have the same.
    pub weights: Option<Weights>,
    /// All endpoints of the service port, from [`candidates`](super::EndpointsByPort::candidates).
    pub candidates: &'a [Candidate<'a>],
}

/// The endpoints that this node uses. Both lists are in the order of address and port, and one if
/// they are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointChoice {
    /// Endpoints for clients that may be sent anywhere in the cluster.
    pub cluster: Arc<[RealServer]>,
    /// Endpoints for clients that must stay on this node.
    pub local: Arc<[RealServer]>,
    /// True if any endpoint could be used by any client anywhere: without one, a Service has no
    /// endpoints; with one, it may still have none here.
    pub exist: bool,
}

/// Decision on an endpoint, for clients under one traffic policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Decision {
    /// It is used.
    Used,
    /// It terminates, and is used all the same: none that these clients may use is ready.
    UsedAsLastResort,
    /// It is not ready.
    NotReady,
    /// It terminates, and others are ready.
    Terminating,
    /// It terminates, and does not serve any more.
    NotServing,
    /// Hints mean it for other nodes.
    ForOtherNodes,
    /// Hints mean it for other zones.
    ForOtherZones,
    /// It is on another node, and the policy allows this node's only.
    Elsewhere,
    /// An operator drains it by hand: it counts as if it was not there.
    DrainedByHand,
}

/// Rule by which endpoints are chosen for clients under one traffic policy.
struct Criterion<'a> {
    selection: &'a Selection<'a>,
    policy: TrafficPolicy,
    topology: Topology,
    /// True if none that these clients may use is ready: those count that still serve while they
    /// terminate.
    is_last_resort: bool,
}

/// Endpoints that the hints leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// All, since hints are missing, or name neither this node nor its zone.
    Anywhere,
    /// Those meant for this node.
    SameNode,
    /// Those meant for this zone.
    SameZone,
}

impl Selection<'_> {
    /// Chooses: ready endpoints, as the hints of all ready ones say; if there are none, those that
    /// still serve while they terminate. The two lists fall back each by itself, and hints say
    /// nothing about endpoints on this node.
    #[must_use]
    pub fn choose(&self) -> EndpointChoice {
        let cluster = self.criterion(TrafficPolicy::Cluster).real_servers();
        let mut local = self.criterion(TrafficPolicy::Local).real_servers();
        if local == cluster {
            local = Arc::clone(&cluster);
        }
        // Hints only ever choose among ready endpoints, of which then at least one is left.
        let exist = !cluster.is_empty();
        EndpointChoice { cluster, local, exist }
    }

    /// Returns the decision on each candidate, in their order, for clients under this policy: those
    /// that are used are the ones that [`choose`](Self::choose) returns.
    #[must_use]
    pub fn decisions(&self, policy: TrafficPolicy) -> Vec<Decision> {
        let criterion = self.criterion(policy);
        self.candidates.iter().map(|candidate| criterion.decide(candidate.endpoint)).collect()
    }

    fn criterion(&self, policy: TrafficPolicy) -> Criterion<'_> {
        let topology = match policy {
            TrafficPolicy::Cluster => self.topology(),
            TrafficPolicy::Local => Topology::Anywhere,
        };
        let mut criterion = Criterion { selection: self, policy, topology, is_last_resort: false };
        let mut endpoints = self.candidates.iter().map(|candidate| candidate.endpoint);
        criterion.is_last_resort = !endpoints.any(|it| criterion.decide(it).is_used());
        criterion
    }

    /// Hints count only if every ready endpoint has one. Otherwise their controller does not know
    /// all endpoints yet, and those it knows might get all traffic.
    #[must_use]
    pub fn topology(&self) -> Topology {
        let ready = || self.candidates.iter().map(|c| c.endpoint).filter(|it| is_ready(it));
        let is_hinted = |topology| {
            ready().all(|it| has_hint(it, topology))
                && ready().any(|it| self.is_meant(it, topology))
        };
        if is_hinted(Topology::SameNode) {
            Topology::SameNode
        } else if is_hinted(Topology::SameZone) {
            Topology::SameZone
        } else {
            Topology::Anywhere
        }
    }

    fn is_meant(&self, endpoint: &Endpoint, topology: Topology) -> bool {
        let hints = endpoint.hints.as_deref();
        match topology {
            Topology::Anywhere => true,
            Topology::SameNode => {
                hints.is_some_and(|hints| hints.nodes.iter().any(|node| **node == *self.node_name))
            }
            Topology::SameZone => {
                hints.is_some_and(|hints| hints.zones.iter().any(|zone| Some(&**zone) == self.zone))
            }
        }
    }

    fn is_local(&self, endpoint: &Endpoint) -> bool {
        endpoint.node.as_deref() == Some(self.node_name)
    }

    fn weight(&self, endpoint: &Endpoint) -> u32 {
        let Some(weights) = self.weights else { return 1 };
        let is_in_zone = self.zone.is_some() && endpoint.zone.as_deref() == self.zone;
        u32::from(if self.is_local(endpoint) {
            weights.node
        } else if is_in_zone {
            weights.zone
        } else {
            weights.elsewhere
        })
    }
}

impl Criterion<'_> {
    fn decide(&self, endpoint: &Endpoint) -> Decision {
        let is_allowed = self.policy == TrafficPolicy::Cluster || self.selection.is_local(endpoint);
        let conditions = endpoint.conditions;
        if is_ready(endpoint) {
            return match self.topology {
                _ if !is_allowed => Decision::Elsewhere,
                _ if self.selection.is_meant(endpoint, self.topology) => Decision::Used,
                Topology::SameNode => Decision::ForOtherNodes,
                Topology::SameZone | Topology::Anywhere => Decision::ForOtherZones,
            };
        }
        match (conditions.terminating, conditions.serving) {
            (false, _) => Decision::NotReady,
            (true, false) => Decision::NotServing,
            (true, true) if !self.is_last_resort => Decision::Terminating,
            (true, true) if !is_allowed => Decision::Elsewhere,
            (true, true) => Decision::UsedAsLastResort,
        }
    }

    fn real_servers(&self) -> Arc<[RealServer]> {
        let candidates = self.selection.candidates.iter();
        let chosen = candidates.filter(|candidate| self.decide(candidate.endpoint).is_used());
        chosen
            .map(|candidate| RealServer {
                address: candidate.endpoint.address,
                port: candidate.port,
                weight: self.selection.weight(candidate.endpoint),
            })
            .collect()
    }
}

impl Decision {
    /// True if the endpoint gets connections of these clients.
    #[must_use]
    pub const fn is_used(self) -> bool {
        matches!(self, Self::Used | Self::UsedAsLastResort)
    }
}

fn has_hint(endpoint: &Endpoint, topology: Topology) -> bool {
    let hints = endpoint.hints.as_deref();
    match topology {
        Topology::Anywhere => true,
        Topology::SameNode => hints.is_some_and(|hints| !hints.nodes.is_empty()),
        Topology::SameZone => hints.is_some_and(|hints| !hints.zones.is_empty()),
    }
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.ready
}
