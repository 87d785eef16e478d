//! Servers of the program: health, metrics, health checks of Services, and pages to look into.
//!
//! ```text
//!   event loop ──Observer─▶ observer ──▶ health ◀──────── probes          /healthz /livez /readyz
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
//! - `probes` and [`pages`]: what is answered at which path;
//! - [`listeners`] outlive a tenure, so that no check of a load balancer fails at a switch.
//!
//! Nothing here is encrypted or authenticated, as in kube-proxy: bind the metrics address to a
//! network that only permitted clients reach.

pub mod health;
pub mod listen;
pub mod listeners;
pub mod metrics;
pub mod observer;
pub mod pages;
mod probes;
pub mod service_health;
#[cfg(test)]
mod tests;
pub mod version;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plan::model::Family;
use plan::settings::NodePortAddresses;
use tokio::sync::mpsc;

use health::{Moment, SharedHealth};
use listen::ListenError;
use listeners::Listeners;
use metrics::Metrics;
use observer::ServerObserver;
use pages::Pages;
use service_health::{ListenFailure, Scope};

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

/// Everything that is served in a tenure.
#[derive(Debug)]
pub struct Servers {
    health_address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    hard_fail: bool,
    pages: Pages,
    metrics: Arc<Metrics>,
    listeners: Arc<Listeners>,
}

impl Servers {
    /// Nothing is listened on by it yet. Service health checks that cannot be served are sent to `failures`.
    pub fn new(
        options: Options,
        failures: mpsc::Sender<ListenFailure>,
        listeners: Arc<Listeners>,
    ) -> Result<Self, prometheus::Error> {
        let Options { families, sync_period, node_port_addresses, .. } = options;
        let timeout = sync_period.saturating_mul(2);
        listeners.health.lock().begin(&families, timeout, Moment::now());
        let mode = &options.pages.mode;
        let metrics = Arc::new(Metrics::new(mode.effective, &families)?);
        metrics.own.set_mode(mode);
        // Before the event loop knows of any check.
        let scope =
            Scope { families, node_port_addresses, metrics: Arc::clone(&metrics), failures };
        listeners.checks.begin(scope);
        Ok(Self {
            health_address: options.health_address,
            metrics_address: options.metrics_address,
            hard_fail: options.hard_fail,
            pages: options.pages,
            metrics,
            listeners,
        })
    }

    /// Returns the observer for the event loop.
    #[must_use]
    pub fn observer(&self) -> ServerObserver {
        let updates = self.listeners.checks.clone();
        ServerObserver::new(self.health(), Arc::clone(&self.metrics), updates)
    }

    /// Returns the shared health, to report there if the node is about to leave the cluster.
    #[must_use]
    pub fn health(&self) -> SharedHealth {
        self.listeners.health.clone()
    }

    /// Returns the metrics, for the parts of the program that measure themselves.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Serves until it is dropped. The listeners stay.
    ///
    /// # Errors
    /// With `hard_fail`, when one of the two servers cannot listen.
    pub async fn run(self) -> Result<Infallible, ListenError> {
        listen::raise_open_files();
        let Listeners { health, health_server, metrics_server, .. } = &*self.listeners;
        health_server.show(probes::router(health, &self.metrics));
        metrics_server.show(pages::router(self.pages, &self.metrics));
        self.listeners.answer_checks();
        let hard_fail = self.hard_fail;
        tokio::try_join!(
            health_server.listen_on(self.health_address, hard_fail),
            metrics_server.listen_on(self.metrics_address, hard_fail),
        )?;
        std::future::pending().await
    }
}
