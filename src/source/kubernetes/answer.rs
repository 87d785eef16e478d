//! A request, and the head of its answer.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, Request, StatusCode};
use kube::Client;
use tokio::time::timeout;

use super::body::Body;
use super::decode::Status;
use super::failure::Failure;

/// Longest time until an answer begins. The API server itself gives a list a minute.
const HEAD_PATIENCE: Duration = Duration::from_secs(70);

/// Longest silence while a refusal is being sent.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(10);

/// Characters of a refusal that are kept: a proxy's error page has no place in a log.
const LONGEST_MESSAGE: usize = 300;

/// Longest `Retry-After` that is honoured. A server's maintenance may be over sooner.
const LONGEST_RETRY: u64 = 60;

/// Sends a request. Returns the body of an answer that is no refusal.
///
/// # Errors
/// When no answer begins, or it is a refusal.
pub(super) async fn ask(client: &Client, request: Request<Vec<u8>>) -> Result<Body, Failure> {
    let request = request.map(kube::client::Body::from);
    let answer = timeout(HEAD_PATIENCE, client.send(request)).await;
    let silent = |_| Failure::Unreachable(format!("no answer within {HEAD_PATIENCE:?}"));
    let (head, body) = answer.map_err(silent)??.into_parts();
    let body = Body::new(body);
    if head.status.is_success() {
        return Ok(body);
    }
    let text = body.all(REFUSAL_PATIENCE).await?;
    Err(refusal(head.status, &head.headers, &text).into())
}

/// The Status object that a refusal should be; of anything else the text.
fn refusal(status: StatusCode, headers: &HeaderMap, text: &[u8]) -> Status {
    let mut refusal: Status = serde_json::from_slice(text).unwrap_or_default();
    if refusal.code == 0 {
        refusal.code = status.as_u16();
    }
    if refusal.message.is_empty() {
        refusal.message = String::from_utf8_lossy(text).trim().to_owned();
    }
    refusal.message = refusal.message.chars().take(LONGEST_MESSAGE).collect();
    refusal.retry_after = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok())
        .map(|seconds| Duration::from_secs(seconds.min(LONGEST_RETRY)));
    refusal
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn refused(code: u16, retry_after: Option<&'static str>, text: &str) -> Status {
        let mut headers = HeaderMap::new();
        headers.extend(retry_after.map(|text| (RETRY_AFTER, HeaderValue::from_static(text))));
        refusal(StatusCode::from_u16(code).unwrap(), &headers, text.as_bytes())
    }

    #[test]
    fn a_refusal_is_a_status_object_or_a_text() {
        let text = r#"{"kind":"Status","status":"Failure","message":"slow down","reason":"TooManyRequests","code":429}"#;
        let status = refused(429, Some("7"), text);
        assert_eq!((status.code, status.message.as_str()), (429, "slow down"));
        assert_eq!(status.retry_after, Some(Duration::from_secs(7)));
        let page = format!("<html>{}</html>\n", "x".repeat(1_000));
        let status = refused(502, None, &page);
        assert_eq!((status.code, status.message.chars().count()), (502, LONGEST_MESSAGE));
        assert_eq!(status.retry_after, None);
        let long = refused(503, Some("18446744073709551615"), "").retry_after;
        assert_eq!(long, Some(Duration::from_secs(LONGEST_RETRY)));
        let date = refused(503, Some("Wed, 21 Oct 2026 07:28:00 GMT"), "");
        assert_eq!((date.message.as_str(), date.retry_after), ("", None));
    }
}
