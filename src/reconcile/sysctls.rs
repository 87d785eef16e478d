//! The kernel's switches that Services need: looked at with every drift check, and put back.
//!
//! Another program that sets one again and again is not fought with: each time it is put back
//! later, up to a minute. Where `/proc/sys` is read-only, that is said once, and again when it
//! changes.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::Reconciler;
use super::retry_queue::delay;
use crate::kernel::RefusalClass;
use crate::kernel::sysctl::{Sysctl, SysctlChange, SysctlError};
use crate::kernel::worker::WorkerGone;

/// A switch that has kept its value for so long after it was put back is as if never changed.
const CALM: Duration = Duration::from_secs(600);

/// Putting a switch back for the fourth time in a row is reported as a conflict, and no more.
const CONFLICT: u32 = 4;

/// The switches that something else has changed lately.
#[derive(Debug, Default)]
pub(super) struct Sysctls {
    disturbed: HashMap<&'static str, Disturbed>,
    /// Number of switches without their value after the last drift check.
    mismatches: usize,
}

#[derive(Debug)]
struct Disturbed {
    /// Number of times that it was set in a row, or could not be.
    attempts: u32,
    /// Time of the last of them.
    last: Instant,
    /// It is not set before this.
    due: Instant,
    /// Reason for which it could not be set the last time, as it was reported.
    obstacle: Option<String>,
}

// === impl Sysctls ===

impl Sysctls {
    /// Notes which switches do not have their value; all others do.
    fn seen(&mut self, wrong: &[Sysctl], now: Instant) {
        self.disturbed.retain(|path, disturbed| {
            if wrong.iter().any(|sysctl| sysctl.path == *path) {
                return true;
            }
            if disturbed.obstacle.is_some() {
                info!("{} has the value that Services need again", path.replace('/', "."));
                return false;
            }
            now.saturating_duration_since(disturbed.last) < CALM
        });
    }

    fn is_due(&self, sysctl: &Sysctl, now: Instant) -> bool {
        self.disturbed.get(sysctl.path).is_none_or(|disturbed| disturbed.due <= now)
    }

    fn tried(&mut self, path: &'static str, now: Instant) -> &mut Disturbed {
        let first = Disturbed { attempts: 0, last: now, due: now, obstacle: None };
        let disturbed = self.disturbed.entry(path).or_insert(first);
        disturbed.attempts = disturbed.attempts.saturating_add(1);
        disturbed.last = now;
        disturbed.due = now + delay(RefusalClass::Other, disturbed.attempts);
        disturbed
    }

    /// Notes that a switch was put back. Returns what operators should know beside the log: none
    /// while nothing is in conflict with us.
    fn put_back(&mut self, change: &SysctlChange, now: Instant) -> Option<String> {
        let disturbed = self.tried(change.sysctl.path, now);
        disturbed.obstacle = None;
        if disturbed.attempts < CONFLICT {
            warn!("put back what something else had changed: {change}");
        }
        (disturbed.attempts == CONFLICT).then(|| {
            format!(
                "something else keeps setting {}={}, where kube-ipvs needs {}: {}. kube-ipvs puts \
                 it back less and less often, once a minute in the end. Find the program that \
                 sets it (files in /etc/sysctl.d, a service that runs sysctl)",
                change.sysctl.path.replace('/', "."),
                change.before,
                change.sysctl.value,
                change.sysctl.why
            )
        })
    }

    /// Notes that a switch could not be put back. Returns what operators should know, if that is
    /// news.
    fn refused(&mut self, error: &SysctlError, now: Instant) -> Option<String> {
        let disturbed = self.tried(error.sysctl.path, now);
        let text = error.to_string();
        if disturbed.obstacle.as_ref() == Some(&text) {
            return None;
        }
        let consequence = if error.sysctl.required { "; Services need it" } else { "" };
        let note = format!(
            "{text}. Something else has changed it{consequence}. It is tried again, at least once \
             a minute"
        );
        disturbed.obstacle = Some(text);
        Some(note)
    }
}

impl Reconciler {
    /// Puts these switches back, which do not have their value.
    pub(super) async fn put_back_sysctls(&mut self, wrong: Vec<Sysctl>) -> Result<(), WorkerGone> {
        let now = Instant::now();
        self.sysctls.seen(&wrong, now);
        let mut mismatches = wrong.len();
        for sysctl in wrong {
            if !self.sysctls.is_due(&sysctl, now) {
                continue;
            }
            let note = match self.kernel.call(move |kernel| kernel.set_sysctl(&sysctl)).await? {
                Ok(None) => {
                    mismatches -= 1;
                    None
                }
                Ok(Some(change)) => {
                    mismatches -= 1;
                    self.observer.sysctl_put_back();
                    self.status.send_modify(|status| status.sysctls_put_back += 1);
                    self.sysctls.put_back(&change, now)
                }
                Err(error) => self.sysctls.refused(&error, now),
            };
            if let Some(note) = note {
                warn!("{note}");
                self.observer.sysctl_warning(&note);
            }
        }
        if mismatches != self.sysctls.mismatches {
            self.sysctls.mismatches = mismatches;
            self.observer.sysctl_mismatches(mismatches);
            self.status.send_modify(|status| status.sysctl_mismatches = mismatches);
        }
        Ok(())
    }
}
