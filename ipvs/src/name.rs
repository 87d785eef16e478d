//! The three kinds of short names the kernel looks things up by.

use std::fmt;
use std::str::FromStr;

/// The longest name: `IP_VS_SCHEDNAME_MAXLEN`, `IP_VS_PENAME_MAXLEN` and `IP_VS_IFNAME_MAXLEN`
/// (include/uapi/linux/ip_vs.h) are 16 bytes with the zero byte that ends the name.
const LONGEST: usize = 15;

/// Text that is not what it should be: a name that the kernel could not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    kind: &'static str,
    name: String,
}

/// A scheduler's name: which algorithm picks the real server. The kernel loads the module
/// `ip_vs_<name>` when it is first used. Any name is fine here; the kernel has the last word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scheduler(Name);

/// A persistence engine's name: what identifies a client besides its address. Linux has one,
/// `sip`. The kernel loads the module `ip_vs_pe_<name>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PersistenceEngine(Name);

/// A network interface's name, such as `eth0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(Name);

/// Held in place: names are copied into and compared for every virtual server of a listing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Name {
    bytes: [u8; LONGEST],
    length: u8,
}

impl Scheduler {
    /// `rr`: one after the other.
    pub const ROUND_ROBIN: Self = Self(Name::literal("rr"));
    /// `wrr`: one after the other, as often as their weight says.
    pub const WEIGHTED_ROUND_ROBIN: Self = Self(Name::literal("wrr"));
    /// `lc`: the one with the fewest connections.
    pub const LEAST_CONNECTION: Self = Self(Name::literal("lc"));
    /// `wlc`: the one with the fewest connections for its weight.
    pub const WEIGHTED_LEAST_CONNECTION: Self = Self(Name::literal("wlc"));
    /// `sh`: by a hash of the client's address.
    pub const SOURCE_HASHING: Self = Self(Name::literal("sh"));
    /// `dh`: by a hash of the virtual server's address.
    pub const DESTINATION_HASHING: Self = Self(Name::literal("dh"));
    /// `sed`: the one expected to answer first.
    pub const SHORTEST_EXPECTED_DELAY: Self = Self(Name::literal("sed"));
    /// `nq`: an idle one, else as `sed`.
    pub const NEVER_QUEUE: Self = Self(Name::literal("nq"));
    /// `mh`: Maglev hashing, since Linux 4.18.
    pub const MAGLEV_HASHING: Self = Self(Name::literal("mh"));
    /// `fo`: the available one with the highest weight, since Linux 3.18.
    pub const WEIGHTED_FAILOVER: Self = Self(Name::literal("fo"));
    /// `ovf`: the first one until it has as many connections as its weight, since Linux 4.3.
    pub const WEIGHTED_OVERFLOW: Self = Self(Name::literal("ovf"));
    /// `lblc`: locality-based least connection.
    pub const LOCALITY_BASED_LEAST_CONNECTION: Self = Self(Name::literal("lblc"));
    /// `lblcr`: the same with replication.
    pub const LOCALITY_BASED_LEAST_CONNECTION_REPLICATED: Self = Self(Name::literal("lblcr"));
}

/// The methods that are the same for each kind of name.
macro_rules! name_type {
    ($name:ident, $kind:literal) => {
        impl $name {
            #[doc = concat!("A ", $kind, " from its name.")]
            ///
            /// # Errors
            /// When the name is empty, longer than 15 bytes, or has a zero byte in it.
            pub fn new(name: &str) -> Result<Self, ParseError> {
                Name::new(name)
                    .map(Self)
                    .ok_or_else(|| ParseError { kind: $kind, name: name.to_owned() })
            }

            /// The name as the kernel knows it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }
        }

        impl FromStr for $name {
            type Err = ParseError;

            fn from_str(name: &str) -> Result<Self, ParseError> {
                Self::new(name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.as_str())
            }
        }
    };
}

name_type!(Scheduler, "scheduler");
name_type!(PersistenceEngine, "persistence engine");
name_type!(InterfaceName, "network interface");

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name } = self;
        write!(f, "the {kind} `{name}` must have 1 to {LONGEST} bytes, none of them zero")
    }
}

impl std::error::Error for ParseError {}

impl Name {
    fn new(name: &str) -> Option<Self> {
        if name.is_empty() || name.contains('\0') {
            return None;
        }
        let mut bytes = [0; LONGEST];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Self { bytes, length: u8::try_from(name.len()).ok()? })
    }

    /// For the constants above, checked when the crate is compiled.
    #[expect(clippy::indexing_slicing, reason = "evaluated at compile time only")]
    const fn literal(name: &'static str) -> Self {
        let (mut bytes, mut index) = ([0; LONGEST], 0);
        while index < name.len() {
            bytes[index] = name.as_bytes()[index];
            index += 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 15, or the loop did not end")]
        Self { bytes, length: index as u8 }
    }

    fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        // They were a `&str` before, so this always is UTF-8.
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_to_fifteen_bytes_and_no_zero() {
        assert_eq!(Scheduler::new("fifteen-bytes--").unwrap().as_str(), "fifteen-bytes--");
        assert_eq!("rr".parse(), Ok(Scheduler::ROUND_ROBIN));
        for wrong in ["", "sixteen-bytes---", "r\0r", "éééééééé"] {
            assert!(PersistenceEngine::new(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(
            InterfaceName::new("").unwrap_err().to_string(),
            "the network interface `` must have 1 to 15 bytes, none of them zero"
        );
    }

    #[test]
    fn a_name_can_be_padded_in_a_table() {
        assert_eq!(format!("{:<5}|", Scheduler::WEIGHTED_ROUND_ROBIN), "wrr  |");
        assert_eq!(format!("{:?}", Scheduler::MAGLEV_HASHING), "Scheduler(mh)");
    }
}
