//! The event loop: input in, kernel changes out, nothing forgotten.
//!
//! ```text
//!   source ──Input──▶ ┌────────────┐ ──ops──▶ kernel worker
//!   addresses ──────▶ │ Reconciler │ ◀─results─
//!   timers ─────────▶ └────────────┘ ──Status──▶ watchers
//! ```
//!
//! The [`Reconciler`] connects the parts: it takes input, and gives each part its turn. A part owns
//! its state and says when it wakes.
//!
//! - `context`: what all parts work with. It holds the planner, which has the desired state, the
//!   kernel's handle and the observers, and makes the reads that several parts need.
//! - `takeover`: brings the kernel in sync after the first complete list of every source; nothing
//!   is written before. It holds the found state that is not adopted or removed yet.
//! - `api_server`: gives up the API server's address before that, if it was left bound.
//! - `dispatch`: leads new connections to IPVS after the takeover, on a node whose connections another
//!   mode's rules led until then.
//! - `leading`: in modes of rules, says after the takeover when these lead new connections.
//! - `leaving_ipvs`: in these modes, has what IPVS mode left drain from then on.
//! - `writer`: from then on writes changes in rounds, and retries what the kernel refused. It holds
//!   the pending retries, the draining real servers, the flows to remove, and the times of these.
//! - `hand_drains`: ends drains by hand when their time is up.
//! - `service_routes`: has addresses replaced by local routes, and back, a few at a time.
//! - `auditor`: finds changes by other programs: every second by their signs, and by comparing
//!   all state but the rules and chains once every sync period. It holds the schedule of that, the
//!   expected counts, and the sysctls that another program keeps setting.
//!
//! [`differences`] compares the kernel in the same way, and writes nothing;
//! [`inquiry`] has questions answered between two turns, for the operator's console.
//!
//! `comparison` compares a part of the kernel with its desired state, for the auditor and for
//! retries. `agenda` is the queue of retries and draining real servers. [`observer`] and [`Status`]
//! are the loop's reports. `pace` has its periods.
//!
//! In ipvs mode the kernel's state is the interface, sets and virtual servers; in the others it is
//! chains (`Context::leads_by_rules`). Parts that a mode does not have are left out
//! (`Context::uses`).
//!
//! Each turn of the loop takes what has come in, and then does a limited amount of what is due, so
//! that a change waits for a few milliseconds of other work. What takes longer runs beside the loop: repairs
//! of the constant rules in ipvs mode, searches for flows, and readings of large sets.

mod agenda;
mod api_server;
mod auditor;
mod comparison;
mod context;
pub mod differences;
mod dispatch;
pub mod hand_drains;
mod input;
pub mod inquiry;
mod leading;
mod leaving_ipvs;
pub mod observer;
mod pace;
mod recent_writes;
pub mod retry_queue;
mod service_routes;
mod status;
mod takeover;
mod writer;

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use futures::FutureExt as _;
use plan::event::Event;
use plan::op::PartKind;
use plan::planner::Planner;
use plan::rule_set::InvalidRuleSetSettings;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use auditor::Auditor;
use context::Context;
use dispatch::Dispatch;
use hand_drains::HandDrains;
pub use input::Input;
use inquiry::{Asked, Inquiry, View};
use kernel::address_monitor::{AddressChanges, Happened};
use kernel::worker::{KernelHandle, WorkerGone};
use leading::Leading;
use leaving_ipvs::LeavingIpvs;
use observer::{Observer, Report};
pub use pace::{DEFAULT_DRAIN_DEADLINE, Pace};
use pace::{FAR, READ_RETRY};
use service_routes::ServiceRoutes;
pub use status::Status;
use takeover::Takeover;
use writer::{BesideEnded, Writer};

/// Pause between two steps of the takeover when no Service waits to be planned.
const TAKEOVER_STEP: Duration = Duration::from_millis(2);

/// Most inputs that are taken before the loop looks at what is due.
const MOST_INPUTS: usize = 4_096;

/// The event loop: its parts, and how far it has come.
#[derive(Debug)]
pub struct Reconciler {
    context: Context,
    writer: Writer,
    auditor: Auditor,
    /// Endpoints that an operator drains.
    hand_drains: HandDrains,
    service_routes: ServiceRoutes,
    /// Rules that lead to IPVS, on a node whose connections were led by others.
    dispatch: Dispatch,
    /// Rules that lead new connections, in modes of rules.
    leading: Leading,
    /// Virtual servers that IPVS mode left, in another mode.
    leaving_ipvs: LeavingIpvs,
    /// Questions of the operator's console; none: there is no console.
    inquiries: Option<mpsc::Receiver<Inquiry>>,
    /// Addresses of the API server that may be bound, and when to look; none: nothing is to be done.
    api_server: Option<(Vec<SocketAddr>, Instant)>,
    /// Input ends the first stage, the loop's turns the others.
    stage: Stage,
}

/// Progress of the loop.
#[derive(Debug)]
enum Stage {
    /// The source has not delivered everything yet.
    Incomplete,
    /// The kernel is to be read, not before this.
    Unread(Instant),
    /// The kernel's state is being taken over.
    TakingOver(Box<Takeover>),
    /// The kernel was once as it should be, as far as it let us.
    Running,
}

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
        let uses_ipvs = planner.settings().mode.uses(PartKind::VirtualServers);
        let leaving_ipvs = if uses_ipvs { LeavingIpvs::Left } else { LeavingIpvs::new(now) };
        Ok(Self {
            context: Context::new(planner, kernel, pace),
            writer: Writer::new(now),
            auditor: Auditor::new(now),
            hand_drains: HandDrains::default(),
            service_routes: ServiceRoutes::default(),
            dispatch: Dispatch::default(),
            leading: Leading::default(),
            leaving_ipvs,
            inquiries: None,
            api_server: None,
            stage: Stage::Incomplete,
        })
    }

    /// The same loop, which reports to these observers as well, in this order.
    #[must_use]
    pub fn observed_by(mut self, observers: Vec<Box<dyn Observer>>) -> Self {
        self.context.observers.add(observers);
        self
    }

    /// The same loop, which answers these questions.
    #[must_use]
    pub fn answering(mut self, inquiries: mpsc::Receiver<Inquiry>) -> Self {
        self.inquiries = Some(inquiries);
        self
    }

    /// Follows what the loop does.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.context.status.clone()
    }

    /// Runs until `shutdown` is ready. The kernel's state stays as it is then: traffic goes on.
    ///
    /// The loop goes on without its source: what it delivered last stays in force.
    pub async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        mut addresses: Option<AddressChanges>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), WorkerGone> {
        tokio::pin!(shutdown);
        let mut source_ended = false;
        let mut inquiries = self.inquiries.take();
        loop {
            let wake = self.next_wake();
            let is_taking_over = self.has_more_to_take_over();
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                // These end now and then, however much comes in.
                ended = self.writer.beside_ended() => self.beside_ended(ended?),
                ended = self.auditor.large_set_ended() => self.auditor.take_large_set(ended?),
                input = inputs.recv(), if !source_ended => match input {
                    Some(input) => {
                        self.take_all(input, &mut inputs);
                        // However much comes in, the node's addresses and questions get their turn.
                        if let Some(happened) = changed(&mut addresses).now_or_never() {
                            self.addresses_changed(happened).await?;
                        }
                        if let Some(inquiry) = asked(&mut inquiries).now_or_never() {
                            self.answer(inquiry);
                        }
                    }
                    None => {
                        warn!("the source of Services has ended; its last state stays in use");
                        source_ended = true;
                    }
                },
                happened = changed(&mut addresses) => self.addresses_changed(happened).await?,
                inquiry = asked(&mut inquiries) => self.answer(inquiry),
                // A timer that is due takes a millisecond, in each of very many steps.
                () = std::future::ready(()), if is_taking_over => {}
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

    /// Takes in what ran beside the loop.
    fn beside_ended(&mut self, ended: BesideEnded) {
        let Self { context: cx, writer, auditor, .. } = self;
        match ended {
            BesideEnded::RuleRepair(ended) => auditor.rules_repaired(cx, writer, ended),
            BesideEnded::Flows(ended) => writer.flows_ended(cx, ended),
            BesideEnded::TrackedCount(ended) => writer.tracked_count_ended(ended),
        }
    }

    /// Takes an input, and those that have come meanwhile, up to a limit.
    fn take_all(&mut self, first: Input, inputs: &mut mpsc::Receiver<Input>) {
        let timestamp = self.context.timestamp();
        let later = std::iter::from_fn(|| inputs.try_recv().ok());
        let mut n_changes = 0;
        for input in std::iter::once(first).chain(later).take(MOST_INPUTS) {
            n_changes += usize::from(matches!(input, Input::Change(_)));
            let is_complete = input == Input::Complete;
            self.take(input, timestamp);
            if is_complete {
                // The kernel is read next, and what has changed since the list is written first.
                break;
            }
        }
        self.context.observers.report(&Report::Taken(n_changes));
        self.report_waiting();
    }

    fn take(&mut self, input: Input, timestamp: u64) {
        let cx = &mut self.context;
        match input {
            Input::Change(event) => {
                match &event {
                    Event::ProxyPort(..) => self.writer.write_now(),
                    Event::ApiServerAddresses(addresses) => {
                        self.api_server = Some((addresses.clone(), Instant::now()));
                    }
                    _ => {}
                }
                cx.apply_at(event, timestamp);
            }
            Input::Triggered(family, at) => self.writer.triggered(family, at),
            Input::Complete => self.stage.source_is_complete(),
            Input::Drain(drain, time) => {
                self.writer.write_now();
                self.hand_drains.begin(cx, &drain, time);
            }
            Input::Undrain(drain) => {
                self.writer.write_now();
                self.hand_drains.end_now(cx, &drain);
            }
            Input::ServiceRoutes(family, routes) => self.service_routes.begin(cx, family, routes),
        }
    }

    fn report_waiting(&mut self) {
        let cx = &mut self.context;
        if !matches!(self.stage, Stage::Incomplete) && cx.planner.is_dirty() {
            cx.observers.report(&Report::Waiting(cx.planner.backlog()));
        }
    }

    fn answer(&mut self, inquiry: Inquiry) {
        match inquiry.0 {
            Asked::Question(question) => {
                question.answer(&View::new(&self.context, &self.writer, &self.hand_drains));
            }
            Asked::Order(input, taken) => {
                self.take(input, self.context.timestamp());
                self.report_waiting();
                // The sender may be gone.
                let _ = taken.send(());
            }
        }
    }

    async fn addresses_changed(&mut self, happened: Happened) -> Result<(), WorkerGone> {
        let cx = &mut self.context;
        if matches!(self.stage, Stage::Running) {
            return self.auditor.addresses_changed(cx, &mut self.writer, happened).await;
        }
        // Before the takeover, no address is ours that another program could have removed.
        if happened.others {
            cx.take_addresses().await?;
        }
        Ok(())
    }

    /// True if a step of the takeover follows at once.
    fn has_more_to_take_over(&self) -> bool {
        matches!(self.stage, Stage::TakingOver(_)) && self.context.planner.is_dirty()
    }

    /// Returns the time at which a part has something to do.
    fn next_wake(&self) -> Instant {
        let now = Instant::now();
        match &self.stage {
            Stage::Incomplete => self.api_server.as_ref().map_or(now + FAR, |(_, at)| *at),
            Stage::Unread(retry) => *retry,
            // Input wakes the loop before that, if it is input that is waited for.
            Stage::TakingOver(_) => now + TAKEOVER_STEP,
            Stage::Running => {
                let audit = self.auditor.next_wake(now);
                let others = [
                    self.writer.next_wake(&self.context),
                    self.dispatch.next_due(&self.context, now),
                    self.leading.next_due(&self.context, now),
                    self.leaving_ipvs.next_due(&self.context),
                    self.hand_drains.next_due(),
                    self.service_routes.next_due(),
                ];
                others.into_iter().flatten().fold(audit, Instant::min)
            }
        }
    }

    /// Does some of what is due.
    async fn step(&mut self) -> Result<(), WorkerGone> {
        let Self {
            context: cx,
            writer,
            auditor,
            hand_drains,
            service_routes,
            dispatch,
            leading,
            leaving_ipvs,
            api_server: servers,
            stage,
            ..
        } = self;
        match stage {
            Stage::Incomplete => {
                let due = servers.take_if(|(_, at)| *at <= Instant::now());
                if let Some((addresses, _)) = due
                    && !api_server::give_up_addresses(cx, &addresses).await?
                {
                    *servers = Some((addresses, Instant::now() + READ_RETRY));
                }
            }
            Stage::Unread(retry) if Instant::now() < *retry => {}
            Stage::Unread(_) => {
                *stage = match Takeover::begin(cx, writer).await? {
                    Some(takeover) => Stage::TakingOver(Box::new(takeover)),
                    None => Stage::Unread(Instant::now() + READ_RETRY),
                };
            }
            Stage::TakingOver(takeover) => {
                let left = takeover.step(cx, writer).await?;
                let is_over = left.is_some();
                if let Some(left) = left {
                    auditor.begin(cx, &left);
                    *stage = Stage::Running;
                }
                comparison::retry_due(cx, writer, is_over).await?;
            }
            Stage::Running => {
                hand_drains.step(cx);
                service_routes.step(cx, writer.retry_queue());
                writer.write_changes(cx).await?;
                comparison::retry_due(cx, writer, true).await?;
                writer.change_balancing(cx).await?;
                dispatch.step(cx, writer).await?;
                leading.step(cx, writer).await?;
                writer.check_draining(cx).await?;
                leaving_ipvs.step(cx, writer).await?;
                auditor.step(cx, writer).await?;
                writer.begin_beside(cx);
                dispatch.report_served(cx, writer.retry_queue());
            }
        }
        Ok(())
    }
}

impl Stage {
    fn source_is_complete(&mut self) {
        if matches!(self, Self::Incomplete) {
            *self = Self::Unread(Instant::now());
        }
    }
}

/// Ready when addresses have changed; never, if no monitor runs.
async fn changed(addresses: &mut Option<AddressChanges>) -> Happened {
    if let Some(changes) = addresses {
        if let Some(happened) = changes.next().await {
            return happened;
        }
        *addresses = None;
    }
    std::future::pending().await
}

/// Ready when there is a question; never, without a console.
async fn asked(inquiries: &mut Option<mpsc::Receiver<Inquiry>>) -> Inquiry {
    if let Some(questions) = inquiries {
        if let Some(inquiry) = questions.recv().await {
            return inquiry;
        }
        *inquiries = None;
    }
    std::future::pending().await
}
