//! The short circuits of one Service's frontends: see
//! [`ShortCircuitNetworks`](crate::settings::ShortCircuitNetworks).
//!
//! A frontend asks for a short circuit in the first network, and for one in the spare network in
//! case another Service has the first one.

use std::net::IpAddr;
use std::sync::Arc;

use super::claims::Served;
use super::{Compiler, set};
use crate::claimants::Origin;
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
    /// True if the source ranges count.
    is_restricted: bool,
}

impl Compiler<'_> {
    /// Takes note of a frontend for clients outside the cluster. Without endpoints, everybody is
    /// refused at the frontend itself.
    pub(super) fn note_short_circuit_needed(
        &mut self,
        origin: Origin,
        port: &PortExposure<'_>,
        frontend: Frontend,
        is_restricted: bool,
    ) {
        let are_there_short_circuits =
            self.settings.short_circuit_networks.of(frontend.family()).is_some();
        let is_needed = self.service.is_external_policy_local() && are_there_short_circuits;
        if !is_needed || port.choice.cluster.is_empty() {
            return;
        }
        let in_need = self.in_need.entry(frontend).or_insert_with(|| NeedsShortCircuit {
            origin,
            index: port.index,
            real_servers: Arc::clone(&port.choice.cluster),
            is_restricted: false,
        });
        in_need.is_restricted |= is_restricted;
    }

    /// Claims short circuits for all frontends of a family that were noted.
    pub(super) fn short_circuits(&mut self, family: Family, addresses: &Addresses) {
        let networks = self.settings.short_circuit_networks;
        let noted = std::mem::take(&mut self.in_need).into_iter();
        let (mut in_need, others): (Vec<_>, Vec<_>) =
            noted.partition(|(frontend, _)| frontend.family() == family);
        self.in_need = others.into_iter().collect();
        in_need.sort_by_key(|(frontend, it)| (it.origin, *frontend));
        let (mut with_first, mut without) = (Vec::new(), Vec::new());
        for (frontend, it) in in_need {
            let first = self.possible(&frontend, networks.address_for(frontend.address));
            match first
                .filter(|first| self.claim_short_circuit(&frontend, &it, *first, false, addresses))
            {
                Some(_) => with_first.push((frontend, it)),
                None => without.push((frontend, it, first)),
            }
        }
        // They have no other.
        for (frontend, it, first) in without {
            let spare = self.possible(&frontend, networks.spare_address_for(frontend.address));
            if spare.is_some_and(|spare| {
                self.claim_short_circuit(&frontend, &it, spare, true, addresses)
            }) {
                continue;
            }
            self.problems.push(match first.or(spare) {
                Some(short_circuit) => {
                    let owner = self.service.name.clone();
                    Problem::ShortCircuitTaken { frontend, short_circuit, owner }
                }
                None => Problem::NoShortCircuit { frontend },
            });
        }
        for (frontend, it) in with_first {
            if let Some(spare) =
                self.possible(&frontend, networks.spare_address_for(frontend.address))
            {
                self.claim_short_circuit(&frontend, &it, spare, true, addresses);
            }
        }
    }

    /// A short circuit that a frontend may have, the first one if it can.
    pub(super) fn short_circuit(&self, frontend: &Frontend) -> Option<Frontend> {
        let networks = self.settings.short_circuit_networks;
        let of = |address| self.possible(frontend, address);
        let short_circuit = of(networks.address_for(frontend.address));
        let short_circuit =
            short_circuit.or_else(|| of(networks.spare_address_for(frontend.address)));
        short_circuit.filter(|_| self.service.is_external_policy_local())
    }

    /// A short circuit at this address, unless the address is excluded or the node's own.
    fn possible(&self, frontend: &Frontend, address: Option<IpAddr>) -> Option<Frontend> {
        let address = address?;
        let is_free =
            !self.settings.excludes(address) && !self.facts.local_addresses().contains(&address);
        is_free.then_some(Frontend { address, ..*frontend })
    }

    /// Returns whether no other frontend of the Service has it.
    fn claim_short_circuit(
        &mut self,
        frontend: &Frontend,
        in_need: &NeedsShortCircuit,
        short_circuit: Frontend,
        is_spare: bool,
        addresses: &Addresses,
    ) -> bool {
        let mut entries = Vec::new();
        if !self.settings.is_routed(short_circuit.address) {
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
            is_spare,
        };
        self.claims.add(in_need.index, short_circuit, served).is_some()
    }
}
