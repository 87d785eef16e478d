//! Many commands in a few sends.

use std::net::SocketAddr;

use crate::codec::Request;
use crate::id::VirtualServerId;
use crate::real_server::RealServer;
use crate::virtual_server::VirtualServer;

/// Commands in the order in which the kernel is to work through them, for
/// [`Client::send`](crate::Client::send).
///
/// Each method returns the command's place, which is its place among the results. A command costs
/// some hundred bytes of one growing buffer, and nothing else is allocated for it.
#[derive(Debug, Default)]
pub struct Batch {
    requests: netlink::Batch,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a virtual server.
    pub fn new_service(&mut self, server: &VirtualServer) -> usize {
        self.push(&Request::NewService(server))
    }

    /// Changes everything but a virtual server's identity; its connections stay.
    pub fn set_service(&mut self, server: &VirtualServer) -> usize {
        self.push(&Request::SetService(server))
    }

    /// Deletes a virtual server and its real servers.
    pub fn delete_service(&mut self, id: &VirtualServerId) -> usize {
        self.push(&Request::DeleteService(id))
    }

    /// Adds a real server.
    pub fn new_destination(&mut self, id: &VirtualServerId, server: &RealServer) -> usize {
        self.push(&Request::NewDestination(id, server))
    }

    /// Changes everything but a real server's address and port; its connections stay.
    pub fn set_destination(&mut self, id: &VirtualServerId, server: &RealServer) -> usize {
        self.push(&Request::SetDestination(id, server))
    }

    /// Deletes a real server.
    pub fn delete_destination(&mut self, id: &VirtualServerId, server: SocketAddr) -> usize {
        self.push(&Request::DeleteDestination(id, server))
    }

    /// Zeroes the counters of a virtual server and of its real servers.
    pub fn zero_service(&mut self, id: &VirtualServerId) -> usize {
        self.push(&Request::ZeroService(id))
    }

    /// Any command that is answered by yes or no. One that reads something is carried out too,
    /// and what it read is thrown away.
    pub fn push(&mut self, request: &Request<'_>) -> usize {
        // The client knows the family's number, and gives it when it sends.
        self.requests.push(0, 0, |message| request.encode(message))
    }

    /// Returns the number of commands that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// True if no command waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Forgets every command and keeps the memory.
    pub fn clear(&mut self) {
        self.requests.clear();
    }

    pub(crate) fn requests(&self) -> &netlink::Batch {
        &self.requests
    }
}
