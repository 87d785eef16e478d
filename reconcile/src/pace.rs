//! Periods of the loop.

use std::time::Duration;

/// Time until a failed read of the kernel is retried.
pub(super) const READ_RETRY: Duration = Duration::from_secs(5);

/// Stands for "never": one year.
pub(super) const FAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Default of [`Pace::drain_deadline`].
pub const DEFAULT_DRAIN_DEADLINE: Duration = Duration::from_secs(15 * 60);

/// Periods of the loop, and the drain deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Changes that come within this time after a write wait for its end, and go together.
    pub min_sync_period: Duration,
    /// Period within which everything is compared with what it should be; a second at least, and
    /// longer if that takes more than one part in 125 of it.
    pub sync_period: Duration,
    /// Longest time for the connections of a removed endpoint to end. `drainDeadline` sets it.
    pub drain_deadline: Duration,
}

impl Default for Pace {
    /// kube-proxy's periods, and our drain deadline.
    fn default() -> Self {
        Self {
            min_sync_period: Duration::ZERO,
            sync_period: Duration::from_secs(30),
            drain_deadline: DEFAULT_DRAIN_DEADLINE,
        }
    }
}
