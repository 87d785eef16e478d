//! Copies of first packets, by which IPVS forgets the connections from ports that are used again. The
//! rules for it say how ([`SynCopies`]).
//!
//! IPVS must find no real server for a copy. So the rules are written when all real servers have
//! weight 0. Connections that began between, by the rules of the new mode, have shown IPVS no copy.
//! When the real server of the former connection is removed, IPVS forgets that, and cuts the new one
//! off. So no real server is removed before such connections have had some time to end.

use std::collections::BTreeMap;
use std::time::Duration;

use plan::adoption::Unadopted;
use plan::facts::{BoundAddresses, SynCopies};
use plan::model::Family;
use plan::op::Subject;
use plan::sets::{SetId, SetKind};
use tokio::time::Instant;
use tracing::warn;

use crate::context::Context;
use crate::leading::Unled;
use crate::writer::{Basis, Writer};
use kernel::worker::WorkerGone;

/// Time from the rules until real servers without connections are removed.
const PAUSE: Duration = Duration::from_secs(10);

/// The same if the rules are not there yet: the fifth retry comes after 31 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// Drains virtual servers as [`super::drain`] does, and then has the rules show IPVS copies. Returns
/// how many virtual servers there are; none if the kernel could not be read.
pub(super) async fn drain(
    cx: &mut Context,
    writer: &mut Writer,
    found: Unadopted,
) -> Result<Option<usize>, WorkerGone> {
    let families = cx.planner.settings().syn_copies.clone();
    let unled = Unled::of(cx, writer.retry_queue());
    // IPVS would take a copy for a Service that it still serves.
    let can_copy = |family: &Family| cx.planner.bound(*family).is_some() && !unled.has(*family);
    let families: Vec<Family> = families.into_iter().filter(can_copy).collect();
    for family in &families {
        writer.hold_draining(*family, Instant::now() + PATIENCE);
    }
    let Some(n_left) = super::drain(cx, writer, found, &unled).await? else { return Ok(None) };
    if n_left > 0 && !show(cx, writer, &families).await? {
        return Ok(None);
    }
    Ok(Some(n_left))
}

/// Gives the copies up in families whose rules are still refused when real servers have been kept for
/// them long enough: the family's other rules are pending with them.
pub(super) async fn give_up_refused(
    cx: &mut Context,
    writer: &mut Writer,
) -> Result<(), WorkerGone> {
    let now = Instant::now();
    let ended = Family::BOTH.into_iter().filter(|family| writer.take_ended_hold(*family, now));
    let ended: Vec<Family> = ended.collect();
    let is_refused = |family: &&Family| writer.retry_queue().contains(&Subject::RuleSet(**family));
    let refused: Vec<Family> = ended.iter().filter(is_refused).copied().collect();
    if refused.is_empty() {
        return Ok(());
    }
    let mut bound = BTreeMap::new();
    for family in Family::BOTH {
        let Some(mut addresses) = cx.planner.bound(family).cloned() else { continue };
        if refused.contains(&family) {
            warn!(
                %family,
                "the rules that pass retransmitted SYNs to IPVS were rejected, and kube-ipvs does \
                 without them. Until the node has left IPVS mode, a connection from a client port \
                 that was used before may be reset"
            );
            addresses.copies = None;
        }
        bound.insert(family, addresses);
    }
    write(cx, writer, bound).await
}

/// Writes the constant rules that go with these addresses, where they are others than before.
async fn write(
    cx: &mut Context,
    writer: &mut Writer,
    bound: BTreeMap<Family, BoundAddresses>,
) -> Result<(), WorkerGone> {
    let ops = cx.planner.note_bound(bound);
    if !ops.is_empty() {
        cx.set_desired_rules().await?;
        writer.apply(cx, ops, Basis::Reading).await?;
    }
    Ok(())
}

/// Writes the rules of these families that show IPVS copies. Returns false if the kernel could not be
/// read.
async fn show(
    cx: &mut Context,
    writer: &mut Writer,
    families: &[Family],
) -> Result<bool, WorkerGone> {
    let mut bound = BTreeMap::new();
    for family in Family::BOTH {
        let Some(mut addresses) = cx.planner.bound(family).cloned() else { continue };
        addresses.copies = None;
        if families.contains(&family) {
            let node_ports = SetId { kind: SetKind::NodePortTcp, family };
            let Some(node_ports) = super::has_set(cx, node_ports).await? else { return Ok(false) };
            addresses.copies = Some(SynCopies { node_ports });
        }
        bound.insert(family, addresses);
    }
    write(cx, writer, bound).await?;
    for family in families {
        let is_pending = writer.retry_queue().contains(&Subject::RuleSet(*family));
        let time = if is_pending { PATIENCE } else { PAUSE };
        writer.hold_draining(*family, Instant::now() + time);
    }
    Ok(true)
}
