//! The switches that are kept as they should be, and IPVS's timeouts.

use std::path::Path;

use super::{Linux, sysctl};
use crate::kernel::sysctl::{Sysctl, SysctlChange, SysctlError};

/// Switches and timeouts that are kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    sysctls: Vec<Sysctl>,
    /// Those that are 0 stay as the kernel has them.
    timeouts: ipvs::Timeouts,
}

impl Linux {
    /// From now on, a drift check tells which of these do not have their value.
    pub fn keep_sysctls(&mut self, sysctls: Vec<Sysctl>) {
        self.kept.sysctls = sysctls;
    }

    /// Sets IPVS's timeouts, those that are not 0, now and whenever a switch of IPVS has to be set
    /// again: a module that was unloaded has forgotten both.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn keep_timeouts(&mut self, timeouts: ipvs::Timeouts) -> Result<(), ipvs::Error> {
        self.kept.timeouts = timeouts;
        if timeouts == ipvs::Timeouts::default() {
            Ok(())
        } else {
            self.ipvs.set_timeouts(timeouts)
        }
    }

    pub(super) fn differing_sysctls(&self) -> Vec<Sysctl> {
        sysctl::differing(Path::new(sysctl::ROOT), &self.kept.sysctls)
    }

    pub(super) fn put_back(
        &mut self,
        sysctl: &Sysctl,
    ) -> Result<Option<SysctlChange>, SysctlError> {
        if sysctl.path.starts_with("net/ipv4/vs/")
            && let Err(error) = self.keep_timeouts(self.kept.timeouts)
        {
            tracing::warn!("cannot set IPVS's timeouts again: {error}");
        }
        sysctl::set(Path::new(sysctl::ROOT), sysctl)
    }
}
