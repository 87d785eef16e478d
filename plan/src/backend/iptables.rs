//! Iptables mode: chains of rules for each service port.

use super::ipvs::SUPERSEDED_BY_RULES;
use super::{Backend, FIREWALL, FORWARDING, HEALTH, OUTSIDE, PORTALS, POSTROUTING};
use crate::iptables::compile::compile;
use crate::iptables::{constant, tail};
use crate::ipvs::diff;
use crate::mode::Mode;
use crate::model::Family;
use crate::rule_set::{Jump, RuleSet, RuleSetSettings, Table};

pub(super) const BACKEND: Backend = Backend {
    jumps: &JUMPS,
    former_jumps: &[],
    rule_set: |family, rules, is_led, _| {
        let rule_set = RuleSet::iptables(family, rules);
        if is_led { rule_set.while_led() } else { rule_set }
    },
    tail: Some(tail::rules),
    compile_chains: |exposure, _, facts, settings| compile(exposure, facts, settings),
    relay_ports: |_, _| Vec::new(),
    plans_in_parts: true,
    drops_comments: true,
    // IPv6 has no way from ::1 to anywhere else.
    leads_loopback: Some(|family, settings| {
        settings.iptables_localhost_node_ports && family == Family::V4
    }),
    repair: diff::close,
};

/// In kube-proxy's order (`iptablesJumpChains` in pkg/proxy/iptables/proxier.go), and then those
/// that the kubelet has too.
const JUMPS: [Jump; 14] = [
    Jump::new(Table::Filter, "INPUT", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "INPUT", "KUBE-NODEPORTS", HEALTH),
    Jump::new(Table::Filter, "FORWARD", "KUBE-SERVICES", PORTALS).of_new(),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-SERVICES", PORTALS).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-FORWARD", FORWARDING),
    Jump::new(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Nat, "OUTPUT", "KUBE-SERVICES", PORTALS),
    Jump::new(Table::Nat, "PREROUTING", "KUBE-SERVICES", PORTALS),
    Jump::new(Table::Nat, "POSTROUTING", "KUBE-POSTROUTING", POSTROUTING),
    Jump::bare(Table::Filter, "INPUT", "KUBE-FIREWALL"),
    Jump::bare(Table::Filter, "OUTPUT", "KUBE-FIREWALL"),
];

impl RuleSet {
    /// The rules of a family in iptables mode.
    #[must_use]
    pub fn iptables(family: Family, settings: &RuleSetSettings) -> Self {
        let of_services = constant::chains_of_services(Mode::Iptables, family);
        let shared = of_services.chain(constant::firewall(family, settings)).collect();
        let rule_set =
            Self::of_mode(Mode::Iptables, family, constant::chains(family, settings), shared);
        rule_set.with_jumps(JUMPS, &SUPERSEDED_BY_RULES).with_copies(family, settings)
    }
}
