//! `/v1/trace`: a packet's way through this node, without sending it.
//!
//! The way is the planner's ([`plan::trace`]). The kernel is asked for what the planner does not know:
//! by which interface a client's packets come, and which address of the node an endpoint sees.

mod sender;
#[cfg(test)]
mod tests;
mod ways;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::State;
use plan::kernel_objects::Frontend;
use plan::model::{Family, Protocol};
use plan::trace::{Client, Origin, Packet, Trace as Planned, UnreadableRule};
use serde::{Deserialize, Serialize};

use super::connections::{self, Connection, Path};
use super::question::Parameters;
use super::{Answer, Content, FailureAnswer, Reason, blocking};
use crate::Desk;
use reconcile::inquiry::View;
use sender::Sender;
pub use sender::{masqueraded_sources, own_sources};

/// Port of the client: no rule asks for it.
const CLIENT_PORT: u16 = 40_000;

/// Most endpoints of a way that are shown. The kernel is asked for what each of them sees.
const MOST_ENDPOINTS: usize = 500;

/// Most connections that are shown with a trace.
const MOST_CONNECTIONS: usize = 100;

/// A packet's ways through this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    /// Mode that the node serves in.
    pub mode: String,
    pub packet: TracedPacket,
    /// The Service that the destination belongs to.
    pub service: Option<String>,
    /// True if it reaches an endpoint on every way.
    pub arrives: bool,
    /// The ways: those that differ in the endpoint alone are one.
    pub ways: Vec<TracedWay>,
    /// Notes to keep in mind.
    pub notes: Vec<String>,
    /// Connections that there are for it, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<Live>,
}

/// Connections that there are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Live {
    /// The connections, or the first of them.
    pub connections: Vec<Connection>,
    /// Number of all.
    pub total: usize,
}

/// A packet: the first one of its connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TracedPacket {
    /// Its protocol: `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Word or address that was asked for.
    pub asked: String,
    /// Address of the client.
    pub source: IpAddr,
    /// Address and port that it asks for.
    pub destination: SocketAddr,
    /// Interface by which it comes in; none: this node sends it.
    pub interface: Option<String>,
}

/// A way, for all endpoints that it is the same for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TracedWay {
    /// Events on it, in order.
    pub steps: Vec<TracedStep>,
    pub end: End,
    /// Kind of the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_by: Option<String>,
    /// Share of new connections that take this way; none: it depends on the connections that there
    /// are, or on the client.
    pub share: Option<f64>,
    /// Endpoints that could be chosen, the first of them by their addresses.
    pub endpoints: Vec<Choice>,
    /// Number of endpoints that are not shown.
    #[serde(default)]
    pub more_endpoints: usize,
}

/// Event on a packet's way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TracedStep {
    /// A rule that holds for it.
    Rule {
        /// Hook of the network stack: the built-in chain.
        hook: String,
        /// The rule's table.
        table: String,
        chain: String,
        /// Its place in the chain, from 1.
        number: usize,
        /// Its text, as `iptables-save` prints it.
        rule: String,
        /// Entries by which sets know the packet: `SET: ENTRY`.
        entries: Vec<String>,
        /// True if there is one for each endpoint, and this is the first endpoint's.
        is_of_endpoint: bool,
    },
    /// It has another mark from here on.
    Mark {
        /// The mark: `0x4000`.
        mark: String,
    },
    /// Its destination was changed.
    Translation {
        /// The new destination: of the first endpoint, if `isOfEndpoint`.
        to: SocketAddr,
        /// True if it is an endpoint.
        is_of_endpoint: bool,
    },
    /// The kernel decides by the destination where it goes.
    Routing {
        /// True if it is for this node.
        is_local: bool,
    },
    /// It comes to a virtual server of IPVS.
    VirtualServer {
        /// Its address and port.
        address: SocketAddr,
        scheduler: String,
        /// Number of seconds for which a client comes back to its endpoint.
        persistence: Option<u32>,
    },
    /// Later packets of its connection do not come to the virtual server.
    LaterPackets {
        /// Their carrier.
        path: Path,
    },
    /// It comes to the relay of mode userspace.
    Relay { proxy_port: SocketAddr },
}

/// End of a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    /// An endpoint gets it.
    Endpoint,
    /// An endpoint on another node gets it, and answers the client past this node: the answer comes from
    /// an address that the client did not ask, and is lost.
    Unanswered,
    /// This node's own processes get it.
    Delivered,
    /// It is routed on as it is.
    PassedOn,
    /// The client is rejected.
    Refused,
    /// It vanishes.
    Dropped,
}

/// An endpoint that could be chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// Address and port.
    pub endpoint: SocketAddr,
    /// Its weight, with IPVS.
    pub weight: Option<u32>,
    /// Share of new connections that come to it.
    pub share: Option<f64>,
    /// Address that it sees; none: one of this node's, and it is not known which.
    pub sees: Option<IpAddr>,
    /// True if it sees an address of this node instead of the client's.
    pub is_masqueraded: bool,
}

/// Parameters of the question.
#[derive(Debug, Clone, Deserialize)]
pub struct Asked {
    /// `node`, `localhost`, `outside`, or an address.
    source: String,
    destination: SocketAddr,
    protocol: Option<String>,
    #[serde(default)]
    live: bool,
}

/// Result of a question to the loop.
struct Followed {
    trace: Result<Planned, UnreadableRule>,
    packet: Packet,
    mode: String,
    notes: Vec<String>,
}

impl Content for Trace {
    const KIND: &'static str = "Trace";
}

/// Answers.
///
/// # Errors
/// When the question makes no sense, or the kernel or the loop has no answer.
pub async fn answer(
    State(desk): State<Arc<Desk>>,
    Parameters(asked): Parameters<Asked>,
) -> Result<Answer<Trace>, FailureAnswer> {
    let protocol = protocol_named(asked.protocol.as_deref().unwrap_or("tcp"))?;
    let destination = asked.destination;
    let word = asked.source.clone();
    let family = Family::of(destination.ip());
    let outside = desk.inquiries.ask(move |view| view.planner.example_outside(family, &[])).await?;
    let outside = outside.and_then(|client| match client {
        Client::Elsewhere(address) => Some(address),
        Client::Node | Client::Pod(_) => None,
    });
    let found = blocking(move || sender::find(&word, destination.ip(), outside)).await??;
    let Sender { mut notes, .. } = found.clone();
    let followed =
        desk.inquiries.ask(move |view| follow(view, &found, protocol, destination)).await??;
    let mut planned = followed.trace.map_err(|error| {
        FailureAnswer::new(
            Reason::Unavailable,
            format!("{error}. Please report this: the trace does not know a rule of kube-ipvs"),
        )
    })?;
    notes.extend(followed.notes);
    let unanswered = ways::unanswered(&planned);
    let interface = name_of(&followed.packet.origin).unwrap_or_default().to_owned();
    let answered = blocking(move || sender::behind_others(unanswered, &interface)).await??;
    ways::set_answered(&mut planned, &answered);
    let mut ways = ways::merged(&planned);
    let nodes = ways::masqueraded(&ways);
    // The relay makes connections of its own.
    let is_relayed = desk.settings.mode.relays();
    let sources = if is_relayed { own_sources } else { masqueraded_sources };
    let sources = blocking(move || sources(nodes)).await??;
    ways::set_own_sources(&mut ways, &sources);
    let packet = traced_packet(&asked.source, &followed.packet);
    let live = if asked.live {
        let client = sender::client_of(&asked.source, packet.source);
        let frontend = Frontend { address: destination.ip(), protocol, port: destination.port() };
        let found = connections::to(&desk, frontend, client, MOST_CONNECTIONS).await?;
        notes.extend(found.incomplete);
        Some(Live { connections: found.connections, total: found.total })
    } else {
        None
    };
    Ok(Answer::new(Trace {
        mode: followed.mode,
        packet,
        service: planned.service.as_ref().map(ToString::to_string),
        arrives: ways.iter().all(|way| way.end == End::Endpoint),
        ways,
        notes,
        live,
    }))
}

/// Returns those of these endpoints whose answers to a client come back by this node, as its routes
/// have it.
pub(super) async fn answered_through(
    client: IpAddr,
    endpoints: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, FailureAnswer> {
    let find = move || match sender::at(client)?.interface {
        Some(interface) => sender::behind_others(endpoints, &interface.name),
        None => Ok(endpoints),
    };
    blocking(find).await?
}

/// Returns the way by which packets of a client come, as this node's routes have it.
pub(super) async fn origin_of(client: IpAddr) -> Result<Origin, FailureAnswer> {
    Ok(blocking(move || sender::at(client)).await??.origin())
}

fn protocol_named(name: &str) -> Result<Protocol, FailureAnswer> {
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let named = all.into_iter().find(|protocol| protocol.name() == name.to_ascii_lowercase());
    named.ok_or_else(|| {
        FailureAnswer::new(
            Reason::BadRequest,
            format!("{name} is not a protocol of Services: use tcp, udp or sctp"),
        )
    })
}

fn follow(
    view: &View<'_>,
    sender: &Sender,
    protocol: Protocol,
    destination: SocketAddr,
) -> Result<Followed, FailureAnswer> {
    let own = view.planner.own_source(destination.ip());
    let source = sender.source.or(own).ok_or_else(|| {
        let family = Family::of(destination.ip());
        FailureAnswer::new(
            Reason::Unavailable,
            format!(
                "this node's {family} address is not known yet: its Node object has none; write \
                 the address instead of `node`"
            ),
        )
    })?;
    let origin = sender.origin();
    let source = SocketAddr::new(source, CLIENT_PORT);
    let packet = Packet { protocol, source, destination, origin };
    let trace = view.planner.trace(&packet);
    let notes = trace.as_ref().map_or_else(|_| Vec::new(), |trace| notes(view, trace));
    let mode = view.planner.settings().mode.to_string();
    Ok(Followed { trace, packet, mode, notes })
}

/// Returns what the kernel does not have of what was traced.
fn notes(view: &View<'_>, trace: &Planned) -> Vec<String> {
    let mut notes = Vec::new();
    if !view.status.in_sync_once {
        notes.push("the kernel is not in sync yet: this trace shows the planned state".to_owned());
    }
    if let Some(age) = view.waiting {
        notes.push(format!(
            "changes are pending, the oldest for {age:.1?}: this trace is without them"
        ));
    }
    if view.status.has_pending_prerequisite {
        notes.push(
            "writing a set, rules, a route or the interface failed and is retried: `kube-ipvs \
             status` names it"
                .to_owned(),
        );
    }
    let Some(service) = &trace.service else { return notes };
    let mut refused: BTreeMap<String, String> = BTreeMap::new();
    for subject in view.planner.asked_for_by(service) {
        if let Some(pending) = view.pending.get(&subject) {
            refused.insert(pending.op.to_string(), pending.refusal.to_string());
        }
    }
    let texts = refused
        .into_iter()
        .map(|(op, refusal)| format!("failed to {op}, which is retried: {refusal}"));
    notes.extend(texts);
    notes
}

fn traced_packet(asked: &str, packet: &Packet) -> TracedPacket {
    TracedPacket {
        protocol: packet.protocol.name().to_owned(),
        asked: asked.to_owned(),
        source: packet.source.ip(),
        destination: packet.destination,
        interface: name_of(&packet.origin).map(str::to_owned),
    }
}

/// Returns the interface by which a packet comes; none: this node sends it.
fn name_of(origin: &Origin) -> Option<&str> {
    match origin {
        Origin::Node => None,
        Origin::Interface { name, .. } => Some(name),
    }
}
