//! Counters and rates of a virtual or real server.

/// Traffic through a virtual server, or to and from a real server, since the server was added or
/// its counters were last zeroed; and the rates of the last seconds.
///
/// The kernel brings them up to date every two seconds, not with every packet.
///
/// Linux before 4.1 counts connections and packets in 32 bits, and they wrap around.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Statistics {
    /// Connections scheduled.
    pub connections: u64,
    /// Packets from clients.
    pub incoming_packets: u64,
    /// Packets to clients, as far as they pass through this host.
    pub outgoing_packets: u64,
    /// Bytes from clients.
    pub incoming_bytes: u64,
    /// Bytes to clients, as far as they pass through this host.
    pub outgoing_bytes: u64,
    /// Connections a second.
    pub connection_rate: u64,
    /// Packets from clients a second.
    pub incoming_packet_rate: u64,
    /// Packets to clients a second.
    pub outgoing_packet_rate: u64,
    /// Bytes from clients a second.
    pub incoming_byte_rate: u64,
    /// Bytes to clients a second.
    pub outgoing_byte_rate: u64,
}
