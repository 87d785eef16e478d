//! Operations that wait for others. Each one that has to come first and failed is pending; those
//! that depend on it become pending, too, and are retried when it is resolved.
//!
//! - An ownership marker is written before its virtual server, and goes after it.
//! - Clients are led to a short circuit only while it is there: the entry that leads to it is
//!   written after its virtual server, its address and its own entries are confirmed, and goes
//!   before them.

use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::{Entry, Frontend};
use plan::op::{Op, Subject};
use plan::planner::Planner;
use plan::sets::SetId;
use tokio::time::Instant;

use super::closing;
use crate::retry_queue::{Pending, RetryQueue};
use kernel::RefusalClass;

const LED_TO_NOTHING: &str = ", without which clients would be led to nothing";

/// Holds back virtual servers as long as their ownership marker is pending. Without a marker they
/// would stay for ever if their Service went while no process ran.
pub(super) fn await_markers(planner: &Planner, retry_queue: &mut RetryQueue, ops: &mut Vec<Op>) {
    let held = retry_queue.hold_back(ops, ", which has to come first", |retry_queue, op| {
        let Op::CreateVirtualServer(frontend, _) = op else { return None };
        planner.markers_of(frontend).into_iter().find(|marker| retry_queue.contains(marker))
    });
    ops.retain(|op| !held.contains(&op.subject()));
}

/// Holds back removals of ownership markers as long as their virtual servers are pending. After a
/// restart, virtual servers without a marker would not be known as ours.
pub(super) fn keep_markers(planner: &Planner, retry_queue: &mut RetryQueue, ops: &mut Vec<Op>) {
    let why = " to be removed, which it marks as ours";
    retry_queue.hold_back(ops, why, |retry_queue, op| {
        let mut frontends = planner.unmarked_by(op).into_iter().map(Subject::VirtualServer);
        frontends.find(|subject| retry_queue.contains(subject))
    });
}

/// Adds the removals of entries that lead clients to short circuits which turned out not to be
/// there. `failed`: subjects of operations that have just been refused.
pub(super) fn cut_off(
    planner: &Planner,
    retry_queue: &RetryQueue,
    failed: &HashSet<Subject>,
    leading: &mut Vec<Op>,
) {
    let short_circuits = planner.settings().short_circuit_networks;
    let is_missing = |subject: &&Subject| {
        retry_queue.get(subject).is_some_and(|pending| match pending.op {
            Op::CreateVirtualServer(short_circuit, _) => {
                short_circuits.around(short_circuit.address).is_some()
            }
            Op::BindAddress(address) => short_circuits.around(address).is_some(),
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

/// Holds back entries that would lead clients to a short circuit which is still pending. Entries
/// that lead there all the same become removals.
pub(super) fn await_short_circuits(
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

/// Has entries added again when their short circuits are there, unless they could not even be
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

/// Holds back what would take away a short circuit that clients may still be led to.
pub(super) fn keep_short_circuits(
    planner: &Planner,
    retry_queue: &mut RetryQueue,
    ops: &mut Vec<Op>,
) {
    let mut waits_for: HashMap<Subject, Subject> = HashMap::default();
    for (subject, pending) in retry_queue.leading() {
        let Subject::Entry(set, entry) = subject else { continue };
        let short_circuit = planner.led_to(*set, entry).filter(|_| may_be_there(pending));
        let is_unwanted = |it: &Frontend| planner.desired().owner(it).is_none();
        if let Some(short_circuit) = short_circuit.filter(is_unwanted) {
            waits_for.insert(Subject::VirtualServer(short_circuit), *subject);
            waits_for.insert(Subject::Address(short_circuit.address), *subject);
        }
    }
    retry_queue.hold_back(ops, " to be removed, which may still lead clients there", |_, op| {
        let subject = match op.subject() {
            Subject::Entry(_, entry) => entry.address().map(Subject::Address),
            subject => Some(subject),
        };
        subject.and_then(|subject| waits_for.get(&subject)).copied()
    });
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
        Subject::VirtualServer(short_circuit) => {
            let claim = planner.desired().owning_claim(short_circuit);
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
            let short_circuit = planner.led_to(*set, entry);
            let is_unwanted = |it: &Frontend| planner.desired().owner(it).is_none();
            if let Some(short_circuit) = short_circuit.filter(is_unwanted) {
                retry_queue.retry_now(&Subject::VirtualServer(short_circuit), now);
                retry_queue.retry_now(&Subject::Address(short_circuit.address), now);
            }
        }
        _ => {}
    }
}

/// Returns what is pending of the short circuit that an entry leads to.
fn missing_for(
    planner: &Planner,
    retry_queue: &RetryQueue,
    set: SetId,
    entry: &Entry,
) -> Option<Subject> {
    let short_circuit = planner.led_to(set, entry)?;
    planner.needed_at(&short_circuit).find(|it| retry_queue.contains(it))
}

/// True if an entry with a pending retry may be in its set.
fn may_be_there(pending: &Pending) -> bool {
    matches!(pending.op, Op::RemoveEntry(..)) || pending.refusal.class == RefusalClass::AnswerLost
}
