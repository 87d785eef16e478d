//! Cost of something measured: time, memory, requests and operations.

use std::time::{Duration, Instant};

use anyhow::Result;
use kube_ipvs::kernel::rules;
use netlink::Traffic;
use serde::{Deserialize, Serialize};

use crate::usage::{Usage, Whose};

/// One line of the table, and of the JSON: what was done, and what it took. Times are in
/// milliseconds, memory in KiB.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Number of times that it was done. The other fields are of all together, unless they say
    /// otherwise.
    pub(crate) count: u32,
    /// From the first event to the kernel's last answer.
    pub(crate) wall_ms: f64,
    /// Median of each alone, where there were many. The 99th percentile follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) median_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p99_ms: Option<f64>,
    /// Processor time of the process, without the part that made up the events; then the same
    /// in the process and for it in the kernel, which are known to ten milliseconds only.
    pub(crate) cpu_ms: f64,
    pub(crate) user_ms: f64,
    pub(crate) system_ms: f64,
    /// Number of programs that it started, the time that it waited for them, and their processor
    /// time. The wait is part of `wall_ms`; the processor time is not part of `cpu_ms`.
    pub(crate) programs: u64,
    pub(crate) programs_wall_ms: f64,
    pub(crate) programs_ms: f64,
    /// Netlink requests, and the sends they went in.
    pub(crate) requests: u64,
    pub(crate) sends: u64,
    /// Those of the requests that wrote; the others looked whether all is as it should be.
    pub(crate) writing_requests: u64,
    /// Operations that the loop asked the kernel for.
    pub(crate) operations: u64,
    /// Number of times that a thread had been asleep and went on.
    pub(crate) wakeups: u64,
    /// Number of times that a page of memory was touched for the first time.
    pub(crate) faults: u64,
    /// Resident memory at the end, without what is shared with files; and the most that was
    /// resident so far, with it.
    pub(crate) anonymous_kib: u64,
    pub(crate) resident_kib: u64,
    pub(crate) peak_kib: u64,
}

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

// === impl Stopwatch ===

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

// === impl Line ===

impl Line {
    /// Returns the time without the wait for programs, or the median where there is one. The
    /// programs are iptables, of which the raw cost has none.
    pub(crate) fn own_ms(&self) -> f64 {
        self.median_ms.unwrap_or((self.wall_ms - self.programs_wall_ms).max(0.0))
    }

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
