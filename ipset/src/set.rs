//! Sets: how one is created, and what the kernel tells of one.

use std::fmt;
use std::ops::RangeInclusive;

use crate::entry::{Entry, EntryOptions};
use crate::name::Name;
use crate::uapi;
use crate::with::with;

/// The kind of entries a set holds, and how it stores them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SetType {
    /// `hash:ip`
    HashIp,
    /// `hash:ip,port`
    HashIpPort,
    /// `hash:ip,port,ip`
    HashIpPortIp,
    /// `hash:ip,port,net`
    HashIpPortNet,
    /// `bitmap:port`
    BitmapPort,
    /// Any other: such sets can be listed, flushed, renamed and destroyed, not created.
    Other(Name),
}

/// Family of the addresses that a set holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// `inet`
    Ipv4,
    /// `inet6`
    Ipv6,
    /// None: `bitmap:port` sets.
    Unspecified,
}

/// Specification of a set to create.
///
/// ```
/// use ipset::{Family, SetOptions, SetSpec, SetType};
///
/// let options = SetOptions::default().with_max_elements(1 << 20).with_comment(true);
/// let spec = SetSpec::new(SetType::HashIpPort, Family::Ipv6).with_options(options);
/// # assert_eq!(spec.to_string(), "hash:ip,port family inet6 maxelem 1048576 comment");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetSpec {
    /// The type.
    pub set_type: SetType,
    /// The family; `bitmap:port` has none.
    pub family: Family,
    /// Everything else.
    pub options: SetOptions,
}

/// Options of a set: those it is created with, and what the kernel says of them when listed.
/// An option that is `None` when a set is created is the kernel's choice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetOptions {
    /// Hash types: how many buckets at first (the kernel makes it a power of two; default 1,024).
    /// The set grows by itself.
    pub hash_size: Option<u32>,
    /// Hash types: how many entries at most (default 65,536). The set does not grow past it.
    pub max_elements: Option<u32>,
    /// `hash:ip`: entries are networks of this prefix length.
    pub netmask: Option<u8>,
    /// `bitmap:port`: which ports it can hold (default all, 0 to 65,535).
    pub ports: Option<RangeInclusive<u16>>,
    /// Entries may time out; by default after so many seconds, 0 for never.
    pub timeout: Option<u32>,
    /// Entries count packets and bytes.
    pub counters: bool,
    /// Entries may have a remark.
    pub comment: bool,
    /// Entries may have a mark, a priority and a queue for packets.
    pub skbinfo: bool,
    /// Hash types: a full set drops an entry of its choice instead of refusing a new one.
    pub force_add: bool,
}

/// Revisions of a set type that the kernel has.
///
/// A set is created in one of them, and a tool can read it only if it knows that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revisions {
    /// The oldest.
    pub min: u8,
    /// The newest.
    pub max: u8,
}

/// Properties of a set that the kernel tells without looking into the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The name.
    pub name: Name,
    /// The type.
    pub set_type: SetType,
    /// The type's revision.
    pub revision: u8,
    /// The family.
    pub family: Family,
}

/// A set, without its entries.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// Name, type, revision and family.
    pub identity: Identity,
    /// Options that the set was created with, and what they have grown to.
    pub options: SetOptions,
    /// Number of iptables rules and lists of sets that refer to the set.
    pub references: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Number of entries; kernels before 4.9 do not tell.
    pub elements: Option<u32>,
}

/// A set with its entries.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Set {
    /// Everything but the entries.
    pub header: Header,
    /// The entries, in the kernel's order.
    pub entries: Vec<ListedEntry>,
    /// Number of entries of a shape that [`Entry`] does not have.
    pub undecoded: usize,
}

/// An entry as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedEntry {
    /// The entry.
    pub entry: Entry,
    /// Options attached to the entry, if any.
    pub options: Option<Box<EntryOptions>>,
}

impl SetType {
    /// Every type that has entries of its own here.
    pub const ALL: &[Self] = &[
        Self::HashIp,
        Self::HashIpPort,
        Self::HashIpPortIp,
        Self::HashIpPortNet,
        Self::BitmapPort,
    ];

    /// The type of this name.
    #[must_use]
    pub fn from_name(name: Name) -> Self {
        let known = Self::ALL.iter().find(|known| known.as_bytes() == name.as_bytes());
        known.copied().unwrap_or(Self::Other(name))
    }

    /// The name's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::HashIp => b"hash:ip",
            Self::HashIpPort => b"hash:ip,port",
            Self::HashIpPortIp => b"hash:ip,port,ip",
            Self::HashIpPortNet => b"hash:ip,port,net",
            Self::BitmapPort => b"bitmap:port",
            Self::Other(name) => name.as_bytes(),
        }
    }

    /// The oldest revision that has all of this; `None` if none has.
    ///
    /// Revisions are listed at the head of each type's source (net/netfilter/ipset/ip_set_*.c).
    /// The types with ports begin at revision 1 here: it brought SCTP and UDPLITE.
    pub(crate) fn revision_for(&self, options: &SetOptions) -> Option<u8> {
        let [base, counters, comment, skbinfo] = match self {
            Self::HashIp => [0, 1, 2, 4],
            Self::HashIpPort | Self::HashIpPortIp => [1, 2, 3, 5],
            Self::HashIpPortNet => [1, 4, 5, 7],
            Self::BitmapPort => [0, 1, 2, 3],
            Self::Other(_) => return None,
        };
        let force_add = match self {
            // The bitmap types have no such thing.
            Self::BitmapPort if options.force_add => return None,
            Self::BitmapPort => base,
            _ => comment + 1,
        };
        [
            (options.counters, counters),
            (options.comment, comment),
            (options.force_add, force_add),
            (options.skbinfo, skbinfo),
        ]
        .into_iter()
        .filter_map(|(wanted, revision)| wanted.then_some(revision))
        .chain([base])
        .max()
    }

    pub(crate) fn is_bitmap(&self) -> bool {
        self.as_bytes().starts_with(b"bitmap:")
    }
}

impl fmt::Display for SetType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl Family {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Ipv4 => uapi::NFPROTO_IPV4,
            Self::Ipv6 => uapi::NFPROTO_IPV6,
            Self::Unspecified => uapi::NFPROTO_UNSPEC,
        }
    }

    pub(crate) fn from_number(number: u8) -> Self {
        match number {
            uapi::NFPROTO_IPV4 => Self::Ipv4,
            uapi::NFPROTO_IPV6 => Self::Ipv6,
            _ => Self::Unspecified,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ipv4 => "inet",
            Self::Ipv6 => "inet6",
            Self::Unspecified => "unspecified",
        })
    }
}

impl SetSpec {
    /// A set of this type with the kernel's choice for everything else.
    #[must_use]
    pub fn new(set_type: SetType, family: Family) -> Self {
        Self { set_type, family, options: SetOptions::default() }
    }

    with! {
        with_options(SetOptions) sets options;
    }

    /// Returns the reason why such a set cannot be created, if there is one.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        let bitmap = self.set_type.is_bitmap();
        let options = &self.options;
        match self.set_type {
            SetType::Other(_) => Some("this library creates no sets of that type"),
            _ if bitmap != (self.family == Family::Unspecified) => {
                Some("hash types need a family, and bitmap:port has none")
            }
            _ if bitmap && (options.hash_size.is_some() || options.max_elements.is_some()) => {
                Some("bitmap:port has neither a hash size nor a largest number of entries")
            }
            _ if bitmap && options.force_add => {
                Some("bitmap:port is never full, so nothing to force")
            }
            _ if !bitmap && options.ports.is_some() => {
                Some("only bitmap:port has a range of ports")
            }
            _ if options.netmask.is_some() && self.set_type != SetType::HashIp => {
                Some("only hash:ip has a netmask")
            }
            _ => None,
        }
    }
}

impl fmt::Display for SetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.set_type)?;
        if self.family != Family::Unspecified {
            write!(f, " family {}", self.family)?;
        }
        write!(f, "{}", self.options)
    }
}

impl Header {
    /// Specification to create such a set again.
    #[must_use]
    pub fn spec(&self) -> SetSpec {
        let Identity { set_type, family, .. } = self.identity;
        SetSpec { set_type, family, options: self.options.clone() }
    }
}

impl SetOptions {
    with! {
        with_hash_size(u32) sets hash_size in Some;
        with_max_elements(u32) sets max_elements in Some;
        with_netmask(u8) sets netmask in Some;
        with_ports(RangeInclusive<u16>) sets ports in Some;
        with_timeout(u32) sets timeout in Some;
        with_counters(bool) sets counters;
        with_comment(bool) sets comment;
        with_skbinfo(bool) sets skbinfo;
        with_force_add(bool) sets force_add;
    }
}

impl fmt::Display for SetOptions {
    /// As the `ipset` tool takes them, each with a blank before it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ports) = &self.ports {
            write!(f, " range {}-{}", ports.start(), ports.end())?;
        }
        let numbers = [
            ("hashsize", self.hash_size),
            ("maxelem", self.max_elements),
            ("netmask", self.netmask.map(u32::from)),
            ("timeout", self.timeout),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                write!(f, " {name} {value}")?;
            }
        }
        let flags = [
            ("counters", self.counters),
            ("comment", self.comment),
            ("forceadd", self.force_add),
            ("skbinfo", self.skbinfo),
        ];
        for (name, _) in flags.iter().filter(|(_, wanted)| *wanted) {
            write!(f, " {name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
