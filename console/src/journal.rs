//! The journal: the last things that the program did, in memory.
//!
//! A note is at most a kilobyte of words, whatever it is about, so that all of them stay within a few
//! megabytes. The oldest go when there are too many, and errors stay longer than the others. The journal
//! lives as long as the program: it goes on when the node is switched to another mode.

mod observer;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use plan::mode::Mode;
use plan::model::{Family, ServiceName, SliceName};

pub use observer::JournalObserver;
use syntax::quoted::shortened;

/// Most notes that are kept.
const MOST: usize = 4_096;

/// Most errors that are kept besides, from before those.
const MOST_ERRORS: usize = 1_024;

/// Most bytes of a note's text, and of the names of its Services.
const LONGEST: usize = 1_024;

/// Most bytes of one of several texts in a note.
const LONGEST_PART: usize = 240;

/// Notes of what was done lately. Clones share them.
#[derive(Debug, Clone)]
pub struct Journal(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    since: SystemTime,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    /// In the order of their numbers.
    kept: VecDeque<Note>,
    /// Errors from before the first of them, in the same order.
    errors: VecDeque<Note>,
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
        /// The first of these Services.
        services: Vec<ServiceName>,
        /// Duration of planning.
        took: Duration,
    },
    /// Operations were sent to the kernel.
    Written {
        /// The first of them in words, and the number of the others.
        operations: Box<str>,
        /// Those that were refused first, with the reason.
        refused: Box<str>,
        /// Number of refused ones.
        n_refused: usize,
        /// The Services that they are for, the first ones, as far as that is known.
        services: Vec<ServiceName>,
        /// Until the kernel's last answer.
        took: Duration,
    },
    /// Another program had changed the kernel.
    Drifted {
        /// The first repairs in words, and the number of the others.
        repairs: Box<str>,
        /// The Services that they are for, the first ones, as far as that is known.
        services: Vec<ServiceName>,
    },
    /// Serving in a mode began, after a switch for this reason; none: at the start.
    TenureBegan {
        mode: Mode,
        /// Reason for the switch.
        reason: Option<Box<str>>,
    },
    /// Something failed that the loop has no part in.
    Failed {
        /// Part of the program.
        origin: Origin,
        /// The failure in words.
        text: Box<str>,
    },
    /// The kernel could not be read.
    ReadingFailed(Box<str>),
    /// A sysctl that another program had changed was set again.
    SysctlPutBack,
    /// A sysctl is not as Services need it.
    SysctlWarning(Box<str>),
    /// Rules of the former mode still lead connections, for this reason; none: no longer.
    HeldUp(Option<Box<str>>),
    /// A drain by hand has begun or ended.
    HandDrained(Box<str>),
    /// Flows that led nowhere were removed.
    FlowsRemoved {
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

/// Part of the program in which something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The API server, or the folder of manifests.
    Source,
    Configuration,
    /// Addresses that the program listens on.
    Listener,
    /// Any other.
    Program,
}

/// Change that the source reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrival {
    /// A Service is there, or is different now.
    Service(ServiceName),
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

impl Journal {
    /// Returns the observer that writes it.
    #[must_use]
    pub fn observer(&self) -> JournalObserver {
        JournalObserver::new(self.clone())
    }

    /// Time of its beginning, which tells it from the journal of another process.
    #[must_use]
    pub fn since(&self) -> SystemTime {
        self.0.since
    }

    /// Returns the notes after this number, the oldest first, and at most `most` of them: the newest.
    #[must_use]
    pub fn after(&self, number: u64, most: usize) -> Vec<Note> {
        let notes = self.0.notes.lock();
        let mut newest: Vec<Note> =
            notes.all().rev().take_while(|note| note.number > number).take(most).cloned().collect();
        newest.reverse();
        newest
    }

    /// Returns the newest notes that `is_wanted` is true for, the newest first.
    #[must_use]
    pub fn newest(&self, most: usize, is_wanted: impl Fn(&Happened) -> bool) -> Vec<Note> {
        let notes = self.0.notes.lock();
        let wanted = notes.all().rev().filter(|note| is_wanted(&note.happened));
        wanted.take(most).cloned().collect()
    }

    /// Returns the number of notes within this time that `is_wanted` is true for.
    #[must_use]
    pub fn count(&self, within: Duration, is_wanted: impl Fn(&Happened) -> bool) -> usize {
        let notes = self.0.notes.lock();
        let is_recent = |note: &&Note| note.at.elapsed().is_ok_and(|age| age <= within);
        let recent = notes.all().rev().take_while(is_recent);
        recent.filter(|note| is_wanted(&note.happened)).count()
    }

    /// Adds a note.
    pub fn note(&self, happened: Happened) {
        let at = SystemTime::now();
        self.0.notes.lock().push(at, happened);
    }
}

impl Default for Journal {
    /// An empty one, which begins now.
    fn default() -> Self {
        Self(Arc::new(Shared { since: SystemTime::now(), notes: Mutex::default() }))
    }
}

impl Notes {
    /// All of them, in the order of their numbers.
    fn all(&self) -> impl DoubleEndedIterator<Item = &Note> {
        self.errors.iter().chain(&self.kept)
    }

    fn push(&mut self, at: SystemTime, happened: Happened) {
        if self.kept.len() == MOST
            && let Some(oldest) = self.kept.pop_front()
            && oldest.happened.is_error()
        {
            if self.errors.len() == MOST_ERRORS {
                self.errors.pop_front();
            }
            self.errors.push_back(oldest);
        }
        self.written += 1;
        self.kept.push_back(Note { number: self.written, at, happened });
    }
}

/// Returns a text that a note can have.
#[must_use]
pub fn noted(text: &impl fmt::Display) -> Box<str> {
    shortened(text, LONGEST)
}

impl Happened {
    /// True if something went wrong.
    #[must_use]
    pub fn is_error(&self) -> bool {
        match self {
            Self::Written { n_refused, .. } => *n_refused > 0,
            Self::ReadingFailed(_)
            | Self::SysctlWarning(_)
            | Self::HeldUp(Some(_))
            | Self::Failed { .. } => true,
            _ => false,
        }
    }

    /// Returns the Services that it is about, the first ones, as far as that is known.
    #[must_use]
    pub fn services(&self) -> &[ServiceName] {
        match self {
            Self::Arrived(
                Arrival::Service(name) | Arrival::ServiceGone(name) | Arrival::Slice(name, ..),
            ) => std::slice::from_ref(name),
            Self::Planned { services, .. }
            | Self::Written { services, .. }
            | Self::Drifted { services, .. } => services,
            _ => &[],
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
        assert_eq!(journal.0.notes.lock().kept.len(), MOST);
        assert_eq!(numbers(&journal.after(newest - 2, 100)), [newest - 1, newest]);
        assert_eq!(numbers(&journal.after(0, 3)), [newest - 2, newest - 1, newest]);
        assert!(journal.after(newest, 3).is_empty());
    }

    #[test]
    fn errors_are_found_among_everything_else() {
        let journal = Journal::default();
        journal.note(Happened::ReadingFailed("set KUBE-CLUSTER-IP".into()));
        journal.note(Happened::SysctlPutBack);
        journal.note(Happened::HeldUp(None));
        assert_eq!(numbers(&journal.newest(10, Happened::is_error)), [1]);
    }

    #[test]
    fn errors_outlive_what_comes_after_them_and_have_their_place_in_the_order() {
        let journal = Journal::default();
        let error = |number: usize| Happened::ReadingFailed(number.to_string().into());
        (0..MOST_ERRORS + 3).for_each(|number| journal.note(error(number)));
        for _ in 0..2 * MOST {
            journal.note(Happened::SysctlPutBack);
        }
        let newest = journal.newest(usize::MAX, Happened::is_error);
        assert_eq!(newest.len(), MOST_ERRORS);
        let last = u64::try_from(MOST_ERRORS + 3).unwrap();
        assert_eq!((newest[0].number, newest[MOST_ERRORS - 1].number), (last, 4));
        let all = numbers(&journal.after(0, usize::MAX));
        assert_eq!(all.len(), MOST_ERRORS + MOST);
        assert!(all.is_sorted());
    }
}
