//! From the source's words to the event loop's.

use plan::event::Event;
use plan::model::{Family, Node, ObjectName};
use tokio::sync::mpsc;
use tracing::warn;

use crate::announce::{Announcement, Announcer, Extent, Regarding, Severity};
use crate::config::Configuration;
use crate::config::warnings::{Mismatch, Situation};
use crate::reconcile::Input;
use crate::serve::health::SharedHealth;
use crate::source::{SourceEvent, Subject, Warning};

/// Passes on what the source delivers: changes to the loop, warnings to their readers, whether
/// the node is leaving to those who ask for its health.
pub(super) struct InputPump {
    inputs: mpsc::Sender<Input>,
    announcer: Announcer,
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

// === impl InputPump ===

impl InputPump {
    pub(super) fn new(
        inputs: mpsc::Sender<Input>,
        announcer: Announcer,
        health: SharedHealth,
        unchecked: Unchecked,
    ) -> Self {
        Self { inputs, announcer, health, unchecked: Some(unchecked) }
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
                    if let Some(announcement) = announcement(warning) {
                        self.announcer.announce(announcement);
                    }
                    continue;
                }
                SourceEvent::StillWrong(warning) => {
                    if let Some(announcement) = announcement(warning) {
                        self.announcer.announce(announcement);
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

// === impl Unchecked ===

impl Unchecked {
    /// The Node is not waited for: what depends on it follows it. Only what makes no sense on this
    /// node at all is an error.
    fn check(&self, node: &Node) -> Result<(), Mismatch> {
        let checked = self.configuration.check(Situation {
            host: &self.families,
            node_addresses: &node.addresses,
            pod_cidrs: &node.pod_cidrs,
        })?;
        for warning in checked.warnings {
            warn!("the configuration may be incomplete or incorrect: {warning}");
        }
        Ok(())
    }
}

/// Returns the announcement for the object a warning is about, if that object can have one.
pub(super) fn announcement(warning: Warning) -> Option<Announcement> {
    let Subject::Object { kind, name } = warning.subject else { return None };
    let (namespace, name) = name.split_once('/')?;
    let name = ObjectName::new(namespace, name);
    let regarding = match kind {
        "Service" => Regarding::Service(name),
        "EndpointSlice" => Regarding::EndpointSlice(name),
        _ => return None,
    };
    Some(Announcement {
        regarding,
        severity: Severity::Warning,
        reason: "NotUsable",
        action: "ReadObject",
        note: warning.text,
        extent: Extent::Cluster,
    })
}
