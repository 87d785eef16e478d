//! Flows that lead nowhere: what connection tracking remembers of a client and an endpoint that is
//! gone, or of a client whose packets went out before there was anything to answer them.
//!
//! A client that goes on sending from the same port keeps such an entry alive for ever, and never
//! reaches a living endpoint. TCP connections end by themselves, except those on the fast path whose endpoint's drain
//! deadline is over: nothing but connection tracking has them.

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use crate::hash::{HashMap, HashSet};
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

/// Sockets that the flows to some frontends may lead to, and endpoints whose time is over. All other flows are not ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowTargets {
    targets: HashMap<Frontend, Option<Box<[SocketAddr]>>>,
    over: HashSet<(Frontend, SocketAddr)>,
}

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
        self.targets.insert(frontend, targets);
    }

    /// Adds an endpoint of a frontend whose time is over: no flow from one to the other is to go on.
    pub fn insert_over(&mut self, frontend: Frontend, endpoint: SocketAddr) {
        self.over.insert((frontend, endpoint));
    }

    /// True if a flow is to be forgotten, so that the next packet begins a new one.
    ///
    /// At a frontend that a Service owns, a flow is stale if it leads to none of the endpoints,
    /// even if it was never redirected. At a frontend that no Service owns any more, only
    /// redirected flows are stale: the others are not ours.
    #[must_use]
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let frontend = flow.frontend();
        match self.targets.get(&frontend) {
            Some(Some(targets)) => targets.binary_search(&flow.reply_source).is_err(),
            Some(None) => flow.reply_source != flow.destination,
            None => self.over.contains(&(frontend, flow.reply_source)),
        }
    }

    /// The frontends that targets were added of, in no order.
    pub fn with_targets(&self) -> impl Iterator<Item = &Frontend> {
        self.targets.keys()
    }

    /// Endpoints whose time is over, each with the frontend, in no order.
    pub fn over(&self) -> impl Iterator<Item = &(Frontend, SocketAddr)> {
        self.over.iter()
    }

    /// The frontends of all flows that may be stale, in no order, and some more than once.
    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.with_targets().chain(self.over().map(|(frontend, _)| frontend))
    }

    /// True if there is a frontend of this family.
    #[must_use]
    pub fn has(&self, family: Family) -> bool {
        self.frontends().any(|frontend| frontend.family() == family)
    }

    /// True if there is none at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.over.is_empty()
    }
}
