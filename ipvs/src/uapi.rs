//! The kernel's numbers, under the kernel's names. Source: include/uapi/linux/ip_vs.h, and where
//! noted another header.

/// The generic netlink family's name (`IPVS_GENL_NAME`).
pub(crate) const FAMILY_NAME: &str = "IPVS";
/// The family's version (`IPVS_GENL_VERSION`).
pub(crate) const FAMILY_VERSION: u8 = 1;

/// `IP_VS_SO_GET_INFO`: an option of sockets, from before the family.
pub(crate) const SO_GET_INFO: i32 = 64 + 1024 + 64 + 1;
/// `struct ip_vs_getinfo` in bytes.
pub(crate) const GETINFO_LENGTH: usize = 12;

/// `IP_VS_SO_GET_SERVICES`
pub(crate) const SO_GET_SERVICES: i32 = SO_GET_INFO + 1;
/// Offset of `entrytable` in `struct ip_vs_get_services`, and `struct ip_vs_service_entry` in bytes, with a
/// `struct ip_vs_stats_user` at its end: as 64 bits are aligned on 64-bit machines, of which a test makes sure.
pub(crate) const SERVICE_ENTRIES: usize = 8;
pub(crate) const SERVICE_ENTRY_LENGTH: usize = 104;

/// `AF_INET` (include/linux/socket.h).
pub(crate) const AF_INET: u16 = 2;
/// `AF_INET6` (include/linux/socket.h).
pub(crate) const AF_INET6: u16 = 10;

/// `IPPROTO_TCP`, `IPPROTO_UDP`, `IPPROTO_SCTP` (include/uapi/linux/in.h).
pub(crate) const IPPROTO_TCP: u16 = 6;
pub(crate) const IPPROTO_UDP: u16 = 17;
pub(crate) const IPPROTO_SCTP: u16 = 132;

/// `IPVS_CMD_*`: the family's commands.
pub(crate) mod command {
    pub(crate) const NEW_SERVICE: u8 = 1;
    pub(crate) const SET_SERVICE: u8 = 2;
    pub(crate) const DEL_SERVICE: u8 = 3;
    pub(crate) const GET_SERVICE: u8 = 4;
    pub(crate) const NEW_DEST: u8 = 5;
    pub(crate) const SET_DEST: u8 = 6;
    pub(crate) const DEL_DEST: u8 = 7;
    pub(crate) const GET_DEST: u8 = 8;
    pub(crate) const NEW_DAEMON: u8 = 9;
    pub(crate) const DEL_DAEMON: u8 = 10;
    pub(crate) const GET_DAEMON: u8 = 11;
    pub(crate) const SET_CONFIG: u8 = 12;
    pub(crate) const GET_CONFIG: u8 = 13;
    pub(crate) const GET_INFO: u8 = 15;
    pub(crate) const ZERO: u8 = 16;
    pub(crate) const FLUSH: u8 = 17;
}

/// `IPVS_CMD_ATTR_*`: the outermost attributes.
pub(crate) mod attribute {
    pub(crate) const SERVICE: u16 = 1;
    pub(crate) const DEST: u16 = 2;
    pub(crate) const DAEMON: u16 = 3;
    pub(crate) const TIMEOUT_TCP: u16 = 4;
    pub(crate) const TIMEOUT_TCP_FIN: u16 = 5;
    pub(crate) const TIMEOUT_UDP: u16 = 6;
}

/// `IPVS_SVC_ATTR_*`: inside `IPVS_CMD_ATTR_SERVICE`.
pub(crate) mod service {
    pub(crate) const AF: u16 = 1;
    pub(crate) const PROTOCOL: u16 = 2;
    pub(crate) const ADDR: u16 = 3;
    pub(crate) const PORT: u16 = 4;
    pub(crate) const FWMARK: u16 = 5;
    pub(crate) const SCHED_NAME: u16 = 6;
    pub(crate) const FLAGS: u16 = 7;
    pub(crate) const TIMEOUT: u16 = 8;
    pub(crate) const NETMASK: u16 = 9;
    pub(crate) const STATS: u16 = 10;
    pub(crate) const PE_NAME: u16 = 11;
    pub(crate) const STATS64: u16 = 12;
}

/// `IPVS_DEST_ATTR_*`: inside `IPVS_CMD_ATTR_DEST`.
pub(crate) mod destination {
    pub(crate) const ADDR: u16 = 1;
    pub(crate) const PORT: u16 = 2;
    pub(crate) const FWD_METHOD: u16 = 3;
    pub(crate) const WEIGHT: u16 = 4;
    pub(crate) const U_THRESH: u16 = 5;
    pub(crate) const L_THRESH: u16 = 6;
    pub(crate) const ACTIVE_CONNS: u16 = 7;
    pub(crate) const INACT_CONNS: u16 = 8;
    pub(crate) const PERSIST_CONNS: u16 = 9;
    pub(crate) const STATS: u16 = 10;
    pub(crate) const ADDR_FAMILY: u16 = 11;
    pub(crate) const STATS64: u16 = 12;
    pub(crate) const TUN_TYPE: u16 = 13;
    pub(crate) const TUN_PORT: u16 = 14;
    pub(crate) const TUN_FLAGS: u16 = 15;
}

/// `IPVS_DAEMON_ATTR_*`: inside `IPVS_CMD_ATTR_DAEMON`.
pub(crate) mod daemon {
    pub(crate) const STATE: u16 = 1;
    pub(crate) const MCAST_IFN: u16 = 2;
    pub(crate) const SYNC_ID: u16 = 3;
    pub(crate) const SYNC_MAXLEN: u16 = 4;
    pub(crate) const MCAST_GROUP: u16 = 5;
    pub(crate) const MCAST_GROUP6: u16 = 6;
    pub(crate) const MCAST_PORT: u16 = 7;
    pub(crate) const MCAST_TTL: u16 = 8;
}

/// `IPVS_STATS_ATTR_*`: inside the four attributes that hold statistics.
pub(crate) mod statistics {
    pub(crate) const CONNS: u16 = 1;
    pub(crate) const INPKTS: u16 = 2;
    pub(crate) const OUTPKTS: u16 = 3;
    pub(crate) const INBYTES: u16 = 4;
    pub(crate) const OUTBYTES: u16 = 5;
    pub(crate) const CPS: u16 = 6;
    pub(crate) const INPPS: u16 = 7;
    pub(crate) const OUTPPS: u16 = 8;
    pub(crate) const INBPS: u16 = 9;
    pub(crate) const OUTBPS: u16 = 10;
}

/// `IPVS_INFO_ATTR_*`: the answer to `IPVS_CMD_GET_INFO`, at the outermost level.
pub(crate) mod info {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const CONN_TAB_SIZE: u16 = 2;
}

/// `IP_VS_CONN_F_*`, the part under `IP_VS_CONN_F_FWD_MASK`: forwarding methods.
pub(crate) mod forwarding {
    pub(crate) const MASQ: u32 = 0;
    pub(crate) const LOCALNODE: u32 = 1;
    pub(crate) const TUNNEL: u32 = 2;
    pub(crate) const DROUTE: u32 = 3;
    pub(crate) const BYPASS: u32 = 4;
}

/// `IP_VS_CONN_F_TUNNEL_TYPE_*`.
pub(crate) mod tunnel {
    pub(crate) const IPIP: u8 = 0;
    pub(crate) const GUE: u8 = 1;
    pub(crate) const GRE: u8 = 2;
}

/// `IP_VS_STATE_*`: what a sync daemon is.
pub(crate) mod sync_state {
    pub(crate) const MASTER: u32 = 1;
    pub(crate) const BACKUP: u32 = 2;
}
