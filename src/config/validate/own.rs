//! What must be true of our own document, some of it together with kube-proxy's.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use plan::model::Family;

use super::{GoDuration, KubeProxyConfiguration, NOT_NEGATIVE, Violation, address};
use crate::config::own::{Estimators, KubeIpvsConfiguration};
use crate::config::resolved::{cluster_networks, networks};
use crate::kernel::estimators::NICE;
use crate::kernel::processors::Processors;

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
    let mut found = Found(Vec::new());
    found.one_of("followNodes", &own.follow_nodes, &["auto", "always", "never"]);
    found.one_of("iptablesVariant", &own.iptables_variant, &["auto", "nft", "legacy"]);
    let deadline = own.drain_deadline.unwrap_or_default();
    if deadline < GoDuration::ZERO {
        found.invalid("drainDeadline", deadline, NOT_NEGATIVE);
    }
    found.estimators(&own.estimators);
    found.arp(own, document);
    let networks = &own.short_circuit;
    found.short_circuit("shortCircuit.ipv4", &networks.ipv4, Family::V4, document);
    found.short_circuit("shortCircuit.ipv6", &networks.ipv6, Family::V6, document);
    found.0
}

struct Found(Vec<Violation>);

// === impl Found ===

impl Found {
    fn invalid(&mut self, field: &'static str, value: impl fmt::Display, problem: &str) {
        let path = format!("KubeIpvsConfiguration.{field}");
        let value = value.to_string();
        let problem = format!("Invalid value: {value:?}: {problem}");
        self.0.push(Violation { path, field, problem });
    }

    fn one_of(&mut self, field: &'static str, value: &str, values: &[&str]) {
        if !values.contains(&value) {
            self.invalid(field, value, &format!("must be one of {}", values.join(", ")));
        }
    }

    fn estimators(&mut self, estimators: &Estimators) {
        self.one_of("estimators.run", &estimators.run, &["auto", "on", "off"]);
        if let Err(problem) = estimators.cpus.parse::<Processors>()
            && !estimators.cpus.is_empty()
        {
            self.invalid("estimators.cpus", &estimators.cpus, problem);
        }
        if let Some(nice) = estimators.nice.filter(|nice| !NICE.contains(nice)) {
            self.invalid("estimators.nice", nice, "must be within the range [-20, 19]");
        }
    }

    fn arp(&mut self, own: &KubeIpvsConfiguration, document: &KubeProxyConfiguration) {
        let (field, value) = ("serviceAddressesArp", own.service_addresses_arp.as_str());
        self.one_of(field, value, &["compatible", "quiet"]);
        if value == "quiet" && document.ipvs.strict_arp {
            let problem = "cannot be together with ipvs.strictARP: true, which sets arp_ignore to \
                           1; quiet does what it does, and more: leave strictARP out";
            self.invalid(field, value, problem);
        }
    }

    fn short_circuit(
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
            if network.contains(&other.network()) || other.contains(&network.network()) {
                let problem = format!(
                    "must be a network that nobody uses, and {other} is {what}; choose another \
                     one, or \"\" to do without"
                );
                self.invalid(field, text, &problem);
            }
        }
    }
}

/// The networks that are known to be in use, with what for. One of length 0 names no network.
fn used(document: &KubeProxyConfiguration) -> impl Iterator<Item = (IpNet, &'static str)> {
    let special = SPECIAL
        .into_iter()
        .filter_map(|(address, length, what)| Some((IpNet::new(address, length).ok()?, what)));
    let pods = cluster_networks(document).into_iter().map(|net| (net, "of clusterCIDR"));
    let nodes = networks(&document.node_port_addresses);
    let nodes = nodes.into_iter().map(|net| (net, "of nodePortAddresses"));
    special.chain(pods).chain(nodes).filter(|(net, _)| net.prefix_len() > 0)
}
