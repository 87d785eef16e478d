//! Changes of a takeover. They are no answer of a running program: there is none yet.

use serde::{Deserialize, Serialize};

use super::Content;
use super::plan::PlannedOperation;
use crate::comparison::{Compared, Found};
use crate::words::describe_sysctls;

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

impl Content for Takeover {
    const KIND: &'static str = "Takeover";
}

impl Takeover {
    /// The takeover in a mode that ends these differences.
    #[must_use]
    pub fn new(mode: String, mut compared: Compared, mut notes: Vec<String>) -> Self {
        let failing = compared.unread.iter();
        notes.extend(failing.map(|error| format!("{error}; a takeover would fail here")));
        compared.differences.sort_by_key(|found| found.difference.op.phase());
        // A start sets sysctls first.
        let sysctls = describe_sysctls(&compared.sysctls)
            .map(|(operation, described)| PlannedOperation::new(operation, described, &[]));
        let others = compared.differences.into_iter().map(|found| {
            let Found { difference, described, services } = found;
            PlannedOperation::new(difference.op.to_string(), described, &services)
        });
        let operations: Vec<PlannedOperation> = sysctls.chain(others).collect();
        Self { mode, whole: operations.is_empty(), operations, omitted: compared.n_more, notes }
    }
}
