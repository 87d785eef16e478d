//! Connections that a fake kernel's IPVS leads.

use plan::kernel_objects::Frontend;
use plan::model::Protocol;

use super::{Fake, FakeState};
use crate::kernel::KernelRead;
use crate::kernel::{OpenConnections, ReadError};

impl Fake {
    /// Closes the connections of a virtual server. Its real servers go on counting them.
    pub fn close_connections(&self, frontend: Frontend) {
        self.state().closed.insert(frontend);
    }
}

impl FakeState {
    /// Counts the connections that are not closed; none if there are more than `most`, closed or not.
    pub(super) fn open_connections(
        &mut self,
        most: u64,
    ) -> Result<Option<OpenConnections>, ReadError> {
        self.looks.connections += 1;
        let closed = self.closed.clone();
        let actual = self.readable(KernelRead::Connections)?;
        let real_servers = actual.virtual_servers.values().flat_map(|it| it.real_servers.values());
        if real_servers.map(|it| it.connections).sum::<u64>() > most {
            return Ok(None);
        }
        let is_open =
            |frontend: &Frontend| frontend.protocol != Protocol::Udp && !closed.contains(frontend);
        let servers = actual.virtual_servers.iter().filter(|(frontend, _)| is_open(frontend));
        let each = servers.flat_map(|(frontend, server)| {
            let real_servers = server.real_servers.iter();
            real_servers.map(|(socket, found)| ((*frontend, *socket), found.connections))
        });
        Ok(Some(each.filter(|(_, connections)| *connections > 0).collect()))
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
