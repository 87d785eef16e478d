//! Schedule of the audit. It knows no kernel and no clock: its methods take the times.

use std::collections::VecDeque;
use std::time::Duration;

use plan::comparison::Part;
use plan::kernel_objects::Frontend;
use tokio::time::Instant;

use super::pass::{AuditPass, SECOND};
use crate::observer::Pass;
use crate::pace::READ_RETRY;

/// Pause after a drift check, as a multiple of its duration: x_tables hands out the rules of other
/// programs, too (docs/internals/kernel-use.md).
const DRIFT_CHECK_REST: u32 = 10;
/// The same pause, at most, for time in which its thread had no processor, unless it took even longer: a
/// wait for a processor or a lock says nothing of what the next check costs. Nor does a listing of virtual
/// servers, whose processor time counts as such a wait.
const REST_AFTER_WAIT: Duration = Duration::from_secs(2);

/// Time that comparing a chunk of virtual servers is to take. A change that comes meanwhile waits for
/// it, and each chunk wakes two threads: at rest there is one every two or three seconds. The next
/// chunk is as large as fits, and at most twice as large as the last one.
const CHUNK_TIME: Duration = Duration::from_millis(20);
/// Most virtual servers in a chunk.
const LARGEST_CHUNK: usize = 1_024;
/// Number of them in the first one.
const FIRST_CHUNK: usize = 32;

/// Number of readings that fail in a row before all others wait as well.
const FAILURES_IN_A_ROW: u32 = 2;

/// Number of passes in a row with drift before there is a second's rest between them: another
/// program undoes our changes, and neither side wins by being busier.
const PASSES_IN_A_ROW: u32 = 8;

/// Position of the audit, and the time at which it goes on. The auditor takes the next part from it,
/// and reports what became of it.
#[derive(Debug)]
pub(super) struct Schedule {
    next_drift_check: Instant,
    /// Pause that the last drift check alone would ask for.
    drift_check_rest: Duration,
    /// End of the pause after readings that failed, or after passes that found drift again and again.
    paused: Instant,
    /// Parts to compare before any other.
    suspects: VecDeque<Part>,
    /// Parts that could not be read, each with the time of its next try.
    unread: Vec<(Instant, Part)>,
    /// Number of readings in a row that failed.
    n_failures: u32,
    pass: Option<AuditPass>,
    /// True from the first sign of drift until a whole pass finds none that began a second after the
    /// last one.
    is_full_speed: bool,
    /// Time from which a pass that finds nothing ends full speed. Other programs make their changes
    /// one after the other, and a changed weight or scheduler shows in no count.
    confirmed_from: Instant,
    /// Earliest beginning of the next pass at full speed.
    next_pass: Instant,
    /// Number of full-speed passes in a row that found drift.
    n_with_drift: u32,
    /// Number of virtual servers per read request.
    chunk: usize,
}

impl Schedule {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next_drift_check: now,
            drift_check_rest: Duration::ZERO,
            paused: now,
            suspects: VecDeque::new(),
            unread: Vec::new(),
            n_failures: 0,
            pass: None,
            is_full_speed: false,
            confirmed_from: now,
            next_pass: now,
            n_with_drift: 0,
            chunk: FIRST_CHUNK,
        }
    }

    /// Begins when the kernel has just been taken over.
    pub(super) fn begin(&mut self, now: Instant) {
        self.next_drift_check = now + SECOND;
    }

    /// Compares nothing until then.
    pub(super) fn pause(&mut self, until: Instant) {
        self.paused = until;
    }

    pub(super) fn is_paused(&self, now: Instant) -> bool {
        now < self.paused
    }

    /// Has a part compared before any other, unless it could not be read a moment ago.
    pub(super) fn suspect(&mut self, part: Part) {
        if !self.suspects.contains(&part) && !self.is_unread(&part) {
            self.suspects.push_back(part);
        }
    }

    /// True if a part has a time of its own: it could not be read, or those of its virtual servers
    /// that are wrong are compared already.
    pub(super) fn is_scheduled(&self, part: &Part) -> bool {
        let is_listed = *part == Part::Frontends && !self.suspects.is_empty();
        is_listed || self.is_unread(part)
    }

    fn is_unread(&self, part: &Part) -> bool {
        self.unread.iter().any(|(_, unread)| unread == part)
    }

    /// Returns the time at which there is something to do next.
    pub(super) fn next_wake(&self, now: Instant) -> Instant {
        let next = match &self.pass {
            // What rests goes on after a drift check, without a wake-up of its own.
            Some(pass) if self.suspects.is_empty() => pass
                .next_wake(self.chunk)
                .filter(|due| *due <= now || pass.is_full_speed)
                .unwrap_or(self.next_drift_check),
            _ => now,
        };
        next.min(self.next_drift_check).max(self.paused)
    }

    /// Returns the time of the next drift check.
    pub(super) fn next_drift_check(&self) -> Instant {
        self.next_drift_check.max(self.paused)
    }

    /// Notes the duration of a drift check, and its processor time. A single long one changes nothing.
    pub(super) fn drift_check_ended(
        &mut self,
        took: Duration,
        processor_time: Duration,
        period: Duration,
        now: Instant,
    ) {
        let after_wait = (took * DRIFT_CHECK_REST).min(REST_AFTER_WAIT.max(took));
        let rest = after_wait.max(processor_time * DRIFT_CHECK_REST);
        let usual = rest.min(std::mem::replace(&mut self.drift_check_rest, rest));
        self.next_drift_check = self.next_drift_check.max(now + usual.min(period));
    }

    /// True if a drift check is due. If so, also grants the pass its work up to now.
    pub(super) fn begin_drift_check(&mut self, period: Duration, now: Instant) -> bool {
        if now < self.next_drift_check {
            return false;
        }
        // Seconds that were missed are not made up for.
        self.next_drift_check = (self.next_drift_check + SECOND).max(now);
        if self.next_drift_check <= now {
            self.next_drift_check = now + SECOND;
        }
        if let Some(pass) = &mut self.pass {
            pass.grant(period, now);
        }
        true
    }

    /// Takes the part to compare now.
    pub(super) fn next_part(&mut self, now: Instant) -> Option<Part> {
        if let Some(part) = self.suspects.pop_front() {
            return Some(part);
        }
        // Two that stay unreadable must not take turns while all others wait.
        let is_due = |(due, _): &(Instant, Part)| *due <= now && self.n_failures == 0;
        if let Some(due) = self.unread.iter().position(is_due) {
            return Some(self.unread.swap_remove(due).1);
        }
        let pass = self.pass.as_mut()?;
        pass.next_wake(self.chunk).filter(|due| *due <= now)?;
        pass.take(self.chunk)
    }

    /// Notes that a part could not be read. It is retried by itself, and the others go on without it;
    /// but where one after the other cannot be read, all of them wait. Rules are read by programs,
    /// and say nothing of the others.
    pub(super) fn failed(&mut self, part: Part, now: Instant) {
        self.n_failures = self.n_failures.saturating_add(1);
        let is_by_program = matches!(part, Part::RuleSet(_) | Part::Chains(_));
        if self.n_failures >= FAILURES_IN_A_ROW && !is_by_program {
            self.pause(now + READ_RETRY);
        }
        if !self.is_unread(&part) {
            self.unread.push((now + READ_RETRY, part));
        }
    }

    /// Notes that some of a part could not be read. It will hardly be readable before the next pass.
    pub(super) fn missed_some(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.has_missed = true;
        }
    }

    /// Notes that a read succeeded.
    pub(super) fn succeeded(&mut self) {
        self.n_failures = 0;
    }

    /// Notes the time that comparing a part took.
    pub(super) fn compared(&mut self, part: &Part, took: Duration) {
        self.succeeded();
        if let Part::VirtualServers(frontends) = part {
            let fits = (frontends.len() as u128 * CHUNK_TIME.as_nanos())
                .checked_div(took.as_nanos())
                .and_then(|fits| usize::try_from(fits).ok())
                .unwrap_or(LARGEST_CHUNK);
            self.chunk = fits.min(self.chunk * 2).clamp(1, LARGEST_CHUNK);
        }
        if let Some(pass) = &mut self.pass {
            pass.cost += took;
        }
    }

    /// Goes on at full speed, because the kernel was not as we had left it. Returns true if that is
    /// news.
    pub(super) fn go_full_speed(&mut self, now: Instant) -> bool {
        self.confirmed_from = now + SECOND;
        self.next_pass = now;
        if let Some(pass) = self.pass.as_mut().filter(|pass| pass.is_full_speed) {
            pass.found_drift = true;
            pass.begins = pass.begins.min(now);
        } else {
            self.pass = None;
        }
        !std::mem::replace(&mut self.is_full_speed, true)
    }

    /// Begins a pass, unless there is one.
    pub(super) fn begin_pass(
        &mut self,
        start: impl FnOnce() -> (VecDeque<Part>, Vec<Frontend>),
        now: Instant,
    ) {
        let is_full_speed = self.is_full_speed;
        let begins = if is_full_speed { self.next_pass.max(now) } else { now };
        self.pass.get_or_insert_with(|| {
            let (parts, frontends) = start();
            AuditPass::new(parts, frontends, is_full_speed, begins)
        });
    }

    /// True if the audit runs without pauses.
    pub(super) fn is_full_speed(&self) -> bool {
        self.is_full_speed
    }

    /// Ends the pass if everything was compared. Returns true beside it if all of it could be read.
    pub(super) fn end_pass(&mut self, now: Instant) -> Option<(Pass, bool)> {
        let are_parts_left = !self.suspects.is_empty();
        let pass = self.pass.take_if(|pass| pass.is_over() && !are_parts_left)?;
        let whole = self.unread.is_empty() && !pass.has_missed;
        let confirms = !pass.found_drift && pass.begins >= self.confirmed_from;
        // What cannot be read is no reason to read all the rest again and again.
        self.is_full_speed = pass.is_full_speed && whole && !confirms;
        self.next_pass = if pass.found_drift { now } else { self.confirmed_from };
        let in_a_row = self.is_full_speed && pass.found_drift;
        self.n_with_drift = if in_a_row { self.n_with_drift + 1 } else { 0 };
        if self.n_with_drift >= PASSES_IN_A_ROW {
            self.pause(now + SECOND);
        }
        let (took, cost) = (now - pass.begins, pass.cost);
        Some((Pass { took, cost, full_speed: pass.is_full_speed }, whole))
    }
}

#[cfg(test)]
mod tests {
    use plan::model::Protocol;

    use super::super::pass::REST;
    use super::*;

    fn frontends(count: u16) -> Vec<Frontend> {
        let frontend =
            |port| Frontend { address: [10, 96, 0, 1].into(), protocol: Protocol::Tcp, port };
        (1..=count).map(frontend).collect()
    }

    /// Goes on for so many seconds, a request taking this long; says how many requests there were
    /// in each second.
    fn audit(schedule: &mut Schedule, from: Instant, seconds: u32, cost: Duration) -> Vec<usize> {
        let period = Duration::from_secs(30);
        let second = |number| {
            let now = from + number * SECOND;
            schedule.begin_pass(|| ([Part::Addresses].into(), frontends(6_000)), now);
            assert!(schedule.begin_drift_check(period, now));
            let parts = std::iter::from_fn(|| {
                let part = schedule.next_part(now)?;
                schedule.compared(&part, cost);
                Some(part)
            });
            let count = parts.count();
            schedule.end_pass(now);
            count
        };
        (0..seconds).map(second).collect()
    }

    #[test]
    fn a_pass_is_spread_over_its_period() {
        let now = Instant::now();
        let requests = audit(&mut Schedule::new(now), now, 120, Duration::ZERO);
        let (most, all) = (requests.iter().max().unwrap(), requests.iter().sum::<usize>());
        assert!(*most <= 3, "{requests:?}");
        assert!((4 * 7..=4 * 9).contains(&all), "{all}");
    }

    #[test]
    fn one_that_costs_much_takes_a_multiple_of_that() {
        let now = Instant::now();
        let mut it = Schedule::new(now);
        let requests = audit(&mut it, now, 1_000, Duration::from_millis(100));
        let cost =
            Duration::from_millis(100) * u32::try_from(requests.iter().sum::<usize>()).unwrap();
        assert!(cost * REST <= 1_005 * SECOND && cost * REST >= 900 * SECOND, "{cost:?}");
        assert_eq!(it.chunk, 1, "and reads less at once");
    }

    #[test]
    fn a_chunk_is_as_large_as_its_time_allows() {
        let now = Instant::now();
        let mut it = Schedule::new(now);
        let mut look = |cost: Duration, times: usize| {
            for _ in 0..times {
                let frontends = frontends(u16::try_from(it.chunk).unwrap());
                let took = cost * u32::try_from(frontends.len()).unwrap();
                it.compared(&Part::VirtualServers(frontends.into()), took);
            }
            it.chunk
        };
        assert_eq!(look(Duration::from_micros(200), 3), 100);
        assert_eq!(look(Duration::from_millis(2), 1), 10, "the machine is slow for a moment");
        assert_eq!(look(Duration::from_micros(200), 4), 100);
        assert_eq!(look(Duration::from_micros(2), 4), LARGEST_CHUNK);
        assert_eq!(look(Duration::from_secs(1), 1), 1);
    }

    #[test]
    fn drift_begins_it_anew_and_lets_it_go_on_until_nothing_is_found() {
        let now = Instant::now();
        let mut it = Schedule::new(now);
        audit(&mut it, now, 10, Duration::ZERO);
        let mut now = now + 10 * SECOND;
        assert!(it.go_full_speed(now) && !it.go_full_speed(now));
        let mut passes = Vec::new();
        // What is found is the first part of the first pass; a read takes a millisecond.
        for read in 0.. {
            it.begin_pass(|| ([Part::Addresses].into(), frontends(600)), now);
            if read == 0 {
                assert!(!it.go_full_speed(now));
            }
            now = now.max(it.next_wake(now));
            it.begin_drift_check(SECOND, now);
            let Some(part) = it.next_part(now) else { continue };
            now += Duration::from_millis(1);
            it.compared(&part, Duration::from_millis(1));
            let Some((pass, whole)) = it.end_pass(now) else { continue };
            assert!(pass.full_speed && whole);
            passes.push(pass.took);
            if !it.is_full_speed {
                break;
            }
        }
        assert_eq!(passes.len(), 3, "{passes:?}");
        it.begin_pass(|| ([Part::Addresses].into(), frontends(600)), now);
        assert_eq!(it.next_part(now), None);
    }

    #[test]
    fn a_drift_check_that_takes_long_is_rarer() {
        let (mut now, period) = (Instant::now(), Duration::from_secs(30));
        let mut it = Schedule::new(now);
        let took_and_rest =
            [(0, 1_000), (900, 1_000), (100, 1_100), (800, 1_800), (800, 8_800), (9_000, 17_000)];
        for (took, rest) in took_and_rest.into_iter().chain([(9_000, 39_000)]) {
            assert!(it.begin_drift_check(period, now), "{took} ms");
            let took = Duration::from_millis(took);
            it.drift_check_ended(took, took, period, now + took);
            let next = now + Duration::from_millis(rest);
            assert!(!it.begin_drift_check(period, next - Duration::from_millis(1)));
            now = next;
        }
    }

    #[test]
    fn a_drift_check_that_waits_long_is_hardly_rarer() {
        let (mut now, period) = (Instant::now(), Duration::from_secs(30));
        let mut it = Schedule::new(now);
        let processor_time = Duration::from_millis(5);
        for (took, rest) in [(900, 1_000), (900, 2_900), (100, 1_100), (100, 1_100), (5_000, 6_000)]
        {
            assert!(it.begin_drift_check(period, now), "{took} ms");
            let took = Duration::from_millis(took);
            it.drift_check_ended(took, processor_time, period, now + took);
            let next = now + Duration::from_millis(rest);
            assert!(!it.begin_drift_check(period, next - Duration::from_millis(1)));
            now = next;
        }
    }
}
