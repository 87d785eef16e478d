//! Two sets of flags, kept as the kernel's numbers so that unknown flags survive a round trip.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// A virtual server's flags (`IP_VS_SVC_F_*`, include/uapi/linux/ip_vs.h).
///
/// The meaning of the three scheduler flags depends on the scheduler. So
/// [`Flags::SH_PORT`] and [`Flags::MH_PORT`] are one and the same bit.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flags(u32);

/// A tunnel's treatment of checksums (`IP_VS_TUNNEL_ENCAP_FLAG_*`, include/uapi/linux/ip_vs.h).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelFlags(u16);

/// A set's operations, the same for both.
macro_rules! flag_set {
    ($name:ident, $bits:ty, [$($flag:ident: $text:literal),*]) => {
        impl $name {
            /// No flag.
            pub const NONE: Self = Self(0);

            /// The set with the kernel's number; bits without a name are kept.
            #[must_use]
            pub const fn from_bits(bits: $bits) -> Self {
                Self(bits)
            }

            /// The kernel's number.
            #[must_use]
            pub const fn bits(self) -> $bits {
                self.0
            }

            /// True if every flag of `other` is in this set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// True if the set has no flag.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// The flags of both.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The flags that are not in `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }

        /// The names of the flags, then the bits that have none.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut set = f.debug_set();
                let mut rest = *self;
                for (flag, text) in [$((Self::$flag, $text)),*] {
                    if self.contains(flag) {
                        set.entry(&format_args!("{text}"));
                        rest = rest.without(flag);
                    }
                }
                if !rest.is_empty() {
                    set.entry(&format_args!("{:#x}", rest.0));
                }
                set.finish()
            }
        }
    };
}

// === impl Flags ===

impl Flags {
    /// Connections of one client go to one real server (`IP_VS_SVC_F_PERSISTENT`).
    pub const PERSISTENT: Self = Self(0x1);
    /// Set by the kernel while the virtual server is in its table (`IP_VS_SVC_F_HASHED`).
    pub const HASHED: Self = Self(0x2);
    /// Each datagram is scheduled by itself; for UDP (`IP_VS_SVC_F_ONEPACKET`).
    pub const ONE_PACKET: Self = Self(0x4);
    /// The scheduler's first flag (`IP_VS_SVC_F_SCHED1`).
    pub const SCHEDULER_1: Self = Self(0x8);
    /// The scheduler's second flag (`IP_VS_SVC_F_SCHED2`).
    pub const SCHEDULER_2: Self = Self(0x10);
    /// The scheduler's third flag (`IP_VS_SVC_F_SCHED3`).
    pub const SCHEDULER_3: Self = Self(0x20);
    /// Scheduler `sh`: pass over real servers that cannot take a connection.
    pub const SH_FALLBACK: Self = Self::SCHEDULER_1;
    /// Scheduler `sh`: hash the client's port too.
    pub const SH_PORT: Self = Self::SCHEDULER_2;
    /// Scheduler `mh`: pass over real servers that cannot take a connection
    /// (`IP_VS_SVC_F_SCHED_MH_FALLBACK`, net/netfilter/ipvs/ip_vs_mh.c).
    pub const MH_FALLBACK: Self = Self::SCHEDULER_1;
    /// Scheduler `mh`: hash the client's port too
    /// (`IP_VS_SVC_F_SCHED_MH_PORT`, net/netfilter/ipvs/ip_vs_mh.c).
    pub const MH_PORT: Self = Self::SCHEDULER_2;
}

flag_set!(Flags, u32, [
    PERSISTENT: "persistent",
    HASHED: "hashed",
    ONE_PACKET: "one-packet",
    SCHEDULER_1: "scheduler-1",
    SCHEDULER_2: "scheduler-2",
    SCHEDULER_3: "scheduler-3"
]);

// === impl TunnelFlags ===

impl TunnelFlags {
    /// The outer packet has a checksum (`IP_VS_TUNNEL_ENCAP_FLAG_CSUM`).
    pub const CHECKSUM: Self = Self(0x1);
    /// Remote checksum offload, for GUE (`IP_VS_TUNNEL_ENCAP_FLAG_REMCSUM`).
    pub const REMOTE_CHECKSUM: Self = Self(0x2);
}

flag_set!(TunnelFlags, u16, [
    CHECKSUM: "checksum",
    REMOTE_CHECKSUM: "remote-checksum"
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_joined_cut_and_asked() {
        let mut flags = Flags::PERSISTENT | Flags::HASHED;
        assert!(flags.contains(Flags::PERSISTENT) && !flags.contains(Flags::ONE_PACKET));
        assert!(!flags.contains(Flags::PERSISTENT | Flags::ONE_PACKET));
        assert_eq!(flags.without(Flags::HASHED), Flags::PERSISTENT);
        flags |= Flags::MH_PORT;
        assert_eq!(flags.bits(), 0x13);
        assert!(Flags::NONE.is_empty() && !flags.is_empty());
    }

    #[test]
    fn flags_without_a_name_are_shown_and_kept() {
        let flags = Flags::from_bits(0x145);
        assert_eq!(flags.bits(), 0x145);
        assert_eq!(format!("{flags:?}"), "{persistent, one-packet, 0x140}");
        assert_eq!(format!("{:?}", TunnelFlags::from_bits(2)), "{remote-checksum}");
    }
}
