//! UDP clients of all proxy ports in the order of their last datagrams: at the limit, the client that has been
//! silent longest makes room for a new one.
//!
//! A resolver uses a port for each question, and is a client of its own each time. If new clients were refused at
//! the limit, any pod with some hundred new ports a second would keep all others from UDP Services.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge};
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::limit::RateLimit;

/// Part of all clients, one in so many, beyond which an address makes room for its own new ones at the limit.
const PART_OF_AN_ADDRESS: usize = 4;

/// UDP clients in the order of their last datagrams. Copies share it.
#[derive(Debug, Clone)]
pub(super) struct Recency {
    most: usize,
    order: Arc<Mutex<Order>>,
    served: IntGauge,
    evicted: IntCounter,
    warned: RateLimit,
}

/// Time of the last datagram of a client, either way. Copies share it.
#[derive(Debug, Clone)]
pub(super) struct LastUsed(Arc<Mutex<Instant>>);

/// Place of a client in the order. It is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    used: LastUsed,
    recency: Recency,
}

/// Place in the order: a time at or before that of the last datagram, and the client's number.
type Key = (Instant, u64);

#[derive(Debug, Default)]
struct Order {
    next_number: u64,
    clients: HashMap<u64, Client>,
    all: BTreeSet<Key>,
    of_address: HashMap<IpAddr, BTreeSet<Key>>,
}

#[derive(Debug)]
struct Client {
    address: SocketAddr,
    /// Time in its key. A datagram does not change the order, which would take the lock each time: it is
    /// brought up to date when the client comes first.
    noted: Instant,
    used: LastUsed,
    /// Ends its flow. None yet while its socket is made.
    end: Option<EndFlow>,
}

/// Function that ends the flow of a client.
struct EndFlow(Box<dyn FnOnce() + Send>);

impl Recency {
    /// Keeps `most` clients at a time. `served` counts them, `evicted` those that made room for others.
    pub(super) fn new(most: usize, served: IntGauge, evicted: IntCounter) -> Self {
        let order = Arc::default();
        Self { most: most.max(1), order, served, evicted, warned: RateLimit::default() }
    }

    /// Takes a place for a client. At the limit, ends the flow of the client that has been silent longest: of
    /// this address's if they are more than a part of all.
    pub(super) fn take(&self, address: SocketAddr) -> Place {
        let mut order = self.order.lock();
        let evicted = if order.clients.len() >= self.most {
            order.evict(address.ip(), self.most / PART_OF_AN_ADDRESS)
        } else {
            None
        };
        let used = LastUsed::now();
        let number = order.add(address, used.clone());
        self.count(&order);
        drop(order);
        if let Some(evicted) = evicted {
            self.evicted.inc();
            if self.warned.is_due() {
                warn!(
                    "dropped the oldest UDP client: the limit of {} clients of the relay is \
                     reached; `ss -unp` shows their sockets",
                    self.most
                );
            }
            // Without the lock: what ends with the flow gives its place back.
            if let Some(EndFlow(end)) = evicted.end {
                end();
            }
        }
        Place { number, used, recency: self.clone() }
    }

    fn count(&self, order: &Order) {
        self.served.set(i64::try_from(order.clients.len()).unwrap_or(i64::MAX));
    }
}

impl Place {
    /// Notes how to end what serves the client. That is not called while the order is locked.
    pub(super) fn ended_by(&self, end: impl FnOnce() + Send + 'static) {
        if let Some(client) = self.recency.order.lock().clients.get_mut(&self.number) {
            client.end = Some(EndFlow(Box::new(end)));
        }
    }

    pub(super) fn used(&self) -> &LastUsed {
        &self.used
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut order = self.recency.order.lock();
        order.remove(self.number);
        self.recency.count(&order);
    }
}

impl LastUsed {
    fn now() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// Notes that a datagram has passed.
    pub(super) fn touch(&self) {
        *self.0.lock() = Instant::now();
    }

    fn get(&self) -> Instant {
        *self.0.lock()
    }

    /// Waits until nothing has passed for so long.
    pub(super) async fn until_idle(&self, idle: Duration) {
        loop {
            match idle.checked_sub(self.get().elapsed()) {
                Some(rest) if !rest.is_zero() => sleep(rest).await,
                _ => return,
            }
        }
    }
}

impl fmt::Debug for EndFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndFlow")
    }
}

impl Order {
    fn add(&mut self, address: SocketAddr, used: LastUsed) -> u64 {
        let (number, noted) = (self.next_number, used.get());
        self.next_number += 1;
        self.insert((noted, number), address.ip());
        self.clients.insert(number, Client { address, noted, used, end: None });
        number
    }

    fn insert(&mut self, key: Key, address: IpAddr) {
        self.all.insert(key);
        self.of_address.entry(address).or_default().insert(key);
    }

    fn take_out(&mut self, key: Key, address: IpAddr) {
        self.all.remove(&key);
        if let Some(keys) = self.of_address.get_mut(&address) {
            keys.remove(&key);
            if keys.is_empty() {
                self.of_address.remove(&address);
            }
        }
    }

    fn remove(&mut self, number: u64) -> Option<Client> {
        let client = self.clients.remove(&number)?;
        self.take_out((client.noted, number), client.address.ip());
        Some(client)
    }

    /// Removes the client that has been silent longest: of this address if it has more than `part` of them.
    fn evict(&mut self, address: IpAddr, part: usize) -> Option<Client> {
        let is_greedy = self.of_address.get(&address).is_some_and(|keys| keys.len() > part);
        loop {
            let among = if is_greedy { self.of_address.get(&address)? } else { &self.all };
            let (noted, number) = *among.first()?;
            let client = self.clients.get_mut(&number)?;
            let (used, ip) = (client.used.get(), client.address.ip());
            if used <= noted {
                return self.remove(number);
            }
            client.noted = used;
            self.take_out((noted, number), ip);
            self.insert((used, number), ip);
        }
    }
}
