//! Durations of the kernel's reads and writes, by what was read or written, and processor time.

use std::time::Duration;

use plan::model::Family;
use plan::op::PartKind;
use rustix::time::{ClockId, clock_gettime};

/// Part of the kernel's state that is read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelRead {
    /// The signs that something was changed.
    DriftCheck,
    /// All virtual servers, without their real servers.
    Frontends,
    /// Some virtual servers with their real servers.
    VirtualServers,
    /// The connections that IPVS leads.
    Connections,
    Set,
    /// The addresses of all interfaces.
    Addresses,
    /// A family's constant rules.
    RuleSet(Family),
    /// A family's chains of Services.
    Chains(Family),
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

impl KernelRead {
    /// Everything that is read.
    pub const ALL: [Self; 10] = [
        Self::DriftCheck,
        Self::Frontends,
        Self::VirtualServers,
        Self::Connections,
        Self::Set,
        Self::Addresses,
        Self::RuleSet(Family::V4),
        Self::RuleSet(Family::V6),
        Self::Chains(Family::V4),
        Self::Chains(Family::V6),
    ];
}

/// Returns the processor time that the calling thread has had so far.
pub fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
