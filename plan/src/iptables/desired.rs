//! Desired chains of every Service.
//!
//! A chain of one service port or endpoint is held as its name and a digest: its rules are made
//! again, by compiling the Service, when a repair needs them. The rules in shared chains are held as
//! they are. Those of a frontend are there as long as the Service has the frontend
//! ([`claimants`](crate::claimants)).

mod changes;
mod comparison;
mod parts;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::fragment::{ChainFragment, OwnChain, RuleClaim, SharedRule};
use crate::chains::{
    ChainDigest, ChainHash, ChainId, ChainName, ChainOp, ChainSubject, RuleDigest,
};
use crate::claimants::{ClaimKind, ClaimRank, Claimants, Contenders};
use crate::hash::HashMap;
use crate::kernel_objects::Frontend;
use crate::mode::Mode;
use crate::model::{Family, ServiceName};
use crate::problem::Problem;
use crate::rule_set::Table;
pub(crate) use changes::ChainChanges;
use shared::{RuleOwner, SharedRules};

/// Desired chains.
#[derive(Debug, Default)]
pub struct DesiredChains {
    mode: Mode,
    services: HashMap<ServiceName, Kept>,
    /// The Service of each chain of a service port or endpoint, by the hash in the chain's name.
    by_hash: HashMap<ChainHash, ServiceName>,
    claimants: Claimants,
    shared: BTreeMap<ChainId, SharedRules>,
    /// Number of rules in the chains of service ports and endpoints, by family.
    n_own_rules: [usize; 2],
}

/// Changes that follow from replacing fragments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ChainChange {
    /// The difference, in no particular order of phases, always the same for the same difference.
    pub(crate) ops: Vec<ChainOp>,
    /// Services that now wait for other frontends than before, or behind another Service.
    pub(crate) contenders: BTreeSet<ServiceName>,
    /// The frontends whose UDP and SCTP flows may lead nowhere now. That of a node port has the
    /// family's unspecified address.
    pub(crate) flows: BTreeSet<Frontend>,
}

/// Part of a Service's fragment that is kept.
#[derive(Debug, Default)]
struct Kept {
    /// By their names.
    chains: Box<[KeptChain]>,
    /// By their frontends.
    claims: Box<[RuleClaim]>,
    /// In order.
    rules: Box<[SharedRule]>,
    /// Number of rules in its own chains, by family.
    n_own_rules: [usize; 2],
}

/// Chain of one Service. It has 35 bytes and no alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeptChain {
    id: ChainId,
    digest: ChainDigest,
}

impl DesiredChains {
    /// No chains of a mode.
    pub(crate) fn new(mode: Mode) -> Self {
        Self { mode, ..Self::default() }
    }

    /// The Service that a frontend belongs to.
    #[must_use]
    pub fn owner(&self, frontend: &Frontend) -> Option<&ServiceName> {
        self.claimants.owner(frontend)
    }

    /// All frontends that a Service owns, in no order. That of a node port has the family's
    /// unspecified address.
    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.claimants.frontends()
    }

    /// The endpoints that a flow to a frontend may lead to; none for TCP. None: no Service has the
    /// frontend.
    #[must_use]
    pub fn flow_targets(&self, frontend: &Frontend) -> Option<&[SocketAddr]> {
        self.owning_claim(frontend).map(|claim| &*claim.targets)
    }

    /// Digest of a chain of a service port or endpoint, if it is desired.
    #[must_use]
    pub fn digest(&self, chain: &ChainId) -> Option<ChainDigest> {
        self.services.get(self.owner_of_chain(chain)?)?.digest(chain)
    }

    /// True if a chain should be there, or a rule of a shared chain.
    #[must_use]
    pub fn has(&self, subject: &ChainSubject) -> bool {
        match subject {
            ChainSubject::Chain(chain) => chain.name.is_shared() || self.digest(chain).is_some(),
            ChainSubject::Rule(chain, digest) => {
                self.shared.get(chain).is_some_and(|rules| rules.has(*digest))
            }
        }
    }

    /// The rules of a shared chain, in the order in which it is written.
    #[must_use]
    pub fn shared_rules(&self, chain: &ChainId) -> Arc<[Box<str>]> {
        let Some(shared) = self.shared.get(chain) else { return Arc::default() };
        let of_services = shared.owners().flat_map(|owner| self.rules_in(owner, *chain));
        of_services.chain(shared.tail()).cloned().collect()
    }

    /// Number of rules of Services in a table, and of those that are last in a shared chain.
    #[must_use]
    pub fn n_rules(&self, family: Family, table: Table) -> usize {
        let chains = ChainId::all_shared(self.mode, family).filter(|chain| chain.table == table);
        let shared = chains.filter_map(|chain| self.shared.get(&chain)).map(SharedRules::n_rules);
        let [v4, v6] = self.n_own_rules;
        let own = match (table, family) {
            (Table::Nat, Family::V4) => v4,
            (Table::Nat, Family::V6) => v6,
            _ => 0,
        };
        own + shared.sum::<usize>()
    }

    /// Number of chains of service ports and endpoints.
    #[must_use]
    pub fn n_chains(&self) -> usize {
        self.services.values().map(|kept| kept.chains.len()).sum()
    }

    /// Everything that a Service asks for. The last rules of a shared chain are there as soon as any
    /// rule is, or they would be before it.
    pub(crate) fn subjects<'a>(
        &'a self,
        service: &ServiceName,
    ) -> impl Iterator<Item = ChainSubject> + use<'a> {
        let kept = self.services.get(service);
        let chains = kept.into_iter().flat_map(|kept| &kept.chains);
        let rules = kept.into_iter().flat_map(Kept::shared_rules);
        let with_tail: BTreeSet<ChainId> = rules.clone().map(|rule| rule.chain).collect();
        let rules = rules.map(|rule| rule.subject());
        let tails = self.shared.iter().filter(move |(chain, _)| with_tail.contains(chain));
        let tails = tails.flat_map(|(chain, rules)| {
            rules.tail().map(|rule| ChainSubject::Rule(*chain, RuleDigest::of(rule)))
        });
        chains.map(|chain| ChainSubject::Chain(chain.id)).chain(rules).chain(tails)
    }

    /// Returns a problem for each frontend that a Service claims and one before it has, in the
    /// order of frontends. Each names the Service right before this one.
    pub(crate) fn taken_from<'a>(
        &'a self,
        service: &'a ServiceName,
    ) -> impl Iterator<Item = Problem> {
        self.claimants.lacked_by(service).filter_map(move |frontend| {
            let rank = self.rank(service, frontend)?;
            let owner = self.claimants.before(frontend, &rank)?.clone();
            Some(Problem::FrontendTaken { frontend: *frontend, owner })
        })
    }

    /// Number of frontends that a Service claims and one before it has.
    pub(crate) fn n_taken_from(&self, service: &ServiceName) -> usize {
        self.claimants.lacked_by(service).count()
    }

    /// The last rules of the shared chains that have any.
    pub(crate) fn tails(&self) -> Vec<(ChainId, Vec<Box<str>>)> {
        let tails =
            self.shared.iter().map(|(chain, rules)| (*chain, rules.tail().cloned().collect()));
        tails.filter(|(_, rules): &(_, Vec<_>)| !rules.is_empty()).collect()
    }

    /// Sets the last rules of a shared chain.
    pub(crate) fn set_tail(
        &mut self,
        chain: ChainId,
        tail: Vec<Box<str>>,
        changes: &mut ChainChanges,
    ) {
        let shared = self.shared.entry(chain).or_default();
        let former = shared.set_tail(tail);
        changes.before_tail(chain, former);
    }

    /// Puts a fragment in the place of the one that the Service had. None: the Service is gone.
    /// The shared chains are complete again after [`finish`](Self::finish).
    pub(crate) fn replace(
        &mut self,
        service: &ServiceName,
        fragment: Option<ChainFragment>,
        changes: &mut ChainChanges,
    ) {
        let is_gone = fragment.is_none();
        let (new, chains) = Kept::new(fragment.unwrap_or_default());
        self.put(service, new, chains, changes);
        if is_gone {
            self.services.remove(service);
        }
    }

    /// Puts this in the place of what the Service had. `chains`: those that are not as they were, at
    /// least.
    fn put(
        &mut self,
        service: &ServiceName,
        new: Kept,
        chains: Vec<OwnChain>,
        changes: &mut ChainChanges,
    ) {
        let former = self.services.remove(service).unwrap_or_default();
        self.replace_chains(service, &former, &new, chains, changes);
        changes.before_rules(service, &former.rules, &new.rules);
        let different = different_claims(&former, &new);
        for frontend in &different {
            changes.before_frontend(self, *frontend, former.claim(frontend), service);
        }
        for claim in different.iter().filter_map(|frontend| former.claim(frontend)) {
            let rank = rank_of(service, claim);
            self.claimants.withdraw(&claim.frontend, &rank, &mut changes.contenders);
        }
        let made = different.iter().filter_map(|frontend| new.claim(frontend));
        for claim in made {
            let owner = self.claimants.owner(&claim.frontend);
            let owner = owner.and_then(|owner| self.rank(owner, &claim.frontend));
            let rank = rank_of(service, claim);
            self.claimants.claim(claim.frontend, rank, owner, &mut changes.contenders);
        }
        self.services.insert(service.clone(), new);
    }

    fn replace_chains(
        &mut self,
        service: &ServiceName,
        former: &Kept,
        new: &Kept,
        chains: Vec<OwnChain>,
        changes: &mut ChainChanges,
    ) {
        for chain in chains {
            let before = former.digest(&chain.id);
            if before != new.digest(&chain.id) {
                changes.before_chain(chain.id, before);
                changes.write(chain.id, chain.rules);
            }
            if before.is_none()
                && let Some(hash) = chain.id.name.hash()
            {
                self.by_hash.insert(hash, service.clone());
            }
        }
        let gone = former.chains.iter().filter(|chain| new.digest(&chain.id).is_none());
        for chain in gone.clone() {
            changes.before_chain(chain.id, Some(chain.digest));
            if let Some(hash) = chain.id.name.hash()
                && self.by_hash.get(&hash) == Some(service)
            {
                self.by_hash.remove(&hash);
            }
        }
        // Chains of one service port share a hash, and so do the families'.
        if gone.clone().next().is_some() {
            for hash in new.chains.iter().filter_map(|chain| chain.id.name.hash()) {
                self.by_hash.entry(hash).or_insert_with(|| service.clone());
            }
        }
        for (total, (was, is)) in
            self.n_own_rules.iter_mut().zip(former.n_own_rules.iter().zip(new.n_own_rules))
        {
            *total = *total + is - was;
        }
    }

    /// Difference to what there was before these changes. All of them are one.
    pub(crate) fn finish(&mut self, changes: ChainChanges) -> ChainChange {
        changes.finish(self)
    }

    fn owner_of_chain(&self, chain: &ChainId) -> Option<&ServiceName> {
        self.by_hash.get(&chain.name.hash()?)
    }

    /// The claim by which a Service has a frontend.
    fn owning_claim(&self, frontend: &Frontend) -> Option<&RuleClaim> {
        self.services.get(self.claimants.owner(frontend)?)?.claim(frontend)
    }

    fn rank(&self, service: &ServiceName, frontend: &Frontend) -> Option<ClaimRank> {
        let claim = self.services.get(service)?.claim(frontend)?;
        Some(rank_of(service, claim))
    }

    /// The rules of one owner in shared chains, in their order.
    fn rules_of(&self, owner: &RuleOwner) -> &[SharedRule] {
        match owner {
            RuleOwner::Frontend(frontend) => {
                self.owning_claim(frontend).map_or(&[], |claim| &claim.rules)
            }
            RuleOwner::Service(service) => {
                self.services.get(service).map_or(&[], |kept| &kept.rules)
            }
        }
    }

    /// The rules that a shared chain has of one owner, in their order.
    fn rules_in(&self, owner: &RuleOwner, chain: ChainId) -> impl Iterator<Item = &Box<str>> {
        let rules = self.rules_of(owner).iter();
        rules.filter(move |rule| rule.chain == chain).map(|rule| &rule.text)
    }

    /// The frontends whose traffic may pass a chain: of a shared one, all of the family; of another
    /// one, those that its Service claims. None if no Service asks for the chain.
    pub(crate) fn frontends_behind(&self, chain: &ChainId) -> Vec<Frontend> {
        let is_of_family = |frontend: &Frontend| frontend.family() == chain.family;
        if matches!(chain.name, ChainName::Shared(_)) {
            return self.frontends().filter(|it| is_of_family(it)).copied().collect();
        }
        let owner = self.owner_of_chain(chain).and_then(|owner| self.services.get(owner));
        let claimed = owner.into_iter().flat_map(|kept| &kept.claims).map(|claim| claim.frontend);
        claimed.filter(is_of_family).collect()
    }

    /// True if a Service has chains.
    pub(crate) fn has_service(&self, service: &ServiceName) -> bool {
        self.services.contains_key(service)
    }

    /// The frontends that a Service claims, whether it has them or waits for them.
    pub(crate) fn claimed_by(&self, service: &ServiceName) -> impl Iterator<Item = Frontend> {
        let kept = self.services.get(service).into_iter();
        kept.flat_map(|kept| &kept.claims).map(|claim| claim.frontend)
    }

    /// The Service that asks for a chain, or for a rule of a shared chain. None: no Service does, or
    /// it is a shared chain as a whole, or one of its last rules.
    pub(crate) fn owner_of(&self, subject: &ChainSubject) -> Option<&ServiceName> {
        match subject {
            ChainSubject::Chain(chain) => self.owner_of_chain(chain),
            ChainSubject::Rule(chain, digest) => match self.shared.get(chain)?.owner(*digest)? {
                RuleOwner::Frontend(frontend) => self.owner(frontend),
                RuleOwner::Service(service) => self.services.get_key_value(service).map(|it| it.0),
            },
        }
    }
}

fn rank_of(service: &ServiceName, claim: &RuleClaim) -> ClaimRank {
    ClaimRank {
        origin: claim.origin,
        kind: ClaimKind::Frontend,
        created: claim.created,
        service: service.clone(),
    }
}

/// The frontends that only one of two fragments claims, or that they claim differently.
fn different_claims(former: &Kept, new: &Kept) -> Vec<Frontend> {
    let changed = former.claims.iter().filter(|claim| new.claim(&claim.frontend) != Some(*claim));
    let added = new.claims.iter().filter(|claim| former.claim(&claim.frontend).is_none());
    changed.chain(added).map(|claim| claim.frontend).collect()
}

impl Kept {
    /// The part of a fragment that is kept, and its own chains.
    fn new(fragment: ChainFragment) -> (Self, Vec<OwnChain>) {
        let ChainFragment { chains, claims, rules } = fragment;
        let mut n_own_rules = [0; 2];
        let [v4, v6] = &mut n_own_rules;
        for chain in &chains {
            *match chain.id.family {
                Family::V4 => &mut *v4,
                Family::V6 => &mut *v6,
            } += chain.rules.len();
        }
        let kept = chains.iter();
        let kept =
            kept.map(|chain| KeptChain { id: chain.id, digest: ChainDigest::of(&*chain.rules) });
        let kept = Self {
            chains: kept.collect(),
            claims: claims.into(),
            rules: rules.into(),
            n_own_rules,
        };
        (kept, chains)
    }

    fn claim(&self, frontend: &Frontend) -> Option<&RuleClaim> {
        let at = self.claims.binary_search_by_key(frontend, |claim| claim.frontend).ok()?;
        self.claims.get(at)
    }

    fn digest(&self, chain: &ChainId) -> Option<ChainDigest> {
        let at = self.chains.binary_search_by_key(chain, |chain| chain.id).ok()?;
        self.chains.get(at).map(|chain| chain.digest)
    }

    fn shared_rules(&self) -> impl Iterator<Item = &SharedRule> + Clone {
        self.claims.iter().flat_map(|claim| &claim.rules).chain(&self.rules)
    }
}

impl SharedRule {
    fn subject(&self) -> ChainSubject {
        ChainSubject::Rule(self.chain, RuleDigest::of(&self.text))
    }
}
