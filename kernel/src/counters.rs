//! Connections and counters of virtual servers, for the people who ask: read by a handle of their
//! own, so that the one of the event loop has nothing to wait for but the kernel.

use std::net::SocketAddr;

use plan::kernel_objects::Frontend;

use super::{ReadError, translate};

/// Handle that reads them, in the network namespace that it was opened in.
#[derive(Debug)]
pub struct Counters(ipvs::Client);

/// A virtual server as the kernel counts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedVirtualServer {
    /// Scheduler by its name.
    pub scheduler: String,
    /// Number of seconds that a client address is remembered for; none: not at all.
    pub persistence: Option<u32>,
    /// Traffic through it.
    pub traffic: ipvs::Statistics,
    /// Its real servers, in the order of address and port.
    pub real_servers: Vec<CountedRealServer>,
}

/// A real server as the kernel counts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedRealServer {
    /// Address and port.
    pub socket: SocketAddr,
    /// Its share; 0 means no new connections.
    pub weight: u32,
    /// Established connections.
    pub active: u32,
    /// Connections that begin or end, and all of UDP.
    pub inactive: u32,
    /// Traffic to and from it.
    pub traffic: ipvs::Statistics,
}

/// Number of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionCount {
    /// Established ones.
    pub active: u64,
    /// Those that begin or end, and all of UDP.
    pub inactive: u64,
}

impl ConnectionCount {
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            active: self.active.saturating_add(other.active),
            inactive: self.inactive.saturating_add(other.inactive),
        }
    }

    /// Active and inactive ones.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.active.saturating_add(self.inactive)
    }
}

impl Counters {
    /// Opens a handle in the calling thread's network namespace.
    pub fn open() -> Result<Self, ReadError> {
        ipvs::Client::open().map(Self).map_err(|error| ReadError::new("IPVS", error))
    }

    /// Reads a virtual server; none if there is none.
    pub fn read(&mut self, frontend: &Frontend) -> Result<Option<CountedVirtualServer>, ReadError> {
        let unread = |error| ReadError::new(format!("virtual server {frontend}"), error);
        let id = translate::virtual_server_id(frontend);
        let found = match self.0.service(&id) {
            Ok(found) => found,
            Err(error) if error.is_no_such_service() => return Ok(None),
            Err(error) => return Err(unread(error)),
        };
        let mut real_servers: Vec<CountedRealServer> = self
            .0
            .list_destinations(&id)
            .map_err(unread)?
            .iter()
            .map(|real| CountedRealServer {
                socket: real.server.socket_address(),
                weight: real.server.weight,
                active: real.active_connections,
                inactive: real.inactive_connections,
                traffic: real.statistics,
            })
            .collect();
        real_servers.sort_by_key(|real| real.socket);
        let is_persistent = found.server.flags.contains(ipvs::Flags::PERSISTENT);
        Ok(Some(CountedVirtualServer {
            scheduler: found.server.scheduler.as_str().to_owned(),
            persistence: is_persistent.then_some(found.server.persistence_timeout),
            traffic: found.statistics,
            real_servers,
        }))
    }

    /// Counts the connections of virtual servers. One that is not there has none.
    pub fn connections(&mut self, frontends: &[Frontend]) -> Result<ConnectionCount, ReadError> {
        let mut count = ConnectionCount::default();
        for frontend in frontends {
            let id = translate::virtual_server_id(frontend);
            let unread = |error| ReadError::new(format!("real servers of {frontend}"), error);
            for real in self.0.list_destinations(&id).map_err(unread)? {
                count.active += u64::from(real.active_connections);
                count.inactive += u64::from(real.inactive_connections);
            }
        }
        Ok(count)
    }
}
