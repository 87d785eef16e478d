//! Service addresses that are local to the node although rules lead to Services.

use super::RuleSetSettings;
use super::chains::hairpin;
use crate::facts::BoundAddresses;
use crate::model::Family;
use crate::sets::{SetId, SetKind};

impl RuleSetSettings {
    /// The same, with service addresses that are local although rules lead to Services.
    #[must_use]
    pub fn with_bound(self, bound: Option<BoundAddresses>) -> Self {
        Self { bound, ..self }
    }

    /// The first rules of `KUBE-POSTROUTING`: one for pods that IPVS leads to themselves, and then
    /// those that masquerade what rules led to an endpoint and what has a service address as its
    /// source. The kernel chooses the address of a connection's target as its source if that address is
    /// local (`__mkroute_output` in net/ipv4/route.c), and the answer to it would end at the
    /// endpoint's node.
    pub(crate) fn masquerading_bound(&self, family: Family) -> Vec<String> {
        let Some(BoundAddresses { routes, hairpins, .. }) = &self.bound else { return Vec::new() };
        let set = SetId { kind: SetKind::IpvsAddresses, family };
        let random_fully = if self.random_fully { " --random-fully" } else { "" };
        let by_set = (String::new(), format!("-m set --match-set {set} src "));
        let by_route = routes.iter().map(|route| (format!("-s {} ", route.trunc()), String::new()));
        let rule = |(network, set): (String, String)| {
            format!(
                "{network}-m comment --comment \"kubernetes connections of this node from a service \
                 address\" {set}-m conntrack --ctstate DNAT -j MASQUERADE{random_fully}"
            )
        };
        let hairpin = hairpins.then(|| hairpin(family));
        hairpin.into_iter().chain([by_set].into_iter().chain(by_route).map(rule)).collect()
    }
}
