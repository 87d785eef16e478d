//! A client whose credentials are replaced while the program runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tower::service_fn;
use tracing::{info, warn};

use super::client::{ClientOptions, Made, make};
use super::failure::chain;
use super::measured::ClientMetrics;
use super::transport::sent;

/// Longest time for which the program does not notice that files were replaced. client-go looks
/// every five minutes (`CertCallbackRefreshDuration` in transport/cert_rotation.go).
const PERIOD: Duration = Duration::from_secs(60);

/// Origin of a client's credentials, beside a token in a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct CredentialsOrigin {
    /// Files of the certificate authority, and of the client's certificate and key, with what they
    /// held just before the client was made. None: the file could not be read.
    files: Vec<(PathBuf, Option<Vec<u8>>)>,
    /// True if a program prints the credentials.
    is_program: bool,
}

/// The client in use.
struct Current {
    client: Client,
    origin: CredentialsOrigin,
    checked: Instant,
    /// True if the server did not accept the credentials since the client was made.
    is_refused: bool,
}

/// A client that is made anew when its credentials were replaced.
struct Renewing {
    options: ClientOptions,
    current: Mutex<Current>,
}

/// A request that is counted when it ends, also by being given up.
struct MeasuredRequest {
    metrics: ClientMetrics,
    method: Method,
    begun: Instant,
    status: Option<StatusCode>,
}

/// A client that counts its requests, and is made anew when the files of its certificate have
/// changed, or when the server no longer accepts what a program had printed.
pub(super) fn client(options: &ClientOptions, made: Made, metrics: ClientMetrics) -> Client {
    let namespace = made.client.default_namespace().to_owned();
    let renewing =
        Arc::new(Renewing { options: options.clone(), current: Mutex::new(Current::new(made)) });
    let service = service_fn(move |request: Request<Body>| {
        let (renewing, metrics) = (Arc::clone(&renewing), metrics.clone());
        async move {
            let client = renewing.client().await;
            let method = request.method().clone();
            let mut counted =
                MeasuredRequest { metrics, method, begun: Instant::now(), status: None };
            let answer = sent(client, request).await;
            counted.status = answer.as_ref().ok().map(Response::status);
            if counted.status == Some(StatusCode::UNAUTHORIZED) {
                renewing.current.lock().await.is_refused = true;
            }
            answer
        }
    });
    Client::new(service, namespace)
}

// === impl CredentialsOrigin ===

impl CredentialsOrigin {
    /// Reads the files. To be called before a client is made of them: what is replaced in between
    /// is then seen as a change.
    pub(super) fn new(files: impl Iterator<Item = PathBuf>, is_program: bool) -> Self {
        let read = |file: PathBuf| {
            let content = std::fs::read(&file).ok();
            (file, content)
        };
        Self { files: files.map(read).collect(), is_program }
    }

    fn has_changed(&self) -> bool {
        self.files.iter().any(|(file, content)| std::fs::read(file).ok() != *content)
    }
}

// === impl MeasuredRequest ===

impl Drop for MeasuredRequest {
    fn drop(&mut self) {
        self.metrics.requested(&self.method, self.status, self.begun.elapsed());
    }
}

// === impl Renewing ===

impl Renewing {
    async fn client(&self) -> Client {
        let mut current = self.current.lock().await;
        if current.is_outdated() {
            match self.make().await {
                Ok(made) => {
                    info!("credentials for the API server reloaded");
                    *current = Current::new(made);
                }
                // Half of them may be written. They are looked at again in a minute.
                Err(error) => {
                    warn!(
                        "cannot reload the credentials for the API server: {error}; the former stay in \
                         use, and it is retried"
                    );
                }
            }
        }
        current.client.clone()
    }

    /// Makes a client in a thread of the pool, since it may wait for a program that prints
    /// credentials.
    async fn make(&self) -> Result<Made, String> {
        let (options, runtime) = (self.options.clone(), Handle::current());
        let made = tokio::task::spawn_blocking(move || runtime.block_on(make(&options)));
        let made = made.await.map_err(|error| error.to_string())?;
        made.map_err(|problem| chain(&problem))
    }
}

// === impl Current ===

impl Current {
    fn new(Made { client, origin, .. }: Made) -> Self {
        Self { client, origin, checked: Instant::now(), is_refused: false }
    }

    /// True if the client should be made anew. Files are looked at once in [`PERIOD`], and whenever
    /// the server refused what was in them.
    fn is_outdated(&mut self) -> bool {
        let was_refused = std::mem::take(&mut self.is_refused);
        if !was_refused && self.checked.elapsed() < PERIOD {
            return false;
        }
        self.checked = Instant::now();
        let is_refused_program = was_refused && self.origin.is_program;
        is_refused_program || self.origin.has_changed()
    }
}
