//! Following all objects of a kind: list, watch, and what to do when that fails.
//!
//! ```text
//!              ┌──── 410, the version is refused, or silence ────────┐
//!              ▼                                                     │
//!   list as a stream ──────────────────────────────▶ watch ──────────┤
//!        │ refused (400, 422), or its end never comes   ▲ │          │
//!        ▼                                              │ └──────────┘
//!   list of the server's cache ─────────────────────────┤   end, break, garbage:
//!        │ the cache lacks our version                  │   from the last version seen
//!        ▼                                              │
//!   list in pages ── all of them ───────────────────────┤
//!        │ 410 for a page                               │
//!        ▼                                              │
//!   list in one piece ──────────────────────────────────┘
//! ```
//!
//! The lists are client-go's (`Reflector.list` in tools/cache/reflector.go): a list of the cache is
//! one of version 0, or not older than what was seen, and costs etcd nothing.
//!
//! This is what kube's `watcher` does, but for what it does not (kube-runtime 5.0.0):
//! - it skips an event that it cannot read and goes on, so that the change is lost until the next
//!   list; here the watch begins again after the last good event;
//! - a server that ignores `sendInitialEvents` never ends its list; here silence ends the attempt;
//! - a 410 that is the answer to a watch, and not an event in it, is repeated for ever;
//! - where every page's token has expired before it is used, lists never end;
//! - it wants each object's whole metadata, with `managedFields`; and one object that does not
//!   decode takes its page with it, of which the whole text is logged.

mod fields;
mod list;

use std::time::Duration;

use http::HeaderValue;
use http::header::ACCEPT_ENCODING;
use kube::api::{Request, WatchParams};
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};

use super::answer::Objects;
use super::backoff::Backoff;
use super::body::BodyError;
use super::decode::{Encoding, Event, Status};
use super::error_text::{chain, in_short};
use super::failure::Failure;
use super::inventory::WatchStep;
use super::kind::ResourceKind;
use super::measured::{ClientMetrics, ListReason};
use fields::Fields;
use list::Lists;
pub(super) use list::{not_a_list, without_version};

/// Longest silence before the end of a list that is sent as a stream. The server waits up to three
/// seconds for its cache; one that never sends the end is one that does not know how.
const STREAM_PATIENCE: Duration = Duration::from_secs(15);

/// The server ends a watch after this time, plus up to a quarter of it, so that the watches of a
/// thousand nodes do not end all at once.
const WATCH_TIME: Duration = Duration::from_secs(240);

/// After this many silent watches in a row, objects are listed again: a server whose etcd was
/// restored sends nothing before it has reached our version once more (`process` in
/// storage/cacher/cache_watcher.go).
const SILENT_WATCHES: u32 = 2;

/// Longest silence of a watch: two bookmarks and some more. HTTP/2's pings are of the connection,
/// and what answers them may be a balancer. The API server sends a bookmark a minute, plus up to a
/// quarter (`nextBookmarkTime` in storage/cacher/cache_watcher.go).
const SILENCE: Duration = Duration::from_secs(160);

/// Time after which a watch that the server should have ended is given up.
const LATENESS: Duration = Duration::from_secs(15);

/// A watch that has lasted this long works, even if nothing has changed.
const PROOF: Duration = Duration::from_secs(3);

/// After this many failures in a row, a list is not tried as a stream for an hour.
const STREAM_ATTEMPTS: u32 = 3;

/// After this many failures in a row that are not the network's, a watch is not continued: the
/// objects are listed again.
const WATCH_ATTEMPTS: u32 = 3;

/// Message of a follower.
#[derive(Debug)]
pub(super) enum FollowReport {
    /// Something was seen.
    Step(WatchStep),
    /// An attempt failed, and there will be another one.
    Failed {
        /// Reason, in words.
        cause: String,
        /// True if the API server does not know us, or does not allow it.
        refused: bool,
    },
    /// The watch has sent something after its list, or has lasted.
    Works,
}

/// Follows all objects of a kind.
pub(super) struct Follower {
    objects: Objects,
    kind: ResourceKind,
    node_name: String,
    reports: Sender<(ResourceKind, FollowReport)>,
    metrics: ClientMetrics,
    lists: Lists,
    fields: Fields,
    /// Reason of the next list.
    list_reason: ListReason,
    /// Time at which to ask for streams again, once they could not be had.
    streams_at: Option<Instant>,
    backoff: Backoff,
    /// The last version that was seen.
    seen: Option<String>,
    /// True if it can be watched from. Otherwise a list is needed first.
    continues: bool,
    /// True if this attempt's watch has been of use.
    works: bool,
    /// Number of attempts in a row that failed because the server had forgotten our version, each
    /// before its watch was of use.
    n_expired: u32,
    /// True if the server sends bookmarks.
    has_bookmarks: bool,
    /// Number of watches in a row in which nothing came.
    n_silent: u32,
    /// Number of objects of the list that is being read.
    n_listed: usize,
}

impl Follower {
    pub(super) fn new(
        objects: Objects,
        kind: ResourceKind,
        node_name: String,
        backoff: Backoff,
        reports: Sender<(ResourceKind, FollowReport)>,
        metrics: ClientMetrics,
    ) -> Self {
        metrics.begin(kind);
        Self {
            objects,
            kind,
            node_name,
            reports,
            metrics,
            lists: Lists::Streamed,
            fields: Fields::default(),
            list_reason: ListReason::Start,
            streams_at: None,
            backoff,
            seen: None,
            continues: false,
            works: false,
            n_expired: 0,
            has_bookmarks: false,
            n_silent: 0,
            n_listed: 0,
        }
    }

    /// Follows until the receiver of the reports is gone.
    pub(super) async fn run(mut self) {
        loop {
            self.works = false;
            let Err(failure) = self.attempt().await else {
                self.n_expired = 0;
                continue;
            };
            self.n_expired = match (&failure, self.works) {
                (Failure::Expired, false) => self.n_expired + 1,
                (Failure::Expired, true) => 1,
                _ => 0,
            };
            let kind = self.kind.name();
            match &failure {
                Failure::Unwanted => return,
                Failure::NoFields(_) => {
                    self.avoid_fields(&failure);
                    continue;
                }
                Failure::NoStreams(_) => {
                    self.avoid_streams(&failure);
                    continue;
                }
                Failure::Expired => {
                    info!(
                        kind,
                        "list or watch expired: {}; kube-ipvs lists all objects again",
                        failure.cause()
                    );
                    self.list_again(ListReason::Expired);
                    // The server is back, after an outage that made the pauses long. One that
                    // forgets everything at once gets no list sooner for it.
                    if self.n_expired == 1 {
                        self.backoff.reset();
                    }
                }
                Failure::Refused(Status { code: 400 | 404 | 422, .. }) => {
                    self.list_again(ListReason::Refused);
                }
                // A server that is behind will get there, one whose etcd was restored will not
                // soon.
                Failure::Refused(status)
                    if status.is_too_large_version()
                        && self.backoff.failures() >= WATCH_ATTEMPTS =>
                {
                    self.list_again(ListReason::Refused);
                }
                Failure::Garbage(cause) if self.backoff.failures() >= WATCH_ATTEMPTS => {
                    // A proxy may alter or relabel what is binary.
                    self.objects.ask_for_json(&in_short(cause));
                    self.list_again(ListReason::Garbage);
                }
                Failure::Refused(_)
                | Failure::Unreachable(_)
                | Failure::Garbage(_)
                | Failure::BrokenList(_) => {}
            }
            if self.rest(&failure).await.is_err() {
                return;
            }
        }
    }

    /// Reports a failure, and waits until the next attempt.
    async fn rest(&mut self, failure: &Failure) -> Result<(), Failure> {
        self.failed(failure).await?;
        let next = self.backoff.next(failure, Instant::now());
        debug!(
            kind = self.kind.name(),
            pause = ?next - Instant::now(),
            "list or watch failed, next attempt after the pause: {}",
            failure.cause()
        );
        sleep_until(next).await;
        Ok(())
    }

    /// Lists anew, for this reason if there has been a list before.
    fn list_again(&mut self, reason: ListReason) {
        if std::mem::take(&mut self.continues) {
            self.list_reason = reason;
        }
    }

    /// Reports a failure, if it is news. The break of a watch that worked is none before the watch
    /// cannot be had again, nor is the first of several [`Failure::Expired`]. Everything else is.
    async fn failed(&mut self, failure: &Failure) -> Result<(), Failure> {
        // Who may not list, or is not known, may not list in pages either.
        let is_the_streams = match failure {
            Failure::Garbage(_) | Failure::BrokenList(_) => true,
            Failure::Refused(status) => status.code >= 500,
            _ => false,
        };
        if self.lists == Lists::Streamed
            && !self.continues
            && self.backoff.failures() >= STREAM_ATTEMPTS
            && is_the_streams
        {
            self.avoid_streams(failure);
        }
        let was_fine = self.works && self.backoff.failures() == 0;
        match failure {
            Failure::Expired if self.n_expired < 2 => Ok(()),
            Failure::Unreachable(_) if was_fine => Ok(()),
            failure => {
                let (cause, refused) = (failure.cause(), failure.is_forbidden());
                self.metrics.following(self.kind, false);
                self.report(FollowReport::Failed { cause, refused }).await
            }
        }
    }

    /// One attempt: a list with the watch that follows it, or a watch.
    async fn attempt(&mut self) -> Result<(), Failure> {
        self.allow_fields();
        if !self.continues {
            self.allow_streams();
            self.objects.allow_protobuf();
            if self.lists != Lists::Streamed {
                self.list().await?;
            }
        }
        self.watch().await
    }

    /// Watches from the last version that was seen. If there is none, the watch begins with a list.
    async fn watch(&mut self) -> Result<(), Failure> {
        let lasts = WATCH_TIME + (WATCH_TIME / 4).mul_f64(fastrand::f64());
        let seconds = u32::try_from(lasts.as_secs()).unwrap_or(u32::MAX);
        let mut is_listing = !self.continues;
        let parameters = WatchParams {
            label_selector: self.kind.labels().map(str::to_owned),
            field_selector: self.field_selector(),
            timeout: Some(seconds),
            bookmarks: true,
            send_initial_events: is_listing,
        };
        // A stream that begins with a list has the newest.
        let version = self.seen.as_deref().filter(|_| self.continues).unwrap_or_default();
        let request = Request::new(self.kind.path()).watch(&parameters, version);
        let mut request = request.map_err(|error| not_a_request(&error))?;
        // A stream is compressed piece by piece, and read as one piece.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let body = self.objects.watch(request).await;
        let mut body = match body.map_err(|failure| self.failure(failure)) {
            Err(Failure::Refused(status)) if is_listing => return Err(refused_stream(status)),
            body => body?,
        };
        if is_listing {
            self.begin_list().await?;
        }
        let begun = Instant::now();
        loop {
            let patience = match (is_listing, self.works) {
                (true, _) => STREAM_PATIENCE,
                (false, false) => PROOF,
                // What buffers answers lets them through when the server has ended the watch.
                (false, true) if self.n_silent > 0 && !self.has_bookmarks => lasts + LATENESS,
                (false, true) => SILENCE,
            };
            let event = match body.event(patience).await {
                Err(BodyError::Silent(_)) if is_listing => {
                    let problem = format!("no end of the list within {STREAM_PATIENCE:?}");
                    return Err(Failure::NoStreams(problem));
                }
                Err(BodyError::Silent(_)) if !self.works => {
                    self.works().await?;
                    continue;
                }
                Err(fault) if is_listing => return Err(Failure::BrokenList(fault.to_string())),
                Err(BodyError::Silent(patience)) => {
                    self.n_silent += 1;
                    if self.n_silent >= SILENT_WATCHES {
                        self.list_again(ListReason::Silent);
                    }
                    return Err(BodyError::Silent(patience).into());
                }
                event => event?,
            };
            self.n_silent = 0;
            match event {
                Some(event) => {
                    let encoding = body.encoding(patience).await?;
                    is_listing = self.event(encoding, &event, is_listing).await?;
                }
                None if is_listing => {
                    return Err(Failure::BrokenList("the answer ended".to_owned()));
                }
                None if begun.elapsed() < PROOF => {
                    return Err(Failure::Unreachable("the answer ended too soon".to_owned()));
                }
                None => return Ok(()),
            }
        }
    }

    /// Takes an event of a watch. Returns true if it is still part of the list.
    async fn event(
        &mut self,
        encoding: Encoding,
        event: &[u8],
        is_listing: bool,
    ) -> Result<bool, Failure> {
        self.metrics.heard(self.kind);
        let decoded = Event::decode(self.kind, encoding, event);
        match decoded.map_err(|error| Failure::garbage("not an event", &error))? {
            Event::Applied(item) if is_listing => {
                self.listed_one(item).await?;
                return Ok(true);
            }
            // The server promises not to send this before the list is complete.
            Event::Deleted(item) if is_listing => {
                self.step(WatchStep::Deleted(item)).await?;
                return Ok(true);
            }
            Event::Applied(item) => {
                let version = version_of(item.resource_version())?;
                self.step(WatchStep::Applied(item)).await?;
                self.saw(version);
            }
            Event::Deleted(item) => {
                let version = version_of(item.resource_version())?;
                self.step(WatchStep::Deleted(item)).await?;
                self.saw(version);
            }
            Event::Bookmark { list_ends: false, .. } if is_listing => return Ok(true),
            Event::Bookmark { resource_version, .. } if is_listing => {
                self.step(WatchStep::ListEnds).await?;
                self.saw(resource_version);
                return Ok(false);
            }
            Event::Bookmark { resource_version, .. } => {
                self.has_bookmarks = true;
                self.saw(resource_version);
            }
            Event::Error(status) if status.is_expired() => return Err(Failure::Expired),
            Event::Error(status) if is_listing => return Err(refused_stream(status)),
            Event::Error(status) => return Err(Failure::Refused(status)),
        }
        self.works().await?;
        Ok(false)
    }

    /// Returns what a failed request means.
    fn failure(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Refused(status) => self.refusal(status),
            failure => failure,
        }
    }

    fn saw(&mut self, version: String) {
        self.seen = Some(version);
        self.continues = true;
    }

    async fn works(&mut self) -> Result<(), Failure> {
        self.backoff.reset();
        if std::mem::replace(&mut self.works, true) {
            return Ok(());
        }
        self.metrics.following(self.kind, true);
        self.report(FollowReport::Works).await
    }

    async fn step(&self, step: WatchStep) -> Result<(), Failure> {
        self.report(FollowReport::Step(step)).await
    }

    async fn report(&self, report: FollowReport) -> Result<(), Failure> {
        self.reports.send((self.kind, report)).await.map_err(|_| Failure::Unwanted)
    }
}

/// Nothing in a request comes from outside but the node's name, which is escaped.
fn not_a_request(error: &kube::core::request::Error) -> Failure {
    Failure::Garbage(chain(error))
}

/// Returns what the refusal of a list means that was asked for as a stream. Servers without streams
/// say that one of the parameters is invalid.
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
