//! Sysctls that Services need: read with every drift check, and set again.
//!
//! Another program that sets one again and again is not fought with: each time ours is set later, up
//! to a minute. A read-only `/proc/sys` is logged once, and again when it changes.

use std::time::Duration;

use plan::hash::HashMap;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::context::Context;
use crate::observer::Report;
use crate::retry_queue::delay;
use kernel::RefusalClass;
use kernel::sysctl::{Sysctl, SysctlChange, SysctlError};
use kernel::worker::WorkerGone;

/// Time for which a sysctl keeps its value before it counts as never changed.
const CALM: Duration = Duration::from_secs(600);

/// Number of times in a row that a sysctl is put back before that is a conflict. It is reported once.
const CONFLICT: u32 = 4;

/// The sysctls that another program has changed lately. Drift checks update it.
#[derive(Debug, Default)]
pub(super) struct Sysctls {
    disturbed: HashMap<&'static str, Disturbed>,
    /// Number of sysctls without their value after the last drift check.
    mismatches: usize,
}

#[derive(Debug)]
struct Disturbed {
    /// Number of attempts to set it in a row, with or without success.
    attempts: u32,
    /// Time of the last attempt.
    last: Instant,
    /// Time of the next attempt, if it has to be set again.
    due: Instant,
    /// Reason for which it could not be set the last time, as it was reported.
    obstacle: Option<String>,
}

impl Sysctls {
    /// Notes which sysctls do not have their value; all others do.
    fn seen(&mut self, wrong: &[Sysctl], now: Instant) {
        self.disturbed.retain(|path, disturbed| {
            if wrong.iter().any(|sysctl| sysctl.path == *path) {
                return true;
            }
            if disturbed.obstacle.is_some() {
                info!("sysctl {} has the required value again", path.replace('/', "."));
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

    /// Notes that a sysctl was put back. Returns a warning for operators if that is a conflict.
    fn was_put_back(&mut self, change: &SysctlChange, now: Instant) -> Option<String> {
        let disturbed = self.tried(change.sysctl.path, now);
        disturbed.obstacle = None;
        if disturbed.attempts < CONFLICT {
            warn!("another program changed a sysctl; kube-ipvs sets it again: {change}");
        }
        (disturbed.attempts == CONFLICT).then(|| {
            format!(
                "another program keeps setting {}={}, where kube-ipvs needs {}: {}. kube-ipvs sets \
                 it again at growing intervals of up to a minute. Find the program that sets it \
                 (files in /etc/sysctl.d, a service that runs sysctl)",
                change.sysctl.name(),
                change.before,
                change.sysctl.value,
                change.sysctl.why
            )
        })
    }

    /// Notes that a sysctl could not be put back. Returns a warning for operators if that is news.
    fn refused(&mut self, error: &SysctlError, now: Instant) -> Option<String> {
        let disturbed = self.tried(error.sysctl.path, now);
        let text = error.to_string();
        if disturbed.obstacle.as_ref() == Some(&text) {
            return None;
        }
        let consequence = if error.sysctl.required { "; Services need it" } else { "" };
        let note = format!(
            "{text}. Another program changed it, or /proc/sys was not writable at \
             startup{consequence}. kube-ipvs retries at least once a minute"
        );
        disturbed.obstacle = Some(text);
        Some(note)
    }

    /// Sets these sysctls again, which do not have their value.
    pub(super) async fn put_back(
        &mut self,
        cx: &mut Context,
        wrong: Vec<Sysctl>,
    ) -> Result<(), WorkerGone> {
        let now = Instant::now();
        self.seen(&wrong, now);
        let mut mismatches = wrong.len();
        for sysctl in wrong {
            if !self.is_due(&sysctl, now) {
                continue;
            }
            let note = match cx.kernel.call(move |kernel| kernel.set_sysctl(&sysctl)).await? {
                Ok(None) => {
                    mismatches -= 1;
                    None
                }
                Ok(Some(change)) => {
                    mismatches -= 1;
                    cx.observers.report(&Report::SysctlPutBack);
                    self.was_put_back(&change, now)
                }
                Err(error) => self.refused(&error, now),
            };
            if let Some(note) = note {
                warn!("{note}");
                cx.observers.report(&Report::SysctlWarning(&note));
            }
        }
        if mismatches != self.mismatches {
            self.mismatches = mismatches;
            cx.observers.report(&Report::SysctlMismatches(mismatches));
        }
        Ok(())
    }
}
