//! Outages of the API server, and what is to be said about them: now and then, not with every
//! attempt.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::kind::ResourceKind;

/// Most different causes that are said.
const CAUSES_SAID: usize = 5;

/// Pause before causes are logged again: the log of the last hour must have them.
const REMINDER: Duration = Duration::from_secs(600);

/// The kinds that cannot be followed now.
#[derive(Debug, Default)]
pub(super) struct Outage {
    failing: BTreeSet<ResourceKind>,
    began: Option<Instant>,
    said: BTreeSet<String>,
    /// Time at which the first of them was said.
    said_since: Option<Instant>,
}

// === impl Outage ===

impl Outage {
    /// An attempt to follow a kind failed. Whether the cause is worth saying: it was not said
    /// lately.
    pub(super) fn failed(&mut self, kind: ResourceKind, cause: &str, now: Instant) -> bool {
        self.began.get_or_insert(now);
        self.failing.insert(kind);
        let since = *self.said_since.get_or_insert(now);
        if now.duration_since(since) >= REMINDER {
            self.said.clear();
            self.said_since = Some(now);
        }
        self.said.len() < CAUSES_SAID && self.said.insert(cause.to_owned())
    }

    /// A kind is followed again. How long the outage was, if this was the last one.
    pub(super) fn works(&mut self, kind: ResourceKind, now: Instant) -> Option<Duration> {
        if !self.failing.remove(&kind) {
            return None;
        }
        if !self.failing.is_empty() {
            return None;
        }
        self.said.clear();
        self.said_since = None;
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
        assert!(outage.failed(ResourceKind::Service, "connection refused", start));
        for kind in ResourceKind::ALL {
            assert!(!outage.failed(kind, "connection refused", start));
        }
        assert!(outage.failed(ResourceKind::Node, "401", start));
        let later = start + Duration::from_secs(60);
        assert_eq!(outage.works(ResourceKind::Service, later), None);
        assert_eq!(outage.works(ResourceKind::Service, later), None);
        assert_eq!(outage.works(ResourceKind::Node, later), None);
        assert_eq!(outage.works(ResourceKind::EndpointSlice, later), Some(Duration::from_secs(60)));
        assert!(
            outage.failed(ResourceKind::Service, "connection refused", later),
            "another outage"
        );
    }

    #[test]
    fn an_outage_that_goes_on_is_said_again_after_a_while() {
        let mut outage = Outage::default();
        let start = Instant::now();
        let said = (0..7_200).step_by(10).filter(|seconds| {
            outage.failed(ResourceKind::Service, "403", start + Duration::from_secs(*seconds))
        });
        assert_eq!(said.collect::<Vec<_>>(), (0..7_200).step_by(600).collect::<Vec<_>>());
    }

    #[test]
    fn causes_that_are_never_the_same_do_not_fill_the_log() {
        let mut outage = Outage::default();
        let now = Instant::now();
        let said =
            (0..100).filter(|n| outage.failed(ResourceKind::Node, &n.to_string(), now)).count();
        assert_eq!(said, CAUSES_SAID);
    }
}
