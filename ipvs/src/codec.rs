//! Requests and answers as bytes, apart from any socket.
//!
//! A *body* is a netlink message without its `struct nlmsghdr`: the generic netlink header, then
//! attributes. That is what [`netlink::Socket`] hands over and what [`netlink::Batch::body`]
//! shows, and what each `decode_…` function here reads. They return an error for whatever is not
//! as include/uapi/linux/ip_vs.h has it, never panic, pass over attributes they do not know, and
//! keep numbers they have no name for.
//!
//! ```
//! use ipvs::codec::{Request, decode_virtual_server};
//! use ipvs::{Scheduler, VirtualServer, VirtualServerId};
//!
//! let server = VirtualServer::new(VirtualServerId::tcp([10, 96, 0, 1], 80), Scheduler::ROUND_ROBIN);
//! let mut batch = netlink::Batch::new();
//! batch.push(0x22, 0, |message| Request::NewService(&server).encode(message));
//! let decoded = decode_virtual_server(batch.body(0).unwrap())?;
//! assert_eq!(decoded.server, server);
//! # Ok::<(), ipvs::DecodeError>(())
//! ```

mod decode;
mod describe;
mod encode;
mod option;

use std::net::SocketAddr;

pub use decode::{
    decode_info, decode_real_server, decode_sync_daemon, decode_timeouts, decode_virtual_server,
};
pub(crate) use describe::Description;
pub(crate) use option::{decode_service_entries, service_entries};

use crate::id::VirtualServerId;
use crate::real_server::RealServer;
use crate::settings::{SyncDaemon, SyncRole, Timeouts};
use crate::virtual_server::VirtualServer;

/// Every command of the family `IPVS` (`IPVS_CMD_*`, include/uapi/linux/ip_vs.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request<'a> {
    /// Adds a virtual server (`IPVS_CMD_NEW_SERVICE`).
    NewService(&'a VirtualServer),
    /// Changes everything but a virtual server's identity (`IPVS_CMD_SET_SERVICE`).
    SetService(&'a VirtualServer),
    /// Deletes a virtual server and its real servers (`IPVS_CMD_DEL_SERVICE`).
    DeleteService(&'a VirtualServerId),
    /// Reads one virtual server (`IPVS_CMD_GET_SERVICE`).
    GetService(&'a VirtualServerId),
    /// Reads them all; a dump (`IPVS_CMD_GET_SERVICE`).
    ListServices,
    /// Adds a real server (`IPVS_CMD_NEW_DEST`).
    NewDestination(&'a VirtualServerId, &'a RealServer),
    /// Changes everything but a real server's address and port (`IPVS_CMD_SET_DEST`).
    SetDestination(&'a VirtualServerId, &'a RealServer),
    /// Deletes a real server (`IPVS_CMD_DEL_DEST`).
    DeleteDestination(&'a VirtualServerId, SocketAddr),
    /// Reads a virtual server's real servers; a dump (`IPVS_CMD_GET_DEST`).
    ListDestinations(&'a VirtualServerId),
    /// Starts a sync daemon (`IPVS_CMD_NEW_DAEMON`).
    NewDaemon(&'a SyncDaemon),
    /// Stops a sync daemon (`IPVS_CMD_DEL_DAEMON`).
    DeleteDaemon(SyncRole),
    /// Reads the sync daemons; a dump (`IPVS_CMD_GET_DAEMON`).
    ListDaemons,
    /// Sets timeouts; those that are 0 stay (`IPVS_CMD_SET_CONFIG`).
    SetTimeouts(Timeouts),
    /// Reads the timeouts (`IPVS_CMD_GET_CONFIG`).
    GetTimeouts,
    /// Reads version and size (`IPVS_CMD_GET_INFO`).
    GetInfo,
    /// Zeroes the counters of a virtual server and of its real servers (`IPVS_CMD_ZERO`).
    ZeroService(&'a VirtualServerId),
    /// Zeroes every counter (`IPVS_CMD_ZERO`).
    ZeroAll,
    /// Deletes every virtual server (`IPVS_CMD_FLUSH`).
    Flush,
}

#[cfg(test)]
mod tests;
