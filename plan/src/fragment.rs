//! What one Service asks of the kernel.

use std::net::IpAddr;
use std::sync::Arc;

use crate::kernel::{Entry, Frontend, RealServer, VirtualServer};
use crate::op::{Op, Subject};
use crate::sets::{SetId, SetKind};

/// What one Service asks of the kernel. All lists are in order and without repetition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fragment {
    /// When the Service was made, in seconds since 1970: of two that claim the same frontend for
    /// the same reason, the older one has it.
    pub created: i64,
    /// How many seconds the connections of its endpoints may take to end, if it chose that.
    pub drain_seconds: Option<u32>,
    /// Its virtual servers, in the order of their frontends.
    pub claims: Vec<Claim>,
    /// Its addresses on `kube-ipvs0`.
    pub addresses: Vec<IpAddr>,
    /// Its set entries that belong to no virtual server of its own.
    pub entries: Vec<(SetId, Entry)>,
}

/// Reason for which a Service claims a frontend. The first ones win, however old the claims are:
/// otherwise a Service could take, for good, what the API server gives to another one later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Its cluster address, which the API server gives to no other Service.
    ClusterAddress,
    /// Its node port, which the API server gives to no other Service.
    NodePort,
    /// An address in its status, which a load balancer's controller writes.
    LoadBalancer,
    /// One of `spec.externalIPs`, which its author writes.
    External,
}

/// A claim to a frontend, and everything that comes with it. What comes with it counts only as
/// long as the Service has the frontend: another Service's claim to it must not open, close or
/// redirect it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// What is claimed.
    pub frontend: Frontend,
    /// Why. A twin is claimed for its frontend's reason.
    pub origin: Origin,
    /// How it balances.
    pub server: VirtualServer,
    /// Its real servers, in the order of address and port; one list for all frontends of a service
    /// port that have the same. While there are none, there is no virtual server.
    pub real_servers: Arc<[RealServer]>,
    /// Set entries about it, in order.
    pub entries: Box<[(SetId, Entry)]>,
    /// The frontend whose twin this is, for the cluster's own clients. They are led here as long as
    /// both frontends belong to the Service.
    pub twin_of: Option<Frontend>,
}

// === impl Fragment ===

impl Fragment {
    /// The claim to a frontend.
    #[must_use]
    pub fn claim(&self, frontend: &Frontend) -> Option<&Claim> {
        let at = self.claims.binary_search_by_key(frontend, |claim| claim.frontend).ok()?;
        self.claims.get(at)
    }

    /// The claim to the twin of a frontend.
    #[must_use]
    pub fn twin(&self, frontend: &Frontend) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.twin_of.as_ref() == Some(frontend))
    }

    /// How many operations it takes to make all of it, about.
    #[must_use]
    pub fn size(&self) -> usize {
        let claims = self.claims.iter();
        let of_claims = claims.map(|claim| 1 + claim.entries.len() + claim.real_servers.len());
        self.addresses.len() + self.entries.len() + of_claims.sum::<usize>()
    }

    /// Whether an operation is about something that is asked for here.
    #[must_use]
    pub fn concerns(&self, op: &Op) -> bool {
        match op.subject() {
            Subject::VirtualServer(frontend) => self.claim(&frontend).is_some(),
            Subject::Address(address) => self.addresses.binary_search(&address).is_ok(),
            Subject::Entry(set, entry) => {
                self.entries.binary_search(&(set, entry)).is_ok()
                    || self.claims.iter().any(|claim| {
                        claim.entries.binary_search(&(set, entry)).is_ok()
                            || claim.short_circuit() == Some((set, entry))
                    })
            }
            Subject::Link | Subject::Set(_) | Subject::Layer(_) | Subject::Route(_) => false,
        }
    }
}

// === impl Claim ===

impl Claim {
    /// The entry that leads the cluster's own clients to a twin.
    #[must_use]
    pub fn short_circuit(&self) -> Option<(SetId, Entry)> {
        let frontend = self.twin_of?;
        let set = SetId { kind: SetKind::ShortCircuit, family: frontend.family() };
        Some((set, Entry::AddressPort(frontend)))
    }
}
