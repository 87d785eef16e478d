//! Services that claim frontends, and which of them has each: what every backend has in common.
//!
//! A frontend belongs to one Service: of several that claim it, the one with the best reason
//! ([`Origin`]), and of those with the same reason, the oldest. The others wait, and when the owner
//! goes, the next one takes over.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use crate::hash::HashMap;
use crate::kernel_objects::Frontend;
use crate::model::ServiceName;

/// Reason for which a Service claims a frontend. The first ones win, however old the claims are:
/// otherwise a Service could take, for good, what the API server gives to another one later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Its cluster address, which the API server gives to no other Service.
    ClusterAddress,
    /// Its node port, which the API server gives to no other Service.
    NodePort,
    /// An address in its status, which a load balancer's controller writes.
    LoadBalancer,
    /// One of `spec.externalIPs`, which its author writes.
    External,
}

/// Use of a claimed frontend. Those that clients can ask come before those that they are led to, whatever these
/// are for, and what a policy promises comes before what is only faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimKind {
    /// A frontend that clients can ask.
    Frontend,
    /// An internal frontend that local clients need to get the endpoints that they are promised.
    PromisedInternalFrontend,
    /// An internal frontend of the fast path, with the endpoints that its frontend has.
    FasterInternalFrontend,
    /// The same beside a promised one, for clients that only this node's endpoints may serve.
    LocalInternalFrontend,
}

impl ClaimKind {
    /// True if clients may get other endpoints than they are promised without it.
    pub(crate) const fn is_promised(self) -> bool {
        matches!(self, Self::Frontend | Self::PromisedInternalFrontend)
    }
}

/// The order of claims to a frontend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimRank {
    pub(crate) kind: ClaimKind,
    pub(crate) origin: Origin,
    /// Time at which the Service was made, in seconds since 1970.
    pub(crate) created: i64,
    pub(crate) service: ServiceName,
}

/// The Services that claim each frontend.
#[derive(Debug, Default)]
pub(crate) struct Claimants {
    owners: HashMap<Frontend, ServiceName>,
    /// Claims that wait for a frontend that another Service has; no empty lists.
    waiting: HashMap<Frontend, BTreeSet<ClaimRank>>,
    /// The same by Service: what each claims and one before it has; no empty lists.
    lacking: HashMap<ServiceName, BTreeSet<Frontend>>,
}

/// Services that now wait for other frontends than before, or behind another Service.
#[derive(Debug, Default)]
pub(crate) struct Contenders(BTreeSet<ServiceName>);

/// Result of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// Another Service has the frontend.
    Waits,
    /// No other Service had it.
    Free,
    /// This Service had it, and waits now.
    From(ServiceName),
}

/// Result of giving up a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Withdrawn {
    /// Another Service has the frontend.
    Waited,
    /// The frontend belonged to the Service, and belongs to the next one now, if there is one.
    Owned { next: Option<ServiceName> },
}

impl Claimants {
    /// The Service that a frontend belongs to.
    pub(crate) fn owner(&self, frontend: &Frontend) -> Option<&ServiceName> {
        self.owners.get(frontend)
    }

    /// All frontends that a Service owns, in no order.
    pub(crate) fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.owners.keys()
    }

    /// The frontends that a Service claims and one before it has, in order.
    pub(crate) fn lacked_by(&self, service: &ServiceName) -> impl Iterator<Item = &Frontend> {
        self.lacking.get(service).into_iter().flatten()
    }

    /// The Service right before a claim that waits: one that waits too, or the owner.
    pub(crate) fn before(&self, frontend: &Frontend, rank: &ClaimRank) -> Option<&ServiceName> {
        let before = self.waiting.get(frontend)?.range(..rank).next_back();
        before.map(|rank| &rank.service).or(self.owners.get(frontend))
    }

    /// Claims a frontend. `owner` is the rank of the claim by which its owner has it.
    pub(crate) fn claim(
        &mut self,
        frontend: Frontend,
        rank: ClaimRank,
        owner: Option<ClaimRank>,
        contenders: &mut Contenders,
    ) -> Claimed {
        match owner {
            Some(owner) if owner < rank => {
                self.wait(frontend, rank, contenders);
                Claimed::Waits
            }
            Some(owner) => {
                let former = owner.service.clone();
                self.wait(frontend, owner, contenders);
                self.owners.insert(frontend, rank.service);
                Claimed::From(former)
            }
            None => {
                self.owners.insert(frontend, rank.service);
                Claimed::Free
            }
        }
    }

    /// Gives up a claim, and the frontend, if it belongs to this Service.
    pub(crate) fn withdraw(
        &mut self,
        frontend: &Frontend,
        rank: &ClaimRank,
        contenders: &mut Contenders,
    ) -> Withdrawn {
        if self.owners.get(frontend) != Some(&rank.service) {
            self.stop_waiting(frontend, rank, contenders);
            return Withdrawn::Waited;
        }
        self.owners.remove(frontend);
        let next = self.waiting.get(frontend).and_then(BTreeSet::first).cloned();
        if let Some(next) = &next {
            self.stop_waiting(frontend, next, contenders);
            self.owners.insert(*frontend, next.service.clone());
        }
        Withdrawn::Owned { next: next.map(|rank| rank.service) }
    }

    fn wait(&mut self, frontend: Frontend, rank: ClaimRank, contenders: &mut Contenders) {
        contenders.add(&rank.service);
        self.lacking.entry(rank.service.clone()).or_default().insert(frontend);
        let ranks = self.waiting.entry(frontend).or_default();
        contenders.add_behind(ranks, &rank);
        ranks.insert(rank);
    }

    fn stop_waiting(&mut self, frontend: &Frontend, rank: &ClaimRank, contenders: &mut Contenders) {
        contenders.add(&rank.service);
        if let Some(lacking) = self.lacking.get_mut(&rank.service) {
            lacking.remove(frontend);
            if lacking.is_empty() {
                self.lacking.remove(&rank.service);
            }
        }
        if let Some(ranks) = self.waiting.get_mut(frontend) {
            ranks.remove(rank);
            contenders.add_behind(ranks, rank);
            if ranks.is_empty() {
                self.waiting.remove(frontend);
            }
        }
    }
}

impl Contenders {
    /// The Services, in the order of their names.
    pub(crate) fn into_services(self) -> BTreeSet<ServiceName> {
        self.0
    }

    /// To be called when a Service begins or ceases to wait for a frontend.
    fn add(&mut self, service: &ServiceName) {
        if !self.0.contains(service) {
            self.0.insert(service.clone());
        }
    }

    /// To be called when another Service begins or ceases to claim a frontend before this one.
    fn add_behind(&mut self, waiting: &BTreeSet<ClaimRank>, rank: &ClaimRank) {
        if let Some(next) = waiting.range((Excluded(rank), Unbounded)).next() {
            self.add(&next.service);
        }
    }
}
