//! Jumps from the built-in chains into ours.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Table;
use crate::mode::Mode;

/// A rule of a built-in chain that leads into one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Jump {
    pub table: Table,
    /// The built-in chain.
    pub from: &'static str,
    /// Our chain.
    pub to: &'static str,
    /// Comment that the rule has, if it has one.
    pub comment: Option<&'static str>,
    /// State of the connections whose packets it is for.
    pub states: JumpStates,
    /// Destination of the packets that it is for.
    pub destination: JumpDestination,
    /// Its place in the built-in chain when it is written.
    pub place: JumpPlace,
}

/// State of the connections whose packets a jump is for, as connection tracking has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JumpStates {
    /// Any, and packets that are not tracked.
    Any,
    /// `NEW`: no answer has been seen.
    New,
    /// Any but `RELATED` and `ESTABLISHED`. Packets that are invalid or not tracked are among these.
    Unestablished,
}

/// Destination of the packets that a jump is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JumpDestination {
    /// Any.
    Any,
    /// Any address of this node.
    Local,
    /// This address.
    Host(IpAddr),
}

/// Place of a jump in its built-in chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JumpPlace {
    /// Before all other rules.
    First,
    /// After all other rules.
    Last,
}

const PORTALS: &str = "kubernetes service portals";
const OUTSIDE: &str = "kubernetes externally-visible service portals";
const POSTROUTING: &str = "kubernetes postrouting rules";
const FORWARDING: &str = "kubernetes forwarding rules";
const HEALTH: &str = "kubernetes health check service ports";
const IPVS_FIREWALL: &str = "kube-proxy firewall rules";
const IPVS_FILTER: &str = "kubernetes ipvs access filter";
const FIREWALL: &str = "kubernetes load balancer firewall";
const ADDRESSES: &str = "handle ClusterIPs; NOTE: this must be before the NodePort rules";
const NODE_PORTS: &str = "handle service NodePorts; NOTE: this must be the last rule in the chain";
const PROXY_PORTS: &str = "Ensure that non-local NodePort traffic can flow";

/// Chain of the packets that IPVS is shown copies of.
pub(super) const FORGET: &str = "KUBE-IPVS-FORGET";
/// Chains that make such a copy (mangle), and that end it (filter).
pub(super) const SHOWN: &str = "KUBE-IPVS-COPY";
const FORGETS: &str = "kubernetes former connections that ipvs is to forget";
const COPIES: &str = "kubernetes copies of packets for ipvs";

/// The jumps of a node that leaves IPVS mode to what has IPVS forget connections.
pub const COPY_JUMPS: [Jump; 3] = [
    Jump::new(Table::Mangle, "PREROUTING", FORGET, FORGETS),
    Jump::new(Table::Mangle, "OUTPUT", FORGET, FORGETS),
    Jump::new(Table::Filter, "OUTPUT", SHOWN, COPIES),
];

/// Rules that decide about new connections are walked by their packets alone: every packet of every
/// connection would look into up to nine sets otherwise.
///
/// An answer makes a connection established, with IPVS too, since connection tracking knows its
/// connections (`ip_vs_update_conntrack` in net/netfilter/ipvs/ip_vs_nfct.c, `net.ipv4.vs.conntrack`).
/// Health checks are accepted whatever their state: a host may have no rule for established connections.
const IPVS: [Jump; 9] = [
    Jump::new(Table::Nat, "OUTPUT", "KUBE-SERVICES", PORTALS),
    Jump::new(Table::Nat, "PREROUTING", "KUBE-SERVICES", PORTALS),
    Jump::new(Table::Nat, "POSTROUTING", "KUBE-POSTROUTING", POSTROUTING),
    Jump::new(Table::Mangle, "OUTPUT", "KUBE-PROXY-FIREWALL", IPVS_FIREWALL).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-FORWARD", FORWARDING),
    Jump::new(Table::Filter, "INPUT", "KUBE-NODE-PORT", "kubernetes health check rules"),
    Jump::new(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", IPVS_FIREWALL).of_unestablished(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", IPVS_FIREWALL).of_unestablished(),
    Jump::new(Table::Filter, "INPUT", "KUBE-IPVS-FILTER", IPVS_FILTER).of_unestablished(),
];

/// Jumps that kube-proxy has in mode ipvs, and that we had, for packets of all connections.
const IPVS_OF_ALL: [Jump; 5] = [
    Jump::new(Table::Mangle, "OUTPUT", "KUBE-PROXY-FIREWALL", IPVS_FIREWALL),
    Jump::new(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", IPVS_FIREWALL),
    Jump::new(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", IPVS_FIREWALL),
    Jump::new(Table::Filter, "INPUT", "KUBE-IPVS-FILTER", IPVS_FILTER),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-IPVS-OUT-FILTER", IPVS_FILTER),
];

/// In kube-proxy's order (`iptablesJumpChains` in pkg/proxy/iptables/proxier.go), and then those
/// that the kubelet has too.
const IPTABLES: [Jump; 14] = [
    Jump::new(Table::Filter, "INPUT", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "INPUT", "KUBE-NODEPORTS", HEALTH),
    Jump::new(Table::Filter, "FORWARD", "KUBE-SERVICES", PORTALS).of_new(),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-SERVICES", PORTALS).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-FORWARD", FORWARDING),
    Jump::new(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Nat, "OUTPUT", "KUBE-SERVICES", PORTALS),
    Jump::new(Table::Nat, "PREROUTING", "KUBE-SERVICES", PORTALS),
    Jump::new(Table::Nat, "POSTROUTING", "KUBE-POSTROUTING", POSTROUTING),
    Jump::bare(Table::Filter, "INPUT", "KUBE-FIREWALL"),
    Jump::bare(Table::Filter, "OUTPUT", "KUBE-FIREWALL"),
];

/// The portals, by kube-proxy's names and comments (`iptablesInit` in
/// pkg/proxy/userspace/proxier.go, until 1.25), and those that refuse, as in iptables mode. A node
/// port is at every address, and must not take what has a portal of its own: so it comes last.
const USERSPACE: [Jump; 14] = [
    Jump::new(Table::Nat, "PREROUTING", "KUBE-PORTALS-CONTAINER", ADDRESSES),
    Jump::new(Table::Nat, "OUTPUT", "KUBE-PORTALS-HOST", ADDRESSES),
    Jump::new(Table::Nat, "PREROUTING", "KUBE-NODEPORT-CONTAINER", NODE_PORTS).to_node(),
    Jump::new(Table::Nat, "OUTPUT", "KUBE-NODEPORT-HOST", NODE_PORTS).to_node(),
    Jump::new(Table::Filter, "INPUT", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "INPUT", "KUBE-NODEPORTS", HEALTH),
    Jump::new(Table::Filter, "FORWARD", "KUBE-SERVICES", PORTALS).of_new(),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-SERVICES", PORTALS).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-FORWARD", FORWARDING),
    Jump::new(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "INPUT", "KUBE-NODEPORT-NON-LOCAL", PROXY_PORTS),
];

/// Jumps of IPVS mode into `KUBE-PROXY-FIREWALL`, which the other modes have too, with other
/// rules: those are for the first packet of a connection, and would drop the others of IPVS's connections.
const SUPERSEDED: [Jump; 4] = [IPVS_OF_ALL[1], IPVS_OF_ALL[2], IPVS[6], IPVS[7]];

/// Jumps of iptables mode into verdicts on frontends for clients outside. In ipvs mode these
/// frontends are local, and INPUT comes before IPVS: a verdict that is out of date would refuse what
/// has endpoints. And jumps of ipvs mode for packets of all connections, which kube-proxy leaves.
const SUPERSEDED_BY_IPVS: [Jump; 7] = [
    Jump::new(Table::Filter, "INPUT", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    IPVS_OF_ALL[0],
    IPVS_OF_ALL[1],
    IPVS_OF_ALL[2],
    IPVS_OF_ALL[3],
    IPVS_OF_ALL[4],
];

/// The jumps of other modes that must not be there in this one.
#[must_use]
pub(super) const fn superseded_jumps(mode: Mode) -> &'static [Jump] {
    match mode {
        Mode::Iptables | Mode::Userspace => &SUPERSEDED,
        Mode::Ipvs => &SUPERSEDED_BY_IPVS,
    }
}

/// The jumps of a mode that kube-proxy has, or that we had, in another form or besides.
#[must_use]
pub const fn former_jumps(mode: Mode) -> &'static [Jump] {
    match mode {
        Mode::Ipvs => &IPVS_OF_ALL,
        Mode::Iptables | Mode::Userspace => &[],
    }
}

/// The jumps of a mode, in the order in which they are put before everything else of the built-in
/// chain, or behind it: of two that go first into the same chain the later one comes to stand first.
#[must_use]
pub const fn jumps(mode: Mode) -> &'static [Jump] {
    match mode {
        Mode::Ipvs => &IPVS,
        Mode::Iptables => &IPTABLES,
        Mode::Userspace => &USERSPACE,
    }
}

impl Jump {
    const fn new(
        table: Table,
        from: &'static str,
        to: &'static str,
        comment: &'static str,
    ) -> Self {
        Self {
            table,
            from,
            to,
            comment: Some(comment),
            states: JumpStates::Any,
            destination: JumpDestination::Any,
            place: JumpPlace::First,
        }
    }

    /// A jump that has neither a comment nor a match.
    const fn bare(table: Table, from: &'static str, to: &'static str) -> Self {
        Self { comment: None, ..Self::new(table, from, to, "") }
    }

    const fn of_new(self) -> Self {
        Self { states: JumpStates::New, ..self }
    }

    const fn of_unestablished(self) -> Self {
        Self { states: JumpStates::Unestablished, ..self }
    }

    /// For packets to this node, after all other rules.
    const fn to_node(self) -> Self {
        Self { destination: JumpDestination::Local, place: JumpPlace::Last, ..self }
    }

    /// The same for other packets.
    pub(crate) const fn with_destination(self, destination: JumpDestination) -> Self {
        Self { destination, ..self }
    }

    /// Its text, as `iptables-save` prints it, without `-A` and the built-in chain's name.
    #[must_use]
    pub fn rule(&self) -> String {
        let states = match self.states {
            JumpStates::Any => "",
            JumpStates::New => "-m conntrack --ctstate NEW ",
            JumpStates::Unestablished => "-m conntrack ! --ctstate RELATED,ESTABLISHED ",
        };
        let to = match self.destination {
            JumpDestination::Any => String::new(),
            JumpDestination::Local => "-m addrtype --dst-type LOCAL ".to_owned(),
            JumpDestination::Host(address) => format!("-d {} ", IpNet::from(address)),
        };
        match self.comment {
            Some(comment) => {
                format!("{to}{states}-m comment --comment \"{comment}\" -j {}", self.to)
            }
            None => format!("{to}{states}-j {}", self.to),
        }
    }
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} to {}", self.table, self.from, self.to)
    }
}
