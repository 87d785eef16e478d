//! Schedulers that Services chose. Those that the kernel lacked are retried once their module is
//! loaded.
//!
//! The kernel has a program load the module of a scheduler that it does not know, at each request anew
//! (`ip_vs_scheduler_get` in net/netfilter/ipvs/ip_vs_sched.c). So a scheduler that no virtual server
//! has had ends a request, and if it is refused, nothing else with it is sent.

use std::collections::{BTreeMap, BTreeSet};

use plan::event::Event;
use plan::hash::HashSet;
use plan::op::{Op, Subject};
use plan::scheduler::SchedulerName;
use tokio::time::Instant;
use tracing::info;

use crate::context::Context;
use crate::retry_queue::RetryQueue;
use kernel::worker::WorkerGone;
use kernel::{Refusal, RefusalClass};

/// Schedulers that the kernel was asked for, and those that it lacks.
#[derive(Debug, Default)]
pub(super) struct Schedulers {
    /// Those that the kernel lacked once, and whether their module was loaded at the last check. One
    /// that is refused although its module is loaded is not retried until it was unloaded.
    missing: BTreeMap<SchedulerName, bool>,
    /// Those that the kernel was asked for.
    tried: BTreeSet<SchedulerName>,
}

impl Schedulers {
    /// Returns the operations behind the first one with a scheduler that was never tried.
    pub(super) fn split_off_untried(&mut self, cx: &Context, ops: &mut Vec<Op>) -> Vec<Op> {
        let default = &cx.planner.settings().scheduler;
        let is_untried =
            |op: &Op| scheduler_of(op).is_some_and(|it| it != default && !self.tried.contains(it));
        let Some(first) = ops.iter().position(is_untried) else { return Vec::new() };
        self.tried.extend(ops.get(first).and_then(scheduler_of).cloned());
        ops.split_off(first + 1)
    }

    /// Takes out the operations with schedulers that the kernel lacks, and those on the same virtual
    /// servers. They are retried with what their Services get instead.
    pub(super) fn take_refused(
        &self,
        retry_queue: &mut RetryQueue,
        ops: &mut Vec<Op>,
        failed: &mut HashSet<Subject>,
    ) {
        let now = Instant::now();
        let mut taken = HashSet::default();
        ops.retain(|op| {
            if let Some(name) = scheduler_of(op).filter(|it| self.missing.get(*it) == Some(&false))
            {
                let reason = format!("the kernel has no scheduler {name}");
                retry_queue.record(
                    op.clone(),
                    Refusal::new(RefusalClass::NoScheduler, reason),
                    now,
                );
                failed.insert(op.subject());
                taken.insert(op.subject());
                return false;
            }
            taken.is_empty() || !taken.contains(&op.subject())
        });
    }

    /// Gives the default scheduler to Services that chose one which this kernel does not have. That
    /// it has the default one was tried at the start.
    pub(super) fn note(&mut self, cx: &mut Context, op: &Op, refusal: &Refusal) {
        if let Some(name) = scheduler_of(op)
            && refusal.class == RefusalClass::NoScheduler
            && *name != cx.planner.settings().scheduler
        {
            self.missing.entry(name.clone()).or_insert(false);
            cx.apply(Event::SchedulerMissing(name.clone()));
        }
    }

    /// Has the Services planned again whose scheduler's module has been loaded meanwhile.
    pub(super) async fn check(&mut self, cx: &mut Context) -> Result<(), WorkerGone> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let names: Vec<SchedulerName> = self.missing.keys().cloned().collect();
        let loaded = cx.kernel.call(|kernel| kernel.loaded_schedulers(names)).await?;
        for (name, was_loaded) in &mut self.missing {
            let is_loaded = loaded.contains(name);
            if !std::mem::replace(was_loaded, is_loaded) && is_loaded {
                info!(
                    "module of IPVS scheduler {name} was loaded; the Services that select it now \
                       use it"
                );
                cx.apply(Event::SchedulerLoaded(name.clone()));
            }
        }
        Ok(())
    }
}

fn scheduler_of(op: &Op) -> Option<&SchedulerName> {
    match op {
        Op::CreateVirtualServer(_, server) | Op::ChangeVirtualServer(_, server) => {
            Some(&server.scheduler)
        }
        _ => None,
    }
}
