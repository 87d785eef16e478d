//! Choice of an endpoint for a client.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Most clients of which a balancer remembers the endpoint. If there are more, it forgets those that
/// it has not seen for the longest time.
const MOST_CLIENTS: usize = 65_536;
/// Number of clients from which on those whose time is over are looked for.
const FIRST_SWEEP: usize = 64;
/// Longest time that connections to an endpoint that goes may take to end.
const LONGEST_DRAIN: Duration = Duration::from_secs(365 * 86_400);

/// Endpoints of a proxy port, in turn: round robin, or with affinity by the client's address.
#[derive(Debug)]
pub(super) struct Balancer {
    endpoints: Vec<Arc<Endpoint>>,
    /// Position of the endpoint that is next, modulo their number.
    next: usize,
    /// Time for which a client is remembered; none: clients are not.
    affinity: Option<Duration>,
    clients: HashMap<IpAddr, KnownClient>,
    /// Number of clients from which on those whose time is over are removed.
    sweep_at: usize,
    /// Former endpoints. They live as long as they have connections.
    leaving: HashMap<SocketAddr, Weak<Endpoint>>,
}

/// An endpoint, shared by its connections.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    /// Time at which its connections end; none: it is an endpoint.
    deadline: watch::Sender<Option<Instant>>,
}

/// A client with affinity.
#[derive(Debug)]
struct KnownClient {
    endpoint: Arc<Endpoint>,
    seen: Instant,
}

impl Balancer {
    /// A balancer without endpoints. Its first choice is the one at position `start`, modulo their
    /// number: if that is a random one, many nodes do not all begin with the same endpoint.
    pub(super) fn new(start: usize) -> Self {
        Self {
            endpoints: Vec::new(),
            next: start,
            affinity: None,
            clients: HashMap::new(),
            sweep_at: FIRST_SWEEP,
            leaving: HashMap::new(),
        }
    }

    /// Replaces the endpoints. Connections to those that are gone have `drain` to end; clients that
    /// had affinity to them are free to choose.
    pub(super) fn update(
        &mut self,
        addresses: &[SocketAddr],
        affinity: Option<Duration>,
        drain: Duration,
        now: Instant,
    ) {
        let mut former: HashMap<SocketAddr, Arc<Endpoint>> =
            self.endpoints.drain(..).map(|endpoint| (endpoint.address, endpoint)).collect();
        let mut seen = HashSet::new();
        for address in addresses.iter().filter(|address| seen.insert(**address)) {
            let endpoint = former.remove(address).or_else(|| self.come_back(*address));
            self.endpoints.push(endpoint.unwrap_or_else(|| Endpoint::new(*address)));
        }
        let deadline = now + drain.min(LONGEST_DRAIN);
        self.leaving.retain(|_, endpoint| endpoint.strong_count() > 0);
        for (address, endpoint) in former {
            endpoint.deadline.send_replace(Some(deadline));
            self.leaving.insert(address, Arc::downgrade(&endpoint));
        }
        self.affinity = affinity;
        if affinity.is_none() {
            self.clients = HashMap::new();
        } else {
            self.clients.retain(|_, client| !client.endpoint.is_leaving());
        }
    }

    /// Returns a former endpoint that still has connections, as an endpoint again.
    fn come_back(&mut self, address: SocketAddr) -> Option<Arc<Endpoint>> {
        let endpoint = self.leaving.remove(&address)?.upgrade()?;
        endpoint.deadline.send_replace(None);
        Some(endpoint)
    }

    /// Chooses an endpoint: the client's own, or the next one.
    pub(super) fn choose(&mut self, client: IpAddr, now: Instant) -> Option<Arc<Endpoint>> {
        if let Some(affinity) = self.affinity
            && let Some(known) = self.clients.get_mut(&client)
            && now.duration_since(known.seen) < affinity
        {
            known.seen = now;
            return Some(Arc::clone(&known.endpoint));
        }
        let endpoint = self.take_next()?;
        self.remember(client, &endpoint, now);
        Some(endpoint)
    }

    /// Chooses an endpoint after one has failed: another one, if there is one.
    pub(super) fn choose_another(
        &mut self,
        client: IpAddr,
        failed: &Arc<Endpoint>,
        now: Instant,
    ) -> Option<Arc<Endpoint>> {
        self.forget(client, failed);
        let is_next = |balancer: &Self| {
            balancer.peek_next().is_some_and(|endpoint| Arc::ptr_eq(endpoint, failed))
        };
        // Unless another connection of this client has chosen since then, it is the next one's turn.
        if !self.clients.contains_key(&client) && is_next(self) {
            self.next = self.next.wrapping_add(1);
        }
        self.choose(client, now)
    }

    /// Forgets that a client has affinity to this endpoint.
    pub(super) fn forget(&mut self, client: IpAddr, failed: &Arc<Endpoint>) {
        if self.clients.get(&client).is_some_and(|known| Arc::ptr_eq(&known.endpoint, failed)) {
            self.clients.remove(&client);
        }
    }

    fn peek_next(&self) -> Option<&Arc<Endpoint>> {
        self.endpoints.get(self.next.checked_rem(self.endpoints.len())?)
    }

    fn take_next(&mut self) -> Option<Arc<Endpoint>> {
        let endpoint = Arc::clone(self.peek_next()?);
        // Modulo their number already, so that no overflow changes whose turn it is.
        self.next = (self.next % self.endpoints.len()) + 1;
        Some(endpoint)
    }

    fn remember(&mut self, client: IpAddr, endpoint: &Arc<Endpoint>, now: Instant) {
        let Some(affinity) = self.affinity else { return };
        if self.clients.len() >= self.sweep_at {
            self.clients.retain(|_, known| now.duration_since(known.seen) < affinity);
            if self.clients.len() >= MOST_CLIENTS {
                self.forget_oldest();
            }
            self.sweep_at = (self.clients.len() * 2).clamp(FIRST_SWEEP, MOST_CLIENTS);
        }
        let known = KnownClient { endpoint: Arc::clone(endpoint), seen: now };
        self.clients.insert(client, known);
    }

    /// Forgets an eighth of the clients, so that this is not needed for each new one.
    fn forget_oldest(&mut self) {
        let mut times: Vec<Instant> = self.clients.values().map(|known| known.seen).collect();
        let eighth = times.len() / 8;
        if eighth < times.len() {
            let newest = *times.select_nth_unstable(eighth).1;
            let mut most = eighth + 1;
            self.clients.retain(|_, known| {
                let is_old = known.seen <= newest && most > 0;
                most -= usize::from(is_old);
                !is_old
            });
        }
    }

    /// Number of clients that are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.clients.len()
    }
}

impl Endpoint {
    fn new(address: SocketAddr) -> Arc<Self> {
        Arc::new(Self { address, deadline: watch::Sender::new(None) })
    }

    /// True if it is no endpoint any more.
    pub(super) fn is_leaving(&self) -> bool {
        self.deadline.borrow().is_some()
    }

    /// Waits until its connections have to end: it is no endpoint any more, and the time to drain is
    /// over.
    pub(super) async fn until_drained(&self) {
        let mut deadline = self.deadline.subscribe();
        loop {
            let until = *deadline.borrow_and_update();
            let changed = deadline.changed();
            tokio::select! {
                () = passed(until) => return,
                // It cannot fail: the sender is here.
                _ = changed => {}
            }
        }
    }
}

async fn passed(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
