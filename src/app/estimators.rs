//! Keeping an eye on how much the kernel's timer for IPVS's statistics has to walk.

use std::path::Path;
use std::time::Duration;

use plan::planner::{Plan, Planner};
use tracing::warn;

use crate::kernel::estimators::{Guard, SYS};
use crate::kernel::sysctl;
use crate::reconcile::observer::Observer;

/// Has the timer stopped when there is too much for it.
#[derive(Debug)]
pub(super) struct Guarding {
    guard: Guard,
    /// Whether the kernel was read since the last plan. That costs a look at everything, so
    /// everything can be counted too.
    is_comparing: bool,
}

// === impl Guarding ===

impl Guarding {
    /// For the running kernel.
    pub(super) fn new() -> Self {
        let guard = Guard::new(Path::new(sysctl::ROOT), Path::new(SYS));
        Self { guard, is_comparing: false }
    }
}

impl Observer for Guarding {
    fn read(&mut self, _: Duration) {
        self.is_comparing = true;
    }

    /// Before it is written: the timer is stopped before it has that much to walk.
    fn planned(&mut self, _: &Plan, planner: &Planner, _: Duration) {
        if std::mem::take(&mut self.is_comparing) {
            let desired = planner.desired();
            let servers = desired.n_virtual_servers() + desired.n_real_servers();
            if let Some(said) = self.guard.note(servers as u64) {
                warn!("{said}");
            }
        }
    }
}
