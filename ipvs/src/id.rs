//! Identities: the properties that tell one virtual server from another.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use crate::uapi;

/// A transport protocol, by its number in the IP header. The kernel has 16 bits for it here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u16);

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressFamily {
    /// `AF_INET`.
    Ipv4,
    /// `AF_INET6`.
    Ipv6,
}

/// A virtual server's identity: two with the same one cannot exist in a network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VirtualServerId {
    /// Packets to an address and a port.
    Address {
        /// The transport protocol.
        protocol: Protocol,
        /// The virtual address.
        address: IpAddr,
        /// The virtual port; 0 stands for every port, which makes sense with persistence only.
        port: u16,
    },
    /// Packets of one address family that carry a firewall mark, whatever their address.
    FirewallMark {
        /// Marks of IPv4 and IPv6 are apart from one another.
        family: AddressFamily,
        /// The mark. The kernel takes zero for "no mark".
        mark: NonZeroU32,
    },
}

impl Protocol {
    /// Transmission Control Protocol.
    pub const TCP: Self = Self(uapi::IPPROTO_TCP);
    /// User Datagram Protocol.
    pub const UDP: Self = Self(uapi::IPPROTO_UDP);
    /// Stream Control Transmission Protocol.
    pub const SCTP: Self = Self(uapi::IPPROTO_SCTP);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TCP => f.pad("TCP"),
            Self::UDP => f.pad("UDP"),
            Self::SCTP => f.pad("SCTP"),
            Self(number) => write!(f, "protocol {number}"),
        }
    }
}

impl AddressFamily {
    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }

    /// Returns the number of bits of an address: 32 or 128.
    #[must_use]
    pub fn bits(self) -> u8 {
        match self {
            Self::Ipv4 => 32,
            Self::Ipv6 => 128,
        }
    }

    pub(crate) fn number(self) -> u16 {
        match self {
            Self::Ipv4 => uapi::AF_INET,
            Self::Ipv6 => uapi::AF_INET6,
        }
    }

    pub(crate) fn from_number(number: u16) -> Option<Self> {
        match number {
            uapi::AF_INET => Some(Self::Ipv4),
            uapi::AF_INET6 => Some(Self::Ipv6),
            _ => None,
        }
    }
}

impl fmt::Display for AddressFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

impl VirtualServerId {
    /// The TCP virtual server at an address and port.
    #[must_use]
    pub fn tcp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::Address { protocol: Protocol::TCP, address: address.into(), port }
    }

    /// The UDP virtual server at an address and port.
    #[must_use]
    pub fn udp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::Address { protocol: Protocol::UDP, address: address.into(), port }
    }

    /// The SCTP virtual server at an address and port.
    #[must_use]
    pub fn sctp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::Address { protocol: Protocol::SCTP, address: address.into(), port }
    }

    /// The address family of the packets it takes.
    #[must_use]
    pub fn family(&self) -> AddressFamily {
        match self {
            Self::Address { address, .. } => AddressFamily::of(*address),
            Self::FirewallMark { family, .. } => *family,
        }
    }
}

/// `TCP 10.96.0.1:80`, `UDP [fd00::a]:53`, `firewall mark 7 (IPv4)`.
impl fmt::Display for VirtualServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { protocol, address, port } => {
                write!(f, "{protocol} {}", SocketAddr::new(*address, *port))
            }
            Self::FirewallMark { family, mark } => write!(f, "firewall mark {mark} ({family})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn identities_read_well() {
        let texts = [
            VirtualServerId::tcp(Ipv4Addr::new(10, 96, 0, 1), 80),
            VirtualServerId::udp(Ipv6Addr::LOCALHOST, 53),
            VirtualServerId::FirewallMark {
                family: AddressFamily::Ipv6,
                mark: NonZeroU32::new(7).unwrap(),
            },
            VirtualServerId::Address {
                protocol: Protocol(50),
                address: Ipv4Addr::LOCALHOST.into(),
                port: 0,
            },
        ]
        .map(|id| id.to_string());
        assert_eq!(
            texts,
            [
                "TCP 10.96.0.1:80",
                "UDP [::1]:53",
                "firewall mark 7 (IPv6)",
                "protocol 50 127.0.0.1:0"
            ]
        );
    }
}
