//! Rules of `filter` about a service port that do not depend on how it is balanced: refusals, source
//! ranges, health checks. Rules of `nat` that lead a client come first, and it never meets these.

use std::fmt;
use std::net::IpAddr;

use super::super::fragment::SharedRule;
use super::super::text::Rule;
use crate::chains::{ChainId, ServicePortName, SharedChain};
use crate::exposure::Verdict;
use crate::model::{Family, Protocol, Service, ServicePort};
use crate::rule_set::Table;

/// A service port in one family, as its refusals name it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusals<'a> {
    pub(crate) service: &'a Service,
    pub(crate) family: Family,
    pub(crate) port: &'a ServicePort,
    pub(crate) name: &'a ServicePortName,
}

/// Refusal of a frontend's clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The end of the rule's comment.
    reason: &'static str,
    /// True if packets are dropped; otherwise the client is told.
    is_silent: bool,
}

impl Refusal {
    /// The refusal of clients with this fate; none: they get endpoints.
    pub(crate) const fn of(verdict: Verdict<'_>) -> Option<Self> {
        match verdict {
            Verdict::Endpoints(_) => None,
            Verdict::NoEndpoints => Some(Self::because("has no endpoints")),
            Verdict::NoLocalEndpoints => {
                Some(Self { reason: "has no local endpoints", is_silent: true })
            }
        }
    }

    /// A refusal that the client is told of.
    pub(crate) const fn because(reason: &'static str) -> Self {
        Self { reason, is_silent: false }
    }
}

impl Refusals<'_> {
    /// Returns the beginning of a rule about the port at an address.
    pub(crate) fn to(&self, address: IpAddr, comment: &str) -> Rule {
        let rule = Rule::new().destination_host(address).protocol(self.port.protocol);
        let rule = rule.comment(format_args!("{} {comment}", self.name));
        rule.port(self.port.protocol, self.port.port.get())
    }

    /// Refuses clients of the cluster address.
    pub(crate) fn cluster(&self, address: IpAddr, refusal: Refusal) -> SharedRule {
        let text = self.to(address, refusal.reason).jump(self.target(refusal));
        self.in_filter(SharedChain::Services, text)
    }

    /// Refuses clients of an external or load balancer's address.
    pub(crate) fn external(&self, address: IpAddr, refusal: Refusal) -> SharedRule {
        let text = self.to(address, refusal.reason).jump(self.target(refusal));
        self.in_filter(SharedChain::ExternalServices, text)
    }

    /// Refuses clients of the node port, at all addresses of the node.
    pub(crate) fn node_port(&self, node_port: u16, refusal: Refusal) -> SharedRule {
        let protocol = self.port.protocol;
        let comment = format!("{} {}", self.name, refusal.reason);
        let rule = Rule::new().protocol(protocol).comment(comment);
        let rule = rule.matching("addrtype --dst-type LOCAL").port(protocol, node_port);
        self.in_filter(SharedChain::ExternalServices, rule.jump(self.target(refusal)))
    }

    /// Drops what comes to a load balancer's address from outside of the source ranges. `by`: the
    /// chain that leads all others on.
    pub(crate) fn outside_of_source_ranges(
        &self,
        address: IpAddr,
        by: impl fmt::Display,
    ) -> SharedRule {
        let rule = self.to(address, &format!("traffic not accepted by {by}"));
        self.in_filter(SharedChain::ProxyFirewall, rule.jump("DROP"))
    }

    /// Lets a load balancer ask for this node's endpoints.
    pub(crate) fn health_check(&self) -> Option<SharedRule> {
        let port = self.service.answers_health_checks()?;
        let comment = format!("{} health check node port", self.name);
        let rule = Rule::new().protocol(Protocol::Tcp).comment(comment);
        let rule = rule.port(Protocol::Tcp, port.get()).jump("ACCEPT");
        Some(self.in_filter(SharedChain::NodePorts, rule))
    }

    fn in_filter(&self, chain: SharedChain, text: Box<str>) -> SharedRule {
        SharedRule { chain: ChainId::shared(self.family, Table::Filter, chain), text }
    }

    const fn target(&self, refusal: Refusal) -> &'static str {
        match (refusal.is_silent, self.family) {
            (true, _) => "DROP",
            (false, Family::V4) => "REJECT --reject-with icmp-port-unreachable",
            (false, Family::V6) => "REJECT --reject-with icmp6-port-unreachable",
        }
    }
}
