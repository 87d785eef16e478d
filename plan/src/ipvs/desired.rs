//! Desired kernel state: every Service's fragment, with what they share counted.
//!
//! An address or a set entry is there as long as one Service needs it. A frontend belongs to one of
//! the Services that claim it ([`claimants`](crate::claimants)), and when that one goes, the next
//! one takes over the same virtual server without a gap.

mod changes;
mod counted;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::claimants::{ClaimRank, Claimants, Claimed, Withdrawn};
use crate::hash::HashMap;
use crate::ipvs::fragment::{Claim, Fragment};
use crate::kernel_objects::{Entry, Frontend, RealServer};
use crate::model::ServiceName;
use crate::op::Op;
use crate::problem::Problem;
use crate::sets::SetId;
use crate::virtual_server::DesiredFrontend;
pub(crate) use changes::Changes;
use counted::Counted;

/// Desired kernel state.
#[derive(Debug, Default)]
pub struct Desired {
    fragments: HashMap<ServiceName, Fragment>,
    claimants: Claimants,
    addresses: Counted<IpAddr>,
    entries: Entries,
    n_open: usize,
    n_real_servers: usize,
    seed: u64,
}

/// Changes that follow from replacing fragments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// The difference, in no particular order of phases, always the same for the same difference.
    pub ops: Vec<Op>,
    /// Services that now wait for other frontends than before, or behind another Service.
    pub contenders: BTreeSet<ServiceName>,
    /// The frontends whose UDP and SCTP flows may lead nowhere now, as clients see them.
    pub flows: BTreeSet<Frontend>,
    /// The frontends that belonged to another Service before, or to one that has given them up, each
    /// with that Service.
    pub given_up: Vec<(Frontend, ServiceName)>,
    /// Number of virtual servers before and after, of those that changed, and of their real
    /// servers.
    before: Count,
    after: Count,
}

/// A number of virtual servers, and of their real servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Count {
    open: usize,
    real_servers: usize,
}

/// Set entries and address that a Service has by owning a frontend.
#[derive(Debug, Default)]
struct Held {
    entries: Vec<(SetId, Entry)>,
    address: Option<IpAddr>,
}

type Entries = BTreeMap<SetId, Counted<Entry>>;

impl Desired {
    /// Nothing, on a node with this number: see [`order::seed`](crate::order::seed).
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Difference to what there was before these changes. All of them are one: what one Service
    /// gives up and another takes on stays as it is.
    pub(crate) fn finish(&mut self, changes: Changes) -> Change {
        let change = changes.finish(self);
        self.n_open = self.n_open + change.after.open - change.before.open;
        self.n_real_servers += change.after.real_servers;
        self.n_real_servers -= change.before.real_servers;
        change
    }

    /// Returns the desired state of a frontend.
    #[must_use]
    pub fn at(&self, frontend: &Frontend) -> DesiredFrontend<'_> {
        changes::desired_frontend(self.owning_claim(frontend).map(|c| (&c.server, &c.real_servers)))
    }

    /// Returns the sockets that a flow to a frontend, as clients see it, may lead to: its real
    /// servers and those of its internal frontends. None: no Service has the frontend.
    #[must_use]
    pub fn flow_targets(&self, frontend: &Frontend) -> Option<impl Iterator<Item = SocketAddr>> {
        let owner = self.claimants.owner(frontend)?;
        let fragment = self.fragments.get(owner)?;
        let internal_frontends = fragment.internal_frontends_of(frontend);
        let claims = fragment.claim(frontend).into_iter().chain(internal_frontends);
        Some(claims.flat_map(|claim| claim.real_servers.iter()).map(RealServer::socket))
    }

    /// Returns the number of seconds that the connections of a frontend's endpoints may take to
    /// end, if its Service chose one.
    #[must_use]
    pub fn drain_deadline_seconds(&self, frontend: &Frontend) -> Option<u32> {
        self.fragments.get(self.claimants.owner(frontend)?)?.drain_deadline_seconds
    }

    /// The Service that a frontend belongs to.
    #[must_use]
    pub fn owner(&self, frontend: &Frontend) -> Option<&ServiceName> {
        self.claimants.owner(frontend)
    }

    /// Number of Services and frontends that need an address.
    pub(crate) fn n_users_of_address(&self, address: IpAddr) -> u32 {
        self.addresses.count(&address)
    }

    /// True if `kube-ipvs0` should have this address.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// True if a set should have this entry.
    #[must_use]
    pub fn has_entry(&self, set: SetId, entry: &Entry) -> bool {
        self.entries.get(&set).is_some_and(|entries| entries.contains(entry))
    }

    /// Returns the state that a Service asks for.
    #[must_use]
    pub fn fragment(&self, service: &ServiceName) -> Option<&Fragment> {
        self.fragments.get(service)
    }

    /// All frontends that a Service owns, with and without endpoints, in no order.
    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.claimants.frontends()
    }

    /// All addresses of `kube-ipvs0`, in no order.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().copied()
    }

    /// All entries of a set, in no order.
    pub fn entries(&self, set: SetId) -> impl Iterator<Item = &Entry> {
        self.entries.get(&set).into_iter().flat_map(Counted::iter)
    }

    /// Returns the number of virtual servers that there should be.
    #[must_use]
    pub fn n_virtual_servers(&self) -> usize {
        self.n_open
    }

    /// Returns the number of real servers that the virtual servers should have.
    #[must_use]
    pub fn n_real_servers(&self) -> usize {
        self.n_real_servers
    }

    /// Returns the number of addresses that `kube-ipvs0` should have.
    #[must_use]
    pub fn n_addresses(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the number of entries that a set should have.
    #[must_use]
    pub fn n_entries(&self, set: SetId) -> usize {
        self.entries.get(&set).map_or(0, Counted::len)
    }

    /// Returns a problem for each frontend that a Service claims and one before it has, in the
    /// order of frontends.
    ///
    /// Each problem names the Service right before this one, which waits too if there are several.
    /// So a new owner is news to the former one alone, however many others wait.
    pub fn taken_from<'a>(&'a self, service: &'a ServiceName) -> impl Iterator<Item = Problem> {
        self.missed(service).filter_map(move |claim| {
            let frontend = claim.frontend;
            let rank = self.rank(service, &frontend)?;
            let owner = self.claimants.before(&frontend, &rank)?.clone();
            Some(match claim.internal_frontend_of {
                None => Problem::FrontendTaken { frontend, owner },
                Some(of) => Problem::InternalFrontendTaken {
                    frontend: of,
                    internal_frontend: frontend,
                    owner,
                },
            })
        })
    }

    /// Number of frontends that a Service claims and one before it has.
    #[must_use]
    pub fn n_taken_from(&self, service: &ServiceName) -> usize {
        self.missed(service).count()
    }

    /// The claims of a Service that others have before it, but for those to what would only be faster.
    fn missed<'a>(&'a self, service: &'a ServiceName) -> impl Iterator<Item = &'a Claim> {
        let fragment = self.fragments.get(service);
        let lacking = self.claimants.lacked_by(service);
        let claims = lacking.filter_map(move |frontend| fragment?.claim(frontend));
        claims.filter(|claim| claim.kind.is_promised())
    }

    /// The claim by which a Service has a frontend.
    #[must_use]
    pub fn owning_claim(&self, frontend: &Frontend) -> Option<&Claim> {
        self.fragments.get(self.claimants.owner(frontend)?)?.claim(frontend)
    }

    /// Puts a fragment in the place of the one that the Service had. None: the Service is gone.
    /// The indexes are complete again after [`finish`](Self::finish).
    pub(crate) fn replace(
        &mut self,
        service: &ServiceName,
        fragment: Option<Fragment>,
        changes: &mut Changes,
    ) {
        let different = different_claims(self.fragments.get(service), fragment.as_ref());
        for frontend in &different {
            changes.before_frontend(self, *frontend);
        }
        let former = self.fragments.remove(service).unwrap_or_default();
        for claim in different.iter().filter_map(|frontend| former.claim(frontend)) {
            let held = self.held(service, &former, claim);
            self.withdraw(&claim.frontend, &rank_of(service, claim), &held, changes);
        }
        let empty = Fragment::default();
        let (gone, new) = (&former, fragment.as_ref().unwrap_or(&empty));
        for address in only_in_second(&new.addresses, &gone.addresses) {
            changes.unbind(&mut self.addresses, *address);
        }
        for address in only_in_second(&gone.addresses, &new.addresses) {
            changes.bind(&mut self.addresses, *address);
        }
        changes.uncount(&mut self.entries, only_in_second(&new.entries, &gone.entries));
        changes.count(&mut self.entries, only_in_second(&gone.entries, &new.entries));
        if let Some(fragment) = fragment {
            self.fragments.insert(service.clone(), fragment);
            for frontend in &different {
                self.claim(service, frontend, changes);
            }
        }
    }

    /// Gives up a claim, and what was held by it, if it was.
    fn withdraw(
        &mut self,
        frontend: &Frontend,
        rank: &ClaimRank,
        held: &Held,
        changes: &mut Changes,
    ) {
        let outcome = self.claimants.withdraw(frontend, rank, &mut changes.contenders);
        let Withdrawn::Owned { next } = outcome else { return };
        self.release(held, changes);
        if let Some(next) = next {
            self.hold(frontend, &next, changes);
        }
    }

    /// Makes the claim to a frontend that a Service's fragment has, if it has one.
    fn claim(&mut self, service: &ServiceName, frontend: &Frontend, changes: &mut Changes) {
        let Some(fragment) = self.fragments.get(service) else { return };
        let Some(claim) = fragment.claim(frontend) else { return };
        let rank = rank_of(service, claim);
        let owner = self.claimants.owner(frontend).and_then(|owner| self.rank(owner, frontend));
        match self.claimants.claim(*frontend, rank, owner, &mut changes.contenders) {
            Claimed::Waits => {}
            Claimed::Free => self.hold(frontend, service, changes),
            Claimed::From(former) => {
                self.release(&self.held_by(&former, frontend), changes);
                self.hold(frontend, service, changes);
            }
        }
    }

    /// Counts what a Service has by a frontend that has come to it.
    fn hold(&mut self, frontend: &Frontend, service: &ServiceName, changes: &mut Changes) {
        let held = self.held_by(service, frontend);
        changes.count(&mut self.entries, held.entries.iter());
        if let Some(address) = held.address {
            changes.bind(&mut self.addresses, address);
        }
    }

    fn release(&mut self, held: &Held, changes: &mut Changes) {
        changes.uncount(&mut self.entries, held.entries.iter());
        if let Some(address) = held.address {
            changes.unbind(&mut self.addresses, address);
        }
    }

    fn held_by(&self, service: &ServiceName, frontend: &Frontend) -> Held {
        let claim = self.fragments.get(service).and_then(|f| Some((f, f.claim(frontend)?)));
        claim.map_or_else(Held::default, |(fragment, claim)| self.held(service, fragment, claim))
    }

    /// Returns what a Service has by owning what it claims here: the claim's entries, an internal
    /// frontend's address, and the entries that lead from a frontend to an internal frontend, which take owning both.
    fn held(&self, service: &ServiceName, fragment: &Fragment, claim: &Claim) -> Held {
        let owns = |frontend: &Frontend| self.claimants.owner(frontend) == Some(service);
        let mut entries = claim.entries.to_vec();
        if claim.internal_frontend_of.as_ref().is_some_and(owns) {
            entries.extend(claim.leading_entry());
        }
        let internal_frontends = fragment.internal_frontends_of(&claim.frontend);
        let owned =
            internal_frontends.filter(|internal_frontend| owns(&internal_frontend.frontend));
        entries.extend(owned.filter_map(Claim::leading_entry));
        Held { entries, address: claim.bound() }
    }

    fn rank(&self, service: &ServiceName, frontend: &Frontend) -> Option<ClaimRank> {
        let fragment = self.fragments.get(service)?;
        fragment.claim(frontend).map(|claim| rank_of(service, claim))
    }
}

fn rank_of(service: &ServiceName, claim: &Claim) -> ClaimRank {
    ClaimRank {
        origin: claim.origin,
        kind: claim.kind,
        created: claim.created,
        service: service.clone(),
    }
}

/// The frontends that only one of two fragments claims, or that they claim differently.
fn different_claims(former: Option<&Fragment>, new: Option<&Fragment>) -> Vec<Frontend> {
    let claims = |fragment: Option<&'_ Fragment>| fragment.map_or(0, |f| f.claims.len());
    let mut different = Vec::with_capacity(claims(former).max(claims(new)));
    for claim in former.into_iter().flat_map(|f| &f.claims) {
        if new.and_then(|f| f.claim(&claim.frontend)) != Some(claim) {
            different.push(claim.frontend);
        }
    }
    for claim in new.into_iter().flat_map(|f| &f.claims) {
        if former.and_then(|f| f.claim(&claim.frontend)).is_none() {
            different.push(claim.frontend);
        }
    }
    different
}

/// Returns the items that only the second of two lists has, both in order.
pub(crate) fn only_in_second<'a, T: Ord>(
    first: &'a [T],
    second: &'a [T],
) -> impl Iterator<Item = &'a T> {
    second.iter().filter(|item| first.binary_search(item).is_err())
}
