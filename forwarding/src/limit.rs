//! A limit on the number of connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge};
use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Least time between two warnings of the same kind.
const WARN_AGAIN: Duration = Duration::from_secs(60);

/// Limit on the number of connections. Copies share it.
#[derive(Debug, Clone)]
pub(crate) struct Limit {
    most: usize,
    slots: Arc<Semaphore>,
    open: IntGauge,
    refused: IntCounter,
    warned: RateLimit,
}

/// Slot of a connection, of the limited number.
#[derive(Debug)]
pub(crate) struct Slot {
    open: IntGauge,
    _permit: OwnedSemaphorePermit,
}

/// Limit on the rate of a warning. Copies share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RateLimit(Arc<Mutex<Option<Instant>>>);

/// Returns the number of connections that the process can afford, `wanted` at most: each takes
/// `files` files, and all of them together one `part` in so many of the files that the process may
/// open.
pub(crate) fn affordable(wanted: usize, files: u64, part: u64) -> usize {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    wanted.min(usize::try_from(limit / part / files).unwrap_or(usize::MAX))
}

impl Limit {
    /// Allows `most` connections at a time. `open` counts those that are open, `refused` those that
    /// were too many.
    pub(crate) fn new(most: usize, open: IntGauge, refused: IntCounter) -> Self {
        let slots = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self { most, slots, open, refused, warned: RateLimit::default() }
    }

    /// Takes a slot. If there is none, the connection counts as refused, and `warn` is called with
    /// the limit, unless it was called less than a minute ago.
    pub(crate) fn take(&self, warn: impl FnOnce(usize)) -> Option<Slot> {
        if let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() {
            return Some(Slot::new(self.open.clone(), permit));
        }
        self.refused.inc();
        if self.warned.is_due() {
            warn(self.most);
        }
        None
    }

    /// Waits until no slot is taken.
    pub(crate) async fn until_all_are_free(&self) {
        let all = u32::try_from(self.most.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        // It is never closed.
        let _all = self.slots.acquire_many(all).await;
    }
}

impl Slot {
    fn new(open: IntGauge, permit: OwnedSemaphorePermit) -> Self {
        open.inc();
        Self { open, _permit: permit }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.open.dec();
    }
}

impl RateLimit {
    /// True if the last time was a minute ago or longer; then this is the last time.
    pub(crate) fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut last = self.0.lock();
        let is_due = last.is_none_or(|last| now.duration_since(last) >= WARN_AGAIN);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}
