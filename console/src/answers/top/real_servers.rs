//! Real servers of the virtual servers that are shown, as they were read last.

use std::collections::HashMap;
use std::net::SocketAddr;

use plan::kernel_objects::Frontend;
use tokio::time::Instant;

use super::reading::{self, RealServerTraffic};
use super::{PERIOD, Rates, STALE};

/// Real servers by their virtual server.
#[derive(Debug, Default)]
pub(super) struct RealServers(HashMap<Frontend, ReadRealServers>);

/// Real servers of a virtual server, with their rates.
#[derive(Debug)]
struct ReadRealServers {
    at: Instant,
    real_servers: HashMap<SocketAddr, (RealServerTraffic, Rates)>,
}

impl RealServers {
    /// Returns those of these frontends whose real servers are to be read again: rates need two
    /// readings that are [`PERIOD`] apart. Forgets what is no base for rates any more.
    pub(super) fn next_to_read(&mut self, shown: &[Frontend], now: Instant) -> Vec<Frontend> {
        self.0.retain(|_, read| now.saturating_duration_since(read.at) < STALE);
        let is_due = |frontend: &&Frontend| {
            let read = self.0.get(frontend);
            read.is_none_or(|read| now.saturating_duration_since(read.at) >= PERIOD)
        };
        shown.iter().filter(is_due).copied().collect()
    }

    /// Adds what was read. A real server that was not known has the kernel's own estimate.
    pub(super) fn add(&mut self, found: Vec<(Frontend, Vec<RealServerTraffic>)>, at: Instant) {
        for (frontend, real_servers) in found {
            let former = self.0.remove(&frontend);
            let with_rates = real_servers.into_iter().map(|read| {
                let rates = former.as_ref().and_then(|former| former.rates(&read, at));
                (read.endpoint, (read, rates.unwrap_or(read.estimated)))
            });
            let real_servers = with_rates.collect();
            self.0.insert(frontend, ReadRealServers { at, real_servers });
        }
    }

    /// The real servers of a virtual server, with their rates.
    pub(super) fn of(
        &self,
        frontend: &Frontend,
    ) -> impl Iterator<Item = &(RealServerTraffic, Rates)> {
        self.0.get(frontend).into_iter().flat_map(|read| read.real_servers.values())
    }
}

impl ReadRealServers {
    /// Returns the rates of a real server since then; none: it was not there.
    fn rates(&self, now: &RealServerTraffic, at: Instant) -> Option<Rates> {
        let (before, _) = self.real_servers.get(&now.endpoint)?;
        let seconds = at.saturating_duration_since(self.at).as_secs_f64();
        Some(reading::rates(&now.counted, &before.counted, seconds))
    }
}
