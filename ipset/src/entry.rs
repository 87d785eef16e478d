//! Entries of sets, and the options that may be attached to an entry.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::error::ParseError;
use crate::set::SetType;
use crate::with::with;

/// One entry of a set, by shape.
///
/// It displays, and is read, in the form of the `ipset` tool: `10.0.0.1,tcp:80,10.0.0.2`. Two
/// things differ, so that text and entry correspond one to one: a network always has its prefix
/// length (the tool leaves `/32` and `/128` out when it lists), and ports of ICMP are numbers
/// (`icmp:8/0`, not `icmp:echo-request`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Entry {
    /// Entry of a `hash:ip` set.
    Ip(IpAddr),
    /// Entry of a `hash:ip,port` set.
    IpPort {
        /// The first dimension.
        address: IpAddr,
        /// The protocol that the port belongs to.
        protocol: Protocol,
        /// The port; for ICMP, type × 256 + code; 0 for a protocol without ports.
        port: u16,
    },
    /// Entry of a `hash:ip,port,ip` set.
    IpPortIp {
        /// The first dimension.
        address: IpAddr,
        /// The protocol that the port belongs to.
        protocol: Protocol,
        /// As in [`Entry::IpPort`].
        port: u16,
        /// The third dimension.
        second: IpAddr,
    },
    /// Entry of a `hash:ip,port,net` set.
    IpPortNet {
        /// The first dimension.
        address: IpAddr,
        /// The protocol that the port belongs to.
        protocol: Protocol,
        /// As in [`Entry::IpPort`].
        port: u16,
        /// The third dimension.
        network: Network,
    },
    /// Entry of a `bitmap:port` set.
    Port(u16),
}

/// An IP protocol's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

/// Addresses with a common prefix. Bits past the prefix are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    prefix_length: u8,
}

/// Options that may be attached to an entry, if the set was created for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryOptions {
    /// Seconds until the entry vanishes; 0 means never. The set needs `timeout`.
    pub timeout: Option<u32>,
    /// Packets and bytes that the entry matched. The set needs `counters`.
    pub counters: Option<Counters>,
    /// A remark of at most 255 bytes. The set needs `comment`.
    pub comment: Option<String>,
    /// Mark that the iptables target `SET --map-mark` writes. The set needs `skbinfo`.
    pub mark: Option<Mark>,
    /// Priority that `SET --map-prio` writes: traffic control's major × 65,536 + minor. The set
    /// needs `skbinfo`.
    pub priority: Option<u32>,
    /// Queue that `SET --map-queue` writes. The set needs `skbinfo`.
    pub queue: Option<u16>,
}

/// Packets and bytes that an entry matched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes of those packets.
    pub bytes: u64,
}

/// A firewall mark, and which of its bits are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The bits' values.
    pub value: u32,
    /// The bits that are written.
    pub mask: u32,
}

impl Entry {
    /// Reads the text form as an entry of a set of this type. It differs from [`str::parse`] in
    /// one case: a third part without a prefix length is a network of one address if the set is
    /// `hash:ip,port,net`.
    ///
    /// # Errors
    /// When the text is not an entry of such a set.
    pub fn parse_for(set_type: SetType, text: &str) -> Result<Self, ParseError> {
        let entry = match (set_type, text.parse()?) {
            (SetType::HashIpPortNet, Self::IpPortIp { address, protocol, port, second }) => {
                Self::IpPortNet { address, protocol, port, network: Network::host(second) }
            }
            (_, entry) => entry,
        };
        if entry.set_type() == set_type {
            Ok(entry)
        } else {
            Err(ParseError::new("entry", text, &format!("sets of type {set_type} have others")))
        }
    }

    /// The type of the sets that hold such entries.
    #[must_use]
    pub fn set_type(&self) -> SetType {
        match self {
            Self::Ip(_) => SetType::HashIp,
            Self::IpPort { .. } => SetType::HashIpPort,
            Self::IpPortIp { .. } => SetType::HashIpPortIp,
            Self::IpPortNet { .. } => SetType::HashIpPortNet,
            Self::Port(_) => SetType::BitmapPort,
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::IpPort { address, protocol, port } => {
                write!(f, "{address},{}", WithPort(protocol, port))
            }
            Self::IpPortIp { address, protocol, port, second } => {
                write!(f, "{address},{},{second}", WithPort(protocol, port))
            }
            Self::IpPortNet { address, protocol, port, network } => {
                write!(f, "{address},{},{network}", WithPort(protocol, port))
            }
            Self::Port(port) => write!(f, "{port}"),
        }
    }
}

impl FromStr for Entry {
    type Err = ParseError;

    /// A third part with a prefix length makes [`Entry::IpPortNet`], one without
    /// [`Entry::IpPortIp`].
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let broken = |problem: &str| ParseError::new("entry", text, problem);
        let address = |part: &str| {
            part.parse::<IpAddr>().map_err(|_| broken(&format!("`{part}` is not an address")))
        };
        let mut parts = text.split(',');
        let (first, second, third) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
        if parts.next().is_some() {
            return Err(broken("it has more than three parts"));
        }
        let Some(second) = second else {
            return Ok(match first.parse() {
                Ok(port) => Self::Port(port),
                Err(_) => Self::Ip(address(first)?),
            });
        };
        let address_part = address(first)?;
        let WithPort(protocol, port) =
            second.parse().map_err(|problem: String| broken(&problem))?;
        Ok(match third {
            None => Self::IpPort { address: address_part, protocol, port },
            Some(third) if third.contains('/') => {
                let network = third.parse()?;
                Self::IpPortNet { address: address_part, protocol, port, network }
            }
            Some(third) => {
                Self::IpPortIp { address: address_part, protocol, port, second: address(third)? }
            }
        })
    }
}

impl Protocol {
    /// Internet Control Message Protocol.
    pub const ICMP: Self = Self(1);
    /// Transmission Control Protocol.
    pub const TCP: Self = Self(6);
    /// User Datagram Protocol.
    pub const UDP: Self = Self(17);
    /// Internet Control Message Protocol for IPv6.
    pub const ICMPV6: Self = Self(58);
    /// Stream Control Transmission Protocol.
    pub const SCTP: Self = Self(132);
    /// Lightweight User Datagram Protocol.
    pub const UDPLITE: Self = Self(136);

    /// The protocols that have names here; all others are written as numbers.
    const NAMES: [(Self, &'static str); 6] = [
        (Self::TCP, "tcp"),
        (Self::UDP, "udp"),
        (Self::SCTP, "sctp"),
        (Self::UDPLITE, "udplite"),
        (Self::ICMP, "icmp"),
        (Self::ICMPV6, "icmpv6"),
    ];

    /// Its "port" is a message type and a code.
    fn is_icmp(self) -> bool {
        matches!(self, Self::ICMP | Self::ICMPV6)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(protocol, _)| protocol == self) {
            Some((_, name)) => f.pad(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for Protocol {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let named = Self::NAMES.iter().find(|(_, name)| *name == text);
        named.map(|(protocol, _)| *protocol).or_else(|| text.parse().ok().map(Self)).ok_or_else(
            || {
                let names = Self::NAMES.map(|(_, name)| name).join(", ");
                ParseError::new("protocol", text, &format!("only numbers and {names} are"))
            },
        )
    }
}

/// The tool's `tcp:80`, `icmp:8/0`, `47:0`.
struct WithPort(Protocol, u16);

impl fmt::Display for WithPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(protocol, port) = self;
        if protocol.is_icmp() {
            let [kind, code] = port.to_be_bytes();
            write!(f, "{protocol}:{kind}/{code}")
        } else {
            write!(f, "{protocol}:{port}")
        }
    }
}

impl FromStr for WithPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (protocol, port) =
            text.split_once(':').ok_or_else(|| format!("`{text}` is not `protocol:port`"))?;
        let protocol: Protocol = protocol.parse().map_err(|error: ParseError| error.to_string())?;
        let bad_port = || format!("`{port}` is not a port of {protocol}");
        if !protocol.is_icmp() {
            return Ok(Self(protocol, port.parse().map_err(|_| bad_port())?));
        }
        let (kind, code) = port.split_once('/').ok_or_else(bad_port)?;
        let byte = |text: &str| text.parse::<u8>().map_err(|_| bad_port());
        Ok(Self(protocol, u16::from_be_bytes([byte(kind)?, byte(code)?])))
    }
}

impl Network {
    /// The network of this prefix length that `address` is in; `None` if the length is larger than
    /// the address has bits.
    #[must_use]
    pub fn new(address: IpAddr, prefix_length: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(address) => {
                let host_bits = 32_u32.checked_sub(u32::from(prefix_length))?;
                let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let host_bits = 128_u32.checked_sub(u32::from(prefix_length))?;
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        Some(Self { address, prefix_length })
    }

    /// The network of one address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self { address, prefix_length: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// The lowest address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the number of leading bits that all addresses share: 0 to 32, or 0 to 128.
    #[must_use]
    pub fn prefix_length(&self) -> u8 {
        self.prefix_length
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_length)
    }
}

impl FromStr for Network {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parts = text.split_once('/').and_then(|(address, length)| {
            let length = length.parse().ok()?;
            Self::new(address.parse().ok()?, length)
        });
        parts.ok_or_else(|| ParseError::new("network", text, "`address/prefix length` is"))
    }
}

impl EntryOptions {
    with! {
        with_timeout(u32) sets timeout in Some;
        with_counters(Counters) sets counters in Some;
        with_mark(Mark) sets mark in Some;
        with_priority(u32) sets priority in Some;
        with_queue(u16) sets queue in Some;
    }

    /// Returns the same with a remark.
    #[must_use]
    pub fn with_comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }

    /// True if no option is attached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for EntryOptions {
    /// As the `ipset` tool writes them, each with a blank before it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(timeout) = self.timeout {
            write!(f, " timeout {timeout}")?;
        }
        if let Some(Counters { packets, bytes }) = self.counters {
            write!(f, " packets {packets} bytes {bytes}")?;
        }
        if let Some(comment) = &self.comment {
            write!(f, " comment \"{comment}\"")?;
        }
        if let Some(Mark { value, mask }) = self.mark {
            write!(f, " skbmark {value:#x}/{mask:#x}")?;
        }
        if let Some(priority) = self.priority {
            write!(f, " skbprio {:x}:{:x}", priority >> 16, priority & 0xffff)?;
        }
        if let Some(queue) = self.queue {
            write!(f, " skbqueue {queue}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
