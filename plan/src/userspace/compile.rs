//! An exposure to portals, refusals, and what the relay is to listen on.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnet::IpNet;

use super::{
    Portal, PortalFrontend, PortalRule, ProxyPortDoor, ProxyPortId, ProxyPortState, ProxyPorts,
    RelayPort, RelayProtocol,
};
use crate::chains::{ChainId, PortalChain, ServicePortName, SharedChain};
use crate::exposure::{Exposure, FamilyExposure, PortExposure};
use crate::facts::NodeFacts;
use crate::iptables::compile::{Compiled, PortRules, Refusal, Refusals, compile_ports};
use crate::iptables::fragment::{OwnChain, SharedRule};
use crate::kernel_objects::RealServer;
use crate::model::{Family, Service, TrafficPolicy};
use crate::problem::Problem;
use crate::rule_set::LocalTraffic;
use crate::settings::Settings;

/// Most proxy ports of one Service. Each is a listening socket, and a port of the node, of which the
/// kernel gives 28,000 to all programs.
pub(crate) const MOST_PROXY_PORTS: usize = 1_000;

/// Proxy ports that clients of a service port need.
#[derive(Debug, Clone, Copy)]
struct Needed {
    /// For those that may use endpoints anywhere.
    cluster: bool,
    /// For those that must stay on this node.
    local: bool,
}

/// A service port in one family, and the proxy ports of its Service.
struct RelayedPort<'a> {
    service: &'a Service,
    family: &'a FamilyExposure<'a>,
    exposure: &'a PortExposure<'a>,
    /// None: it is not relayed.
    protocol: Option<RelayProtocol>,
    name: ServicePortName,
    /// The same as text.
    comment: String,
    local: LocalTraffic,
    proxy_ports: &'a ProxyPorts,
}

/// Fate of clients with a traffic policy.
#[derive(Clone, Copy)]
enum Fate {
    /// They are led to this proxy port.
    Relayed(SocketAddr),
    /// They are refused.
    Refused(Refusal),
    /// They wait: the relay has not said yet where it listens.
    Waiting,
}

/// Compiles what a Service asks of the node to portals and refusals. `proxy_ports`: those of the
/// Service, as the relay has them.
pub(crate) fn compile(
    exposure: &Exposure<'_>,
    proxy_ports: &ProxyPorts,
    facts: &NodeFacts,
    settings: &Settings,
) -> Compiled {
    let n_relayed = n_relayed(exposure);
    let mut compiled = compile_ports(exposure, |family| {
        let local = LocalTraffic::resolve(settings, family.family, facts);
        move |port| {
            let is_relayed = port.index < n_relayed;
            let port = RelayedPort::new(exposure.service, family, port, local.clone(), proxy_ports);
            RelayedPort { protocol: port.protocol.filter(|_| is_relayed), ..port }
        }
    });
    let ports = exposure.families.iter().flat_map(|family| &family.ports);
    let not_relayed = ports.filter(|it| RelayProtocol::of(it.port.protocol).is_none());
    let problems = not_relayed.map(|it| Problem::NotRelayed { port: it.port.port });
    compiled.problems.extend(problems);
    compiled.problems.extend(exposure.service.ports.get(n_relayed).map(|first| {
        let left_out = exposure.service.ports.len() - n_relayed;
        Problem::TooManyProxyPorts { most: MOST_PROXY_PORTS, first: first.port, left_out }
    }));
    compiled.problems.sort_unstable();
    compiled.problems.dedup();
    compiled
}

/// Returns what the relay is to listen on for a Service.
pub(crate) fn relay_ports(exposure: &Exposure<'_>, facts: &NodeFacts) -> Vec<RelayPort> {
    let (service, n_relayed) = (exposure.service, n_relayed(exposure));
    let mut ports = Vec::new();
    for family in &exposure.families {
        let Some(address) = facts.relay_address(family.family) else { continue };
        for port in family.ports.iter().filter(|port| port.index < n_relayed) {
            ports.extend(relay_port(service, family, port, address));
        }
    }
    ports
}

/// Returns the number of service ports, the first ones of the Service, that do not take more than
/// [`MOST_PROXY_PORTS`] together, in all families.
fn n_relayed(exposure: &Exposure<'_>) -> usize {
    let service = exposure.service;
    let mut needed = vec![0; service.ports.len()];
    for family in &exposure.families {
        for port in &family.ports {
            if let Some(count) = needed.get_mut(port.index) {
                *count += Needed::of(service, family, port).count();
            }
        }
    }
    let mut left = MOST_PROXY_PORTS;
    let fitting = needed.into_iter().take_while(|count| {
        let fits = *count <= left;
        left = left.saturating_sub(*count);
        fits
    });
    fitting.count()
}

/// Returns what the relay is to listen on for a service port; none if no client is to get there.
fn relay_port(
    service: &Service,
    family: &FamilyExposure<'_>,
    exposure: &PortExposure<'_>,
    address: IpAddr,
) -> Option<RelayPort> {
    let protocol = RelayProtocol::of(exposure.port.protocol)?;
    let needed = Needed::of(service, family, exposure);
    if needed.count() == 0 {
        return None;
    }
    let sockets = |servers: &[RealServer]| servers.iter().map(RealServer::socket).collect();
    let choice = &exposure.choice;
    let endpoints: Arc<[SocketAddr]> =
        if needed.cluster { sockets(&choice.cluster) } else { Arc::default() };
    let local_endpoints = needed.local.then(|| sockets(&choice.local));
    let overrides = service.overrides.as_ref();
    Some(RelayPort {
        name: Arc::clone(&exposure.port.name),
        protocol,
        address,
        endpoints,
        local_endpoints,
        affinity_seconds: service.affinity,
        drain_seconds: overrides.and_then(|it| it.drain_deadline_seconds),
    })
}

impl Needed {
    fn of(service: &Service, family: &FamilyExposure<'_>, exposure: &PortExposure<'_>) -> Self {
        if RelayProtocol::of(exposure.port.protocol).is_none() {
            return Self { cluster: false, local: false };
        }
        let (addresses, choice) = (&family.addresses, &exposure.choice);
        let is_outer = exposure.port.node_port.is_some()
            || !addresses.external.is_empty()
            || !addresses.load_balancer.is_empty();
        let is_internal_local = service.internal_policy == TrafficPolicy::Local;
        let is_local = is_internal_local || (is_outer && service.is_external_policy_local());
        // A policy Local for outside clients leaves the cluster's own all endpoints.
        let is_cluster = !is_internal_local || is_outer;
        Self {
            cluster: is_cluster && !choice.cluster.is_empty(),
            local: is_local && !choice.local.is_empty(),
        }
    }

    fn count(self) -> usize {
        usize::from(self.cluster) + usize::from(self.local)
    }
}

impl<'a> RelayedPort<'a> {
    fn new(
        service: &'a Service,
        family: &'a FamilyExposure<'a>,
        exposure: &'a PortExposure<'a>,
        local: LocalTraffic,
        proxy_ports: &'a ProxyPorts,
    ) -> Self {
        let name = ServicePortName::new(&service.name, &exposure.port.name);
        let comment = name.to_string();
        let protocol = RelayProtocol::of(exposure.port.protocol);
        Self { service, family, exposure, protocol, name, comment, local, proxy_ports }
    }

    /// The fate of clients that may use endpoints anywhere, or that must stay on this node.
    fn fate(&self, policy: TrafficPolicy) -> Fate {
        let verdict = self.exposure.choice.verdict(policy == TrafficPolicy::Local);
        if let Some(refusal) = Refusal::of(verdict) {
            return Fate::Refused(refusal);
        }
        let Some(protocol) = self.protocol else {
            return Fate::Refused(Refusal::because("is not relayed"));
        };
        match self.proxy_port(protocol, policy) {
            Some(ProxyPortState::Listening(socket)) => Fate::Relayed(*socket),
            Some(ProxyPortState::Failed) => Fate::Refused(Refusal::because("has no proxy port")),
            Some(ProxyPortState::Closed) | None => Fate::Waiting,
        }
    }

    fn proxy_port(
        &self,
        protocol: RelayProtocol,
        policy: TrafficPolicy,
    ) -> Option<&'a ProxyPortState> {
        self.proxy_ports.get(&ProxyPortId {
            service: self.service.name.clone(),
            port: Arc::clone(&self.exposure.port.name),
            protocol,
            family: self.family.family,
            policy,
        })
    }

    /// The proxy ports that are listened on, and that clients are led to.
    fn listening(&self) -> BTreeSet<SocketAddr> {
        let policies = [TrafficPolicy::Cluster, TrafficPolicy::Local].into_iter();
        let socket = |policy| match self.fate(policy) {
            Fate::Relayed(socket) => Some(socket),
            Fate::Refused(_) | Fate::Waiting => None,
        };
        policies.filter_map(socket).collect()
    }

    fn refusals(&self) -> Refusals<'_> {
        Refusals {
            service: self.service,
            family: self.family.family,
            port: self.exposure.port,
            name: &self.name,
        }
    }

    /// The rules that lead to proxy ports.
    fn portal(
        &self,
        frontend: PortalFrontend,
        proxy: Option<SocketAddr>,
        proxy_for_local: Option<SocketAddr>,
        source_ranges: &[IpNet],
    ) -> Vec<SharedRule> {
        let Some(protocol) = self.protocol else { return Vec::new() };
        let portal = Portal {
            name: &self.comment,
            protocol,
            frontend,
            proxy,
            proxy_for_local,
            local: &self.local,
            source_ranges,
        };
        portal.rules().into_iter().map(|rule| self.shared(rule)).collect()
    }

    /// The rules of a frontend for outside clients, and the refusal if they are to have one.
    fn outer(
        &self,
        frontend: PortalFrontend,
        source_ranges: &[IpNet],
    ) -> (Vec<SharedRule>, Option<Refusal>) {
        let inside = self.fate(TrafficPolicy::Cluster);
        let is_local = self.service.is_external_policy_local();
        let outside = if is_local { self.fate(TrafficPolicy::Local) } else { inside };
        let proxy_for_local = inside.proxy().filter(|_| is_local);
        let rules = self.portal(frontend, outside.proxy(), proxy_for_local, source_ranges);
        (rules, outside.refusal())
    }

    fn shared(&self, rule: PortalRule) -> SharedRule {
        let PortalRule { chain, text } = rule;
        let family = self.family.family;
        let chain = ChainId::shared(family, chain.table(), SharedChain::Portals(chain));
        SharedRule { chain, text: text.into() }
    }

    fn socket(&self, address: IpAddr) -> PortalFrontend {
        PortalFrontend::Address(SocketAddr::new(address, self.exposure.port.port.get()))
    }
}

impl PortRules for RelayedPort<'_> {
    fn exposure(&self) -> &PortExposure<'_> {
        self.exposure
    }

    fn family(&self) -> Family {
        self.family.family
    }

    fn targets(&self) -> Arc<[SocketAddr]> {
        match self.protocol {
            Some(RelayProtocol::Udp) => self.listening().into_iter().collect(),
            Some(RelayProtocol::Tcp) | None => Arc::default(),
        }
    }

    fn cluster_rules(&self, address: IpAddr) -> Vec<SharedRule> {
        match self.fate(self.service.internal_policy) {
            Fate::Relayed(proxy) => self.portal(self.socket(address), Some(proxy), None, &[]),
            Fate::Refused(refusal) => vec![self.refusals().cluster(address, refusal)],
            Fate::Waiting => Vec::new(),
        }
    }

    fn external_rules(&self, address: IpAddr) -> Vec<SharedRule> {
        let (mut rules, refusal) = self.outer(self.socket(address), &[]);
        rules.extend(refusal.map(|refusal| self.refusals().external(address, refusal)));
        rules
    }

    /// The same, and source ranges if there are any.
    fn load_balancer_rules(&self, address: IpAddr) -> Vec<SharedRule> {
        let ranges = &self.family.addresses.source_ranges;
        if ranges.is_empty() || !self.exposure.choice.exist {
            return self.external_rules(address);
        }
        let (mut rules, refusal) = self.outer(self.socket(address), ranges);
        rules.extend(refusal.map(|refusal| self.refusals().external(address, refusal)));
        let by = PortalChain::AddressesOfArriving;
        rules.push(self.refusals().outside_of_source_ranges(address, by));
        rules
    }

    fn node_port_rules(&self, node_port: u16) -> Vec<SharedRule> {
        let Some(port) = NonZeroU16::new(node_port) else { return Vec::new() };
        let (mut rules, refusal) = self.outer(PortalFrontend::NodePort(port), &[]);
        rules.extend(refusal.map(|refusal| self.refusals().node_port(node_port, refusal)));
        rules
    }

    fn chains(&self) -> Vec<OwnChain> {
        Vec::new()
    }

    /// Rules for those who may reach the proxy ports, and for the health check.
    fn other_rules(&self) -> Vec<SharedRule> {
        let mut rules: Vec<SharedRule> = self.refusals().health_check().into_iter().collect();
        let Some(protocol) = self.protocol else { return rules };
        for proxy in self.listening() {
            let door = ProxyPortDoor {
                name: &self.comment,
                protocol,
                proxy,
                has_node_port: self.exposure.port.node_port.is_some(),
            };
            rules.extend(door.rules().into_iter().map(|rule| self.shared(rule)));
        }
        rules
    }
}

impl Fate {
    const fn proxy(self) -> Option<SocketAddr> {
        match self {
            Self::Relayed(socket) => Some(socket),
            Self::Refused(_) | Self::Waiting => None,
        }
    }

    const fn refusal(self) -> Option<Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Relayed(_) | Self::Waiting => None,
        }
    }
}
