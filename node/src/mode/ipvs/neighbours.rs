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
            "serviceRoutes, or with fastPath internalFrontend.ipv6, has a network around {own}, which is an address of this \
             node and its network: its neighbours would be cut off. Name only what Services use in serviceRoutes \
             (kube-apiserver's --service-cluster-ip-range), and an unused network in internalFrontend.ipv6"
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
                "serviceRoutes: auto has no route to {network}, and binds the addresses there one by one, \
                 since {own} is an address of this node and its network"
            );
        }
        around.is_none()
    });
}
