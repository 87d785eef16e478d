//! The relay of kube-proxy's mode `userspace`: listens on a proxy port for each Service port, and
//! passes TCP connections and UDP datagrams on to its endpoints.
//!
//! ```text
//!   clients ──nat rules──▶ proxy port ──▶ balancer ──▶ endpoint
//!                          ports.rs       balancer.rs  tcp.rs, udp.rs
//!                             ▲
//!   caller ──Relay::set──▶ server.rs ──Reports──▶ caller, which writes the rules
//! ```
//!
//! Beyond kube-proxy's: an endpoint that does not answer delays only the client that was to get it;
//! either side may end what it sends and go on listening; connections to an endpoint that goes have
//! time to end; what is too much is refused, where kube-proxy's process ended.
//!
//! A proxy port is on one fixed address (`plan/src/userspace.rs` says why). A Service port whose
//! traffic policy is `Local` has a second one, which serves this node's endpoints only: the rules
//! decide which clients get there.
//!
//! **Order.** A caller sets the ports first and writes rules when their proxy ports are reported. To
//! take a port away, it removes the rules first: clients that are connected by then are served.
//!
//! All of it is in a thread of its own. Connections end with the process. The limits are on all
//! Services together: the TCP clients of one can keep those of others out. A new UDP client takes the place of
//! the one that has been silent longest.

mod balancer;
mod port;
mod ports;
mod recency;
mod server;
mod tcp;
#[cfg(test)]
mod tests;
mod udp;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plan::model::ServiceName;
use plan::userspace::{ProxyPortId, ProxyPortState, RelayPort};
use prometheus::{IntCounter, IntGauge};

use crate::limit::affordable;
use crate::mailbox::Mailbox;
use crate::start_thread;
use port::Shared;
use ports::PortAllocator;
use server::Server;

pub use ports::{InvalidPortRange, NoProxyPort, PortRange};

/// Time after which a UDP client that is silent, and gets no answer, is forgotten: the kernel's for
/// flows without an answer (`nf_conntrack_udp_timeout`).
pub const DEFAULT_UDP_IDLE: Duration = Duration::from_secs(30);
/// Time that the open side of a half-closed connection may be silent: kube-proxy's
/// `conntrack.tcpCloseWaitTimeout`.
pub const DEFAULT_HALF_CLOSED_IDLE: Duration = Duration::from_secs(3_600);

/// Most TCP connections at once, in all. Each takes two files, and up to 32 KiB in this process while
/// both sides are slow to receive; the kernel's buffers of the two sockets come on top.
const CONNECTIONS: usize = 16_384;
/// Most UDP clients at once, in all. Each takes a file.
const UDP_CLIENTS: usize = 16_384;

/// Settings of the relay.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Range of the proxy ports (`--proxy-port-range`); none: the kernel chooses them. It must not
    /// overlap with the range of node ports.
    pub ports: Option<PortRange>,
    /// Time after which a UDP client is forgotten if nothing passes either way (`--udp-timeout`).
    pub udp_idle: Duration,
    /// Time that the open side of a half-closed connection may be silent.
    pub half_closed_idle: Duration,
    /// Time that TCP connections to an endpoint that goes have to end, where the Service says nothing
    /// (`drainDeadline`).
    pub drain: Duration,
    /// Most TCP connections at once, in all.
    pub connections: usize,
    /// Most UDP clients at once, in all.
    pub udp_clients: usize,
}

/// Metrics of the relay.
#[derive(Debug, Clone)]
pub struct Meters {
    /// TCP connections of clients that are open.
    pub open: IntGauge,
    /// TCP connections that were passed on.
    pub passed: IntCounter,
    /// TCP connections that were reset because no endpoint could be reached.
    pub failed: IntCounter,
    /// TCP connections that were reset because there were too many.
    pub refused: IntCounter,
    /// TCP connections that were reset because the time to drain was over.
    pub cut: IntCounter,
    /// Endpoints that did not take a connection, or refused a datagram. Another one is tried.
    pub endpoint_failures: IntCounter,
    /// UDP clients that are served.
    pub udp_clients: IntGauge,
    /// UDP clients that were forgotten because a new one came while there were as many as may be.
    pub udp_evicted: IntCounter,
    /// Datagrams that were not passed on.
    pub udp_lost: IntCounter,
    /// Service ports that have no proxy port and should have one.
    pub listen_failures: IntGauge,
}

/// Report on a proxy port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// It is listened on here.
    Listening(SocketAddr),
    /// There is none, and it is tried again.
    Failed(NoProxyPort),
    /// It is no longer listened on.
    Closed,
}

/// Handle of a relay that runs. When it is dropped, everything is closed.
#[derive(Debug)]
pub struct Relay {
    updates: Updates,
    allocator: Arc<PortAllocator>,
    shared: Arc<Shared>,
}

/// Reports of a relay on its proxy ports.
#[derive(Debug)]
pub struct Reports(Mailbox<ProxyPortId, Report>);

/// Latest ports of each Service; an empty list means that it has none.
type Updates = Mailbox<ServiceName, Vec<RelayPort>>;

/// Starts a relay in a thread of its own.
pub fn start(settings: &Settings, meters: Meters) -> io::Result<(Relay, Reports)> {
    let (server, relay, reports) = Server::new(settings, meters);
    start_thread("relay", server.run())?;
    Ok((relay, reports))
}

impl Default for Settings {
    /// The limits are what the process can afford: at most a third of its files for TCP, and a sixth
    /// for UDP. The other half is for everything else. Connections have no time to end.
    fn default() -> Self {
        Self {
            ports: None,
            udp_idle: DEFAULT_UDP_IDLE,
            half_closed_idle: DEFAULT_HALF_CLOSED_IDLE,
            drain: Duration::ZERO,
            connections: affordable(CONNECTIONS, 2, 3),
            udp_clients: affordable(UDP_CLIENTS, 1, 6),
        }
    }
}

impl Relay {
    /// Replaces the ports of these Services; an empty list means that a Service has none. Never
    /// waits. A report on each of the ports follows.
    ///
    /// The connections to a port that goes have the time to end that it was last set with. That it is
    /// closed is reported.
    pub fn set(&self, ports: BTreeMap<ServiceName, Vec<RelayPort>>) {
        self.updates.put(ports);
    }

    /// Takes on the range of ports, the idle time of UDP clients and the time to drain of other
    /// settings. Ports that are open keep their numbers, and connections that drain their deadlines.
    pub fn reconfigure(&self, settings: &Settings) {
        self.allocator.set_range(settings.ports);
        self.shared.reconfigure(settings);
    }

    /// Number of proxy ports that are listened on, or still have connections.
    #[must_use]
    pub fn ports_in_use(&self) -> usize {
        self.allocator.leased()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.updates.end();
    }
}

impl Reports {
    /// Waits for reports and takes them: the latest of each port. None: the relay has ended.
    pub async fn next(&self) -> Option<BTreeMap<ProxyPortId, Report>> {
        let pending = self.0.next().await;
        if pending.has_ended {
            // A later caller gets the same answer.
            self.0.end();
            return None;
        }
        Some(pending.values)
    }
}

impl Report {
    /// Returns the state that it reports, as the planner knows it.
    #[must_use]
    pub const fn state(&self) -> ProxyPortState {
        match self {
            Self::Listening(socket) => ProxyPortState::Listening(*socket),
            Self::Failed(_) => ProxyPortState::Failed,
            Self::Closed => ProxyPortState::Closed,
        }
    }
}
