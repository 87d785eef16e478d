//! Traffic through virtual servers: what the kernel counted, and the connections that there are.
//!
//! A reader has a socket of its own, so that neither a reading waits for a change to be written nor
//! a change for a reading. The kernel holds its lock for one message of an answer at a time.

use plan::kernel_objects::Frontend;

use super::{ReadError, translate};

/// Traffic that the kernel counted for a virtual server since it was made. The counters stand still
/// where the estimators do: [`estimators::are_running`](super::estimators::are_running).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrafficCounters {
    /// Connections that were scheduled.
    pub connections: u64,
    /// Packets from clients.
    pub incoming_packets: u64,
    /// Packets to clients, as far as they pass through this node.
    pub outgoing_packets: u64,
    /// Bytes from clients.
    pub incoming_bytes: u64,
    /// Bytes to clients, as far as they pass through this node.
    pub outgoing_bytes: u64,
}

/// Connections of a virtual server's real servers at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CurrentConnections {
    /// Established connections; of UDP, all.
    pub active: u64,
    /// Connections that begin or end.
    pub inactive: u64,
    /// Those among both whose real server has weight 0, which it has while it drains.
    pub draining: u64,
}

/// Reader of the traffic through virtual servers.
#[derive(Debug)]
pub struct TrafficReader(ipvs::Client);

impl TrafficReader {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, ReadError> {
        ipvs::Client::open().map(Self).map_err(|error| ReadError::new("IPVS", error))
    }

    /// Lists the virtual servers of all programs, except those by firewall mark, with what they
    /// counted. One request, whose answer comes in parts.
    pub fn counters(&mut self) -> Result<Vec<(Frontend, TrafficCounters)>, ReadError> {
        let unread = |error| ReadError::new("counters of virtual servers", error);
        let listed = self.0.list_services().map_err(unread)?;
        let known = listed.iter().filter_map(|found| {
            let frontend = translate::frontend(&found.server.id)?;
            Some((frontend, TrafficCounters::from(&found.statistics)))
        });
        Ok(known.collect())
    }

    /// Reads the connections of virtual servers, in the same order: a request for each. One that is
    /// gone has none.
    pub fn connections(
        &mut self,
        frontends: &[Frontend],
    ) -> Result<Vec<CurrentConnections>, ReadError> {
        let read = |frontend: &Frontend| {
            let id = translate::virtual_server_id(frontend);
            let real_servers = self.0.list_destinations(&id).map_err(|error| {
                ReadError::new(format!("connections of the virtual server {frontend}"), error)
            })?;
            Ok(real_servers.iter().fold(CurrentConnections::default(), |sum, real| sum.with(real)))
        };
        frontends.iter().map(read).collect()
    }
}

impl From<&ipvs::Statistics> for TrafficCounters {
    fn from(statistics: &ipvs::Statistics) -> Self {
        Self {
            connections: statistics.connections,
            incoming_packets: statistics.incoming_packets,
            outgoing_packets: statistics.outgoing_packets,
            incoming_bytes: statistics.incoming_bytes,
            outgoing_bytes: statistics.outgoing_bytes,
        }
    }
}

impl TrafficCounters {
    /// The traffic since an earlier reading of the same virtual server. A counter that went back was
    /// begun anew: the virtual server was made again, or its counters were zeroed.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.combined(earlier, |now, before| now.checked_sub(before).unwrap_or(now))
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combined(other, u64::saturating_add)
    }

    /// Bytes in both directions.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.incoming_bytes.saturating_add(self.outgoing_bytes)
    }

    fn combined(&self, other: &Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            connections: combine(self.connections, other.connections),
            incoming_packets: combine(self.incoming_packets, other.incoming_packets),
            outgoing_packets: combine(self.outgoing_packets, other.outgoing_packets),
            incoming_bytes: combine(self.incoming_bytes, other.incoming_bytes),
            outgoing_bytes: combine(self.outgoing_bytes, other.outgoing_bytes),
        }
    }
}

impl CurrentConnections {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            active: self.active.saturating_add(other.active),
            inactive: self.inactive.saturating_add(other.inactive),
            draining: self.draining.saturating_add(other.draining),
        }
    }

    fn with(self, real: &ipvs::RealServerStatus) -> Self {
        let (active, inactive) =
            (u64::from(real.active_connections), u64::from(real.inactive_connections));
        let draining = if real.server.weight == 0 { active + inactive } else { 0 };
        self.plus(Self { active, inactive, draining })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(connections: u64, bytes: u64) -> TrafficCounters {
        TrafficCounters { connections, incoming_bytes: bytes, ..TrafficCounters::default() }
    }

    #[test]
    fn a_counter_that_went_back_was_begun_anew() {
        assert_eq!(counters(7, 900).since(&counters(5, 400)), counters(2, 500));
        assert_eq!(counters(7, 900).since(&counters(7, 900)), TrafficCounters::default());
        assert_eq!(counters(3, 100).since(&counters(5, 400)), counters(3, 100));
    }

    #[test]
    fn sums_end_at_the_largest_number() {
        let sum = counters(u64::MAX, 1).plus(&counters(2, 3));
        assert_eq!((sum.connections, sum.bytes()), (u64::MAX, 4));
    }
}
