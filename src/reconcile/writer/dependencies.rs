//! Operations that wait for others, and what is closed because another operation was refused.
//!
//! One rule: what attracts clients to a frontend is written after all that serves them there, and
//! goes before it. Attractions are the address, the entry that lets clients past the access filter,
//! and the entry that leads from a frontend to its short circuit.
//!
//! - An operation whose need is pending becomes pending, too ([`hold`]), and is retried when that is
//!   resolved.
//! - A frontend whose address is local before its virtual server is made, or after it goes, is closed
//!   meanwhile ([`guards`]): its entry in `KUBE-NO-ENDPOINTS` has the rules refuse it.
//! - A frontend whose virtual server is refused is closed until a retry succeeds ([`closing`]).
//!   Clients are no longer led to a short circuit that turned out not to be there.

use std::net::IpAddr;

use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::{Entry, Frontend};
use plan::model::Family;
use plan::op::{Op, Phase, Subject};
use plan::planner::Planner;
use plan::sets::{SetId, SetKind};

use crate::kernel::RefusalClass;
use crate::reconcile::retry_queue::{Pending, RetryQueue};

/// An operation that closes something now, and the one that opens it when a subject is resolved.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) close: Op,
    pub(super) open: Op,
    pub(super) awaited: Subject,
}

/// Returns the entries that close frontends while their virtual servers are made.
pub(super) fn guards(planner: &Planner, retry_queue: &RetryQueue, ops: &[Op]) -> Vec<Op> {
    let mut frontends: Vec<Frontend> = ops
        .iter()
        .filter_map(|op| match op {
            Op::CreateVirtualServer(frontend, _) | Op::RemoveVirtualServer(frontend) => {
                Some(*frontend)
            }
            Op::AddEntry(set, Entry::AddressPort(frontend))
                if set.kind.admits() && is_missing(retry_queue, frontend) =>
            {
                Some(*frontend)
            }
            _ => None,
        })
        .collect();
    if frontends.is_empty() {
        return Vec::new();
    }
    frontends.sort_unstable();
    frontends.dedup();
    let is_bind = |op: &&Op| matches!(op, Op::BindAddress(_));
    let bound: HashSet<Subject> = ops.iter().filter(is_bind).map(Op::subject).collect();
    let closed: HashSet<Subject> =
        ops.iter().filter(|op| closes(op).is_some()).map(Op::subject).collect();
    frontends.retain(|frontend| {
        let is_local = planner.settings().is_routed(frontend.address)
            || planner.desired().has_address(frontend.address)
                && !bound.contains(&Subject::Address(frontend.address));
        let guard = closed_by(*frontend).subject();
        is_local
            && !is_short_circuit(planner, frontend)
            && !closed.contains(&guard)
            && !is_closed(retry_queue, frontend)
    });
    frontends.into_iter().map(closed_by).collect()
}

/// Returns the operations that open again what these close though it is not desired.
pub(super) fn openings<'a>(planner: &Planner, ops: impl Iterator<Item = &'a Op>) -> Vec<Op> {
    let is_guard = |op: &&Op| match op {
        Op::AddEntry(set, entry) => {
            set.kind == SetKind::NoEndpoints && !planner.desired().has_entry(*set, entry)
        }
        _ => false,
    };
    ops.filter(is_guard).map(opposite).collect()
}

/// Sorts operations into stages. What an operation may wait for is in an earlier one. In the last one,
/// frontends are opened.
pub(super) fn stages(ops: Vec<Op>) -> [Vec<Op>; Phase::STAGES.len() + 2] {
    let mut stages = <[Vec<Op>; Phase::STAGES.len() + 2]>::default();
    for op in ops {
        let opens = matches!(op, Op::RemoveEntry(..)) && closes(&op).is_some();
        let at = Phase::STAGES.partition_point(|last| *last < op.phase()) + usize::from(opens);
        if let Some(stage) = stages.get_mut(at) {
            stage.push(op);
        }
    }
    stages
}

/// True if an entry that is not desired closes a frontend until its virtual server is there.
pub(super) fn is_guard(retry_queue: &RetryQueue, set: SetId, entry: &Entry) -> bool {
    let Entry::AddressPort(frontend) = entry else { return false };
    set.kind == SetKind::NoEndpoints
        && is_missing(retry_queue, frontend)
        && refused_guard(retry_queue, frontend).is_some()
}

/// Returns what has to be closed because of operations that were refused, and is not closed yet.
/// `about`: subjects of operations to come.
pub(super) fn closing(
    planner: &Planner,
    retry_queue: &RetryQueue,
    failed: &HashSet<Subject>,
    about: &HashSet<Subject>,
) -> Vec<Closing> {
    let networks = &planner.settings().short_circuit_networks;
    let (mut closing, mut missing) = (Vec::new(), HashSet::default());
    for subject in failed {
        match retry_queue.get(subject).map(|pending| &pending.op) {
            Some(Op::CreateVirtualServer(frontend, _)) if !is_short_circuit(planner, frontend) => {
                let close = closed_by(*frontend);
                let open = opposite(&close);
                closing.push(Closing { close, open, awaited: *subject });
            }
            Some(Op::CreateVirtualServer(..)) => drop(missing.insert(*subject)),
            Some(Op::BindAddress(address)) if networks.around(*address).is_some() => {
                missing.insert(*subject);
            }
            _ => {}
        }
    }
    if !missing.is_empty() {
        for (set, entry) in planner.leading_to(&missing) {
            let needed = planner.led_to(set, &entry);
            let needed = needed.iter().flat_map(|it| planner.needed_at(it));
            let Some(awaited) = needed.into_iter().find(|it| missing.contains(it)) else {
                continue;
            };
            let open = Op::AddEntry(set, entry);
            closing.push(Closing { close: Op::RemoveEntry(set, entry), open, awaited });
        }
    }
    closing.retain(|it| {
        let subject = it.close.subject();
        !about.contains(&subject) && !retry_queue.contains(&subject)
    });
    closing.sort_unstable_by_key(|it| it.close.subject());
    closing
}

/// Returns the subjects of operations that open or close something by themselves.
pub(super) fn subjects_that_close(ops: &[Op]) -> HashSet<Subject> {
    let is_about = |op: &&Op| op.leads_to_short_circuits() || closes(op).is_some();
    ops.iter().filter(is_about).map(Op::subject).collect()
}

/// Holds back operations whose need is pending, and others of the same subject. Adds the subjects of
/// virtual servers among them to `failed`.
pub(super) fn hold(
    planner: &Planner,
    retry_queue: &mut RetryQueue,
    ops: &mut Vec<Op>,
    failed: &mut HashSet<Subject>,
) {
    if retry_queue.is_empty() {
        return;
    }
    let leading = leading_to_former(planner, retry_queue);
    let mut held = HashSet::default();
    ops.retain_mut(|op| {
        let subject = op.subject();
        if !held.contains(&subject) {
            let Some(awaited) = awaited(planner, retry_queue, &leading, op) else { return true };
            if op.leads_to_short_circuits()
                && matches!(op, Op::AddEntry(..))
                && retry_queue.get(&subject).is_some_and(may_be_there)
            {
                // It may lead there all the same.
                *op = opposite(op);
                return true;
            }
            retry_queue.wait_for(op.clone(), awaited);
            if matches!(op, Op::CreateVirtualServer(..)) {
                failed.insert(subject);
            }
            held.insert(subject);
        }
        false
    });
}

/// True if an operation may have to wait for one of an earlier stage.
pub(super) fn may_wait(planner: &Planner, op: &Op) -> bool {
    let networks = &planner.settings().short_circuit_networks;
    match op {
        Op::CreateVirtualServer(..) | Op::BindAddress(_) => true,
        Op::AddEntry(set, _) => set.kind.leads_to_short_circuits() || set.kind.admits(),
        Op::RemoveEntry(set, entry) => {
            closes(op).is_some()
                || set.kind == SetKind::IpvsAddresses
                || !planner.marked_by(*set, entry).is_empty()
        }
        Op::RemoveVirtualServer(frontend) => networks.around(frontend.address).is_some(),
        Op::UnbindAddress(address) => networks.around(*address).is_some(),
        _ => false,
    }
}

/// Returns a pending subject that an operation has to wait for.
fn awaited(
    planner: &Planner,
    retry_queue: &RetryQueue,
    leading: &HashMap<Subject, Subject>,
    op: &Op,
) -> Option<Subject> {
    let is_pending = |it: &Subject| retry_queue.contains(it);
    match op {
        // Without a marker it would stay for ever if its Service went while no process ran.
        Op::CreateVirtualServer(frontend, _) => planner
            .markers_of(frontend)
            .find(is_pending)
            .or_else(|| refused_guard(retry_queue, frontend)),
        Op::BindAddress(address) => {
            let filtered = filtered_by(*address);
            let is_of_short_circuits =
                planner.settings().short_circuit_networks.around(*address).is_some();
            if is_pending(&filtered) {
                Some(filtered)
            } else if is_of_short_circuits {
                // Nothing leads there yet.
                None
            } else {
                unserved(planner, retry_queue, *address)
            }
        }
        Op::AddEntry(set, entry) if set.kind.leads_to_short_circuits() => {
            let short_circuit = planner.led_to(*set, entry)?;
            planner.needed_at(&short_circuit).find(is_pending)
        }
        Op::AddEntry(set, Entry::AddressPort(frontend)) if set.kind.admits() => {
            refused_guard(retry_queue, frontend)
        }
        Op::RemoveEntry(set, Entry::Address(address)) if set.kind == SetKind::IpvsAddresses => {
            // Without the entry, the filter would let clients of the address to the node's ports.
            Some(Subject::Address(*address)).filter(is_pending)
        }
        Op::RemoveEntry(..) => {
            let closed = closes(op).filter(|frontend| is_missing(retry_queue, frontend));
            let closed = closed.filter(|it| planner.desired().owner(it).is_some());
            let unmarked = planner.unmarked_by(op).into_iter().chain(closed);
            // After a restart, a virtual server without a marker would not be known as kube-ipvs's.
            let servers = unmarked.map(Subject::VirtualServer);
            let admitting = closes(op).into_iter().flat_map(admitted_by);
            servers.chain(admitting).find(is_pending)
        }
        Op::RemoveVirtualServer(_) | Op::UnbindAddress(_) => leading.get(&op.subject()).copied(),
        _ => None,
    }
}

/// Returns a virtual server whose absence keeps an address from being bound: none of those at the
/// address is there, or one that is not there is not closed.
fn unserved(planner: &Planner, retry_queue: &RetryQueue, address: IpAddr) -> Option<Subject> {
    let missing: Vec<Frontend> = retry_queue.missing_at(address).collect();
    let first = *missing.first()?;
    let open = missing.iter().find(|it| !is_closed(retry_queue, it));
    let is_there = |frontend: &Frontend| !is_missing(retry_queue, frontend);
    match open {
        None if planner.others_at(&missing).any(|it| is_there(&it)) => None,
        open => Some(Subject::VirtualServer(*open.unwrap_or(&first))),
    }
}

/// Virtual servers and addresses of short circuits that no Service has any more, each with the
/// pending entry that may still lead clients there.
fn leading_to_former(planner: &Planner, retry_queue: &RetryQueue) -> HashMap<Subject, Subject> {
    let mut leading = HashMap::default();
    for (subject, _) in retry_queue.leading().filter(|(_, it)| may_be_there(it)) {
        let Subject::Entry(set, entry) = subject else { continue };
        let Some(short_circuit) = planner.led_to(*set, entry) else { continue };
        if planner.desired().owner(&short_circuit).is_none() {
            leading.insert(Subject::VirtualServer(short_circuit), *subject);
            leading.insert(Subject::Address(short_circuit.address), *subject);
        }
    }
    leading
}

/// The operation that has the rules refuse a frontend.
fn closed_by(frontend: Frontend) -> Op {
    let set = SetId { kind: SetKind::NoEndpoints, family: frontend.family() };
    Op::AddEntry(set, Entry::AddressPort(frontend))
}

/// The opposite of an operation on an entry.
fn opposite(op: &Op) -> Op {
    match op {
        Op::AddEntry(set, entry) => Op::RemoveEntry(*set, *entry),
        Op::RemoveEntry(set, entry) => Op::AddEntry(*set, *entry),
        other => other.clone(),
    }
}

/// The frontend that an operation on an entry has the rules refuse, or no longer refuse.
fn closes(op: &Op) -> Option<Frontend> {
    match op {
        Op::AddEntry(set, Entry::AddressPort(frontend))
        | Op::RemoveEntry(set, Entry::AddressPort(frontend)) => {
            let closes = matches!(set.kind, SetKind::NoEndpoints | SetKind::NoLocalEndpoints);
            closes.then_some(*frontend)
        }
        _ => None,
    }
}

/// The entry by which the access filter knows an address.
fn filtered_by(address: IpAddr) -> Subject {
    let family = Family::of(address);
    Subject::Entry(SetId { kind: SetKind::IpvsAddresses, family }, Entry::Address(address))
}

/// The entries that let clients past the access filter to a frontend.
fn admitted_by(frontend: Frontend) -> impl Iterator<Item = Subject> {
    let sets = SetId::all(frontend.family()).filter(|set| set.kind.admits());
    sets.map(move |set| Subject::Entry(set, Entry::AddressPort(frontend)))
}

/// True if a virtual server could not be made.
fn is_missing(retry_queue: &RetryQueue, frontend: &Frontend) -> bool {
    let pending = retry_queue.get(&Subject::VirtualServer(*frontend));
    pending.is_some_and(|pending| matches!(pending.op, Op::CreateVirtualServer(..)))
}

/// True if a frontend is closed until its virtual server is there.
fn is_closed(retry_queue: &RetryQueue, frontend: &Frontend) -> bool {
    let guard = retry_queue.get(&closed_by(*frontend).subject());
    guard.is_some_and(|pending| matches!(pending.op, Op::RemoveEntry(..)))
}

/// The entry that should have closed a frontend, if it was refused.
fn refused_guard(retry_queue: &RetryQueue, frontend: &Frontend) -> Option<Subject> {
    let guard = closed_by(*frontend).subject();
    let pending = retry_queue.get(&guard)?;
    matches!(pending.op, Op::AddEntry(..)).then_some(guard)
}

fn is_short_circuit(planner: &Planner, frontend: &Frontend) -> bool {
    planner.settings().short_circuit_networks.around(frontend.address).is_some()
}

/// True if an entry with a pending retry may be in its set.
fn may_be_there(pending: &Pending) -> bool {
    matches!(pending.op, Op::RemoveEntry(..)) || pending.refusal.class == RefusalClass::AnswerLost
}
