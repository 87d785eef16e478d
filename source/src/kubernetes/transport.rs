//! The connections to the API server.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::uri::Scheme;
use http::{HeaderValue, Request, Uri};
use hyper::rt::{Read, Write};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Intercept;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout};
use tower::filter::{AsyncFilterLayer, AsyncPredicate};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, service_fn};
use tower_http::decompression::DecompressionLayer;

use super::turns::{Turns, sent};

/// Longest time that a connection may take to be made, with a proxy's tunnel and TLS: client-go's for a TLS
/// handshake (`TLSHandshakeTimeout` in client-go's transport/cache.go).
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// A connection on which nothing comes is asked after this time whether it still is one, and again
/// as often as below, so that a server which vanished without a word is noticed within a minute. A
/// watch is silent for minutes when nothing changes.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_ATTEMPTS: u32 = 3;

/// A connection of HTTP/2 on which nothing comes gets a ping after this time, and is dropped if
/// there is no answer to it. What is behind a balancer can vanish while the balancer answers for
/// the connection. These are client-go's (`readIdleTimeout`, `pingTimeout` in apimachinery's
/// util/net).
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(15);

/// RFC 1928, 3.
pub(super) const SOCKS_PORT: u16 = 1080;

/// client-go's defaults.
const DEFAULT_QPS: f32 = 5.0;
const DEFAULT_BURST: i32 = 10;

type Checked = Pin<Box<dyn Future<Output = Result<Request<Body>, BoxError>> + Send>>;

/// A connection that is being made.
type Made<C> = Pin<Box<dyn Future<Output = Result<C, BoxError>> + Send>>;

/// A file with a bearer token. The kubelet or another program replaces it in time.
#[derive(Debug, Clone)]
pub(super) struct TokenFile {
    path: Arc<PathBuf>,
    /// The last token that was read: it stays in use while the file is not there.
    last: Arc<Mutex<HeaderValue>>,
}

/// Rate of the requests that may be made: a bucket of tokens, which is full at first.
#[derive(Debug, Clone)]
pub(super) struct Rate {
    /// Nothing if there is no limit.
    bucket: Option<Arc<Mutex<Bucket>>>,
}

/// Bucket, as the time at which it will be full again.
#[derive(Debug)]
struct Bucket {
    per_request: Duration,
    burst: u32,
    full_at: Option<Instant>,
}

/// A client that uses the token in a file, if there is one.
///
/// # Errors
/// When the certificates or other credentials cannot be used.
pub(super) fn client(
    mut config: Config,
    proxy: Option<&Intercept>,
    token_file: Option<TokenFile>,
) -> Result<Client, BoxError> {
    // What makes a tunnel takes port 443 otherwise.
    if config.cluster_url.scheme() == Some(&Scheme::HTTP) {
        config.cluster_url = with_port(&config.cluster_url, 80);
    }
    let client = match proxy {
        None => over(&config, tcp())?,
        Some(proxy) => through(&config, proxy)?,
    };
    let turns = Turns::default();
    let service = ServiceBuilder::new()
        .option_layer(token_file.map(AsyncFilterLayer::new))
        .service(service_fn(move |request| turns.clone().send(client.clone(), request)));
    Ok(Client::new(service, config.default_namespace))
}

/// The same client, over the same connections, but keeping to a rate. Watches are free, as with
/// client-go (`Request.Watch` in rest/request.go).
pub(super) fn at_rate(client: Client, rate: Rate) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = ServiceBuilder::new()
        .layer(AsyncFilterLayer::new(rate))
        .service(service_fn(move |request| sent(client.clone(), request)));
    Client::new(service, namespace)
}

/// A connection to a server or proxy, which is asked whether it is alive.
fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_PATIENCE));
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_ATTEMPTS));
    connector
}

/// A client behind a proxy. A proxy with TLS is known by the cluster's certificate authority, as
/// with client-go.
fn through(config: &Config, proxy: &Intercept) -> Result<Client, BoxError> {
    match proxy.uri().scheme_str() {
        Some("socks5" | "socks5h") => {
            let socks = SocksV5::new(with_port(proxy.uri(), SOCKS_PORT), tcp());
            over(
                config,
                match proxy.raw_auth() {
                    Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
                    None => socks,
                },
            )
        }
        Some("https") => {
            // HTTP/2 knows tunnels too, and is more than one needs here.
            let connector = config.rustls_https_connector_with_connector(tcp())?;
            over(config, tunnel(proxy, connector))
        }
        _ => over(config, tunnel(proxy, tcp())),
    }
}

/// The URL with a port, this one if it has none.
fn with_port(url: &Uri, port: u16) -> Uri {
    let mut parts = url.clone().into_parts();
    if url.port().is_none()
        && let Some(host) = url.host()
    {
        parts.authority = format!("{host}:{port}").parse().ok();
    }
    Uri::from_parts(parts).unwrap_or_else(|_| url.clone())
}

fn tunnel<C>(proxy: &Intercept, connector: C) -> Tunnel<C> {
    let tunnel = Tunnel::new(proxy.uri().clone(), connector);
    match proxy.basic_auth() {
        Some(credentials) => tunnel.with_auth(credentials.clone()),
        None => tunnel,
    }
}

/// kube's own stack over connections of ours. What differs: HTTP/2, with one connection for
/// everything, which is asked whether it is alive; and a failed request is an error for who made it
/// and not a line in the log.
fn over<C>(config: &Config, connector: C) -> Result<Client, BoxError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin,
    C::Future: Send,
    C::Error: Into<BoxError>,
{
    let http = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        // Watches are renewed after minutes: the pool would take the connection for idle meanwhile,
        // and make another one. Pings tell a dead one.
        .pool_idle_timeout(None)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_PATIENCE)
        .http2_keep_alive_while_idle(true)
        .build(within(CONNECT_PATIENCE, tls(config, connector)?));
    let service = ServiceBuilder::new()
        .layer(DecompressionLayer::new())
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// The same connections, which fail if they are not ready for requests in time: what accepts them may be a
/// balancer that says nothing, or a proxy that swallows CONNECT.
fn within<C>(
    patience: Duration,
    connector: C,
) -> impl Service<Uri, Response = C::Response, Error = BoxError, Future = Made<C::Response>>
+ Clone
+ Send
+ Sync
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Future: Send,
    C::Error: Into<BoxError>,
{
    service_fn(move |uri: Uri| {
        let made = connector.clone().oneshot(uri);
        let made = async move {
            let Ok(made) = timeout(patience, made).await else {
                let text = format!(
                    "the connection was not ready for requests within {patience:?}, including a \
                     proxy's tunnel and TLS"
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text).into());
            };
            made.map_err(Into::into)
        };
        Box::pin(made) as Made<_>
    })
}

/// TLS with the cluster's certificates, and with it the choice between HTTP/2 and HTTP/1.
fn tls<C>(config: &Config, connector: C) -> Result<HttpsConnector<C>, BoxError> {
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let resolver = FixedServerNameResolver::new(name.clone().try_into()?);
        builder = builder.with_server_name_resolver(resolver);
    }
    Ok(builder.enable_all_versions().wrap_connector(connector))
}

impl TokenFile {
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let last = Arc::new(Mutex::new(read_token(&path)?));
        Ok(Self { path: Arc::new(path), last })
    }

    fn header(&self) -> HeaderValue {
        let mut last = self.last.lock();
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
        let bucket = self.bucket.as_ref().filter(|_| !is_watch(&request));
        let at = bucket.map(|bucket| bucket.lock().take(Instant::now()));
        Box::pin(async move {
            if let Some(at) = at {
                sleep_until(at).await;
            }
            Ok(request)
        })
    }
}

impl Bucket {
    /// Takes a token. When the request may be made.
    fn take(&mut self, now: Instant) -> Instant {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + self.per_request;
        self.full_at = Some(full_at);
        let room = self.per_request.saturating_mul(self.burst);
        full_at.checked_sub(room).map_or(now, |at| at.max(now))
    }
}

fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|parameter| parameter == "watch=true")
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
