//! `/v1/names`: names of Services, for shells that complete them.

use std::sync::Arc;

use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};

use super::{Answer, Content, FailureAnswer};
use crate::console::Desk;
use crate::reconcile::inquiry::CHUNK;

/// Most names in one answer: more would not be read.
const MOST: usize = 200;

/// Names of Services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Names {
    /// The first of them, as `NAMESPACE/NAME`, in order.
    pub names: Vec<String>,
}

/// Parameters of the question.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// Only those that begin with this.
    prefix: String,
}

impl Content for Names {
    const KIND: &'static str = "Names";
}

/// Answers.
///
/// # Errors
/// When the loop has ended.
pub async fn answer(
    State(desk): State<Arc<Desk>>,
    Query(asked): Query<Asked>,
) -> Result<Answer<Names>, FailureAnswer> {
    let mut names = Vec::new();
    let mut last = None;
    loop {
        let after = last.take();
        let asking =
            desk.inquiries.ask(move |view| view.planner.service_names(after.as_ref(), CHUNK));
        let chunk = asking.await?;
        let wanted = chunk.iter().map(ToString::to_string);
        names.extend(wanted.filter(|name| name.starts_with(&asked.prefix)));
        last = chunk.into_iter().next_back();
        if last.is_none() || names.len() >= MOST {
            names.truncate(MOST);
            return Ok(Answer::new(Names { names }));
        }
    }
}
