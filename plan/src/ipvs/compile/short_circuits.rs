//! The short circuits of one Service's frontends: see
//! [`ShortCircuitNetworks`](crate::settings::ShortCircuitNetworks).

use std::sync::Arc;

use super::claims::Served;
use super::{Compiler, set};
use crate::claimants::{ClaimKind, Origin};
use crate::exposure::{Addresses, PortExposure};
use crate::kernel_objects::{Entry, Frontend, RealServer};
use crate::model::Family;
use crate::problem::Problem;
use crate::sets::SetKind;

/// A frontend that is to have a short circuit.
pub(super) struct NeedsShortCircuit {
    origin: Origin,
    /// The index of the service port that claims it.
    index: usize,
    /// Real servers of the short circuit.
    real_servers: Arc<[RealServer]>,
    /// Promised if local clients get other endpoints than the frontend itself has.
    kind: ClaimKind,
    /// True if the source ranges count.
    is_restricted: bool,
}

impl Compiler<'_> {
    /// Takes note of a frontend, clients of which are led to these real servers. Without any, everybody is refused at the
    /// frontend itself.
    pub(super) fn note_short_circuit_needed(
        &mut self,
        origin: Origin,
        port: &PortExposure<'_>,
        frontend: Frontend,
        real_servers: &Arc<[RealServer]>,
        is_restricted: bool,
    ) {
        let are_there_short_circuits =
            self.settings.short_circuit_networks.of(frontend.family()).is_some();
        let is_needed = self.leads_to_short_circuits() && are_there_short_circuits;
        if !is_needed || real_servers.is_empty() || self.on_full_path.contains(&frontend) {
            return;
        }
        let in_need = self.in_need.entry(frontend).or_insert_with(|| NeedsShortCircuit {
            origin,
            index: port.index,
            real_servers: Arc::clone(real_servers),
            kind: match origin {
                Origin::ClusterAddress => ClaimKind::FasterShortCircuit,
                _ if !self.service.is_external_policy_local() => ClaimKind::FasterShortCircuit,
                _ => ClaimKind::PromisedShortCircuit,
            },
            is_restricted: false,
        });
        in_need.is_restricted |= is_restricted;
    }

    /// True if clients of the Service's frontends outside are led to short circuits: local ones, or on the fast path all.
    fn leads_to_short_circuits(&self) -> bool {
        self.service.is_external_policy_local() || self.is_on_fast_path()
    }

    /// True if all clients are led to short circuits. A scheduler that counts connections would count those that begin, and
    /// a deadline would not end those that IPVS does not carry.
    pub(super) fn is_on_fast_path(&self) -> bool {
        let overrides = self.service.overrides.as_deref();
        let needs_ipvs =
            overrides.is_some_and(|it| it.is_off_fast_path || it.drain_deadline_seconds.is_some());
        let scheduler = self.claims.scheduler().known();
        let counts_none = scheduler.is_some_and(|it| !it.counts_connections);
        self.settings.has_fast_path() && !needs_ipvs && counts_none
    }

    /// Claims short circuits for all frontends of a family that were noted.
    pub(super) fn short_circuits(&mut self, family: Family, addresses: &Addresses) {
        let noted = std::mem::take(&mut self.in_need).into_iter();
        let (mut in_need, others): (Vec<_>, Vec<_>) =
            noted.partition(|(frontend, _)| frontend.family() == family);
        self.in_need = others.into_iter().collect();
        in_need.sort_by_key(|(frontend, it)| (it.kind, it.origin, *frontend));
        for (frontend, it) in in_need {
            let problem = match self.possible(&frontend) {
                None => Problem::NoShortCircuit { frontend },
                Some(short_circuit) => {
                    if self.claim_short_circuit(&frontend, &it, short_circuit, addresses) {
                        continue;
                    }
                    let owner = self.service.name.clone();
                    Problem::ShortCircuitTaken { frontend, short_circuit, owner }
                }
            };
            // Without it, a frontend of the policy Cluster is on the full path.
            if it.kind == ClaimKind::PromisedShortCircuit {
                self.problems.push(problem);
            }
        }
    }

    /// A short circuit that a frontend may have.
    pub(super) fn short_circuit(&self, frontend: &Frontend) -> Option<Frontend> {
        self.possible(frontend).filter(|_| self.leads_to_short_circuits())
    }

    /// A frontend's short circuit, unless its address is excluded, or is or may be in use: if it were
    /// bound here, this node would no longer reach who has it.
    fn possible(&self, frontend: &Frontend) -> Option<Frontend> {
        let networks = self.settings.short_circuit_networks;
        let network = networks.of(frontend.family())?;
        let address = networks.address_for(frontend.address)?;
        let is_free = !self.settings.excludes(address)
            && !self.facts.is_in_use(address)
            && !self.facts.has_pods_inside(&network);
        is_free.then_some(Frontend { address, ..*frontend })
    }

    /// Returns whether no other frontend of the Service has it.
    fn claim_short_circuit(
        &mut self,
        frontend: &Frontend,
        in_need: &NeedsShortCircuit,
        short_circuit: Frontend,
        addresses: &Addresses,
    ) -> bool {
        let mut entries = Vec::new();
        if self.settings.is_to_be_bound(short_circuit.address) {
            let set = set(SetKind::IpvsAddresses, short_circuit.family());
            entries.push((set, Entry::Address(short_circuit.address)));
        }
        if in_need.is_restricted {
            entries.extend(self.source_ranges(&short_circuit, addresses));
        }
        let served = Served {
            origin: in_need.origin,
            real_servers: &in_need.real_servers,
            entries,
            refusal: None,
            short_circuit_of: Some(*frontend),
            kind: in_need.kind,
        };
        self.claims.add(in_need.index, short_circuit, served).is_some()
    }
}
