//! Chains of the modes iptables and userspace, by kube-proxy's names.
//!
//! A chain of a service port or of an endpoint is named by a hash of what it is for
//! (`servicePortChainName` and the like in pkg/proxy/iptables/proxier.go): so every process that
//! balances the same Service names the same chain, and nothing about names has to be remembered.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;

use data_encoding::BASE32;
use sha2::{Digest as _, Sha256};

use crate::mode::Mode;
use crate::model::{Family, Protocol, ServiceName};
use crate::rule_set::Table;

/// A chain of ours in one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainId {
    /// Its family: both families have chains of the same names.
    pub family: Family,
    pub table: Table,
    pub name: ChainName,
}

/// Name of a chain, of at most 28 bytes (`XT_EXTENSION_MAXNAMELEN` in
/// include/uapi/linux/netfilter/x_tables.h counts the ending zero).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChainName {
    /// A chain with rules of many Services.
    Shared(SharedChain),
    /// A chain of one service port or endpoint.
    OfPort(PortChain, ChainHash),
}

/// Chains with rules of many Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SharedChain {
    /// `KUBE-SERVICES`: in nat, the frontends by address; in filter, cluster addresses that refuse.
    Services,
    /// `KUBE-NODEPORTS`: in nat, the node ports; in filter, the health check node ports.
    NodePorts,
    /// `KUBE-EXTERNAL-SERVICES` in filter: frontends for outside clients that refuse.
    ExternalServices,
    /// `KUBE-PROXY-FIREWALL` in filter: load balancers' frontends with source ranges.
    ProxyFirewall,
    /// A chain of mode userspace.
    Portals(PortalChain),
}

/// The chains that only mode userspace has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PortalChain {
    /// `KUBE-PORTALS-CONTAINER`: addresses, for packets that arrive.
    AddressesOfArriving,
    /// `KUBE-PORTALS-HOST`: addresses, for packets of this node.
    AddressesOfNode,
    /// `KUBE-NODEPORT-CONTAINER`: node ports, for packets that arrive.
    NodePortsOfArriving,
    /// `KUBE-NODEPORT-HOST`: node ports, for packets of this node.
    NodePortsOfNode,
    /// `KUBE-NODEPORT-NON-LOCAL`: who may reach the proxy ports.
    ProxyPorts,
}

/// Kinds of chains of one service port or endpoint, all in nat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PortChain {
    /// `KUBE-SVC-`: the endpoints for clients that may be sent anywhere.
    Cluster,
    /// `KUBE-SVL-`: the endpoints for clients that must stay on this node.
    Local,
    /// `KUBE-EXT-`: traffic to a frontend for outside clients.
    External,
    /// `KUBE-XLB-`, of kube-proxy before Kubernetes 1.24: what `KUBE-EXT-` is now. Never written.
    FormerExternal,
    /// `KUBE-FW-`: the source ranges of a load balancer's frontends.
    Firewall,
    /// `KUBE-SEP-`: an endpoint.
    Endpoint,
}

/// Hash in a chain's name: 16 characters of base32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainHash([u8; 16]);

/// A service port as chains, comments and logs name it: `namespace/name:port`, and
/// `namespace/name` if the port has no name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePortName(String);

impl ChainId {
    /// A shared chain of a table.
    #[must_use]
    pub const fn shared(family: Family, table: Table, chain: SharedChain) -> Self {
        Self { family, table, name: ChainName::Shared(chain) }
    }

    /// A chain of one service port or endpoint.
    #[must_use]
    pub const fn of_port(family: Family, kind: PortChain, hash: ChainHash) -> Self {
        Self { family, table: Table::Nat, name: ChainName::OfPort(kind, hash) }
    }

    /// The shared chains of a family in a mode: those of nat first.
    pub fn all_shared(mode: Mode, family: Family) -> impl Iterator<Item = Self> {
        let all = SharedChain::ALL.into_iter();
        let all = all.map(move |(table, chain)| Self::shared(family, table, chain));
        all.filter(move |chain| chain.is_of(mode))
    }

    /// True if its rules are about proxy ports.
    #[must_use]
    pub const fn has_portals(&self) -> bool {
        matches!(self.name, ChainName::Shared(SharedChain::Portals(_)))
    }

    /// True if a mode has it.
    #[must_use]
    pub fn is_of(&self, mode: Mode) -> bool {
        let is_of_both = self.table == Table::Filter && !self.has_portals();
        mode.leads_by_rules() && (is_of_both || self.has_portals() == mode.relays())
    }
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.name, self.family, self.table)
    }
}

impl ChainName {
    /// Reads a chain's name in a table; none if no chain of ours in this table is named so.
    #[must_use]
    pub fn parse(table: Table, name: &str) -> Option<Self> {
        let is_it = |(of, chain): &(Table, SharedChain)| (*of, chain.name()) == (table, name);
        if let Some((_, chain)) = SharedChain::ALL.into_iter().find(is_it) {
            return Some(Self::Shared(chain));
        }
        if table != Table::Nat {
            return None;
        }
        PortChain::ALL.into_iter().find_map(|kind| {
            let hash = name.strip_prefix(kind.prefix())?;
            Some(Self::OfPort(kind, ChainHash::parse(hash)?))
        })
    }

    /// True for a chain with rules of many Services.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// The hash in the name of a chain of one service port or endpoint.
    #[must_use]
    pub const fn hash(self) -> Option<ChainHash> {
        match self {
            Self::Shared(_) => None,
            Self::OfPort(_, hash) => Some(hash),
        }
    }

    /// Number of chains of ours, at most, that follow a shared one in nat.
    pub(super) const SHARED_DEPTH: u8 = 4;

    /// Number of chains of ours, at most, that a packet may pass after this one.
    pub(super) const fn depth(self) -> u8 {
        match self {
            Self::OfPort(PortChain::Endpoint, _) => 0,
            Self::OfPort(PortChain::Cluster | PortChain::Local, _) => 1,
            Self::OfPort(PortChain::External | PortChain::FormerExternal, _) => 2,
            Self::OfPort(PortChain::Firewall, _) => 3,
            Self::Shared(_) => Self::SHARED_DEPTH,
        }
    }

    /// The whole name of a shared chain; the beginning of another's.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Shared(chain) => chain.name(),
            Self::OfPort(kind, _) => kind.prefix(),
        }
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.prefix())?;
        match self {
            Self::Shared(_) => Ok(()),
            Self::OfPort(_, hash) => write!(f, "{hash}"),
        }
    }
}

impl SharedChain {
    /// All of every mode, each with its table.
    const ALL: [(Table, Self); 11] = [
        (Table::Nat, Self::Services),
        (Table::Nat, Self::NodePorts),
        (Table::Nat, Self::Portals(PortalChain::AddressesOfArriving)),
        (Table::Nat, Self::Portals(PortalChain::AddressesOfNode)),
        (Table::Nat, Self::Portals(PortalChain::NodePortsOfArriving)),
        (Table::Nat, Self::Portals(PortalChain::NodePortsOfNode)),
        (Table::Filter, Self::Services),
        (Table::Filter, Self::ExternalServices),
        (Table::Filter, Self::NodePorts),
        (Table::Filter, Self::ProxyFirewall),
        (Table::Filter, Self::Portals(PortalChain::ProxyPorts)),
    ];

    /// Returns its name in the kernel.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Services => "KUBE-SERVICES",
            Self::NodePorts => "KUBE-NODEPORTS",
            Self::ExternalServices => "KUBE-EXTERNAL-SERVICES",
            Self::ProxyFirewall => "KUBE-PROXY-FIREWALL",
            Self::Portals(chain) => chain.name(),
        }
    }
}

impl PortalChain {
    /// All of them, those of nat first.
    pub const ALL: [Self; 5] = [
        Self::AddressesOfArriving,
        Self::AddressesOfNode,
        Self::NodePortsOfArriving,
        Self::NodePortsOfNode,
        Self::ProxyPorts,
    ];

    /// Returns its name, which no other mode of kube-proxy has.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AddressesOfArriving => "KUBE-PORTALS-CONTAINER",
            Self::AddressesOfNode => "KUBE-PORTALS-HOST",
            Self::NodePortsOfArriving => "KUBE-NODEPORT-CONTAINER",
            Self::NodePortsOfNode => "KUBE-NODEPORT-HOST",
            Self::ProxyPorts => "KUBE-NODEPORT-NON-LOCAL",
        }
    }

    #[must_use]
    pub const fn table(self) -> Table {
        match self {
            Self::ProxyPorts => Table::Filter,
            _ => Table::Nat,
        }
    }
}

impl fmt::Display for PortalChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PortChain {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Cluster,
        Self::Local,
        Self::External,
        Self::FormerExternal,
        Self::Firewall,
        Self::Endpoint,
    ];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Cluster => "KUBE-SVC-",
            Self::Local => "KUBE-SVL-",
            Self::External => "KUBE-EXT-",
            Self::FormerExternal => "KUBE-XLB-",
            Self::Firewall => "KUBE-FW-",
            Self::Endpoint => "KUBE-SEP-",
        }
    }
}

impl ChainHash {
    /// The hash of a service port, which its chains but the endpoints' share.
    #[must_use]
    pub fn of_port(port: &ServicePortName, protocol: Protocol) -> Self {
        Self::of(&[&port.0, protocol.name()])
    }

    /// The hash of an endpoint of a service port.
    #[must_use]
    pub fn of_endpoint(port: &ServicePortName, protocol: Protocol, endpoint: SocketAddr) -> Self {
        Self::of(&[&port.0, protocol.name(), &endpoint.to_string()])
    }

    fn of(parts: &[&str]) -> Self {
        let mut digest = Sha256::new();
        parts.iter().for_each(|part| digest.update(part));
        let text = BASE32.encode(&digest.finalize());
        let mut hash = [0; 16];
        hash.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
        Self(hash)
    }

    fn parse(text: &str) -> Option<Self> {
        let hash: [u8; 16] = text.as_bytes().try_into().ok()?;
        hash.iter().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7')).then_some(Self(hash))
    }

    fn text(&self) -> &str {
        // Base32 is ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Debug for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl ServicePortName {
    /// The name of a Service's port. `port` is empty if it has none.
    #[must_use]
    pub fn new(service: &ServiceName, port: &str) -> Self {
        Self(if port.is_empty() { service.to_string() } else { format!("{service}:{port}") })
    }
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
