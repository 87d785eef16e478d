//! Repairs: what other programs changed is reported, and put back.

use plan::comparison::Part;
use plan::hash::HashSet;
use plan::op::{Op, Subject};
use tokio::time::Instant;
use tracing::warn;

use super::{Basis, Writer, is_explained};
use crate::context::Context;
use crate::observer::Report;
use kernel::worker::WorkerGone;

impl Writer {
    /// Writes what repairs a part of the kernel, and if all of the part was compared, resolves what
    /// is pending of it and turned out to be in order. Returns true if another program had changed
    /// the part.
    pub(crate) async fn repair(
        &mut self,
        cx: &mut Context,
        ops: Vec<Op>,
        compared: Option<&Part>,
    ) -> Result<bool, WorkerGone> {
        if let Some(part) = compared {
            self.resolve_part(cx, part, &ops, None);
        }
        let ops = self.not_put_off(ops);
        if ops.is_empty() {
            return Ok(false);
        }
        let is_drift = self.report_drift(cx, &ops);
        self.flows.note_ops(&ops, &cx.planner);
        let (prerequisites, rest): (Vec<Op>, Vec<Op>) = ops.into_iter().partition(others_rest_on);
        let rests_on: Vec<Subject> = prerequisites.iter().map(Op::subject).collect();
        self.carry_out(cx, prerequisites, Basis::Reading).await?;
        match rests_on.iter().filter_map(|subject| self.retry_queue.due_time(subject)).max() {
            // The prerequisite's retry finds the rest.
            Some(due) => self.postpone(&rest, due),
            None => self.carry_out(cx, rest, Basis::Reading).await?,
        }
        Ok(is_drift)
    }

    /// Resolves what is pending of a part and needs none of these operations. `n_writes`: the part was
    /// read after that many writes, and later ones are not in the reading.
    pub(crate) fn resolve_part(
        &mut self,
        cx: &mut Context,
        part: &Part,
        ops: &[Op],
        n_writes: Option<u64>,
    ) {
        if self.retry_queue.is_empty() {
            return;
        }
        let wrong: HashSet<Subject> = ops.iter().map(Op::subject).collect();
        let pending = self.retry_queue.iter().map(|(subject, _)| *subject);
        let is_later = |subject: &Subject| {
            n_writes.is_some_and(|n_writes| self.recent.is_written_after(subject, n_writes))
        };
        let in_order: Vec<Subject> =
            pending.filter(|it| part.has(it) && !wrong.contains(it) && !is_later(it)).collect();
        self.resolve(cx, &in_order);
    }

    /// Returns the operations that may be written now. Puts off all of them while an operation
    /// waits that the others rest on.
    fn not_put_off(&mut self, mut ops: Vec<Op>) -> Vec<Op> {
        let now = Instant::now();
        let is_put_off = |op: &Op| self.retry_queue.is_put_off(&op.subject(), now);
        // Nothing can be done while what the others rest on is missing.
        let prerequisites = ops.iter().filter(|op| others_rest_on(op) && is_put_off(op));
        let due = prerequisites.filter_map(|op| self.retry_queue.due_time(&op.subject())).max();
        if let Some(due) = due {
            self.postpone(&ops, due);
            return Vec::new();
        }
        ops.retain(|op| !is_put_off(op) && !self.balancing.has(op));
        ops
    }

    /// Puts off what is pending of these.
    fn postpone(&mut self, ops: &[Op], until: Instant) {
        for subject in ops.iter().map(Op::subject) {
            if self.retry_queue.due_time(&subject).is_some_and(|due| due < until) {
                self.retry_queue.postpone(&subject, until);
            }
        }
    }

    /// Reports what other programs changed, which is not what is pending. Returns true if they
    /// changed something.
    pub(super) fn report_drift(&mut self, cx: &mut Context, ops: &[Op]) -> bool {
        let is_drift = |op: &&Op| {
            !matches!(op, Op::GrowSet(..))
                && !self.retry_queue.contains(&op.subject())
                && !is_explained(op, &self.retry_queue)
        };
        let drift: Vec<&Op> = ops.iter().filter(is_drift).collect();
        let Some(first) = drift.first() else { return false };
        warn!(changes = drift.len(), %first, "another program changed kernel state; kube-ipvs repairs it");
        cx.observers.report(&Report::Drifted { repairs: &drift, planner: &cx.planner });
        self.found_drift = true;
        true
    }
}

/// True if nothing else of the same part can be done before this operation.
fn others_rest_on(op: &Op) -> bool {
    matches!(op, Op::CreateLink | Op::CreateSet(..))
}
