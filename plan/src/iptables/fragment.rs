//! Chains and rules that one Service asks for.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::chains::ChainId;
use crate::claimants::Origin;
use crate::kernel_objects::Frontend;

/// Chains and rules that one Service asks for. All lists are in order and without repetition.
///
/// A rule is the text that `iptables-save` 1.8 prints for it, without `-A` and the chain's name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChainFragment {
    /// Its own chains, by their names.
    pub chains: Vec<OwnChain>,
    /// Its frontends.
    pub claims: Vec<RuleClaim>,
    /// Its rules in shared chains that are about no frontend.
    pub rules: Vec<SharedRule>,
}

/// A chain of one Service, with all of its rules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnChain {
    /// The chain.
    pub id: ChainId,
    /// Its rules, in their order.
    pub rules: Arc<[Box<str>]>,
}

/// A rule of one Service in a shared chain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedRule {
    /// The shared chain.
    pub chain: ChainId,
    /// The rule.
    pub text: Box<str>,
}

/// A claim to a frontend, with the rules that are there as long as the Service has the frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleClaim {
    /// Frontend that is claimed. That of a node port has the family's unspecified address.
    pub frontend: Frontend,
    /// Reason for the claim, the best if there are several.
    pub origin: Origin,
    /// Time at which the Service was made, in seconds since 1970.
    pub created: i64,
    /// Its rules in shared chains.
    pub rules: Box<[SharedRule]>,
    /// Endpoints that a flow to the frontend may lead to; none for TCP, whose connections end by
    /// themselves.
    pub targets: Arc<[SocketAddr]>,
}

impl ChainFragment {
    /// Returns the number of rules, and of chains that they are in.
    #[must_use]
    pub fn size(&self) -> usize {
        let of_chains = self.chains.iter().map(|chain| 1 + chain.rules.len()).sum::<usize>();
        let of_claims = self.claims.iter().map(|claim| claim.rules.len()).sum::<usize>();
        of_chains + of_claims + self.rules.len()
    }
}
