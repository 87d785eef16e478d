//! Sending operations to the kernel, and what becomes of their results.

use std::collections::{BTreeMap, HashSet};

use plan::kernel::Frontend;
use plan::model::ServiceName;
use plan::op::{Op, Phase, Subject};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::drain::Known;
use super::retry_queue::RetryQueue;
use super::{Reconciler, Status};
use crate::kernel::worker::WorkerGone;
use crate::kernel::{ReadError, Refusal, RefusalClass};

/// Most operations in one request to the kernel.
const MOST_OPERATIONS: usize = 8_192;

/// Most lines of the log for what happens to many at once, before the number of the others: with a
/// full set or without a capability, there are tens of thousands.
const MOST_TOLD: usize = 10;

/// Basis from which operations were computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Basis {
    /// The difference between what was and what is now desired.
    Plan,
    /// The difference between what was read and what is desired.
    Reading,
}

impl Reconciler {
    /// Sends operations to the kernel: what everything rests on and the API server's own service
    /// first, since without it nothing on this node can follow the cluster; then the rest.
    pub(super) async fn carry_out(
        &mut self,
        mut ops: Vec<Op>,
        basis: Basis,
    ) -> Result<(), WorkerGone> {
        if basis == Basis::Plan {
            ops = self.let_drain(ops, Known::Nothing, Instant::now());
            self.hold_back(&mut ops);
        }
        ops.sort_by_key(Op::phase);
        let api_server = self.planner.asked_for_by(&ServiceName::new("default", "kubernetes"));
        let (first, rest): (Vec<Op>, Vec<Op>) = ops
            .into_iter()
            .partition(|op| op.is_prerequisite() || api_server.contains(&op.subject()));
        self.apply(first, basis).await?;
        self.apply(rest, basis).await
    }

    /// Takes out what is about something that is pending: it starts from a state that is not known.
    /// That is looked at again instead, at once.
    pub(super) fn hold_back(&mut self, ops: &mut Vec<Op>) {
        if self.retry_queue.is_empty() {
            return;
        }
        let now = Instant::now();
        let retry_queue = &mut self.retry_queue;
        ops.retain(|op| {
            let subject = op.subject();
            let pending = retry_queue.contains(&subject);
            if pending {
                retry_queue.retry_now(&subject, now);
            }
            !pending
        });
    }

    /// Sends operations, which are in the order of their phases, to the kernel. What tells whose a
    /// virtual server is comes before it, and goes after it: it is not made while that could not be
    /// written, and that stays while it could not be removed. What leads clients to a short circuit
    /// comes after the short circuit, and goes before it: see [`super::short_circuits`].
    pub(super) async fn apply(&mut self, ops: Vec<Op>, basis: Basis) -> Result<(), WorkerGone> {
        let disowns = |op: &Op| !self.planner.disowned_by(op).is_empty();
        let (mut last, mut ops): (Vec<Op>, Vec<Op>) = ops.into_iter().partition(disowns);
        let mut failed = HashSet::new();
        if let Some(first) = ops.iter().position(|op| matches!(op, Op::CreateVirtualServer(..))) {
            let rest = ops.split_off(first);
            self.send(ops, basis, &mut failed).await?;
            ops = rest;
            self.await_signs(&mut ops);
        }
        let mut leading: Vec<Op> = ops.extract_if(.., |op| op.leads_to_short_circuits()).collect();
        let mut after = Vec::new();
        if !leading.is_empty() || !self.retry_queue.is_empty() {
            after.extend(ops.extract_if(.., |op| op.phase() > Phase::LED_OFF));
        }
        self.send(ops, basis, &mut failed).await?;
        self.cut_off(&failed, &mut leading);
        self.await_short_circuits(&mut leading);
        let cut = self.removed_though_desired(&leading);
        self.send(leading, basis, &mut failed).await?;
        self.keep_pending(cut, &failed);
        self.keep_short_circuits(&mut after);
        self.send(after, basis, &mut failed).await?;
        self.keep_signs(&mut last);
        self.send(last, basis, &mut failed).await
    }

    /// Holds back virtual servers as long as their ownership marker is pending. Without a marker
    /// they would stay for ever if their Service went while no process ran.
    fn await_signs(&mut self, ops: &mut Vec<Op>) {
        if self.retry_queue.is_empty() {
            return;
        }
        let (planner, retry_queue) = (&self.planner, &mut self.retry_queue);
        let mut waiting = HashSet::new();
        ops.retain(|op| {
            if let Op::CreateVirtualServer(frontend, _) = op {
                let mut signs = planner.signs_of(frontend);
                let pending = signs.find_map(|sign| Some((sign, retry_queue.due_time(&sign)?)));
                if let Some((sign, due)) = pending {
                    let reason = format!("{sign} is not there yet, and has to come first");
                    retry_queue.wait(op.clone(), Refusal::new(RefusalClass::Other, reason), due);
                    waiting.insert(op.subject());
                }
            }
            !waiting.contains(&op.subject())
        });
        self.status.send_modify(|status| note_pending(status, &self.retry_queue));
    }

    /// Holds back removals of ownership markers as long as their virtual servers are pending. After
    /// a restart, virtual servers without a marker would not be known as ours.
    fn keep_signs(&mut self, ops: &mut Vec<Op>) {
        if ops.is_empty() || self.retry_queue.is_empty() {
            return;
        }
        let now = Instant::now();
        let (planner, retry_queue) = (&self.planner, &mut self.retry_queue);
        ops.retain(|op| {
            let mut frontends = planner.disowned_by(op).into_iter().map(Subject::VirtualServer);
            let Some(subject) = frontends.find(|subject| retry_queue.contains(subject)) else {
                return true;
            };
            let reason = format!(
                "{subject} may still be there, and would have no owner; it has to go first"
            );
            retry_queue.record(op.clone(), Refusal::new(RefusalClass::Other, reason), now);
            false
        });
        self.status.send_modify(|status| note_pending(status, &self.retry_queue));
    }

    /// Sends operations to the kernel as they are. `failed`: of which subjects any was refused.
    async fn send(
        &mut self,
        ops: Vec<Op>,
        basis: Basis,
        failed: &mut HashSet<Subject>,
    ) -> Result<(), WorkerGone> {
        let mut rest = ops;
        while !rest.is_empty() {
            let later = rest.split_off(rest.len().min(MOST_OPERATIONS));
            self.planner.make_room(&mut rest);
            // A set that could not grow is as it was: what fits goes in all the same.
            let now = Instant::now();
            rest.retain(|op| {
                !matches!(op, Op::GrowSet(..)) || !self.is_put_off(&op.subject(), now)
            });
            let (ops, results) = self.kernel.apply(rest).await?;
            let took = now.elapsed();
            self.observer.written(&ops, &results, took);
            let (total, refused) = (ops.len(), results.iter().filter(|it| it.is_err()).count());
            self.note(ops, results, basis, failed);
            debug!(
                operations = total,
                failed = refused,
                milliseconds = took.as_millis(),
                "written to the kernel"
            );
            rest = later;
        }
        Ok(())
    }

    /// Takes account of what became of operations.
    fn note(
        &mut self,
        ops: Vec<Op>,
        results: Vec<Result<(), Refusal>>,
        basis: Basis,
        failed: &mut HashSet<Subject>,
    ) {
        let now = Instant::now();
        let total = ops.len();
        let (done, refused): (Vec<_>, Vec<_>) =
            ops.into_iter().zip(results).partition(|(_, result)| result.is_ok());
        let n_refused = refused.len();
        let mut news: BTreeMap<RefusalClass, usize> = BTreeMap::new();
        for (op, result) in refused {
            // The first failure explains those that follow from it on the same subject.
            if let Err(refusal) = result
                && failed.insert(op.subject())
            {
                let (class, text) = (refusal.class, format!("{op}: {refusal}"));
                self.note_missing_scheduler(&op, &refusal);
                if class == RefusalClass::Conflict && self.is_running() {
                    self.alarm();
                }
                if self.retry_queue.record(op, refusal, now) {
                    let n_news = news.entry(class).or_default();
                    *n_news += 1;
                    if *n_news <= MOST_TOLD {
                        warn!("{text}");
                    }
                }
            }
        }
        for (class, n_news) in news.into_iter().filter(|(_, n_news)| *n_news > MOST_TOLD) {
            let more = n_news - MOST_TOLD;
            warn!("{more} more operations were refused in the same way{}", class.hint());
        }
        let mut in_order = Vec::new();
        for (op, _) in done {
            debug!("{op}");
            self.planner.carried_out(&op);
            // A subject is in order only if all of what it needed was done.
            if basis != Basis::Plan && !failed.contains(&op.subject()) {
                in_order.push(op.subject());
            }
        }
        self.settle(&in_order);
        self.status.send_modify(|status| {
            status.operations += total as u64;
            status.failures += n_refused as u64;
            note_pending(status, &self.retry_queue);
        });
    }

    /// Has virtual servers looked at again that are there and could not be read.
    pub(super) fn owe_unread(&mut self, unread: &[(Frontend, ReadError)]) {
        let now = Instant::now();
        for (frontend, error) in unread {
            // What it would take at most.
            let desired = self.planner.repair(frontend, None).into_iter().next();
            let op = desired.unwrap_or(Op::RemoveVirtualServer(*frontend));
            self.flows.note_ops(std::slice::from_ref(&op), &self.planner);
            self.retry_queue.record(op, Refusal::new(RefusalClass::AnswerLost, error), now);
        }
        self.status.send_modify(|status| note_pending(status, &self.retry_queue));
    }

    /// Strikes out what is pending for these, which are as they should be.
    pub(super) fn settle(&mut self, subjects: &[Subject]) {
        let mut n_settled = 0_usize;
        for subject in subjects {
            if self.retry_queue.resolve(subject) {
                n_settled += 1;
                if n_settled <= MOST_TOLD {
                    info!("{subject} is in order again");
                }
                self.retry_those_told_by(subject);
                self.retry_waiting_for(subject);
            }
        }
        if n_settled > MOST_TOLD {
            info!("{} more are in order again", n_settled - MOST_TOLD);
        }
        if n_settled > 0 {
            self.status.send_modify(|status| note_pending(status, &self.retry_queue));
        }
    }

    /// Has the virtual servers looked at again that may have waited for this entry.
    fn retry_those_told_by(&mut self, subject: &Subject) {
        let Subject::Entry(set, entry) = subject else { return };
        let now = Instant::now();
        for frontend in self.planner.told_by(*set, entry) {
            self.retry_queue.retry_now(&Subject::VirtualServer(frontend), now);
        }
    }
}

pub(super) fn note_pending(status: &mut Status, retry_queue: &RetryQueue) {
    status.pending = retry_queue.len();
    status.has_pending_prerequisite = retry_queue.prerequisites().next().is_some();
}
