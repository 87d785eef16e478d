//! Sources of Services, EndpointSlices and the Node.
//!
//! A source delivers [`SourceEvent`]s through a bounded channel, and knows nothing of what is
//! done with them. Dropping the receiver ends the source.
//!
//! - [`object`]: the Kubernetes objects as they are written, reduced to the fields that matter;
//! - [`convert`]: from those objects to the words of `plan`;
//! - [`kubernetes`]: the API of a cluster as the source;
//! - [`manifests`]: a folder of YAML files as the source;
//! - [`inotify`]: changes in a watched directory, of manifests or of the configuration file;
//! - [`pods`]: addresses of a Pod, looked for on demand;
//! - `protobuf`: Protobuf as serde reads JSON.

pub mod convert;
pub mod inotify;
pub mod kubernetes;
pub mod manifests;
pub mod object;
pub mod pods;
mod protobuf;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use plan::event::Event;
use plan::model::Family;
use plan::scheduler::SchedulerName;

/// Time from which the addresses of the cluster's other Nodes are looked up, every quarter of an
/// hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FollowNodes {
    /// From the first Service on that has an address which could be another node's.
    #[default]
    Auto,
    /// From the start.
    Always,
    /// Not at all: other nodes' addresses are not known.
    Never,
}

/// Options of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// This node's name: of the other Nodes only addresses and networks of pods are of interest.
    pub node_name: Arc<str>,
    /// The scheduler of the Services that choose none.
    pub scheduler: SchedulerName,
    /// Time from which the other Nodes are of interest, if they are at all.
    pub follow_nodes: FollowNodes,
}

/// Event that a source delivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceEvent {
    /// Something is different now. What did not change is not delivered again.
    Change(Event),
    /// The change of endpoints that is delivered next goes back to what happened then. It comes
    /// before the change, which may be written as soon as it has been delivered.
    Triggered(Family, SystemTime),
    /// True if this node is about to leave the cluster: load balancers should send nothing new.
    /// Delivered whenever the Node appears or changes.
    NodeLeaving(bool),
    /// Everything that existed when the source started has been delivered. Comes once.
    Complete,
    /// Problem in the input. The source goes on.
    Warning(Warning),
    /// Problem in the input that was reported an hour ago and still exists.
    RepeatedWarning(Warning),
}

/// Problem in the input, in words for its author.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// File, directory or object that is wrong.
    pub subject: WarningSubject,
    /// Problem with the subject, its place there, and what follows from it.
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WarningSubject {
    /// A file or a directory.
    Path(PathBuf),
    /// A Kubernetes object.
    Object {
        kind: &'static str,
        /// Its name, with its namespace if its kind has one.
        name: Arc<str>,
    },
}

impl Options {
    /// For a node of this name, everything else as it is by default.
    pub fn new(node_name: impl Into<Arc<str>>) -> Self {
        Self {
            node_name: node_name.into(),
            scheduler: SchedulerName::default(),
            follow_nodes: FollowNodes::default(),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.text)
    }
}

impl fmt::Display for WarningSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Object { kind, name } => write!(f, "{kind} {name}"),
        }
    }
}
