//! Pauses before the next attempt.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::failure::Failure;

/// Upper limit of the first pause. Each further one has twice the limit.
const FIRST: Duration = Duration::from_millis(400);

/// Upper limit of every pause. Half of each is random: nodes that lost the API server at one time
/// must not come back at one time.
const LONGEST: Duration = Duration::from_secs(60);

/// Attempts of one kind that failed in a row, and the pauses between them.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    /// End of the last pause of any kind of object while the API server was away.
    server: Arc<Mutex<Option<Instant>>>,
}

impl Backoff {
    /// For another kind of object of the same API server.
    pub(super) fn of_another_kind(&self) -> Self {
        Self { failures: 0, server: Arc::clone(&self.server) }
    }

    /// Number of attempts that failed in a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Notes a good attempt.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Notes a failed attempt. Returns the time at which to make the next one.
    ///
    /// Kinds pause together while the API server is away. One that has failed less often than
    /// others does not wait for them: the problem may be theirs alone.
    pub(super) fn next(&mut self, failure: &Failure, now: Instant) -> Instant {
        let limit = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let own = now + limit / 2 + (limit / 2).mul_f64(fastrand::f64());
        let asked =
            failure.retry_after().map(|after| now + after + (after / 10).mul_f64(fastrand::f64()));
        if !matches!(failure, Failure::Unreachable(_)) {
            return own.max(asked.unwrap_or(now));
        }
        let mut server = self.server.lock();
        let shared = server.filter(|until| *until > now && *until <= now + limit);
        *server.insert(shared.unwrap_or(own))
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::Status;
    use super::*;

    fn away() -> Failure {
        Failure::Unreachable("connection refused".to_owned())
    }

    #[test]
    fn pauses_grow_to_their_limit_and_begin_again() {
        for failure in [away(), Failure::Garbage("{".to_owned())] {
            let (mut pause, mut now) = (Backoff::default(), Instant::now());
            let mut limit = FIRST;
            for _ in 0..100 {
                let next = pause.next(&failure, now);
                let took = next.duration_since(now);
                assert!((limit / 2..=limit).contains(&took), "{took:?} {limit:?}");
                limit = (limit * 2).min(LONGEST);
                now = next;
            }
            assert_eq!(pause.failures(), 100);
            pause.reset();
            assert!(pause.next(&failure, now) <= now + FIRST);
        }
    }

    #[test]
    fn kinds_pause_together_while_the_server_is_away() {
        let (mut one, mut now) = (Backoff::default(), Instant::now());
        let mut others = [one.of_another_kind(), one.of_another_kind()];
        for _ in 0..8 {
            let next = one.next(&away(), now);
            for other in &mut others {
                assert_eq!(other.next(&away(), now), next);
            }
            now = next;
        }
        // One that has not failed before does not wait as long.
        let until = one.next(&away(), now);
        let [other, _] = &mut others;
        other.reset();
        assert!(other.next(&away(), now) <= now + FIRST);
        assert!(until > now + FIRST);
    }

    /// Objects of one kind that cannot be listed, while all else is followed.
    #[test]
    fn one_kind_that_fails_alone_is_asked_for_less_and_less() {
        let refused = Failure::Refused(Status { code: 500, ..Status::default() });
        for failure in [refused, away()] {
            let (mut failing, mut now) = (Backoff::default(), Instant::now());
            let mut fine = failing.of_another_kind();
            for _ in 0..20 {
                now = failing.next(&failure, now);
                fine.reset();
            }
            assert!(failing.next(&failure, now) >= now + LONGEST / 2);
        }
    }

    #[test]
    fn the_server_says_when_to_ask_again() {
        let retry_after = Some(Duration::from_secs(20));
        let status = Status { code: 429, retry_after, ..Status::default() };
        let now = Instant::now();
        let next = Backoff::default().next(&Failure::Refused(status), now).duration_since(now);
        assert!((Duration::from_secs(20)..=Duration::from_secs(22)).contains(&next), "{next:?}");
    }

    #[test]
    fn pauses_are_not_the_same_everywhere() {
        let now = Instant::now();
        let pauses: Vec<_> = (0..20).map(|_| Backoff::default().next(&away(), now)).collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
    }
}
