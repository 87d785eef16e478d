//! Metrics of the API server's client, under client-go's names where it has them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Method, StatusCode};
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Metric, MetricFamily};
use prometheus::{Error, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts};

use super::kind::ResourceKind;

/// client-go's buckets (`requestLatency` in component-base/metrics/prometheus/restclient).
const BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Reason for which all objects of a kind are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListReason {
    /// Nothing was listed before, or no list was complete.
    Start,
    /// The API server no longer has the changes since the last version seen.
    Expired,
    /// The API server refused to watch from the last version seen.
    Refused,
    /// The watch kept sending what makes no sense.
    Garbage,
    /// Nothing came in several watches, not even bookmarks.
    Silent,
    /// They are not watched, and it was time, or more of them is wanted.
    Period,
}

/// Metrics of the API server's client. All clones are the same.
#[derive(Debug, Clone)]
pub struct ClientMetrics {
    following: IntGaugeVec,
    heard: GaugeVec,
    lists: IntCounterVec,
    requests: IntCounterVec,
    durations: HistogramVec,
    /// Time at which following of a kind began or ended.
    changed: Arc<Mutex<HashMap<ResourceKind, SystemTime>>>,
    /// Host and port of the server.
    host: String,
}

/// A kind of object that is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedKind {
    /// Its name.
    pub kind: &'static str,
    /// True while changes arrive.
    pub is_following: bool,
    /// Time since which that is so; none: changes never arrived.
    pub since: Option<SystemTime>,
    /// Time at which the server last sent something about the kind.
    pub heard: Option<SystemTime>,
    /// Number of lists that were begun, by their reasons.
    pub lists: BTreeMap<String, u64>,
}

impl ListReason {
    const ALL: [Self; 6] =
        [Self::Start, Self::Expired, Self::Refused, Self::Garbage, Self::Silent, Self::Period];

    fn label(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::Garbage => "garbage",
            Self::Silent => "silent",
            Self::Period => "period",
        }
    }
}

impl ClientMetrics {
    /// Metrics of the client of a server, by its host and port, at zero.
    ///
    /// # Errors
    /// When a name or a label is not one that Prometheus takes.
    pub fn new(host: &str) -> Result<Self, Error> {
        let made = Self {
            following: IntGaugeVec::new(
                Opts::new(
                    "kube_ipvs_api_following",
                    "1 while changes of this kind of object arrive from the API server, 0 while \
                     they cannot; traffic then continues without them.",
                ),
                &["kind"],
            )?,
            heard: GaugeVec::new(
                Opts::new(
                    "kube_ipvs_api_last_heard_timestamp_seconds",
                    "Unix time at which the API server last sent data about this kind of object. \
                     Bookmarks count, which a watch gets every minute; other Nodes are listed \
                     every 15 minutes.",
                ),
                &["kind"],
            )?,
            lists: IntCounterVec::new(
                Opts::new(
                    "kube_ipvs_api_lists_total",
                    "Number of lists of all objects of a kind, by reason: startup, failure of the \
                     last watch, or the period of a kind that is not watched.",
                ),
                &["kind", "reason"],
            )?,
            requests: IntCounterVec::new(
                Opts::new(
                    "rest_client_requests_total",
                    "Number of requests to the API server, by status code of the response; <error> \
                     if there was none.",
                ),
                &["code", "method", "host"],
            )?,
            durations: HistogramVec::new(
                HistogramOpts::new(
                    "rest_client_request_duration_seconds",
                    "Seconds from a request to the API server until the response starts, including \
                     the wait for a connection that another request opens.",
                )
                .buckets(BUCKETS.to_vec()),
                &["verb", "host"],
            )?,
            changed: Arc::default(),
            host: host.to_owned(),
        };
        made.requests.with_label_values(&["200", "GET", &made.host]);
        made.durations.with_label_values(&["GET", &made.host]);
        ResourceKind::ALL.into_iter().for_each(|kind| made.begin(kind));
        Ok(made)
    }

    /// Begins with a kind at zero.
    pub(super) fn begin(&self, kind: ResourceKind) {
        self.following(kind, false);
        self.heard.with_label_values(&[kind.label()]);
        for reason in ListReason::ALL {
            self.lists.with_label_values(&[kind.label(), reason.label()]);
        }
    }

    /// Notes whether changes of a kind arrive.
    pub(super) fn following(&self, kind: ResourceKind, is: bool) {
        let gauge = self.following.with_label_values(&[kind.label()]);
        let was = gauge.get() == 1;
        gauge.set(is.into());
        if is != was {
            let mut changed = self.changed.lock();
            changed.insert(kind, SystemTime::now());
        }
    }

    /// True while changes of Services and EndpointSlices arrive.
    #[must_use]
    pub fn follows_services(&self) -> bool {
        let follows = |kind: ResourceKind| self.following.with_label_values(&[kind.label()]).get();
        [ResourceKind::Service, ResourceKind::EndpointSlice].map(follows) == [1, 1]
    }

    /// Time at which a kind's changes began to arrive, or no longer did; none: they never have.
    fn since(&self, kind: ResourceKind) -> Option<SystemTime> {
        self.changed.lock().get(&kind).copied()
    }

    /// The server's host and port.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.host
    }

    /// The kinds that are followed. Other Nodes are among them once they were listed.
    #[must_use]
    pub fn kinds(&self) -> Vec<FollowedKind> {
        let lists = self.lists.collect();
        let lists: Vec<_> = lists.iter().flat_map(MetricFamily::get_metric).collect();
        let kind = |kind: ResourceKind| {
            let of_kind = lists.iter().filter(|metric| label(metric, "kind") == kind.label());
            let begun = of_kind.filter(|metric| metric.get_counter().get_value() > 0.0);
            let heard = self.heard.with_label_values(&[kind.label()]).get();
            let heard = Duration::try_from_secs_f64(heard).ok().filter(|it| !it.is_zero());
            FollowedKind {
                kind: kind.label(),
                is_following: self.following.with_label_values(&[kind.label()]).get() == 1,
                since: self.since(kind),
                heard: heard.map(|since| UNIX_EPOCH + since),
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a whole number"
                )]
                lists: begun
                    .map(|it| (label(it, "reason").to_owned(), it.get_counter().get_value() as u64))
                    .collect(),
            }
        };
        let kinds = ResourceKind::ALL.into_iter().chain([ResourceKind::OtherNode]).map(kind);
        kinds
            .filter(|it| it.kind != ResourceKind::OtherNode.label() || !it.lists.is_empty())
            .collect()
    }

    /// The kinds that are followed, for people: whether changes arrive, when the server last sent
    /// something, and how many lists were begun for which reasons.
    #[must_use]
    pub fn page(&self) -> String {
        let mut page = format!("server {}\n", self.host);
        for kind in self.kinds() {
            if kind.lists.is_empty() {
                page += &format!("{}: NOT following; nothing was asked for yet\n", kind.kind);
                continue;
            }
            let lists = kind.lists.iter().map(|(reason, number)| format!("{reason} {number}"));
            page += &format!(
                "{}: {}; last heard {}; lists: {}\n",
                kind.kind,
                if kind.is_following { "following" } else { "NOT following" },
                moment(kind.heard),
                lists.collect::<Vec<_>>().join(", "),
            );
        }
        page
    }

    /// Notes that something about a kind has arrived now.
    pub(super) fn heard(&self, kind: ResourceKind) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.heard.with_label_values(&[kind.label()]).set(now.as_secs_f64());
    }

    /// Notes that a list begins.
    pub(super) fn listing(&self, kind: ResourceKind, reason: ListReason) {
        self.lists.with_label_values(&[kind.label(), reason.label()]).inc();
    }

    /// Notes a request, and the status of the answer if there is one.
    pub(super) fn requested(&self, method: &Method, status: Option<StatusCode>, took: Duration) {
        let code = status.as_ref().map_or("<error>", StatusCode::as_str);
        self.requests.with_label_values(&[code, method.as_str(), &self.host]).inc();
        self.durations
            .with_label_values(&[method.as_str(), &self.host])
            .observe(took.as_secs_f64());
    }
}

/// Value of a label.
fn label<'a>(metric: &'a Metric, name: &str) -> &'a str {
    let label = metric.get_label().iter().find(|label| label.name() == name);
    label.map_or("", |label| label.value())
}

/// A moment, to the second.
fn moment(at: Option<SystemTime>) -> String {
    let at = at.and_then(|at| Timestamp::try_from(at).ok());
    at.map_or("never".to_owned(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

impl Collector for ClientMetrics {
    fn desc(&self) -> Vec<&Desc> {
        [
            self.following.desc(),
            self.heard.desc(),
            self.lists.desc(),
            self.requests.desc(),
            self.durations.desc(),
        ]
        .concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        [
            self.following.collect(),
            self.heard.collect(),
            self.lists.collect(),
            self.requests.collect(),
            self.durations.collect(),
        ]
        .concat()
    }
}
