//! Reports of the event loop, from which its [`Status`](super::Status) follows. Observers take them in:
//! metrics, health, Events, the journal.
//!
//! The loop reports, and never asks: an observer must not block, and cannot make it fail.

use std::fmt;
use std::time::{Duration, SystemTime};

use plan::event::Event;
use plan::hand_drain::HandDrain;
use plan::model::Family;
use plan::op::Op;
use plan::planner::{Plan, Planner};
use plan::rule_set::Table;

use super::retry_queue::RetryQueue;
use kernel::{ReadError, Refusal};

/// Observer of the event loop.
pub trait Observer: fmt::Debug + Send {
    /// Takes in a report. Most observers ignore most reports.
    fn report(&mut self, report: &Report<'_>);
}

/// Report of the event loop.
#[derive(Debug)]
pub enum Report<'a> {
    /// A change is about to be applied. Before the first complete list as well.
    Arrived(&'a Event),
    /// This many changes of the source were taken, whatever they change.
    Taken(usize),
    /// This many Services wait to be written: reported for every change that needs writing, and when
    /// the first complete list is there.
    Waiting(usize),
    /// Everything dirty was planned.
    Planned {
        plan: &'a Plan,
        /// The planner after that.
        planner: &'a Planner,
        /// Time that planning took.
        took: Duration,
    },
    /// All kernel state was listed, to take it over.
    Listed,
    /// The kernel could not be read.
    ReadingFailed(&'a ReadError),
    /// Another program changed the kernel, which is repaired.
    Drifted {
        /// Operations that repair it.
        repairs: &'a [&'a Op],
        /// The planner, which knows for whom they are.
        planner: &'a Planner,
    },
    /// Operations were sent to the kernel.
    Written(KernelWrite<'a>),
    /// Some writes failed, or some retries were resolved: the numbers after that.
    Pending {
        /// Number of subjects whose last write failed, and is retried.
        n_retries: usize,
        /// True if a prerequisite is among them: the interface, a set, the rules, a route.
        has_prerequisite: bool,
    },
    /// The kernel is as it should be for the first time, as far as it let us: all Services were
    /// planned, and lead.
    InSync,
    /// New connections to Services go by this mode from now on.
    Carried,
    /// No more than half of a family's addresses and virtual servers are refused. Reported once, after
    /// [`Self::InSync`].
    Served,
    /// The number of rules of a table in mode iptables has changed.
    RulesCounted(RuleCount),
    /// A drift check has ended.
    DriftChecked {
        /// Its duration.
        took: Duration,
        /// True if the kernel was as expected.
        as_expected: bool,
    },
    /// A sysctl was set again which another program had changed.
    SysctlPutBack,
    /// The number of sysctls without the value that Services need has changed.
    SysctlMismatches(usize),
    /// A sysctl cannot be set again, or another program sets it again and again. The log has it, too.
    SysctlWarning(&'a str),
    /// Rules of the former mode still lead connections, for this reason: prerequisites are missing. It
    /// is reported again every ten minutes, and once with none when it is over.
    HeldUp(Option<&'a str>),
    /// A drain by hand has begun or ended.
    HandDrained(HandDrainReport<'a>),
    /// The audit runs at full speed from now on, because another program changed the kernel (true), or
    /// no longer does (false).
    FullSpeed(bool),
    /// A pass of the audit has ended, and its round.
    PassEnded(Pass),
    /// UDP and SCTP flows of a family that lead nowhere were searched for.
    FlowsRemoved {
        family: Family,
        /// Number of removed ones.
        count: u64,
        /// Duration of the search.
        took: Duration,
    },
    /// Number of frontends whose flows may lead nowhere after a search.
    FlowsPending(usize),
    /// The number of what IPVS mode left in the kernel was read.
    LeftByIpvs {
        /// Virtual servers that still have connections.
        n_virtual_servers: usize,
        /// Connections that they have, at least.
        n_connections: u64,
    },
    /// A round has ended with the kernel's last answer. What was waiting when it began is written, as
    /// far as the kernel let us, except after a [`RoundKind::Retry`].
    RoundEnded(Round<'a>),
}

/// Operations that were sent to the kernel together.
#[derive(Debug, Clone, Copy)]
pub struct KernelWrite<'a> {
    /// The operations.
    pub ops: &'a [Op],
    /// A result for each.
    pub results: &'a [Result<(), Refusal>],
    /// From the send to the kernel's last answer.
    pub took: Duration,
    /// The planner, which knows for whom they are.
    pub planner: &'a Planner,
}

/// A round of planning or reading, up to the kernel's last answer.
#[derive(Debug)]
pub struct Round<'a> {
    /// The families that are served.
    pub families: &'a [Family],
    /// Reason for the round.
    pub kind: RoundKind,
    /// From the beginning of planning, or of reading, to the last answer.
    pub took: Duration,
    /// Times at which this round's endpoint changes were triggered, by a change of a pod or a
    /// Service (annotation `endpoints.kubernetes.io/last-change-trigger-time`).
    pub triggers: &'a [(Family, SystemTime)],
    /// Number of Services that still wait after the round.
    pub backlog: usize,
    /// Time for which the oldest of their changes has been waiting; none if none waits.
    pub waiting: Option<Duration>,
    /// From the arrival of the oldest change that was written to the last answer; nothing if there
    /// was none.
    pub oldest: Duration,
    /// Writes that the kernel refused, and that are retried.
    pub pending: &'a RetryQueue,
}

/// A drain by hand that has begun or ended.
#[derive(Debug, Clone, Copy)]
pub struct HandDrainReport<'a> {
    /// Endpoints that are drained.
    pub drain: &'a HandDrain,
    /// True if it has begun.
    pub has_begun: bool,
    /// Number of drains by hand that are in force now.
    pub count: usize,
    /// The same in words.
    pub note: &'a str,
}

/// Rules of a family's table in mode iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleCount {
    pub family: Family,
    pub table: Table,
    /// Number of rules that the kernel should have, of Services and of the constant chains.
    pub total: usize,
    /// Number of rules of Services that were written in the last round.
    pub written: usize,
}

/// A pass of the audit, which compares everything with the desired state, part by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// From its beginning to its end, pauses included.
    pub took: Duration,
    /// Reading and comparing, without the pauses.
    pub cost: Duration,
    /// True if the pass went on without pauses.
    pub full_speed: bool,
}

/// Reason for writing to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RoundKind {
    /// Something had changed.
    Changes,
    /// All was read and compared with the desired state.
    Comparison,
    /// Refused writes were retried, or draining real servers checked.
    Retry,
}
