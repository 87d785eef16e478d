//! Durations of the kernel's reads and writes, by what was read or written, and processor time.

use std::time::Duration;

use plan::op::{Op, Subject};
use rustix::time::{ClockId, clock_gettime};

/// Part of the kernel's state that is read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelRead {
    /// The signs that something was changed.
    DriftCheck,
    /// All virtual servers, without their real servers.
    Frontends,
    /// Some virtual servers with their real servers.
    VirtualServers,
    /// The connections that IPVS leads.
    Connections,
    /// A set.
    Set,
    /// The addresses of all interfaces.
    Addresses,
    /// A family's rules.
    Rules,
    /// A family's chains of iptables mode.
    Chains,
}

/// Part of the kernel that an operation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WrittenPart {
    /// The dummy interface.
    Link,
    /// Sets and their entries.
    Sets,
    /// The rules.
    Rules,
    /// Virtual servers and their real servers.
    VirtualServers,
    /// The addresses on the dummy interface.
    Addresses,
    /// Local routes.
    Routes,
    /// Chains of iptables mode.
    Chains,
}

/// Receiver of durations. The kernel's thread and repairs call it, so it must not block.
pub trait Stopwatch: Send + Sync {
    /// Takes the duration of a read, successful or not.
    fn read(&self, what: KernelRead, took: Duration);

    /// Takes the duration of operations on one part that were carried out together, or refused.
    fn wrote(&self, part: WrittenPart, took: Duration);
}

/// Drops the durations.
impl Stopwatch for () {
    fn read(&self, _: KernelRead, _: Duration) {}

    fn wrote(&self, _: WrittenPart, _: Duration) {}
}

/// Returns the processor time that the calling thread has had so far.
pub(crate) fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

// === impl WrittenPart ===

impl WrittenPart {
    /// The part that an operation is for.
    #[must_use]
    pub fn of(op: &Op) -> Self {
        match op.subject() {
            Subject::Link => Self::Link,
            Subject::Set(_) | Subject::Entry(..) => Self::Sets,
            Subject::RuleSet(_) => Self::Rules,
            Subject::VirtualServer(_) => Self::VirtualServers,
            Subject::Address(_) => Self::Addresses,
            Subject::Route(_) => Self::Routes,
            Subject::Chain(_) => Self::Chains,
        }
    }
}
