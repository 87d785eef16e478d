//! State that all connections of a proxy port share.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tracing::debug;

use super::balancer::{Balancer, Endpoint};
use super::ports::PortLease;
use super::recency::Recency;
use super::{Meters, ProxyPortId, Settings};
use crate::limit::{Limit, RateLimit};

/// Number of endpoints that are tried for one client, as kube-proxy does.
pub(super) const TRIES: usize = 4;

/// Settings, limits and metrics of all proxy ports.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) meters: Meters,
    pub(super) half_closed_idle: Duration,
    timeouts: Mutex<Timeouts>,
    /// Limit on TCP connections.
    pub(super) connections: Limit,
    /// UDP clients, a limited number.
    pub(super) udp_clients: Recency,
    /// Rate of warnings that no socket can be opened.
    pub(super) socket_warnings: RateLimit,
}

/// Times that another configuration may change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    pub(super) udp_idle: Duration,
    pub(super) drain: Duration,
}

/// A proxy port, shared by all its connections. The port comes back with the last of them.
#[derive(Debug)]
pub(super) struct ProxyPort {
    pub(super) id: ProxyPortId,
    pub(super) shared: Arc<Shared>,
    balancer: Mutex<Balancer>,
    _lease: PortLease,
}

impl Shared {
    pub(super) fn new(settings: &Settings, meters: Meters) -> Self {
        let Settings { half_closed_idle, connections, udp_clients, .. } = *settings;
        let connections = Limit::new(connections, meters.open.clone(), meters.refused.clone());
        let udp_clients =
            Recency::new(udp_clients, meters.udp_clients.clone(), meters.udp_evicted.clone());
        let socket_warnings = RateLimit::default();
        Self {
            meters,
            half_closed_idle,
            timeouts: Mutex::new(Timeouts::of(settings)),
            connections,
            udp_clients,
            socket_warnings,
        }
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        *self.timeouts.lock()
    }

    pub(super) fn reconfigure(&self, settings: &Settings) {
        *self.timeouts.lock() = Timeouts::of(settings);
    }
}

impl Timeouts {
    const fn of(settings: &Settings) -> Self {
        Self { udp_idle: settings.udp_idle, drain: settings.drain }
    }
}

impl ProxyPort {
    pub(super) fn new(id: ProxyPortId, shared: Arc<Shared>, lease: PortLease) -> Arc<Self> {
        // A node begins with any endpoint: many nodes begin at the same time.
        let balancer = Mutex::new(Balancer::new(fastrand::usize(..)));
        Arc::new(Self { id, shared, balancer, _lease: lease })
    }

    pub(super) fn balancer(&self) -> MutexGuard<'_, Balancer> {
        self.balancer.lock()
    }

    /// Chooses an endpoint for a client.
    pub(super) fn choose(&self, client: IpAddr) -> Option<Arc<Endpoint>> {
        self.balancer().choose(client, Instant::now())
    }

    /// Chooses an endpoint for a client in the place of one that failed.
    pub(super) fn choose_another(
        &self,
        client: IpAddr,
        failed: &Arc<Endpoint>,
    ) -> Option<Arc<Endpoint>> {
        self.balancer().choose_another(client, failed, Instant::now())
    }

    /// Counts a failure of an endpoint.
    pub(super) fn endpoint_failed(&self, endpoint: &Endpoint, error: &io::Error) {
        self.shared.meters.endpoint_failures.inc();
        debug!(port = %self.id, endpoint = %endpoint.address, "endpoint failed: {error}");
    }
}
