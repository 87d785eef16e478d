//! Readings of IPVS' counters.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use plan::kernel_objects::Frontend;
use tokio::time::Instant;

use super::Rates;
use crate::answers::{FailureAnswer, Reason};
use kernel::traffic::{TrafficCounters, TrafficReader};
use kernel::translate;

/// Counters of all virtual servers at one time.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    /// Time that it took.
    pub(super) took: Duration,
    pub(super) servers: HashMap<Frontend, TrafficCounters>,
}

/// A real server of a virtual server.
#[derive(Debug, Clone, Copy)]
pub(super) struct RealServerTraffic {
    pub(super) endpoint: SocketAddr,
    pub(super) counted: TrafficCounters,
    /// Rates as the kernel estimates them.
    pub(super) estimated: Rates,
    pub(super) active: u64,
    pub(super) inactive: u64,
    pub(super) weight: u32,
}

impl Reading {
    /// Reads the counters of all virtual servers. Those by firewall mark are no Service's.
    pub(super) fn now() -> Result<Self, FailureAnswer> {
        let began = Instant::now();
        let mut reader = TrafficReader::open().map_err(|error| unread(&error))?;
        let servers = reader.counters().map_err(|error| unread(&error))?.into_iter().collect();
        Ok(Self { at: Instant::now(), took: began.elapsed(), servers })
    }
}

/// Reads the real servers of these virtual servers. One that has gone has none.
pub(super) fn real_servers(
    frontends: &[Frontend],
) -> Result<Vec<(Frontend, Vec<RealServerTraffic>)>, FailureAnswer> {
    let mut ipvs = ipvs::Client::open().map_err(|error| unread(&error))?;
    let mut read = |frontend: &Frontend| {
        let id = translate::virtual_server_id(frontend);
        let listed = ipvs.list_destinations(&id).map_err(|error| unread(&error))?;
        Ok((*frontend, listed.iter().map(RealServerTraffic::of).collect()))
    };
    frontends.iter().map(&mut read).collect()
}

/// Returns the rates between two readings that are so many seconds apart.
pub(super) fn rates(now: &TrafficCounters, former: &TrafficCounters, seconds: f64) -> Rates {
    let difference = now.since(former);
    let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    Rates {
        connections: rate(difference.connections),
        packets_in: rate(difference.incoming_packets),
        packets_out: rate(difference.outgoing_packets),
        bytes_in: rate(difference.incoming_bytes),
        bytes_out: rate(difference.outgoing_bytes),
    }
}

impl RealServerTraffic {
    fn of(found: &ipvs::RealServerStatus) -> Self {
        let statistics = &found.statistics;
        Self {
            endpoint: found.server.socket_address(),
            counted: TrafficCounters::from(statistics),
            estimated: Rates {
                connections: statistics.connection_rate as f64,
                packets_in: statistics.incoming_packet_rate as f64,
                packets_out: statistics.outgoing_packet_rate as f64,
                bytes_in: statistics.incoming_byte_rate as f64,
                bytes_out: statistics.outgoing_byte_rate as f64,
            },
            active: found.active_connections.into(),
            inactive: found.inactive_connections.into(),
            weight: found.server.weight,
        }
    }
}

fn unread(error: &dyn std::fmt::Display) -> FailureAnswer {
    FailureAnswer::new(Reason::Unavailable, format!("cannot read IPVS counters: {error}"))
}
