//! Input pump: from the source to the event loop, Events and health.

use plan::event::Event;
use plan::model::{Family, Node, ObjectName};
use tokio::sync::mpsc;
use tracing::warn;

use crate::events::{EventRecorder, Extent, NewEvent, Reason, Regarding, Severity};
use config::Configuration;
use config::warnings::{Mismatch, Situation};
use reconcile::Input;
use serve::health::SharedHealth;
use source::{SourceEvent, Warning, WarningSubject};

/// Passes on the source's events: changes to the event loop, warnings to the log and to Events, the
/// node's leaving to health.
pub(super) struct InputPump {
    inputs: mpsc::Sender<Input>,
    recorder: EventRecorder,
    health: SharedHealth,
    /// Until the Node has been seen with addresses.
    unchecked: Option<Unchecked>,
}

/// Configuration and families to be compared with the Node.
pub(super) struct Unchecked {
    pub(super) configuration: Configuration,
    /// The families that the host can do.
    pub(super) families: Vec<Family>,
}

impl InputPump {
    pub(super) fn new(
        inputs: mpsc::Sender<Input>,
        recorder: EventRecorder,
        health: SharedHealth,
        unchecked: Unchecked,
    ) -> Self {
        Self { inputs, recorder, health, unchecked: Some(unchecked) }
    }

    /// Ends when the source has ended.
    ///
    /// # Errors
    /// When the configuration can only do harm on a node like this one.
    pub(super) async fn run(
        mut self,
        mut events: mpsc::Receiver<SourceEvent>,
    ) -> Result<(), Mismatch> {
        while let Some(event) = events.recv().await {
            let input = match event {
                SourceEvent::Change(event) => {
                    // A kubelet with an external cloud provider registers its Node before that has
                    // given it addresses.
                    if let Event::NodeApplied(node) = &event
                        && !node.addresses.is_empty()
                        && let Some(unchecked) = self.unchecked.take()
                    {
                        unchecked.check(node)?;
                    }
                    self.health.delivered();
                    Input::Change(event)
                }
                SourceEvent::Triggered(family, at) => Input::Triggered(family, at),
                SourceEvent::Complete => Input::Complete,
                SourceEvent::NodeLeaving(leaving) => {
                    self.health.node_leaving(leaving);
                    continue;
                }
                SourceEvent::Warning(warning) => {
                    warn!("{warning}");
                    if let Some(event) = event_of(warning) {
                        self.recorder.record(event);
                    }
                    continue;
                }
                SourceEvent::RepeatedWarning(warning) => {
                    if let Some(event) = event_of(warning) {
                        self.recorder.record(event);
                    }
                    continue;
                }
            };
            if self.inputs.send(input).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

impl Unchecked {
    /// Compares the configuration with the Node. Only a configuration that makes no sense on this
    /// node at all is an error; the rest is a warning.
    fn check(&self, node: &Node) -> Result<(), Mismatch> {
        let checked = self.configuration.check(Situation {
            host: &self.families,
            node_addresses: &node.addresses,
            pod_cidrs: &node.pod_cidrs,
        })?;
        for warning in checked.warnings {
            // A note on the start, as those of `app`: no failure, for `status` to show for ever.
            warn!(target: "kube_ipvs::app", "the configuration may be incomplete or incorrect: {warning}");
        }
        Ok(())
    }
}

/// Returns the Event for the object that a warning is about, if the object is of a kind that has
/// Events.
pub(super) fn event_of(warning: Warning) -> Option<NewEvent> {
    let WarningSubject::Object { kind, name } = warning.subject else { return None };
    let (namespace, name) = name.split_once('/')?;
    let name = ObjectName::new(namespace, name);
    let regarding = match kind {
        "Service" => Regarding::Service(name),
        "EndpointSlice" => Regarding::EndpointSlice(name),
        _ => return None,
    };
    Some(NewEvent {
        regarding,
        severity: Severity::Warning,
        reason: Reason::NotUsable,
        action: "ReadObject",
        note: warning.text,
        extent: Extent::Cluster,
    })
}
