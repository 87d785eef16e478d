//! Subjects that were written lately: a reading of the kernel from before a write says nothing about them.

use std::collections::VecDeque;

use plan::hash::HashMap;
use plan::op::{Op, Subject};
use tokio::time::Instant;

/// Most subjects that are remembered.
const MOST: usize = 4_096;

/// Most operations of a write whose subjects are remembered one by one.
const MOST_OF_A_WRITE: usize = 1_024;

/// The last writes.
#[derive(Debug, Default)]
pub(super) struct RecentWrites {
    written: HashMap<Subject, Write>,
    /// The same in the order of time, with former writes of a subject.
    order: VecDeque<(Write, Subject)>,
    /// The last write whose subjects are not all remembered.
    forgotten: Option<Write>,
    /// Number of writes so far.
    n_writes: u64,
}

/// A write: its place among all, and the time of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Write {
    number: u64,
    at: Instant,
}

impl RecentWrites {
    /// Notes a write that the kernel has answered just now.
    pub(super) fn note(&mut self, ops: &[Op], now: Instant) {
        self.n_writes += 1;
        let write = Write { number: self.n_writes, at: now };
        if ops.len() > MOST_OF_A_WRITE {
            self.written.clear();
            self.order.clear();
            self.forgotten = Some(write);
            return;
        }
        for subject in ops.iter().map(Op::subject) {
            self.written.insert(subject, write);
            self.order.push_back((write, subject));
        }
        while self.order.len() > MOST {
            let Some((write, subject)) = self.order.pop_front() else { break };
            self.forgotten = self.forgotten.max(Some(write));
            if self.written.get(&subject) == Some(&write) {
                self.written.remove(&subject);
            }
        }
    }

    /// True if a subject was written at a time or later, or may have been.
    pub(super) fn is_written_since(&self, subject: &Subject, since: Instant) -> bool {
        self.last_of(subject).is_some_and(|write| write.at >= since)
    }

    /// Returns the number of writes so far, from which [`is_written_after`](Self::is_written_after)
    /// tells later ones.
    pub(super) fn n_writes(&self) -> u64 {
        self.n_writes
    }

    /// True if a subject was written after the first `n_writes` writes, or may have been.
    pub(super) fn is_written_after(&self, subject: &Subject, n_writes: u64) -> bool {
        self.last_of(subject).is_some_and(|write| write.number > n_writes)
    }

    /// Returns the last write that a subject may have been part of.
    fn last_of(&self, subject: &Subject) -> Option<Write> {
        self.written.get(subject).copied().max(self.forgotten)
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
        assert!(recent.is_written_after(&bind(1).subject(), 0) && recent.n_writes() == 1);
        assert!(!recent.is_written_after(&bind(1).subject(), 1), "even if it is the same instant");
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
        assert!(recent.is_written_after(&bind(9_999).subject(), 5));
        assert!(!recent.is_written_after(&bind(1).subject(), recent.n_writes()));
    }
}
