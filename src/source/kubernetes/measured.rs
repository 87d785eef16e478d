//! Metrics of the API server's client, under client-go's names where it has them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Method, StatusCode};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Error, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts};

use super::kind::Kind;

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
}

/// Metrics of the API server's client. All clones are the same.
#[derive(Debug, Clone)]
pub struct ClientMetrics {
    following: IntGaugeVec,
    heard: GaugeVec,
    lists: IntCounterVec,
    requests: IntCounterVec,
    durations: HistogramVec,
    /// Host and port of the server.
    host: String,
}

// === impl ListReason ===

impl ListReason {
    const ALL: [Self; 5] = [Self::Start, Self::Expired, Self::Refused, Self::Garbage, Self::Silent];

    fn label(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::Garbage => "garbage",
            Self::Silent => "silent",
        }
    }
}

// === impl ClientMetrics ===

impl ClientMetrics {
    /// Metrics of the client of a server, by its host and port, at zero.
    ///
    /// # Errors
    /// When a name or a label is not one that Prometheus takes.
    pub fn new(host: &str) -> Result<Self, Error> {
        let own = |name, help| Opts::new(name, help).namespace("kube_ipvs");
        let made = Self {
            following: IntGaugeVec::new(
                own(
                    "api_following",
                    "1 while changes of this kind of object arrive from the API server, 0 while they \
                     cannot: traffic then goes on as it was.",
                ),
                &["kind"],
            )?,
            heard: GaugeVec::new(
                own(
                    "api_last_heard_timestamp_seconds",
                    "Time at which the API server last sent something about this kind of object, in \
                     seconds since 1970. Bookmarks count, which it sends every minute.",
                ),
                &["kind"],
            )?,
            lists: IntCounterVec::new(
                own(
                    "api_lists_total",
                    "Lists of all objects of a kind that were begun, by the reason: the start, or \
                     why the last watch could not be continued.",
                ),
                &["kind", "reason"],
            )?,
            requests: IntCounterVec::new(
                Opts::new(
                    "rest_client_requests_total",
                    "Requests to the API server, by the status of the answer; <error> if there was \
                     none.",
                ),
                &["code", "method", "host"],
            )?,
            durations: HistogramVec::new(
                HistogramOpts::new(
                    "rest_client_request_duration_seconds",
                    "Time from a request to the API server to the beginning of the answer.",
                )
                .buckets(BUCKETS.to_vec()),
                &["verb", "host"],
            )?,
            host: host.to_owned(),
        };
        made.requests.with_label_values(&["200", "GET", &made.host]);
        made.durations.with_label_values(&["GET", &made.host]);
        Kind::ALL.into_iter().for_each(|kind| made.begin(kind));
        Ok(made)
    }

    /// Begins with a kind at zero.
    pub(super) fn begin(&self, kind: Kind) {
        self.following(kind, false);
        self.heard.with_label_values(&[kind.label()]);
        for reason in ListReason::ALL {
            self.lists.with_label_values(&[kind.label(), reason.label()]);
        }
    }

    /// Notes whether changes of a kind arrive.
    pub(super) fn following(&self, kind: Kind, is: bool) {
        self.following.with_label_values(&[kind.label()]).set(is.into());
    }

    /// Notes that something about a kind has arrived now.
    pub(super) fn heard(&self, kind: Kind) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.heard.with_label_values(&[kind.label()]).set(now.as_secs_f64());
    }

    /// Notes that a list begins.
    pub(super) fn listing(&self, kind: Kind, reason: ListReason) {
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
