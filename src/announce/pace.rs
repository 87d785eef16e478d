//! Rate at which announcements are published, and the nodes that publish them.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::Duration;

use tokio::time::Instant;

/// This many at once, as client-go's spam filter lets through.
const BURST: u32 = 25;

/// And then one in this time.
const INTERVAL: Duration = Duration::from_secs(2);

/// Nodes that all have the same to say spread it over this time.
const SPREAD: Duration = Duration::from_secs(20);

/// Number of nodes up to which all try.
const ALL: usize = 100;

/// Number of nodes that try on average, where there are more than that.
const FEW: u32 = 16;

/// A token bucket.
#[derive(Debug)]
pub(super) struct Pace {
    tokens: u32,
    since: Instant,
}

/// Turn of a node to say what every node has to say: tells if it does, and after which delay. Each
/// node has its own turn with each thing, and another one each time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn(u64);

// === impl Pace ===

impl Pace {
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

// === impl Turn ===

impl Turn {
    /// The turn of a node with something that every node has to say, for the first time or a later one.
    pub(super) fn of(node: &str, what: impl Hash, time: u32) -> Self {
        let mut hasher = DefaultHasher::new();
        (node, what, time).hash(&mut hasher);
        Self(hasher.finish())
    }

    /// Time that this node waits.
    pub(super) fn delay(self) -> Duration {
        let spread = u64::try_from(SPREAD.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.0 % spread)
    }

    /// True if this node is one of those that try, in a cluster of so many. That none is has a
    /// probability of 1 in 10 million, or of 1 in 3,000 where half of the nodes counted have gone. Where few
    /// of the nodes run this program, it is another time's turn that finds one of them.
    pub(super) fn tries(self, n_nodes: usize) -> bool {
        if n_nodes <= ALL {
            return true;
        }
        let n_nodes = u128::try_from(n_nodes).unwrap_or(u128::MAX);
        // The high digits: the low ones are the delay's.
        u128::from(self.0).saturating_mul(n_nodes) < u128::from(FEW) << u64::BITS
    }
}
