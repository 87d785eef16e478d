//! The kernel's numbers, from include/uapi/linux/netfilter/ipset/ip_set.h and
//! include/uapi/linux/netfilter/nfnetlink.h. Names are the kernel's, without `IPSET_`.

/// `NFNL_SUBSYS_IPSET` (nfnetlink.h): the upper byte of each message type.
pub(crate) const SUBSYSTEM: u16 = 6;
/// `NLM_F_EXCL` (include/uapi/linux/netlink.h): to ipset, "what I add is not there yet, and what I
/// delete is there".
pub(crate) const NLM_F_EXCL: u16 = 0x200;
/// `NLM_F_CREATE`.
pub(crate) const NLM_F_CREATE: u16 = 0x400;
/// `NFPROTO_UNSPEC` (include/uapi/linux/netfilter.h).
pub(crate) const NFPROTO_UNSPEC: u8 = 0;
/// `NFPROTO_IPV4`.
pub(crate) const NFPROTO_IPV4: u8 = 2;
/// `NFPROTO_IPV6`.
pub(crate) const NFPROTO_IPV6: u8 = 10;
/// `IPSET_PROTOCOL`: the newest version that this library speaks.
pub(crate) const PROTOCOL: u8 = 7;
/// `IPSET_PROTOCOL_MIN`: the oldest.
pub(crate) const PROTOCOL_MIN: u8 = 6;
/// `IPSET_MAX_COMMENT_SIZE`.
pub(crate) const MAX_COMMENT_SIZE: usize = 255;

/// `enum ipset_cmd`.
pub(crate) mod cmd {
    pub(crate) const PROTOCOL: u8 = 1;
    pub(crate) const CREATE: u8 = 2;
    pub(crate) const DESTROY: u8 = 3;
    pub(crate) const FLUSH: u8 = 4;
    pub(crate) const RENAME: u8 = 5;
    pub(crate) const SWAP: u8 = 6;
    pub(crate) const LIST: u8 = 7;
    pub(crate) const ADD: u8 = 9;
    pub(crate) const DEL: u8 = 10;
    pub(crate) const TEST: u8 = 11;
    pub(crate) const HEADER: u8 = 12;
    pub(crate) const TYPE: u8 = 13;
}

/// Attributes of a command (`IPSET_ATTR_*`, the first enumeration).
pub(crate) mod attr {
    pub(crate) const PROTOCOL: u16 = 1;
    pub(crate) const SETNAME: u16 = 2;
    pub(crate) const TYPENAME: u16 = 3;
    /// The second name of rename and swap.
    pub(crate) const SETNAME2: u16 = TYPENAME;
    pub(crate) const REVISION: u16 = 4;
    pub(crate) const FAMILY: u16 = 5;
    pub(crate) const FLAGS: u16 = 6;
    pub(crate) const DATA: u16 = 7;
    pub(crate) const ADT: u16 = 8;
    pub(crate) const LINENO: u16 = 9;
    pub(crate) const PROTOCOL_MIN: u16 = 10;
    pub(crate) const REVISION_MIN: u16 = PROTOCOL_MIN;
}

/// Attributes inside `IPSET_ATTR_DATA`. Numbers from 17 on mean one thing when a set is created
/// or described ([`create`]), another in an entry.
pub(crate) mod data {
    pub(crate) const IP: u16 = 1;
    pub(crate) const IP_TO: u16 = 2;
    pub(crate) const CIDR: u16 = 3;
    pub(crate) const PORT: u16 = 4;
    pub(crate) const PORT_TO: u16 = 5;
    pub(crate) const TIMEOUT: u16 = 6;
    pub(crate) const PROTO: u16 = 7;
    pub(crate) const CADT_FLAGS: u16 = 8;
    pub(crate) const LINENO: u16 = 9;
    pub(crate) const MARK: u16 = 10;
    pub(crate) const ETHER: u16 = 17;
    pub(crate) const NAME: u16 = 18;
    pub(crate) const IP2: u16 = 20;
    pub(crate) const CIDR2: u16 = 21;
    pub(crate) const IP2_TO: u16 = 22;
    pub(crate) const IFACE: u16 = 23;
    pub(crate) const BYTES: u16 = 24;
    pub(crate) const PACKETS: u16 = 25;
    pub(crate) const COMMENT: u16 = 26;
    pub(crate) const SKBMARK: u16 = 27;
    pub(crate) const SKBPRIO: u16 = 28;
    pub(crate) const SKBQUEUE: u16 = 29;
}

/// Attributes inside `IPSET_ATTR_DATA` of a set.
pub(crate) mod create {
    pub(crate) const HASHSIZE: u16 = 18;
    pub(crate) const MAXELEM: u16 = 19;
    pub(crate) const NETMASK: u16 = 20;
    pub(crate) const ELEMENTS: u16 = 24;
    pub(crate) const REFERENCES: u16 = 25;
    pub(crate) const MEMSIZE: u16 = 26;
}

/// Attributes inside an address (`IPSET_ATTR_IPADDR_*`).
pub(crate) mod ipaddr {
    pub(crate) const IPV4: u16 = 1;
    pub(crate) const IPV6: u16 = 2;
}

/// Flags of a command (`enum ipset_cmd_flags`).
pub(crate) mod flag {
    pub(crate) const LIST_SETNAME: u32 = 1 << 1;
    pub(crate) const LIST_HEADER: u32 = 1 << 2;
}

/// Flags inside `IPSET_ATTR_CADT_FLAGS` (`enum ipset_cadt_flags`).
pub(crate) mod cadt {
    pub(crate) const PHYSDEV: u32 = 1 << 1;
    pub(crate) const NOMATCH: u32 = 1 << 2;
    pub(crate) const WITH_COUNTERS: u32 = 1 << 3;
    pub(crate) const WITH_COMMENT: u32 = 1 << 4;
    pub(crate) const WITH_FORCEADD: u32 = 1 << 5;
    pub(crate) const WITH_SKBINFO: u32 = 1 << 6;
}

/// Error numbers (`enum ipset_errno`, and those of each type, which overlap).
pub(crate) mod err {
    pub(crate) const PROTOCOL: i32 = 4097;
    pub(crate) const FIND_TYPE: i32 = 4098;
    pub(crate) const MAX_SETS: i32 = 4099;
    pub(crate) const BUSY: i32 = 4100;
    pub(crate) const EXIST_SETNAME2: i32 = 4101;
    pub(crate) const TYPE_MISMATCH: i32 = 4102;
    pub(crate) const EXIST: i32 = 4103;
    pub(crate) const INVALID_CIDR: i32 = 4104;
    pub(crate) const INVALID_NETMASK: i32 = 4105;
    pub(crate) const INVALID_FAMILY: i32 = 4106;
    pub(crate) const TIMEOUT: i32 = 4107;
    pub(crate) const REFERENCED: i32 = 4108;
    pub(crate) const IPADDR_IPV4: i32 = 4109;
    pub(crate) const IPADDR_IPV6: i32 = 4110;
    pub(crate) const COUNTER: i32 = 4111;
    pub(crate) const COMMENT: i32 = 4112;
    pub(crate) const INVALID_MARKMASK: i32 = 4113;
    pub(crate) const SKBINFO: i32 = 4114;
    /// `IPSET_ERR_HASH_FULL`, include/uapi/linux/netfilter/ipset/ip_set_hash.h, and on.
    pub(crate) const HASH_FULL: i32 = 4352;
    pub(crate) const HASH_ELEM: i32 = 4353;
    pub(crate) const INVALID_PROTO: i32 = 4354;
    pub(crate) const MISSING_PROTO: i32 = 4355;
    pub(crate) const HASH_RANGE_UNSUPPORTED: i32 = 4356;
    pub(crate) const HASH_RANGE: i32 = 4357;
    /// `IPSET_ERR_BITMAP_RANGE`, include/uapi/linux/netfilter/ipset/ip_set_bitmap.h, and on.
    pub(crate) const BITMAP_RANGE: i32 = 4352;
    pub(crate) const BITMAP_RANGE_SIZE: i32 = 4353;
}
