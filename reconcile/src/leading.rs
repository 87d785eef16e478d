//! The rules that lead new connections, in modes iptables and userspace: whether they are there.
//!
//! Until they are, the former mode's state serves. A single Service that the kernel refuses
//! is waited for a short time only, and keeps what IPVS mode left of it ([`super::leaving_ipvs`]). A
//! family whose rules are missing as a whole, or of most of its Services, is waited for without end,
//! which is reported.

use std::collections::BTreeSet;
use std::time::Duration;

use plan::chains::ChainOp;
use plan::hash::HashSet;
use plan::kernel_objects::Frontend;
use plan::model::{Family, ServiceName};
use plan::op::{Op, Subject};
use plan::planner::Planner;
use tokio::time::Instant;
use tracing::{info, warn};

use super::context::Context;
use super::observer::Report;
use super::retry_queue::{Pending, RetryQueue};
use super::writer::{Basis, Writer};
use kernel::worker::WorkerGone;

/// Longest time for which rules of single Services are waited for: the third retry comes after 7 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time between two checks while rules are missing.
const CHECK: Duration = Duration::from_secs(1);

/// Time between two reports of missing rules.
const REPORT_PERIOD: Duration = Duration::from_secs(600);

/// Number of refusals that a report names.
const NAMED: usize = 3;

/// Progress of the rules that lead, from the end of the takeover until new connections go by them.
#[derive(Debug, Default)]
pub(super) struct Leading {
    /// Time from which only whole families are waited for; none before the end of the takeover.
    deadline: Option<Instant>,
    next_check: Option<Instant>,
    /// Time of the next report of missing rules; none if none are reported.
    next_report: Option<Instant>,
}

/// Families and Services whose new connections the rules of this mode do not lead.
#[derive(Debug, Default)]
pub(super) struct Unled {
    /// Families of which constant rules, rules of all Services or those of most of them are missing.
    pub(super) families: BTreeSet<Family>,
    /// Services of which rules of this family are missing.
    services: HashSet<(Family, ServiceName)>,
}

impl Leading {
    /// Returns the time of the next step; none when the rules lead, or in IPVS mode.
    pub(super) fn next_due(&self, cx: &Context, now: Instant) -> Option<Instant> {
        (!cx.status.borrow().is_carried && cx.leads_by_rules())
            .then(|| self.next_check.unwrap_or(now))
    }

    /// Looks whether the rules lead. If they do, portals that come before them go. To be called when
    /// the kernel is taken over.
    pub(super) async fn step(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
    ) -> Result<(), WorkerGone> {
        let now = Instant::now();
        if self.next_due(cx, now).is_none_or(|due| now < due) {
            return Ok(());
        }
        let deadline = *self.deadline.get_or_insert(now + PATIENCE);
        let unled = Unled::of(cx, writer.retry_queue());
        if unled.is_empty() || now >= deadline && unled.families.is_empty() {
            if self.next_report.take().is_some() {
                info!("the rules of this mode handle new connections");
                cx.observers.report(&Report::HeldUp(None));
            }
            remove_portals(cx, writer).await?;
            cx.observers.report(&Report::Carried);
            return Ok(());
        }
        self.next_check = Some(now + CHECK);
        if now >= deadline && self.next_report.is_none_or(|due| due <= now) {
            self.next_report = Some(now + REPORT_PERIOD);
            let note = format!(
                "changes of Services do not take effect: connections still follow the rules of the \
                 former mode, because {} lacks rules: {}",
                cx.planner.settings().mode.title(),
                unled.reasons(cx, writer.retry_queue())
            );
            warn!("{note}");
            cx.observers.report(&Report::HeldUp(Some(&note)));
        }
        Ok(())
    }
}

/// Has the constant rules take out jumps to portals of mode userspace, which come before them.
async fn remove_portals(cx: &mut Context, writer: &mut Writer) -> Result<(), WorkerGone> {
    let families = cx.planner.led_by_rules().clone();
    if families.is_empty() {
        return Ok(());
    }
    for family in &families {
        cx.planner.set_led_by_rules(*family, false);
    }
    cx.set_desired_rules().await?;
    let ops = families.into_iter().map(Op::WriteRuleSet).collect();
    writer.carry_out(cx, ops, Basis::Reading).await
}

impl Unled {
    /// Finds out which rules are missing, by the pending retries. Walks all of these, and where
    /// some are of Services, all Services once.
    pub(super) fn of(cx: &Context, retry_queue: &RetryQueue) -> Self {
        let mut unled = Self { families: cx.unread_chains.clone(), ..Self::default() };
        for (subject, pending) in retry_queue.iter() {
            unled.note(&cx.planner, subject, pending);
        }
        let lacking = cx.planner.without_proxy_port();
        unled.services.extend(lacking.map(|id| (id.family, id.service)));
        for family in Family::BOTH {
            let n_unled = unled.services.iter().filter(|(of, _)| *of == family).count();
            // `services_with_chains` walks; most of the time there is nothing to compare with.
            if n_unled > 0 && 2 * n_unled > cx.planner.n_services_with_chains(family) {
                unled.families.insert(family);
            }
        }
        unled
    }

    fn note(&mut self, planner: &Planner, subject: &Subject, pending: &Pending) {
        match subject {
            Subject::RuleSet(family) => {
                self.families.insert(*family);
            }
            Subject::Chain(chain) => {
                // What is too much leads nowhere else.
                let is_removal =
                    matches!(pending.op, Op::Chain(ChainOp::Delete(..) | ChainOp::Remove(_)));
                let family = chain.chain().family;
                match planner.owner_of(subject) {
                    Some(service) => {
                        self.services.insert((family, service.clone()));
                    }
                    None if is_removal || !chain.chain().name.is_shared() => {}
                    None => {
                        self.families.insert(family);
                    }
                }
            }
            _ => {}
        }
    }

    /// True if the rules lead all new connections.
    pub(super) fn is_empty(&self) -> bool {
        self.families.is_empty() && self.services.is_empty()
    }

    /// True if the rules do not lead all new connections of a family.
    pub(super) fn has(&self, family: Family) -> bool {
        self.families.contains(&family) || self.services.iter().any(|(of, _)| *of == family)
    }

    /// True if the rules do not lead new connections to a frontend, as clients see it, though they
    /// should.
    pub(super) fn contains(&self, planner: &Planner, frontend: &Frontend) -> bool {
        let family = frontend.family();
        self.families.contains(&family)
            || !self.services.is_empty()
                && planner
                    .chain_owner(frontend)
                    .is_some_and(|owner| self.services.contains(&(family, owner.clone())))
    }

    /// Returns why families are not led, in words.
    fn reasons(&self, cx: &Context, retry_queue: &RetryQueue) -> String {
        let is_of =
            |it: &Subject| it.family().is_some_and(|family| self.families.contains(&family));
        let pending = retry_queue.iter().filter(|(subject, _)| is_of(subject));
        let named = pending.take(NAMED).map(|(_, it)| format!("{}: {}", it.op, it.refusal));
        let unread = cx.unread_chains.iter();
        let unread = unread.map(|family| format!("chains of {family} cannot be read"));
        let all: Vec<String> = unread.chain(named).collect();
        if all.is_empty() {
            return "most Services have no proxy port; see the Event on each Service".to_owned();
        }
        let others = retry_queue.iter().filter(|(subject, _)| is_of(subject)).count();
        match others.saturating_sub(NAMED) {
            0 => all.join("; "),
            more => format!("{}; and {more} more", all.join("; ")),
        }
    }
}
