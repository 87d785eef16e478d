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
            "serviceRoutes (or internalFrontend with fastPath) has a network that contains this \
             node's network {own}: the node would be cut off from its neighbours. Set serviceRoutes \
             to networks that only Services use (kube-apiserver's --service-cluster-ip-range), and \
             internalFrontend to unused networks"
        );
    }
    Ok(())
}

/// Returns the routes without those that would cut neighbours off as the node's addresses are now.
pub fn without_neighbours(
    routes: Vec<IpNet>,
    settings: &Settings,
) -> Result<Vec<IpNet>, ReadError> {
    Ok(left(routes, settings, &linux::neighbourhoods()?))
}

/// Returns the routes without those that no operator has asked for, and that would cut neighbours off.
pub(super) fn left(
    mut routes: Vec<IpNet>,
    settings: &Settings,
    neighbourhoods: &[IpNet],
) -> Vec<IpNet> {
    let others = settings.routed_with(&[]);
    routes.retain(|network| {
        let mut added = settings.routed_with(&[*network]);
        added.retain(|it| !others.contains(it));
        let is_inside = |own: &&IpNet| added.iter().any(|it| it.contains(&own.addr()));
        let around = neighbourhoods.iter().find(is_inside);
        if let Some(own) = around {
            warn!(
                "serviceRoutes: auto adds no route to {network} and binds its addresses one by \
                 one, because the network contains this node's network {own}"
            );
        }
        around.is_none()
    });
    routes
}
