//! Local routes that would cut neighbours off: a local route goes before every other route, and with one around the
//! node's own network, nothing beyond the node could be reached any more.

use anyhow::bail;
use ipnet::IpNet;
use plan::settings::Settings;
use tracing::warn;

use kernel::ReadError;
use kernel::linux;

/// Refuses routes that an operator has asked for.
pub(super) fn spare(settings: &Settings, neighbourhoods: &[IpNet]) -> anyhow::Result<()> {
    if let Some(own) = neighbourhoods.iter().find(|own| settings.is_routed(own.addr())) {
        bail!(
            "serviceRoutes (or internalFrontend.ipv6 with fastPath) has a network that contains \
             this node's network {own}: the node would be cut off from its neighbours. Set \
             serviceRoutes to networks that only Services use (kube-apiserver's \
             --service-cluster-ip-range), and internalFrontend.ipv6 to an unused network"
        );
    }
    Ok(())
}

/// Leaves out the routes that would cut neighbours off as the node's addresses are now.
pub fn without_neighbours(routes: &mut Vec<IpNet>) -> Result<(), ReadError> {
    leave_out(routes, &linux::neighbourhoods()?);
    Ok(())
}

/// Leaves out routes that no operator has asked for.
pub(super) fn leave_out(routes: &mut Vec<IpNet>, neighbourhoods: &[IpNet]) {
    routes.retain(|network| {
        let around = neighbourhoods.iter().find(|own| network.contains(&own.addr()));
        if let Some(own) = around {
            warn!(
                "serviceRoutes: auto adds no route to {network} and binds its addresses one by \
                 one, because the network contains this node's network {own}"
            );
        }
        around.is_none()
    });
}
