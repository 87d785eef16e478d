//! What the kernel refused: every failed write has an owner until it has succeeded.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use plan::op::{Op, Subject};
use tokio::time::Instant;

use crate::kernel::{Refusal, RefusalClass};

const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The failed writes, by what they are about.
#[derive(Debug, Default)]
pub struct Ledger {
    owed: HashMap<Subject, Owed>,
}

/// A failed write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owed {
    /// The operation that failed last.
    pub op: Op,
    /// Why.
    pub refusal: Refusal,
    /// How often in a row.
    pub attempts: u32,
    /// When it is tried again.
    pub due: Instant,
}

// === impl Ledger ===

impl Ledger {
    /// Notes a failure. Returns whether it is news: not known, or known for another reason.
    pub fn record(&mut self, op: Op, refusal: Refusal, now: Instant) -> bool {
        match self.owed.entry(op.subject()) {
            Entry::Vacant(place) => {
                let due = now + delay(refusal.class, 1);
                place.insert(Owed { op, refusal, attempts: 1, due });
                true
            }
            Entry::Occupied(mut place) => {
                let owed = place.get_mut();
                let news = owed.refusal != refusal;
                owed.attempts = owed.attempts.saturating_add(1);
                owed.due = now + delay(refusal.class, owed.attempts);
                owed.op = op;
                owed.refusal = refusal;
                news
            }
        }
    }

    /// Strikes a subject out: it is as it should be. Returns whether something was owed.
    pub fn settle(&mut self, subject: &Subject) -> bool {
        self.owed.remove(subject).is_some()
    }

    /// Whether something is owed for a subject.
    pub fn owes(&self, subject: &Subject) -> bool {
        self.owed.contains_key(subject)
    }

    /// Brings a subject's next attempt forward to now: what is wished for has changed.
    pub fn hasten(&mut self, subject: &Subject, now: Instant) {
        if let Some(owed) = self.owed.get_mut(subject) {
            owed.due = now;
        }
    }

    /// Puts a subject's next attempt off: it could not even be looked at.
    pub fn postpone(&mut self, subject: &Subject, due: Instant) {
        if let Some(owed) = self.owed.get_mut(subject) {
            owed.due = due;
        }
    }

    /// When the next attempt is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.owed.values().map(|owed| owed.due).min()
    }

    /// What is due, in a settled order.
    #[must_use]
    pub fn due(&self, now: Instant) -> Vec<Subject> {
        let due = self.owed.iter().filter(|(_, owed)| owed.due <= now);
        let mut subjects: Vec<Subject> = due.map(|(subject, _)| *subject).collect();
        subjects.sort_unstable();
        subjects
    }

    /// What is owed for a subject.
    #[must_use]
    pub fn get(&self, subject: &Subject) -> Option<&Owed> {
        self.owed.get(subject)
    }

    /// Everything that is owed.
    pub fn iter(&self) -> impl Iterator<Item = (&Subject, &Owed)> {
        self.owed.iter()
    }

    /// How much is owed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.owed.len()
    }

    /// Whether nothing is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.owed.is_empty()
    }
}

/// What was a surprise is looked at once more without delay: a second look usually mends it. That
/// a set is full is one, since it grows before it is.
pub(super) fn delay(class: RefusalClass, attempts: u32) -> Duration {
    let surprise =
        matches!(class, RefusalClass::Surprise | RefusalClass::AnswerLost | RefusalClass::SetFull);
    let doublings = match (surprise, attempts) {
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
        let mut ledger = Ledger::default();
        let now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..9 {
            ledger.record(bind(), refusal(RefusalClass::Other), now);
            delays.push((ledger.next_due().unwrap() - now).as_secs());
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn a_surprise_is_looked_at_again_at_once_but_only_once() {
        let mut ledger = Ledger::default();
        let now = Instant::now();
        ledger.record(bind(), refusal(RefusalClass::Surprise), now);
        assert_eq!(ledger.due(now), [bind().subject()]);
        ledger.record(bind(), refusal(RefusalClass::Surprise), now);
        assert_eq!(ledger.due(now), []);
        assert_eq!(ledger.next_due(), Some(now + Duration::from_secs(1)));
    }

    #[test]
    fn only_news_is_news() {
        let mut ledger = Ledger::default();
        let now = Instant::now();
        assert!(ledger.record(bind(), refusal(RefusalClass::Other), now));
        assert!(!ledger.record(bind(), refusal(RefusalClass::Other), now));
        assert!(ledger.record(bind(), refusal(RefusalClass::NotPermitted), now));
        assert!(ledger.settle(&bind().subject()));
        assert!(ledger.is_empty() && !ledger.settle(&bind().subject()));
    }

    #[test]
    fn a_changed_wish_is_tried_at_once() {
        let mut ledger = Ledger::default();
        let now = Instant::now();
        ledger.record(bind(), refusal(RefusalClass::Other), now);
        assert!(ledger.due(now).is_empty());
        ledger.hasten(&bind().subject(), now);
        assert_eq!(ledger.due(now).len(), 1);
    }
}
