//! Admission of frontends by the Service's limits.

#[cfg(test)]
mod tests;

use super::{Compiler, real_servers, set};
use crate::endpoints::EndpointChoice;
use crate::kernel_objects::Frontend;
use crate::sets::SetKind;

impl Compiler<'_> {
    /// True if the limits leave room for a frontend for clients outside the cluster and its short
    /// circuit.
    pub(super) fn admit(
        &mut self,
        frontend: &Frontend,
        choice: &EndpointChoice,
        n_ranges: usize,
    ) -> bool {
        let real_servers = real_servers(choice, self.service.is_external_policy_local()).len();
        let of_short_circuit = self.short_circuit(frontend).map(|_| choice.cluster.len());
        let ranges = (set(SetKind::LoadBalancerSourceCidr, frontend.family()), n_ranges);
        let n_frontends = 1 + usize::from(of_short_circuit.is_some());
        self.budget.take_frontend(n_frontends, real_servers + of_short_circuit.unwrap_or(0), ranges)
    }
}
