//! A packet, as far as rules ask for it.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::model::{Family, Protocol};

/// The first packet of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub protocol: Protocol,
    /// Address and port of the client.
    pub source: SocketAddr,
    /// Address and port that it asks for.
    pub destination: SocketAddr,
    /// The way by which it comes.
    pub origin: Origin,
}

/// The way by which a packet comes to this node's rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// This node sends it.
    Node,
    /// It comes in by an interface.
    Interface {
        /// The interface's name.
        name: Arc<str>,
        /// True if it came to a bridge by one of its ports, as a pod's packets do.
        is_by_bridge_port: bool,
    },
}

impl Packet {
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.destination.ip())
    }
}
