//! Comparison of the kernel with the plan, part by part, by sockets of its own.
//!
//! The loop may write between a reading of the kernel and the question about it. So what differs is
//! looked at twice, and only what differs both times counts.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use plan::actual::ActualVirtualServer;
use plan::chains::{ActualChains, ChainId, ChainOp};
use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::{Entry, Frontend};
use plan::mode::Mode;
use plan::model::{Family, ServiceName};
use plan::op::{Op, Subject};
use plan::rule_set::RuleSet;
use plan::sets::SetId;
use plan::settings::Settings;
use tokio::time::Instant;

use super::words::{Beside, Described, describe};
use crate::kernel::linux::Linux;
use crate::kernel::reader::KernelReader;
use crate::kernel::rules::{Rules, Variant};
use crate::kernel::{Addresses, ReadError, VirtualServerReading};
use crate::reconcile::differences::{Difference, Standing};
use crate::reconcile::inquiry::{CHUNK, Inquiries, LoopGone, View};

/// A comparison of the kernel with the plan.
#[derive(Debug, Clone)]
pub struct Comparison {
    inquiries: Inquiries,
    reader: Arc<Mutex<KernelReader>>,
}

/// Result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Compared {
    /// Differences, by the parts of the kernel: at most [`MOST_DIFFERENCES`].
    pub differences: Vec<Found>,
    /// Number of further differences, of which some may be among those already.
    pub n_more: usize,
    /// Number of Services whose changes are not planned yet: the plan is without them.
    pub n_waiting: usize,
    /// Virtual servers that could not be read, each with the reason: the first ones.
    pub unread: Vec<String>,
    /// Number of further ones.
    pub n_more_unread: usize,
}

/// A difference in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The difference.
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
        "the kernel is not in sync for the first time yet, so there is nothing to compare it with; \
         kube-ipvs status says what it waits for"
    )]
    NotInSync,
    /// A part of the kernel could not be read.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
}

/// Most differences that are kept.
pub const MOST_DIFFERENCES: usize = 10_000;

/// Most virtual servers that could not be read of which the reasons are kept.
const MOST_UNREAD: usize = 100;

/// Most frontends that one question copies, but for those of its last Service.
const MOST_FRONTENDS: usize = 4_096;

/// Outline of the plan, before anything is compared.
struct Outline {
    mode: Mode,
    families: Vec<Family>,
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

/// Opens handles that read the kernel, in the calling thread's network namespace. Runs the iptables
/// programs to find out which kind is in use.
///
/// # Errors
/// When a part of the kernel cannot be opened.
pub fn open_reader(settings: &Settings, variant: Variant) -> Result<KernelReader, ReadError> {
    let mut rules = HashMap::default();
    for family in &settings.families {
        let opened = Rules::open(*family, variant);
        let opened = opened.map_err(|error| ReadError::new(format!("{family} rules"), error))?;
        rules.insert(*family, opened);
    }
    Ok(KernelReader::new(Linux::open_to_read(rules, settings.mode)?))
}

// === impl Comparison ===

impl Comparison {
    /// A comparison by this reader.
    #[must_use]
    pub fn new(inquiries: Inquiries, reader: KernelReader) -> Self {
        Self { inquiries, reader: Arc::new(Mutex::new(reader)) }
    }

    /// Compares everything, twice if something differs.
    ///
    /// # Errors
    /// When a part could not be read or asked for.
    pub async fn run(&self) -> Result<Compared, ComparisonError> {
        let first = self.pass().await?;
        if first.differences.is_empty() {
            return Ok(first);
        }
        let before: HashSet<String> = first.differences.iter().map(Found::identity).collect();
        let mut second = self.pass().await?;
        second.differences.retain(|found| before.contains(&found.identity()));
        Ok(second)
    }

    async fn pass(&self) -> Result<Compared, ComparisonError> {
        let outline = self.outline().await?;
        let mut gathered = Gathered::default();
        for rule_set in &outline.rule_sets {
            self.compare_rule_set(rule_set.clone(), &mut gathered).await?;
        }
        if outline.mode == Mode::Ipvs {
            self.compare_sets_and_addresses(&outline, &mut gathered).await?;
            self.compare_orphans(&outline, &mut gathered).await?;
            self.compare_virtual_servers(&outline, &mut gathered).await?;
        } else {
            for family in &outline.families {
                self.compare_chains(&outline, *family, &mut gathered).await?;
            }
        }
        Ok(outline.conclude(gathered))
    }

    /// Asks for the outline, a limited number of Services and frontends at a time.
    async fn outline(&self) -> Result<Outline, ComparisonError> {
        let outline = self.inquiries.ask(Outline::of).await?;
        let mut outline = outline.ok_or(ComparisonError::NotInSync)?;
        let mut after = None;
        loop {
            let asking = self.inquiries.ask(move |view| OwnedPart::after(view, after.as_ref()));
            let OwnedPart { owners, with_chains, last } = asking.await?;
            outline.owners.extend(owners);
            outline.services_with_chains.extend(with_chains);
            if last.is_none() {
                return Ok(outline);
            }
            after = last;
        }
    }

    async fn compare_rule_set(
        &self,
        rule_set: RuleSet,
        gathered: &mut Gathered,
    ) -> Result<(), ComparisonError> {
        let family = rule_set.family();
        let (found, at) = self.read(move |kernel| kernel.compare_rule_set(rule_set)).await?;
        if !found.is_complete {
            let ask = move |view: &View<'_>| view.read_at(at).differing_rule_set(family);
            let difference = self.inquiries.ask(ask).await?;
            let beside = Beside { rules: &found.differences, ..Beside::default() };
            gathered.add(difference, &beside);
        }
        Ok(())
    }

    async fn compare_sets_and_addresses(
        &self,
        outline: &Outline,
        gathered: &mut Gathered,
    ) -> Result<(), ComparisonError> {
        let (found, at): (Addresses, _) = self.read(KernelReader::read_addresses).await?;
        let compare = move |view: &View<'_>| view.read_at(at).compare_addresses(&found);
        let differences = self.inquiries.ask(compare).await?;
        gathered.extend(differences, &Beside::default());
        for set in outline.families.iter().flat_map(|family| SetId::all(*family)) {
            let (found, at) = self.read(move |kernel| kernel.read_set(set)).await?;
            let size = found.as_ref().map(|it| (it.n_entries(), it.capacity.entries()));
            let compare = move |view: &View<'_>| view.read_at(at).compare_set(set, found.as_ref());
            let differences = self.inquiries.ask(compare).await?;
            gathered.extend(differences, &Beside { set: size, ..Beside::default() });
        }
        Ok(())
    }

    /// Looks for virtual servers that no Service asks for.
    async fn compare_orphans(
        &self,
        outline: &Outline,
        gathered: &mut Gathered,
    ) -> Result<(), ComparisonError> {
        let (listing, at) = self.read(KernelReader::list_virtual_servers).await?;
        let listed = listing.virtual_servers.into_iter();
        let unowned = listed.filter(|it| !outline.owners.contains_key(&it.frontend));
        let servers: HashMap<Frontend, ActualVirtualServer> = unowned
            .map(|it| {
                let found =
                    ActualVirtualServer { server: it.server, real_servers: HashMap::default() };
                (it.frontend, found)
            })
            .collect();
        let mut frontends: Vec<Frontend> = servers.keys().copied().collect();
        frontends.sort_unstable();
        let removes_marker = |op: &&Op| {
            matches!(op, Op::UnbindAddress(_) | Op::RemoveRoute(_) | Op::RemoveEntry(..))
        };
        let repairs: Vec<Op> = gathered.ops().filter(removes_marker).cloned().collect();
        let repairs = Arc::new(repairs);
        for chunk in frontends.chunks(CHUNK) {
            let (chunk, repairs) = (chunk.to_vec(), Arc::clone(&repairs));
            let ask = move |view: &View<'_>| view.read_at(at).orphaned(&chunk, &repairs);
            let differences = self.inquiries.ask(ask).await?;
            gathered.extend_of(differences, &servers);
        }
        Ok(())
    }

    async fn compare_virtual_servers(
        &self,
        outline: &Outline,
        gathered: &mut Gathered,
    ) -> Result<(), ComparisonError> {
        let mut frontends: Vec<Frontend> = outline.owners.keys().copied().collect();
        frontends.sort_unstable();
        for chunk in frontends.chunks(CHUNK) {
            let asked: Arc<[Frontend]> = chunk.into();
            let (readings, at): (Vec<VirtualServerReading>, _) = {
                let asked = Arc::clone(&asked);
                self.read(move |kernel| kernel.read_virtual_servers(&asked)).await?
            };
            let mut found = Vec::with_capacity(asked.len());
            for (frontend, reading) in asked.iter().zip(readings) {
                match reading {
                    Ok(there) => found.push((*frontend, there)),
                    Err(error) => gathered.add_unread(&error),
                }
            }
            let there = found.iter().filter_map(|(at, it)| Some((*at, it.clone()?))).collect();
            let compare = move |view: &View<'_>| view.read_at(at).compare_virtual_servers(&found);
            let differences = self.inquiries.ask(compare).await?;
            gathered.extend_of(differences, &there);
        }
        Ok(())
    }

    async fn compare_chains(
        &self,
        outline: &Outline,
        family: Family,
        gathered: &mut Gathered,
    ) -> Result<(), ComparisonError> {
        let (found, at) = self.read(move |kernel| kernel.read_chains(family)).await?;
        let found = Arc::new(found);
        for chunk in outline.services_with_chains.chunks(CHUNK) {
            let (chunk, found_now) = (chunk.to_vec(), Arc::clone(&found));
            let compare = move |view: &View<'_>| {
                view.read_at(at).compare_own_chains(family, &found_now, &chunk)
            };
            gathered.extend_chains(self.inquiries.ask(compare).await?, &found);
        }
        let mut own: Vec<ChainId> = found.own.keys().copied().collect();
        own.sort_unstable();
        for chunk in own.chunks(CHUNK) {
            let chunk = chunk.to_vec();
            let ask = move |view: &View<'_>| view.read_at(at).excess_chains(&chunk);
            let differences = self.inquiries.ask(ask).await?;
            gathered.extend_chains(differences, &found);
        }
        for chain in ChainId::all_shared(outline.mode, family) {
            let found_now = Arc::clone(&found);
            let compare = move |view: &View<'_>| {
                let found = found_now.shared.get(&chain).map(Vec::as_slice);
                view.read_at(at).compare_shared_chain(chain, found)
            };
            gathered.extend_chains(self.inquiries.ask(compare).await?, &found);
        }
        Ok(())
    }

    /// Returns the reading with the time at which it began.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut KernelReader) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<(T, Instant), ReadError> {
        let began = Instant::now();
        let reader = Arc::clone(&self.reader);
        let reading = tokio::task::spawn_blocking(move || {
            // A reader keeps nothing that a panic could leave half done.
            read(&mut reader.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let read = reading.await.unwrap_or_else(|error| Err(ReadError::new("the kernel", error)));
        read.map(|found| (found, began))
    }
}

// === impl Outline ===

impl Outline {
    /// Returns the outline without what Services own. None: the plan is not whole yet.
    fn of(view: &View<'_>) -> Option<Self> {
        let planner = view.planner;
        if !view.status.in_sync_once {
            return None;
        }
        let Settings { mode, families, .. } = planner.settings();
        Some(Self {
            mode: *mode,
            families: families.clone(),
            rule_sets: families.iter().filter_map(|it| planner.rule_set(*it).ok()).collect(),
            owners: HashMap::default(),
            services_with_chains: Vec::new(),
            n_waiting: planner.backlog(),
        })
    }

    fn conclude(&self, gathered: Gathered) -> Compared {
        let by_address = LazyCell::new(|| services_by_address(self.owners.iter()));
        let differences = gathered.found.into_iter().map(|(difference, described)| {
            let services = match difference.op.subject() {
                _ if described.desired.is_none() => Vec::new(),
                Subject::Address(address) | Subject::Entry(_, Entry::Address(address)) => {
                    by_address.get(&address).into_iter().flatten().cloned().collect()
                }
                _ => difference.service.clone().into_iter().collect(),
            };
            Found { difference, described, services }
        });
        Compared {
            differences: differences.collect(),
            n_more: gathered.n_more,
            n_waiting: self.n_waiting,
            unread: gathered.unread,
            n_more_unread: gathered.n_more_unread,
        }
    }
}

// === impl OwnedPart ===

impl OwnedPart {
    /// Returns the Services after a name, or the first ones: one whose removal is not planned yet is not
    /// among them.
    fn after(view: &View<'_>, after: Option<&ServiceName>) -> Self {
        let planner = view.planner;
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

// === impl Gathered ===

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

    fn extend(&mut self, differences: Vec<Difference>, beside: &Beside<'_>) {
        differences.into_iter().for_each(|difference| self.add(difference, beside));
    }

    /// Adds differences of virtual servers, which were found like this.
    fn extend_of(
        &mut self,
        differences: Vec<Difference>,
        found: &HashMap<Frontend, ActualVirtualServer>,
    ) {
        for difference in differences {
            let virtual_server = match difference.op.subject() {
                Subject::VirtualServer(frontend) => found.get(&frontend),
                _ => None,
            };
            self.add(difference, &Beside { virtual_server, ..Beside::default() });
        }
    }

    fn extend_chains(&mut self, differences: Vec<Difference>, found: &ActualChains) {
        for difference in differences {
            let has_chain = matches!(
                &difference.op,
                Op::Chain(ChainOp::Write(chain, _)) if found.own.contains_key(chain)
            );
            self.add(difference, &Beside { has_chain, ..Beside::default() });
        }
    }
}

// === impl Found ===

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

/// Returns the Services that have a frontend at each address.
pub(super) fn services_by_address<'a>(
    owners: impl Iterator<Item = (&'a Frontend, &'a ServiceName)>,
) -> HashMap<IpAddr, BTreeSet<ServiceName>> {
    let mut services = HashMap::<IpAddr, BTreeSet<ServiceName>>::default();
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
