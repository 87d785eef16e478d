//! Events of the Kubernetes API, about this node and about Services and EndpointSlices.
//!
//! Best effort: the recorder never waits, and an Event that cannot be published soon is dropped.
//! Each problem is in the log as well.
//!
//! A problem that is the same on every node leads to one Event in the cluster, not one a node: the
//! Event's name is a hash of its content, so the first node's Event is the only one. In a large
//! cluster a few nodes try, at different times. Events are kept for an hour. A problem that lasts
//! is published again an hour or two later, by other nodes.

mod publish;
mod reason;
#[cfg(test)]
mod tests;
mod throttle;

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use parking_lot::Mutex;
use plan::model::ServiceName;
use plan::problem::Problem;
use tokio::sync::mpsc;
use tracing::debug;

pub use publish::{EventReporter, Publisher};
pub use reason::Reason;

/// Capacity of the queue of Events to publish. Further Events are dropped.
const QUEUE: usize = 256;

/// The API takes notes of up to 1,024 bytes (events.k8s.io/v1 Event, `note`).
const LONGEST_NOTE: usize = 1_024;

/// Event to publish, before it has a name and a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Object that the Event is about.
    pub regarding: Regarding,
    /// `type`.
    pub severity: Severity,
    pub reason: Reason,
    /// `action`: what was tried.
    pub action: &'static str,
    /// `note`: a sentence for people.
    pub note: String,
    /// Nodes on which the same Event arises: every node, or this one alone.
    pub extent: Extent,
}

/// Object that an Event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Regarding {
    Node,
    Service(ServiceName),
    EndpointSlice(ServiceName),
}

/// `type` of an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// For information.
    Normal,
    /// Something is wrong.
    Warning,
}

/// Nodes on which the same Event arises: all of them, or this one alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Every node: one Event for all is enough.
    Cluster,
    /// This node alone.
    ThisNode,
}

/// Records Events for the [`Publisher`]. Never waits.
#[derive(Debug, Clone)]
pub struct EventRecorder {
    queue: Option<mpsc::Sender<NewEvent>>,
    current: CurrentProblems,
}

/// Recorded Events, which a [`Publisher`] takes.
#[derive(Debug)]
pub struct EventQueue {
    recorded: mpsc::Receiver<NewEvent>,
    current: CurrentProblems,
}

/// Problems that Services have now. Services without problems have no entry.
type CurrentProblems = Arc<Mutex<HashMap<ServiceName, Vec<Problem>>>>;

impl EventRecorder {
    /// Returns a recorder, and the queue from which a [`Publisher`] takes its Events.
    #[must_use]
    pub fn new() -> (Self, EventQueue) {
        let (sender, recorded) = mpsc::channel(QUEUE);
        let current = CurrentProblems::default();
        (
            Self { queue: Some(sender), current: Arc::clone(&current) },
            EventQueue { recorded, current },
        )
    }

    /// Returns a recorder that drops all Events, for use without an API server.
    #[must_use]
    pub fn disabled() -> Self {
        Self { queue: None, current: CurrentProblems::default() }
    }

    /// Queues an Event to be published, or drops it if the queue is full.
    pub fn record(&self, event: NewEvent) {
        let Some(queue) = &self.queue else { return };
        let (regarding, reason) = (event.regarding.clone(), event.reason);
        if let Err(error) = queue.try_send(event) {
            debug!("Event {reason} about {regarding} dropped by the queue of {QUEUE}: {error}");
        }
    }

    /// Records an Event for each new problem of a Service.
    pub fn record_problems(&self, service: &ServiceName, problems: &[Problem]) {
        problems.iter().for_each(|problem| self.record(NewEvent::of(service, problem)));
    }

    /// Replaces the problems that a Service has. Their Events are published again for as long as
    /// the Service has them.
    pub fn set_problems(&self, service: &ServiceName, problems: &[Problem]) {
        if self.queue.is_none() {
            return;
        }
        let mut current = self.current.lock();
        if problems.is_empty() {
            current.remove(service);
        } else {
            current.insert(service.clone(), problems.to_vec());
        }
    }
}

impl EventQueue {
    /// Returns the Events of the problems that Services have now and every node sees.
    fn current(&self) -> Vec<NewEvent> {
        let current = self.current.lock();
        let each = current.iter().flat_map(|(service, problems)| {
            problems.iter().map(|problem| NewEvent::of(service, problem))
        });
        // Each node would publish one every hour of the problems that it alone has.
        each.filter(|event| event.extent == Extent::Cluster).collect()
    }
}

impl NewEvent {
    /// Returns an Event that arises on this node alone.
    #[must_use]
    pub fn new(
        regarding: Regarding,
        severity: Severity,
        reason: Reason,
        action: &'static str,
        note: String,
    ) -> Self {
        Self { regarding, severity, reason, action, note, extent: Extent::ThisNode }
    }

    /// Returns an Event that something is wrong on this node alone.
    #[must_use]
    pub fn warning(
        regarding: Regarding,
        reason: Reason,
        action: &'static str,
        note: String,
    ) -> Self {
        Self::new(regarding, Severity::Warning, reason, action, note)
    }

    fn of(service: &ServiceName, problem: &Problem) -> Self {
        Self {
            regarding: Regarding::Service(service.clone()),
            severity: Severity::Warning,
            reason: reason(problem),
            action: "ProgramService",
            note: problem.to_string(),
            extent: match problem {
                Problem::NoNodePortAddress { .. } | Problem::SchedulerMissing { .. } => {
                    Extent::ThisNode
                }
                _ => Extent::Cluster,
            },
        }
    }

    /// Returns the Event's name: `<object>.<sixteen hexadecimal digits>`. `unique` gives each Event
    /// of one node a name of its own.
    fn event_name(&self, object: &str, uid: &str, unique: u64) -> String {
        let mut hasher = DefaultHasher::new();
        (&self.regarding, uid, self.reason.name(), &self.note).hash(&mut hasher);
        if self.extent == Extent::ThisNode {
            unique.hash(&mut hasher);
        }
        // A name has 253 bytes at most; an object's own has 63 in practice, 253 in theory.
        let object: String = object.chars().take(200).collect();
        format!("{object}.{:016x}", hasher.finish())
    }

    /// Returns the note, cut to the length that the API takes.
    fn short_note(&self) -> &str {
        let ends = self.note.char_indices().map(|(start, letter)| start + letter.len_utf8());
        let end = ends.take_while(|end| *end <= LONGEST_NOTE).last().unwrap_or_default();
        self.note.get(..end).unwrap_or_default()
    }
}

impl fmt::Display for Regarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("this node"),
            Self::Service(name) => write!(f, "Service {name}"),
            Self::EndpointSlice(name) => write!(f, "EndpointSlice {name}"),
        }
    }
}

fn reason(problem: &Problem) -> Reason {
    match problem {
        Problem::ImpossibleAddress { .. } => Reason::AddressNotPossible,
        Problem::AddressOfNode { .. } => Reason::AddressOfNode,
        Problem::PortOfListener { .. } => Reason::PortOfListener,
        Problem::AddressOfApiServer { .. } => Reason::AddressOfApiServer,
        Problem::InsidePodNetwork { .. } => Reason::AddressInsidePodNetwork,
        Problem::FrontendTaken { .. } => Reason::FrontendTaken,
        Problem::FrontendTwice { .. } => Reason::FrontendTwice,
        Problem::InternalFrontendTaken { .. } => Reason::InternalFrontendTaken,
        Problem::NoInternalFrontend { .. } => Reason::NoInternalFrontend,
        Problem::SchedulerMissing { .. } => Reason::SchedulerMissing,
        Problem::NoNodePortAddress { .. } => Reason::NoNodePortAddress,
        Problem::SchedulerNotAllowed { .. } => Reason::SchedulerNotAllowed,
        Problem::LimitReached { .. } => Reason::LimitReached,
        Problem::NoEffect { .. } => Reason::NoEffectInMode,
        Problem::TooManyProxyPorts { .. } => Reason::LimitReached,
        Problem::NotRelayed { .. } => Reason::NotServedInMode,
        Problem::NotBalanced { .. } => Reason::NotServedByKernel,
        Problem::More { .. } => Reason::MoreProblems,
    }
}
