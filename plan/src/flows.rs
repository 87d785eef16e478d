//! Flows that lead nowhere: what connection tracking remembers of a client and an endpoint that is
//! gone, or of a client whose packets went out before there was anything to answer them.
//!
//! A client that goes on sending from the same port keeps such an entry alive for ever, and never
//! reaches a living endpoint. TCP needs none of this: its connections end by themselves.

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use crate::hash::HashMap;
use crate::kernel_objects::Frontend;
use crate::model::{Family, Protocol};

/// Flow of a client as connection tracking remembers it, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    pub protocol: Protocol,
    /// Address and port that the client sends to.
    pub destination: SocketAddr,
    /// Source of the answers: the endpoint. It is the destination itself where nothing has
    /// redirected the client's first packet.
    pub reply_source: SocketAddr,
}

/// Sockets that the flows to some frontends may lead to. The flows of all others are not ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowTargets(HashMap<Frontend, Option<Box<[SocketAddr]>>>);

impl Flow {
    /// Returns the frontend that the client takes for the server.
    #[must_use]
    pub fn frontend(&self) -> Frontend {
        Frontend {
            address: self.destination.ip(),
            protocol: self.protocol,
            port: self.destination.port(),
        }
    }
}

impl FlowTargets {
    /// Adds a frontend: one that a Service owns, with all sockets that its flows may lead to, or
    /// one that no Service owns any more. TCP frontends are ignored.
    pub fn insert(
        &mut self,
        frontend: Frontend,
        targets: Option<impl IntoIterator<Item = SocketAddr>>,
    ) {
        if frontend.protocol == Protocol::Tcp {
            return;
        }
        let targets = targets.map(|targets| {
            let mut targets: Vec<SocketAddr> = targets.into_iter().collect();
            targets.sort_unstable();
            targets.into_boxed_slice()
        });
        self.0.insert(frontend, targets);
    }

    /// True if a flow is to be forgotten, so that the next packet begins a new one.
    ///
    /// At a frontend that a Service owns, a flow is stale if it leads to none of the endpoints,
    /// even if it was never redirected. At a frontend that no Service owns any more, only
    /// redirected flows are stale: the others are not ours.
    #[must_use]
    pub fn is_stale(&self, flow: &Flow) -> bool {
        match self.0.get(&flow.frontend()) {
            Some(Some(targets)) => targets.binary_search(&flow.reply_source).is_err(),
            Some(None) => flow.reply_source != flow.destination,
            None => false,
        }
    }

    /// The frontends, in no order.
    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.0.keys()
    }

    /// True if there is a frontend of this family.
    #[must_use]
    pub fn has(&self, family: Family) -> bool {
        self.0.keys().any(|frontend| frontend.family() == family)
    }

    /// True if there is none at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
