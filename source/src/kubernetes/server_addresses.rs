//! Addresses by which the API server is reached.
//!
//! A Service that had one of them as its own would cut this node off from the API server, and with
//! that from the news that the Service is gone.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::Uri;
use plan::event::Event;
use tokio::net::lookup_host;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info};

use super::transport::SOCKS_PORT;
use crate::SourceEvent;

/// Time after which names are resolved again, and after a failure.
const PERIOD: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(5);

/// Longest time for which Services wait for the first answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time for which an address counts that a name no longer has: connections to it may be open, and
/// balanced names have other addresses in every answer.
const MEMORY: Duration = Duration::from_secs(600);

/// A host and a port to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Destination {
    host: String,
    port: u16,
}

/// Addresses of the API server, and of the proxy before it.
#[derive(Debug)]
pub(super) struct ServerAddresses {
    destinations: Vec<Destination>,
    /// Known addresses, and the time at which each was last seen.
    seen: HashMap<SocketAddr, Instant>,
    /// Addresses that were last delivered, in order.
    delivered: Option<Vec<SocketAddr>>,
}

impl Destination {
    /// The host and port of a URL.
    pub(super) fn of(url: &Uri) -> Option<Self> {
        let host = url.host()?.trim_matches(['[', ']']).to_owned();
        let default = match url.scheme_str() {
            Some("http") => 80,
            Some("socks5" | "socks5h") => SOCKS_PORT,
            _ => 443,
        };
        Some(Self { host, port: url.port_u16().unwrap_or(default) })
    }

    fn is_literal(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok()
    }
}

impl ServerAddresses {
    pub(super) fn new(destinations: Vec<Destination>) -> Self {
        Self { destinations, seen: HashMap::new(), delivered: None }
    }

    /// Delivers the addresses that are known at the start; waits for them a while at most.
    pub(super) async fn begin(&mut self, sink: &Sender<SourceEvent>) {
        let Ok(_) = timeout(PATIENCE, self.resolve()).await else {
            info!(
                "addresses of the API server: no DNS answer within {PATIENCE:?}; kube-ipvs \
                   retries"
            );
            return;
        };
        self.deliver(sink).await;
    }

    /// Resolves the names again and again, and delivers what has changed.
    pub(super) async fn follow(mut self, sink: &Sender<SourceEvent>) {
        if self.destinations.iter().all(Destination::is_literal) {
            return std::future::pending().await;
        }
        let mut is_resolved = self.delivered.is_some();
        loop {
            sleep(if is_resolved { PERIOD } else { RETRY }).await;
            is_resolved = self.resolve().await;
            self.deliver(sink).await;
        }
    }

    /// Resolves all names. Returns true if all have addresses.
    async fn resolve(&mut self) -> bool {
        let mut is_resolved = true;
        for Destination { host, port } in self.destinations.clone() {
            match lookup_host((host.as_str(), port)).await {
                Ok(found) => {
                    let now = Instant::now();
                    self.seen.extend(found.map(|address| (canonical(address), now)));
                }
                Err(error) => {
                    debug!("cannot resolve {host}: {error}; the former addresses stay in use");
                    // No name is forgotten because it cannot be resolved.
                    self.seen.values_mut().for_each(|seen| *seen = Instant::now());
                    is_resolved = false;
                }
            }
        }
        let now = Instant::now();
        self.seen.retain(|_, seen| now - *seen < MEMORY);
        is_resolved
    }

    async fn deliver(&mut self, sink: &Sender<SourceEvent>) {
        let mut addresses: Vec<SocketAddr> = self.seen.keys().copied().collect();
        addresses.sort_unstable();
        if addresses.is_empty() || self.delivered.as_ref() == Some(&addresses) {
            return;
        }
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        info!(
            "addresses of the API server: {}; kube-ipvs serves no Service at them",
            texts.join(", ")
        );
        self.delivered = Some(addresses.clone());
        // The receiver may be gone: then this is the end as well.
        let _ = sink.send(SourceEvent::Change(Event::ApiServerAddresses(addresses))).await;
    }
}

/// Without scope, and an IPv4 address as such.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_host_and_a_port() {
        let of = |url: &str| {
            let Destination { host, port } = Destination::of(&url.parse().unwrap()).unwrap();
            format!("{host} {port}")
        };
        assert_eq!(of("https://192.168.0.200:6443"), "192.168.0.200 6443");
        assert_eq!(of("https://[fd00::200]"), "fd00::200 443");
        assert_eq!(of("http://proxy.example"), "proxy.example 80");
        assert_eq!(of("socks5://proxy.example"), "proxy.example 1080");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_counts_for_a_while_after_it_has_gone() {
        let (sink, mut events) = tokio::sync::mpsc::channel(8);
        let mut next = || match events.try_recv() {
            Ok(SourceEvent::Change(Event::ApiServerAddresses(addresses))) => Some(addresses),
            _ => None,
        };
        let first = Destination { host: "192.168.0.200".to_owned(), port: 6443 };
        let second = Destination { host: "fd00::200".to_owned(), port: 6443 };
        let mut addresses = ServerAddresses::new(vec![first]);
        addresses.begin(&sink).await;
        let former: SocketAddr = "192.168.0.200:6443".parse().unwrap();
        let new: SocketAddr = "[fd00::200]:6443".parse().unwrap();
        assert_eq!(next(), Some(vec![former]));
        addresses.destinations = vec![second];
        addresses.resolve().await;
        addresses.deliver(&sink).await;
        assert_eq!(next(), Some(vec![former, new]));
        tokio::time::advance(MEMORY).await;
        addresses.resolve().await;
        addresses.deliver(&sink).await;
        assert_eq!(next(), Some(vec![new]));
    }
}
