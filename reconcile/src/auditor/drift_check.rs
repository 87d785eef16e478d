//! Drift check, every second: reads signs that something was flushed, deleted or added. Its cost is
//! the same however much there is of ours. Where it takes long it is rarer.
//!
//! The expected state is what is desired, and what stays although it is not: objects of other
//! programs, and what drains. The number of foreign objects is learned: from what was left over at
//! the start, and from every comparison of a part that was not as expected and turned out to be in
//! order.

use std::ops::RangeInclusive;
use std::time::Duration;

use plan::adoption::Unadopted;
use plan::comparison::Part;
use plan::hash::HashMap;
use plan::model::Family;
use plan::op::{PartKind, Subject};
use plan::sets::SetId;
use tokio::time::Instant;

use super::Auditor;
use super::large_sets::LargeSetRequest;
use crate::comparison::large_set;
use crate::context::Context;
use crate::observer::Report;
use crate::pace::READ_RETRY;
use crate::retry_queue::RetryQueue;
use crate::writer::Writer;
use kernel::worker::WorkerGone;
use kernel::{DriftCheck, KernelRead, processor_time};

/// Pause after a needless reading of rules, as a multiple of its duration.
const RULES_REST: u32 = 40;

/// Objects that exist beside the desired ones. The takeover counts them, and drift checks learn.
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

/// Suspicion that a family's rules have been touched, which decides if they are read. That takes
/// programs, which may take long where other programs have many rules. For some rules the kernel
/// does not tell if they were touched.
#[derive(Debug, Default)]
struct Suspicion {
    /// True if the rules are read because they seemed touched.
    is_tested: bool,
    /// Number of times in a row that the suspicion was wrong.
    n_wrong: u32,
    /// Time of the next reading, if the rules seem touched.
    again: Option<Instant>,
    /// Duration of reading what hangs on the same sign and was read first.
    took: Duration,
}

impl Expected {
    /// Counts what is left after everything that is ours was taken over or removed.
    pub(super) fn learn_all(&mut self, cx: &Context, left: &Unadopted) {
        self.foreign_virtual_servers = signed(left.n_virtual_servers());
        let sets = cx.sets().into_iter();
        self.foreign_entries = sets.map(|set| (set, signed(left.n_entries(set)))).collect();
    }

    pub(super) fn is_number_unknown(&self) -> bool {
        self.is_number_unknown
    }

    /// Returns the parts of the kernel that are not as expected, but for those with a pending retry
    /// that is not due yet.
    fn suspects(&mut self, cx: &Context, writer: &Writer, found: &DriftCheck) -> Vec<Part> {
        let mut suspects = Vec::new();
        if cx.uses(PartKind::VirtualServers) {
            self.suspect_ipvs(cx, writer, found, &mut suspects);
        }
        self.suspect_rules(cx, writer, found, &mut suspects);
        suspects
    }

    fn suspect_ipvs(
        &mut self,
        cx: &Context,
        writer: &Writer,
        found: &DriftCheck,
        suspects: &mut Vec<Part>,
    ) {
        let now = Instant::now();
        let is_put_off = |subject| writer.retry_queue().is_put_off(&subject, now);
        if !found.link && !is_put_off(Subject::Link) {
            suspects.push(Part::Addresses);
        }
        let (virtual_servers, pending) = n_pending(writer.retry_queue());
        self.is_number_unknown = found.n_virtual_servers.is_none();
        if let Some(number) = found.n_virtual_servers {
            let n = n_own_virtual_servers(cx, writer) + self.foreign_virtual_servers;
            if !around(n, virtual_servers).contains(&i64::from(number)) {
                suspects.push(Part::Frontends);
            }
        }
        for set in cx.sets() {
            let foreign = self.foreign_entries.get(&set).copied().unwrap_or(0);
            let n = n_own_entries(cx, set) + foreign;
            let around = around(n, pending.get(&set).copied().unwrap_or(0));
            let is_expected = found.set_entries.get(&set).map(|n| around.contains(&i64::from(*n)));
            let is_pending = is_expected.is_none() && is_put_off(Subject::Set(set));
            if is_expected != Some(true) && !is_pending {
                suspects.push(Part::Sets([set].into()));
            }
        }
    }

    /// The constant rules come first: what is found complete then is what later drift checks see as
    /// untouched, so that a change after it, while chains are read, is noticed by the next one.
    fn suspect_rules(
        &mut self,
        cx: &Context,
        writer: &Writer,
        found: &DriftCheck,
        suspects: &mut Vec<Part>,
    ) {
        let now = Instant::now();
        if writer.is_repairing_rules() {
            return;
        }
        for family in &cx.planner.settings().families {
            let is_put_off = writer.retry_queue().is_put_off(&Subject::RuleSet(*family), now);
            let is_touched = !found.untouched.contains(family);
            let suspicion = self.suspicions.entry(*family).or_default();
            // Chains have other retries than the constant rules.
            let with_chains = cx.leads_by_rules();
            if suspicion.is_due(is_touched && (with_chains || !is_put_off), now) {
                let rule_set = (!is_put_off).then_some(Part::RuleSet(*family));
                let chains = with_chains.then_some(Part::Chains(*family));
                suspects.extend(rule_set.into_iter().chain(chains));
            }
        }
    }

    /// Learns that a part is in order which was not as expected: that is how it looks from now on.
    fn learn(
        &mut self,
        cx: &Context,
        writer: &Writer,
        part: &Part,
        found: &DriftCheck,
        took: Duration,
    ) {
        match part {
            Part::Frontends => {
                if let Some(number) = found.n_virtual_servers {
                    let own = n_own_virtual_servers(cx, writer);
                    self.foreign_virtual_servers = i64::from(number) - own;
                }
            }
            Part::Sets(sets) => {
                for (set, number) in
                    sets.iter().filter_map(|set| found.set_entries.get_key_value(set))
                {
                    self.learn_entries(*set, i64::from(*number) - n_own_entries(cx, *set));
                }
            }
            Part::RuleSet(family) if cx.leads_by_rules() => {
                self.suspicions.entry(*family).or_default().took += took;
            }
            Part::RuleSet(family) | Part::Chains(family) => {
                self.rules_were_in_order(*family, took);
            }
            Part::Addresses | Part::VirtualServers(_) => {}
        }
    }

    /// Learns that a set is in order with so many entries that are not ours.
    pub(super) fn learn_entries(&mut self, set: SetId, n_foreign: i64) {
        self.foreign_entries.insert(set, n_foreign);
    }

    /// Learns that a family's rules are in order that seemed touched, and that it took this long to see.
    pub(super) fn rules_were_in_order(&mut self, family: Family, took: Duration) {
        self.suspicions.entry(family).or_default().was_wrong(took, Instant::now());
    }

    /// Ends the suspicion of a part that another program had changed.
    pub(super) fn confirm(&mut self, part: &Part) {
        if let Part::RuleSet(family) | Part::Chains(family) = part {
            self.suspicions.remove(family);
        }
    }
}

impl Suspicion {
    /// True if the rules are to be read. `touched`: they seem touched to the drift check.
    fn is_due(&mut self, touched: bool, now: Instant) -> bool {
        if !touched {
            *self = Self::default();
        }
        let is_due = touched && self.again.is_none_or(|again| again <= now);
        self.is_tested |= is_due;
        is_due
    }

    /// Notes that the rules were in order, and that reading them took this long. Once means that
    /// another program wrote just then: its next write must be noticed at once. Nothing is learned
    /// from a pass, which reads them unsuspected.
    fn was_wrong(&mut self, took: Duration, now: Instant) {
        if !std::mem::take(&mut self.is_tested) {
            return;
        }
        self.n_wrong = self.n_wrong.saturating_add(1);
        let took = took + std::mem::take(&mut self.took);
        self.again = (self.n_wrong > 1).then(|| now + took * RULES_REST);
    }
}

impl Auditor {
    /// Makes a drift check, and repairs at once what is unexpected.
    pub(super) async fn drift_check(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
    ) -> Result<(), WorkerGone> {
        let started = Instant::now();
        let found = cx.kernel.read(KernelRead::DriftCheck, |kernel| {
            let before = processor_time();
            kernel.drift_check().map(|found| (found, processor_time().saturating_sub(before)))
        });
        let Some((mut found, cost)) = cx.or_report(found.await)? else {
            self.schedule.pause(Instant::now() + READ_RETRY);
            return Ok(());
        };
        let took = started.elapsed();
        // A listing, a second of 50,000 virtual servers, says nothing of what the next check costs.
        let cost = if found.has_listed { Duration::ZERO } else { cost };
        self.schedule.drift_check_ended(took, cost, cx.pace.sync_period, started + took);
        self.schedule.succeeded();
        let mut suspects = self.expected.suspects(cx, writer, &found);
        suspects.retain(|part| !self.schedule.is_scheduled(part));
        let as_expected = suspects.is_empty();
        cx.observers.report(&Report::DriftChecked { took, as_expected });
        self.sysctls.put_back(cx, std::mem::take(&mut found.sysctls)).await?;
        writer.check_schedulers(cx).await?;
        for part in suspects {
            if writer.repairs_beside(cx, &part) {
                continue;
            }
            if let Some(set) = large_set(&part, cx.planner.desired()) {
                let n_entries = found.set_entries.get(&set).map(|n| i64::from(*n));
                let n_foreign = n_entries.map(|n| n - n_own_entries(cx, set));
                if self.large_sets.begin(cx, writer, LargeSetRequest { set, n_foreign }) {
                    continue;
                }
            }
            let started = Instant::now();
            match self.compare(cx, writer, &part).await? {
                Some(compared) if compared.found_drift => self.expected.confirm(&part),
                Some(_) => {
                    let took = started.elapsed();
                    self.expected.learn(cx, writer, &part, &found, took);
                }
                None => {}
            }
        }
        Ok(())
    }
}

fn n_own_virtual_servers(cx: &Context, writer: &Writer) -> i64 {
    signed(cx.planner.desired().n_virtual_servers() + writer.drain().n_removed_when_drained())
}

fn n_own_entries(cx: &Context, set: SetId) -> i64 {
    signed(cx.planner.desired().n_entries(set))
}

/// Returns the number of virtual servers, and of entries of each set, that may or may not exist
/// because the kernel refused a write.
fn n_pending(retry_queue: &RetryQueue) -> (i64, HashMap<SetId, i64>) {
    let (mut virtual_servers, mut entries) = (0, HashMap::default());
    for (subject, _) in retry_queue.iter() {
        match subject {
            Subject::VirtualServer(_) => virtual_servers += 1,
            Subject::Entry(set, _) => *entries.entry(*set).or_insert(0) += 1,
            _ => {}
        }
    }
    (virtual_servers, entries)
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
    fn rules_that_were_in_order_once_are_read_whenever_they_seem_touched() {
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
    fn rules_that_a_pass_finds_in_order_were_not_suspected() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut it = Suspicion::default();
        assert!(!it.is_due(false, now));
        for _ in 0..3 {
            it.was_wrong(second, now);
        }
        assert!(it.is_due(true, now));
    }

    #[test]
    fn rules_of_which_the_kernel_does_not_tell_are_read_more_seldom() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut it = Suspicion::default();
        assert!(it.is_due(true, now));
        it.was_wrong(second, now);
        assert!(it.is_due(true, now + second));
        it.was_wrong(second, now + second);
        assert!(!it.is_due(true, now + 40 * second));
        assert!(it.is_due(true, now + 41 * second));
    }
}
