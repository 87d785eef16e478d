//! Observers of the event loop: metrics, health, Events.
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
use crate::kernel::{ReadError, Refusal};

/// Reports of the event loop. Every method may be ignored.
pub trait Observer: fmt::Debug + Send {
    /// Reports a change that is about to be applied. Before the first complete list as well.
    fn arrived(&mut self, event: &Event) {
        let _ = event;
    }

    /// Reports that `count` changes of the source were taken, whatever they change.
    fn taken(&mut self, count: usize) {
        let _ = count;
    }

    /// Reports that `backlog` Services wait to be written: for every change that needs writing, and
    /// when the first complete list is there.
    fn waiting(&mut self, backlog: usize) {
        let _ = backlog;
    }

    /// Reports the plan for what was dirty, and the time that planning took. `planner` is as it is
    /// after that.
    fn planned(&mut self, plan: &Plan, planner: &Planner, took: Duration) {
        let _ = (plan, planner, took);
    }

    /// Reports that the kernel could not be read.
    fn reading_failed(&mut self, error: &ReadError) {
        let _ = error;
    }

    /// Reports operations that repair what another program changed. `planner` knows for whom.
    fn drifted(&mut self, repairs: &[&Op], planner: &Planner) {
        let _ = (repairs, planner);
    }

    /// Reports operations that were sent to the kernel.
    fn written(&mut self, write: &KernelWrite<'_>) {
        let _ = write;
    }

    /// Reports that the kernel is as it should be for the first time, as far as it let us: all Services
    /// were planned, and lead.
    fn in_sync(&mut self) {}

    /// Reports once that no more than half of a family's addresses and virtual servers are refused, after
    /// [`Self::in_sync`].
    fn served(&mut self) {}

    /// Reports the number of rules of a table in mode iptables, after it has changed.
    fn rules_counted(&mut self, count: &RuleCount) {
        let _ = count;
    }

    /// Reports a drift check, its duration, and if the kernel was as expected.
    fn drift_checked(&mut self, took: Duration, as_expected: bool) {
        let _ = (took, as_expected);
    }

    /// Reports that a sysctl was set again which another program had changed.
    fn sysctl_put_back(&mut self) {}

    /// Reports the number of sysctls without the value that Services need, when it has changed.
    fn sysctl_mismatches(&mut self, mismatches: usize) {
        let _ = mismatches;
    }

    /// Reports a sysctl that cannot be set again, or that another program sets again and again. The
    /// log has it, too.
    fn sysctl_warning(&mut self, note: &str) {
        let _ = note;
    }

    /// Reports that rules of the former mode still lead connections, and why: prerequisites are missing.
    /// It is reported again every ten minutes, and once with none when it is over.
    fn held_up(&mut self, note: Option<&str>) {
        let _ = note;
    }

    /// Reports a drain by hand that has begun or ended.
    fn hand_drained(&mut self, report: &HandDrainReport<'_>) {
        let _ = report;
    }

    /// Reports that the audit runs at full speed from now on, because another program changed the
    /// kernel; or no longer does.
    fn full_speed(&mut self, on: bool) {
        let _ = on;
    }

    /// Reports a pass of the audit that has ended.
    fn pass_ended(&mut self, pass: &Pass) {
        let _ = pass;
    }

    /// Reports a search for UDP and SCTP flows of a family that lead nowhere, the number of removed
    /// ones, and its duration.
    fn flows_removed(&mut self, family: Family, count: u64, took: Duration) {
        let _ = (family, count, took);
    }

    /// Reports a round that has ended with the kernel's last answer. What was waiting when it began
    /// is written, as far as the kernel let us, except after a [`RoundKind::Retry`].
    fn round_ended(&mut self, round: &Round<'_>) {
        let _ = round;
    }
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
    /// The family.
    pub family: Family,
    /// The table.
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

/// Observer that ignores everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}
