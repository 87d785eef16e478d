//! Node ports on localhost, if the operator wants them.

use anyhow::Context as _;
use tokio::sync::mpsc;

use super::QUEUE;
use crate::announce::{Announcement, Announcer, Extent, Regarding, Severity};
use crate::localhost::{self, ListenFailure, Meters, Observing};
use crate::serve::metrics::own::OwnMetrics;

/// Serves them from now on, until the observer is dropped, and announces what cannot be served.
///
/// # Errors
/// When the kernel gives no thread.
pub(super) fn start(metrics: &OwnMetrics, announcer: Announcer) -> anyhow::Result<Observing> {
    let connections = |result| metrics.localhost_connections_total.with_label_values(&[result]);
    let meters = Meters {
        open: metrics.localhost_connections.clone(),
        passed: connections("passed"),
        failed: connections("failed"),
        refused: connections("refused"),
        listen_failures: metrics.localhost_listen_failures.clone(),
    };
    let (failures, failed) = mpsc::channel(QUEUE);
    tokio::spawn(report(failed, announcer));
    localhost::start(meters, failures).context("start serving node ports on localhost")
}

async fn report(mut failures: mpsc::Receiver<ListenFailure>, announcer: Announcer) {
    while let Some(failure) = failures.recv().await {
        announcer.announce(Announcement {
            regarding: Regarding::Service(failure.service.clone()),
            severity: Severity::Warning,
            reason: "FailedToListenOnLocalhost",
            action: "Listen",
            note: failure.to_string(),
            extent: Extent::ThisNode,
        });
    }
}
