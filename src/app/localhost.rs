//! Node ports on localhost, if the operator wants them.

use anyhow::Context as _;
use tokio::sync::mpsc;

use super::QUEUE;
use crate::events::{EventRecorder, Extent, NewEvent, Regarding, Severity};
use crate::localhost::{self, LocalhostObserver, Meters, NodePortListenFailure};
use crate::serve::metrics::own::OwnMetrics;

/// Serves node ports on localhost until the observer is dropped, and records an Event for each that
/// cannot be served.
///
/// # Errors
/// When the kernel gives no thread.
pub(super) fn start(
    metrics: &OwnMetrics,
    recorder: EventRecorder,
) -> anyhow::Result<LocalhostObserver> {
    let connections = |result| metrics.localhost_connections_total.with_label_values(&[result]);
    let meters = Meters {
        open: metrics.localhost_connections.clone(),
        passed: connections("passed"),
        failed: connections("failed"),
        refused: connections("refused"),
        listen_failures: metrics.localhost_listen_failures.clone(),
    };
    let (failures, failed) = mpsc::channel(QUEUE);
    tokio::spawn(report(failed, recorder));
    localhost::start(meters, failures).context("start serving node ports on localhost")
}

async fn report(mut failures: mpsc::Receiver<NodePortListenFailure>, recorder: EventRecorder) {
    while let Some(failure) = failures.recv().await {
        recorder.record(NewEvent {
            regarding: Regarding::Service(failure.service.clone()),
            severity: Severity::Warning,
            reason: "FailedToListenOnLocalhost",
            action: "Listen",
            note: failure.to_string(),
            extent: Extent::ThisNode,
        });
    }
}
