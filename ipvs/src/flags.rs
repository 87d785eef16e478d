//! Two sets of flags, which keep the kernel's bits that have no name.

use bitflags::bitflags;

bitflags! {
    /// A virtual server's flags (`IP_VS_SVC_F_*`, include/uapi/linux/ip_vs.h).
    ///
    /// The meaning of the three scheduler flags depends on the scheduler. So
    /// [`Flags::SH_PORT`] and [`Flags::MH_PORT`] are one and the same bit.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Flags: u32 {
        /// Connections of one client go to one real server (`IP_VS_SVC_F_PERSISTENT`).
        const PERSISTENT = 0x1;
        /// Set by the kernel while the virtual server is in its table (`IP_VS_SVC_F_HASHED`).
        const HASHED = 0x2;
        /// Each datagram is scheduled by itself; for UDP (`IP_VS_SVC_F_ONEPACKET`).
        const ONE_PACKET = 0x4;
        /// The scheduler's first flag (`IP_VS_SVC_F_SCHED1`).
        const SCHEDULER_1 = 0x8;
        /// The scheduler's second flag (`IP_VS_SVC_F_SCHED2`).
        const SCHEDULER_2 = 0x10;
        /// The scheduler's third flag (`IP_VS_SVC_F_SCHED3`).
        const SCHEDULER_3 = 0x20;
        /// Scheduler `sh`: pass over real servers that cannot take a connection.
        const SH_FALLBACK = Self::SCHEDULER_1.bits();
        /// Scheduler `sh`: hash the client's port too.
        const SH_PORT = Self::SCHEDULER_2.bits();
        /// Scheduler `mh`: pass over real servers that cannot take a connection
        /// (`IP_VS_SVC_F_SCHED_MH_FALLBACK`, net/netfilter/ipvs/ip_vs_mh.c).
        const MH_FALLBACK = Self::SCHEDULER_1.bits();
        /// Scheduler `mh`: hash the client's port too
        /// (`IP_VS_SVC_F_SCHED_MH_PORT`, net/netfilter/ipvs/ip_vs_mh.c).
        const MH_PORT = Self::SCHEDULER_2.bits();
        const _ = !0;
    }
}

bitflags! {
    /// A tunnel's treatment of checksums (`IP_VS_TUNNEL_ENCAP_FLAG_*`, include/uapi/linux/ip_vs.h).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct TunnelFlags: u16 {
        /// The outer packet has a checksum (`IP_VS_TUNNEL_ENCAP_FLAG_CSUM`).
        const CHECKSUM = 0x1;
        /// Remote checksum offload, for GUE (`IP_VS_TUNNEL_ENCAP_FLAG_REMCSUM`).
        const REMOTE_CHECKSUM = 0x2;
        const _ = !0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_without_a_name_are_shown_and_kept() {
        let flags = Flags::from_bits_retain(0x145);
        assert_eq!(flags.bits(), 0x145);
        assert_eq!(format!("{flags:?}"), "Flags(PERSISTENT | ONE_PACKET | 0x140)");
        assert_eq!((flags | Flags::HASHED).difference(Flags::HASHED), flags);
        let flags = TunnelFlags::from_bits_retain(2);
        assert_eq!(format!("{flags:?}"), "TunnelFlags(REMOTE_CHECKSUM)");
    }
}
