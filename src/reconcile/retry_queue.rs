//! Pending retries of what the kernel refused: every failed write has an owner until it has
//! succeeded. So has a virtual server that could not be read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use plan::op::{Op, Subject};
use tokio::time::Instant;

use crate::kernel::{Refusal, RefusalClass};

const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// Most subjects that are tried again in one go. In between, the loop does what else there is to
/// do.
const LOOKS_AT_ONCE: usize = 1_024;

/// The failed writes, by what they are about. Nothing here walks all of them but
/// [`RetryQueue::iter`]: a hundred thousand may be pending when the kernel refuses everything.
#[derive(Debug, Default)]
pub struct RetryQueue {
    pending: HashMap<Subject, Pending>,
    /// Times at which the subjects are tried again: all of [`RetryQueue::pending`], once.
    agenda: BTreeSet<(Instant, Subject)>,
    /// Those that others rest on.
    prerequisites: BTreeSet<Subject>,
    /// The entries that lead clients from a frontend to its short circuit.
    leading: BTreeSet<Subject>,
    /// Number of pending retries, by the class of the refusal; no zeros.
    classes: BTreeMap<RefusalClass, usize>,
}

/// A failed write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// The operation that failed last.
    pub op: Op,
    /// Reason for the failure.
    pub refusal: Refusal,
    /// Number of failed attempts in a row.
    pub attempts: u32,
    /// Time of the next attempt.
    pub due: Instant,
}

// === impl RetryQueue ===

impl RetryQueue {
    /// Notes a failure. Returns whether it is news: not known, or known for another reason.
    pub fn record(&mut self, op: Op, refusal: Refusal, now: Instant) -> bool {
        let subject = op.subject();
        let former = self.take(&subject);
        let news = former.as_ref().is_none_or(|former| former.refusal != refusal);
        let attempts = former.map_or(0, |former| former.attempts).saturating_add(1);
        let due = now + delay(refusal.class, attempts);
        self.put(subject, Pending { op, refusal, attempts, due });
        news
    }

    /// Takes account of an operation that was not tried, since another one has to come first, for
    /// which the time comes then.
    pub fn wait(&mut self, op: Op, reason: Refusal, due: Instant) {
        let subject = op.subject();
        let attempts = self.take(&subject).map_or(0, |former| former.attempts);
        self.put(subject, Pending { op, refusal: reason, attempts, due });
    }

    /// Strikes a subject out: it is as it should be. Returns whether something was pending.
    pub fn settle(&mut self, subject: &Subject) -> bool {
        self.take(subject).is_some()
    }

    /// True if a retry is pending for a subject.
    pub fn contains(&self, subject: &Subject) -> bool {
        self.pending.contains_key(subject)
    }

    /// Brings a subject's next attempt forward to now: what is desired has changed.
    pub fn retry_now(&mut self, subject: &Subject, now: Instant) {
        self.postpone(subject, now);
    }

    /// Puts a subject's next attempt off: it could not even be looked at.
    pub fn postpone(&mut self, subject: &Subject, due: Instant) {
        if let Some(pending) = self.pending.get_mut(subject) {
            self.agenda.remove(&(pending.due, *subject));
            pending.due = due;
            self.agenda.insert((due, *subject));
        }
    }

    /// Returns the time at which the next attempt is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.agenda.first().map(|(due, _)| *due)
    }

    /// Returns the subjects that are due, those first that have waited longest. There may be more.
    #[must_use]
    pub fn due(&self, now: Instant) -> Vec<Subject> {
        let due = self.agenda.iter().take_while(|(due, _)| *due <= now);
        due.take(LOOKS_AT_ONCE).map(|(_, subject)| *subject).collect()
    }

    /// Returns the pending retry of a subject.
    #[must_use]
    pub fn get(&self, subject: &Subject) -> Option<&Pending> {
        self.pending.get(subject)
    }

    /// Everything that is pending.
    pub fn iter(&self) -> impl Iterator<Item = (&Subject, &Pending)> {
        self.pending.iter()
    }

    /// Returns the subjects of pending retries that others rest on: the interface, sets, rules,
    /// routes.
    pub fn prerequisites(&self) -> impl Iterator<Item = &Subject> {
        self.prerequisites.iter()
    }

    /// The entries that are pending and lead clients from a frontend to its short circuit.
    pub fn leading(&self) -> impl Iterator<Item = (&Subject, &Pending)> {
        self.leading.iter().filter_map(|subject| Some((subject, self.pending.get(subject)?)))
    }

    /// Returns the number of pending retries by the class of the refusal, without classes that have
    /// none.
    pub fn classes(&self) -> impl Iterator<Item = (RefusalClass, usize)> {
        self.classes.iter().map(|(class, count)| (*class, *count))
    }

    /// Returns the number of pending retries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// True if no retry is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    fn put(&mut self, subject: Subject, pending: Pending) {
        self.agenda.insert((pending.due, subject));
        if pending.op.is_prerequisite() {
            self.prerequisites.insert(subject);
        }
        if pending.op.leads_to_short_circuits() {
            self.leading.insert(subject);
        }
        *self.classes.entry(pending.refusal.class).or_default() += 1;
        self.pending.insert(subject, pending);
    }

    fn take(&mut self, subject: &Subject) -> Option<Pending> {
        let pending = self.pending.remove(subject)?;
        self.agenda.remove(&(pending.due, *subject));
        self.prerequisites.remove(subject);
        self.leading.remove(subject);
        let class = pending.refusal.class;
        if let Some(count) = self.classes.get_mut(&class) {
            *count -= 1;
            if *count == 0 {
                self.classes.remove(&class);
            }
        }
        Some(pending)
    }
}

/// Returns the time until the next attempt. A conflict is retried without delay, since the first
/// retry usually repairs it. A full set is a conflict, since a set grows before it is full.
pub(super) fn delay(class: RefusalClass, attempts: u32) -> Duration {
    let conflict =
        matches!(class, RefusalClass::Conflict | RefusalClass::AnswerLost | RefusalClass::SetFull);
    let doublings = match (conflict, attempts) {
        (true, 1) => return Duration::ZERO,
        (true, n) => n.saturating_sub(2),
        (false, n) => n.saturating_sub(1),
    };
    FIRST_DELAY.saturating_mul(1 << doublings.min(10)).min(LONGEST_DELAY)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn refusal(class: RefusalClass) -> Refusal {
        Refusal::new(class, "no")
    }

    fn bind() -> Op {
        Op::BindAddress(IpAddr::from([10, 96, 0, 1]))
    }

    #[test]
    fn attempts_come_at_growing_distances_up_to_a_minute() {
        let mut retry_queue = RetryQueue::default();
        let now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..9 {
            retry_queue.record(bind(), refusal(RefusalClass::Other), now);
            delays.push((retry_queue.next_due().unwrap() - now).as_secs());
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn a_conflict_is_looked_at_again_at_once_but_only_once() {
        let mut retry_queue = RetryQueue::default();
        let now = Instant::now();
        retry_queue.record(bind(), refusal(RefusalClass::Conflict), now);
        assert_eq!(retry_queue.due(now), [bind().subject()]);
        retry_queue.record(bind(), refusal(RefusalClass::Conflict), now);
        assert_eq!(retry_queue.due(now), []);
        assert_eq!(retry_queue.next_due(), Some(now + Duration::from_secs(1)));
    }

    #[test]
    fn only_news_is_news() {
        let mut retry_queue = RetryQueue::default();
        let now = Instant::now();
        assert!(retry_queue.record(bind(), refusal(RefusalClass::Other), now));
        assert!(!retry_queue.record(bind(), refusal(RefusalClass::Other), now));
        assert!(retry_queue.record(bind(), refusal(RefusalClass::NotPermitted), now));
        assert!(retry_queue.settle(&bind().subject()));
        assert!(retry_queue.is_empty() && !retry_queue.settle(&bind().subject()));
    }

    #[test]
    fn a_changed_desired_state_is_tried_at_once() {
        let mut retry_queue = RetryQueue::default();
        let now = Instant::now();
        retry_queue.record(bind(), refusal(RefusalClass::Other), now);
        assert!(retry_queue.due(now).is_empty());
        retry_queue.retry_now(&bind().subject(), now);
        assert_eq!(retry_queue.due(now).len(), 1);
    }

    #[test]
    fn the_accounts_agree_whatever_is_noted_and_struck_out() {
        let mut retry_queue = RetryQueue::default();
        let now = Instant::now();
        let classes = [RefusalClass::Other, RefusalClass::Conflict, RefusalClass::Exhausted];
        let op = |number: u8| match number {
            0 => Op::CreateLink,
            _ => Op::BindAddress(IpAddr::from([10, 96, 0, number])),
        };
        for step in 0..1_000_usize {
            let number = u8::try_from(step * step % 7).unwrap();
            let subject = op(number).subject();
            match step % 5 {
                0 => drop(retry_queue.settle(&subject)),
                1 => retry_queue.retry_now(&subject, now),
                2 => retry_queue.postpone(&subject, now + Duration::from_secs(9)),
                _ => drop(retry_queue.record(op(number), refusal(classes[step % 3]), now)),
            }
            assert_eq!(retry_queue.agenda.len(), retry_queue.len());
            assert_eq!(
                retry_queue.next_due(),
                retry_queue.iter().map(|(_, pending)| pending.due).min()
            );
            assert_eq!(
                retry_queue.classes().map(|(_, count)| count).sum::<usize>(),
                retry_queue.len()
            );
            assert_eq!(
                retry_queue.prerequisites().count() == 1,
                retry_queue.contains(&Subject::Link)
            );
        }
    }

    #[test]
    fn those_that_wait_longest_come_first_and_not_all_at_once() {
        let mut retry_queue = RetryQueue::default();
        let now = Instant::now();
        let bind = |number: u16| {
            let [high, low] = number.to_be_bytes();
            Op::BindAddress([10, 96, high, low].into())
        };
        for number in 0..3_000 {
            retry_queue.record(bind(number), refusal(RefusalClass::Conflict), now);
        }
        retry_queue.retry_now(&bind(2_999).subject(), now - Duration::from_secs(1));
        let due = retry_queue.due(now);
        assert_eq!((due.len(), due[0]), (LOOKS_AT_ONCE, bind(2_999).subject()));
        for subject in due {
            retry_queue.settle(&subject);
        }
        assert_eq!(retry_queue.due(now).first(), Some(&bind(1_023).subject()));
    }
}
