//! Planning in iptables mode, and what this mode alone is asked.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Planner;
use crate::actual::Actual;
use crate::chains::{ActualChains, ChainId, ChainSubject};
use crate::exposure::Exposure;
use crate::iptables::compile::{Compiled, compile};
use crate::iptables::desired::{ChainChanges, DesiredChains};
use crate::iptables::fragment::ChainFragment;
use crate::iptables::tail;
use crate::ipvs::fragment::ClaimClass;
use crate::kernel_objects::Frontend;
use crate::model::{Family, ServiceName};
use crate::op::Op;
use crate::rule_set::Table;
use crate::store::Turn;

// === impl Planner ===

impl Planner {
    /// Returns the desired chains, as of the last plan.
    #[must_use]
    pub fn desired_chains(&self) -> &DesiredChains {
        &self.chains
    }

    /// Returns the operations that turn the chains of a family into the desired ones, by phases.
    /// Walks all Services.
    #[must_use]
    pub fn compare_chains(&self, family: Family, found: &ActualChains) -> Vec<Op> {
        let ops = self.chains.compare(family, found, |service| self.chains_of(service));
        let mut ops: Vec<Op> = ops.into_iter().map(Op::Chain).collect();
        ops.sort_by_key(Op::phase);
        ops
    }

    /// Returns the operation that gives a chain or a rule its desired state. None: it is different
    /// since the last plan, so the next one writes it; or it is a rule that is not desired, whose
    /// text only [`compare_chains`](Self::compare_chains) finds.
    #[must_use]
    pub fn repair_chain(&self, subject: ChainSubject) -> Option<Op> {
        self.chains.repair(subject, |service| self.chains_of(service)).map(Op::Chain)
    }

    /// Returns the sockets that a flow to a frontend, as clients see it, may lead to. None: no
    /// Service has the frontend.
    #[must_use]
    pub fn flow_targets(&self, frontend: &Frontend) -> Option<Vec<SocketAddr>> {
        if let Some(targets) = self.desired.flow_targets(frontend) {
            return Some(targets.collect());
        }
        let node_port = Frontend { address: unspecified(frontend.family()), ..*frontend };
        let is_node_port = || tail::is_served(frontend.address, self.store.facts(), &self.settings);
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

    /// Plans a Service, all of it: each table changes in one step. Only while the kernel is taken
    /// over are claims made in the order of their classes. Returns the number of its rules.
    pub(super) fn plan_chains(
        &mut self,
        service: &ServiceName,
        turn: Turn,
        changes: &mut ChainChanges,
    ) -> usize {
        let mut fragment = self.compile(service, |exposure, facts, settings| {
            let Compiled { fragment, problems } = compile(exposure, facts, settings);
            (fragment, problems)
        });
        let size = fragment.as_ref().map_or(1, ChainFragment::size);
        if let Some(fragment) = &mut fragment {
            let later = fragment
                .claims
                .extract_if(.., |claim| ClaimClass::of_origin(claim.origin) > turn.up_to());
            let next = later.map(|claim| ClaimClass::of_origin(claim.origin)).min();
            if let Some(next) = next {
                self.store.put_back(service.clone(), turn.next(next, ClaimClass::COUNT));
            }
        }
        self.chains.replace(service, fragment, changes);
        size
    }

    /// Sets the last rules of these families' shared chains.
    pub(super) fn plan_tails(
        &mut self,
        families: impl IntoIterator<Item = Family>,
        changes: &mut ChainChanges,
    ) {
        for family in families {
            let rules = tail::rules(family, self.store.facts(), &self.settings);
            self.chains.set_tail(tail::chain(family), rules, changes);
        }
    }

    /// The last rules of the shared chains; none in another mode.
    pub(super) fn tails(&self) -> Vec<(ChainId, Vec<Box<str>>)> {
        self.chains.tails()
    }

    pub(super) fn diff_chains(&self, actual: &Actual) -> Vec<Op> {
        let mut ops = self.prerequisites(actual);
        for family in &self.settings.families {
            let found = ActualChains::of(*family, &actual.chains);
            ops.extend(self.compare_chains(*family, &found));
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
            Family::of(**address) == frontend.family()
                && tail::is_served(**address, facts, &self.settings)
        });
        addresses.map(|address| Frontend { address: *address, ..frontend }).collect()
    }

    fn chains_of(&self, service: &ServiceName) -> Option<ChainFragment> {
        let (object, slices) = self.store.service(service)?;
        let facts = self.store.facts();
        let exposure = Exposure::new(object, &slices, facts, &self.settings);
        Some(compile(&exposure, facts, &self.settings).fragment)
    }
}

pub(super) const fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}
