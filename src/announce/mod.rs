//! Says on the objects themselves what their users must see: Events of the Kubernetes API.
//!
//! Best effort, and never in the way: an announcement that cannot be delivered soon is logged and
//! dropped; whatever is announced is in the log too.
//!
//! A problem that is the same on every node is announced once a cluster, not once a node: the
//! Event's name is made from what it says, so that the first node's Event is the only one. Of a
//! large cluster a few nodes try, and not all at once. What is still wrong is announced again an
//! hour or two later, by others: Events are kept for an hour.

mod pace;
mod publish;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};

use plan::model::ServiceName;
use plan::problem::Problem;
use tokio::sync::mpsc;
use tracing::debug;

pub use publish::{Identity, Publisher};

/// Capacity of the queue of announcements to publish. Further announcements are dropped.
const QUEUE: usize = 256;

/// The API takes notes of up to 1,024 bytes (events.k8s.io/v1 Event, `note`).
const LONGEST_NOTE: usize = 1_024;

/// Message to publish as an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// Object that the announcement is about.
    pub regarding: Regarding,
    /// `type`: tells if something is wrong.
    pub severity: Severity,
    /// `reason`: one word for machines.
    pub reason: &'static str,
    /// `action`: what was tried.
    pub action: &'static str,
    /// `note`: a sentence for people.
    pub note: String,
    /// Nodes that say it: every node, or this one alone.
    pub extent: Extent,
}

/// Object that an announcement is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Regarding {
    /// This node.
    Node,
    /// A Service.
    Service(ServiceName),
    /// An EndpointSlice.
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

/// Nodes that have the same to say: all of them, or this one alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Every node says it: once is enough.
    Cluster,
    /// It concerns this node alone.
    ThisNode,
}

/// Takes announcements. Never waits.
#[derive(Debug, Clone)]
pub struct Announcer {
    queue: Option<mpsc::Sender<Announcement>>,
    standing: Standing,
}

/// The other end of an [`Announcer`].
#[derive(Debug)]
pub struct Outlet {
    queue: mpsc::Receiver<Announcement>,
    standing: Standing,
}

/// Problems that Services have now. Of those that have none nothing is kept.
type Standing = Arc<Mutex<HashMap<ServiceName, Vec<Problem>>>>;

// === impl Announcer ===

impl Announcer {
    /// An announcer, and what a [`Publisher`] takes from it.
    #[must_use]
    pub fn new() -> (Self, Outlet) {
        let (sender, queue) = mpsc::channel(QUEUE);
        let standing = Standing::default();
        (Self { queue: Some(sender), standing: Arc::clone(&standing) }, Outlet { queue, standing })
    }

    /// Returns an announcer that announces nothing, for use without an API server.
    #[must_use]
    pub fn silent() -> Self {
        Self { queue: None, standing: Standing::default() }
    }

    /// Says it soon, or never.
    pub fn announce(&self, announcement: Announcement) {
        let Some(queue) = &self.queue else { return };
        if let Err(error) = queue.try_send(announcement) {
            debug!("not announced, too much is waiting: {error}");
        }
    }

    /// Says what is newly wrong with a Service.
    pub fn problems(&self, service: &ServiceName, problems: &[Problem]) {
        problems.iter().for_each(|problem| self.announce(Announcement::of(service, problem)));
    }

    /// Keeps in mind what is wrong with a Service from now on, so that it is said again while it is
    /// so.
    pub fn stand(&self, service: &ServiceName, problems: &[Problem]) {
        if self.queue.is_none() {
            return;
        }
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        if problems.is_empty() {
            standing.remove(service);
        } else {
            standing.insert(service.clone(), problems.to_vec());
        }
    }
}

// === impl Outlet ===

impl Outlet {
    /// Announcements of the problems that Services have now and every node sees.
    fn standing(&self) -> Vec<Announcement> {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        let each = standing.iter().flat_map(|(service, problems)| {
            problems.iter().map(|problem| Announcement::of(service, problem))
        });
        // Of what one node sees, each node would make an Event every hour.
        each.filter(|announcement| announcement.extent == Extent::Cluster).collect()
    }
}

// === impl Announcement ===

impl Announcement {
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

    /// The Event's name: `<object>.<sixteen hexadecimal digits>`. `unique` tells those apart that
    /// are to be told apart.
    fn event_name(&self, object: &str, uid: &str, unique: u64) -> String {
        let mut hasher = DefaultHasher::new();
        (&self.regarding, uid, self.reason, &self.note).hash(&mut hasher);
        if self.extent == Extent::ThisNode {
            unique.hash(&mut hasher);
        }
        // A name has 253 bytes at most; an object's own has 63 in practice, 253 in theory.
        let object: String = object.chars().take(200).collect();
        format!("{object}.{:016x}", hasher.finish())
    }

    /// The note, as long as it may be.
    fn short_note(&self) -> &str {
        let ends = self.note.char_indices().map(|(start, letter)| start + letter.len_utf8());
        let end = ends.take_while(|end| *end <= LONGEST_NOTE).last().unwrap_or_default();
        self.note.get(..end).unwrap_or_default()
    }
}

fn reason(problem: &Problem) -> &'static str {
    match problem {
        Problem::ImpossibleAddress { .. } => "AddressNotPossible",
        Problem::AddressOfNode { .. } => "AddressOfNode",
        Problem::FrontendTaken { .. } => "FrontendTaken",
        Problem::FrontendTwice { .. } => "FrontendTwice",
        Problem::ShortCircuitTaken { .. } => "ShortCircuitTaken",
        Problem::NoShortCircuit { .. } => "NoShortCircuit",
        Problem::InsideShortCircuitNetwork { .. } => "AddressInsideShortCircuitNetwork",
        Problem::SchedulerMissing { .. } => "SchedulerMissing",
        Problem::NoNodePortAddress { .. } => "NoNodePortAddress",
        Problem::SchedulerNotAllowed { .. } => "SchedulerNotAllowed",
        Problem::LimitReached { .. } => "LimitReached",
        Problem::More { .. } => "MoreProblems",
    }
}
