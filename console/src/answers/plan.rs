//! `/v1/plan`: what applying or deleting manifests would change on this node.

use std::sync::Arc;

use axum::extract::State;
use plan::model::ServiceName;
use plan::scheduler::SchedulerName;
use serde::{Deserialize, Serialize};

use super::question::JsonBody;
use super::{Answer, Content, FailureAnswer, Reason};
use crate::Desk;
use crate::present::{Change, Manifests};
use crate::rehearsal::{self, Rehearsal, RehearsalError, Rehearsed};
use crate::words::{Described, Effect};
use reconcile::inquiry::Inquiries;

/// Most operations in an answer.
const MOST: usize = 10_000;

/// Manifests that are to be planned, and not applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanRequest {
    pub manifests: Vec<Manifest>,
    /// True if their objects are deleted instead of applied.
    #[serde(default)]
    pub delete: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Name of its file, for messages.
    pub name: String,
    /// Its text: YAML or JSON.
    pub text: String,
}

/// Result of planning a change that is not made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// The Services that the change is about.
    pub services: Vec<String>,
    /// Operations, in the order in which they would be written.
    pub operations: Vec<PlannedOperation>,
    /// Number of further operations.
    pub omitted: usize,
    /// Fields that were filled in, objects that were left out, and facts that are not known.
    pub notes: Vec<String>,
    /// Problems of the manifests, and of the Services as they would be.
    pub warnings: Vec<String>,
}

/// An operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedOperation {
    /// Effect on the object.
    pub effect: Effect,
    pub object: String,
    /// State as planned now; none: nothing.
    pub found: Option<String>,
    /// State with the change; none: nothing.
    pub desired: Option<String>,
    /// The Services that it is for.
    pub services: Vec<String>,
    pub operation: String,
}

pub(super) async fn answer(
    State(desk): State<Arc<Desk>>,
    JsonBody(request): JsonBody<PlanRequest>,
) -> Result<Answer<Planned>, FailureAnswer> {
    plan(&desk.inquiries, &desk.settings.scheduler, &request).await.map(Answer::new)
}

/// Plans what a request is about. `scheduler`: that of Services that choose none.
///
/// # Errors
/// When the manifests cannot be read, or the loop does not answer.
pub async fn plan(
    inquiries: &Inquiries,
    scheduler: &SchedulerName,
    request: &PlanRequest,
) -> Result<Planned, FailureAnswer> {
    let manifests = read(request)?;
    let change = if request.delete {
        manifests.deleted()
    } else {
        let present = rehearsal::present(inquiries, &manifests.services()).await?;
        manifests.applied(&present, scheduler)
    };
    let Change { events, notes, warnings } = change;
    let rehearsed = rehearsal::rehearse(inquiries, events).await?;
    Ok(Planned::new(rehearsed, notes, warnings))
}

/// Reads the manifests of a request.
pub fn read(request: &PlanRequest) -> Result<Manifests, FailureAnswer> {
    let mut manifests = Manifests::default();
    for Manifest { name, text } in &request.manifests {
        let read = manifests.read(name, text);
        read.map_err(|problem| FailureAnswer::new(Reason::BadRequest, problem))?;
    }
    Ok(manifests)
}

impl Content for Planned {
    const KIND: &'static str = "Plan";
}

impl Planned {
    /// Returns the answer for a rehearsal.
    #[must_use]
    pub fn new(rehearsed: Rehearsed, notes: Vec<String>, mut warnings: Vec<String>) -> Self {
        let Rehearsed { mut operations, services, problems } = rehearsed;
        warnings.extend(problems);
        let omitted = operations.len().saturating_sub(MOST);
        operations.truncate(MOST);
        Self {
            services: services.iter().map(ToString::to_string).collect(),
            operations: operations.into_iter().map(PlannedOperation::from).collect(),
            omitted,
            notes,
            warnings,
        }
    }
}

impl From<Rehearsal> for PlannedOperation {
    fn from(rehearsal: Rehearsal) -> Self {
        let Rehearsal { op, described, services } = rehearsal;
        Self::new(op.to_string(), described, &services)
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

impl From<RehearsalError> for FailureAnswer {
    fn from(error: RehearsalError) -> Self {
        let reason = match error {
            RehearsalError::TooMany => Reason::BadRequest,
            RehearsalError::LoopGone(_)
            | RehearsalError::NotInSync
            | RehearsalError::Panicked(_) => Reason::Unavailable,
        };
        Self::new(reason, error.to_string())
    }
}
