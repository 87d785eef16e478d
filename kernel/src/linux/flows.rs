//! Stale flows, removed on any thread.

use std::sync::Arc;

use parking_lot::Mutex;
use plan::flows::FlowTargets;
use plan::model::Family;

use super::super::conntrack::ConntrackClient;
use super::{FlowRemover, Refusal, refusal};

/// Connection tracking, by a socket of its own.
#[derive(Debug, Clone)]
pub(super) struct SharedConntrack(Arc<Mutex<ConntrackClient>>);

impl SharedConntrack {
    pub(super) fn open() -> Result<Self, netlink::Error> {
        Ok(Self(Arc::new(Mutex::new(ConntrackClient::open()?))))
    }
}

impl FlowRemover for SharedConntrack {
    fn remove_flows(&self, family: Family, targets: &FlowTargets) -> Result<u64, Refusal> {
        let mut client = self.0.lock();
        client.remove_stale(family, targets).map_err(|error| refusal(&error))
    }
}
