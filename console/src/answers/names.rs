//! `/v1/names`: names of Services and of their namespaces, for shells that complete them.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::question::Parameters;
use super::{Answer, Content, FailureAnswer};
use crate::Desk;
use reconcile::inquiry::CHUNK;

/// Most names in one answer: more would not be read.
const MOST: usize = 200;

/// Names of Services, or of namespaces that have some.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Names {
    /// The first of them in order: of Services as `NAMESPACE/NAME`.
    pub names: Vec<String>,
}

/// Parameters of the question.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// Only those that begin with this.
    prefix: String,
    of: Of,
}

/// Kinds of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Of {
    #[default]
    Services,
    Namespaces,
}

impl Content for Names {
    const KIND: &'static str = "Names";
}

pub async fn answer(
    State(desk): State<Arc<Desk>>,
    Parameters(asked): Parameters<Asked>,
) -> Result<Answer<Names>, FailureAnswer> {
    let mut names = BTreeSet::new();
    let mut last = None;
    loop {
        let after = last.take();
        let asking =
            desk.inquiries.ask(move |view| view.planner.service_names(after.as_ref(), CHUNK));
        let chunk = asking.await?;
        let found = chunk.iter().map(|service| match asked.of {
            Of::Services => service.to_string(),
            Of::Namespaces => service.namespace.to_string(),
        });
        names.extend(found.filter(|name| name.starts_with(&asked.prefix)));
        last = chunk.into_iter().next_back();
        if last.is_none() || names.len() >= MOST {
            return Ok(Answer::new(Names { names: names.into_iter().take(MOST).collect() }));
        }
    }
}
