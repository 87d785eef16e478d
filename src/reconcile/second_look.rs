//! Looking again, at single things: what was refused, and what is draining.

use std::time::Duration;

use plan::actual::ActualVirtualServer;
use plan::kernel::Frontend;
use plan::op::{Op, Subject};
use plan::planner::Planner;
use tokio::time::Instant;

use super::drain::Known;
use super::observer::RoundKind;
use super::{Basis, Pace, READ_RETRY, Reconciler};
use crate::kernel::worker::WorkerGone;
use crate::kernel::{ReadError, RefusalClass};

impl Reconciler {
    /// Looks again at what was refused, where the time has come.
    pub(super) async fn second_looks(&mut self) -> Result<(), WorkerGone> {
        let now = Instant::now();
        let due = self.ledger.due(now);
        if due.is_empty() {
            return Ok(());
        }
        let mut ops = Vec::new();
        for subject in due {
            let class = self.ledger.get(&subject).map(|owed| owed.refusal.class);
            // A set that is full has entries that we do not know of, or is smaller than we know.
            let surprise = matches!(class, Some(RefusalClass::Surprise | RefusalClass::SetFull));
            match subject {
                Subject::VirtualServer(frontend) => {
                    match self.read_virtual_server(frontend).await? {
                        Ok(actual) => {
                            let mending = self.planner.repair(&frontend, actual.as_ref());
                            let known = Known::One(frontend, actual.as_ref());
                            let mending = self.let_drain(mending, known);
                            if mending.is_empty() {
                                self.settle(&subject);
                            }
                            ops.extend(mending);
                        }
                        Err(error) => {
                            self.reading_failed(&error);
                            self.ledger.postpone(&subject, now + READ_RETRY);
                        }
                    }
                }
                // Something that others rest on, or an answer that makes no sense unless
                // something they rest on is gone: all is read anew.
                Subject::Link | Subject::Set(_) | Subject::Layer(_) => return self.compare().await,
                Subject::Entry(..) | Subject::Address(_) | Subject::Route(_) if surprise => {
                    return self.compare().await;
                }
                Subject::Entry(..) | Subject::Address(_) | Subject::Route(_) => {
                    ops.extend(self.as_wished(subject));
                }
            }
        }
        self.carry_out(ops, Basis::SecondLook).await?;
        self.round_ended(RoundKind::SecondLook, now);
        Ok(())
    }

    async fn read_virtual_server(
        &mut self,
        frontend: Frontend,
    ) -> Result<Result<Option<ActualVirtualServer>, ReadError>, WorkerGone> {
        let found = self.kernel.read_virtual_servers([frontend].into()).await?;
        Ok(found.map(|found| found.into_iter().next().flatten()))
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
    pub(super) fn let_drain(&mut self, ops: Vec<Op>, known: Known<'_>) -> Vec<Op> {
        let (planner, pace) = (&self.planner, &self.pace);
        let time = |frontend: &Frontend| drain_time(planner, pace, frontend);
        self.drain.rewrite(ops, known, &time, Instant::now())
    }

    /// Removes the draining real servers whose last connection has ended, or whose time is up.
    pub(super) async fn check_draining(&mut self) -> Result<(), WorkerGone> {
        let mut ops = Vec::new();
        for frontend in self.drain.due(Instant::now()) {
            match self.read_virtual_server(frontend).await? {
                Ok(actual) => {
                    let time = drain_time(&self.planner, &self.pace, &frontend);
                    let now = Instant::now();
                    ops.extend(self.drain.check(frontend, actual.as_ref(), time, now));
                }
                // The others would say the same.
                Err(error) => {
                    self.reading_failed(&error);
                    let now = Instant::now();
                    self.drain.postpone(now, now + READ_RETRY);
                    break;
                }
            }
        }
        // Their time has come: these are not to be drained once more.
        if ops.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let (ops, results) = self.kernel.apply(ops).await?;
        self.note(ops, results, Basis::SecondLook, started);
        self.round_ended(RoundKind::SecondLook, started);
        Ok(())
    }
}

/// How long the connections of a frontend's endpoints may take to end.
fn drain_time(planner: &Planner, pace: &Pace, frontend: &Frontend) -> Duration {
    let chosen = planner.desired().drain_seconds(frontend);
    chosen.map_or(pace.longest_drain, |seconds| Duration::from_secs(seconds.into()))
}
