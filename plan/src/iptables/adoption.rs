//! Chains found at the start, and their adoption.

use std::collections::{BTreeMap, VecDeque};

use super::desired::DesiredChains;
use super::tail;
use crate::chains::{ActualChains, ChainDigest, ChainId, ChainOp, RuleDigest};
use crate::hash::HashMap;

/// Chains that were found and no Service has asked for yet.
#[derive(Debug, Default)]
pub(crate) struct UnadoptedChains {
    own: HashMap<ChainId, ChainDigest>,
    /// The shared chains as they are by now.
    shared: BTreeMap<ChainId, FoundChain>,
    /// The last rules of shared chains, until they are written into those that are empty.
    tails: Vec<(ChainId, Vec<Box<str>>)>,
}

/// Shared chain as it is by now.
#[derive(Debug, Default)]
struct FoundChain {
    rules: VecDeque<Box<str>>,
    counts: HashMap<RuleDigest, usize>,
}

impl UnadoptedChains {
    /// No chains. `tails`: the last rules that shared chains should have.
    pub(crate) fn new(tails: Vec<(ChainId, Vec<Box<str>>)>) -> Self {
        Self { tails, ..Self::default() }
    }

    /// Adds chains that were found. Portals are none: they have been taken away since.
    pub(crate) fn insert(&mut self, found: ActualChains) {
        self.own.extend(found.own);
        let shared = found.shared.into_iter().map(|(chain, rules)| {
            let rules = if chain.has_portals() { Vec::new() } else { rules };
            (chain, FoundChain::new(rules))
        });
        self.shared.extend(shared);
    }

    /// The last rules of shared chains that are empty. They come before all other rules.
    pub(crate) fn missing_tails(&mut self) -> Vec<ChainOp> {
        let mut ops = Vec::new();
        for (chain, tail) in std::mem::take(&mut self.tails) {
            let found = self.shared.entry(chain).or_default();
            if found.rules.is_empty() {
                for rule in tail.into_iter().rev() {
                    found.insert(&rule);
                    ops.push(ChainOp::Insert(chain, rule.into()));
                }
            }
        }
        ops
    }

    /// Takes out what a planned operation is about. Returns the operations on what was not found.
    pub(crate) fn adopt(&mut self, op: ChainOp) -> Vec<ChainOp> {
        match op {
            ChainOp::Write(chain, rules) if chain.name.is_shared() => {
                // It may have rules of Services that are not planned yet.
                let found = self.shared.entry(chain).or_default();
                let missing = rules.iter().rev().filter(|rule| {
                    let is_missing = !tail::is_tail(chain, rule) && !found.has(rule);
                    if is_missing {
                        found.insert(rule);
                    }
                    is_missing
                });
                missing.map(|rule| ChainOp::Insert(chain, (**rule).into())).collect()
            }
            ChainOp::Write(chain, ref rules) => {
                let found = self.own.remove(&chain);
                let is_there = found == Some(ChainDigest::of(&**rules));
                if is_there { Vec::new() } else { vec![op] }
            }
            ChainOp::Insert(chain, ref rule) => {
                let found = self.shared.entry(chain).or_default();
                if found.has(rule) {
                    return Vec::new();
                }
                found.insert(rule);
                vec![op]
            }
            ChainOp::Delete(chain, ref rule) => {
                let found = self.shared.entry(chain).or_default();
                if found.delete(rule) { vec![op] } else { Vec::new() }
            }
            ChainOp::Remove(chain) => {
                self.own.remove(&chain);
                vec![op]
            }
        }
    }

    /// Takes out all that is left, and returns the operations that remove it, and that give shared
    /// chains the order that they should have.
    pub(crate) fn excess(&mut self, desired: &DesiredChains) -> Vec<ChainOp> {
        let mut ops = self.missing_tails();
        ops.extend(desired.excess(std::mem::take(&mut self.own).keys()));
        for (chain, found) in std::mem::take(&mut self.shared).into_iter().rev() {
            ops.extend(desired.compare_shared(chain, Some(Vec::from(found.rules).as_slice())));
        }
        ops
    }
}

impl FoundChain {
    fn new(rules: Vec<Box<str>>) -> Self {
        let mut counts = HashMap::default();
        for rule in &rules {
            *counts.entry(RuleDigest::of(rule)).or_insert(0) += 1;
        }
        Self { rules: rules.into(), counts }
    }

    fn has(&self, rule: &str) -> bool {
        self.counts.contains_key(&RuleDigest::of(rule))
    }

    fn insert(&mut self, rule: &str) {
        self.rules.push_front(rule.into());
        *self.counts.entry(RuleDigest::of(rule)).or_insert(0) += 1;
    }

    /// Deletes the first rule that means the same. Returns false if there is none.
    fn delete(&mut self, rule: &str) -> bool {
        let digest = RuleDigest::of(rule);
        let Some(count) = self.counts.get_mut(&digest) else { return false };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&digest);
        }
        if let Some(at) = self.rules.iter().position(|it| RuleDigest::of(it) == digest) {
            self.rules.remove(at);
        }
        true
    }
}
