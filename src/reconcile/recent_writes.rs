//! Subjects that were written lately: a reading of the kernel from before a write says nothing about them.

use std::collections::VecDeque;

use plan::hash::HashMap;
use plan::op::{Op, Subject};
use tokio::time::Instant;

/// Most subjects that are remembered.
const MOST: usize = 4_096;

/// Most operations of a write whose subjects are remembered one by one.
const MOST_OF_A_WRITE: usize = 1_024;

/// Times of the last writes.
#[derive(Debug, Default)]
pub(super) struct RecentWrites {
    written: HashMap<Subject, Instant>,
    /// The same in the order of time, with former times of a subject.
    order: VecDeque<(Instant, Subject)>,
    /// Time of the last write whose subjects are not all remembered.
    forgotten: Option<Instant>,
}

// === impl RecentWrites ===

impl RecentWrites {
    /// Notes a write that the kernel has answered just now.
    pub(super) fn note(&mut self, ops: &[Op], now: Instant) {
        if ops.len() > MOST_OF_A_WRITE {
            self.written.clear();
            self.order.clear();
            self.forgotten = Some(now);
            return;
        }
        for subject in ops.iter().map(Op::subject) {
            self.written.insert(subject, now);
            self.order.push_back((now, subject));
        }
        while self.order.len() > MOST {
            let Some((at, subject)) = self.order.pop_front() else { break };
            self.forgotten = self.forgotten.max(Some(at));
            if self.written.get(&subject) == Some(&at) {
                self.written.remove(&subject);
            }
        }
    }

    /// True if a subject was written at a time or later, or may have been.
    pub(super) fn is_written_since(&self, subject: &Subject, since: Instant) -> bool {
        let written = self.written.get(subject).copied().max(self.forgotten);
        written.is_some_and(|at| at >= since)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use super::*;

    fn bind(number: u16) -> Op {
        let [high, low] = number.to_be_bytes();
        Op::BindAddress(IpAddr::from([10, 96, high, low]))
    }

    #[test]
    fn a_write_is_known_until_it_is_older_than_the_reading_or_forgotten() {
        let mut recent = RecentWrites::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        recent.note(&[bind(1)], at(5));
        let is_written = |recent: &RecentWrites, number, seconds| {
            recent.is_written_since(&bind(number).subject(), at(seconds))
        };
        assert!(is_written(&recent, 1, 5) && !is_written(&recent, 1, 6));
        assert!(!is_written(&recent, 2, 0));
        for number in 0..4 {
            let ops: Vec<Op> = (0..1_024).map(|each| bind(number * 1_024 + each)).collect();
            recent.note(&ops, at(10));
        }
        // The first write was pushed out: what it wrote is not known any more.
        assert!(is_written(&recent, 9_999, 5) && !is_written(&recent, 9_999, 6));
        assert_eq!(recent.order.len(), MOST);
        let many: Vec<Op> = (0..2_000).map(bind).collect();
        recent.note(&many, at(20));
        assert!(is_written(&recent, 9_999, 20) && !is_written(&recent, 1, 21));
    }
}
