//! The last rules of nat `KUBE-SERVICES`: they lead to the node ports what no frontend of its own
//! has taken. They depend on the node alone.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::chains::{ChainId, SharedChain};
use crate::facts::NodeFacts;
use crate::model::Family;
use crate::rule_set::Table;
use crate::settings::{NodePortAddresses, Settings};

const COMMENT: &str =
    "kubernetes service nodeports; NOTE: this must be the last rule in this chain";

/// The chain of a family that has last rules.
#[must_use]
pub const fn chain(family: Family) -> ChainId {
    ChainId::shared(family, Table::Nat, SharedChain::Services)
}

/// The last rules of a family: for every address of the node if node ports are served at all of
/// them, as the kernel has them for each packet; otherwise one for each address that serves them.
#[must_use]
pub fn rules(family: Family, facts: &NodeFacts, settings: &Settings) -> Vec<Box<str>> {
    let comment = format!("-m comment --comment \"{COMMENT}\"");
    let target = "-j KUBE-NODEPORTS";
    let localhost = settings.iptables_localhost_node_ports;
    if settings.node_port_addresses.are_all(family) {
        let but_localhost = match family {
            Family::V4 if localhost => "",
            Family::V4 => "! -d 127.0.0.0/8 ",
            Family::V6 => "! -d ::1/128 ",
        };
        return vec![
            format!("{but_localhost}{comment} -m addrtype --dst-type LOCAL {target}").into(),
        ];
    }
    let rule = |address| format!("-d {} {comment} {target}", IpNet::from(address)).into();
    addresses(family, facts, settings).into_iter().map(rule).collect()
}

/// True if clients of this node reach node ports at an address of the node.
pub(crate) fn is_served(address: IpAddr, facts: &NodeFacts, settings: &Settings) -> bool {
    let family = Family::of(address);
    if !settings.node_port_addresses.are_all(family) {
        return addresses(family, facts, settings).contains(&address);
    }
    facts.local_addresses().contains(&address)
        && (!address.is_loopback() || (address.is_ipv4() && settings.iptables_localhost_node_ports))
}

/// True for a rule that leads to the node ports.
pub(super) fn is_tail(chain: ChainId, rule: &str) -> bool {
    chain == self::chain(chain.family) && rule.ends_with("-j KUBE-NODEPORTS")
}

/// The addresses that serve node ports, in order, where not all do.
fn addresses(family: Family, facts: &NodeFacts, settings: &Settings) -> Vec<IpAddr> {
    let networks = match &settings.node_port_addresses {
        NodePortAddresses::All => &[][..],
        NodePortAddresses::Networks(networks) | NodePortAddresses::Primary(networks) => networks,
    };
    // IPv6 has no way from ::1 to anywhere else.
    let is_localhost = |address: &&IpAddr| {
        settings.iptables_localhost_node_ports
            && family == Family::V4
            && address.is_ipv4()
            && address.is_loopback()
            && networks.iter().any(|net| net.contains(*address))
    };
    let localhost = facts.local_addresses().iter().filter(is_localhost).copied();
    let mut addresses: Vec<IpAddr> = facts.node_port_addresses(family).chain(localhost).collect();
    addresses.sort_unstable();
    addresses
}
