//! The takeover: from the first complete list to a kernel in sync.
//!
//! The kernel's state is listed once, but for real servers. The prerequisites are written, then
//! Services are planned in rounds as later on ([`super::writer`]), large ones in parts. Of each
//! round, the virtual servers that were listed are read and compared, and what was not listed is
//! written: so neither the time to the first Service, which is the API server's own, nor the memory
//! in use meanwhile grows with the number of endpoints. In the end, found objects that no Service
//! asks for are removed, a limited number at once: changes and retries are written in between.
//!
//! In ipvs mode, rules of another mode that lead connections go on leading until the end: see
//! [`super::dispatch`].
//!
//! In modes in which rules lead, the chains are read once, each but for a digest of its rules. If
//! one family's cannot be read, the other is taken over without it, and these are compared when
//! they can be read. So is one set of many: another program's set has the name and another type.
//! Nothing is removed because of what was not read: without its marker, a virtual server is
//! unowned.

use std::sync::Arc;
use std::time::Duration;

use plan::actual::{Actual, Addresses, ListedVirtualServer};
use plan::adoption::Unadopted;
use plan::chains::ActualChains;
use plan::comparison::Part;
use plan::kernel_objects::Frontend;
use plan::mode::OtherRules;
use plan::model::Family;
use plan::op::{Op, PartKind};
use plan::planner::RoundLimit;
use plan::sets::SetId;
use tokio::time::Instant;
use tracing::info;

use super::context::{Context, LARGEST_CHUNK};
use super::dispatch::report_in_sync;
use super::leaving_ipvs;
use super::observer::{Report, RoundKind};
use super::writer::{Basis, Ended, Known, Writer, place};
use kernel::worker::{ReadFailure, WorkerGone};

/// Longest time from the beginning of the takeover for which the relay is waited for.
const LONGEST_WAIT_FOR_RELAY: Duration = Duration::from_secs(30);

/// Most Services that one step takes over in ipvs mode while a change goes ahead of them: the change waits for all
/// that the step reads and writes, some ten milliseconds. Larger steps take less time in all.
const SERVICES_BESIDE_CHANGES: usize = 64;

/// Most addresses, entries and virtual servers that are removed at once. IPv6 addresses take longest:
/// 0.4 ms each where there are 10,000 (docs/service-addresses.md).
const REMOVALS_AT_ONCE: usize = 1_024;

/// The kernel's state that is left to take over. Each step adopts or removes some of it.
#[derive(Debug)]
pub(super) struct Takeover {
    found: Unadopted,
    /// Parts that could not be read.
    unread: Vec<Part>,
    /// True until something was planned.
    is_first_round: bool,
    started: Instant,
    /// Number of operations of the takeover so far.
    n_changes: usize,
}

/// State that the takeover leaves to the audit.
#[derive(Debug)]
pub(super) struct Left<'a> {
    /// State that was found, and is unowned.
    pub(super) found: &'a Unadopted,
    /// Parts that could not be read.
    pub(super) unread: &'a [Part],
}

/// State that was read before anything is written.
#[derive(Debug, Default)]
struct Found {
    beside: Actual,
    listed: Vec<ListedVirtualServer>,
    chains: Vec<ActualChains>,
    /// Parts that could not be read.
    unread: Vec<Part>,
}

impl Takeover {
    /// Reads the kernel's state, and writes the prerequisites. Returns nothing if the state could
    /// not be read.
    pub(super) async fn begin(
        cx: &mut Context,
        writer: &mut Writer,
    ) -> Result<Option<Self>, WorkerGone> {
        let started = Instant::now();
        // Node ports have no place before the node's addresses are known, and the kernel's port must
        // know the rules before it is asked whether they are there. Whether they are is part of the
        // reading, so the plan that has only them is done with.
        let Some(addresses) = cx.take_addresses().await? else { return Ok(None) };
        drop(cx.planner.plan_round(RoundLimit { services: 0, ..RoundLimit::NONE }));
        for family in Family::BOTH {
            cx.planner.set_led_by_rules(family, false);
        }
        cx.unread_rules.clear();
        if !leaving_ipvs::note_bound(cx, &addresses).await? {
            return Ok(None);
        }
        cx.set_desired_rules().await?;
        cx.writes_whole_tables = cx.kernel.call(|kernel| kernel.writes_whole_tables()).await?;
        let found = read_all(cx, addresses).await;
        let Some(found) = cx.or_report(found)? else { return Ok(None) };
        let Found { beside, listed, chains, unread } = found;
        cx.observers.report(&Report::Listed);
        let prerequisites = cx.planner.prerequisites(&beside);
        let n_changes = prerequisites.len();
        let found = cx.planner.take_over(beside, listed).with_chains(chains);
        writer.carry_out(cx, prerequisites, Basis::Reading).await?;
        // Before anything was taken over, a conflict is no drift.
        writer.take_drift();
        Ok(Some(Self { found, unread, is_first_round: true, started, n_changes }))
    }

    /// Takes over what the Services of one round ask for, and after the last of them, removes what
    /// is in excess. Returns what is left in the kernel once that is done.
    pub(super) async fn step(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
    ) -> Result<Option<Left<'_>>, WorkerGone> {
        let mut limit = writer.round_limit(cx);
        if !cx.leads_by_rules() {
            if cx.planner.has_change_ahead() {
                limit.services = SERVICES_BESIDE_CHANGES;
            }
        } else if std::mem::take(&mut self.is_first_round) {
            // The API server's Service comes first, and would share its COMMIT, which takes up to a second,
            // with the others.
            limit.services = 1;
        }
        let (planned, oldest) = writer.plan(cx, limit).await?;
        let adopted = self.found.adopt(planned);
        let mut ops = writer.let_drain(cx, adopted.lacking, Known::Nothing, Instant::now());
        writer.hold_back(&mut ops);
        ops.extend(repair_found(cx, writer, adopted.found).await?);
        self.n_changes += ops.len();
        writer.note_flows(cx, &ops);
        writer.carry_out(cx, ops, Basis::Reading).await?;
        let ended = Ended { kind: RoundKind::Comparison, took: self.started.elapsed(), oldest };
        // What is not planned of a Service yet would be in excess. Services that come meanwhile are
        // not waited for, so that this ends however many there are.
        if cx.planner.n_to_take_over() > 0 || self.awaits_relay(cx) {
            writer.round_ended(cx, ended);
            return Ok(None);
        }
        if self.remove_excess(cx, writer).await? {
            writer.round_ended(cx, ended);
            return Ok(None);
        }
        info!(changes = self.n_changes, "first comparison with the kernel");
        writer.rest(cx);
        writer.round_ended(cx, ended);
        if cx.leads_by_rules() || cx.planner.led_by_rules().is_empty() {
            report_in_sync(cx, writer);
        }
        Ok(Some(Left { found: &self.found, unread: &self.unread }))
    }

    /// True if the relay has not said yet where it listens for all Services: until it has, the former
    /// mode's rules are needed. It says so at once; one that does not is not waited for.
    fn awaits_relay(&self, cx: &Context) -> bool {
        self.started.elapsed() < LONGEST_WAIT_FOR_RELAY && cx.planner.n_awaited_proxy_ports() > 0
    }

    /// Removes a part of what was found and is not desired, in the order in which traffic is led off:
    /// see [`Op::phase`]. Returns true if more of it is left.
    async fn remove_excess(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
    ) -> Result<bool, WorkerGone> {
        if cx.leads_by_rules() {
            let ops = self.found.excess_chains(cx.planner.desired_chains());
            self.remove(cx, writer, ops).await?;
            return Ok(false);
        }
        let mut at_most = REMOVALS_AT_ONCE;
        let settings = cx.planner.settings().clone();
        let (leading, others): (Vec<SetId>, Vec<SetId>) =
            cx.sets().into_iter().partition(|set| set.kind.leads_to_internal_frontends());
        for set in leading {
            let ops = self.found.excess_entries(set, at_most, cx.planner.desired(), &settings);
            at_most -= ops.len();
            self.remove(cx, writer, ops).await?;
        }
        if at_most == 0 {
            return Ok(true);
        }
        let ops = self.found.excess_addresses(at_most, &settings);
        at_most = at_most.saturating_sub(ops.len());
        self.remove(cx, writer, ops).await?;
        while at_most > 0 {
            let desired = cx.planner.desired();
            let part =
                self.found.next_virtual_servers(at_most.min(LARGEST_CHUNK), desired, &settings);
            if part.is_empty() {
                break;
            }
            at_most -= part.len();
            let frontends: Vec<Frontend> = part.iter().map(|it| it.frontend).collect();
            let mut ops = repair_found(cx, writer, part).await?;
            // In one go: what closes a frontend while its virtual server goes is removed in the end, and
            // by then nothing may let clients past the filter.
            let desired = cx.planner.desired();
            ops.extend(self.found.excess_admissions(&frontends, desired, &settings));
            writer.note_flows(cx, &ops);
            self.remove(cx, writer, ops).await?;
        }
        for set in others {
            let ops = self.found.excess_entries(set, at_most, cx.planner.desired(), &settings);
            at_most -= ops.len();
            self.remove(cx, writer, ops).await?;
        }
        Ok(at_most == 0)
    }

    async fn remove(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
        mut ops: Vec<Op>,
    ) -> Result<(), WorkerGone> {
        self.n_changes += ops.len();
        ops.sort_by_key(place);
        writer.apply(cx, ops, Basis::Reading).await
    }
}

/// Reads which virtual servers there are, and all that is beside them and could be ours. A part that
/// cannot be read makes it fail, but for rules, and for one set or one family's chains while others can
/// be read: half a picture is worse than none.
async fn read_all(cx: &mut Context, addresses: Addresses) -> Result<Found, ReadFailure> {
    let mut beside = Actual {
        link: addresses.link,
        addresses: addresses.bound,
        routes: addresses.routes,
        local_addresses: addresses.local,
        ..Actual::default()
    };
    let families = cx.planner.settings().families.clone();
    let unread = read_sets(cx, &mut beside).await?;
    for family in &families {
        if read_rule_set(cx, *family).await? {
            beside.rule_sets.insert(*family);
        }
    }
    let mut found = Found { beside, unread, ..Found::default() };
    if cx.uses(PartKind::VirtualServers) {
        found.listed = cx.list_virtual_servers().await?.virtual_servers;
    }
    if cx.leads_by_rules() {
        let mut n_unread = 0;
        for family in &families {
            match cx.read_chains(*family).await {
                Ok(chains) => found.chains.push(chains),
                Err(failure) if families.len() == 1 + n_unread => return Err(failure),
                Err(failure) => {
                    cx.reading_failed(&failure.retryable()?);
                    n_unread += 1;
                    found.unread.push(Part::Chains(*family));
                }
            }
        }
    }
    Ok(found)
}

/// Reads the sets, and returns those that cannot be read while others can.
async fn read_sets(cx: &mut Context, beside: &mut Actual) -> Result<Vec<Part>, ReadFailure> {
    let (sets, mut unread) = (cx.sets(), Vec::new());
    for set in &sets {
        match cx.read_set(*set).await {
            Ok(found) => beside.sets.extend(found.map(|found| (*set, found))),
            Err(failure) if unread.len() + 1 == sets.len() => return Err(failure),
            Err(failure) => {
                cx.reading_failed(&failure.retryable()?);
                unread.push(Part::Sets([*set].into()));
            }
        }
    }
    Ok(unread)
}

/// Returns true if a family's constant rules are all there. If rules of another mode lead its
/// connections, or may, the rules are those that come before the dispatch.
async fn read_rule_set(cx: &mut Context, family: Family) -> Result<bool, ReadFailure> {
    let found = cx.read_rule_set(family).await;
    // Writing reads the rules again, and they are pending if that fails, too. Rules that another
    // program has spoiled hold up nothing else.
    let found = cx.or_report(found)?;
    let may_be_led = cx.planner.settings().mode.properties().led_by != OtherRules::None;
    if !found.as_ref().map_or(may_be_led, |found| found.is_led_by_rules) {
        return Ok(found.is_some_and(|found| found.is_complete));
    }
    cx.planner.set_led_by_rules(family, true);
    cx.set_desired_rules().await?;
    if found.is_none() {
        cx.unread_rules.insert(family);
        return Ok(false);
    }
    let until = if cx.leads_by_rules() {
        "the rules of this mode are written"
    } else {
        "virtual servers and addresses are written"
    };
    info!(%family, "rules of another mode handle connections until {until}");
    let found = cx.read_rule_set(family).await;
    Ok(cx.or_report(found)?.is_some_and(|found| found.is_complete))
}

/// Returns the operations that repair virtual servers that were found. Those that cannot be read
/// become pending retries: what is planned for them meanwhile is held back, and their ownership
/// markers stay.
async fn repair_found(
    cx: &mut Context,
    writer: &mut Writer,
    mut rest: Vec<ListedVirtualServer>,
) -> Result<Vec<Op>, WorkerGone> {
    let mut ops = Vec::new();
    while !rest.is_empty() {
        let others = rest.split_off(rest.len().min(LARGEST_CHUNK));
        let chunk: Arc<[ListedVirtualServer]> = rest.into();
        let seen = match cx.read_listed(&chunk).await {
            Ok(seen) => seen,
            Err(failure) => {
                let error = failure.retryable()?;
                cx.reading_failed(&error);
                // A kernel that does not answer is not asked once for each chunk.
                let unread = chunk.iter().chain(&others);
                let unread: Vec<_> = unread.map(|it| (it.frontend, error.clone())).collect();
                writer.retry_unread(cx, &unread);
                break;
            }
        };
        writer.retry_unread(cx, &seen.unread);
        let now = Instant::now();
        for (frontend, found) in &seen.found {
            let repairs = cx.planner.repair(frontend, found.as_ref());
            let known = Known::Compared(*frontend, found.as_ref());
            ops.extend(writer.let_drain(cx, repairs, known, now));
        }
        rest = others;
    }
    Ok(ops)
}
