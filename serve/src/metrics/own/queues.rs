//! Waiting changes, measured when the metrics are asked for.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, IntGaugeVec, Opts, Registry};
use tokio::time::Instant;

use super::maker::options;

/// Function that returns the length of a queue.
pub type Length = Box<dyn Fn() -> usize + Send + Sync>;

/// Waiting changes: the lengths of the queues, and the age of the oldest change.
#[derive(Debug, Clone)]
pub struct Queues(Arc<QueueGauges>);

struct QueueGauges {
    oldest: Gauge,
    lengths: IntGaugeVec,
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    /// Time since which the oldest change that is not written yet has been waiting.
    waiting_since: Option<Instant>,
    /// The queues between threads and tasks, by their names.
    queues: Vec<(&'static str, Length)>,
}

impl Queues {
    /// Registers it. The queues of these names are empty until they are made.
    pub(super) fn new(registry: &Registry, names: &[&str]) -> Result<Self, prometheus::Error> {
        let oldest = Gauge::with_opts(options(
            "kube_ipvs_oldest_pending_change_seconds",
            "Seconds for which the oldest pending change, or the next part of a large Service, has \
             been pending. 0 if there is none.",
        ))?;
        let lengths: Opts = options(
            "kube_ipvs_queue_length",
            "Number of changes queued between the source and the planner, by queue. A full queue \
             makes the source wait.",
        );
        let lengths = IntGaugeVec::new(lengths, &["queue"])?;
        for name in names {
            lengths.with_label_values(&[name]);
        }
        let made = Self(Arc::new(QueueGauges { oldest, lengths, state: Mutex::default() }));
        registry.register(Box::new(made.clone()))?;
        Ok(made)
    }

    /// Sets the time since which the oldest change that is not written yet has been waiting.
    pub fn set_waiting_since(&self, since: Option<Instant>) {
        self.0.state.lock().waiting_since = since;
    }

    /// A queue of this name is there.
    pub fn watch(&self, name: &'static str, length: Length) {
        self.0.state.lock().queues.push((name, length));
    }
}

impl Collector for Queues {
    fn desc(&self) -> Vec<&Desc> {
        [self.0.oldest.desc(), self.0.lengths.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let state = self.0.state.lock();
        let age = state.waiting_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        self.0.oldest.set(age);
        for (name, length) in &state.queues {
            let length = i64::try_from(length()).unwrap_or(i64::MAX);
            self.0.lengths.with_label_values(&[name]).set(length);
        }
        [self.0.oldest.collect(), self.0.lengths.collect()].concat()
    }
}

impl fmt::Debug for QueueGauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues").finish_non_exhaustive()
    }
}
