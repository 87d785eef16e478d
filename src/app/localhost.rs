//! Node ports on localhost, if the operator wants them.
//!
//! The thread that listens outlives the time in which the node serves in a mode, so that its
//! connections do. So do its metrics.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGauge, Opts};
use tokio::sync::{mpsc, watch};

use super::threads::QUEUE;
use crate::events::{EventRecorder, NewEvent, Reason, Regarding};
use forwarding::localhost::{
    self, LocalhostObserver, LocalhostThread, Meters, NodePortListenFailure,
};
use serve::metrics::Metrics;

/// Service of node ports on localhost. Copies share it.
#[derive(Debug, Clone)]
pub(super) struct NodePortsOnLocalhost {
    metrics: LocalhostMetrics,
    /// Time that connections have to end when the thread listens no more.
    drain: watch::Sender<Duration>,
    running: Arc<Mutex<Option<LocalhostThread>>>,
    /// Recorder of the time in which the node serves in a mode.
    recorder: Arc<Mutex<EventRecorder>>,
}

/// Metrics of node ports on localhost.
#[derive(Debug, Clone)]
pub(super) struct LocalhostMetrics {
    meters: Meters,
    /// Connections by result, of which the meters have each.
    connections_total: IntCounterVec,
}

impl NodePortsOnLocalhost {
    /// One that does not listen yet.
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let metrics = LocalhostMetrics::new()?;
        let recorder = Arc::new(Mutex::new(EventRecorder::disabled()));
        let drain = watch::Sender::new(Duration::ZERO);
        Ok(Self { metrics, drain, running: Arc::default(), recorder })
    }

    /// Sets the time that connections have to end when the thread listens no more.
    pub(super) fn set_drain(&self, drain: Duration) {
        self.drain.send_replace(drain);
    }

    /// Returns the observer of an event loop, whose node ports are served from now on. Starts the
    /// thread if none runs. Records an Event for each port that cannot be served.
    pub(super) fn observer(&self, recorder: &EventRecorder) -> anyhow::Result<LocalhostObserver> {
        *self.recorder.lock() = recorder.clone();
        let mut running = self.running.lock();
        let thread = match running.take() {
            Some(thread) => thread,
            None => {
                let (failures, failed) = mpsc::channel(QUEUE);
                tokio::spawn(report(failed, Arc::clone(&self.recorder)));
                localhost::start(self.metrics.meters.clone(), failures, self.drain.subscribe())
                    .context("start serving NodePorts on localhost")?
            }
        };
        let observer = thread.observer();
        *running = Some(thread);
        Ok(observer)
    }

    /// Stops listening. Connections have time to end.
    pub(super) fn stop_listening(&self) {
        *self.running.lock() = None;
    }

    /// Adds its metrics.
    pub(super) fn measured_by(&self, metrics: &Metrics) -> Result<(), prometheus::Error> {
        self.metrics.add_to(metrics)
    }
}

async fn report(
    mut failures: mpsc::Receiver<NodePortListenFailure>,
    recorder: Arc<Mutex<EventRecorder>>,
) {
    while let Some(failure) = failures.recv().await {
        recorder.lock().record(NewEvent::warning(
            Regarding::Service(failure.service.clone()),
            Reason::FailedToListenOnLocalhost,
            "Listen",
            failure.to_string(),
        ));
    }
}

impl LocalhostMetrics {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let connections_total = IntCounterVec::new(
            Opts::new(
                "kube_ipvs_localhost_connections_total",
                "Number of connections to NodePorts on localhost, by result: passed on, failed \
                 because the Service could not be reached, or refused because the limit was \
                 reached.",
            ),
            &["result"],
        )?;
        let connections = |result| connections_total.with_label_values(&[result]);
        let meters = Meters {
            open: IntGauge::new(
                "kube_ipvs_localhost_connections",
                "Number of open connections to NodePorts on localhost.",
            )?,
            passed: connections("passed"),
            failed: connections("failed"),
            refused: connections("refused"),
            listen_failures: IntGauge::new(
                "kube_ipvs_localhost_listen_failures",
                "Number of NodePorts for which kube-ipvs cannot listen on an address of localhost.",
            )?,
        };
        Ok(Self { meters, connections_total })
    }

    pub(super) fn add_to(&self, metrics: &Metrics) -> Result<(), prometheus::Error> {
        metrics.add(self.meters.open.clone())?;
        metrics.add(self.connections_total.clone())?;
        metrics.add(self.meters.listen_failures.clone())
    }
}
