//! A Service's turn to be planned.

use crate::ipvs::fragment::ClaimClass;
use crate::parts::Place;

/// Order in which Services that contend for frontends are planned: class of the claims that are to
/// be made next, and when the Service was made, in seconds since 1970.
pub(super) type TurnRank = (ClaimClass, i64);

/// A Service's turn to be planned, in several parts if it is a large one.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    since: u64,
    /// Timestamp of its last part, or of the oldest change.
    waits_since: u64,
    /// Number of parts that were planned.
    n_parts: usize,
    /// True if it waited when the kernel was read, which cannot be cleaned up before it is planned.
    is_early: bool,
    /// None: its claims need not be made in the order of their classes.
    rank: Option<TurnRank>,
    /// Place of the last claim that was planned; none before the first part.
    behind: Option<Place>,
}

impl Turn {
    pub(super) fn new(since: u64) -> Self {
        Self { since, waits_since: since, n_parts: 0, is_early: false, rank: None, behind: None }
    }

    /// Timestamp of the oldest change that waits for it.
    #[must_use]
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Timestamp since which it has waited to go on.
    pub(super) fn waits_since(&self) -> u64 {
        self.waits_since
    }

    /// The turn as it waits from this timestamp on.
    pub(super) fn waiting_since(self, timestamp: u64) -> Self {
        Self { waits_since: timestamp, ..self }
    }

    /// Last class of claims that may be made in it.
    #[must_use]
    pub(crate) fn up_to(&self) -> ClaimClass {
        self.rank.map_or(ClaimClass::LAST, |(class, _)| class)
    }

    /// Turn for the next part, which begins with this class. `most` is the number of parts that it
    /// takes if the Service stays as it is: one that changes again and again is no longer waited
    /// for.
    #[must_use]
    pub(crate) fn next(self, class: ClaimClass, last: Option<Place>, most: usize) -> Self {
        let is_early = self.is_early && self.n_parts < most;
        let rank = self.rank.filter(|_| is_early).map(|(_, created)| (class, created));
        let behind = last.or(self.behind);
        Self { n_parts: self.n_parts + 1, is_early, rank, behind, ..self }
    }

    /// Place of the last claim of the part before; none for the first part.
    pub(crate) fn behind(&self) -> Option<Place> {
        self.behind
    }

    pub(super) fn set_early(&mut self, contends_since: Option<i64>) {
        self.is_early = true;
        self.rank = contends_since.map(|created| (ClaimClass::FIRST, created));
    }

    pub(super) fn is_early(&self) -> bool {
        self.is_early
    }

    pub(super) fn rank(&self) -> Option<TurnRank> {
        self.rank
    }
}
