//! Connection tracking of a fake kernel.

use std::collections::BTreeSet;

use plan::flows::{Flow, FlowTargets};
use plan::kernel_objects::Frontend;
use plan::model::Family;

use super::{Fake, FakeAnswer, KernelCall, lost};
use crate::FlowRemover;
use crate::Refusal;
use crate::RefusalClass;

impl Fake {
    /// Connection tracking, to look at and to change.
    pub fn with_flows<T>(&self, work: impl FnOnce(&mut Vec<Flow>) -> T) -> T {
        work(&mut self.state().flows)
    }

    /// Refuses to remove flows the next `times`.
    pub fn keep_flows(&self, times: usize) {
        self.state().kept_flows = times;
    }

    /// Takes the frontends whose flows were asked to be removed since the last time, each time.
    pub fn take_cleanings(&self) -> Vec<BTreeSet<Frontend>> {
        std::mem::take(&mut self.state().cleanings)
    }
}

impl FlowRemover for Fake {
    fn remove_flows(&self, family: Family, targets: &FlowTargets) -> Result<u64, Refusal> {
        let mut state = self.state();
        let asked = targets.frontends().filter(|frontend| frontend.family() == family);
        state.cleanings.push(asked.copied().collect());
        let is_lost = match state.decide(KernelCall::Flows(family)) {
            FakeAnswer::Refused(refusal) => return Err(refusal),
            FakeAnswer::Lost { carried_out: false } => return Err(lost()),
            FakeAnswer::Lost { carried_out: true } => true,
            FakeAnswer::Honest | FakeAnswer::Incomplete(_) => false,
        };
        if let Some(left) = state.kept_flows.checked_sub(1) {
            state.kept_flows = left;
            return Err(Refusal::new(RefusalClass::Exhausted, "injected"));
        }
        let before = state.flows.len();
        state.flows.retain(|flow| flow.frontend().family() != family || !targets.is_stale(flow));
        if is_lost { Err(lost()) } else { Ok((before - state.flows.len()) as u64) }
    }
}
