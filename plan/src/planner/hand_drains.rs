//! Answers to questions about drains by hand.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::Planner;
use crate::endpoints::EndpointsByPort;
use crate::exposure::{Exposure, PortExposure, Verdict};
use crate::hand_drain::{HandDrain, HandDrainEffect, HandDrains};
use crate::kernel_objects::RealServer;
use crate::model::{Family, Protocol, Service, ServiceName};

impl Planner {
    /// Endpoints that an operator drains by hand.
    #[must_use]
    pub fn hand_drains(&self) -> &HandDrains {
        self.store.facts().hand_drains()
    }

    /// Returns the Services with an endpoint that a drain by hand covers, used or not. Looks through
    /// all slices, unless the drain is for one Service.
    #[must_use]
    pub fn with_endpoints_of(&self, drain: &HandDrain) -> BTreeSet<ServiceName> {
        self.store.with_endpoints_of(drain)
    }

    /// Returns the endpoints of a Service at an address, ready or not, in order.
    #[must_use]
    pub fn endpoints_at(
        &self,
        service: &ServiceName,
        address: IpAddr,
    ) -> BTreeSet<(Protocol, SocketAddr)> {
        let Some((service, slices)) = self.store.service(service) else { return BTreeSet::new() };
        let endpoints = EndpointsByPort::new(Family::of(address), &slices);
        let of_port = |port| {
            let candidates = endpoints.candidates(port).into_iter();
            candidates.map(|it| (port.protocol, it.socket())).filter(|it| it.1.ip() == address)
        };
        service.ports.iter().flat_map(of_port).collect()
    }

    /// Returns what a drain by hand would change, or has changed, for each of these Services.
    #[must_use]
    pub fn effects_of(&self, drain: &HandDrain, services: &[ServiceName]) -> Vec<HandDrainEffect> {
        // Without force, a drained endpoint would be used all the same, and the refusal never come: neither
        // this drain nor one before it may count on that.
        let mut without = self.store.facts().clone();
        for former in self.store.facts().hand_drains().iter() {
            without.note_hand_drain(former, false);
        }
        let others = self.store.facts().hand_drains().iter().filter(|it| !it.is_same(drain));
        for other in others {
            without.note_hand_drain(&other.forced(), true);
        }
        let mut with = without.clone();
        with.note_hand_drain(&drain.forced(), true);
        let effect = |name: &ServiceName| {
            let (service, slices) = self.store.service(name)?;
            let before = Exposure::new(service, &slices, &without, &self.settings);
            let after = Exposure::new(service, &slices, &with, &self.settings);
            Some(difference(drain, &before, &after))
        };
        services.iter().filter_map(effect).collect()
    }
}

fn difference(drain: &HandDrain, before: &Exposure<'_>, after: &Exposure<'_>) -> HandDrainEffect {
    let service = before.service;
    let (mut endpoints, mut left_without) = (BTreeSet::new(), BTreeSet::new());
    for (before, after) in ports(before).zip(ports(after)) {
        let protocol = before.port.protocol;
        let used = used(before, service);
        let covered = used.filter(|it| drain.covers(&service.name, it.socket()));
        endpoints.extend(covered.map(|it| (protocol, it.socket())));
        let pairs = [
            (before.internal(service), after.internal(service)),
            (before.external(service), after.external(service)),
        ];
        if pairs.iter().any(|(before, after)| has_endpoints(before) && !has_endpoints(after)) {
            left_without.insert((protocol, before.port.port));
        }
    }
    HandDrainEffect {
        service: service.name.clone(),
        endpoints: endpoints.into_iter().collect(),
        left_without: left_without.into_iter().collect(),
    }
}

const fn has_endpoints(verdict: &Verdict<'_>) -> bool {
    matches!(verdict, Verdict::Endpoints(_))
}

fn ports<'e, 'a>(exposure: &'e Exposure<'a>) -> impl Iterator<Item = &'e PortExposure<'a>> {
    exposure.families.iter().flat_map(|family| &family.ports)
}

/// Returns the endpoints that any clients of a service port get.
fn used<'e>(
    port: &'e PortExposure<'_>,
    service: &'e Service,
) -> impl Iterator<Item = &'e RealServer> {
    // Internal frontends have all.
    let of_internal_frontends = service.is_external_policy_local().then_some(&port.choice.cluster);
    let of_verdict = |verdict| match verdict {
        Verdict::Endpoints(endpoints) => Some(endpoints),
        Verdict::NoEndpoints | Verdict::NoLocalEndpoints => None,
    };
    let lists = [
        of_verdict(port.internal(service)),
        of_verdict(port.external(service)),
        of_internal_frontends,
    ];
    lists.into_iter().flatten().flat_map(|list| list.iter())
}
