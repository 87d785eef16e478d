//! The proxy ports, by what is desired.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plan::model::ServiceName;
use plan::userspace::RelayProtocol;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::task::coop::consume_budget;
use tokio::time::Instant;
use tracing::{info, warn};

use super::port::{ProxyPort, Shared};
use super::ports::{NoProxyPort, PortAllocator};
use super::udp::UdpClients;
use super::{Meters, ProxyPortId, Relay, RelayPort, Report, Reports, Settings, Updates, tcp, udp};
use crate::listening::ListenRetries;
use crate::mailbox::Mailbox;

/// The proxy ports of all Services.
#[derive(Debug)]
pub(super) struct Server {
    updates: Updates,
    reports: Mailbox<ProxyPortId, Report>,
    allocator: Arc<PortAllocator>,
    shared: Arc<Shared>,
    services: HashMap<ServiceName, BTreeSet<ProxyPortId>>,
    desired: HashMap<ProxyPortId, Desired>,
    running: HashMap<ProxyPortId, Running>,
    /// The ports that cannot be listened on.
    retries: ListenRetries<ProxyPortId>,
    /// Those of them for which the range has no port.
    exhausted: BTreeSet<ProxyPortId>,
}

/// Desired state of a proxy port.
#[derive(Debug)]
struct Desired {
    port: RelayPort,
    endpoints: Arc<[SocketAddr]>,
}

/// A proxy port that is listened on.
#[derive(Debug)]
struct Running {
    address: SocketAddr,
    port: Arc<ProxyPort>,
    listener: Listener,
    /// Time that its connections have to end when it is closed, if the Service has one.
    drain: Option<Duration>,
}

/// A task that listens.
#[derive(Debug)]
enum Listener {
    /// It ends when `closing` is dropped. The connections do not.
    Tcp { closing: oneshot::Sender<()>, task: JoinHandle<()> },
    /// It is ended, and its flows are.
    Udp { clients: UdpClients, task: JoinHandle<()> },
}

impl Server {
    pub(super) fn new(settings: &Settings, meters: Meters) -> (Self, Relay, Reports) {
        let (updates, reports) = (Updates::default(), Mailbox::default());
        let allocator = PortAllocator::new(settings.ports);
        let shared = Arc::new(Shared::new(settings, meters));
        let relay = Relay {
            updates: updates.clone(),
            allocator: Arc::clone(&allocator),
            shared: Arc::clone(&shared),
        };
        let reported = Reports(reports.clone());
        let server = Self {
            updates,
            reports,
            allocator,
            shared,
            services: HashMap::new(),
            desired: HashMap::new(),
            running: HashMap::new(),
            retries: ListenRetries::default(),
            exhausted: BTreeSet::new(),
        };
        (server, relay, reported)
    }

    /// Opens and closes ports until the handle is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let due = self.retries.until_due();
            tokio::select! {
                changes = self.updates.next() => {
                    if changes.has_ended {
                        return;
                    }
                    self.apply(changes.values).await;
                }
                () = due => self.retry_due(),
                () = self.allocator.until_returned() => self.retry_exhausted(),
            }
            self.shared.meters.listen_failures.set(self.retries.count());
        }
    }

    async fn apply(&mut self, changes: BTreeMap<ServiceName, Vec<RelayPort>>) {
        for (service, ports) in changes {
            let mut former = self.services.remove(&service).unwrap_or_default();
            let mut ids = BTreeSet::new();
            for port in ports {
                for (id, endpoints) in port.proxy_ports(&service) {
                    former.remove(&id);
                    ids.insert(id.clone());
                    let desired = Desired { endpoints: Arc::clone(endpoints), port: port.clone() };
                    self.set(id, desired).await;
                }
            }
            for id in former {
                self.remove(&id).await;
            }
            if !ids.is_empty() {
                self.services.insert(service, ids);
            }
            consume_budget().await;
        }
    }

    async fn set(&mut self, id: ProxyPortId, desired: Desired) {
        let has_moved = |running: &Running| running.address.ip() != desired.port.address;
        let is_elsewhere = self.running.get(&id).is_some_and(has_moved);
        let former = if is_elsewhere { self.running.remove(&id) } else { None };
        if let Some(running) = self.running.get_mut(&id) {
            running.update(&desired);
            let listening = Report::Listening(running.address);
            self.reports.put([(id.clone(), listening)]);
            self.desired.insert(id, desired);
        } else {
            self.desired.insert(id.clone(), desired);
            self.open(&id, true);
        }
        if let Some(former) = former {
            // The new one is there before this one goes.
            former.close().await;
        }
    }

    async fn remove(&mut self, id: &ProxyPortId) {
        self.desired.remove(id);
        self.retries.forget(id);
        self.exhausted.remove(id);
        if let Some(running) = self.running.remove(id) {
            info!(port = %id, address = %running.address, "proxy port closed");
            running.close().await;
        }
        self.reports.put([(id.clone(), Report::Closed)]);
    }

    /// Tries again to listen on the ports whose time has come.
    fn retry_due(&mut self) {
        for id in self.retries.due() {
            self.open(&id, false);
        }
    }

    /// Gives a port that came back to one that got none.
    fn retry_exhausted(&mut self) {
        while let Some(id) = self.exhausted.pop_first() {
            self.open(&id, false);
            if self.exhausted.contains(&id) {
                return;
            }
        }
    }

    /// Listens, and reports; a failure only if it is new, unless it is asked for.
    fn open(&mut self, id: &ProxyPortId, is_asked_for: bool) {
        let Some(desired) = self.desired.get(id) else { return };
        match Running::open(id, desired, &self.allocator, &self.shared) {
            Ok(running) => {
                let address = running.address;
                info!(port = %id, %address, "proxy port opened");
                self.retries.forget(id);
                self.exhausted.remove(id);
                self.running.insert(id.clone(), running);
                self.reports.put([(id.clone(), Report::Listening(address))]);
            }
            Err(failure) => {
                if matches!(failure, NoProxyPort::Exhausted { .. }) {
                    self.exhausted.insert(id.clone());
                }
                let is_new = self.retries.failed(id.clone(), &failure.to_string());
                if is_new {
                    warn!(port = %id, "Service port not served: {failure}; kube-ipvs retries");
                }
                if is_new || is_asked_for {
                    self.reports.put([(id.clone(), Report::Failed(failure))]);
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.reports.end();
    }
}

impl Running {
    fn open(
        id: &ProxyPortId,
        desired: &Desired,
        allocator: &Arc<PortAllocator>,
        shared: &Arc<Shared>,
    ) -> Result<Self, NoProxyPort> {
        let host = desired.port.address;
        let port = |lease| ProxyPort::new(id.clone(), Arc::clone(shared), lease);
        let (port, address, listener) = match id.protocol {
            RelayProtocol::Tcp => {
                let ((socket, address), lease) = allocator.bind(host, tcp::listen)?;
                let (closing, closed) = oneshot::channel();
                let port = port(lease);
                let task = tokio::spawn(tcp::accept(socket, Arc::clone(&port), closed));
                (port, address, Listener::Tcp { closing, task })
            }
            RelayProtocol::Udp => {
                let ((socket, address), lease) = allocator.bind(host, udp::listen)?;
                let clients = UdpClients::new();
                let port = port(lease);
                let task = tokio::spawn(udp::serve(socket, Arc::clone(&port), clients.clone()));
                (port, address, Listener::Udp { clients, task })
            }
        };
        let mut running = Self { address, port, listener, drain: None };
        running.update(desired);
        Ok(running)
    }

    /// Replaces the endpoints.
    fn update(&mut self, desired: &Desired) {
        let RelayPort { affinity_seconds, drain_seconds, .. } = desired.port;
        let duration = |seconds: u32| Duration::from_secs(seconds.into());
        let affinity = affinity_seconds.map(duration);
        self.drain = drain_seconds.map(duration);
        let drain = self.time_to_drain();
        self.port.balancer().update(&desired.endpoints, affinity, drain, Instant::now());
        if let Listener::Udp { clients, .. } = &self.listener {
            clients.end_leaving();
        }
    }

    fn time_to_drain(&self) -> Duration {
        self.drain.unwrap_or_else(|| self.port.shared.timeouts().drain)
    }

    /// Stops listening, and waits until that is done. TCP connections have time to end.
    async fn close(self) {
        let drain = self.time_to_drain();
        match self.listener {
            Listener::Tcp { closing, task } => {
                drop(closing);
                drop(task.await);
            }
            Listener::Udp { clients, task } => {
                task.abort();
                drop(task.await);
                clients.end_all();
            }
        }
        self.port.balancer().update(&[], None, drain, Instant::now());
    }
}
