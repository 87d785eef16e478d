//! Parts of a change of one Service's chains that is too large to be made at once.
//!
//! New chains come first, in several parts: nothing leads to them yet. Claims follow, a part of them
//! at a time, with the rules that lead to these chains. The rest is made at once: chains that change,
//! each of which is one step whatever its length, and those that go, which cost little.

use std::collections::BTreeMap;

use super::{ChainChanges, DesiredChains, Kept};
use crate::chains::{ChainId, ChainName, PortChain};
use crate::iptables::fragment::{ChainFragment, OwnChain, RuleClaim};
use crate::ipvs::fragment::ClaimClass;
use crate::kernel_objects::Frontend;
use crate::model::ServiceName;

/// Part of a change. What it does not mention stays.
#[derive(Debug)]
pub(crate) struct ChainPart {
    chains: Vec<OwnChain>,
    claims: Box<[RuleClaim]>,
}

/// Claims to one frontend: the one that is there, and the one that follows.
type Pair<'a> = (Option<&'a RuleClaim>, Option<&'a RuleClaim>);

impl DesiredChains {
    /// Next part, of about so many rules and chains, on the way to a fragment of a Service. None: the
    /// rest is within the limit, so that the fragment can follow at once.
    pub(crate) fn next_part(
        &self,
        service: &ServiceName,
        target: &ChainFragment,
        operations: usize,
    ) -> Option<ChainPart> {
        let nothing = Kept::default();
        let kept = self.services.get(service).unwrap_or(&nothing);
        let mut new: Vec<&OwnChain> =
            target.chains.iter().filter(|chain| kept.digest(&chain.id).is_none()).collect();
        let rules =
            |claims: &[RuleClaim]| claims.iter().map(|it| it.rules.len().max(1)).sum::<usize>();
        let most = target.size() + rules(&kept.claims) + rules(&target.claims);
        // Chains of a Service that changes again and again must not pile up.
        if most <= operations || kept.chains.len() > 2 * target.chains.len() {
            return None;
        }
        let pairs = pairs(&kept.claims, &target.claims);
        let mut differing: Vec<(&Frontend, &Pair<'_>)> =
            pairs.iter().filter(|(_, (was, is))| was != is).collect();
        let of_chains: usize = new.iter().map(|chain| n_lines(chain)).sum();
        let of_claims: usize = differing.iter().map(|(_, pair)| n_rules(pair)).sum();
        if of_chains + of_claims <= operations {
            return None;
        }
        let mut left = operations;
        new.sort_by_key(|chain| (rank(&chain.id), chain.id));
        let n_taken = within(&mut left, new.iter().map(|chain| n_lines(chain)));
        let are_all = n_taken == new.len();
        let chains = new.into_iter().take(n_taken).cloned().collect();
        if !are_all {
            return Some(ChainPart { chains, claims: kept.claims.clone() });
        }
        differing.sort_by_key(|(frontend, (_, is))| {
            (is.map(|claim| ClaimClass::of_origin(claim.origin)), **frontend)
        });
        let n_taken = within(&mut left, differing.iter().map(|(_, pair)| n_rules(pair)));
        if n_taken == differing.len() {
            return None;
        }
        let mut claims = pairs.clone();
        for (frontend, (was, _)) in differing.into_iter().skip(n_taken) {
            claims.insert(*frontend, (*was, *was));
        }
        let claims = claims.into_values().filter_map(|(_, is)| is.cloned()).collect();
        Some(ChainPart { chains, claims })
    }

    /// Makes a part.
    pub(crate) fn advance(
        &mut self,
        service: &ServiceName,
        part: ChainPart,
        changes: &mut ChainChanges,
    ) {
        let nothing = Kept::default();
        let former = self.services.get(service).unwrap_or(&nothing);
        let rules = former.rules.clone();
        let added = ChainFragment { chains: part.chains, ..ChainFragment::default() };
        let (added, chains) = Kept::new(added);
        let mut all = [&*former.chains, &*added.chains].concat();
        all.sort_unstable_by_key(|chain| chain.id);
        let ([v4, v6], [added_v4, added_v6]) = (former.n_own_rules, added.n_own_rules);
        let n_own_rules = [v4 + added_v4, v6 + added_v6];
        let new = Kept { chains: all.into(), claims: part.claims, rules, n_own_rules };
        self.put(service, new, chains, changes);
    }
}

/// Order of new chains: each leads to those before it.
const fn rank(chain: &ChainId) -> u8 {
    match chain.name {
        ChainName::OfPort(PortChain::Endpoint, _) => 0,
        ChainName::OfPort(PortChain::Cluster | PortChain::Local, _) => 1,
        ChainName::OfPort(PortChain::External | PortChain::FormerExternal, _) => 2,
        ChainName::OfPort(PortChain::Firewall, _) | ChainName::Shared(_) => 3,
    }
}

fn pairs<'a>(was: &'a [RuleClaim], is: &'a [RuleClaim]) -> BTreeMap<Frontend, Pair<'a>> {
    let mut pairs = BTreeMap::<Frontend, Pair<'a>>::new();
    for claim in was {
        pairs.entry(claim.frontend).or_default().0 = Some(claim);
    }
    for claim in is {
        pairs.entry(claim.frontend).or_default().1 = Some(claim);
    }
    pairs
}

fn n_lines(chain: &OwnChain) -> usize {
    1 + chain.rules.len()
}

fn n_rules((was, is): &Pair<'_>) -> usize {
    let n_rules = |claim: &Option<&RuleClaim>| claim.map_or(0, |claim| claim.rules.len());
    n_rules(was).max(n_rules(is)).max(1)
}

/// Number of items that are taken, one at least, until nothing is `left`.
fn within(left: &mut usize, weights: impl Iterator<Item = usize>) -> usize {
    let taken = weights.take_while(|weight| {
        let is_within = *left > 0;
        *left = left.saturating_sub(*weight);
        is_within
    });
    taken.count()
}
