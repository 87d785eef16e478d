//! Checks of our own document, some of them together with kube-proxy's.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use plan::model::Family;
use plan::settings::overlap;

use super::{KubeProxyConfiguration, Violation, address};
use crate::kube_ipvs::{AUTO, KubeIpvsConfiguration};
use crate::networks::{cluster_networks, networks};
use crate::settings::Section as _;
use crate::words::ArpReplies;

/// Addresses that mean something of their own, whatever a cluster does.
const SPECIAL: [(IpAddr, u8, &str); 6] = [
    (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8, "the loopback addresses"),
    (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16, "the link-local addresses"),
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4, "the multicast addresses"),
    (IpAddr::V6(Ipv6Addr::LOCALHOST), 128, "the loopback address"),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10, "the link-local addresses"),
    (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8, "the multicast addresses"),
];

/// All that is wrong with our own document that has its defaults. `document` is the one that holds
/// beside it.
#[must_use]
pub fn validate_own(
    own: &KubeIpvsConfiguration,
    document: &KubeProxyConfiguration,
) -> Vec<Violation> {
    let mut found = KubeIpvsViolations(Vec::new());
    for (field, (value, problem)) in own.check() {
        found.invalid(field, value, &problem);
    }
    found.arp(own, document);
    let networks = &own.internal_frontend;
    found.internal_frontend("internalFrontend.ipv4", &networks.ipv4, Family::V4, document);
    found.internal_frontend("internalFrontend.ipv6", &networks.ipv6, Family::V6, document);
    found.service_routes(own, document);
    found.0
}

struct KubeIpvsViolations(Vec<Violation>);

/// Networks that local routes may lead to, as long as nothing else is in them.
pub struct RoutableNetworks {
    /// Networks that must not overlap another one, with what they are.
    used: Vec<(IpNet, &'static str)>,
    /// Networks around Nodes. Those around a service network say nothing about where in them Nodes are.
    of_nodes: Vec<IpNet>,
}

const NOT_ROUTABLE: &str = "must be a network of 8 to 32 bits of IPv4 or 64 to 128 of IPv6, with \
                            nothing set behind them";

impl RoutableNetworks {
    /// None yet, with what these documents use otherwise.
    #[must_use]
    pub fn new(own: &KubeIpvsConfiguration, document: &KubeProxyConfiguration) -> Self {
        let of_internal_frontends = own.internal_frontend.networks();
        let of_internal_frontends =
            Family::BOTH.into_iter().filter_map(|family| of_internal_frontends.of(family));
        let of_internal_frontends = of_internal_frontends.map(|net| (net, "of internalFrontend"));
        let used = special().chain(pods(document)).chain(of_internal_frontends).collect();
        Self { used, of_nodes: networks(&document.node_port_addresses) }
    }

    /// Takes one more.
    ///
    /// # Errors
    /// When no route can lead there, in words.
    pub fn take(&mut self, network: IpNet) -> Result<(), String> {
        let lengths = route_lengths(Family::of_net(&network));
        if network != network.trunc() || !lengths.contains(&network.prefix_len()) {
            return Err(NOT_ROUTABLE.to_owned());
        }
        let overlapping = self.used.iter().find(|(other, _)| overlap(&network, other)).copied();
        let around = self.of_nodes.iter().find(|nodes| network.contains(*nodes));
        let used = overlapping.or(around.map(|nodes| (*nodes, "of nodePortAddresses")));
        self.used.push((network, "in the list already"));
        match used {
            Some((other, what)) => {
                Err(format!("must be a network that only Services use, and {other} is {what}"))
            }
            None => Ok(()),
        }
    }
}

impl KubeIpvsViolations {
    fn invalid(&mut self, field: &'static str, value: impl fmt::Display, problem: &str) {
        let path = format!("KubeIpvsConfiguration.{field}");
        let value = value.to_string();
        let problem = format!("Invalid value: {value:?}: {problem}");
        self.0.push(Violation { path, field, problem });
    }

    fn arp(&mut self, own: &KubeIpvsConfiguration, document: &KubeProxyConfiguration) {
        let (field, replies) = ("serviceAddressesArp", &own.service_addresses_arp);
        if replies.valid() == Some(&ArpReplies::Quiet) && document.ipvs.strict_arp {
            let problem = "cannot be together with ipvs.strictARP: true, which sets arp_ignore to \
                           1; quiet does what it does, and more: leave strictARP out";
            self.invalid(field, replies, problem);
        }
    }

    fn service_routes(&mut self, own: &KubeIpvsConfiguration, document: &KubeProxyConfiguration) {
        let mut routable = RoutableNetworks::new(own, document);
        for text in own.service_routes.iter().flatten().filter(|text| *text != AUTO) {
            let taken = match address::cidr(text) {
                Some(network) => routable.take(network),
                None => Err(NOT_ROUTABLE.to_owned()),
            };
            if let Err(problem) = taken {
                self.invalid("serviceRoutes", text, &problem);
            }
        }
    }

    fn internal_frontend(
        &mut self,
        field: &'static str,
        text: &Option<String>,
        family: Family,
        document: &KubeProxyConfiguration,
    ) {
        let text = text.as_deref().unwrap_or_default();
        if text.is_empty() {
            return;
        }
        let longest = match family {
            Family::V4 => 24,
            Family::V6 => 96,
        };
        let network = address::cidr(text).filter(|net| {
            Family::of_net(net) == family
                && *net == net.trunc()
                && (1..=longest).contains(&net.prefix_len())
        });
        let Some(network) = network else {
            let problem = format!(
                "must be an {family} network of 1 to {longest} bits, with nothing set behind them"
            );
            return self.invalid(field, text, &problem);
        };
        for (other, what) in used(document) {
            if overlap(&network, &other) {
                let problem = format!(
                    "must be an unused network, and {other} is {what}; choose another one, or \
                     \"\" to do without"
                );
                self.invalid(field, text, &problem);
            }
        }
    }
}

/// Returns the prefix lengths that a network of service addresses may have. A shorter prefix would
/// lead here what belongs to others; Kubernetes takes 64 bits of IPv6 at least.
const fn route_lengths(family: Family) -> RangeInclusive<u8> {
    match family {
        Family::V4 => 8..=32,
        Family::V6 => 64..=128,
    }
}

/// The networks that local routes are to lead to, as [`used`] has others.
pub fn routed(own: &KubeIpvsConfiguration) -> impl Iterator<Item = (IpNet, &'static str)> {
    let routes = networks(own.service_routes.as_deref().unwrap_or_default()).into_iter();
    routes.filter(|net| net.prefix_len() > 0).map(|net| (net, "of serviceRoutes"))
}

/// The networks that are known to be in use, with what for. One of length 0 names no network.
pub fn used(document: &KubeProxyConfiguration) -> impl Iterator<Item = (IpNet, &'static str)> {
    let nodes = networks(&document.node_port_addresses);
    let nodes = nodes.into_iter().map(|net| (net, "of nodePortAddresses"));
    special().chain(pods(document)).chain(nodes).filter(|(net, _)| net.prefix_len() > 0)
}

fn special() -> impl Iterator<Item = (IpNet, &'static str)> {
    SPECIAL
        .into_iter()
        .filter_map(|(address, length, what)| Some((IpNet::new(address, length).ok()?, what)))
}

/// A pods' network of length 0 names no network.
fn pods(document: &KubeProxyConfiguration) -> impl Iterator<Item = (IpNet, &'static str)> {
    let pods = cluster_networks(document).into_iter().map(|net| (net, "of clusterCIDR"));
    pods.filter(|(net, _)| net.prefix_len() > 0)
}
