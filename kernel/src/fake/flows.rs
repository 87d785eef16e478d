//! Connection tracking of a fake kernel.

use std::collections::{BTreeMap, BTreeSet};

use plan::flows::{Flow, FlowTargets};
use plan::hash::HashSet;
use plan::kernel_objects::Frontend;
use plan::model::Family;

use super::{Fake, FakeAnswer, KernelCall, lost};
use crate::conntrack::TrackedCounts;
use crate::counters::ConnectionCount;
use crate::{ReadError, Refusal, RefusalClass, TrackedFlows};

impl Fake {
    /// Connection tracking, to look at and to change.
    pub fn with_flows<T>(&self, work: impl FnOnce(&mut Vec<Flow>) -> T) -> T {
        work(&mut self.state().flows)
    }

    /// Refuses to remove flows the next `times`.
    pub fn keep_flows(&self, times: usize) {
        self.state().kept_flows = times;
    }

    /// Refuses to count flows as long as this holds.
    pub fn set_flows_unreadable(&self, are_unreadable: bool) {
        self.state().are_flows_unreadable = are_unreadable;
    }

    /// Takes the frontends whose flows were asked to be removed since the last time, each time.
    pub fn take_cleanings(&self) -> Vec<BTreeSet<Frontend>> {
        std::mem::take(&mut self.state().cleanings)
    }
}

impl TrackedFlows for Fake {
    fn count_flows(&self, frontends: &HashSet<Frontend>) -> Result<TrackedCounts, ReadError> {
        let state = self.state();
        if state.are_flows_unreadable {
            return Err(ReadError::new("conntrack entries", "injected"));
        }
        let mut counts: BTreeMap<_, ConnectionCount> = BTreeMap::new();
        for flow in state.flows.iter().filter(|flow| frontends.contains(&flow.frontend())) {
            counts.entry((flow.frontend(), flow.reply_source)).or_default().active += 1;
        }
        Ok(counts.into_iter().map(|((of, endpoint), count)| (of, endpoint, count)).collect())
    }

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
