//! The connections to the API server.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use tokio::time::{Instant, sleep_until};
use tower::filter::{AsyncFilterLayer, AsyncPredicate};
use tower::{BoxError, ServiceBuilder, service_fn};

/// How long a connection may take to be made.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// A connection on which nothing comes is asked after this time whether it still is one, and again
/// as often as below, so that a server which vanished without a word is noticed within a minute. A
/// watch is silent for minutes when nothing changes.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_ATTEMPTS: u32 = 3;

/// client-go's defaults.
const DEFAULT_QPS: f32 = 5.0;
const DEFAULT_BURST: i32 = 10;

type Checked = Pin<Box<dyn Future<Output = Result<Request<Body>, BoxError>> + Send>>;

/// A file with a bearer token, which somebody replaces before the token expires.
#[derive(Debug, Clone)]
pub(super) struct TokenFile {
    path: Arc<PathBuf>,
    /// The last token that was read: it stays in use while the file is not there.
    last: Arc<Mutex<HeaderValue>>,
}

/// How many requests may be made: a bucket of tokens, which is full at first.
#[derive(Debug, Clone)]
pub(super) struct Rate {
    /// Nothing if there is no limit.
    bucket: Option<Arc<Mutex<Bucket>>>,
}

/// Counted in time: the moment at which the bucket will be full again.
#[derive(Debug)]
struct Bucket {
    per_request: Duration,
    burst: u32,
    full_at: Option<Instant>,
}

/// A client that uses the token in a file, if there is one, and keeps to a rate.
///
/// # Errors
/// When the certificates or other credentials cannot be used.
pub(super) fn client(
    mut config: Config,
    token_file: Option<TokenFile>,
    rate: Rate,
) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT_PATIENCE);
    let namespace = config.default_namespace.clone();
    let direct = match config.proxy_url {
        None => direct(&config)?,
        Some(_) => ClientBuilder::try_from(config)?.build(),
    };
    let service = ServiceBuilder::new()
        .layer(AsyncFilterLayer::new(rate))
        .option_layer(token_file.map(AsyncFilterLayer::new))
        .service(service_fn(move |request| {
            let client = direct.clone();
            async move { client.send(request).await.map_err(BoxError::from) }
        }));
    Ok(Client::new(service, namespace))
}

/// kube's own stack, but for two things: the connection is asked whether it is alive, and a failed
/// request is an error for who made it and not a line in the log.
fn direct(config: &Config) -> Result<Client, kube::Error> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_ATTEMPTS));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build(connector));
    Ok(Client::new(service, config.default_namespace.clone()))
}

// === impl TokenFile ===

impl TokenFile {
    /// # Errors
    /// When it cannot be read, or holds no token.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let last = Arc::new(Mutex::new(read_token(&path)?));
        Ok(Self { path: Arc::new(path), last })
    }

    fn header(&self) -> HeaderValue {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(new) = read_token(&self.path) {
            *last = new;
        }
        last.clone()
    }
}

impl AsyncPredicate<Request<Body>> for TokenFile {
    type Future = Checked;
    type Request = Request<Body>;

    fn check(&mut self, mut request: Request<Body>) -> Checked {
        let token = self.header();
        request.headers_mut().insert(AUTHORIZATION, token);
        Box::pin(std::future::ready(Ok(request)))
    }
}

// === impl Rate ===

impl Rate {
    /// `qps` and `burst` as an operator writes them.
    pub(super) fn new(qps: f32, burst: i32) -> Self {
        let qps = if qps == 0.0 { DEFAULT_QPS } else { qps };
        let burst = if burst <= 0 { DEFAULT_BURST } else { burst };
        let per_request = Duration::try_from_secs_f32(1.0 / qps).ok();
        let burst = u32::try_from(burst).unwrap_or(1);
        let bucket = per_request
            .map(|per_request| Arc::new(Mutex::new(Bucket { per_request, burst, full_at: None })));
        Self { bucket }
    }
}

impl AsyncPredicate<Request<Body>> for Rate {
    type Future = Checked;
    type Request = Request<Body>;

    fn check(&mut self, request: Request<Body>) -> Checked {
        let at = self.bucket.as_ref().map(|bucket| {
            bucket.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now())
        });
        Box::pin(async move {
            if let Some(at) = at {
                sleep_until(at).await;
            }
            Ok(request)
        })
    }
}

// === impl Bucket ===

impl Bucket {
    /// Takes a token. When the request may be made.
    fn take(&mut self, now: Instant) -> Instant {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + self.per_request;
        self.full_at = Some(full_at);
        let room = self.per_request.saturating_mul(self.burst);
        full_at.checked_sub(room).map_or(now, |at| at.max(now))
    }
}

fn read_token(path: &std::path::Path) -> io::Result<HeaderValue> {
    let text = std::fs::read_to_string(path)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty"));
    }
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file holds no token"))?;
    value.set_sensitive(true);
    Ok(value)
}
