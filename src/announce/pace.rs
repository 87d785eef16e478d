//! How often something is announced.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::Duration;

use tokio::time::Instant;

/// This many at once, as client-go's spam filter lets through.
const BURST: u32 = 25;

/// And then one in this time.
const INTERVAL: Duration = Duration::from_secs(2);

/// Nodes that all have the same to say spread it over this time.
const SPREAD: Duration = Duration::from_secs(20);

/// A token bucket.
#[derive(Debug)]
pub(super) struct Pace {
    tokens: u32,
    since: Instant,
}

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

/// How long this node waits with what every node has to say. Each node has its own time.
pub(super) fn delay(node: &str, what: impl Hash) -> Duration {
    let mut hasher = DefaultHasher::new();
    (node, what).hash(&mut hasher);
    let spread = u64::try_from(SPREAD.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(hasher.finish() % spread)
}
