//! Chains and rules of one service port in one family.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::super::fragment::{OwnChain, SharedRule};
use super::super::text::{Detector, MARK_MASQ, Rule, chain, dnat, one_of, recent};
use super::{PortRules, Refusal, Refusals};
use crate::chains::{ChainHash, ChainId, ChainName, PortChain, ServicePortName, SharedChain};
use crate::exposure::{FamilyExposure, PortExposure};
use crate::facts::NodeFacts;
use crate::kernel_objects::RealServer;
use crate::model::{Family, Protocol, Service, TrafficPolicy};
use crate::rule_set::Table;
use crate::settings::Settings;

/// A service port in one family, and what its rules are made of.
pub(super) struct Port<'a> {
    service: &'a Service,
    family: &'a FamilyExposure<'a>,
    exposure: &'a PortExposure<'a>,
    settings: &'a Settings,
    facts: &'a NodeFacts,
    detector: Option<Detector>,
    name: ServicePortName,
    hash: ChainHash,
    /// Endpoints for clients anywhere, and for those that must stay on this node, each list in the
    /// order of text and empty if no client of this port asks for it.
    cluster: Vec<SocketAddr>,
    local: Vec<SocketAddr>,
}

impl<'a> Port<'a> {
    pub(super) fn new(
        service: &'a Service,
        family: &'a FamilyExposure<'a>,
        exposure: &'a PortExposure<'a>,
        detector: Option<Detector>,
        facts: &'a NodeFacts,
        settings: &'a Settings,
    ) -> Self {
        let name = ServicePortName::new(&service.name, &exposure.port.name);
        let hash = ChainHash::of_port(&name, exposure.port.protocol);
        let mut port = Self {
            service,
            family,
            exposure,
            settings,
            facts,
            detector,
            name,
            hash,
            cluster: Vec::new(),
            local: Vec::new(),
        };
        // A policy Local for outside clients leaves the cluster's own all endpoints.
        if !port.is_internal_local() || port.is_accessible_outside() {
            port.cluster = in_order_of_text(&exposure.choice.cluster);
        }
        if port.is_internal_local() || (port.is_external_local() && port.is_accessible_outside()) {
            port.local = in_order_of_text(&exposure.choice.local);
        }
        port
    }

    fn refusals(&self) -> Refusals<'_> {
        Refusals {
            service: self.service,
            family: self.family.family,
            port: self.exposure.port,
            name: &self.name,
        }
    }

    fn outer_rules(&self, address: IpAddr, kind: &str, chain: ChainName) -> Vec<SharedRule> {
        let mut rules = Vec::new();
        if self.has_endpoints() {
            rules.push(SharedRule {
                chain: self.shared(Table::Nat, SharedChain::Services),
                text: self.refusals().to(address, kind).jump(chain),
            });
        }
        let refusal = Refusal::of(self.exposure.external(self.service));
        rules.extend(refusal.map(|refusal| self.refusals().external(address, refusal)));
        rules
    }

    /// The rules of `KUBE-SVC-` or `KUBE-SVL-`. `is_internal`: clients of the cluster address come
    /// here.
    fn endpoint_choice(&self, endpoints: &[SocketAddr], is_internal: bool) -> Vec<Box<str>> {
        let mut rules = Vec::new();
        if is_internal {
            rules.extend(self.masquerade_rule());
        }
        let to = |endpoint: &SocketAddr| chain(PortChain::Endpoint, self.hash_of(*endpoint));
        if let Some(seconds) = self.service.affinity {
            rules.extend(endpoints.iter().map(|endpoint| {
                let known = format!("--rcheck --seconds {seconds} --reap");
                let known = recent(self.family.family, &known, to(endpoint));
                self.chosen(endpoint).matching(&known).jump(to(endpoint))
            }));
        }
        rules.extend(endpoints.iter().enumerate().map(|(at, endpoint)| {
            let rule = self.chosen(endpoint);
            let share = one_of(endpoints.len() - at);
            let rule = match &share {
                Some(share) => rule.matching(share),
                None => rule,
            };
            rule.jump(to(endpoint))
        }));
        rules
    }

    /// The rule that masquerades clients of the cluster address which are no pods of this node.
    fn masquerade_rule(&self) -> Option<Box<str>> {
        let address = self.family.addresses.cluster?;
        let rule = match &self.detector {
            _ if self.settings.masquerade_all => Rule::new().destination_host(address),
            Some(detector) => detector.not_local_to(address)?,
            None => return None,
        };
        let rule = rule.protocol(self.protocol());
        let rule = rule.comment(format_args!("{} cluster IP", self.name));
        let rule = rule.port(self.protocol(), self.exposure.port.port.get());
        Some(rule.jump(MARK_MASQ))
    }

    fn external_chain(&self) -> Vec<Box<str>> {
        let name = &self.name;
        let cluster = chain(PortChain::Cluster, self.hash);
        if !self.is_external_local() {
            let comment = format!("masquerade traffic for {name} external destinations");
            let masquerade = Rule::new().comment(comment).jump(MARK_MASQ);
            return vec![masquerade, Rule::new().jump(cluster)];
        }
        let mut rules = Vec::new();
        if let Some(detector) = &self.detector {
            let comment = format!("pod traffic for {name} external destinations");
            rules.push(detector.local().comment(comment).jump(cluster));
        }
        let own = |what: &str| {
            let comment = format!("{what} LOCAL traffic for {name} external destinations");
            Rule::new().comment(comment).matching("addrtype --src-type LOCAL")
        };
        rules.push(own("masquerade").jump(MARK_MASQ));
        rules.push(own("route").jump(cluster));
        if !self.local.is_empty() {
            rules.push(Rule::new().jump(chain(PortChain::Local, self.hash)));
        }
        rules
    }

    fn firewall_chain(&self) -> Vec<Box<str>> {
        let external = chain(PortChain::External, self.hash);
        let comment = format!("{} loadbalancer IP", self.name);
        let addresses = &self.family.addresses;
        let allow = |rule: Rule| rule.comment(&comment).jump(external);
        let mut rules: Vec<Box<str>> =
            addresses.source_ranges.iter().map(|net| allow(Rule::new().source(*net))).collect();
        // What the node sends to a load balancer may come back with that address as its source.
        let own = self.facts.own_address(self.family.family);
        if own.is_some_and(|own| addresses.source_ranges.iter().any(|net| net.contains(&own))) {
            let balancers = addresses.load_balancer.iter();
            rules.extend(balancers.map(|address| allow(Rule::new().source_host(*address))));
        }
        let rest = format!("other traffic to {} will be dropped by KUBE-PROXY-FIREWALL", self.name);
        rules.push(Rule::new().comment(rest).without_target());
        rules
    }

    fn endpoint_chain(&self, endpoint: SocketAddr) -> Vec<Box<str>> {
        let itself = self.named(Rule::new().source_host(endpoint.ip())).jump(MARK_MASQ);
        let mut to = self.named(Rule::new().protocol(self.protocol()));
        if self.service.affinity.is_some() {
            let list = chain(PortChain::Endpoint, self.hash_of(endpoint));
            to = to.matching(&recent(self.family.family, "--set", list));
        }
        vec![itself, to.matching(self.protocol().name()).jump(dnat(endpoint))]
    }

    fn chosen(&self, endpoint: &SocketAddr) -> Rule {
        if self.is_large() {
            Rule::new()
        } else {
            Rule::new().comment(format_args!("{} -> {endpoint}", self.name))
        }
    }

    fn named(&self, rule: Rule) -> Rule {
        if self.is_large() { rule } else { rule.comment(&self.name) }
    }

    /// With very many endpoints, their rules have no comments.
    fn is_large(&self) -> bool {
        self.facts.has_many_endpoints(self.family.family)
    }

    fn hash_of(&self, endpoint: SocketAddr) -> ChainHash {
        ChainHash::of_endpoint(&self.name, self.protocol(), endpoint)
    }

    const fn protocol(&self) -> Protocol {
        self.exposure.port.protocol
    }

    fn shared(&self, table: Table, chain: SharedChain) -> ChainId {
        ChainId::shared(self.family.family, table, chain)
    }

    fn internal_chain(&self) -> ChainName {
        let kind = if self.is_internal_local() { PortChain::Local } else { PortChain::Cluster };
        chain(kind, self.hash)
    }

    fn is_internal_local(&self) -> bool {
        self.service.internal_policy == TrafficPolicy::Local
    }

    fn is_external_local(&self) -> bool {
        self.service.is_external_policy_local()
    }

    const fn has_endpoints(&self) -> bool {
        self.exposure.choice.exist
    }

    fn is_accessible_outside(&self) -> bool {
        let addresses = &self.family.addresses;
        self.exposure.port.node_port.is_some()
            || !addresses.external.is_empty()
            || !addresses.load_balancer.is_empty()
    }

    fn has_firewall(&self) -> bool {
        let addresses = &self.family.addresses;
        self.has_endpoints()
            && !addresses.load_balancer.is_empty()
            && !addresses.source_ranges.is_empty()
    }

    fn counts_localhost(&self) -> bool {
        self.family.family == Family::V4
            && self.settings.iptables_localhost_node_ports
            && self.settings.nfacct
    }
}

impl PortRules for Port<'_> {
    fn exposure(&self) -> &PortExposure<'_> {
        self.exposure
    }

    fn family(&self) -> Family {
        self.family.family
    }

    fn targets(&self) -> Arc<[SocketAddr]> {
        if self.protocol() == Protocol::Tcp {
            return Arc::default();
        }
        let all: BTreeSet<_> = self.cluster.iter().chain(&self.local).copied().collect();
        all.into_iter().collect()
    }

    /// To its endpoints, or the refusal.
    fn cluster_rules(&self, address: IpAddr) -> Vec<SharedRule> {
        vec![match Refusal::of(self.exposure.internal(self.service)) {
            None => SharedRule {
                chain: self.shared(Table::Nat, SharedChain::Services),
                text: self.refusals().to(address, "cluster IP").jump(self.internal_chain()),
            },
            Some(refusal) => self.refusals().cluster(address, refusal),
        }]
    }

    /// To its chain, and the refusal.
    fn external_rules(&self, address: IpAddr) -> Vec<SharedRule> {
        self.outer_rules(address, "external IP", chain(PortChain::External, self.hash))
    }

    /// The same, and source ranges if there are any.
    fn load_balancer_rules(&self, address: IpAddr) -> Vec<SharedRule> {
        let kind = "loadbalancer IP";
        if !self.has_firewall() {
            return self.outer_rules(address, kind, chain(PortChain::External, self.hash));
        }
        let firewall = chain(PortChain::Firewall, self.hash);
        let mut rules = self.outer_rules(address, kind, firewall);
        rules.push(self.refusals().outside_of_source_ranges(address, firewall));
        rules
    }

    /// To its chain, and the refusal at all addresses of the node.
    fn node_port_rules(&self, node_port: u16) -> Vec<SharedRule> {
        let protocol = self.protocol();
        let mut rules = Vec::new();
        if self.has_endpoints() {
            let chain = self.shared(Table::Nat, SharedChain::NodePorts);
            let external = self::chain(PortChain::External, self.hash);
            let to = |rule: Rule| {
                let rule = rule.protocol(protocol).comment(&self.name);
                rule.port(protocol, node_port)
            };
            if self.counts_localhost() {
                let from_here = Rule::new().destination("127.0.0.0/8");
                let counter = "nfacct --nfacct-name  localhost_nps_accepted_pkts";
                let text = to(from_here).matching(counter).jump(external);
                rules.push(SharedRule { chain, text });
            }
            rules.push(SharedRule { chain, text: to(Rule::new()).jump(external) });
        }
        let refusal = Refusal::of(self.exposure.external(self.service));
        rules.extend(refusal.map(|refusal| self.refusals().node_port(node_port, refusal)));
        rules
    }

    fn chains(&self) -> Vec<OwnChain> {
        let own = |kind, hash, rules: Vec<Box<str>>| OwnChain {
            id: ChainId::of_port(self.family.family, kind, hash),
            rules: rules.into(),
        };
        let mut chains = Vec::new();
        if !self.cluster.is_empty() {
            let rules = self.endpoint_choice(&self.cluster, !self.is_internal_local());
            chains.push(own(PortChain::Cluster, self.hash, rules));
        }
        if !self.local.is_empty() {
            let rules = self.endpoint_choice(&self.local, self.is_internal_local());
            chains.push(own(PortChain::Local, self.hash, rules));
        }
        if self.has_endpoints() && self.is_accessible_outside() {
            chains.push(own(PortChain::External, self.hash, self.external_chain()));
        }
        if self.has_firewall() {
            chains.push(own(PortChain::Firewall, self.hash, self.firewall_chain()));
        }
        let endpoints: BTreeSet<_> = self.cluster.iter().chain(&self.local).collect();
        let endpoint =
            |it: &SocketAddr| own(PortChain::Endpoint, self.hash_of(*it), self.endpoint_chain(*it));
        chains.extend(endpoints.into_iter().map(endpoint));
        chains
    }

    fn other_rules(&self) -> Vec<SharedRule> {
        self.refusals().health_check().into_iter().collect()
    }
}

/// Sorts endpoints as kube-proxy does, by their text.
fn in_order_of_text(endpoints: &[RealServer]) -> Vec<SocketAddr> {
    let mut endpoints: Vec<_> =
        endpoints.iter().map(|it| (it.socket().to_string(), it.socket())).collect();
    endpoints.sort_unstable();
    endpoints.into_iter().map(|(_, endpoint)| endpoint).collect()
}
