//! Mode userspace: portals, and a relay that they lead to.

use std::net::IpAddr;

use super::ipvs::SUPERSEDED_BY_RULES;
use super::{Backend, FIREWALL, FORWARDING, HEALTH, OUTSIDE, PORTALS};
use crate::iptables::constant::chains_of_services;
use crate::ipvs::diff;
use crate::mode::Mode;
use crate::model::Family;
use crate::rule_set::{Chain, Jump, JumpDestination, RuleSet, RuleSetSettings, Table};
use crate::userspace::compile::{compile, relay_ports};

pub(super) const BACKEND: Backend = Backend {
    jumps: &JUMPS,
    former_jumps: &[],
    rule_set: |family, rules, is_led, node_ports| {
        let rule_set = RuleSet::userspace(family, rules, node_ports);
        if is_led { rule_set.while_led() } else { rule_set }
    },
    tail: None,
    compile_chains: compile,
    relay_ports,
    // Rules go before the proxy port that they lead to is closed.
    plans_in_parts: false,
    drops_comments: false,
    // Those of OUTPUT do.
    leads_loopback: Some(|_, _| true),
    repair: diff::close,
};

const ADDRESSES: &str = "handle ClusterIPs; NOTE: this must be before the NodePort rules";
const NODE_PORTS: &str = "handle service NodePorts; NOTE: this must be the last rule in the chain";
const PROXY_PORTS: &str = "Ensure that non-local NodePort traffic can flow";

/// The portals, by kube-proxy's names and comments (`iptablesInit` in
/// pkg/proxy/userspace/proxier.go, until 1.25), and those that refuse, as in iptables mode. A node
/// port is at every address, and must not take what has a portal of its own: so it comes last.
const JUMPS: [Jump; 14] = [
    Jump::new(Table::Nat, "PREROUTING", "KUBE-PORTALS-CONTAINER", ADDRESSES),
    Jump::new(Table::Nat, "OUTPUT", "KUBE-PORTALS-HOST", ADDRESSES),
    Jump::new(Table::Nat, "PREROUTING", "KUBE-NODEPORT-CONTAINER", NODE_PORTS).to_node(),
    Jump::new(Table::Nat, "OUTPUT", "KUBE-NODEPORT-HOST", NODE_PORTS).to_node(),
    Jump::new(Table::Filter, "INPUT", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "INPUT", "KUBE-NODEPORTS", HEALTH),
    Jump::new(Table::Filter, "FORWARD", "KUBE-SERVICES", PORTALS).of_new(),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-SERVICES", PORTALS).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-FORWARD", FORWARDING),
    Jump::new(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "INPUT", "KUBE-NODEPORT-NON-LOCAL", PROXY_PORTS),
];

impl RuleSet {
    /// The constant rules of a family in mode userspace. `node_ports`: the addresses at which there
    /// are node ports; none: all of the node's.
    ///
    /// `KUBE-FORWARD` is for the connections that another mode's rules have led, and still lead until
    /// the relay's are written.
    #[must_use]
    pub fn userspace(
        family: Family,
        settings: &RuleSetSettings,
        node_ports: Option<&[IpAddr]>,
    ) -> Self {
        let rules = settings.forwarding().into();
        let chains = vec![Chain { table: Table::Filter, name: "KUBE-FORWARD", rules }];
        let of_services = chains_of_services(Mode::Userspace, family).collect();
        let rule_set = Self::of_mode(Mode::Userspace, family, chains, of_services);
        let rule_set = rule_set.with_jumps(jumps(node_ports), &SUPERSEDED_BY_RULES);
        rule_set.with_copies(family, settings)
    }
}

/// Returns the jumps of a family. `node_ports`: the addresses at which there are node ports; none:
/// all of the node's.
pub(crate) fn jumps(node_ports: Option<&[IpAddr]>) -> Vec<Jump> {
    let jumps = JUMPS.iter().copied();
    let Some(addresses) = node_ports else { return jumps.collect() };
    let hosts = |jump: Jump| {
        addresses.iter().map(move |host| jump.with_destination(JumpDestination::Host(*host)))
    };
    let each = jumps.map(|jump| match jump.destination {
        JumpDestination::Local => hosts(jump).collect(),
        _ => vec![jump],
    });
    each.flatten().collect()
}
