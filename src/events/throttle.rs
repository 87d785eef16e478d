//! Limits of publishing: the rate, and the nodes that publish an Event that every node sees.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::Duration;

use tokio::time::Instant;

/// Events at once, as client-go's spam filter lets through.
const BURST: u32 = 25;

/// Time for one further Event after a burst.
const INTERVAL: Duration = Duration::from_secs(2);

/// Time over which nodes spread an Event that all of them see.
const SPREAD: Duration = Duration::from_secs(20);

/// Number of nodes up to which all of them try.
const ALL: usize = 100;

/// Number of nodes that try on average, where there are more than that.
const FEW: u32 = 16;

/// Rate limit of [`BURST`] Events and one more every [`INTERVAL`].
#[derive(Debug)]
pub(super) struct TokenBucket {
    tokens: u32,
    since: Instant,
}

/// Selection of the nodes that publish an Event that every node sees, and the delay of each. It is
/// a hash of the node, the Event and the number of times that the Event was due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sampling(u64);

impl TokenBucket {
    pub(super) fn new(now: Instant) -> Self {
        Self { tokens: BURST, since: now }
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.since);
        let earned = elapsed.as_millis() / INTERVAL.as_millis();
        let earned = u32::try_from(earned).unwrap_or(BURST).min(BURST);
        if earned > 0 {
            self.tokens = (self.tokens + earned).min(BURST);
            self.since += INTERVAL * earned;
            if self.tokens == BURST {
                self.since = now;
            }
        }
        let taken = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        taken
    }
}

impl Sampling {
    /// Returns the sampling of a node and an Event, for the first or a later time.
    pub(super) fn of(node: &str, what: impl Hash, time: u32) -> Self {
        let mut hasher = DefaultHasher::new();
        (node, what, time).hash(&mut hasher);
        Self(hasher.finish())
    }

    /// Returns the time that this node waits.
    pub(super) fn delay(self) -> Duration {
        let spread = u64::try_from(SPREAD.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.0 % spread)
    }

    /// True if this node is selected in a cluster of `n_nodes`. The probability that no node is
    /// selected is 1 in 10 million, or 1 in 3,000 where half of the nodes counted have gone. Where
    /// few of the nodes run this program, a later sampling selects one of them.
    pub(super) fn selects(self, n_nodes: usize) -> bool {
        if n_nodes <= ALL {
            return true;
        }
        let n_nodes = u128::try_from(n_nodes).unwrap_or(u128::MAX);
        // The high digits: the low ones decide the delay.
        u128::from(self.0).saturating_mul(n_nodes) < u128::from(FEW) << u64::BITS
    }
}
