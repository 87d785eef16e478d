//! Jumps from the built-in chains into ours.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Table;

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

impl Jump {
    pub(crate) const fn new(
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
    pub(crate) const fn bare(table: Table, from: &'static str, to: &'static str) -> Self {
        Self { comment: None, ..Self::new(table, from, to, "") }
    }

    pub(crate) const fn of_new(self) -> Self {
        Self { states: JumpStates::New, ..self }
    }

    pub(crate) const fn of_unestablished(self) -> Self {
        Self { states: JumpStates::Unestablished, ..self }
    }

    /// For packets to this node, after all other rules.
    pub(crate) const fn to_node(self) -> Self {
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
