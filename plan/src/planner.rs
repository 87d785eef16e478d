//! Ties the parts together: events in, operations out.

mod chains;
mod explained;
mod hand_drains;
mod ipvs;
mod node_ports;
mod owners;
mod service_routes;
mod stateless;
#[cfg(test)]
mod tests;
mod traced;

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::actual::{Actual, ListedVirtualServer};
use crate::adoption::Unadopted;
use crate::backend::{self, Backend};
use crate::event::Event;
use crate::exposure::Exposure;
use crate::facts::{BoundAddresses, NodeFacts};
use crate::growth::SetSizes;
use crate::hash::{HashMap, HashSet};
use crate::iptables::desired::{ChainChanges, DesiredChains};
use crate::ipvs::desired::{Changes, Desired};
use crate::ipvs::diff;
use crate::ipvs::fragment::Fragment;
use crate::kernel_objects::Frontend;
use crate::local::{HealthCheck, LocalGap, LocalGaps};
use crate::localhost::LocalhostPort;
use crate::model::{Family, ServiceName};
use crate::op::{Op, Subject};
use crate::order;
use crate::problem::{Overfull, Problem, Problems};
use crate::reports::{News, Reports};
use crate::rule_set::{InvalidRuleSetSettings, RuleSet, RuleSetSettings};
use crate::sets::SetId;
use crate::settings::Settings;
use crate::store::{InputCounts, Store, Turn};
use crate::userspace::RelayPort;
pub use explained::{
    ExplainedEndpoint, ExplainedFrontend, ExplainedPort, ExplainedService, ServiceSummary,
    Summaries,
};
pub use node_ports::NodePortAddressCount;

/// The planner: it knows the input, and what the kernel should have for it.
///
/// Apply [`Event::LocalAddresses`] before the first plan: without it, no node port has an address,
/// and an external address that is the node's own is taken for a foreign one.
#[derive(Debug)]
pub struct Planner {
    settings: Settings,
    backend: &'static Backend,
    store: Store,
    desired: Desired,
    chains: DesiredChains,
    set_sizes: SetSizes,
    /// Problems of the Services by themselves; none of them empty.
    problems: HashMap<ServiceName, Problems>,
    reports: Reports,
    /// The sets that should have more entries than a set may.
    overfull: BTreeSet<SetId>,
    health_checks: HashMap<ServiceName, HealthCheck>,
    /// Changes since the last plan.
    new_health_checks: Vec<(ServiceName, Option<HealthCheck>)>,
    local_gaps: LocalGaps,
    /// No empty lists.
    localhost: HashMap<ServiceName, Vec<LocalhostPort>>,
    /// Changes since the last plan.
    new_localhost: Vec<(ServiceName, Vec<LocalhostPort>)>,
    /// The families whose connections another mode's rules still lead, before those of this mode.
    led_by_rules: BTreeSet<Family>,
    /// Local routes as of the last plan, if they are others since.
    former_routes: Option<HashSet<IpNet>>,
    /// Ports that the relay is to listen on; no empty lists.
    relay: HashMap<ServiceName, Vec<RelayPort>>,
    /// Changes since the last plan.
    new_relay: Vec<(ServiceName, Vec<RelayPort>)>,
}

/// Result of planning: the changes, and the problems that were found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The changes, by phases.
    pub ops: Vec<Op>,
    /// The Services whose problems are not the same as before, in the order of names. No problems
    /// means that all are solved.
    pub problems: Vec<(ServiceName, Vec<Problem>)>,
    /// Those of them that were not there before.
    pub new_problems: Vec<(ServiceName, Vec<Problem>)>,
    /// The sets that from now on should have more entries than a set may.
    pub overfull: Vec<Overfull>,
    /// The Services whose health check is not the same as before, in the order of names. None
    /// means that it has none any more.
    pub health_checks: Vec<(ServiceName, Option<HealthCheck>)>,
    /// The Services whose node ports on localhost are not the same as before, in the order of
    /// names. An empty list means that it has none any more.
    pub localhost: Vec<(ServiceName, Vec<LocalhostPort>)>,
    /// The Services for which the relay is to listen otherwise than before, in the order of names. An
    /// empty list means that it has none any more.
    pub relay: Vec<(ServiceName, Vec<RelayPort>)>,
    /// The frontends whose UDP and SCTP flows may lead nowhere now, as clients see them.
    pub flows: BTreeSet<Frontend>,
    /// Timestamp of the oldest change that is planned here: see [`Planner::apply_at`].
    pub oldest: Option<u64>,
    /// The Services that were planned here, or parts of them, in the order of names.
    pub services: Vec<ServiceName>,
    /// The frontends that belonged to another Service before, or to one that has given them up, each
    /// with that Service. Only ipvs mode lists them.
    pub given_up: Vec<(Frontend, ServiceName)>,
}

/// Changes of one round, by backend.
#[derive(Debug, Default)]
struct Round {
    virtual_servers: Changes,
    chains: ChainChanges,
}

/// Limits to what is planned in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundLimit {
    /// Number of Services, or parts of Services, at most.
    pub services: usize,
    /// No further Service once those taken may need so many operations.
    pub operations: usize,
    /// No more operations of a single Service than this, about, or a sixteenth of those that all of
    /// it takes, if that is more: it waits with the rest of them, behind the others.
    pub operations_per_service: usize,
}

impl RoundLimit {
    /// Everything in one go.
    pub const NONE: Self =
        Self { services: usize::MAX, operations: usize::MAX, operations_per_service: usize::MAX };
}

impl Planner {
    /// A planner that knows of nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let desired = Desired::new(order::seed(&settings.node_name));
        let chains = DesiredChains::new(settings.mode);
        let mut planner = Self {
            backend: backend::of(settings.mode),
            settings,
            store: Store::default(),
            desired,
            chains,
            set_sizes: SetSizes::default(),
            problems: HashMap::default(),
            reports: Reports::default(),
            overfull: BTreeSet::new(),
            health_checks: HashMap::default(),
            new_health_checks: Vec::new(),
            local_gaps: LocalGaps::default(),
            localhost: HashMap::default(),
            new_localhost: Vec::new(),
            led_by_rules: BTreeSet::new(),
            former_routes: None,
            relay: HashMap::default(),
            new_relay: Vec::new(),
        };
        planner.begin_tails();
        planner
    }

    /// Returns the operator's settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes an event. What it changes is planned by the next [`plan`](Self::plan).
    pub fn apply(&mut self, event: Event) {
        self.apply_at(event, 0);
    }

    /// Same as [`apply`](Self::apply), at a `timestamp` that never gets smaller. [`Plan::oldest`] and
    /// [`oldest`](Self::oldest) return such timestamps, which show how long changes wait.
    pub fn apply_at(&mut self, event: Event, timestamp: u64) {
        self.store.apply(event, timestamp, &self.settings);
    }

    /// True if there is anything to plan.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.store.is_dirty() || self.former_routes.is_some()
    }

    /// Returns the number of Services that wait to be planned.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.store.n_dirty()
    }

    /// Number of Services that waited when [`take_over`](Self::take_over) was called, and are not
    /// planned to their end.
    #[must_use]
    pub fn n_to_take_over(&self) -> usize {
        self.store.n_early()
    }

    /// True if a Service waits whose endpoints have changed since, and which goes ahead of those.
    #[must_use]
    pub fn has_change_ahead(&self) -> bool {
        self.store.has_ahead()
    }

    /// Sets the current timestamp, in the unit of [`apply_at`](Self::apply_at).
    pub fn set_now(&mut self, timestamp: u64) {
        self.store.set_now(timestamp);
    }

    /// Moment since which something has waited to be planned, or for its next part.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        self.store.oldest_dirty()
    }

    /// Plans what has changed since the last plan. Costs what depends on it.
    pub fn plan(&mut self) -> Plan {
        self.plan_round(RoundLimit::NONE)
    }

    /// Plans what has changed, up to a limit: `default/kubernetes` and the rules,
    /// then the Services that have waited longest, as they are now. The rest waits for the next
    /// call, and whatever changes meanwhile waits behind it.
    ///
    /// A Service that needs more than [`RoundLimit::operations_per_service`] is planned in several
    /// rounds, and what changed meanwhile comes between them.
    ///
    /// State that one Service gives up and another takes on stays as it is if both are in the same
    /// round. If the Service that takes it on comes first, that Service waits for the other, and
    /// then takes over without a gap. If the Service that gives it up comes first, the state is
    /// gone until the next round has been written.
    pub fn plan_round(&mut self, limit: RoundLimit) -> Plan {
        let (rules, routes) = self.take_changes_of_node();
        let mut oldest = rules.values().copied().min();
        let (mut round, mut affected) = (Round::default(), BTreeSet::new());
        let (mut n_turns, mut size) = (0, 0);
        self.store.begin_round();
        while n_turns < limit.services && size < limit.operations {
            let Some((service, turn)) = self.store.next_dirty(&self.settings) else { break };
            oldest = Some(oldest.map_or(turn.since(), |oldest| oldest.min(turn.since())));
            n_turns += 1;
            size += self.plan_turn(&service, turn, limit.operations_per_service, &mut round);
            affected.insert(service);
            if self.store.is_order_due() {
                // The API server's Service, which is written before the others are even put in order.
                break;
            }
        }
        let services = affected.iter().cloned().collect();
        let mut health_checks = std::mem::take(&mut self.new_health_checks);
        health_checks.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let mut localhost = std::mem::take(&mut self.new_localhost);
        localhost.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let mut relay = std::mem::take(&mut self.new_relay);
        relay.sort_by(|(one, _), (other, _)| one.cmp(other));
        let change = self.desired.finish(round.virtual_servers);
        let (mut ops, mut flows, given_up) = (change.ops, change.flows, change.given_up);
        affected.extend(change.contenders);
        let of_rule_sets = self.plan_tails(rules.into_keys().collect(), &mut round.chains);
        ops.extend(of_rule_sets.into_iter().map(Op::WriteRuleSet).chain(routes));
        let change = self.chains.finish(round.chains);
        ops.extend(change.ops.into_iter().map(Op::Chain));
        flows.extend(change.flows.into_iter().flat_map(|it| self.seen_by_clients(it)));
        affected.extend(change.contenders);
        ops.sort_by_key(Op::phase);
        let News { problems, new_problems } = self.news(affected);
        let overfull = self.note_overfull();
        Plan {
            ops,
            problems,
            new_problems,
            overfull,
            health_checks,
            localhost,
            relay,
            flows,
            oldest,
            services,
            given_up,
        }
    }

    /// Plans a Service, or a part of it. Returns the number of operations that all of it may need.
    fn plan_turn(
        &mut self,
        service: &ServiceName,
        turn: Turn,
        operations: usize,
        round: &mut Round,
    ) -> usize {
        let operations = if self.backend.plans_in_parts { operations } else { usize::MAX };
        if self.settings.mode.leads_by_rules() {
            self.plan_chains(service, turn, operations, &mut round.chains)
        } else {
            self.plan_virtual_servers(service, turn, operations, &mut round.virtual_servers)
        }
    }

    /// Returns the operations that turn the actual state into the desired one, by phases.
    #[must_use]
    pub fn diff(&self, actual: &Actual) -> Vec<Op> {
        if self.settings.mode.leads_by_rules() {
            return self.diff_chains(actual);
        }
        let mut ops = diff::diff(&self.desired, actual, &self.settings);
        SetSizes::of(&actual.sets).insert_growth(&mut ops, self.settings.limits.set_size);
        ops
    }

    /// Returns the operations that create missing prerequisites: interface, sets, rules, routes.
    /// Sets are made for what is planned, and for what the Services tell without being planned; if
    /// one is missing, this walks all of them.
    #[must_use]
    pub fn prerequisites(&self, actual: &Actual) -> Vec<Op> {
        if self.settings.mode.leads_by_rules() {
            let mut ops = self.missing_rule_sets(actual);
            ops.extend(self.outdated_portals());
            return ops;
        }
        let to_come = LazyCell::new(|| self.store.entries_to_come());
        let expected = |set| self.desired.n_entries(set).max(*to_come.get(&set).unwrap_or(&0));
        diff::prerequisites(actual, &self.settings, expected)
    }

    /// Prepares to take over, in rounds, what was found at the start, before the first plan: the
    /// virtual servers that there are, and all that is beside them.
    ///
    /// The Services that wait are put in the order of their age, and those that may claim the same
    /// frontends are planned by the reasons of their claims: the one that has a frontend finds it
    /// as it left it. Who comes later waits for all of them.
    pub fn take_over(&mut self, beside: Actual, listed: Vec<ListedVirtualServer>) -> Unadopted {
        self.store.kernel_was_read(&self.settings);
        self.set_sizes = SetSizes::of(&beside.sets);
        Unadopted::new(beside, listed, &self.settings).with_tails(self.tails())
    }

    /// Returns the desired kernel state, as of the last plan.
    #[must_use]
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// The Services that have endpoints, but none on this node although a traffic policy allows no
    /// others.
    #[must_use]
    pub fn local_gaps(&self) -> &LocalGaps {
        &self.local_gaps
    }

    /// Counts the objects of the input. Walks all of them.
    #[must_use]
    pub fn count_input(&self) -> InputCounts {
        self.store.count()
    }

    /// Returns the sizes of sets, as the kernel has them.
    #[must_use]
    pub fn set_sizes(&self) -> &SetSizes {
        &self.set_sizes
    }

    /// Returns the number of Services with problems, as of the last plan.
    #[must_use]
    pub fn n_with_problems(&self) -> usize {
        self.reports.len()
    }

    /// Returns the number of Services of which a part is not served, as of the last plan.
    #[must_use]
    pub fn n_not_served(&self) -> usize {
        self.reports.n_not_served()
    }

    /// Everything that this Service asks for.
    #[must_use]
    pub fn asked_for_by(&self, service: &ServiceName) -> HashSet<Subject> {
        let of_virtual_servers =
            self.desired.fragment(service).into_iter().flat_map(Fragment::subjects);
        of_virtual_servers.chain(self.chains.subjects(service).map(Subject::Chain)).collect()
    }

    /// The address by which the cluster knows this node, of a family.
    #[must_use]
    pub fn own_address(&self, family: Family) -> Option<IpAddr> {
        self.store.facts().own_address(family)
    }

    /// The addresses of this node's interfaces, by the last event.
    #[must_use]
    pub fn local_addresses(&self) -> &HashSet<IpAddr> {
        self.store.facts().local_addresses()
    }

    /// Notes the service addresses that are local although rules lead to Services, by family. Returns
    /// the operations that write the constant rules that are different for it.
    pub fn note_bound(&mut self, bound: BTreeMap<Family, BoundAddresses>) -> Vec<Op> {
        let families = self.store.note_bound(bound).into_iter();
        let ours = families.filter(|family| self.settings.families.contains(family));
        ours.map(Op::WriteRuleSet).collect()
    }

    /// The service addresses of a family that are local although rules lead to Services; none if
    /// there are none.
    #[must_use]
    pub fn bound(&self, family: Family) -> Option<&BoundAddresses> {
        self.store.facts().bound(family)
    }

    /// A family's constant rules. While another mode's rules lead its connections, those that come
    /// before the dispatch.
    ///
    /// # Errors
    /// When the settings are such that there can be no rules for them. They are the same for as
    /// long as the planner lives, so one that has given rules once always does.
    pub fn rule_set(&self, family: Family) -> Result<RuleSet, InvalidRuleSetSettings> {
        let facts = self.store.facts();
        let rule_set = RuleSetSettings::resolve(&self.settings, family, facts)?;
        let is_led = self.led_by_rules.contains(&family);
        let node_ports = self.backend.node_port_addresses(family, facts, &self.settings);
        Ok((self.backend.rule_set)(family, &rule_set, is_led, node_ports.as_deref()))
    }

    /// Compiles a Service as it is now, and notes what concerns every backend. None: it is gone.
    fn compile<T>(
        &mut self,
        service: &ServiceName,
        compile: impl FnOnce(&Exposure<'_>, &NodeFacts, &Settings) -> (T, Vec<Problem>),
    ) -> Option<T> {
        let Some((object, slices)) = self.store.service(service) else {
            self.problems.remove(service);
            self.note_health_check(service, None);
            self.local_gaps.note(service, LocalGap::default());
            self.note_localhost(service, Vec::new());
            self.note_relay(service, Vec::new());
            return None;
        };
        let exposure = Exposure::new(object, &slices, self.store.facts(), &self.settings);
        let (compiled, problems) = compile(&exposure, self.store.facts(), &self.settings);
        let relay = (self.backend.relay_ports)(&exposure, self.store.facts());
        let Exposure { health_check, local_gap, localhost, .. } = exposure;
        match problems {
            none if none.is_empty() => self.problems.remove(service),
            found => self.problems.insert(service.clone(), Problems::new(found)),
        };
        self.note_health_check(service, health_check);
        self.local_gaps.note(service, local_gap);
        self.note_localhost(service, localhost);
        self.note_relay(service, relay);
        Some(compiled)
    }

    fn note_health_check(&mut self, service: &ServiceName, check: Option<HealthCheck>) {
        let before = match check {
            Some(check) => self.health_checks.insert(service.clone(), check),
            None => self.health_checks.remove(service),
        };
        if before != check {
            self.new_health_checks.push((service.clone(), check));
        }
    }

    fn note_localhost(&mut self, service: &ServiceName, ports: Vec<LocalhostPort>) {
        if self.localhost.get(service).map_or(&[][..], Vec::as_slice) == ports {
            return;
        }
        if ports.is_empty() {
            self.localhost.remove(service);
        } else {
            self.localhost.insert(service.clone(), ports.clone());
        }
        self.new_localhost.push((service.clone(), ports));
    }

    fn note_relay(&mut self, service: &ServiceName, ports: Vec<RelayPort>) {
        if self.relay.get(service).map_or(&[][..], Vec::as_slice) == ports {
            return;
        }
        if ports.is_empty() {
            self.relay.remove(service);
        } else {
            self.relay.insert(service.clone(), ports.clone());
        }
        self.new_relay.push((service.clone(), ports));
    }

    fn news(&mut self, services: BTreeSet<ServiceName>) -> News {
        let mut news = News::default();
        for service in services {
            let mut problems = self.problems.get(&service).cloned().unwrap_or_default();
            let n_taken = self.desired.n_taken_from(&service);
            problems.extend(self.desired.taken_from(&service), n_taken);
            let n_taken = self.chains.n_taken_from(&service);
            problems.extend(self.chains.taken_from(&service), n_taken);
            self.reports.replace(service, problems.into_list(), &mut news);
        }
        news
    }
}
