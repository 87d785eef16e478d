//! The clients that the program has: one connection, whose credentials are renewed, at a rate for each use.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use kube::Client;
use tracing::info;

use super::client::{ClientError, ClientOptions, ClientProblem, host_and_port, make};
use super::measured::ClientMetrics;
use super::server_addresses::Destination;
use super::{renew, transport};

/// Clients for the API server, over the same connections. Each has a rate of its own, so that
/// Events do not delay what is followed.
#[derive(Clone)]
pub struct Clients {
    /// For following objects.
    pub objects: Client,
    /// For recording Events.
    pub events: Client,
    /// For what an operator asks.
    pub questions: Client,
    /// True if what is followed is asked for in JSON alone.
    pub(super) only_json: bool,
    /// Metrics of both.
    pub metrics: ClientMetrics,
    /// Number of nodes that endpoints are on, once slices are followed: up to twice as many where
    /// nodes have gone.
    pub n_nodes: Arc<AtomicUsize>,
    /// Hosts that connections go to: the API server, and the proxy before it.
    pub(super) destinations: Vec<Destination>,
}

/// Clients for the API server. They do not connect before they are used.
///
/// A token file is read again for every request, so a token may be replaced at any time. Files of
/// certificates are read again every minute, and those of a client when the server refuses it. A
/// program that prints credentials is asked again before they expire, and when they are refused.
///
/// # Errors
/// When the files with the API server's address or our credentials cannot be used.
pub async fn clients(options: &ClientOptions) -> Result<Clients, ClientError> {
    let made = make(options).await?;
    let server = host_and_port(&made.server);
    let metrics = ClientMetrics::new(&server).map_err(|error| ClientProblem::Credentials {
        server: server.clone(),
        error: error.into(),
    })?;
    // Failures to connect do not say where to.
    match &made.proxy {
        None => info!("API server: {server}"),
        Some(proxy) => info!("API server: {server}, through the proxy {proxy}"),
    }
    let destinations = [Some(&made.server), made.proxy.as_ref()].into_iter().flatten();
    let destinations = destinations.filter_map(Destination::of).collect();
    let client = renew::client(options, made, metrics.clone());
    let at_rate = || {
        let rate = transport::Rate::new(options.qps, options.burst);
        transport::at_rate(client.clone(), rate)
    };
    Ok(Clients {
        objects: at_rate(),
        events: at_rate(),
        questions: at_rate(),
        only_json: options.only_json,
        metrics,
        n_nodes: Arc::default(),
        destinations,
    })
}
