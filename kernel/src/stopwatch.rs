//! Durations of the kernel's reads and writes, by what was read or written, and processor time.

use std::time::Duration;

use plan::op::PartKind;
use rustix::time::{ClockId, clock_gettime};

/// Reading of the kernel's state in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelRead {
    /// The signs that something was changed.
    DriftCheck,
    /// All virtual servers, without their real servers.
    Frontends,
    /// The connections that IPVS leads.
    Connections,
    /// Objects of a kind. The link and the routes are read with the addresses, of all interfaces.
    Part(PartKind),
}

/// Receiver of durations. The kernel's thread and repairs call it, so it must not block.
pub trait Stopwatch: Send + Sync {
    /// Takes the duration of a read, successful or not.
    fn read(&self, what: KernelRead, took: Duration);

    /// Takes the duration of operations on one part that were carried out together, or refused.
    fn wrote(&self, part: PartKind, took: Duration);
}

/// Drops the durations.
impl Stopwatch for () {
    fn read(&self, _: KernelRead, _: Duration) {}

    fn wrote(&self, _: PartKind, _: Duration) {}
}

impl From<PartKind> for KernelRead {
    fn from(kind: PartKind) -> Self {
        Self::Part(kind)
    }
}

/// Returns the processor time that the calling thread has had so far.
pub fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
