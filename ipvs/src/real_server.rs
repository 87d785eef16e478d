//! A real server: what a virtual server's connections are given to. The kernel calls it a
//! destination.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::flags::TunnelFlags;
use crate::statistics::Statistics;
use crate::uapi::{forwarding, tunnel};
use crate::with::with;

/// A real server as it is wanted. Address and port tell it from the others of a virtual server.
///
/// ```
/// let server = ipvs::RealServer::new([10, 0, 0, 1], 8080).with_weight(2);
/// # assert_eq!(server.weight, 2);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RealServer {
    /// Its address, of the virtual server's family unless packets are tunnelled to it.
    pub address: IpAddr,
    /// The port; forwarding methods other than masquerading cannot change the packet's own.
    pub port: u16,
    /// The way packets get to the real server.
    pub forwarding: ForwardingMethod,
    /// Its share, for the schedulers that weigh; with 0 it gets no new connections. At most
    /// `i32::MAX`.
    pub weight: u32,
    /// With so many connections it gets no new ones; 0 for no limit.
    pub upper_threshold: u32,
    /// Overloaded, it gets new connections once it has fewer than this; 0 for three quarters of
    /// the upper threshold. Not above the upper threshold.
    pub lower_threshold: u32,
}

/// A way for packets to get to a real server (`IP_VS_CONN_F_*`, include/uapi/linux/ip_vs.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ForwardingMethod {
    /// Address and port are rewritten.
    Masquerade,
    /// To a process on this host.
    Local,
    /// Wrapped into another packet.
    Tunnel(TunnelOptions),
    /// To the real server's link-layer address, unchanged.
    DirectRoute,
    /// To the packet's own destination; the kernel uses it inside.
    Bypass,
    /// Any other number. [`ForwardingMethod::number`] and decoding never make it of the above.
    Other(u32),
}

/// The tunnel that packets are wrapped into.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TunnelOptions {
    /// The kind of tunnel. Linux before 5.2 has IPIP only, and leaves this out of what it lists.
    pub kind: TunnelType,
    /// The UDP port for GUE, which needs one; 0 for the others.
    pub port: u16,
    /// Checksums, for GUE and GRE.
    pub flags: TunnelFlags,
}

/// A kind of tunnel (`IP_VS_CONN_F_TUNNEL_TYPE_*`, include/uapi/linux/ip_vs.h).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TunnelType {
    /// IP in IP.
    #[default]
    Ipip,
    /// Generic UDP encapsulation, since Linux 5.2.
    Gue,
    /// Generic routing encapsulation, since Linux 5.3.
    Gre,
    /// Any other number. [`TunnelType::from`] never makes it of the three above.
    Other(u8),
}

/// A real server as the kernel lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RealServerStatus {
    /// Its configuration.
    pub server: RealServer,
    /// Established connections.
    pub active_connections: u32,
    /// Connections that begin or end, and all of UDP.
    pub inactive_connections: u32,
    /// Clients that are to stay with it.
    pub persistent_connections: u32,
    /// Traffic to and from the real server.
    pub statistics: Statistics,
}

impl RealServer {
    /// A real server that packets are masqueraded to, with weight 1 and no thresholds.
    #[must_use]
    pub fn new(address: impl Into<IpAddr>, port: u16) -> Self {
        Self {
            address: address.into(),
            port,
            forwarding: ForwardingMethod::Masquerade,
            weight: 1,
            upper_threshold: 0,
            lower_threshold: 0,
        }
    }

    with! {
        with_forwarding(ForwardingMethod) sets forwarding;
        with_weight(u32) sets weight;
        with_upper_threshold(u32) sets upper_threshold;
        with_lower_threshold(u32) sets lower_threshold;
    }

    /// Address and port: its identity within a virtual server.
    #[must_use]
    pub fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

impl RealServerStatus {
    /// A real server that has had no connections yet.
    #[must_use]
    pub fn new(server: RealServer) -> Self {
        Self {
            server,
            active_connections: 0,
            inactive_connections: 0,
            persistent_connections: 0,
            statistics: Statistics::default(),
        }
    }
}

impl TunnelOptions {
    /// A tunnel without port and flags.
    #[must_use]
    pub fn new(kind: TunnelType) -> Self {
        Self { kind, port: 0, flags: TunnelFlags::empty() }
    }

    with! {
        with_port(u16) sets port;
        with_flags(TunnelFlags) sets flags;
    }
}

impl ForwardingMethod {
    /// The kernel's number.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Masquerade => forwarding::MASQ,
            Self::Local => forwarding::LOCALNODE,
            Self::Tunnel(_) => forwarding::TUNNEL,
            Self::DirectRoute => forwarding::DROUTE,
            Self::Bypass => forwarding::BYPASS,
            Self::Other(number) => number,
        }
    }

    /// The tunnel's options count for a tunnel only: the kernel lists them always.
    pub(crate) fn from_number(number: u32, options: TunnelOptions) -> Self {
        match number {
            forwarding::MASQ => Self::Masquerade,
            forwarding::LOCALNODE => Self::Local,
            forwarding::TUNNEL => Self::Tunnel(options),
            forwarding::DROUTE => Self::DirectRoute,
            forwarding::BYPASS => Self::Bypass,
            number => Self::Other(number),
        }
    }
}

/// The words of `ipvsadm -L`.
impl fmt::Display for ForwardingMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Masquerade => f.pad("Masq"),
            Self::Local => f.pad("Local"),
            Self::Tunnel(_) => f.pad("Tunnel"),
            Self::DirectRoute => f.pad("Route"),
            Self::Bypass => f.pad("Bypass"),
            Self::Other(number) => f.pad(&number.to_string()),
        }
    }
}

impl TunnelType {
    /// The kernel's number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Ipip => tunnel::IPIP,
            Self::Gue => tunnel::GUE,
            Self::Gre => tunnel::GRE,
            Self::Other(number) => number,
        }
    }
}

impl From<u8> for TunnelType {
    fn from(number: u8) -> Self {
        match number {
            tunnel::IPIP => Self::Ipip,
            tunnel::GUE => Self::Gue,
            tunnel::GRE => Self::Gre,
            number => Self::Other(number),
        }
    }
}
