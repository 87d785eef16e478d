//! A client whose credentials are replaced while the program runs.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::service_fn;
use tracing::{info, warn};

use super::client::{ClientOptions, ClientProblem, CredentialsOrigin, Made, make};
use super::error_text::chain;
use super::measured::ClientMetrics;
use super::turns::sent;

/// Longest time for which the program does not notice that files were replaced. client-go looks
/// every five minutes (`CertCallbackRefreshDuration` in transport/cert_rotation.go).
const PERIOD: Duration = Duration::from_secs(60);

/// Time between two attempts to have it replaced.
const PAUSE: Duration = Duration::from_secs(10);

/// The client in use.
struct Current {
    client: Client,
    origin: CredentialsOrigin,
    /// Time of the last look at the files.
    checked: Instant,
    /// Time at which the program was asked last.
    asked: Option<Instant>,
    /// True if the server did not accept the credentials since the last look.
    is_refused: bool,
    /// Task that makes the next client, or has made it. It goes on when those give up that wait for it.
    renewal: JoinSet<Result<Made, ClientProblem>>,
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

/// A client that counts its requests, and is made anew when the files of its certificate have changed, before
/// what a program had printed expires, and when the server no longer accepts it.
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
            // To a server that knows a certificate no more, its owner is anonymous, who may do nothing.
            if matches!(counted.status, Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)) {
                renewing.current.lock().await.is_refused = true;
            }
            answer
        }
    });
    Client::new(service, namespace)
}

impl Drop for MeasuredRequest {
    fn drop(&mut self) {
        self.metrics.requested(&self.method, self.status, self.begun.elapsed());
    }
}

impl Renewing {
    /// Returns the client in use, which is made anew before if it has to be. May be dropped at any time: a
    /// renewal that was begun is the next request's.
    async fn client(&self) -> Client {
        let mut current = self.current.lock().await;
        if current.renewal.is_empty() && current.is_outdated() {
            let options = self.options.clone();
            current.renewal.spawn(async move { make(&options).await });
        }
        match current.renewal.join_next().await {
            None => {}
            Some(Ok(Ok(made))) => {
                info!("credentials for the API server reloaded");
                current.replace(made);
            }
            // Half of them may be written. They are looked at again in a minute.
            Some(Ok(Err(error))) => warn_of(&error),
            Some(Err(error)) => warn_of(&error),
        }
        current.client.clone()
    }
}

impl Current {
    fn new(Made { client, origin, .. }: Made) -> Self {
        let (checked, asked, is_refused) = (Instant::now(), None, false);
        Self { client, origin, checked, asked, is_refused, renewal: JoinSet::new() }
    }

    /// Takes a new client into use.
    fn replace(&mut self, Made { client, origin, .. }: Made) {
        (self.client, self.origin) = (client, origin);
        (self.checked, self.is_refused) = (Instant::now(), false);
    }

    /// True if the client should be made anew. Files are looked at once in [`PERIOD`], and when the server
    /// refused what was in them. A program is asked before what it printed expires, and when that was
    /// refused: that once in [`PERIOD`], since it may be refused for good.
    fn is_outdated(&mut self) -> bool {
        let (now, was_refused) = (Instant::now(), self.is_refused);
        let is_expiring = self.origin.is_expiring(Timestamp::now());
        let (is_wanted, pause) =
            (was_refused || is_expiring, if is_expiring { PAUSE } else { PERIOD });
        let may_ask = self.asked.is_none_or(|asked| now.duration_since(asked) >= pause);
        if self.origin.is_printed() && is_wanted && may_ask {
            (self.asked, self.is_refused) = (Some(now), false);
            return true;
        }
        if !was_refused && now.duration_since(self.checked) < PERIOD {
            return false;
        }
        self.checked = now;
        // What a program printed is refused until it may be asked.
        self.is_refused = was_refused && self.origin.is_printed();
        self.origin.has_changed()
    }
}

fn warn_of(error: &(dyn Error + 'static)) {
    warn!(
        "cannot reload the credentials for the API server: {}; the former ones stay in use, and \
         kube-ipvs retries",
        chain(error)
    );
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use jiff::SignedDuration;

    use super::*;

    fn current(expires: Option<SignedDuration>) -> Current {
        let expires = expires.map(|left| Timestamp::now() + left);
        let origin = CredentialsOrigin::new(std::iter::empty(), Some(expires));
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::try_from(config).unwrap();
        let (checked, asked, is_refused) = (Instant::now(), None, false);
        Current { client, origin, checked, asked, is_refused, renewal: JoinSet::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_is_asked_before_what_it_printed_expires() {
        let mut lasting = current(Some(SignedDuration::from_mins(10)));
        assert!(!lasting.is_outdated());
        assert!(!current(None).is_outdated());
        let mut ending = current(Some(SignedDuration::from_secs(20)));
        assert!(ending.is_outdated(), "it has most of a minute left");
        assert!(!ending.is_outdated(), "it has just been asked");
        tokio::time::advance(PAUSE).await;
        assert!(ending.is_outdated());
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_is_asked_when_what_it_printed_is_refused_and_again_a_minute_later() {
        let mut current = current(None);
        current.is_refused = true;
        assert!(current.is_outdated());
        current.is_refused = true;
        for _ in 0..3 {
            assert!(!current.is_outdated());
        }
        tokio::time::advance(PERIOD).await;
        assert!(current.is_outdated(), "the refusal was not forgotten");
        assert!(!current.is_outdated());
    }

    /// A plugin that takes a second from its second run on, with a file for each run.
    fn slow_plugin(folder: &tempfile::TempDir) -> ClientOptions {
        let at = folder.path().display();
        let script = format!(
            "[ ! -e {at}/run.* ] || sleep 1; mktemp -q {at}/run.XXXXXX >{at}/last; \
             echo \"{{status: {{token: t}}}}\""
        );
        let exec = serde_json::json!({"command": "sh", "args": ["-c", script]});
        let kubeconfig = serde_json::json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"exec": exec}}],
        });
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        ClientOptions {
            kubeconfig: Some(path),
            master: None,
            qps: 0.0,
            burst: 0,
            user_agent: "kube-ipvs/test".to_owned(),
            only_json: false,
        }
    }

    fn n_runs(folder: &tempfile::TempDir) -> usize {
        let names = std::fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("run.")).count()
    }

    #[tokio::test]
    async fn a_renewal_goes_on_when_those_give_up_that_wait_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let options = slow_plugin(&folder);
        let current = Mutex::new(Current::new(make(&options).await.unwrap()));
        let renewing = Renewing { options, current };
        assert_eq!(n_runs(&folder), 1);
        renewing.current.lock().await.is_refused = true;
        let mut given_up = 0;
        while timeout(Duration::from_millis(50), renewing.client()).await.is_err() {
            given_up += 1;
            assert!(given_up < 600, "it never ends");
        }
        assert!(given_up > 0);
        assert_eq!(n_runs(&folder), 2);
        let current = renewing.current.lock().await;
        assert!(current.renewal.is_empty() && !current.is_refused);
    }

    #[tokio::test]
    async fn a_renewal_that_ended_while_nobody_waited_is_taken_into_use() {
        let folder = tempfile::tempdir().unwrap();
        let options = slow_plugin(&folder);
        let current = Mutex::new(Current::new(make(&options).await.unwrap()));
        let renewing = Renewing { options, current };
        renewing.current.lock().await.is_refused = true;
        assert!(timeout(Duration::from_millis(50), renewing.client()).await.is_err());
        while n_runs(&folder) < 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        renewing.client().await;
        assert_eq!(n_runs(&folder), 2);
        assert!(!renewing.current.lock().await.is_refused);
    }
}
