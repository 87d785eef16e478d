//! Planning in ipvs mode, and what this mode alone is asked.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Planner;
use crate::actual::{Actual, ActualSet, ActualVirtualServer, ListedVirtualServer};
use crate::adoption::Unadopted;
use crate::hash::HashSet;
use crate::ipvs::compile::{Compiled, compile};
use crate::ipvs::desired::Changes;
use crate::ipvs::fragment::{Claim, ClaimClass, Fragment};
use crate::ipvs::ownership::{self, Ownership};
use crate::kernel_objects::{Entry, Frontend};
use crate::model::{Family, Protocol, ServiceName};
use crate::op::{Op, Subject};
use crate::parts::{PartLimit, next_part};
use crate::problem::Overfull;
use crate::sets::{SetId, SetKind};
use crate::store::Turn;

impl Planner {
    /// Plans a Service, or a part of it. Returns the number of operations that all of it may need.
    pub(super) fn plan_virtual_servers(
        &mut self,
        service: &ServiceName,
        turn: Turn,
        operations: usize,
        changes: &mut Changes,
    ) -> usize {
        let mut fragment = self.compile(service, |exposure, facts, settings| {
            let Compiled { fragment, problems } = compile(exposure, facts, settings);
            (fragment, problems)
        });
        let current = self.desired.fragment(service);
        // All of it counts, however small the part: it was compiled and compared.
        let size = current.into_iter().chain(&fragment).map(Fragment::size).max().unwrap_or(0);
        let limit = PartLimit { operations, up_to: turn.up_to(), behind: turn.behind() };
        if let Some(part) = next_part(current, fragment.as_ref(), limit) {
            fragment = Some(part.fragment);
            let n_parts = part.n_left + ClaimClass::COUNT;
            let turn = turn.next(part.next, part.last, 2 * n_parts);
            self.store.put_back(service.clone(), turn);
        }
        self.desired.replace(service, fragment, changes);
        size
    }

    pub(super) fn note_overfull(&mut self) -> Vec<Overfull> {
        let most = self.settings.limits.set_size;
        let mut new = Vec::new();
        for set in self.settings.families.iter().flat_map(|family| SetId::all(*family)) {
            let wanted = self.desired.n_entries(set);
            if u32::try_from(wanted).is_ok_and(|wanted| wanted <= most.entries()) {
                self.overfull.remove(&set);
            } else if self.overfull.insert(set) {
                new.push(Overfull { set, wanted, most });
            }
        }
        new
    }

    /// Takes note of a set's capacity and number of entries, as they were read.
    pub(crate) fn note_set(&mut self, set: SetId, found: Option<&ActualSet>) {
        self.set_sizes.found(set, found);
    }

    /// True if a virtual server that no Service asks for is ours, by the desired state and by what
    /// was found beside it.
    #[must_use]
    pub fn is_ours(&self, frontend: &Frontend, found: &Actual) -> bool {
        let Self { desired, settings, .. } = self;
        Ownership { desired, actual: found, settings }.is_ours(frontend)
    }

    /// Virtual servers that no Service claims and whose last ownership marker this operation
    /// removes. The operation has to wait until they are gone.
    #[must_use]
    pub fn unmarked_by(&self, op: &Op) -> Vec<Frontend> {
        let Op::RemoveEntry(set, entry) = op else { return Vec::new() };
        let mut frontends = self.marked_by(*set, entry);
        frontends.retain(|frontend| self.desired.owner(frontend).is_none());
        frontends
    }

    /// The frontends whose virtual servers this entry marks as ours.
    #[must_use]
    pub fn marked_by(&self, set: SetId, entry: &Entry) -> Vec<Frontend> {
        ownership::marked_by(set, entry, self.local_addresses())
    }

    /// The ownership markers of a virtual server, which have to be there before it is. The rules
    /// know the Service by them, too.
    pub fn markers_of(&self, frontend: &Frontend) -> impl Iterator<Item = Subject> {
        ownership::markers(frontend, self.local_addresses())
            .filter(|(set, entry)| self.desired.has_entry(*set, entry))
            .map(|(set, entry)| Subject::Entry(set, entry))
    }

    /// The internal frontend that an entry leads to, if it leads to one.
    #[must_use]
    pub fn led_to(&self, set: SetId, entry: &Entry) -> Option<Frontend> {
        let Entry::AddressPort(frontend) = entry else { return None };
        let networks = self.settings.internal_frontend_networks;
        let address = match set.kind {
            SetKind::InternalFrontend => networks.address_for(frontend.address)?,
            SetKind::LocalInternalFrontend => networks.local_address_for(frontend.address)?,
            _ => return None,
        };
        Some(Frontend { address, ..*frontend })
    }

    /// Returns the frontends of the Services that have these ones, which are at one address, that are
    /// at the same address.
    pub fn others_at(&self, frontends: &[Frontend]) -> impl Iterator<Item = Frontend> {
        let address = frontends.first().map(|frontend| frontend.address);
        let owners = frontends.iter().filter_map(|frontend| self.desired.owner(frontend));
        let owners: BTreeSet<&ServiceName> = owners.collect();
        owners.into_iter().flat_map(move |owner| {
            let claims = self.desired.fragment(owner).into_iter().flat_map(|it| &it.claims);
            let frontends = claims.map(|claim| claim.frontend);
            frontends.filter(move |it| {
                Some(it.address) == address && self.desired.owner(it) == Some(owner)
            })
        })
    }

    /// True if a Service needs an address other than those that have these frontends. One whose frontends at
    /// the address others have counts, too.
    #[must_use]
    pub fn is_needed_by_others(&self, address: IpAddr, frontends: &[Frontend]) -> bool {
        let owners = frontends.iter().filter_map(|frontend| self.desired.owner(frontend));
        let owners: BTreeSet<&ServiceName> = owners.collect();
        let n_users = usize::try_from(self.desired.n_users_of_address(address));
        n_users.is_ok_and(|n_users| n_users > owners.len())
    }

    /// True if a frontend is to be an internal frontend, to which clients are led when it is there. Its address does
    /// not tell: Services may have addresses in the same network.
    #[must_use]
    pub fn is_internal_frontend(&self, frontend: &Frontend) -> bool {
        self.desired
            .owning_claim(frontend)
            .is_some_and(|claim| claim.internal_frontend_of.is_some())
    }

    /// Returns the subjects that are to be there before clients are led to an internal frontend.
    pub fn needed_at(&self, internal_frontend: &Frontend) -> impl Iterator<Item = Subject> {
        let claim = self.desired.owning_claim(internal_frontend);
        let bound = claim.and_then(Claim::bound).map(Subject::Address);
        let route = self.settings.route_to(internal_frontend.address).map(Subject::Route);
        let entries = claim.into_iter().flat_map(|claim| &claim.entries);
        let entries = entries.map(|(set, entry)| Subject::Entry(*set, *entry));
        let local = bound.into_iter().chain(route);
        local.chain(entries).chain([Subject::VirtualServer(*internal_frontend)])
    }

    /// Desired entries that lead to an internal frontend with one of these subjects. Walks them all.
    #[must_use]
    pub fn leading_to(&self, subjects: &HashSet<Subject>) -> Vec<(SetId, Entry)> {
        let sets = self.settings.families.iter().flat_map(|family| SetId::all(*family));
        let sets = sets.filter(|set| set.kind.leads_to_internal_frontends());
        let entries =
            sets.flat_map(|set| self.desired.entries(set).map(move |entry| (set, *entry)));
        let routes: Vec<&IpNet> = { subjects.iter() }
            .filter_map(|it| if let Subject::Route(net) = it { Some(net) } else { None })
            .collect();
        let is_about = |internal_frontend: Frontend| {
            routes.iter().any(|net| net.contains(&internal_frontend.address))
                || subjects.contains(&Subject::VirtualServer(internal_frontend))
                || subjects.contains(&Subject::Address(internal_frontend.address))
        };
        let mut leading: Vec<_> =
            entries.filter(|(set, entry)| self.led_to(*set, entry).is_some_and(is_about)).collect();
        leading.sort_unstable();
        leading
    }

    /// Returns the operations that turn one virtual server into the desired one. Only for subjects
    /// of operations: an undesired virtual server is removed, whichever program made it. In another
    /// mode it takes no new connections, and goes when the old ones have ended.
    #[must_use]
    pub fn repair(&self, frontend: &Frontend, actual: Option<&ActualVirtualServer>) -> Vec<Op> {
        (self.backend.repair)(&self.desired, frontend, actual)
    }

    /// Returns what IPVS mode left, in another mode.
    #[must_use]
    pub fn left_by_ipvs(&self, beside: Actual, listed: Vec<ListedVirtualServer>) -> Unadopted {
        Unadopted::new(beside, listed, &self.settings)
    }

    /// Notes whether another mode's rules lead a family's connections. As long as they do, the
    /// family's [`rule_set`](Self::rule_set) is the part that comes before the dispatch.
    pub fn set_led_by_rules(&mut self, family: Family, is_led: bool) {
        if is_led {
            self.led_by_rules.insert(family);
        } else {
            self.led_by_rules.remove(&family);
        }
    }

    /// Returns the families whose connections another mode's rules lead.
    #[must_use]
    pub fn led_by_rules(&self) -> &BTreeSet<Family> {
        &self.led_by_rules
    }

    /// Returns the frontends of UDP and SCTP of a family, as clients see them. Walks all.
    #[must_use]
    pub fn stateless_of(&self, family: Family) -> BTreeSet<Frontend> {
        let frontends = self
            .desired
            .frontends()
            .filter(|frontend| frontend.family() == family && frontend.protocol != Protocol::Tcp);
        frontends.map(|frontend| self.as_seen_by_clients(*frontend)).collect()
    }

    /// Returns the frontend whose internal frontend this is, or itself: what clients take for the server.
    #[must_use]
    pub fn as_seen_by_clients(&self, frontend: Frontend) -> Frontend {
        let claim = self.desired.owning_claim(&frontend);
        claim.and_then(|claim| claim.internal_frontend_of).unwrap_or(frontend)
    }

    /// Returns a frontend's virtual servers: its own, and those of its internal frontends.
    pub fn virtual_servers_of(&self, frontend: Frontend) -> impl Iterator<Item = Frontend> {
        let desired = &self.desired;
        let fragment = desired.owner(&frontend).and_then(|owner| desired.fragment(owner));
        let of = fragment.into_iter().flat_map(move |fragment| {
            let internal_frontends = fragment.internal_frontends_of(&frontend);
            internal_frontends.map(|claim| claim.frontend).collect::<Vec<_>>()
        });
        [frontend].into_iter().chain(of)
    }

    /// Inserts the [`Op::GrowSet`] operations that these additions need. To be called with all
    /// operations that are about to be written, by phases. The cost is linear in their number.
    pub fn insert_growth(&self, ops: &mut Vec<Op>) {
        self.set_sizes.insert_growth(ops, self.settings.limits.set_size);
    }

    /// Takes note of an operation that was carried out.
    pub fn carried_out(&mut self, op: &Op) {
        self.set_sizes.carried_out(op);
    }
}
