//! Pacing of transactions: each makes other programs begin theirs anew.
//!
//! `iptables-nft` reads all rules, and its own transaction fails if anything was committed meanwhile. Beside 20
//! transactions a second, one `iptables-nft -D` in a chain of 20,000 rules never ends; beside four it takes up to a second.

use std::time::{Duration, Instant};

/// Transactions at once after a pause.
const BURST: u32 = 64;
/// Time for one transaction more.
const PERIOD: Duration = Duration::from_millis(250);

/// Transactions that may follow at once.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// Time at which all of a burst may follow again; none before the first transaction.
    full_at: Option<Instant>,
}

impl Pacing {
    /// Takes in a transaction, and returns the time to wait before it.
    pub(super) fn delay(&mut self, now: Instant) -> Duration {
        // Those that did not wait, since no other program had tables, are not waited for later.
        let full_at = self.full_at.unwrap_or(now).clamp(now, now + PERIOD * BURST);
        self.full_at = Some(full_at + PERIOD);
        (full_at + PERIOD).saturating_duration_since(now + PERIOD * BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_follows_at_once_and_then_four_a_second() {
        let (mut pacing, begin) = (Pacing::default(), Instant::now());
        let mut now = begin;
        for _ in 0..BURST {
            assert_eq!(pacing.delay(now), Duration::ZERO);
        }
        for _ in 0..40 {
            now += pacing.delay(now);
        }
        assert_eq!(now - begin, 40 * PERIOD);
        // After a pause, there is a burst again.
        now += PERIOD * (BURST + 1);
        for _ in 0..BURST {
            assert_eq!(pacing.delay(now), Duration::ZERO);
        }
        assert_eq!(pacing.delay(now), PERIOD);
    }
}
