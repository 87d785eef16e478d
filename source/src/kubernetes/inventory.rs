//! Objects of each kind that have been delivered, and the events that follow from what the API
//! server says. No I/O: steps in, events out.
//!
//! Names are all that is kept of objects, and they are the planner's copies. So an object that
//! comes again as it was is delivered again, after each list; the planner sees that it is the same.
//! Each warning about it is reported once.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use plan::event::Event;
use plan::model::ObjectName;
use tracing::{info, warn};

use super::decode::{Item, Undecodable};
use super::kind::ResourceKind;
use super::others::OtherNodes;
use super::warnings::ReportedWarnings;
use crate::convert::{Converted, Converter, Nameless};
use crate::object::{self, EndpointSlice, Metadata};
use crate::{Options, SourceEvent, Warning, WarningSubject};

/// Step of a list or a watch of the objects of a kind, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WatchStep {
    /// All objects follow, and then [`WatchStep::ListEnds`], or the list fails and begins again.
    ListBegins,
    /// An object of the list.
    Listed(Item),
    ListEnds,
    /// An object is there, or is different now.
    Applied(Item),
    /// An object is gone.
    Deleted(Item),
}

/// Objects that have been delivered.
#[derive(Debug)]
pub(super) struct Inventory {
    node_name: Arc<str>,
    converter: Converter,
    services: Delivered,
    slices: Delivered,
    triggers: Triggers,
    warnings: ReportedWarnings,
    others: OtherNodes,
    /// True if this node's Node was ever there.
    node_seen: bool,
    /// The kinds of which there has not been a complete list yet.
    unlisted: Vec<ResourceKind>,
}

/// The objects of a kind that are in force.
#[derive(Debug, Default)]
struct Delivered {
    /// With each, the last list that it was on.
    lists: HashMap<ObjectName, u32>,
    list: u32,
}

/// Times that tell which changes of endpoints go back to something that happened while we were
/// looking.
///
/// A slice carries the time for as long as it stays as it is, and comes again with every list. To
/// remember the time of every slice would take as much as its name does. Instead: what a watch
/// sends has changed, and counts if it happened after the start. What a list has, counts if it
/// happened after everything that counted before the list began: what nothing was missed of does
/// not count again, and what happened while the API server was away does.
#[derive(Debug)]
struct Triggers {
    started: SystemTime,
    newest: SystemTime,
    newest_before_list: SystemTime,
}

impl Inventory {
    /// Nothing has been delivered yet.
    pub(super) fn new(options: &Options, started: SystemTime) -> Self {
        Self {
            node_name: Arc::clone(&options.node_name),
            converter: Converter::new(options.scheduler.clone()),
            services: Delivered::default(),
            slices: Delivered::default(),
            triggers: Triggers { started, newest: started, newest_before_list: started },
            warnings: ReportedWarnings::default(),
            others: OtherNodes::default(),
            node_seen: false,
            unlisted: ResourceKind::ALL.to_vec(),
        }
    }

    /// Returns the events that follow from a step.
    pub(super) fn take(
        &mut self,
        kind: ResourceKind,
        step: WatchStep,
        now: SystemTime,
    ) -> Vec<SourceEvent> {
        match step {
            WatchStep::ListBegins => {
                self.begin_list(kind);
                Vec::new()
            }
            WatchStep::Listed(item) => {
                let floor = self.triggers.newest_before_list;
                self.apply(item, floor, now)
            }
            WatchStep::Applied(item) => {
                let floor = self.triggers.started;
                self.apply(item, floor, now)
            }
            WatchStep::Deleted(item) => self.delete(&item),
            WatchStep::ListEnds => self.end_list(kind),
        }
    }

    pub(super) fn is_this_node(&self, node: &object::Node) -> bool {
        node.metadata.name.as_deref() == Some(&*self.node_name)
    }

    /// Number of nodes that endpoints are on: up to twice as many where nodes have gone.
    pub(super) fn n_nodes(&self) -> usize {
        self.converter.n_nodes()
    }

    /// Returns the warnings that were reported and still hold.
    pub(super) fn repeated_warnings(&self) -> Vec<SourceEvent> {
        self.warnings.all().cloned().map(SourceEvent::RepeatedWarning).collect()
    }

    fn begin_list(&mut self, kind: ResourceKind) {
        self.warnings.begin_list(kind);
        match kind {
            ResourceKind::Service => self.services.begin_list(),
            ResourceKind::EndpointSlice => {
                self.triggers.newest_before_list = self.triggers.newest;
                self.slices.begin_list();
            }
            ResourceKind::Node => {}
            ResourceKind::OtherNode => self.others.begin_list(),
        }
    }

    fn end_list(&mut self, kind: ResourceKind) -> Vec<SourceEvent> {
        let mut events = match kind {
            ResourceKind::Service => removals(self.services.end_list(), Event::ServiceRemoved),
            ResourceKind::EndpointSlice => removals(self.slices.end_list(), Event::SliceRemoved),
            ResourceKind::Node => self.miss_node(),
            ResourceKind::OtherNode => {
                self.others.end_list().into_iter().map(SourceEvent::Change).collect()
            }
        };
        self.warnings.end_list(kind);
        if !self.unlisted.is_empty() {
            self.unlisted.retain(|unlisted| *unlisted != kind);
            if self.unlisted.is_empty() {
                events.push(SourceEvent::Complete);
            }
        }
        events
    }

    /// Warns that this node's Node does not exist, if it was never seen.
    fn miss_node(&mut self) -> Vec<SourceEvent> {
        if self.node_seen {
            return Vec::new();
        }
        let text = "Node not found; until it exists, /healthz answers 503, and this node's zone \
                    and addresses are not known. If the Node's name differs from the host's, set \
                    it with --hostname-override (hostnameOverride)";
        let subject = WarningSubject::Object {
            kind: ResourceKind::Node.name(),
            name: Arc::clone(&self.node_name),
        };
        let warning = Warning { subject, text: text.to_owned() };
        let metadata = Metadata { name: Some(self.node_name.to_string()), ..Metadata::default() };
        let changed = self.warnings.changed(ResourceKind::Node, &metadata, vec![warning]);
        changed.into_iter().map(SourceEvent::Warning).collect()
    }

    /// `floor`: which triggers are too old to count.
    fn apply(&mut self, item: Item, floor: SystemTime, now: SystemTime) -> Vec<SourceEvent> {
        match item {
            Item::Service(service) => self.apply_service(&service),
            Item::EndpointSlice(slice) => self.apply_slice(&slice, floor, now),
            Item::Node(node) => self.apply_node(&node),
            Item::OtherNode(node) => self.apply_other_node(&node),
            Item::Undecodable(undecodable) => self.refuse(&undecodable),
        }
    }

    fn apply_service(&mut self, service: &object::Service) -> Vec<SourceEvent> {
        let Converted { event, warnings } = match self.converter.service(service) {
            Ok(converted) => converted,
            Err(nameless) => return vec![warning(nameless)],
        };
        let warnings = self.warnings.changed(ResourceKind::Service, &service.metadata, warnings);
        let event = match event {
            Event::ServiceApplied(mut service) => {
                service.name = self.services.add(service.name);
                Some(Event::ServiceApplied(service))
            }
            Event::ServiceRemoved(name) => {
                self.services.remove(&name).then_some(Event::ServiceRemoved(name))
            }
            other => Some(other),
        };
        events(warnings, event).collect()
    }

    fn apply_slice(
        &mut self,
        slice: &EndpointSlice,
        floor: SystemTime,
        now: SystemTime,
    ) -> Vec<SourceEvent> {
        let Converted { event, warnings } = match self.converter.slice(slice) {
            Ok(converted) => converted,
            Err(nameless) => return vec![warning(nameless)],
        };
        let warnings =
            self.warnings.changed(ResourceKind::EndpointSlice, &slice.metadata, warnings);
        let mut triggered = None;
        let event = match event {
            Event::SliceApplied(mut converted) => {
                converted.name = self.slices.add(converted.name);
                let at = slice.triggered_at().filter(|at| self.triggers.counts(*at, floor, now));
                triggered = at.map(|at| SourceEvent::Triggered(converted.family, at));
                Some(Event::SliceApplied(converted))
            }
            Event::SliceRemoved(name) => {
                self.slices.remove(&name).then_some(Event::SliceRemoved(name))
            }
            other => Some(other),
        };
        // Before the change, which may be written as soon as it has been delivered.
        triggered.into_iter().chain(events(warnings, event)).collect()
    }

    fn apply_node(&mut self, node: &object::Node) -> Vec<SourceEvent> {
        // The API server was asked for this node only. One that does not know the field would
        // send all of them.
        if !self.is_this_node(node) {
            return Vec::new();
        }
        self.node_seen = true;
        match self.converter.node(node) {
            Ok(Converted { event, warnings }) => {
                let warnings = self.warnings.changed(ResourceKind::Node, &node.metadata, warnings);
                events(warnings, Some(event))
                    .chain([SourceEvent::NodeLeaving(node.is_leaving())])
                    .collect()
            }
            Err(nameless) => vec![warning(nameless)],
        }
    }

    fn apply_other_node(&mut self, node: &object::OtherNode) -> Vec<SourceEvent> {
        let other = self.converter.other_node(&node.metadata, &node.spec, &node.status);
        let Some((name, other)) = other else { return Vec::new() };
        // A server that does not know the field sends this node's Node too.
        if name == self.node_name {
            return Vec::new();
        }
        self.others.apply(name, other).map(SourceEvent::Change).into_iter().collect()
    }

    fn delete(&mut self, item: &Item) -> Vec<SourceEvent> {
        let (kind, metadata) = match item {
            Item::Service(service) => (ResourceKind::Service, &service.metadata),
            Item::EndpointSlice(slice) => (ResourceKind::EndpointSlice, &slice.metadata),
            Item::Node(node) => (ResourceKind::Node, &node.metadata),
            Item::OtherNode(node) => (ResourceKind::OtherNode, &node.metadata),
            Item::Undecodable(undecodable) => (undecodable.kind, &undecodable.metadata),
        };
        self.warnings.forget(kind, metadata);
        let name = match (kind, self.converter.object_name(kind.name(), metadata)) {
            (ResourceKind::Node, _) => {
                if metadata.name.as_deref() == Some(&*self.node_name) {
                    info!(node = %self.node_name, "Node deleted; its last zone and addresses stay \
                                                   in use");
                }
                return Vec::new();
            }
            (ResourceKind::OtherNode, _) => {
                let name = metadata.name.as_deref().unwrap_or_default();
                return self.others.remove(name).map(SourceEvent::Change).into_iter().collect();
            }
            (_, Ok(name)) => name,
            (_, Err(nameless)) => {
                warn!("deletion of {nameless} ignored: the API server sent no name");
                return Vec::new();
            }
        };
        let event = if kind == ResourceKind::Service {
            self.services.remove(&name).then_some(Event::ServiceRemoved(name))
        } else {
            self.slices.remove(&name).then_some(Event::SliceRemoved(name))
        };
        event.map(SourceEvent::Change).into_iter().collect()
    }

    /// Reports an undecodable object. What was in force of it before stays in force.
    fn refuse(&mut self, undecodable: &Undecodable) -> Vec<SourceEvent> {
        let Undecodable { kind, metadata, problem } = undecodable;
        let (name, is_in_force) = match kind {
            // The kube-ipvs on that node warns of it.
            ResourceKind::OtherNode => {
                self.others.keep(metadata.name.as_deref().unwrap_or_default());
                return Vec::new();
            }
            ResourceKind::Node => {
                self.node_seen = true;
                (metadata.name.clone().unwrap_or_default(), None)
            }
            ResourceKind::Service | ResourceKind::EndpointSlice => {
                let Ok(name) = self.converter.object_name(kind.name(), metadata) else {
                    return vec![warning(Nameless { kind: kind.name() })];
                };
                let delivered = match kind {
                    ResourceKind::Service => &mut self.services,
                    _ => &mut self.slices,
                };
                (name.to_string(), Some(delivered.keep(&name)))
            }
        };
        let follows = match is_in_force {
            Some(false) => "it is left out",
            Some(true) | None => "it stays in force as it was before",
        };
        let subject = WarningSubject::Object { kind: kind.name(), name: name.into() };
        let warning = Warning { subject, text: format!("{problem}; {follows}") };
        let changed = self.warnings.changed(*kind, metadata, vec![warning]);
        changed.into_iter().map(SourceEvent::Warning).collect()
    }

    #[cfg(test)]
    fn names(&self) -> Vec<String> {
        let services = self.services.lists.keys().map(|name| format!("Service {name}"));
        let slices = self.slices.lists.keys().map(|name| format!("EndpointSlice {name}"));
        let mut names: Vec<_> = services.chain(slices).collect();
        names.sort();
        names
    }
}

impl Delivered {
    fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
    }

    /// Removes and returns the objects that were in force and were not on the list.
    fn end_list(&mut self) -> Vec<ObjectName> {
        let list = self.list;
        let mut gone: Vec<_> =
            self.lists.extract_if(|_, last| *last != list).map(|(name, _)| name).collect();
        gone.sort();
        gone
    }

    /// Notes that an object is in force. The name that comes back is the copy that is kept.
    fn add(&mut self, name: ObjectName) -> ObjectName {
        if let Some((known, _)) = self.lists.get_key_value(&name) {
            let known = known.clone();
            self.keep(&known);
            return known;
        }
        self.lists.insert(name.clone(), self.list);
        name
    }

    /// Notes that an object is on the list. Returns true if it is in force.
    fn keep(&mut self, name: &ObjectName) -> bool {
        let list = self.list;
        self.lists.get_mut(name).map(|last| *last = list).is_some()
    }

    /// Removes an object. Returns true if it was in force.
    fn remove(&mut self, name: &ObjectName) -> bool {
        self.lists.remove(name).is_some()
    }
}

impl Triggers {
    fn counts(&mut self, at: SystemTime, floor: SystemTime, now: SystemTime) -> bool {
        // A time that lies ahead must not keep everything until then from counting.
        self.newest = self.newest.max(at.min(now));
        at > floor
    }
}

fn removals(names: Vec<ObjectName>, event: impl Fn(ObjectName) -> Event) -> Vec<SourceEvent> {
    names.into_iter().map(|name| SourceEvent::Change(event(name))).collect()
}

fn events(warnings: Vec<Warning>, event: Option<Event>) -> impl Iterator<Item = SourceEvent> {
    let warnings = warnings.into_iter().map(SourceEvent::Warning);
    warnings.chain(event.map(SourceEvent::Change))
}

fn warning(nameless: Nameless) -> SourceEvent {
    let subject = WarningSubject::Object { kind: nameless.kind, name: "(without a name)".into() };
    SourceEvent::Warning(Warning { subject, text: "has no metadata.name; left out".to_owned() })
}
