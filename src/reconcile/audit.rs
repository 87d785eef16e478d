//! The audit: everything is compared with what it should be, again and again, a little at a time.
//!
//! A pass takes one sync period, or forty times what it costs if that is longer. Its work is dealt
//! out to the seconds, and each second's part follows the drift check, so that an idle loop wakes
//! up once a second. One chunk is a few milliseconds of the kernel's work; between two chunks the
//! loop takes what came in.
//!
//! When something was wrong the audit is at *full speed*: it begins anew and goes on without pauses
//! until one whole pass has found nothing.

mod pass;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use plan::kernel::Frontend;
use plan::model::Family;
use plan::op::Subject;
use plan::sets::SetId;
use tokio::time::Instant;
use tracing::info;

use self::pass::AuditPass;
use super::observer::{Pass, RoundKind};
use super::rounds::Ended;
use super::{READ_RETRY, Reconciler};
use crate::kernel::worker::WorkerGone;

/// From one drift check to the next.
const SECOND: Duration = Duration::from_secs(1);
/// A drift check rests so many times what drift checks take: x_tables hands out the rules of
/// others, too (docs/kernel-use.md).
const DRIFT_CHECK_REST: u32 = 10;

/// Most virtual servers in one read request.
pub(super) const LARGEST_CHUNK: usize = 256;

/// Time that comparing a chunk of virtual servers is to take, since changes wait for it. The next
/// chunk is as large as fits, and at most twice as large as the last one. Each chunk wakes two
/// threads, too.
const CHUNK_TIME: Duration = Duration::from_millis(5);

/// After so many readings in a row that failed, all others wait as well.
const FAILURES_IN_A_ROW: u32 = 2;

/// After so many passes in a row that found something, there is a second's rest between them:
/// another program undoes our changes, and neither side wins by being busier.
const PASSES_IN_A_ROW: u32 = 8;

/// A part of the kernel that is compared in one go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AuditedPart {
    /// The interface and its addresses.
    Addresses,
    /// A family's rules.
    RuleSet(Family),
    /// A set.
    Set(SetId),
    /// List of the virtual servers that exist.
    Frontends,
    /// These virtual servers.
    VirtualServers(Arc<[Frontend]>),
}

/// Position of the audit, and the time at which it goes on.
#[derive(Debug)]
pub(super) struct Audit {
    next_drift_check: Instant,
    /// Duration of the last drift check.
    drift_check_took: Duration,
    /// Nothing is looked at before this.
    paused: Instant,
    /// Parts to look at before any other.
    suspects: VecDeque<AuditedPart>,
    /// Parts that could not be read, each with the time of its next try.
    unread: Vec<(Instant, AuditedPart)>,
    /// Number of readings in a row that failed.
    n_failures: u32,
    pass: Option<AuditPass>,
    is_full_speed: bool,
    /// Number of full-speed passes in a row that found something.
    n_with_drift: u32,
    /// Number of virtual servers per read request.
    chunk: usize,
}

// === impl Part ===

impl AuditedPart {
    /// True if a subject is compared with this part. Virtual servers are told by their frontends.
    pub(super) fn has(&self, subject: &Subject) -> bool {
        match self {
            Self::Addresses => {
                matches!(subject, Subject::Link | Subject::Address(_) | Subject::Route(_))
            }
            Self::RuleSet(family) => *subject == Subject::RuleSet(*family),
            Self::Set(set) => match subject {
                Subject::Set(it) | Subject::Entry(it, _) => it == set,
                _ => false,
            },
            Self::Frontends | Self::VirtualServers(_) => false,
        }
    }
}

// === impl Audit ===

impl Audit {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next_drift_check: now,
            drift_check_took: Duration::ZERO,
            paused: now,
            suspects: VecDeque::new(),
            unread: Vec::new(),
            n_failures: 0,
            pass: None,
            is_full_speed: false,
            n_with_drift: 0,
            chunk: LARGEST_CHUNK / 8,
        }
    }

    /// The kernel has just been taken over.
    pub(super) fn begin(&mut self, now: Instant) {
        self.next_drift_check = now + SECOND;
    }

    /// The kernel cannot be read: nothing is looked at before this.
    pub(super) fn pause(&mut self, until: Instant) {
        self.paused = until;
    }

    fn is_paused(&self, now: Instant) -> bool {
        now < self.paused
    }

    /// Looks at this part before any other, unless it could not be read a moment ago.
    pub(super) fn suspect(&mut self, part: AuditedPart) {
        if !self.suspects.contains(&part) && !self.is_unread(&part) {
            self.suspects.push_back(part);
        }
    }

    /// True if a part is to be looked at before any other.
    pub(super) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// True if a part could not be read, and has not been tried again yet.
    pub(super) fn is_unread(&self, part: &AuditedPart) -> bool {
        self.unread.iter().any(|(_, unread)| unread == part)
    }

    /// Returns the time at which there is something to do next.
    pub(super) fn next_wake(&self, now: Instant) -> Instant {
        let is_busy = match &self.pass {
            _ if !self.suspects.is_empty() => true,
            Some(pass) => pass.may_go_on(now),
            None => true,
        };
        let next = if is_busy { now } else { self.next_drift_check };
        next.max(self.paused)
    }

    /// A drift check took so long. One that does by chance changes nothing.
    pub(super) fn drift_check_ended(&mut self, took: Duration, period: Duration, now: Instant) {
        let usual = took.min(std::mem::replace(&mut self.drift_check_took, took));
        self.next_drift_check =
            self.next_drift_check.max(now + (usual * DRIFT_CHECK_REST).min(period));
    }

    /// True if a drift check is due. If so, also grants the pass its work up to now.
    fn begin_drift_check(&mut self, period: Duration, now: Instant) -> bool {
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

    /// Takes the part to look at now.
    fn next_part(&mut self, now: Instant) -> Option<AuditedPart> {
        if let Some(part) = self.suspects.pop_front() {
            return Some(part);
        }
        // Two that stay unreadable must not take turns while all others wait.
        let is_due = |(due, _): &(Instant, AuditedPart)| *due <= now && self.n_failures == 0;
        if let Some(due) = self.unread.iter().position(is_due) {
            return Some(self.unread.swap_remove(due).1);
        }
        let pass = self.pass.as_mut().filter(|pass| pass.may_go_on(now))?;
        pass.take(self.chunk)
    }

    /// A part could not be read. It is tried again by itself, and the others go on without it; but
    /// where one after the other cannot be read, all of them wait. Rules are read by programs, and
    /// say nothing of the others.
    pub(super) fn failed(&mut self, part: AuditedPart, now: Instant) {
        self.n_failures = self.n_failures.saturating_add(1);
        if self.n_failures >= FAILURES_IN_A_ROW && !matches!(part, AuditedPart::RuleSet(_)) {
            self.pause(now + READ_RETRY);
        }
        if !self.is_unread(&part) {
            self.unread.push((now + READ_RETRY, part));
        }
    }

    /// Some of a part could not be read, which will hardly be otherwise before the next pass.
    pub(super) fn missed_some(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.has_missed = true;
        }
    }

    /// Something could be read.
    pub(super) fn succeeded(&mut self) {
        self.n_failures = 0;
    }

    /// A part took this time.
    fn looked_at(&mut self, part: &AuditedPart, took: Duration) {
        self.succeeded();
        if let AuditedPart::VirtualServers(frontends) = part {
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

    /// Something was wrong. Returns whether that is news.
    fn alarm(&mut self) -> bool {
        if let Some(pass) = self.pass.as_mut().filter(|pass| pass.is_full_speed) {
            pass.found_drift = true;
        } else {
            self.pass = None;
        }
        !std::mem::replace(&mut self.is_full_speed, true)
    }

    /// Begins a pass, unless there is one.
    fn begin_pass(
        &mut self,
        start: impl FnOnce() -> (VecDeque<AuditedPart>, Vec<Frontend>),
        now: Instant,
    ) {
        let is_full_speed = self.is_full_speed;
        self.pass.get_or_insert_with(|| {
            let (parts, frontends) = start();
            AuditPass::new(parts, frontends, is_full_speed, now)
        });
    }

    /// Ends the pass if everything was looked at. Says also whether all of it could be read.
    fn end_pass(&mut self, now: Instant) -> Option<(Pass, bool)> {
        let are_parts_left = !self.suspects.is_empty();
        let pass = self.pass.take_if(|pass| pass.is_over() && !are_parts_left)?;
        let whole = self.unread.is_empty() && !pass.has_missed;
        // What cannot be read is no reason to read all the rest again and again.
        self.is_full_speed = pass.is_full_speed && pass.found_drift && whole;
        self.n_with_drift = if self.is_full_speed { self.n_with_drift + 1 } else { 0 };
        if self.n_with_drift >= PASSES_IN_A_ROW {
            self.pause(now + SECOND);
        }
        let (took, cost) = (now - pass.began, pass.cost);
        Some((Pass { took, cost, full_speed: pass.is_full_speed }, whole))
    }
}

impl Reconciler {
    /// Does what is due of the watch over the kernel: a drift check, a part of the audit, or nothing.
    pub(super) async fn watch_over(&mut self) -> Result<(), WorkerGone> {
        let now = Instant::now();
        if !self.audit.is_paused(now) && self.audit.begin_drift_check(self.pace.sync_period, now) {
            self.drift_check().await?;
        }
        // That may have failed.
        if self.audit.is_paused(now) {
            return Ok(());
        }
        let planner = &self.planner;
        let is_number_unknown = self.expected.is_number_unknown();
        self.audit.begin_pass(
            || {
                let families = planner.settings().families.iter();
                let sets = families.flat_map(|family| SetId::all(*family)).map(AuditedPart::Set);
                // Otherwise their number tells.
                let all = is_number_unknown.then_some(AuditedPart::Frontends);
                let parts = [AuditedPart::Addresses].into_iter().chain(sets).chain(all).collect();
                (parts, planner.desired().frontends().copied().collect())
            },
            now,
        );
        if let Some(part) = self.audit.next_part(now) {
            self.look_at(part).await?;
        }
        if let Some((pass, whole)) = self.audit.end_pass(Instant::now()) {
            self.pass_ended(&pass, whole);
        }
        Ok(())
    }

    /// Compares a part of the kernel with what it should be.
    pub(super) async fn look_at(&mut self, part: AuditedPart) -> Result<(), WorkerGone> {
        let started = Instant::now();
        match self.inspect(&part).await? {
            None => self.audit.failed(part, Instant::now()),
            Some(repaired) => {
                self.audit.looked_at(&part, started.elapsed());
                if repaired > 0 {
                    self.alarm();
                }
            }
        }
        Ok(())
    }

    /// Something was not as we left it: where that is so, there is often more.
    pub(super) fn alarm(&mut self) {
        if self.audit.alarm() {
            self.observer.full_speed(true);
        }
    }

    fn pass_ended(&mut self, pass: &Pass, whole: bool) {
        if pass.full_speed && !self.audit.is_full_speed {
            if whole {
                info!("all kernel state was compared at full speed, and nothing else had changed");
            }
            self.observer.full_speed(false);
        }
        // One in which something could not be read is no comparison of everything.
        if !whole {
            return;
        }
        self.observer.pass_ended(pass);
        self.round_ended(Ended { kind: RoundKind::Comparison, took: pass.cost, oldest: None });
        self.status.send_modify(|status| status.passes += 1);
    }
}

#[cfg(test)]
mod tests {
    use plan::model::Protocol;

    use super::pass::REST;
    use super::*;

    fn frontends(count: u16) -> Vec<Frontend> {
        let frontend =
            |port| Frontend { address: [10, 96, 0, 1].into(), protocol: Protocol::Tcp, port };
        (1..=count).map(frontend).collect()
    }

    /// Goes on for so many seconds, a request taking this long; says how many requests there were
    /// in each second.
    fn audit(audit: &mut Audit, from: Instant, seconds: u32, cost: Duration) -> Vec<usize> {
        let period = Duration::from_secs(30);
        let second = |number| {
            let now = from + number * SECOND;
            audit.begin_pass(|| ([AuditedPart::Addresses].into(), frontends(6_000)), now);
            assert!(audit.begin_drift_check(period, now));
            let parts = std::iter::from_fn(|| {
                let part = audit.next_part(now)?;
                audit.looked_at(&part, cost);
                Some(part)
            });
            let count = parts.count();
            audit.end_pass(now);
            count
        };
        (0..seconds).map(second).collect()
    }

    #[test]
    fn a_pass_is_spread_over_its_period() {
        let now = Instant::now();
        let requests = audit(&mut Audit::new(now), now, 120, Duration::ZERO);
        let (most, all) = (requests.iter().max().unwrap(), requests.iter().sum::<usize>());
        assert!(*most <= 6, "{requests:?}");
        assert!((4 * 24..=4 * 34).contains(&all), "{all}");
    }

    #[test]
    fn one_that_costs_much_takes_forty_times_that() {
        let now = Instant::now();
        let mut it = Audit::new(now);
        let requests = audit(&mut it, now, 1_000, Duration::from_millis(100));
        let cost =
            Duration::from_millis(100) * u32::try_from(requests.iter().sum::<usize>()).unwrap();
        assert!(cost * REST <= 1_005 * SECOND && cost * REST >= 900 * SECOND, "{cost:?}");
        assert_eq!(it.chunk, 1, "and reads less at once");
    }

    #[test]
    fn a_chunk_is_as_large_as_its_time_allows() {
        let now = Instant::now();
        let mut it = Audit::new(now);
        let mut look = |cost: Duration, times: usize| {
            for _ in 0..times {
                let frontends = frontends(u16::try_from(it.chunk).unwrap());
                let took = cost * u32::try_from(frontends.len()).unwrap();
                it.looked_at(&AuditedPart::VirtualServers(frontends.into()), took);
            }
            it.chunk
        };
        assert_eq!(look(Duration::from_micros(100), 3), 50);
        assert_eq!(look(Duration::from_millis(1), 1), 5, "the machine is slow for a moment");
        assert_eq!(look(Duration::from_micros(100), 4), 50);
        assert_eq!(look(Duration::from_micros(2), 4), LARGEST_CHUNK);
        assert_eq!(look(Duration::from_secs(1), 1), 1);
    }

    #[test]
    fn an_alarm_begins_it_anew_and_lets_it_go_on_until_nothing_is_found() {
        let now = Instant::now();
        let mut it = Audit::new(now);
        audit(&mut it, now, 10, Duration::ZERO);
        assert!(it.alarm() && !it.alarm());
        let then = now + 10 * SECOND;
        it.begin_pass(|| ([AuditedPart::Addresses].into(), frontends(600)), then);
        let mut rounds = 0;
        while it.is_full_speed {
            assert_eq!(it.next_wake(then), then);
            it.begin_pass(|| ([AuditedPart::Addresses].into(), frontends(600)), then);
            let part = it.next_part(then).unwrap();
            it.looked_at(&part, SECOND);
            if rounds == 0 {
                assert!(!it.alarm());
            }
            rounds += 1;
            if let Some((pass, whole)) = it.end_pass(then) {
                assert!(pass.full_speed && whole);
            }
        }
        assert!(rounds > 600, "{rounds}: twice everything, a request being slow");
        it.begin_pass(|| ([AuditedPart::Addresses].into(), frontends(600)), then);
        assert_eq!(it.next_part(then), None);
    }

    #[test]
    fn a_drift_check_that_takes_long_is_rarer() {
        let (mut now, period) = (Instant::now(), Duration::from_secs(30));
        let mut audit = Audit::new(now);
        let took_and_rest =
            [(0, 1_000), (900, 1_000), (100, 1_100), (800, 1_800), (800, 8_800), (9_000, 17_000)];
        for (took, rest) in took_and_rest.into_iter().chain([(9_000, 39_000)]) {
            assert!(audit.begin_drift_check(period, now), "{took} ms");
            let took = Duration::from_millis(took);
            audit.drift_check_ended(took, period, now + took);
            let next = now + Duration::from_millis(rest);
            assert!(!audit.begin_drift_check(period, next - Duration::from_millis(1)));
            now = next;
        }
    }
}
