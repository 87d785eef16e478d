//! Metrics of kube-proxy in its IPVS mode: the same names, labels and buckets.

use std::time::{Duration, SystemTime};

use plan::local::{LocalGaps, Side};
use plan::model::Family;
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, exponential_buckets,
};

use super::{register, seconds};
use crate::health::label;

/// The metrics whose names begin with `kubeproxy_`.
#[derive(Debug)]
pub struct ProxyMetrics {
    families: Vec<Family>,
    sync_duration: HistogramVec,
    last_sync: GaugeVec,
    last_queued: GaugeVec,
    programming_duration: HistogramVec,
    /// Changed slices that are not planned yet.
    pub endpoint_changes_pending: IntGauge,
    /// Events of slices.
    pub endpoint_changes: IntCounter,
    /// Changed Services that are not planned yet.
    pub service_changes_pending: IntGauge,
    service_changes: IntCounter,
    no_local_endpoints: IntGaugeVec,
    restore_failures: IntCounterVec,
    healthz: IntCounterVec,
    livez: IntCounterVec,
    reconciler_duration: HistogramVec,
    reconciler_deleted: IntCounterVec,
}

/// Makes and registers metrics.
pub(super) struct ProxyMetricMaker<'a> {
    pub(super) registry: &'a Registry,
    /// The values of the label `ip_family`.
    pub(super) families: &'a [Family],
}

impl ProxyMetrics {
    /// Registers them, each at zero for these families.
    pub(super) fn new(registry: &Registry, families: &[Family]) -> Result<Self, prometheus::Error> {
        let make = ProxyMetricMaker { registry, families };
        let milliseconds = exponential_buckets(0.001, 2.0, 15)?;
        Ok(Self {
            families: families.to_vec(),
            sync_duration: make.histogram(
                "sync_proxy_rules_duration_seconds",
                "Seconds to plan and write pending changes, or to compare everything with the \
                 kernel.",
                milliseconds.clone(),
            )?,
            last_sync: make.gauge(
                "sync_proxy_rules_last_timestamp_seconds",
                "Unix time at which all pending changes were last written.",
            )?,
            last_queued: make.gauge(
                "sync_proxy_rules_last_queued_timestamp_seconds",
                "Unix time at which a change last became pending.",
            )?,
            programming_duration: make.histogram(
                "network_programming_duration_seconds",
                "Seconds from the change of a pod or a Service (annotation \
                 endpoints.kubernetes.io/last-change-trigger-time) until this node has written it.",
                programming_buckets(),
            )?,
            endpoint_changes_pending: make.plain_gauge(
                "sync_proxy_rules_endpoint_changes_pending",
                "Number of pending changes of EndpointSlices that are not planned yet.",
            )?,
            endpoint_changes: make.plain_counter(
                "sync_proxy_rules_endpoint_changes_total",
                "Number of changes of EndpointSlices received.",
            )?,
            service_changes_pending: make.plain_gauge(
                "sync_proxy_rules_service_changes_pending",
                "Number of Services with changes that are not planned yet.",
            )?,
            service_changes: make.plain_counter(
                "sync_proxy_rules_service_changes_total",
                "Number of changes of Services received, once for each IP family served.",
            )?,
            no_local_endpoints: make.no_local_endpoints()?,
            restore_failures: make.counter(
                "sync_proxy_rules_iptables_restore_failures_total",
                "Number of failed attempts to write the iptables rules.",
            )?,
            healthz: make.by_code(
                "proxy_healthz_total",
                "Number of responses of /healthz, by status code.",
            )?,
            livez: make.by_code(
                "proxy_livez_total",
                "Number of responses of /livez, by status \
                                                      code.",
            )?,
            reconciler_duration: make.histogram(
                "conntrack_reconciler_sync_duration_seconds",
                "Seconds to find and remove stale conntrack entries.",
                milliseconds,
            )?,
            reconciler_deleted: make.counter(
                "conntrack_reconciler_deleted_entries_total",
                "Number of conntrack entries removed: of UDP and SCTP, because their endpoint is \
                 gone or because there was none when they began; on the fast path, of TCP after \
                 the drain deadline.",
            )?,
        })
    }

    /// A Service is different now. kube-proxy counts that for each family, since each has a
    /// proxier of its own.
    pub fn service_changed(&self) {
        self.service_changes.inc_by(self.families.len() as u64);
    }

    /// Something began to wait to be written.
    pub fn queued(&self, now: SystemTime) {
        for family in &self.families {
            self.last_queued.with_label_values(&[label(*family)]).set(seconds(now));
        }
    }

    /// Planning and writing took a round this time.
    pub fn round_took(&self, family: Family, took: Duration) {
        self.sync_duration.with_label_values(&[label(family)]).observe(took.as_secs_f64());
    }

    /// Everything that was waiting for a family is written.
    pub fn synced(&self, family: Family, now: SystemTime) {
        self.last_sync.with_label_values(&[label(family)]).set(seconds(now));
    }

    /// A change of endpoints that goes back to `trigger` is written.
    pub fn programmed(&self, family: Family, trigger: SystemTime, now: SystemTime) {
        // The clock of the host that wrote the annotation may be ahead of ours.
        let took = now.duration_since(trigger).unwrap_or_default();
        let histogram = self.programming_duration.with_label_values(&[label(family)]);
        histogram.observe(took.as_secs_f64());
    }

    /// Sets the number of Services without an endpoint here that their traffic policy allows.
    pub fn set_local_gaps(&self, gaps: &LocalGaps) {
        for family in &self.families {
            for (policy, side) in [("internal", Side::Internal), ("external", Side::External)] {
                let gauge = self.no_local_endpoints.with_label_values(&[policy, label(*family)]);
                gauge.set(i64::try_from(gaps.count(side, *family)).unwrap_or(i64::MAX));
            }
        }
    }

    /// The rules of a family could not be written.
    pub fn restore_failed(&self, family: Family) {
        self.restore_failures.with_label_values(&[label(family)]).inc();
    }

    pub fn healthz_answered(&self, good: bool) {
        self.healthz.with_label_values(&[code(good)]).inc();
    }

    pub fn livez_answered(&self, good: bool) {
        self.livez.with_label_values(&[code(good)]).inc();
    }

    /// UDP and SCTP flows that lead nowhere were looked for in this time, and so many removed.
    pub fn flows_reconciled(&self, family: Family, took: Duration, deleted: u64) {
        let label = label(family);
        self.reconciler_duration.with_label_values(&[label]).observe(took.as_secs_f64());
        self.reconciler_deleted.with_label_values(&[label]).inc_by(deleted);
    }
}

impl ProxyMetricMaker<'_> {
    pub(super) fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: Vec<f64>,
    ) -> Result<HistogramVec, prometheus::Error> {
        let options = HistogramOpts::from(options(name, help)).buckets(buckets);
        let metric = register(self.registry, HistogramVec::new(options, &["ip_family"])?)?;
        for family in self.families {
            metric.with_label_values(&[label(*family)]);
        }
        Ok(metric)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<GaugeVec, prometheus::Error> {
        let metric = GaugeVec::new(options(name, help), &["ip_family"])?;
        let metric = register(self.registry, metric)?;
        for family in self.families {
            metric.with_label_values(&[label(*family)]);
        }
        Ok(metric)
    }

    pub(super) fn counter(
        &self,
        name: &str,
        help: &str,
    ) -> Result<IntCounterVec, prometheus::Error> {
        let metric = IntCounterVec::new(options(name, help), &["ip_family"])?;
        let metric = register(self.registry, metric)?;
        for family in self.families {
            metric.with_label_values(&[label(*family)]);
        }
        Ok(metric)
    }

    fn by_code(&self, name: &str, help: &str) -> Result<IntCounterVec, prometheus::Error> {
        let metric = IntCounterVec::new(options(name, help), &["code"])?;
        let metric = register(self.registry, metric)?;
        for good in [true, false] {
            metric.with_label_values(&[code(good)]);
        }
        Ok(metric)
    }

    fn no_local_endpoints(&self) -> Result<IntGaugeVec, prometheus::Error> {
        let options = options(
            "sync_proxy_rules_no_local_endpoints_total",
            "Number of Services (in iptables mode: Service ports) with traffic policy Local \
             (internal or external) and with endpoints, but none on this node.",
        );
        let metric = IntGaugeVec::new(options, &["traffic_policy", "ip_family"])?;
        let metric = register(self.registry, metric)?;
        for family in self.families {
            for policy in ["internal", "external"] {
                metric.with_label_values(&[policy, label(*family)]);
            }
        }
        Ok(metric)
    }

    fn plain_gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        register(self.registry, IntGauge::with_opts(options(name, help))?)
    }

    fn plain_counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        register(self.registry, IntCounter::with_opts(options(name, help))?)
    }
}

pub(super) fn options(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("kubeproxy")
}

/// A quarter and half a second; each second to a minute, each five to two, each thirty to five.
fn programming_buckets() -> Vec<f64> {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(seconds.map(f64::from)).collect()
}

fn code(good: bool) -> &'static str {
    if good { "200" } else { "503" }
}
