//! A Service as it is planned, with the reasons: for the people who ask.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use super::Planner;
use super::chains::unspecified;
use crate::claimants::{ClaimKind, Origin};
use crate::endpoints::{Candidate, Decision, EndpointsByPort, Topology};
use crate::exposure::{selection, source_ranges};
use crate::hash::{HashMap, HashSet};
use crate::iptables::fragment::RuleClaim;
use crate::ipvs::fragment::Claim;
use crate::kernel_objects::{Frontend, RealServer, VirtualServer};
use crate::local::HealthCheck;
use crate::model::{
    Endpoint, EndpointSlice, Family, Protocol, Service, ServiceKind, ServiceName, ServicePort,
    TrafficPolicy,
};
use crate::problem::Problem;

/// A Service as it is planned: its frontends, and the decision on each of its endpoints.
#[derive(Debug, Clone, PartialEq)]
pub struct ExplainedService {
    /// The Service.
    pub service: Service,
    /// Its ports in each family, with their endpoints as they are now.
    pub ports: Vec<ExplainedPort>,
    /// The frontends that it claims, as of the last plan, in the order of their reasons.
    pub frontends: Vec<ExplainedFrontend>,
    /// Its problems, as of the last plan.
    pub problems: Vec<Problem>,
    /// Networks whose clients may use the load balancer's addresses, of each family; none of a family:
    /// all its clients.
    pub source_ranges: Vec<IpNet>,
    /// Answer to a load balancer's health checks, if it has them.
    pub health_check: Option<HealthCheck>,
    /// True if a change of it waits to be planned.
    pub is_waiting: bool,
}

/// A port of a Service in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedPort {
    pub family: Family,
    pub port: ServicePort,
    /// Extent to which hints choose among ready endpoints.
    pub topology: Topology,
    /// The endpoints, ready or not, in the order of address and port. Of all ports together at most
    /// 20,000.
    pub endpoints: Vec<ExplainedEndpoint>,
    /// Number of endpoints that are left out.
    pub more_endpoints: usize,
}

/// An endpoint of a port, and the decisions on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedEndpoint {
    /// Address and port.
    pub socket: SocketAddr,
    /// Everything else about it.
    pub endpoint: Endpoint,
    /// Decision for clients that may be sent anywhere in the cluster.
    pub cluster: Decision,
    /// Decision for clients that must stay on this node.
    pub local: Decision,
}

/// A frontend that a Service claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedFrontend {
    /// The frontend. In modes whose rules lead, that of a node port has the family's unspecified
    /// address.
    pub frontend: Frontend,
    /// Reason for the claim.
    pub origin: Origin,
    /// Number of the port in the Service's list.
    pub port: usize,
    /// Policy by which its endpoints are chosen.
    pub policy: TrafficPolicy,
    /// Frontend whose internal frontend it is.
    pub internal_frontend_of: Option<Frontend>,
    /// The Service that has it.
    pub owner: Option<ServiceName>,
    /// Parameters of balancing; none in modes whose rules lead.
    pub server: Option<VirtualServer>,
    /// Real servers that it should have; none in modes whose rules lead.
    pub real_servers: Arc<[RealServer]>,
}

/// A Service in a few numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSummary {
    pub name: ServiceName,
    /// `spec.type`.
    pub kind: ServiceKind,
    /// Its cluster addresses, in the order of the node's families.
    pub cluster: Vec<IpAddr>,
    /// Its external and load-balancer addresses.
    pub outer: Vec<IpAddr>,
    pub ports: Vec<ServicePort>,
    /// Number of endpoints, ready or not. Of several ports or families, of that with the most.
    pub endpoints: usize,
    /// Number of ready ones among them.
    pub ready: usize,
    /// Number of those that this node uses for any client.
    pub used: usize,
    /// Number of problems.
    pub problems: usize,
    /// The frontends that it has, as of the last plan.
    pub frontends: Vec<Frontend>,
}

/// Summaries of some Services.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summaries {
    /// The summaries, in the order of names.
    pub services: Vec<ServiceSummary>,
    /// True if no Service comes after them.
    pub is_last: bool,
}

/// Numbers of a Service's ports in its list.
#[derive(Default)]
struct PortNumbers {
    ports: HashMap<(Protocol, u16), usize>,
    node_ports: HashMap<(Protocol, u16), usize>,
}

/// Most endpoints of a Service that are explained, each as often as it has ports: a question about one with
/// thousands of ports and endpoints must not hold up changes of others.
const MOST_ENDPOINTS: usize = 20_000;

/// Most endpoints, counted once for each port, by which a Service is summarised.
const MOST_SUMMARISED: usize = 4_096;

/// Number of endpoints after which a chunk of summaries ends.
const ENDPOINTS_PER_CHUNK: usize = 4_096;

impl Planner {
    /// Returns a Service with the reasons for what is planned. None: there is no such Service. The
    /// cost depends on this Service alone.
    #[must_use]
    pub fn explain_service(&self, name: &ServiceName) -> Option<ExplainedService> {
        let (service, slices) = self.store.service(name)?;
        let families = self.families_of(service);
        Some(ExplainedService {
            ports: self.explain_ports(service, &slices, MOST_ENDPOINTS),
            source_ranges: families.iter().flat_map(|it| source_ranges(service, *it)).collect(),
            frontends: self.explain_frontends(service),
            problems: self.reports.of(name).to_vec(),
            health_check: self.health_checks.get(name).copied(),
            is_waiting: self.store.waits(name),
            service: service.clone(),
        })
    }

    /// Returns the Services after a name, or the first ones, in the order of names: at most `most`,
    /// and fewer if they have many endpoints. Of a namespace only, if one is named.
    #[must_use]
    pub fn summarize_services(
        &self,
        after: Option<&ServiceName>,
        namespace: Option<&str>,
        most: usize,
    ) -> Summaries {
        let first = namespace.map(|namespace| ServiceName::new(namespace, ""));
        let start = after.into_iter().chain(&first).max();
        let is_inside = |name: &&ServiceName| namespace.is_none_or(|it| *name.namespace == *it);
        let mut summaries = Summaries::default();
        let mut n_endpoints = 0;
        for name in self.store.names(start).take_while(is_inside) {
            if summaries.services.len() == most || n_endpoints > ENDPOINTS_PER_CHUNK {
                return summaries;
            }
            let Some((service, slices)) = self.store.service(name) else { continue };
            n_endpoints +=
                slices.iter().map(|it| it.endpoints.len() * it.ports.len()).sum::<usize>();
            summaries.services.push(self.summarize(service, &slices));
        }
        summaries.is_last = true;
        summaries
    }

    /// Returns the names of the Services after one, or the first ones, in order: at most `most`.
    #[must_use]
    pub fn service_names(&self, after: Option<&ServiceName>, most: usize) -> Vec<ServiceName> {
        self.store.names(after).take(most).cloned().collect()
    }

    /// Number of Services with a cluster address of a family.
    #[must_use]
    pub fn n_services_of(&self, family: Family) -> usize {
        self.store.n_services_of(family)
    }

    /// Number of Services.
    #[must_use]
    pub fn n_services(&self) -> usize {
        self.store.n_services()
    }

    /// The families that a Service is served in.
    fn families_of(&self, service: &Service) -> Vec<Family> {
        let families = self.settings.families.iter().copied();
        families.filter(|family| service.cluster_address(*family).is_some()).collect()
    }

    /// Explains all ports in each family, and so many endpoints.
    fn explain_ports<'a>(
        &self,
        service: &'a Service,
        slices: &[&'a EndpointSlice],
        most_endpoints: usize,
    ) -> Vec<ExplainedPort> {
        let mut left = most_endpoints;
        let families = self.families_of(service);
        let of_family = |family| {
            self.explain_ports_of(service, &EndpointsByPort::new(family, slices), family, &mut left)
        };
        families.into_iter().flat_map(of_family).collect()
    }

    fn explain_ports_of<'a>(
        &self,
        service: &'a Service,
        endpoints: &EndpointsByPort<'a>,
        family: Family,
        left: &mut usize,
    ) -> Vec<ExplainedPort> {
        let explain = |port: &'a ServicePort| {
            if *left == 0 {
                return ExplainedPort {
                    family,
                    port: port.clone(),
                    topology: Topology::Anywhere,
                    endpoints: Vec::new(),
                    more_endpoints: endpoints.number(port),
                };
            }
            let candidates = endpoints.candidates(port);
            let facts = self.store.facts();
            let node = &*self.settings.node_name;
            let is_here = |it: &Candidate<'_>| it.endpoint.node.as_deref() == Some(node);
            let usable = facts.hand_drains().undrained(&service.name, &candidates, is_here);
            let among = |usable| selection(service, usable, facts, &self.settings);
            let (selection, of_local) = (among(&*usable.cluster), among(&*usable.local));
            let cluster = selection.decisions(TrafficPolicy::Cluster);
            let local = of_local.decisions(TrafficPolicy::Local);
            // The usable ones are in the same order.
            let mut cluster = usable.cluster.iter().zip(cluster).peekable();
            let mut local = usable.local.iter().zip(local).peekable();
            let endpoints = candidates.iter().map(|candidate| {
                let socket = candidate.socket();
                let of_cluster = cluster.next_if(|(it, _)| it.socket() == socket);
                let of_local = local.next_if(|(it, _)| it.socket() == socket);
                let decision =
                    |it: Option<(_, Decision)>| it.map_or(Decision::DrainedByHand, |(_, it)| it);
                let (cluster, local) = (decision(of_cluster), decision(of_local));
                let endpoint = candidate.endpoint.clone();
                ExplainedEndpoint { socket, endpoint, cluster, local }
            });
            let endpoints: Vec<_> = endpoints.take(*left).collect();
            *left -= endpoints.len();
            let more_endpoints = candidates.len() - endpoints.len();
            let (port, topology) = (port.clone(), selection.topology());
            ExplainedPort { family, port, topology, endpoints, more_endpoints }
        };
        service.ports.iter().map(explain).collect()
    }

    fn explain_frontends(&self, service: &Service) -> Vec<ExplainedFrontend> {
        let numbers = PortNumbers::of(service);
        let mut frontends = if self.settings.mode.leads_by_rules() {
            let claims = self.chains_of(&service.name).map(|it| it.claims).unwrap_or_default();
            let explain = |claim: &RuleClaim| ExplainedFrontend {
                frontend: claim.frontend,
                origin: claim.origin,
                port: numbers.get(claim.origin, &claim.frontend),
                policy: policy_of(service, claim.origin),
                internal_frontend_of: None,
                owner: self.chains.owner(&claim.frontend).cloned(),
                server: None,
                real_servers: Arc::new([]),
            };
            claims.iter().map(explain).collect()
        } else {
            let claims = self.desired.fragment(&service.name).map_or(&[][..], |it| &it.claims);
            let explain = |claim| self.explain_claim(service, &numbers, claim);
            claims.iter().map(explain).collect::<Vec<_>>()
        };
        frontends.sort_by_key(|it| {
            let of = it.internal_frontend_of.unwrap_or(it.frontend);
            (it.origin, of.family(), it.port, of, it.internal_frontend_of.is_some())
        });
        frontends
    }

    fn explain_claim(
        &self,
        service: &Service,
        numbers: &PortNumbers,
        claim: &Claim,
    ) -> ExplainedFrontend {
        let policy = match claim.kind {
            ClaimKind::PromisedInternalFrontend => TrafficPolicy::Cluster,
            ClaimKind::Frontend
            | ClaimKind::FasterInternalFrontend
            | ClaimKind::LocalInternalFrontend => policy_of(service, claim.origin),
        };
        ExplainedFrontend {
            frontend: claim.frontend,
            origin: claim.origin,
            port: numbers.get(claim.origin, &claim.frontend),
            policy,
            internal_frontend_of: claim.internal_frontend_of,
            owner: self.desired.owner(&claim.frontend).cloned(),
            server: Some(claim.server.clone()),
            real_servers: Arc::clone(&claim.real_servers),
        }
    }

    fn summarize(&self, service: &Service, slices: &[&EndpointSlice]) -> ServiceSummary {
        let mut frontends = self.explain_frontends(service);
        frontends.retain(|it| it.owner.as_ref() == Some(&service.name));
        let policies = self.policies(&frontends);
        let families = self.families_of(service);
        let (mut endpoints, mut ready, mut used) = (0, 0, 0);
        for port in self.explain_ports(service, slices, MOST_SUMMARISED) {
            let distinct = |is_counted: &dyn Fn(&ExplainedEndpoint) -> bool| {
                let counted = port.endpoints.iter().filter(|it| is_counted(it));
                counted.map(|it| it.endpoint.address).collect::<HashSet<_>>().len()
            };
            let is_used = |it: &ExplainedEndpoint| {
                policies.iter().any(|policy| it.decision(*policy).is_used())
            };
            endpoints = distinct(&|_| true).max(endpoints);
            ready = distinct(&|it| it.endpoint.conditions.ready).max(ready);
            used = distinct(&is_used).max(used);
        }
        ServiceSummary {
            name: service.name.clone(),
            kind: service.kind,
            cluster: families.iter().filter_map(|it| service.cluster_address(*it)).collect(),
            outer: service.external.iter().chain(&service.load_balancer).copied().collect(),
            ports: service.ports.clone(),
            endpoints,
            ready,
            used,
            problems: self.reports.of(&service.name).len(),
            frontends: frontends.into_iter().map(|it| it.frontend).collect(),
        }
    }

    /// Returns the policies by which clients of these frontends get endpoints. In modes whose rules
    /// lead, the cluster's own clients get all endpoints of a frontend for this node's.
    fn policies(&self, frontends: &[ExplainedFrontend]) -> BTreeSet<TrafficPolicy> {
        let leads_by_rules = self.settings.mode.leads_by_rules();
        let of = |it: &ExplainedFrontend| {
            let is_outer = it.origin != Origin::ClusterAddress;
            let all = (leads_by_rules && is_outer).then_some(TrafficPolicy::Cluster);
            [it.policy].into_iter().chain(all)
        };
        frontends.iter().flat_map(of).collect()
    }
}

impl ExplainedService {
    /// Returns the port of a frontend, with its endpoints.
    #[must_use]
    pub fn port_of(&self, frontend: &ExplainedFrontend) -> Option<&ExplainedPort> {
        let port = self.service.ports.get(frontend.port)?;
        let family = frontend.frontend.family();
        self.ports.iter().find(|it| it.family == family && it.port == *port)
    }
}

impl ExplainedEndpoint {
    /// Returns the decision under a policy.
    #[must_use]
    pub fn decision(&self, policy: TrafficPolicy) -> Decision {
        match policy {
            TrafficPolicy::Cluster => self.cluster,
            TrafficPolicy::Local => self.local,
        }
    }
}

impl ExplainedFrontend {
    /// True for a node port at every address of the node that serves node ports.
    #[must_use]
    pub fn is_anywhere_on_node(&self) -> bool {
        self.frontend.address == unspecified(self.frontend.family())
    }
}

fn policy_of(service: &Service, origin: Origin) -> TrafficPolicy {
    match origin {
        Origin::ClusterAddress => service.internal_policy,
        Origin::NodePort | Origin::LoadBalancer | Origin::External => external_policy(service),
    }
}

fn external_policy(service: &Service) -> TrafficPolicy {
    if service.is_external_policy_local() { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

impl PortNumbers {
    fn of(service: &Service) -> Self {
        let mut numbers = Self::default();
        for (place, ServicePort { protocol, port, node_port, .. }) in
            service.ports.iter().enumerate()
        {
            // The first one, of two that claim the same.
            numbers.ports.entry((*protocol, port.get())).or_insert(place);
            if let Some(node_port) = node_port {
                numbers.node_ports.entry((*protocol, node_port.get())).or_insert(place);
            }
        }
        numbers
    }

    /// Returns the number of the port that a frontend is of.
    fn get(&self, origin: Origin, frontend: &Frontend) -> usize {
        let ports = match origin {
            Origin::NodePort => &self.node_ports,
            Origin::ClusterAddress | Origin::LoadBalancer | Origin::External => &self.ports,
        };
        ports.get(&(frontend.protocol, frontend.port)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{mk_port, mk_service};

    #[test]
    fn a_frontend_is_of_the_first_port_that_claims_it() {
        let ports = [
            mk_port("dns", Protocol::Udp, 53, Some(30_053)),
            mk_port("dns-tcp", Protocol::Tcp, 53, Some(30_053)),
            mk_port("again", Protocol::Tcp, 53, None),
            mk_port("http", Protocol::Tcp, 80, Some(53)),
        ];
        let numbers = PortNumbers::of(&Service { ports: ports.to_vec(), ..mk_service() });
        let number = |origin, protocol, port| {
            numbers.get(origin, &Frontend { address: [10, 96, 0, 9].into(), protocol, port })
        };
        assert_eq!(number(Origin::ClusterAddress, Protocol::Udp, 53), 0);
        assert_eq!(number(Origin::External, Protocol::Tcp, 53), 1);
        assert_eq!(number(Origin::LoadBalancer, Protocol::Tcp, 80), 3);
        assert_eq!(number(Origin::NodePort, Protocol::Tcp, 53), 3);
        assert_eq!(number(Origin::NodePort, Protocol::Tcp, 30_053), 1);
    }
}
