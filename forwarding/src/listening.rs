//! Ports that cannot be listened on are tried again.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A port that cannot be listened on is tried again after this time, and then after twice the time.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// But never after more than this.
const LAST_RETRY: Duration = Duration::from_secs(60);
/// Time after which a failure that lasts is reported again, since Events expire.
const REPORT_AGAIN: Duration = Duration::from_secs(600);

/// Connections that the kernel has set up and that are not accepted yet.
pub(crate) const BACKLOG: u32 = 1_024;
/// Pause when no connection can be accepted: nothing is gained by trying again at once.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The ports that cannot be listened on.
#[derive(Debug)]
pub(crate) struct ListenRetries<K> {
    failing: HashMap<K, Failing>,
}

#[derive(Debug)]
struct Failing {
    reason: String,
    reported: Instant,
    delay: Duration,
    next: Instant,
}

impl<K: Clone + Eq + Hash> ListenRetries<K> {
    /// Notes a failure. True if it is to be reported: it is new, or was last reported ten minutes
    /// ago.
    pub(crate) fn failed(&mut self, port: K, reason: &str) -> bool {
        let now = Instant::now();
        let known = self.failing.get(&port);
        let same = known.filter(|known| known.reason == reason);
        let last = same.map(|known| known.reported);
        let last = last.filter(|reported| now.duration_since(*reported) < REPORT_AGAIN);
        let delay = known.map_or(FIRST_RETRY, |known| LAST_RETRY.min(known.delay * 2));
        let failing = Failing {
            reason: reason.to_owned(),
            reported: last.unwrap_or(now),
            delay,
            next: now + delay,
        };
        self.failing.insert(port, failing);
        last.is_none()
    }

    /// Forgets a port: it is listened on, or no longer wanted.
    pub(crate) fn forget(&mut self, port: &K) {
        self.failing.remove(port);
    }

    /// True if the last try to listen on the port failed.
    pub(crate) fn contains(&self, port: &K) -> bool {
        self.failing.contains_key(port)
    }

    /// Returns the ports whose time to be tried again has come.
    pub(crate) fn due(&self) -> Vec<K> {
        let now = Instant::now();
        let due = self.failing.iter().filter(|(_, failing)| failing.next <= now);
        due.map(|(port, _)| port.clone()).collect()
    }

    /// Waits until a port is due; for ever if none is failing.
    pub(crate) fn until_due(&self) -> impl Future<Output = ()> + use<K> {
        let next = self.failing.values().map(|failing| failing.next).min();
        async move {
            match next {
                Some(time) => sleep_until(time).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Returns the number of ports that are failing, for a gauge.
    pub(crate) fn count(&self) -> i64 {
        i64::try_from(self.failing.len()).unwrap_or(i64::MAX)
    }
}

impl<K> Default for ListenRetries<K> {
    fn default() -> Self {
        Self { failing: HashMap::new() }
    }
}
