//! What one Service asks of the kernel.

use std::net::IpAddr;
use std::sync::Arc;

use crate::kernel::{Entry, Frontend, RealServer, VirtualServer};
use crate::op::{Op, Subject};
use crate::sets::SetId;

/// What one Service asks of the kernel. All lists are in order and without repetition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fragment {
    /// When the Service was made, in seconds since 1970: the older one of two that claim the same
    /// frontend has it.
    pub created: i64,
    /// Its virtual servers, in the order of their frontends.
    pub claims: Vec<Claim>,
    /// Its addresses on `kube-ipvs0`.
    pub addresses: Vec<IpAddr>,
    /// Its set entries that belong to no virtual server of its own.
    pub entries: Vec<(SetId, Entry)>,
}

/// A claim to a frontend, and everything that comes with it. What comes with it counts only as
/// long as the claim is the oldest: another Service's claim to the same frontend must not open,
/// close or redirect it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// What is claimed.
    pub frontend: Frontend,
    /// How it balances.
    pub server: VirtualServer,
    /// Its real servers, in the order of address and port; one list for all frontends of a service
    /// port that have the same.
    pub real_servers: Arc<[RealServer]>,
    /// Set entries about it, in order.
    pub entries: Vec<(SetId, Entry)>,
}

// === impl Fragment ===

impl Fragment {
    /// The claim to a frontend.
    #[must_use]
    pub fn claim(&self, frontend: &Frontend) -> Option<&Claim> {
        let at = self.claims.binary_search_by_key(frontend, |claim| claim.frontend).ok()?;
        self.claims.get(at)
    }

    /// Whether an operation is about something that is asked for here.
    #[must_use]
    pub fn concerns(&self, op: &Op) -> bool {
        match op.subject() {
            Subject::VirtualServer(frontend) => self.claim(&frontend).is_some(),
            Subject::Address(address) => self.addresses.binary_search(&address).is_ok(),
            Subject::Entry(set, entry) => {
                self.entries.binary_search(&(set, entry)).is_ok()
                    || self.claims.iter().any(|c| c.entries.binary_search(&(set, entry)).is_ok())
            }
            Subject::Link | Subject::Set(_) | Subject::Layer(_) => false,
        }
    }
}
