//! The journal: the last things that the loop did, in memory.
//!
//! The loop notes what happened in a few words of memory; sentences are made for a question. The
//! oldest notes go when there are too many.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use plan::event::Event;
use plan::model::{Family, ServiceName, SliceName};
use plan::op::Op;
use plan::planner::{Plan, Planner};

use crate::kernel::{ReadError, Refusal};
use crate::reconcile::observer::{HandDrainReport, Observer, Pass, Round, RoundKind};

/// Most notes that are kept.
const MOST: usize = 4_096;

/// Most operations of one write, or repairs, that are kept as they are. The others are counted.
const MOST_OPERATIONS: usize = 4;

/// Notes of what was done lately. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Journal(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    /// In the order of their numbers.
    kept: VecDeque<Note>,
    /// Number of notes so far.
    written: u64,
}

/// Note of something that happened.
#[derive(Debug, Clone)]
pub struct Note {
    /// Its number, from 1.
    pub number: u64,
    /// Time at which it happened.
    pub at: SystemTime,
    /// The event.
    pub happened: Happened,
}

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Happened {
    /// The source reported a change.
    Arrived(Arrival),
    /// Services were planned.
    Planned {
        /// Number of operations that came of it.
        n_operations: usize,
        /// Duration of planning.
        took: Duration,
    },
    /// Operations were sent to the kernel.
    Written {
        /// The first of them.
        operations: Vec<Op>,
        /// Number of the others.
        n_more: usize,
        /// Those that were refused first, with the reason.
        refused: Vec<(Op, String)>,
        /// Number of refused ones.
        n_refused: usize,
        /// Until the kernel's last answer.
        took: Duration,
    },
    /// Another program had changed the kernel.
    Drifted {
        /// The first repairs.
        repairs: Vec<Op>,
        /// Number of the others.
        n_more: usize,
    },
    /// The kernel could not be read.
    ReadingFailed(String),
    /// A sysctl that another program had changed was set again.
    SysctlPutBack,
    /// A sysctl is not as Services need it.
    SysctlWarning(String),
    /// Rules of the mode before still lead connections, for this reason; none: no longer.
    HeldUp(Option<String>),
    /// A drain by hand has begun or ended.
    HandDrained(String),
    /// Flows that led nowhere were removed.
    FlowsRemoved {
        /// Their family.
        family: Family,
        /// Number of flows.
        count: u64,
    },
    /// A pass of the audit ended.
    PassEnded {
        /// Reading and comparing.
        cost: Duration,
    },
    /// Changes were written.
    RoundEnded {
        /// From the arrival of the oldest change to the kernel's last answer.
        oldest: Duration,
        /// Number of Services that still wait.
        backlog: usize,
    },
}

/// Change that the source reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrival {
    /// A Service is there, or is different now.
    Service(ServiceName),
    /// A Service is gone.
    ServiceGone(ServiceName),
    /// An EndpointSlice with so many endpoints is there, or is different now.
    Slice(ServiceName, SliceName, usize),
    /// An EndpointSlice is gone.
    SliceGone(SliceName),
    /// This node's Node object.
    Node,
    /// The addresses of this node's interfaces, so many.
    LocalAddresses(usize),
    /// Another node.
    OtherNode(Arc<str>),
    /// Another node is gone.
    OtherNodeGone(Arc<str>),
    /// Something inside of this program: a scheduler, a proxy port.
    Inside(&'static str),
}

/// Observer of the loop that writes the journal.
#[derive(Debug)]
pub struct JournalObserver(Journal);

// === impl Journal ===

impl Journal {
    /// Returns the observer that writes it.
    #[must_use]
    pub fn observer(&self) -> JournalObserver {
        JournalObserver(self.clone())
    }

    /// Returns the notes after this number, the oldest first, and at most `most` of them: the newest.
    #[must_use]
    pub fn after(&self, number: u64, most: usize) -> Vec<Note> {
        let notes = self.lock();
        let mut newest: Vec<Note> = notes
            .kept
            .iter()
            .rev()
            .take_while(|note| note.number > number)
            .take(most)
            .cloned()
            .collect();
        newest.reverse();
        newest
    }

    /// Returns the newest notes that `is_wanted` is true for, the newest first.
    #[must_use]
    pub fn newest(&self, most: usize, is_wanted: impl Fn(&Happened) -> bool) -> Vec<Note> {
        let notes = self.lock();
        let wanted = notes.kept.iter().rev().filter(|note| is_wanted(&note.happened));
        wanted.take(most).cloned().collect()
    }

    /// Adds a note.
    pub fn note(&self, happened: Happened) {
        let at = SystemTime::now();
        let mut notes = self.lock();
        notes.written += 1;
        if notes.kept.len() == MOST {
            notes.kept.pop_front();
        }
        let number = notes.written;
        notes.kept.push_back(Note { number, at, happened });
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        // Notes are whole at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Happened ===

impl Happened {
    /// True if something went wrong.
    #[must_use]
    pub fn is_error(&self) -> bool {
        match self {
            Self::Written { n_refused, .. } => *n_refused > 0,
            Self::ReadingFailed(_) | Self::SysctlWarning(_) | Self::HeldUp(Some(_)) => true,
            _ => false,
        }
    }

    /// Returns the Service that it is about, if it is about one.
    #[must_use]
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::Arrived(
                Arrival::Service(name) | Arrival::ServiceGone(name) | Arrival::Slice(name, ..),
            ) => Some(name),
            _ => None,
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
            Event::SchedulerMissing(_) => Self::Inside("the kernel lacks a scheduler"),
            Event::SchedulerLoaded(_) => Self::Inside("the kernel may have a scheduler now"),
            Event::ProxyPort(..) => Self::Inside("the relay reports a proxy port"),
            Event::HandDrainBegan(_) => Self::Inside("an endpoint is drained by hand"),
            Event::HandDrainEnded(_) => Self::Inside("an endpoint is no longer drained by hand"),
        }
    }
}

// === impl JournalObserver ===

impl Observer for JournalObserver {
    fn arrived(&mut self, event: &Event) {
        self.0.note(Happened::Arrived(Arrival::of(event)));
    }

    fn planned(&mut self, plan: &Plan, _: &Planner, took: Duration) {
        if !plan.ops.is_empty() {
            self.0.note(Happened::Planned { n_operations: plan.ops.len(), took });
        }
    }

    fn reading_failed(&mut self, error: &ReadError) {
        self.0.note(Happened::ReadingFailed(error.to_string()));
    }

    fn drifted(&mut self, repairs: &[&Op]) {
        let kept = repairs.iter().take(MOST_OPERATIONS).copied().cloned();
        let n_more = repairs.len().saturating_sub(MOST_OPERATIONS);
        self.0.note(Happened::Drifted { repairs: kept.collect(), n_more });
    }

    fn written(&mut self, ops: &[Op], results: &[Result<(), Refusal>], took: Duration) {
        let refusals = ops.iter().zip(results);
        let refusals = refusals.filter_map(|(op, result)| Some((op, result.as_ref().err()?)));
        let n_refused = results.iter().filter(|result| result.is_err()).count();
        self.0.note(Happened::Written {
            operations: ops.iter().take(MOST_OPERATIONS).cloned().collect(),
            n_more: ops.len().saturating_sub(MOST_OPERATIONS),
            refused: refusals
                .take(MOST_OPERATIONS)
                .map(|(op, refusal)| (op.clone(), refusal.to_string()))
                .collect(),
            n_refused,
            took,
        });
    }

    fn sysctl_put_back(&mut self) {
        self.0.note(Happened::SysctlPutBack);
    }

    fn sysctl_warning(&mut self, note: &str) {
        self.0.note(Happened::SysctlWarning(note.to_owned()));
    }

    fn held_up(&mut self, note: Option<&str>) {
        self.0.note(Happened::HeldUp(note.map(ToOwned::to_owned)));
    }

    fn hand_drained(&mut self, report: &HandDrainReport<'_>) {
        self.0.note(Happened::HandDrained(report.note.to_owned()));
    }

    fn pass_ended(&mut self, pass: &Pass) {
        self.0.note(Happened::PassEnded { cost: pass.cost });
    }

    fn flows_removed(&mut self, family: Family, count: u64, _: Duration) {
        if count > 0 {
            self.0.note(Happened::FlowsRemoved { family, count });
        }
    }

    fn round_ended(&mut self, round: &Round<'_>) {
        if round.kind == RoundKind::Changes {
            let (oldest, backlog) = (round.oldest, round.backlog);
            self.0.note(Happened::RoundEnded { oldest, backlog });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(notes: &[Note]) -> Vec<u64> {
        notes.iter().map(|note| note.number).collect()
    }

    #[test]
    fn the_newest_notes_are_kept_and_found_by_their_number() {
        let journal = Journal::default();
        for _ in 0..MOST + 10 {
            journal.note(Happened::SysctlPutBack);
        }
        let newest = u64::try_from(MOST).unwrap() + 10;
        assert_eq!(journal.lock().kept.len(), MOST);
        assert_eq!(numbers(&journal.after(newest - 2, 100)), [newest - 1, newest]);
        assert_eq!(numbers(&journal.after(0, 3)), [newest - 2, newest - 1, newest]);
        assert!(journal.after(newest, 3).is_empty());
    }

    #[test]
    fn errors_are_found_among_everything_else() {
        let journal = Journal::default();
        journal.note(Happened::ReadingFailed("set KUBE-CLUSTER-IP".to_owned()));
        journal.note(Happened::SysctlPutBack);
        journal.note(Happened::HeldUp(None));
        assert_eq!(numbers(&journal.newest(10, Happened::is_error)), [1]);
    }

    #[test]
    fn a_write_keeps_a_few_operations_and_counts_the_others() {
        let journal = Journal::default();
        let ops: Vec<Op> = (0..10).map(|_| Op::CreateLink).collect();
        let results: Vec<Result<(), Refusal>> = ops.iter().map(|_| Ok(())).collect();
        journal.observer().written(&ops, &results, Duration::ZERO);
        let notes = journal.after(0, 1);
        let Happened::Written { operations, n_more, n_refused, .. } = &notes[0].happened else {
            panic!("{notes:?}")
        };
        assert_eq!((operations.len(), *n_more, *n_refused), (MOST_OPERATIONS, 6, 0));
    }
}
