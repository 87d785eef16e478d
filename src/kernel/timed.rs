//! A kernel that says how long everything takes it.

use std::time::{Duration, Instant};

use plan::actual::{ActualSet, ListedVirtualServer};
use plan::flows::FlowTargets;
use plan::kernel::Frontend;
use plan::model::Family;
use plan::op::{Op, Subject};
use plan::rule_set::RuleSet;
use plan::sets::SetId;
use plan::settings::SchedulerName;

use super::sysctl::{Change, Sysctl, SysctlError};
use super::{Addresses, DriftCheck, Kernel, Listing, ReadError, Refusal, VirtualServerReading};

/// Part of the kernel's state that is read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelRead {
    /// The signs that something was changed.
    DriftCheck,
    /// All virtual servers, without their real servers.
    Frontends,
    /// Some virtual servers with their real servers.
    VirtualServers,
    /// A set.
    Set,
    /// The addresses of all interfaces.
    Addresses,
    /// A family's rules.
    Rules,
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
}

/// Receiver of the times that work took. It is called in the kernel's thread and must not block.
pub trait Stopwatch: Send {
    /// This was read, or could not be.
    fn read(&self, what: KernelRead, took: Duration);

    /// Operations for this part were carried out together, or refused.
    fn wrote(&self, part: WrittenPart, took: Duration);
}

/// A kernel that is timed.
#[derive(Debug)]
pub struct Timed<K, S> {
    kernel: K,
    stopwatch: S,
}

// === impl Part ===

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
        }
    }
}

// === impl Timed ===

impl<K: Kernel, S: Stopwatch> Timed<K, S> {
    /// This kernel, and who is told.
    pub fn new(kernel: K, stopwatch: S) -> Self {
        Self { kernel, stopwatch }
    }

    fn time<T>(&mut self, what: KernelRead, read: impl FnOnce(&mut K) -> T) -> T {
        let started = Instant::now();
        let found = read(&mut self.kernel);
        self.stopwatch.read(what, started.elapsed());
        found
    }
}

impl<K: Kernel, S: Stopwatch> Kernel for Timed<K, S> {
    fn drift_check(&mut self) -> Result<DriftCheck, ReadError> {
        self.time(KernelRead::DriftCheck, K::drift_check)
    }

    fn list_virtual_servers(&mut self) -> Result<Listing, ReadError> {
        self.time(KernelRead::Frontends, K::list_virtual_servers)
    }

    fn read_virtual_servers(
        &mut self,
        frontends: &[Frontend],
    ) -> Result<Vec<VirtualServerReading>, ReadError> {
        self.time(KernelRead::VirtualServers, |kernel| kernel.read_virtual_servers(frontends))
    }

    fn read_listed(
        &mut self,
        listed: &[ListedVirtualServer],
    ) -> Result<Vec<VirtualServerReading>, ReadError> {
        self.time(KernelRead::VirtualServers, |kernel| kernel.read_listed(listed))
    }

    fn read_set(&mut self, set: SetId) -> Result<Option<ActualSet>, ReadError> {
        self.time(KernelRead::Set, |kernel| kernel.read_set(set))
    }

    fn read_addresses(&mut self) -> Result<Addresses, ReadError> {
        self.time(KernelRead::Addresses, K::read_addresses)
    }

    fn read_rule_set(&mut self, family: Family) -> Result<bool, ReadError> {
        self.time(KernelRead::Rules, |kernel| kernel.read_rule_set(family))
    }

    fn prescribe(&mut self, rule_set: RuleSet) {
        self.kernel.prescribe(rule_set);
    }

    /// Neighbours for the same part go together, as they go to the kernel.
    fn apply(&mut self, ops: &[Op]) -> Vec<Result<(), Refusal>> {
        let mut results = Vec::with_capacity(ops.len());
        for ops in ops.chunk_by(|one, next| WrittenPart::of(one) == WrittenPart::of(next)) {
            let started = Instant::now();
            results.extend(self.kernel.apply(ops));
            if let Some(op) = ops.first() {
                self.stopwatch.wrote(WrittenPart::of(op), started.elapsed());
            }
        }
        results
    }

    fn loaded_schedulers(&mut self, names: Vec<SchedulerName>) -> Vec<SchedulerName> {
        self.kernel.loaded_schedulers(names)
    }

    fn set_sysctl(&mut self, sysctl: &Sysctl) -> Result<Option<Change>, SysctlError> {
        self.kernel.set_sysctl(sysctl)
    }

    fn remove_flows(&mut self, family: Family, targets: &FlowTargets) -> Result<u64, Refusal> {
        self.kernel.remove_flows(family, targets)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::kernel::fake::Fake;

    /// Readings and parts that were reported.
    #[derive(Debug, Clone, Default)]
    struct Told(Arc<Mutex<Vec<String>>>);

    impl Stopwatch for Told {
        fn read(&self, what: KernelRead, _: Duration) {
            self.0.lock().unwrap().push(format!("{what:?}"));
        }

        fn wrote(&self, part: WrittenPart, _: Duration) {
            self.0.lock().unwrap().push(format!("{part:?}"));
        }
    }

    fn bind(last: u8) -> Op {
        Op::BindAddress([10, 96, 0, last].into())
    }

    #[test]
    fn every_reading_and_every_part_is_timed_and_passed_on() {
        let told = Told::default();
        let mut kernel = Timed::new(Fake::default(), told.clone());
        let ops = [Op::CreateLink, bind(1), bind(1), bind(2), Op::CreateLink];
        let results = kernel.apply(&ops);
        assert_eq!(results, [Ok(()), Ok(()), Ok(()), Ok(()), Ok(())]);
        assert!(kernel.drift_check().unwrap().link);
        assert_eq!(kernel.list_virtual_servers(), Ok(Listing::default()));
        assert_eq!(kernel.read_virtual_servers(&[]), Ok(Vec::new()));
        let set = SetId::all(Family::V4).next().unwrap();
        assert_eq!(kernel.read_set(set), Ok(None));
        assert_eq!(kernel.read_addresses().unwrap().bound.len(), 2);
        assert_eq!(kernel.read_rule_set(Family::V4), Ok(false));
        let told = told.0.lock().unwrap();
        let expected =
            "Link Addresses Link DriftCheck Frontends VirtualServers Set Addresses Rules";
        assert_eq!(told.join(" "), expected);
    }
}
