//! Rules of one shared chain, by the Services that own them.

use std::collections::BTreeSet;

use crate::chains::RuleDigest;
use crate::hash::HashMap;
use crate::kernel_objects::Frontend;
use crate::model::ServiceName;

/// Rules of one shared chain. Their texts are with their owners.
#[derive(Debug, Default)]
pub(super) struct SharedRules {
    by_digest: HashMap<RuleDigest, RuleOwner>,
    /// The owners, in the order in which the chain is written.
    owners: BTreeSet<RuleOwner>,
    /// The last rules, which belong to no Service.
    tail: Box<[Box<str>]>,
    n_of_services: usize,
}

/// Owner of rules in a shared chain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuleOwner {
    /// The Service that has this frontend. The order of its rules matters.
    Frontend(Frontend),
    /// A Service, whatever frontends it has.
    Service(ServiceName),
}

impl SharedRules {
    /// Adds rules of an owner that has none here.
    pub(super) fn add<'a>(
        &mut self,
        owner: &RuleOwner,
        rules: impl IntoIterator<Item = &'a Box<str>>,
    ) {
        for rule in rules {
            self.by_digest.insert(RuleDigest::of(rule), owner.clone());
            self.owners.insert(owner.clone());
            self.n_of_services += 1;
        }
    }

    /// Removes all rules of an owner.
    pub(super) fn remove<'a>(
        &mut self,
        owner: &RuleOwner,
        rules: impl IntoIterator<Item = &'a Box<str>>,
    ) {
        for rule in rules {
            self.by_digest.remove(&RuleDigest::of(rule));
            self.n_of_services -= 1;
        }
        self.owners.remove(owner);
    }

    /// Sets the last rules, and returns the former ones.
    pub(super) fn set_tail(&mut self, tail: Vec<Box<str>>) -> Box<[Box<str>]> {
        std::mem::replace(&mut self.tail, tail.into())
    }

    /// The owner of a rule that belongs to a Service.
    pub(super) fn owner(&self, digest: RuleDigest) -> Option<&RuleOwner> {
        self.by_digest.get(&digest)
    }

    pub(super) fn owners(&self) -> impl Iterator<Item = &RuleOwner> {
        self.owners.iter()
    }

    pub(super) fn tail(&self) -> impl DoubleEndedIterator<Item = &Box<str>> {
        self.tail.iter()
    }

    /// True if a rule should be there.
    pub(super) fn has(&self, digest: RuleDigest) -> bool {
        self.by_digest.contains_key(&digest)
            || self.tail.iter().any(|rule| RuleDigest::of(rule) == digest)
    }

    pub(super) fn n_rules(&self) -> usize {
        self.n_of_services + self.tail.len()
    }
}
