//! Frontends at local addresses are closed while they are not served.
//!
//! The entry of a frontend lets clients past the access filter. At an address that is local they would
//! come to whatever listens at that port of the node, before the virtual server is there, when it has
//! gone, and for as long as the kernel refuses it. So the frontend is closed meanwhile, by an entry in
//! `KUBE-NO-ENDPOINTS`, and an address is bound when a virtual server at it is there.

use std::net::IpAddr;

use plan::hash::HashSet;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::Family;
use plan::op::{Op, Subject};
use plan::planner::Planner;
use plan::sets::{SetId, SetKind};

use super::{Basis, Writer};
use crate::kernel::worker::WorkerGone;
use crate::kernel::{Refusal, RefusalClass};
use crate::reconcile::context::Context;
use crate::reconcile::retry_queue::RetryQueue;

/// Sets whose entries have the access filter refuse frontends.
const CLOSING: [SetKind; 2] = [SetKind::NoEndpoints, SetKind::NoLocalEndpoints];

// === impl Writer ===

impl Writer {
    /// Closes the frontends at local addresses whose virtual servers operations make, or remove.
    /// Returns these two. Takes out of the operations what would open one that could not be closed.
    pub(super) async fn close(
        &mut self,
        cx: &mut Context,
        ops: &mut Vec<Op>,
        basis: Basis,
        failed: &mut HashSet<Subject>,
    ) -> Result<(Vec<Frontend>, Vec<Frontend>), WorkerGone> {
        let mut closed = to_close(&cx.planner, &self.retry_queue, ops);
        if closed.is_empty() {
            return Ok((closed, Vec::new()));
        }
        self.send(cx, closed.iter().map(close).collect(), basis, failed).await?;
        hold_open(&mut self.retry_queue, &mut closed, ops);
        let is_made = |frontend: &Frontend| cx.planner.desired().owner(frontend).is_some();
        Ok(closed.into_iter().partition(is_made))
    }

    /// Opens frontends whose virtual servers are there, or are not to be there any more.
    pub(super) async fn open(
        &mut self,
        cx: &mut Context,
        mut openings: Vec<Op>,
        basis: Basis,
        failed: &mut HashSet<Subject>,
    ) -> Result<(), WorkerGone> {
        await_servers(&mut self.retry_queue, &mut openings);
        self.send(cx, openings, basis, failed).await
    }
}

/// Returns the frontends at local addresses whose virtual servers these operations make, or remove.
fn to_close(planner: &Planner, retry_queue: &RetryQueue, ops: &[Op]) -> Vec<Frontend> {
    let is_concerned =
        |op: &&Op| matches!(op, Op::CreateVirtualServer(..) | Op::RemoveVirtualServer(_));
    if !ops.iter().any(|op| is_concerned(&op)) {
        return Vec::new();
    }
    let changed: HashSet<Subject> =
        ops.iter().filter(|op| is_address(op)).map(Op::subject).collect();
    let closed: HashSet<Frontend> = ops.iter().filter_map(closes).collect();
    let is_local = |address: IpAddr| {
        let subject = Subject::Address(address);
        let is_bound = planner.desired().has_address(address)
            && !changed.contains(&subject)
            && !retry_queue.contains(&subject);
        is_bound || planner.settings().is_routed(address)
    };
    let frontends = ops.iter().filter(is_concerned).filter_map(|op| match op.subject() {
        Subject::VirtualServer(frontend) => Some(frontend),
        _ => None,
    });
    let has = |it: &Frontend, kind| planner.desired().has_entry(set(kind, it), &entry(it));
    let is_open = |it: &Frontend| {
        is_local(it.address)
            && !is_short_circuit(planner, it)
            && !closed.contains(it)
            && !CLOSING.into_iter().any(|kind| has(it, kind))
            && !retry_queue.contains(&subject(it))
    };
    frontends.filter(is_open).collect()
}

/// Holds back what lets clients past the access filter to frontends that could not be closed, and with
/// it their virtual servers.
fn hold_open(retry_queue: &mut RetryQueue, closed: &mut Vec<Frontend>, ops: &mut Vec<Op>) {
    let open: HashSet<Frontend> =
        closed.extract_if(.., |it| retry_queue.contains(&subject(it))).collect();
    if open.is_empty() {
        return;
    }
    ops.retain(|op| {
        let Op::AddEntry(set, Entry::AddressPort(frontend)) = op else { return true };
        if !set.kind.admits() || !open.contains(frontend) {
            return true;
        }
        let closing = subject(frontend);
        let Some(due) = retry_queue.due_time(&closing) else { return true };
        let reason = format!("waits for {closing}, without which clients would reach the node");
        retry_queue.wait(op.clone(), Refusal::new(RefusalClass::Other, reason), due);
        false
    });
}

/// Returns the frontends that are to be closed because their virtual servers were refused just now.
/// `failed`: subjects of operations that were refused.
pub(super) fn refused(
    planner: &Planner,
    retry_queue: &RetryQueue,
    failed: &HashSet<Subject>,
) -> Vec<Frontend> {
    let frontends = failed.iter().filter_map(|subject| match subject {
        Subject::VirtualServer(frontend) => Some(*frontend),
        _ => None,
    });
    let mut frontends: Vec<Frontend> = frontends
        .filter(|it| {
            is_missing(retry_queue, it)
                && is_admitted(planner, it)
                && !retry_queue.contains(&subject(it))
        })
        .collect();
    frontends.sort_unstable();
    frontends
}

/// Holds back the opening of frontends whose virtual servers are not there. One that could not be
/// closed is closed instead.
fn await_servers(retry_queue: &mut RetryQueue, openings: &mut Vec<Op>) {
    openings.retain_mut(|op| {
        let Some(frontend) = opens(op).filter(|it| is_missing(retry_queue, it)) else {
            return true;
        };
        let server = Subject::VirtualServer(frontend);
        let Some(due) = retry_queue.due_time(&server) else { return true };
        let pending = retry_queue.get(&op.subject());
        if pending.is_some_and(|pending| matches!(pending.op, Op::AddEntry(..))) {
            *op = close(&frontend);
            return true;
        }
        let reason = format!("waits for {server}, without which clients would reach the node");
        retry_queue.wait(op.clone(), Refusal::new(RefusalClass::Other, reason), due);
        false
    });
}

/// Holds back addresses that the access filter does not know, and those at which clients would meet
/// nothing, or the node.
pub(super) fn hold_addresses(planner: &Planner, retry_queue: &mut RetryQueue, ops: &mut Vec<Op>) {
    if retry_queue.is_empty() {
        return;
    }
    ops.retain(|op| {
        let Op::BindAddress(address) = op else { return true };
        let Some(awaited) = awaited_at(planner, retry_queue, *address) else { return true };
        let Some(due) = retry_queue.due_time(&awaited) else { return true };
        let reason = format!("waits for {awaited}, without which clients would reach the node");
        retry_queue.wait(op.clone(), Refusal::new(RefusalClass::Other, reason), due);
        false
    });
}

/// Brings the retries forward of what may have waited for a subject, which has just been resolved.
pub(super) fn dependents(resolved: &Subject) -> Vec<Subject> {
    match resolved {
        Subject::VirtualServer(frontend) => {
            vec![subject(frontend), Subject::Address(frontend.address)]
        }
        Subject::Entry(set, Entry::Address(address)) if set.kind == SetKind::IpvsAddresses => {
            vec![Subject::Address(*address)]
        }
        Subject::Entry(set, Entry::AddressPort(frontend)) if set.kind == SetKind::NoEndpoints => {
            let admitting = SetId::all(set.family).filter(|set| set.kind.admits());
            let admitting = admitting.map(|set| Subject::Entry(set, entry(frontend)));
            admitting.chain([Subject::Address(frontend.address)]).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the operation that closes a frontend.
pub(super) fn close(frontend: &Frontend) -> Op {
    Op::AddEntry(set(SetKind::NoEndpoints, frontend), entry(frontend))
}

/// Returns the operation that opens a frontend that was closed.
pub(super) fn open(frontend: &Frontend) -> Op {
    Op::RemoveEntry(set(SetKind::NoEndpoints, frontend), entry(frontend))
}

/// Takes out the openings of frontends that no Service has.
pub(super) fn take_unwanted(planner: &Planner, openings: &mut Vec<Op>) -> Vec<Op> {
    let is_unwanted = |it: &Frontend| planner.desired().owner(it).is_none();
    openings.extract_if(.., |op| opens(op).as_ref().is_some_and(is_unwanted)).collect()
}

/// Returns the frontend that an operation opens.
pub(super) fn opens(op: &Op) -> Option<Frontend> {
    match op {
        Op::RemoveEntry(set, Entry::AddressPort(frontend)) if CLOSING.contains(&set.kind) => {
            Some(*frontend)
        }
        _ => None,
    }
}

fn closes(op: &Op) -> Option<Frontend> {
    match op {
        Op::AddEntry(set, Entry::AddressPort(frontend)) if CLOSING.contains(&set.kind) => {
            Some(*frontend)
        }
        _ => None,
    }
}

fn is_address(op: &Op) -> bool {
    matches!(op, Op::BindAddress(_) | Op::UnbindAddress(_))
}

fn set(kind: SetKind, frontend: &Frontend) -> SetId {
    SetId { kind, family: frontend.family() }
}

fn entry(frontend: &Frontend) -> Entry {
    Entry::AddressPort(*frontend)
}

/// The entry that closes a frontend.
fn subject(frontend: &Frontend) -> Subject {
    close(frontend).subject()
}

fn is_short_circuit(planner: &Planner, frontend: &Frontend) -> bool {
    planner.settings().short_circuit_networks.around(frontend.address).is_some()
}

/// True if the access filter lets clients past to a frontend.
fn is_admitted(planner: &Planner, frontend: &Frontend) -> bool {
    let mut admitting = SetId::all(frontend.family()).filter(|set| set.kind.admits());
    admitting.any(|set| planner.desired().has_entry(set, &entry(frontend)))
}

/// True if a virtual server could not be made.
fn is_missing(retry_queue: &RetryQueue, frontend: &Frontend) -> bool {
    let pending = retry_queue.get(&Subject::VirtualServer(*frontend));
    pending.is_some_and(|pending| matches!(pending.op, Op::CreateVirtualServer(..)))
}

/// Returns what an address has to wait for: the entry by which the access filter knows it, or a virtual
/// server if none at the address is there, or if one that is missing is not closed.
fn awaited_at(planner: &Planner, retry_queue: &RetryQueue, address: IpAddr) -> Option<Subject> {
    let family = Family::of(address);
    let filtered = SetId { kind: SetKind::IpvsAddresses, family };
    let filtered = Subject::Entry(filtered, Entry::Address(address));
    if retry_queue.contains(&filtered) {
        return Some(filtered);
    }
    if planner.settings().short_circuit_networks.around(address).is_some() {
        // Nothing leads there yet.
        return None;
    }
    let missing: Vec<Frontend> = retry_queue.missing_at(address).collect();
    let first = missing.first()?;
    let is_closed = |it: &&Frontend| {
        let closing = retry_queue.get(&subject(it));
        closing.is_some_and(|pending| matches!(pending.op, Op::RemoveEntry(..)))
    };
    match missing.iter().find(|it| !is_closed(it)) {
        None if planner.others_at(&missing).any(|it| !is_missing(retry_queue, &it)) => None,
        open => Some(Subject::VirtualServer(*open.unwrap_or(first))),
    }
}
