//! The chains and rules of iptables mode that depend on no Service.
//!
//! `KUBE-FIREWALL` in filter is the kubelet's too, which has the same rule and the same two jumps. So
//! it is never emptied: its rule is added if the chain lacks it.
//!
//! kube-proxy's `KUBE-PROXY-CANARY` chains are neither made nor removed. They are empty, and no rule
//! leads to them. A kube-proxy that still runs writes everything anew as soon as its canary is gone;
//! `--cleanup` removes them.

#[cfg(test)]
mod tests;

use crate::chains::{ChainId, ChainName};
use crate::mode::Mode;
use crate::model::Family;
use crate::rule_set::{Chain, RuleSetSettings, Table};

/// Counter of the packets that `KUBE-FORWARD` drops because connection tracking calls them
/// invalid, by kube-proxy's name.
pub const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";

/// Counter of the packets that came to a node port on a loopback address, by kube-proxy's name.
pub const LOCALHOST_ACCEPTED: &str = "localhost_nps_accepted_pkts";

/// All counters that rules name.
pub const COUNTERS: [&str; 2] = [INVALID_DROPPED, LOCALHOST_ACCEPTED];

/// Returns the match that counts packets by name, as saved: with two blanks, and one behind it.
#[must_use]
pub fn counted_by(name: &str) -> String {
    format!("-m nfacct --nfacct-name  {name} ")
}

/// Returns the constant chains of a family.
pub(crate) fn chains(family: Family, settings: &RuleSetSettings) -> Vec<Chain> {
    let [mark, masquerade] = settings.masquerading();
    let masquerade = [settings.masquerading_bound(family), masquerade].concat();
    vec![
        Chain { table: Table::Nat, name: "KUBE-POSTROUTING", rules: masquerade },
        Chain { table: Table::Nat, name: "KUBE-MARK-MASQ", rules: mark },
        Chain { table: Table::Filter, name: "KUBE-FORWARD", rules: forward(settings) },
    ]
}

/// Returns the chain of a family that the kubelet has rules in, too: it has none of IPv6.
pub(crate) fn firewall(family: Family, settings: &RuleSetSettings) -> Option<Chain> {
    (family == Family::V4).then(|| Chain {
        table: Table::Filter,
        name: "KUBE-FIREWALL",
        rules: forbid_localnet(settings).into_iter().collect(),
    })
}

/// Returns the chains that a mode shares with all Services, without the rules of these.
pub(crate) fn chains_of_services(mode: Mode, family: Family) -> impl Iterator<Item = Chain> {
    ChainId::all_shared(mode, family).filter_map(|id| match id.name {
        ChainName::Shared(chain) => {
            Some(Chain { table: id.table, name: chain.name(), rules: Vec::new() })
        }
        ChainName::OfPort(..) => None,
    })
}

fn forward(settings: &RuleSetSettings) -> Vec<String> {
    let optional = settings.optional();
    let counted = if optional.nfacct { counted_by(INVALID_DROPPED) } else { String::new() };
    // A packet outside of the window would pass without its address being translated back, and its
    // receiver would reset the connection (kubernetes/kubernetes#74839).
    let invalid = format!("-m conntrack --ctstate INVALID {counted}-j DROP");
    let invalid = optional.drop_invalid.then_some(invalid);
    invalid.into_iter().chain(settings.forwarding()).collect()
}

/// Node ports on loopback addresses need `route_localnet`, with which other hosts of the network
/// could reach what listens on loopback addresses. This rule forbids it.
fn forbid_localnet(settings: &RuleSetSettings) -> Option<String> {
    settings.optional().localhost_node_ports.then(|| {
        "! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet \
         connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
            .to_owned()
    })
}
