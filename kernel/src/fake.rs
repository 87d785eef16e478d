//! A kernel for scenario tests: in memory, as strict as the real one, with faults on demand.

mod flows;
mod interference;
mod rules;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use plan::actual::{Actual, ActualSet, ActualVirtualServer, Addresses, ListedVirtualServer};
use plan::chains::{ActualChains, ChainOp};
use plan::flows::Flow;
use plan::hash::HashSet;
use plan::kernel_objects::Frontend;
use plan::memory::MemoryKernel;
use plan::model::{Family, Protocol};
use plan::op::{Op, PartKind};
use plan::routes::RouteOp;
use plan::rule_set::RuleSet;
use plan::scheduler::SchedulerName;
use plan::sets::SetId;

use super::sysctl::{Sysctl, SysctlChange, SysctlError};
use super::{
    DriftCheck, Kernel, KernelRead, Listing, OpenConnections, ReadError, Refusal, RefusalClass,
    RuleRepairer, RuleSetReading, SetReader, TrackedFlows, VirtualServerReading,
};
use interference::Interference;
pub use interference::{FakeAnswer, KernelCall};
use rules::FakeRules;

/// A fake kernel. Clones share one state, so a test can look at it and change it while the
/// worker has it.
#[derive(Debug, Clone, Default)]
pub struct Fake(Arc<Mutex<FakeState>>);

/// Number of looks at a fake kernel, by what was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Looks {
    /// At the signs that cost little.
    pub drift_checks: usize,
    /// At which virtual servers there are.
    pub frontends: usize,
    /// At virtual servers: how many of them.
    pub virtual_servers: usize,
    /// At a set.
    pub sets: usize,
    /// At a set, beside the loop. They count as the others, too.
    pub sets_beside: usize,
    /// At the addresses.
    pub addresses: usize,
    /// At the rules.
    pub rule_sets: usize,
    /// At the chains of iptables mode.
    pub chains: usize,
    /// At the connections.
    pub connections: usize,
}

#[derive(Default)]
struct FakeState {
    memory: MemoryKernel,
    rules: FakeRules,
    /// Virtual servers all of whose connections are closed.
    closed: HashSet<Frontend>,
    log: Vec<Op>,
    looks: Looks,
    /// Families whose chains another program has changed since the rules were read.
    touched: HashSet<Family>,
    faults: Vec<InjectedRefusal>,
    unreadable: usize,
    /// Virtual servers that cannot be read.
    spoiled: HashSet<Frontend>,
    /// Sets that another program made with another type.
    foreign_sets: HashSet<SetId>,
    interference: Option<Interference>,
    /// True if drift checks do not report the number of virtual servers.
    keeps_number: bool,
    /// Flows that connection tracking remembers.
    flows: Vec<Flow>,
    /// Number of removals of flows that are still to be refused.
    kept_flows: usize,
    are_flows_unreadable: bool,
    /// The frontends whose flows were asked to be removed, each time.
    cleanings: Vec<BTreeSet<Frontend>>,
    /// Sysctls with their desired values, and the values that they have.
    sysctls: Vec<(Sysctl, String)>,
    /// Schedulers whose modules are loaded, of those that matter.
    loaded_schedulers: HashSet<SchedulerName>,
    /// A sysctl that another program sets to this value before every drift check.
    contested: Option<(String, String)>,
    /// True if no sysctl can be set.
    is_proc_sys_read_only: bool,
    /// The lock of x_tables.
    xtables_lock: Arc<tokio::sync::Mutex<()>>,
    /// Readings of sets beside the loop end while they hold this lock.
    set_lock: Arc<tokio::sync::Mutex<()>>,
}

/// A refusal to come.
struct InjectedRefusal {
    concerns: Box<dyn Fn(&Op) -> bool + Send>,
    refusal: Refusal,
    /// Number of refusals that are still to come.
    times: usize,
    /// True if the operation is carried out all the same: its answer is what gets lost.
    carried_out: bool,
}

impl Fake {
    /// A kernel in this state.
    #[must_use]
    pub fn new(actual: Actual) -> Self {
        let fake = Self::default();
        fake.state().memory = MemoryKernel::new(actual);
        fake
    }

    /// Returns the state that the fake kernel has now.
    #[must_use]
    pub fn actual(&self) -> Actual {
        self.state().memory.actual().clone()
    }

    /// Changes the state as another program does.
    pub fn disturb(&self, change: impl FnOnce(&mut Actual)) {
        self.state().touch(change);
    }

    /// Returns another kernel in the same state: what reads it leaves no trace in this one.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = Self::default();
        copy.state().memory = self.state().memory.clone();
        copy
    }

    /// Takes the operations that were carried out or tried since the last time.
    pub fn take_log(&self) -> Vec<Op> {
        std::mem::take(&mut self.state().log)
    }

    /// Returns the number of looks at the fake kernel, by what was looked at.
    #[must_use]
    pub fn looks(&self) -> Looks {
        self.state().looks
    }

    /// From now on, drift checks do not report the number of virtual servers.
    pub fn keep_number(&self) {
        self.state().keeps_number = true;
    }

    /// Refuses the next `times` operations that `concerns` says yes to.
    pub fn refuse(
        &self,
        times: usize,
        class: RefusalClass,
        concerns: impl Fn(&Op) -> bool + Send + 'static,
    ) {
        let refusal = Refusal::new(class, "injected");
        let fault =
            InjectedRefusal { concerns: Box::new(concerns), refusal, times, carried_out: false };
        self.state().faults.push(fault);
    }

    /// Carries out the next `times` operations that `concerns` says yes to, and loses the answers.
    pub fn lose_answers(&self, times: usize, concerns: impl Fn(&Op) -> bool + Send + 'static) {
        let refusal = Refusal::new(RefusalClass::AnswerLost, "injected");
        let fault =
            InjectedRefusal { concerns: Box::new(concerns), refusal, times, carried_out: true };
        self.state().faults.push(fault);
    }

    /// Lets the next `times` readings fail.
    pub fn fail_readings(&self, times: usize) {
        self.state().unreadable = times;
    }

    /// From now on, this virtual server cannot be read.
    pub fn spoil(&self, frontend: Frontend) {
        self.state().spoiled.insert(frontend);
    }

    /// From now on, every virtual server can be read again.
    pub fn unspoil(&self) {
        self.state().spoiled.clear();
    }

    /// Another program makes a set of this name and another type, or destroys its own: then there is
    /// none.
    pub fn make_foreign(&self, set: SetId, is_foreign: bool) {
        let mut state = self.state();
        state.memory.actual_mut().sets.remove(&set);
        if is_foreign {
            state.foreign_sets.insert(set);
        } else {
            state.foreign_sets.remove(&set);
        }
    }

    /// From now on, has this decide about every request first.
    pub fn interfere(
        &self,
        decide: impl FnMut(KernelCall<'_>, &mut Actual) -> FakeAnswer + Send + 'static,
    ) {
        self.state().interference = Some(Box::new(decide));
    }

    /// True if there is another clone: a worker that has not ended holds it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Loads a scheduler's module.
    pub fn load_scheduler(&self, name: SchedulerName) {
        self.state().loaded_schedulers.insert(name);
    }

    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock()
    }

    /// From now on it has these sysctls, with their desired values.
    pub fn keep_sysctls(&self, sysctls: impl IntoIterator<Item = Sysctl>) {
        let has_its_value = |sysctl: Sysctl| (sysctl.clone(), sysctl.value);
        self.state().sysctls = sysctls.into_iter().map(has_its_value).collect();
    }

    /// Sets a sysctl as another program does.
    pub fn disturb_sysctl(&self, path: &str, value: &str) {
        let mut state = self.state();
        let disturbed = state.sysctls.iter_mut().filter(|(sysctl, _)| sysctl.path == path);
        disturbed.for_each(|(_, found)| value.clone_into(found));
    }

    /// From now on, another program sets a sysctl again and again.
    pub fn contest_sysctl(&self, path: &str, value: &str) {
        self.state().contested = Some((path.to_owned(), value.to_owned()));
    }

    /// From now on, no other program sets a sysctl by itself.
    pub fn end_contest(&self) {
        self.state().contested = None;
    }

    /// The value that a sysctl has.
    #[must_use]
    pub fn sysctl(&self, path: &str) -> Option<String> {
        let state = self.state();
        let found = state.sysctls.iter().find(|(sysctl, _)| sysctl.path == path);
        found.map(|(_, value)| value.clone())
    }

    /// Mounts `/proc/sys` read-only from now on, or writable again.
    pub fn mount_proc_sys(&self, is_read_only: bool) {
        self.state().is_proc_sys_read_only = is_read_only;
    }

    /// Closes the connections of a virtual server. Its real servers go on counting them.
    pub fn close_connections(&self, frontend: Frontend) {
        self.state().closed.insert(frontend);
    }

    /// Readings of sets beside the loop wait for this lock before they end. They have what was there
    /// when they began.
    #[must_use]
    pub fn set_lock(&self) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(&self.state().set_lock)
    }
}

impl Kernel for Fake {
    fn drift_check(&mut self) -> Result<DriftCheck, ReadError> {
        let contested = self.state().contested.clone();
        if let Some((path, value)) = contested {
            self.disturb_sysctl(&path, &value);
        }
        let mut state = self.state();
        state.looks.drift_checks += 1;
        let tells_number = !state.keeps_number;
        let differs = |(sysctl, found): &&(Sysctl, String)| sysctl.value != *found;
        let sysctls = state.sysctls.iter().filter(differs).map(|(it, _)| it.clone()).collect();
        let touched = state.touched.clone();
        let actual = state.readable(KernelRead::DriftCheck, None)?;
        let sets = actual.sets.iter();
        Ok(DriftCheck {
            link: actual.link,
            n_virtual_servers: tells_number.then(|| number(actual.virtual_servers.len())),
            set_entries: sets.map(|(set, there)| (*set, number(there.n_entries()))).collect(),
            untouched: actual.rule_sets.difference(&touched).copied().collect(),
            sysctls,
            has_listed: false,
        })
    }

    fn list_virtual_servers(&mut self) -> Result<Listing, ReadError> {
        let mut state = self.state();
        state.looks.frontends += 1;
        let actual = state.readable(KernelRead::Frontends, None)?;
        let listed = |(frontend, there): (&Frontend, &ActualVirtualServer)| ListedVirtualServer {
            frontend: *frontend,
            server: there.server.clone(),
        };
        Ok(Listing {
            virtual_servers: actual.virtual_servers.iter().map(listed).collect(),
            order: Arc::default(),
        })
    }

    fn read_virtual_servers(
        &mut self,
        frontends: &[Frontend],
    ) -> Result<Vec<VirtualServerReading>, ReadError> {
        let mut state = self.state();
        state.looks.virtual_servers += frontends.len();
        let spoiled = state.spoiled.clone();
        let actual = state.readable(PartKind::VirtualServers, None)?;
        let found = |frontend: &Frontend| {
            if spoiled.contains(frontend) {
                return Err(ReadError::new(format!("virtual server {frontend}"), "injected"));
            }
            Ok(actual.virtual_servers.get(frontend).cloned())
        };
        Ok(frontends.iter().map(found).collect())
    }

    fn read_listed(
        &mut self,
        listed: &[ListedVirtualServer],
    ) -> Result<Vec<VirtualServerReading>, ReadError> {
        let frontends: Vec<Frontend> = listed.iter().map(|it| it.frontend).collect();
        let mut readings = self.read_virtual_servers(&frontends)?;
        for (listed, reading) in listed.iter().zip(&mut readings) {
            if let Ok(Some(found)) = reading
                && !found.real_servers.is_empty()
            {
                found.server.clone_from(&listed.server);
            }
        }
        Ok(readings)
    }

    fn count_open_connections(&mut self, most: u64) -> Result<Option<OpenConnections>, ReadError> {
        self.state().open_connections(most)
    }

    fn read_set(&mut self, set: SetId) -> Result<Option<ActualSet>, ReadError> {
        let mut state = self.state();
        state.looks.sets += 1;
        if state.foreign_sets.contains(&set) {
            return Err(ReadError::foreign(format!("set {set}"), "of another type"));
        }
        Ok(state.readable(PartKind::Sets, None)?.sets.get(&set).cloned())
    }

    fn read_addresses(&mut self) -> Result<Addresses, ReadError> {
        let mut state = self.state();
        state.looks.addresses += 1;
        let actual = state.readable(PartKind::Addresses, None)?;
        Ok(Addresses {
            link: actual.link,
            bound: actual.addresses.clone(),
            routes: actual.routes.clone(),
            incomplete_routes: HashSet::default(),
            local: actual.local_addresses.clone(),
        })
    }

    fn read_rule_set(&mut self, family: Family) -> Result<RuleSetReading, ReadError> {
        let mut state = self.state();
        state.looks.rule_sets += 1;
        let is_led_by_rules = state.memory.is_led_by_rules(family);
        let is_complete =
            state.readable(PartKind::Rules, Some(family))?.rule_sets.contains(&family);
        // Where chains count, only reading them tells how they are now.
        if is_complete && !state.memory.mode().leads_by_rules() {
            state.touched.remove(&family);
        }
        Ok(RuleSetReading { is_complete, is_led_by_rules, ..RuleSetReading::default() })
    }

    fn read_chains(&mut self, family: Family) -> Result<ActualChains, ReadError> {
        let mut state = self.state();
        state.looks.chains += 1;
        let mode = state.memory.mode();
        let found =
            ActualChains::of(mode, family, &state.readable(PartKind::Chains, Some(family))?.chains);
        state.touched.remove(&family);
        Ok(found)
    }

    fn rule_repairer(&self) -> Arc<dyn RuleRepairer> {
        Arc::new(self.clone())
    }

    fn set_desired_rules(&mut self, rule_set: RuleSet) {
        let mut state = self.state();
        let family = rule_set.family();
        state.memory.desire(family, rule_set.mode(), rule_set.has_dispatch());
        if state.rules.desire(rule_set) {
            state.memory.actual_mut().rule_sets.remove(&family);
        }
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Result<(), Refusal>> {
        let mut state = self.state();
        let mut refused = state.rules.refused_in(ops);
        let results = ops.iter().map(|op| refused.note(op, || state.apply(op)));
        results.collect()
    }

    fn loaded_schedulers(&mut self, mut names: Vec<SchedulerName>) -> Vec<SchedulerName> {
        let state = self.state();
        names.retain(|name| state.loaded_schedulers.contains(name));
        names
    }

    fn has_ipvs(&mut self) -> bool {
        self.state().memory.actual().link
    }

    fn writes_whole_tables(&mut self) -> bool {
        self.state().rules.is_of_x_tables
    }

    fn set_sysctl(&mut self, sysctl: &Sysctl) -> Result<Option<SysctlChange>, SysctlError> {
        let mut state = self.state();
        let is_read_only = state.is_proc_sys_read_only;
        let known = state.sysctls.iter_mut().find(|(known, _)| known.path == sysctl.path);
        let sysctl = sysctl.clone();
        let Some((_, found)) = known else {
            let source = rustix::io::Errno::NOENT.into();
            return Err(SysctlError { sysctl, found: None, source });
        };
        if *found == sysctl.value {
            return Ok(None);
        }
        if is_read_only {
            let source = rustix::io::Errno::ROFS.into();
            return Err(SysctlError { sysctl, found: Some(found.clone()), source });
        }
        let before = std::mem::replace(found, sysctl.value.clone());
        Ok(Some(SysctlChange { sysctl, before }))
    }

    fn tracked_flows(&self) -> Arc<dyn TrackedFlows> {
        Arc::new(self.clone())
    }

    fn set_reader(&self) -> Arc<dyn SetReader> {
        Arc::new(self.clone())
    }
}

impl FakeState {
    /// Returns what there is to read. `family`: of rules and chains.
    fn readable(
        &mut self,
        what: impl Into<KernelRead>,
        family: Option<Family>,
    ) -> Result<Cow<'_, Actual>, ReadError> {
        let what = what.into();
        let unreadable = || ReadError::new(format!("{what:?}"), "injected");
        if let Some(left) = self.unreadable.checked_sub(1) {
            self.unreadable = left;
            return Err(unreadable());
        }
        match self.decide(KernelCall::Read(what, family)) {
            FakeAnswer::Honest => Ok(Cow::Borrowed(self.memory.actual())),
            FakeAnswer::Refused(_) | FakeAnswer::Lost { .. } => Err(unreadable()),
            FakeAnswer::Incomplete(hide) => {
                let mut shown = self.memory.actual().clone();
                hide(&mut shown);
                Ok(Cow::Owned(shown))
            }
        }
    }

    fn apply(&mut self, op: &Op) -> Result<(), Refusal> {
        self.log.push(op.clone());
        match self.decide(KernelCall::Writing(op)) {
            FakeAnswer::Honest | FakeAnswer::Incomplete(_) => {}
            FakeAnswer::Refused(refusal) => return Err(refusal),
            FakeAnswer::Lost { carried_out } => {
                if carried_out {
                    let _unknown = self.memory.apply(op);
                }
                self.lose_track(op);
                return Err(lost());
            }
        }
        let fault = self.faults.iter_mut().find(|fault| fault.times > 0 && (fault.concerns)(op));
        if let Some(fault) = fault {
            fault.times -= 1;
            let (refusal, carried_out) = (fault.refusal.clone(), fault.carried_out);
            if carried_out {
                // The result does not matter: the caller never learns it.
                let _unknown = self.memory.apply(op);
                self.lose_track(op);
            }
            return Err(refusal);
        }
        if let Some(set) = op.set().filter(|set| self.foreign_sets.contains(set)) {
            return Err(Refusal::new(RefusalClass::Foreign, format!("{set} is of another type")));
        }
        if let Op::WriteRuleSet(family) = op {
            self.rules.write(*family);
        }
        self.memory.apply(op).or_else(|refusal| {
            use plan::memory::MemoryRefusal as Memory;
            match (op, refusal) {
                // An operation whose result is already there succeeds, as the port says.
                (Op::CreateLink, Memory::LinkExists)
                | (Op::CreateSet(..), Memory::SetExists)
                | (Op::GrowSet(..), Memory::SetNotLarger)
                | (Op::AddEntry(..), Memory::EntryExists)
                | (Op::RemoveEntry(..), Memory::NoEntry)
                | (Op::BindAddress(_), Memory::AddressExists)
                | (Op::UnbindAddress(_), Memory::NoAddress)
                | (Op::Route(RouteOp::Remove(_)), Memory::NoRoute)
                | (Op::Chain(ChainOp::Delete(..)), Memory::NoRule)
                | (Op::Chain(ChainOp::Remove(_)), Memory::NoChain)
                | (Op::RemoveVirtualServer(_), Memory::NoVirtualServer)
                | (
                    Op::DrainRealServer(..) | Op::RemoveRealServer(..),
                    Memory::NoRealServer | Memory::NoVirtualServer,
                ) => Ok(()),
                (_, Memory::SetFull) => Err(Refusal::new(RefusalClass::SetFull, refusal)),
                (_, refusal) => Err(Refusal::new(RefusalClass::Conflict, refusal)),
            }
        })
    }

    /// Counts the connections that are not closed; none if there are more than `most`, closed or not.
    fn open_connections(&mut self, most: u64) -> Result<Option<OpenConnections>, ReadError> {
        self.looks.connections += 1;
        let closed = self.closed.clone();
        let actual = self.readable(KernelRead::Connections, None)?;
        let real_servers = actual.virtual_servers.values().flat_map(|it| it.real_servers.values());
        if real_servers.map(|it| it.connections).sum::<u64>() > most {
            return Ok(None);
        }
        let is_open =
            |frontend: &Frontend| frontend.protocol != Protocol::Udp && !closed.contains(frontend);
        let servers = actual.virtual_servers.iter().filter(|(frontend, _)| is_open(frontend));
        let each = servers.flat_map(|(frontend, server)| {
            let real_servers = server.real_servers.iter();
            real_servers.map(|(socket, found)| ((*frontend, *socket), found.connections))
        });
        Ok(Some(each.filter(|(_, connections)| *connections > 0).collect()))
    }
}

fn lost() -> Refusal {
    Refusal::new(RefusalClass::AnswerLost, "injected")
}

impl SetReader for Fake {
    fn read_set(&self, set: SetId) -> Result<Option<ActualSet>, ReadError> {
        let found = Kernel::read_set(&mut self.clone(), set);
        self.state().looks.sets_beside += 1;
        let lock = self.set_lock();
        let _held = lock.blocking_lock();
        found
    }
}

impl std::fmt::Debug for FakeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeState")
            .field("memory", &self.memory)
            .field("faults", &self.faults.len())
            .finish_non_exhaustive()
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
