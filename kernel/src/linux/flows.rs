//! Flows of connection tracking, counted and removed on any thread.

use std::sync::Arc;

use parking_lot::Mutex;
use plan::flows::FlowTargets;
use plan::hash::HashSet;
use plan::kernel_objects::Frontend;
use plan::model::Family;

use super::super::conntrack::{ConntrackClient, TrackedCounts};
use super::{ReadError, Refusal, TrackedFlows, refusal};

/// Connection tracking, by a socket of its own.
#[derive(Debug, Clone)]
pub(super) struct SharedConntrack(Arc<Mutex<ConntrackClient>>);

impl SharedConntrack {
    pub(super) fn open() -> Result<Self, netlink::Error> {
        Ok(Self(Arc::new(Mutex::new(ConntrackClient::open()?))))
    }
}

impl TrackedFlows for SharedConntrack {
    fn count_flows(&self, frontends: &HashSet<Frontend>) -> Result<TrackedCounts, ReadError> {
        let counted = self.0.lock().count(frontends);
        counted.map_err(|error| ReadError::new("conntrack entries", error))
    }

    fn remove_flows(&self, family: Family, targets: &FlowTargets) -> Result<u64, Refusal> {
        let mut client = self.0.lock();
        client.remove_stale(family, targets).map_err(|error| refusal(&error))
    }
}
