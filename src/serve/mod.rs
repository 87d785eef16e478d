//! Servers of the program: health, metrics, health checks of Services, and pages to look into.
//!
//! ```text
//!   event loop ──Observer─▶ observer ──▶ health ◀──────── probes          /healthz /livez
//!                               │ ├────▶ metrics ◀─────── pages           /metrics /configz …
//!                               │ └────▶ service_health ─ a listener for each Service and family
//!                               ▼
//!                            no caller waits: short locks, or the latest value for a task
//! ```
//!
//! - [`health`]: whether the proxy is healthy, as pure state; [`metrics`]: what is measured;
//! - [`observer`]: feeds both from the event loop;
//! - [`service_health`] answers load balancers that ask for a Service;
//! - [`listen`]: addresses, and the limits of what a client may do;
//! - `probes` and [`pages`]: what is answered at which path.
//!
//! Nothing here is encrypted or authenticated, as in kube-proxy: bind the metrics address to a
//! network that only permitted clients reach.

pub mod health;
pub mod listen;
pub mod metrics;
pub mod observer;
pub mod pages;
mod probes;
pub mod service_health;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use plan::model::Family;
use plan::settings::NodePortAddresses;
use tokio::sync::mpsc;

use health::{Health, Moment, SharedHealth};
use listen::{ListenError, Server};
use metrics::Metrics;
use observer::ServerObserver;
use pages::Pages;
use service_health::{ListenFailure, ServiceHealth};

/// Most connections of each of the two servers at once.
const CONNECTIONS: usize = 64;

/// Choices of the operator: what is served, and where.
#[derive(Debug)]
pub struct Options {
    /// The families that are served.
    pub families: Vec<Family>,
    /// Period, two of which a change may wait to be written while the proxy is healthy.
    pub sync_period: Duration,
    /// `healthzBindAddress`; none: no such server.
    pub health_address: Option<SocketAddr>,
    /// `metricsBindAddress`; none: no such server.
    pub metrics_address: Option<SocketAddr>,
    /// `bindAddressHardFail`.
    pub hard_fail: bool,
    /// `nodePortAddresses`: where health checks of Services are answered.
    pub node_port_addresses: NodePortAddresses,
    /// Pages of the metrics server.
    pub pages: Pages,
}

/// Everything that is served.
#[derive(Debug)]
pub struct Servers {
    health_address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    hard_fail: bool,
    pages: Pages,
    health: SharedHealth,
    metrics: Arc<Metrics>,
    services: ServiceHealth,
}

// === impl Servers ===

impl Servers {
    /// Nothing listens yet. Service health checks that cannot be served are sent to `failures`.
    ///
    /// # Errors
    /// When two metrics had the same name.
    pub fn new(
        options: Options,
        failures: mpsc::Sender<ListenFailure>,
    ) -> Result<Self, prometheus::Error> {
        let Options { families, sync_period, node_port_addresses, .. } = options;
        let timeout = sync_period.saturating_mul(2);
        let health = SharedHealth::new(Health::new(&families, timeout, Moment::now()));
        let mode = &options.pages.mode;
        let metrics = Arc::new(Metrics::new(mode.effective, &families)?);
        metrics.own.set_mode(mode);
        let services = ServiceHealth::new(
            families,
            node_port_addresses,
            health.clone(),
            Arc::clone(&metrics),
            failures,
        );
        Ok(Self {
            health_address: options.health_address,
            metrics_address: options.metrics_address,
            hard_fail: options.hard_fail,
            pages: options.pages,
            health,
            metrics,
            services,
        })
    }

    /// Returns the observer for the event loop.
    #[must_use]
    pub fn observer(&self) -> ServerObserver {
        ServerObserver::new(self.health.clone(), Arc::clone(&self.metrics), self.services.updates())
    }

    /// Returns the shared health, to report there if the node is about to leave the cluster.
    #[must_use]
    pub fn health(&self) -> SharedHealth {
        self.health.clone()
    }

    /// Returns the metrics, for the parts of the program that measure themselves.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Serves until it is dropped, which closes everything.
    ///
    /// # Errors
    /// With `hard_fail`, when one of the two servers cannot listen.
    pub async fn run(self) -> Result<Infallible, ListenError> {
        listen::raise_open_files();
        let probes = probes::router(&self.health, &self.metrics);
        let pages = pages::router(self.pages, &self.metrics);
        let hard_fail = self.hard_fail;
        tokio::select! {
            ended = serve(Server::Health, self.health_address, probes, hard_fail) => ended,
            ended = serve(Server::Metrics, self.metrics_address, pages, hard_fail) => ended,
            never = self.services.run() => Ok(never),
        }
    }
}

async fn serve(
    server: Server,
    address: Option<SocketAddr>,
    router: Router,
    hard_fail: bool,
) -> Result<Infallible, ListenError> {
    let Some(address) = address else { return std::future::pending().await };
    let listener = listen::listen(server, address, hard_fail).await?;
    Ok(listen::serve(listener, router, CONNECTIONS).await)
}
