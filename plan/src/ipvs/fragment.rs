//! State that one Service asks of the kernel.

use std::net::IpAddr;
use std::sync::Arc;

use crate::claimants::Origin;
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
    /// Frontends of its claims, in order, each with its short circuits', of which there may be two.
    pub short_circuits: Box<[(Frontend, Frontend)]>,
    /// Its addresses on `kube-ipvs0`, without those of short circuits.
    pub addresses: Vec<IpAddr>,
    /// Its set entries that belong to no virtual server of its own.
    pub entries: Vec<(SetId, Entry)>,
}

/// Order in which claims of several Services have to be made so that none has, for a moment, what
/// another one has a better reason for. Within a class, older Services come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimClass {
    origin: Origin,
    is_short_circuit: bool,
    /// A spare short circuit counts or not by who has the first one.
    is_spare: bool,
}

/// A claim to a frontend, and everything that comes with it. What comes with it counts only as
/// long as the Service has the frontend: another Service's claim to it must not open, close or
/// redirect it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Frontend that is claimed.
    pub frontend: Frontend,
    /// Reason for the claim. A short circuit is claimed for its frontend's reason.
    pub origin: Origin,
    /// Time at which the Service was made, in seconds since 1970: of two that claim the same
    /// frontend for the same reason, the older one has it. While a Service that was made anew is
    /// planned in parts, its claims differ in this.
    pub created: i64,
    /// True for a short circuit in the spare network. If the frontend has a first short circuit,
    /// the spare one counts only as long as another Service has the first one.
    pub is_spare: bool,
    /// Parameters of balancing.
    pub server: VirtualServer,
    /// Its real servers, in the order of address and port; one list for all frontends of a service
    /// port that have the same. While there are none, there is no virtual server.
    pub real_servers: Arc<[RealServer]>,
    /// Set entries about it, in order.
    pub entries: Box<[(SetId, Entry)]>,
    /// The frontend whose short circuit this is, for the cluster's own clients. They are led here
    /// as long as both frontends belong to the Service.
    pub short_circuit_of: Option<Frontend>,
}

// === impl Fragment ===

impl Fragment {
    /// A fragment of these claims, in the order of their frontends, and of what comes in any order
    /// besides.
    pub(crate) fn new(
        drain_deadline_seconds: Option<u32>,
        claims: Vec<Claim>,
        mut addresses: Vec<IpAddr>,
        mut entries: Vec<(SetId, Entry)>,
    ) -> Self {
        let with_frontend = |claim: &Claim| Some((claim.short_circuit_of?, claim.frontend));
        let mut short_circuits: Vec<_> = claims.iter().filter_map(with_frontend).collect();
        short_circuits.sort_unstable();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.shrink_to_fit();
        entries.sort_unstable();
        entries.dedup();
        entries.shrink_to_fit();
        Self {
            drain_deadline_seconds,
            claims,
            short_circuits: short_circuits.into(),
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

    /// The claims to the short circuits of a frontend: none, one, or the first and the spare one.
    pub fn short_circuits(&self, frontend: Frontend) -> impl Iterator<Item = &Claim> {
        let start = self.short_circuits.partition_point(|(other, _)| *other < frontend);
        let short_circuits = self.short_circuits.iter().skip(start);
        let short_circuits = short_circuits.take_while(move |(other, _)| *other == frontend);
        short_circuits.filter_map(|(_, short_circuit)| self.claim(short_circuit))
    }

    /// The claims to the spare short circuit of the frontend whose first short circuit this is.
    pub fn spares_of<'a>(&'a self, first: &Claim) -> impl Iterator<Item = &'a Claim> + use<'a> {
        let frontend = first.short_circuit_of.filter(|_| !first.is_spare);
        let short_circuits =
            frontend.into_iter().flat_map(|frontend| self.short_circuits(frontend));
        short_circuits.filter(|short_circuit| short_circuit.is_spare)
    }

    /// Returns the approximate number of operations that it takes to make all of it.
    #[must_use]
    pub fn size(&self) -> usize {
        let claims = self.claims.iter().filter(|claim| !claim.is_spare);
        let of_claims = claims.map(Claim::size).sum::<usize>();
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

// === impl ClaimClass ===

impl ClaimClass {
    pub(crate) const FIRST: Self =
        Self { origin: Origin::ClusterAddress, is_short_circuit: false, is_spare: false };
    pub(crate) const LAST: Self =
        Self { origin: Origin::External, is_short_circuit: true, is_spare: true };
    /// Upper bound of the number of classes.
    pub(crate) const COUNT: usize = 12;

    /// The class of claims for a reason, but for those to short circuits.
    pub(crate) const fn of_origin(origin: Origin) -> Self {
        Self { origin, is_short_circuit: false, is_spare: false }
    }
}

// === impl Claim ===

impl Claim {
    pub(crate) fn class(&self) -> ClaimClass {
        let is_short_circuit = self.short_circuit_of.is_some();
        ClaimClass { origin: self.origin, is_short_circuit, is_spare: self.is_spare }
    }

    /// Returns the approximate number of operations that it takes to make it.
    pub(crate) fn size(&self) -> usize {
        1 + self.entries.len() + self.real_servers.len()
    }

    /// The entry that leads the cluster's own clients to a short circuit.
    #[must_use]
    pub fn leading_entry(&self) -> Option<(SetId, Entry)> {
        let frontend = self.short_circuit_of?;
        let kind = if self.is_spare { SetKind::SpareShortCircuit } else { SetKind::ShortCircuit };
        Some((SetId { kind, family: frontend.family() }, Entry::AddressPort(frontend)))
    }

    /// The address that is on `kube-ipvs0` while the Service has this: a short circuit's, unless a
    /// route makes it local.
    #[must_use]
    pub fn bound(&self) -> Option<IpAddr> {
        self.short_circuit_of?;
        let address = self.frontend.address;
        let set = SetId { kind: SetKind::IpvsAddresses, family: self.frontend.family() };
        self.entries.binary_search(&(set, Entry::Address(address))).is_ok().then_some(address)
    }
}
