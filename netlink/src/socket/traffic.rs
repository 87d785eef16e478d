//! Amounts of traffic over sockets.

/// Amount of traffic over a socket, for measurements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Requests sent.
    pub requests: u64,
    /// Sends they went in.
    pub sends: u64,
    /// Datagrams received.
    pub receives: u64,
}

// === impl Traffic ===

impl std::iter::Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(each: I) -> Self {
        each.fold(Self::default(), |sum, one| Self {
            requests: sum.requests + one.requests,
            sends: sum.sends + one.sends,
            receives: sum.receives + one.receives,
        })
    }
}
