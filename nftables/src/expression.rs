//! Rules and their expressions: what a packet is asked, and what is done with it.

use std::fmt;

use bitflags::bitflags;

use crate::data::Data;
use crate::name::Name;
use crate::object::Family;
use crate::uapi::register;

/// Registers of 4 bytes (`NFT_REG32_COUNT`).
const REGISTERS: u8 = 16;

/// One of sixteen registers of 4 bytes. A longer value takes those behind it, too.
///
/// Four at a time are also known by the kernel as one register of 16 bytes. Where both names fit, it answers with
/// the latter, and so this is written with the latter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(u8);

/// A rule, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// Its chain.
    pub chain: Name,
    /// Number that no other object of the table ever has.
    pub handle: u64,
    /// Its steps.
    pub expressions: Vec<Expression>,
}

/// A step of a rule. The first one that says no ends the rule for a packet.
///
/// These are the expressions that this library writes. Another one that the kernel has is [`Expression::Other`] in a
/// listing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expression {
    /// Loads bytes of the packet.
    Payload {
        /// The header that `offset` counts from.
        base: PayloadBase,
        /// Number of bytes before them.
        offset: u32,
        /// Number of bytes, which are padded with zeros to 4.
        length: u32,
        /// First register that they are loaded to.
        to: Register,
    },
    /// Loads a property of the packet.
    Meta {
        /// The property.
        key: MetaKey,
        /// First register that it is loaded to.
        to: Register,
    },
    /// Changes a property of the packet.
    SetMeta {
        /// The property.
        key: MetaKey,
        /// First register that has its new value.
        from: Register,
    },
    /// Loads a property of the packet's connection.
    Conntrack {
        /// The property.
        key: ConntrackKey,
        /// First register that it is loaded to.
        to: Register,
    },
    /// Loads the type of an address of the packet, as routing sees it: 4 bytes in the machine's byte order, `RTN_*` of
    /// include/uapi/linux/rtnetlink.h. An address of the host is of type 2 (`RTN_LOCAL`).
    AddressType {
        /// The address.
        of: AddressEnd,
        /// First register that it is loaded to.
        to: Register,
    },
    /// Compares registers with a value, of whose bytes as many count as it has.
    Compare {
        /// First register of those that are compared.
        from: Register,
        /// Outcome with which the rule goes on.
        operator: Operator,
        /// The value.
        value: Data,
    },
    /// Computes `(from & mask) ^ xor`. Both have the same length.
    Bitwise {
        /// First register of the argument.
        from: Register,
        /// First register of the result.
        to: Register,
        /// Bits that are kept.
        mask: Data,
        /// Bits that are turned over then.
        xor: Data,
    },
    /// Looks registers up in a set of the same table.
    Lookup {
        /// The set or map.
        set: Name,
        /// First register of the key.
        from: Register,
        /// True if the rule goes on without a hit, rather than with one.
        is_inverted: bool,
        /// First register that a map's value is loaded to; none for a set.
        value_to: Option<Register>,
    },
    /// Loads a value.
    Immediate {
        /// First register that it is loaded to.
        to: Register,
        /// The value.
        value: Data,
    },
    /// Ends the rule.
    Verdict(Verdict),
    /// Translates the connection's addresses.
    Nat {
        /// The address that is translated.
        kind: NatKind,
        /// Family of the addresses, IPv4 or IPv6.
        family: Family,
        /// First registers of the least and the greatest address to choose from; none to keep the address.
        addresses: Option<(Register, Register)>,
        /// Registers of the least and the greatest port to choose from; none to keep the port if possible.
        ports: Option<(Register, Register)>,
        /// Choice within the range.
        flags: NatFlags,
    },
    /// Translates the connection's source to the address of the interface that the packet leaves by.
    Masquerade {
        /// Choice of the port.
        flags: NatFlags,
    },
    /// Drops the packet, and answers its sender.
    Reject(Reject),
    /// Moves the connection to a flow table of the same table: later packets pass no hook.
    FlowOffload {
        /// The flow table.
        flow_table: Name,
    },
    /// An expression that this library does not write, or writes otherwise; of a listing.
    Other(Name),
}

/// The header that a payload's offset counts from (`enum nft_payload_bases`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PayloadBase {
    /// `NFT_PAYLOAD_NETWORK_HEADER`
    Network,
    /// `NFT_PAYLOAD_TRANSPORT_HEADER`
    Transport,
}

/// A property of a packet (`enum nft_meta_keys`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetaKey {
    /// `NFT_META_MARK`: 4 bytes in the machine's byte order.
    Mark,
    /// `NFT_META_IIFNAME`: 16 bytes, all zero for a packet that the host itself sends.
    InputInterfaceName,
    /// `NFT_META_OIFNAME`: 16 bytes.
    OutputInterfaceName,
    /// `NFT_META_L4PROTO`: 1 byte, the protocol behind any extension headers.
    TransportProtocol,
}

/// A property of a connection (`enum nft_ct_keys`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConntrackKey {
    /// `NFT_CT_STATE`: 4 bytes in the machine's byte order.
    State,
    /// `NFT_CT_DIRECTION`: 1 byte, 0 for the direction of the first packet.
    Direction,
    /// `NFT_CT_STATUS`: 4 bytes in the machine's byte order, `IPS_*` of
    /// include/uapi/linux/netfilter/nf_conntrack_common.h.
    Status,
    /// `NFT_CT_DST_IP`: 4 bytes, the destination of the connection's first packet before any translation.
    OriginalDestinationIpv4,
    /// `NFT_CT_DST_IP6`: the same, 16 bytes.
    OriginalDestinationIpv6,
    /// `NFT_CT_PROTO_DST`: 2 bytes, the port of that destination.
    OriginalDestinationPort,
}

/// An end of a packet's way (`enum nft_fib_flags`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressEnd {
    /// `NFTA_FIB_F_SADDR`
    Source,
    /// `NFTA_FIB_F_DADDR`
    Destination,
}

/// Outcome of a comparison (`enum nft_cmp_ops`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operator {
    /// `NFT_CMP_EQ`
    Equal,
    /// `NFT_CMP_NEQ`
    NotEqual,
}

/// End of a rule (`enum nft_verdicts`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// `NF_DROP`: ends the packet without a word.
    Drop,
    /// `NF_ACCEPT`: ends this base chain; those behind it are still asked.
    Accept,
    /// `NFT_CONTINUE`: goes on behind this expression.
    Continue,
    /// `NFT_RETURN`: goes back to the rule behind the jump, or to a base chain's policy.
    Return,
    /// `NFT_JUMP`: goes on in a chain, and comes back at its end.
    Jump(Name),
    /// `NFT_GOTO`: goes on in a chain, and does not come back.
    GoTo(Name),
}

/// The address that is translated (`enum nft_nat_types`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NatKind {
    /// `NFT_NAT_SNAT`
    Source,
    /// `NFT_NAT_DNAT`
    Destination,
}

bitflags! {
    /// Choice of an address and a port (include/uapi/linux/netfilter/nf_nat.h).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct NatFlags: u32 {
        /// `NF_NAT_RANGE_PROTO_RANDOM`
        const RANDOM = 4;
        /// `NF_NAT_RANGE_PERSISTENT`
        const PERSISTENT = 8;
        /// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`
        const FULLY_RANDOM = 0x10;
        /// `NF_NAT_RANGE_NETMAP` (since Linux 5.8): the prefix is replaced, the rest of the address stays.
        const PREFIX = 0x40;
    }
}

/// The answer of a refusal (`enum nft_reject_types`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reject {
    /// `NFT_REJECT_ICMP_UNREACH` with this code: of ICMP for IPv4, of ICMPv6 for IPv6.
    IcmpUnreachable(u8),
    /// `NFT_REJECT_TCP_RST`. Packets that are not TCP are dropped without an answer.
    TcpReset,
}

impl Register {
    /// Returns the register with this number of registers before it, at most 15.
    #[must_use]
    pub const fn at(number: u8) -> Self {
        Self(if number < REGISTERS { number } else { REGISTERS - 1 })
    }

    pub(crate) fn number(self) -> u32 {
        let word = u32::from(self.0);
        if word % 4 == 0 { register::OF_16_BYTES + word / 4 } else { register::OF_4_BYTES + word }
    }

    pub(crate) fn from_kernel(number: u32) -> Option<Self> {
        let word = match number.checked_sub(register::OF_4_BYTES) {
            Some(word) => word,
            None => number.checked_sub(register::OF_16_BYTES)?.checked_mul(4)?,
        };
        u8::try_from(word).ok().filter(|word| *word < REGISTERS).map(Self)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Accept => f.write_str("accept"),
            Self::Continue => f.write_str("continue"),
            Self::Return => f.write_str("return"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::GoTo(chain) => write!(f, "goto {chain}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_has_the_number_that_the_kernel_answers_with() {
        let numbers: Vec<u32> = (0..6).map(|number| Register::at(number).number()).collect();
        assert_eq!(numbers, [1, 9, 10, 11, 2, 13]);
        for number in 0..16 {
            let register = Register::at(number);
            assert_eq!(Register::from_kernel(register.number()), Some(register));
            assert_eq!(Register::from_kernel(8 + u32::from(number)), Some(register));
        }
        for number in [0, 5, 7, 24, u32::MAX] {
            assert_eq!(Register::from_kernel(number), None, "{number}");
        }
    }
}
