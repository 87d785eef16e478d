//! Looking again, at single things: what was refused, and what is draining.

use std::sync::Arc;
use std::time::Duration;

use plan::kernel::Frontend;
use plan::op::{Op, Subject};
use plan::planner::Planner;
use tokio::time::Instant;

use super::drain::Known;
use super::observer::RoundKind;
use super::patrol::{LARGEST_CHUNK, Part};
use super::rounds::Ended;
use super::writing::Basis;
use super::{Pace, READ_RETRY, Reconciler};
use crate::kernel::worker::WorkerGone;
use crate::kernel::{ReadError, RefusalClass};

/// So many readings of virtual servers may fail in one go: enough to find some among
/// [`LARGEST_CHUNK`] that cannot be read.
const MOST_FAILURES: u32 = 4 * LARGEST_CHUNK.ilog2();

/// A virtual server that could not be read even by itself, while others wait, waits for so long:
/// several turns of the others, so that it is not the first again each time, and they come to be
/// read where dozens like it are in the way.
const LONE_RETRY: Duration = READ_RETRY.saturating_mul(4);

/// None may fail after this time: the kernel does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

impl Reconciler {
    /// Looks again at what was refused, where the time has come.
    pub(super) async fn second_looks(&mut self) -> Result<(), WorkerGone> {
        let now = Instant::now();
        let mut due = self.ledger.due(now);
        if !self.is_running() {
            // What is not taken over yet would be in excess.
            due.retain(|subject| self.rests_on(subject).is_none());
        }
        if due.is_empty() {
            return Ok(());
        }
        let mut ops = Vec::new();
        let mut frontends = Vec::new();
        let mut seen: Vec<Part> = Vec::new();
        for subject in &due {
            match (subject, self.rests_on(subject)) {
                (_, Some(part)) if seen.contains(&part) => {}
                (_, Some(part)) => {
                    self.look_again_at(&part, &due).await?;
                    seen.push(part);
                }
                (Subject::VirtualServer(frontend), _) => frontends.push(*frontend),
                (subject, None) => ops.extend(self.as_wished(*subject)),
            }
        }
        ops.extend(self.look_again_at_each(&frontends).await?);
        self.carry_out(ops, Basis::Reading).await?;
        let ended = Ended { kind: RoundKind::SecondLook, took: now.elapsed(), oldest: None };
        self.round_ended(ended);
        Ok(())
    }

    /// The part of the kernel that is to be compared because of something owed: something that
    /// others rest on, or an answer that makes no sense unless something that it rests on is gone.
    fn rests_on(&self, subject: &Subject) -> Option<Part> {
        let class = self.ledger.get(subject).map(|owed| owed.refusal.class);
        let surprise = class == Some(RefusalClass::Surprise);
        // A set that is full has entries that we do not know of, or is smaller than we know.
        let full = class == Some(RefusalClass::SetFull);
        match subject {
            Subject::Link => Some(Part::Addresses),
            Subject::Address(_) | Subject::Route(_) if surprise => Some(Part::Addresses),
            Subject::Set(set) => Some(Part::Set(*set)),
            Subject::Entry(set, _) if surprise || full => Some(Part::Set(*set)),
            Subject::Layer(_) => Some(Part::Layers),
            Subject::Entry(..)
            | Subject::Address(_)
            | Subject::Route(_)
            | Subject::VirtualServer(_) => None,
        }
    }

    async fn look_again_at(&mut self, part: &Part, due: &[Subject]) -> Result<(), WorkerGone> {
        match self.inspect(part).await? {
            None => {
                let retry = Instant::now() + READ_RETRY;
                for subject in due {
                    if self.rests_on(subject).as_ref() == Some(part) {
                        self.ledger.postpone(subject, retry);
                    }
                }
            }
            Some(0) => {}
            Some(_) => self.alarm(),
        }
        Ok(())
    }

    /// What mends virtual servers. Those that cannot be read are put off, and do not keep others
    /// from being read; but a kernel that does not answer is not asked for each.
    async fn look_again_at_each(&mut self, frontends: &[Frontend]) -> Result<Vec<Op>, WorkerGone> {
        let started = Instant::now();
        let (mut ops, mut n_failures) = (Vec::new(), 0);
        let mut left: Vec<&[Frontend]> = frontends.chunks(LARGEST_CHUNK).rev().collect();
        while let Some(chunk) = left.pop() {
            let error = match self.second_look(chunk).await? {
                Ok(mending) => {
                    ops.extend(mending);
                    continue;
                }
                Err(error) => error,
            };
            n_failures += 1;
            let gives_up = n_failures == MOST_FAILURES || started.elapsed() >= PATIENCE;
            if chunk.len() > 1 && !gives_up {
                let (one, other) = chunk.split_at(chunk.len() / 2);
                left.extend([other, one]);
                continue;
            }
            self.reading_failed(&error);
            let is_in_the_way = chunk.len() == 1 && frontends.len() > 1;
            self.postpone_reading(chunk, if is_in_the_way { LONE_RETRY } else { READ_RETRY });
            if gives_up {
                left.drain(..).for_each(|others| self.postpone_reading(others, READ_RETRY));
            }
        }
        Ok(ops)
    }

    fn postpone_reading(&mut self, frontends: &[Frontend], pause: Duration) {
        let due = Instant::now() + pause;
        for frontend in frontends {
            self.ledger.postpone(&Subject::VirtualServer(*frontend), due);
        }
    }

    async fn second_look(
        &mut self,
        frontends: &[Frontend],
    ) -> Result<Result<Vec<Op>, ReadError>, WorkerGone> {
        let found = match self.kernel.read_virtual_servers(frontends.into()).await? {
            Ok(found) => found,
            Err(error) => return Ok(Err(error)),
        };
        let (mut ops, now) = (Vec::new(), Instant::now());
        for (frontend, found) in frontends.iter().zip(&found) {
            let mending = self.planner.repair(frontend, found.as_ref());
            let known = Known::One(*frontend, found.as_ref());
            let mending = self.let_drain(mending, known, now);
            if mending.is_empty() {
                self.settle(&Subject::VirtualServer(*frontend));
            }
            ops.extend(mending);
        }
        Ok(Ok(ops))
    }

    /// What makes an entry, an address or a route as it is wished for.
    fn as_wished(&self, subject: Subject) -> Option<Op> {
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
            Subject::Link | Subject::Set(_) | Subject::Layer(_) | Subject::VirtualServer(_) => None,
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
        let found = match self.kernel.read_virtual_servers(Arc::clone(&due)).await? {
            Ok(found) => found,
            Err(error) => {
                self.reading_failed(&error);
                self.drain.postpone(started, Instant::now() + READ_RETRY);
                return Ok(());
            }
        };
        let mut ops = Vec::new();
        for (frontend, found) in due.iter().zip(&found) {
            let time = drain_time(&self.planner, &self.pace, frontend);
            ops.extend(self.drain.check(*frontend, found.as_ref(), time, Instant::now()));
        }
        // Their time has come: these are not to be drained once more.
        if ops.is_empty() {
            return Ok(());
        }
        // What else may be owed of them was not looked at.
        self.apply(ops, Basis::Plan).await?;
        let ended = Ended { kind: RoundKind::SecondLook, took: started.elapsed(), oldest: None };
        self.round_ended(ended);
        Ok(())
    }
}

/// How long the connections of a frontend's endpoints may take to end.
fn drain_time(planner: &Planner, pace: &Pace, frontend: &Frontend) -> Duration {
    let chosen = planner.desired().drain_seconds(frontend);
    chosen.map_or(pace.longest_drain, |seconds| Duration::from_secs(seconds.into()))
}
