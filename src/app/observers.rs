//! Several observers of the event loop, as one.

use std::collections::HashSet;
use std::time::Duration;

use plan::event::Event;
use plan::model::Family;
use plan::op::Op;
use plan::planner::{Plan, Planner};
use tokio::time::Instant;

use crate::events::{EventRecorder, Extent, NewEvent, Regarding, Severity};
use crate::kernel::ReadError;
use crate::reconcile::observer::{HandDrainReport, KernelWrite, Observer, Pass, Round, RuleCount};

/// Observers that all get every report.
#[derive(Debug)]
pub(super) struct Observers(Vec<Box<dyn Observer>>);

/// Most parts of the kernel with an Event of their own.
const MOST_UNREAD: usize = 16;

/// Records Events about the problems of Services and of what all of them need.
#[derive(Debug)]
pub(super) struct EventObserver {
    recorder: EventRecorder,
    /// Time since when the kernel refuses what all Services need; none: it does not.
    refused_since: Option<Instant>,
    /// True if there is an Event about it.
    is_recorded: bool,
    /// Parts of the kernel that could not be read since the last whole pass of the audit. Each has its
    /// Event.
    unread: HashSet<String>,
}

/// Time for which the kernel refuses what all Services need before there is an Event: a sync period.
const REFUSED: Duration = Duration::from_secs(30);

// === impl Observers ===

impl Observers {
    pub(super) fn new(observers: Vec<Box<dyn Observer>>) -> Self {
        Self(observers)
    }

    pub(super) fn add(&mut self, observer: Box<dyn Observer>) {
        self.0.push(observer);
    }

    fn each(&mut self, report: impl FnMut(&mut Box<dyn Observer>)) {
        self.0.iter_mut().for_each(report);
    }
}

impl Observer for Observers {
    fn arrived(&mut self, event: &Event) {
        self.each(|observer| observer.arrived(event));
    }

    fn taken(&mut self, count: usize) {
        self.each(|observer| observer.taken(count));
    }

    fn waiting(&mut self, backlog: usize) {
        self.each(|observer| observer.waiting(backlog));
    }

    fn planned(&mut self, plan: &Plan, planner: &Planner, took: Duration) {
        self.each(|observer| observer.planned(plan, planner, took));
    }

    fn reading_failed(&mut self, error: &ReadError) {
        self.each(|observer| observer.reading_failed(error));
    }

    fn drifted(&mut self, repairs: &[&Op], planner: &Planner) {
        self.each(|observer| observer.drifted(repairs, planner));
    }

    fn written(&mut self, write: &KernelWrite<'_>) {
        self.each(|observer| observer.written(write));
    }

    fn in_sync(&mut self) {
        self.each(|observer| observer.in_sync());
    }

    fn served(&mut self) {
        self.each(|observer| observer.served());
    }

    fn rules_counted(&mut self, count: &RuleCount) {
        self.each(|observer| observer.rules_counted(count));
    }

    fn drift_checked(&mut self, took: Duration, as_expected: bool) {
        self.each(|observer| observer.drift_checked(took, as_expected));
    }

    fn sysctl_put_back(&mut self) {
        self.each(|observer| observer.sysctl_put_back());
    }

    fn sysctl_mismatches(&mut self, mismatches: usize) {
        self.each(|observer| observer.sysctl_mismatches(mismatches));
    }

    fn sysctl_warning(&mut self, note: &str) {
        self.each(|observer| observer.sysctl_warning(note));
    }

    fn held_up(&mut self, note: Option<&str>) {
        self.each(|observer| observer.held_up(note));
    }

    fn hand_drained(&mut self, report: &HandDrainReport<'_>) {
        self.each(|observer| observer.hand_drained(report));
    }

    fn full_speed(&mut self, on: bool) {
        self.each(|observer| observer.full_speed(on));
    }

    fn pass_ended(&mut self, pass: &Pass) {
        self.each(|observer| observer.pass_ended(pass));
    }

    fn flows_removed(&mut self, family: Family, count: u64, took: Duration) {
        self.each(|observer| observer.flows_removed(family, count, took));
    }

    fn round_ended(&mut self, round: &Round<'_>) {
        self.each(|observer| observer.round_ended(round));
    }
}

// === impl EventObserver ===

impl EventObserver {
    pub(super) fn new(recorder: EventRecorder) -> Self {
        Self { recorder, refused_since: None, is_recorded: false, unread: HashSet::new() }
    }
}

impl Observer for EventObserver {
    fn reading_failed(&mut self, error: &ReadError) {
        if self.unread.len() < MOST_UNREAD && self.unread.insert(error.what.clone()) {
            self.recorder.record(NewEvent {
                regarding: Regarding::Node,
                severity: Severity::Warning,
                reason: "KernelReadFailed",
                action: "ReadKernel",
                note: format!("{error}. The rest is served; kube-ipvs reads it again every 5 s"),
                extent: Extent::ThisNode,
            });
        }
    }

    fn pass_ended(&mut self, _: &Pass) {
        self.unread.clear();
    }

    fn planned(&mut self, plan: &Plan, _: &Planner, _: Duration) {
        for (service, problems) in &plan.problems {
            self.recorder.set_problems(service, problems);
        }
        for (service, problems) in &plan.new_problems {
            self.recorder.record_problems(service, problems);
        }
        for overfull in &plan.overfull {
            self.recorder.record(NewEvent {
                regarding: Regarding::Node,
                severity: Severity::Warning,
                reason: "LimitReached",
                action: "ProgramService",
                note: overfull.to_string(),
                extent: Extent::ThisNode,
            });
        }
    }

    fn round_ended(&mut self, round: &Round<'_>) {
        let Some(subject) = round.pending.prerequisites().next() else {
            (self.refused_since, self.is_recorded) = (None, false);
            return;
        };
        let since = *self.refused_since.get_or_insert_with(Instant::now);
        let Some(pending) = round.pending.get(subject).filter(|_| !self.is_recorded) else {
            return;
        };
        if since.elapsed() >= REFUSED {
            self.is_recorded = true;
            self.recorder.record(NewEvent {
                regarding: Regarding::Node,
                severity: Severity::Warning,
                reason: "KernelRefuses",
                action: "ProgramNode",
                note: format!(
                    "for {} s this node has lacked what Services need: {}: {}",
                    since.elapsed().as_secs(),
                    pending.op,
                    pending.refusal
                ),
                extent: Extent::ThisNode,
            });
        }
    }

    fn sysctl_warning(&mut self, note: &str) {
        self.recorder.record(NewEvent {
            regarding: Regarding::Node,
            severity: Severity::Warning,
            reason: "SysctlChanged",
            action: "SetSysctl",
            note: note.to_owned(),
            extent: Extent::ThisNode,
        });
    }

    fn hand_drained(&mut self, report: &HandDrainReport<'_>) {
        self.recorder.record(NewEvent {
            regarding: Regarding::Node,
            severity: Severity::Normal,
            reason: if report.has_begun { "EndpointDrained" } else { "EndpointUndrained" },
            action: "DrainEndpoint",
            note: report.note.to_owned(),
            extent: Extent::ThisNode,
        });
    }

    fn held_up(&mut self, note: Option<&str>) {
        let Some(note) = note else { return };
        self.recorder.record(NewEvent {
            regarding: Regarding::Node,
            severity: Severity::Warning,
            reason: "ModeSwitchHeldUp",
            action: "SwitchMode",
            note: note.to_owned(),
            extent: Extent::ThisNode,
        });
    }
}
