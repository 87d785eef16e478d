//! Connections that a fake kernel's IPVS leads.

use plan::kernel_objects::Frontend;
use plan::model::Protocol;

use super::{Fake, FakeState};
use crate::kernel::fake::interference::ReadCall;
use crate::kernel::{OpenConnections, ReadError};

impl Fake {
    /// Closes the connections of a virtual server. Its real servers go on counting them.
    pub fn close_connections(&self, frontend: Frontend) {
        self.state().closed.insert(frontend);
    }
}

impl FakeState {
    /// Counts the connections that are not closed.
    pub(super) fn open_connections(&mut self) -> Result<OpenConnections, ReadError> {
        let closed = self.closed.clone();
        let actual = self.readable(ReadCall::Connections)?;
        let is_open =
            |frontend: &Frontend| frontend.protocol != Protocol::Udp && !closed.contains(frontend);
        let servers = actual.virtual_servers.iter().filter(|(frontend, _)| is_open(frontend));
        let each = servers.flat_map(|(frontend, server)| {
            let real_servers = server.real_servers.iter();
            real_servers.map(|(socket, found)| ((*frontend, *socket), found.connections))
        });
        Ok(each.filter(|(_, connections)| *connections > 0).collect())
    }
}

impl std::fmt::Debug for FakeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeState")
            .field("memory", &self.memory)
            .field("faults", &self.faults.len())
            .finish_non_exhaustive()
    }
}
