//! The selector by fields, which older API servers refuse.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info};

use super::Follower;
use super::list::Lists;
use crate::kubernetes::decode::Status;
use crate::kubernetes::failure::Failure;

/// Time for which the selector is left out after it was refused. Behind a balancer there may be
/// servers of two releases, so neither answer is for good.
const PAUSE: Duration = Duration::from_secs(3_600);

/// Memory of whether the API server knows the selector.
#[derive(Debug, Default)]
pub(super) struct Fields {
    /// Time at which to send the selector again, once it was refused.
    again_at: Option<Instant>,
    /// True once the log has it.
    is_logged: bool,
}

impl Follower {
    /// Returns the selector by fields, unless the API server does not know it.
    pub(super) fn field_selector(&self) -> Option<String> {
        self.kind.fields(&self.node_name).filter(|_| self.fields.again_at.is_none())
    }

    /// Turns the refusal of the selector into [`Failure::NoFields`]. Servers name the field; where
    /// something between changes their words, a list in pages has nothing else to refuse.
    pub(super) fn refusal(&self, status: Status) -> Failure {
        let dispensable = self.kind.dispensable_field();
        let Some(field) = dispensable.filter(|_| self.fields.again_at.is_none()) else {
            return Failure::Refused(status);
        };
        let is_last_resort = !self.continues && matches!(self.lists, Lists::Paged | Lists::Whole);
        match status.code {
            401 | 403 | 410 => Failure::Refused(status),
            400 if is_last_resort => Failure::NoFields(status.message),
            _ if status.message.contains(field) => Failure::NoFields(status.message),
            _ => Failure::Refused(status),
        }
    }

    /// Leaves the selector out for a while.
    pub(super) fn avoid_fields(&mut self, failure: &Failure) {
        let (kind, cause) = (self.kind.name(), failure.cause());
        self.fields.again_at = Some(Instant::now() + PAUSE);
        if std::mem::replace(&mut self.fields.is_logged, true) {
            debug!(kind, "{cause}; left out for another hour");
        } else {
            info!(
                kind,
                "{cause}; the API server is older than Kubernetes 1.31, and sends what the selector \
                 leaves out as well. The selector is tried again every hour"
            );
        }
    }

    /// Sends the selector again once its time has come: the server may have been upgraded.
    pub(super) fn allow_fields(&mut self) {
        if self.fields.again_at.is_some_and(|at| at <= Instant::now()) {
            self.fields.again_at = None;
        }
    }
}
