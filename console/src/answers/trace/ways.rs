//! Ways that differ in the endpoint alone, as one.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use plan::hash::HashSet;
use plan::trace::{Fate, Source, Step, Trace as Planned, Way};

use super::{Choice, End, MOST_ENDPOINTS, TracedStep, TracedWay};

/// Beginning of the name of an endpoint's chain.
const OF_ENDPOINT: &str = "KUBE-SEP-";

/// Events and end of a way, without what its endpoint alone makes different.
type Common = (Vec<String>, End, Option<String>);

/// Returns the ways of a trace, those first by which it arrives, and those that differ in the endpoint
/// alone as one. Of each at most [`MOST_ENDPOINTS`] endpoints are kept.
pub(super) fn merged(trace: &Planned) -> Vec<TracedWay> {
    let mut merged: BTreeMap<(End, Common), TracedWay> = BTreeMap::new();
    for way in &trace.ways {
        let endpoint = match &way.fate {
            Fate::Endpoint { endpoint, .. } | Fate::Unanswered { endpoint, .. } => Some(*endpoint),
            _ => None,
        };
        let steps: Vec<TracedStep> = way.steps.iter().map(|step| traced(step, endpoint)).collect();
        let (end, refused_by) = end(&way.fate);
        let common = steps.iter().map(common).collect();
        let choice = choice(way);
        match merged.entry((end, (common, end, refused_by.clone()))) {
            std::collections::btree_map::Entry::Vacant(place) => {
                let endpoints = choice.into_iter().collect();
                let share = way.share;
                let way = TracedWay { steps, end, refused_by, share, endpoints, more_endpoints: 0 };
                place.insert(way);
            }
            std::collections::btree_map::Entry::Occupied(mut place) => {
                let same = place.get_mut();
                same.share = same.share.zip(way.share).map(|(one, other)| one + other);
                same.endpoints.extend(choice);
            }
        }
    }
    let mut ways: Vec<TracedWay> = merged.into_values().collect();
    ways.sort_by_key(|way| (way.end, std::cmp::Reverse(way.endpoints.len())));
    for way in &mut ways {
        way.endpoints.sort_by_key(|choice| choice.endpoint);
        way.more_endpoints = way.endpoints.len().saturating_sub(MOST_ENDPOINTS);
        way.endpoints.truncate(MOST_ENDPOINTS);
    }
    ways
}

/// Returns the endpoints whose answers, as the planner has it, do not pass this node.
pub(super) fn unanswered(trace: &Planned) -> Vec<SocketAddr> {
    let fates = trace.ways.iter().map(|way| &way.fate);
    fates
        .filter_map(|fate| match fate {
            Fate::Unanswered { endpoint, .. } => Some(*endpoint),
            _ => None,
        })
        .collect()
}

/// Corrects the plan by the routes: this node is between the client and these endpoints.
pub(super) fn set_answered(trace: &mut Planned, answered: &[SocketAddr]) {
    let answered: HashSet<SocketAddr> = answered.iter().copied().collect();
    for way in &mut trace.ways {
        if let Fate::Unanswered { endpoint, client } = way.fate
            && answered.contains(&endpoint)
        {
            way.fate = Fate::Endpoint { endpoint, source: Source::Client(client) };
        }
    }
}

/// Returns the endpoints that see an address of this node.
pub(super) fn masqueraded(ways: &[TracedWay]) -> Vec<SocketAddr> {
    let choices = ways.iter().flat_map(|way| &way.endpoints);
    choices.filter(|choice| choice.is_masqueraded).map(|choice| choice.endpoint).collect()
}

/// Sets the addresses of this node that endpoints see.
pub(super) fn set_own_sources(ways: &mut [TracedWay], sources: &BTreeMap<SocketAddr, IpAddr>) {
    let choices = ways.iter_mut().flat_map(|way| &mut way.endpoints);
    for choice in choices.filter(|choice| choice.is_masqueraded) {
        choice.sees = sources.get(&choice.endpoint).copied();
    }
}

fn traced(step: &Step, of: Option<SocketAddr>) -> TracedStep {
    match step {
        Step::Rule { hook, table, chain, number, rule, entries } => TracedStep::Rule {
            hook: hook.to_string(),
            table: table.name().to_owned(),
            chain: chain.clone(),
            number: *number,
            rule: rule.clone(),
            entries: entries.iter().map(|(set, entry)| format!("{set}: {entry}")).collect(),
            is_of_endpoint: chain.starts_with(OF_ENDPOINT) || rule.contains(OF_ENDPOINT),
        },
        Step::Marked { mark } => TracedStep::Mark { mark: format!("{mark:#x}") },
        Step::Translated { to } => {
            TracedStep::Translation { to: *to, is_of_endpoint: of == Some(*to) }
        }
        Step::Routed { is_local } => TracedStep::Routing { is_local: *is_local },
        Step::Balanced { frontend, server, .. } => TracedStep::VirtualServer {
            address: SocketAddr::new(frontend.address, frontend.port),
            scheduler: server.scheduler.to_string(),
            persistence: server.persistence,
        },
        Step::LaterPackets { by } => TracedStep::LaterPackets { path: (*by).into() },
        Step::Relayed { proxy_port } => TracedStep::Relay { proxy_port: *proxy_port },
    }
}

/// Returns a step without what its endpoint alone makes different. Entries that have an endpoint in
/// them are in rules that hold for that endpoint alone.
fn common(step: &TracedStep) -> String {
    match step {
        TracedStep::Rule { hook, table, chain, number, is_of_endpoint: true, .. } => {
            match chain.strip_prefix(OF_ENDPOINT) {
                Some(_) => format!("{hook} {table} {OF_ENDPOINT} {number}"),
                None => format!("{hook} {table} {chain} {OF_ENDPOINT}"),
            }
        }
        TracedStep::Translation { is_of_endpoint: true, .. } => "translation".to_owned(),
        step => format!("{step:?}"),
    }
}

fn end(fate: &Fate) -> (End, Option<String>) {
    match fate {
        Fate::Endpoint { .. } => (End::Endpoint, None),
        Fate::Unanswered { .. } => (End::Unanswered, None),
        Fate::Refused { by } => (End::Refused, Some(by.clone())),
        Fate::Dropped => (End::Dropped, None),
        Fate::Delivered => (End::Delivered, None),
        Fate::PassedOn => (End::PassedOn, None),
    }
}

fn choice(way: &Way) -> Option<Choice> {
    let (endpoint, source) = match way.fate {
        Fate::Endpoint { endpoint, source } => (endpoint, source),
        Fate::Unanswered { endpoint, client } => (endpoint, Source::Client(client)),
        _ => return None,
    };
    let weight = way.steps.iter().find_map(|step| match step {
        Step::Balanced { weight, .. } => Some(*weight),
        _ => None,
    });
    let (sees, is_masqueraded) = match source {
        Source::Client(address) => (Some(address), false),
        Source::Node => (None, true),
    };
    Some(Choice { endpoint, weight, share: way.share, sees, is_masqueraded })
}
