//! How long each stage takes on the way from an event to the kernel.

use std::time::Duration;

use prometheus::{Histogram, HistogramVec};

use super::super::labels::{PARTS, READINGS, part, reading};
use super::maker::Maker;
use crate::kernel::Part;
use crate::kernel::Reading;
use crate::kernel::Stopwatch;
use crate::reconcile::observer::Round;

/// How long each stage takes.
#[derive(Debug, Clone)]
pub struct Stages {
    waiting: Histogram,
    plan: Histogram,
    write: HistogramVec,
    whole: Histogram,
    read: HistogramVec,
}

// === impl Stages ===

impl Stages {
    pub(super) fn new(make: &Maker<'_>) -> Result<Self, prometheus::Error> {
        Ok(Self {
            waiting: make.histogram(
                "event_to_plan_duration_seconds",
                "For how long the oldest change of a round had waited when the round began.",
            )?,
            plan: make
                .histogram("plan_duration_seconds", "How long it took to plan what had changed.")?,
            write: make.histograms(
                "kernel_write_duration_seconds",
                "How long it took to write operations for one part of the kernel that went \
                 together.",
                "part",
                PARTS,
            )?,
            whole: make.histogram(
                "event_to_kernel_duration_seconds",
                "From the arrival of the oldest change of a round to the kernel's last answer.",
            )?,
            read: make.histograms(
                "kernel_read_duration_seconds",
                "How long it took to read something from the kernel at once.",
                "what",
                READINGS,
            )?,
        })
    }

    /// What had changed was planned in this time.
    pub fn planned(&self, took: Duration) {
        self.plan.observe(took.as_secs_f64());
    }

    /// A round has ended.
    pub fn round(&self, round: &Round<'_>) {
        if !round.oldest.is_zero() {
            self.waiting.observe(round.oldest.saturating_sub(round.took).as_secs_f64());
            self.whole.observe(round.oldest.as_secs_f64());
        }
    }
}

impl Stopwatch for Stages {
    fn read(&self, what: Reading, took: Duration) {
        self.read.with_label_values(&[reading(&what)]).observe(took.as_secs_f64());
    }

    fn wrote(&self, what: Part, took: Duration) {
        self.write.with_label_values(&[part(&what)]).observe(took.as_secs_f64());
    }
}
