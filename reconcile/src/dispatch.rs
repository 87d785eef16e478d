//! The dispatch in ipvs mode: the rules that lead new connections to IPVS, on a node whose connections
//! another mode's rules lead until then.
//!
//! Rules of nat come before IPVS. So the other mode's rules may go on leading while virtual servers
//! are made and addresses bound, and one COMMIT of nat replaces them when all of that is there. It is
//! decided for each family from what the kernel has when the takeover begins; a restart finds the same
//! rules, or the dispatch.
//!
//! A virtual server that the kernel refuses holds the dispatch up for a while only: meanwhile the other
//! mode's rules go out of date. A missing prerequisite holds it up for as long as it is missing, which
//! is reported. So do most of a family's addresses or virtual servers: it is the family then that the
//! kernel refuses, and the other mode's rules serve it better out of date than this one does.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use plan::model::Family;
use plan::op::{Op, Subject};
use tokio::time::Instant;
use tracing::{info, warn};

use super::context::Context;
use super::observer::Report;
use super::retry_queue::RetryQueue;
use super::writer::{Basis, Writer};
use kernel::worker::WorkerGone;

/// Longest time for which the dispatch waits for retries: the third one comes after 7 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time between two reports that prerequisites hold the dispatch up.
const REPORT_PERIOD: Duration = Duration::from_secs(600);

/// Line of the log when a family's dispatch is written.
const LEADS: &str = "new connections go to IPVS from now on";

/// Number of missing prerequisites that a report names.
const NAMED: usize = 3;

/// Families whose dispatch is not written yet: the planner knows them.
#[derive(Debug, Default)]
pub(super) struct Dispatch {
    /// Time at which it waits for prerequisites only; none before the end of the takeover.
    deadline: Option<Instant>,
    /// Time of the next report that it is held up; none if it is not.
    next_report: Option<Instant>,
    /// Families whose dispatch was refused, and is retried.
    refused: BTreeSet<Family>,
    /// True once it was reported that most stands.
    is_served: bool,
}

impl Dispatch {
    /// Returns the time of the next step, if it does not depend on a retry.
    pub(super) fn next_due(&self, cx: &Context, now: Instant) -> Option<Instant> {
        if cx.leads_by_rules() || cx.planner.led_by_rules().is_empty() {
            return None;
        }
        Some(self.deadline.unwrap_or(now)).filter(|due| self.deadline.is_none() || *due > now)
    }

    /// Writes the dispatch of the families that have everything else. To be called when the kernel is
    /// taken over.
    pub(super) async fn step(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
    ) -> Result<(), WorkerGone> {
        let is_over = cx.planner.led_by_rules().is_empty() && self.refused.is_empty();
        if cx.leads_by_rules() || is_over {
            return Ok(());
        }
        let now = Instant::now();
        let deadline = *self.deadline.get_or_insert(now + PATIENCE);
        let families = cx.planner.led_by_rules().iter().copied();
        let is_complete = |it: &Family| !is_held_up(cx, *it, writer.retry_queue(), now < deadline);
        let complete: Vec<Family> = families.filter(is_complete).collect();
        if !complete.is_empty() {
            self.write(cx, writer, &complete).await?;
        }
        let is_refused =
            |family: &Family| writer.retry_queue().contains(&Subject::RuleSet(*family));
        self.refused.retain(|family| {
            let remains = is_refused(family);
            if !remains {
                info!(%family, "{LEADS}");
            }
            remains
        });
        let is_over = cx.planner.led_by_rules().is_empty() && self.refused.is_empty();
        if !is_over && now >= deadline {
            self.report_held_up(cx, writer.retry_queue(), now);
        }
        if is_over {
            if self.next_report.take().is_some() {
                cx.observers.report(&Report::HeldUp(None));
            }
            report_in_sync(cx, writer);
        }
        Ok(())
    }

    /// Writes the dispatch of these families.
    async fn write(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
        families: &[Family],
    ) -> Result<(), WorkerGone> {
        for family in families {
            cx.planner.set_led_by_rules(*family, false);
        }
        cx.set_desired_rules().await?;
        let ops = families.iter().copied().map(Op::WriteRuleSet).collect();
        writer.carry_out(cx, ops, Basis::Reading).await?;
        for family in families {
            // Rules that are out of date have led to endpoints that are gone.
            writer.note_stateless(cx, *family);
            if !writer.retry_queue().contains(&Subject::RuleSet(*family)) {
                info!(%family, "{LEADS}");
            } else if !cx.unread_rules.contains(family) {
                self.refused.insert(*family);
            }
        }
        Ok(())
    }

    /// Reports that prerequisites are missing, if the time has come.
    fn report_held_up(&mut self, cx: &mut Context, retry_queue: &RetryQueue, now: Instant) {
        if self.next_report.is_some_and(|due| now < due) {
            return;
        }
        self.next_report = Some(now + REPORT_PERIOD);
        let note = format!(
            "changes of Services do not take effect: connections still follow the rules of the \
             former mode, because IPVS mode lacks prerequisites: {}",
            missing(cx.planner.led_by_rules().union(&self.refused), retry_queue)
        );
        warn!("{note}");
        cx.observers.report(&Report::HeldUp(Some(&note)));
    }

    /// Reports once, from the first time on that the kernel is in sync, that most of each family stands.
    pub(super) fn report_served(&mut self, cx: &mut Context, retry_queue: &RetryQueue) {
        if self.is_served || !cx.status.borrow().in_sync_once {
            return;
        }
        let mut families = cx.planner.settings().families.iter();
        self.is_served = !families.any(|family| lacks_most(cx, *family, retry_queue));
        if self.is_served {
            cx.observers.report(&Report::Served);
        }
    }
}

/// Returns the prerequisites that hold the dispatch up, in words; or else what else is pending.
fn missing<'a>(families: impl Iterator<Item = &'a Family>, retry_queue: &RetryQueue) -> String {
    let families: Vec<Family> = families.copied().collect();
    let is_missing = |it: &&Subject| families.iter().any(|family| is_of(it, *family));
    let mut missing: Vec<&Subject> = retry_queue.prerequisites().filter(is_missing).collect();
    if missing.is_empty() {
        missing = retry_queue.iter().map(|(subject, _)| subject).filter(is_missing).collect();
        // What was tried says more than what waits for it.
        let was_tried = |it: &Subject| retry_queue.get(it).is_some_and(|it| it.attempts > 0);
        missing.sort_unstable_by_key(|it| (!was_tried(it), **it));
    }
    let pending = missing.iter().filter_map(|subject| retry_queue.get(subject));
    let named = pending.take(NAMED).map(|it| format!("{}: {}", it.op, it.refusal));
    let named = named.collect::<Vec<_>>().join("; ");
    match missing.len().saturating_sub(NAMED) {
        0 => named,
        others => format!("{named}; and {others} more"),
    }
}

/// Reports that the kernel is as it should be, as far as it let us.
pub(super) fn report_in_sync(cx: &mut Context, writer: &Writer) {
    cx.observers.report(&Report::InSync);
    // In modes of rules, `Leading` says when these lead.
    if !cx.leads_by_rules() {
        cx.observers.report(&Report::Carried);
    }
    info!(pending_retries = writer.retry_queue().len(), "in sync with the kernel");
}

/// True if a pending retry stands in the way of a family's dispatch. Rules that could not be read hold
/// nothing up: most likely, none of another mode are among them.
fn is_held_up(cx: &Context, family: Family, retry_queue: &RetryQueue, by_anything: bool) -> bool {
    let is_unread =
        |it: &Subject| *it == Subject::RuleSet(family) && cx.unread_rules.contains(&family);
    let mut prerequisites = retry_queue.prerequisites();
    prerequisites.any(|it| is_of(it, family) && !is_unread(it))
        || by_anything && retry_queue.iter().any(|(it, _)| is_of(it, family))
        || lacks_most(cx, family, retry_queue)
}

/// True if more than half of a family's addresses or virtual servers are pending. Walks them only if
/// some are.
fn lacks_most(cx: &Context, family: Family, retry_queue: &RetryQueue) -> bool {
    let count = |is_it: fn(&Subject) -> bool| {
        let of_family = retry_queue.iter().filter(|(it, _)| is_of(it, family) && is_it(it));
        of_family.count()
    };
    let n_addresses = count(|it| matches!(it, Subject::Address(_)));
    let n_servers = count(|it| matches!(it, Subject::VirtualServer(_)));
    let desired = cx.planner.desired();
    let is_ours = |address: IpAddr| Family::of(address) == family;
    n_addresses > 0 && 2 * n_addresses > desired.addresses().filter(|it| is_ours(*it)).count()
        || n_servers > 0
            && 2 * n_servers > desired.frontends().filter(|it| is_ours(it.address)).count()
}

fn is_of(subject: &Subject, family: Family) -> bool {
    subject.family().is_none_or(|it| it == family)
}
