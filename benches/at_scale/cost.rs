//! Cost of something measured: time, memory, requests and operations.

use std::time::{Duration, Instant};

use anyhow::Result;
use kernel::rules;
use netlink::Traffic;

use crate::schema::Line;
use crate::usage::{Usage, Whose};

/// Counts that only grow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) traffic: Traffic,
    /// Requests that wrote.
    pub(crate) writing: u64,
    pub(crate) operations: u64,
}

/// Measures from its making on.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    started: Instant,
    whose: Whose,
    usage: Usage,
    counts: Counts,
    /// Time that programs had been waited for when what is measured had ended.
    waited: Option<Duration>,
}

impl Stopwatch {
    /// Starts to measure all threads but the calling one, which only makes up the events and waits.
    pub(crate) fn start(counts: Counts) -> Result<Self> {
        Self::of(Whose::Others, counts)
    }

    /// Starts to measure all threads, the calling one as well.
    pub(crate) fn start_of_all(counts: Counts) -> Result<Self> {
        Self::of(Whose::All, counts)
    }

    fn of(whose: Whose, counts: Counts) -> Result<Self> {
        Ok(Self { whose, usage: Usage::now(whose)?, counts, waited: None, started: Instant::now() })
    }

    /// Marks the end of what is measured. What follows from it still counts in everything but the
    /// time.
    pub(crate) fn ended(&mut self) {
        self.waited = Some(rules::programs_run().took);
    }

    /// Returns the cost until `ended`, which may be a moment ago.
    pub(crate) fn stop(&self, name: &str, ended: Instant, counts: Counts) -> Result<Line> {
        let usage = Usage::now(self.whose)?;
        let used = usage.since(&self.usage);
        let waited = self.waited.unwrap_or(usage.programs.took) - self.usage.programs.took;
        Ok(Line {
            name: name.to_owned(),
            count: 1,
            wall_ms: milliseconds(ended.saturating_duration_since(self.started)),
            median_ms: None,
            p99_ms: None,
            cpu_ms: milliseconds(used.cpu),
            user_ms: used.user_ms,
            system_ms: used.system_ms,
            programs_ms: used.programs_ms,
            programs: used.programs.count,
            programs_wall_ms: milliseconds(waited),
            requests: counts.traffic.requests - self.counts.traffic.requests,
            sends: counts.traffic.sends - self.counts.traffic.sends,
            writing_requests: counts.writing - self.counts.writing,
            operations: counts.operations - self.counts.operations,
            wakeups: used.wakeups,
            faults: used.faults,
            anonymous_kib: usage.anonymous_kib,
            resident_kib: usage.resident_kib,
            peak_kib: usage.peak_kib,
        })
    }
}

impl Line {
    /// With what each of many took alone.
    pub(crate) fn of_each(mut self, mut each: Vec<Duration>) -> Self {
        each.sort_unstable();
        self.count = u32::try_from(each.len()).unwrap_or(u32::MAX);
        self.median_ms = each.get(each.len() / 2).copied().map(milliseconds);
        self.p99_ms = each.get(each.len() * 99 / 100).copied().map(milliseconds);
        self
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
