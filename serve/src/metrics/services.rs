//! Metrics of single Services, from IPVS' counters: `serviceMetrics`.
//!
//! ```text
//!   a reading ──▶ Accounts: since the program started, by Service ──▶ Selected ──▶ /metrics
//!   every 15 s              (pure)                                    (shared)
//! ```
//!
//! The kernel counts for each virtual server, and forgets with it. A Service's counters must not go
//! back when one of its frontends goes: a scraper would take that for a restart from zero, and add
//! the rest once more. So differences between readings are added up here.

mod accounts;
mod selection;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use plan::model::ServiceName;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{self, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Gauge, IntCounter, IntGauge, Registry};

use super::own::maker::Maker;
use super::seconds;
pub use accounts::{Accounts, FrontendTraffic, Shown};
use kernel::CurrentConnections;
use kernel::TrafficCounters;
pub use selection::MeasuredServices;

/// Labels of each series.
const LABELS: [&str; 2] = ["namespace", "service"];

/// A metric that each selected Service has: its name, its type, its help, its value.
type PerService = (&'static str, MetricType, &'static str, fn(&ServiceTraffic) -> u64);

const PER_SERVICE: [PerService; 8] = [
    (
        "kube_ipvs_service_connections_total",
        MetricType::COUNTER,
        "Number of connections to a Service that IPVS scheduled on this node.",
        |of| of.counted.connections,
    ),
    (
        "kube_ipvs_service_incoming_packets_total",
        MetricType::COUNTER,
        "Number of packets from clients to a Service, on this node.",
        |of| of.counted.incoming_packets,
    ),
    (
        "kube_ipvs_service_outgoing_packets_total",
        MetricType::COUNTER,
        "Number of packets from a Service to clients, on this node.",
        |of| of.counted.outgoing_packets,
    ),
    (
        "kube_ipvs_service_incoming_bytes_total",
        MetricType::COUNTER,
        "Number of bytes from clients to a Service, on this node.",
        |of| of.counted.incoming_bytes,
    ),
    (
        "kube_ipvs_service_outgoing_bytes_total",
        MetricType::COUNTER,
        "Number of bytes from a Service to clients, on this node.",
        |of| of.counted.outgoing_bytes,
    ),
    (
        "kube_ipvs_service_active_connections",
        MetricType::GAUGE,
        "Number of established connections to a Service on this node, without UDP.",
        |of| of.current.active,
    ),
    (
        "kube_ipvs_service_inactive_connections",
        MetricType::GAUGE,
        "Number of connections to a Service on this node that are being opened or closed, and all of UDP.",
        |of| of.current.inactive,
    ),
    (
        "kube_ipvs_service_draining_connections",
        MetricType::GAUGE,
        "Number of connections to draining endpoints of a Service (weight 0). The active and \
         inactive connections include them.",
        |of| of.current.draining,
    ),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceTraffic {
    pub service: ServiceName,
    /// Traffic since the program started.
    pub counted: TrafficCounters,
    /// Connections at the last reading.
    pub current: CurrentConnections,
}

/// Metrics of single Services, and of the readings that they come from. Copies share it.
#[derive(Debug, Clone)]
pub struct ServiceMetrics {
    series: Series,
    omitted: IntGauge,
    statistics_running: IntGauge,
    duration: Gauge,
    last: Gauge,
    failures: IntCounter,
}

/// Collector of the series of all selected Services.
#[derive(Debug, Clone)]
struct Series {
    descriptions: Vec<Desc>,
    shown: Arc<Mutex<Vec<ServiceTraffic>>>,
}

/// Result of a reading, for [`ServiceMetrics::set`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceReading {
    /// Services with metrics of their own.
    pub services: Vec<ServiceTraffic>,
    /// Number of Services that would have them if there were room.
    pub n_omitted: usize,
    /// False if the kernel's counters stand still.
    pub statistics_running: bool,
    /// Time that the reading took, without its pauses.
    pub took: Duration,
    /// End of the reading.
    pub at: SystemTime,
}

impl ServiceMetrics {
    /// Registers them, with no Service yet.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let make = Maker(registry);
        let description = |(name, _, help, _): PerService| {
            let labels = LABELS.map(str::to_owned).to_vec();
            Desc::new(name.to_owned(), help.to_owned(), labels, std::collections::HashMap::new())
        };
        let descriptions = PER_SERVICE.into_iter().map(description).collect::<Result<_, _>>()?;
        let series = Series { descriptions, shown: Arc::default() };
        registry.register(Box::new(series.clone()))?;
        Ok(Self {
            series,
            omitted: make.gauge(
                "kube_ipvs_service_metrics_omitted",
                "Number of Services without their own metrics, because serviceMetrics is top:N and \
                 other Services have more traffic.",
            )?,
            statistics_running: make.gauge(
                "kube_ipvs_statistics_running",
                "1 if the kernel updates IPVS statistics, 0 if they are off \
                 (net.ipv4.vs.run_estimation) and the counters kube_ipvs_service_*_total do not \
                 advance.",
            )?,
            duration: make.number(
                "kube_ipvs_service_metrics_read_duration_seconds",
                "Seconds that the last read of the Services' traffic took, without pauses.",
            )?,
            last: make.number(
                "kube_ipvs_service_metrics_last_read_timestamp_seconds",
                "Unix time at which the Services' traffic was last read. It is read every 15 \
                 seconds, or less often if a read takes long.",
            )?,
            failures: make.counter(
                "kube_ipvs_service_metrics_read_failures_total",
                "Number of failed reads of the Services' traffic. Their metrics then keep their \
                 values.",
            )?,
        })
    }

    /// Shows a reading.
    pub fn set(&self, reading: ServiceReading) {
        self.omitted.set(i64::try_from(reading.n_omitted).unwrap_or(i64::MAX));
        self.statistics_running.set(reading.statistics_running.into());
        self.duration.set(reading.took.as_secs_f64());
        self.last.set(seconds(reading.at));
        *self.series.shown.lock() = reading.services;
    }

    /// Counts a reading that failed.
    pub fn failed(&self) {
        self.failures.inc();
    }
}

impl Collector for Series {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let shown = self.shown.lock();
        PER_SERVICE.iter().map(|of| family(of, &shown)).collect()
    }
}

/// Returns a metric with the series of these Services. The registry leaves out one without any.
fn family((name, kind, help, value): &PerService, services: &[ServiceTraffic]) -> MetricFamily {
    let metric = |of: &ServiceTraffic| {
        let values = [&*of.service.namespace, &*of.service.name];
        let labels = LABELS.into_iter().zip(values).map(|(name, value)| {
            let mut label = LabelPair::default();
            label.set_name(name.to_owned());
            label.set_value(value.to_owned());
            label
        });
        let mut metric = Metric::from_label(labels.collect());
        // Prometheus has floating-point numbers; what is above 2^53 is rounded.
        #[expect(clippy::cast_precision_loss, reason = "there is no other type in the format")]
        let value = value(of) as f64;
        if *kind == MetricType::COUNTER {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric
    };
    let mut family = MetricFamily::default();
    family.set_name((*name).to_owned());
    family.set_help((*help).to_owned());
    family.set_field_type(*kind);
    family.set_metric(services.iter().map(metric).collect());
    family
}
