//! A virtual server: what clients connect to.

use std::net::Ipv4Addr;

use crate::flags::Flags;
use crate::id::{AddressFamily, VirtualServerId};
use crate::name::{PersistenceEngine, Scheduler};
use crate::statistics::Statistics;
use crate::with::with;

/// A virtual server as it is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct VirtualServer {
    /// Identity, which tells the virtual server from the others.
    pub id: VirtualServerId,
    /// Scheduler that picks the real server.
    pub scheduler: Scheduler,
    /// Its flags. The kernel sets and clears [`Flags::HASHED`] by itself, whatever is asked for.
    pub flags: Flags,
    /// For how many seconds a client stays with its real server after its last connection ended;
    /// of meaning with [`Flags::PERSISTENT`] only.
    pub persistence_timeout: u32,
    /// Clients whose addresses are the same under this mask count as one client; of meaning with
    /// [`Flags::PERSISTENT`] only.
    pub netmask: Netmask,
    /// Persistence engine, which identifies a client by more than its address.
    pub persistence_engine: Option<PersistenceEngine>,
}

/// The part of a client's address that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Netmask {
    /// The first so many bits. IPv4: 0 to 32, and more counts as 32. IPv6: 1 to 128, and the
    /// kernel refuses anything else.
    Prefix(u8),
    /// A mask with gaps, which the kernel takes for IPv4. For IPv6 its leading ones count.
    Ipv4(Ipv4Addr),
}

/// A virtual server as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VirtualServerStatus {
    /// Its configuration, without [`Flags::HASHED`].
    pub server: VirtualServer,
    /// True if the kernel has it in its table of virtual servers ([`Flags::HASHED`]).
    pub hashed: bool,
    /// Traffic that went through the virtual server.
    pub statistics: Statistics,
}

impl VirtualServer {
    /// A virtual server without flags; every client address counts as a client of its own.
    #[must_use]
    pub fn new(id: VirtualServerId, scheduler: Scheduler) -> Self {
        Self {
            id,
            scheduler,
            flags: Flags::empty(),
            persistence_timeout: 0,
            netmask: Netmask::Prefix(id.family().bits()),
            persistence_engine: None,
        }
    }

    with! {
        with_scheduler(Scheduler) sets scheduler;
        with_flags(Flags) sets flags;
        with_netmask(Netmask) sets netmask;
    }

    /// Returns the same with a persistence engine.
    #[must_use]
    pub fn with_persistence_engine(mut self, engine: PersistenceEngine) -> Self {
        self.persistence_engine = Some(engine);
        self
    }

    /// Returns the same with one client's connections kept together for so many seconds.
    #[must_use]
    pub fn with_persistence(mut self, timeout: u32) -> Self {
        self.flags |= Flags::PERSISTENT;
        self.persistence_timeout = timeout;
        self
    }

    /// True if the kernel would hold the same for both. [`Flags::HASHED`] is left out of account:
    /// it is the kernel's own. A netmask counts by its bits, not by how it is written.
    #[must_use]
    pub fn is_same_configuration(&self, other: &Self) -> bool {
        let family = self.id.family();
        self.id == other.id
            && self.scheduler == other.scheduler
            && self.flags.difference(Flags::HASHED) == other.flags.difference(Flags::HASHED)
            && self.persistence_timeout == other.persistence_timeout
            && self.netmask.to_bytes(family) == other.netmask.to_bytes(family)
            && self.persistence_engine == other.persistence_engine
    }
}

impl VirtualServerStatus {
    /// A virtual server in the kernel's table that has had no connections yet.
    #[must_use]
    pub fn new(server: VirtualServer) -> Self {
        Self { server, hashed: true, statistics: Statistics::default() }
    }
}

impl Netmask {
    /// As `IPVS_SVC_ATTR_NETMASK` has it: IPv4 a mask in network byte order, IPv6 the prefix
    /// length in the machine's.
    pub(crate) fn to_bytes(self, family: AddressFamily) -> [u8; 4] {
        match (self, family) {
            (Self::Prefix(length), AddressFamily::Ipv6) => u32::from(length).to_ne_bytes(),
            (Self::Ipv4(mask), AddressFamily::Ipv6) => u32::from(mask).leading_ones().to_ne_bytes(),
            (Self::Ipv4(mask), AddressFamily::Ipv4) => mask.octets(),
            (Self::Prefix(length), AddressFamily::Ipv4) => {
                let ones = u32::MAX.checked_shl(32_u32.saturating_sub(length.into()));
                ones.unwrap_or(0).to_be_bytes()
            }
        }
    }

    /// `None` for an IPv6 prefix length past 255, which the kernel never has.
    pub(crate) fn from_octets(bytes: [u8; 4], family: AddressFamily) -> Option<Self> {
        match family {
            AddressFamily::Ipv6 => u8::try_from(u32::from_ne_bytes(bytes)).ok().map(Self::Prefix),
            AddressFamily::Ipv4 => {
                let (mask, address) = (u32::from_be_bytes(bytes), Ipv4Addr::from(bytes));
                let length = u8::try_from(mask.leading_ones()).ok()?;
                Some(if mask.leading_ones() == mask.count_ones() {
                    Self::Prefix(length)
                } else {
                    Self::Ipv4(address)
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_netmask_is_the_same_after_a_round_trip() {
        for length in 0..=32 {
            let bytes = Netmask::Prefix(length).to_bytes(AddressFamily::Ipv4);
            assert_eq!(
                Netmask::from_octets(bytes, AddressFamily::Ipv4),
                Some(Netmask::Prefix(length))
            );
        }
        assert_eq!(Netmask::Prefix(24).to_bytes(AddressFamily::Ipv4), [255, 255, 255, 0]);
        assert_eq!(Netmask::Prefix(200).to_bytes(AddressFamily::Ipv4), [255; 4]);
        let gaps = Netmask::Ipv4(Ipv4Addr::new(255, 0, 255, 0));
        let bytes = gaps.to_bytes(AddressFamily::Ipv4);
        assert_eq!(Netmask::from_octets(bytes, AddressFamily::Ipv4), Some(gaps));
        let bytes = Netmask::Prefix(64).to_bytes(AddressFamily::Ipv6);
        assert_eq!(u32::from_ne_bytes(bytes), 64);
        assert_eq!(Netmask::from_octets(bytes, AddressFamily::Ipv6), Some(Netmask::Prefix(64)));
        assert_eq!(Netmask::from_octets([255; 4], AddressFamily::Ipv6), None);
    }

    #[test]
    fn the_same_configuration_is_what_the_kernel_would_hold() {
        let id = VirtualServerId::tcp([10, 0, 0, 1], 80);
        let wanted = VirtualServer::new(id, Scheduler::ROUND_ROBIN);
        let full = Netmask::Ipv4(Ipv4Addr::BROADCAST);
        let found = VirtualServer { flags: Flags::HASHED, netmask: full, ..wanted.clone() };
        assert!(wanted.is_same_configuration(&found) && wanted != found);
        let changes: [fn(&mut VirtualServer); 6] = [
            |server| server.id = VirtualServerId::tcp([10, 0, 0, 1], 81),
            |server| server.scheduler = Scheduler::SOURCE_HASHING,
            |server| server.flags |= Flags::PERSISTENT,
            |server| server.persistence_timeout = 9,
            |server| server.netmask = Netmask::Prefix(31),
            |server| server.persistence_engine = "sip".parse().ok(),
        ];
        for change in changes {
            let mut other = wanted.clone();
            change(&mut other);
            assert!(!wanted.is_same_configuration(&other), "{other:?}");
        }
    }
}
