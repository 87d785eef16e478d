//! Metrics that kube-proxy has in its mode iptables only: the same names, labels and buckets.

use std::time::Duration;

use plan::model::Family;
use plan::rule_set::Table;
use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec, Registry, exponential_buckets};

use super::proxy::{ProxyMetricMaker, options};
use super::register;
use crate::health::label;
use reconcile::observer::{RoundKind, RuleCount};

/// The tables that rules are counted in.
const TABLES: [Table; 2] = [Table::Filter, Table::Nat];

/// The metrics of mode iptables.
#[derive(Debug)]
pub struct IptablesMetrics {
    full_sync_duration: HistogramVec,
    partial_sync_duration: HistogramVec,
    partial_restore_failures: IntCounterVec,
    rules: IntGaugeVec,
    rules_written: IntGaugeVec,
}

impl IptablesMetrics {
    /// Registers them, each at zero for these families.
    pub(super) fn new(registry: &Registry, families: &[Family]) -> Result<Self, prometheus::Error> {
        let make = ProxyMetricMaker { registry, families };
        let milliseconds = exponential_buckets(0.001, 2.0, 15)?;
        let of_tables = |name: &str, help: &str| {
            let metric = IntGaugeVec::new(options(name, help), &["table", "ip_family"])?;
            let metric = register(registry, metric)?;
            for (table, family) in TABLES.iter().flat_map(|t| families.iter().map(move |f| (t, f)))
            {
                metric.with_label_values(&[table.name(), label(*family)]);
            }
            Ok::<_, prometheus::Error>(metric)
        };
        Ok(Self {
            full_sync_duration: make.histogram(
                "sync_full_proxy_rules_duration_seconds",
                "Seconds to compare all rules with the kernel and write differences: at startup, \
                 and after another program changed rules.",
                milliseconds.clone(),
            )?,
            partial_sync_duration: make.histogram(
                "sync_partial_proxy_rules_duration_seconds",
                "Seconds to plan pending changes and write their rules.",
                milliseconds,
            )?,
            partial_restore_failures: make.counter(
                "sync_proxy_rules_iptables_partial_restore_failures_total",
                "Number of failed attempts to write the rules of changed Services.",
            )?,
            rules: of_tables("sync_proxy_rules_iptables_total", "Number of iptables rules owned.")?,
            rules_written: of_tables(
                "sync_proxy_rules_iptables_last",
                "Number of iptables rules written in the last batch that wrote any.",
            )?,
        })
    }

    /// Planning and writing took a round this time.
    pub fn round_took(&self, family: Family, kind: RoundKind, took: Duration) {
        let durations = match kind {
            RoundKind::Comparison => &self.full_sync_duration,
            RoundKind::Changes => &self.partial_sync_duration,
            RoundKind::Retry => return,
        };
        durations.with_label_values(&[label(family)]).observe(took.as_secs_f64());
    }

    /// Rules of Services could not be written.
    pub fn partial_restore_failed(&self, family: Family) {
        self.partial_restore_failures.with_label_values(&[label(family)]).inc();
    }

    /// Sets the number of rules of a table.
    pub fn set_rules(&self, count: &RuleCount) {
        let labels = [count.table.name(), label(count.family)];
        let gauge = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.rules.with_label_values(&labels).set(gauge(count.total));
        self.rules_written.with_label_values(&labels).set(gauge(count.written));
    }
}
