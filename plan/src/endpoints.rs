//! Which endpoints a frontend may use.

mod selection;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::net::IpAddr;

use crate::model::{Conditions, Endpoint, EndpointSlice, Family, ServicePort};

pub use selection::{EndpointChoice, Selection};

/// An endpoint of one service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The port it listens on.
    pub port: u16,
    /// Everything else about it.
    pub endpoint: &'a Endpoint,
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

fn goodness(conditions: Conditions) -> (bool, bool, bool) {
    (!conditions.terminating, conditions.ready, conditions.serving)
}
