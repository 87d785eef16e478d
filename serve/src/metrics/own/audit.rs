//! Activity of the audit, which compares the kernel with the desired state part by part, and of the
//! drift checks.

use std::time::SystemTime;

use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge};

use super::super::labels::{DRIFT_CHECKS, PACES, drift_check, pace};
use super::super::seconds;
use super::maker::Maker;
use reconcile::observer::Pass;

/// Activity of the audit and the drift checks.
#[derive(Debug)]
pub struct AuditMetrics {
    drift_checks: IntCounterVec,
    passes: IntCounterVec,
    duration: Gauge,
    cost: Histogram,
    full_speed: IntGauge,
    full_speed_starts: IntCounter,
    last_comparison: Gauge,
}

impl AuditMetrics {
    pub(super) fn new(make: &Maker<'_>) -> Result<Self, prometheus::Error> {
        let made = Self {
            drift_checks: make.counters(
                "kube_ipvs_drift_checks_total",
                "Number of drift checks, by result: clean or drifted. A drift check looks every \
                 second, by a few cheap reads, whether another program has changed kernel state.",
                &["result"],
            )?,
            passes: make.counters(
                "kube_ipvs_audit_passes_total",
                "Number of audit passes, by speed: background (with pauses) or full (without). An \
                 audit pass compares all kernel state except iptables rules with the desired \
                 state.",
                &["speed"],
            )?,
            duration: make.number(
                "kube_ipvs_audit_pass_duration_seconds",
                "Seconds that the last audit pass took, including pauses.",
            )?,
            cost: make.histogram(
                "kube_ipvs_audit_pass_busy_seconds",
                "Seconds that an audit pass spent reading and comparing, without pauses.",
            )?,
            full_speed: make.gauge(
                "kube_ipvs_audit_full_speed",
                "1 while the audit runs at full speed because another program changed kernel \
                 state, 0 while it runs in the background.",
            )?,
            full_speed_starts: make.counter(
                "kube_ipvs_audit_full_speed_starts_total",
                "Number of times the audit went from background to full speed.",
            )?,
            last_comparison: make.number(
                "kube_ipvs_audit_last_completed_timestamp_seconds",
                "Unix time at which the last audit pass ended: all kernel state except iptables \
                 rules was compared with the desired state.",
            )?,
        };
        for value in DRIFT_CHECKS {
            made.drift_checks.with_label_values(&[value]);
        }
        for value in PACES {
            made.passes.with_label_values(&[value]);
        }
        Ok(made)
    }

    /// The signs were looked for, and were as expected or not.
    pub fn drift_checked(&self, as_expected: bool) {
        self.drift_checks.with_label_values(&[drift_check(&as_expected)]).inc();
    }

    /// The audit goes on without pauses from now on, or with them.
    pub fn set_full_speed(&self, full_speed: bool) {
        if full_speed && self.full_speed.get() == 0 {
            self.full_speed_starts.inc();
        }
        self.full_speed.set(i64::from(full_speed));
    }

    /// A pass of the audit has ended.
    pub fn pass_ended(&self, pass: &Pass, now: SystemTime) {
        self.passes.with_label_values(&[pace(&pass.full_speed)]).inc();
        self.duration.set(pass.took.as_secs_f64());
        self.cost.observe(pass.cost.as_secs_f64());
        self.compared(now);
    }

    /// All of the kernel was compared with what it should be.
    pub fn compared(&self, now: SystemTime) {
        self.last_comparison.set(seconds(now));
    }
}
