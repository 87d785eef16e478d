//! Observer of the loop that writes the journal.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use plan::event::Event;
use plan::kernel_objects::Frontend;
use plan::model::{Family, ServiceName};
use plan::op::{Op, Subject};
use plan::planner::{Plan, Planner};

use super::{Arrival, Happened, Journal};
use crate::kernel::ReadError;
use crate::reconcile::observer::{HandDrainReport, KernelWrite, Observer, Pass, Round, RoundKind};

/// Most operations of one write, or repairs, that are kept as they are. The others are counted.
pub(super) const MOST_OPERATIONS: usize = 4;

/// Most Services of one write that are kept. The others are not known to be among it.
const MOST_SERVICES: usize = 32;

/// Most operations of one write whose Services are looked for.
const MOST_LOOKED_AT: usize = 1_024;

/// Observer of the loop that writes the journal.
#[derive(Debug)]
pub struct JournalObserver {
    journal: Journal,
    /// Services that lost frontends in the plan that is written now.
    given_up: HashMap<Frontend, ServiceName>,
    /// The only Service of the plan that is written now.
    only: Option<ServiceName>,
}

// === impl JournalObserver ===

impl JournalObserver {
    pub(super) fn new(journal: Journal) -> Self {
        Self { journal, given_up: HashMap::new(), only: None }
    }

    /// Returns the Services that operations are for, each once, as far as that is known.
    fn services<'a>(
        &self,
        ops: impl Iterator<Item = &'a Op>,
        planner: &Planner,
    ) -> Vec<ServiceName> {
        let mut services: Vec<ServiceName> = Vec::new();
        for op in ops.take(MOST_LOOKED_AT) {
            let subject = op.subject();
            let service = planner.owner_of(&subject);
            let service = service.or_else(|| self.former_owner(&subject)).or(self.only.as_ref());
            if let Some(service) = service.filter(|it| !services.contains(it)) {
                services.push(service.clone());
            }
            if services.len() == MOST_SERVICES {
                break;
            }
        }
        services
    }

    fn former_owner(&self, subject: &Subject) -> Option<&ServiceName> {
        match subject {
            Subject::VirtualServer(frontend) => self.given_up.get(frontend),
            Subject::Entry(_, entry) => self.given_up.get(&entry.frontend()?),
            _ => None,
        }
    }
}

impl Observer for JournalObserver {
    fn arrived(&mut self, event: &Event) {
        self.journal.note(Happened::Arrived(Arrival::of(event)));
    }

    fn planned(&mut self, plan: &Plan, _: &Planner, took: Duration) {
        self.given_up = plan.given_up.iter().cloned().collect();
        self.only = match &plan.services[..] {
            [only] => Some(only.clone()),
            _ => None,
        };
        if !plan.ops.is_empty() {
            let services = plan.services.iter().take(MOST_SERVICES).cloned().collect();
            let n_operations = plan.ops.len();
            self.journal.note(Happened::Planned { n_operations, services, took });
        }
    }

    fn reading_failed(&mut self, error: &ReadError) {
        self.journal.note(Happened::ReadingFailed(error.to_string()));
    }

    fn drifted(&mut self, repairs: &[&Op], planner: &Planner) {
        let kept = repairs.iter().take(MOST_OPERATIONS).copied().cloned();
        self.journal.note(Happened::Drifted {
            repairs: kept.collect(),
            n_more: repairs.len().saturating_sub(MOST_OPERATIONS),
            services: self.services(repairs.iter().copied(), planner),
            suspects: None,
        });
    }

    fn written(&mut self, write: &KernelWrite<'_>) {
        let KernelWrite { ops, results, took, planner } = *write;
        let refusals = ops.iter().zip(results);
        let refusals = refusals.filter_map(|(op, result)| Some((op, result.as_ref().err()?)));
        let n_refused = results.iter().filter(|result| result.is_err()).count();
        self.journal.note(Happened::Written {
            operations: ops.iter().take(MOST_OPERATIONS).cloned().collect(),
            n_more: ops.len().saturating_sub(MOST_OPERATIONS),
            refused: refusals
                .take(MOST_OPERATIONS)
                .map(|(op, refusal)| (op.clone(), refusal.to_string()))
                .collect(),
            n_refused,
            services: self.services(ops.iter(), planner),
            took,
        });
    }

    fn sysctl_put_back(&mut self) {
        self.journal.note(Happened::SysctlPutBack);
    }

    fn sysctl_warning(&mut self, note: &str) {
        self.journal.note(Happened::SysctlWarning(note.to_owned()));
    }

    fn held_up(&mut self, note: Option<&str>) {
        self.journal.note(Happened::HeldUp(note.map(ToOwned::to_owned)));
    }

    fn hand_drained(&mut self, report: &HandDrainReport<'_>) {
        self.journal.note(Happened::HandDrained(report.note.to_owned()));
    }

    fn pass_ended(&mut self, pass: &Pass) {
        self.journal.note(Happened::PassEnded { cost: pass.cost });
    }

    fn flows_removed(&mut self, family: Family, count: u64, _: Duration) {
        if count > 0 {
            self.journal.note(Happened::FlowsRemoved { family, count });
        }
    }

    fn round_ended(&mut self, round: &Round<'_>) {
        self.given_up = HashMap::new();
        self.only = None;
        if round.kind == RoundKind::Changes {
            let (oldest, backlog) = (round.oldest, round.backlog);
            self.journal.note(Happened::RoundEnded { oldest, backlog });
        }
    }
}

// === impl Arrival ===

impl Arrival {
    fn of(event: &Event) -> Self {
        match event {
            Event::ServiceApplied(service) => Self::Service(service.name.clone()),
            Event::ServiceRemoved(name) => Self::ServiceGone(name.clone()),
            Event::SliceApplied(slice) => {
                Self::Slice(slice.service.clone(), slice.name.clone(), slice.endpoints.len())
            }
            Event::SliceRemoved(name) => Self::SliceGone(name.clone()),
            Event::NodeApplied(_) => Self::Node,
            Event::LocalAddresses(addresses) => Self::LocalAddresses(addresses.len()),
            Event::OtherNodeApplied(name, _) => Self::OtherNode(Arc::clone(name)),
            Event::OtherNodeRemoved(name) => Self::OtherNodeGone(Arc::clone(name)),
            Event::ApiServerAddresses(_) => Self::Inside("the API server's addresses"),
            Event::SchedulerMissing(_) => Self::Inside("the kernel lacks a scheduler"),
            Event::SchedulerLoaded(_) => Self::Inside("the kernel may have a scheduler now"),
            Event::ProxyPort(..) => Self::Inside("the relay reports a proxy port"),
            Event::HandDrainBegan(_) => Self::Inside("an endpoint is drained by hand"),
            Event::HandDrainEnded(_) => Self::Inside("an endpoint is no longer drained by hand"),
        }
    }
}
