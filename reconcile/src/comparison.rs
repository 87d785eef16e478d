//! Comparing a part of the kernel with its desired state, and repairing it.
//!
//! Refused writes belong to the retry queue, and are retried at their time. Until then a comparison
//! neither writes them nor takes them for changes by other programs.

use std::sync::Arc;

use plan::actual::ActualSet;
use plan::chains::ChainScope;
use plan::comparison::{Part, Reading, marker_removals};
use plan::hash::HashSet;
use plan::ipvs::desired::Desired;
use plan::kernel_objects::Frontend;
use plan::model::{Family, ServiceName};
use plan::op::{Op, PartKind, Subject};
use plan::sets::SetId;
use plan::virtual_server::DesiredFrontend;
use tokio::time::Instant;

use super::context::{Context, LARGEST_CHUNK};
use super::writer::{Known, Writer};
use kernel::ReadError;
use kernel::worker::{ReadFailure, WorkerGone};

/// Number of entries up to which a set is read together with others.
const SMALL_SET: usize = 64;

/// Number of desired entries above which a set is read beside the loop: the kernel lists it for some
/// milliseconds, and 0.1 s with 50,000 entries.
const LARGE_SET: usize = 4_096;

/// Result of a comparison.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// True if another program had changed the part.
    pub(super) found_drift: bool,
    /// Parts that turned out to be wrong, to compare before any other.
    pub(super) suspects: Vec<Part>,
    /// True if some of the part could not be read.
    pub(super) has_missed: bool,
}

impl Compared {
    /// The result if all of the part was compared.
    fn whole(found_drift: bool) -> Self {
        Self { found_drift, ..Self::default() }
    }
}

/// Returns the sets in parts of their own, but for those with few entries, which share one.
pub(super) fn parts_of_sets(sets: impl IntoIterator<Item = SetId>, desired: &Desired) -> Vec<Part> {
    let (small, large): (Vec<SetId>, Vec<SetId>) =
        sets.into_iter().partition(|set| desired.n_entries(*set) <= SMALL_SET);
    let large = large.into_iter().map(|set| Part::Sets([set].into()));
    large.chain((!small.is_empty()).then(|| Part::Sets(small.into()))).collect()
}

/// Returns the set, if the part is a single one that is read beside the loop.
pub(super) fn large_set(part: &Part, desired: &Desired) -> Option<SetId> {
    match part {
        Part::Sets(sets) => match **sets {
            [set] if desired.n_entries(set) > LARGE_SET => Some(set),
            _ => None,
        },
        _ => None,
    }
}

/// Compares a part of the kernel with its desired state, and repairs it. Returns nothing if the
/// kernel could not be read, which has been reported.
pub(super) async fn compare(
    cx: &mut Context,
    writer: &mut Writer,
    part: &Part,
) -> Result<Option<Compared>, WorkerGone> {
    let compared = match part {
        Part::Addresses => compare_addresses(cx, writer).await,
        Part::RuleSet(family) => compare_rule_set(cx, writer, *family).await,
        Part::Chains(family) => compare_chains(cx, writer, *family).await,
        Part::Sets(sets) => compare_sets(cx, writer, sets).await,
        Part::Frontends => compare_frontends(cx, writer).await,
        Part::VirtualServers(frontends) => compare_virtual_servers(cx, writer, frontends).await,
    };
    let compared = cx.or_report(compared)?;
    if let (Part::RuleSet(family), None) = (part, &compared) {
        writer.rules_unread(*family);
    }
    Ok(compared)
}

/// Retries what was refused, where the time has come. With `may_compare`, compares the parts first that a refusal
/// throws doubt on.
pub(super) async fn retry_due(
    cx: &mut Context,
    writer: &mut Writer,
    may_compare: bool,
) -> Result<(), WorkerGone> {
    let due = writer.due_retries(cx, may_compare);
    for part in writer.parts_to_compare(cx, &due) {
        if compare(cx, writer, &part).await?.is_none() {
            writer.postpone_resting_on(cx, &due, &part);
        }
    }
    writer.retry(cx, due).await
}

async fn compare_addresses(cx: &mut Context, writer: &mut Writer) -> Result<Compared, ReadFailure> {
    let found = cx.read_addresses().await?;
    cx.apply_local(&found);
    if !cx.uses(PartKind::Addresses) {
        return Ok(Compared::whole(false));
    }
    let mut ops = cx.planner.compare(&Reading::Addresses(found));
    add_orphaned(cx, &mut ops).await?;
    let found_drift = writer.repair(cx, ops, Some(&Part::Addresses)).await?;
    Ok(Compared::whole(found_drift))
}

async fn compare_rule_set(
    cx: &mut Context,
    writer: &mut Writer,
    family: Family,
) -> Result<Compared, ReadFailure> {
    let found = cx.read_rule_set(family).await?;
    let ops = cx.planner.compare(&Reading::RuleSet(family, found.lacks()));
    let found_drift = writer.repair(cx, ops, Some(&Part::RuleSet(family))).await?;
    Ok(Compared::whole(found_drift))
}

async fn compare_chains(
    cx: &mut Context,
    writer: &mut Writer,
    family: Family,
) -> Result<Compared, ReadFailure> {
    let found = Arc::new(cx.read_chains(family).await?);
    let ops = cx.planner.compare(&Reading::Chains(family, Arc::clone(&found), ChainScope::All));
    Ok(Compared::whole(writer.repair_chains(cx, ops, family, &found).await?))
}

async fn compare_sets(
    cx: &mut Context,
    writer: &mut Writer,
    sets: &Arc<[SetId]>,
) -> Result<Compared, ReadFailure> {
    let (mut ops, mut read, mut unread) = (Vec::new(), Vec::new(), Vec::new());
    for (set, found) in sets.iter().zip(cx.read_sets(sets).await?) {
        match found {
            Ok(found) => {
                ops.extend(compare_set(cx, *set, found));
                read.push(*set);
            }
            Err(error) => unread.push((Part::Sets([*set].into()), error)),
        }
    }
    // One that cannot be read is retried by itself, so that it holds up no other.
    if unread.len() == sets.len()
        && let Some((_, error)) = unread.pop()
    {
        return Err(error.into());
    }
    let suspects = unread.into_iter().map(|(part, _)| part).collect();
    add_orphaned(cx, &mut ops).await?;
    // What is pending of a set that was not read stays pending.
    let part = Part::Sets(read.into());
    let found_drift = writer.repair(cx, ops, Some(&part)).await?;
    Ok(Compared { found_drift, suspects, ..Compared::default() })
}

/// Compares a set that was read beside the loop, after `n_writes` writes, and repairs it. Leaves out what
/// was written since: the reading says nothing of it. Returns nothing if the set could not be read, which
/// has been reported.
pub(super) async fn compare_earlier(
    cx: &mut Context,
    writer: &mut Writer,
    set: SetId,
    found: Result<Option<ActualSet>, ReadError>,
    n_writes: u64,
) -> Result<Option<Compared>, WorkerGone> {
    let compared = match found {
        Ok(found) => repair_earlier(cx, writer, set, found, n_writes).await,
        Err(error) => Err(error.into()),
    };
    cx.or_report(compared)
}

async fn repair_earlier(
    cx: &mut Context,
    writer: &mut Writer,
    set: SetId,
    found: Option<ActualSet>,
    n_writes: u64,
) -> Result<Compared, ReadFailure> {
    // It was made anew, or grew, or more was written than is remembered.
    if writer.recent.is_written_after(&Subject::Set(set), n_writes) {
        return Ok(Compared { has_missed: true, ..Compared::default() });
    }
    let mut ops = compare_set(cx, set, found);
    ops.retain(|op| !writer.recent.is_written_after(&op.subject(), n_writes));
    add_orphaned(cx, &mut ops).await?;
    writer.resolve_part(cx, &Part::Sets([set].into()), &ops, Some(n_writes));
    Ok(Compared::whole(writer.repair(cx, ops, None).await?))
}

fn compare_set(cx: &mut Context, set: SetId, found: Option<ActualSet>) -> Vec<Op> {
    let reading = Reading::Set(set, found);
    cx.planner.note(&reading);
    cx.planner.compare(&reading)
}

/// Adds the operations that remove orphaned virtual servers, whose ownership markers these remove.
async fn add_orphaned(cx: &mut Context, ops: &mut Vec<Op>) -> Result<(), ReadFailure> {
    let removals = marker_removals(&*ops);
    if !removals.is_empty() {
        let listed = cx.list_virtual_servers().await?.virtual_servers;
        ops.extend(cx.planner.compare(&Reading::Frontends(listed, removals)));
    }
    Ok(())
}

/// Compares which virtual servers exist. Removes those that are ours and that no Service asks for.
/// The suspects are those that should exist and do not, or the other way round.
async fn compare_frontends(cx: &mut Context, writer: &mut Writer) -> Result<Compared, ReadFailure> {
    let mut listing = cx.list_virtual_servers().await?;
    let found: HashSet<Frontend> = listing.frontends().collect();
    let listed = std::mem::take(&mut listing.virtual_servers);
    let ops = cx.planner.compare(&Reading::Frontends(listed, Arc::default()));
    let found_drift = writer.repair(cx, ops, None).await?;
    let desired = cx.planner.desired();
    let wrong = desired.frontends().filter(|frontend| match desired.at(frontend) {
        DesiredFrontend::Open(..) => !found.contains(frontend),
        DesiredFrontend::Closed | DesiredFrontend::Unclaimed => {
            found.contains(frontend) && !writer.drain().is_draining(frontend)
        }
    });
    // Pending operations have a retry time of their own. No other program caused them.
    let retry_queue = writer.retry_queue();
    let is_pending = |it: &&Frontend| retry_queue.contains(&Subject::VirtualServer(**it));
    let mut wrong: Vec<Frontend> = wrong.filter(|it| !is_pending(it)).copied().collect();
    wrong.sort_unstable();
    listing.sort_for_return(&mut wrong);
    // Without the API server nothing on this node can follow the cluster.
    let is_other = |it: &Frontend| !desired.owner(it).is_some_and(ServiceName::is_api_server);
    wrong.sort_by_key(is_other);
    // There may be very many. Changes are written in between.
    let chunks = wrong.chunks(LARGEST_CHUNK).map(|it| Part::VirtualServers(it.into()));
    let suspects: Vec<Part> = chunks.collect();
    let found_drift = found_drift || !suspects.is_empty();
    Ok(Compared { found_drift, suspects, has_missed: false })
}

async fn compare_virtual_servers(
    cx: &mut Context,
    writer: &mut Writer,
    frontends: &Arc<[Frontend]>,
) -> Result<Compared, ReadFailure> {
    let mut seen = cx.read_virtual_servers(frontends).await?;
    // Drops frontends without an owner: what they needed is done, or pending.
    let desired = cx.planner.desired();
    let is_ours = |frontend: &Frontend| desired.owner(frontend).is_some();
    seen.found.retain(|(frontend, _)| is_ours(frontend));
    let has_missed = seen.unread.iter().any(|(frontend, _)| is_ours(frontend));
    let now = Instant::now();
    let (mut ops, mut in_order) = (Vec::new(), Vec::new());
    for (frontend, found) in &seen.found {
        let repairs = cx.planner.repair(frontend, found.as_ref());
        let subject = Subject::VirtualServer(*frontend);
        if repairs.is_empty() || !writer.retry_queue().is_put_off(&subject, now) {
            let known = Known::Compared(*frontend, found.as_ref());
            let repairs = writer.let_drain(cx, repairs, known, now);
            if repairs.is_empty() {
                in_order.push(subject);
            }
            ops.extend(repairs);
        }
    }
    writer.resolve(cx, &in_order);
    let found_drift = writer.repair(cx, ops, None).await?;
    Ok(Compared { found_drift, has_missed, ..Compared::default() })
}
