//! IPVS mode: virtual servers, sets, addresses, and a constant set of rules.

use super::{Backend, FORWARDING, OUTSIDE, PORTALS, POSTROUTING};
use crate::iptables::compile::Compiled;
use crate::ipvs::diff;
use crate::mode::Mode;
use crate::model::Family;
use crate::rule_set::nft;
use crate::rule_set::{Jump, RuleSet, RuleSetSettings, Table, ipvs_chains};

pub(super) const BACKEND: Backend = Backend {
    jumps: &JUMPS,
    former_jumps: &FORMER,
    rule_set: |family, rules, is_led, _| {
        if is_led { RuleSet::before_dispatch(family, rules) } else { RuleSet::new(family, rules) }
    },
    tail: None,
    compile_chains: |_, _, _, _| Compiled::default(),
    relay_ports: |_, _| Vec::new(),
    plans_in_parts: true,
    drops_comments: false,
    leads_loopback: None,
    repair: diff::repair,
};

const FIREWALL: &str = "kube-proxy firewall rules";
const FILTER: &str = "kubernetes ipvs access filter";

/// Rules that decide about new connections are walked by their packets alone: every packet of every
/// connection would look into up to nine sets otherwise.
///
/// An answer makes a connection established, with IPVS too, since connection tracking knows its
/// connections (`ip_vs_update_conntrack` in net/netfilter/ipvs/ip_vs_nfct.c, `net.ipv4.vs.conntrack`).
/// Health checks are accepted whatever their state: a host may have no rule for established connections.
const JUMPS: [Jump; 9] = [
    Jump::new(Table::Nat, "OUTPUT", "KUBE-SERVICES", PORTALS),
    Jump::new(Table::Nat, "PREROUTING", "KUBE-SERVICES", PORTALS),
    Jump::new(Table::Nat, "POSTROUTING", "KUBE-POSTROUTING", POSTROUTING),
    Jump::new(Table::Mangle, "OUTPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-FORWARD", FORWARDING),
    Jump::new(Table::Filter, "INPUT", "KUBE-NODE-PORT", "kubernetes health check rules"),
    Jump::new(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_unestablished(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", FIREWALL).of_unestablished(),
    Jump::new(Table::Filter, "INPUT", "KUBE-IPVS-FILTER", FILTER).of_unestablished(),
];

/// Jumps that kube-proxy has in mode ipvs, and that we had, for packets of all connections.
const FORMER: [Jump; 5] = [
    Jump::new(Table::Mangle, "OUTPUT", "KUBE-PROXY-FIREWALL", FIREWALL),
    Jump::new(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", FIREWALL),
    Jump::new(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", FIREWALL),
    Jump::new(Table::Filter, "INPUT", "KUBE-IPVS-FILTER", FILTER),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-IPVS-OUT-FILTER", FILTER),
];

/// Jumps of iptables mode into verdicts on frontends for clients outside. In ipvs mode these
/// frontends are local, and INPUT comes before IPVS: a verdict that is out of date would refuse what
/// has endpoints. And jumps of ipvs mode for packets of all connections, which kube-proxy leaves.
const SUPERSEDED: [Jump; 7] = [
    Jump::new(Table::Filter, "INPUT", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    FORMER[0],
    FORMER[1],
    FORMER[2],
    FORMER[3],
    FORMER[4],
];

/// Jumps of IPVS mode into `KUBE-PROXY-FIREWALL`, which the other modes have too, with other
/// rules: those are for the first packet of a connection, and would drop the others of IPVS's connections.
pub(super) const SUPERSEDED_BY_RULES: [Jump; 4] = [FORMER[1], FORMER[2], JUMPS[6], JUMPS[7]];

impl RuleSet {
    /// The rules of a family in ipvs mode.
    #[must_use]
    pub fn new(family: Family, settings: &RuleSetSettings) -> Self {
        let chains = ipvs_chains(family, settings);
        Self::of_mode(Mode::Ipvs, family, chains, Vec::new())
            .with_jumps(JUMPS, &SUPERSEDED)
            .with_nft(nft::chains(family, settings))
    }

    /// The rules of a family in ipvs mode that are written while another mode's rules lead
    /// connections: without the dispatch, and without what drops a load balancer's clients, which
    /// iptables mode has by the same name with other rules.
    #[must_use]
    pub fn before_dispatch(family: Family, settings: &RuleSetSettings) -> Self {
        Self::new(family, settings).without_dispatch(settings)
    }
}
