//! Demands of a Service on this node, before any mechanism: its addresses and ports, and which
//! endpoints each kind of client may reach by them.
//!
//! Every backend reads it: [`compile`](crate::ipvs::compile) for IPVS, [`iptables`](crate::iptables) for
//! iptables mode, [`userspace`](crate::userspace) for the relay. A Service is exposed in the families in which it has a cluster address.

mod addresses;
mod budget;
mod listeners;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use crate::endpoints::{Candidate, EndpointChoice, EndpointsByPort, Selection};
use crate::facts::NodeFacts;
use crate::hand_drain::DrainedChoice;
use crate::hash::HashSet;
use crate::kernel_objects::RealServer;
use crate::local::{HealthCheck, LocalGap, Side};
use crate::localhost::{LocalhostPort, localhost_port};
use crate::mode::Mode;
use crate::model::{EndpointSlice, Family, Service, ServicePort, TrafficPolicy};
use crate::problem::{Override, Problem};
use crate::settings::Settings;
pub use addresses::Addresses;
pub(crate) use addresses::source_ranges;
pub(crate) use budget::Budget;

/// Demands of a Service on this node.
#[derive(Debug)]
pub struct Exposure<'a> {
    /// The Service.
    pub service: &'a Service,
    /// Its families, in the order of the settings.
    pub families: Vec<FamilyExposure<'a>>,
    /// Problems found so far, in no order.
    pub problems: Vec<Problem>,
    /// Answer to a load balancer's health checks, if the Service has them.
    pub health_check: Option<HealthCheck>,
    /// Traffic policies for which endpoints exist, but none that the policy allows.
    pub local_gap: LocalGap,
    /// Its node ports on localhost, in order, if the process is to listen on any.
    pub localhost: Vec<LocalhostPort>,
    /// Remainder of the Service's limits.
    pub(crate) budget: Budget<'a>,
}

/// A Service in one family.
#[derive(Debug, Clone)]
pub struct FamilyExposure<'a> {
    pub family: Family,
    /// The Service's addresses.
    pub addresses: Addresses,
    /// Its ports, without those that meet a limit.
    pub ports: Vec<PortExposure<'a>>,
}

/// A service port and its endpoints in one family.
#[derive(Debug, Clone)]
pub struct PortExposure<'a> {
    /// Its index among the Service's ports.
    pub index: usize,
    pub port: &'a ServicePort,
    /// The endpoints that this node uses.
    pub choice: EndpointChoice,
    /// Those that it would use if an operator did not drain them by hand.
    pub drained: DrainedChoice,
    /// Every endpoint on this node, ready or not, in order.
    pub here: Vec<SocketAddr>,
}

/// Fate of a client of a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It gets one of these endpoints, of which there is at least one.
    Endpoints(&'a Arc<[RealServer]>),
    /// It is refused at once, because the Service has no endpoints.
    NoEndpoints,
    /// Its packets are dropped: the Service has endpoints, and the traffic policy allows none of
    /// them.
    NoLocalEndpoints,
}

impl<'a> Exposure<'a> {
    /// Returns the demands of a Service on the node. `slices` are those of this Service.
    #[must_use]
    pub fn new(
        service: &'a Service,
        slices: &[&'a EndpointSlice],
        facts: &NodeFacts,
        settings: &'a Settings,
    ) -> Self {
        let mut exposure = Self {
            service,
            families: Vec::new(),
            problems: Vec::new(),
            health_check: None,
            local_gap: LocalGap::default(),
            localhost: Vec::new(),
            budget: Budget::new(&settings.limits),
        };
        let overrides = service.overrides.iter().flat_map(|it| Override::of(it.as_ref()));
        let idle = overrides.filter(|it| !it.has_effect(settings.mode));
        let problems = idle.map(|setting| Problem::NoEffect { setting, mode: settings.mode });
        exposure.problems.extend(problems);
        let families = settings.families.iter();
        let families = families.filter_map(|it| exposure.family(*it, slices, facts, settings));
        exposure.families = families.collect();
        exposure.localhost.sort_unstable();
        exposure.localhost.dedup();
        exposure
    }

    fn family(
        &mut self,
        family: Family,
        slices: &[&'a EndpointSlice],
        facts: &NodeFacts,
        settings: &Settings,
    ) -> Option<FamilyExposure<'a>> {
        let service = self.service;
        if service.cluster_address(family).is_none() || service.ports.is_empty() {
            return None;
        }
        let addresses = Addresses::of(service, family, facts, settings, &mut self.problems);
        listeners::note(service, &addresses, facts, settings, &mut self.problems);
        let endpoints = EndpointsByPort::new(family, slices);
        let mut local_ready = HashSet::default();
        let mut ports = Vec::with_capacity(service.ports.len());
        for (index, port) in service.ports.iter().enumerate() {
            let is_balanced = !settings.unbalanced.contains(&port.protocol);
            if !is_balanced && settings.mode.leads_by_rules() {
                // No rule can be written about the port, not even one that refuses its clients.
                self.note_unbalanced(port, settings.mode);
                continue;
            }
            let n_frontends = addresses.n_frontends(port, facts, settings);
            let n_counted = endpoints.count(port) + addresses.n_source_rules(settings.mode);
            if !self.budget.take_port(n_counted, n_frontends) {
                continue;
            }
            // Without a candidate a port is refused, as one without endpoints is: the node's own sockets
            // would answer otherwise.
            let candidates = if is_balanced {
                endpoints.candidates(port)
            } else {
                self.note_unbalanced(port, settings.mode);
                Vec::new()
            };
            let is_here =
                |it: &Candidate<'_>| it.endpoint.node.as_deref() == Some(&*settings.node_name);
            let here = candidates.iter().filter(|it| is_here(it));
            let here = here.map(Candidate::socket).collect();
            let drains = facts.hand_drains();
            let usable = drains.undrained(&service.name, &candidates, is_here);
            let ready =
                usable.local.iter().filter(|it| is_here(it) && it.endpoint.conditions.ready);
            local_ready.extend(ready.map(|candidate| candidate.endpoint.address));
            let choose = |among| selection(service, among, facts, settings).choose();
            let mut choice = choose(&*usable.cluster);
            if usable.local.len() != usable.cluster.len() {
                choice.local = choose(&*usable.local).local;
            }
            self.note_local_gaps(family, &choice, settings.mode);
            let drained = if usable.are_all(&candidates) {
                DrainedChoice::default()
            } else {
                DrainedChoice::of(&choose(&candidates), &usable)
            };
            ports.push(PortExposure { index, port, choice, drained, here });
            if settings.localhost_node_ports {
                self.localhost.extend(localhost_port(service, port, family, facts));
            }
        }
        self.note_health_check(family, local_ready.len());
        Some(FamilyExposure { family, addresses, ports })
    }

    /// Notes that the kernel lacks a port's protocol.
    fn note_unbalanced(&mut self, port: &ServicePort, mode: Mode) {
        let problem = Problem::NotBalanced { port: port.port, protocol: port.protocol, mode };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Endpoints exist that would do, but for their being elsewhere.
    fn note_local_gaps(&mut self, family: Family, choice: &EndpointChoice, mode: Mode) {
        if !choice.exist || !choice.local.is_empty() {
            return;
        }
        if self.service.internal_policy == TrafficPolicy::Local {
            self.local_gap.add(Side::Internal, family, mode);
        }
        if self.service.is_external_policy_local() {
            self.local_gap.add(Side::External, family, mode);
        }
    }

    fn note_health_check(&mut self, family: Family, n_local: usize) {
        let Some(port) = self.service.answers_health_checks() else { return };
        let none = HealthCheck { port, local_v4: None, local_v6: None };
        let check = self.health_check.get_or_insert(none);
        match family {
            Family::V4 => check.local_v4 = Some(n_local),
            Family::V6 => check.local_v6 = Some(n_local),
        }
    }
}

/// Returns the endpoints of a port of a Service, to choose from for this node.
pub(crate) fn selection<'a>(
    service: &Service,
    candidates: &'a [Candidate<'a>],
    facts: &'a NodeFacts,
    settings: &'a Settings,
) -> Selection<'a> {
    let overrides = service.overrides.as_ref();
    Selection {
        node_name: &settings.node_name,
        zone: facts.node().zone.as_deref(),
        weights: overrides.and_then(|overrides| overrides.weights),
        candidates,
    }
}

impl PortExposure<'_> {
    /// The fate of clients of the cluster address.
    #[must_use]
    pub fn internal(&self, service: &Service) -> Verdict<'_> {
        self.choice.verdict(service.internal_policy == TrafficPolicy::Local)
    }

    /// The fate of clients outside the cluster at all other frontends.
    #[must_use]
    pub fn external(&self, service: &Service) -> Verdict<'_> {
        self.choice.verdict(service.is_external_policy_local())
    }
}

impl EndpointChoice {
    /// The fate of clients that may use endpoints anywhere, or that must stay on this node.
    #[must_use]
    pub fn verdict(&self, local: bool) -> Verdict<'_> {
        let endpoints = if local { &self.local } else { &self.cluster };
        if !endpoints.is_empty() {
            Verdict::Endpoints(endpoints)
        } else if local && self.exist {
            Verdict::NoLocalEndpoints
        } else {
            Verdict::NoEndpoints
        }
    }
}
