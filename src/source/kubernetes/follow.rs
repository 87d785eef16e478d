//! Following all objects of a kind: list, watch, and what to do when that fails.
//!
//! ```text
//!              ┌────────── 410, or the version is refused ───────────┐
//!              ▼                                                     │
//!   list as a stream ──────────────────────────────▶ watch ──────────┤
//!        │ refused (400, 422), or its end never comes   ▲ │          │
//!        ▼                                              │ └──────────┘
//!   list in pages ── all of them ───────────────────────┘   end, break, garbage:
//!        │ 410 for a page                               ▲   from the last version seen
//!        ▼                                              │
//!   list in one piece ──────────────────────────────────┘
//! ```
//!
//! This is what kube's `watcher` does, but for what it does not (kube-runtime 5.0.0):
//! - it skips an event that it cannot read and goes on, so that the change is lost until the next
//!   list; here the watch begins again after the last good event;
//! - a server that ignores `sendInitialEvents` never ends its list; here silence ends the attempt;
//! - a 410 that is the answer to a watch, and not an event in it, is repeated for ever;
//! - where every page's token has expired before it is used, lists never end;
//! - it wants each object's whole metadata, with `managedFields`; and one object that does not
//!   decode takes its page with it, of which the whole text is logged.

use std::time::Duration;

use kube::Client;
use kube::api::{ListParams, Request, WatchParams};
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info};

use super::body::{Body, Fault};
use super::decode::{Line, Page, Status};
use super::failure::{Failure, chain};
use super::inventory::Step;
use super::kind::Kind;
use super::pause::{Pause, random};

/// Objects in a page. A page of the largest slices is about 100 MB, a usual one 5 MB.
const PAGE: u32 = 500;

/// How long an answer may take to begin. The API server itself gives a list a minute.
const HEAD_PATIENCE: Duration = Duration::from_secs(70);

/// How long a list may be silent while it is being sent.
const LIST_PATIENCE: Duration = Duration::from_secs(30);

/// How long a list that is sent as a stream may be silent before its end. The server waits up to
/// three seconds for its cache; one that never sends the end is one that does not know how.
const STREAM_PATIENCE: Duration = Duration::from_secs(15);

/// The server ends a watch after this many seconds, plus up to a quarter of it, so that the watches
/// of a thousand nodes do not end all at once.
const WATCH_SECONDS: u32 = 240;

/// How long after its end a watch that has not ended is taken for dead.
const WATCH_GRACE: Duration = Duration::from_secs(10);

/// A watch that has lasted this long works, even if nothing has changed.
const PROOF: Duration = Duration::from_secs(3);

/// After this many failures in a row, a list is no longer tried as a stream.
const STREAM_ATTEMPTS: u32 = 3;

/// After this many failures in a row that are not the network's, a watch is not continued: the
/// objects are listed again.
const WATCH_ATTEMPTS: u32 = 3;

/// How long it takes at most until what is forbidden, and can be done without, is tried again.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(300);

/// What a follower says.
#[derive(Debug)]
pub(super) enum Report {
    /// Something was seen.
    Step(Step),
    /// An attempt failed, and there will be another one.
    Failed {
        /// Why, in words.
        cause: String,
        /// Whether the answer was that we may not.
        refused: bool,
    },
    /// The watch has sent something after its list, or has lasted.
    Works,
}

/// Follows all objects of a kind.
pub(super) struct Follower {
    client: Client,
    kind: Kind,
    node_name: String,
    reports: Sender<(Kind, Report)>,
    lists: Lists,
    pause: Pause,
    /// From where to watch; nothing if a list is needed first.
    version: Option<String>,
    /// Whether this attempt's watch has been of use.
    works: bool,
    /// Whether the last attempt failed because the server had forgotten our version.
    has_expired: bool,
}

/// How lists are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lists {
    /// As the beginning of a watch: the server need not build the whole answer in memory.
    Streamed,
    /// Page by page.
    Paged,
    /// In one piece, this time.
    Whole,
}

// === impl Follower ===

impl Follower {
    pub(super) fn new(
        client: Client,
        kind: Kind,
        node_name: String,
        reports: Sender<(Kind, Report)>,
    ) -> Self {
        Self {
            client,
            kind,
            node_name,
            reports,
            lists: Lists::Streamed,
            pause: Pause::default(),
            version: None,
            works: false,
            has_expired: false,
        }
    }

    /// Follows until nobody wants to know any more.
    pub(super) async fn run(mut self) {
        loop {
            self.works = false;
            let Err(failure) = self.attempt().await else { continue };
            let kind = self.kind.name();
            match &failure {
                Failure::Unwanted => return,
                Failure::NoStreams(_) => {
                    info!(kind, "{}; lists it in pages from now on", failure.cause());
                    self.lists = Lists::Paged;
                    continue;
                }
                Failure::Expired => {
                    info!(kind, "{}; lists all again", failure.cause());
                    self.version = None;
                    // The server is back, after an outage that made the pauses long. One that
                    // forgets everything at once gets no list sooner for it.
                    if !self.has_expired {
                        self.pause.reset();
                    }
                }
                Failure::Refused(Status { code: 400 | 404 | 422, .. }) => self.version = None,
                Failure::Garbage(_) if self.pause.failures() >= WATCH_ATTEMPTS => {
                    self.version = None;
                }
                Failure::Refused(_) | Failure::Unreachable(_) | Failure::Garbage(_) => {}
            }
            self.has_expired = matches!(failure, Failure::Expired);
            if self.failed(&failure).await.is_err() {
                return;
            }
            let pause = match self.pause.next() {
                // Everything else goes on without.
                _ if self.kind == Kind::OtherNode && failure.is_forbidden() => forbidden_pause(),
                pause => pause,
            };
            debug!(kind, ?pause, "{}", failure.cause());
            sleep(pause).await;
        }
    }

    /// That a watch which worked has broken is no news before it cannot be had again. Everything
    /// else is.
    async fn failed(&mut self, failure: &Failure) -> Result<(), Failure> {
        // Who may not list, or is not known, may not list in pages either.
        let is_the_streams = match failure {
            Failure::Garbage(_) => true,
            Failure::Refused(status) => status.code >= 500,
            _ => false,
        };
        if self.lists == Lists::Streamed
            && self.version.is_none()
            && self.pause.failures() >= STREAM_ATTEMPTS
            && is_the_streams
        {
            info!(kind = self.kind.name(), "{}; lists in pages from now on", failure.cause());
            self.lists = Lists::Paged;
        }
        let was_fine = self.works && self.pause.failures() == 0;
        match failure {
            Failure::Expired => Ok(()),
            Failure::Unreachable(_) if was_fine => Ok(()),
            failure => {
                let (cause, refused) = (failure.cause(), failure.is_forbidden());
                self.report(Report::Failed { cause, refused }).await
            }
        }
    }

    /// One attempt: a list with the watch that follows it, or a watch.
    async fn attempt(&mut self) -> Result<(), Failure> {
        if self.version.is_none() && self.lists != Lists::Streamed {
            self.list().await?;
        }
        self.watch().await
    }

    /// Fetches the list page by page, or in one piece.
    async fn list(&mut self) -> Result<(), Failure> {
        self.step(Step::ListBegins).await?;
        let limit = (self.lists != Lists::Whole).then_some(PAGE);
        let mut next = None;
        loop {
            let parameters = ListParams {
                label_selector: self.kind.labels().map(str::to_owned),
                field_selector: self.kind.fields(&self.node_name),
                limit,
                continue_token: next.take(),
                ..ListParams::default()
            };
            let is_first = parameters.continue_token.is_none();
            let page = match self.page(&parameters).await {
                Err(Failure::Expired) if !is_first => {
                    // The server forgets sooner than we read. What came stays; the list begins
                    // again.
                    info!(
                        kind = self.kind.name(),
                        "a page's token has expired; lists in one piece"
                    );
                    self.lists = Lists::Whole;
                    return Err(Failure::Expired);
                }
                page => page?,
            };
            for item in page.items {
                self.step(Step::Listed(item)).await?;
            }
            next = page.next;
            if next.is_none() {
                let version = page.resource_version;
                let missing = || Failure::Garbage("a list without its resourceVersion".to_owned());
                self.version = Some(version.ok_or_else(missing)?);
                break;
            }
        }
        self.lists = Lists::Paged;
        self.step(Step::ListEnds).await
    }

    async fn page(&self, parameters: &ListParams) -> Result<Page, Failure> {
        let request = Request::new(self.kind.path()).list(parameters);
        let body = self.request(request).await?.all(LIST_PATIENCE).await?;
        let kind = self.kind;
        // A page takes a tenth of a second, and everything else runs on this thread.
        let decoded = tokio::task::spawn_blocking(move || Page::decode(kind, &body)).await;
        let page = decoded.map_err(|error| Failure::Garbage(error.to_string()))?;
        page.map_err(|error| Failure::Garbage(format!("not a list: {error}")))
    }

    /// Watches from the last version that was seen. If there is none, the watch begins with a list.
    async fn watch(&mut self) -> Result<(), Failure> {
        let seconds = WATCH_SECONDS + seconds_up_to(WATCH_SECONDS / 4);
        let lasts = Duration::from_secs(u64::from(seconds)) + WATCH_GRACE;
        let mut is_listing = self.version.is_none();
        let parameters = WatchParams {
            label_selector: self.kind.labels().map(str::to_owned),
            field_selector: self.kind.fields(&self.node_name),
            timeout: Some(seconds),
            bookmarks: true,
            send_initial_events: is_listing,
        };
        let version = self.version.as_deref().unwrap_or_default();
        let request = Request::new(self.kind.path()).watch(&parameters, version);
        let mut body = match self.request(request).await {
            Err(Failure::Refused(status)) if is_listing => return Err(refused_stream(status)),
            body => body?,
        };
        if is_listing {
            self.step(Step::ListBegins).await?;
        }
        let begun = Instant::now();
        loop {
            let patience = match (is_listing, self.works) {
                (true, _) => STREAM_PATIENCE,
                (false, false) => PROOF,
                (false, true) => lasts,
            };
            let line = match body.line(patience).await {
                Err(Fault::Silent(_)) if is_listing => {
                    let problem = format!("its end does not come within {STREAM_PATIENCE:?}");
                    return Err(Failure::NoStreams(problem));
                }
                Err(Fault::Silent(_)) if !self.works => {
                    self.works().await?;
                    continue;
                }
                line => line?,
            };
            match line {
                Some(line) => is_listing = self.line(&line, is_listing).await?,
                None if is_listing || begun.elapsed() < PROOF => {
                    return Err(Failure::Unreachable("the answer ended too soon".to_owned()));
                }
                None => return Ok(()),
            }
        }
    }

    /// A line of a watch. Whether it is still part of the list.
    async fn line(&mut self, line: &[u8], is_listing: bool) -> Result<bool, Failure> {
        let decoded = Line::decode(self.kind, line);
        match decoded.map_err(|error| Failure::Garbage(format!("not an event: {error}")))? {
            Line::Applied(item) if is_listing => {
                self.step(Step::Listed(item)).await?;
                return Ok(true);
            }
            // The server promises not to send this before the list is complete.
            Line::Deleted(item) if is_listing => {
                self.step(Step::Deleted(item)).await?;
                return Ok(true);
            }
            Line::Applied(item) => {
                let version = version_of(item.resource_version())?;
                self.step(Step::Applied(item)).await?;
                self.version = Some(version);
            }
            Line::Deleted(item) => {
                let version = version_of(item.resource_version())?;
                self.step(Step::Deleted(item)).await?;
                self.version = Some(version);
            }
            Line::Bookmark { list_ends: false, .. } if is_listing => return Ok(true),
            Line::Bookmark { resource_version, .. } if is_listing => {
                self.step(Step::ListEnds).await?;
                self.version = Some(resource_version);
                return Ok(false);
            }
            Line::Bookmark { resource_version, .. } => self.version = Some(resource_version),
            Line::Error(status) if status.is_expired() => return Err(Failure::Expired),
            Line::Error(status) if is_listing => return Err(refused_stream(status)),
            Line::Error(status) => return Err(Failure::Refused(status)),
        }
        self.works().await?;
        Ok(false)
    }

    async fn request(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Body, Failure> {
        // Nothing in a request comes from outside but the node's name, which is escaped.
        let request = request.map_err(|error| Failure::Garbage(chain(&error)))?;
        match timeout(HEAD_PATIENCE, self.client.request_stream(request)).await {
            Ok(body) => Ok(Body::new(body?)),
            Err(_) => Err(Failure::Unreachable(format!("no answer within {HEAD_PATIENCE:?}"))),
        }
    }

    async fn works(&mut self) -> Result<(), Failure> {
        self.pause.reset();
        if std::mem::replace(&mut self.works, true) {
            return Ok(());
        }
        self.report(Report::Works).await
    }

    async fn step(&self, step: Step) -> Result<(), Failure> {
        self.report(Report::Step(step)).await
    }

    async fn report(&self, report: Report) -> Result<(), Failure> {
        self.reports.send((self.kind, report)).await.map_err(|_| Failure::Unwanted)
    }
}

/// What a list's refusal means that was asked for as a stream. Servers without streams say that
/// one of the parameters is invalid.
fn refused_stream(status: Status) -> Failure {
    match status.code {
        400 | 405 | 406 | 415 | 422 | 501 => {
            Failure::NoStreams(format!("{} {}", status.code, status.message))
        }
        _ => Failure::Refused(status),
    }
}

fn version_of(version: Option<&str>) -> Result<String, Failure> {
    let missing = || Failure::Garbage("an event without metadata.resourceVersion".to_owned());
    version.map(str::to_owned).ok_or_else(missing)
}

fn forbidden_pause() -> Duration {
    FORBIDDEN_PAUSE / 2 + (FORBIDDEN_PAUSE / 2).mul_f64(random())
}

fn seconds_up_to(most: u32) -> u32 {
    let thousandths = Duration::from_secs(u64::from(most)).mul_f64(random()).as_secs();
    u32::try_from(thousandths).unwrap_or(most)
}
