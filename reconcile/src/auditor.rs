//! The audit: compares all state but the rules with the desired state, again and again, a little at a
//! time. Drift checks see every change of the rules.
//!
//! A pass takes one sync period, or 125 times what it costs if that is longer. Its work is dealt
//! out to the seconds, and each second's part follows the drift check, so that an idle loop wakes
//! up once a second. One chunk is a few milliseconds of the kernel's work. Between two chunks the loop
//! takes what came in. The kernel lists a set whole: a large one is read beside the loop, and the next chunk
//! waits for it.
//!
//! When another program changed something the audit is at *full speed*: it begins anew and goes on
//! without pauses as long as passes find something. It ends with a pass that finds nothing and that
//! began a second after the last find.
//!
//! In iptables mode a pass compares the node's addresses only. Chains and rules are read when a drift
//! check finds that another program wrote to them, and never because of the time.
//!
//! - `schedule`, `pass`: the order and the times in which parts are compared.
//! - `drift_check`: every second, signs that something was flushed, deleted or added.
//! - `large_sets`: large sets are read beside the loop.
//! - `sysctls`: sysctls that another program changed are set again.

mod drift_check;
mod large_sets;
mod pass;
mod schedule;
mod sysctls;

use std::net::IpAddr;
use std::time::Duration;

use plan::comparison::Part;
use plan::op::{Op, PartKind, Subject};
use tokio::time::Instant;
use tracing::info;

use super::comparison::{Compared, compare, large_set, parts_of_sets};
use super::context::Context;
use super::observer::{Pass, Report, RoundKind};
use super::takeover::Left;
use super::writer::{Ended, RuleRepairEnded, Writer};
use drift_check::Expected;
use kernel::address_monitor::Happened;
use kernel::worker::WorkerGone;
use large_sets::{LargeSetRequest, LargeSets};
use schedule::Schedule;
use sysctls::Sysctls;

/// Time after a write within which its notifications arrive.
const LATE: Duration = Duration::from_secs(1);

/// Everything that finds changes by other programs. The loop asks it once each turn, and when the
/// kernel reports a change of addresses; the writer reports the drift that it met.
#[derive(Debug)]
pub(super) struct Auditor {
    /// The next part to compare, and its time.
    schedule: Schedule,
    /// Counts that a drift check should find. The takeover begins them; drift checks learn.
    expected: Expected,
    /// Sysctls that another program changed lately. Drift checks update them.
    sysctls: Sysctls,
    /// Large sets that are read beside the loop.
    large_sets: LargeSets,
}

impl Auditor {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            schedule: Schedule::new(now),
            expected: Expected::default(),
            sysctls: Sysctls::default(),
            large_sets: LargeSets::default(),
        }
    }

    /// Begins when the kernel has just been taken over.
    pub(super) fn begin(&mut self, cx: &Context, left: &Left<'_>) {
        self.expected.learn_all(cx, left.found);
        self.schedule.begin(Instant::now());
        for part in left.unread {
            self.schedule.suspect(part.clone());
        }
    }

    /// Returns the time at which there is something to do next.
    pub(super) fn next_wake(&self, now: Instant) -> Instant {
        if self.large_sets.are_read() {
            return self.schedule.next_drift_check();
        }
        self.schedule.next_wake(now)
    }

    /// Does what is due: a drift check, a part of the audit, or nothing.
    pub(super) async fn step(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
    ) -> Result<(), WorkerGone> {
        let now = Instant::now();
        self.take_drift(cx, writer);
        self.compare_large_set(cx, writer).await?;
        if !self.schedule.is_paused(now)
            && self.schedule.begin_drift_check(cx.pace.sync_period, now)
        {
            self.drift_check(cx, writer).await?;
        }
        // That may have failed. And the rest waits for a large set, whose reading ends by itself.
        if self.schedule.is_paused(now) || self.large_sets.are_read() {
            return Ok(());
        }
        let is_number_unknown =
            cx.uses(PartKind::VirtualServers) && self.expected.is_number_unknown();
        self.schedule.begin_pass(
            || {
                let sets = parts_of_sets(cx.sets(), cx.planner.desired());
                // Otherwise drift checks count them.
                let all = is_number_unknown.then_some(Part::Frontends);
                let parts = [Part::Addresses].into_iter().chain(sets).chain(all).collect();
                (parts, cx.planner.desired().frontends().copied().collect())
            },
            now,
        );
        if let Some(part) = self.schedule.next_part(now) {
            self.audit(cx, writer, part).await?;
        }
        // A pass has not compared a large set before its reading has ended.
        if self.large_sets.are_read() {
            return Ok(());
        }
        if let Some((pass, is_whole)) = self.schedule.end_pass(Instant::now()) {
            self.pass_ended(cx, writer, &pass, is_whole);
        }
        Ok(())
    }

    /// Applies what the node's addresses are now, and puts back at once those of ours that another
    /// program removed.
    pub(super) async fn addresses_changed(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
        happened: Happened,
    ) -> Result<(), WorkerGone> {
        if happened.anything {
            return self.audit(cx, writer, Part::Addresses).await;
        }
        if happened.others && cx.take_addresses().await?.is_none() {
            self.schedule.failed(Part::Addresses, Instant::now());
        }
        // What is no longer desired may stay away.
        let is_desired = |address: &IpAddr| cx.planner.desired().has_address(*address);
        let removed: Vec<IpAddr> = happened.taken.into_iter().filter(is_desired).collect();
        // The removal may be kube-ipvs's own, which bound the address again since: only a reading tells.
        let since = Instant::now().checked_sub(LATE).unwrap_or_else(Instant::now);
        let is_own = |it: &IpAddr| writer.recent.is_written_since(&Subject::Address(*it), since);
        if removed.iter().any(is_own) {
            return self.audit(cx, writer, Part::Addresses).await;
        }
        let repairs = removed.into_iter().map(Op::BindAddress).collect();
        writer.repair(cx, repairs, None).await?;
        self.take_drift(cx, writer);
        Ok(())
    }

    /// Takes in a repair of the constant rules.
    pub(super) fn rules_repaired(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
        ended: RuleRepairEnded,
    ) {
        let family = ended.family;
        let took = ended.result.as_ref().map_or(Duration::ZERO, |repair| repair.took);
        let part = Part::RuleSet(family);
        match writer.rules_repaired(cx, ended) {
            None => self.schedule.failed(part, Instant::now()),
            Some(found_drift) => {
                self.schedule.succeeded();
                if found_drift {
                    self.expected.confirm(&part);
                } else {
                    self.expected.rules_were_in_order(family, took);
                }
            }
        }
        self.take_drift(cx, writer);
    }

    /// Compares a part of the kernel at its turn.
    async fn audit(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
        part: Part,
    ) -> Result<(), WorkerGone> {
        if writer.repairs_beside(cx, &part) {
            return Ok(());
        }
        if let Some(set) = large_set(&part, cx.planner.desired())
            && self.large_sets.begin(cx, writer, LargeSetRequest { set, n_foreign: None })
        {
            return Ok(());
        }
        let started = Instant::now();
        if self.compare(cx, writer, &part).await?.is_some() {
            self.schedule.compared(&part, started.elapsed());
        }
        Ok(())
    }

    /// Compares a part of the kernel, and repairs it. Returns nothing if it could not be read.
    async fn compare(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
        part: &Part,
    ) -> Result<Option<Compared>, WorkerGone> {
        let compared = compare(cx, writer, part).await?;
        Ok(self.note(cx, writer, part, compared))
    }

    /// Takes in what a comparison found.
    fn note(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
        part: &Part,
        mut compared: Option<Compared>,
    ) -> Option<Compared> {
        let mut found_drift = writer.take_drift();
        match &mut compared {
            None => self.schedule.failed(part.clone(), Instant::now()),
            Some(compared) => {
                found_drift |= compared.found_drift;
                if compared.has_missed {
                    self.schedule.missed_some();
                }
                for suspect in compared.suspects.drain(..) {
                    self.schedule.suspect(suspect);
                }
            }
        }
        if found_drift {
            self.go_full_speed(cx);
        }
        compared
    }

    /// Goes on at full speed if the writer met a kernel that was not as we had left it.
    fn take_drift(&mut self, cx: &mut Context, writer: &mut Writer) {
        if writer.take_drift() {
            self.go_full_speed(cx);
        }
    }

    /// Goes on at full speed: where something was not as we had left it, there is often more. Not
    /// where rules lead, of which everything of a family is compared at once.
    fn go_full_speed(&mut self, cx: &mut Context) {
        if !cx.leads_by_rules() && self.schedule.go_full_speed(Instant::now()) {
            cx.observers.report(&Report::FullSpeed(true));
        }
    }

    fn pass_ended(&self, cx: &mut Context, writer: &mut Writer, pass: &Pass, is_whole: bool) {
        if pass.full_speed && !self.schedule.is_full_speed() {
            if is_whole {
                info!("full-speed audit finished: no other kernel state had changed");
            }
            cx.observers.report(&Report::FullSpeed(false));
        }
        // One in which something could not be read is no comparison of everything.
        if !is_whole {
            return;
        }
        let ended = Ended { kind: RoundKind::Comparison, took: pass.cost, oldest: None };
        writer.round_ended(cx, ended);
        cx.observers.report(&Report::PassEnded(*pass));
    }
}
