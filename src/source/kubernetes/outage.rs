//! Whether the API server is away, and what is to be said about it: once, not with every attempt.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::kind::Kind;

/// How many different causes of one outage are said.
const CAUSES_SAID: usize = 5;

/// The kinds that cannot be followed now.
#[derive(Debug, Default)]
pub(super) struct Outage {
    failing: BTreeSet<Kind>,
    began: Option<Instant>,
    said: BTreeSet<String>,
}

// === impl Outage ===

impl Outage {
    /// An attempt to follow a kind failed. Whether the cause is worth saying: it is the outage's
    /// first one, or another one than before.
    pub(super) fn failed(&mut self, kind: Kind, cause: &str, now: Instant) -> bool {
        self.began.get_or_insert(now);
        self.failing.insert(kind);
        self.said.len() < CAUSES_SAID && self.said.insert(cause.to_owned())
    }

    /// A kind is followed again. How long the outage was, if this was the last one.
    pub(super) fn works(&mut self, kind: Kind, now: Instant) -> Option<Duration> {
        if !self.failing.remove(&kind) {
            return None;
        }
        if !self.failing.is_empty() {
            return None;
        }
        self.said.clear();
        self.began.take().map(|began| now.duration_since(began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_said_once_with_each_of_its_causes() {
        let mut outage = Outage::default();
        let start = Instant::now();
        assert!(outage.failed(Kind::Service, "connection refused", start));
        for kind in Kind::ALL {
            assert!(!outage.failed(kind, "connection refused", start));
        }
        assert!(outage.failed(Kind::Node, "401", start));
        let later = start + Duration::from_secs(60);
        assert_eq!(outage.works(Kind::Service, later), None);
        assert_eq!(outage.works(Kind::Service, later), None);
        assert_eq!(outage.works(Kind::Node, later), None);
        assert_eq!(outage.works(Kind::EndpointSlice, later), Some(Duration::from_secs(60)));
        assert!(outage.failed(Kind::Service, "connection refused", later), "another outage");
    }

    #[test]
    fn causes_that_are_never_the_same_do_not_fill_the_log() {
        let mut outage = Outage::default();
        let now = Instant::now();
        let said = (0..100).filter(|n| outage.failed(Kind::Node, &n.to_string(), now)).count();
        assert_eq!(said, CAUSES_SAID);
    }
}
