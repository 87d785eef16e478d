//! Rounds of changes: a limited number of Services in one round, one round after another until none
//! waits.
//!
//! Memory therefore does not grow with the number of changes, a storm of changes holds nothing up
//! for longer than a round, and what is written of a Service is its newest state.

use std::time::Duration;

use plan::model::Family;
use plan::op::Op;
use plan::planner::RoundLimit;
use plan::rule_set::Table;
use tokio::time::Instant;
use tracing::warn;

use super::{Basis, Writer};
use crate::context::Context;
use crate::observer::{Report, Round, RoundKind};
use crate::pace::FAR;
use kernel::worker::WorkerGone;

/// Limit of one round: enough that the kernel's batches are well filled, and no more than some ten
/// milliseconds of its work.
const ROUND: RoundLimit =
    RoundLimit { services: 256, operations: 8_192, operations_per_service: 8_192 };

/// Limit of one round where rules lead: there an operation is a rule. With nf_tables a COMMIT takes
/// 0.5 ms for each Service, and more than that beyond about 1,000 (4,000 at once: 4 ms each). So a
/// round takes about a second.
const ROUND_OF_RULES: RoundLimit =
    RoundLimit { services: 1_024, operations: 8_192, operations_per_service: 8_192 };

/// Most rules in one round with x_tables: those of some 6,500 Services with two endpoints. A round
/// takes memory for them, and about a second longer than a COMMIT of what stands.
pub(super) const LARGEST_ROUND_OF_RULES: usize = 65_536;

/// Round that has ended, for the observer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) kind: RoundKind,
    pub(crate) took: Duration,
    /// Timestamp of the oldest change that was planned for it.
    pub(crate) oldest: Option<u64>,
}

/// Limit of one round with x_tables, where so many rules stand: a COMMIT reads and writes all of them
/// whatever it changes, and a rule that it adds takes about three times as long as one that stands. A
/// round may change more Services than stand, since a Service counts for its chains, too. So no round
/// takes more than a few times as long as the shortest possible, and all rounds of a first sync
/// together take hardly longer than one COMMIT of everything. A large Service may take all of one.
fn round_of_whole_tables(n_rules: usize) -> RoundLimit {
    let most = LARGEST_ROUND_OF_RULES;
    let operations = n_rules.saturating_mul(2).clamp(ROUND_OF_RULES.operations, most);
    let rules_of_a_service = ROUND_OF_RULES.operations / ROUND_OF_RULES.services;
    let services = operations / rules_of_a_service;
    RoundLimit { services, operations, operations_per_service: operations }
}

impl Writer {
    /// Returns the limit of one round. While something is refused, rounds stay small: each has to be
    /// tried in parts to find it.
    pub(crate) fn round_limit(&self, cx: &Context) -> RoundLimit {
        if !cx.leads_by_rules() {
            return ROUND;
        }
        if !cx.writes_whole_tables || !self.retry_queue.is_empty() {
            return ROUND_OF_RULES;
        }
        let desired = cx.planner.desired_chains();
        let tables = Family::BOTH.into_iter().flat_map(|family| {
            [Table::Nat, Table::Filter].map(|table| desired.n_rules(family, table))
        });
        round_of_whole_tables(tables.sum())
    }

    /// Writes changes if they are due, as many of them as go into one round. The minimum period
    /// begins when nothing is left: until then, one round follows another.
    pub(crate) async fn write_changes(&mut self, cx: &mut Context) -> Result<(), WorkerGone> {
        let started = Instant::now();
        if !cx.planner.is_dirty() || started < self.next_write {
            return Ok(());
        }
        let (ops, oldest) = self.plan(cx, self.round_limit(cx)).await?;
        self.carry_out(cx, ops, Basis::Plan).await?;
        self.rest(cx);
        self.round_ended(cx, Ended { kind: RoundKind::Changes, took: started.elapsed(), oldest });
        Ok(())
    }

    /// Lets later changes wait for the minimum period, unless some wait already.
    pub(crate) fn rest(&mut self, cx: &Context) {
        if !cx.planner.is_dirty() {
            let now = Instant::now();
            self.next_write = now.checked_add(cx.pace.min_sync_period).unwrap_or(now + FAR);
        }
    }

    /// Compiles the Services of a round, sets the desired rules if they are new, and logs what is
    /// wrong with the input. Returns the operations, and the timestamp of the oldest change.
    pub(crate) async fn plan(
        &mut self,
        cx: &mut Context,
        limit: RoundLimit,
    ) -> Result<(Vec<Op>, Option<u64>), WorkerGone> {
        let started = Instant::now();
        cx.planner.set_now(cx.timestamp());
        let plan = cx.planner.plan_round(limit);
        let took = started.elapsed();
        cx.observers.report(&Report::Planned { plan: &plan, planner: &cx.planner, took });
        for (service, problems) in &plan.new_problems {
            for problem in problems {
                warn!(%service, "{problem}");
            }
        }
        for overfull in &plan.overfull {
            warn!("{overfull}");
        }
        if plan.ops.iter().any(|op| matches!(op, Op::WriteRuleSet(_))) {
            cx.set_desired_rules().await?;
        }
        self.flows.note(plan.flows);
        Ok((plan.ops, plan.oldest))
    }

    /// Reports the end of a round, with the trigger times that it goes back to if nothing is left
    /// that could go back to the same.
    pub(crate) fn round_ended(&mut self, cx: &mut Context, ended: Ended) {
        self.report_rules(cx, ended.kind);
        let is_last = ended.kind != RoundKind::Retry && !cx.planner.is_dirty();
        let triggers = if is_last { std::mem::take(&mut self.triggers) } else { Vec::new() };
        let waiting = cx.planner.oldest().map(|timestamp| cx.age(timestamp));
        let oldest = ended.oldest.map_or(Duration::ZERO, |timestamp| cx.age(timestamp));
        cx.observers.report(&Report::RoundEnded(Round {
            families: &cx.planner.settings().families,
            kind: ended.kind,
            took: ended.took,
            triggers: &triggers,
            backlog: cx.planner.backlog(),
            waiting,
            oldest,
            pending: &self.retry_queue,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_whole_tables_grow_with_what_stands_and_have_a_limit() {
        assert_eq!(round_of_whole_tables(0), ROUND_OF_RULES);
        assert_eq!(round_of_whole_tables(4_096), ROUND_OF_RULES);
        let limit = round_of_whole_tables(8_192);
        let operations = 16_384;
        let expected =
            RoundLimit { services: 2_048, operations, operations_per_service: operations };
        assert_eq!(limit, expected);
        assert_eq!(round_of_whole_tables(usize::MAX).operations, LARGEST_ROUND_OF_RULES);
    }

    #[test]
    fn all_rounds_of_a_first_sync_write_a_few_times_as_many_rules_as_there_are() {
        for (total, most_rounds, most_times) in [(8_000, 1, 1), (80_000, 4, 3), (600_000, 12, 7)] {
            let (mut standing, mut written, mut rounds) = (0, 0, 0);
            while standing < total {
                standing = total.min(standing + round_of_whole_tables(standing).operations);
                (written, rounds) = (written + standing, rounds + 1);
            }
            assert!(rounds <= most_rounds && written <= most_times * total, "{rounds} {written}");
        }
    }
}
