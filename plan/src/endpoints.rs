//! Endpoints that a frontend may use.

mod selection;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::net::SocketAddr;

use crate::hash::HashMap;
use crate::model::{Conditions, Endpoint, EndpointSlice, Family, Protocol, ServicePort};

pub use selection::{Decision, EndpointChoice, Selection, Topology};

/// An endpoint of one service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The port it listens on.
    pub port: u16,
    /// Everything else about it.
    pub endpoint: &'a Endpoint,
}

/// The endpoints of a Service in one family, by what its ports match them by.
#[derive(Debug)]
pub struct EndpointsByPort<'a> {
    family: Family,
    /// In the order of slices.
    endpoints: HashMap<(&'a str, Protocol), Vec<Listening<'a>>>,
}

/// A port, and the endpoints of one slice that listen on it.
type Listening<'a> = (u16, &'a [Endpoint]);

impl<'a> EndpointsByPort<'a> {
    /// Those of these slices.
    #[must_use]
    pub fn new(family: Family, slices: &[&'a EndpointSlice]) -> Self {
        let mut endpoints: HashMap<_, Vec<Listening<'_>>> = HashMap::default();
        for slice in slices.iter().filter(|slice| slice.family == family) {
            for port in &slice.ports {
                let same = endpoints.entry((&*port.name, port.protocol)).or_default();
                same.push((port.port.get(), &*slice.endpoints));
            }
        }
        Self { family, endpoints }
    }

    /// Number of endpoints of a service port, each as often as it occurs.
    #[must_use]
    pub fn count(&self, port: &'a ServicePort) -> usize {
        let matching = self.endpoints.get(&(&*port.name, port.protocol)).into_iter().flatten();
        matching.map(|(_, endpoints)| endpoints.len()).sum()
    }

    /// All endpoints of a service port, ready or not, in the order of address and port.
    ///
    /// A slice's port is matched by name and protocol. Where several slices have the same address
    /// and port, which happens while an endpoint moves between them, the better one counts: not
    /// terminating before terminating, then ready, then serving, then the earlier slice.
    #[must_use]
    pub fn candidates(&self, port: &'a ServicePort) -> Vec<Candidate<'a>> {
        let matching = self.endpoints.get(&(&*port.name, port.protocol)).into_iter().flatten();
        let mut candidates: Vec<Candidate<'a>> = matching
            .flat_map(|(port, endpoints)| {
                endpoints.iter().map(|endpoint| Candidate { port: *port, endpoint })
            })
            .filter(|candidate| Family::of(candidate.endpoint.address) == self.family)
            .collect();
        candidates.sort_by_key(|candidate| {
            (candidate.socket(), Reverse(goodness(candidate.endpoint.conditions)))
        });
        candidates.dedup_by_key(|candidate| candidate.socket());
        candidates
    }

    /// Number of the endpoints of a port, without looking at each: one in two slices counts twice.
    #[must_use]
    pub fn number(&self, port: &ServicePort) -> usize {
        let matching = self.endpoints.get(&(&*port.name, port.protocol)).into_iter().flatten();
        matching.map(|(_, endpoints)| endpoints.len()).sum()
    }
}

impl Candidate<'_> {
    /// Its address and port.
    #[must_use]
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.endpoint.address, self.port)
    }
}

fn goodness(conditions: Conditions) -> (bool, bool, bool) {
    (!conditions.terminating, conditions.ready, conditions.serving)
}
