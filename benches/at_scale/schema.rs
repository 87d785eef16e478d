//! Schema of the JSON that a run leaves. This file is part of `cargo xtask bench` as well, which
//! reads the JSON and writes `docs/internals/performance.json`; `docs/internals/performance.md` explains the fields.

use serde::{Deserialize, Serialize};

/// Everything that one run measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// `uname -r`.
    pub(crate) kernel: String,
    /// True if the benchmark watched for seconds only.
    pub(crate) short: bool,
    /// The guest's memory.
    pub(crate) memory_kib: u64,
    /// Cost of a page that is touched for the first time, and the least cost of a system call, in
    /// microseconds. Both are high where the kernel is a program.
    pub(crate) fault_us: f64,
    pub(crate) call_us: f64,
    /// The loop with nothing but `default/kubernetes`.
    pub(crate) nothing: Vec<Line>,
    pub(crate) sizes: Vec<Measured>,
}

/// Measurements of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) services: u32,
    /// Number of endpoints of each Service.
    pub(crate) endpoints: u32,
    /// The least it can cost, by the names of what it is the least of.
    pub(crate) raw: Vec<Line>,
    /// Cost of the loop.
    pub(crate) ours: Vec<Line>,
}

/// One line of the table, and of the JSON: what was done, and what it took. Times are in
/// milliseconds, memory in KiB.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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

impl Line {
    /// Returns the time without the wait for programs, or the median where there is one. The
    /// programs are iptables, of which the raw cost has none.
    pub(crate) fn own_ms(&self) -> f64 {
        self.median_ms.unwrap_or((self.wall_ms - self.programs_wall_ms).max(0.0))
    }
}
