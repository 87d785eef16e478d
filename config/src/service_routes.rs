//! `serviceRoutes`: the networks in which a local route stands for all service addresses.

use ipnet::IpNet;
use plan::model::Family;

use super::kube_ipvs::{AUTO, KubeIpvsConfiguration};
use super::networks::networks;

/// Choice of the networks with a local route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRoutes {
    /// True if there are routes only where there are many Services.
    pub is_automatic: bool,
    /// Networks that the configuration names; none: those of the cluster's ServiceCIDRs, if the choice
    /// is automatic.
    pub named: Vec<IpNet>,
    /// Networks that mode ipvs has routes to; none: an automatic choice is still to be made.
    pub chosen: Option<Vec<IpNet>>,
}

impl ServiceRoutes {
    pub(super) fn new(own: &KubeIpvsConfiguration) -> Self {
        let texts = own.service_routes.as_deref().unwrap_or_default();
        let is_automatic = texts.iter().any(|text| text == AUTO);
        let named = networks(texts);
        let chosen = (!is_automatic).then(|| named.clone());
        Self { is_automatic, named, chosen }
    }

    /// Returns the networks that an automatic choice begins with, where the kernel has these routes of
    /// ours: they stay, or those that are named take their place, for each family that has some.
    #[must_use]
    pub fn kept(&self, found: &[IpNet]) -> Vec<IpNet> {
        let is_routed =
            |network: &IpNet| found.iter().any(|it| Family::of_net(it) == Family::of_net(network));
        let known = if self.named.is_empty() { found } else { &self.named };
        known.iter().copied().filter(is_routed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_that_have_routes_keep_them_and_named_networks_take_their_place() {
        let nets = |texts: &[&str]| texts.iter().map(|it| it.parse().unwrap()).collect::<Vec<_>>();
        let routes =
            |named: &[&str]| ServiceRoutes { is_automatic: true, named: nets(named), chosen: None };
        let (ipv4, ipv6) = ("10.96.0.0/12", "fd00:96::/108");
        let found = nets(&[ipv6]);
        assert_eq!(routes(&[]).kept(&found), found);
        assert_eq!(routes(&[ipv4, "fd00::/104"]).kept(&found), nets(&["fd00::/104"]));
        assert_eq!(routes(&[ipv4]).kept(&[]), []);
    }
}
