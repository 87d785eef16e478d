//! Selection of the endpoints of a service port that this node uses, by order of preference.

use std::sync::Arc;

use super::Candidate;
use crate::kernel_objects::RealServer;
use crate::model::{Endpoint, Weights};

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

/// Endpoints that the hints leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topology {
    /// All, since hints are missing, or name neither this node nor its zone.
    Anywhere,
    /// Those meant for this node.
    SameNode,
    /// Those meant for this zone.
    SameZone,
}

// === impl Selection ===

impl Selection<'_> {
    /// Chooses: ready endpoints, as the hints of all ready ones say; if there are none, those that
    /// still serve while they terminate. The two lists fall back each by itself, and hints say
    /// nothing about endpoints on this node.
    #[must_use]
    pub fn choose(&self) -> EndpointChoice {
        let topology = self.topology();
        let mut cluster = self.real_servers(|it| is_ready(it) && self.is_meant(it, topology));
        if cluster.is_empty() {
            cluster = self.real_servers(is_last_resort);
        }
        let mut local = self.real_servers(|it| is_ready(it) && self.is_local(it));
        if local.is_empty() {
            local = self.real_servers(|it| is_last_resort(it) && self.is_local(it));
        }
        if local == cluster {
            local = Arc::clone(&cluster);
        }
        // Hints only ever choose among ready endpoints, of which then at least one is left.
        let exist = !cluster.is_empty();
        EndpointChoice { cluster, local, exist }
    }

    /// Hints count only if every ready endpoint has one. Otherwise their controller does not know
    /// all endpoints yet, and those it knows might get all traffic.
    fn topology(&self) -> Topology {
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

    fn real_servers(&self, is_chosen: impl Fn(&Endpoint) -> bool) -> Arc<[RealServer]> {
        let chosen = self.candidates.iter().filter(|candidate| is_chosen(candidate.endpoint));
        chosen
            .map(|candidate| RealServer {
                address: candidate.endpoint.address,
                port: candidate.port,
                weight: self.weight(candidate.endpoint),
            })
            .collect()
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

/// True if it terminates, and answers until it has ended.
fn is_last_resort(endpoint: &Endpoint) -> bool {
    endpoint.conditions.serving && endpoint.conditions.terminating
}
