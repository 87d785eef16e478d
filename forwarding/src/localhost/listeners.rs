//! Ports of localhost that are listened on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use plan::localhost::LocalhostPort;
use plan::model::ServiceName;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{info, warn};

use super::passing::Passing;
use super::{NodePortListenFailure, PortUpdates};
use crate::listening::{ACCEPT_PAUSE, BACKLOG, ListenRetries};

/// The listeners, and for which Services they are there.
#[derive(Debug)]
pub(super) struct Listeners {
    updates: PortUpdates,
    passing: Passing,
    failures: mpsc::Sender<NodePortListenFailure>,
    services: HashMap<ServiceName, Vec<LocalhostPort>>,
    ports: HashMap<SocketAddr, ClaimedPort>,
    retries: ListenRetries<SocketAddr>,
}

/// A port of localhost.
#[derive(Debug, Default)]
struct ClaimedPort {
    /// The Services that want it, and the address of each. Services that share a node port have the
    /// same address, where IPVS tells them apart; otherwise the first Service has the port.
    claims: BTreeMap<ServiceName, SocketAddr>,
    listener: Option<Listener>,
}

/// A task that listens; it ends when this is dropped. The connections do not.
#[derive(Debug)]
struct Listener {
    to: watch::Sender<SocketAddr>,
    task: JoinHandle<Infallible>,
}

impl Listeners {
    pub(super) fn new(
        updates: PortUpdates,
        passing: Passing,
        failures: mpsc::Sender<NodePortListenFailure>,
    ) -> Self {
        let (services, ports, retries) = Default::default();
        Self { updates, passing, failures, services, ports, retries }
    }

    /// Opens and closes listeners until no more updates come, and closes all of them.
    pub(super) async fn run(mut self) {
        loop {
            let due = self.retries.until_due();
            tokio::select! {
                changes = self.updates.next() => {
                    if changes.has_ended {
                        self.passing.meters.listen_failures.set(0);
                        return;
                    }
                    self.apply(changes.values).await;
                }
                () = due => self.try_again(),
            }
            self.passing.meters.listen_failures.set(self.retries.count());
        }
    }

    async fn apply(&mut self, changes: BTreeMap<ServiceName, Vec<LocalhostPort>>) {
        let mut affected = BTreeSet::new();
        for (service, ports) in changes {
            for former in self.services.remove(&service).unwrap_or_default() {
                let address = listening(&former);
                if let Some(port) = self.ports.get_mut(&address) {
                    port.claims.remove(&service);
                }
                affected.insert(address);
            }
            for port in &ports {
                let address = listening(port);
                self.ports.entry(address).or_default().claims.insert(service.clone(), port.to);
                affected.insert(address);
            }
            if !ports.is_empty() {
                self.services.insert(service, ports);
            }
        }
        for address in affected {
            self.apply_claims(address).await;
        }
    }

    /// Opens, closes or redirects the listener of a port by the claims that there are now.
    async fn apply_claims(&mut self, address: SocketAddr) {
        let Some(port) = self.ports.get_mut(&address) else { return };
        let Some(to) = port.claims.values().next() else {
            let listener = port.listener.take();
            self.ports.remove(&address);
            self.retries.forget(&address);
            if let Some(listener) = listener {
                listener.close().await;
            }
            return;
        };
        if let Some(listener) = &port.listener {
            listener.to.send_replace(*to);
        } else if !self.retries.contains(&address) {
            self.open(address);
        }
    }

    fn try_again(&mut self) {
        for address in self.retries.due() {
            self.open(address);
        }
    }

    fn open(&mut self, address: SocketAddr) {
        let Some(port) = self.ports.get_mut(&address) else { return };
        let Some((service, to)) = port.claims.first_key_value() else { return };
        match open(address) {
            Ok(listener) => {
                info!(%service, %address, %to, "forwarding connections to the Service's NodePort \
                                                on localhost");
                port.listener = Some(Listener::start(listener, *to, self.passing.clone()));
                self.retries.forget(&address);
            }
            Err(error) => {
                let service = service.clone();
                self.failed(NodePortListenFailure {
                    service,
                    address,
                    kind: error.kind(),
                    reason: error.to_string(),
                });
            }
        }
    }

    /// Notes a failure, and reports it if it is new or was last reported ten minutes ago.
    fn failed(&mut self, failure: NodePortListenFailure) {
        if self.retries.failed(failure.address, &failure.reason) {
            warn!("{failure}");
            // If the channel is full or closed, the log and the metric still have the failure.
            drop(self.failures.try_send(failure));
        }
    }
}

impl Listener {
    fn start(listener: TcpListener, to: SocketAddr, passing: Passing) -> Self {
        let (to, leading) = watch::channel(to);
        Self { to, task: tokio::spawn(accept(listener, leading, passing)) }
    }

    /// Ends it, and waits until its port is free.
    async fn close(mut self) {
        self.task.abort();
        drop((&mut self.task).await);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    listener: TcpListener,
    to: watch::Receiver<SocketAddr>,
    passing: Passing,
) -> Infallible {
    loop {
        match listener.accept().await {
            Ok((client, _)) => passing.begin(client, *to.borrow()),
            Err(error) => {
                // The client has gone already, or the process has no file left.
                warn!(
                    "cannot accept a connection to a NodePort on localhost: {error}; retried in \
                     {ACCEPT_PAUSE:?}"
                );
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns the address at which a port is listened on.
fn listening(port: &LocalhostPort) -> SocketAddr {
    let address = match port.to {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(address, port.port.get())
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections that were accepted here before do not keep the port.
    socket.set_reuseaddr(true)?;
    // A neighbour's packet to 127.0.0.1 is let in where route_localnet is set.
    socket.bind_device(Some(b"lo"))?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
