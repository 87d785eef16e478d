//! Properties that a network namespace has once: version, timeouts, and its sync daemons.

use std::fmt;
use std::net::IpAddr;

use crate::name::InterfaceName;
use crate::uapi::sync_state;
use crate::with::with;

/// Information that IPVS gives about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The version of IPVS; 1.2.1 since Linux 2.6.
    pub version: Version,
    /// Number of buckets in the table of connections.
    pub connection_table_size: u32,
}

/// Three numbers, packed by the kernel into one (`NVERSION`, include/uapi/linux/ip_vs.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub(crate) u32);

/// After how many idle seconds a connection is forgotten. For setting them, 0 keeps what is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// An established TCP connection; the kernel's default is 900.
    pub tcp: u32,
    /// A TCP connection after a FIN; the kernel's default is 120.
    pub tcp_fin: u32,
    /// A UDP connection; the kernel's default is 300.
    pub udp: u32,
}

/// A thread of the kernel that tells other hosts of connections, or is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncDaemon {
    /// The side that the daemon is on: master or backup.
    pub role: SyncRole,
    /// The interface that it speaks multicast on.
    pub interface: InterfaceName,
    /// The group of hosts it belongs to: 0 to 255, and a backup takes every master's for 0.
    pub sync_id: u32,
    /// The most bytes of a datagram; 0 for what the interface's MTU allows. A backup takes 1024
    /// at least. Since Linux 4.3, as are the fields below.
    pub datagram_length: u16,
    /// The multicast group; `None` for 224.0.0.81.
    pub group: Option<IpAddr>,
    /// The UDP port; 0 for 8848.
    pub port: u16,
    /// The time to live of a datagram; 0 for 1.
    pub ttl: u8,
}

/// One side of the synchronisation; a host can be both (`IP_VS_STATE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncRole {
    /// It tells.
    Master,
    /// It is told.
    Backup,
}

impl Version {
    /// Major, minor, patch.
    #[must_use]
    pub fn parts(self) -> (u8, u8, u8) {
        let [_, major, minor, patch] = self.0.to_be_bytes();
        (major, minor, patch)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, patch) = self.parts();
        write!(f, "{major}.{minor}.{patch}")
    }
}

impl Timeouts {
    with! {
        with_tcp(u32) sets tcp;
        with_tcp_fin(u32) sets tcp_fin;
        with_udp(u32) sets udp;
    }
}

impl SyncDaemon {
    /// A daemon with the kernel's choice of group, port and lengths, and sync ID 0.
    #[must_use]
    pub fn new(role: SyncRole, interface: InterfaceName) -> Self {
        Self { role, interface, sync_id: 0, datagram_length: 0, group: None, port: 0, ttl: 0 }
    }

    with! {
        with_sync_id(u32) sets sync_id;
        with_datagram_length(u16) sets datagram_length;
        with_port(u16) sets port;
        with_ttl(u8) sets ttl;
    }

    /// Returns the same with a multicast group.
    #[must_use]
    pub fn with_group(mut self, group: impl Into<IpAddr>) -> Self {
        self.group = Some(group.into());
        self
    }
}

impl SyncRole {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Master => sync_state::MASTER,
            Self::Backup => sync_state::BACKUP,
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        match number {
            sync_state::MASTER => Some(Self::Master),
            sync_state::BACKUP => Some(Self::Backup),
            _ => None,
        }
    }
}

impl fmt::Display for SyncRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Master => "master",
            Self::Backup => "backup",
        })
    }
}
