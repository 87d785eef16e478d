//! Schedulers that Services chose and the kernel lacked: one whose module is loaded later is tried
//! again.

use std::collections::BTreeMap;

use plan::event::Event;
use plan::op::Op;
use plan::settings::SchedulerName;
use tracing::info;

use super::Reconciler;
use crate::kernel::worker::WorkerGone;
use crate::kernel::{Refusal, RefusalClass};

/// The schedulers that the kernel lacked once, and whether their module was loaded at the last look.
/// One that is refused although its module is loaded is not tried again until it was unloaded.
#[derive(Debug, Default)]
pub(super) struct Schedulers(BTreeMap<SchedulerName, bool>);

impl Reconciler {
    /// A Service that chose a scheduler which this kernel does not have gets the default one. That
    /// the default one is there was tried at the start.
    pub(super) fn note_missing_scheduler(&mut self, op: &Op, refusal: &Refusal) {
        if let Op::CreateVirtualServer(_, server) | Op::ChangeVirtualServer(_, server) = op
            && refusal.class == RefusalClass::NoScheduler
            && server.scheduler != self.planner.settings().scheduler
        {
            self.schedulers.0.entry(server.scheduler.clone()).or_insert(false);
            self.take(Event::SchedulerMissing(server.scheduler.clone()));
        }
    }

    /// Has those planned again that chose a scheduler whose module has been loaded meanwhile.
    pub(super) async fn look_for_schedulers(&mut self) -> Result<(), WorkerGone> {
        if self.schedulers.0.is_empty() {
            return Ok(());
        }
        let names: Vec<SchedulerName> = self.schedulers.0.keys().cloned().collect();
        let loaded = self.kernel.call(|kernel| kernel.loaded_schedulers(names)).await?;
        let mut new = Vec::new();
        for (name, was_loaded) in &mut self.schedulers.0 {
            let is_loaded = loaded.contains(name);
            if is_loaded && !std::mem::replace(was_loaded, is_loaded) {
                new.push(name.clone());
            }
            *was_loaded = is_loaded;
        }
        for name in new {
            info!(
                "the module of IPVS's scheduler {name} has been loaded; Services that chose it get it"
            );
            self.take(Event::SchedulerLoaded(name));
        }
        Ok(())
    }
}
