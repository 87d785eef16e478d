//! Operations in words, and the plan of manifests. No running program makes them.

use plan::model::ServiceName;
use serde::{Deserialize, Serialize};

use super::Content;
use crate::comparison::{services_by_address, services_of};
use crate::offline::PlannedManifests;
use crate::words::{Beside, Described, Effect, describe};

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

/// An operation.
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
    /// The Services that it is for.
    pub services: Vec<String>,
    pub operation: String,
}

impl Content for Planned {
    const KIND: &'static str = "Plan";
}

impl From<PlannedManifests> for Planned {
    fn from(planned: PlannedManifests) -> Self {
        let PlannedManifests { planner, plan, has_node, mut warnings } = planned;
        let (settings, desired) = (planner.settings(), planner.desired());
        let frontends = desired.frontends();
        let by_address =
            services_by_address(frontends.filter_map(|at| Some((at, desired.owner(at)?))));
        let mut ops = plan.ops;
        planner.insert_growth(&mut ops);
        let operations = ops.iter().map(|op| {
            let subject = op.subject();
            let services = services_of(&subject, planner.owner_of(&subject), &&by_address);
            PlannedOperation::new(op.to_string(), describe(op, &Beside::default()), &services)
        });
        let problems = plan.problems.into_iter().flat_map(|(service, problems)| {
            problems.into_iter().map(move |problem| format!("{service}: {problem}"))
        });
        warnings.extend(problems);
        let node = settings.node_name.to_string();
        let unknown =
            format!("no Node {node} is among the manifests, so no address of the node is known");
        Self {
            mode: settings.mode.to_string(),
            node,
            operations: operations.collect(),
            notes: if has_node { Vec::new() } else { vec![unknown] },
            warnings,
        }
    }
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
