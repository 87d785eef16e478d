//! The way to the API server, before its objects are there.
//!
//! A version before this one, or kube-proxy, may have left an address of the API server on
//! `kube-ipvs0`, because a Service has it. Then no list ever comes, and the takeover, which would
//! remove the address, never begins.

use std::net::SocketAddr;

use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Family, Protocol};
use plan::op::Op;
use plan::sets::{SetId, SetKind};
use tracing::{info, warn};

use super::context::Context;
use kernel::worker::WorkerGone;

/// Gives up the addresses of the API server that are bound, but for those of its own Service: a pod's
/// way to the API server is a cluster address. Returns false if that is to be tried again.
pub(super) async fn give_up_addresses(
    cx: &mut Context,
    servers: &[SocketAddr],
) -> Result<bool, WorkerGone> {
    let read = cx.read_addresses().await;
    let Some(found) = cx.or_report(read)? else { return Ok(false) };
    let mut is_done = true;
    for server in servers.iter().filter(|server| found.bound.contains(&server.ip())) {
        let family = Family::of(server.ip());
        let set = |kind| SetId { kind, family };
        let read = cx.read_set(set(SetKind::ClusterIp)).await;
        let Some(clusters) = cx.or_report(read)? else {
            is_done = false;
            continue;
        };
        let frontend =
            Frontend { address: server.ip(), protocol: Protocol::Tcp, port: server.port() };
        let entry = Entry::AddressPort(frontend);
        // A mode that binds cluster IPs has the set. Without it, they cannot be told from other addresses.
        if clusters.is_none_or(|it| it.entries.contains(&entry)) {
            continue;
        }
        // The node's own connections meet a virtual server wherever its address is.
        let ops = vec![
            Op::RemoveEntry(set(SetKind::InternalFrontend), entry),
            Op::UnbindAddress(server.ip()),
            Op::RemoveVirtualServer(frontend),
        ];
        let results = cx.kernel.call(move |kernel| kernel.apply(&ops)).await?;
        match results.get(1) {
            Some(Err(refusal)) => {
                warn!(
                    "cannot remove the API server's address {} from kube-ipvs0: {refusal}",
                    server.ip()
                );
                is_done = false;
            }
            _ => info!(
                "address {} removed from kube-ipvs0: a Service claims it, and this node reaches \
                 the API server at it",
                server.ip()
            ),
        }
    }
    Ok(is_done)
}
