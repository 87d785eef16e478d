//! Everything that each part of the loop works with: the desired state, the kernel, the reports.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use plan::actual::{ActualSet, ActualVirtualServer, Addresses, ListedVirtualServer};
use plan::chains::ActualChains;
use plan::event::Event;
use plan::hash::HashSet;
use plan::kernel_objects::Frontend;
use plan::model::{Family, Protocol};
use plan::op::PartKind;
use plan::planner::Planner;
use plan::sets::SetId;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;

use super::observer::{Observer, Report};
use super::pace::{Pace, READ_RETRY};
use super::status::Status;
use kernel::worker::{KernelHandle, ReadFailure, WorkerGone};
use kernel::{Kernel, KernelRead, Listing, ReadError, RuleSetReading, VirtualServerReading};

/// Most virtual servers in one read request.
pub(super) const LARGEST_CHUNK: usize = 256;

/// The desired state, the kernel, and the loop's reports. The loop passes it to each of its parts.
#[derive(Debug)]
pub(super) struct Context {
    /// The desired state. Input changes it, and so does what the kernel turns out to lack; the
    /// writer tells it which operations were carried out.
    pub(super) planner: Planner,
    pub(super) kernel: KernelHandle,
    /// Settings. They do not change.
    pub(super) pace: Pace,
    /// True if each COMMIT takes time for all rules of its table. The takeover asks for it.
    pub(super) writes_whole_tables: bool,
    /// Each part reports what it does.
    pub(super) observers: Observers,
    /// Follows from the reports.
    pub(super) status: watch::Receiver<Status>,
    /// Families whose rules could not be read at the takeover: rules of another mode may lead their
    /// connections.
    pub(super) unread_rules: BTreeSet<Family>,
    /// Families whose chains could not be read the last time.
    pub(super) unread_chains: BTreeSet<Family>,
    /// Start of the planner's timestamps, which are in microseconds.
    epoch: Instant,
}

/// Virtual servers that were read together.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Virtual servers that could be read, with what was found of each; none: it is not there.
    pub(super) found: Vec<(Frontend, Option<ActualVirtualServer>)>,
    /// Virtual servers that cannot be read, each with the reason, which has been reported.
    pub(super) unread: Vec<(Frontend, ReadError)>,
}

/// Terms on which the real servers of a virtual server drain.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrainTerms {
    /// Longest time that their connections may take to end.
    pub(super) time: Duration,
    /// The frontend, as clients see it, to which conntrack may carry connections that IPVS does not know; none: IPVS knows
    /// all.
    pub(super) tracked_as: Option<Frontend>,
}

/// Observers of a loop, and its status.
#[derive(Debug)]
pub(super) struct Observers {
    all: Vec<Box<dyn Observer>>,
    status: watch::Sender<Status>,
}

impl Context {
    pub(super) fn new(planner: Planner, kernel: KernelHandle, pace: Pace) -> Self {
        let (observers, status) = Observers::new();
        Self {
            planner,
            kernel,
            pace,
            writes_whole_tables: false,
            observers,
            status,
            unread_rules: BTreeSet::new(),
            unread_chains: BTreeSet::new(),
            epoch: Instant::now(),
        }
    }

    /// Applies an event that arrived now.
    pub(super) fn apply(&mut self, event: Event) {
        self.apply_at(event, self.timestamp());
    }

    /// Applies an event that arrived at this time.
    pub(super) fn apply_at(&mut self, event: Event, timestamp: u64) {
        self.observers.report(&Report::Arrived(&event));
        self.planner.apply_at(event, timestamp);
    }

    /// Returns the present time as a timestamp of the planner's.
    pub(super) fn timestamp(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns the time since a timestamp.
    pub(super) fn age(&self, timestamp: u64) -> Duration {
        self.epoch.elapsed().saturating_sub(Duration::from_micros(timestamp))
    }

    /// True if the node's mode has kernel objects of a kind. Those of other kinds, another mode left.
    pub(super) fn uses(&self, part: PartKind) -> bool {
        self.planner.settings().mode.uses(part)
    }

    /// True if kernel state of Services is chains of rules, and nothing else.
    pub(super) fn leads_by_rules(&self) -> bool {
        self.planner.settings().mode.leads_by_rules()
    }

    /// Returns the sets that are ours: only ipvs mode has some.
    pub(super) fn sets(&self) -> Vec<SetId> {
        if !self.uses(PartKind::Sets) {
            return Vec::new();
        }
        self.planner.settings().families.iter().flat_map(|family| SetId::all(*family)).collect()
    }

    /// Returns the longest time for the connections of a frontend's endpoints to end. In ipvs mode
    /// those of SCTP have none, as with kube-proxy. A node that leaves it keeps them: their endpoints
    /// are not gone. What a Service asks for holds in each mode.
    fn drain_deadline(&self, frontend: &Frontend) -> Duration {
        if frontend.protocol == Protocol::Sctp && self.uses(PartKind::VirtualServers) {
            return Duration::ZERO;
        }
        let chosen = self.planner.drain_deadline_seconds(frontend);
        chosen.map_or(self.pace.drain_deadline, |seconds| Duration::from_secs(seconds.into()))
    }

    /// Returns the terms on which the real servers of a virtual server drain.
    pub(super) fn drain_terms(&self, frontend: &Frontend) -> DrainTerms {
        let may_be_tracked =
            self.planner.settings().has_fast_path() && frontend.protocol == Protocol::Tcp;
        let tracked_as = may_be_tracked.then(|| self.planner.as_seen_by_clients(*frontend));
        DrainTerms { time: self.drain_deadline(frontend), tracked_as }
    }

    /// Passes the desired rules of each family to the kernel's port, which writes and checks them.
    pub(super) async fn set_desired_rules(&mut self) -> Result<(), WorkerGone> {
        for family in &self.planner.settings().families {
            match self.planner.rule_set(*family) {
                Ok(rules) => self.kernel.call(|kernel| kernel.set_desired_rules(rules)).await?,
                Err(error) => warn!("{family} rules are unchanged: {error}"),
            }
        }
        Ok(())
    }

    /// Reads the addresses and applies the node's own; none if they could not be read.
    pub(super) async fn take_addresses(&mut self) -> Result<Option<Addresses>, WorkerGone> {
        let read = self.read_addresses().await;
        let addresses = self.or_report(read)?;
        if let Some(addresses) = &addresses {
            self.apply_local(addresses);
        }
        Ok(addresses)
    }

    /// Applies the node's own addresses, if they have changed. IPv6 link-local ones are left out where
    /// they serve nothing: each pod has one on the node's side, and all Services' facts are made anew
    /// when the addresses change.
    pub(super) fn apply_local(&mut self, addresses: &Addresses) {
        let takes_all = self.planner.settings().node_port_addresses.may_be_link_local();
        let is_one = |it: &&IpAddr| matches!(it, IpAddr::V6(it) if it.is_unicast_link_local());
        let local = addresses.local.iter().filter(|it| takes_all || !is_one(it));
        let local: HashSet<IpAddr> = local.copied().collect();
        if local != *self.planner.local_addresses() {
            self.apply(Event::LocalAddresses(local.into_iter().collect()));
        }
    }

    /// Reads the addresses of all interfaces, and the routes.
    pub(super) async fn read_addresses(&mut self) -> Result<Addresses, ReadFailure> {
        self.kernel.read(PartKind::Addresses, |kernel| kernel.read_addresses()).await
    }

    /// Reads a set; none if there is none of this name.
    pub(super) async fn read_set(&mut self, set: SetId) -> Result<Option<ActualSet>, ReadFailure> {
        self.kernel.read(PartKind::Sets, move |kernel| kernel.read_set(set)).await
    }

    /// Reads a set as [`read_set`](Self::read_set) does, but one that another program made with another
    /// type counts as missing, which is reported: waiting for it could have no end.
    pub(super) async fn read_own_set(
        &mut self,
        set: SetId,
    ) -> Result<Option<ActualSet>, ReadFailure> {
        match self.read_set(set).await {
            Err(ReadFailure::Unreadable(error)) if error.is_foreign => {
                self.reading_failed(&error);
                Ok(None)
            }
            read => read,
        }
    }

    /// Reads several sets in one go, each with a result of its own.
    pub(super) async fn read_sets(
        &mut self,
        sets: &Arc<[SetId]>,
    ) -> Result<Vec<Result<Option<ActualSet>, ReadError>>, ReadFailure> {
        let sets = Arc::clone(sets);
        let read = move |kernel: &mut dyn Kernel| {
            Ok(sets.iter().map(|set| kernel.read_set(*set)).collect())
        };
        self.kernel.read(PartKind::Sets, read).await
    }

    /// Compares a family's constant rules with the desired ones.
    pub(super) async fn read_rule_set(
        &mut self,
        family: Family,
    ) -> Result<RuleSetReading, ReadFailure> {
        self.kernel.read(PartKind::Rules, move |kernel| kernel.read_rule_set(family)).await
    }

    /// Reads a family's chains of Services.
    pub(super) async fn read_chains(
        &mut self,
        family: Family,
    ) -> Result<ActualChains, ReadFailure> {
        let read = self.kernel.read(PartKind::Chains, move |kernel| kernel.read_chains(family));
        let read = read.await;
        if read.is_ok() {
            self.unread_chains.remove(&family);
        } else {
            self.unread_chains.insert(family);
        }
        read
    }

    /// Lists the virtual servers.
    pub(super) async fn list_virtual_servers(&mut self) -> Result<Listing, ReadFailure> {
        self.kernel.read(KernelRead::Frontends, |kernel| kernel.list_virtual_servers()).await
    }

    /// Reads virtual servers. Those that cannot be read are reported, and set apart. If nothing of
    /// the kernel can be read, that has not been reported.
    pub(super) async fn read_virtual_servers(
        &mut self,
        frontends: &Arc<[Frontend]>,
    ) -> Result<Seen, ReadFailure> {
        let asked = Arc::clone(frontends);
        let read = PartKind::VirtualServers;
        let found = self.kernel.read(read, move |kernel| kernel.read_virtual_servers(&asked));
        let found = found.await?;
        Ok(self.sort_readings(frontends.iter().copied().zip(found)))
    }

    /// Reads virtual servers that were listed a moment ago, in the same way.
    pub(super) async fn read_listed(
        &mut self,
        listed: &Arc<[ListedVirtualServer]>,
    ) -> Result<Seen, ReadFailure> {
        let asked = Arc::clone(listed);
        let read = PartKind::VirtualServers;
        let found = self.kernel.read(read, move |kernel| kernel.read_listed(&asked)).await?;
        Ok(self.sort_readings(listed.iter().map(|it| it.frontend).zip(found)))
    }

    /// Reports a read that failed, and returns nothing of it. The caller retries it later.
    pub(super) fn or_report<T>(
        &mut self,
        read: Result<T, ReadFailure>,
    ) -> Result<Option<T>, WorkerGone> {
        match read {
            Ok(found) => Ok(Some(found)),
            Err(failure) => {
                self.reading_failed(&failure.retryable()?);
                Ok(None)
            }
        }
    }

    /// Reports that the kernel could not be read. The caller retries that later.
    pub(super) fn reading_failed(&mut self, error: &ReadError) {
        warn!("{error}; next attempt in {} s", READ_RETRY.as_secs());
        self.observers.report(&Report::ReadingFailed(error));
    }

    fn sort_readings(
        &mut self,
        readings: impl Iterator<Item = (Frontend, VirtualServerReading)>,
    ) -> Seen {
        let mut seen = Seen::default();
        for (frontend, reading) in readings {
            match reading {
                Ok(found) => seen.found.push((frontend, found)),
                Err(error) => seen.unread.push((frontend, error)),
            }
        }
        if let Some(((_, error), others)) = seen.unread.split_first() {
            let mut error = error.clone();
            if !others.is_empty() {
                error.what += &format!(", and {} others", others.len());
            }
            self.reading_failed(&error);
        }
        seen
    }
}

impl Observers {
    /// Returns none of them yet, and the status that will follow from their reports.
    pub(super) fn new() -> (Self, watch::Receiver<Status>) {
        let (status, followed) = watch::channel(Status::default());
        (Self { all: Vec::new(), status }, followed)
    }

    pub(super) fn add(&mut self, observers: Vec<Box<dyn Observer>>) {
        self.all.extend(observers);
    }

    /// Passes a report to each, in the order in which they were added. The status follows last.
    pub(super) fn report(&mut self, report: &Report<'_>) {
        self.all.iter_mut().for_each(|observer| observer.report(report));
        self.status.send_if_modified(|status| status.follow(report));
    }
}
