//! Sysctls and IPVS timeouts that are kept at their desired values.

use std::path::Path;

use plan::hash::HashSet;
use plan::model::Family;

use super::{Linux, sysctl};
use crate::sysctl::{Sysctl, SysctlChange, SysctlError};

/// Desired sysctls and timeouts.
#[derive(Debug, Default)]
pub(super) struct Kept {
    sysctls: Vec<Sysctl>,
    /// Sysctls that wait for the rules of IPv4.
    behind_rules: Vec<Sysctl>,
    /// A timeout of 0 leaves the kernel's own.
    timeouts: ipvs::Timeouts,
}

impl Linux {
    /// From now on, drift checks report those of these sysctls that have another value.
    pub fn keep_sysctls(&mut self, sysctls: Vec<Sysctl>) {
        self.kept.sysctls = sysctls;
    }

    /// Sets these sysctls as soon as the rules of IPv4 are as they should be, and keeps them like the
    /// others from then on: what they allow, a rule restricts.
    pub fn keep_sysctls_behind_rules(&mut self, sysctls: Vec<Sysctl>) {
        self.kept.behind_rules = sysctls;
    }

    /// Sets the sysctls that waited for the rules of these families. One that cannot be set differs,
    /// which the drift check reports.
    pub(super) fn rules_stand(&mut self, families: &HashSet<Family>) {
        if self.kept.behind_rules.is_empty() || !families.contains(&Family::V4) {
            return;
        }
        let sysctls = std::mem::take(&mut self.kept.behind_rules);
        for change in sysctl::apply(Path::new(sysctl::ROOT), &sysctls).changed {
            tracing::info!("{change}");
        }
        self.kept.sysctls.extend(sysctls);
    }

    /// Sets those of IPVS's timeouts that are not 0, now and whenever a sysctl of IPVS has to be
    /// set again. A module that was unloaded has forgotten both.
    pub fn keep_timeouts(&mut self, timeouts: ipvs::Timeouts) -> Result<(), ipvs::Error> {
        self.kept.timeouts = timeouts;
        if timeouts == ipvs::Timeouts::default() {
            Ok(())
        } else {
            self.ipvs.as_mut().map_or(Ok(()), |ipvs| ipvs.set_timeouts(timeouts))
        }
    }

    /// Has the interface, which is new, take addresses of IPv6, before any is bound. One that does not is
    /// what the drift check reports.
    pub(super) fn allow_ipv6(&self) {
        let kept = sysctl::ipv6_of_link();
        if self.kept.sysctls.contains(&kept) {
            for change in sysctl::apply(Path::new(sysctl::ROOT), &[kept]).changed {
                tracing::info!("{change}");
            }
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
