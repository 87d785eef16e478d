//! Status of the loop, as seen from outside.

use super::observer::Report;

/// Counts since the start, and what is pending now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// True if the kernel was once as it should be, as far as it let us.
    pub in_sync_once: bool,
    /// True once new connections to Services go by this mode: in modes of rules these lead, as far as
    /// the kernel let us.
    pub is_carried: bool,
    /// True if rules of the former mode lead for longer than they should, because prerequisites are
    /// missing.
    pub is_held_up: bool,
    /// Number of times that all kernel state was listed, to take it over.
    pub readings: u64,
    /// Number of virtual servers that IPVS mode left, and that still have connections; none as long
    /// as that is not known, or in IPVS mode.
    pub n_left_by_ipvs: Option<usize>,
    /// Number of connections that these have, at least, as they were read last.
    pub n_connections_left_by_ipvs: u64,
    /// Passes of the audit since, each of which compared everything.
    pub passes: u64,
    /// Readings of the kernel, or of a part, that failed.
    pub failed_readings: u64,
    /// Operations sent.
    pub operations: u64,
    /// Those that were refused.
    pub failures: u64,
    /// Operations that repaired what other programs had changed.
    pub drift_repaired: u64,
    /// Sysctls that were set again, because another program had changed them.
    pub sysctls_put_back: u64,
    /// Sysctls that do not have the value that Services need, and could not be set.
    pub sysctl_mismatches: usize,
    /// Subjects whose last write failed, and is retried.
    pub pending: usize,
    /// True if a prerequisite is among them: the interface, a set, the rules, a route.
    pub has_pending_prerequisite: bool,
    /// UDP and SCTP flows that led nowhere, and were removed.
    pub flows_removed: u64,
    /// Frontends whose flows may lead nowhere, and are removed when the kernel lets us.
    pub flows_pending: usize,
}

impl Status {
    /// Changes with a report. Returns true if it did.
    pub(super) fn follow(&mut self, report: &Report<'_>) -> bool {
        let former = *self;
        match report {
            Report::Listed => self.readings += 1,
            Report::ReadingFailed(_) => self.failed_readings += 1,
            Report::Drifted { repairs, .. } => self.drift_repaired += repairs.len() as u64,
            Report::Written(write) => {
                self.operations += write.ops.len() as u64;
                self.failures += write.results.iter().filter(|it| it.is_err()).count() as u64;
            }
            Report::Pending { n_retries, has_prerequisite } => {
                (self.pending, self.has_pending_prerequisite) = (*n_retries, *has_prerequisite);
            }
            Report::InSync => self.in_sync_once = true,
            Report::Carried => self.is_carried = true,
            Report::HeldUp(note) => self.is_held_up = note.is_some(),
            Report::SysctlPutBack => self.sysctls_put_back += 1,
            Report::SysctlMismatches(mismatches) => self.sysctl_mismatches = *mismatches,
            Report::PassEnded(_) => self.passes += 1,
            Report::FlowsRemoved { count, .. } => self.flows_removed += count,
            Report::FlowsPending(count) => self.flows_pending = *count,
            Report::LeftByIpvs { n_virtual_servers, n_connections } => {
                self.n_left_by_ipvs = Some(*n_virtual_servers);
                self.n_connections_left_by_ipvs = *n_connections;
            }
            Report::Arrived(_)
            | Report::Taken(_)
            | Report::Waiting(_)
            | Report::Planned { .. }
            | Report::Served
            | Report::RulesCounted(_)
            | Report::DriftChecked { .. }
            | Report::SysctlWarning(_)
            | Report::HandDrained(_)
            | Report::FullSpeed(_)
            | Report::RoundEnded(_) => return false,
        }
        *self != former
    }
}
