//! Numbers of the connections that connection tracking carries: those on the fast path, and those to internal frontends.
//!
//! IPVS sees the first packets of such a connection and forgets it. It is told by its status (`IPS_DST_NAT`), which a
//! connection that IPVS carries does not have: none is counted by both.

use std::net::SocketAddr;

use netlink::Error;
use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::Frontend;
use plan::model::Family;
use plan::settings::FastPath;

use super::message::{self, Filter};
use super::{ConntrackClient, TrackedConnection, filters};
use crate::counters::ConnectionCount;

/// Pause after a count, as a multiple of its duration: the kernel walks its table for it, and lists what it finds.
pub const REST: u32 = 100;

/// Number of tracked connections by frontend, as clients see it, and endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrackedCounts(HashMap<(Frontend, SocketAddr), ConnectionCount>);

impl ConntrackClient {
    /// Counts the connections to these frontends, as clients see them. Holds none of them.
    pub fn count(&mut self, frontends: &HashSet<Frontend>) -> Result<TrackedCounts, Error> {
        let mut counts = TrackedCounts::default();
        for family in Family::BOTH {
            for filter in filters(family, frontends.iter()) {
                // No two have a frontend in common.
                counts.extend(self.count_listed(&filter, frontends)?);
            }
        }
        Ok(counts)
    }

    /// Counts those that pass a filter, also where the kernel lists others.
    fn count_listed(
        &mut self,
        filter: &Filter,
        frontends: &HashSet<Frontend>,
    ) -> Result<TrackedCounts, Error> {
        self.socket.fold_dump(
            message::GET,
            |message| filter.write(message),
            |counts: &mut TrackedCounts, body| {
                let found = TrackedConnection::decode(body)?;
                if let Some(found) = found
                    && found.path != FastPath::Off
                    && frontends.contains(&found.frontend())
                    && filter.passes(&found.flow())
                {
                    counts.add(&found);
                }
                Ok(())
            },
        )
    }
}

impl TrackedCounts {
    /// Returns the number of connections from a frontend, as clients see it, to an endpoint.
    #[must_use]
    pub fn get(&self, frontend: &Frontend, endpoint: SocketAddr) -> ConnectionCount {
        self.0.get(&(*frontend, endpoint)).copied().unwrap_or_default()
    }

    /// All numbers but 0, each with the frontend and the endpoint, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Frontend, SocketAddr, ConnectionCount)> {
        self.0.iter().map(|((frontend, endpoint), count)| (*frontend, *endpoint, *count))
    }

    fn add(&mut self, connection: &TrackedConnection) {
        let count = self.0.entry((connection.frontend(), connection.endpoint)).or_default();
        if connection.is_active() {
            count.active += 1;
        } else {
            count.inactive += 1;
        }
    }

    fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

impl FromIterator<(Frontend, SocketAddr, ConnectionCount)> for TrackedCounts {
    fn from_iter<I: IntoIterator<Item = (Frontend, SocketAddr, ConnectionCount)>>(iter: I) -> Self {
        Self(iter.into_iter().map(|(of, endpoint, count)| ((of, endpoint), count)).collect())
    }
}

#[cfg(test)]
mod tests {
    use plan::model::Protocol;

    use super::*;

    fn tracked(protocol: Protocol, state: &'static str, path: FastPath) -> TrackedConnection {
        TrackedConnection {
            protocol,
            client: ([192, 168, 0, 100], 20_000).into(),
            destination: ([10, 96, 0, 10], 80).into(),
            endpoint: ([10, 244, 1, 11], 8_080).into(),
            seen: ([192, 168, 0, 100], 20_000).into(),
            state,
            path,
            expires: 60,
            began: None,
        }
    }

    #[test]
    fn established_connections_are_active_and_of_udp_none() {
        let mut counts = TrackedCounts::default();
        for (state, path) in [
            ("ESTABLISHED", FastPath::Conntrack),
            ("OFFLOAD", FastPath::Offload),
            ("SYN_SENT", FastPath::Conntrack),
            ("TIME_WAIT", FastPath::Conntrack),
            ("FIN_WAIT", FastPath::Conntrack),
        ] {
            counts.add(&tracked(Protocol::Tcp, state, path));
        }
        counts.add(&tracked(Protocol::Udp, "UNREPLIED", FastPath::Conntrack));
        counts.add(&tracked(Protocol::Udp, "OFFLOAD", FastPath::Offload));
        let of = |protocol| {
            let frontend = Frontend { address: [10, 96, 0, 10].into(), protocol, port: 80 };
            counts.get(&frontend, ([10, 244, 1, 11], 8_080).into())
        };
        assert_eq!(of(Protocol::Tcp), ConnectionCount { active: 2, inactive: 3 });
        assert_eq!(of(Protocol::Udp), ConnectionCount { active: 0, inactive: 2 });
        assert_eq!((of(Protocol::Sctp).total(), counts.iter().count()), (0, 2));
    }
}
