//! The iptables rules of kube-proxy's mode `userspace`, as text.
//!
//! A process, the relay, listens on a *proxy port* for each Service port; rules of `nat` redirect
//! every frontend of the Service port to it. A frontend with its rules is a *portal*. Chains, jumps
//! and comments are kube-proxy's (`pkg/proxy/userspace/proxier.go`, until 1.25), with four
//! differences:
//!
//! - **One fixed address.** The relay listens on one address of the node in each family, and `DNAT`
//!   leads there, in `PREROUTING` as in `OUTPUT`. kube-proxy does so for a `bindAddress` of its own;
//!   otherwise it writes `REDIRECT` in `PREROUTING`, which takes the address of the interface by
//!   which a packet arrived. That drops every packet where the interface has none, as with Calico's
//!   (`nf_nat_redirect_ipv4` in net/netfilter/nf_nat_redirect.c), and a UDP answer may leave from
//!   another address.
//! - **External addresses are as any other.** kube-proxy leaves those out that arrive by a bridge's
//!   port (`physdev`) and those that the node itself connects to.
//! - **Traffic policies and source ranges.** Two proxy ports tell apart clients that get this
//!   node's endpoints only. A client outside of the source ranges is not redirected.
//! - **No door of its own.** Connections that were made to a proxy port itself are rejected: every
//!   host that reaches the node would get at Services that have no external frontend.
//!
//! Refusing where there are no endpoints, and dropping what a source range left alone, are rules of
//! `filter` that do not depend on how connections are balanced. They are not here.

mod portal;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::Protocol;
use crate::rule_set::Table;

pub use portal::{Portal, PortalFrontend, ProxyPortDoor};

/// The transport protocols that a relay in user space serves. SCTP is not one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RelayProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The chains of the mode, each whole ours.
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

/// A rule of one of the chains.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortalRule {
    /// Its chain.
    pub chain: PortalChain,
    /// Its text as `iptables-save` prints it, without `-A` and the chain's name.
    pub text: String,
}

/// A rule of a built-in chain that leads into one of the chains.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortalJump {
    /// The built-in chain, of the same table.
    pub from: &'static str,
    /// The chain that it leads to.
    pub to: PortalChain,
    /// Its place in the built-in chain.
    pub place: JumpPlace,
    /// Its text as `iptables-save` prints it, without `-A` and the built-in chain's name.
    pub text: String,
}

/// Place of a jump in its built-in chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JumpPlace {
    /// Before all other rules: before the node ports, and before `KUBE-SERVICES` of other modes.
    First,
    /// After all other rules: a node port is at every address, and must not take what has a rule of
    /// its own.
    Last,
}

// === impl RelayProtocol ===

impl RelayProtocol {
    /// The same protocol; none: no relay serves it.
    #[must_use]
    pub const fn of(protocol: Protocol) -> Option<Self> {
        match protocol {
            Protocol::Tcp => Some(Self::Tcp),
            Protocol::Udp => Some(Self::Udp),
            Protocol::Sctp => None,
        }
    }

    /// Returns the name that iptables has for it.
    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for RelayProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

// === impl PortalChain ===

impl PortalChain {
    /// All of them.
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

    /// Returns its table.
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

/// Returns the jumps of a family. `node_ports`: the addresses at which there are node ports; none:
/// all of the node's.
#[must_use]
pub fn jumps(node_ports: Option<&[IpAddr]>) -> Vec<PortalJump> {
    const ADDRESSES: &str =
        "-m comment --comment \"handle ClusterIPs; NOTE: this must be before the NodePort rules\"";
    const NODE_PORTS: &str = "-m comment --comment \"handle service NodePorts; NOTE: this must be \
                              the last rule in the chain\"";
    const PROXY_PORTS: &str =
        "-m comment --comment \"Ensure that non-local NodePort traffic can flow\"";
    let jump = |from, to: PortalChain, place, rule: &str| PortalJump {
        from,
        to,
        place,
        text: format!("{rule} -j {to}"),
    };
    let mut jumps = vec![
        jump("PREROUTING", PortalChain::AddressesOfArriving, JumpPlace::First, ADDRESSES),
        jump("OUTPUT", PortalChain::AddressesOfNode, JumpPlace::First, ADDRESSES),
    ];
    let node_ports: Vec<String> = match node_ports {
        None => vec![format!("-m addrtype --dst-type LOCAL {NODE_PORTS}")],
        Some(addresses) => addresses
            .iter()
            .map(|address| format!("-d {} {NODE_PORTS}", with_prefix(&IpNet::from(*address))))
            .collect(),
    };
    for rule in &node_ports {
        jumps.push(jump("PREROUTING", PortalChain::NodePortsOfArriving, JumpPlace::Last, rule));
        jumps.push(jump("OUTPUT", PortalChain::NodePortsOfNode, JumpPlace::Last, rule));
    }
    jumps.push(jump("INPUT", PortalChain::ProxyPorts, JumpPlace::First, PROXY_PORTS));
    jumps
}

/// Returns the text of a network: always with the prefix length.
fn with_prefix(net: &IpNet) -> String {
    format!("{}/{}", net.network(), net.prefix_len())
}
