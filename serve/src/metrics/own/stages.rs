//! Duration of each stage on the way from an event to the kernel.

use std::time::Duration;

use plan::op::PartKind;
use prometheus::{Histogram, HistogramVec};

use super::super::labels::{PARTS, READINGS, part, reading};
use super::maker::Maker;
use kernel::KernelRead;
use kernel::Stopwatch;
use reconcile::observer::Round;

/// Buckets of what objectives are set for: round numbers, of which 2.5 seconds is the objective of the
/// alerts. Whole numbers are written otherwise by newer versions of Prometheus (`1.0`), and would not
/// do in a query.
const LATENCIES: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
];

/// Duration of each stage.
#[derive(Debug, Clone)]
pub struct Stages {
    waiting: Histogram,
    plan: Histogram,
    write: HistogramVec,
    whole: Histogram,
    /// From the arrival of an endpoint change to the kernel, for each change.
    pub(crate) endpoint_change_to_kernel: Histogram,
    read: HistogramVec,
}

impl Stages {
    pub(super) fn new(make: &Maker<'_>) -> Result<Self, prometheus::Error> {
        Ok(Self {
            waiting: make.histogram(
                "kube_ipvs_event_to_plan_duration_seconds",
                "Seconds from receiving a batch's oldest change until the batch starts.",
            )?,
            plan: make.histogram(
                "kube_ipvs_plan_duration_seconds",
                "Seconds to plan the changes of a \
                                                               batch.",
            )?,
            write: make.histograms(
                "kube_ipvs_kernel_write_duration_seconds",
                "Seconds to write a batch of operations to one part of the kernel.",
                "part",
                PARTS,
            )?,
            whole: make.histogram(
                "kube_ipvs_event_to_kernel_duration_seconds",
                "Seconds from receiving a batch's oldest change until the kernel acknowledged the \
                 whole batch.",
            )?,
            endpoint_change_to_kernel: make.histogram_with(
                "kube_ipvs_endpoint_change_to_kernel_duration_seconds",
                "Seconds from receiving a change of an EndpointSlice until the kernel acknowledged \
                 its whole batch. Not counted: changes without effect on this node, and the \
                 initial state.",
                LATENCIES.to_vec(),
            )?,
            read: make.histograms(
                "kube_ipvs_kernel_read_duration_seconds",
                "Seconds that one read of kernel state took, by what was read.",
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

    fn wrote(&self, what: PartKind, took: Duration) {
        self.write.with_label_values(&[part(&what)]).observe(took.as_secs_f64());
    }
}
