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
use plan::routes::RouteOp;
use plan::sets::{SetId, SetKind};

use super::{Basis, Writer};
use crate::context::Context;
use crate::retry_queue::RetryQueue;
use kernel::RefusalClass;
use kernel::worker::WorkerGone;

/// Reason that an operation waits which would open the node.
pub(super) const WHY: &str = ", without which clients would reach the node";

/// Operations that open frontends, taken out of others.
#[derive(Debug, Default)]
pub(super) struct Openings {
    /// To be written when what carries traffic is there.
    pub(super) served: Vec<Op>,
    /// To be written when everything else of the frontends has gone.
    pub(super) gone: Vec<Op>,
}

impl Writer {
    /// Closes the frontends at local addresses whose virtual servers operations make, or remove, and
    /// those that are to be closed. Takes the openings out of the operations, and what must not be done
    /// to a frontend that could not be closed.
    pub(super) async fn close(
        &mut self,
        cx: &mut Context,
        ops: &mut Vec<Op>,
        basis: Basis,
        failed: &mut HashSet<Subject>,
    ) -> Result<Openings, WorkerGone> {
        if cx.leads_by_rules() {
            return Ok(Openings::default());
        }
        let (made, removed) = to_close(&cx.planner, &self.retry_queue, ops);
        let closings: Vec<Op> = made.iter().chain(&removed).map(close).collect();
        if !closings.is_empty() || ops.iter().any(|op| closes(op).is_some()) {
            let again: HashSet<Subject> = closings.iter().map(Op::subject).collect();
            ops.retain(|op| !again.contains(&op.subject()));
            let is_first = |op: &Op| {
                op.is_prerequisite() || matches!(op, Op::GrowSet(..)) || closes(op).is_some()
            };
            let mut first: Vec<Op> = ops.extract_if(.., |op| is_first(op)).collect();
            first.extend(closings);
            self.send(cx, first, basis, failed).await?;
        }
        let planned: Vec<Op> = ops.extract_if(.., |op| opens(op).is_some()).collect();
        let is_wanted =
            |op: &Op| opens(op).is_some_and(|it| cx.planner.desired().owner(&it).is_some());
        let (mut served, mut gone): (Vec<Op>, Vec<Op>) = planned.into_iter().partition(is_wanted);
        let is_closed = |it: &&Frontend| !failed.contains(&subject(it));
        served.extend(made.iter().filter(is_closed).map(open));
        gone.extend(removed.iter().filter(is_closed).map(open));
        Ok(Openings { served, gone })
    }

    /// Closes the frontends whose virtual servers were refused just now. Returns their openings.
    /// `failed`: subjects of operations that were refused.
    pub(super) async fn close_refused(
        &mut self,
        cx: &mut Context,
        basis: Basis,
        failed: &mut HashSet<Subject>,
    ) -> Result<Vec<Op>, WorkerGone> {
        let mut refused = failed.iter().filter_map(virtual_server).collect::<Vec<Frontend>>();
        refused.retain(|it| {
            is_missing(&self.retry_queue, it)
                && is_admitted(&cx.planner, it)
                && !self.retry_queue.contains(&subject(it))
        });
        refused.sort_unstable();
        self.send(cx, refused.iter().map(close).collect(), basis, failed).await?;
        refused.retain(|it| !failed.contains(&subject(it)));
        Ok(refused.iter().map(open).collect())
    }

    /// Opens frontends, apart from those at which clients would come to the node. Of these, one that
    /// could not be closed is closed now.
    pub(super) async fn open(
        &mut self,
        cx: &mut Context,
        mut openings: Vec<Op>,
        basis: Basis,
        failed: &mut HashSet<Subject>,
    ) -> Result<(), WorkerGone> {
        let mut unclosed = Vec::new();
        if !self.retry_queue.is_empty() {
            openings.retain_mut(|op| {
                let Some(awaited) = awaited_by(&cx.planner, &self.retry_queue, op) else {
                    return true;
                };
                if is_unclosed(&self.retry_queue, &op.subject()) {
                    unclosed.push((op.clone(), awaited));
                    let Op::RemoveEntry(set, entry) = *op else { return true };
                    *op = Op::AddEntry(set, entry);
                    return true;
                }
                self.retry_queue.wait(op.clone(), &awaited, WHY);
                false
            });
        }
        self.send(cx, openings, basis, failed).await?;
        for (op, awaited) in unclosed {
            if !failed.contains(&op.subject()) {
                self.retry_queue.wait(op, &awaited, WHY);
            }
        }
        Ok(())
    }
}

/// Returns the frontends at local addresses whose virtual servers these operations make, and those of
/// which they remove them.
fn to_close(
    planner: &Planner,
    retry_queue: &RetryQueue,
    ops: &[Op],
) -> (Vec<Frontend>, Vec<Frontend>) {
    let concerned: Vec<(Frontend, bool)> = ops
        .iter()
        .filter_map(|op| match op {
            Op::CreateVirtualServer(frontend, _) => Some((*frontend, true)),
            Op::RemoveVirtualServer(frontend) => Some((*frontend, false)),
            Op::AddEntry(set, Entry::AddressPort(frontend))
                if set.kind.admits() && is_missing(retry_queue, frontend) =>
            {
                Some((*frontend, true))
            }
            _ => None,
        })
        .collect();
    if concerned.is_empty() {
        return Default::default();
    }
    let is_address = |op: &&Op| matches!(op, Op::BindAddress(_) | Op::UnbindAddress(_));
    let changed: HashSet<Subject> = ops.iter().filter(is_address).map(Op::subject).collect();
    let planned: HashSet<Frontend> = ops.iter().filter_map(closes).collect();
    let is_local = |address: IpAddr| {
        let at = Subject::Address(address);
        let is_bound = match retry_queue.get(&at) {
            Some(pending) => pending.refusal.class == RefusalClass::AnswerLost,
            None => planner.desired().has_address(address) && !changed.contains(&at),
        };
        is_bound || planner.settings().is_routed(address)
    };
    let mut seen = HashSet::default();
    let is_open = |(it, _): &(Frontend, bool)| {
        is_local(it.address)
            && !planner.is_internal_frontend(it)
            && !planned.contains(it)
            && !closing_sets(it).any(|set| planner.desired().has_entry(set, &entry(it)))
            && !is_closed(retry_queue, it)
            && seen.insert(*it)
    };
    let open: Vec<(Frontend, bool)> = concerned.into_iter().filter(is_open).collect();
    let (made, removed): (Vec<_>, Vec<_>) = open.into_iter().partition(|(_, is_made)| *is_made);
    let frontends = |of: Vec<(Frontend, bool)>| of.into_iter().map(|(it, _)| it).collect();
    (frontends(made), frontends(removed))
}

/// Returns the entry that should close a frontend and could not be added.
pub(super) fn unclosed(retry_queue: &RetryQueue, frontend: &Frontend) -> Option<Subject> {
    let mut closings = closing_sets(frontend).map(|set| Subject::Entry(set, entry(frontend)));
    closings.find(|it| is_unclosed(retry_queue, it))
}

/// Returns the address that could not be unbound, or the local route that could not be removed, by which clients still
/// come to an address.
pub(super) fn still_local(retry_queue: &RetryQueue, address: IpAddr) -> Option<Subject> {
    let at = Subject::Address(address);
    let is_bound = retry_queue.get(&at).is_some_and(|pending| unbinds(&pending.op));
    let mut routes = retry_queue.removed_routes();
    let route = || routes.find(|net| net.contains(&address)).map(Subject::Route);
    is_bound.then_some(at).or_else(route)
}

/// True if an operation ends that an address, or a network, is local.
pub(super) fn unbinds(op: &Op) -> bool {
    matches!(op, Op::UnbindAddress(_) | Op::Route(RouteOp::Remove(_)))
}

/// Brings the retries forward of what may have waited for a subject, which has just been resolved.
pub(super) fn dependents(planner: &Planner, resolved: &Subject) -> Vec<Subject> {
    match resolved {
        Subject::VirtualServer(frontend) => {
            vec![subject(frontend), Subject::Address(frontend.address)]
        }
        Subject::Entry(set, Entry::Address(address)) if set.kind == SetKind::IpvsAddresses => {
            vec![Subject::Address(*address)]
        }
        Subject::Entry(set, Entry::AddressPort(frontend)) if set.kind.admits() => {
            closing_sets(frontend).map(|set| Subject::Entry(set, entry(frontend))).collect()
        }
        Subject::Entry(set, at @ Entry::AddressPort(frontend))
            if set.kind.closes() && planner.desired().has_entry(*set, at) =>
        {
            let of_it = [Subject::VirtualServer(*frontend), Subject::Address(frontend.address)];
            admitting(frontend).chain(of_it).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns what the opening of a frontend has to wait for: its virtual server, or an entry that closes
/// it instead; or if no Service has it, the removals of its virtual server, which the entry marks as
/// ours, and of what lets clients past the access filter.
fn awaited_by(planner: &Planner, retry_queue: &RetryQueue, opening: &Op) -> Option<Subject> {
    let frontend = opens(opening)?;
    let server = Subject::VirtualServer(frontend);
    let is_wanted = planner.desired().owner(&frontend).is_some();
    if is_missing(retry_queue, &frontend) || !is_wanted && retry_queue.contains(&server) {
        return Some(server);
    }
    let closings = closing_sets(&frontend)
        .filter(|set| planner.desired().has_entry(*set, &entry(&frontend)))
        .map(|set| Subject::Entry(set, entry(&frontend)));
    let unclosed = { closings }.find(|it| is_unclosed(retry_queue, it));
    let mut admitting = admitting(&frontend).filter(|it| !is_wanted && retry_queue.contains(it));
    unclosed.or_else(|| admitting.next())
}

/// Returns what an address has to wait for: the entry by which the access filter knows it, or one that
/// closes a frontend; or a virtual server that is missing and not closed, or one of those that are if no
/// Service needs the address for anything else.
///
/// An address at which everything is closed opens nothing. But nothing is served there, and without it
/// clients on this node may come to the address outside: a load balancer, or another node that serves it.
pub(super) fn awaited_at(
    planner: &Planner,
    retry_queue: &RetryQueue,
    address: IpAddr,
) -> Option<Subject> {
    let filtered = SetId { kind: SetKind::IpvsAddresses, family: Family::of(address) };
    let filtered = Subject::Entry(filtered, Entry::Address(address));
    if retry_queue.contains(&filtered) {
        return Some(filtered);
    }
    let mut missing = Vec::new();
    for unserved in retry_queue.unserved_at(address) {
        match unserved {
            // Nothing leads to an internal frontend yet.
            Subject::VirtualServer(frontend) if planner.is_internal_frontend(&frontend) => {}
            Subject::VirtualServer(frontend) => missing.push(frontend),
            Subject::Entry(set, entry) if planner.desired().has_entry(set, &entry) => {
                return Some(unserved);
            }
            _ => {}
        }
    }
    let first = missing.first()?;
    match missing.iter().find(|it| !is_closed(retry_queue, it)) {
        None if planner.is_needed_by_others(address, &missing)
            || planner.others_at(&missing).any(|it| !is_missing(retry_queue, &it)) =>
        {
            None
        }
        open => Some(Subject::VirtualServer(*open.unwrap_or(first))),
    }
}

/// Returns the operation that closes a frontend.
fn close(frontend: &Frontend) -> Op {
    Op::AddEntry(closing_set(frontend), entry(frontend))
}

/// Returns the operation that opens a frontend that was closed.
fn open(frontend: &Frontend) -> Op {
    Op::RemoveEntry(closing_set(frontend), entry(frontend))
}

/// Returns the frontend that an operation opens.
pub(super) fn opens(op: &Op) -> Option<Frontend> {
    match op {
        Op::RemoveEntry(set, Entry::AddressPort(frontend)) if set.kind.closes() => Some(*frontend),
        _ => None,
    }
}

/// Returns the frontend that an operation closes.
fn closes(op: &Op) -> Option<Frontend> {
    match op {
        Op::AddEntry(set, Entry::AddressPort(frontend)) if set.kind.closes() => Some(*frontend),
        _ => None,
    }
}

fn closing_set(frontend: &Frontend) -> SetId {
    SetId { kind: SetKind::NoEndpoints, family: frontend.family() }
}

fn closing_sets(frontend: &Frontend) -> impl Iterator<Item = SetId> + use<> {
    SetId::all(frontend.family()).filter(|set| set.kind.closes())
}

/// The entries by which the access filter lets clients past to a frontend.
fn admitting(frontend: &Frontend) -> impl Iterator<Item = Subject> + use<> {
    let entry = entry(frontend);
    let sets = SetId::all(frontend.family()).filter(|set| set.kind.admits());
    sets.map(move |set| Subject::Entry(set, entry))
}

fn entry(frontend: &Frontend) -> Entry {
    Entry::AddressPort(*frontend)
}

/// The entry that closes a frontend.
fn subject(frontend: &Frontend) -> Subject {
    Subject::Entry(closing_set(frontend), entry(frontend))
}

fn virtual_server(subject: &Subject) -> Option<Frontend> {
    match subject {
        Subject::VirtualServer(frontend) => Some(*frontend),
        _ => None,
    }
}

/// True if the access filter is to let clients past to a frontend.
fn is_admitted(planner: &Planner, frontend: &Frontend) -> bool {
    let mut sets = SetId::all(frontend.family()).filter(|set| set.kind.admits());
    sets.any(|set| planner.desired().has_entry(set, &entry(frontend)))
}

/// True if a virtual server could not be made.
fn is_missing(retry_queue: &RetryQueue, frontend: &Frontend) -> bool {
    let pending = retry_queue.get(&Subject::VirtualServer(*frontend));
    pending.is_some_and(|pending| matches!(pending.op, Op::CreateVirtualServer(..)))
}

/// True if a frontend was closed, and its opening waits.
fn is_closed(retry_queue: &RetryQueue, frontend: &Frontend) -> bool {
    retry_queue.get(&subject(frontend)).is_some_and(|pending| {
        matches!(pending.op, Op::RemoveEntry(..))
            && pending.refusal.class != RefusalClass::AnswerLost
    })
}

/// True if an entry that closes a frontend could not be added.
fn is_unclosed(retry_queue: &RetryQueue, closing: &Subject) -> bool {
    let pending = retry_queue.get(closing);
    pending.is_some_and(|pending| matches!(pending.op, Op::AddEntry(..)))
}
