//! What the patrol does, which compares the kernel with what it should be, part by part.

use std::time::SystemTime;

use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge};

use super::super::labels::{GLANCES, PACES, glance, pace};
use super::super::seconds;
use super::maker::Maker;
use crate::reconcile::observer::Pass;

/// What the patrol does.
#[derive(Debug)]
pub struct Patrol {
    glances: IntCounterVec,
    passes: IntCounterVec,
    duration: Gauge,
    cost: Histogram,
    alert: IntGauge,
    alerts: IntCounter,
    last_comparison: Gauge,
}

// === impl Patrol ===

impl Patrol {
    pub(super) fn new(make: &Maker<'_>) -> Result<Self, prometheus::Error> {
        let made = Self {
            glances: make.counters(
                "glances_total",
                "Looks for signs that others changed something in the kernel, by what they found.",
                &["result"],
            )?,
            passes: make.counters(
                "patrol_passes_total",
                "Passes in which everything in the kernel but the rules was compared with what it should be, part by \
                 part, by their pace: with pauses between the parts, or without.",
                &["pace"],
            )?,
            duration: make.number(
                "patrol_pass_duration_seconds",
                "How long the last pass took from its beginning to its end, pauses included.",
            )?,
            cost: make.histogram(
                "patrol_pass_cost_seconds",
                "How long a pass took to read and compare, without its pauses.",
            )?,
            alert: make.gauge(
                "patrol_alert",
                "Whether the patrol goes on without pauses, because the kernel was not as it had \
                 been left: 1, or else 0.",
            )?,
            alerts: make.counter("patrol_alerts_total", "How often it began to do so.")?,
            last_comparison: make.number(
                "last_comparison_timestamp_seconds",
                "When everything in the kernel but the rules was last compared with what it should be, in seconds since \
                 1970.",
            )?,
        };
        for value in GLANCES {
            made.glances.with_label_values(&[value]);
        }
        for value in PACES {
            made.passes.with_label_values(&[value]);
        }
        Ok(made)
    }

    /// The signs were looked for, and were as expected or not.
    pub fn glanced(&self, as_expected: bool) {
        self.glances.with_label_values(&[glance(&as_expected)]).inc();
    }

    /// The patrol goes on without pauses from now on, or with them.
    pub fn set_alert(&self, alert: bool) {
        if alert && self.alert.get() == 0 {
            self.alerts.inc();
        }
        self.alert.set(i64::from(alert));
    }

    /// The patrol has been everywhere.
    pub fn pass_ended(&self, pass: &Pass, now: SystemTime) {
        self.passes.with_label_values(&[pace(&pass.alert)]).inc();
        self.duration.set(pass.took.as_secs_f64());
        self.cost.observe(pass.cost.as_secs_f64());
        self.compared(now);
    }

    /// All of the kernel was compared with what it should be.
    pub fn compared(&self, now: SystemTime) {
        self.last_comparison.set(seconds(now));
    }
}
