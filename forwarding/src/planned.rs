//! Ports of Services from the event loop to those who listen: they are listened on once the kernel has what leads there.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use parking_lot::Mutex;
use plan::model::ServiceName;
use reconcile::observer::{Round, RoundKind};

/// Ports of each Service; an empty list means that it has none.
pub type PortsByService<P> = BTreeMap<ServiceName, Vec<P>>;

/// Ports that an event loop has planned and not yet written.
#[derive(Debug)]
pub struct PlannedPorts<P> {
    /// Services of the loop before, which this one has not planned yet.
    unseen: BTreeSet<ServiceName>,
    ports: PortsByService<P>,
}

/// Services that have ports, whichever loop planned them.
#[derive(Debug, Default)]
pub struct ServicesWithPorts(Mutex<BTreeSet<ServiceName>>);

impl<P> PlannedPorts<P> {
    /// Adds the ports of these Services, in place of those planned before.
    pub fn extend(&mut self, ports: impl IntoIterator<Item = (ServiceName, Vec<P>)>) {
        self.ports.extend(ports);
    }

    /// Takes what a round has written: nothing after a retry or a drain check, when ports planned meanwhile may
    /// still wait. Services of the loop before that are not there any more have none.
    pub fn written(&mut self, round: &Round<'_>) -> PortsByService<P> {
        if round.kind == RoundKind::Retry {
            return BTreeMap::new();
        }
        let mut ports = mem::take(&mut self.ports);
        self.unseen.retain(|service| !ports.contains_key(service));
        if round.backlog == 0 {
            let gone = mem::take(&mut self.unseen);
            ports.extend(gone.into_iter().map(|service| (service, Vec::new())));
        }
        ports
    }
}

impl ServicesWithPorts {
    /// Returns the ports of another event loop. Those of the one before stay until the new one has planned everything.
    #[must_use]
    pub fn planned<P>(&self) -> PlannedPorts<P> {
        PlannedPorts { unseen: self.0.lock().clone(), ports: BTreeMap::new() }
    }

    /// Notes ports, and hands them on.
    pub fn put<P>(&self, ports: PortsByService<P>, hand_on: impl FnOnce(PortsByService<P>)) {
        if ports.is_empty() {
            return;
        }
        let mut services = self.0.lock();
        for (service, ports) in &ports {
            if ports.is_empty() {
                services.remove(service);
            } else {
                services.insert(service.clone());
            }
        }
        hand_on(ports);
    }

    /// Takes the ports of all Services away.
    #[must_use]
    pub fn take_all<P>(&self) -> PortsByService<P> {
        mem::take(&mut *self.0.lock()).into_iter().map(|service| (service, Vec::new())).collect()
    }
}
