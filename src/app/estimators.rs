//! Observer that limits the work of the kernel's timer for IPVS statistics.

use std::path::Path;
use std::time::Duration;

use plan::planner::{Plan, Planner};
use tracing::warn;

use crate::kernel::estimators::{Guard, SYS};
use crate::kernel::sysctl;
use crate::reconcile::observer::Observer;

/// Stops the timer when there are too many virtual and real servers for it.
#[derive(Debug)]
pub(super) struct EstimatorObserver(Guard);

// === impl EstimatorObserver ===

impl EstimatorObserver {
    /// For the running kernel.
    pub(super) fn new() -> Self {
        Self(Guard::new(Path::new(sysctl::ROOT), Path::new(SYS)))
    }
}

impl Observer for EstimatorObserver {
    /// Before it is written: the timer is stopped before it has that much to walk.
    fn planned(&mut self, _: &Plan, planner: &Planner, _: Duration) {
        let desired = planner.desired();
        let servers = desired.n_virtual_servers() + desired.n_real_servers();
        if let Some(warning) = self.0.note(servers as u64) {
            warn!("{warning}");
        }
    }
}
