//! Endpoints that an operator drains on this node by hand: they get no new connections, until the
//! operator ends that or its time is over.
//!
//! An endpoint that is drained manually counts as if it was not there when endpoints are chosen, so
//! hints and the fallback to endpoints that terminate go by the others. In IPVS mode it stays in
//! the virtual servers with weight 0, so that its connections go on. If all the others have failed
//! since, it is used again as long as that lasts, unless the drain is forced.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use crate::endpoints::{Candidate, EndpointChoice};
use crate::kernel_objects::RealServer;
use crate::model::{EndpointSlice, Protocol, ServiceName};

/// Endpoints to drain: one address, at one port or all, for one Service or all.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandDrain {
    /// Address of the endpoint.
    pub address: IpAddr,
    /// Port that the endpoint listens on; none: all of them.
    pub port: Option<NonZeroU16>,
    /// Service whose clients are kept away; none: every Service.
    pub service: Option<ServiceName>,
    /// True if the endpoint gets nothing, even if clients are left without one.
    pub is_forced: bool,
}

/// All that is drained manually.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HandDrains {
    /// In order; no empty lists.
    by_address: BTreeMap<IpAddr, Vec<HandDrain>>,
}

/// Endpoints of a service port that would be chosen if they were not drained manually, with weight
/// 0, in the order of address and port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrainedChoice {
    /// For clients that may be sent anywhere in the cluster.
    pub cluster: Vec<RealServer>,
    /// For clients that must stay on this node.
    pub local: Vec<RealServer>,
}

/// Endpoints of a service port to choose from, in order: those that are not drained manually, and
/// the others where they are the last resort.
#[derive(Debug)]
pub(crate) struct Undrained<'c, 'a> {
    /// For clients that may be sent anywhere in the cluster.
    pub(crate) cluster: Cow<'c, [Candidate<'a>]>,
    /// For clients that must stay on this node. Either all of `cluster`, or more.
    pub(crate) local: Cow<'c, [Candidate<'a>]>,
}

/// Effect of a drain by hand on one Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandDrainEffect {
    /// The Service.
    pub service: ServiceName,
    /// Endpoints that this node would use otherwise, in order. None: it uses others.
    pub endpoints: Vec<(Protocol, SocketAddr)>,
    /// Service ports whose clients would get no endpoint any more, in order.
    pub left_without: Vec<(Protocol, NonZeroU16)>,
}

impl HandDrain {
    /// True if it keeps clients of a Service away from an endpoint.
    #[must_use]
    pub fn covers(&self, service: &ServiceName, endpoint: SocketAddr) -> bool {
        self.address == endpoint.ip()
            && self.port.is_none_or(|port| port.get() == endpoint.port())
            && self.service.as_ref().is_none_or(|only| only == service)
    }

    /// True if all that another one covers is covered by this one as well.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        self.address == other.address
            && (self.port.is_none() || self.port == other.port)
            && (self.service.is_none() || self.service == other.service)
    }

    /// True if both cover the same, with or without force.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.includes(other) && other.includes(self)
    }

    /// Returns the same drain by force.
    pub(crate) fn forced(&self) -> Self {
        Self { is_forced: true, ..self.clone() }
    }

    /// True if a slice has an endpoint at this address and port.
    pub(crate) fn is_in(&self, slice: &EndpointSlice) -> bool {
        self.port.is_none_or(|port| slice.ports.iter().any(|it| it.port == port))
            && slice.endpoints.iter().any(|endpoint| endpoint.address == self.address)
    }
}

impl fmt::Display for HandDrain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}", SocketAddr::new(self.address, port.get()))?,
            None => write!(f, "{} (all ports)", self.address)?,
        }
        match &self.service {
            Some(service) => write!(f, " of Service {service}"),
            None => Ok(()),
        }
    }
}

impl HandDrains {
    /// Number of drains.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_address.values().map(Vec::len).sum()
    }

    /// True if nothing is drained manually.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// All drains, in order.
    pub fn iter(&self) -> impl Iterator<Item = &HandDrain> {
        self.by_address.values().flatten()
    }

    /// Returns the first drain that keeps clients of a Service away from an endpoint.
    #[must_use]
    pub fn of(&self, service: &ServiceName, endpoint: SocketAddr) -> Option<&HandDrain> {
        self.by_address.get(&endpoint.ip())?.iter().find(|drain| drain.covers(service, endpoint))
    }

    /// Adds a drain. Returns true if it is new.
    pub(crate) fn insert(&mut self, drain: HandDrain) -> bool {
        let of_address = self.by_address.entry(drain.address).or_default();
        let Err(place) = of_address.binary_search(&drain) else { return false };
        of_address.insert(place, drain);
        true
    }

    /// Removes a drain. Returns true if it was there.
    pub(crate) fn remove(&mut self, drain: &HandDrain) -> bool {
        let Some(of_address) = self.by_address.get_mut(&drain.address) else { return false };
        let Ok(place) = of_address.binary_search(drain) else { return false };
        of_address.remove(place);
        if of_address.is_empty() {
            self.by_address.remove(&drain.address);
        }
        true
    }

    /// Returns the endpoints of a Service to choose from, under each policy.
    pub(crate) fn undrained<'c, 'a>(
        &self,
        service: &ServiceName,
        candidates: &'c [Candidate<'a>],
        is_here: impl Fn(&Candidate<'_>) -> bool,
    ) -> Undrained<'c, 'a> {
        Undrained {
            cluster: self.others_for(service, candidates, |_| true),
            local: self.others_for(service, candidates, is_here),
        }
    }

    /// Returns the endpoints of a Service that are not drained manually, and if none of these can
    /// be used by clients who may use some of the endpoints only, those that are drained without
    /// force: what other clients may use is no reason to leave these without an endpoint.
    fn others_for<'c, 'a>(
        &self,
        service: &ServiceName,
        candidates: &'c [Candidate<'a>],
        is_allowed: impl Fn(&Candidate<'_>) -> bool,
    ) -> Cow<'c, [Candidate<'a>]> {
        let is_drained = |it: &Candidate<'_>| self.of(service, it.socket()).is_some();
        if self.is_empty() || !candidates.iter().any(is_drained) {
            return Cow::Borrowed(candidates);
        }
        let without = |is_left_out: &dyn Fn(&Candidate<'_>) -> bool| {
            candidates.iter().filter(|it| !is_left_out(it)).copied().collect::<Vec<_>>()
        };
        let others = without(&is_drained);
        let is_usable = |it: &Candidate<'_>| {
            let conditions = it.endpoint.conditions;
            let is_able = conditions.ready || conditions.serving && conditions.terminating;
            is_able && is_allowed(it)
        };
        if others.iter().any(is_usable) {
            return Cow::Owned(others);
        }
        let is_forced = |it: &Candidate<'_>| {
            let mut drains = self.by_address.get(&it.endpoint.address).into_iter().flatten();
            drains.any(|drain| drain.is_forced && drain.covers(service, it.socket()))
        };
        Cow::Owned(without(&is_forced))
    }
}

impl Undrained<'_, '_> {
    /// True if nothing is left out of these endpoints.
    pub(crate) fn are_all(&self, candidates: &[Candidate<'_>]) -> bool {
        self.cluster.len() == candidates.len() && self.local.len() == candidates.len()
    }
}

impl DrainedChoice {
    /// Returns those of a choice among all endpoints that are not among the usable ones.
    pub(crate) fn of(among_all: &EndpointChoice, usable: &Undrained<'_, '_>) -> Self {
        let drained = |chosen: &[RealServer], usable: &[Candidate<'_>]| {
            let is_usable = |it: &RealServer| {
                usable.binary_search_by_key(&it.socket(), |usable| usable.socket()).is_ok()
            };
            let drained = chosen.iter().filter(|it| !is_usable(it));
            drained.map(|it| RealServer { weight: 0, ..*it }).collect()
        };
        Self {
            cluster: drained(&among_all.cluster, &usable.cluster),
            local: drained(&among_all.local, &usable.local),
        }
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cluster.is_empty() && self.local.is_empty()
    }
}
