//! Writing what changed: a limited number of Services in one round, one round after another until
//! none waits.
//!
//! Memory therefore does not grow with the number of changes, a storm of changes holds nothing up
//! for longer than a round, and what is written of a Service is its newest state.

use std::time::Duration;

use plan::op::Op;
use plan::planner::Limit;
use tokio::time::Instant;
use tracing::warn;

use super::observer::{Round, RoundKind};
use super::writing::Basis;
use super::{FAR, Reconciler};
use crate::kernel::worker::WorkerGone;

/// Limit of one round: enough that the kernel's batches are well filled, and no more than some ten
/// milliseconds of its work.
pub(super) const ROUND: Limit = Limit { services: 256, operations: 8_192, portion: 8_192 };

/// Round that has ended, for the observer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) kind: RoundKind,
    pub(super) took: Duration,
    /// The moment of the oldest change that was planned for it.
    pub(super) oldest: Option<u64>,
}

impl Reconciler {
    /// Writes what changed, as much of it as goes into one round. The minimum period begins when
    /// nothing is left: until then, one round follows another.
    pub(super) async fn write_changes(&mut self) -> Result<(), WorkerGone> {
        let started = Instant::now();
        let (ops, oldest) = self.plan(ROUND).await?;
        self.carry_out(ops, Basis::Plan).await?;
        if !self.planner.is_dirty() {
            self.rest();
        }
        self.round_ended(Ended { kind: RoundKind::Changes, took: started.elapsed(), oldest });
        Ok(())
    }

    /// From now on, changes wait for the minimum period.
    pub(super) fn rest(&mut self) {
        let now = Instant::now();
        self.next_write = now.checked_add(self.pace.min_sync_period).unwrap_or(now + FAR);
    }

    /// Compiles the Services of a round, sets the desired rules if they are new, and says what is
    /// wrong with the input. Returns the operations, and the moment of the oldest change.
    pub(super) async fn plan(
        &mut self,
        limit: Limit,
    ) -> Result<(Vec<Op>, Option<u64>), WorkerGone> {
        let started = Instant::now();
        self.planner.set_moment(self.moment());
        let plan = self.planner.plan_round(limit);
        self.observer.planned(&plan, &self.planner, started.elapsed());
        for (service, problems) in &plan.new_problems {
            for problem in problems {
                warn!(%service, "{problem}");
            }
        }
        for overfull in &plan.overfull {
            warn!("{overfull}");
        }
        if plan.ops.iter().any(|op| matches!(op, Op::WriteRuleSet(_))) {
            self.set_desired_rules().await?;
        }
        self.flows.note(plan.flows);
        Ok((plan.ops, plan.oldest))
    }

    /// Sets the desired rules of each family.
    pub(super) async fn set_desired_rules(&mut self) -> Result<(), WorkerGone> {
        for family in self.planner.settings().families.clone() {
            match self.planner.rule_set(family) {
                Ok(rules) => self.kernel.call(|kernel| kernel.set_desired_rules(rules)).await?,
                Err(error) => warn!("{family} rules stay as they are: {error}"),
            }
        }
        Ok(())
    }

    /// Tells that a round has ended, and what that goes back to, if nothing is left that could go
    /// back to the same.
    pub(super) fn round_ended(&mut self, ended: Ended) {
        let is_last = ended.kind != RoundKind::SecondLook && !self.planner.is_dirty();
        let triggers = if is_last { std::mem::take(&mut self.triggers) } else { Vec::new() };
        let age = |moment| self.epoch.elapsed().saturating_sub(Duration::from_micros(moment));
        self.observer.round_ended(&Round {
            families: &self.planner.settings().families,
            kind: ended.kind,
            took: ended.took,
            triggers: &triggers,
            backlog: self.planner.backlog(),
            waiting: self.planner.oldest().map(age),
            oldest: ended.oldest.map_or(Duration::ZERO, age),
            pending: &self.retry_queue,
        });
    }
}
