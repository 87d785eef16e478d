//! The kernel's objects in our words: what is desired, and what is found.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::model::{Family, Protocol};
use crate::scheduler::SchedulerName;

/// The dummy interface that holds the service addresses. Other programs know it by this name.
pub const LINK: &str = "kube-ipvs0";

/// A kind of kernel object. Operations on neighbours of one kind are carried out together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PartKind {
    /// The dummy interface.
    Link,
    /// The addresses on it.
    Addresses,
    /// Local routes.
    Routes,
    /// Sets and their entries.
    Sets,
    /// Virtual servers and their real servers.
    VirtualServers,
    /// The constant rules.
    Rules,
    /// Chains of Services.
    Chains,
}

/// Address, protocol and port that clients connect to. They name a virtual server.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(test), derive(PartialEq, Eq, Hash, PartialOrd, Ord))]
pub struct Frontend {
    pub address: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
}

/// Parameters of balancing of a virtual server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualServer {
    pub scheduler: SchedulerName,
    /// Number of seconds that a client address is remembered for; none: not at all.
    pub persistence: Option<u32>,
    /// The scheduler's own flags, `IP_VS_SVC_F_SCHED1` to `3` (0x08, 0x10, 0x20).
    pub scheduler_flags: u32,
}

/// A real server of a virtual server, in masquerade mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RealServer {
    pub address: IpAddr,
    /// The port it listens on.
    pub port: u16,
    /// Its share; 0 means no new connections.
    pub weight: u32,
}

/// Time at which the connections of a draining real server are cut, in whole seconds of the clock
/// that runs as long as the kernel does (`CLOCK_MONOTONIC`): it means the same after a restart of
/// the program, and nothing sets that clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Deadline(u32);

/// An entry of a set, by the set's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    /// `hash:ip`
    Address(IpAddr),
    /// `hash:ip,port`
    AddressPort(Frontend),
    /// `hash:ip,port,ip`
    AddressPortAddress(Frontend, IpAddr),
    /// `hash:ip,port,net`; the network has no bits set behind its prefix.
    AddressPortNet(Frontend, IpNet),
    /// `bitmap:port`
    Port(u16),
}

impl Frontend {
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol, SocketAddr::new(self.address, self.port))
    }
}

impl fmt::Display for VirtualServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.scheduler)?;
        if self.scheduler_flags != 0 {
            write!(f, " flags {:#x}", self.scheduler_flags)?;
        }
        match self.persistence {
            Some(seconds) => write!(f, " persistent {seconds}"),
            None => Ok(()),
        }
    }
}

impl RealServer {
    /// Returns the address and port that name it within its virtual server.
    #[must_use]
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

impl fmt::Display for RealServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} weight {}", self.socket(), self.weight)
    }
}

impl Deadline {
    /// The latest that can be said: 34 years after the kernel started.
    pub const LAST: Self = Self((1 << 30) - 1);

    /// At this second, or at the last one that can be said.
    #[must_use]
    pub fn at(second: u64) -> Self {
        u32::try_from(second).map_or(Self::LAST, |second| Self(second).min(Self::LAST))
    }

    #[must_use]
    pub const fn second(self) -> u32 {
        self.0
    }
}

impl Entry {
    /// The address that says whose entry it is, if the set's type has one.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(*address),
            _ => self.frontend().map(|frontend| frontend.address),
        }
    }

    /// The address, protocol and port that it is about, if the set's type has them.
    #[must_use]
    pub fn frontend(&self) -> Option<Frontend> {
        match self {
            Self::AddressPort(frontend)
            | Self::AddressPortAddress(frontend, _)
            | Self::AddressPortNet(frontend, _) => Some(*frontend),
            Self::Address(_) | Self::Port(_) => None,
        }
    }
}

impl fmt::Display for Entry {
    /// Writes it as `ipset` does: `10.96.0.1,tcp:443`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = |frontend: &Frontend, f: &mut fmt::Formatter<'_>| {
            let protocol = match frontend.protocol {
                Protocol::Tcp => "tcp",
                Protocol::Udp => "udp",
                Protocol::Sctp => "sctp",
            };
            write!(f, "{},{protocol}:{}", frontend.address, frontend.port)
        };
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::AddressPort(frontend) => start(frontend, f),
            Self::AddressPortAddress(frontend, address) => {
                start(frontend, f)?;
                write!(f, ",{address}")
            }
            Self::AddressPortNet(frontend, net) => {
                start(frontend, f)?;
                write!(f, ",{net}")
            }
            Self::Port(port) => write!(f, "{port}"),
        }
    }
}
