//! The kernel and the loop's observer, with counters.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kernel::linux::Linux;
use kernel::sysctl::{Sysctl, SysctlChange, SysctlError};
use kernel::{
    DriftCheck, Kernel, Listing, OpenConnections, ReadError, Refusal, RuleRepairer, RuleSetReading,
    SetReader, TrackedFlows, VirtualServerReading,
};
use parking_lot::{Condvar, Mutex};
use plan::actual::{ActualSet, Addresses, ListedVirtualServer};
use plan::chains::ActualChains;
use plan::event::Event;
use plan::kernel_objects::Frontend;
use plan::model::Family;
use plan::op::Op;
use plan::rule_set::RuleSet;
use plan::scheduler::SchedulerName;
use plan::sets::SetId;
use reconcile::observer::{KernelWrite, Observer, Pass, Report, Round, RoundKind};

use crate::cluster::API_SERVER;
use crate::cost::Counts;
use crate::held_up::Arrivals;

/// The real kernel, which counts what is asked of it.
#[derive(Debug)]
pub(crate) struct Metered {
    linux: Linux,
    meter: Meter,
}

/// Repairs of rules by the real kernel, counted as writes are.
#[derive(Debug)]
struct MeteredRepairer {
    repairer: Arc<dyn RuleRepairer>,
    meter: Meter,
}

/// Tells the meter when rounds end, and what is watched when the kernel has it.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) meter: Meter,
    pub(crate) arrivals: Option<Arrivals>,
}

/// Observations so far, shared by [`Metered`] and [`Listener`], which make them, and the thread
/// that waits for them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter(Arc<(Mutex<Seen>, Condvar)>);

/// See [`Meter`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) counts: Counts,
    /// Events that arrived, were planned, and whose operations were answered, of those that a round
    /// must follow.
    pub(crate) arrived: u64,
    planned: u64,
    pub(crate) done: u64,
    /// Time at which a round ended last.
    pub(crate) round_ended: Option<Instant>,
    /// Time at which the last operations were answered.
    pub(crate) written: Option<Instant>,
    /// True while operations are being carried out: thousands of addresses take the kernel many
    /// seconds.
    pub(crate) is_writing: bool,
    /// True once the kernel has been as it should be.
    pub(crate) is_in_sync: bool,
    /// Time at which `default/kubernetes` was served first.
    pub(crate) first_service: Option<Instant>,
    /// Verifications of everything that there is.
    pub(crate) passes: u64,
    /// Duration of the last verification, without its pauses.
    pub(crate) pass_cost: Duration,
    /// Operations that were refused.
    pub(crate) refused: u64,
}

impl Meter {
    pub(crate) fn seen(&self) -> Seen {
        *self.0.0.lock()
    }

    /// Waits until what was seen is as it should be.
    pub(crate) fn wait(
        &self,
        what: &str,
        limit: Duration,
        is_so: impl Fn(&Seen) -> bool,
    ) -> Result<Seen> {
        let deadline = Instant::now() + limit;
        let mut seen = self.0.0.lock();
        while !is_so(&seen) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("{what}: nothing of it after {} s; {seen:?}", limit.as_secs());
            }
            self.0.1.wait_for(&mut seen, left);
        }
        Ok(*seen)
    }

    fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.0.lock());
        self.0.1.notify_all();
    }
}

impl Metered {
    pub(crate) fn new(linux: Linux, meter: Meter) -> Self {
        Self { linux, meter }
    }

    /// Does this work, and counts its traffic before its answer is handed on.
    fn counted<T>(&mut self, work: impl FnOnce(&mut Linux) -> T) -> T {
        let done = work(&mut self.linux);
        let traffic = self.linux.traffic();
        self.meter.note(|seen| seen.counts.traffic = traffic);
        done
    }
}

impl Kernel for Metered {
    fn count_open_connections(&mut self, most: u64) -> Result<Option<OpenConnections>, ReadError> {
        self.counted(|kernel| kernel.count_open_connections(most))
    }

    fn loaded_schedulers(&mut self, names: Vec<SchedulerName>) -> Vec<SchedulerName> {
        self.linux.loaded_schedulers(names)
    }

    fn has_ipvs(&mut self) -> bool {
        self.linux.has_ipvs()
    }

    fn writes_whole_tables(&mut self) -> bool {
        self.linux.writes_whole_tables()
    }

    fn set_sysctl(&mut self, sysctl: &Sysctl) -> Result<Option<SysctlChange>, SysctlError> {
        self.linux.set_sysctl(sysctl)
    }

    fn drift_check(&mut self) -> Result<DriftCheck, ReadError> {
        self.counted(Kernel::drift_check)
    }

    fn list_virtual_servers(&mut self) -> Result<Listing, ReadError> {
        self.counted(Kernel::list_virtual_servers)
    }

    fn read_virtual_servers(
        &mut self,
        frontends: &[Frontend],
    ) -> Result<Vec<VirtualServerReading>, ReadError> {
        self.counted(|linux| linux.read_virtual_servers(frontends))
    }

    fn read_listed(
        &mut self,
        listed: &[ListedVirtualServer],
    ) -> Result<Vec<VirtualServerReading>, ReadError> {
        self.counted(|linux| linux.read_listed(listed))
    }

    fn read_set(&mut self, set: SetId) -> Result<Option<ActualSet>, ReadError> {
        self.counted(|linux| linux.read_set(set))
    }

    fn read_addresses(&mut self) -> Result<Addresses, ReadError> {
        self.counted(Kernel::read_addresses)
    }

    fn read_rule_set(&mut self, family: Family) -> Result<RuleSetReading, ReadError> {
        self.counted(|linux| linux.read_rule_set(family))
    }

    fn read_chains(&mut self, family: Family) -> Result<ActualChains, ReadError> {
        self.counted(|linux| linux.read_chains(family))
    }

    fn set_desired_rules(&mut self, rule_set: RuleSet) {
        self.linux.set_desired_rules(rule_set);
    }

    fn rule_repairer(&self) -> Arc<dyn RuleRepairer> {
        let (repairer, meter) = (self.linux.rule_repairer(), self.meter.clone());
        Arc::new(MeteredRepairer { repairer, meter })
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Result<(), Refusal>> {
        let before = self.linux.traffic().requests;
        self.meter.0.0.lock().is_writing = true;
        let results = self.counted(|linux| linux.apply(ops));
        let requests = self.linux.traffic().requests - before;
        let refused = results.iter().filter(|result| result.is_err()).count();
        let now = Instant::now();
        self.meter.note(|seen| {
            seen.counts.operations += ops.len() as u64;
            seen.counts.writing += requests;
            seen.refused += refused as u64;
            seen.written = Some(now);
            seen.is_writing = false;
        });
        results
    }

    fn tracked_flows(&self) -> Arc<dyn TrackedFlows> {
        self.linux.tracked_flows()
    }

    fn set_reader(&self) -> Arc<dyn SetReader> {
        self.linux.set_reader()
    }
}

impl RuleRepairer for MeteredRepairer {
    fn read_rule_set(&self, family: Family) -> Result<RuleSetReading, ReadError> {
        self.repairer.read_rule_set(family)
    }

    fn write_rule_set(&self, family: Family) -> Result<(), Refusal> {
        let written = self.repairer.write_rule_set(family);
        let now = Instant::now();
        self.meter.note(|seen| {
            seen.counts.operations += 1;
            seen.refused += u64::from(written.is_err());
            seen.written = Some(now);
        });
        written
    }
}

impl Listener {
    fn arrived(&mut self, event: &Event) {
        // No thread waits for this, and waking is a system call even without waiters.
        if is_followed(event) {
            self.meter.0.0.lock().arrived += 1;
        }
    }

    fn written(&mut self, write: &KernelWrite<'_>) {
        if let Some(arrivals) = &self.arrivals {
            arrivals.note(write);
        }
        // The request binds the address, too, which comes after the real servers.
        let api_server = |op: &Op| matches!(op, Op::AddRealServer(frontend, _) if frontend.address == IpAddr::from(API_SERVER));
        if write.ops.iter().any(api_server) {
            let now = Instant::now();
            self.meter.note(|seen| {
                seen.first_service.get_or_insert(now);
            });
        }
    }

    fn round_ended(&mut self, round: &Round<'_>) {
        let now = Instant::now();
        self.meter.note(|seen| {
            if round.kind != RoundKind::Retry {
                // While Services wait, some of what was planned may be for the next round.
                if round.backlog == 0 {
                    seen.done = seen.planned;
                }
                seen.round_ended = Some(now);
            }
        });
    }

    fn pass_ended(&mut self, pass: &Pass) {
        self.meter.note(|seen| {
            seen.passes += 1;
            seen.pass_cost = pass.cost;
        });
    }
}

impl Observer for Listener {
    fn report(&mut self, report: &Report<'_>) {
        match report {
            Report::Arrived(event) => self.arrived(event),
            Report::Listed => self.arrivals.iter().for_each(Arrivals::listed),
            Report::Written(write) => self.written(write),
            Report::Planned { .. } => self.meter.note(|seen| seen.planned = seen.arrived),
            Report::InSync => self.meter.note(|seen| seen.is_in_sync = true),
            Report::RoundEnded(round) => self.round_ended(round),
            Report::PassEnded(pass) => self.pass_ended(pass),
            _ => {}
        }
    }
}

/// True if a round must follow an event. None follows the removal of the slice of a Service that is
/// gone, which changes nothing.
pub(crate) fn is_followed(event: &Event) -> bool {
    matches!(event, Event::ServiceApplied(_) | Event::ServiceRemoved(_) | Event::SliceApplied(_))
}
