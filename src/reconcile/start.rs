//! From the first complete list to a kernel in sync.
//!
//! The kernel is read once. What everything rests on is written, then Services are planned in
//! rounds as later on ([`super::rounds`]), and of each round what was not found is written: so the
//! time to the first Service, which is the API server's own, does not grow with their number. In
//! the end, what was found and nobody asked for is taken away.

use plan::event::Event;
use plan::found::Found;
use plan::op::Op;
use plan::planner::Limit;
use plan::sets::{SetId, SetKind};
use tokio::time::Instant;
use tracing::info;

use super::drain::Known;
use super::observer::RoundKind;
use super::rounds::Ended;
use super::writing::Basis;
use super::{READ_RETRY, Reconciler};
use crate::kernel::worker::WorkerGone;

/// So many virtual servers that are in excess are dealt with at once.
const AT_ONCE: usize = 256;

/// How far the loop has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// The source has not delivered everything yet.
    Incomplete,
    /// The kernel is to be read, not before this.
    Unread(Instant),
    /// What the kernel has is being taken over.
    TakingOver(Box<TakeOver>),
    /// The kernel was once as it should be, as far as it let us.
    Running,
}

/// What is left to take over.
#[derive(Debug)]
pub(super) struct TakeOver {
    found: Found,
    /// How many Services still wait that did when the kernel was read, without the API server's,
    /// which goes before all, and may do so again and again. Those that come meanwhile
    /// wait behind them, so that this ends however many there are.
    n_waiting: usize,
    started: Instant,
    /// How many operations it took so far.
    n_changes: usize,
}

// === impl Stage ===

impl Stage {
    pub(super) fn source_is_complete(&mut self) {
        if matches!(self, Self::Incomplete) {
            *self = Self::Unread(Instant::now());
        }
    }

    /// Whether what has changed may be written some time.
    pub(super) fn may_write(&self) -> bool {
        !matches!(self, Self::Incomplete)
    }
}

impl Reconciler {
    /// Reads the kernel, and writes what everything rests on.
    pub(super) async fn begin(&mut self) -> Result<(), WorkerGone> {
        let started = Instant::now();
        // Node ports have no place before the node's addresses are known, and the kernel side must
        // know the rules before it is asked whether they are there. Whether they are is part of the
        // reading, so the plan that has only them is done with.
        if self.read_addresses().await?.is_none() {
            self.stage = Stage::Unread(Instant::now() + READ_RETRY);
            return Ok(());
        }
        drop(self.planner.plan_round(Limit { services: 0, operations: 0 }));
        self.prescribe().await?;
        let reading = Instant::now();
        let actual = match self.kernel.read().await? {
            Ok(actual) => actual,
            Err(error) => {
                self.reading_failed(&error);
                self.stage = Stage::Unread(Instant::now() + READ_RETRY);
                return Ok(());
            }
        };
        self.observer.read(reading.elapsed());
        self.status.send_modify(|status| status.readings += 1);
        self.take(Event::LocalAddresses(actual.local_addresses.iter().copied().collect()));
        let foundation = self.planner.foundation(&actual);
        let n_changes = foundation.len();
        let found = self.planner.take_over(actual);
        self.carry_out(foundation, Basis::Reading).await?;
        let n_waiting = self.planner.backlog_in_turn();
        self.stage = Stage::TakingOver(Box::new(TakeOver { found, n_waiting, started, n_changes }));
        Ok(())
    }

    /// Takes over what the Services of one round ask for, and after the last of them, takes away
    /// what is in excess.
    pub(super) async fn take_over_some(&mut self) -> Result<(), WorkerGone> {
        let Stage::TakingOver(mut taking) = std::mem::replace(&mut self.stage, Stage::Running)
        else {
            return Ok(());
        };
        let before = self.planner.backlog_in_turn();
        let (planned, oldest) = self.plan().await?;
        let n_planned = before.saturating_sub(self.planner.backlog_in_turn());
        taking.n_waiting = taking.n_waiting.saturating_sub(n_planned);

        let adopted = taking.found.adopt(planned);
        let mut ops = self.let_drain(adopted.lacking, Known::Nothing);
        self.hold_back(&mut ops);
        for (frontend, server) in &adopted.virtual_servers {
            let mending = self.planner.repair(frontend, Some(server));
            ops.extend(self.let_drain(mending, Known::Compared(*frontend, Some(server))));
        }
        taking.n_changes += ops.len();
        self.flows.note_ops(&ops, &self.planner);
        self.carry_out(ops, Basis::Reading).await?;
        let ended = Ended { kind: RoundKind::Comparison, took: taking.started.elapsed(), oldest };
        if taking.n_waiting > 0 && self.planner.backlog() > 0 {
            self.round_ended(ended);
            self.stage = Stage::TakingOver(taking);
            return Ok(());
        }
        self.remove_excess(&mut taking).await?;
        info!(changes = taking.n_changes, "first comparison with the kernel");
        self.expected.learn(&taking.found, self.planner.settings());
        self.patrol.begin(Instant::now());
        if !self.planner.is_dirty() {
            self.rest();
        }
        self.status.send_modify(|status| status.in_sync_once = true);
        info!(owed = self.ledger.len(), "in sync with the kernel");
        self.round_ended(ended);
        Ok(())
    }

    /// Takes away what was found and nobody asked for, in the order in which traffic is led off:
    /// see [`Op::phase`].
    async fn remove_excess(&mut self, taking: &mut TakeOver) -> Result<(), WorkerGone> {
        let settings = self.planner.settings().clone();
        let sets = settings.families.iter().flat_map(|family| SetId::all(*family));
        let (leading, others): (Vec<SetId>, Vec<SetId>) =
            sets.partition(|set| set.kind == SetKind::ShortCircuit);
        for set in leading {
            let ops = taking.found.excess_entries(set, &settings);
            self.remove(ops, taking).await?;
        }
        let ops = taking.found.excess_addresses(&settings);
        self.remove(ops, taking).await?;
        loop {
            let desired = self.planner.desired();
            let part = taking.found.next_virtual_servers(AT_ONCE, desired, &settings);
            if part.is_empty() {
                break;
            }
            let mut ops = Vec::new();
            for (frontend, server) in &part {
                let mending = self.planner.repair(frontend, Some(server));
                ops.extend(self.let_drain(mending, Known::Compared(*frontend, Some(server))));
            }
            self.flows.note_ops(&ops, &self.planner);
            self.remove(ops, taking).await?;
        }
        for set in others {
            let ops = taking.found.excess_entries(set, &settings);
            self.remove(ops, taking).await?;
        }
        Ok(())
    }

    async fn remove(&mut self, mut ops: Vec<Op>, taking: &mut TakeOver) -> Result<(), WorkerGone> {
        taking.n_changes += ops.len();
        ops.sort_by_key(Op::phase);
        self.apply(ops, Basis::Reading).await
    }
}
