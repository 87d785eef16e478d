//! One kernel change as a value.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::capacity::SetSize;
use crate::chains::{ChainOp, ChainSubject};
pub use crate::kernel_objects::PartKind;
use crate::kernel_objects::{Deadline, Entry, Frontend, RealServer, VirtualServer};
use crate::model::Family;
use crate::routes::{LocalRoute, RouteOp};
use crate::sets::SetId;

/// A change to the kernel.
///
/// Sorting operations by [`Op::phase`] gives the order in which they are to be carried out: traffic
/// never meets half a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Make the dummy interface.
    CreateLink,
    /// Make a set.
    CreateSet(SetId, SetSize),
    /// Make a set larger, with everything in it. One that is large enough stays as it is.
    GrowSet(SetId, SetSize),
    /// Write a family's constant rules, all of them.
    WriteRuleSet(Family),
    /// Change a local route.
    Route(RouteOp),
    /// Put an entry into a set.
    AddEntry(SetId, Entry),
    /// Make a virtual server.
    CreateVirtualServer(Frontend, VirtualServer),
    /// Change how a virtual server balances.
    ChangeVirtualServer(Frontend, VirtualServer),
    /// Give a virtual server another real server.
    AddRealServer(Frontend, RealServer),
    /// Change a real server's weight, or a forwarding method that is not ours.
    ChangeRealServer(Frontend, RealServer),
    /// Put an address on the dummy interface.
    BindAddress(IpAddr),
    /// Take an address off the dummy interface.
    UnbindAddress(IpAddr),
    /// Give a real server no new connections, and note until when those that it has may go on.
    DrainRealServer(Frontend, SocketAddr, Deadline),
    /// Remove a virtual server as soon as its real servers are gone. A Service still owns it, and
    /// it takes no new connections.
    RemoveVirtualServerWhenDrained(Frontend),
    /// Take a real server from its virtual server.
    RemoveRealServer(Frontend, SocketAddr),
    /// Remove a virtual server, and its real servers with it.
    RemoveVirtualServer(Frontend),
    /// Take an entry out of a set.
    RemoveEntry(SetId, Entry),
    /// Change a chain of iptables mode.
    Chain(ChainOp),
}

/// Subject of an operation: operations on the same thing supersede one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// The dummy interface.
    Link,
    Set(SetId),
    /// A family's constant rules.
    RuleSet(Family),
    /// An entry of a set.
    Entry(SetId, Entry),
    /// A virtual server with its real servers.
    VirtualServer(Frontend),
    /// An address on the dummy interface.
    Address(IpAddr),
    /// The local route of a network.
    Route(IpNet),
    /// A chain of iptables mode, or a rule of one.
    Chain(ChainSubject),
}

/// Place of an operation in the order: the smaller first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Phase(u8);

impl Op {
    /// Make the addresses of a network local by a route.
    #[must_use]
    pub const fn add_route(network: IpNet) -> Self {
        Self::Route(RouteOp::Add(LocalRoute::to(network)))
    }

    /// Take away the local route of a network.
    #[must_use]
    pub const fn remove_route(network: IpNet) -> Self {
        Self::Route(RouteOp::Remove(network))
    }

    /// Returns the subject of the operation.
    #[must_use]
    pub fn subject(&self) -> Subject {
        match self {
            Self::CreateLink => Subject::Link,
            Self::CreateSet(set, _) | Self::GrowSet(set, _) => Subject::Set(*set),
            Self::WriteRuleSet(family) => Subject::RuleSet(*family),
            Self::AddEntry(set, entry) | Self::RemoveEntry(set, entry) => {
                Subject::Entry(*set, *entry)
            }
            Self::CreateVirtualServer(frontend, _)
            | Self::ChangeVirtualServer(frontend, _)
            | Self::RemoveVirtualServer(frontend)
            | Self::RemoveVirtualServerWhenDrained(frontend)
            | Self::AddRealServer(frontend, _)
            | Self::ChangeRealServer(frontend, _)
            | Self::DrainRealServer(frontend, ..)
            | Self::RemoveRealServer(frontend, _) => Subject::VirtualServer(*frontend),
            Self::BindAddress(address) | Self::UnbindAddress(address) => Subject::Address(*address),
            Self::Route(op) => Subject::Route(op.network()),
            Self::Chain(op) => Subject::Chain(op.subject()),
        }
    }

    /// Returns the kind of its subject.
    #[must_use]
    pub fn kind(&self) -> PartKind {
        self.subject().kind()
    }

    /// Returns the set that it is on, if it is on one.
    #[must_use]
    pub const fn set(&self) -> Option<SetId> {
        match self {
            Self::CreateSet(set, _)
            | Self::GrowSet(set, _)
            | Self::AddEntry(set, _)
            | Self::RemoveEntry(set, _) => Some(*set),
            _ => None,
        }
    }

    /// True if it makes a prerequisite of all else: the interface, a set, the rules, the routes.
    #[must_use]
    pub const fn is_prerequisite(&self) -> bool {
        matches!(
            self,
            Self::CreateLink
                | Self::CreateSet(..)
                | Self::WriteRuleSet(_)
                | Self::Route(RouteOp::Add(_))
        )
    }

    /// True if it starts or stops leading clients from a frontend to its internal frontend.
    #[must_use]
    pub const fn leads_to_internal_frontends(&self) -> bool {
        match self {
            Self::AddEntry(set, _) | Self::RemoveEntry(set, _) => {
                set.kind.leads_to_internal_frontends()
            }
            _ => false,
        }
    }

    /// Returns its place in the order. What carries traffic is complete before an address attracts
    /// it, and loses the address before it is taken apart. A route attracts traffic for Services
    /// that are still to come, which the rules refuse; it is there before the addresses go that it
    /// stands for, and goes after they have come.
    #[must_use]
    pub fn phase(&self) -> Phase {
        Phase(match self {
            Self::CreateLink => 0,
            Self::CreateSet(..) => 1,
            Self::WriteRuleSet(_) => 2,
            Self::GrowSet(..) | Self::Route(RouteOp::Add(_)) => 3,
            // It leads elsewhere: only when what it leads to is complete.
            Self::AddEntry(set, _) if set.kind.leads_to_internal_frontends() => 8,
            Self::RemoveEntry(set, _) if set.kind.leads_to_internal_frontends() => 9,
            Self::AddEntry(..) => 4,
            Self::CreateVirtualServer(..) | Self::ChangeVirtualServer(..) => 5,
            // Other nodes' endpoints are about to be real servers, and answer the client by themselves
            // unless its connection is masqueraded.
            Self::RemoveEntry(set, _) if set.kind.spares_masquerading() => 5,
            Self::AddRealServer(..) | Self::ChangeRealServer(..) => 6,
            Self::BindAddress(_) => 7,
            Self::UnbindAddress(_) | Self::Route(RouteOp::Remove(_)) => 10,
            Self::DrainRealServer(..) | Self::RemoveRealServer(..) => 11,
            Self::RemoveVirtualServerWhenDrained(_) | Self::RemoveVirtualServer(_) => 12,
            Self::RemoveEntry(..) => 13,
            Self::Chain(op) => 14 + op.phase(),
        })
    }
}

impl Subject {
    #[must_use]
    pub const fn kind(&self) -> PartKind {
        match self {
            Self::Link => PartKind::Link,
            Self::Address(_) => PartKind::Addresses,
            Self::Route(_) => PartKind::Routes,
            Self::Set(_) | Self::Entry(..) => PartKind::Sets,
            Self::VirtualServer(_) => PartKind::VirtualServers,
            Self::RuleSet(_) => PartKind::Rules,
            Self::Chain(_) => PartKind::Chains,
        }
    }

    /// Returns its family; none: both depend on it.
    #[must_use]
    pub fn family(&self) -> Option<Family> {
        match self {
            Self::Link => None,
            Self::Set(set) | Self::Entry(set, _) => Some(set.family),
            Self::RuleSet(family) => Some(*family),
            Self::VirtualServer(frontend) => Some(frontend.family()),
            Self::Address(address) => Some(Family::of(*address)),
            Self::Route(network) => Some(Family::of_net(network)),
            Self::Chain(subject) => Some(subject.chain().family),
        }
    }
}

impl Phase {
    /// The last one before anything is taken away that clients may be led to.
    pub const LED_OFF: Self = Self(9);
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateLink => write!(f, "create interface {}", crate::kernel_objects::LINK),
            Self::CreateSet(set, size) => {
                write!(f, "create set {set} type {} for {size}", set.set_type().name())
            }
            Self::GrowSet(set, size) => write!(f, "grow set {set} to {size}"),
            Self::WriteRuleSet(family) => write!(f, "write {family} rules"),
            Self::AddEntry(set, entry) => write!(f, "add {entry} to set {set}"),
            Self::RemoveEntry(set, entry) => write!(f, "remove {entry} from set {set}"),
            Self::CreateVirtualServer(frontend, server) => {
                write!(f, "create virtual server {frontend} {server}")
            }
            Self::ChangeVirtualServer(frontend, server) => {
                write!(f, "change virtual server {frontend} to {server}")
            }
            Self::RemoveVirtualServerWhenDrained(frontend) => {
                write!(f, "remove virtual server {frontend} after its last real server")
            }
            Self::RemoveVirtualServer(frontend) => write!(f, "remove virtual server {frontend}"),
            Self::AddRealServer(frontend, server) => {
                write!(f, "add real server {server} to {frontend}")
            }
            Self::ChangeRealServer(frontend, server) => {
                write!(f, "change real server of {frontend} to {server}")
            }
            Self::DrainRealServer(frontend, server, deadline) => {
                write!(f, "drain real server {server} of {frontend} until second ")?;
                write!(f, "{} of the kernel's clock", deadline.second())
            }
            Self::RemoveRealServer(frontend, server) => {
                write!(f, "remove real server {server} from {frontend}")
            }
            Self::BindAddress(address) => {
                write!(f, "add address {address} to {}", crate::kernel_objects::LINK)
            }
            Self::UnbindAddress(address) => {
                write!(f, "remove address {address} from {}", crate::kernel_objects::LINK)
            }
            Self::Route(op) => op.fmt(f),
            Self::Chain(op) => op.fmt(f),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link => write!(f, "interface {}", crate::kernel_objects::LINK),
            Self::Set(set) => write!(f, "set {set}"),
            Self::RuleSet(family) => write!(f, "{family} rules"),
            Self::Entry(set, entry) => write!(f, "entry {entry} of set {set}"),
            Self::VirtualServer(frontend) => write!(f, "virtual server {frontend}"),
            Self::Address(address) => write!(f, "address {address}"),
            Self::Route(network) => write!(f, "local route {network}"),
            Self::Chain(subject) => subject.fmt(f),
        }
    }
}
