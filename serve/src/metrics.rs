//! Metrics of the program, in a registry of their own. `docs/metrics.md` lists all of them.
//!
//! - [`proxy`]: what kube-proxy measures in its IPVS mode, under its names, so that dashboards and
//!   alerts go on working;
//! - [`iptables`]: what kube-proxy measures only in its mode iptables, and so does this program;
//! - [`own`]: what only this program knows;
//! - [`services`]: the traffic of single Services, if the operator wants it.
//!
//! Labels have few values that are known beforehand; never an address, and a Service's name only where
//! the operator chose which Services.

pub mod iptables;
mod labels;
pub mod own;
pub mod proxy;
pub mod services;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use plan::mode::Mode;
use plan::model::Family;
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

use iptables::IptablesMetrics;
use own::OwnMetrics;
use proxy::ProxyMetrics;
use services::ServiceMetrics;

use crate::version::{COMMIT, VERSION};

/// The media type of what is answered at `/metrics`.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything that is measured.
#[derive(Debug)]
pub struct Metrics {
    /// Under kube-proxy's names.
    pub proxy: ProxyMetrics,
    /// Under kube-proxy's, of mode iptables; none: the mode is another one.
    pub iptables: Option<IptablesMetrics>,
    /// Under ours.
    pub own: OwnMetrics,
    registry: Registry,
    checks: HealthcheckMetrics,
}

/// Metrics of Kubernetes' components about their own `/healthz`, at `/metrics/slis`.
#[derive(Debug)]
struct HealthcheckMetrics {
    registry: Registry,
    last: IntGaugeVec,
    total: IntCounterVec,
}

/// Mode that the node serves in, and the one that is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedMode {
    /// Word in the configuration.
    pub configured: String,
    /// Mode that the node serves in.
    pub effective: Mode,
}

impl fmt::Display for ServedMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { configured, effective } = self;
        write!(f, "{effective}")?;
        if configured == effective.name() {
            Ok(())
        } else {
            write!(f, " (configured: {configured})")
        }
    }
}

impl Metrics {
    /// All of a mode's at zero, for the families that are served.
    pub fn new(mode: Mode, families: &[Family]) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let proxy = ProxyMetrics::new(&registry, families)?;
        let of_iptables =
            mode.balances_by_rules().then(|| IptablesMetrics::new(&registry, families));
        let iptables = of_iptables.transpose()?;
        let own = OwnMetrics::new(&registry, families)?;
        registry.register(Box::new(ProcessCollector::for_self()))?;
        register_build(&registry)?;
        Ok(Self { proxy, iptables, own, registry, checks: HealthcheckMetrics::new()? })
    }

    /// Adds metrics of another part of the program.
    pub fn add(&self, metrics: impl Collector + 'static) -> Result<(), prometheus::Error> {
        self.registry.register(Box::new(metrics))
    }

    /// Adds the metrics of single Services, of which none has any yet.
    pub fn add_services(&self) -> Result<ServiceMetrics, prometheus::Error> {
        ServiceMetrics::new(&self.registry)
    }

    /// Adds the feature gates that have an effect: name, stage, and if it is open.
    pub fn add_features<'a>(
        &self,
        gates: impl Iterator<Item = (&'a str, &'a str, bool)>,
    ) -> Result<(), prometheus::Error> {
        let help = "1 if the feature gate is on, by name and stage. Gates without effect have no \
                    series.";
        let enabled = Opts::new("kubernetes_feature_enabled", help);
        let enabled = IntGaugeVec::new(enabled, &["name", "stage"])?;
        for (name, stage, is_open) in gates {
            enabled.with_label_values(&[name, stage]).set(is_open.into());
        }
        self.add(enabled)
    }

    /// The answer to `/metrics`, in the text format 0.0.4.
    ///
    /// # Errors
    /// When a metric has no values, which none is without.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.gather())
    }

    /// The answer to `/metrics/slis`, in the same format.
    pub fn slis_text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.gather_slis())
    }

    /// Notes that `/healthz` was asked for, and answered well.
    pub fn healthz_answered(&self) {
        self.checks.last.with_label_values(&["ping", "healthz"]).set(1);
        self.checks.total.with_label_values(&["ping", "healthz", "success"]).inc();
    }

    /// Forgets how often that was.
    pub fn reset_slis(&self) {
        self.checks.last.reset();
        self.checks.total.reset();
    }

    pub fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }

    /// Adds the start time of the process, from which a scraper sees that counters were reset.
    pub fn gather_slis(&self) -> Vec<MetricFamily> {
        let all = self.registry.gather().into_iter();
        let mut families = self.checks.registry.gather();
        families.extend(all.filter(|family| family.name() == "process_start_time_seconds"));
        families
    }
}

impl HealthcheckMetrics {
    fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let last = IntGaugeVec::new(
            Opts::new(
                "kubernetes_healthcheck",
                "Last result of a health check: 1 if it succeeded, else 0.",
            ),
            &["name", "type"],
        )?;
        let total = IntCounterVec::new(
            Opts::new(
                "kubernetes_healthchecks_total",
                "Number of health checks requested, by \
                                                        result.",
            ),
            &["name", "type", "status"],
        )?;
        let last = register(&registry, last)?;
        let total = register(&registry, total)?;
        Ok(Self { registry, last, total })
    }
}

/// Registers a metric, and keeps a handle to it.
fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// `kubernetes_build_info`, by which clusters find out which versions they run. The version is this
/// program's. Labels that say how Go built something are empty.
fn register_build(registry: &Registry) -> Result<(), prometheus::Error> {
    let labels = [
        ("major", env!("CARGO_PKG_VERSION_MAJOR").to_owned()),
        ("minor", env!("CARGO_PKG_VERSION_MINOR").to_owned()),
        ("git_version", VERSION.clone()),
        ("git_commit", COMMIT.to_owned()),
        ("git_tree_state", String::new()),
        ("build_date", String::new()),
        ("go_version", String::new()),
        ("compiler", "rustc".to_owned()),
        ("platform", platform()),
    ];
    let names: Vec<&str> = labels.iter().map(|(name, _)| *name).collect();
    let values: Vec<&str> = labels.iter().map(|(_, value)| value.as_str()).collect();
    let help = "Always 1; the labels have the version of kube-ipvs and its platform.";
    let build = IntGaugeVec::new(Opts::new("kubernetes_build_info", help), &names)?;
    build.with_label_values(&values).set(1);
    registry.register(Box::new(build))
}

/// Since 1970.
fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Returns the platform in Go's names, which clusters use.
fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{}/{architecture}", std::env::consts::OS)
}
