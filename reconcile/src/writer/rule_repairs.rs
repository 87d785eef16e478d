//! Repairs of the constant rules in ipvs mode, beside the loop: iptables' programs wait for the lock of
//! x_tables, and changes of Services must not wait with them. Families take turns.

use std::collections::BTreeSet;

use plan::comparison::Part;
use plan::hash::HashSet;
use plan::model::Family;
use plan::op::{Op, Subject};
use tokio::time::Instant;

use super::{Basis, Writer};
use crate::context::Context;
use crate::pace::{FAR, READ_RETRY};
use kernel::worker::{KernelHandle, RuleRepair, RuleRepairUnderWay, WorkerGone};
use kernel::{ReadError, Refusal, RefusalClass};

/// The repair under way, and those that follow it.
#[derive(Debug, Default)]
pub(super) struct RuleRepairs {
    under_way: Option<UnderWay>,
    waiting: BTreeSet<Family>,
}

#[derive(Debug)]
struct UnderWay {
    family: Family,
    repair: RuleRepairUnderWay,
    /// True if the family's rules were written meanwhile: what the repair did says nothing of them.
    is_overtaken: bool,
}

/// End of a repair.
#[derive(Debug)]
pub(crate) struct RuleRepairEnded {
    pub(crate) family: Family,
    pub(crate) result: Result<RuleRepair, ReadError>,
    is_overtaken: bool,
}

impl RuleRepairs {
    fn begin(&mut self, kernel: &KernelHandle, family: Family) {
        match &self.under_way {
            Some(it) if it.family == family => {}
            Some(_) => drop(self.waiting.insert(family)),
            None => {
                let repair = kernel.repair_rules(family);
                self.under_way = Some(UnderWay { family, repair, is_overtaken: false });
            }
        }
    }

    /// Notes operations that the kernel has answered.
    pub(super) fn written(&mut self, ops: &[Op]) {
        if let Some(it) = &mut self.under_way {
            it.is_overtaken |= ops.contains(&Op::WriteRuleSet(it.family));
        }
    }

    /// Waits for the end of the repair under way; for ever if there is none.
    pub(super) async fn ended(&mut self) -> Result<RuleRepairEnded, WorkerGone> {
        let Some(UnderWay { family, repair, is_overtaken }) = &mut self.under_way else {
            return std::future::pending().await;
        };
        let result = repair.await.map_err(|_| WorkerGone)?;
        let ended = RuleRepairEnded { family: *family, result, is_overtaken: *is_overtaken };
        self.under_way = None;
        Ok(ended)
    }
}

impl Writer {
    /// True while rules are repaired beside the loop: what they are is not known.
    pub(crate) fn is_repairing_rules(&self) -> bool {
        self.rule_repairs.under_way.is_some()
    }

    /// Has a part of the kernel compared and repaired beside the loop if that is constant rules. Not where
    /// chains are read after them. Returns false if the caller is to compare it.
    pub(crate) fn repairs_beside(&mut self, cx: &Context, part: &Part) -> bool {
        let Part::RuleSet(family) = part else { return false };
        if !cx.leads_by_rules() {
            self.begin_rule_repair(cx, *family);
        }
        !cx.leads_by_rules()
    }

    /// Has a family's constant rules compared and repaired. The end is waited for by
    /// [`Writer::beside_ended`], and a retry of them with it.
    fn begin_rule_repair(&mut self, cx: &Context, family: Family) {
        self.rule_repairs.begin(&cx.kernel, family);
        let subject = Subject::RuleSet(family);
        if self.retry_queue.contains(&subject) {
            self.retry_queue.postpone(&subject, Instant::now() + FAR);
        }
    }

    /// Notes that a family's constant rules cannot be read. Whether they are there is not known, so until
    /// they are read this counts as a refused write, also for the node's health.
    pub(crate) fn rules_unread(&mut self, family: Family) {
        let (op, now) = (Op::WriteRuleSet(family), Instant::now());
        let subject = op.subject();
        if !self.retry_queue.contains(&subject) {
            let why = "cannot read the existing rules";
            self.retry_queue.record(op, Refusal::new(RefusalClass::Other, why), now);
        }
        self.retry_queue.postpone(&subject, now + READ_RETRY);
    }

    /// Takes in what a repair did, and begins the next. Returns true if another program had changed
    /// the rules; none if they could not be read. A repair that was overtaken is made again.
    pub(crate) fn rules_repaired(
        &mut self,
        cx: &mut Context,
        ended: RuleRepairEnded,
    ) -> Option<bool> {
        let RuleRepairEnded { family, result, is_overtaken } = ended;
        let op = Op::WriteRuleSet(family);
        let subject = op.subject();
        let found_drift = match result {
            Err(error) => {
                cx.reading_failed(&error);
                self.rules_unread(family);
                None
            }
            Ok(_) if is_overtaken => {
                self.begin_rule_repair(cx, family);
                Some(false)
            }
            Ok(RuleRepair { written: None, .. }) => {
                self.resolve(cx, &[subject]);
                Some(false)
            }
            Ok(RuleRepair { written: Some(result), took }) => {
                let is_drift = self.report_drift(cx, std::slice::from_ref(&op));
                let (ops, mut failed) = (vec![op], HashSet::default());
                self.written(cx, ops, vec![result], took, Basis::Reading, &mut failed);
                Some(is_drift)
            }
        };
        if !self.is_repairing_rules()
            && let Some(next) = self.rule_repairs.waiting.pop_first()
        {
            self.begin_rule_repair(cx, next);
        }
        found_drift
    }
}

#[cfg(test)]
mod tests {
    use plan::actual::Actual;
    use plan::planner::Planner;
    use plan::settings::Settings;

    use super::*;
    use crate::Pace;
    use kernel::fake::{Fake, FakeAnswer, KernelCall};

    #[tokio::test]
    async fn a_repair_that_a_refused_write_has_overtaken_settles_nothing() {
        let (family, fake) = (Family::V4, Fake::new(Actual::default()));
        let kernel = KernelHandle::start(fake.clone(), ()).unwrap();
        let planner = Planner::new(Settings { families: vec![family], ..Settings::new("node") });
        let mut cx = Context::new(planner, kernel, Pace::default());
        let mut writer = Writer::new(Instant::now());
        cx.set_desired_rules().await.unwrap();
        writer.begin_rule_repair(&cx, family);
        while !fake.actual().rule_sets.contains(&family) {
            tokio::task::yield_now().await;
        }
        fake.interfere(|call, actual| match call {
            KernelCall::Writing(Op::WriteRuleSet(family)) => {
                actual.rule_sets.remove(family);
                FakeAnswer::refused(RefusalClass::Other)
            }
            _ => FakeAnswer::Honest,
        });
        let write = vec![Op::WriteRuleSet(family)];
        writer.carry_out(&mut cx, write, Basis::Reading).await.unwrap();
        let subject = Subject::RuleSet(family);
        assert!(writer.retry_queue().contains(&subject));
        fake.interfere(|_, _| FakeAnswer::Honest);

        let ended = writer.rule_repairs.ended().await.unwrap();
        writer.rules_repaired(&mut cx, ended);
        assert!(writer.retry_queue().contains(&subject) && writer.is_repairing_rules());
        while writer.is_repairing_rules() {
            let ended = writer.rule_repairs.ended().await.unwrap();
            writer.rules_repaired(&mut cx, ended);
        }
        assert!(fake.actual().rule_sets.contains(&family) && writer.retry_queue().is_empty());
    }
}
