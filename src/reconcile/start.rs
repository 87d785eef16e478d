//! From the first complete list to a kernel in sync.
//!
//! The kernel's state is listed once, but for real servers. The prerequisites are written, then
//! Services are planned in rounds as later on ([`super::rounds`]), large ones in parts. Of each
//! round, the virtual servers that were listed are read and compared, and what was not listed is
//! written: so neither the time to the first Service, which is the API server's own, nor the memory
//! in use meanwhile grows with the number of endpoints. In the end, found objects that no Service
//! asks for are taken away.

use std::sync::Arc;

use plan::actual::{Actual, ListedVirtualServer};
use plan::found::Found;
use plan::op::Op;
use plan::planner::Limit;
use plan::sets::SetId;
use tokio::time::Instant;
use tracing::info;

use super::audit::LARGEST_CHUNK;
use super::drain::Known;
use super::observer::RoundKind;
use super::rounds::{Ended, ROUND};
use super::writing::Basis;
use super::{READ_RETRY, Reconciler};
use crate::kernel::worker::{ReadFailure, WorkerGone};
use crate::kernel::{Addresses, KernelRead};

/// Progress of the loop.
#[derive(Debug)]
pub(super) enum Stage {
    /// The source has not delivered everything yet.
    Incomplete,
    /// The kernel is to be read, not before this.
    Unread(Instant),
    /// The kernel's state is being taken over.
    TakingOver(Box<TakeOver>),
    /// The kernel was once as it should be, as far as it let us.
    Running,
}

/// State that is left to take over.
#[derive(Debug)]
pub(super) struct TakeOver {
    found: Found,
    started: Instant,
    /// Number of operations of the takeover so far.
    n_changes: usize,
}

// === impl Stage ===

impl Stage {
    pub(super) fn source_is_complete(&mut self) {
        if matches!(self, Self::Incomplete) {
            *self = Self::Unread(Instant::now());
        }
    }

    /// True if changes may be written some time.
    pub(super) fn may_write(&self) -> bool {
        !matches!(self, Self::Incomplete)
    }
}

impl Reconciler {
    /// Reads what there is in the kernel, and writes what everything rests on.
    pub(super) async fn begin(&mut self) -> Result<(), WorkerGone> {
        let started = Instant::now();
        // Node ports have no place before the node's addresses are known, and the kernel side must
        // know the rules before it is asked whether they are there. Whether they are is part of the
        // reading, so the plan that has only them is done with.
        let Some(addresses) = self.read_addresses().await? else {
            self.stage = Stage::Unread(Instant::now() + READ_RETRY);
            return Ok(());
        };
        drop(self.planner.plan_round(Limit { services: 0, ..Limit::NONE }));
        self.set_desired_rules().await?;
        let found = self.read_beside(addresses).await;
        let Some((beside, listed)) = self.or_report(found)? else {
            self.stage = Stage::Unread(Instant::now() + READ_RETRY);
            return Ok(());
        };
        self.status.send_modify(|status| status.readings += 1);
        let prerequisites = self.planner.prerequisites(&beside);
        let n_changes = prerequisites.len();
        let found = self.planner.take_over(beside, listed);
        self.carry_out(prerequisites, Basis::Reading).await?;
        self.stage = Stage::TakingOver(Box::new(TakeOver { found, started, n_changes }));
        Ok(())
    }

    /// Reads which virtual servers there are, and all that is beside them and could be ours. Any
    /// part of it that cannot be read makes it fail, but for rules: half a picture is worse than
    /// none.
    async fn read_beside(
        &mut self,
        addresses: Addresses,
    ) -> Result<(Actual, Vec<ListedVirtualServer>), ReadFailure> {
        let mut beside = Actual {
            link: addresses.link,
            addresses: addresses.bound,
            routes: addresses.routes,
            local_addresses: addresses.local,
            ..Actual::default()
        };
        let families = &self.planner.settings().families;
        for set in families.iter().flat_map(|family| SetId::all(*family)) {
            let found = self.kernel.read(KernelRead::Set, move |kernel| kernel.read_set(set));
            beside.sets.extend(found.await?.map(|found| (set, found)));
        }
        for family in self.planner.settings().families.clone() {
            let read = KernelRead::Rules;
            let found = self.kernel.read(read, move |kernel| kernel.read_rule_set(family)).await;
            // Writing reads the rules again, and they are pending if that fails, too. Rules that
            // another program has spoiled hold up nothing else.
            if self.or_report(found)? == Some(true) {
                beside.rule_sets.insert(family);
            }
        }
        Ok((beside, self.list_virtual_servers().await?.virtual_servers))
    }

    /// Takes over what the Services of one round ask for, and after the last of them, takes away
    /// what is in excess.
    pub(super) async fn take_over_some(&mut self) -> Result<(), WorkerGone> {
        let Stage::TakingOver(mut taking) = std::mem::replace(&mut self.stage, Stage::Running)
        else {
            return Ok(());
        };
        let (planned, oldest) = self.plan(ROUND).await?;

        let adopted = taking.found.adopt(planned);
        let mut ops = self.let_drain(adopted.lacking, Known::Nothing, Instant::now());
        self.hold_back(&mut ops);
        ops.extend(self.repair_found(adopted.found).await?);
        taking.n_changes += ops.len();
        self.flows.note_ops(&ops, &self.planner);
        self.carry_out(ops, Basis::Reading).await?;
        let ended = Ended { kind: RoundKind::Comparison, took: taking.started.elapsed(), oldest };
        // What is not planned of a Service yet would be in excess. Services that come meanwhile are
        // not waited for, so that this ends however many there are.
        if self.planner.n_to_take_over() > 0 {
            self.round_ended(ended);
            self.stage = Stage::TakingOver(taking);
            return Ok(());
        }
        self.remove_excess(&mut taking).await?;
        info!(changes = taking.n_changes, "first comparison with the kernel");
        self.expected.learn(&taking.found, self.planner.settings());
        self.audit.begin(Instant::now());
        if !self.planner.is_dirty() {
            self.rest();
        }
        self.status.send_modify(|status| status.in_sync_once = true);
        info!(pending_retries = self.retry_queue.len(), "in sync with the kernel");
        self.round_ended(ended);
        Ok(())
    }

    /// Returns the operations that repair virtual servers that were found. Those that cannot be
    /// read become pending retries: what is planned for them meanwhile is held back, and their
    /// ownership markers stay.
    async fn repair_found(
        &mut self,
        mut rest: Vec<ListedVirtualServer>,
    ) -> Result<Vec<Op>, WorkerGone> {
        let mut ops = Vec::new();
        while !rest.is_empty() {
            let others = rest.split_off(rest.len().min(LARGEST_CHUNK));
            let chunk: Arc<[ListedVirtualServer]> = rest.into();
            let seen = match self.read_listed(&chunk).await {
                Ok(seen) => seen,
                Err(failure) => {
                    let error = failure.retryable()?;
                    self.reading_failed(&error);
                    // A kernel that does not answer is not asked once for each chunk.
                    let unread = chunk.iter().chain(&others);
                    let unread: Vec<_> = unread.map(|it| (it.frontend, error.clone())).collect();
                    self.owe_unread(&unread);
                    break;
                }
            };
            self.owe_unread(&seen.unread);
            let now = Instant::now();
            for (frontend, found) in &seen.found {
                let repairs = self.planner.repair(frontend, found.as_ref());
                let known = Known::Compared(*frontend, found.as_ref());
                ops.extend(self.let_drain(repairs, known, now));
            }
            rest = others;
        }
        Ok(ops)
    }

    /// Removes what was found and is not desired, in the order in which traffic is led off:
    /// see [`Op::phase`].
    async fn remove_excess(&mut self, taking: &mut TakeOver) -> Result<(), WorkerGone> {
        let settings = self.planner.settings().clone();
        let sets = settings.families.iter().flat_map(|family| SetId::all(*family));
        let (leading, others): (Vec<SetId>, Vec<SetId>) =
            sets.partition(|set| set.kind.leads_to_short_circuits());
        for set in leading {
            let ops = taking.found.excess_entries(set, self.planner.desired(), &settings);
            self.remove(ops, taking).await?;
        }
        let ops = taking.found.excess_addresses(&settings);
        self.remove(ops, taking).await?;
        loop {
            let desired = self.planner.desired();
            let part = taking.found.next_virtual_servers(LARGEST_CHUNK, desired, &settings);
            if part.is_empty() {
                break;
            }
            let ops = self.repair_found(part).await?;
            self.flows.note_ops(&ops, &self.planner);
            self.remove(ops, taking).await?;
        }
        for set in others {
            let ops = taking.found.excess_entries(set, self.planner.desired(), &settings);
            self.remove(ops, taking).await?;
        }
        Ok(())
    }

    async fn remove(&mut self, mut ops: Vec<Op>, taking: &mut TakeOver) -> Result<(), WorkerGone> {
        taking.n_changes += ops.len();
        ops.sort_by_key(Op::phase);
        self.apply(ops, Basis::Reading).await
    }
}
