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
//! Clients that have no endpoint are refused by rules of `filter`, as in iptables mode; so are those
//! outside of the source ranges, and those of SCTP, which is not relayed.
//!
//! - `compile`: an [`exposure`](crate::exposure) to portals and to what the relay is to listen on;
//!   `relay`: that, and what the relay says; `portal`: the rules of one portal.
//!
//! A portal needs a proxy port, which only the relay knows. So the relay is told of a Service port
//! first, and what it says of the port comes back as an event, after which the portal is planned.

pub(crate) mod compile;
mod portal;
mod relay;
#[cfg(test)]
mod tests;

use std::fmt;

use ipnet::IpNet;

pub use crate::chains::PortalChain;
use crate::model::Protocol;

pub use portal::{Portal, PortalFrontend, ProxyPortDoor};
pub use relay::{ProxyPortId, ProxyPortState, ProxyPorts, RelayPort};

/// The transport protocols that a relay in user space serves. SCTP is not one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RelayProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A rule of one of the chains.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortalRule {
    pub chain: PortalChain,
    /// Its text as `iptables-save` prints it, without `-A` and the chain's name.
    pub text: String,
}

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

/// Returns the text of a network: always with the prefix length.
fn with_prefix(net: &IpNet) -> String {
    format!("{}/{}", net.network(), net.prefix_len())
}
