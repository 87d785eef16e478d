//! The last rules of nat `KUBE-SERVICES`: they lead to the node ports what no frontend of its own
//! has taken. They depend on the node alone.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::chains::{ChainId, SharedChain};
use crate::facts::NodeFacts;
use crate::model::Family;
use crate::rule_set::Table;
use crate::settings::Settings;

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
    if let Some(addresses) = addresses(family, facts, settings) {
        let rule = |address| format!("-d {} {comment} {target}", IpNet::from(address)).into();
        return addresses.into_iter().map(rule).collect();
    }
    let but_localhost = match family {
        Family::V4 if settings.iptables_localhost_node_ports => "",
        Family::V4 => "! -d 127.0.0.0/8 ",
        Family::V6 => "! -d ::1/128 ",
    };
    vec![format!("{but_localhost}{comment} -m addrtype --dst-type LOCAL {target}").into()]
}

/// True for a rule that leads to the node ports.
pub(super) fn is_tail(chain: ChainId, rule: &str) -> bool {
    chain == self::chain(chain.family) && rule.ends_with("-j KUBE-NODEPORTS")
}

/// The addresses of a family that serve node ports, in order; none: all do, as the kernel has them for each
/// packet.
pub(crate) fn addresses(
    family: Family,
    facts: &NodeFacts,
    settings: &Settings,
) -> Option<Vec<IpAddr>> {
    // IPv6 has no way from ::1 to anywhere else.
    let is_localhost_served = settings.iptables_localhost_node_ports && family == Family::V4;
    facts.addresses_of_node_port_rules(settings, family, is_localhost_served)
}
