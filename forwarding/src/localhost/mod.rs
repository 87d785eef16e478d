//! Node ports on localhost: listens there, and passes connections on to the Services.
//!
//! ```text
//!   event loop ──Observer──▶ listeners     127.0.0.1:30080, [::1]:30080
//!                                 │ a connection
//!                                 ▼
//!                             passing ────▶ 192.0.2.10:30080, which IPVS balances
//! ```
//!
//! IPVS cannot serve these ports itself (`plan/src/localhost.rs` says why). What the kernel
//! balances is an ordinary connection of this node, to a node port at one of its own addresses: so
//! endpoints, traffic policies and source ranges are as for any client on this node, and the
//! endpoints see the node as the client.
//!
//! Clients outside this node do not get here: the listeners are on loopback addresses only, and
//! take only what arrives by the loopback interface, whatever routing lets in besides.
//!
//! All of it is in a thread of its own, so that bytes that are passed on do not hold up the event
//! loop. The loop never waits for it: it leaves the latest ports of each Service. The thread outlives
//! the loop, and goes on with the next one: a switch to another mode ends no connection.

mod listeners;
mod passing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plan::localhost::LocalhostPort;
use plan::model::ServiceName;
use prometheus::{IntCounter, IntGauge};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tracing::info;

use crate::limit::affordable;
use crate::mailbox::Mailbox;
use crate::planned::{PlannedPorts, PortsByService, ServicesWithPorts};
use crate::start_thread;
use listeners::Listeners;
use passing::Passing;
use reconcile::observer::{Observer, Report};

/// Most connections at once, in all. Each takes two files, and up to 32 KiB in this process while both
/// sides are slow to receive; the kernel's buffers of the two sockets come on top.
const CONNECTIONS: usize = 4_096;

/// Metrics of the connections and of the listeners.
#[derive(Debug, Clone)]
pub struct Meters {
    /// Connections that are open.
    pub open: IntGauge,
    /// Connections that were passed on.
    pub passed: IntCounter,
    /// Connections that were not passed on, because the Service could not be reached.
    pub failed: IntCounter,
    /// Connections that were not passed on, because there were too many.
    pub refused: IntCounter,
    /// Ports on localhost that cannot be listened on.
    pub listen_failures: IntGauge,
}

/// A port on localhost cannot be listened on. It is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePortListenFailure {
    pub service: ServiceName,
    /// Address that it was to listen on.
    pub address: SocketAddr,
    /// Kind of the kernel's error.
    pub kind: io::ErrorKind,
    /// Error of the kernel, in words.
    pub reason: String,
}

/// The thread that listens. Copies share it. When the last one is gone it listens no more, and
/// connections have time to end.
#[derive(Debug, Clone, Default)]
pub struct LocalhostThread(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    updates: PortUpdates,
    services: ServicesWithPorts,
}

/// An event loop's observer.
#[derive(Debug)]
pub struct LocalhostObserver {
    thread: LocalhostThread,
    planned: PlannedPorts<LocalhostPort>,
}

/// Latest ports of each Service, from the event loop's thread to the listeners' thread. An empty
/// list means that a Service has none.
type PortUpdates = Mailbox<ServiceName, Vec<LocalhostPort>>;

/// Starts the thread. Failures to listen are sent to `failures` when they begin, and every ten
/// minutes for as long as they last. When it listens no more, connections have as much time to end as
/// `drain` is then.
pub fn start(
    meters: Meters,
    failures: mpsc::Sender<NodePortListenFailure>,
    drain: watch::Receiver<Duration>,
) -> io::Result<LocalhostThread> {
    let thread = LocalhostThread::default();
    // Half of the files that the process may open, at most: the other half is for everything else.
    let passing = Passing::new(affordable(CONNECTIONS, 2, 2), meters);
    let listeners = Listeners::new(thread.0.updates.clone(), passing.clone(), failures);
    start_thread("localhost", async move {
        listeners.run().await;
        let drain = *drain.borrow();
        if timeout(drain, passing.until_idle()).await.is_err() {
            info!("connections to NodePorts on localhost are closed: drainDeadline is over");
        }
    })?;
    Ok(thread)
}

impl LocalhostThread {
    /// Returns the observer of another event loop. Ports of the one before stay until the new one has
    /// planned everything.
    #[must_use]
    pub fn observer(&self) -> LocalhostObserver {
        LocalhostObserver { thread: self.clone(), planned: self.0.services.planned() }
    }

    fn put(&self, ports: PortsByService<LocalhostPort>) {
        self.0.services.put(ports, |ports| self.0.updates.put(ports));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.updates.end();
    }
}

impl Observer for LocalhostObserver {
    fn report(&mut self, report: &Report<'_>) {
        match report {
            Report::Planned { plan, .. } => self.planned.extend(plan.localhost.iter().cloned()),
            Report::RoundEnded(round) => self.thread.put(self.planned.written(round)),
            _ => {}
        }
    }
}

impl fmt::Display for NodePortListenFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, address, kind, reason } = self;
        write!(f, "Service {service}: cannot listen on {address} for its NodePort: {reason}; ")?;
        f.write_str(match kind {
            io::ErrorKind::AddrInUse => {
                "another process has the port (`ss -ltnp` shows it), and the Service cannot be \
                 reached there"
            }
            io::ErrorKind::PermissionDenied => {
                "a port this low needs the capability CAP_NET_BIND_SERVICE, or a lower \
                 net.ipv4.ip_unprivileged_port_start: the Service cannot be reached there"
            }
            _ => "the Service cannot be reached there",
        })?;
        f.write_str("; kube-ipvs retries")
    }
}
