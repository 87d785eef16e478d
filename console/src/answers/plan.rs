//! Operations in words, and the plan of manifests. No running program makes them.

use plan::model::ServiceName;
use serde::{Deserialize, Serialize};

use super::Content;
use crate::words::{Described, Effect};

/// Operations by which a node without state of Services would serve manifests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// Mode that would serve.
    pub mode: String,
    /// Name of the node.
    pub node: String,
    /// The planner's operations, in order.
    pub operations: Vec<PlannedOperation>,
    /// Facts that are not known.
    pub notes: Vec<String>,
    /// Problems of the manifests, and of their Services.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedOperation {
    /// Effect on the object.
    pub effect: Effect,
    pub object: String,
    /// State that there is; none: nothing.
    pub found: Option<String>,
    /// State that is desired; none: nothing.
    pub desired: Option<String>,
    pub services: Vec<String>,
    pub operation: String,
}

impl Content for Planned {
    const KIND: &'static str = "Plan";
}

impl PlannedOperation {
    /// Returns an operation with its words and the Services that it is for.
    #[must_use]
    pub fn new(operation: String, described: Described, services: &[ServiceName]) -> Self {
        Self {
            effect: described.effect,
            object: described.object,
            found: described.found,
            desired: described.desired,
            services: services.iter().map(ToString::to_string).collect(),
            operation,
        }
    }
}
