//! Operations that wait for others: the table of needs ([`awaited`]). Each operation that has to come first and failed
//! is pending; those that need it become pending, too, and are retried when it is resolved.
//!
//! Entries that lead clients to an internal frontend are more than held back: those that may be in the set are removed
//! while the internal frontend is not there.

use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::{Entry, Frontend};
use plan::model::Family;
use plan::op::{Op, Phase, Subject};
use plan::planner::Planner;
use plan::routes::{LocalRoute, RouteOp};
use plan::sets::{SetId, SetKind};
use tokio::time::Instant;

use super::closing;
use crate::retry_queue::{Pending, RetryQueue};
use kernel::RefusalClass;

const LED_TO_NOTHING: &str = ", without which clients would reach no endpoint";
const STILL_LED: &str = " to be removed, which may still direct clients there";

/// Has the operations of a step wait that need what is pending.
pub(super) fn hold(planner: &Planner, retry_queue: &mut RetryQueue, ops: &mut Vec<Op>) {
    if ops.is_empty() || retry_queue.is_empty() {
        return;
    }
    let leading = if ops.iter().any(takes_away) {
        still_leading(planner, retry_queue)
    } else {
        HashMap::default()
    };
    retry_queue.hold_back(ops, |retry_queue, op| awaited(planner, retry_queue, &leading, op));
}

/// The table of needs: what an operation has to wait for, and why. `leading`: see [`still_leading`]; empty if no operation
/// takes something away.
fn awaited(
    planner: &Planner,
    retry_queue: &RetryQueue,
    leading: &HashMap<Subject, Subject>,
    op: &Op,
) -> Option<(Subject, &'static str)> {
    let is_pending = |subject: &Subject| retry_queue.contains(subject);
    let open = |it: Option<Subject>| it.map(|it| (it, closing::WHY));
    let led = || leading.get(&served_by(op).filter(|_| takes_away(op))?).map(|it| (*it, STILL_LED));
    match op {
        // Without a marker, it would stay for ever if its Service went while no process ran.
        Op::CreateVirtualServer(frontend, _) => {
            let mut markers = planner.markers_of(frontend);
            markers.find(is_pending).map(|marker| (marker, ", which must be written first"))
        }
        // It lets clients past the access filter.
        Op::AddEntry(set, Entry::AddressPort(frontend)) if set.kind.admits() => {
            open(closing::unclosed(retry_queue, frontend))
        }
        // The access filter has to know it, and clients would meet nothing at it, or the node.
        Op::BindAddress(address) => open(closing::awaited_at(planner, retry_queue, *address)),
        Op::RemoveVirtualServer(frontend) => {
            let at = frontend.address;
            let node = closing::unclosed(retry_queue, frontend);
            led().or_else(|| open(node.or_else(|| closing::still_local(retry_queue, at))))
        }
        Op::RemoveEntry(set, entry) => {
            let marked = planner.unmarked_by(op);
            if !marked.is_empty() {
                // After a restart, it would not be known as ours without the marker.
                let mut marked = marked.into_iter().map(Subject::VirtualServer);
                return marked
                    .find(is_pending)
                    .map(|it| (it, " to be removed, whose ownership it marks"));
            }
            // It keeps clients from the node.
            let filtered = entry.address().filter(|_| set.kind == SetKind::IpvsAddresses);
            let local = filtered.and_then(|at| closing::still_local(retry_queue, at));
            led().or_else(|| open(local))
        }
        Op::UnbindAddress(_)
        | Op::DrainRealServer(..)
        | Op::RemoveRealServer(..)
        | Op::RemoveVirtualServerWhenDrained(_) => led(),
        _ => None,
    }
}

/// Adds the removals of entries that lead clients to internal frontends which turned out not to be
/// there. `failed`: subjects of operations that have just been refused.
pub(super) fn cut_off(
    planner: &Planner,
    retry_queue: &RetryQueue,
    failed: &HashSet<Subject>,
    leading: &mut Vec<Op>,
) {
    let internal_frontends = planner.settings().internal_frontend_networks;
    let is_missing = |subject: &&Subject| {
        retry_queue.get(subject).is_some_and(|pending| match pending.op {
            Op::CreateVirtualServer(internal_frontend, _) => {
                internal_frontends.around(internal_frontend.address).is_some()
            }
            Op::BindAddress(address) => internal_frontends.around(address).is_some(),
            Op::Route(RouteOp::Add(LocalRoute { network, .. })) => {
                let of_family = internal_frontends.of(Family::of_net(&network));
                of_family.is_some_and(|all| all.contains(&network.addr()))
            }
            _ => false,
        })
    };
    let missing: HashSet<Subject> = failed.iter().filter(is_missing).copied().collect();
    if missing.is_empty() {
        return;
    }
    let about: HashSet<Subject> = leading.iter().map(Op::subject).collect();
    for (set, entry) in planner.leading_to(&missing) {
        let subject = Subject::Entry(set, entry);
        if !about.contains(&subject) && !retry_queue.contains(&subject) {
            leading.push(Op::RemoveEntry(set, entry));
        }
    }
}

/// Holds back entries that would lead clients to an internal frontend which is still pending. Entries
/// that lead there all the same become removals.
pub(super) fn await_internal_frontends(
    planner: &Planner,
    retry_queue: &mut RetryQueue,
    leading: &mut Vec<Op>,
) {
    if retry_queue.is_empty() {
        return;
    }
    leading.retain_mut(|op| {
        let Op::AddEntry(set, entry) = *op else { return true };
        let Some(missing) = missing_for(planner, retry_queue, set, &entry) else { return true };
        if retry_queue.get(&op.subject()).is_some_and(may_be_there) {
            *op = Op::RemoveEntry(set, entry);
            return true;
        }
        retry_queue.wait(op.clone(), &missing, LED_TO_NOTHING);
        false
    });
}

/// Returns additions of the entries that these operations remove though they are desired.
pub(super) fn removed_though_desired(planner: &Planner, leading: &[Op]) -> Vec<Op> {
    let desired = planner.desired();
    let removed = leading.iter().filter_map(|op| match op {
        Op::RemoveEntry(set, entry) if desired.has_entry(*set, entry) => {
            Some(Op::AddEntry(*set, *entry))
        }
        _ => None,
    });
    removed.collect()
}

/// Has entries added again when their internal frontends are there, unless they could not even be
/// removed.
pub(super) fn keep_pending(
    planner: &Planner,
    retry_queue: &mut RetryQueue,
    entries: Vec<Op>,
    failed: &HashSet<Subject>,
) {
    for op in entries.into_iter().filter(|op| !failed.contains(&op.subject())) {
        let Op::AddEntry(set, entry) = op else { continue };
        if let Some(missing) = missing_for(planner, retry_queue, set, &entry) {
            retry_queue.wait(op, &missing, LED_TO_NOTHING);
        }
    }
}

/// Returns what serves internal frontends that clients may still be led to though no Service wants them, each with the
/// entry that leads there.
fn still_leading(planner: &Planner, retry_queue: &RetryQueue) -> HashMap<Subject, Subject> {
    let mut leading = HashMap::default();
    for (subject, pending) in retry_queue.leading() {
        let Subject::Entry(set, entry) = subject else { continue };
        let internal_frontend = planner.led_to(*set, entry).filter(|_| may_be_there(pending));
        let is_unwanted = |it: &Frontend| planner.desired().owner(it).is_none();
        if let Some(internal_frontend) = internal_frontend.filter(is_unwanted) {
            leading.insert(Subject::VirtualServer(internal_frontend), *subject);
            leading.insert(Subject::Address(internal_frontend.address), *subject);
        }
    }
    leading
}

/// True if an operation takes something away that clients may be led to.
pub(super) fn takes_away(op: &Op) -> bool {
    op.phase() > Phase::LED_OFF
}

/// Returns the virtual server or the address that loses something by an operation.
fn served_by(op: &Op) -> Option<Subject> {
    match op.subject() {
        Subject::Entry(_, entry) => entry.address().map(Subject::Address),
        subject => Some(subject),
    }
}

/// Brings the retries forward of what may have waited for a subject, which has just been resolved.
pub(super) fn retry_dependents(
    planner: &Planner,
    retry_queue: &mut RetryQueue,
    resolved: &Subject,
) {
    if retry_queue.is_empty() {
        return;
    }
    let now = Instant::now();
    for dependent in closing::dependents(planner, resolved) {
        retry_queue.retry_now(&dependent, now);
    }
    match resolved {
        Subject::Route(_) => {
            for (set, entry) in planner.leading_to(&HashSet::from_iter([*resolved])) {
                retry_queue.retry_now(&Subject::Entry(set, entry), now);
            }
        }
        Subject::VirtualServer(internal_frontend) => {
            let claim = planner.desired().owning_claim(internal_frontend);
            if let Some((set, entry)) = claim.and_then(|claim| claim.leading_entry()) {
                retry_queue.retry_now(&Subject::Entry(set, entry), now);
            }
        }
        Subject::Entry(set, entry) => {
            // One that closes a frontend for a while is no marker that its virtual server waits for.
            if planner.desired().has_entry(*set, entry) {
                for marked in planner.marked_by(*set, entry) {
                    retry_queue.retry_now(&Subject::VirtualServer(marked), now);
                }
            }
            let internal_frontend = planner.led_to(*set, entry);
            let is_unwanted = |it: &Frontend| planner.desired().owner(it).is_none();
            if let Some(internal_frontend) = internal_frontend.filter(is_unwanted) {
                retry_queue.retry_now(&Subject::VirtualServer(internal_frontend), now);
                retry_queue.retry_now(&Subject::Address(internal_frontend.address), now);
            }
        }
        _ => {}
    }
}

/// Returns what is pending of the internal frontend that an entry leads to.
fn missing_for(
    planner: &Planner,
    retry_queue: &RetryQueue,
    set: SetId,
    entry: &Entry,
) -> Option<Subject> {
    let internal_frontend = planner.led_to(set, entry)?;
    planner.needed_at(&internal_frontend).find(|it| retry_queue.contains(it))
}

/// True if an entry with a pending retry may be in its set.
fn may_be_there(pending: &Pending) -> bool {
    matches!(pending.op, Op::RemoveEntry(..)) || pending.refusal.class == RefusalClass::AnswerLost
}
