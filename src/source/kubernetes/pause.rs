//! How long to wait before trying again.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// The first pause is at most this long.
const FIRST: Duration = Duration::from_millis(400);

/// No pause is longer: when the API server is back after an hour, what changed meanwhile must be
/// applied within seconds. Half of each pause is random, so that a thousand nodes do not come back
/// at the same moment.
const LONGEST: Duration = Duration::from_secs(10);

/// The pauses between attempts of which each failed.
#[derive(Debug, Default)]
pub(super) struct Pause {
    failures: u32,
}

// === impl Pause ===

impl Pause {
    /// How many attempts failed, one after the other.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// An attempt was good.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// An attempt failed: how long to wait before the next one.
    pub(super) fn next(&mut self) -> Duration {
        let limit = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        limit / 2 + (limit / 2).mul_f64(random())
    }
}

/// A number from 0 to 1. Every `RandomState` has keys of its own, the first from the system.
pub(super) fn random() -> f64 {
    let sixteen_bits = u16::try_from(RandomState::new().hash_one(0_u8) & 0xffff).unwrap_or(0);
    f64::from(sixteen_bits) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_begin_again() {
        let mut pause = Pause::default();
        let mut limit = FIRST;
        for _ in 0..100 {
            let next = pause.next();
            assert!((limit / 2..=limit).contains(&next), "{next:?} {limit:?}");
            limit = (limit * 2).min(LONGEST);
        }
        assert_eq!(pause.failures(), 100);
        pause.reset();
        assert!(pause.next() <= FIRST);
    }

    #[test]
    fn they_are_not_the_same_everywhere() {
        let pauses: Vec<_> = (0..20).map(|_| Pause::default().next()).collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
    }
}
