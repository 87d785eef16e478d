//! Tables and what they hold.

use std::fmt;

use bitflags::bitflags;

use crate::data::{Data, DataType};
use crate::name::Name;

/// Packets that a table sees (`NFPROTO_*` of include/uapi/linux/netfilter.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ipv4,
    /// ARP.
    Arp,
    /// Packets at the devices.
    Netdev,
    /// Packets over bridges.
    Bridge,
    /// IPv6.
    Ipv6,
}

/// A table's family and name, which together identify it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId {
    /// Packets that the table sees.
    pub family: Family,
    /// The name.
    pub name: Name,
}

bitflags! {
    /// Properties of a table (`enum nft_table_flags`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct TableFlags: u32 {
        /// `NFT_TABLE_F_DORMANT`: its base chains are not registered.
        const DORMANT = 1;
        /// `NFT_TABLE_F_OWNER` (since Linux 5.12): the socket that made it alone may change it. It goes with
        /// the socket unless it is persistent.
        const OWNER = 2;
        /// `NFT_TABLE_F_PERSIST` (since Linux 6.9): it outlives its owner, and another socket may own it then.
        const PERSIST = 4;
    }
}

/// A table, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Table {
    /// Family and name.
    pub id: TableId,
    /// Its properties.
    pub flags: TableFlags,
    /// Number that no other table of the network namespace ever has.
    pub handle: u64,
    /// Number of its chains, sets and flow tables.
    pub uses: u32,
    /// Port of the netlink socket that owns it; none: it has no owner.
    pub owner: Option<u32>,
}

/// The place where packets come to a chain by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseChain {
    /// Its type, which decides what its rules may do.
    pub chain_type: ChainType,
    /// The hook.
    pub hook: Hook,
    /// Place among the chains of the hook: the smaller, the earlier.
    pub priority: i32,
    /// Fate of a packet that its rules do not decide about.
    pub policy: Policy,
}

/// Type of a base chain (`nft_chain_type` of the kernel's modules).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainType {
    /// `filter`
    Filter,
    /// `nat`: asked about the first packet of a connection only.
    Nat,
    /// `route`: has a packet that it changed routed anew.
    Route,
}

/// A hook of IPv4, IPv6 and inet (`enum nf_inet_hooks` of include/uapi/linux/netfilter.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hook {
    /// `NF_INET_PRE_ROUTING`
    PreRouting,
    /// `NF_INET_LOCAL_IN`
    Input,
    /// `NF_INET_FORWARD`
    Forward,
    /// `NF_INET_LOCAL_OUT`
    Output,
    /// `NF_INET_POST_ROUTING`
    PostRouting,
}

/// Fate of a packet that a base chain does not decide about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// `NF_DROP`
    Drop,
    /// `NF_ACCEPT`
    Accept,
}

/// A chain, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chain {
    /// Its table.
    pub table: TableId,
    /// Its name.
    pub name: Name,
    /// The hook; none if packets come by rules alone, or if this library does not know the hook.
    pub base: Option<BaseChain>,
    /// Number that no other object of the table ever has.
    pub handle: u64,
    /// Number of its rules, and of rules and elements that lead to it.
    pub uses: u32,
}

/// Types of a set's keys and of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SetSpec {
    /// Type of the keys.
    pub key: DataType,
    /// Type of the values of a map; none for a set.
    pub value: Option<DataType>,
}

/// A set or map, as it is listed, without its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Set {
    /// Its name.
    pub name: Name,
    /// Types of its keys and values.
    pub spec: SetSpec,
    /// `enum nft_set_flags`; 8 for a map.
    pub flags: u32,
    /// Number that no other object of the table ever has.
    pub handle: u64,
    /// Number of its elements, where the kernel says it.
    pub count: Option<u32>,
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    /// The key.
    pub key: Data,
    /// The value in a map; none in a set, and of a verdict.
    pub value: Option<Data>,
}

/// A flow table, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowTable {
    /// Its name.
    pub name: Name,
    /// Its place at the devices' ingress hook.
    pub priority: i32,
    /// Names of the devices whose packets it sees.
    pub devices: Vec<String>,
    /// Number that no other object of the table ever has.
    pub handle: u64,
    /// Number of rules that lead connections to it.
    pub uses: u32,
}

/// A state of all nf_tables of a network namespace. Each transaction that changes something makes a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generation {
    /// Its number.
    pub id: u32,
    /// In a notification, the process that made it. In an answer, the one that asks.
    pub process: u32,
    /// Name of that process.
    pub program: String,
}

impl Family {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ipv4 => 2,
            Self::Arp => 3,
            Self::Netdev => 5,
            Self::Bridge => 7,
            Self::Ipv6 => 10,
        }
    }

    pub(crate) fn from_kernel(number: u8) -> Option<Self> {
        let all = [Self::Inet, Self::Ipv4, Self::Arp, Self::Netdev, Self::Bridge, Self::Ipv6];
        all.into_iter().find(|family| family.number() == number)
    }
}

/// As `nft` calls it.
impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inet => "inet",
            Self::Ipv4 => "ip",
            Self::Arp => "arp",
            Self::Netdev => "netdev",
            Self::Bridge => "bridge",
            Self::Ipv6 => "ip6",
        })
    }
}

impl TableId {
    /// The table of this family and name.
    #[must_use]
    pub fn new(family: Family, name: Name) -> Self {
        Self { family, name }
    }
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

impl BaseChain {
    /// A base chain that accepts what its rules do not decide about.
    #[must_use]
    pub fn new(chain_type: ChainType, hook: Hook, priority: i32) -> Self {
        Self { chain_type, hook, priority, policy: Policy::Accept }
    }
}

impl ChainType {
    pub(crate) const ALL: [Self; 3] = [Self::Filter, Self::Nat, Self::Route];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }
}

impl Hook {
    const ALL: [Self; 5] =
        [Self::PreRouting, Self::Input, Self::Forward, Self::Output, Self::PostRouting];

    pub(crate) fn number(self) -> u32 {
        match self {
            Self::PreRouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::PostRouting => 4,
        }
    }

    pub(crate) fn from_kernel(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|hook| hook.number() == number)
    }
}

impl Policy {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
        }
    }

    pub(crate) fn from_kernel(number: u32) -> Option<Self> {
        [Self::Drop, Self::Accept].into_iter().find(|policy| policy.number() == number)
    }
}

impl SetSpec {
    /// A set of keys of this type.
    #[must_use]
    pub fn set(key: DataType) -> Self {
        Self { key, value: None }
    }

    /// A map from keys of one type to values of another.
    #[must_use]
    pub fn map(key: DataType, value: DataType) -> Self {
        Self { key, value: Some(value) }
    }
}

impl Element {
    /// An element of a set.
    #[must_use]
    pub fn new(key: Data) -> Self {
        Self { key, value: None }
    }

    /// An element of a map.
    #[must_use]
    pub fn with_value(key: Data, value: Data) -> Self {
        Self { key, value: Some(value) }
    }
}
