//! Observer of the event loop that records Events.

use std::collections::HashSet;
use std::time::Duration;

use plan::planner::Plan;
use tokio::time::Instant;

use crate::events::{EventRecorder, NewEvent, Reason, Regarding, Severity};
use kernel::ReadError;
use reconcile::observer::{HandDrainReport, Observer, Report, Round};

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

impl EventObserver {
    pub(super) fn new(recorder: EventRecorder) -> Self {
        Self { recorder, refused_since: None, is_recorded: false, unread: HashSet::new() }
    }
    fn reading_failed(&mut self, error: &ReadError) {
        if self.unread.len() < MOST_UNREAD && self.unread.insert(error.what.clone()) {
            self.recorder.record(NewEvent::warning(
                Regarding::Node,
                Reason::KernelReadFailed,
                "ReadKernel",
                format!("{error}. Everything else is served; kube-ipvs retries every 5 s"),
            ));
        }
    }

    fn planned(&mut self, plan: &Plan) {
        for (service, problems) in &plan.problems {
            self.recorder.set_problems(service, problems);
        }
        for (service, problems) in &plan.new_problems {
            self.recorder.record_problems(service, problems);
        }
        for overfull in &plan.overfull {
            self.recorder.record(NewEvent::warning(
                Regarding::Node,
                Reason::LimitReached,
                "ProgramService",
                overfull.to_string(),
            ));
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
            self.recorder.record(NewEvent::warning(
                Regarding::Node,
                Reason::KernelRefuses,
                "ProgramNode",
                format!(
                    "writing kernel objects that Services need has failed for {} s: {}: {}",
                    since.elapsed().as_secs(),
                    pending.op,
                    pending.refusal
                ),
            ));
        }
    }

    fn sysctl_warning(&mut self, note: &str) {
        self.recorder.record(NewEvent::warning(
            Regarding::Node,
            Reason::SysctlChanged,
            "SetSysctl",
            note.to_owned(),
        ));
    }

    fn hand_drained(&mut self, report: &HandDrainReport<'_>) {
        self.recorder.record(NewEvent::new(
            Regarding::Node,
            Severity::Normal,
            if report.has_begun { Reason::EndpointDrained } else { Reason::EndpointUndrained },
            "DrainEndpoint",
            report.note.to_owned(),
        ));
    }

    fn held_up(&mut self, note: &str) {
        self.recorder.record(NewEvent::warning(
            Regarding::Node,
            Reason::ModeSwitchHeldUp,
            "SwitchMode",
            note.to_owned(),
        ));
    }
}

impl Observer for EventObserver {
    fn report(&mut self, report: &Report<'_>) {
        match report {
            Report::Planned { plan, .. } => self.planned(plan),
            Report::ReadingFailed(error) => self.reading_failed(error),
            Report::PassEnded(_) => self.unread.clear(),
            Report::RoundEnded(round) => self.round_ended(round),
            Report::SysctlWarning(note) => self.sysctl_warning(note),
            Report::HandDrained(report) => self.hand_drained(report),
            Report::HeldUp(Some(note)) => self.held_up(note),
            _ => {}
        }
    }
}
