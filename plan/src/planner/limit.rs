//! Bounds of one plan.

/// Limits to what is planned in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundLimit {
    /// Number of Services, or parts of Services, at most.
    pub services: usize,
    /// No further Service once those taken may need so many operations.
    pub operations: usize,
    /// No more operations of a single Service than this, about, or a sixteenth of those that all of
    /// it takes, if that is more: it waits with the rest of them, behind the others.
    pub operations_per_service: usize,
}

// === impl RoundLimit ===

impl RoundLimit {
    /// Everything in one go.
    pub const NONE: Self =
        Self { services: usize::MAX, operations: usize::MAX, operations_per_service: usize::MAX };
}
