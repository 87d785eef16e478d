//! `/v1/mode`: an order to serve in another mode.

use std::sync::Arc;

use axum::extract::State;
use plan::mode::Mode;
use serde::{Deserialize, Serialize};

use super::question::JsonBody;
use super::{Answer, Content, FailureAnswer, Reason};
use crate::Desk;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeOrder {
    /// The mode's name.
    pub mode: String,
}

/// The order was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeOrdered {
    /// Mode that the node serves in now.
    pub served: String,
    /// Mode that it is to serve in until kube-ipvs exits.
    pub ordered: String,
}

impl Content for ModeOrdered {
    const KIND: &'static str = "ModeOrdered";
}

/// Takes an order. The host is looked at afterwards: `status` and the Events of the Node say what came of it.
pub(super) async fn order(
    State(desk): State<Arc<Desk>>,
    JsonBody(ModeOrder { mode }): JsonBody<ModeOrder>,
) -> Result<Answer<ModeOrdered>, FailureAnswer> {
    let wanted = config::cli::mode(&mode)
        .map_err(|problem| FailureAnswer::new(Reason::BadRequest, problem))?;
    desk.orders.try_send(wanted).map_err(|_| {
        FailureAnswer::new(
            Reason::Unavailable,
            "another switch is in progress; try again once `kube-ipvs status` shows its mode",
        )
    })?;
    let served = desk.settings.mode.to_string();
    Ok(Answer::new(ModeOrdered { served, ordered: mode }))
}

/// Returns what sentences call a mode, by its name in an answer. Another version may have more modes.
#[must_use]
pub fn title(name: &str) -> String {
    Mode::named(name).map_or_else(|| format!("mode {name}"), |mode| mode.title().to_owned())
}
