//! A request, and the head of its answer.
//!
//! Objects are asked for in Protobuf, which takes half the bytes of JSON. A server that has only JSON answers so; one that
//! refuses the request because of that is asked for JSON from then on, and for Protobuf again by a list an hour later.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use kube::Client;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tracing::info;

use super::body::Body;
use super::decode::{Encoding, Status};
use super::error_text::in_short;
use super::failure::Failure;

/// Objects without `metadata.managedFields`, which are up to half of them, from a server that can leave it out
/// of JSON (KEP-5958, alpha in Kubernetes 1.38). Any other ignores the parameter, or takes the second.
const JSON: HeaderValue =
    HeaderValue::from_static("application/json;drop=metadata.managedFields, application/json");

/// Objects, or events of a watch with a length before each.
const PROTOBUF: HeaderValue =
    HeaderValue::from_static("application/vnd.kubernetes.protobuf, application/json");
const PROTOBUF_STREAM: HeaderValue =
    HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch, application/json");

/// Longest time until an answer begins. The API server itself gives a list a minute.
const HEAD_PATIENCE: Duration = Duration::from_secs(70);

/// Longest silence while a refusal is being sent.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(10);

/// Most bytes of a refusal that are read. A Status object has a few hundred.
const LONGEST_REFUSAL: usize = 64 << 10;

/// Longest `Retry-After` that is honoured. A server's maintenance may be over sooner.
const LONGEST_RETRY: u64 = 60;

/// Time for which JSON is asked for after Protobuf was refused, or something that was none came in its place.
const JSON_PAUSE: Duration = Duration::from_secs(3_600);

/// Asks for objects that are followed.
#[derive(Clone)]
pub(super) struct Objects {
    client: Client,
    wanted: Arc<Mutex<Wanted>>,
}

/// Encoding that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Protobuf,
    /// By configuration.
    Json,
    /// Up to the first list after this time.
    JsonUntil(Instant),
}

impl Objects {
    pub(super) fn new(client: Client, only_json: bool) -> Self {
        let wanted = if only_json { Wanted::Json } else { Wanted::Protobuf };
        Self { client, wanted: Arc::new(Mutex::new(wanted)) }
    }

    /// Asks for a list.
    ///
    /// # Errors
    /// When no answer begins, or it is a refusal.
    pub(super) async fn list(&self, request: Request<Vec<u8>>) -> Result<Body, Failure> {
        self.ask(request, PROTOBUF).await
    }

    /// Asks for a watch.
    ///
    /// # Errors
    /// When no answer begins, or it is a refusal.
    pub(super) async fn watch(&self, request: Request<Vec<u8>>) -> Result<Body, Failure> {
        self.ask(request, PROTOBUF_STREAM).await
    }

    /// Asks for a Table, which is JSON.
    ///
    /// # Errors
    /// When no answer begins, or it is a refusal.
    pub(super) async fn table(&self, request: Request<Vec<u8>>) -> Result<Body, Failure> {
        ask(&self.client, request).await
    }

    async fn ask(&self, request: Request<Vec<u8>>, wanted: HeaderValue) -> Result<Body, Failure> {
        if *self.wanted.lock() != Wanted::Protobuf {
            return ask(&self.client, request).await;
        }
        let mut first = request.clone();
        first.headers_mut().insert(ACCEPT, wanted);
        match ask(&self.client, first).await {
            Err(Failure::Refused(status)) if matches!(status.code, 406 | 415) => {
                self.refused_protobuf(&status);
                ask(&self.client, request).await
            }
            // A server answers so in Protobuf if the request is wrong. A gateway may mean the header: if JSON is refused,
            // too, it was something else.
            Err(Failure::Refused(status)) if status.code == 400 && !status.is_protobuf => {
                let answer = ask(&self.client, request).await?;
                self.refused_protobuf(&status);
                Ok(answer)
            }
            answer => answer,
        }
    }

    fn refused_protobuf(&self, Status { code, message, .. }: &Status) {
        self.ask_for_json(&format!("Protobuf is refused ({code} {message})"));
    }

    /// Asks for JSON from now on.
    pub(super) fn ask_for_json(&self, reason: &str) {
        let mut wanted = self.wanted.lock();
        if *wanted == Wanted::Protobuf {
            *wanted = Wanted::JsonUntil(Instant::now() + JSON_PAUSE);
            info!("{reason}; kube-ipvs requests JSON, and Protobuf again in an hour");
        }
    }

    /// Asks for Protobuf again once its time has come: the server, or the gateway before it, may be another one. To be
    /// called before a list: a watch that works is not ended for it.
    pub(super) fn allow_protobuf(&self) {
        let mut wanted = self.wanted.lock();
        if matches!(*wanted, Wanted::JsonUntil(end) if end <= Instant::now()) {
            *wanted = Wanted::Protobuf;
        }
    }
}

/// Sends a request, for JSON unless it asks for something else. Returns the body of an answer that is no refusal.
///
/// # Errors
/// When no answer begins, or it is a refusal.
pub(super) async fn ask(client: &Client, mut request: Request<Vec<u8>>) -> Result<Body, Failure> {
    request.headers_mut().entry(ACCEPT).or_insert(JSON);
    let request = request.map(kube::client::Body::from);
    let answer = timeout(HEAD_PATIENCE, client.send(request)).await;
    let silent = |_| Failure::Unreachable(format!("no answer within {HEAD_PATIENCE:?}"));
    let (head, body) = answer.map_err(silent)??.into_parts();
    let body = Body::new(body, encoding(&head.headers));
    if head.status.is_success() {
        return Ok(body);
    }
    let text = body.beginning(LONGEST_REFUSAL, REFUSAL_PATIENCE).await?;
    Err(refusal(head.status, &head.headers, &text).into())
}

/// The encoding of an answer with these headers, if they name one.
fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    Encoding::of(headers.get(CONTENT_TYPE)?.to_str().ok()?)
}

/// The Status object that a refusal should be; of anything else the text.
fn refusal(status: StatusCode, headers: &HeaderMap, text: &[u8]) -> Status {
    let encoding = encoding(headers).unwrap_or_else(|| Encoding::detect(text));
    let decoded = Status::decode(encoding, text);
    let is_protobuf = decoded.is_ok() && encoding == Encoding::Protobuf;
    let mut refusal = Status { is_protobuf, ..decoded.unwrap_or_default() };
    // A proxy that refuses Protobuf may have codes of its own.
    if refusal.code == 0 || matches!(status.as_u16(), 406 | 415) {
        refusal.code = status.as_u16();
    }
    if refusal.message.is_empty() {
        refusal.message = in_short(String::from_utf8_lossy(text).trim());
    }
    refusal.retry_after = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok())
        .map(|seconds| Duration::from_secs(seconds.min(LONGEST_RETRY)));
    refusal
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

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
        let page = format!("<html>\r\n<head>{}</html>\n", "x".repeat(1_000));
        let status = refused(502, None, &page);
        assert_eq!((status.code, status.message.len()), (502, 300));
        assert!(status.message.starts_with(r"<html>\r\n<head>xx"), "{}", status.message);
        assert_eq!(status.retry_after, None);
        let of_proxy = refused(406, None, r#"{"code":1001,"message":"no binary bodies"}"#);
        assert_eq!((of_proxy.code, of_proxy.message.as_str()), (406, "no binary bodies"));
        let long = refused(503, Some("18446744073709551615"), "").retry_after;
        assert_eq!(long, Some(Duration::from_secs(LONGEST_RETRY)));
        let date = refused(503, Some("Wed, 21 Oct 2026 07:28:00 GMT"), "");
        assert_eq!((date.message.as_str(), date.retry_after), ("", None));
    }

    /// A proxy that never ends its error page.
    #[tokio::test]
    async fn a_refusal_without_an_end_is_read_no_further_than_needed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let sent = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1_024];
            let _ = stream.read(&mut request).await.unwrap();
            let head = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 1000000000\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut sent = 0;
            while sent < 1_000_000_000 {
                let Ok(more) = stream.write(&[b'x'; 1_024]).await else { break };
                sent += more;
            }
            sent
        });
        let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let request = Request::get("/api/v1/services").body(Vec::new()).unwrap();
        let Err(Failure::Refused(status)) = ask(&client, request).await else {
            panic!("it is a refusal")
        };
        assert_eq!((status.code, status.message.len()), (502, 300));
        drop(client);
        let sent = sent.await.unwrap();
        // What the kernel holds of it is lost.
        assert!(sent < 100_000_000, "{sent}");
    }
}
