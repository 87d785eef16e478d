//! Observer of the event loop for health, metrics and health checks of Services.

mod endpoint_changes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use plan::event::Event;
use plan::local::HealthCheck;
use plan::model::{Family, ServiceName};
use plan::op::{Op, PartKind, Subject};
use plan::planner::{Plan, Planner};

use super::health::{Moment, SharedHealth};
use super::metrics::Metrics;
use super::service_health::{CheckUpdates, NodeAddresses};
use endpoint_changes::EndpointChanges;
use reconcile::observer::{KernelWrite, Observer, Report, Round, RoundKind, RuleCount};
use reconcile::retry_queue::{RetryQueue, withheld};

/// Observer of the event loop that updates health, metrics and health checks.
#[derive(Debug)]
pub struct ServerObserver {
    health: SharedHealth,
    metrics: Arc<Metrics>,
    updates: CheckUpdates,
    /// The Services whose changes are not planned yet.
    pending: HashSet<ServiceName>,
    endpoint_changes: EndpointChanges,
    /// Health checks that were planned and are not written yet.
    checks: BTreeMap<ServiceName, Option<HealthCheck>>,
    addresses: NodeAddresses,
    /// True if the listeners do not know these addresses yet.
    are_addresses_new: bool,
    /// Families for which a round has ended that could write no chain.
    unsynced: BTreeSet<Family>,
}

impl ServerObserver {
    /// Returns an observer that updates these.
    #[must_use]
    pub fn new(health: SharedHealth, metrics: Arc<Metrics>, updates: CheckUpdates) -> Self {
        metrics.proxy.queued(SystemTime::now());
        let endpoint_changes =
            EndpointChanges::new(metrics.own.stages.endpoint_change_to_kernel.clone());
        Self {
            health,
            metrics,
            updates,
            pending: HashSet::new(),
            endpoint_changes,
            checks: BTreeMap::new(),
            addresses: NodeAddresses::default(),
            are_addresses_new: false,
            unsynced: BTreeSet::new(),
        }
    }

    fn service_changed(&mut self, service: &ServiceName) {
        self.metrics.proxy.service_changed();
        self.pending.insert(service.clone());
        self.metrics.proxy.service_changes_pending.set(gauge(self.pending.len()));
    }

    /// Updates the numbers of pending changes. Changes that a round left for the next one are known
    /// by number only, not by name. While some are left, the pending numbers are upper limits.
    fn note_planned(&mut self, backlog: usize) {
        let metrics = &self.metrics.proxy;
        if backlog == 0 {
            self.pending.clear();
            metrics.endpoint_changes_pending.set(0);
        }
        metrics.service_changes_pending.set(gauge(self.pending.len().min(backlog)));
    }

    fn set_addresses(&mut self, addresses: NodeAddresses) {
        if addresses != self.addresses {
            self.addresses = addresses;
            self.are_addresses_new = true;
        }
    }

    fn note_pending(&mut self, round: &Round<'_>) {
        self.metrics.own.set_pending(round.pending.classes());
        let now = Moment::now();
        let mut health = self.health.lock();
        for family in round.families {
            health.prerequisites_refused(
                *family,
                is_prerequisite_pending(round.pending, *family),
                now,
            );
            if !round.pending.withholds_chains(*family) {
                health.chains_withheld(*family, false, now);
            }
        }
        self.unsynced.retain(|family| {
            let is_withheld = health.is_withheld(*family);
            if !is_withheld {
                health.written(*family, now);
                self.metrics.proxy.synced(*family, now.time);
            }
            is_withheld
        });
    }

    /// Notes for each family if changes of its chains were written, or refused for a reason that is
    /// in none of them. One that was written counts.
    fn note_chains(&self, write: &KernelWrite<'_>) {
        let mut withheld_by = BTreeMap::new();
        for (op, result) in write.ops.iter().zip(write.results) {
            let Op::Chain(change) = op else { continue };
            match result {
                Ok(()) => drop(withheld_by.insert(change.chain().family, false)),
                Err(refusal) => {
                    if let Some(family) = withheld(op, refusal.class) {
                        withheld_by.entry(family).or_insert(true);
                    }
                }
            }
        }
        if !withheld_by.is_empty() {
            let (now, mut health) = (Moment::now(), self.health.lock());
            for (family, withheld) in withheld_by {
                health.chains_withheld(family, withheld, now);
            }
        }
    }
    fn arrived(&mut self, event: &Event) {
        match event {
            Event::ServiceApplied(service) => self.service_changed(&service.name),
            Event::ServiceRemoved(service) => self.service_changed(service),
            Event::SliceApplied(_) | Event::SliceRemoved(_) => {
                self.metrics.proxy.endpoint_changes.inc();
                self.metrics.proxy.endpoint_changes_pending.inc();
                self.endpoint_changes.arrived();
            }
            Event::LocalAddresses(local) => {
                let mut local = local.clone();
                local.sort_unstable();
                self.set_addresses(NodeAddresses { local, ..self.addresses.clone() });
            }
            Event::NodeApplied(node) => {
                let node = node.addresses.clone();
                self.set_addresses(NodeAddresses { node, ..self.addresses.clone() });
            }
            Event::OtherNodeApplied(..)
            | Event::OtherNodeRemoved(_)
            | Event::ApiServerAddresses(_)
            | Event::SchedulerMissing(_)
            | Event::SchedulerLoaded(_)
            | Event::ProxyPort(..)
            | Event::HandDrainBegan(_)
            | Event::HandDrainEnded(_) => {}
        }
    }

    fn taken(&mut self, count: usize) {
        self.endpoint_changes.taken();
        self.health.lock().taken(count, Moment::now());
    }

    fn waiting(&mut self, backlog: usize) {
        let now = Moment::now();
        self.endpoint_changes.wait(now.instant);
        let mut health = self.health.lock();
        health.waiting(backlog, now);
        self.metrics.own.queues.set_waiting_since(health.waiting_since());
        self.metrics.proxy.queued(now.time);
    }

    fn planned(&mut self, plan: &Plan, planner: &Planner, took: Duration) {
        self.metrics.own.stages.planned(took);
        self.note_planned(planner.backlog());
        self.metrics.proxy.set_local_gaps(planner.local_gaps());
        self.metrics.own.programmed.set(planner);
        self.checks.extend(plan.health_checks.iter().cloned());
    }

    fn written(&mut self, write: &KernelWrite<'_>) {
        let KernelWrite { ops, results, .. } = *write;
        self.note_chains(write);
        for (op, result) in ops.iter().zip(results) {
            let refused = result.as_ref().err().map(|refusal| refusal.class);
            self.metrics.own.answered(op, refused);
            if refused.is_none() {
                self.metrics.own.programmed.done(op);
            }
            if let (Op::WriteRuleSet(family), Some(_)) = (op, refused) {
                self.metrics.proxy.restore_failed(*family);
            }
        }
        let is_refused_chain =
            |(op, result): &(&Op, &Result<_, _>)| result.is_err() && op.kind() == PartKind::Chains;
        let refused = ops.iter().zip(results).filter(is_refused_chain);
        // Chains are written together, so that one failed attempt may be many refusals.
        let families: BTreeSet<Family> =
            refused.filter_map(|(op, _)| op.subject().family()).collect();
        for family in families {
            self.metrics.proxy.restore_failed(family);
            if let Some(iptables) = &self.metrics.iptables {
                iptables.partial_restore_failed(family);
            }
        }
    }

    fn in_sync(&mut self) {
        self.updates.round(mem::take(&mut self.checks), None);
        self.updates.planned_all();
    }

    fn rules_counted(&mut self, count: &RuleCount) {
        if let Some(iptables) = &self.metrics.iptables {
            iptables.set_rules(count);
        }
    }

    fn round_ended(&mut self, round: &Round<'_>) {
        self.note_pending(round);
        if round.kind == RoundKind::Retry {
            // What was planned meanwhile may still wait.
            return;
        }
        let now = Moment::now();
        let own = &self.metrics.own;
        own.stages.round(round);
        own.backlog.set(gauge(round.backlog));
        let since = round.waiting.map(|age| now.instant.checked_sub(age).unwrap_or(now.instant));
        if since.is_none() {
            self.endpoint_changes.written(now.instant);
        }
        own.queues.set_waiting_since(since);
        let mut health = self.health.lock();
        for family in round.families {
            self.metrics.proxy.round_took(*family, round.took);
            if let Some(iptables) = &self.metrics.iptables {
                iptables.round_took(*family, round.kind, round.took);
            }
            if since.is_some() {
                continue;
            }
            health.written(*family, now);
            if health.is_withheld(*family) {
                self.unsynced.insert(*family);
            } else {
                self.metrics.proxy.synced(*family, now.time);
            }
        }
        if let Some(since) = since {
            health.left(round.backlog, since);
        }
        // kube-proxy measures none that it could not write, either.
        for (family, trigger) in round.triggers.iter().filter(|(it, _)| !health.is_withheld(*it)) {
            self.metrics.proxy.programmed(*family, *trigger, now.time);
        }
        if round.kind == RoundKind::Comparison {
            self.metrics.own.audit.compared(now.time);
        }
        drop(health);
        let addresses = mem::take(&mut self.are_addresses_new).then(|| self.addresses.clone());
        self.updates.round(mem::take(&mut self.checks), addresses);
    }
}

impl Observer for ServerObserver {
    fn report(&mut self, report: &Report<'_>) {
        let own = &self.metrics.own;
        match report {
            Report::Arrived(event) => self.arrived(event),
            Report::Taken(count) => self.taken(*count),
            Report::Waiting(backlog) => self.waiting(*backlog),
            Report::Planned { plan, planner, took } => self.planned(plan, planner, *took),
            Report::ReadingFailed(_) => own.read_failures.inc(),
            Report::Drifted { repairs, .. } => repairs.iter().for_each(|op| own.drifted(op)),
            Report::Written(write) => self.written(write),
            Report::InSync => self.in_sync(),
            Report::Served => self.health.lock().served(),
            Report::RulesCounted(count) => self.rules_counted(count),
            Report::DriftChecked { as_expected, .. } => own.audit.drift_checked(*as_expected),
            Report::SysctlPutBack => own.sysctl_put_back(),
            Report::SysctlMismatches(count) => own.sysctl_mismatches.set(gauge(*count)),
            Report::HeldUp(note) => own.switch_held_up.set(note.is_some().into()),
            Report::HandDrained(report) => own.drained_endpoints.set(gauge(report.count)),
            Report::FullSpeed(on) => own.audit.set_full_speed(*on),
            Report::PassEnded(pass) => own.audit.pass_ended(pass, SystemTime::now()),
            Report::FlowsRemoved { family, count, took } => {
                self.metrics.proxy.flows_reconciled(*family, *took, *count);
            }
            Report::RoundEnded(round) => self.round_ended(round),
            _ => {}
        }
    }
}

/// True if the kernel refuses the interface, or a family's rules, one of its routes or one of its
/// sets, and another program's set is not the reason: a restart would not end that.
fn is_prerequisite_pending(retry_queue: &RetryQueue, family: Family) -> bool {
    retry_queue.awaited_prerequisites().any(|subject| match subject {
        Subject::RuleSet(of) => *of == family,
        Subject::Set(set) => set.family == family,
        Subject::Route(network) => Family::of_net(network) == family,
        _ => true,
    })
}

fn gauge(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
