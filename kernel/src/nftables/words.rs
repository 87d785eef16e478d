//! The planner's rules of nf_tables and those of the `nftables` crate.

use std::net::IpAddr;

use ipnet::IpNet;
use nftables::{
    AddressEnd, BaseChain, ChainType, ConntrackKey, Data, DataType, Element, Expression, Field,
    Hook, MetaKey, Name, NatFlags, NatKind, Operator, PayloadBase, Register, Reject, SetSpec,
    Verdict,
};
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Family, Protocol};
use plan::network;
use plan::rule_set::nft::{self, Action, Key, Match, Rule};
use plan::sets::{SetId, SetType};

/// `RTN_LOCAL` (include/uapi/linux/rtnetlink.h)
const LOCAL: u32 = 2;
/// `IFNAMSIZ` (include/uapi/linux/if.h)
const INTERFACE_NAME_LENGTH: usize = 16;
/// Place of the flags in a header of TCP, and the flag of a reset.
const TCP_FLAGS: u32 = 13;
const TCP_RESET: u8 = 4;
/// `IP_CT_DIR_ORIGINAL`, `IPS_CONFIRMED`, `IPS_DST_NAT` (include/uapi/linux/netfilter/nf_conntrack_common.h)
const ORIGINAL: u8 = 0;
const CONFIRMED: u32 = 8;
const DESTINATION_TRANSLATED: u32 = 0x20;
/// `ICMP_PORT_UNREACH`, `ICMPV6_PORT_UNREACH`
const PORT_UNREACHABLE: [(Family, u8); 2] = [(Family::V4, 3), (Family::V6, 4)];

/// Place and length of the addresses in a header, in bytes.
struct Addresses {
    source: u32,
    destination: u32,
    length: u32,
}

const fn addresses(family: Family) -> Addresses {
    match family {
        Family::V4 => Addresses { source: 12, destination: 16, length: 4 },
        Family::V6 => Addresses { source: 8, destination: 24, length: 16 },
    }
}

pub(super) const fn family_of(family: Family) -> nftables::Family {
    match family {
        Family::V4 => nftables::Family::Ipv4,
        Family::V6 => nftables::Family::Ipv6,
    }
}

const fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

pub(super) fn base_chain(hook: nft::Hook) -> BaseChain {
    let (chain_type, at) = match hook {
        nft::Hook::PreRouting => (ChainType::Nat, Hook::PreRouting),
        nft::Hook::Output => (ChainType::Nat, Hook::Output),
        nft::Hook::PostRouting => (ChainType::Nat, Hook::PostRouting),
        nft::Hook::Forward => (ChainType::Filter, Hook::Forward),
    };
    BaseChain::new(chain_type, at, hook.priority())
}

/// Returns the type of a set's elements. Networks are in a set for each length of their prefix.
pub(super) fn set_spec(set: SetId) -> SetSpec {
    let address = match set.family {
        Family::V4 => Field::Ipv4Address,
        Family::V6 => Field::Ipv6Address,
    };
    let frontend = [address, Field::Protocol, Field::Port];
    SetSpec::set(match set.set_type() {
        SetType::HashAddress => DataType::new(&[address]),
        SetType::HashAddressPort => DataType::new(&frontend),
        SetType::HashAddressPortAddress | SetType::HashAddressPortNet => {
            DataType::new(&[address, Field::Protocol, Field::Port, address])
        }
        SetType::BitmapPort => DataType::new(&[Field::Port]),
    })
}

/// Returns the element that an entry of a set is.
pub(super) fn element(entry: &Entry) -> Element {
    let of = |frontend: &Frontend| {
        Data::default()
            .with_address(frontend.address)
            .with_protocol(protocol_number(frontend.protocol))
            .with_port(frontend.port)
    };
    Element::new(match entry {
        Entry::Address(address) => Data::default().with_address(*address),
        Entry::AddressPort(frontend) => of(frontend),
        Entry::AddressPortAddress(frontend, address) => of(frontend).with_address(*address),
        Entry::AddressPortNet(frontend, net) => of(frontend).with_address(net.network()),
        Entry::Port(port) => Data::default().with_port(*port),
    })
}

/// Returns the entry that an element of a set is; none if it is none of ours. `length`: that of the networks in the
/// set, if it has networks.
pub(super) fn entry(set: SetId, length: Option<u8>, element: &Element) -> Option<Entry> {
    let bytes = element.key.as_bytes();
    let n_address = addresses(set.family).length as usize;
    let address_at = |at: usize| address(bytes.get(at..at + n_address)?);
    if set.set_type() == SetType::BitmapPort {
        return Some(Entry::Port(u16::from_be_bytes(*bytes.first_chunk()?)));
    }
    let first = address_at(0)?;
    if set.set_type() == SetType::HashAddress {
        return Some(Entry::Address(first));
    }
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| Some(&protocol_number(*protocol)) == bytes.get(n_address))?;
    let port = u16::from_be_bytes(*bytes.get(n_address + 4..)?.first_chunk()?);
    let frontend = Frontend { address: first, protocol, port };
    match set.set_type() {
        SetType::HashAddressPort => Some(Entry::AddressPort(frontend)),
        SetType::HashAddressPortNet => {
            let net = IpNet::new(address_at(n_address + 8)?, length?).ok()?;
            Some(Entry::AddressPortNet(frontend, net))
        }
        _ => Some(Entry::AddressPortAddress(frontend, address_at(n_address + 8)?)),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|bytes| (*bytes).into()),
        _ => bytes.first_chunk::<16>().map(|bytes| (*bytes).into()),
    }
}

/// Writes the expressions of rules of one family.
pub(super) struct Translator(pub(super) Family);

impl Translator {
    /// Returns the expressions of a rule, in the order in which `nft` writes them.
    pub(super) fn rule(&self, rule: &Rule) -> Result<Vec<Expression>, nftables::ParseError> {
        let mut expressions = Vec::new();
        // Registers keep a key for the next lookup of the rule.
        let mut loaded = None;
        for condition in &rule.matches {
            let Match::InSet { key, set, is_not } = condition else {
                loaded = None;
                self.condition(condition, &mut expressions);
                continue;
            };
            if loaded.replace(*key) != Some(*key) {
                self.key(*key, &mut expressions);
            }
            expressions.push(Expression::Lookup {
                set: Name::new(set)?,
                from: FIRST,
                is_inverted: *is_not,
                value_to: None,
            });
        }
        self.action(&rule.action, &mut expressions)?;
        Ok(expressions)
    }

    /// Writes a condition that is no lookup.
    fn condition(&self, condition: &Match, to: &mut Vec<Expression>) {
        let Addresses { source, destination, .. } = addresses(self.0);
        match condition {
            Match::InSet { .. } => {}
            Match::Source { net, is_not } => self.inside(source, net, *is_not, to),
            Match::Destination { net, is_not } => self.inside(destination, net, *is_not, to),
            Match::Interface { name, is_prefix, is_not } => {
                to.push(Expression::Meta { key: MetaKey::InputInterfaceName, to: FIRST });
                let mut bytes = name.as_bytes().to_vec();
                if !is_prefix {
                    bytes.resize(INTERFACE_NAME_LENGTH, 0);
                }
                to.push(compare(*is_not, Data::from_bytes(&bytes)));
            }
            Match::Protocol(protocol) => of_protocol(*protocol, to),
            Match::Port(protocol, port) => {
                of_protocol(*protocol, to);
                to.push(port_to(FIRST));
                to.push(compare(false, Data::default().with_port(*port)));
            }
            Match::NotLocalDestination => {
                to.push(Expression::AddressType { of: AddressEnd::Destination, to: FIRST });
                to.push(compare(true, Data::mark(LOCAL)));
            }
            Match::Marked(mark) => {
                to.push(Expression::Meta { key: MetaKey::Mark, to: FIRST });
                to.push(masked(FIRST, Data::mark(*mark), Data::mark(0)));
                to.push(compare(false, Data::mark(*mark)));
            }
            Match::FirstDirection => {
                to.push(Expression::Conntrack { key: ConntrackKey::Direction, to: FIRST });
                to.push(compare(false, Data::from_bytes(&[ORIGINAL])));
            }
            Match::TranslatedBefore => has_status(CONFIRMED | DESTINATION_TRANSLATED, to),
            Match::Reset => {
                of_protocol(Protocol::Tcp, to);
                to.push(Expression::Payload {
                    base: PayloadBase::Transport,
                    offset: TCP_FLAGS,
                    length: 1,
                    to: FIRST,
                });
                let reset = Data::from_bytes(&[TCP_RESET]);
                to.push(masked(FIRST, reset.clone(), Data::from_bytes(&[0])));
                to.push(compare(false, reset));
            }
        }
    }

    /// Loads a key into the first registers.
    fn key(&self, key: Key, to: &mut Vec<Expression>) {
        let Addresses { source, destination, length } = addresses(self.0);
        let behind_address = u8::try_from(length / 4).unwrap_or_default();
        let address =
            |offset, to| Expression::Payload { base: PayloadBase::Network, offset, length, to };
        let mut frontend = |offset| {
            to.push(address(offset, FIRST));
            let protocol = Register::at(behind_address);
            to.push(Expression::Meta { key: MetaKey::TransportProtocol, to: protocol });
            to.push(port_to(Register::at(behind_address + 1)));
        };
        let second = Register::at(behind_address + 2);
        match key {
            Key::Address => to.push(address(destination, FIRST)),
            Key::SourceAddress => to.push(address(source, FIRST)),
            Key::Frontend => frontend(destination),
            Key::SourceFrontend => frontend(source),
            Key::OriginalFrontend => {
                let address = match self.0 {
                    Family::V4 => ConntrackKey::OriginalDestinationIpv4,
                    Family::V6 => ConntrackKey::OriginalDestinationIpv6,
                };
                let [protocol, port] = [behind_address, behind_address + 1].map(Register::at);
                to.push(Expression::Conntrack { key: address, to: FIRST });
                to.push(Expression::Meta { key: MetaKey::TransportProtocol, to: protocol });
                let key = ConntrackKey::OriginalDestinationPort;
                to.push(Expression::Conntrack { key, to: port });
            }
            Key::FrontendAndSource => {
                frontend(destination);
                to.push(address(source, second));
            }
            Key::FrontendAndSourceNetwork(bits) => {
                frontend(destination);
                to.push(address(source, second));
                to.push(masked(second, mask(self.0, bits), zeros(length)));
            }
            Key::Port(protocol) => {
                of_protocol(protocol, to);
                to.push(port_to(FIRST));
            }
        }
    }

    /// Compares an address of the packet with a network.
    fn inside(&self, offset: u32, net: &IpNet, is_not: bool, to: &mut Vec<Expression>) {
        let bits = net.prefix_len();
        let whole = u32::from(bits).div_ceil(8);
        let is_of_bytes = bits.is_multiple_of(8);
        let length = if is_of_bytes { whole } else { addresses(self.0).length };
        to.push(Expression::Payload { base: PayloadBase::Network, offset, length, to: FIRST });
        if !is_of_bytes {
            to.push(masked(FIRST, mask(self.0, bits), zeros(length)));
        }
        let network = Data::default().with_address(net.network());
        let network = network.as_bytes().get(..length as usize).unwrap_or_default();
        to.push(compare(is_not, Data::from_bytes(network)));
    }

    fn action(
        &self,
        action: &Action,
        to: &mut Vec<Expression>,
    ) -> Result<(), nftables::ParseError> {
        let Addresses { destination, length, .. } = addresses(self.0);
        let verdict = |verdict| Expression::Verdict(verdict);
        let nat = |first, last, flags| Expression::Nat {
            kind: NatKind::Destination,
            family: family_of(self.0),
            addresses: Some((first, last)),
            ports: None,
            flags,
        };
        let last = match action {
            Action::SetMark(mark) => return set_mark(!mark, *mark, to),
            Action::ClearMark(mark) => return set_mark(!mark, 0, to),
            Action::KeepDestination => {
                let base = PayloadBase::Network;
                to.push(Expression::Payload { base, offset: destination, length, to: FIRST });
                nat(FIRST, FIRST, NatFlags::empty())
            }
            Action::MapDestination(net) => {
                for (register, address) in [(FIRST, net.network()), (SECOND_OF_16, net.broadcast())]
                {
                    let value = Data::default().with_address(address);
                    to.push(Expression::Immediate { to: register, value });
                }
                nat(FIRST, SECOND_OF_16, NatFlags::PREFIX)
            }
            Action::MapToOtherHalf(net) => {
                let base = PayloadBase::Network;
                to.push(Expression::Payload { base, offset: destination, length, to: FIRST });
                let other = network::in_other_half(*net, net.network());
                let of = |address| Data::default().with_address(address);
                to.push(masked(FIRST, of(net.hostmask()), of(other)));
                nat(FIRST, FIRST, NatFlags::empty())
            }
            Action::Masquerade { random_fully } => {
                let flags = if *random_fully { NatFlags::FULLY_RANDOM } else { NatFlags::empty() };
                Expression::Masquerade { flags }
            }
            Action::Offload => Expression::FlowOffload { flow_table: Name::new(nft::FLOW_TABLE)? },
            Action::RejectWithReset => Expression::Reject(Reject::TcpReset),
            Action::RejectAsUnreachable => {
                let code = PORT_UNREACHABLE.iter().find(|(family, _)| *family == self.0);
                Expression::Reject(Reject::IcmpUnreachable(code.map_or(0, |(_, code)| *code)))
            }
            Action::Drop => verdict(Verdict::Drop),
            Action::Return => verdict(Verdict::Return),
            Action::GoTo(chain) => verdict(Verdict::GoTo(Name::new(chain)?)),
            Action::Jump(chain) => verdict(Verdict::Jump(Name::new(chain)?)),
        };
        to.push(last);
        Ok(())
    }
}

const FIRST: Register = Register::at(0);
/// The second register of 16 bytes, behind any address in the first.
const SECOND_OF_16: Register = Register::at(4);

fn of_protocol(protocol: Protocol, to: &mut Vec<Expression>) {
    to.push(Expression::Meta { key: MetaKey::TransportProtocol, to: FIRST });
    to.push(compare(false, Data::default().with_protocol(protocol_number(protocol))));
}

/// Its connection has all these bits of `IPS_*`.
fn has_status(bits: u32, to: &mut Vec<Expression>) {
    to.push(Expression::Conntrack { key: ConntrackKey::Status, to: FIRST });
    to.push(masked(FIRST, Data::mark(bits), Data::mark(0)));
    to.push(compare(false, Data::mark(bits)));
}

fn port_to(to: Register) -> Expression {
    Expression::Payload { base: PayloadBase::Transport, offset: 2, length: 2, to }
}

fn compare(is_not: bool, value: Data) -> Expression {
    let operator = if is_not { Operator::NotEqual } else { Operator::Equal };
    Expression::Compare { from: FIRST, operator, value }
}

fn masked(register: Register, mask: Data, xor: Data) -> Expression {
    Expression::Bitwise { from: register, to: register, mask, xor }
}

fn zeros(length: u32) -> Data {
    Data::from_bytes(&vec![0; length as usize])
}

fn mask(family: Family, bits: u8) -> Data {
    let all: IpAddr = match family {
        Family::V4 => [0, 0, 0, 0].into(),
        Family::V6 => [0_u16; 8].into(),
    };
    IpNet::new(all, bits)
        .map_or_else(|_| Data::default(), |net| Data::default().with_address(net.netmask()))
}

fn set_mark(mask: u32, bits: u32, to: &mut Vec<Expression>) -> Result<(), nftables::ParseError> {
    to.push(Expression::Meta { key: MetaKey::Mark, to: FIRST });
    to.push(masked(FIRST, Data::mark(mask), Data::mark(bits)));
    to.push(Expression::SetMeta { key: MetaKey::Mark, from: FIRST });
    Ok(())
}
