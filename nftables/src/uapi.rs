//! The kernel's numbers, from include/uapi/linux/netfilter/nf_tables.h and
//! include/uapi/linux/netfilter/nfnetlink.h. Names are the kernel's, without `NFTA_` and `NFT_`.

/// `NFNL_SUBSYS_NFTABLES` (nfnetlink.h): the upper byte of each message type.
pub(crate) const SUBSYSTEM: u16 = 10;
/// `NFNL_MSG_BATCH_BEGIN`
pub(crate) const BATCH_BEGIN: u16 = 0x10;
/// `NFNL_MSG_BATCH_END`
pub(crate) const BATCH_END: u16 = 0x11;
/// `NFNL_BATCH_GENID`
pub(crate) const BATCH_GENERATION: u16 = 1;
/// `NFNLGRP_NFTABLES`
pub(crate) const GROUP: u32 = 7;
/// `NFTA_LIST_ELEM`
pub(crate) const LIST_ELEMENT: u16 = 1;

/// `NLM_F_CREATE` (include/uapi/linux/netlink.h)
pub(crate) const NLM_F_CREATE: u16 = 0x400;
/// `NLM_F_APPEND`
pub(crate) const NLM_F_APPEND: u16 = 0x800;

/// `enum nf_tables_msg_types`
pub(crate) mod message {
    pub(crate) const NEWTABLE: u8 = 0;
    pub(crate) const GETTABLE: u8 = 1;
    pub(crate) const DELTABLE: u8 = 2;
    pub(crate) const NEWCHAIN: u8 = 3;
    pub(crate) const GETCHAIN: u8 = 4;
    pub(crate) const DELCHAIN: u8 = 5;
    pub(crate) const NEWRULE: u8 = 6;
    pub(crate) const GETRULE: u8 = 7;
    pub(crate) const DELRULE: u8 = 8;
    pub(crate) const NEWSET: u8 = 9;
    pub(crate) const GETSET: u8 = 10;
    pub(crate) const DELSET: u8 = 11;
    pub(crate) const NEWSETELEM: u8 = 12;
    pub(crate) const GETSETELEM: u8 = 13;
    pub(crate) const DELSETELEM: u8 = 14;
    pub(crate) const NEWGEN: u8 = 15;
    pub(crate) const GETGEN: u8 = 16;
    pub(crate) const NEWFLOWTABLE: u8 = 22;
    pub(crate) const GETFLOWTABLE: u8 = 23;
    pub(crate) const DELFLOWTABLE: u8 = 24;
}

/// `enum nft_table_attributes`
pub(crate) mod table {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const FLAGS: u16 = 2;
    pub(crate) const USE: u16 = 3;
    pub(crate) const HANDLE: u16 = 4;
    pub(crate) const OWNER: u16 = 7;
}

/// `enum nft_chain_attributes`, `enum nft_hook_attributes`, `enum nft_devices_attributes`
pub(crate) mod chain {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const HANDLE: u16 = 2;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const HOOK: u16 = 4;
    pub(crate) const POLICY: u16 = 5;
    pub(crate) const USE: u16 = 6;
    pub(crate) const TYPE: u16 = 7;
    pub(crate) const HOOK_NUMBER: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
}

/// `enum nft_rule_attributes`
pub(crate) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const HANDLE: u16 = 3;
    pub(crate) const EXPRESSIONS: u16 = 4;
}

/// `enum nft_set_attributes`, `enum nft_set_flags`
pub(crate) mod set {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const KEY_TYPE: u16 = 4;
    pub(crate) const KEY_LENGTH: u16 = 5;
    pub(crate) const DATA_TYPE: u16 = 6;
    pub(crate) const DATA_LENGTH: u16 = 7;
    pub(crate) const ID: u16 = 10;
    pub(crate) const HANDLE: u16 = 16;
    pub(crate) const COUNT: u16 = 20;
    pub(crate) const FLAG_MAP: u32 = 8;
}

/// `enum nft_set_elem_list_attributes`, `enum nft_set_elem_attributes`
pub(crate) mod element {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const SET: u16 = 2;
    pub(crate) const ELEMENTS: u16 = 3;
    pub(crate) const KEY: u16 = 1;
    pub(crate) const DATA: u16 = 2;
}

/// `enum nft_flowtable_attributes`, `enum nft_flowtable_hook_attributes`, `enum nft_devices_attributes`
pub(crate) mod flow_table {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const HOOK: u16 = 3;
    pub(crate) const USE: u16 = 4;
    pub(crate) const HANDLE: u16 = 5;
    pub(crate) const FLAGS: u16 = 7;
    pub(crate) const HOOK_NUMBER: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
    pub(crate) const HOOK_DEVICES: u16 = 3;
    pub(crate) const DEVICE_NAME: u16 = 1;
    /// `NF_NETDEV_INGRESS`
    pub(crate) const INGRESS: u32 = 0;
}

/// `enum nft_gen_attributes`
pub(crate) mod generation {
    pub(crate) const ID: u16 = 1;
    pub(crate) const PROCESS_ID: u16 = 2;
    pub(crate) const PROCESS_NAME: u16 = 3;
}

/// `enum nft_data_attributes`, `enum nft_verdict_attributes`
pub(crate) mod data {
    pub(crate) const VALUE: u16 = 1;
    pub(crate) const VERDICT: u16 = 2;
    pub(crate) const VERDICT_CODE: u16 = 1;
    pub(crate) const VERDICT_CHAIN: u16 = 2;
}

/// `enum nft_verdicts`; drop and accept are those of netfilter (include/uapi/linux/netfilter.h).
pub(crate) mod verdict {
    pub(crate) const DROP: i32 = 0;
    pub(crate) const ACCEPT: i32 = 1;
    pub(crate) const CONTINUE: i32 = -1;
    pub(crate) const BREAK: i32 = -2;
    pub(crate) const JUMP: i32 = -3;
    pub(crate) const GOTO: i32 = -4;
    pub(crate) const RETURN: i32 = -5;
}

/// `enum nft_registers`
pub(crate) mod register {
    pub(crate) const VERDICT: u32 = 0;
    /// The first of four registers of 16 bytes.
    pub(crate) const OF_16_BYTES: u32 = 1;
    /// The first of sixteen registers of 4 bytes, which are the same memory.
    pub(crate) const OF_4_BYTES: u32 = 8;
}

/// `enum nft_expr_attributes`, and the attributes of each expression.
pub(crate) mod expression {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DATA: u16 = 2;

    /// `enum nft_payload_attributes`
    pub(crate) mod payload {
        pub(crate) const DESTINATION: u16 = 1;
        pub(crate) const BASE: u16 = 2;
        pub(crate) const OFFSET: u16 = 3;
        pub(crate) const LENGTH: u16 = 4;
    }

    /// `enum nft_meta_attributes`
    pub(crate) mod meta {
        pub(crate) const KEY: u16 = 2;
        pub(crate) const DESTINATION: u16 = 1;
        pub(crate) const SOURCE: u16 = 3;
    }

    /// `enum nft_ct_attributes`, `enum nft_ct_keys`
    pub(crate) mod conntrack {
        pub(crate) const DESTINATION: u16 = 1;
        pub(crate) const KEY: u16 = 2;
        pub(crate) const DIRECTION: u16 = 3;
        /// `IP_CT_DIR_ORIGINAL` (include/uapi/linux/netfilter/nf_conntrack_tuple_common.h)
        pub(crate) const ORIGINAL: u8 = 0;
    }

    /// `enum nft_fib_attributes`, `enum nft_fib_result`, `enum nft_fib_flags`
    pub(crate) mod fib {
        pub(crate) const DESTINATION: u16 = 1;
        pub(crate) const RESULT: u16 = 2;
        pub(crate) const FLAGS: u16 = 3;
        pub(crate) const RESULT_ADDRESS_TYPE: u32 = 3;
        pub(crate) const FLAG_SOURCE_ADDRESS: u32 = 1;
        pub(crate) const FLAG_DESTINATION_ADDRESS: u32 = 2;
    }

    /// `enum nft_cmp_attributes`
    pub(crate) mod compare {
        pub(crate) const SOURCE: u16 = 1;
        pub(crate) const OPERATOR: u16 = 2;
        pub(crate) const DATA: u16 = 3;
    }

    /// `enum nft_bitwise_attributes`
    pub(crate) mod bitwise {
        pub(crate) const SOURCE: u16 = 1;
        pub(crate) const DESTINATION: u16 = 2;
        pub(crate) const LENGTH: u16 = 3;
        pub(crate) const MASK: u16 = 4;
        pub(crate) const XOR: u16 = 5;
        pub(crate) const OPERATION: u16 = 6;
        /// `NFT_BITWISE_MASK_XOR` (older: `NFT_BITWISE_BOOL`)
        pub(crate) const MASK_XOR: u32 = 0;
    }

    /// `enum nft_lookup_attributes`
    pub(crate) mod lookup {
        pub(crate) const SET: u16 = 1;
        pub(crate) const SOURCE: u16 = 2;
        pub(crate) const DESTINATION: u16 = 3;
        pub(crate) const FLAGS: u16 = 5;
        pub(crate) const FLAG_INVERT: u32 = 1;
    }

    /// `enum nft_immediate_attributes`
    pub(crate) mod immediate {
        pub(crate) const DESTINATION: u16 = 1;
        pub(crate) const DATA: u16 = 2;
    }

    /// `enum nft_nat_attributes`, `enum nft_nat_types`
    pub(crate) mod nat {
        pub(crate) const TYPE: u16 = 1;
        pub(crate) const FAMILY: u16 = 2;
        pub(crate) const ADDRESS_MIN: u16 = 3;
        pub(crate) const ADDRESS_MAX: u16 = 4;
        pub(crate) const PORT_MIN: u16 = 5;
        pub(crate) const PORT_MAX: u16 = 6;
        pub(crate) const FLAGS: u16 = 7;
    }

    /// `enum nft_masq_attributes`
    pub(crate) mod masquerade {
        pub(crate) const FLAGS: u16 = 1;
    }

    /// `enum nft_reject_attributes`, `enum nft_reject_types`
    pub(crate) mod reject {
        pub(crate) const TYPE: u16 = 1;
        pub(crate) const CODE: u16 = 2;
        pub(crate) const ICMP: u32 = 0;
        pub(crate) const TCP_RESET: u32 = 1;
    }

    /// `enum nft_offload_attributes`
    pub(crate) mod flow_offload {
        pub(crate) const TABLE: u16 = 1;
    }
}
