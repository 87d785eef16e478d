//! Answers: their JSON, and how the program makes them. One module for each.
//!
//! Every answer is an object with `apiVersion` and `kind` beside its own fields.

pub mod connections;
pub mod decision;
pub mod diff;
pub mod drains;
pub mod events;
pub mod explain;
pub mod log;
pub mod mode;
pub mod names;
pub mod plan;
pub mod question;
pub mod service;
pub mod services;
pub mod sets;
pub mod status;
pub mod takeover;
pub mod top;
pub mod trace;
mod tracked;

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{API_VERSION, Desk};
use reconcile::inquiry::LoopGone;

/// Longest body of a request: an order.
const LONGEST_BODY: usize = 64 << 10;

/// Most names that are offered instead of one that is not there.
const MOST_NEAR: usize = 3;

/// Content of an answer.
pub trait Content: Serialize + DeserializeOwned {
    const KIND: &'static str;
}

/// An answer as it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer<T> {
    pub api_version: String,
    /// Kind of its content.
    pub kind: String,
    /// Its own fields.
    #[serde(flatten)]
    pub content: T,
}

/// Answer that says why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureAnswer {
    /// Kind of the reason.
    pub reason: Reason,
    /// The reason in words.
    pub message: String,
}

/// Kinds of reasons for having no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The question makes no sense.
    BadRequest,
    /// The named object is not there.
    NotFound,
    /// It cannot be answered now.
    Unavailable,
}

/// Every path that there is.
pub(super) fn router(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/v1/status", get(status::answer))
        .route("/v1/events", get(events::answer))
        .route("/v1/log", get(log::answer))
        .route("/v1/mode", post(mode::order))
        .route("/v1/names", get(names::answer))
        .route("/v1/services", get(services::answer))
        .route("/v1/service", get(service::answer))
        .route("/v1/explain", get(explain::answer))
        .route("/v1/diff", get(diff::answer))
        .route("/v1/drains", get(drains::answer))
        .route("/v1/drain", post(drains::begin))
        .route("/v1/undrain", post(drains::end))
        .route("/v1/trace", get(trace::answer))
        .route("/v1/connections", get(connections::answer))
        .route("/v1/top", get(top::answer))
        .fallback(|| async {
            FailureAnswer::new(
                Reason::NotFound,
                "this version of kube-ipvs does not answer this \
                                                  request",
            )
        })
        .method_not_allowed_fallback(|| async {
            FailureAnswer::new(Reason::BadRequest, "use GET to read, POST to change")
        })
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .with_state(desk)
}

/// Runs what waits for the kernel on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailureAnswer> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        FailureAnswer::new(Reason::Unavailable, format!("reading the kernel hit a bug: {error}"))
    })
}

/// Returns a time as RFC 3339 has it.
#[must_use]
pub fn timestamp(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| "?".to_owned(), |at| format!("{at:.3}"))
}

/// Cuts a list to so many. Returns the number of those that are left out.
fn cut<T>(list: &mut Vec<T>, most: usize) -> usize {
    let n_more = list.len().saturating_sub(most);
    list.truncate(most);
    n_more
}

/// Longest name of a namespace, a slash, and the longest of an object (RFC 1123's label and subdomain).
const LONGEST_NAME: usize = 63 + 1 + 253;

/// Most words of like length that one is compared with, each of which takes some microseconds.
const MOST_COMPARED: usize = 4_096;

/// Returns the words that are nearest to one that is not there, for a message: at most three.
pub fn nearest<'a>(wanted: &str, words: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    if wanted.len() > LONGEST_NAME {
        return Vec::new();
    }
    let most = |word: &str| wanted.len().max(word.len()) / 3;
    // One that is much longer or shorter is not near. Of the others the distance takes time.
    let like = words.into_iter().filter(|word| wanted.len().abs_diff(word.len()) <= most(word));
    let mut near: Vec<(usize, &str)> = like
        .take(MOST_COMPARED)
        .map(|word| (strsim::damerau_levenshtein(wanted, word), word))
        .filter(|(distance, word)| *distance <= most(word))
        .collect();
    near.sort_unstable();
    near.into_iter().take(MOST_NEAR).map(|(_, word)| word).collect()
}

impl<T: Content> Answer<T> {
    /// The answer with this content.
    pub fn new(content: T) -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: T::KIND.to_owned(), content }
    }
}

impl<T: Content> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        Json(self).into_response()
    }
}

impl Content for FailureAnswer {
    const KIND: &'static str = "Failure";
}

impl FailureAnswer {
    /// There is no answer for this reason.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

impl From<LoopGone> for FailureAnswer {
    fn from(gone: LoopGone) -> Self {
        Self::new(Reason::Unavailable, gone.to_string())
    }
}

impl IntoResponse for FailureAnswer {
    fn into_response(self) -> Response {
        let status = match self.reason {
            Reason::BadRequest => StatusCode::BAD_REQUEST,
            Reason::NotFound => StatusCode::NOT_FOUND,
            Reason::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, Answer::new(self)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_near_are_offered_and_others_are_not() {
        let words = ["shop/cart", "shop/card", "kube-system/kube-dns", "shop/catalogue"];
        assert_eq!(nearest("shop/crat", words), ["shop/cart", "shop/card"]);
        assert!(nearest("x", words).is_empty());
        let long = format!("shop/{}", "x".repeat(400));
        assert!(nearest(&long, [&*long]).is_empty(), "no object has such a name");
    }
}
