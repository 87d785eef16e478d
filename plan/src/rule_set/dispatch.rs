//! The dispatch: the chains that lead connections to Services. What is there of it while another
//! mode's rules still lead them, and how such rules are known.
//!
//! Rules of nat come before IPVS. So on a node whose connections are led by rules, those of ipvs
//! mode are written in two steps. The first leaves alone all that the other mode's way needs. The
//! second comes when virtual servers and addresses are written: it writes the dispatch, in one
//! COMMIT of nat.
//!
//! Portals of mode userspace come before the rules of iptables mode, too. There the second step only
//! takes the jumps to them out. Chains of ipvs mode in nf_tables come before all rules of iptables: the second step
//! removes them.

use super::saved::Saved;
use super::{RuleSet, RuleSetSettings, Table, nft};
use crate::facts::BoundAddresses;
use crate::hash::HashSet;

/// Prefixes of the chains that iptables mode has for Services, all in nat. `KUBE-XLB-` is from before
/// Kubernetes 1.24.
const OF_SERVICES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-"];

/// The chains of mode userspace in nat ([`PortalChain`](crate::userspace::PortalChain)).
const PORTALS: [&str; 4] = [
    "KUBE-PORTALS-CONTAINER",
    "KUBE-PORTALS-HOST",
    "KUBE-NODEPORT-CONTAINER",
    "KUBE-NODEPORT-HOST",
];

/// The built-in chains of nat in which connections are led.
const ORIGINS: [&str; 2] = ["PREROUTING", "OUTPUT"];

impl RuleSet {
    /// These rules of IPVS mode without the dispatch, and without what drops a load balancer's clients.
    ///
    /// Until the dispatch is there, the node's own connections are led by rules and have a Service
    /// address as their source, because that is bound. They are masqueraded, or their answers would
    /// never come back.
    #[must_use]
    pub(crate) fn without_dispatch(mut self, settings: &RuleSetSettings) -> Self {
        self.chains.retain(|chain| !is_of_dispatch(chain.table, chain.name));
        for chain in self.chains.iter_mut().filter(|it| it.name == "KUBE-POSTROUTING") {
            let routes = settings.routes.clone();
            let bound = BoundAddresses { routes, ..BoundAddresses::default() };
            let settings = settings.clone().with_bound(Some(bound));
            chain.rules.splice(0..0, settings.masquerading_bound(self.family));
        }
        self.jumps.retain(|jump| !is_of_dispatch(jump.table, jump.to));
        // They are of the other mode's way.
        let nft = nft::chains_before_dispatch(self.family, settings);
        Self { has_dispatch: false, superseded: &[], nft, ..self }
    }

    /// The rules of iptables or userspace mode that are written while portals, or chains in tables of nf_tables, lead
    /// connections: the same, and what leads stays.
    #[must_use]
    pub(crate) fn while_led(self) -> Self {
        Self { has_dispatch: false, ..self }
    }

    /// False if these are the rules that are written while another mode's rules lead connections.
    #[must_use]
    pub fn has_dispatch(&self) -> bool {
        self.has_dispatch
    }
}

/// True for the chains in which mode iptables or userspace, ours or kube-proxy's, leads connections to Services.
#[must_use]
pub fn is_of_services(table: Table, chain: &str) -> bool {
    let leads = is_portal(chain) || OF_SERVICES.iter().any(|prefix| chain.starts_with(prefix));
    table == Table::Nat && leads
}

/// True for the chains that are written with the dispatch.
fn is_of_dispatch(table: Table, chain: &str) -> bool {
    match table {
        Table::Nat => chain == "KUBE-SERVICES",
        Table::Mangle => true,
        Table::Filter => chain == "KUBE-PROXY-FIREWALL",
    }
}

/// True if rules of mode iptables or userspace, ours or kube-proxy's, lead connections to Services.
pub(super) fn is_led_by_rules(saved: &Saved<'_>) -> bool {
    let mut chains = Vec::from(ORIGINS);
    let mut seen = HashSet::default();
    while let Some(chain) = chains.pop() {
        let rules = saved.rules(Table::Nat, chain);
        if is_portal(chain) && !rules.is_empty() {
            return true;
        }
        for target in rules.iter().filter_map(|rule| target(rule)) {
            if OF_SERVICES.iter().any(|prefix| target.starts_with(prefix)) {
                return true;
            }
            if target.starts_with("KUBE-") && seen.insert(target) {
                chains.push(target);
            }
        }
    }
    false
}

/// Returns the rules of the built-in chains of nat that lead to a relay of mode userspace. Those to
/// its node ports come after the dispatch of ipvs mode, which leaves node ports alone.
pub(super) fn portal_jumps(saved: &Saved<'_>) -> Vec<(&'static str, String)> {
    let of_chain = |from: &'static str| {
        let rules = saved.rules(Table::Nat, from).iter();
        let leading = rules.filter(|rule| target(rule).is_some_and(is_portal));
        leading.map(move |rule| (from, (*rule).to_owned()))
    };
    ORIGINS.into_iter().flat_map(of_chain).collect()
}

fn is_portal(chain: &str) -> bool {
    PORTALS.contains(&chain)
}

/// Returns the chain that a saved rule leads to, or its target.
fn target(rule: &str) -> Option<&str> {
    let (_, target) = rule.rsplit_once("-j ").or_else(|| rule.rsplit_once("-g "))?;
    target.split(' ').next()
}
