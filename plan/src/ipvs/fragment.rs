//! State that one Service asks of the kernel.

use std::net::IpAddr;
use std::sync::Arc;

use crate::claimants::{ClaimKind, Origin};
use crate::kernel_objects::{Entry, Frontend, RealServer, VirtualServer};
use crate::op::Subject;
use crate::sets::{SetId, SetKind};

/// State that one Service asks of the kernel. All lists are in order and without repetition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fragment {
    /// Number of seconds that the connections of its endpoints may take to end, if it chose one.
    pub drain_deadline_seconds: Option<u32>,
    /// Its virtual servers, in the order of their frontends.
    pub claims: Vec<Claim>,
    /// Frontends of its claims that have internal frontends, in order, with each of these.
    pub internal_frontends: Box<[(Frontend, Frontend)]>,
    /// Its addresses on `kube-ipvs0`, without those of internal frontends.
    pub addresses: Vec<IpAddr>,
    /// Its set entries that belong to no virtual server of its own.
    pub entries: Vec<(SetId, Entry)>,
}

/// Order in which claims of several Services have to be made so that none has, for a moment, what
/// another one has a better reason for. Within a class, older Services come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimClass {
    kind: ClaimKind,
    origin: Origin,
}

/// A claim to a frontend, and everything that comes with it. What comes with it counts only as
/// long as the Service has the frontend: another Service's claim to it must not open, close or
/// redirect it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Frontend that is claimed.
    pub frontend: Frontend,
    /// Reason for the claim. An internal frontend is claimed for its frontend's reason.
    pub origin: Origin,
    /// Time at which the Service was made, in seconds since 1970: of two that claim the same
    /// frontend for the same reason, the older one has it. While a Service that was made anew is
    /// planned in parts, its claims differ in this.
    pub created: i64,
    /// Parameters of balancing.
    pub server: VirtualServer,
    /// Its real servers, in the order of address and port; one list for all frontends of a service
    /// port that have the same. While there are none, there is no virtual server.
    pub real_servers: Arc<[RealServer]>,
    /// Set entries about it, in order.
    pub entries: Box<[(SetId, Entry)]>,
    /// The frontend whose internal frontend this is. The cluster's own clients, or on the fast path all, are led
    /// here as long as both frontends belong to the Service.
    pub internal_frontend_of: Option<Frontend>,
    pub kind: ClaimKind,
}

impl Fragment {
    /// A fragment of these claims, in the order of their frontends, and of what comes in any order
    /// besides.
    pub(crate) fn new(
        drain_deadline_seconds: Option<u32>,
        claims: Vec<Claim>,
        mut addresses: Vec<IpAddr>,
        mut entries: Vec<(SetId, Entry)>,
    ) -> Self {
        let with_frontend = |claim: &Claim| Some((claim.internal_frontend_of?, claim.frontend));
        let mut internal_frontends: Vec<_> = claims.iter().filter_map(with_frontend).collect();
        internal_frontends.sort_unstable();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.shrink_to_fit();
        entries.sort_unstable();
        entries.dedup();
        entries.shrink_to_fit();
        Self {
            drain_deadline_seconds,
            claims,
            internal_frontends: internal_frontends.into(),
            addresses,
            entries,
        }
    }

    /// The claim to a frontend.
    #[must_use]
    pub fn claim(&self, frontend: &Frontend) -> Option<&Claim> {
        let at = self.claims.binary_search_by_key(frontend, |claim| claim.frontend).ok()?;
        self.claims.get(at)
    }

    /// The claims to the internal frontends of a frontend.
    pub fn internal_frontends_of(&self, frontend: &Frontend) -> impl Iterator<Item = &Claim> {
        let from = self.internal_frontends.partition_point(|(of, _)| of < frontend);
        let at_most = self.internal_frontends.get(from..).unwrap_or_default().iter();
        let found = at_most.take_while(move |(of, _)| of == frontend);
        found.filter_map(|(_, internal_frontend)| self.claim(internal_frontend))
    }

    /// Returns the approximate number of operations that it takes to make all of it.
    #[must_use]
    pub fn size(&self) -> usize {
        let of_claims = self.claims.iter().map(Claim::size).sum::<usize>();
        self.addresses.len() + self.entries.len() + of_claims
    }

    /// Everything that is asked for here.
    pub fn subjects(&self) -> impl Iterator<Item = Subject> {
        let of_claims = self.claims.iter().flat_map(|claim| {
            let entries = claim.entries.iter().copied().chain(claim.leading_entry());
            let entries = entries.map(|(set, entry)| Subject::Entry(set, entry));
            let bound = claim.bound().map(Subject::Address);
            entries.chain(bound).chain([Subject::VirtualServer(claim.frontend)])
        });
        let entries = self.entries.iter().map(|(set, entry)| Subject::Entry(*set, *entry));
        let addresses = self.addresses.iter().copied().map(Subject::Address);
        of_claims.chain(entries).chain(addresses)
    }
}

impl ClaimClass {
    pub(crate) const FIRST: Self =
        Self { origin: Origin::ClusterAddress, kind: ClaimKind::Frontend };
    pub(crate) const LAST: Self =
        Self { origin: Origin::External, kind: ClaimKind::LocalInternalFrontend };
    /// Upper bound of the number of classes.
    pub(crate) const COUNT: usize = 16;

    /// The class of claims for a reason, but for those to internal frontends.
    pub(crate) const fn of_origin(origin: Origin) -> Self {
        Self { origin, kind: ClaimKind::Frontend }
    }
}

impl Claim {
    pub(crate) fn class(&self) -> ClaimClass {
        ClaimClass { origin: self.origin, kind: self.kind }
    }

    /// Returns the approximate number of operations that it takes to make it.
    pub(crate) fn size(&self) -> usize {
        1 + self.entries.len() + self.real_servers.len()
    }

    /// The entry that leads clients to an internal frontend.
    #[must_use]
    pub fn leading_entry(&self) -> Option<(SetId, Entry)> {
        let frontend = self.internal_frontend_of?;
        let kind = match self.kind {
            ClaimKind::LocalInternalFrontend => SetKind::LocalInternalFrontend,
            _ => SetKind::InternalFrontend,
        };
        Some((SetId { kind, family: frontend.family() }, Entry::AddressPort(frontend)))
    }

    /// The address that is on `kube-ipvs0` while the Service has this: an internal frontend's, unless a
    /// route makes it local.
    #[must_use]
    pub fn bound(&self) -> Option<IpAddr> {
        self.internal_frontend_of?;
        let address = self.frontend.address;
        let set = SetId { kind: SetKind::IpvsAddresses, family: self.frontend.family() };
        self.entries.binary_search(&(set, Entry::Address(address))).is_ok().then_some(address)
    }
}
