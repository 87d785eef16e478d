//! Bodies of messages to the kernel, with their attributes in the order in which `nft` writes them.

use netlink::{AttributeWriter, MessageWriter};

use crate::data::Data;
use crate::expression::{
    AddressEnd, ConntrackKey, Expression, MetaKey, NatFlags, NatKind, Operator, PayloadBase,
    Register, Reject, Verdict,
};
use crate::name::Name;
use crate::object::{BaseChain, Element, SetSpec, TableFlags, TableId};
use crate::uapi::expression::{
    bitwise, compare, conntrack, fib, flow_offload, immediate, lookup, masquerade, meta, nat,
    payload, reject,
};
use crate::uapi::{self, data, element, flow_table as flows, register, verdict};

pub(crate) fn table_name(message: &mut MessageWriter<'_>, table: &TableId) {
    message.attributes().string(uapi::table::NAME, table.name.as_str());
}

pub(crate) fn table(message: &mut MessageWriter<'_>, table: &TableId, flags: TableFlags) {
    table_name(message, table);
    message.attributes().u32_be(uapi::table::FLAGS, flags.bits());
}

pub(crate) fn chain(
    message: &mut MessageWriter<'_>,
    table: &TableId,
    chain: &Name,
    base: Option<BaseChain>,
) {
    let mut attributes = message.attributes();
    attributes.string(uapi::chain::TABLE, table.name.as_str());
    attributes.string(uapi::chain::NAME, chain.as_str());
    if let Some(base) = base {
        attributes.string(uapi::chain::TYPE, base.chain_type.name());
        attributes.u32_be(uapi::chain::POLICY, base.policy.number());
        attributes.nested(uapi::chain::HOOK, |hook| {
            hook.u32_be(uapi::chain::HOOK_NUMBER, base.hook.number());
            hook.bytes(uapi::chain::HOOK_PRIORITY, &base.priority.to_be_bytes());
        });
    }
}

pub(crate) fn rule(
    message: &mut MessageWriter<'_>,
    table: &TableId,
    chain: &Name,
    expressions: &[Expression],
) {
    let mut attributes = message.attributes();
    attributes.string(uapi::rule::TABLE, table.name.as_str());
    attributes.string(uapi::rule::CHAIN, chain.as_str());
    attributes.nested(uapi::rule::EXPRESSIONS, |list| {
        for one in expressions {
            list.nested(uapi::LIST_ELEMENT, |writer| expression(writer, one));
        }
    });
}

/// Names one rule of a chain, all of a chain, or all of a table.
pub(crate) fn rules_of(
    message: &mut MessageWriter<'_>,
    table: &TableId,
    chain: Option<&Name>,
    handle: Option<u64>,
) {
    let mut attributes = message.attributes();
    attributes.string(uapi::rule::TABLE, table.name.as_str());
    if let Some(chain) = chain {
        attributes.string(uapi::rule::CHAIN, chain.as_str());
    }
    if let Some(handle) = handle {
        attributes.bytes(uapi::rule::HANDLE, &handle.to_be_bytes());
    }
}

pub(crate) fn set_name(message: &mut MessageWriter<'_>, table: &TableId, set: Option<&Name>) {
    let mut attributes = message.attributes();
    attributes.string(uapi::set::TABLE, table.name.as_str());
    if let Some(set) = set {
        attributes.string(uapi::set::NAME, set.as_str());
    }
}

pub(crate) fn set(
    message: &mut MessageWriter<'_>,
    table: &TableId,
    set: &Name,
    spec: SetSpec,
    id: u32,
) {
    set_name(message, table, Some(set));
    let mut attributes = message.attributes();
    let flags = if spec.value.is_some() { uapi::set::FLAG_MAP } else { 0 };
    attributes.u32_be(uapi::set::FLAGS, flags);
    attributes.u32_be(uapi::set::KEY_TYPE, spec.key.number());
    attributes.u32_be(uapi::set::KEY_LENGTH, spec.key.length());
    if let Some(value) = spec.value {
        attributes.u32_be(uapi::set::DATA_TYPE, value.number());
        attributes.u32_be(uapi::set::DATA_LENGTH, value.length());
    }
    attributes.u32_be(uapi::set::ID, id);
}

/// Names elements of a set; all of them if there are none.
pub(crate) fn elements(
    message: &mut MessageWriter<'_>,
    table: &TableId,
    set: &Name,
    elements: &[Element],
) {
    let mut attributes = message.attributes();
    attributes.string(element::TABLE, table.name.as_str());
    attributes.string(element::SET, set.as_str());
    if elements.is_empty() {
        return;
    }
    attributes.nested(element::ELEMENTS, |list| {
        for one in elements {
            list.nested(uapi::LIST_ELEMENT, |writer| {
                value(writer, element::KEY, &one.key);
                if let Some(data) = &one.value {
                    value(writer, element::DATA, data);
                }
            });
        }
    });
}

pub(crate) fn flow_table(
    message: &mut MessageWriter<'_>,
    table: &TableId,
    name: &Name,
    hook: Option<(i32, &[&str])>,
) {
    let mut attributes = message.attributes();
    attributes.string(flows::TABLE, table.name.as_str());
    attributes.string(flows::NAME, name.as_str());
    let Some((priority, devices)) = hook else { return };
    attributes.nested(flows::HOOK, |hook| {
        hook.u32_be(flows::HOOK_NUMBER, flows::INGRESS);
        hook.bytes(flows::HOOK_PRIORITY, &priority.to_be_bytes());
        hook.nested(flows::HOOK_DEVICES, |list| {
            for device in devices {
                list.string(flows::DEVICE_NAME, device);
            }
        });
    });
    attributes.u32_be(flows::FLAGS, 0);
}

fn value(writer: &mut AttributeWriter<'_>, kind: u16, value: &Data) {
    writer.nested(kind, |data| data.bytes(data::VALUE, value.as_bytes()));
}

/// Name and attributes of an expression.
fn expression(writer: &mut AttributeWriter<'_>, expression: &Expression) {
    match expression {
        Expression::Payload { base, offset, length, to } => named(writer, "payload", |data| {
            data.u32_be(payload::DESTINATION, to.number());
            data.u32_be(payload::BASE, base.number());
            data.u32_be(payload::OFFSET, *offset);
            data.u32_be(payload::LENGTH, *length);
        }),
        Expression::Meta { key, to } => named(writer, "meta", |data| {
            data.u32_be(meta::KEY, key.number());
            data.u32_be(meta::DESTINATION, to.number());
        }),
        Expression::SetMeta { key, from } => named(writer, "meta", |data| {
            data.u32_be(meta::KEY, key.number());
            data.u32_be(meta::SOURCE, from.number());
        }),
        Expression::Conntrack { key, to } => {
            named(writer, "ct", |data| of_connection(data, *key, *to));
        }
        Expression::AddressType { of, to } => named(writer, "fib", |data| {
            data.u32_be(fib::FLAGS, of.flag());
            data.u32_be(fib::RESULT, fib::RESULT_ADDRESS_TYPE);
            data.u32_be(fib::DESTINATION, to.number());
        }),
        Expression::Compare { from, operator, value: with } => named(writer, "cmp", |data| {
            data.u32_be(compare::SOURCE, from.number());
            data.u32_be(compare::OPERATOR, operator.number());
            value(data, compare::DATA, with);
        }),
        Expression::Bitwise { from, to, mask, xor } => named(writer, "bitwise", |data| {
            data.u32_be(bitwise::SOURCE, from.number());
            data.u32_be(bitwise::DESTINATION, to.number());
            data.u32_be(bitwise::OPERATION, bitwise::MASK_XOR);
            data.u32_be(bitwise::LENGTH, u32::try_from(mask.as_bytes().len()).unwrap_or(u32::MAX));
            value(data, bitwise::MASK, mask);
            value(data, bitwise::XOR, xor);
        }),
        Expression::Lookup { set, from, is_inverted, value_to } => {
            named(writer, "lookup", |data| {
                data.u32_be(lookup::SOURCE, from.number());
                if let Some(register) = value_to {
                    data.u32_be(lookup::DESTINATION, register.number());
                }
                data.string(lookup::SET, set.as_str());
                if *is_inverted {
                    data.u32_be(lookup::FLAGS, lookup::FLAG_INVERT);
                }
            });
        }
        Expression::Immediate { to, value: with } => named(writer, "immediate", |data| {
            data.u32_be(immediate::DESTINATION, to.number());
            value(data, immediate::DATA, with);
        }),
        Expression::Verdict(verdict) => named(writer, "immediate", |data| {
            data.u32_be(immediate::DESTINATION, register::VERDICT);
            data.nested(immediate::DATA, |data| verdict_of(data, verdict));
        }),
        Expression::Nat { kind, family, addresses, ports, flags } => named(writer, "nat", |data| {
            data.u32_be(nat::TYPE, kind.number());
            data.u32_be(nat::FAMILY, u32::from(family.number()));
            range(data, (nat::ADDRESS_MIN, nat::ADDRESS_MAX), *addresses);
            range(data, (nat::PORT_MIN, nat::PORT_MAX), *ports);
            nat_flags(data, nat::FLAGS, *flags);
        }),
        Expression::Masquerade { flags } => {
            named(writer, "masq", |data| nat_flags(data, masquerade::FLAGS, *flags));
        }
        Expression::Reject(answer) => named(writer, "reject", |data| {
            let (kind, code) = match answer {
                Reject::IcmpUnreachable(code) => (reject::ICMP, *code),
                Reject::TcpReset => (reject::TCP_RESET, 0),
            };
            data.u32_be(reject::TYPE, kind);
            data.u8(reject::CODE, code);
        }),
        Expression::FlowOffload { flow_table } => named(writer, "flow_offload", |data| {
            data.string(flow_offload::TABLE, flow_table.as_str());
        }),
        // The kernel refuses it: what is in it is not known.
        Expression::Other(name) => named(writer, name.as_str(), |_| ()),
    }
}

fn of_connection(data: &mut AttributeWriter<'_>, key: ConntrackKey, to: Register) {
    data.u32_be(conntrack::KEY, key.number());
    data.u32_be(conntrack::DESTINATION, to.number());
    if key.is_of_a_direction() {
        data.u8(conntrack::DIRECTION, conntrack::ORIGINAL);
    }
}

fn named(
    writer: &mut AttributeWriter<'_>,
    name: &str,
    fill: impl FnOnce(&mut AttributeWriter<'_>),
) {
    writer.string(uapi::expression::NAME, name);
    writer.nested(uapi::expression::DATA, fill);
}

fn verdict_of(data: &mut AttributeWriter<'_>, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Drop => (verdict::DROP, None),
        Verdict::Accept => (verdict::ACCEPT, None),
        Verdict::Continue => (verdict::CONTINUE, None),
        Verdict::Return => (verdict::RETURN, None),
        Verdict::Jump(chain) => (verdict::JUMP, Some(chain)),
        Verdict::GoTo(chain) => (verdict::GOTO, Some(chain)),
    };
    data.nested(data::VERDICT, |data| {
        data.bytes(data::VERDICT_CODE, &code.to_be_bytes());
        if let Some(chain) = chain {
            data.string(data::VERDICT_CHAIN, chain.as_str());
        }
    });
}

/// A range whose ends are the same is written by its beginning alone, as `nft` does.
fn range(
    data: &mut AttributeWriter<'_>,
    (least, greatest): (u16, u16),
    registers: Option<(Register, Register)>,
) {
    let Some((first, last)) = registers else { return };
    data.u32_be(least, first.number());
    if last != first {
        data.u32_be(greatest, last.number());
    }
}

fn nat_flags(data: &mut AttributeWriter<'_>, kind: u16, flags: NatFlags) {
    if !flags.is_empty() {
        data.u32_be(kind, flags.bits());
    }
}

impl PayloadBase {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Network => 1,
            Self::Transport => 2,
        }
    }
}

impl MetaKey {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Mark => 3,
            Self::InputInterfaceName => 6,
            Self::OutputInterfaceName => 7,
            Self::TransportProtocol => 16,
        }
    }
}

impl ConntrackKey {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::State => 0,
            Self::Direction => 1,
            Self::Status => 2,
            Self::OriginalDestinationPort => 12,
            Self::OriginalDestinationIpv4 => 20,
            Self::OriginalDestinationIpv6 => 22,
        }
    }

    /// True if it is of one of the connection's two directions.
    pub(super) fn is_of_a_direction(self) -> bool {
        !matches!(self, Self::State | Self::Direction | Self::Status)
    }
}

impl AddressEnd {
    pub(super) fn flag(self) -> u32 {
        match self {
            Self::Source => fib::FLAG_SOURCE_ADDRESS,
            Self::Destination => fib::FLAG_DESTINATION_ADDRESS,
        }
    }
}

impl Operator {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Equal => 0,
            Self::NotEqual => 1,
        }
    }
}

impl NatKind {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Source => 0,
            Self::Destination => 1,
        }
    }
}
