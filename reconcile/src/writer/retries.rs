//! Retries: the kernel is read again where it refused a write, and where real servers drain.

use std::sync::Arc;

use plan::chains::ChainSubject;
use plan::comparison::Part;
use plan::kernel_objects::Frontend;
use plan::model::Family;
use plan::op::{Op, PartKind, Subject};
use plan::planner::Planner;
use plan::virtual_server::DesiredFrontend;
use tokio::time::Instant;

use super::drain::Known;
use super::rounds::Ended;
use super::{Basis, Writer, chains};
use crate::context::{Context, LARGEST_CHUNK};
use crate::observer::RoundKind;
use crate::pace::READ_RETRY;
use crate::retry_queue::RetryQueue;
use kernel::RefusalClass;
use kernel::worker::WorkerGone;

/// Refused writes whose time to be tried again has come.
pub(crate) struct DueRetries {
    /// Time at which it had come.
    since: Instant,
    subjects: Vec<Subject>,
}

impl Writer {
    /// Returns what was refused, and is to be tried again by now. Without `may_compare`, leaves those out for
    /// which a part of the kernel is to be compared: what is not taken over yet would be in excess.
    pub(crate) fn due_retries(&self, cx: &Context, may_compare: bool) -> DueRetries {
        let now = Instant::now();
        let mut subjects = self.retry_queue.due(now);
        if !may_compare {
            subjects.retain(|subject| rests_on(&cx.planner, &self.retry_queue, subject).is_none());
        }
        DueRetries { since: now, subjects }
    }

    /// Returns the parts of the kernel that are to be compared before these retries. The repair of those that are
    /// repaired beside the loop begins here.
    pub(crate) fn parts_to_compare(&mut self, cx: &mut Context, due: &DueRetries) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for subject in &due.subjects {
            let part = rests_on(&cx.planner, &self.retry_queue, subject);
            let Some(part) = part.filter(|part| !parts.contains(part)) else { continue };
            if !self.repairs_beside(cx, &part) {
                parts.push(part);
            }
        }
        parts
    }

    /// Puts off the retries that rest on a part that could not be read.
    pub(crate) fn postpone_resting_on(&mut self, cx: &Context, due: &DueRetries, part: &Part) {
        let retry = Instant::now() + READ_RETRY;
        for subject in &due.subjects {
            if rests_on(&cx.planner, &self.retry_queue, subject).as_ref() == Some(part) {
                self.retry_queue.postpone(subject, retry);
            }
        }
    }

    /// Retries what was refused, but for what a comparison has resolved or put off, or is to come before.
    pub(crate) async fn retry(
        &mut self,
        cx: &mut Context,
        due: DueRetries,
    ) -> Result<(), WorkerGone> {
        let DueRetries { since: now, subjects: mut due } = due;
        if due.is_empty() {
            return Ok(());
        }
        let mut ops = Vec::new();
        let mut frontends = Vec::new();
        let is_due = |it: &&Subject| self.retry_queue.due_time(it).is_some_and(|due| due <= now);
        let rests_on = |it: &&Subject| rests_on(&cx.planner, &self.retry_queue, it);
        due = due.iter().filter(|it| is_due(it) && rests_on(it).is_none()).copied().collect();
        for subject in &due {
            match subject {
                Subject::VirtualServer(frontend) => frontends.push(*frontend),
                Subject::Chain(chain) => ops.extend(self.chain_retry(cx, *chain)),
                subject => ops.extend(as_desired(&cx.planner, *subject)),
            }
        }
        chains::merge(&mut ops);
        let alone = chains::set_apart(&mut ops, cx, &self.retry_queue);
        ops.extend(self.read_for_retry(cx, &frontends).await?);
        self.carry_out(cx, ops, Basis::Reading).await?;
        for op in alone {
            self.carry_out(cx, vec![op], Basis::Reading).await?;
        }
        self.round_ended(cx, Ended { kind: RoundKind::Retry, took: now.elapsed(), oldest: None });
        Ok(())
    }

    /// Returns the operations that repair virtual servers. Those that cannot be read are put off,
    /// or removed if no Service asks for them.
    async fn read_for_retry(
        &mut self,
        cx: &mut Context,
        frontends: &[Frontend],
    ) -> Result<Vec<Op>, WorkerGone> {
        let mut ops = Vec::new();
        let mut rest = frontends;
        while !rest.is_empty() {
            let (chunk, others) = rest.split_at(rest.len().min(LARGEST_CHUNK));
            let seen = cx.read_virtual_servers(&chunk.into()).await;
            let Some(seen) = cx.or_report(seen)? else {
                // A kernel that does not answer is not asked once for each chunk.
                self.postpone_reading(rest.iter());
                break;
            };
            let unread = seen.unread.iter().map(|(frontend, _)| *frontend);
            let (unwanted, unread): (Vec<_>, Vec<_>) =
                unread.partition(|frontend| is_unwanted(&cx.planner, frontend));
            self.postpone_reading(unread.iter());
            // Whatever it is, it goes.
            ops.extend(unwanted.into_iter().map(Op::RemoveVirtualServer));
            let now = Instant::now();
            let mut in_order = Vec::new();
            for (frontend, found) in &seen.found {
                let repairs = cx.planner.repair(frontend, found.as_ref());
                let known = Known::One(*frontend, found.as_ref());
                let repairs = self.let_drain(cx, repairs, known, now);
                if repairs.is_empty() {
                    in_order.push(Subject::VirtualServer(*frontend));
                }
                ops.extend(repairs);
            }
            self.resolve(cx, &in_order);
            rest = others;
        }
        Ok(ops)
    }

    fn postpone_reading<'a>(&mut self, frontends: impl Iterator<Item = &'a Frontend>) {
        let due = Instant::now() + READ_RETRY;
        for frontend in frontends {
            self.retry_queue.postpone(&Subject::VirtualServer(*frontend), due);
        }
    }

    /// Keeps the draining real servers of a family until this time, or their deadline, even without
    /// connections.
    pub(crate) fn hold_draining(&mut self, family: Family, until: Instant) {
        self.drain.hold(family, until);
    }

    /// Returns true once when the time has come until which a family was held.
    pub(crate) fn take_ended_hold(&mut self, family: Family, now: Instant) -> bool {
        self.drain.take_ended_hold(family, now)
    }

    /// Removes the draining real servers whose last connection has ended, or whose time is up.
    pub(crate) async fn check_draining(&mut self, cx: &mut Context) -> Result<(), WorkerGone> {
        let started = Instant::now();
        let due: Arc<[Frontend]> = self.drain.due(started).into();
        if due.is_empty() {
            return Ok(());
        }
        let seen = cx.read_virtual_servers(&due).await;
        let Some(mut seen) = cx.or_report(seen)? else {
            self.drain.postpone_due(started, Instant::now() + READ_RETRY);
            return Ok(());
        };
        let unread = seen.unread.iter().map(|(frontend, _)| *frontend);
        self.drain.postpone(unread, Instant::now() + READ_RETRY);
        let n_connections = self.drain.n_connections();
        self.open_counts.count(cx, &mut seen, n_connections).await?;
        let mut ops = Vec::new();
        for (frontend, found) in &seen.found {
            let terms = cx.drain_terms(frontend);
            ops.extend(self.drain.check(*frontend, found.as_ref(), terms, Instant::now()));
        }
        self.flows.note_over(self.drain.take_over());
        // A pending retry will find more of the virtual server than what was known to drain.
        let is_pending = |it: &Frontend| self.retry_queue.contains(&Subject::VirtualServer(*it));
        ops.retain(|op| !matches!(op, Op::RemoveVirtualServer(frontend) if is_pending(frontend)));
        if ops.is_empty() {
            return Ok(());
        }
        // Not `carry_out`, which would let them drain once more. What else may be pending of them
        // was not compared.
        self.apply(cx, ops, Basis::Plan).await?;
        self.round_ended(
            cx,
            Ended { kind: RoundKind::Retry, took: started.elapsed(), oldest: None },
        );
        Ok(())
    }
}

/// Returns the part of the kernel that is to be compared because of a pending retry: if the subject
/// is one that others rest on, or if the refusal makes no sense unless something that it rests on is
/// gone.
fn rests_on(planner: &Planner, retry_queue: &RetryQueue, subject: &Subject) -> Option<Part> {
    let class = retry_queue.get(subject).map(|pending| pending.refusal.class);
    let conflict = class == Some(RefusalClass::Conflict);
    // A set that is full has entries that we do not know of, or is smaller than we know.
    let full = class == Some(RefusalClass::SetFull);
    match subject {
        Subject::Link => Some(Part::Addresses),
        Subject::Address(_) | Subject::Route(_) if conflict => Some(Part::Addresses),
        Subject::Set(set) => Some(Part::Sets([*set].into())),
        Subject::Entry(set, _) if conflict || full => Some(Part::Sets([*set].into())),
        Subject::RuleSet(family) => Some(Part::RuleSet(*family)),
        Subject::Chain(chain) => {
            let pending = retry_queue.get(subject)?;
            let whole = Subject::Chain(ChainSubject::Chain(chain.chain()));
            let is_unknown = conflict
                || *subject != whole && retry_queue.contains(&whole)
                || chains::is_state_unknown(planner, pending, chain);
            is_unknown.then_some(Part::Chains(chain.chain().family))
        }
        Subject::Entry(..)
        | Subject::Address(_)
        | Subject::Route(_)
        | Subject::VirtualServer(_) => None,
    }
}

/// True if no Service asks for a frontend, so that it need not be read.
fn is_unwanted(planner: &Planner, frontend: &Frontend) -> bool {
    planner.settings().mode.uses(PartKind::VirtualServers)
        && matches!(planner.desired().at(frontend), DesiredFrontend::Unclaimed)
}

/// Returns the operation that gives an entry, an address or a route its desired state.
fn as_desired(planner: &Planner, subject: Subject) -> Option<Op> {
    let desired = planner.desired();
    match subject {
        Subject::Entry(set, entry) if desired.has_entry(set, &entry) => {
            Some(Op::AddEntry(set, entry))
        }
        Subject::Entry(set, entry) => Some(Op::RemoveEntry(set, entry)),
        Subject::Address(address) if desired.has_address(address) => Some(Op::BindAddress(address)),
        Subject::Address(address) => Some(Op::UnbindAddress(address)),
        Subject::Route(route) if planner.settings().has_route(&route) => Some(Op::add_route(route)),
        Subject::Route(route) => Some(Op::remove_route(route)),
        Subject::Link
        | Subject::Set(_)
        | Subject::RuleSet(_)
        | Subject::VirtualServer(_)
        | Subject::Chain(_) => None,
    }
}
