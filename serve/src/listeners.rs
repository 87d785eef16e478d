//! Listeners that outlive a tenure, and the health that they answer with.
//!
//! A load balancer may take a node out after one missed check, and reset its connections. So a switch
//! closes no listener: what was known last is answered until the next tenure knows more.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use parking_lot::{Mutex, RwLock};

use super::health::{Health, Moment, SharedHealth};
use super::listen::{self, ListenError, Listener, Server};
use super::service_health::{CheckUpdates, ServiceHealth};

/// Most connections of each of the two servers at once.
const CONNECTIONS: usize = 64;

/// The listeners of all tenures. They close when this is dropped.
#[derive(Debug)]
pub struct Listeners {
    pub(super) health: SharedHealth,
    pub(super) health_server: LastingServer,
    pub(super) metrics_server: LastingServer,
    pub(super) checks: CheckUpdates,
    /// The task of health checks; none before the first tenure.
    services: Mutex<Option<Listener>>,
}

/// A server whose listener outlives a tenure.
#[derive(Debug)]
pub(super) struct LastingServer {
    server: Server,
    /// Pages of the tenure. Connections that are open get those of the next one, too.
    pages: Arc<RwLock<Router>>,
    open: tokio::sync::Mutex<Option<(SocketAddr, Listener)>>,
}

impl Listeners {
    /// None is open yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            // The first tenure says which families there are, and how long something may wait.
            health: SharedHealth::new(Health::new(&[], Duration::ZERO, Moment::now())),
            health_server: LastingServer::new(Server::Health),
            metrics_server: LastingServer::new(Server::Metrics),
            checks: CheckUpdates::default(),
            services: Mutex::default(),
        })
    }

    /// Has Services' health checks answered, if they are not yet.
    pub(super) fn answer_checks(&self) {
        let mut services = self.services.lock();
        let serving = || ServiceHealth::serve(self.checks.clone(), self.health.clone());
        services.get_or_insert_with(|| Listener(tokio::spawn(serving())));
    }
}

impl LastingServer {
    fn new(server: Server) -> Self {
        Self { server, pages: Arc::default(), open: tokio::sync::Mutex::default() }
    }

    /// Answers with these pages from now on.
    pub(super) fn show(&self, pages: Router) {
        *self.pages.write() = pages;
    }

    /// Listens on this address, if it does not yet. The former one is closed when this one answers, or
    /// before that if both have the same port.
    ///
    /// # Errors
    /// With `hard_fail`, when it cannot listen.
    pub(super) async fn listen_on(
        &self,
        address: Option<SocketAddr>,
        hard_fail: bool,
    ) -> Result<(), ListenError> {
        let mut open = self.open.lock().await;
        if open.as_ref().map(|(at, _)| *at) == address {
            return Ok(());
        }
        let port = address.map(|address| address.port());
        if open.as_ref().is_some_and(|(at, _)| port.is_none_or(|port| port == at.port()))
            && let Some((_, former)) = open.take()
        {
            former.close().await;
        }
        let Some(address) = address else { return Ok(()) };
        let listener = listen::listen(self.server, address, hard_fail).await?;
        let serving = listen::serve(listener, current(&self.pages), CONNECTIONS);
        let former = open.replace((address, Listener(tokio::spawn(serving))));
        if let Some((_, former)) = former {
            former.close().await;
        }
        Ok(())
    }
}

/// Answers with the pages that are there when a request comes.
fn current(pages: &Arc<RwLock<Router>>) -> Router {
    let pages = Arc::clone(pages);
    Router::new().fallback(move |request: Request| {
        let router = pages.read().clone();
        async move { TowerToHyperService::new(router).call(request).await }
    })
}
