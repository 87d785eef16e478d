//! The three transport protocols a service can have, and how a socket of each is made.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// A byte stream.
    Tcp,
    /// Single datagrams.
    Udp,
    /// A byte stream on an association of one address on either side ("one-to-one style").
    Sctp,
}

impl Protocol {
    /// True if a client has to connect before it can send anything.
    pub(crate) fn has_connections(self) -> bool {
        self != Self::Udp
    }

    /// A fresh socket of the calling thread's namespace, of the family of `address`.
    pub(crate) fn socket(self, address: SocketAddr) -> io::Result<Socket> {
        let (kind, protocol) = match self {
            Self::Tcp => (Type::STREAM, socket2::Protocol::TCP),
            Self::Udp => (Type::DGRAM, socket2::Protocol::UDP),
            Self::Sctp => (Type::STREAM, socket2::Protocol::SCTP),
        };
        let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        Ok(socket)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}
