//! The last rules of nat `KUBE-SERVICES`: they lead to the node ports what no frontend of its own
//! has taken. They depend on the node alone.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::chains::{ChainId, SharedChain};
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

/// The last rules of a family: one for each address that serves node ports; none: for every address of the
/// node, as the kernel has them for each packet.
#[must_use]
pub fn rules(family: Family, addresses: Option<&[IpAddr]>, settings: &Settings) -> Vec<Box<str>> {
    let comment = format!("-m comment --comment \"{COMMENT}\"");
    let target = "-j KUBE-NODEPORTS";
    if let Some(addresses) = addresses {
        let rule = |address: &IpAddr| format!("-d {} {comment} {target}", IpNet::from(*address));
        return addresses.iter().map(|address| rule(address).into()).collect();
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
