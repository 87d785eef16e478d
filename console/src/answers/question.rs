//! Questions as they come in. One that cannot be read is refused in the program's own words.

use std::error::Error as _;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::IntoResponse as _;
use serde::de::DeserializeOwned;

use super::{FailureAnswer, LONGEST_BODY, Reason};

/// Parameters of a question, after the `?` of its path.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<T>(pub T);

/// Body of a request, which is JSON.
#[derive(Debug, Clone, Copy)]
pub struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = FailureAnswer;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, FailureAnswer> {
        let Query(parameters) = Query::try_from_uri(&parts.uri).map_err(|rejection| {
            let why = rejection.source().map_or_else(|| rejection.body_text(), ToString::to_string);
            let path = parts.uri.path();
            FailureAnswer::new(Reason::BadRequest, format!("invalid parameters of {path}: {why}"))
        })?;
        Ok(Self(parameters))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = FailureAnswer;

    async fn from_request(request: Request, state: &S) -> Result<Self, FailureAnswer> {
        let path = request.uri().path().to_owned();
        let body = Bytes::from_request(request, state).await.map_err(|rejection| {
            let why = if rejection.into_response().status() == StatusCode::PAYLOAD_TOO_LARGE {
                format!("it exceeds {} KiB", LONGEST_BODY >> 10)
            } else {
                "it is cut off".to_owned()
            };
            FailureAnswer::new(Reason::BadRequest, format!("the request to {path}: {why}"))
        })?;
        let content = serde_json::from_slice(&body).map_err(|error| {
            let message = format!("invalid request to {path}: {error}");
            FailureAnswer::new(Reason::BadRequest, message)
        })?;
        Ok(Self(content))
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::extract::DefaultBodyLimit;
    use axum::routing::{get, post};
    use http_body_util::BodyExt as _;
    use serde::Deserialize;
    use tower::ServiceExt as _;

    use super::*;

    #[derive(Deserialize)]
    struct Asked {
        limit: usize,
    }

    async fn said(method: &str, uri: &str, body: Vec<u8>) -> (StatusCode, String) {
        let answer = |it: Asked| format!("{} asked for", it.limit);
        let router = Router::new()
            .route("/some", get(move |Parameters(it): Parameters<Asked>| async move { answer(it) }))
            .route("/some", post(move |JsonBody(it): JsonBody<Asked>| async move { answer(it) }))
            .layer(DefaultBodyLimit::max(LONGEST_BODY));
        let request = Request::builder().method(method).uri(uri).body(Body::from(body)).unwrap();
        let answer = router.oneshot(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_refused_in_words() {
        let taken = (StatusCode::OK, "3 asked for".to_owned());
        assert_eq!(said("GET", "/some?limit=3", Vec::new()).await, taken);
        assert_eq!(said("POST", "/some", b"{\"limit\": 3}".to_vec()).await, taken);
        for (method, uri, body, words) in [
            ("GET", "/some?limit=many", "", "invalid parameters of /some: "),
            ("GET", "/some", "", "missing field `limit`"),
            ("POST", "/some", "limit: 3", "invalid request to /some: "),
        ] {
            let (status, said) = said(method, uri, body.as_bytes().to_vec()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{said}");
            assert!(said.contains(words) && said.contains("\"kind\":\"Failure\""), "{said}");
        }
    }

    #[tokio::test]
    async fn a_request_of_more_than_64_kib_is_refused() {
        let mut body = b"{\"limit\": 3}".to_vec();
        body.resize(LONGEST_BODY, b' ');
        assert_eq!(said("POST", "/some", body.clone()).await.0, StatusCode::OK);
        body.push(b' ');
        let (status, said) = said("POST", "/some", body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(said.contains("exceeds 64 KiB"), "{said}");
    }
}
