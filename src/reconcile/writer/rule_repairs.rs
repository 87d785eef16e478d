//! Repairs of the constant rules in ipvs mode, beside the loop: iptables' programs wait for the lock of
//! x_tables, and changes of Services must not wait with them. Families take turns.

use std::collections::{BTreeSet, HashSet};

use plan::model::Family;
use plan::op::{Op, Subject};
use tokio::time::Instant;

use super::{Basis, Writer};
use crate::kernel::ReadError;
use crate::kernel::worker::{KernelHandle, RuleRepair, RuleRepairUnderWay, WorkerGone};
use crate::reconcile::context::Context;
use crate::reconcile::{FAR, READ_RETRY};

/// The repair under way, and those that follow it.
#[derive(Debug, Default)]
pub(super) struct RuleRepairs {
    under_way: Option<(Family, RuleRepairUnderWay)>,
    waiting: BTreeSet<Family>,
}

/// End of a repair.
pub(in crate::reconcile) type RuleRepairEnded = (Family, Result<RuleRepair, ReadError>);

// === impl RuleRepairs ===

impl RuleRepairs {
    fn begin(&mut self, kernel: &KernelHandle, family: Family) {
        match &self.under_way {
            Some((of, _)) if *of == family => {}
            Some(_) => drop(self.waiting.insert(family)),
            None => self.under_way = Some((family, kernel.repair_rules(family))),
        }
    }

    /// Waits for the end of the repair under way; for ever if there is none.
    async fn ended(&mut self) -> Result<RuleRepairEnded, WorkerGone> {
        let Some((family, repair)) = &mut self.under_way else {
            return std::future::pending().await;
        };
        let ended = (*family, repair.await.map_err(|_| WorkerGone)?);
        self.under_way = None;
        Ok(ended)
    }
}

impl Writer {
    /// True while rules are repaired beside the loop: what they are is not known.
    pub(in crate::reconcile) fn is_repairing_rules(&self) -> bool {
        self.rule_repairs.under_way.is_some()
    }

    /// Has a family's constant rules compared and repaired. The end is waited for by
    /// [`Writer::rule_repair_ended`], and a retry of them with it.
    pub(in crate::reconcile) fn begin_rule_repair(&mut self, cx: &Context, family: Family) {
        self.rule_repairs.begin(&cx.kernel, family);
        let subject = Subject::RuleSet(family);
        if self.retry_queue.contains(&subject) {
            self.retry_queue.postpone(&subject, Instant::now() + FAR);
        }
    }

    /// Waits for the end of a repair.
    pub(in crate::reconcile) async fn rule_repair_ended(
        &mut self,
    ) -> Result<RuleRepairEnded, WorkerGone> {
        self.rule_repairs.ended().await
    }

    /// Takes in what a repair did, and begins the next. Returns true if another program had changed
    /// the rules; none if they could not be read.
    pub(in crate::reconcile) fn rules_repaired(
        &mut self,
        cx: &mut Context,
        (family, ended): RuleRepairEnded,
    ) -> Option<bool> {
        let op = Op::WriteRuleSet(family);
        let subject = op.subject();
        let found_drift = match ended {
            Err(error) => {
                cx.reading_failed(&error);
                if self.retry_queue.contains(&subject) {
                    self.retry_queue.postpone(&subject, Instant::now() + READ_RETRY);
                }
                None
            }
            Ok(RuleRepair { written: None, .. }) => {
                self.resolve(cx, &[subject]);
                Some(false)
            }
            Ok(RuleRepair { written: Some(result), took }) => {
                let is_drift = self.report_drift(cx, std::slice::from_ref(&op));
                let (ops, mut failed) = (vec![op], HashSet::new());
                self.written(cx, ops, vec![result], took, Basis::Reading, &mut failed);
                Some(is_drift)
            }
        };
        if let Some(next) = self.rule_repairs.waiting.pop_first() {
            self.begin_rule_repair(cx, next);
        }
        found_drift
    }
}
