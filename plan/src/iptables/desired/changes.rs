//! State from before a change, of everything that the change has touched: comparing it with what is
//! after gives the operations, however often something went back and forth in between.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::shared::RuleOwner;
use super::{ChainChange, Contenders, DesiredChains};
use crate::chains::{ChainDigest, ChainId, ChainOp};
use crate::hash::HashMap;
use crate::iptables::fragment::{RuleClaim, SharedRule};
use crate::kernel_objects::Frontend;
use crate::model::{Protocol, ServiceName};
use crate::rule_set::Table;

/// State from before. Ordered maps, so that the operations come in the same order every time.
#[derive(Debug, Default)]
pub(crate) struct ChainChanges {
    /// None: no Service asked for the chain.
    chains: BTreeMap<ChainId, Option<ChainDigest>>,
    /// Rules of the chains that are different now.
    rules_of_chains: HashMap<ChainId, Arc<[Box<str>]>>,
    /// None: no Service owned the frontend.
    frontends: BTreeMap<Frontend, Option<FormerClaim>>,
    /// Rules that are about no frontend.
    rules: BTreeMap<ServiceName, Box<[SharedRule]>>,
    tails: BTreeMap<ChainId, Box<[Box<str>]>>,
    pub(super) contenders: Contenders,
}

/// Claim that a frontend had before.
#[derive(Debug)]
struct FormerClaim {
    rules: Box<[SharedRule]>,
    targets: Arc<[SocketAddr]>,
}

/// Change of one shared chain.
#[derive(Debug, Default)]
pub(super) struct SharedChange {
    /// Rules that it lacks, in the order in which they are to stand before all others.
    pub(super) inserts: Vec<Box<str>>,
    /// Rules that it has in excess.
    pub(super) deletes: Vec<Box<str>>,
    /// True if inserting and deleting leads to another order of rules than it should have.
    pub(super) is_rewritten: bool,
}

impl ChainChanges {
    /// To be called before a chain changes.
    pub(super) fn before_chain(&mut self, chain: ChainId, digest: Option<ChainDigest>) {
        self.chains.entry(chain).or_insert(digest);
    }

    /// To be called with the rules of a chain that are not those it had.
    pub(super) fn write(&mut self, chain: ChainId, rules: Arc<[Box<str>]>) {
        self.rules_of_chains.insert(chain, rules);
    }

    /// To be called before a Service's claim to this frontend changes. `former`: its claim, which is
    /// no longer in the desired state.
    pub(super) fn before_frontend(
        &mut self,
        desired: &DesiredChains,
        frontend: Frontend,
        former: Option<&RuleClaim>,
        service: &ServiceName,
    ) {
        self.frontends.entry(frontend).or_insert_with(|| {
            let is_owner = desired.owner(&frontend) == Some(service);
            let claim = if is_owner { former } else { desired.owning_claim(&frontend) };
            claim.map(|claim| FormerClaim {
                rules: claim.rules.clone(),
                targets: Arc::clone(&claim.targets),
            })
        });
    }

    /// To be called before a Service's rules that are about no frontend change.
    pub(super) fn before_rules(
        &mut self,
        service: &ServiceName,
        former: &[SharedRule],
        new: &[SharedRule],
    ) {
        if former != new {
            self.rules.entry(service.clone()).or_insert_with(|| former.into());
        }
    }

    /// To be called with the last rules that a shared chain had.
    pub(super) fn before_tail(&mut self, chain: ChainId, former: Box<[Box<str>]>) {
        self.tails.entry(chain).or_insert(former);
    }

    /// Compares with what is after.
    pub(super) fn finish(mut self, desired: &mut DesiredChains) -> ChainChange {
        let mut ops = Vec::new();
        for (chain, before) in std::mem::take(&mut self.chains) {
            let after = desired.digest(&chain);
            if before != after {
                let rules = self.rules_of_chains.remove(&chain).filter(|_| after.is_some());
                let write = rules.map(|rules| ChainOp::Write(chain, rules));
                ops.push(write.unwrap_or(ChainOp::Remove(chain)));
            }
        }
        let flows = self.flows(desired);
        for (chain, change) in self.shared(desired) {
            change.finish(chain, desired, &mut ops);
        }
        ChainChange { ops, contenders: self.contenders.into_services(), flows }
    }

    fn flows(&self, desired: &DesiredChains) -> BTreeSet<Frontend> {
        // A TCP connection to an endpoint that is gone ends by itself.
        let stateless =
            self.frontends.iter().filter(|(frontend, _)| frontend.protocol != Protocol::Tcp);
        let changed = stateless.filter(|(frontend, former)| {
            former.as_ref().map(|former| &*former.targets) != desired.flow_targets(frontend)
        });
        changed.map(|(frontend, _)| *frontend).collect()
    }

    /// Changes of shared chains, which are complete after this.
    fn shared(&mut self, desired: &mut DesiredChains) -> BTreeMap<ChainId, SharedChange> {
        let mut changes = BTreeMap::<ChainId, SharedChange>::new();
        let frontends =
            std::mem::take(&mut self.frontends).into_iter().map(|(frontend, former)| {
                (
                    RuleOwner::Frontend(frontend),
                    former.map(|former| former.rules).unwrap_or_default(),
                )
            });
        let rules = std::mem::take(&mut self.rules).into_iter();
        let rules = rules.map(|(service, former)| (RuleOwner::Service(service), former));
        let mut shared = std::mem::take(&mut desired.shared);
        for (owner, former) in frontends.chain(rules) {
            let new = desired.rules_of(&owner);
            let chains: BTreeSet<ChainId> = former.iter().chain(new).map(|it| it.chain).collect();
            for chain in chains {
                let in_chain = |rules: &'_ [SharedRule]| {
                    let rules = rules.iter().filter(|rule| rule.chain == chain);
                    rules.map(|rule| rule.text.clone()).collect::<Vec<Box<str>>>()
                };
                let (before, after) = (in_chain(&former), in_chain(new));
                if before != after {
                    let rules = shared.entry(chain).or_default();
                    rules.remove(&owner, &before);
                    rules.add(&owner, &after);
                    changes.entry(chain).or_default().add(&owner, before, &after);
                }
            }
        }
        desired.shared = shared;
        for (chain, former) in std::mem::take(&mut self.tails) {
            let tail = desired.shared.get(&chain).into_iter().flat_map(|rules| rules.tail());
            if !former.iter().eq(tail) {
                changes.entry(chain).or_default().is_rewritten = true;
            }
        }
        changes
    }
}

impl SharedChange {
    /// Number of rules that are deleted one by one at most. nft's iptables compares a rule that is to
    /// be deleted with those before it, so that deleting costs the number of deletions times the
    /// chain's length, and writing the chain again costs its length. In a chain of 10,000 rules, one
    /// deletion took 17 to 23 ms and writing all rules 450 to 720 ms (iptables 1.8.9). The legacy
    /// one writes the whole table whatever changes.
    const MOST_DELETIONS: usize = 25;

    /// Adds the rules that an owner has instead of others.
    fn add(&mut self, owner: &RuleOwner, before: Vec<Box<str>>, after: &[Box<str>]) {
        let new = after.iter().filter(|rule| !before.contains(rule));
        let kept = before.iter().filter(|rule| after.contains(rule));
        let is_ordered = matches!(owner, RuleOwner::Frontend(_));
        self.is_rewritten |= is_ordered && !new.clone().chain(kept).eq(after);
        self.inserts.extend(new.cloned());
        self.deletes.extend(before.into_iter().filter(|rule| !after.contains(rule)));
    }

    /// Makes operations of it. Rules that are written again are inserted before if they are of nat:
    /// a frontend is led to its endpoints before filter stops refusing it, and no rule that leads
    /// clients goes before filter refuses them.
    pub(super) fn finish(self, chain: ChainId, desired: &DesiredChains, ops: &mut Vec<ChainOp>) {
        let is_rewritten = self.is_rewritten || self.deletes.len() > Self::MOST_DELETIONS;
        if !is_rewritten || chain.table == Table::Nat {
            let inserts = self.inserts.into_iter().rev();
            ops.extend(inserts.map(|rule| ChainOp::Insert(chain, rule.into())));
        }
        if is_rewritten {
            ops.push(ChainOp::Write(chain, desired.shared_rules(&chain)));
        } else {
            let deletes = self.deletes.into_iter();
            ops.extend(deletes.map(|rule| ChainOp::Delete(chain, rule.into())));
        }
    }
}
