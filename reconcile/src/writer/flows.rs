//! Flows that lead nowhere: which frontends' are to be removed from connection tracking, and when.
//!
//! They are removed after the kernel has been written. A flow that is removed while its endpoint is
//! still a real server would be led to it again by the client's next packet; so the pending retries
//! of a virtual server, or of the chains that lead to the endpoint, come first.
//!
//! On the fast path, connections to an endpoint whose drain deadline is over are removed in the same way: IPVS does not
//! carry them, so its real server that is gone does not end them.
//!
//! The kernel lists its table for each search, which takes long where it is large. So a search runs beside
//! the loop: what changes meanwhile is noted again, and searched for next.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plan::chains::ChainOp;
use plan::flows::FlowTargets;
use plan::kernel_objects::Frontend;
use plan::model::{Family, Protocol};
use plan::op::{Op, Subject};
use plan::planner::Planner;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::context::Context;
use crate::observer::Report;
use crate::retry_queue::{RetryQueue, delay};
use crate::writer::Drain;
use kernel::Refusal;
use kernel::worker::{FlowRemoval, FlowRemovalUnderWay, WorkerGone};

/// Shortest time between two searches: the kernel lists all flows for each.
const PAUSE: Duration = Duration::from_secs(1);
/// Pause after a search, as a multiple of its duration.
const REST: u32 = 9;
/// Longest pause after a search. Meanwhile clients may be led to an endpoint that is gone.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// Failed searches after which frontends that no Service has any more are forgotten. Otherwise they
/// would pile up for ever where nf_conntrack_netlink is missing.
const PATIENCE: u32 = 5;

/// The frontends whose flows may lead nowhere, and the time of the next search for these flows. The
/// writer adds frontends with each plan and repair.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// Frontends as clients see them.
    pending: BTreeSet<Frontend>,
    /// Endpoints whose time is up, each with the frontend, as clients see it.
    over: BTreeSet<(Frontend, SocketAddr)>,
    /// Search under way, with its targets, which are not pending meanwhile.
    under_way: Option<(FlowRemovalUnderWay, Arc<FlowTargets>)>,
    /// Reason for which the flows could not be removed the last time.
    obstacle: Option<Obstacle>,
    /// End of the pause after the last search.
    rested: Option<Instant>,
    /// True if frontends wait for the end of the pause.
    is_waiting: bool,
}

#[derive(Debug)]
struct Obstacle {
    refusal: Refusal,
    attempts: u32,
    due: Instant,
}

impl Flows {
    /// Notes that the flows to these may lead nowhere now.
    pub(super) fn note(&mut self, frontends: impl IntoIterator<Item = Frontend>) {
        self.pending.extend(frontends);
    }

    /// Notes endpoints whose time is up, each with the frontend, as clients see it.
    pub(super) fn note_over(&mut self, over: impl IntoIterator<Item = (Frontend, SocketAddr)>) {
        self.over.extend(over);
    }

    /// Notes the same of the virtual servers and chains that these operations are about.
    pub(super) fn note_ops(&mut self, ops: &[Op], planner: &Planner) {
        self.pending.extend(ops.iter().flat_map(|op| led_by(op, planner)));
        let frontends = ops.iter().filter_map(|op| match op.subject() {
            Subject::VirtualServer(frontend) => Some(frontend),
            _ => None,
        });
        let stateless = frontends.filter(|frontend| frontend.protocol != Protocol::Tcp);
        self.pending.extend(stateless.map(|frontend| planner.as_seen_by_clients(frontend)));
    }

    fn n_pending(&self) -> usize {
        self.pending.len() + self.over.len()
    }

    /// Returns the time of the next search; none while nothing waits for it.
    pub(super) fn next_due(&self) -> Option<Instant> {
        if self.under_way.is_some() {
            return None;
        }
        let rested = self.rested.filter(|_| self.is_waiting);
        let again =
            self.obstacle_due().map(|due| self.rested.map_or(due, |rested| rested.max(due)));
        again.into_iter().chain(rested).min()
    }

    /// Returns the time of the next try; none while nothing stands in the way.
    fn obstacle_due(&self) -> Option<Instant> {
        self.obstacle.as_ref().map(|obstacle| obstacle.due)
    }

    /// True during the pause after a search.
    fn is_resting(&mut self, now: Instant) -> bool {
        let rests = self.rested.is_some_and(|rested| now < rested);
        self.is_waiting = rests && self.n_pending() > 0;
        rests
    }

    /// Begins the pause after a search that took this long.
    fn rest(&mut self, took: Duration, now: Instant) {
        self.rested = Some(now + (took * REST).clamp(PAUSE, LONGEST_REST));
    }

    /// Returns the frontends whose flows can be removed now, and the endpoints whose time is up and that no virtual server
    /// of a frontend has any more. One that is back keeps its flows.
    fn ready(
        &mut self,
        planner: &Planner,
        retry_queue: &RetryQueue,
        drain: &Drain,
        now: Instant,
    ) -> FlowTargets {
        let mut targets = FlowTargets::default();
        if self.obstacle_due().is_some_and(|due| due > now) {
            return targets;
        }
        self.over.retain(|(frontend, endpoint)| {
            let is_left =
                planner.virtual_servers_of(*frontend).any(|it| drain.is_draining_at(&it, endpoint));
            if is_left || is_pending(frontend, planner, retry_queue) {
                return true;
            }
            let wanted = planner.flow_targets(frontend);
            if !wanted.is_some_and(|it| it.contains(endpoint)) {
                targets.insert_over(*frontend, *endpoint);
            }
            false
        });
        if !self.pending.is_empty() {
            let led = LazyCell::new(|| still_led(planner, retry_queue));
            let leads_by_rules = planner.settings().mode.leads_by_rules();
            let is_pending = |it: &Frontend| {
                if leads_by_rules {
                    are_chains_pending(it, planner, retry_queue, &led)
                } else {
                    is_pending(it, planner, retry_queue)
                }
            };
            for frontend in self.pending.iter().filter(|frontend| !is_pending(frontend)) {
                targets.insert(*frontend, planner.flow_targets(frontend));
            }
        }
        targets
    }

    /// Notes a refusal. Returns true if it is news.
    fn refused(&mut self, refusal: Refusal, now: Instant) -> bool {
        let known = self.obstacle.take();
        let is_news = known.as_ref().is_none_or(|known| known.refusal != refusal);
        let attempts = known.map_or(0, |known| known.attempts).saturating_add(1);
        let due = now + delay(refusal.class, attempts);
        self.obstacle = Some(Obstacle { refusal, attempts, due });
        is_news
    }

    /// Begins to remove the flows that lead nowhere, of all frontends whose virtual servers are as
    /// desired, unless that is under way.
    pub(super) fn begin(&mut self, cx: &mut Context, retry_queue: &RetryQueue, drain: &Drain) {
        let now = Instant::now();
        if self.under_way.is_some() || self.is_resting(now) {
            return;
        }
        let n_pending = self.n_pending();
        let targets = self.ready(&cx.planner, retry_queue, drain, now);
        if targets.is_empty() {
            if self.n_pending() < n_pending {
                cx.observers.report(&Report::FlowsPending(self.n_pending()));
            }
            // All that was to be retried waits for its virtual server now.
            self.obstacle.take_if(|obstacle| obstacle.due <= now);
            return;
        }
        for frontend in targets.with_targets() {
            self.pending.remove(frontend);
        }
        let targets = Arc::new(targets);
        self.under_way = Some((cx.kernel.remove_flows(Arc::clone(&targets)), targets));
    }

    /// Waits for the end of the search under way; for ever if there is none.
    pub(super) async fn ended(&mut self) -> Result<FlowsEnded, WorkerGone> {
        let Some((removal, targets)) = &mut self.under_way else {
            return std::future::pending().await;
        };
        let removals = removal.await.map_err(|_| WorkerGone)?;
        let ended = FlowsEnded { removals, targets: Arc::clone(targets) };
        self.under_way = None;
        Ok(ended)
    }

    /// Takes in what a search did.
    pub(super) fn end(&mut self, cx: &mut Context, ended: FlowsEnded) {
        let FlowsEnded { removals, targets } = ended;
        self.rest(removals.iter().map(|removal| removal.took).sum(), Instant::now());
        let mut refused = None;
        for FlowRemoval { family, result, took } in removals {
            match result {
                Ok(count) => {
                    cx.observers.report(&Report::FlowsRemoved { family, count, took });
                    if count > 0 {
                        debug!(%family, count, "removed conntrack entries without an endpoint, or \
                                                past their drain deadline");
                    }
                }
                Err(refusal) => {
                    let again = targets.with_targets().filter(|it| it.family() == family);
                    self.pending.extend(again.copied());
                    let again = targets.over().filter(|(it, _)| it.family() == family);
                    self.over.extend(again.copied());
                    refused = Some((family, refusal));
                }
            }
        }
        match refused {
            None => self.obstacle = None,
            Some((family, refusal)) => self.put_off(cx, family, refusal),
        }
        cx.observers.report(&Report::FlowsPending(self.n_pending()));
    }

    /// Puts the next search off, and says why if that is news.
    fn put_off(&mut self, cx: &Context, family: Family, refusal: Refusal) {
        let text = refusal.to_string();
        if self.refused(refusal, Instant::now()) {
            warn!(
                "cannot remove stale {family} conntrack entries: {text}. kube-ipvs retries. Until \
                 then, a UDP client that keeps sending from the same port may not reach a new \
                 endpoint, and connections on the fast path may outlive their drain deadline. Load \
                 the kernel module nf_conntrack_netlink, or run conntrack -D -p udp --orig-dst \
                 ADDRESS"
            );
        }
        if self.obstacle.as_ref().is_some_and(|obstacle| obstacle.attempts >= PATIENCE) {
            self.pending.retain(|frontend| cx.planner.flow_targets(frontend).is_some());
            self.over.clear();
        }
    }
}

/// End of a search.
#[derive(Debug)]
pub(crate) struct FlowsEnded {
    removals: Vec<FlowRemoval>,
    targets: Arc<FlowTargets>,
}

/// Returns the UDP and SCTP frontends that a change of a chain is about, as clients see them.
fn led_by(op: &Op, planner: &Planner) -> BTreeSet<Frontend> {
    match op {
        Op::Chain(change) => planner.stateless_frontends(change),
        _ => BTreeSet::new(),
    }
}

/// Returns the frontends with rules that are to be removed and may still be there.
fn still_led(planner: &Planner, retry_queue: &RetryQueue) -> BTreeSet<Frontend> {
    let deletes = |op: &Op| matches!(op, Op::Chain(ChainOp::Delete(..)));
    let pending = retry_queue.iter().map(|(_, pending)| &pending.op).filter(|op| deletes(op));
    pending.flat_map(|op| led_by(op, planner)).collect()
}

/// True if a retry is pending for a chain or a rule of the Service that has a frontend, or for a rule
/// that leads the frontend elsewhere.
fn are_chains_pending(
    frontend: &Frontend,
    planner: &Planner,
    retry_queue: &RetryQueue,
    still_led: &BTreeSet<Frontend>,
) -> bool {
    let is_pending =
        |owner| planner.asked_for_by(owner).iter().any(|subject| retry_queue.contains(subject));
    !retry_queue.is_empty()
        && (still_led.contains(frontend) || planner.chain_owner(frontend).is_some_and(is_pending))
}

/// True if a retry is pending for a frontend's virtual server, or for one of its internal frontends.
fn is_pending(frontend: &Frontend, planner: &Planner, retry_queue: &RetryQueue) -> bool {
    let is_pending = |frontend| retry_queue.contains(&Subject::VirtualServer(frontend));
    let address = frontend.address;
    let mut addresses =
        [address].into_iter().chain(planner.settings().internal_frontends_of(address));
    addresses.any(|address| is_pending(Frontend { address, ..*frontend }))
}
