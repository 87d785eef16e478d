//! Drift check, every second: reads signs that something was flushed, deleted or added. Its cost is
//! the same however much there is of ours. Where it takes long it is rarer.
//!
//! The expected state is what is desired, and what stays although it is not: objects of other
//! programs, and what drains. The number of the foreign objects is learned: from what was left over
//! at the start, and from every look at a part that was not as expected and turned out to be in
//! order.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use plan::found::Found;
use plan::model::Family;
use plan::op::Subject;
use plan::sets::SetId;
use plan::settings::Settings;
use tokio::time::Instant;

use super::audit::AuditedPart;
use super::{READ_RETRY, Reconciler};
use crate::kernel::worker::WorkerGone;
use crate::kernel::{DriftCheck, KernelRead};

/// Rules that always seem touched rest so many times what reading them takes.
const RULES_REST: u32 = 40;

/// Objects that exist beside the desired ones.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// Virtual servers that are not ours, those by firewall mark included.
    foreign_virtual_servers: i64,
    /// Entries of each set that are not ours.
    foreign_entries: HashMap<SetId, i64>,
    /// True if the kernel does not tell the number of virtual servers.
    is_number_unknown: bool,
    suspicions: HashMap<Family, Suspicion>,
}

/// Suspicion that a family's rules have been touched, which decides if to look at them. Looking
/// takes programs, which may take long where there are many rules of others. For some rules the
/// kernel does not tell if they were touched.
#[derive(Debug, Default)]
struct Suspicion {
    /// Number of times in a row that the suspicion was wrong.
    n_wrong: u32,
    /// Not before this.
    again: Option<Instant>,
}

// === impl Expected ===

impl Expected {
    /// Learns what is left after everything that is ours was taken over or taken away.
    pub(super) fn learn(&mut self, left: &Found, settings: &Settings) {
        self.foreign_virtual_servers = signed(left.n_virtual_servers());
        let sets = settings.families.iter().flat_map(|family| SetId::all(*family));
        self.foreign_entries = sets.map(|set| (set, signed(left.n_entries(set)))).collect();
    }

    pub(super) fn is_number_unknown(&self) -> bool {
        self.is_number_unknown
    }
}

// === impl Suspicion ===

impl Suspicion {
    /// True if the rules are to be looked at. `touched` tells if they seem touched to the drift
    /// check.
    fn is_due(&mut self, touched: bool, now: Instant) -> bool {
        if !touched {
            *self = Self::default();
        }
        touched && self.again.is_none_or(|again| again <= now)
    }

    /// The rules were in order, and reading them took so long. Once means that another program
    /// wrote just then: its next write must be noticed at once.
    fn was_wrong(&mut self, took: Duration, now: Instant) {
        self.n_wrong = self.n_wrong.saturating_add(1);
        self.again = (self.n_wrong > 1).then(|| now + took * RULES_REST);
    }
}

impl Reconciler {
    /// Looks, and repairs at once what is not as expected.
    pub(super) async fn drift_check(&mut self) -> Result<(), WorkerGone> {
        let started = Instant::now();
        let signs = self.kernel.read(KernelRead::DriftCheck, |kernel| kernel.drift_check()).await;
        let Some(mut signs) = self.or_report(signs)? else {
            self.audit.pause(Instant::now() + READ_RETRY);
            return Ok(());
        };
        let took = started.elapsed();
        self.audit.drift_check_ended(took, self.pace.sync_period, started + took);
        self.audit.succeeded();
        let suspects = self.suspects(&signs);
        self.observer.drift_checked(took, suspects.is_empty());
        self.put_back_sysctls(std::mem::take(&mut signs.sysctls)).await?;
        self.look_for_schedulers().await?;
        for part in suspects {
            let started = Instant::now();
            match self.inspect(&part).await? {
                None => self.audit.failed(part, Instant::now()),
                Some(0) => self.learn(&part, &signs, started),
                Some(_) => {
                    if let AuditedPart::RuleSet(family) = part {
                        self.expected.suspicions.remove(&family);
                    }
                    self.alarm();
                }
            }
        }
        Ok(())
    }

    /// The parts of the kernel that are not as expected, but for those that are looked at, or
    /// written, again at a time of their own.
    fn suspects(&mut self, signs: &DriftCheck) -> Vec<AuditedPart> {
        let now = Instant::now();
        let mut suspects = Vec::new();
        if !signs.link && !self.is_put_off(&Subject::Link, now) {
            suspects.push(AuditedPart::Addresses);
        }
        let (virtual_servers, pending) = self.n_pending();
        self.expected.is_number_unknown = signs.n_virtual_servers.is_none();
        if let Some(number) = signs.n_virtual_servers {
            let n = self.n_own_virtual_servers() + self.expected.foreign_virtual_servers;
            let is_expected = around(n, virtual_servers).contains(&i64::from(number));
            if !is_expected && !self.audit.has_suspects() {
                suspects.push(AuditedPart::Frontends);
            }
        }
        let families = &self.planner.settings().families;
        for set in families.iter().flat_map(|family| SetId::all(*family)) {
            let n = self.n_own_entries(set) + self.foreign_entries(set);
            let around = around(n, pending.get(&set).copied().unwrap_or(0));
            let is_expected = signs.set_entries.get(&set).map(|n| around.contains(&i64::from(*n)));
            let is_pending = is_expected.is_none() && self.is_put_off(&Subject::Set(set), now);
            if is_expected != Some(true) && !is_pending {
                suspects.push(AuditedPart::Set(set));
            }
        }
        for family in families {
            let is_put_off = self.is_put_off(&Subject::RuleSet(*family), now);
            let is_touched = !signs.untouched.contains(family) && !is_put_off;
            let suspicion = self.expected.suspicions.entry(*family).or_default();
            if suspicion.is_due(is_touched, now) {
                suspects.push(AuditedPart::RuleSet(*family));
            }
        }
        suspects.retain(|part| !self.audit.is_unread(part));
        suspects
    }

    /// A part that seemed wrong is in order: that is how it looks from now on.
    fn learn(&mut self, part: &AuditedPart, signs: &DriftCheck, started: Instant) {
        match part {
            AuditedPart::Frontends => {
                if let Some(number) = signs.n_virtual_servers {
                    let own = self.n_own_virtual_servers();
                    self.expected.foreign_virtual_servers = i64::from(number) - own;
                }
            }
            AuditedPart::Set(set) => {
                if let Some(number) = signs.set_entries.get(set) {
                    let foreign = i64::from(*number) - self.n_own_entries(*set);
                    self.expected.foreign_entries.insert(*set, foreign);
                }
            }
            AuditedPart::RuleSet(family) => {
                let suspicion = self.expected.suspicions.entry(*family).or_default();
                suspicion.was_wrong(started.elapsed(), Instant::now());
            }
            AuditedPart::Addresses | AuditedPart::VirtualServers(_) => {}
        }
    }

    fn n_own_virtual_servers(&self) -> i64 {
        signed(self.planner.desired().n_virtual_servers() + self.drain.n_retiring())
    }

    fn n_own_entries(&self, set: SetId) -> i64 {
        signed(self.planner.desired().n_entries(set))
    }

    fn foreign_entries(&self, set: SetId) -> i64 {
        self.expected.foreign_entries.get(&set).copied().unwrap_or(0)
    }

    /// Returns the number of virtual servers, and of entries of each set, that may or may not exist
    /// because the kernel refused a write.
    fn n_pending(&self) -> (i64, HashMap<SetId, i64>) {
        let (mut virtual_servers, mut entries) = (0, HashMap::new());
        for (subject, _) in self.retry_queue.iter() {
            match subject {
                Subject::VirtualServer(_) => virtual_servers += 1,
                Subject::Entry(set, _) => *entries.entry(*set).or_insert(0) += 1,
                _ => {}
            }
        }
        (virtual_servers, entries)
    }
}

fn around(n: i64, distance: i64) -> RangeInclusive<i64> {
    n - distance..=n + distance
}

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_were_in_order_once_are_looked_at_whenever_they_seem_touched() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut it = Suspicion::default();
        assert!(!it.is_due(false, now) && it.is_due(true, now));
        it.was_wrong(second, now);
        assert!(!it.is_due(false, now + second));
        for n in 2..5 {
            assert!(it.is_due(true, now + n * second));
            it.was_wrong(second, now + n * second);
            assert!(!it.is_due(false, now + n * second));
        }
    }

    #[test]
    fn rules_of_which_the_kernel_does_not_tell_are_looked_at_more_seldom() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut it = Suspicion::default();
        it.was_wrong(second, now);
        assert!(it.is_due(true, now + second));
        it.was_wrong(second, now + second);
        assert!(!it.is_due(true, now + 40 * second));
        assert!(it.is_due(true, now + 41 * second));
    }
}
