//! Events of a tenure about the node, and about what it cannot listen on.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{Ended, Former};
use crate::events::{EventRecorder, NewEvent, Reason, Regarding, Severity};
use serve::listen::{self, ListenError};
use serve::service_health::ListenFailure;

/// Ends the program with an Event, since an address that must be listened on cannot be.
pub(super) async fn give_up(
    ended: Result<Infallible, ListenError>,
    recorder: &EventRecorder,
) -> anyhow::Result<Ended> {
    let Err(error) = ended;
    recorder.record(NewEvent::warning(
        Regarding::Node,
        match error.server {
            listen::Server::Health => Reason::FailedToStartProxierHealthcheck,
            listen::Server::Metrics => Reason::FailedToStartMetricServer,
        },
        "StartKubeProxy",
        error.to_string(),
    ));
    // The program ends with this; the Event gets a second to be published.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Err(error.into())
}

pub(super) async fn report_failures(
    mut failures: mpsc::Receiver<ListenFailure>,
    recorder: EventRecorder,
) {
    while let Some(failure) = failures.recv().await {
        recorder.record(NewEvent::warning(
            Regarding::Service(failure.service.clone()),
            Reason::FailedToStartServiceHealthcheck,
            "Listen",
            failure.to_string(),
        ));
    }
}

/// Records the start of the program. A switch has Events of its own.
pub(super) fn record_start(recorder: &EventRecorder, former: Option<&Former>) {
    if former.is_none() {
        recorder.record(NewEvent::new(
            Regarding::Node,
            Severity::Normal,
            Reason::Starting,
            "StartKubeProxy",
            String::new(),
        ));
    }
}

/// Records what this host lacks.
pub(super) fn record_limits(recorder: &EventRecorder, limits: Vec<String>) {
    for note in limits {
        recorder.record(NewEvent::warning(
            Regarding::Node,
            Reason::HostLimited,
            "PrepareHost",
            note,
        ));
    }
}
