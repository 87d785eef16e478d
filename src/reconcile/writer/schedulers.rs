//! Schedulers that Services chose and the kernel lacked. They are retried once their module is
//! loaded.

use std::collections::BTreeMap;

use plan::event::Event;
use plan::op::Op;
use plan::scheduler::SchedulerName;
use tracing::info;

use crate::kernel::worker::WorkerGone;
use crate::kernel::{Refusal, RefusalClass};
use crate::reconcile::context::Context;

/// The schedulers that the kernel lacked once, and whether their module was loaded at the last
/// check. One that is refused although its module is loaded is not retried until it was unloaded.
#[derive(Debug, Default)]
pub(super) struct MissingSchedulers(BTreeMap<SchedulerName, bool>);

// === impl MissingSchedulers ===

impl MissingSchedulers {
    /// Gives the default scheduler to Services that chose one which this kernel does not have. That
    /// it has the default one was tried at the start.
    pub(super) fn note(&mut self, cx: &mut Context, op: &Op, refusal: &Refusal) {
        if let Op::CreateVirtualServer(_, server) | Op::ChangeVirtualServer(_, server) = op
            && refusal.class == RefusalClass::NoScheduler
            && server.scheduler != cx.planner.settings().scheduler
        {
            self.0.entry(server.scheduler.clone()).or_insert(false);
            cx.apply(Event::SchedulerMissing(server.scheduler.clone()));
        }
    }

    /// Has the Services planned again whose scheduler's module has been loaded meanwhile.
    pub(super) async fn check(&mut self, cx: &mut Context) -> Result<(), WorkerGone> {
        if self.0.is_empty() {
            return Ok(());
        }
        let names: Vec<SchedulerName> = self.0.keys().cloned().collect();
        let loaded = cx.kernel.call(|kernel| kernel.loaded_schedulers(names)).await?;
        for (name, was_loaded) in &mut self.0 {
            let is_loaded = loaded.contains(name);
            if !std::mem::replace(was_loaded, is_loaded) && is_loaded {
                info!("module of IPVS scheduler {name} was loaded; Services that chose it get it");
                cx.apply(Event::SchedulerLoaded(name.clone()));
            }
        }
        Ok(())
    }
}
