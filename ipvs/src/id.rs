//! Identities: the properties that tell one virtual server from another.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use crate::uapi;

/// A transport protocol, by its number in the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// 6.
    Tcp,
    /// 17.
    Udp,
    /// 132.
    Sctp,
    /// Any other number. [`Protocol::from`] never makes it of the three above.
    Other(u16),
}

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

// === impl Protocol ===

impl Protocol {
    /// The protocol's number.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Tcp => uapi::IPPROTO_TCP,
            Self::Udp => uapi::IPPROTO_UDP,
            Self::Sctp => uapi::IPPROTO_SCTP,
            Self::Other(number) => number,
        }
    }
}

impl From<u16> for Protocol {
    fn from(number: u16) -> Self {
        match number {
            uapi::IPPROTO_TCP => Self::Tcp,
            uapi::IPPROTO_UDP => Self::Udp,
            uapi::IPPROTO_SCTP => Self::Sctp,
            number => Self::Other(number),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => f.pad("TCP"),
            Self::Udp => f.pad("UDP"),
            Self::Sctp => f.pad("SCTP"),
            Self::Other(number) => write!(f, "protocol {number}"),
        }
    }
}

// === impl AddressFamily ===

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

// === impl VirtualServerId ===

impl VirtualServerId {
    /// The TCP virtual server at an address and port.
    #[must_use]
    pub fn tcp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::Address { protocol: Protocol::Tcp, address: address.into(), port }
    }

    /// The UDP virtual server at an address and port.
    #[must_use]
    pub fn udp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::Address { protocol: Protocol::Udp, address: address.into(), port }
    }

    /// The SCTP virtual server at an address and port.
    #[must_use]
    pub fn sctp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::Address { protocol: Protocol::Sctp, address: address.into(), port }
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
    fn a_known_protocol_is_never_other() {
        for number in 0..300 {
            let protocol = Protocol::from(number);
            assert_eq!(protocol.number(), number);
            assert_eq!(matches!(protocol, Protocol::Other(_)), ![6, 17, 132].contains(&number));
        }
    }

    #[test]
    fn identities_read_well() {
        let texts = [
            VirtualServerId::tcp(Ipv4Addr::new(10, 96, 0, 1), 80),
            VirtualServerId::udp(Ipv6Addr::LOCALHOST, 53),
            VirtualServerId::FirewallMark {
                family: AddressFamily::Ipv6,
                mark: NonZeroU32::new(7).unwrap(),
            },
        ]
        .map(|id| id.to_string());
        assert_eq!(texts, ["TCP 10.96.0.1:80", "UDP [::1]:53", "firewall mark 7 (IPv6)"]);
    }
}
