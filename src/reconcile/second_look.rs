//! Looking again, at single things: what was refused, and what is draining.

use std::sync::Arc;
use std::time::Duration;

use plan::diff::DesiredFrontend;
use plan::kernel::Frontend;
use plan::op::{Op, Subject};
use plan::planner::Planner;
use tokio::time::Instant;

use super::audit::{AuditedPart, LARGEST_CHUNK};
use super::drain::Known;
use super::observer::RoundKind;
use super::rounds::Ended;
use super::writing::Basis;
use super::{Pace, READ_RETRY, Reconciler};
use crate::kernel::RefusalClass;
use crate::kernel::worker::WorkerGone;

impl Reconciler {
    /// Looks again at what was refused, where the time has come.
    pub(super) async fn second_looks(&mut self) -> Result<(), WorkerGone> {
        let now = Instant::now();
        let mut due = self.retry_queue.due(now);
        if !self.is_running() {
            // What is not taken over yet would be in excess.
            due.retain(|subject| self.rests_on(subject).is_none());
        }
        if due.is_empty() {
            return Ok(());
        }
        let mut ops = Vec::new();
        let mut frontends = Vec::new();
        let mut seen: Vec<AuditedPart> = Vec::new();
        for subject in &due {
            match (subject, self.rests_on(subject)) {
                (_, Some(part)) if seen.contains(&part) => {}
                (_, Some(part)) => {
                    self.look_again_at(&part, &due).await?;
                    seen.push(part);
                }
                (Subject::VirtualServer(frontend), _) => frontends.push(*frontend),
                (subject, None) => ops.extend(self.as_desired(*subject)),
            }
        }
        ops.extend(self.look_again_at_each(&frontends).await?);
        self.carry_out(ops, Basis::Reading).await?;
        let ended = Ended { kind: RoundKind::SecondLook, took: now.elapsed(), oldest: None };
        self.round_ended(ended);
        Ok(())
    }

    /// The part of the kernel that is to be compared because of something pending: something that
    /// others rest on, or an answer that makes no sense unless something that it rests on is gone.
    fn rests_on(&self, subject: &Subject) -> Option<AuditedPart> {
        let class = self.retry_queue.get(subject).map(|pending| pending.refusal.class);
        let conflict = class == Some(RefusalClass::Conflict);
        // A set that is full has entries that we do not know of, or is smaller than we know.
        let full = class == Some(RefusalClass::SetFull);
        match subject {
            Subject::Link => Some(AuditedPart::Addresses),
            Subject::Address(_) | Subject::Route(_) if conflict => Some(AuditedPart::Addresses),
            Subject::Set(set) => Some(AuditedPart::Set(*set)),
            Subject::Entry(set, _) if conflict || full => Some(AuditedPart::Set(*set)),
            Subject::RuleSet(family) => Some(AuditedPart::RuleSet(*family)),
            Subject::Entry(..)
            | Subject::Address(_)
            | Subject::Route(_)
            | Subject::VirtualServer(_) => None,
        }
    }

    async fn look_again_at(
        &mut self,
        part: &AuditedPart,
        due: &[Subject],
    ) -> Result<(), WorkerGone> {
        match self.inspect(part).await? {
            None => {
                let retry = Instant::now() + READ_RETRY;
                for subject in due {
                    if self.rests_on(subject).as_ref() == Some(part) {
                        self.retry_queue.postpone(subject, retry);
                    }
                }
            }
            Some(0) => {}
            Some(_) => self.alarm(),
        }
        Ok(())
    }

    /// Returns the operations that repair virtual servers. Those that cannot be read are put off,
    /// or removed if no Service asks for them.
    async fn look_again_at_each(&mut self, frontends: &[Frontend]) -> Result<Vec<Op>, WorkerGone> {
        let mut ops = Vec::new();
        let mut rest = frontends;
        while !rest.is_empty() {
            let (chunk, others) = rest.split_at(rest.len().min(LARGEST_CHUNK));
            let seen = self.read_virtual_servers(&chunk.into()).await;
            let Some(seen) = self.or_report(seen)? else {
                // A kernel that does not answer is not asked once for each chunk.
                self.postpone_reading(rest.iter());
                break;
            };
            let unread = seen.unread.iter().map(|(frontend, _)| *frontend);
            let (unwanted, unread): (Vec<_>, Vec<_>) = unread.partition(|it| self.is_unwanted(it));
            self.postpone_reading(unread.iter());
            // Whatever it is, it goes.
            ops.extend(unwanted.into_iter().map(Op::RemoveVirtualServer));
            let now = Instant::now();
            let mut in_order = Vec::new();
            for (frontend, found) in &seen.found {
                let repairs = self.planner.repair(frontend, found.as_ref());
                let known = Known::One(*frontend, found.as_ref());
                let repairs = self.let_drain(repairs, known, now);
                if repairs.is_empty() {
                    in_order.push(Subject::VirtualServer(*frontend));
                }
                ops.extend(repairs);
            }
            self.settle(&in_order);
            rest = others;
        }
        Ok(ops)
    }

    /// True if no Service asks for a frontend, so that it need not be read.
    fn is_unwanted(&self, frontend: &Frontend) -> bool {
        matches!(self.planner.desired().at(frontend), DesiredFrontend::Unclaimed)
    }

    fn postpone_reading<'a>(&mut self, frontends: impl Iterator<Item = &'a Frontend>) {
        let due = Instant::now() + READ_RETRY;
        for frontend in frontends {
            self.retry_queue.postpone(&Subject::VirtualServer(*frontend), due);
        }
    }

    /// Returns the operation that gives an entry, an address or a route its desired state.
    fn as_desired(&self, subject: Subject) -> Option<Op> {
        let desired = self.planner.desired();
        match subject {
            Subject::Entry(set, entry) if desired.has_entry(set, &entry) => {
                Some(Op::AddEntry(set, entry))
            }
            Subject::Entry(set, entry) => Some(Op::RemoveEntry(set, entry)),
            Subject::Address(address) if desired.has_address(address) => {
                Some(Op::BindAddress(address))
            }
            Subject::Address(address) => Some(Op::UnbindAddress(address)),
            Subject::Route(route) if self.planner.settings().has_route(&route) => {
                Some(Op::AddRoute(route))
            }
            Subject::Route(route) => Some(Op::RemoveRoute(route)),
            Subject::Link | Subject::Set(_) | Subject::RuleSet(_) | Subject::VirtualServer(_) => {
                None
            }
        }
    }

    /// Turns removals into draining, where connections are to end by themselves.
    pub(super) fn let_drain(&mut self, ops: Vec<Op>, known: Known<'_>, now: Instant) -> Vec<Op> {
        let (planner, pace) = (&self.planner, &self.pace);
        let time = |frontend: &Frontend| drain_time(planner, pace, frontend);
        self.drain.rewrite(ops, known, &time, now)
    }

    /// Removes the draining real servers whose last connection has ended, or whose time is up.
    pub(super) async fn check_draining(&mut self) -> Result<(), WorkerGone> {
        let started = Instant::now();
        let due: Arc<[Frontend]> = self.drain.due(started).into();
        if due.is_empty() {
            return Ok(());
        }
        let seen = self.read_virtual_servers(&due).await;
        let Some(seen) = self.or_report(seen)? else {
            self.drain.postpone_due(started, Instant::now() + READ_RETRY);
            return Ok(());
        };
        let unread = seen.unread.iter().map(|(frontend, _)| *frontend);
        self.drain.postpone(unread, Instant::now() + READ_RETRY);
        let mut ops = Vec::new();
        for (frontend, found) in &seen.found {
            let time = drain_time(&self.planner, &self.pace, frontend);
            ops.extend(self.drain.check(*frontend, found.as_ref(), time, Instant::now()));
        }
        // A pending retry will find more of the virtual server than what was known to drain.
        let is_pending = |it: &Frontend| self.retry_queue.contains(&Subject::VirtualServer(*it));
        ops.retain(|op| !matches!(op, Op::RemoveVirtualServer(frontend) if is_pending(frontend)));
        // Their time has come: these are not to be drained once more.
        if ops.is_empty() {
            return Ok(());
        }
        // What else may be pending of them was not looked at.
        self.apply(ops, Basis::Plan).await?;
        let ended = Ended { kind: RoundKind::SecondLook, took: started.elapsed(), oldest: None };
        self.round_ended(ended);
        Ok(())
    }
}

/// Returns the longest time for the connections of a frontend's endpoints to end.
fn drain_time(planner: &Planner, pace: &Pace, frontend: &Frontend) -> Duration {
    let chosen = planner.desired().drain_seconds(frontend);
    chosen.map_or(pace.drain_deadline, |seconds| Duration::from_secs(seconds.into()))
}
