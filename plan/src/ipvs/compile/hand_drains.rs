//! Endpoints that are drained manually, in virtual servers.

use std::borrow::Cow;
use std::sync::Arc;

use crate::exposure::{FamilyExposure, PortExposure};
use crate::kernel_objects::{RealServer, VirtualServer};
use crate::model::Protocol;

/// Returns the exposure with the endpoints that are drained manually among the real servers, with
/// weight 0: their connections go on until the drain ends.
///
/// They are left out for UDP and SCTP, as endpoints that go are: a client that goes on sending would
/// otherwise stay with them. They are left out with a scheduler that goes on choosing them, and where
/// no other endpoint is left: a frontend without endpoints has no virtual server.
pub(super) fn kept<'e, 'a>(
    families: &'e [FamilyExposure<'a>],
    server: &VirtualServer,
) -> Cow<'e, [FamilyExposure<'a>]> {
    let can_drain = server.scheduler.known().is_none_or(|scheduler| scheduler.can_drain);
    let is_kept =
        |port: &PortExposure<'_>| port.port.protocol == Protocol::Tcp && !port.drained.is_empty();
    if !can_drain || !families.iter().flat_map(|family| &family.ports).any(is_kept) {
        return Cow::Borrowed(families);
    }
    let mut families = families.to_vec();
    for port in families.iter_mut().flat_map(|family| &mut family.ports).filter(|it| is_kept(it)) {
        let cluster = with_drained(&port.choice.cluster, &port.drained.cluster);
        let local = with_drained(&port.choice.local, &port.drained.local);
        port.choice.local = if local == cluster { Arc::clone(&cluster) } else { local };
        port.choice.cluster = cluster;
    }
    Cow::Owned(families)
}

fn with_drained(used: &Arc<[RealServer]>, drained: &[RealServer]) -> Arc<[RealServer]> {
    if used.is_empty() || drained.is_empty() {
        return Arc::clone(used);
    }
    let mut all: Vec<RealServer> = used.iter().chain(drained).copied().collect();
    all.sort_unstable_by_key(RealServer::socket);
    all.into()
}
