//! Health checks of single Services for load balancers (`spec.healthCheckNodePort`): whether this
//! node has endpoints of the Service.
//!
//! For each such Service and each of its families there is a listener on its port: on every address
//! of the node, or, if the operator chose where NodePorts are served, on the node's addresses among
//! those. A load balancer asks it, and sends the Service's traffic to the nodes that say yes.
//!
//! The event loop reports endpoints after it has written them to the kernel
//! ([`CheckUpdates::round`]), so that the answer is not yes before the kernel has the virtual
//! servers. A refusal of the kernel for a single Service does not make its answer no: it is retried
//! within seconds, sooner than most load balancers ask again. The loop never waits for any of this:
//! one task opens and closes the listeners ([`ServiceHealth::run`]). A listener that could not be
//! opened is tried again with each round.
//!
//! The listeners outlive a tenure. Checks of the former one keep their answers until the next one has
//! planned all Services (`CheckUpdates::planned_all`).

mod answer;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use plan::local::HealthCheck;
use plan::model::{Family, ServiceName};
use plan::settings::NodePortAddresses;
use tokio::sync::{Notify, mpsc};
use tracing::{info, warn};

use super::health::SharedHealth;
use super::listen::{self, Listener};
use super::metrics::Metrics;
use answer::CheckAnswer;

/// Most connections of a listener at once. Load balancers have a handful.
const CONNECTIONS: usize = 32;
/// Time after which a failure that lasts is reported again, since Events expire.
const REPORT_AGAIN: Duration = Duration::from_secs(600);

/// A port of a Service's health check cannot be listened on. It is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenFailure {
    pub service: ServiceName,
    /// Address and port to listen on.
    pub address: SocketAddr,
    /// Error of the kernel.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeAddresses {
    /// Addresses of its interfaces, all but `kube-ipvs0`.
    pub local: Vec<IpAddr>,
    /// Addresses in its Node object.
    pub node: Vec<IpAddr>,
}

/// Handle through which the event loop updates the answers.
#[derive(Debug, Clone, Default)]
pub struct CheckUpdates(Arc<SharedUpdates>);

/// Addresses and families that one run serves.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) families: Vec<Family>,
    pub(super) node_port_addresses: NodePortAddresses,
    pub(super) metrics: Arc<Metrics>,
    /// Failures are sent there when they begin, and every ten minutes for as long as they last.
    pub(super) failures: mpsc::Sender<ListenFailure>,
}

/// The listeners, and what they answer.
#[derive(Debug)]
pub struct ServiceHealth {
    updates: CheckUpdates,
    scope: Scope,
    health: SharedHealth,
    /// Services of the former tenure that this one has not planned.
    unconfirmed: BTreeSet<ServiceName>,
    addresses: NodeAddresses,
    checks: HashMap<ServiceName, ServedCheck>,
    /// The Services that lack a listener; they are tried again in each round.
    incomplete: BTreeSet<ServiceName>,
}

#[derive(Debug, Default)]
struct SharedUpdates {
    pending: Mutex<PendingUpdates>,
    wake: Notify,
}

/// Changes that the listeners do not know yet; only the latest of each Service.
#[derive(Debug, Default)]
struct PendingUpdates {
    checks: BTreeMap<ServiceName, Option<HealthCheck>>,
    addresses: Option<NodeAddresses>,
    begun: Option<Begun>,
    /// True if the tenure has planned all Services.
    is_all: bool,
}

/// A tenure that has begun, and the changes that the one before left.
#[derive(Debug)]
struct Begun {
    scope: Scope,
    before: BTreeMap<ServiceName, Option<HealthCheck>>,
}

/// A Service with a health check.
#[derive(Debug)]
struct ServedCheck {
    port: NonZeroU16,
    /// The Service's families, of those that are served.
    families: Vec<Family>,
    answer: Arc<CheckAnswer>,
    listeners: HashMap<SocketAddr, Listener>,
    failing: HashMap<SocketAddr, Failing>,
}

#[derive(Debug)]
struct Failing {
    reason: String,
    reported: Instant,
}

impl CheckUpdates {
    /// A round has ended: these checks are different now, none meaning gone, and so are the node's
    /// addresses, if they are given.
    pub fn round(
        &self,
        checks: impl IntoIterator<Item = (ServiceName, Option<HealthCheck>)>,
        addresses: Option<NodeAddresses>,
    ) {
        let mut pending = self.0.pending.lock();
        pending.checks.extend(checks);
        pending.addresses = addresses.or(pending.addresses.take());
        drop(pending);
        self.0.wake.notify_one();
    }

    /// A tenure has begun. The checks of the former one stay until it has planned all Services.
    pub(super) fn begin(&self, scope: Scope) {
        let mut pending = self.0.pending.lock();
        let mut before = pending.begun.take().map(|begun| begun.before).unwrap_or_default();
        before.append(&mut pending.checks);
        pending.begun = Some(Begun { scope, before });
        pending.is_all = false;
        drop(pending);
        self.0.wake.notify_one();
    }

    /// The tenure has planned all Services: others have no health check any more.
    pub(super) fn planned_all(&self) {
        self.0.pending.lock().is_all = true;
        self.0.wake.notify_one();
    }

    /// Waits for a round, and takes the changes.
    async fn next(&self) -> PendingUpdates {
        self.0.wake.notified().await;
        mem::take(&mut *self.0.pending.lock())
    }
}

impl ServiceHealth {
    /// No listeners yet.
    pub(super) fn new(scope: Scope, health: SharedHealth, updates: CheckUpdates) -> Self {
        Self {
            updates,
            scope,
            health,
            unconfirmed: BTreeSet::new(),
            addresses: NodeAddresses::default(),
            checks: HashMap::new(),
            incomplete: BTreeSet::new(),
        }
    }

    /// Serves all tenures, from the first one on.
    pub(super) async fn serve(updates: CheckUpdates, health: SharedHealth) -> Infallible {
        loop {
            let mut pending = updates.next().await;
            if let Some(Begun { scope, .. }) = pending.begun.take() {
                let mut serving = Self::new(scope, health, updates);
                serving.apply(pending).await;
                return serving.run().await;
            }
        }
    }

    /// Opens and closes listeners until it is dropped, which closes all.
    pub async fn run(mut self) -> Infallible {
        loop {
            let pending = self.updates.next().await;
            self.apply(pending).await;
        }
    }

    async fn apply(&mut self, pending: PendingUpdates) {
        let mut affected = mem::take(&mut self.incomplete);
        let mut closing = Vec::new();
        let mut changes: Vec<_> = Vec::new();
        if let Some(Begun { scope, before }) = pending.begun {
            changes.extend(before);
            self.scope = scope;
            affected.extend(self.checks.keys().cloned());
            self.unconfirmed.clone_from(&affected);
        }
        let n_before = changes.len();
        changes.extend(pending.checks);
        if let Some(addresses) = pending.addresses {
            self.addresses = addresses;
            affected.extend(self.checks.keys().cloned());
        }
        for (place, (service, check)) in changes.into_iter().enumerate() {
            if place < n_before {
                self.unconfirmed.insert(service.clone());
            } else {
                self.unconfirmed.remove(&service);
            }
            if let Some(check) = check {
                self.put(&service, check, &mut closing);
                affected.insert(service);
            } else {
                closing.extend(self.checks.remove(&service).map(|check| check.listeners));
            }
        }
        if pending.is_all {
            for service in mem::take(&mut self.unconfirmed) {
                closing.extend(self.checks.remove(&service).map(|check| check.listeners));
            }
        }
        // All are closed before any is opened: one Service may take over what another gives up.
        for service in &affected {
            closing.push(self.close_unwanted(service));
        }
        for listener in closing.into_iter().flatten() {
            listener.1.close().await;
        }
        for service in affected {
            self.open_wanted(&service);
        }
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let failing = self.incomplete.iter().filter_map(|service| self.checks.get(service));
        let own = &self.scope.metrics.own;
        own.health_check_listen_failures.set(count(failing.map(|check| check.failing.len()).sum()));
        own.health_checks.set(count(self.checks.len()));
    }

    /// Sets the answer of a Service, and its port.
    fn put(
        &mut self,
        service: &ServiceName,
        new: HealthCheck,
        closing: &mut Vec<HashMap<SocketAddr, Listener>>,
    ) {
        let families = self.scope.families.iter().copied();
        let families: Vec<Family> = families.filter(|it| new.local(*it).is_some()).collect();
        let check = self.checks.entry(service.clone()).or_insert_with(|| ServedCheck {
            port: new.port,
            families: Vec::new(),
            answer: Arc::new(CheckAnswer::new(service.clone(), self.health.clone())),
            listeners: HashMap::new(),
            failing: HashMap::new(),
        });
        if check.port != new.port {
            check.port = new.port;
            check.failing.clear();
            closing.push(mem::take(&mut check.listeners));
        }
        check.families = families;
        check.answer.set(&new);
    }

    /// Takes out the listeners at addresses that are no longer this node's.
    fn close_unwanted(&mut self, service: &ServiceName) -> HashMap<SocketAddr, Listener> {
        let Some(check) = self.checks.get(service) else { return HashMap::new() };
        let wanted = self.wanted(check);
        let Some(check) = self.checks.get_mut(service) else { return HashMap::new() };
        check.failing.retain(|address, _| wanted.contains(address));
        check.listeners.extract_if(|address, _| !wanted.contains(address)).collect()
    }

    fn open_wanted(&mut self, service: &ServiceName) {
        let Some(check) = self.checks.get(service) else { return };
        let wanted = self.wanted(check);
        let Some(check) = self.checks.get_mut(service) else { return };
        for address in wanted {
            if check.listeners.contains_key(&address) {
                continue;
            }
            match listen::open_exactly(address) {
                Ok(listener) => {
                    info!(%service, %address, "answering the Service's health checks on its healthCheckNodePort");
                    let family = Family::of(address.ip());
                    let router = answer::router(&check.answer, family);
                    let task = tokio::spawn(listen::serve(listener, router, CONNECTIONS));
                    check.listeners.insert(address, Listener(task));
                    check.failing.remove(&address);
                }
                Err(error) => {
                    let reason = error.to_string();
                    if check.is_to_report(address, &reason) {
                        let failure = ListenFailure { service: service.clone(), address, reason };
                        warn!("{failure}");
                        // A full or closed channel drops the failure. Log and metric still have it.
                        drop(self.scope.failures.try_send(failure));
                    }
                    self.incomplete.insert(service.clone());
                }
            }
        }
    }

    /// Returns the addresses at which a Service's port is to be listened on.
    fn wanted(&self, check: &ServedCheck) -> BTreeSet<SocketAddr> {
        let families = check.families.iter();
        let addresses = families.flat_map(|family| self.serving(*family));
        addresses.map(|address| SocketAddr::new(address, check.port.get())).collect()
    }

    /// Returns the addresses of a family that the operator chose; the unspecified one if all of
    /// them.
    fn serving(&self, family: Family) -> Vec<IpAddr> {
        let everywhere = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let networks = match &self.scope.node_port_addresses {
            NodePortAddresses::All => return vec![everywhere],
            NodePortAddresses::Primary(besides)
                if besides
                    .iter()
                    .any(|net| Family::of_net(net) == family && net.prefix_len() == 0) =>
            {
                return vec![everywhere];
            }
            NodePortAddresses::Primary(besides) => {
                let mut of_node = self.addresses.node.iter().copied();
                let own = of_node.find(|address| Family::of(*address) == family);
                let is_chosen = |address: &IpAddr| {
                    Family::of(*address) == family
                        && Some(*address) != own
                        && besides.iter().any(|net| net.contains(address))
                };
                let local = self.addresses.local.iter().copied().filter(is_chosen);
                return own.into_iter().chain(local).collect();
            }
            NodePortAddresses::Networks(networks) => networks,
        };
        let chosen = || networks.iter().filter(|net| Family::of_net(net) == family);
        // As for NodePorts: no network of the family is none that restricts it.
        if chosen().next().is_none() || chosen().any(|net| net.prefix_len() == 0) {
            return vec![everywhere];
        }
        let is_chosen = |address: &&IpAddr| chosen().any(|net| net.contains(*address));
        self.addresses.local.iter().filter(is_chosen).copied().collect()
    }
}

impl ServedCheck {
    /// Notes that an address cannot be listened on. Returns true if the failure is to be reported.
    fn is_to_report(&mut self, address: SocketAddr, reason: &str) -> bool {
        let now = Instant::now();
        if let Some(known) = self.failing.get(&address)
            && known.reason == reason
            && now.saturating_duration_since(known.reported) < REPORT_AGAIN
        {
            return false;
        }
        self.failing.insert(address, Failing { reason: reason.to_owned(), reported: now });
        true
    }
}

impl fmt::Display for ListenFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, address, reason } = self;
        write!(
            f,
            "Service {service}: cannot listen on {address} for its health check: {reason}; load \
             balancers treat this node as one without endpoints. kube-ipvs retries; `ss -ltnp` \
             shows the process that has the port"
        )
    }
}
