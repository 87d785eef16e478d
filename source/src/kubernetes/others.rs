//! The cluster's other nodes: their addresses and networks of pods, and the wait for them.
//!
//! A Service that has another node's address as its own, by mistake or on purpose, would make that
//! node unreachable from this one: every packet to it would end here. If it is the API server's,
//! the Nodes could not be listed any more, so the mistake would stay. The first Services whose
//! addresses could be another node's therefore wait until these are known, though not for long.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plan::event::Event;
use plan::model::OtherNode;

use crate::{FollowNodes, SourceEvent};

/// Longest time that Services wait for the other nodes' addresses, once. A list takes a fraction of
/// a second.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The other nodes. Those of which nothing is known are as if they were not there.
#[derive(Debug, Default)]
pub(super) struct OtherNodes {
    nodes: HashMap<Arc<str>, KnownNode>,
    list: u32,
}

#[derive(Debug)]
struct KnownNode {
    node: OtherNode,
    /// The last list that it was on.
    list: u32,
}

/// Holds back what comes, from the first Service on that has an address which could be another
/// node's, until these are known, or are not to be had.
#[derive(Debug)]
pub(super) struct Gate {
    state: GateState,
    /// Cause that was last reported for a failed list of them.
    reported: Option<String>,
}

#[derive(Debug)]
enum GateState {
    /// No event has needed the other nodes yet.
    Idle,
    /// Until then.
    Closed { until: Instant, held: Vec<SourceEvent> },
    /// For good.
    Open,
}

impl OtherNodes {
    pub(super) fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
    }

    /// Removes the nodes that were there and were not on the list.
    pub(super) fn end_list(&mut self) -> Vec<Event> {
        let list = self.list;
        let gone = self.nodes.extract_if(|_, node| node.list != list);
        let mut gone: Vec<_> = gone.map(|(name, _)| name).collect();
        gone.sort();
        gone.into_iter().map(Event::OtherNodeRemoved).collect()
    }

    /// A node is there, or is different now. A node's status changes every few minutes; its
    /// addresses hardly ever. Its networks of pods never do once it has them (ValidateNodeUpdate in
    /// pkg/apis/core/validation/validation.go), so a row of a Table, which lacks them, takes none away.
    pub(super) fn apply(&mut self, name: Arc<str>, mut node: OtherNode) -> Option<Event> {
        let former = self.nodes.get(&name).map(|former| &former.node);
        if let Some(former) = former.filter(|_| node.pod_cidrs.is_empty()) {
            node.pod_cidrs.clone_from(&former.pod_cidrs);
        }
        if node.is_empty() {
            return self.remove(&name);
        }
        let is_same = former == Some(&node);
        let new = KnownNode { node: node.clone(), list: self.list };
        self.nodes.insert(Arc::clone(&name), new);
        (!is_same).then_some(Event::OtherNodeApplied(name, node))
    }

    /// A node is on the list, and cannot be decoded.
    pub(super) fn keep(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.list = self.list;
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Event> {
        self.nodes.remove_entry(name).map(|(name, _)| Event::OtherNodeRemoved(name))
    }
}

impl Gate {
    pub(super) fn new(follow: FollowNodes) -> Self {
        let state = match follow {
            FollowNodes::Auto | FollowNodes::Always => GateState::Idle,
            FollowNodes::Never => GateState::Open,
        };
        Self { state, reported: None }
    }

    /// Returns the event if it may go on, and true if the gate is closed from now on.
    pub(super) fn pass(&mut self, event: SourceEvent, now: Instant) -> (Option<SourceEvent>, bool) {
        if let GateState::Idle = self.state
            && could_be_another_nodes(&event)
        {
            self.state = GateState::Closed { until: now + PATIENCE, held: vec![event] };
            return (None, true);
        }
        match &mut self.state {
            GateState::Closed { held, .. } if !is_about_another_node(&event) => {
                held.push(event);
                (None, false)
            }
            _ => (Some(event), false),
        }
    }

    /// Returns the time until which what is held back waits; nothing if the gate is not closed.
    pub(super) fn until(&self) -> Option<Instant> {
        match self.state {
            GateState::Closed { until, .. } => Some(until),
            GateState::Idle | GateState::Open => None,
        }
    }

    /// Opens the gate for good. What was held back, in order.
    pub(super) fn open(&mut self) -> Vec<SourceEvent> {
        match std::mem::replace(&mut self.state, GateState::Open) {
            GateState::Closed { held, .. } => held,
            GateState::Idle | GateState::Open => Vec::new(),
        }
    }

    /// Notes that the other nodes cannot be listed. Returns true if the cause is to be reported.
    pub(super) fn failed(&mut self, cause: &str) -> bool {
        let is_new = self.reported.as_deref() != Some(cause);
        self.reported = Some(cause.to_owned());
        is_new
    }

    /// Notes that they can be listed. Returns true if a failure had been reported.
    pub(super) fn works(&mut self) -> bool {
        self.reported.take().is_some()
    }
}

fn could_be_another_nodes(event: &SourceEvent) -> bool {
    match event {
        SourceEvent::Change(Event::ServiceApplied(service)) => {
            !service.external.is_empty() || !service.load_balancer.is_empty()
        }
        _ => false,
    }
}

/// True if it matters which networks the pods of other nodes have: no internal frontend is there.
pub(super) fn depends_on_pod_networks(event: &SourceEvent) -> bool {
    match event {
        SourceEvent::Change(Event::ServiceApplied(service)) => service.is_external_policy_local(),
        _ => false,
    }
}

fn is_about_another_node(event: &SourceEvent) -> bool {
    matches!(event, SourceEvent::Change(Event::OtherNodeApplied(..) | Event::OtherNodeRemoved(_)))
}

#[cfg(test)]
mod tests {
    use plan::model::{Family, ObjectName};

    use super::*;
    use crate::convert::Converter;

    fn service(name: &str, rest: &str) -> SourceEvent {
        let text = format!(
            "metadata: {{name: {name}, namespace: n}}\n\
             spec: {{clusterIP: 10.96.0.1, {rest}}}"
        );
        let object = serde_saphyr::from_str(&text).unwrap();
        SourceEvent::Change(Converter::default().service(&object).unwrap().event)
    }

    fn outer() -> SourceEvent {
        service("outer", "externalIPs: [198.51.100.1]")
    }

    fn other() -> SourceEvent {
        let address = "198.51.100.1".parse().unwrap();
        SourceEvent::Change(Event::OtherNodeApplied("b".into(), OtherNode::at(vec![address])))
    }

    #[test]
    fn the_first_service_that_matters_closes_the_gate_for_all_but_the_nodes() {
        let now = Instant::now();
        for follow in [FollowNodes::Auto, FollowNodes::Always] {
            let mut gate = Gate::new(follow);
            assert_eq!(gate.pass(service("a", ""), now), (Some(service("a", "")), false));
            assert_eq!(gate.until(), None);
            assert_eq!(gate.pass(outer(), now), (None, true));
            assert_eq!(gate.until(), Some(now + PATIENCE));
            let removed = SourceEvent::Change(Event::ServiceRemoved(ObjectName::new("n", "outer")));
            let at = std::time::SystemTime::UNIX_EPOCH;
            let held = [SourceEvent::Triggered(Family::V4, at), removed, SourceEvent::Complete];
            for event in &held {
                assert_eq!(gate.pass(event.clone(), now), (None, false));
            }
            assert_eq!(gate.pass(other(), now), (Some(other()), false));
            let mut expected = vec![outer()];
            expected.extend(held);
            assert_eq!(gate.open(), expected);
            assert_eq!((gate.pass(outer(), now), gate.until()), ((Some(outer()), false), None));
            assert_eq!(gate.open(), []);
        }
    }

    #[test]
    fn what_is_known_already_is_not_waited_for() {
        let mut gate = Gate::new(FollowNodes::Always);
        assert_eq!(gate.open(), []);
        assert_eq!(gate.pass(outer(), Instant::now()), (Some(outer()), false));
        let mut never = Gate::new(FollowNodes::Never);
        assert_eq!(never.pass(outer(), Instant::now()), (Some(outer()), false));
    }

    #[test]
    fn a_cause_is_reported_once() {
        let mut gate = Gate::new(FollowNodes::Auto);
        assert!(!gate.works());
        assert!(gate.failed("403"));
        assert!(!gate.failed("403"));
        assert!(gate.failed("503"));
        assert!(gate.works());
        assert!(!gate.works());
        assert!(gate.failed("403"));
    }
}
