//! Requests into bytes. Nothing here allocates but the buffer that is written to.

use std::net::{IpAddr, SocketAddr};

use netlink::{AttributeWriter, MessageWriter, generic};

use crate::codec::Request;
use crate::flags::Flags;
use crate::id::{AddressFamily, VirtualServerId};
use crate::real_server::{ForwardingMethod, RealServer};
use crate::settings::{SyncDaemon, SyncRole, Timeouts};
use crate::uapi::{FAMILY_VERSION, attribute, command, daemon, destination, service};
use crate::virtual_server::VirtualServer;

impl Request<'_> {
    /// Writes the message's body: generic netlink header and attributes.
    pub fn encode(&self, message: &mut MessageWriter<'_>) {
        generic::write_header(message, self.command(), FAMILY_VERSION);
        let mut attributes = message.attributes();
        match *self {
            Self::NewService(server) | Self::SetService(server) => {
                virtual_server(&mut attributes, server);
            }
            Self::DeleteService(id)
            | Self::GetService(id)
            | Self::ListDestinations(id)
            | Self::ZeroService(id) => virtual_server_id(&mut attributes, id),
            Self::NewDestination(id, server) | Self::SetDestination(id, server) => {
                virtual_server_id(&mut attributes, id);
                real_server(&mut attributes, server);
            }
            Self::DeleteDestination(id, address) => {
                virtual_server_id(&mut attributes, id);
                attributes.nested(attribute::DEST, |inner| real_server_id(inner, address));
            }
            Self::NewDaemon(daemon) => sync_daemon(&mut attributes, daemon),
            Self::DeleteDaemon(role) => sync_role(&mut attributes, role),
            Self::SetTimeouts(values) => timeouts(&mut attributes, values),
            Self::ListServices
            | Self::ListDaemons
            | Self::GetTimeouts
            | Self::GetInfo
            | Self::ZeroAll
            | Self::Flush => {}
        }
    }

    /// True if the answer is a listing, to be asked for with `NLM_F_DUMP`.
    #[must_use]
    pub fn is_dump(&self) -> bool {
        matches!(self, Self::ListServices | Self::ListDestinations(_) | Self::ListDaemons)
    }

    fn command(&self) -> u8 {
        match self {
            Self::NewService(_) => command::NEW_SERVICE,
            Self::SetService(_) => command::SET_SERVICE,
            Self::DeleteService(_) => command::DEL_SERVICE,
            Self::GetService(_) | Self::ListServices => command::GET_SERVICE,
            Self::NewDestination(..) => command::NEW_DEST,
            Self::SetDestination(..) => command::SET_DEST,
            Self::DeleteDestination(..) => command::DEL_DEST,
            Self::ListDestinations(_) => command::GET_DEST,
            Self::NewDaemon(_) => command::NEW_DAEMON,
            Self::DeleteDaemon(_) => command::DEL_DAEMON,
            Self::ListDaemons => command::GET_DAEMON,
            Self::SetTimeouts(_) => command::SET_CONFIG,
            Self::GetTimeouts => command::GET_CONFIG,
            Self::GetInfo => command::GET_INFO,
            Self::ZeroService(_) | Self::ZeroAll => command::ZERO,
            Self::Flush => command::FLUSH,
        }
    }
}

fn virtual_server(attributes: &mut AttributeWriter<'_>, server: &VirtualServer) {
    attributes.nested(attribute::SERVICE, |inner| {
        identity(inner, &server.id);
        inner.string(service::SCHED_NAME, server.scheduler.as_str());
        if let Some(engine) = &server.persistence_engine {
            inner.string(service::PE_NAME, engine.as_str());
        }
        inner.bytes(service::FLAGS, &flags(server.flags));
        inner.u32(service::TIMEOUT, server.persistence_timeout);
        inner.bytes(service::NETMASK, &server.netmask.to_bytes(server.id.family()));
    });
}

/// `struct ip_vs_flags`: the flags, and a mask of those that count, which is all of them.
///
/// The kernel's own flag is never asked for: kernels before 5.13 believed it, and then did not put
/// the virtual server into their table.
fn flags(flags: Flags) -> [u8; 8] {
    let [a, b, c, d] = flags.difference(Flags::HASHED).bits().to_ne_bytes();
    let [e, f, g, h] = u32::MAX.to_ne_bytes();
    [a, b, c, d, e, f, g, h]
}

fn virtual_server_id(attributes: &mut AttributeWriter<'_>, id: &VirtualServerId) {
    attributes.nested(attribute::SERVICE, |inner| identity(inner, id));
}

fn identity(inner: &mut AttributeWriter<'_>, id: &VirtualServerId) {
    inner.u16(service::AF, id.family().number());
    match *id {
        VirtualServerId::Address { protocol, address, port } => {
            inner.u16(service::PROTOCOL, protocol.0);
            inner.address(service::ADDR, address);
            inner.u16_be(service::PORT, port);
        }
        VirtualServerId::FirewallMark { mark, .. } => inner.u32(service::FWMARK, mark.get()),
    }
}

fn real_server(attributes: &mut AttributeWriter<'_>, server: &RealServer) {
    attributes.nested(attribute::DEST, |inner| {
        real_server_id(inner, server.socket_address());
        inner.u32(destination::FWD_METHOD, server.forwarding.number());
        inner.u32(destination::WEIGHT, server.weight);
        if let ForwardingMethod::Tunnel(options) = server.forwarding {
            inner.u8(destination::TUN_TYPE, options.kind.number());
            inner.u16_be(destination::TUN_PORT, options.port);
            inner.u16(destination::TUN_FLAGS, options.flags.bits());
        }
        inner.u32(destination::U_THRESH, server.upper_threshold);
        inner.u32(destination::L_THRESH, server.lower_threshold);
    });
}

fn real_server_id(inner: &mut AttributeWriter<'_>, server: SocketAddr) {
    inner.u16(destination::ADDR_FAMILY, AddressFamily::of(server.ip()).number());
    inner.address(destination::ADDR, server.ip());
    inner.u16_be(destination::PORT, server.port());
}

/// Writes a sync daemon. Fields left to the kernel are left out: Linux before 4.3 lacks them.
fn sync_daemon(attributes: &mut AttributeWriter<'_>, wanted: &SyncDaemon) {
    attributes.nested(attribute::DAEMON, |inner| {
        inner.u32(daemon::STATE, wanted.role.number());
        inner.string(daemon::MCAST_IFN, wanted.interface.as_str());
        inner.u32(daemon::SYNC_ID, wanted.sync_id);
        if wanted.datagram_length != 0 {
            inner.u16(daemon::SYNC_MAXLEN, wanted.datagram_length);
        }
        match wanted.group {
            Some(group @ IpAddr::V4(_)) => inner.address(daemon::MCAST_GROUP, group),
            Some(group @ IpAddr::V6(_)) => inner.address(daemon::MCAST_GROUP6, group),
            None => {}
        }
        // The port is in the machine's byte order, unlike the others.
        if wanted.port != 0 {
            inner.u16(daemon::MCAST_PORT, wanted.port);
        }
        if wanted.ttl != 0 {
            inner.u8(daemon::MCAST_TTL, wanted.ttl);
        }
    });
}

fn sync_role(attributes: &mut AttributeWriter<'_>, role: SyncRole) {
    attributes.nested(attribute::DAEMON, |inner| inner.u32(daemon::STATE, role.number()));
}

fn timeouts(attributes: &mut AttributeWriter<'_>, timeouts: Timeouts) {
    attributes.u32(attribute::TIMEOUT_TCP, timeouts.tcp);
    attributes.u32(attribute::TIMEOUT_TCP_FIN, timeouts.tcp_fin);
    attributes.u32(attribute::TIMEOUT_UDP, timeouts.udp);
}
