//! What something took.

use std::ops::Add;
use std::time::{Duration, Instant};

use netlink::Traffic;

/// Time, and netlink traffic.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) time: Duration,
    pub(crate) requests: u64,
    pub(crate) sends: u64,
}

// === impl Cost ===

impl Cost {
    pub(crate) fn since(started: Instant, before: Traffic, after: Traffic) -> Self {
        Self {
            time: started.elapsed(),
            requests: after.requests - before.requests,
            sends: after.sends - before.sends,
        }
    }

    /// The one in the middle, by time; of none, nothing.
    pub(crate) fn median(mut costs: Vec<Self>) -> Self {
        costs.sort_by_key(|cost| cost.time);
        costs.get(costs.len() / 2).copied().unwrap_or_default()
    }

    pub(crate) fn milliseconds(self) -> f64 {
        self.time.as_secs_f64() * 1_000.0
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            time: self.time + other.time,
            requests: self.requests + other.requests,
            sends: self.sends + other.sends,
        }
    }
}
