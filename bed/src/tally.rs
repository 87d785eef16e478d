//! Many questions, counted by who answered and what it saw.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::namespace::Namespace;
use crate::traffic::{Answer, Question, Refusal, ask_here, inside};

/// Outcomes of questions, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// By server and source address seen (the port differs each time and says nothing).
    answers: BTreeMap<(String, IpAddr), usize>,
    refusals: BTreeMap<Refusal, usize>,
}

/// Asks `count` times from inside `namespace`, one after the other, on a fresh connection each.
#[must_use]
pub fn ask_many(namespace: &Namespace, question: Question, count: usize) -> Tally {
    inside(namespace, || Ok((0..count).map(|_| ask_here(question)).collect()))
        .unwrap_or_else(|refusal| std::iter::repeat_n(Err(refusal), count).collect())
}

impl Tally {
    /// Counts one outcome.
    pub fn add(&mut self, outcome: Result<Answer, Refusal>) {
        match outcome {
            Ok(answer) => {
                *self.answers.entry((answer.server, answer.seen_source.ip())).or_default() += 1;
            }
            Err(refusal) => *self.refusals.entry(refusal).or_default() += 1,
        }
    }

    /// Returns the number of questions that were answered.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.answers.values().sum()
    }

    /// Returns the number of questions that were not answered.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.refusals.values().sum()
    }

    /// Answers by the server's name.
    #[must_use]
    pub fn by_server(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for ((server, _), count) in &self.answers {
            *counts.entry(server.clone()).or_default() += count;
        }
        counts
    }

    /// The names of all servers that answered.
    #[must_use]
    pub fn servers(&self) -> BTreeSet<&str> {
        self.answers.keys().map(|(server, _)| server.as_str()).collect()
    }

    /// All source addresses that any server saw.
    #[must_use]
    pub fn sources(&self) -> BTreeSet<IpAddr> {
        self.answers.keys().map(|(_, source)| *source).collect()
    }

    /// The source addresses that one server saw.
    #[must_use]
    pub fn sources_seen_by(&self, server: &str) -> BTreeSet<IpAddr> {
        let of_server = self.answers.keys().filter(|(name, _)| name == server);
        of_server.map(|(_, source)| *source).collect()
    }

    /// Returns the numbers of unanswered questions, by the way of refusal.
    #[must_use]
    pub fn refusals(&self) -> &BTreeMap<Refusal, usize> {
        &self.refusals
    }
}

impl FromIterator<Result<Answer, Refusal>> for Tally {
    fn from_iter<I: IntoIterator<Item = Result<Answer, Refusal>>>(outcomes: I) -> Self {
        let mut tally = Self::default();
        outcomes.into_iter().for_each(|outcome| tally.add(outcome));
        tally
    }
}

/// One line, in a fixed order, to be asserted on: `pod1-1 saw 10.244.1.1 x3; timeout x1`.
impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers = self
            .answers
            .iter()
            .map(|((server, source), count)| format!("{server} saw {source} x{count}"));
        let refusals = self.refusals.iter().map(|(refusal, count)| format!("{refusal} x{count}"));
        formatter.write_str(&answers.chain(refusals).collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_answer(server: &str, source: &str) -> Result<Answer, Refusal> {
        Ok(Answer { server: server.to_owned(), seen_source: source.parse().unwrap() })
    }

    #[test]
    fn outcomes_are_counted_by_server_source_and_refusal() {
        let tally: Tally = [
            mk_answer("pod2-1", "10.244.1.1:1"),
            Err(Refusal::Timeout),
            mk_answer("pod1-1", "10.244.1.1:2"),
            mk_answer("pod1-1", "10.244.1.1:3"),
            mk_answer("pod1-1", "10.244.1.11:2"),
        ]
        .into_iter()
        .collect();
        assert_eq!(
            tally.to_string(),
            "pod1-1 saw 10.244.1.1 x2; pod1-1 saw 10.244.1.11 x1; pod2-1 saw 10.244.1.1 x1; \
             timeout x1"
        );
        assert_eq!((tally.answered(), tally.refused()), (4, 1));
        let by_server = BTreeMap::from([("pod1-1".to_owned(), 3), ("pod2-1".to_owned(), 1)]);
        assert_eq!(tally.by_server(), by_server);
        assert_eq!(tally.servers(), BTreeSet::from(["pod1-1", "pod2-1"]));
        let seen: Vec<String> =
            tally.sources_seen_by("pod1-1").iter().map(ToString::to_string).collect();
        assert_eq!(seen, ["10.244.1.1", "10.244.1.11"]);
        assert_eq!(tally.sources().len(), 2);
    }

    #[test]
    fn nothing_asked_is_an_empty_line() {
        assert_eq!(Tally::default().to_string(), "");
        assert_eq!(Tally::default().answered(), 0);
    }
}
