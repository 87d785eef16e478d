//! The twins of one Service's frontends: see [`TwinNetworks`](crate::settings::TwinNetworks).
//!
//! A frontend asks for a twin in the first network, and for one in the spare network in case
//! another Service has the first one.

use std::net::IpAddr;
use std::sync::Arc;

use super::addresses::Addresses;
use super::claims::Served;
use super::{Compiler, Port, set};
use crate::fragment::Origin;
use crate::kernel::{Entry, Frontend, RealServer};
use crate::model::Family;
use crate::problem::Problem;
use crate::sets::SetKind;

/// A frontend that is to have a twin.
pub(super) struct Twinned {
    origin: Origin,
    /// The index of the service port that claims it.
    index: usize,
    /// Real servers of the twin.
    real_servers: Arc<[RealServer]>,
    /// True if the source ranges count.
    is_restricted: bool,
}

impl Compiler<'_> {
    /// Takes note of a frontend for clients outside the cluster. Without endpoints, everybody is
    /// refused at the frontend itself.
    pub(super) fn note_twinned(
        &mut self,
        origin: Origin,
        port: &Port<'_>,
        frontend: Frontend,
        is_restricted: bool,
    ) {
        let are_there_twins = self.settings.twins.of(frontend.family()).is_some();
        let is_needed = self.service.is_external_policy_local() && are_there_twins;
        if !is_needed || port.choice.cluster.is_empty() {
            return;
        }
        let twinned = self.twinned.entry(frontend).or_insert_with(|| Twinned {
            origin,
            index: port.index,
            real_servers: Arc::clone(&port.choice.cluster),
            is_restricted: false,
        });
        twinned.is_restricted |= is_restricted;
    }

    /// Claims twins for all frontends of a family that were noted.
    pub(super) fn twins(&mut self, family: Family, addresses: &Addresses) {
        let twins = self.settings.twins;
        let noted = std::mem::take(&mut self.twinned).into_iter();
        let (mut twinned, others): (Vec<_>, Vec<_>) =
            noted.partition(|(frontend, _)| frontend.family() == family);
        self.twinned = others.into_iter().collect();
        twinned.sort_by_key(|(frontend, it)| (it.origin, *frontend));
        let (mut with_first, mut without) = (Vec::new(), Vec::new());
        for (frontend, it) in twinned {
            let first = self.possible(&frontend, twins.twin(frontend.address));
            match first.filter(|first| self.claim_twin(&frontend, &it, *first, false, addresses)) {
                Some(_) => with_first.push((frontend, it)),
                None => without.push((frontend, it, first)),
            }
        }
        // They have no other.
        for (frontend, it, first) in without {
            let spare = self.possible(&frontend, twins.spare_twin(frontend.address));
            if spare.is_some_and(|spare| self.claim_twin(&frontend, &it, spare, true, addresses)) {
                continue;
            }
            self.problems.push(match first.or(spare) {
                Some(twin) => {
                    let owner = self.service.name.clone();
                    Problem::TwinTaken { frontend, twin, owner }
                }
                None => Problem::NoTwin { frontend },
            });
        }
        for (frontend, it) in with_first {
            if let Some(spare) = self.possible(&frontend, twins.spare_twin(frontend.address)) {
                self.claim_twin(&frontend, &it, spare, true, addresses);
            }
        }
    }

    /// A twin that a frontend may have, the first one if it can.
    pub(super) fn twin(&self, frontend: &Frontend) -> Option<Frontend> {
        let twins = self.settings.twins;
        let of = |address| self.possible(frontend, address);
        let twin = of(twins.twin(frontend.address));
        let twin = twin.or_else(|| of(twins.spare_twin(frontend.address)));
        twin.filter(|_| self.service.is_external_policy_local())
    }

    /// A twin at this address, unless it is somebody else's.
    fn possible(&self, frontend: &Frontend, address: Option<IpAddr>) -> Option<Frontend> {
        let address = address?;
        let is_free =
            !self.settings.excludes(address) && !self.facts.local_addresses().contains(&address);
        is_free.then_some(Frontend { address, ..*frontend })
    }

    /// Returns whether no other frontend of the Service has it.
    fn claim_twin(
        &mut self,
        frontend: &Frontend,
        twinned: &Twinned,
        twin: Frontend,
        is_spare: bool,
        addresses: &Addresses,
    ) -> bool {
        let mut entries = Vec::new();
        if !self.settings.is_routed(twin.address) {
            let set = set(SetKind::IpvsAddresses, twin.family());
            entries.push((set, Entry::Address(twin.address)));
        }
        if twinned.is_restricted {
            entries.extend(self.source_ranges(&twin, addresses));
        }
        let served = Served {
            origin: twinned.origin,
            real_servers: &twinned.real_servers,
            entries,
            refusal: None,
            twin_of: Some(*frontend),
            is_spare,
        };
        self.claims.add(twinned.index, twin, served).is_some()
    }
}
