//! Planning in the modes whose rules lead, iptables and userspace, and what these alone are asked.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::Planner;
use crate::actual::Actual;
use crate::chains::{ActualChains, ChainId, ChainOp, ChainScope, ChainSubject};
use crate::exposure::Exposure;
use crate::hash::HashSet;
use crate::iptables::compile::Compiled;
use crate::iptables::desired::{ChainChanges, DesiredChains};
use crate::iptables::fragment::ChainFragment;
use crate::iptables::tail;
use crate::ipvs::fragment::ClaimClass;
use crate::kernel_objects::Frontend;
use crate::model::{Family, ServiceName};
use crate::op::Op;
use crate::parts::MOST_PARTS;
use crate::rule_set::Table;
use crate::store::Turn;
use crate::userspace::{ProxyPortId, ProxyPortState, ProxyPorts, RelayPort};

impl Planner {
    /// Returns the desired chains, as of the last plan.
    #[must_use]
    pub fn desired_chains(&self) -> &DesiredChains {
        &self.chains
    }

    /// Returns the operations that turn the chains of a scope into the desired ones, by phases.
    pub(crate) fn compare_chains(
        &self,
        family: Family,
        found: &ActualChains,
        scope: &ChainScope,
    ) -> Vec<Op> {
        let compile = |service: &ServiceName| self.chains_of(service);
        let ops = match scope {
            ChainScope::All => self.chains.compare(family, found, compile),
            ChainScope::Own(services) => {
                self.chains.compare_own(family, found, services.iter(), compile)
            }
            ChainScope::Excess(chains) => self.chains.excess(chains.iter()),
            ChainScope::Shared(chain) => {
                self.chains.compare_shared(*chain, found.shared.get(chain).map(Vec::as_slice))
            }
        };
        let mut ops: Vec<Op> = ops.into_iter().map(Op::Chain).collect();
        ops.sort_by_key(Op::phase);
        ops
    }

    /// True if a Service has chains, as of the last plan.
    #[must_use]
    pub fn has_chains(&self, service: &ServiceName) -> bool {
        self.chains.has_service(service)
    }

    /// Returns the operation that gives a chain or a rule its desired state. None: it is different
    /// since the last plan, so the next one writes it; or it is a rule that is not desired, whose
    /// text only a comparison finds.
    #[must_use]
    pub fn repair_chain(&self, subject: ChainSubject) -> Option<Op> {
        self.chains.repair(subject, |service| self.chains_of(service)).map(Op::Chain)
    }

    /// Number of proxy ports that the relay has been asked for, or is about to be, and has said nothing
    /// of. Walks all Services.
    #[must_use]
    pub fn n_awaited_proxy_ports(&self) -> usize {
        let awaited = |(service, ports): (&ServiceName, &Vec<RelayPort>)| {
            let known = self.store.proxy_ports(service);
            let ids = ports.iter().flat_map(|port| port.proxy_ports(service));
            let is_known = |id: &ProxyPortId| known.is_some_and(|known| known.contains_key(id));
            ids.filter(|(id, _)| !is_known(id)).count()
        };
        self.relay.iter().map(awaited).sum()
    }

    /// Returns the proxy ports that the relay does not listen on and should. Walks all Services.
    pub fn without_proxy_port(&self) -> impl Iterator<Item = ProxyPortId> {
        self.relay.iter().flat_map(|(service, ports)| {
            let known = self.store.proxy_ports(service);
            let state = move |id: &ProxyPortId| known.and_then(|known| known.get(id));
            let is_open =
                move |id: &ProxyPortId| matches!(state(id), Some(ProxyPortState::Listening(_)));
            let ids = ports.iter().flat_map(|port| port.proxy_ports(service)).map(|(id, _)| id);
            ids.filter(move |id| !is_open(id))
        })
    }

    /// Number of Services that have frontends of a family in rules. Walks all frontends.
    #[must_use]
    pub fn n_services_with_chains(&self, family: Family) -> usize {
        let frontends = self.chains.frontends().filter(|it| it.family() == family);
        frontends.filter_map(|it| self.chains.owner(it)).collect::<HashSet<_>>().len()
    }

    /// Returns what the Service that has a frontend, as clients see it, asks for as its drain deadline.
    #[must_use]
    pub fn drain_deadline_seconds(&self, frontend: &Frontend) -> Option<u32> {
        if !self.settings.mode.leads_by_rules() {
            return self.desired.drain_deadline_seconds(frontend);
        }
        let (service, _) = self.store.service(self.chain_owner(frontend)?)?;
        service.overrides.as_ref()?.drain_deadline_seconds
    }

    /// Returns the sockets that a flow to a frontend, as clients see it, may lead to. None: no
    /// Service has the frontend.
    #[must_use]
    pub fn flow_targets(&self, frontend: &Frontend) -> Option<Vec<SocketAddr>> {
        if let Some(targets) = self.desired.flow_targets(frontend) {
            return Some(targets.collect());
        }
        let node_port = Frontend { address: unspecified(frontend.family()), ..*frontend };
        let is_node_port = || self.serves_node_ports(frontend.address);
        let of_chains = self.chains.flow_targets(frontend);
        let targets =
            of_chains.or_else(|| self.chains.flow_targets(&node_port).filter(|_| is_node_port()));
        targets.map(<[SocketAddr]>::to_vec)
    }

    /// Returns the number of rules that a table of a family should have from us: those of Services,
    /// and in the constant chains.
    #[must_use]
    pub fn n_rules(&self, family: Family, table: Table) -> usize {
        let rule_set = self.rule_set(family).ok();
        let constant =
            rule_set.iter().flat_map(|rules| rules.chains().iter().chain(rules.shared()));
        let constant = constant.filter(|chain| chain.table == table);
        constant.map(|chain| chain.rules.len()).sum::<usize>() + self.chains.n_rules(family, table)
    }

    /// Plans a Service, or a part of it. Only while the kernel is taken over are claims made in the
    /// order of their classes. Returns the number of rules and chains of all of it.
    pub(super) fn plan_chains(
        &mut self,
        service: &ServiceName,
        turn: Turn,
        operations: usize,
        changes: &mut ChainChanges,
    ) -> usize {
        let proxy_ports = self.store.proxy_ports(service).cloned().unwrap_or_default();
        let compile = self.backend.compile_chains;
        let mut fragment = self.compile(service, |exposure, facts, settings| {
            let Compiled { fragment, problems } = compile(exposure, &proxy_ports, facts, settings);
            (fragment, problems)
        });
        let size = fragment.as_ref().map_or(1, ChainFragment::size);
        let operations = operations.max(size / MOST_PARTS).max(1);
        let most_turns = 2 * (MOST_PARTS + ClaimClass::COUNT);
        if let Some(fragment) = &mut fragment {
            let later = fragment
                .claims
                .extract_if(.., |claim| ClaimClass::of_origin(claim.origin) > turn.up_to());
            let next = later.map(|claim| ClaimClass::of_origin(claim.origin)).min();
            if let Some(part) = self.chains.next_part(service, fragment, operations) {
                self.store.put_back(service.clone(), turn.next(turn.up_to(), None, most_turns));
                self.chains.advance(service, part, changes);
                return size;
            }
            if let Some(next) = next {
                self.store.put_back(service.clone(), turn.next(next, None, most_turns));
            }
        }
        self.chains.replace(service, fragment, changes);
        size
    }

    /// Sets the last rules of all families' shared chains. They are not news: they come with the chains.
    pub(super) fn begin_tails(&mut self) {
        let families = self.settings.families.clone();
        self.plan_tails(families, &mut ChainChanges::default());
    }

    /// Sets the last rules of these families' shared chains. Returns the families that have them among their
    /// constant rules.
    pub(super) fn plan_tails(
        &mut self,
        families: Vec<Family>,
        changes: &mut ChainChanges,
    ) -> Vec<Family> {
        let Some(tail) = self.backend.tail else { return families };
        for family in families {
            let facts = self.store.facts();
            let addresses = self.backend.node_port_addresses(family, facts, &self.settings);
            let rules = tail(family, addresses.as_deref(), &self.settings);
            self.chains.set_tail(tail::chain(family), rules, changes);
        }
        Vec::new()
    }

    /// The last rules of the shared chains; none in another mode.
    pub(crate) fn tails(&self) -> Vec<(ChainId, Vec<Box<str>>)> {
        self.chains.tails()
    }

    pub(super) fn missing_rule_sets(&self, actual: &Actual) -> Vec<Op> {
        let families = self.settings.families.iter();
        let missing = families.filter(|family| !actual.rule_sets.contains(family));
        missing.copied().map(Op::WriteRuleSet).collect()
    }

    /// Returns the operations that take all portals away: those that are found at the start lead to
    /// ports of a process that has ended, which another program may have by now. None if the relay has
    /// ports already: it outlived the mode, and portals lead to these.
    pub(super) fn outdated_portals(&self) -> Vec<Op> {
        if self.store.has_proxy_ports() {
            return Vec::new();
        }
        let (mode, families) = (self.settings.mode, self.settings.families.iter());
        let shared = families.flat_map(|family| ChainId::all_shared(mode, *family));
        let portals = shared.filter(ChainId::has_portals);
        portals.map(|chain| Op::Chain(ChainOp::Write(chain, Arc::default()))).collect()
    }

    pub(super) fn diff_chains(&self, actual: &Actual) -> Vec<Op> {
        let mut ops = self.missing_rule_sets(actual);
        for family in &self.settings.families {
            let found = ActualChains::of(self.settings.mode, *family, &actual.chains);
            ops.extend(self.compare_chains(*family, &found, &ChainScope::All));
        }
        ops.sort_by_key(Op::phase);
        ops
    }

    /// Frontends as clients see them: a node port's are at every address of this node that serves
    /// it.
    pub(super) fn seen_by_clients(&self, frontend: Frontend) -> BTreeSet<Frontend> {
        if !frontend.address.is_unspecified() {
            return [frontend].into();
        }
        let facts = self.store.facts();
        let addresses = facts.local_addresses().iter().filter(|address| {
            Family::of(**address) == frontend.family() && self.serves_node_ports(**address)
        });
        addresses.map(|address| Frontend { address: *address, ..frontend }).collect()
    }

    /// Returns the chains and rules that a Service asks for.
    pub(crate) fn chains_of(&self, service: &ServiceName) -> Option<ChainFragment> {
        let (object, slices) = self.store.service(service)?;
        let facts = self.store.facts();
        let exposure = Exposure::new(object, &slices, facts, &self.settings);
        let none = ProxyPorts::new();
        let proxy_ports = self.store.proxy_ports(service).unwrap_or(&none);
        let compile = self.backend.compile_chains;
        Some(compile(&exposure, proxy_ports, facts, &self.settings).fragment)
    }

    /// True if clients of this node reach node ports at an address of the node.
    pub(super) fn serves_node_ports(&self, address: IpAddr) -> bool {
        self.backend.serves_node_ports(address, self.store.facts(), &self.settings)
    }
}

pub(super) const fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}
