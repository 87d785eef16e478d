//! Changes of how virtual servers balance: a few at a time, after everything else.
//!
//! When the scheduler of a virtual server becomes another, the kernel waits for an RCU grace period
//! before the request returns (`ip_vs_edit_service` in net/netfilter/ipvs/ip_vs_ctl.c): some 16 ms, as
//! long as some 500 other operations. So these changes never share a request with others, and other
//! changes come between. New connections to the virtual server are refused meanwhile.

use std::collections::VecDeque;

use plan::hash::{HashMap, HashSet};
use plan::ipvs::desired::Desired;
use plan::kernel_objects::Frontend;
use plan::model::ServiceName;
use plan::op::{Op, Subject};
use plan::virtual_server::DesiredFrontend;
use tokio::time::Instant;

use super::{Basis, Writer};
use crate::context::Context;
use kernel::worker::WorkerGone;

/// Most changes in one request: some 32 ms.
const AT_ONCE: usize = 2;

/// The virtual servers that are to balance otherwise. Services take turns, so that one that has many waits for
/// itself. What a virtual server gets is what is desired when its turn comes.
#[derive(Debug, Default)]
pub(super) struct Balancing {
    /// Services of which some wait, in the order of their turns.
    turns: VecDeque<ServiceName>,
    /// Those that wait, in the order in which they came.
    of_services: HashMap<ServiceName, VecDeque<Frontend>>,
    waiting: HashSet<Frontend>,
    /// Time of the next request: it lets others have as much time as the last one took.
    next: Option<Instant>,
}

impl Balancing {
    /// Takes the changes of how virtual servers balance out of these operations. Returns the subjects
    /// that have come with them.
    pub(super) fn take_from(&mut self, ops: &mut Vec<Op>, desired: &Desired) -> Vec<Subject> {
        let taken: Vec<Op> =
            ops.extract_if(.., |op| matches!(op, Op::ChangeVirtualServer(..))).collect();
        for op in &taken {
            if let Op::ChangeVirtualServer(frontend, _) = op
                && let Some(service) = desired.owner(frontend)
                && self.waiting.insert(*frontend)
            {
                let of_service = self.of_services.entry(service.clone()).or_default();
                if of_service.is_empty() {
                    self.turns.push_back(service.clone());
                }
                of_service.push_back(*frontend);
            }
        }
        taken.iter().map(Op::subject).collect()
    }

    /// True if an operation waits here.
    pub(super) fn has(&self, op: &Op) -> bool {
        matches!(op, Op::ChangeVirtualServer(frontend, _) if self.waiting.contains(frontend))
    }

    /// Returns the number of virtual servers that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the time at which the next one is due.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| self.next.unwrap_or(now))
    }

    fn pop(&mut self) -> Option<Frontend> {
        let service = self.turns.pop_front()?;
        let of_service = self.of_services.get_mut(&service)?;
        let first = of_service.pop_front()?;
        if of_service.is_empty() {
            self.of_services.remove(&service);
        } else {
            self.turns.push_back(service);
        }
        self.waiting.remove(&first);
        Some(first)
    }
}

impl Writer {
    /// Changes how a few virtual servers balance, if some wait for it.
    pub(crate) async fn change_balancing(&mut self, cx: &mut Context) -> Result<(), WorkerGone> {
        let started = Instant::now();
        if self.balancing.next_due(started).is_none_or(|due| due > started) {
            return Ok(());
        }
        let mut ops = Vec::new();
        while ops.len() < AT_ONCE
            && let Some(frontend) = self.balancing.pop()
        {
            // The retry of one that is not there makes it as it should be.
            let pending = self.retry_queue.get(&Subject::VirtualServer(frontend));
            if pending.is_some_and(|pending| matches!(pending.op, Op::CreateVirtualServer(..))) {
                continue;
            }
            if let DesiredFrontend::Open(server, _) = cx.planner.desired().at(&frontend) {
                ops.push(Op::ChangeVirtualServer(frontend, server.clone()));
            }
        }
        let retried =
            ops.iter().map(Op::subject).filter(|subject| self.retry_queue.contains(subject));
        let mut in_order: Vec<Subject> = retried.collect();
        let mut failed = HashSet::default();
        self.send(cx, ops, Basis::Plan, &mut failed).await?;
        in_order.retain(|subject| !failed.contains(subject));
        self.resolve(cx, &in_order);
        let ended = Instant::now();
        self.balancing.next = Some(ended + (ended - started));
        self.report_pending(cx);
        Ok(())
    }
}
