//! Duration of each stage on the way from an event to the kernel.

use std::time::Duration;

use prometheus::{Histogram, HistogramVec};

use super::super::labels::{PARTS, READINGS, part, reading};
use super::maker::Maker;
use crate::kernel::KernelRead;
use crate::kernel::Stopwatch;
use crate::kernel::WrittenPart;
use crate::reconcile::observer::Round;

/// Duration of each stage.
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
                "kube_ipvs_event_to_plan_duration_seconds",
                "Time from the arrival of the oldest change of a round to the beginning of the round.",
            )?,
            plan: make
                .histogram("kube_ipvs_plan_duration_seconds", "Time to plan the changes of a round.")?,
            write: make.histograms(
                "kube_ipvs_kernel_write_duration_seconds",
                "Time to write a batch of operations to one part of the kernel.",
                "part",
                PARTS,
            )?,
            whole: make.histogram(
                "kube_ipvs_event_to_kernel_duration_seconds",
                "Time from the arrival of the oldest change of a round to the kernel's last answer.",
            )?,
            read: make.histograms(
                "kube_ipvs_kernel_read_duration_seconds",
                "Time of one reading of the kernel, by what was read.",
                "what",
                READINGS,
            )?,
        })
    }

    /// Records the time in which the changes of a round were planned.
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
    fn read(&self, what: KernelRead, took: Duration) {
        self.read.with_label_values(&[reading(&what)]).observe(took.as_secs_f64());
    }

    fn wrote(&self, what: WrittenPart, took: Duration) {
        self.write.with_label_values(&[part(&what)]).observe(took.as_secs_f64());
    }
}
