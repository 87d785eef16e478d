//! Outages of the API server, and which failures to log: not one for every attempt.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::kind::ResourceKind;

/// Most different causes that are logged.
const MOST_CAUSES: usize = 5;

/// Time after which causes are logged again: the log of the last hour must have them.
const REMINDER: Duration = Duration::from_secs(600);

/// The kinds that cannot be followed now.
#[derive(Debug, Default)]
pub(super) struct Outage {
    failing: BTreeSet<ResourceKind>,
    began: Option<Instant>,
    reported: BTreeSet<String>,
    /// Time at which the first of them was reported.
    reported_since: Option<Instant>,
}

impl Outage {
    /// Notes a failed attempt to follow a kind. Returns true if the cause is to be logged: it was
    /// not logged lately.
    pub(super) fn failed(&mut self, kind: ResourceKind, cause: &str, now: Instant) -> bool {
        self.began.get_or_insert(now);
        self.failing.insert(kind);
        let since = *self.reported_since.get_or_insert(now);
        if now.duration_since(since) >= REMINDER {
            self.reported.clear();
            self.reported_since = Some(now);
        }
        self.reported.len() < MOST_CAUSES && self.reported.insert(cause.to_owned())
    }

    /// Notes that a kind is followed again. Returns the length of the outage if this was the last
    /// kind.
    pub(super) fn works(&mut self, kind: ResourceKind, now: Instant) -> Option<Duration> {
        if !self.failing.remove(&kind) {
            return None;
        }
        if !self.failing.is_empty() {
            return None;
        }
        self.reported.clear();
        self.reported_since = None;
        self.began.take().map(|began| now.duration_since(began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_once_with_each_of_its_causes() {
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
    fn an_outage_that_goes_on_is_logged_again_after_a_while() {
        let mut outage = Outage::default();
        let start = Instant::now();
        let reported = (0..7_200).step_by(10).filter(|seconds| {
            outage.failed(ResourceKind::Service, "403", start + Duration::from_secs(*seconds))
        });
        assert_eq!(reported.collect::<Vec<_>>(), (0..7_200).step_by(600).collect::<Vec<_>>());
    }

    #[test]
    fn causes_that_are_never_the_same_do_not_fill_the_log() {
        let mut outage = Outage::default();
        let now = Instant::now();
        let reported =
            (0..100).filter(|n| outage.failed(ResourceKind::Node, &n.to_string(), now)).count();
        assert_eq!(reported, MOST_CAUSES);
    }
}
