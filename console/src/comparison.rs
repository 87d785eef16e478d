//! Comparison of the kernel with the plan, part by part, by sockets of its own.
//!
//! The plan is the running loop's, or that of a planner that has planned what a source delivers. A loop may write
//! between a reading of the kernel and the question about it. So what differs is looked at twice then, and only
//! what differs both times counts.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use plan::chains::{ActualChains, ChainId, ChainScope};
use plan::comparison::{Part, Reading, marker_removals};
use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Family, ServiceName};
use plan::op::{Op, Subject};
use plan::planner::Planner;
use plan::rule_set::RuleSet;
use plan::settings::Settings;
use tokio::time::Instant;

use super::words::{Beside, Described, describe};
use kernel::ReadError;
use kernel::reader::{KernelReader, Readings};
use kernel::sysctl::Sysctl;
use reconcile::differences::{Difference, Standing};
use reconcile::inquiry::{CHUNK, Inquiries, LoopGone, View};

/// A comparison of the kernel with the plan.
#[derive(Debug)]
pub struct Comparison {
    plan: Plan,
    reader: Arc<Mutex<KernelReader>>,
}

/// The plan that the kernel is compared with.
#[derive(Debug)]
pub enum Plan {
    /// The running loop's.
    OfLoop(Inquiries),
    /// A planner's, which has planned everything: no program runs.
    AtStart(Box<Planner>),
}

/// Result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Compared {
    /// Differences, by the parts of the kernel: at most [`MOST_DIFFERENCES`].
    pub differences: Vec<Found>,
    /// Number of further differences, of which some may be among those already.
    pub n_more: usize,
    /// Sysctls that have another value than they should, each with that.
    pub sysctls: Vec<(Sysctl, Option<String>)>,
    /// Number of Services whose changes are not planned yet: the plan is without them.
    pub n_waiting: usize,
    /// Parts that could not be read, each with the reason: the first ones.
    pub unread: Vec<String>,
    /// Number of further ones.
    pub n_more_unread: usize,
    /// True if no program runs: one ends the differences when it starts.
    pub is_at_start: bool,
}

/// A difference in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub difference: Difference,
    /// The same in words.
    pub described: Described,
    /// The Services that ask for its object.
    pub services: Vec<ServiceName>,
}

/// Reason for which there is no comparison.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComparisonError {
    /// The loop does not answer.
    #[error(transparent)]
    LoopGone(#[from] LoopGone),
    /// The kernel has not been taken over yet, so that the plan is not whole.
    #[error(
        "nothing to compare yet: the first sync with the kernel is not done; kube-ipvs status \
         names what it waits for"
    )]
    NotInSync,
    /// Nothing of the kernel could be read.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
}

type ServicesByAddress = HashMap<IpAddr, BTreeSet<ServiceName>>;

/// Most differences that are kept.
pub const MOST_DIFFERENCES: usize = 10_000;

/// Most parts that could not be read of which the reasons are kept.
const MOST_UNREAD: usize = 100;

/// Most frontends that one question copies, but for those of its last Service.
const MOST_FRONTENDS: usize = 4_096;

/// Outline of the plan, before anything is compared.
struct Outline {
    settings: Settings,
    rule_sets: Vec<RuleSet>,
    /// The frontends that Services own.
    owners: HashMap<Frontend, ServiceName>,
    services_with_chains: Vec<ServiceName>,
    n_waiting: usize,
}

/// Services that follow one another by name, and what they own.
#[derive(Default)]
struct OwnedPart {
    owners: Vec<(Frontend, ServiceName)>,
    with_chains: Vec<ServiceName>,
    /// The last of the Services; none: there are no more.
    last: Option<ServiceName>,
}

/// Differences of one pass.
#[derive(Default)]
struct Gathered {
    found: Vec<(Difference, Described)>,
    /// The operations, so that none is there twice.
    seen: HashSet<String>,
    /// Number of those that were found and are not kept.
    n_more: usize,
    unread: Vec<String>,
    n_more_unread: usize,
}

impl Comparison {
    /// A comparison of a plan with what this reader reads.
    #[must_use]
    pub fn new(plan: Plan, reader: KernelReader) -> Self {
        Self { plan, reader: Arc::new(Mutex::new(reader)) }
    }

    /// Compares everything, twice if something differs and could have been written meanwhile.
    ///
    /// # Errors
    /// When nothing could be read, or the loop could not be asked.
    pub async fn run(&self) -> Result<Compared, ComparisonError> {
        let first = self.pass().await?;
        if first.differences.is_empty() || matches!(self.plan, Plan::AtStart(_)) {
            return Ok(first);
        }
        let before: HashSet<String> = first.differences.iter().map(Found::identity).collect();
        let mut second = self.pass().await?;
        second.differences.retain(|found| before.contains(&found.identity()));
        Ok(second)
    }

    async fn pass(&self) -> Result<Compared, ComparisonError> {
        let outline = self.plan.outline().await?;
        let (mut gathered, mut n_read, mut first_error) = (Gathered::default(), 0, None);
        {
            let mut reader = self.reader.lock();
            outline.rule_sets.iter().for_each(|rule_set| reader.desire(rule_set.clone()));
        }
        for part in outline.parts() {
            match self.read(part).await {
                Ok((Readings { found, unread }, at)) => {
                    n_read += found.len();
                    unread.iter().for_each(|error| gathered.add_unread(error));
                    first_error = first_error.or(unread.into_iter().next());
                    let removals = marker_removals(gathered.ops());
                    for step in outline.steps(found, &removals) {
                        let step = Arc::new(step);
                        let differences = self.plan.compare(Arc::clone(&step), at).await?;
                        gathered.extend(&step, differences);
                    }
                }
                Err(error) => {
                    gathered.add_unread(&error);
                    first_error.get_or_insert(error);
                }
            }
        }
        match first_error {
            Some(error) if n_read == 0 => Err(error.into()),
            _ => {
                let is_at_start = matches!(self.plan, Plan::AtStart(_));
                Ok(Compared { is_at_start, ..outline.conclude(gathered) })
            }
        }
    }

    /// Returns the readings with the time at which they began.
    async fn read(&self, part: Part) -> Result<(Readings, Instant), ReadError> {
        let began = Instant::now();
        let reader = Arc::clone(&self.reader);
        let reading = tokio::task::spawn_blocking(move || reader.lock().read(&part));
        let read = reading.await.unwrap_or_else(|error| Err(ReadError::new("the kernel", error)));
        read.map(|found| (found, began))
    }
}

impl Plan {
    /// Returns the outline, a limited number of Services and frontends at a time.
    async fn outline(&self) -> Result<Outline, ComparisonError> {
        if let Self::OfLoop(inquiries) = self
            && !inquiries.ask(|view| view.status.in_sync_once).await?
        {
            return Err(ComparisonError::NotInSync);
        }
        let mut outline = self.ask(Outline::of).await?;
        let mut after = None;
        loop {
            let asking = self.ask(move |planner| OwnedPart::after(planner, after.as_ref()));
            let OwnedPart { owners, with_chains, last } = asking.await?;
            outline.owners.extend(owners);
            outline.services_with_chains.extend(with_chains);
            if last.is_none() {
                return Ok(outline);
            }
            after = last;
        }
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Planner) -> T + Send + 'static,
    ) -> Result<T, LoopGone> {
        match self {
            Self::OfLoop(inquiries) => inquiries.ask(|view| question(view.planner)).await,
            Self::AtStart(planner) => Ok(question(planner)),
        }
    }

    /// Compares readings that began at this time. Returns the differences of each.
    async fn compare(
        &self,
        readings: Arc<Vec<Reading>>,
        at: Instant,
    ) -> Result<Vec<Vec<Difference>>, LoopGone> {
        match self {
            Self::OfLoop(inquiries) => {
                let compare = move |view: &View<'_>| {
                    let view = view.read_at(at);
                    readings.iter().map(|reading| view.compare(reading)).collect()
                };
                inquiries.ask(compare).await
            }
            Self::AtStart(planner) => {
                Ok(readings.iter().map(|reading| Difference::at_start(planner, reading)).collect())
            }
        }
    }
}

impl Outline {
    /// Returns the outline without what Services own.
    fn of(planner: &Planner) -> Self {
        let settings = planner.settings().clone();
        Self {
            rule_sets: settings
                .families
                .iter()
                .filter_map(|it| planner.rule_set(*it).ok())
                .collect(),
            settings,
            owners: HashMap::default(),
            services_with_chains: Vec::new(),
            n_waiting: planner.backlog(),
        }
    }

    /// Returns the parts to compare, in order.
    fn parts(&self) -> Vec<Part> {
        let mut parts = Part::all(&self.settings);
        if !self.settings.mode.leads_by_rules() {
            let mut frontends: Vec<Frontend> = self.owners.keys().copied().collect();
            frontends.sort_unstable();
            let chunks = frontends.chunks(CHUNK);
            parts.extend(chunks.map(|chunk| Part::VirtualServers(chunk.into())));
        }
        parts
    }

    /// Divides readings into such that one question about each is short.
    fn steps(&self, readings: Vec<Reading>, removals: &Arc<[Op]>) -> Vec<Vec<Reading>> {
        let mut steps = Vec::new();
        for reading in readings {
            match reading {
                Reading::Chains(family, found, _) => {
                    let step = |scope| vec![Reading::Chains(family, Arc::clone(&found), scope)];
                    steps.extend(self.chain_scopes(family, &found).into_iter().map(step));
                }
                // Virtual servers that no Service asks for.
                Reading::Frontends(mut listed, _) => {
                    listed.retain(|it| !self.owners.contains_key(&it.frontend));
                    listed.sort_unstable_by_key(|it| it.frontend);
                    let chunks = listed.chunks(CHUNK);
                    steps.extend(chunks.map(|chunk| {
                        vec![Reading::Frontends(chunk.to_vec(), Arc::clone(removals))]
                    }));
                }
                Reading::VirtualServer(..) => match steps.last_mut() {
                    Some(step) => step.push(reading),
                    None => steps.push(vec![reading]),
                },
                Reading::Addresses(_) | Reading::RuleSet(..) | Reading::Set(..) => {
                    steps.push(vec![reading]);
                }
            }
        }
        steps
    }

    fn chain_scopes(&self, family: Family, found: &ActualChains) -> Vec<ChainScope> {
        let mut own: Vec<ChainId> = found.own.keys().copied().collect();
        own.sort_unstable();
        let services = self.services_with_chains.chunks(CHUNK);
        let mut scopes: Vec<ChainScope> =
            services.map(|chunk| ChainScope::Own(chunk.to_vec())).collect();
        scopes.extend(own.chunks(CHUNK).map(|chunk| ChainScope::Excess(chunk.to_vec())));
        scopes.extend(ChainId::all_shared(self.settings.mode, family).map(ChainScope::Shared));
        scopes
    }

    fn conclude(&self, gathered: Gathered) -> Compared {
        let by_address = LazyCell::new(|| services_by_address(self.owners.iter()));
        let differences = gathered.found.into_iter().map(|(difference, described)| {
            let services = match described.desired {
                None => Vec::new(),
                Some(_) => {
                    services_of(&difference.op.subject(), difference.service.as_ref(), &by_address)
                }
            };
            Found { difference, described, services }
        });
        Compared {
            differences: differences.collect(),
            n_more: gathered.n_more,
            sysctls: Vec::new(),
            n_waiting: self.n_waiting,
            unread: gathered.unread,
            n_more_unread: gathered.n_more_unread,
            is_at_start: false,
        }
    }
}

impl Compared {
    /// The same with sysctls that have another value than they should.
    #[must_use]
    pub fn with_sysctls(self, sysctls: Vec<(Sysctl, Option<String>)>) -> Self {
        Self { sysctls, ..self }
    }

    /// True if the kernel is as planned, as far as was compared: what only drains is no difference.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let is_lacking = self.differences.iter().any(Found::is_lack);
        !is_lacking && self.sysctls.is_empty() && self.unread.is_empty()
    }
}

impl OwnedPart {
    /// Returns the Services after a name, or the first ones: one whose removal is not planned yet is not
    /// among them.
    fn after(planner: &Planner, after: Option<&ServiceName>) -> Self {
        let mut part = Self::default();
        for name in planner.service_names(after, CHUNK) {
            let owns = |at: &Frontend| planner.desired().owner(at) == Some(&name);
            let owned = planner.claimed_by(&name).into_iter().filter(owns);
            part.owners.extend(owned.map(|at| (at, name.clone())));
            if planner.has_chains(&name) {
                part.with_chains.push(name.clone());
            }
            part.last = Some(name);
            if part.owners.len() > MOST_FRONTENDS {
                break;
            }
        }
        part
    }
}

impl Gathered {
    fn ops(&self) -> impl Iterator<Item = &Op> {
        self.found.iter().map(|(difference, _)| &difference.op)
    }

    fn add(&mut self, difference: Difference, beside: &Beside<'_>) {
        if self.found.len() == MOST_DIFFERENCES {
            // After `ipvsadm -C` on a large node there would be hundreds of megabytes of them.
            self.n_more += 1;
        } else if self.seen.insert(identity(&difference.op)) {
            let described = describe(&difference.op, beside);
            self.found.push((difference, described));
        }
    }

    fn add_unread(&mut self, error: &ReadError) {
        if self.unread.len() == MOST_UNREAD {
            self.n_more_unread += 1;
        } else {
            self.unread.push(error.to_string());
        }
    }

    /// Adds the differences of these readings.
    fn extend(&mut self, readings: &[Reading], differences: Vec<Vec<Difference>>) {
        for (reading, differences) in readings.iter().zip(differences) {
            for difference in differences {
                let beside = Beside::of(reading, &difference.op);
                self.add(difference, &beside);
            }
        }
    }
}

impl Found {
    /// True if it is something that the kernel lacks, or has and should not: not what only ends by
    /// itself.
    #[must_use]
    pub fn is_lack(&self) -> bool {
        !matches!(self.difference.standing, Standing::Draining { .. })
    }

    fn identity(&self) -> String {
        identity(&self.difference.op)
    }
}

/// Returns the Services that ask for an operation's subject: those with a frontend at its address, or the one
/// that owns it.
pub(super) fn services_of(
    subject: &Subject,
    owner: Option<&ServiceName>,
    by_address: &impl Deref<Target = ServicesByAddress>,
) -> Vec<ServiceName> {
    match subject {
        Subject::Address(address) | Subject::Entry(_, Entry::Address(address)) => {
            by_address.get(address).into_iter().flatten().cloned().collect()
        }
        _ => owner.cloned().into_iter().collect(),
    }
}

/// Returns the Services that have a frontend at each address.
pub(super) fn services_by_address<'a>(
    owners: impl Iterator<Item = (&'a Frontend, &'a ServiceName)>,
) -> ServicesByAddress {
    let mut services = ServicesByAddress::default();
    for (frontend, service) in owners {
        services.entry(frontend.address).or_default().insert(service.clone());
    }
    services
}

/// Text that is the same for an operation that a later look finds again: a deadline that is not noted
/// yet is another one each time.
fn identity(op: &Op) -> String {
    match op {
        Op::DrainRealServer(frontend, socket, _) => format!("drain {socket} of {frontend}"),
        op => op.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_reasons_for_what_is_not_read_are_kept_and_the_others_counted() {
        let mut gathered = Gathered::default();
        let refused = std::io::Error::other("no");
        for number in 0..MOST_UNREAD + 7 {
            gathered.add_unread(&ReadError::new(format!("virtual server {number}"), &refused));
        }
        assert_eq!((gathered.unread.len(), gathered.n_more_unread), (MOST_UNREAD, 7));
    }
}
