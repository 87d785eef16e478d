//! The internal frontends of one Service's frontends: see
//! [`InternalFrontendNetworks`](crate::settings::InternalFrontendNetworks).

use std::sync::Arc;

use super::claims::Served;
use super::{Compiler, set};
use crate::claimants::{ClaimKind, Origin};
use crate::endpoints::EndpointChoice;
use crate::exposure::{Addresses, PortExposure};
use crate::kernel_objects::{Entry, Frontend, RealServer};
use crate::model::Family;
use crate::problem::Problem;
use crate::sets::SetKind;

/// Internal frontends that a frontend is to have, each with its real servers: none without any, since everybody is refused at
/// the frontend itself then.
pub(super) type Needed<'e> = [Option<(ClaimKind, &'e Arc<[RealServer]>)>; 2];

/// An internal frontend that a frontend is to have.
pub(super) struct NeededInternalFrontend {
    origin: Origin,
    /// The index of the service port that claims it.
    index: usize,
    real_servers: Arc<[RealServer]>,
    /// True if the source ranges count.
    is_restricted: bool,
}

impl Compiler<'_> {
    /// Returns what a cluster address needs, which has these real servers.
    pub(super) fn needed_at_cluster_address<'e>(
        &self,
        real_servers: &'e Arc<[RealServer]>,
    ) -> Needed<'e> {
        let is_needed = self.is_on_fast_path() && !real_servers.is_empty();
        [is_needed.then_some((ClaimKind::FasterInternalFrontend, real_servers)), None]
    }

    /// Returns what a frontend for clients outside the cluster needs.
    pub(super) fn needed_outside<'e>(&self, choice: &'e EndpointChoice) -> Needed<'e> {
        let some = |kind, real_servers: &'e Arc<[RealServer]>| {
            (!real_servers.is_empty()).then_some((kind, real_servers))
        };
        match (self.service.is_external_policy_local(), self.is_on_fast_path()) {
            (false, false) => [None, None],
            (false, true) => [some(ClaimKind::FasterInternalFrontend, &choice.cluster), None],
            (true, false) => [some(ClaimKind::PromisedInternalFrontend, &choice.cluster), None],
            (true, true) => [
                some(ClaimKind::PromisedInternalFrontend, &choice.cluster),
                some(ClaimKind::LocalInternalFrontend, &choice.local),
            ],
        }
    }

    /// Takes note of the internal frontends that a frontend is to have.
    pub(super) fn note_internal_frontends(
        &mut self,
        origin: Origin,
        port: &PortExposure<'_>,
        frontend: Frontend,
        needed: &Needed<'_>,
        is_restricted: bool,
    ) {
        for (kind, real_servers) in needed.iter().flatten() {
            let networks = self.settings.internal_frontend_networks;
            let is_there = networks.of(frontend.family()).is_some();
            let is_possible = kind.is_promised() || !self.on_full_path.contains(&frontend);
            if !is_there || !is_possible {
                continue;
            }
            let new = || NeededInternalFrontend {
                origin,
                index: port.index,
                real_servers: Arc::clone(real_servers),
                is_restricted: false,
            };
            let noted = self.needed.entry((*kind, frontend)).or_insert_with(new);
            noted.is_restricted |= is_restricted;
        }
    }

    /// True if all clients are led to internal frontends. A scheduler that counts connections would count those that begin.
    pub(super) fn is_on_fast_path(&self) -> bool {
        let overrides = self.service.overrides.as_deref();
        let is_off = overrides.is_some_and(|it| it.is_off_fast_path);
        let scheduler = self.claims.scheduler().known();
        let counts_none = scheduler.is_some_and(|it| !it.counts_connections);
        self.settings.has_fast_path() && !is_off && counts_none
    }

    /// Claims internal frontends for all frontends of a family that were noted.
    pub(super) fn internal_frontends(&mut self, family: Family, addresses: &Addresses) {
        let noted = std::mem::take(&mut self.needed).into_iter();
        let (mut needed, others): (Vec<_>, Vec<_>) =
            noted.partition(|((_, frontend), _)| frontend.family() == family);
        self.needed = others.into_iter().collect();
        needed.sort_by_key(|((kind, frontend), it)| (*kind, it.origin, *frontend));
        for ((kind, frontend), it) in needed {
            let problem = match self.internal_frontend(&frontend, kind) {
                None => Problem::NoInternalFrontend { frontend },
                Some(internal_frontend) => {
                    let served = self.served(&frontend, kind, &it, &internal_frontend, addresses);
                    if self.claims.add(it.index, internal_frontend, served).is_some() {
                        continue;
                    }
                    let owner = self.service.name.clone();
                    Problem::InternalFrontendTaken { frontend, internal_frontend, owner }
                }
            };
            // Without another one, clients are on the full path.
            if kind.is_promised() {
                self.problems.push(problem);
            }
        }
    }

    /// Returns a frontend's internal frontend, unless its address is excluded, or is or may be in use: if it were
    /// bound here, this node would no longer reach who has it.
    pub(super) fn internal_frontend(
        &self,
        frontend: &Frontend,
        kind: ClaimKind,
    ) -> Option<Frontend> {
        let networks = self.settings.internal_frontend_networks;
        let network = networks.of(frontend.family())?;
        let address = match kind {
            ClaimKind::LocalInternalFrontend => networks.local_address_for(frontend.address)?,
            _ => networks.address_for(frontend.address)?,
        };
        let is_free = !self.settings.excludes(address)
            && !self.facts.is_in_use(address)
            && !self.facts.has_pods_inside(&network);
        is_free.then_some(Frontend { address, ..*frontend })
    }

    /// Returns the claim to a frontend's internal frontend.
    fn served<'n>(
        &self,
        frontend: &Frontend,
        kind: ClaimKind,
        needed: &'n NeededInternalFrontend,
        internal_frontend: &Frontend,
        addresses: &Addresses,
    ) -> Served<'n> {
        let mut entries = Vec::new();
        if self.settings.is_to_be_bound(internal_frontend.address) {
            let set = set(SetKind::IpvsAddresses, internal_frontend.family());
            entries.push((set, Entry::Address(internal_frontend.address)));
        }
        if needed.is_restricted {
            entries.extend(self.source_ranges(internal_frontend, addresses));
        }
        Served {
            origin: needed.origin,
            real_servers: &needed.real_servers,
            entries,
            refusal: None,
            internal_frontend_of: Some(*frontend),
            kind,
        }
    }
}
