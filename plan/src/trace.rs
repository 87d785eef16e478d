//! A packet's way through this node, without sending it: rules that it matches, sets that know it, the
//! virtual server that it comes to, endpoints that could be chosen, and the source that they see.
//!
//! There is no second model of the rules. What is followed are the rules as they are written to the
//! kernel, looked up in the entries, virtual servers and addresses that the planner wants there; a
//! rule whose text is not understood ends the trace with an error.
//!
//! The packet is the first one of its connection, and connection tracking knows nothing of it.
//! Rules of other programs are not known here, and built-in chains accept.

mod client;
mod native;
mod packet;
mod planned;
mod rule;
#[cfg(test)]
mod tests;
mod walk;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::kernel_objects::{Entry, Frontend, VirtualServer};
use crate::model::{Protocol, ServiceName};
use crate::planner::Planner;
use crate::rule_set::Table;
use crate::sets::SetId;
use crate::settings::FastPath;
pub use client::Client;
pub use packet::{Origin, Packet};
pub use rule::UnreadableRule;

/// The ways that a packet can take: one for each endpoint that could be chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The Service that the destination belongs to.
    pub service: Option<ServiceName>,
    /// The ways, in no order. Never none.
    pub ways: Vec<Way>,
}

/// A way, and where it ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// Events on it, in order.
    pub steps: Vec<Step>,
    /// The packet's end.
    pub fate: Fate,
    /// Share of connections that take this way: none where it depends on the connections that there
    /// are, or on the client.
    pub share: Option<f64>,
}

/// Event on a packet's way.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// A rule that holds for it.
    Rule {
        /// The hook at which it is met.
        hook: Hook,
        /// The rule's table.
        table: Table,
        chain: String,
        /// Its place in the chain, from 1.
        number: usize,
        /// Its text.
        rule: String,
        /// The entries by which sets know the packet.
        entries: Vec<(SetId, Entry)>,
    },
    /// It has another mark from here on.
    Marked { mark: u32 },
    /// Its destination was changed.
    Translated {
        /// The new destination.
        to: SocketAddr,
    },
    /// The kernel decides by the destination whether the packet is for this node.
    Routed {
        /// True if it is.
        is_local: bool,
    },
    /// It comes to a virtual server, which chooses this endpoint among others.
    Balanced {
        /// The virtual server.
        frontend: Frontend,
        /// Its parameters of balancing.
        server: VirtualServer,
        endpoint: SocketAddr,
        /// The endpoint's weight.
        weight: u32,
    },
    /// Later packets of its connection do not come to the virtual server.
    LaterPackets {
        /// Their carrier.
        by: FastPath,
    },
    /// It comes to the relay of mode userspace, on this port.
    Relayed {
        /// The address and port.
        proxy_port: SocketAddr,
    },
}

/// Hook of the kernel's network stack at which rules are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// A packet has come in.
    Prerouting,
    /// It is for this node.
    Input,
    /// It is for another host.
    Forward,
    /// This node sends it.
    Output,
    /// It leaves.
    Postrouting,
}

/// End of a packet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// An endpoint gets it.
    Endpoint {
        endpoint: SocketAddr,
        /// The source that it sees.
        source: Source,
    },
    /// An endpoint on another node gets it from a client on another node, and answers the client by
    /// itself: past this node, which alone could give the answer the address that the client asked.
    Unanswered {
        endpoint: SocketAddr,
        /// The client's address, which the endpoint sees.
        client: IpAddr,
    },
    /// The client is refused at once.
    Refused {
        /// How: as iptables names it.
        by: String,
    },
    /// It vanishes.
    Dropped,
    /// It reaches this node's own processes.
    Delivered,
    /// It is routed on as it is: it is no business of ours.
    PassedOn,
}

/// Source of a packet, as the endpoint sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The client's.
    Client(IpAddr),
    /// An address of this node, by masquerading.
    Node,
}

impl Planner {
    /// Follows a packet by what was planned last.
    ///
    /// # Errors
    /// When a rule on its way cannot be read.
    pub fn trace(&self, packet: &Packet) -> Result<Trace, UnreadableRule> {
        let planned = planned::Planned::new(self, packet);
        let ways = walk::walk(&planned, packet)?;
        Ok(Trace { service: planned.service().cloned(), ways })
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint { endpoint, source } => write!(f, "{endpoint}, which sees {source}"),
            Self::Unanswered { endpoint, client } => {
                write!(
                    f,
                    "{endpoint}, which answers {client} directly, past this node: the client \
                           drops the answer"
                )
            }
            Self::Refused { by } => write!(f, "refused ({by})"),
            Self::Dropped => f.write_str("dropped: the client gets no answer"),
            Self::Delivered => f.write_str("delivered to a process on this node"),
            Self::PassedOn => f.write_str("routed on as it is"),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(address) => write!(f, "the client, {address}"),
            Self::Node => f.write_str("an address of this node"),
        }
    }
}

impl Hook {
    /// The built-in chain of this hook.
    #[must_use]
    pub const fn chain(self) -> &'static str {
        match self {
            Self::Prerouting => "PREROUTING",
            Self::Input => "INPUT",
            Self::Forward => "FORWARD",
            Self::Output => "OUTPUT",
            Self::Postrouting => "POSTROUTING",
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.chain())
    }
}

/// Returns a packet's destination as a frontend.
fn frontend(protocol: Protocol, destination: SocketAddr) -> Frontend {
    Frontend { address: destination.ip(), protocol, port: destination.port() }
}
