//! Endpoints that a Service has on this node, and what follows from them.

use std::net::IpAddr;

use super::{Compiler, set};
use crate::endpoints::{Candidate, EndpointChoice};
use crate::kernel_objects::{Entry, Frontend};
use crate::local::Side;
use crate::model::{Family, Protocol, TrafficPolicy};
use crate::sets::SetKind;

impl Compiler<'_> {
    pub(super) fn local_ready<'c>(
        &self,
        candidates: &'c [Candidate<'c>],
    ) -> impl Iterator<Item = IpAddr> + use<'c, '_> {
        let node_name = Some(&*self.settings.node_name);
        let usable = candidates.iter().filter(move |c| {
            c.endpoint.conditions.ready && c.endpoint.node.as_deref() == node_name
        });
        usable.map(|candidate| candidate.endpoint.address)
    }

    /// Endpoints exist that would do, but for their being elsewhere.
    pub(super) fn local_gaps(&mut self, family: Family, choice: &EndpointChoice) {
        if !choice.exist || !choice.local.is_empty() {
            return;
        }
        if self.service.internal_policy == TrafficPolicy::Local {
            self.local_gap.add(Side::Internal, family);
        }
        if self.service.is_external_policy_local() {
            self.local_gap.add(Side::External, family);
        }
    }

    /// Every endpoint on this node, ready or not: as long as it lives it may reach itself through
    /// the Service, by a connection made earlier.
    /// False: there is no room for them, and so many frontends are left out.
    pub(super) fn loop_back(
        &mut self,
        family: Family,
        protocol: Protocol,
        candidates: &[Candidate<'_>],
        n_frontends: usize,
    ) -> bool {
        let set = set(SetKind::LoopBack, family);
        let node_name = Some(&*self.settings.node_name);
        let here = || candidates.iter().filter(|c| c.endpoint.node.as_deref() == node_name);
        if !self.budget.take_port_entries(set, here().count(), n_frontends) {
            return false;
        }
        self.entries.extend(here().map(|candidate| {
            let address = candidate.endpoint.address;
            let target = Frontend { address, protocol, port: candidate.port };
            (set, Entry::AddressPortAddress(target, address))
        }));
        true
    }
}
