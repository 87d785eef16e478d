//! Traffic through virtual servers: what the kernel counted, and the connections that there are.
//!
//! A reader has a socket of its own, so that neither a reading waits for a change to be written nor
//! a change for a reading. The kernel holds its lock for one message of an answer at a time.

use std::net::SocketAddr;

use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::Frontend;

use super::conntrack::TrackedCounts;
use super::counters::ConnectionCount;
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
    /// Established connections.
    pub active: u64,
    /// Connections that begin or end, and all of UDP.
    pub inactive: u64,
    /// Those among both whose real server has weight 0, which it has while it drains.
    pub draining: u64,
}

/// Connections that conntrack carries, on the fast path: IPVS does not know all of them, and what it knows is left out. By
/// default none.
#[derive(Debug, Default)]
pub struct TrackedTraffic {
    counts: TrackedCounts,
    /// Internal frontends, each with the frontend that clients ask.
    led_to: HashMap<Frontend, Frontend>,
    /// Endpoints with such connections that get new ones, each with the frontend that clients ask.
    serving: HashSet<(Frontend, SocketAddr)>,
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

    /// Reads the connections of virtual servers that IPVS carries, in the same order: a request for each.
    /// One that is gone has none.
    pub fn connections(
        &mut self,
        frontends: &[Frontend],
        tracked: &mut TrackedTraffic,
    ) -> Result<Vec<CurrentConnections>, ReadError> {
        let read = |frontend: &Frontend| {
            let id = translate::virtual_server_id(frontend);
            let real_servers = self.0.list_destinations(&id).map_err(|error| {
                ReadError::new(format!("connections of the virtual server {frontend}"), error)
            })?;
            let mut by_ipvs = |real| tracked.without_tracked(frontend, real);
            let none = CurrentConnections::default();
            Ok(real_servers.iter().fold(none, |sum, real| sum.plus(by_ipvs(real))))
        };
        frontends.iter().map(read).collect()
    }
}

impl TrackedTraffic {
    /// Connections to these frontends, as clients see them, which conntrack carries. `led_to` has the internal frontends among
    /// the virtual servers that will be read.
    #[must_use]
    pub fn new(counts: TrackedCounts, led_to: HashMap<Frontend, Frontend>) -> Self {
        Self { counts, led_to, serving: HashSet::default() }
    }

    /// Returns the numbers by frontend. What no virtual server that was read has in use drains.
    #[must_use]
    pub fn by_frontend(&self) -> HashMap<Frontend, CurrentConnections> {
        let mut sums: HashMap<Frontend, CurrentConnections> = HashMap::default();
        for (frontend, endpoint, count) in self.counts.iter() {
            let ConnectionCount { active, inactive } = count;
            let is_serving = self.serving.contains(&(frontend, endpoint));
            let draining = if is_serving { 0 } else { count.total() };
            let sum = sums.entry(frontend).or_default();
            *sum = sum.plus(CurrentConnections { active, inactive, draining });
        }
        sums
    }

    /// Returns the connections to a real server that IPVS carries, and notes its weight.
    fn without_tracked(
        &mut self,
        frontend: &Frontend,
        real: &ipvs::RealServerStatus,
    ) -> CurrentConnections {
        let asked = self.led_to.get(frontend);
        let tracked = (*asked.unwrap_or(frontend), real.server.socket_address());
        if real.server.weight > 0 && self.counts.get(&tracked.0, tracked.1).total() > 0 {
            self.serving.insert(tracked);
        }
        match asked {
            Some(_) => CurrentConnections::default(),
            None => CurrentConnections::of(real),
        }
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

    fn of(real: &ipvs::RealServerStatus) -> Self {
        let (active, inactive) =
            (u64::from(real.active_connections), u64::from(real.inactive_connections));
        let draining = if real.server.weight == 0 { active + inactive } else { 0 };
        Self { active, inactive, draining }
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
