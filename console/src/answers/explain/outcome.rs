//! Outcomes of a client's connections: the ways of a trace, with those together that differ in
//! the endpoint alone.

use std::net::{IpAddr, SocketAddr};

use plan::hash::HashSet;
use plan::model::Protocol;
use plan::planner::Planner;
use plan::trace::{Client, Fate, Origin, Source, Step, Way};
use serde::{Deserialize, Serialize};

/// An outcome of connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Its end.
    pub reached: Reached,
    /// Endpoints that can be chosen.
    pub endpoints: Vec<SocketAddr>,
    /// Number of further ones.
    #[serde(default)]
    pub more_endpoints: usize,
    /// Source that the endpoint sees.
    pub seen: Option<Seen>,
    /// Address and port of the virtual server, if the client was led to another one than it asked for.
    pub internal_frontend: Option<SocketAddr>,
    /// Rules that led there, in order: those that look into a set, mark, translate or refuse.
    pub rules: Vec<Rule>,
}

/// End of connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reached {
    Endpoint,
    /// One of the endpoints, on another node than this one, which answers the client past this node: the
    /// answer comes from an address that the client did not ask, and is lost.
    Unanswered,
    /// The client is rejected, in this way.
    Refused(String),
    /// Its packets are dropped.
    Dropped,
    /// Its packets reach processes of the node itself.
    Node,
    /// Its packets are routed on as they are.
    PassedOn,
}

/// Source that an endpoint sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Seen {
    /// The client's own address.
    Client(IpAddr),
    /// An address of this node, by masquerading.
    Node,
}

/// A rule that a packet met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Built-in chain that it was met from.
    pub hook: String,
    pub table: String,
    pub chain: String,
    /// Its place in the chain, from 1.
    pub number: usize,
    /// Its text.
    pub rule: String,
    /// Entries by which sets know the packet.
    pub entries: Vec<SetEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetEntry {
    /// Name of the set.
    pub set: String,
    /// The entry, as ipset writes it.
    pub entry: String,
}

/// Outcomes, or the reason for which they are not known.
pub(super) type Followed = Result<Vec<Outcome>, String>;

/// Targets of rules that decide about a packet, or change it.
const TARGETS: [&str; 7] =
    ["KUBE-MARK-MASQ", "MASQUERADE", "DROP", "REJECT", "NETMAP", "DNAT", "REDIRECT"];

/// Follows a client's packet by what is planned.
pub(super) fn follow(
    planner: &Planner,
    client: Client,
    origin: Option<Origin>,
    protocol: Protocol,
    destination: SocketAddr,
) -> Followed {
    let packet = planner.packet_of(client, protocol, destination);
    let mut packet = packet.ok_or("this node's addresses are not known")?;
    if let Some(origin) = origin {
        packet.origin = origin;
    }
    let trace = planner.trace(&packet).map_err(|error| error.to_string())?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for way in &trace.ways {
        let (outcome, endpoint) = outcome(way, destination);
        match outcomes.iter_mut().find(|it| it.is_same(&outcome)) {
            Some(same) => same.endpoints.extend(endpoint),
            None => {
                let endpoints = endpoint.into_iter().collect();
                outcomes.push(Outcome { endpoints, ..outcome });
            }
        }
    }
    for outcome in &mut outcomes {
        outcome.endpoints.sort_unstable();
        outcome.endpoints.dedup();
    }
    outcomes.sort_by(|one, other| one.endpoints.cmp(&other.endpoints));
    Ok(outcomes)
}

/// Returns outcomes with the knowledge that these endpoints' answers come back by this node.
pub(super) fn corrected(outcomes: Vec<Outcome>, answered: &[SocketAddr]) -> Vec<Outcome> {
    let answered: HashSet<SocketAddr> = answered.iter().copied().collect();
    let mut corrected = Vec::new();
    for outcome in outcomes {
        if outcome.reached != Reached::Unanswered {
            corrected.push(outcome);
            continue;
        }
        let (back, lost): (Vec<_>, Vec<_>) =
            outcome.endpoints.iter().copied().partition(|it| answered.contains(it));
        for (reached, endpoints) in [(Reached::Endpoint, back), (Reached::Unanswered, lost)] {
            if !endpoints.is_empty() {
                corrected.push(Outcome { reached, endpoints, ..outcome.clone() });
            }
        }
    }
    corrected
}

fn outcome(way: &Way, destination: SocketAddr) -> (Outcome, Option<SocketAddr>) {
    let (reached, endpoint, seen) = match &way.fate {
        Fate::Endpoint { endpoint, source } => (Reached::Endpoint, Some(*endpoint), Some(*source)),
        Fate::Unanswered { endpoint, client } => {
            (Reached::Unanswered, Some(*endpoint), Some(Source::Client(*client)))
        }
        Fate::Refused { by } => (Reached::Refused(by.clone()), None, None),
        Fate::Dropped => (Reached::Dropped, None, None),
        Fate::Delivered => (Reached::Node, None, None),
        Fate::PassedOn => (Reached::PassedOn, None, None),
    };
    let seen = seen.map(|source| match source {
        Source::Client(address) => Seen::Client(address),
        Source::Node => Seen::Node,
    });
    let balanced = way.steps.iter().find_map(|step| match step {
        Step::Balanced { frontend, .. } => Some(SocketAddr::new(frontend.address, frontend.port)),
        _ => None,
    });
    let outcome = Outcome {
        reached,
        endpoints: Vec::new(),
        more_endpoints: 0,
        seen,
        internal_frontend: balanced.filter(|at| *at != destination),
        rules: way.steps.iter().filter_map(rule).collect(),
    };
    (outcome, endpoint)
}

/// Returns a rule that decides about the packet, changes it, or looks into a set.
fn rule(step: &Step) -> Option<Rule> {
    let Step::Rule { hook, table, chain, number, rule, entries } = step else { return None };
    let rule = Rule {
        hook: hook.chain().to_owned(),
        table: table.name().to_owned(),
        chain: chain.clone(),
        number: *number,
        rule: rule.clone(),
        entries: entries
            .iter()
            .map(|(set, entry)| SetEntry { set: set.to_string(), entry: entry.to_string() })
            .collect(),
    };
    let looks_into_set = rule.rule.split_whitespace().any(|word| word == "--match-set");
    (TARGETS.contains(&rule.target()) || looks_into_set).then_some(rule)
}

impl Outcome {
    /// True if the client sees no difference, but for the endpoint.
    fn is_same(&self, other: &Self) -> bool {
        self.reached == other.reached
            && self.seen == other.seen
            && self.internal_frontend == other.internal_frontend
    }
}

impl Rule {
    /// Returns its target. It comes after all matches, a comment among them.
    #[must_use]
    pub fn target(&self) -> &str {
        let words: Vec<&str> = self.rule.split_whitespace().collect();
        let jump = words.iter().rposition(|word| ["-j", "-g"].contains(word));
        jump.and_then(|at| words.get(at + 1)).copied().unwrap_or_default()
    }
}
