//! Counts of what the clients of a load met.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::traffic::Refusal;

/// Time that an answer takes if no packet is lost. TCP sends again after a second.
const SLOW: Duration = Duration::from_millis(900);

/// Counts of one client's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that came about. UDP: sockets.
    pub established: usize,
    /// Answers that were right.
    pub answers: usize,
    /// Connections that were cut.
    pub resets: usize,
    /// Connections that were refused, and datagrams that came back as an error.
    pub refused: usize,
    /// Connections and questions on them without an answer in time.
    pub timeouts: usize,
    /// Datagrams without an answer in time.
    pub lost: usize,
    /// Answers to datagrams that had come already.
    pub duplicates: usize,
    /// Answers with other bytes than expected, or of a server that must not answer.
    pub wrong: usize,
    /// Failures of any other kind.
    pub others: usize,
    /// Answers that took more than 0.9 s.
    pub slow: usize,
    /// Times that another server answered than before, where that is not to be expected: a flow of
    /// datagrams, or a client with affinity.
    pub moved: usize,
}

/// Counts of all clients by name. Reports compare, and print as a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Counts by the client's name.
    pub clients: BTreeMap<String, Counts>,
    /// First failures, in words.
    pub failures: Vec<String>,
}

impl Counts {
    /// Number of connections, questions and datagrams that failed.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.resets
            + self.refused
            + self.timeouts
            + self.lost
            + self.duplicates
            + self.wrong
            + self.others
    }

    /// Counts a right answer that took so long.
    pub(super) fn answered(&mut self, took: Duration) {
        self.answers += 1;
        self.slow += usize::from(took > SLOW);
    }

    /// Counts a failure.
    pub(super) fn refused_by(&mut self, refusal: &Refusal) {
        let count = match refusal {
            Refusal::Refused => &mut self.refused,
            Refusal::Timeout => &mut self.timeouts,
            Refusal::Reset | Refusal::Closed => &mut self.resets,
            Refusal::Foreign(_) => &mut self.wrong,
            Refusal::Unreachable | Refusal::Other(_) => &mut self.others,
        };
        *count += 1;
    }

    fn columns(&self) -> [usize; 11] {
        [
            self.established,
            self.answers,
            self.resets,
            self.refused,
            self.timeouts,
            self.lost,
            self.duplicates,
            self.wrong,
            self.others,
            self.slow,
            self.moved,
        ]
    }

    fn add(&mut self, other: &Self) {
        self.established += other.established;
        self.answers += other.answers;
        self.resets += other.resets;
        self.refused += other.refused;
        self.timeouts += other.timeouts;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.wrong += other.wrong;
        self.others += other.others;
        self.slow += other.slow;
        self.moved += other.moved;
    }
}

impl LoadReport {
    /// The sum of the clients whose names start so.
    #[must_use]
    pub fn sum(&self, start: &str) -> Counts {
        let mut sum = Counts::default();
        for (_, counts) in self.clients.iter().filter(|(name, _)| name.starts_with(start)) {
            sum.add(counts);
        }
        sum
    }

    /// Makes sure that nothing failed or moved, and that each client had so many answers.
    ///
    /// # Errors
    /// With the report, if that is not so.
    pub fn require_no_failure(&self, minimum: usize) -> Result<()> {
        let sum = self.sum("");
        if sum.failed() + sum.moved > 0 || !self.failures.is_empty() {
            bail!("something failed:\n{self}");
        }
        if self.clients.is_empty() || self.clients.values().any(|it| it.answers < minimum) {
            bail!("fewer than {minimum} answers:\n{self}");
        }
        Ok(())
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, cells: &[String]| {
            write!(formatter, "{name:<44}")?;
            cells.iter().try_for_each(|cell| write!(formatter, "{cell:>9}"))?;
            writeln!(formatter)
        };
        let titles = [
            "made", "answers", "reset", "refused", "timeout", "lost", "twice", "wrong", "other",
            "slow", "moved",
        ];
        line("client", &titles.map(str::to_owned))?;
        for (name, counts) in &self.clients {
            line(name, &counts.columns().map(|count| count.to_string()))?;
        }
        line("all", &self.sum("").columns().map(|count| count.to_string()))?;
        self.failures.iter().try_for_each(|failure| writeln!(formatter, "{failure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_report(counts: Counts) -> LoadReport {
        let clients = [("one".to_owned(), counts), ("other".to_owned(), counts)].into();
        LoadReport { clients, failures: Vec::new() }
    }

    #[test]
    fn every_failure_counts() {
        let refusals = [
            Refusal::Refused,
            Refusal::Timeout,
            Refusal::Reset,
            Refusal::Closed,
            Refusal::Unreachable,
            Refusal::Foreign(String::new()),
            Refusal::Other(String::new()),
        ];
        for refusal in refusals {
            let mut counts = Counts { answers: 9, ..Counts::default() };
            assert!(mk_report(counts).require_no_failure(9).is_ok());
            assert!(mk_report(counts).require_no_failure(10).is_err());
            counts.refused_by(&refusal);
            assert_eq!(counts.failed(), 1, "{refusal}");
            assert!(mk_report(counts).require_no_failure(0).is_err());
        }
        assert!(LoadReport::default().require_no_failure(0).is_err());
    }

    #[test]
    fn sums_are_by_the_start_of_names() {
        let mut counts = Counts::default();
        counts.answered(Duration::from_secs(1));
        counts.answered(Duration::ZERO);
        let report = mk_report(counts);
        assert_eq!((report.sum("o").answers, report.sum("one").slow), (4, 1));
        assert!(report.to_string().contains("all"), "{report}");
    }
}
