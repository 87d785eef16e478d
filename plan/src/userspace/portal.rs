//! The rules of one portal.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use ipnet::IpNet;

use super::{PortalChain, PortalRule, RelayProtocol, with_prefix};
use crate::model::Family;
use crate::rule_set::LocalTraffic;

/// A frontend of a Service port, and the sockets of the relay that serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portal<'a> {
    /// Name of the Service port in comments: `namespace/service:port`, without the colon if the
    /// port has no name.
    pub name: &'a str,
    pub protocol: RelayProtocol,
    pub frontend: PortalFrontend,
    /// Socket that serves clients; none: those that `proxy_for_local` does not serve are not led
    /// anywhere. Its address is one of the node, and the frontend's family.
    pub proxy: Option<SocketAddr>,
    /// Socket that serves this node and its pods, if it is another one: with
    /// `externalTrafficPolicy: Local` they get all endpoints at external frontends.
    pub proxy_for_local: Option<SocketAddr>,
    /// Criterion for traffic from this node's pods.
    pub local: &'a LocalTraffic,
    /// Networks of clients that are served; those of the other family do not count. Empty: all.
    /// Node ports have none.
    pub source_ranges: &'a [IpNet],
}

/// Destination of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PortalFrontend {
    /// A cluster, external or load balancer address, and a Service's port.
    Address(SocketAddr),
    NodePort(NonZeroU16),
}

/// A proxy port, as a destination of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyPortDoor<'a> {
    /// As of the [`Portal`].
    pub name: &'a str,
    pub protocol: RelayProtocol,
    /// The relay's socket.
    pub proxy: SocketAddr,
    /// True if a node port leads to it: then the firewall of the host lets new connections pass.
    pub has_node_port: bool,
}

/// Matches of some clients, as they stand in a rule.
struct Clients {
    source: String,
    interface: String,
}

impl Portal<'_> {
    /// Returns its rules. Of those in one chain the earlier one comes first.
    #[must_use]
    pub fn rules(&self) -> Vec<PortalRule> {
        let (arriving, of_node) = match self.frontend {
            PortalFrontend::Address(_) => {
                (PortalChain::AddressesOfArriving, PortalChain::AddressesOfNode)
            }
            PortalFrontend::NodePort(_) => {
                (PortalChain::NodePortsOfArriving, PortalChain::NodePortsOfNode)
            }
        };
        let Some(of_node_to) = self.proxy_for_local.or(self.proxy) else { return Vec::new() };
        let sources = self.sources(of_node_to.ip());
        let everyone = || sources.iter().map(|source| Clients::from_inside(source.as_ref()));
        let pods =
            || sources.iter().filter_map(|source| Clients::pods(self.local, source.as_ref()));
        let mut rules = Vec::new();
        let mut push = |chain, clients: &Clients, proxy| {
            rules.push(PortalRule { chain, text: self.lead_to(clients, proxy) });
        };
        if let Some(proxy) = self.proxy_for_local {
            pods().for_each(|clients| push(arriving, &clients, proxy));
        }
        if let Some(proxy) = self.proxy {
            everyone().for_each(|clients| push(arriving, &clients, proxy));
        }
        everyone().for_each(|clients| push(of_node, &clients, of_node_to));
        rules
    }

    /// Returns the networks of its clients; none: it is not restricted to one. `own`: the node's
    /// address.
    fn sources(&self, own: IpAddr) -> Vec<Option<IpNet>> {
        if self.source_ranges.is_empty() {
            return vec![None];
        }
        let family = Family::of(own);
        let of_family = self.source_ranges.iter().filter(|net| Family::of_net(net) == family);
        let mut sources: Vec<IpNet> = of_family.map(IpNet::trunc).collect();
        // The node may have the address itself, and then connects to it from it.
        if let PortalFrontend::Address(frontend) = self.frontend
            && sources.iter().any(|net| net.contains(&own))
        {
            sources.push(IpNet::from(frontend.ip()));
        }
        sources.into_iter().map(Some).collect()
    }

    /// Writes the rule that leads clients to a socket of the relay.
    fn lead_to(&self, clients: &Clients, proxy: SocketAddr) -> String {
        let Self { name, protocol, frontend, .. } = self;
        let Clients { source, interface } = clients;
        let protocol = protocol.name();
        let (to, port) = match frontend {
            PortalFrontend::Address(address) => {
                (format!("-d {} ", host(address.ip())), address.port())
            }
            PortalFrontend::NodePort(port) => (String::new(), port.get()),
        };
        format!(
            "{source}{to}{interface}-p {protocol} -m comment --comment \"{name}\" -m {protocol} --dport {port} \
             -j DNAT --to-destination {proxy}"
        )
    }
}

impl Clients {
    /// Those inside a network; none: all.
    fn from_inside(net: Option<&IpNet>) -> Self {
        Self { source: net.map_or_else(String::new, from_inside), interface: String::new() }
    }

    /// This node's pods, as far as their addresses are inside a network; none: there are none such.
    fn pods(local: &LocalTraffic, net: Option<&IpNet>) -> Option<Self> {
        let interface = match local {
            LocalTraffic::Unknown => return None,
            LocalTraffic::Cidr(pods) | LocalTraffic::ClusterCidr { cluster: pods, .. } => {
                let both = match net {
                    Some(net) if pods.contains(net) => net,
                    Some(net) if !net.contains(pods) => return None,
                    _ => pods,
                };
                return Some(Self::from_inside(Some(both)));
            }
            LocalTraffic::Bridge(name) => format!("-i {name} "),
            LocalTraffic::Prefix(name) => format!("-i {name}+ "),
        };
        Some(Self { interface, ..Self::from_inside(net) })
    }
}

impl ProxyPortDoor<'_> {
    /// Returns its rules, the earlier one first.
    #[must_use]
    pub fn rules(&self) -> Vec<PortalRule> {
        let Self { name, protocol, proxy, has_node_port } = self;
        let (protocol, port) = (protocol.name(), proxy.port());
        let verdict = match proxy {
            SocketAddr::V4(_) => "icmp-port-unreachable",
            SocketAddr::V6(_) => "icmp6-port-unreachable",
        };
        let of_port = format!(
            "-p {protocol} -m comment --comment \"{name}\" -m {protocol} --dport {port} -m"
        );
        let to = host(proxy.ip());
        let mut rules = vec![format!(
            "-d {to} {of_port} conntrack ! --ctstate DNAT -j REJECT --reject-with {verdict}"
        )];
        if *has_node_port {
            // What was not led there is rejected, whichever of the two comes first.
            rules
                .push(format!("{of_port} conntrack --ctstate DNAT -m state --state NEW -j ACCEPT"));
        }
        let rule = |text| PortalRule { chain: PortalChain::ProxyPorts, text };
        rules.into_iter().map(rule).collect()
    }
}

/// Matches a source inside a network, which is every source if the network is everything.
fn from_inside(net: &IpNet) -> String {
    if net.prefix_len() == 0 { String::new() } else { format!("-s {} ", with_prefix(net)) }
}

/// Returns the text of one host's address.
fn host(address: IpAddr) -> String {
    with_prefix(&IpNet::from(address))
}
