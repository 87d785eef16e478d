//! Messages from the kernel.

use netlink::{Attribute, DecodeError, attributes};

use super::HEADER_LENGTH;
use crate::data::{Data, DataType};
use crate::expression::{
    AddressEnd, ConntrackKey, Expression, MetaKey, NatFlags, NatKind, Operator, PayloadBase,
    Register, Reject, Rule, Verdict,
};
use crate::name::Name;
use crate::object::{
    BaseChain, Chain, ChainType, Element, Family, FlowTable, Generation, Hook, Policy, Set,
    SetSpec, Table, TableFlags, TableId,
};
use crate::uapi::expression::{
    bitwise, compare, conntrack, fib, flow_offload, immediate, lookup, masquerade, meta, nat,
    payload, reject,
};
use crate::uapi::{self, data, element, flow_table as flows, register, verdict};

/// Attributes of a message or of an attribute, by their kinds. The last one of a kind counts.
struct Attributes<'a, const N: usize>([Option<Attribute<'a>>; N]);

impl<'a, const N: usize> Attributes<'a, N> {
    /// Those of a kind below `N`.
    fn read(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut found = [None; N];
        for attribute in attributes(bytes) {
            let attribute = attribute?;
            if let Some(place) = found.get_mut(usize::from(attribute.kind)) {
                *place = Some(attribute);
            }
        }
        Ok(Self(found))
    }

    fn of(attribute: Attribute<'a>) -> Result<Self, DecodeError> {
        Self::read(attribute.value)
    }

    fn get(&self, kind: u16) -> Option<Attribute<'a>> {
        self.0.get(usize::from(kind)).copied().flatten()
    }

    fn needed(&self, kind: u16) -> Result<Attribute<'a>, DecodeError> {
        self.get(kind)
            .ok_or_else(|| DecodeError::new("nf_tables message", format!("lacks attribute {kind}")))
    }

    fn name(&self, kind: u16) -> Result<Name, DecodeError> {
        self.needed(kind).map(|attribute| Name::from_kernel(attribute.value))
    }

    fn u32(&self, kind: u16) -> Result<u32, DecodeError> {
        self.needed(kind)?.u32_be()
    }

    /// A signed number of 32 bits; 0 if it is absent.
    fn i32(&self, kind: u16) -> Result<i32, DecodeError> {
        let bytes = self.get(kind).map(|attribute| attribute.array()).transpose()?;
        Ok(bytes.map_or(0, i32::from_be_bytes))
    }

    fn u32_or(&self, kind: u16, absent: u32) -> Result<u32, DecodeError> {
        self.get(kind).map_or(Ok(absent), |attribute| attribute.u32_be())
    }

    fn handle(&self, kind: u16) -> Result<u64, DecodeError> {
        let bytes = self.get(kind).map(|attribute| attribute.array()).transpose()?;
        Ok(bytes.map_or(0, u64::from_be_bytes))
    }

    fn register(&self, kind: u16) -> Result<Option<Register>, DecodeError> {
        let number = self.get(kind).map(|attribute| attribute.u32_be()).transpose()?;
        Ok(number.and_then(Register::from_kernel))
    }

    fn data(&self, kind: u16) -> Result<Option<Data>, DecodeError> {
        let Some(attribute) = self.get(kind) else { return Ok(None) };
        let inner = Attributes::<2>::of(attribute)?;
        Ok(inner.get(data::VALUE).map(|value| Data::from_bytes(value.value)))
    }
}

/// Cuts a message into its family's number and its attributes.
fn cut(body: &[u8]) -> Result<(u8, &[u8]), DecodeError> {
    let (header, rest) = body
        .split_first_chunk::<HEADER_LENGTH>()
        .ok_or_else(|| DecodeError::new("nf_tables message", "shorter than struct nfgenmsg"))?;
    let [family, ..] = *header;
    Ok((family, rest))
}

/// Returns the lower half of the generation in which a message was made. It differs between messages of one listing
/// if a change came between.
pub(crate) fn disturbance(body: &[u8]) -> Option<u16> {
    let [_, _, high, low] = *body.first_chunk::<HEADER_LENGTH>()?;
    Some(u16::from_be_bytes([high, low]))
}

fn table_id<const N: usize>(
    family: u8,
    attributes: &Attributes<'_, N>,
    kind: u16,
) -> Result<Option<TableId>, DecodeError> {
    let Some(family) = Family::from_kernel(family) else { return Ok(None) };
    Ok(Some(TableId { family, name: attributes.name(kind)? }))
}

/// Returns the table that a message is about; none if its family is unknown.
pub(crate) fn table_of(body: &[u8]) -> Option<TableId> {
    let (family, rest) = cut(body).ok()?;
    // The first attribute of each message is the table's name.
    let attributes = Attributes::<2>::read(rest).ok()?;
    table_id(family, &attributes, uapi::table::NAME).ok().flatten()
}

/// Reads a generation (`NFT_MSG_NEWGEN`).
///
/// # Errors
/// When the bytes are no such message.
pub fn decode_generation(body: &[u8]) -> Result<Generation, DecodeError> {
    let attributes = Attributes::<4>::read(cut(body)?.1)?;
    Ok(Generation {
        id: attributes.u32(uapi::generation::ID)?,
        process: attributes.u32_or(uapi::generation::PROCESS_ID, 0)?,
        program: attributes
            .get(uapi::generation::PROCESS_NAME)
            .map(|name| Name::from_kernel(name.value).as_str().to_owned())
            .unwrap_or_default(),
    })
}

/// Reads a table (`NFT_MSG_NEWTABLE`); none if its family is unknown.
///
/// # Errors
/// When the bytes are no such message.
pub fn decode_table(body: &[u8]) -> Result<Option<Table>, DecodeError> {
    let (family, rest) = cut(body)?;
    let attributes = Attributes::<8>::read(rest)?;
    let Some(id) = table_id(family, &attributes, uapi::table::NAME)? else { return Ok(None) };
    Ok(Some(Table {
        id,
        flags: TableFlags::from_bits_retain(attributes.u32_or(uapi::table::FLAGS, 0)?),
        handle: attributes.handle(uapi::table::HANDLE)?,
        uses: attributes.u32_or(uapi::table::USE, 0)?,
        owner: attributes.get(uapi::table::OWNER).map(|owner| owner.u32_be()).transpose()?,
    }))
}

/// Reads a chain (`NFT_MSG_NEWCHAIN`); none if its family is unknown.
///
/// # Errors
/// When the bytes are no such message.
pub fn decode_chain(body: &[u8]) -> Result<Option<Chain>, DecodeError> {
    let (family, rest) = cut(body)?;
    let attributes = Attributes::<8>::read(rest)?;
    let Some(table) = table_id(family, &attributes, uapi::chain::TABLE)? else { return Ok(None) };
    Ok(Some(Chain {
        table,
        name: attributes.name(uapi::chain::NAME)?,
        base: base_chain(&attributes)?,
        handle: attributes.handle(uapi::chain::HANDLE)?,
        uses: attributes.u32_or(uapi::chain::USE, 0)?,
    }))
}

fn base_chain(attributes: &Attributes<'_, 8>) -> Result<Option<BaseChain>, DecodeError> {
    let Some(hook) = attributes.get(uapi::chain::HOOK) else { return Ok(None) };
    let inner = Attributes::<3>::of(hook)?;
    let named = attributes.get(uapi::chain::TYPE).map(|name| name.string()).transpose()?;
    let chain_type = ChainType::ALL.into_iter().find(|it| Some(it.name()) == named);
    let hook = Hook::from_kernel(inner.u32(uapi::chain::HOOK_NUMBER)?);
    let policy = Policy::from_kernel(attributes.u32_or(uapi::chain::POLICY, 1)?);
    let (Some(chain_type), Some(hook), Some(policy)) = (chain_type, hook, policy) else {
        return Ok(None);
    };
    let priority = inner.i32(uapi::chain::HOOK_PRIORITY)?;
    Ok(Some(BaseChain { chain_type, hook, priority, policy }))
}

/// Reads a rule (`NFT_MSG_NEWRULE`).
///
/// # Errors
/// When the bytes are no such message.
pub fn decode_rule(body: &[u8]) -> Result<Rule, DecodeError> {
    let attributes = Attributes::<5>::read(cut(body)?.1)?;
    let list = attributes.get(uapi::rule::EXPRESSIONS);
    let expressions = list.into_iter().flat_map(|list| list.nested());
    Ok(Rule {
        chain: attributes.name(uapi::rule::CHAIN)?,
        handle: attributes.handle(uapi::rule::HANDLE)?,
        expressions: expressions.map(|one| expression(one?)).collect::<Result<_, _>>()?,
    })
}

/// Reads a set or map (`NFT_MSG_NEWSET`).
///
/// # Errors
/// When the bytes are no such message.
pub fn decode_set(body: &[u8]) -> Result<Set, DecodeError> {
    let attributes = Attributes::<21>::read(cut(body)?.1)?;
    let flags = attributes.u32_or(uapi::set::FLAGS, 0)?;
    let key = DataType::from_kernel(
        attributes.u32_or(uapi::set::KEY_TYPE, 0)?,
        attributes.u32(uapi::set::KEY_LENGTH)?,
    );
    let value = if flags & uapi::set::FLAG_MAP == 0 {
        None
    } else {
        Some(DataType::from_kernel(
            attributes.u32_or(uapi::set::DATA_TYPE, 0)?,
            attributes.u32_or(uapi::set::DATA_LENGTH, 0)?,
        ))
    };
    Ok(Set {
        name: attributes.name(uapi::set::NAME)?,
        spec: SetSpec { key, value },
        flags,
        handle: attributes.handle(uapi::set::HANDLE)?,
        count: attributes.get(uapi::set::COUNT).map(|count| count.u32_be()).transpose()?,
    })
}

/// Reads elements (`NFT_MSG_NEWSETELEM`). Those without a key, as the last one of a set of intervals may be, are
/// passed over.
///
/// # Errors
/// When the bytes are no such message.
pub fn decode_elements(body: &[u8]) -> Result<Vec<Element>, DecodeError> {
    let attributes = Attributes::<4>::read(cut(body)?.1)?;
    let mut elements = Vec::new();
    for one in attributes.get(element::ELEMENTS).into_iter().flat_map(|list| list.nested()) {
        let inner = Attributes::<3>::of(one?)?;
        if let Some(key) = inner.data(element::KEY)? {
            elements.push(Element { key, value: inner.data(element::DATA)? });
        }
    }
    Ok(elements)
}

/// Reads a flow table (`NFT_MSG_NEWFLOWTABLE`).
///
/// # Errors
/// When the bytes are no such message.
pub fn decode_flow_table(body: &[u8]) -> Result<FlowTable, DecodeError> {
    let attributes = Attributes::<6>::read(cut(body)?.1)?;
    let hook = Attributes::<4>::of(attributes.needed(flows::HOOK)?)?;
    let devices = hook.get(flows::HOOK_DEVICES).into_iter().flat_map(|list| list.nested());
    let text = |device: Attribute<'_>| Name::from_kernel(device.value).as_str().to_owned();
    Ok(FlowTable {
        name: attributes.name(flows::NAME)?,
        priority: hook.i32(flows::HOOK_PRIORITY)?,
        devices: devices.map(|device| Ok(text(device?))).collect::<Result<_, DecodeError>>()?,
        handle: attributes.handle(flows::HANDLE)?,
        uses: attributes.u32_or(flows::USE, 0)?,
    })
}

/// Reads one expression. One that this library would write otherwise, or not at all, is known by its name alone: it
/// may be another program's, or a newer kernel's.
fn expression(attribute: Attribute<'_>) -> Result<Expression, DecodeError> {
    let attributes = Attributes::<3>::of(attribute)?;
    let name = attributes.name(uapi::expression::NAME)?;
    let bytes = attributes.get(uapi::expression::DATA).map_or(&[][..], |data| data.value);
    let read = match name.as_str() {
        "payload" => read_payload,
        "meta" => read_meta,
        "ct" => read_conntrack,
        "fib" => read_address_type,
        "cmp" => read_compare,
        "bitwise" => read_bitwise,
        "lookup" => read_lookup,
        "immediate" => read_immediate,
        "nat" => read_nat,
        "masq" => read_masquerade,
        "reject" => read_reject,
        "flow_offload" => read_flow_offload,
        _ => return Ok(Expression::Other(name)),
    };
    let known = Attributes::<8>::read(bytes).and_then(|data| read(&data)).ok().flatten();
    Ok(known.unwrap_or(Expression::Other(name)))
}

type Read = Result<Option<Expression>, DecodeError>;

fn read_payload(data: &Attributes<'_, 8>) -> Read {
    // Without a destination it changes the packet.
    let Some(to) = data.register(payload::DESTINATION)? else { return Ok(None) };
    let base = data.u32(payload::BASE)?;
    let base =
        [PayloadBase::Network, PayloadBase::Transport].into_iter().find(|it| it.number() == base);
    let (offset, length) = (data.u32(payload::OFFSET)?, data.u32(payload::LENGTH)?);
    Ok(base.map(|base| Expression::Payload { base, offset, length, to }))
}

fn read_meta(data: &Attributes<'_, 8>) -> Read {
    let keys = [
        MetaKey::Mark,
        MetaKey::InputInterfaceName,
        MetaKey::OutputInterfaceName,
        MetaKey::TransportProtocol,
    ];
    let number = data.u32(meta::KEY)?;
    let Some(key) = keys.into_iter().find(|key| key.number() == number) else { return Ok(None) };
    if let Some(to) = data.register(meta::DESTINATION)? {
        return Ok(Some(Expression::Meta { key, to }));
    }
    Ok(data.register(meta::SOURCE)?.map(|from| Expression::SetMeta { key, from }))
}

fn read_conntrack(data: &Attributes<'_, 8>) -> Read {
    let keys = [
        ConntrackKey::State,
        ConntrackKey::Direction,
        ConntrackKey::Status,
        ConntrackKey::OriginalDestinationIpv4,
        ConntrackKey::OriginalDestinationIpv6,
        ConntrackKey::OriginalDestinationPort,
    ];
    let number = data.u32(conntrack::KEY)?;
    let direction = data.get(conntrack::DIRECTION).map(|it| it.u8()).transpose()?;
    let is_same = |key: &ConntrackKey| {
        key.number() == number
            && direction == key.is_of_a_direction().then_some(conntrack::ORIGINAL)
    };
    let key = keys.into_iter().find(is_same);
    let to = data.register(conntrack::DESTINATION)?;
    Ok(key.zip(to).map(|(key, to)| Expression::Conntrack { key, to }))
}

fn read_address_type(data: &Attributes<'_, 8>) -> Read {
    if data.u32(fib::RESULT)? != fib::RESULT_ADDRESS_TYPE {
        return Ok(None);
    }
    let flags = data.u32(fib::FLAGS)?;
    let of =
        [AddressEnd::Source, AddressEnd::Destination].into_iter().find(|it| it.flag() == flags);
    let to = data.register(fib::DESTINATION)?;
    Ok(of.zip(to).map(|(of, to)| Expression::AddressType { of, to }))
}

fn read_compare(data: &Attributes<'_, 8>) -> Read {
    let number = data.u32(compare::OPERATOR)?;
    let operators = [Operator::Equal, Operator::NotEqual];
    let operator = operators.into_iter().find(|operator| operator.number() == number);
    let (Some(operator), Some(from), Some(value)) =
        (operator, data.register(compare::SOURCE)?, data.data(compare::DATA)?)
    else {
        return Ok(None);
    };
    Ok(Some(Expression::Compare { from, operator, value }))
}

fn read_bitwise(data: &Attributes<'_, 8>) -> Read {
    if data.u32_or(bitwise::OPERATION, bitwise::MASK_XOR)? != bitwise::MASK_XOR {
        return Ok(None);
    }
    let (from, to) = (data.register(bitwise::SOURCE)?, data.register(bitwise::DESTINATION)?);
    let (mask, xor) = (data.data(bitwise::MASK)?, data.data(bitwise::XOR)?);
    let (Some(from), Some(to), Some(mask), Some(xor)) = (from, to, mask, xor) else {
        return Ok(None);
    };
    Ok(Some(Expression::Bitwise { from, to, mask, xor }))
}

fn read_lookup(data: &Attributes<'_, 8>) -> Read {
    let Some(from) = data.register(lookup::SOURCE)? else { return Ok(None) };
    let value_to = data.register(lookup::DESTINATION)?;
    if data.get(lookup::DESTINATION).is_some() && value_to.is_none() {
        // The value is a verdict.
        return Ok(None);
    }
    let is_inverted = data.u32_or(lookup::FLAGS, 0)? & lookup::FLAG_INVERT != 0;
    Ok(Some(Expression::Lookup { set: data.name(lookup::SET)?, from, is_inverted, value_to }))
}

fn read_immediate(data: &Attributes<'_, 8>) -> Read {
    if data.u32(immediate::DESTINATION)? != register::VERDICT {
        let (to, value) = (data.register(immediate::DESTINATION)?, data.data(immediate::DATA)?);
        return Ok(to.zip(value).map(|(to, value)| Expression::Immediate { to, value }));
    }
    let inner = Attributes::<3>::of(data.needed(immediate::DATA)?)?;
    let inner = Attributes::<3>::of(inner.needed(data::VERDICT)?)?;
    let chain = || inner.name(data::VERDICT_CHAIN);
    let verdict = match inner.i32(data::VERDICT_CODE)? {
        verdict::DROP => Verdict::Drop,
        verdict::ACCEPT => Verdict::Accept,
        // To a rule, in which nothing follows a verdict, both are the same.
        verdict::CONTINUE | verdict::BREAK => Verdict::Continue,
        verdict::RETURN => Verdict::Return,
        verdict::JUMP => Verdict::Jump(chain()?),
        verdict::GOTO => Verdict::GoTo(chain()?),
        _ => return Ok(None),
    };
    Ok(Some(Expression::Verdict(verdict)))
}

fn read_nat(data: &Attributes<'_, 8>) -> Read {
    let (number, family) = (data.u32(nat::TYPE)?, data.u32(nat::FAMILY)?);
    let kind =
        [NatKind::Source, NatKind::Destination].into_iter().find(|kind| kind.number() == number);
    let family = u8::try_from(family).ok().and_then(Family::from_kernel);
    let range = |least, greatest| -> Result<Option<(Register, Register)>, DecodeError> {
        let (first, last) = (data.register(least)?, data.register(greatest)?);
        Ok(first.map(|first| (first, last.unwrap_or(first))))
    };
    let addresses = range(nat::ADDRESS_MIN, nat::ADDRESS_MAX)?;
    let ports = range(nat::PORT_MIN, nat::PORT_MAX)?;
    let flags = data.u32_or(nat::FLAGS, 0)?;
    Ok(kind.zip(family).map(|(kind, family)| {
        // The kernel adds NF_NAT_RANGE_MAP_IPS and _PROTO_SPECIFIED, which say what the registers say.
        let flags = NatFlags::from_bits_retain(flags & !0b11);
        Expression::Nat { kind, family, addresses, ports, flags }
    }))
}

fn read_masquerade(data: &Attributes<'_, 8>) -> Read {
    let flags = data.u32_or(masquerade::FLAGS, 0)?;
    Ok(Some(Expression::Masquerade { flags: NatFlags::from_bits_retain(flags) }))
}

fn read_reject(data: &Attributes<'_, 8>) -> Read {
    let code = data.get(reject::CODE).map_or(Ok(0), |code| code.u8())?;
    Ok(match data.u32(reject::TYPE)? {
        reject::ICMP => Some(Expression::Reject(Reject::IcmpUnreachable(code))),
        reject::TCP_RESET => Some(Expression::Reject(Reject::TcpReset)),
        _ => None,
    })
}

fn read_flow_offload(data: &Attributes<'_, 8>) -> Read {
    Ok(Some(Expression::FlowOffload { flow_table: data.name(flow_offload::TABLE)? }))
}
