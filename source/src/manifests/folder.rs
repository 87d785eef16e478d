//! Objects in the files of a folder, all together. No I/O: contents in, events out.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use plan::event::Event;
use plan::model::{ServiceName, SliceName};
use tracing::debug;

use super::object::Object;
use super::parse::parse;
use crate::convert::{Converted, Converter, Nameless};
use crate::object;
use crate::{FollowNodes, Options, Warning, WarningSubject};

/// A file's name within the folder.
pub type FileName = Arc<str>;

/// The files of a folder, and the objects that are in force because of them.
///
/// An object that several files hold is in force as the first file by name has it; when that one
/// no longer holds it, the next one's takes over.
#[derive(Debug)]
pub struct Folder {
    directory: PathBuf,
    node_name: Arc<str>,
    follow_nodes: FollowNodes,
    converter: Converter,
    files: HashMap<FileName, Contents>,
    /// Files that hold each object.
    holders: HashMap<ObjectKey, BTreeSet<FileName>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileChange {
    Read(Vec<u8>),
    /// It is there but cannot be read, for this reason. What it held stays in force.
    Unreadable(String),
    /// It is not there any more.
    Gone,
}

/// Result of changes of files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FolderScan {
    /// Events for what is different now.
    pub events: Vec<Event>,
    /// Problems in the files that changed.
    pub warnings: Vec<Warning>,
}

/// Objects that a file holds. A Service that is not to be balanced is held as nothing: it still
/// claims its name.
type Contents = HashMap<ObjectKey, Option<Event>>;

/// An object that a file can hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum ObjectKey {
    Node,
    /// Before Services: the owner of an address has to be known before a Service asks for it.
    OtherNode(Arc<str>),
    Service(ServiceName),
    Slice(SliceName),
}

/// State of an object before a batch of changes.
#[derive(Debug)]
struct FormerState {
    in_force: Option<Event>,
    holders: BTreeSet<FileName>,
}

/// Converts the objects of one file, one after the other.
struct FolderReader<'a> {
    folder: &'a mut Folder,
    file: &'a FileName,
    contents: Contents,
    warnings: &'a mut Vec<Warning>,
    ignored: BTreeMap<String, usize>,
}

impl Folder {
    /// An empty folder. `directory` is only named in warnings.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>, options: &Options) -> Self {
        Self {
            directory: directory.into(),
            node_name: Arc::clone(&options.node_name),
            follow_nodes: options.follow_nodes,
            converter: Converter::new(options.scheduler.clone()),
            files: HashMap::new(),
            holders: HashMap::new(),
        }
    }

    /// Takes what became of some files. An object that moves from one of them to another one does
    /// not change.
    pub fn apply(
        &mut self,
        changes: impl IntoIterator<Item = (FileName, FileChange)>,
    ) -> FolderScan {
        let mut before = BTreeMap::new();
        let mut warnings = Vec::new();
        for (file, change) in changes {
            let contents = match change {
                FileChange::Gone => Contents::new(),
                FileChange::Unreadable(reason) => {
                    warnings.push(self.still_in_force(&file, "cannot be read", &reason));
                    continue;
                }
                FileChange::Read(bytes) => match self.read(&file, &bytes, &mut warnings) {
                    Ok(contents) => contents,
                    Err(warning) => {
                        warnings.push(warning);
                        continue;
                    }
                },
            };
            self.replace(&file, contents, &mut before);
        }
        let events = self.differences(before, &mut warnings);
        FolderScan { events, warnings }
    }

    fn read(
        &mut self,
        file: &FileName,
        bytes: &[u8],
        warnings: &mut Vec<Warning>,
    ) -> Result<Contents, Warning> {
        let objects = parse(bytes)
            .map_err(|error| self.still_in_force(file, "does not parse", &error.to_string()))?;
        let mut reading = FolderReader {
            folder: self,
            file,
            contents: Contents::with_capacity(objects.len()),
            warnings,
            ignored: BTreeMap::new(),
        };
        objects.into_iter().for_each(|object| reading.take(object));
        Ok(reading.finish())
    }

    fn still_in_force(&self, file: &FileName, what: &str, reason: &str) -> Warning {
        let follows = match self.files.get(file) {
            Some(_) => "its former content stays in use",
            None => "none of its objects are in use",
        };
        self.warning(file, format!("{what}: {reason}; {follows}"))
    }

    fn warning(&self, file: &FileName, text: String) -> Warning {
        Warning { subject: WarningSubject::Path(self.directory.join(&**file)), text }
    }

    /// Puts new contents in the place of a file's old ones, and notes what was before.
    fn replace(
        &mut self,
        file: &FileName,
        contents: Contents,
        before: &mut BTreeMap<ObjectKey, FormerState>,
    ) {
        let old = self.files.get(file).into_iter().flat_map(HashMap::keys);
        for key in old.chain(contents.keys()) {
            if !before.contains_key(key) {
                let holders = self.holders.get(key).cloned().unwrap_or_default();
                before.insert(key.clone(), FormerState { in_force: self.in_force(key), holders });
            }
        }
        for key in self.files.get(file).into_iter().flat_map(HashMap::keys) {
            if contents.contains_key(key) {
                continue;
            }
            if let Some(holders) = self.holders.get_mut(key) {
                holders.remove(file);
                if holders.is_empty() {
                    self.holders.remove(key);
                }
            }
        }
        for key in contents.keys() {
            self.holders.entry(key.clone()).or_default().insert(Arc::clone(file));
        }
        if contents.is_empty() {
            self.files.remove(file);
        } else {
            self.files.insert(Arc::clone(file), contents);
        }
    }

    fn in_force(&self, key: &ObjectKey) -> Option<Event> {
        let holder = self.holders.get(key)?.first()?;
        self.files.get(holder)?.get(key)?.clone()
    }

    fn differences(
        &self,
        before: BTreeMap<ObjectKey, FormerState>,
        warnings: &mut Vec<Warning>,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for (key, before) in before {
            let after = self.in_force(&key);
            if after != before.in_force {
                events.extend(after.or_else(|| key.removal()));
            }
            let Some(holders) = self.holders.get(&key) else { continue };
            let Some(first) = holders.first() else { continue };
            if *holders == before.holders {
                continue;
            }
            for file in holders.iter().skip(1) {
                let text = format!("{key} is also in {first}; that definition is in use");
                warnings.push(self.warning(file, text));
            }
        }
        events
    }
}

impl FolderReader<'_> {
    fn take(&mut self, object: Object) {
        let converter = &mut self.folder.converter;
        let converted = match object {
            Object::Service(service) => converter.service(&service),
            Object::EndpointSlice(slice) => converter.slice(&slice),
            Object::Node(node)
                if node.metadata.name.as_ref().is_some_and(|n| **n != *self.folder.node_name) =>
            {
                return self.take_other(&node);
            }
            Object::Node(node) => converter.node(&node),
            Object::Other { kind } => {
                *self.ignored.entry(kind).or_default() += 1;
                return;
            }
            Object::Untyped(_) | Object::List(_) => {
                return self.warn("holds an object without apiVersion and kind; left out");
            }
        };
        match converted {
            Ok(converted) => self.hold(converted),
            Err(Nameless { kind }) => {
                self.warn(&format!("holds a {kind} without metadata.name; left out"));
            }
        }
    }

    fn take_other(&mut self, node: &object::Node) {
        if self.folder.follow_nodes == FollowNodes::Never {
            return;
        }
        let converter = &mut self.folder.converter;
        if let Some((name, other)) = converter.other_node(&node.metadata, &node.spec, &node.status)
        {
            // One of which nothing is known holds its name, and is nothing else.
            let is_there = !other.is_empty();
            let event = is_there.then(|| Event::OtherNodeApplied(Arc::clone(&name), other));
            self.insert(ObjectKey::OtherNode(name), event);
        }
    }

    fn hold(&mut self, converted: Converted) {
        let (key, event) = match converted.event {
            Event::ServiceApplied(service) => {
                (ObjectKey::Service(service.name.clone()), Some(Event::ServiceApplied(service)))
            }
            Event::ServiceRemoved(name) => (ObjectKey::Service(name), None),
            Event::SliceApplied(slice) => {
                (ObjectKey::Slice(slice.name.clone()), Some(Event::SliceApplied(slice)))
            }
            Event::SliceRemoved(name) => (ObjectKey::Slice(name), None),
            Event::NodeApplied(node) => (ObjectKey::Node, Some(Event::NodeApplied(node))),
            // Not what these objects become.
            Event::LocalAddresses(_)
            | Event::OtherNodeApplied(..)
            | Event::OtherNodeRemoved(_)
            | Event::ApiServerAddresses(_)
            | Event::SchedulerMissing(_)
            | Event::SchedulerLoaded(_)
            | Event::ProxyPort(..)
            | Event::HandDrainBegan(_)
            | Event::HandDrainEnded(_) => return,
        };
        if !self.insert(key, event) {
            return;
        }
        let file = self.file;
        self.warnings.extend(converted.warnings.into_iter().map(|mut warning| {
            warning.text.push_str(&format!(" (in {file})"));
            warning
        }));
    }

    /// Adds an object. Returns true if it was not there yet.
    fn insert(&mut self, key: ObjectKey, event: Option<Event>) -> bool {
        if self.contents.contains_key(&key) {
            self.warn(&format!("holds {key} twice; the first one is in use"));
            return false;
        }
        self.contents.insert(key, event);
        true
    }

    fn warn(&mut self, text: &str) {
        self.warnings.push(self.folder.warning(self.file, text.to_owned()));
    }

    fn finish(self) -> Contents {
        if !self.ignored.is_empty() {
            debug!(file = &**self.file, kinds = ?self.ignored, "objects of other kinds ignored");
        }
        self.contents
    }
}

impl ObjectKey {
    /// The event that says that the object is gone. A Node that is gone changes nothing.
    fn removal(&self) -> Option<Event> {
        match self {
            Self::Node => None,
            Self::OtherNode(name) => Some(Event::OtherNodeRemoved(Arc::clone(name))),
            Self::Service(name) => Some(Event::ServiceRemoved(name.clone())),
            Self::Slice(name) => Some(Event::SliceRemoved(name.clone())),
        }
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node => f.write_str("this node's Node"),
            Self::OtherNode(name) => write!(f, "Node {name}"),
            Self::Service(name) => write!(f, "Service {name}"),
            Self::Slice(name) => write!(f, "EndpointSlice {name}"),
        }
    }
}
