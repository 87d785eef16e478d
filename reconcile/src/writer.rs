//! The writer: every operation goes to the kernel through it, and it keeps what has not succeeded
//! yet. Only the auditor's sysctls and the desired rules do not pass here.
//!
//! - `rounds`: a change costs what it changes. Dirty Services are compiled in the order in which
//!   they became so, a limited number in one round, and the difference to their former state is
//!   written.
//! - [`retry_queue`](super::retry_queue), `retries`: failed operations are retried until they
//!   succeed or are no longer desired. If the kernel was not as we left it, it is read again first.
//! - `steps`: what is sent before what; `dependencies`: an operation waits while another one that has to come first
//!   is pending.
//! - `closing`: a frontend at a local address is closed while it is not served.
//! - `balancing`: changes of schedulers go a few at a time, after everything else.
//! - `chains`: the order of changes of chains, and those of them that wait for others.
//! - `drain`: TCP real servers go when their last connection has ended.
//! - `flows`: UDP and SCTP flows that lead nowhere are removed from connection tracking, and on the fast path connections
//!   whose time is up.
//! - `repairs`: what other programs changed is put back.
//! - `rule_repairs`: the constant rules are repaired beside the loop.
//! - `schedulers`: Services get the default scheduler while the kernel lacks the one they chose.

mod balancing;
mod chains;
mod closing;
mod dependencies;
mod drain;
mod flows;
mod repairs;
mod retries;
mod rounds;
mod rule_repairs;
mod schedulers;
mod steps;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use plan::chains::ChainId;
use plan::hash::HashSet;
use plan::kernel_objects::Frontend;
use plan::model::{Family, ServiceName};
use plan::op::{Op, Subject};
use plan::rule_set::Table;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::context::Context;
use super::observer::{KernelWrite, Report};
use super::pace::READ_RETRY;
use super::recent_writes::RecentWrites;
use super::retry_queue::RetryQueue;
use balancing::Balancing;
pub(super) use chains::{is_explained, place};
use drain::OpenCounts;
pub(super) use drain::{Drain, Known, TrackedCountEnded};
use flows::{Flows, FlowsEnded};
use kernel::worker::WorkerGone;
use kernel::{ReadError, Refusal, RefusalClass};
pub(super) use rounds::Ended;
pub(super) use rule_repairs::RuleRepairEnded;
use rule_repairs::RuleRepairs;
use schedulers::Schedulers;
use steps::Step;

/// Most operations in one request to the kernel.
const MOST_OPERATIONS: usize = 8_192;

/// Most log lines for many of a kind at once, before the number of the others: with a full set or
/// without a capability, there are tens of thousands.
const MOST_LOGGED: usize = 10;

/// Most trigger times of changes that are kept while nothing can be written. They are for a metric.
const MOST_TRIGGERS: usize = 10_000;

/// Basis from which operations were computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Basis {
    /// The difference between what was and what is now desired.
    Plan,
    /// The difference between what was read and what is desired.
    Reading,
}

/// End of something that ran beside the loop.
#[derive(Debug)]
pub(super) enum BesideEnded {
    /// A repair of a family's constant rules.
    RuleRepair(RuleRepairEnded),
    /// A search for flows that lead nowhere.
    Flows(FlowsEnded),
    /// A count of connections that conntrack carries to what drains.
    TrackedCount(TrackedCountEnded),
}

/// Everything that still has to be written, and its times. Only the writer changes it: its methods
/// and the functions of `dependencies`.
#[derive(Debug)]
pub(super) struct Writer {
    /// Time at which changes may be written next: the end of a write and the minimum period.
    next_write: Instant,
    /// Trigger times of the endpoint changes that are not written yet. Input adds to them, the end
    /// of a round removes them.
    triggers: Vec<(Family, SystemTime)>,
    /// Number of rules that this round has written so far, of each table that it has changed.
    written_rules: BTreeMap<(Family, Table), usize>,
    /// Writes that the kernel refused, and those that wait for them.
    retry_queue: RetryQueue,
    /// Subjects of the last writes.
    pub(super) recent: RecentWrites,
    /// Real servers that are draining. Each operation that a difference asks for passes it.
    drain: Drain,
    /// Open connections of these, while the node leaves IPVS mode.
    open_counts: OpenCounts,
    /// Frontends whose flows may lead nowhere.
    flows: Flows,
    /// Virtual servers that are to balance otherwise.
    balancing: Balancing,
    /// Schedulers that the kernel was asked for, and those that it lacks.
    schedulers: Schedulers,
    /// Repairs of the constant rules in ipvs mode.
    rule_repairs: RuleRepairs,
    /// True if the kernel was not as we had left it, since the auditor or the takeover asked last.
    /// What a retry finds during the takeover counts for the audit after it.
    found_drift: bool,
}

impl Writer {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next_write: now,
            triggers: Vec::new(),
            written_rules: BTreeMap::new(),
            retry_queue: RetryQueue::default(),
            recent: RecentWrites::default(),
            drain: Drain::new(),
            open_counts: OpenCounts::default(),
            flows: Flows::default(),
            balancing: Balancing::default(),
            schedulers: Schedulers::default(),
            rule_repairs: RuleRepairs::default(),
            found_drift: false,
        }
    }

    /// Returns the time at which something is due; none while nothing waits.
    pub(super) fn next_wake(&self, cx: &Context) -> Option<Instant> {
        let write = cx.planner.is_dirty().then_some(self.next_write);
        let others = [
            self.retry_queue.next_due(),
            self.drain.next_due(),
            self.flows.next_due(),
            self.balancing.next_due(Instant::now()),
        ];
        others.into_iter().chain([write]).flatten().min()
    }

    /// Ends the minimum period: what comes now belongs to a change that has waited for it.
    pub(super) fn write_now(&mut self) {
        self.next_write = self.next_write.min(Instant::now());
    }

    /// Keeps the trigger time of an endpoint change until it is written.
    pub(super) fn triggered(&mut self, family: Family, at: SystemTime) {
        if self.triggers.len() < MOST_TRIGGERS {
            self.triggers.push((family, at));
        }
    }

    /// Returns the pending retries.
    pub(super) fn retry_queue(&self) -> &RetryQueue {
        &self.retry_queue
    }

    /// Returns the draining real servers.
    pub(super) fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Returns true if the kernel was not as we had left it, once.
    pub(super) fn take_drift(&mut self) -> bool {
        std::mem::take(&mut self.found_drift)
    }

    /// Begins to remove the flows that lead nowhere, of all frontends whose virtual servers are as
    /// desired, and to count those to what drains.
    pub(super) fn begin_beside(&mut self, cx: &mut Context) {
        self.flows.begin(cx, &self.retry_queue, &self.drain);
        self.drain.begin_count(&cx.kernel, Instant::now());
    }

    /// Waits for the end of what runs beside the loop.
    pub(super) async fn beside_ended(&mut self) -> Result<BesideEnded, WorkerGone> {
        tokio::select! {
            ended = self.rule_repairs.ended() => ended.map(BesideEnded::RuleRepair),
            ended = self.flows.ended() => ended.map(BesideEnded::Flows),
            ended = self.drain.count_ended() => ended.map(BesideEnded::TrackedCount),
        }
    }

    /// Takes in what a search for flows did.
    pub(super) fn flows_ended(&mut self, cx: &mut Context, ended: FlowsEnded) {
        self.flows.end(cx, ended);
    }

    /// Takes in a count of connections to what drains.
    pub(super) fn tracked_count_ended(&mut self, ended: TrackedCountEnded) {
        self.drain.end_count(ended, Instant::now());
    }

    /// Has the Services planned again whose scheduler's module has been loaded meanwhile.
    pub(super) async fn check_schedulers(&mut self, cx: &mut Context) -> Result<(), WorkerGone> {
        self.schedulers.check(cx).await
    }

    /// Turns removals into draining, where connections are to end by themselves.
    pub(super) fn let_drain(
        &mut self,
        cx: &Context,
        ops: Vec<Op>,
        known: Known<'_>,
        now: Instant,
    ) -> Vec<Op> {
        let ops = self.drain.rewrite(ops, known, &|frontend| cx.drain_terms(frontend), now);
        self.flows.note_over(self.drain.take_over());
        ops
    }

    /// Sends operations to the kernel: prerequisites and the API server's own service first, since
    /// without it nothing on this node can follow the cluster; then the rest. In iptables mode, where
    /// every COMMIT takes time of its own, its own service goes with the others.
    pub(super) async fn carry_out(
        &mut self,
        cx: &mut Context,
        mut ops: Vec<Op>,
        basis: Basis,
    ) -> Result<(), WorkerGone> {
        if basis == Basis::Plan {
            ops = self.let_drain(cx, ops, Known::Nothing, Instant::now());
            self.hold_back(&mut ops);
        }
        for subject in self.balancing.take_from(&mut ops, cx.planner.desired()) {
            // A pending retry is in order, or has failed once more, when its turn there has come.
            self.retry_queue.postpone(&subject, Instant::now() + READ_RETRY);
        }
        ops.sort_by_key(place);
        let api_server = if cx.leads_by_rules() {
            HashSet::default()
        } else {
            cx.planner.asked_for_by(&ServiceName::api_server())
        };
        let (first, rest): (Vec<Op>, Vec<Op>) = ops
            .into_iter()
            .partition(|op| op.is_prerequisite() || api_server.contains(&op.subject()));
        self.apply(cx, first, basis).await?;
        self.apply(cx, rest, basis).await
    }

    /// Notes that these operations may leave flows behind that lead nowhere.
    pub(super) fn note_flows(&mut self, cx: &Context, ops: &[Op]) {
        self.flows.note_ops(ops, &cx.planner);
    }

    /// Notes that all UDP and SCTP flows of a family may lead nowhere.
    pub(super) fn note_stateless(&mut self, cx: &Context, family: Family) {
        self.flows.note(cx.planner.stateless_of(family));
    }

    /// Removes operations whose subject has a pending retry: its state is not known. The retry is
    /// made at once instead.
    pub(super) fn hold_back(&mut self, ops: &mut Vec<Op>) {
        let now = Instant::now();
        ops.retain(|op| {
            let subject = op.subject();
            let is_pending = self.retry_queue.contains(&subject);
            if is_pending {
                self.retry_queue.retry_now(&subject, now);
            }
            !is_pending
        });
    }

    /// Sends operations, which are in the order of their phases, to the kernel, in [`steps`]. One that needs what is
    /// pending waits for it.
    pub(super) async fn apply(
        &mut self,
        cx: &mut Context,
        mut ops: Vec<Op>,
        basis: Basis,
    ) -> Result<(), WorkerGone> {
        let mut failed = HashSet::default();
        let mut openings = self.close(cx, &mut ops, basis, &mut failed).await?;
        // A closing that was refused has something wait.
        let may_wait = !self.retry_queue.is_empty();
        for (step, mut ops) in steps::of(&cx.planner, ops, may_wait) {
            let (planner, retry_queue) = (&cx.planner, &mut self.retry_queue);
            let mut cut = Vec::new();
            if step == Step::Lead {
                dependencies::cut_off(planner, retry_queue, &failed, &mut ops);
                dependencies::await_internal_frontends(planner, retry_queue, &mut ops);
                cut = dependencies::removed_though_desired(planner, &ops);
            }
            dependencies::hold(planner, retry_queue, &mut ops);
            self.send(cx, ops, basis, &mut failed).await?;
            match step {
                Step::Serve => {
                    let refused = self.close_refused(cx, basis, &mut failed).await?;
                    let served = openings.served.drain(..).chain(refused).collect();
                    self.open(cx, served, basis, &mut failed).await?;
                }
                Step::Lead => {
                    dependencies::keep_pending(&cx.planner, &mut self.retry_queue, cut, &failed);
                }
                _ => {}
            }
        }
        self.open(cx, openings.gone, basis, &mut failed).await?;
        self.report_pending(cx);
        Ok(())
    }

    /// Sends operations to the kernel as they are. Adds the subjects of refused ones to `failed`.
    async fn send(
        &mut self,
        cx: &mut Context,
        ops: Vec<Op>,
        basis: Basis,
        failed: &mut HashSet<Subject>,
    ) -> Result<(), WorkerGone> {
        let mut rest = ops;
        let most = if cx.leads_by_rules() { chains::most(cx) } else { MOST_OPERATIONS };
        while !rest.is_empty() {
            let mut later = rest.split_off(rest.len().min(most));
            let mut untried = self.schedulers.split_off_untried(cx, &mut rest);
            if !untried.is_empty() {
                untried.append(&mut later);
                later = untried;
            }
            cx.planner.insert_growth(&mut rest);
            // A set that could not grow is as it was: what fits goes in all the same.
            let now = Instant::now();
            rest.retain(|op| {
                let is_growth = matches!(op, Op::GrowSet(..));
                !is_growth || !self.retry_queue.is_put_off(&op.subject(), now)
            });
            let (ops, results) = cx.kernel.apply(rest).await?;
            self.written(cx, ops, results, now.elapsed(), basis, failed);
            self.schedulers.take_refused(&mut self.retry_queue, &mut later, failed);
            rest = later;
        }
        Ok(())
    }

    /// Takes in what the kernel did. Adds the subjects of refused operations to `failed`.
    fn written(
        &mut self,
        cx: &mut Context,
        ops: Vec<Op>,
        results: Vec<Result<(), Refusal>>,
        took: Duration,
        basis: Basis,
        failed: &mut HashSet<Subject>,
    ) {
        self.recent.note(&ops, Instant::now());
        self.rule_repairs.written(&ops);
        let write = KernelWrite { ops: &ops, results: &results, took, planner: &cx.planner };
        cx.observers.report(&Report::Written(write));
        let (total, refused) = (ops.len(), results.iter().filter(|it| it.is_err()).count());
        self.note_results(cx, ops, results, basis, failed);
        debug!(
            operations = total,
            failed = refused,
            milliseconds = took.as_millis(),
            "written to the kernel"
        );
    }

    /// Records failures for a retry, and reports successes to the planner.
    fn note_results(
        &mut self,
        cx: &mut Context,
        ops: Vec<Op>,
        results: Vec<Result<(), Refusal>>,
        basis: Basis,
        failed: &mut HashSet<Subject>,
    ) {
        let now = Instant::now();
        let mut refused = Vec::new();
        let mut done = Vec::with_capacity(ops.len());
        for (op, result) in ops.into_iter().zip(results) {
            match result {
                Ok(()) => done.push(op),
                Err(refusal) => refused.push((op, refusal)),
            }
        }
        let mut news: BTreeMap<RefusalClass, usize> = BTreeMap::new();
        for (op, refusal) in refused {
            // The first failure explains those that follow from it on the same subject.
            if failed.insert(op.subject()) {
                if let Some(awaited) = chains::awaited(&op, &refusal, &self.retry_queue) {
                    chains::wait(&mut self.retry_queue, op, &awaited);
                    continue;
                }
                let (class, text) = (refusal.class, format!("{op}: {refusal}"));
                self.schedulers.note(cx, &op, &refusal);
                self.found_drift |= class == RefusalClass::Conflict;
                if self.retry_queue.record(op, refusal, now) {
                    let n_news = news.entry(class).or_default();
                    *n_news += 1;
                    if *n_news <= MOST_LOGGED {
                        warn!("{text}");
                    }
                }
            }
        }
        for (class, n_news) in news.into_iter().filter(|(_, n_news)| *n_news > MOST_LOGGED) {
            let more = n_news - MOST_LOGGED;
            warn!("{more} more operations failed in the same way{}", class.hint());
        }
        let (mut in_order, has_pending) = (Vec::new(), !self.retry_queue.is_empty());
        for op in done {
            debug!("{op}");
            if let Op::Chain(change) = &op {
                let ChainId { family, table, .. } = change.chain();
                *self.written_rules.entry((family, table)).or_default() += change.n_written();
            }
            cx.planner.carried_out(&op);
            if has_pending && let Op::CreateVirtualServer(at, _) = &op {
                // It may be the first one at an address that waits for one.
                self.retry_queue.retry_now(&Subject::Address(at.address), now);
            }
            in_order.extend(chains::rules_in_order(&op, &cx.planner, &self.retry_queue));
            // A subject is in order only if all of what it needed was done.
            if has_pending && basis != Basis::Plan && !failed.contains(&op.subject()) {
                in_order.push(op.subject());
            }
        }
        self.resolve(cx, &in_order);
    }

    /// Has virtual servers retried that exist and could not be read.
    pub(super) fn retry_unread(&mut self, cx: &mut Context, unread: &[(Frontend, ReadError)]) {
        let now = Instant::now();
        for (frontend, error) in unread {
            // The most that it would take.
            let desired = cx.planner.repair(frontend, None).into_iter().next();
            let op = desired.unwrap_or(Op::RemoveVirtualServer(*frontend));
            self.flows.note_ops(std::slice::from_ref(&op), &cx.planner);
            self.retry_queue.record(op, Refusal::new(RefusalClass::AnswerLost, error), now);
        }
        self.report_pending(cx);
    }

    /// Removes the pending retries of subjects that are as desired.
    pub(super) fn resolve(&mut self, cx: &mut Context, subjects: &[Subject]) {
        let mut resolved = Vec::new();
        for subject in subjects {
            if self.retry_queue.resolve(subject) {
                resolved.push(*subject);
                if resolved.len() <= MOST_LOGGED {
                    info!("{subject} is as desired again");
                }
                dependencies::retry_dependents(&cx.planner, &mut self.retry_queue, subject);
            }
        }
        chains::retry_dependents(&mut self.retry_queue, &resolved);
        if resolved.len() > MOST_LOGGED {
            info!("{} more kernel objects are as desired again", resolved.len() - MOST_LOGGED);
        }
        self.report_pending(cx);
    }

    fn report_pending(&self, cx: &mut Context) {
        cx.observers.report(&Report::Pending {
            n_retries: self.retry_queue.len() + self.balancing.len(),
            has_prerequisite: self.retry_queue.awaited_prerequisites().next().is_some(),
        });
    }
}
