//! Comparing a part of the kernel with what it should be, and repairing it.
//!
//! Refused writes belong to the retry queue, and are tried again at their time. Until then they are
//! neither written here nor taken for what others changed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use plan::actual::{Actual, ActualSet};
use plan::diff::DesiredFrontend;
use plan::event::Event;
use plan::kernel::Frontend;
use plan::model::{Family, ServiceName};
use plan::op::{Op, Subject};
use plan::sets::SetId;
use tokio::time::Instant;
use tracing::warn;

use super::Reconciler;
use super::audit::{AuditedPart, LARGEST_CHUNK};
use super::drain::Known;
use super::writing::Basis;
use crate::kernel::worker::{ReadFailure, WorkerGone};
use crate::kernel::{KernelRead, Listing};

/// Number of operations that repair what others had changed; none if the kernel could not be read,
/// which has been reported.
type Repaired = Option<usize>;

impl Reconciler {
    /// Compares a part of the kernel with what it should be, and repairs it.
    pub(super) async fn inspect(&mut self, part: &AuditedPart) -> Result<Repaired, WorkerGone> {
        let done = match part {
            AuditedPart::Addresses => self.inspect_addresses().await,
            AuditedPart::RuleSet(family) => self.inspect_rule_set(*family).await,
            AuditedPart::Set(set) => self.inspect_set(*set).await,
            AuditedPart::Frontends => self.inspect_frontends().await,
            AuditedPart::VirtualServers(frontends) => self.inspect_virtual_servers(frontends).await,
        };
        self.or_report(done)
    }

    async fn inspect_addresses(&mut self) -> Result<usize, ReadFailure> {
        let read = KernelRead::Addresses;
        let found = self.kernel.read(read, |kernel| kernel.read_addresses()).await?;
        if found.local != *self.planner.local_addresses() {
            self.take(Event::LocalAddresses(found.local.into_iter().collect()));
        }
        let mut ops = self.planner.compare_addresses(&found.bound);
        ops.extend(self.planner.compare_routes(&found.routes));
        if !found.link {
            ops.push(Op::CreateLink);
        }
        let mut beside = Actual::default();
        for op in &ops {
            match op {
                Op::UnbindAddress(address) => drop(beside.addresses.insert(*address)),
                Op::RemoveRoute(route) => drop(beside.routes.insert(*route)),
                _ => {}
            }
        }
        if beside != Actual::default() {
            ops.extend(self.strangers(beside).await?);
        }
        Ok(self.repair(ops, Some(&AuditedPart::Addresses)).await?)
    }

    async fn inspect_rule_set(&mut self, family: Family) -> Result<usize, ReadFailure> {
        let read = KernelRead::Rules;
        let is_there = self.kernel.read(read, move |kernel| kernel.read_rule_set(family)).await?;
        let ops = if is_there { Vec::new() } else { vec![Op::WriteRuleSet(family)] };
        Ok(self.repair(ops, Some(&AuditedPart::RuleSet(family))).await?)
    }

    async fn inspect_set(&mut self, set: SetId) -> Result<usize, ReadFailure> {
        let found = self.kernel.read(KernelRead::Set, move |kernel| kernel.read_set(set)).await?;
        let mut ops = self.planner.compare_set(set, found.as_ref());
        drop(found);
        let extra: ActualSet = ops
            .iter()
            .filter_map(|op| match op {
                Op::RemoveEntry(_, entry) => Some(*entry),
                _ => None,
            })
            .collect();
        if !extra.entries.is_empty() {
            let beside = Actual { sets: HashMap::from([(set, extra)]), ..Actual::default() };
            ops.extend(self.strangers(beside).await?);
        }
        Ok(self.repair(ops, Some(&AuditedPart::Set(set))).await?)
    }

    /// Looks for virtual servers that are there and should not be, and removes them, or are not
    /// there and should be, and has the audit look at those before anything else.
    async fn inspect_frontends(&mut self) -> Result<usize, ReadFailure> {
        let listing = self.list_virtual_servers().await?;
        let mut repaired = 0;
        let strangers = self.strangers_among(&listing, Actual::default());
        repaired += self.repair(strangers, None).await?;
        let found: HashSet<Frontend> = listing.frontends().collect();
        let desired = self.planner.desired();
        let suspects = desired.frontends().filter(|frontend| match desired.at(frontend) {
            DesiredFrontend::Open(..) => !found.contains(frontend),
            DesiredFrontend::Closed | DesiredFrontend::Unclaimed => {
                found.contains(frontend) && !self.drain.is_draining(frontend)
            }
        });
        // Pending operations have a retry time of their own. No other program caused them.
        let is_pending = |it: &&Frontend| self.retry_queue.contains(&Subject::VirtualServer(**it));
        let mut suspects: Vec<Frontend> = suspects.filter(|it| !is_pending(it)).copied().collect();
        suspects.sort_unstable();
        if let Some(table) = listing.table {
            table.sort_for_return(&mut suspects);
        }
        // Without the API server nothing on this node can follow the cluster.
        let is_other = |it: &Frontend| !desired.owner(it).is_some_and(ServiceName::is_api_server);
        suspects.sort_by_key(is_other);
        // There may be very many. Changes are written in between.
        for chunk in suspects.chunks(LARGEST_CHUNK) {
            self.audit.suspect(AuditedPart::VirtualServers(chunk.into()));
        }
        Ok(repaired + suspects.len())
    }

    async fn inspect_virtual_servers(
        &mut self,
        frontends: &Arc<[Frontend]>,
    ) -> Result<usize, ReadFailure> {
        let mut seen = self.read_virtual_servers(frontends).await?;
        // Drops frontends without an owner: what they needed is done, or pending.
        let desired = self.planner.desired();
        let is_ours = |frontend: &Frontend| desired.owner(frontend).is_some();
        seen.found.retain(|(frontend, _)| is_ours(frontend));
        if seen.unread.iter().any(|(frontend, _)| is_ours(frontend)) {
            self.audit.missed_some();
        }
        let now = Instant::now();
        let (mut ops, mut in_order) = (Vec::new(), Vec::new());
        for (frontend, found) in &seen.found {
            let repairs = self.planner.repair(frontend, found.as_ref());
            let subject = Subject::VirtualServer(*frontend);
            if repairs.is_empty() || !self.is_put_off(&subject, now) {
                let known = Known::Compared(*frontend, found.as_ref());
                let repairs = self.let_drain(repairs, known, now);
                if repairs.is_empty() {
                    in_order.push(subject);
                }
                ops.extend(repairs);
            }
        }
        self.settle(&in_order);
        Ok(self.repair(ops, None).await?)
    }

    /// Writes what repairs a part of the kernel, and if all of the part was compared, strikes out
    /// what is pending of it and turned out to be in order. Returns how many operations that took
    /// which others are to blame for.
    pub(super) async fn repair(
        &mut self,
        ops: Vec<Op>,
        compared: Option<&AuditedPart>,
    ) -> Result<usize, WorkerGone> {
        if let Some(part) = compared {
            self.settle_part(part, &ops);
        }
        let ops = self.not_put_off(ops);
        if ops.is_empty() {
            return Ok(0);
        }
        let n_drift = self.count_drift(&ops);
        self.flows.note_ops(&ops, &self.planner);
        let (prerequisites, rest): (Vec<Op>, Vec<Op>) = ops.into_iter().partition(others_rest_on);
        let rests_on: Vec<Subject> = prerequisites.iter().map(Op::subject).collect();
        self.carry_out(prerequisites, Basis::Reading).await?;
        match rests_on.iter().filter_map(|subject| self.retry_queue.due_time(subject)).max() {
            // The prerequisite's retry finds the rest.
            Some(due) => self.postpone(&rest, due),
            None => self.carry_out(rest, Basis::Reading).await?,
        }
        Ok(n_drift)
    }

    /// Strikes out what is pending of a part and needs none of these operations.
    fn settle_part(&mut self, part: &AuditedPart, ops: &[Op]) {
        if self.retry_queue.is_empty() {
            return;
        }
        let wrong: HashSet<Subject> = ops.iter().map(Op::subject).collect();
        let pending = self.retry_queue.iter().map(|(subject, _)| *subject);
        let settled: Vec<Subject> =
            pending.filter(|subject| part.has(subject) && !wrong.contains(subject)).collect();
        self.settle(&settled);
    }

    /// Returns the operations that may be written now. Puts off all of them while an operation
    /// waits that the others rest on.
    fn not_put_off(&mut self, mut ops: Vec<Op>) -> Vec<Op> {
        if self.retry_queue.is_empty() {
            return ops;
        }
        let now = Instant::now();
        let is_put_off = |op: &Op| self.is_put_off(&op.subject(), now);
        // Nothing can be done while what the others rest on is missing.
        let prerequisites = ops.iter().filter(|op| others_rest_on(op) && is_put_off(op));
        let due = prerequisites.filter_map(|op| self.retry_queue.due_time(&op.subject())).max();
        if let Some(due) = due {
            self.postpone(&ops, due);
            return Vec::new();
        }
        ops.retain(|op| !is_put_off(op));
        ops
    }

    /// Puts off what is pending of this.
    fn postpone(&mut self, ops: &[Op], due: Instant) {
        for subject in ops.iter().map(Op::subject) {
            if self.retry_queue.due_time(&subject).is_some_and(|it| it < due) {
                self.retry_queue.postpone(&subject, due);
            }
        }
    }

    /// Counts what others changed: not what we could not write ourselves.
    fn count_drift(&mut self, ops: &[Op]) -> usize {
        let is_drift =
            |op: &&Op| !matches!(op, Op::GrowSet(..)) && !self.retry_queue.contains(&op.subject());
        let drift: Vec<&Op> = ops.iter().filter(is_drift).collect();
        if !drift.is_empty() {
            warn!(changes = drift.len(), "another program changed the kernel's state; repairs it");
            self.status.send_modify(|status| status.drift_repaired += drift.len() as u64);
            self.observer.drifted(&drift);
        }
        drift.len()
    }

    /// True if a retry is pending for a subject and not due yet.
    pub(super) fn is_put_off(&self, subject: &Subject, now: Instant) -> bool {
        self.retry_queue.is_put_off(subject, now)
    }

    /// Returns the operations that remove virtual servers which are ours by what was found beside
    /// them, and which no Service asks for.
    async fn strangers(&mut self, beside: Actual) -> Result<Vec<Op>, ReadFailure> {
        let listing = self.list_virtual_servers().await?;
        Ok(self.strangers_among(&listing, beside))
    }

    fn strangers_among(&self, listing: &Listing, beside: Actual) -> Vec<Op> {
        let local_addresses = self.planner.local_addresses().clone();
        let beside = Actual { local_addresses, ..beside };
        let desired = self.planner.desired();
        let ours = listing.frontends().filter(|frontend| {
            desired.owner(frontend).is_none() && self.planner.is_ours(frontend, &beside)
        });
        let mut ours: Vec<Frontend> = ours.collect();
        ours.sort_unstable();
        ours.into_iter().map(Op::RemoveVirtualServer).collect()
    }
}

/// True if nothing else of the same part can be done before this operation.
fn others_rest_on(op: &Op) -> bool {
    matches!(op, Op::CreateLink | Op::CreateSet(..))
}
