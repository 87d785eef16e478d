//! Changes of a takeover. They are no answer of a running program: there is none yet.

use serde::{Deserialize, Serialize};

use super::Content;
use super::plan::PlannedOperation;

/// Most operations in an answer.
const MOST: usize = 10_000;

/// Changes of a takeover on this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Takeover {
    /// Mode that would serve.
    pub mode: String,
    /// True if nothing would be changed.
    pub whole: bool,
    /// Operations, by phases.
    pub operations: Vec<PlannedOperation>,
    /// Number of further operations.
    pub omitted: usize,
    /// Notes on the source, and on rules of other modes.
    pub notes: Vec<String>,
}

// === impl Takeover ===

impl Content for Takeover {
    const KIND: &'static str = "Takeover";
}

impl Takeover {
    /// A takeover in a mode with these operations.
    #[must_use]
    pub fn new(mode: String, mut operations: Vec<PlannedOperation>, notes: Vec<String>) -> Self {
        let (whole, omitted) = (operations.is_empty(), operations.len().saturating_sub(MOST));
        operations.truncate(MOST);
        Self { mode, whole, operations, omitted, notes }
    }
}
