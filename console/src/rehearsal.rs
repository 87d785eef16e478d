//! Rehearsal of a change: what it would write, found out beside the loop.
//!
//! The loop lends copies of the Services that the change may be about, some at a time. They are
//! planned here, so that the loop's own planner knows nothing of it (`plan::preview`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use plan::chains::ChainOp;
use plan::event::Event;
use plan::hash::HashMap;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Protocol, Service, ServiceName};
use plan::op::{Op, Subject};
use plan::planner::Planner;
use plan::preview::{Preview, Previewed};

use super::comparison::services_by_address;
use super::words::{Beside, Described, as_desired, describe};
use reconcile::inquiry::{CHUNK, Inquiries, LoopGone, View};

/// Most Services that are planned for a rehearsal.
pub const MOST_SERVICES: usize = 4_096;

/// Result of a rehearsal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rehearsed {
    /// Operations, in the order in which they would be written.
    pub operations: Vec<Rehearsal>,
    /// The Services that the change is about.
    pub services: Vec<ServiceName>,
    /// Problems that the Services would have, and do not have now.
    pub problems: Vec<String>,
}

/// An operation in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rehearsal {
    /// The operation.
    pub op: Op,
    /// The same in words; what the kernel has is what it should have now.
    pub described: Described,
    /// The Services that it is for.
    pub services: Vec<ServiceName>,
}

/// Reason for which there is no rehearsal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RehearsalError {
    /// The loop does not answer.
    #[error(transparent)]
    LoopGone(#[from] LoopGone),
    /// The Services have not been delivered yet, or are not written yet.
    #[error(
        "the kernel is not in sync for the first time yet, so a change cannot be planned; kube-ipvs \
         status says what it waits for"
    )]
    NotInSync,
    /// The change is about too many Services.
    #[error(
        "the change is about more than {MOST_SERVICES} Services, with those that claim the same \
         addresses and ports; plan fewer manifests at once"
    )]
    TooMany,
    /// Planning has panicked.
    #[error("planning has met a bug; please report the panic in the log of kube-ipvs: {0}")]
    Panicked(String),
}

/// Returns these Services as the loop has them, as far as there are.
pub async fn present(
    inquiries: &Inquiries,
    names: &[ServiceName],
) -> Result<BTreeMap<ServiceName, Service>, LoopGone> {
    let mut present = BTreeMap::new();
    for chunk in names.chunks(CHUNK) {
        let chunk = chunk.to_vec();
        let found = inquiries.ask(move |view| {
            let there = |name: ServiceName| {
                let service = view.planner.service(&name)?.clone();
                Some((name, service))
            };
            chunk.into_iter().filter_map(there).collect::<Vec<_>>()
        });
        present.extend(found.await?);
    }
    Ok(present)
}

/// Finds out what these events would do, which are about Services and slices.
pub async fn rehearse(
    inquiries: &Inquiries,
    events: Vec<Event>,
) -> Result<Rehearsed, RehearsalError> {
    let base = inquiries.ask(|view| view.status.in_sync_once.then(|| view.planner.excerpt()));
    let base = base.await?.ok_or(RehearsalError::NotInSync)?;
    let concerned = concerned_by(inquiries, &events).await?;
    let mut missing = concerned.clone();
    let mut preview = Preview::new(base, events);
    loop {
        if preview.n_services() + missing.len() > MOST_SERVICES {
            return Err(RehearsalError::TooMany);
        }
        take(inquiries, &mut preview, std::mem::take(&mut missing)).await?;
        let planned = tokio::task::spawn_blocking(move || {
            let previewed = preview.plan();
            (preview, previewed)
        });
        let (returned, previewed) =
            planned.await.map_err(|error| RehearsalError::Panicked(error.to_string()))?;
        preview = returned;
        let claimed: Vec<Frontend> = previewed.claimed(&preview).into_iter().collect();
        missing = claimants(inquiries, claimed).await?;
        missing.retain(|name| !preview.has(name));
        if missing.is_empty() {
            let ops = without_shared(inquiries, &previewed).await?;
            return Ok(Rehearsed::new(previewed, ops, concerned));
        }
    }
}

async fn concerned_by(
    inquiries: &Inquiries,
    events: &[Event],
) -> Result<BTreeSet<ServiceName>, LoopGone> {
    let mut concerned = BTreeSet::new();
    for chunk in events.chunks(CHUNK) {
        let chunk = chunk.to_vec();
        let names = inquiries.ask(move |view| {
            let each = chunk.iter().filter_map(|event| view.planner.concerned_by(event));
            each.flatten().collect::<Vec<ServiceName>>()
        });
        concerned.extend(names.await?);
    }
    Ok(concerned)
}

/// Has the preview take these Services.
async fn take(
    inquiries: &Inquiries,
    preview: &mut Preview,
    names: BTreeSet<ServiceName>,
) -> Result<(), LoopGone> {
    let names: Vec<ServiceName> = names.into_iter().collect();
    for chunk in names.chunks(CHUNK) {
        let chunk = chunk.to_vec();
        let inputs = inquiries.ask(move |view| {
            let input = |name: ServiceName| {
                let input = view.planner.input_of(&name);
                (name, input)
            };
            chunk.into_iter().map(input).collect::<Vec<_>>()
        });
        for (name, input) in inputs.await? {
            preview.take(name, input);
        }
    }
    Ok(())
}

async fn claimants(
    inquiries: &Inquiries,
    frontends: Vec<Frontend>,
) -> Result<BTreeSet<ServiceName>, LoopGone> {
    let mut claimants = BTreeSet::new();
    for chunk in frontends.chunks(CHUNK) {
        let chunk = chunk.to_vec();
        let names = inquiries.ask(move |view: &View<'_>| {
            let each = chunk.iter().flat_map(|frontend| view.planner.claimants_of(frontend));
            each.collect::<Vec<ServiceName>>()
        });
        claimants.extend(names.await?);
    }
    Ok(claimants)
}

/// Returns the operations on what no other Service needs.
async fn without_shared(inquiries: &Inquiries, previewed: &Previewed) -> Result<Vec<Op>, LoopGone> {
    let mut ops = Vec::with_capacity(previewed.plan.ops.len());
    for chunk in previewed.plan.ops.chunks(CHUNK) {
        let subjects: Arc<[Subject]> = chunk.iter().map(Op::subject).collect();
        let users = inquiries.ask(move |view| {
            subjects.iter().map(|subject| view.planner.n_users(subject)).collect::<Vec<u32>>()
        });
        let each = chunk.iter().zip(users.await?);
        let own = each.filter(|(op, n_users)| !previewed.is_needed_elsewhere(op, *n_users));
        ops.extend(own.map(|(op, _)| op.clone()));
    }
    Ok(ops)
}

impl Rehearsed {
    /// Describes what a change does that was planned by these planners, before and after it.
    #[must_use]
    pub fn new(previewed: Previewed, mut ops: Vec<Op>, concerned: BTreeSet<ServiceName>) -> Self {
        let Previewed { plan, before, after } = previewed;
        before.insert_growth(&mut ops);
        let planners = [&after, &before];
        let by_address = planners.map(|planner| {
            let desired = planner.desired();
            services_by_address(desired.frontends().filter_map(|at| Some((at, desired.owner(at)?))))
        });
        let operations = ops.into_iter().map(|op| {
            let described = described(&op, &before);
            let services = services_of(&op, &planners, &by_address);
            Rehearsal { op, described, services }
        });
        let problems = plan.new_problems.into_iter().filter(|(name, _)| concerned.contains(name));
        let problems = problems.flat_map(|(name, problems)| {
            problems.into_iter().map(move |problem| format!("{name}: {problem}"))
        });
        Self {
            operations: operations.collect(),
            problems: problems.collect(),
            services: concerned.into_iter().collect(),
        }
    }
}

/// Returns the Services that an operation is for, by the first planner that knows, and for addresses
/// by these maps.
#[must_use]
pub fn services_of(
    op: &Op,
    planners: &[&Planner],
    by_address: &[HashMap<IpAddr, BTreeSet<ServiceName>>],
) -> Vec<ServiceName> {
    let subject = op.subject();
    if let Subject::Address(address) | Subject::Entry(_, Entry::Address(address)) = &subject {
        let each = by_address.iter().filter_map(|services| services.get(address));
        return each.flatten().collect::<BTreeSet<_>>().into_iter().cloned().collect();
    }
    planners.iter().find_map(|planner| planner.owner_of(&subject)).cloned().into_iter().collect()
}

/// Describes an operation on a kernel that is as planned now.
fn described(op: &Op, before: &Planner) -> Described {
    let virtual_server = match op.subject() {
        Subject::VirtualServer(frontend) => as_desired(before.desired().at(&frontend)),
        _ => None,
    };
    let set = match op {
        Op::GrowSet(set, _) => {
            Some((before.n_entries_there(*set), before.capacity(*set).entries()))
        }
        _ => None,
    };
    let has_chain = matches!(
        op,
        Op::Chain(ChainOp::Write(chain, _)) if before.desired_chains().digest(chain).is_some()
    );
    let virtual_server = virtual_server.map(Cow::Owned);
    let beside = Beside { virtual_server, set, has_chain, ..Beside::default() };
    let mut described = describe(op, &beside);
    if goes_when_drained(op) {
        described.desired = Some("nothing, when its connections have ended".to_owned());
    }
    described
}

/// True if connections go on for as long as they take, up to a deadline.
fn goes_when_drained(op: &Op) -> bool {
    match op {
        Op::RemoveRealServer(frontend, _) | Op::RemoveVirtualServerWhenDrained(frontend) => {
            frontend.protocol == Protocol::Tcp
        }
        _ => false,
    }
}
