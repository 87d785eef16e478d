//! Differences between the desired chains and those that were found.

use std::collections::{BTreeMap, BTreeSet};

use super::DesiredChains;
use super::changes::SharedChange;
use super::shared::{RuleOwner, SharedRules};
use crate::chains::{ActualChains, ChainDigest, ChainId, ChainOp, ChainSubject, RuleDigest};
use crate::hash::HashSet;
use crate::iptables::fragment::ChainFragment;
use crate::model::{Family, ServiceName};

impl DesiredChains {
    /// Returns the operations that turn the chains of a family into the desired ones, in no order of
    /// phases. `compile` makes a Service's fragment again.
    ///
    /// A chain that is different since the last plan is left to the next one.
    pub(crate) fn compare(
        &self,
        family: Family,
        found: &ActualChains,
        compile: impl Fn(&ServiceName) -> Option<ChainFragment>,
    ) -> Vec<ChainOp> {
        let mut ops = self.compare_own(family, found, self.services.keys(), compile);
        ops.extend(self.excess(found.own.keys()));
        // Those of `KUBE-SERVICES` lead to `KUBE-NODEPORTS`.
        let shared: Vec<ChainId> = ChainId::all_shared(self.mode, family).collect();
        for chain in shared.into_iter().rev() {
            let found = found.shared.get(&chain).map(Vec::as_slice);
            ops.extend(self.compare_shared(chain, found));
        }
        ops
    }

    /// The same for the chains of these Services' ports and endpoints, without those in excess.
    pub(crate) fn compare_own<'a>(
        &'a self,
        family: Family,
        found: &ActualChains,
        services: impl Iterator<Item = &'a ServiceName>,
        compile: impl Fn(&ServiceName) -> Option<ChainFragment>,
    ) -> Vec<ChainOp> {
        let differs = |chain: &ChainId, digest: ChainDigest| {
            chain.family == family && found.own.get(chain) != Some(&digest)
        };
        let with_differences: BTreeSet<&ServiceName> = services
            .filter(|service| {
                let kept = self.services.get(*service).into_iter();
                let mut chains = kept.flat_map(|kept| &kept.chains);
                chains.any(|chain| differs(&chain.id, chain.digest))
            })
            .collect();
        let mut ops = Vec::new();
        for fragment in with_differences.into_iter().filter_map(compile) {
            let differing = fragment.chains.into_iter().filter(|chain| {
                let digest = self.digest(&chain.id);
                digest.is_some_and(|digest| differs(&chain.id, digest))
                    && digest == Some(ChainDigest::of(&*chain.rules))
            });
            ops.extend(differing.map(|chain| ChainOp::Write(chain.id, chain.rules)));
        }
        ops
    }

    /// Returns the operations that remove chains of service ports and endpoints that no Service asks
    /// for.
    pub(crate) fn excess<'a>(&self, found: impl Iterator<Item = &'a ChainId>) -> Vec<ChainOp> {
        let excess = found.filter(|chain| self.digest(chain).is_none());
        let excess: BTreeSet<ChainId> = excess.copied().collect();
        excess.into_iter().map(ChainOp::Remove).collect()
    }

    /// Returns the operations that turn a shared chain, which may be missing, into the desired one.
    pub(crate) fn compare_shared(
        &self,
        chain: ChainId,
        found: Option<&[Box<str>]>,
    ) -> Vec<ChainOp> {
        let Some(found) = found else {
            return vec![ChainOp::Write(chain, self.shared_rules(&chain))];
        };
        let nothing = SharedRules::default();
        let desired = self.shared.get(&chain).unwrap_or(&nothing);
        let tail: Vec<RuleDigest> = desired.tail().map(|rule| RuleDigest::of(rule)).collect();
        let digests: Vec<RuleDigest> = found.iter().map(|rule| RuleDigest::of(rule)).collect();
        let of_services = digests.strip_suffix(&*tail);
        let mut change = SharedChange { is_rewritten: of_services.is_none(), ..Default::default() };
        let of_services = of_services.unwrap_or(&digests);
        let mut seen = HashSet::default();
        let mut by_owner = BTreeMap::<&RuleOwner, Vec<RuleDigest>>::new();
        for (rule, digest) in found.iter().zip(of_services) {
            let owner = desired.owner(*digest);
            if let Some(owner) = owner {
                by_owner.entry(owner).or_default().push(*digest);
            }
            // Of several that are the same, deleting finds the first one.
            if owner.is_none() || !seen.insert(*digest) {
                change.deletes.push(rule.clone());
            }
        }
        for owner in desired.owners() {
            let rules: Vec<_> = self
                .rules_in(owner, chain)
                .map(|rule| (RuleDigest::of(rule), rule.clone()))
                .collect();
            let there = by_owner.get(owner).map_or(&[][..], Vec::as_slice);
            let is_ordered = matches!(owner, RuleOwner::Frontend(_));
            change.is_rewritten |= is_ordered
                && rules.len() > 1
                && !there.is_empty()
                && !there.iter().eq(rules.iter().map(|(digest, _)| digest));
            let missing = rules.into_iter().filter(|(digest, _)| !seen.contains(digest));
            change.inserts.extend(missing.map(|(_, rule)| rule));
        }
        let mut ops = Vec::new();
        if change.is_rewritten || !change.inserts.is_empty() || !change.deletes.is_empty() {
            change.finish(chain, self, &mut ops);
        }
        ops
    }

    /// Returns the operation that gives a chain or a rule its desired state. None: it is different
    /// since the last plan, so the next one writes it; or it is a rule that is not desired, whose
    /// text only a comparison finds.
    pub(crate) fn repair(
        &self,
        subject: ChainSubject,
        compile: impl Fn(&ServiceName) -> Option<ChainFragment>,
    ) -> Option<ChainOp> {
        let chain = subject.chain();
        let ChainSubject::Rule(_, digest) = subject else {
            if chain.name.is_shared() {
                return Some(ChainOp::Write(chain, self.shared_rules(&chain)));
            }
            let Some(desired) = self.digest(&chain) else { return Some(ChainOp::Remove(chain)) };
            let fragment = self.owner_of_chain(&chain).and_then(compile)?;
            let written = fragment.chains.into_iter().find(|it| it.id == chain)?;
            let is_planned = ChainDigest::of(&*written.rules) == desired;
            return is_planned.then_some(ChainOp::Write(chain, written.rules));
        };
        let shared = self.shared.get(&chain).filter(|shared| shared.has(digest))?;
        let rules = shared.owner(digest).map(|owner| self.rules_in(owner, chain));
        let rules: Vec<&Box<str>> = rules.into_iter().flatten().collect();
        Some(match &*rules {
            [rule] => ChainOp::Insert(chain, (***rule).into()),
            // Its place among other rules matters.
            _ => ChainOp::Write(chain, self.shared_rules(&chain)),
        })
    }
}
