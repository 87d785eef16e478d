//! The event loop: input in, kernel changes out, nothing forgotten.
//!
//! ```text
//!   source ──Input──▶ ┌────────────┐ ──ops──▶ kernel worker
//!   addresses ──────▶ │ Reconciler │ ◀─results─
//!   timers ─────────▶ └────────────┘ ──Status──▶ watchers
//! ```
//!
//! - `start`: nothing is written before the first complete list of every source. Then
//!   what there is in the kernel is listed once, and taken over in rounds: what is right already is
//!   adopted as it is.
//! - `rounds`: from then on a change costs what it changes. Dirty Services are compiled in the
//!   order in which they became so, a limited number in one round, and the difference to their
//!   former state is written.
//! - [`retry_queue`]: what the kernel refuses stays pending and is tried again (`second_look`);
//!   what was refused because the kernel is not as we left it is read again first.
//! - `audit`: everything is compared once every sync period, a little at a time (`comparison`), and
//!   every second `drift_check` reads signs that something was flushed, and the
//!   kernel's switches (`sysctls`); of addresses the kernel tells by itself (`addresses`). What
//!   others changed is put back.
//!
//! Each turn of the loop takes what has come in, and then does a limited amount of what is due, so
//! that a change waits for a few milliseconds of other work at most.

mod addresses;
mod agenda;
mod audit;
mod comparison;
pub mod drain;
mod drift_check;
mod flows;
pub mod observer;
mod reading;
pub mod retry_queue;
mod rounds;
mod schedulers;
mod second_look;
mod short_circuits;
mod start;
mod status;
mod sysctls;
mod writing;

use std::future::Future;
use std::time::{Duration, SystemTime};

use futures::FutureExt as _;
use plan::event::Event;
use plan::model::Family;
use plan::planner::Planner;
use plan::rule_set::InvalidRuleSetSettings;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::kernel::ReadError;
use crate::kernel::address_monitor::{Changes, Happened};
use crate::kernel::worker::{KernelHandle, WorkerGone};
use audit::Audit;
use drain::Drain;
use drift_check::Expected;
use flows::Flows;
use observer::{Observer, Unobserved};
use retry_queue::RetryQueue;
use schedulers::Schedulers;
use start::Stage;
pub use status::Status;
use sysctls::Sysctls;

/// While the kernel cannot be read, it is tried again after this time.
const READ_RETRY: Duration = Duration::from_secs(5);

/// Most trigger times of changes that are kept while nothing can be written. They are for a metric.
const MOST_TRIGGERS: usize = 10_000;

/// Most inputs that are taken before the loop looks at what is due.
const MOST_INPUTS: usize = 4_096;

/// Stands for "never": one year.
const FAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Input from a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Something changed.
    Change(Event),
    /// The change of endpoints that comes next goes back to what happened then.
    Triggered(Family, SystemTime),
    /// Everything that there is has been delivered once.
    Complete,
}

/// Default of [`Pace::drain_deadline`].
pub const DEFAULT_DRAIN_DEADLINE: Duration = Duration::from_secs(15 * 60);

/// Periods of the loop, and the drain deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Changes that come within this time after a write wait for its end, and go together.
    pub min_sync_period: Duration,
    /// Period within which everything is compared with what it should be; a second at least, and
    /// longer if that takes more than a fortieth of it.
    pub sync_period: Duration,
    /// Longest time for the connections of a removed endpoint to end. `drainDeadline` sets it.
    pub drain_deadline: Duration,
}

/// The event loop's state.
#[derive(Debug)]
pub struct Reconciler {
    planner: Planner,
    kernel: KernelHandle,
    pace: Pace,
    retry_queue: RetryQueue,
    drain: Drain,
    flows: Flows,
    stage: Stage,
    audit: Audit,
    expected: Expected,
    sysctls: Sysctls,
    schedulers: Schedulers,
    /// Time at which changes may be written next.
    next_write: Instant,
    /// Start of the planner's moments, which are in microseconds.
    epoch: Instant,
    status: watch::Sender<Status>,
    observer: Box<dyn Observer>,
    /// Trigger times of the endpoint changes that are not written yet.
    triggers: Vec<(Family, SystemTime)>,
}

// === impl Pace ===

impl Default for Pace {
    /// kube-proxy's periods, and our drain deadline.
    fn default() -> Self {
        Self {
            min_sync_period: Duration::ZERO,
            sync_period: Duration::from_secs(30),
            drain_deadline: DEFAULT_DRAIN_DEADLINE,
        }
    }
}

// === impl Reconciler ===

impl Reconciler {
    /// A loop that has not begun.
    ///
    /// # Errors
    /// When the settings make no rules.
    pub fn new(
        planner: Planner,
        kernel: KernelHandle,
        pace: Pace,
    ) -> Result<Self, InvalidRuleSetSettings> {
        for family in &planner.settings().families {
            planner.rule_set(*family)?;
        }
        let now = Instant::now();
        Ok(Self {
            planner,
            kernel,
            pace,
            retry_queue: RetryQueue::default(),
            drain: Drain::new(),
            flows: Flows::default(),
            stage: Stage::Incomplete,
            audit: Audit::new(now),
            expected: Expected::default(),
            sysctls: Sysctls::default(),
            schedulers: Schedulers::default(),
            next_write: now,
            epoch: now,
            status: watch::Sender::new(Status::default()),
            observer: Box::new(Unobserved),
            triggers: Vec::new(),
        })
    }

    /// The same loop, which tells this observer what it does.
    #[must_use]
    pub fn observed_by(self, observer: Box<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// Follows what the loop does.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Runs until `shutdown` is ready. The kernel's state stays as it is then: traffic goes on.
    ///
    /// A source that ends is no reason to stop: what it said stays in force, and is looked after.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        mut addresses: Option<Changes>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), WorkerGone> {
        tokio::pin!(shutdown);
        let mut source_ended = false;
        loop {
            let wake = self.next_wake();
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                input = inputs.recv(), if !source_ended => match input {
                    Some(input) => {
                        self.take_all(input, &mut inputs);
                        // However much comes in, the node's addresses get their turn.
                        if let Some(happened) = changed(&mut addresses).now_or_never() {
                            self.addresses_changed(happened).await?;
                        }
                    }
                    None => {
                        warn!("the source has ended; what it said last stays in force");
                        source_ended = true;
                    }
                },
                happened = changed(&mut addresses) => self.addresses_changed(happened).await?,
                () = sleep_until(wake) => {}
            }
            // A write under way need not be waited for: the next process reads its result.
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                done = self.step() => done?,
            }
        }
    }

    /// Takes an input, and whatever else is there already.
    fn take_all(&mut self, first: Input, inputs: &mut mpsc::Receiver<Input>) {
        let moment = self.moment();
        let mut next = Some(first);
        let mut room = MOST_INPUTS;
        let mut n_changes = 0;
        while let Some(input) = next {
            match input {
                Input::Change(event) => {
                    self.take_at(event, moment);
                    n_changes += 1;
                }
                Input::Triggered(family, at) => {
                    if self.triggers.len() < MOST_TRIGGERS {
                        self.triggers.push((family, at));
                    }
                }
                Input::Complete => self.stage.source_is_complete(),
            }
            room -= 1;
            next = if room > 0 { inputs.try_recv().ok() } else { None };
        }
        self.observer.taken(n_changes);
        if self.stage.may_write() && self.planner.is_dirty() {
            self.observer.waiting(self.planner.backlog());
        }
    }

    fn take(&mut self, event: Event) {
        self.take_at(event, self.moment());
    }

    fn take_at(&mut self, event: Event, moment: u64) {
        self.observer.arrived(&event);
        self.planner.apply_at(event, moment);
    }

    /// Now, for the planner: in microseconds.
    fn moment(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn next_wake(&self) -> Instant {
        let now = Instant::now();
        match &self.stage {
            Stage::Incomplete => now + FAR,
            Stage::Unread(retry) => *retry,
            Stage::TakingOver(_) => now,
            Stage::Running => {
                let write = self.planner.is_dirty().then_some(self.next_write);
                let again =
                    [self.retry_queue.next_due(), self.drain.next_due(), self.flows.next_due()];
                let due = again.into_iter().flatten().chain(write);
                due.fold(self.audit.next_wake(now), Instant::min)
            }
        }
    }

    /// Does some of what is due.
    async fn step(&mut self) -> Result<(), WorkerGone> {
        let now = Instant::now();
        match &self.stage {
            Stage::Incomplete => Ok(()),
            Stage::Unread(retry) if now < *retry => Ok(()),
            Stage::Unread(_) => self.begin().await,
            Stage::TakingOver(_) => {
                self.take_over_some().await?;
                self.second_looks().await
            }
            Stage::Running => {
                if self.planner.is_dirty() && now >= self.next_write {
                    self.write_changes().await?;
                }
                self.second_looks().await?;
                self.check_draining().await?;
                self.watch_over().await?;
                self.remove_flows().await
            }
        }
    }

    /// True if the kernel has been taken over.
    fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running)
    }

    fn reading_failed(&mut self, error: &ReadError) {
        warn!("{error}; the next try is in {} s", READ_RETRY.as_secs());
        self.observer.reading_failed(error);
        self.status.send_modify(|status| status.failed_readings += 1);
    }
}

/// Ready when addresses have changed; never, if no monitor runs.
async fn changed(addresses: &mut Option<Changes>) -> Happened {
    if let Some(changes) = addresses {
        if let Some(happened) = changes.next().await {
            return happened;
        }
        *addresses = None;
    }
    std::future::pending().await
}
