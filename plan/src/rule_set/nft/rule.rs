//! A rule, as data and in the words of `nft`.

use std::fmt;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::FLOW_TABLE;
use crate::model::{Family, Protocol};
use crate::network::first_bit;

/// A rule: what a packet must be, and what is done with it then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub matches: Vec<Match>,
    pub action: Action,
}

/// A condition on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// A set has the key, or has it not.
    InSet {
        key: Key,
        set: String,
        is_not: bool,
    },
    /// Its source is in a network, or is not.
    Source {
        net: IpNet,
        is_not: bool,
    },
    /// Its destination is in a network, or is not.
    Destination {
        net: IpNet,
        is_not: bool,
    },
    /// It arrived by an interface of this name, or of a name that begins so; or it did not. What the node itself sends
    /// arrived by none.
    Interface {
        name: Arc<str>,
        is_prefix: bool,
        is_not: bool,
    },
    Protocol(Protocol),
    /// Its destination is this port.
    Port(Protocol, u16),
    /// Its destination is no address of this node.
    NotLocalDestination,
    /// It has this bit of the mark.
    Marked(u32),
    /// It is a reset of TCP.
    Reset,
    /// It goes the way of its connection's first packet, and is no answer.
    FirstDirection,
    /// Its connection's destination was translated to another one, and a packet of it has come through before.
    TranslatedBefore,
}

/// Key of a lookup in a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// Destination address, protocol and destination port.
    Frontend,
    /// The same, and the source address.
    FrontendAndSource,
    /// The same, with so many bits of the source address.
    FrontendAndSourceNetwork(u8),
    /// The source address, in place of the destination's.
    SourceFrontend,
    /// Destination address, protocol and destination port of its connection's first packet, before any translation.
    OriginalFrontend,
    /// Destination address.
    Address,
    /// Source address.
    SourceAddress,
    /// Destination port of this protocol.
    Port(Protocol),
}

/// The end of a rule, or a change of the packet after which the next rule is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Sets this bit of the mark, and goes on.
    SetMark(u32),
    /// Clears this bit of the mark, and goes on.
    ClearMark(u32),
    /// Leaves the connection's destination as it is, for good.
    KeepDestination,
    /// Replaces the destination's prefix by this network's.
    MapDestination(IpNet),
    /// The same, and leads to the other half of the network.
    MapToOtherHalf(IpNet),
    Masquerade {
        random_fully: bool,
    },
    /// Moves the connection to the table's flow table, whose packets meet no rule.
    Offload,
    RejectWithReset,
    RejectAsUnreachable,
    Drop,
    Return,
    GoTo(&'static str),
    Jump(&'static str),
}

impl Rule {
    pub(super) fn new(matches: impl IntoIterator<Item = Match>, action: Action) -> Self {
        Self { matches: matches.into_iter().collect(), action }
    }

    /// Returns the rule as `nft` prints it, in a table of this family.
    #[must_use]
    pub fn text(&self, family: Family) -> String {
        let words = Words(family);
        // That a reset answers TCP alone goes without saying.
        let is_said = |it: &&Match| {
            self.action != Action::RejectWithReset || !matches!(it, Match::Protocol(Protocol::Tcp))
        };
        let matches = self.matches.iter().filter(is_said).map(|it| words.of_match(it));
        matches.chain([words.of_action(&self.action)]).collect::<Vec<_>>().join(" ")
    }
}

/// The words of `nft` for a family.
struct Words(Family);

impl Words {
    fn ip(&self) -> &'static str {
        match self.0 {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    fn of_match(&self, condition: &Match) -> String {
        let ip = self.ip();
        let not = |is_not: &bool| if *is_not { "!= " } else { "" };
        match condition {
            Match::InSet { key, set, is_not } => {
                format!("{} {}@{set}", self.of_key(*key), not(is_not))
            }
            Match::Source { net, is_not } => format!("{ip} saddr {}{}", not(is_not), network(net)),
            Match::Destination { net, is_not } => {
                format!("{ip} daddr {}{}", not(is_not), network(net))
            }
            Match::Interface { name, is_prefix, is_not } => {
                let wildcard = if *is_prefix { "*" } else { "" };
                format!("iifname {}\"{name}{wildcard}\"", not(is_not))
            }
            Match::Protocol(protocol) => format!("meta l4proto {}", protocol_name(*protocol)),
            Match::Port(protocol, port) => format!("{} dport {port}", protocol_name(*protocol)),
            Match::NotLocalDestination => "fib daddr type != local".to_owned(),
            Match::Marked(mark) => format!("meta mark & {mark:#010x} == {mark:#010x}"),
            Match::Reset => "tcp flags & rst == rst".to_owned(),
            Match::FirstDirection => "ct direction original".to_owned(),
            Match::TranslatedBefore => {
                "ct status & (confirmed | dnat) == confirmed | dnat".to_owned()
            }
        }
    }

    fn of_key(&self, key: Key) -> String {
        let ip = self.ip();
        let of = |address: &str| format!("{ip} {address} . meta l4proto . th dport");
        match key {
            Key::Frontend => of("daddr"),
            Key::SourceFrontend => of("saddr"),
            Key::FrontendAndSource => format!("{} . {ip} saddr", of("daddr")),
            Key::FrontendAndSourceNetwork(length) => {
                format!("{} . {ip} saddr & {}", of("daddr"), mask(self.0, length))
            }
            Key::OriginalFrontend => {
                format!("ct original {ip} daddr . meta l4proto . ct original proto-dst")
            }
            Key::Address => format!("{ip} daddr"),
            Key::SourceAddress => format!("{ip} saddr"),
            Key::Port(protocol) => format!("{} dport", protocol_name(protocol)),
        }
    }

    /// The destination in the other half of a network: what changes nothing is left out.
    fn in_other_half(&self, net: &IpNet) -> String {
        let (ip, half, network, last) =
            (self.ip(), first_bit(*net), net.network(), net.broadcast());
        let mut text = format!("{ip} daddr");
        if last != whole(self.0).broadcast() {
            text += &format!(" & {last}");
        }
        text += &format!(" ^ {half}");
        if network != whole(self.0).network() {
            text += &format!(" | {network}");
        }
        text
    }

    fn of_action(&self, action: &Action) -> String {
        match action {
            Action::SetMark(mark) => format!("meta mark set meta mark | {mark:#010x}"),
            Action::ClearMark(mark) => format!("meta mark set meta mark & {:#010x}", !mark),
            Action::KeepDestination => format!("dnat to {} daddr", self.ip()),
            Action::MapDestination(net) => format!("dnat prefix to {}", network(net)),
            Action::MapToOtherHalf(net) => format!("dnat to {}", self.in_other_half(net)),
            Action::Masquerade { random_fully: true } => "masquerade fully-random".to_owned(),
            Action::Masquerade { random_fully: false } => "masquerade".to_owned(),
            Action::Offload => format!("flow add @{FLOW_TABLE}"),
            Action::RejectWithReset => "reject with tcp reset".to_owned(),
            Action::RejectAsUnreachable => "reject".to_owned(),
            Action::Drop => "drop".to_owned(),
            Action::Return => "return".to_owned(),
            Action::GoTo(chain) => format!("goto {chain}"),
            Action::Jump(chain) => format!("jump {chain}"),
        }
    }
}

/// A network, of a single address without its length.
fn network(net: &IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

fn mask(family: Family, length: u8) -> String {
    let net = IpNet::new(whole(family).network(), length);
    net.map(|net| net.netmask().to_string()).unwrap_or_default()
}

/// The network of all addresses.
fn whole(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::V4(Ipv4Net::default()),
        Family::V6 => IpNet::V6(Ipv6Net::default()),
    }
}

const fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

impl fmt::Display for super::Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PreRouting => "prerouting",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::PostRouting => "postrouting",
        })
    }
}
