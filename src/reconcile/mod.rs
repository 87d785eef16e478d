//! The event loop: input in, kernel changes out, nothing forgotten.
//!
//! ```text
//!   source ──Input──▶ ┌────────────┐ ──ops──▶ kernel worker
//!   addresses ──────▶ │ Reconciler │ ◀─results─
//!   timers ─────────▶ └────────────┘ ──Status──▶ whoever watches
//! ```
//!
//! - Nothing is written before the first complete list of every source. Then the kernel is read
//!   once, and only the difference is written: what is right already is adopted as it is.
//! - From then on a change costs what it changes: dirty services are compiled, and the difference
//!   to their former state is written. What comes in while the kernel is busy goes together.
//! - What the kernel refuses stays in the [`ledger`] and is tried again; what was refused because
//!   the kernel is not as we left it is read again first.
//! - Every sync period the kernel is read and compared as at the start: what others changed is
//!   put back.

mod addresses;
mod comparison;
pub mod drain;
mod flows;
pub mod ledger;
pub mod observer;
mod second_look;
mod status;

use std::collections::HashSet;
use std::future::Future;
use std::time::{Duration, SystemTime};

use plan::event::Event;
use plan::layer::InvalidLayerSettings;
use plan::model::{Family, ServiceName};
use plan::op::{Op, Subject};
use plan::planner::Planner;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::kernel::address_monitor::{Changes, Happened};
use crate::kernel::worker::{KernelHandle, WorkerGone};
use crate::kernel::{ReadError, Refusal, RefusalClass};
use drain::{Drain, Known};
use flows::Flows;
use ledger::Ledger;
use observer::{Observer, Round, RoundKind, Unobserved};
pub use status::Status;

/// While the kernel cannot be read, it is tried again after this time.
const READ_RETRY: Duration = Duration::from_secs(5);

/// So many times are kept of what changes go back to, while nothing can be written. They are for a
/// metric.
const MOST_TRIGGERS: usize = 10_000;

/// What a source delivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Something changed.
    Change(Event),
    /// The change of endpoints that comes next goes back to what happened then.
    Triggered(Family, SystemTime),
    /// Everything that there is has been delivered once.
    Complete,
}

/// How the loop paces itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Changes that come within this time after a write wait for its end, and go together.
    pub min_sync_period: Duration,
    /// How often the kernel is read and compared.
    pub sync_period: Duration,
    /// How long the connections of a removed endpoint may take to end.
    pub longest_drain: Duration,
}

/// The event loop's state.
#[derive(Debug)]
pub struct Reconciler {
    planner: Planner,
    kernel: KernelHandle,
    pace: Pace,
    ledger: Ledger,
    drain: Drain,
    flows: Flows,
    /// Whether every source has delivered a complete list.
    complete: bool,
    /// When changes may be written next.
    next_write: Instant,
    /// When the kernel is to be read and compared next.
    next_reading: Instant,
    status: watch::Sender<Status>,
    observer: Box<dyn Observer>,
    /// What the endpoint changes that are not written yet go back to.
    triggers: Vec<(Family, SystemTime)>,
    /// Since when the oldest change waits that is not planned yet.
    waiting_since: Option<Instant>,
}

/// What operations were computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Basis {
    /// The difference between what was and what is now wished for.
    Plan,
    /// The difference between a reading of the kernel and what is wished for.
    Reading,
    /// A second look at some subjects.
    SecondLook,
}

// === impl Pace ===

impl Default for Pace {
    /// kube-proxy's periods, and a quarter of an hour for connections to end.
    fn default() -> Self {
        Self {
            min_sync_period: Duration::ZERO,
            sync_period: Duration::from_secs(30),
            longest_drain: Duration::from_secs(900),
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
    ) -> Result<Self, InvalidLayerSettings> {
        for family in &planner.settings().families {
            planner.layer(*family)?;
        }
        let now = Instant::now();
        Ok(Self {
            planner,
            kernel,
            pace,
            ledger: Ledger::default(),
            drain: Drain::new(),
            flows: Flows::default(),
            complete: false,
            next_write: now,
            next_reading: now,
            status: watch::Sender::new(Status::default()),
            observer: Box::new(Unobserved),
            triggers: Vec::new(),
            waiting_since: None,
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
                    Some(input) => self.take_all(input, &mut inputs),
                    None => {
                        warn!("the source has ended; what it said last stays in force");
                        source_ended = true;
                    }
                },
                happened = changed(&mut addresses) => self.addresses_changed(happened).await?,
                () = sleep_until(wake) => {}
            }
            // A write under way need not be waited for: whoever comes next reads what became of it.
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                done = self.step() => done?,
            }
        }
    }

    /// Takes an input, and whatever else is there already.
    fn take_all(&mut self, first: Input, inputs: &mut mpsc::Receiver<Input>) {
        let mut next = Some(first);
        while let Some(input) = next {
            match input {
                Input::Change(event) => self.take(event),
                Input::Triggered(family, at) => {
                    if self.triggers.len() < MOST_TRIGGERS {
                        self.triggers.push((family, at));
                    }
                }
                Input::Complete => self.complete = true,
            }
            next = inputs.try_recv().ok();
        }
        if self.complete && self.planner.is_dirty() {
            self.observer.waiting(self.planner.backlog());
        }
    }

    fn take(&mut self, event: Event) {
        self.observer.arrived(&event);
        self.planner.apply(event);
        if self.planner.is_dirty() {
            self.waiting_since.get_or_insert_with(Instant::now);
        }
    }

    fn next_wake(&self) -> Instant {
        let far = Instant::now() + Duration::from_secs(3_600);
        if !self.complete {
            return far;
        }
        let write = self.may_write().then_some(self.next_write);
        let again = [self.ledger.next_due(), self.drain.next_look(), self.flows.next_due()];
        let due = again.into_iter().flatten().chain([self.next_reading]).chain(write);
        due.min().unwrap_or(far)
    }

    /// Does whatever is due.
    async fn step(&mut self) -> Result<(), WorkerGone> {
        if !self.complete {
            return Ok(());
        }
        if Instant::now() >= self.next_reading {
            self.compare().await?;
        } else {
            if self.may_write() && Instant::now() >= self.next_write {
                self.write_changes().await?;
            }
            self.second_looks().await?;
            self.check_draining().await?;
        }
        self.remove_flows().await
    }

    /// Whether there is something to write by itself. Before the first comparison there is not:
    /// what it would rest on may not be there.
    fn may_write(&self) -> bool {
        self.status.borrow().in_sync_once && self.planner.is_dirty()
    }

    /// Writes what changed since the last write.
    async fn write_changes(&mut self) -> Result<(), WorkerGone> {
        let started = Instant::now();
        let ops = self.plan().await?;
        self.carry_out(ops, Basis::Plan).await?;
        self.next_write = Instant::now() + self.pace.min_sync_period;
        self.round_ended(RoundKind::Changes, started);
        Ok(())
    }

    // --- smaller things ---

    /// Tells that what was waiting is written, and what that goes back to.
    fn round_ended(&mut self, kind: RoundKind, started: Instant) {
        let (triggers, since) = match kind {
            RoundKind::SecondLook => (Vec::new(), None),
            RoundKind::Changes | RoundKind::Comparison => {
                (std::mem::take(&mut self.triggers), self.waiting_since.take())
            }
        };
        self.observer.round_ended(&Round {
            families: &self.planner.settings().families,
            kind,
            took: started.elapsed(),
            triggers: &triggers,
            backlog: 0,
            waiting: None,
            oldest: since.map_or(Duration::ZERO, |since| since.elapsed()),
            owed: &self.ledger,
        });
    }

    /// Compiles what is dirty, tells the kernel side which rules apply, and says what is wrong
    /// with the input.
    async fn plan(&mut self) -> Result<Vec<Op>, WorkerGone> {
        let first = !self.status.borrow().in_sync_once;
        let started = Instant::now();
        let plan = self.planner.plan();
        self.observer.planned(&plan, &self.planner, started.elapsed());
        for (service, problems) in &plan.problems {
            for problem in problems {
                warn!(%service, "{problem}");
            }
        }
        for family in self.planner.settings().families.clone() {
            if first || plan.ops.contains(&Op::WriteLayer(family)) {
                match self.planner.layer(family) {
                    Ok(layer) => self.kernel.prescribe(layer).await?,
                    Err(error) => warn!("{family} rules stay as they are: {error}"),
                }
            }
        }
        self.flows.note(plan.flows);
        Ok(plan.ops)
    }

    /// Sends operations to the kernel: what everything rests on and the API server's own service
    /// first, since without it nothing on this node can follow the cluster; then the rest.
    async fn carry_out(&mut self, ops: Vec<Op>, basis: Basis) -> Result<(), WorkerGone> {
        let now = Instant::now();
        // Whoever has read the kernel knows what drains already, and has done this.
        let mut ops = match basis {
            Basis::Plan => self.let_drain(ops, Known::Nothing),
            Basis::Reading | Basis::SecondLook => ops,
        };
        if basis == Basis::Plan {
            // What is owed starts from a state that is not known; it is looked at again instead.
            let ledger = &mut self.ledger;
            ops.retain(|op| {
                let subject = op.subject();
                let owed = ledger.owes(&subject);
                if owed {
                    ledger.hasten(&subject, now);
                }
                !owed
            });
        }
        ops.sort_by_key(Op::phase);
        let api_server = ServiceName::new("default", "kubernetes");
        let (first, rest): (Vec<Op>, Vec<Op>) = ops
            .into_iter()
            .partition(|op| op.is_foundation() || self.planner.belongs_to(&api_server, op));
        for mut ops in [first, rest] {
            if !ops.is_empty() {
                self.planner.make_room(&mut ops);
                let started = Instant::now();
                let (ops, results) = self.kernel.apply(ops).await?;
                self.note(ops, results, basis, started);
            }
        }
        Ok(())
    }

    fn note(
        &mut self,
        ops: Vec<Op>,
        results: Vec<Result<(), Refusal>>,
        basis: Basis,
        started: Instant,
    ) {
        let now = Instant::now();
        self.observer.written(&ops, &results, started.elapsed());
        let total = ops.len();
        let (done, refused): (Vec<_>, Vec<_>) =
            ops.into_iter().zip(results).partition(|(_, result)| result.is_ok());
        let failed = refused.len();
        let mut noted = HashSet::new();
        for (op, result) in refused {
            // The first failure explains those that follow from it on the same subject.
            if let Err(refusal) = result
                && noted.insert(op.subject())
            {
                let text = format!("{op}: {refusal}");
                self.note_missing_scheduler(&op, &refusal);
                if self.ledger.record(op, refusal, now) {
                    warn!("{text}");
                }
            }
        }
        for (op, _) in done {
            debug!("{op}");
            self.planner.carried_out(&op);
            // A subject is in order only if all of what it needed was done.
            if basis != Basis::Plan && !noted.contains(&op.subject()) {
                self.settle(&op.subject());
            }
        }
        info!(
            operations = total,
            failed,
            milliseconds = started.elapsed().as_millis(),
            "written to the kernel"
        );
        self.status.send_modify(|status| {
            status.operations += total as u64;
            status.failures += failed as u64;
            note_owed(status, &self.ledger);
        });
    }

    /// A Service that chose a scheduler which this kernel does not have gets the default one. That
    /// the default one is there was tried at the start.
    fn note_missing_scheduler(&mut self, op: &Op, refusal: &Refusal) {
        if let Op::CreateVirtualServer(_, server) | Op::ChangeVirtualServer(_, server) = op
            && refusal.class == RefusalClass::NoScheduler
            && server.scheduler != self.planner.settings().scheduler
        {
            self.take(Event::SchedulerMissing(server.scheduler.clone()));
        }
    }

    fn settle(&mut self, subject: &Subject) {
        if self.ledger.settle(subject) {
            info!("{subject} is in order again");
            self.status.send_modify(|status| note_owed(status, &self.ledger));
        }
    }

    fn reading_failed(&mut self, error: &ReadError) {
        warn!("{error}; the next try is in {} s", READ_RETRY.as_secs());
        self.observer.reading_failed(error);
        // A comparison that lies ahead may come sooner, and never later: single things are looked
        // at every second.
        let now = Instant::now();
        let retry = now + READ_RETRY;
        if self.next_reading <= now || self.next_reading > retry {
            self.next_reading = retry;
        }
        self.status.send_modify(|status| status.failed_readings += 1);
    }
}

fn note_owed(status: &mut Status, ledger: &Ledger) {
    status.owed = ledger.len();
    status.owes_foundation = ledger.iter().any(|(_, owed)| owed.op.is_foundation());
}

/// Ready when addresses have changed; never, if nobody watches them.
async fn changed(addresses: &mut Option<Changes>) -> Happened {
    if let Some(changes) = addresses {
        if let Some(happened) = changes.next().await {
            return happened;
        }
        *addresses = None;
    }
    std::future::pending().await
}
