//! Observer of the loop that writes the journal.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plan::event::Event;
use plan::kernel_objects::Frontend;
use plan::model::ServiceName;
use plan::op::{Op, Subject};
use plan::planner::{Plan, Planner};

use super::{Arrival, Happened, Journal, LONGEST, LONGEST_PART, noted};
use reconcile::observer::{KernelWrite, Observer, Report, Round, RoundKind};
use syntax::quoted::shortened;

/// Most operations of one write, or repairs, that are named. The others are counted.
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
            if services.len() == MOST_SERVICES || length(&services) > LONGEST {
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
    fn planned(&mut self, plan: &Plan, took: Duration) {
        self.given_up = plan.given_up.iter().cloned().collect();
        self.only = match &plan.services[..] {
            [only] => Some(only.clone()),
            _ => None,
        };
        if !plan.ops.is_empty() {
            let mut services: Vec<ServiceName> =
                plan.services.iter().take(MOST_SERVICES).cloned().collect();
            while length(&services) > LONGEST {
                services.pop();
            }
            let n_operations = plan.ops.len();
            self.journal.note(Happened::Planned { n_operations, services, took });
        }
    }

    fn drifted(&mut self, repairs: &[&Op], planner: &Planner) {
        self.journal.note(Happened::Drifted {
            repairs: list(repairs.iter().copied(), repairs.len()),
            services: self.services(repairs.iter().copied(), planner),
        });
    }

    fn written(&mut self, write: &KernelWrite<'_>) {
        let KernelWrite { ops, results, took, planner } = *write;
        let refusals = ops.iter().zip(results);
        let refusals = refusals.filter_map(|(op, result)| Some((op, result.as_ref().err()?)));
        let refused = refusals.map(|(op, refusal)| format!("{op}: {refusal}"));
        let n_refused = results.iter().filter(|result| result.is_err()).count();
        self.journal.note(Happened::Written {
            operations: list(ops.iter(), ops.len()),
            refused: list(refused, 0),
            n_refused,
            services: self.services(ops.iter(), planner),
            took,
        });
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

impl Observer for JournalObserver {
    fn report(&mut self, report: &Report<'_>) {
        let happened = match report {
            Report::Arrived(event) => Happened::Arrived(Arrival::of(event)),
            Report::Planned { plan, took, .. } => return self.planned(plan, *took),
            Report::ReadingFailed(error) => Happened::ReadingFailed(noted(error)),
            Report::Drifted { repairs, planner } => return self.drifted(repairs, planner),
            Report::Written(write) => return self.written(write),
            Report::SysctlPutBack => Happened::SysctlPutBack,
            Report::SysctlWarning(note) => Happened::SysctlWarning(noted(note)),
            Report::HeldUp(note) => Happened::HeldUp(note.as_ref().map(noted)),
            Report::HandDrained(report) => Happened::HandDrained(noted(&report.note)),
            Report::PassEnded(pass) => Happened::PassEnded { cost: pass.cost },
            Report::FlowsRemoved { family, count: count @ 1.., .. } => {
                Happened::FlowsRemoved { family: *family, count: *count }
            }
            Report::RoundEnded(round) => return self.round_ended(round),
            _ => return,
        };
        self.journal.note(happened);
    }
}

/// Returns the first of some texts, each cut, and the number of the others among so many.
fn list<T: fmt::Display>(texts: impl Iterator<Item = T>, all: usize) -> Box<str> {
    let mut listed = String::new();
    for text in texts.take(MOST_OPERATIONS) {
        if !listed.is_empty() {
            listed.push_str("; ");
        }
        listed.push_str(&shortened(&text, LONGEST_PART));
    }
    if all > MOST_OPERATIONS {
        listed.push_str(&format!("; {} more", all - MOST_OPERATIONS));
    }
    listed.into()
}

/// Bytes of these names.
fn length(services: &[ServiceName]) -> usize {
    services.iter().map(|name| name.namespace.len() + name.name.len()).sum()
}

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
            Event::HandDrainBegan(_) => Self::Inside("an endpoint is drained manually"),
            Event::HandDrainEnded(_) => Self::Inside("an endpoint is no longer drained manually"),
        }
    }
}

#[cfg(test)]
mod tests {
    use plan::chains::{ChainId, ChainOp, SharedChain};
    use plan::model::Family;
    use plan::rule_set::Table;
    use plan::settings::Settings;

    use super::*;
    use kernel::{Refusal, RefusalClass};

    /// A chain of 5,000 rules, of 110 bytes each, and one whose name is as long as a tenant can make it.
    #[test]
    fn a_note_keeps_neither_rules_nor_long_texts() {
        let rules: Arc<[Box<str>]> = vec!["x".repeat(110).into(); 5_000].into();
        let chain = ChainId::shared(Family::V4, Table::Nat, SharedChain::Services);
        let ops = [
            Op::Chain(ChainOp::Write(chain, Arc::clone(&rules))),
            Op::Chain(ChainOp::Insert(chain, "y".repeat(262_144).into())),
        ];
        let refusal = Refusal::new(RefusalClass::Other, "z".repeat(262_144));
        let results = [Ok(()), Err(refusal)];
        let planner = Planner::new(Settings::new("node"));
        let journal = Journal::default();
        let mut observer = journal.observer();
        observer.drifted(&[&ops[0], &ops[1]], &planner);
        let took = Duration::ZERO;
        observer.written(&KernelWrite { ops: &ops, results: &results, took, planner: &planner });
        observer.report(&Report::SysctlWarning(&"w".repeat(262_144)));
        drop(ops);
        assert_eq!(Arc::strong_count(&rules), 1);
        for note in journal.after(0, 10) {
            let text = format!("{:?}", note.happened);
            assert!(text.len() < 3 * LONGEST, "{} bytes: {}", text.len(), &text[..200]);
        }
        let notes = journal.after(0, 10);
        let Happened::Written { operations, .. } = &notes[1].happened else { panic!("{notes:?}") };
        assert!(operations.starts_with("write chain "), "{operations}");
        assert!(operations.contains(" of 5000 rules; insert rule yyy"), "{operations}");
    }
}
