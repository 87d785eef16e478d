//! The short circuits of one Service's frontends: see
//! [`ShortCircuitNetworks`](crate::settings::ShortCircuitNetworks).

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

/// Short circuits that a frontend is to have, each with its real servers: none without any, since everybody is refused at
/// the frontend itself then.
pub(super) type Needed<'e> = [Option<(ClaimKind, &'e Arc<[RealServer]>)>; 2];

/// A short circuit that a frontend is to have.
pub(super) struct NeededShortCircuit {
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
        [is_needed.then_some((ClaimKind::FasterShortCircuit, real_servers)), None]
    }

    /// Returns what a frontend for clients outside the cluster needs.
    pub(super) fn needed_outside<'e>(&self, choice: &'e EndpointChoice) -> Needed<'e> {
        let some = |kind, real_servers: &'e Arc<[RealServer]>| {
            (!real_servers.is_empty()).then_some((kind, real_servers))
        };
        match (self.service.is_external_policy_local(), self.is_on_fast_path()) {
            (false, false) => [None, None],
            (false, true) => [some(ClaimKind::FasterShortCircuit, &choice.cluster), None],
            (true, false) => [some(ClaimKind::PromisedShortCircuit, &choice.cluster), None],
            (true, true) => [
                some(ClaimKind::PromisedShortCircuit, &choice.cluster),
                some(ClaimKind::LocalShortCircuit, &choice.local),
            ],
        }
    }

    /// Takes note of the short circuits that a frontend is to have.
    pub(super) fn note_short_circuits(
        &mut self,
        origin: Origin,
        port: &PortExposure<'_>,
        frontend: Frontend,
        needed: &Needed<'_>,
        is_restricted: bool,
    ) {
        for (kind, real_servers) in needed.iter().flatten() {
            let networks = self.settings.short_circuit_networks;
            let is_there = networks.of(frontend.family()).is_some();
            let is_possible = kind.is_promised() || !self.on_full_path.contains(&frontend);
            if !is_there || !is_possible {
                continue;
            }
            let new = || NeededShortCircuit {
                origin,
                index: port.index,
                real_servers: Arc::clone(real_servers),
                is_restricted: false,
            };
            let noted = self.needed.entry((*kind, frontend)).or_insert_with(new);
            noted.is_restricted |= is_restricted;
        }
    }

    /// True if all clients are led to short circuits. A scheduler that counts connections would count those that begin.
    pub(super) fn is_on_fast_path(&self) -> bool {
        let overrides = self.service.overrides.as_deref();
        let is_off = overrides.is_some_and(|it| it.is_off_fast_path);
        let scheduler = self.claims.scheduler().known();
        let counts_none = scheduler.is_some_and(|it| !it.counts_connections);
        self.settings.has_fast_path() && !is_off && counts_none
    }

    /// Claims short circuits for all frontends of a family that were noted.
    pub(super) fn short_circuits(&mut self, family: Family, addresses: &Addresses) {
        let noted = std::mem::take(&mut self.needed).into_iter();
        let (mut needed, others): (Vec<_>, Vec<_>) =
            noted.partition(|((_, frontend), _)| frontend.family() == family);
        self.needed = others.into_iter().collect();
        needed.sort_by_key(|((kind, frontend), it)| (*kind, it.origin, *frontend));
        for ((kind, frontend), it) in needed {
            let problem = match self.short_circuit(&frontend, kind) {
                None => Problem::NoShortCircuit { frontend },
                Some(short_circuit) => {
                    let served = self.served(&frontend, kind, &it, &short_circuit, addresses);
                    if self.claims.add(it.index, short_circuit, served).is_some() {
                        continue;
                    }
                    let owner = self.service.name.clone();
                    Problem::ShortCircuitTaken { frontend, short_circuit, owner }
                }
            };
            // Without another one, clients are on the full path.
            if kind.is_promised() {
                self.problems.push(problem);
            }
        }
    }

    /// Returns a frontend's short circuit, unless its address is excluded, or is or may be in use: if it were
    /// bound here, this node would no longer reach who has it.
    pub(super) fn short_circuit(&self, frontend: &Frontend, kind: ClaimKind) -> Option<Frontend> {
        let networks = self.settings.short_circuit_networks;
        let network = networks.of(frontend.family())?;
        let address = match kind {
            ClaimKind::LocalShortCircuit => networks.local_address_for(frontend.address)?,
            _ => networks.address_for(frontend.address)?,
        };
        let is_free = !self.settings.excludes(address)
            && !self.facts.is_in_use(address)
            && !self.facts.has_pods_inside(&network);
        is_free.then_some(Frontend { address, ..*frontend })
    }

    /// Returns the claim to a frontend's short circuit.
    fn served<'n>(
        &self,
        frontend: &Frontend,
        kind: ClaimKind,
        needed: &'n NeededShortCircuit,
        short_circuit: &Frontend,
        addresses: &Addresses,
    ) -> Served<'n> {
        let mut entries = Vec::new();
        if self.settings.is_to_be_bound(short_circuit.address) {
            let set = set(SetKind::IpvsAddresses, short_circuit.family());
            entries.push((set, Entry::Address(short_circuit.address)));
        }
        if needed.is_restricted {
            entries.extend(self.source_ranges(short_circuit, addresses));
        }
        Served {
            origin: needed.origin,
            real_servers: &needed.real_servers,
            entries,
            refusal: None,
            short_circuit_of: Some(*frontend),
            kind,
        }
    }
}
