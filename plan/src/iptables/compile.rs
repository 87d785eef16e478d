//! An exposure to chains and rules, as kube-proxy's iptables mode writes them (`syncProxyRules` in
//! pkg/proxy/iptables/proxier.go). Mode userspace has rules of its own, and the same order of claims.
//!
//! | chain | for | what its rules do |
//! | --- | --- | --- |
//! | `KUBE-SVC-` | a service port with endpoints for clients anywhere | masquerade clients of the cluster address that are no pods of this node; choose an endpoint |
//! | `KUBE-SVL-` | the same with endpoints on this node | the same |
//! | `KUBE-EXT-` | a service port that clients outside can reach | masquerade, or keep the source where the policy is Local; lead to one of the above |
//! | `KUBE-FW-` | a load balancer with source ranges | lead allowed clients to the one before |
//! | `KUBE-SEP-` | an endpoint | masquerade what it sends to itself; change the destination |

mod port;
mod refusals;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::fragment::{ChainFragment, OwnChain, RuleClaim, SharedRule};
use super::text::Detector;
use crate::claimants::Origin;
use crate::exposure::{Budget, Exposure, FamilyExposure, PortExposure};
use crate::facts::NodeFacts;
use crate::kernel_objects::Frontend;
use crate::model::Family;
use crate::problem::Problem;
use crate::settings::Settings;
use port::Port;
pub(crate) use refusals::{Refusal, Refusals};

/// Result of compiling a Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Compiled {
    /// Chains and rules that the Service asks for.
    pub fragment: ChainFragment,
    /// Problems of the Service, in order and without repetition.
    pub problems: Vec<Problem>,
}

/// Chains and rules by which a mode serves one service port in one family.
pub(crate) trait PortRules {
    /// Returns the port and its endpoints.
    fn exposure(&self) -> &PortExposure<'_>;

    fn family(&self) -> Family;

    /// Returns the sockets that a flow may lead to; none for TCP.
    fn targets(&self) -> Arc<[SocketAddr]>;

    /// Returns the rules of the cluster address.
    fn cluster_rules(&self, address: IpAddr) -> Vec<SharedRule>;

    /// Returns the rules of an external address.
    fn external_rules(&self, address: IpAddr) -> Vec<SharedRule>;

    /// Returns the rules of a load balancer's address.
    fn load_balancer_rules(&self, address: IpAddr) -> Vec<SharedRule>;

    /// Returns the rules of the node port.
    fn node_port_rules(&self, node_port: u16) -> Vec<SharedRule>;

    /// Returns the chains of the port and of its endpoints.
    fn chains(&self) -> Vec<OwnChain>;

    /// Returns the rules in shared chains that are about no frontend.
    fn other_rules(&self) -> Vec<SharedRule>;

    /// Returns the frontend at one of the Service's addresses.
    fn frontend(&self, address: IpAddr) -> Frontend {
        let port = self.exposure().port;
        Frontend { address, protocol: port.protocol, port: port.port.get() }
    }

    /// Returns the node port at any address of the node.
    fn node_port_frontend(&self) -> Option<Frontend> {
        let address: IpAddr = match self.family() {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let port = self.exposure().port.node_port?.get();
        Some(Frontend { address, protocol: self.exposure().port.protocol, port })
    }
}

/// Compiles what a Service asks of the node to chains and rules.
#[must_use]
pub fn compile(exposure: &Exposure<'_>, facts: &NodeFacts, settings: &Settings) -> Compiled {
    compile_ports(exposure, |family| {
        let detector = Detector::of(settings, facts, family.family);
        move |port| Port::new(exposure.service, family, port, detector.clone(), facts, settings)
    })
}

/// Compiles what a Service asks of the node, by the rules of a mode. `of_family` returns the function
/// that makes the rules of each port.
pub(crate) fn compile_ports<'a, P: PortRules, F: Fn(&'a PortExposure<'a>) -> P>(
    exposure: &'a Exposure<'a>,
    of_family: impl Fn(&'a FamilyExposure<'a>) -> F,
) -> Compiled {
    let mut compiler = Compiler {
        created: exposure.service.created,
        budget: exposure.budget.clone(),
        fragment: ChainFragment::default(),
        claims: BTreeMap::new(),
        problems: exposure.problems.clone(),
    };
    let ports = |family: &'a FamilyExposure<'a>| family.ports.iter().map(of_family(family));
    let families: Vec<(_, Vec<P>)> =
        exposure.families.iter().map(|family| (family, ports(family).collect())).collect();
    // In the order of `Origin`: of several claims to a frontend, the first one has it, and what
    // comes last may meet a limit.
    for (family, ports) in &families {
        ports.iter().for_each(|port| compiler.cluster_address(port, family));
    }
    for (_, ports) in &families {
        ports.iter().for_each(|port| compiler.node_port(port));
    }
    for (family, ports) in &families {
        ports.iter().for_each(|port| compiler.load_balancer_addresses(port, family));
    }
    for (family, ports) in &families {
        ports.iter().for_each(|port| compiler.external_addresses(port, family));
    }
    for port in families.iter().flat_map(|(_, ports)| ports) {
        compiler.fragment.chains.extend(port.chains());
        compiler.fragment.rules.extend(port.other_rules());
    }
    compiler.finish()
}

struct Compiler<'a> {
    created: i64,
    budget: Budget<'a>,
    fragment: ChainFragment,
    claims: BTreeMap<Frontend, Claimed>,
    problems: Vec<Problem>,
}

/// A claim, all of whose rules are not known yet.
struct Claimed {
    /// The index of the service port that claims.
    index: usize,
    origin: Origin,
    /// With the order in which a packet is to meet them.
    rules: Vec<(u8, SharedRule)>,
    targets: Arc<[SocketAddr]>,
}

impl Compiler<'_> {
    fn cluster_address(&mut self, port: &impl PortRules, family: &FamilyExposure<'_>) {
        let Some(address) = family.addresses.cluster else { return };
        if self.budget.take_counted_frontend() {
            let rules = port.cluster_rules(address);
            self.claim(port, port.frontend(address), Origin::ClusterAddress, 0, rules);
        }
    }

    fn node_port(&mut self, port: &impl PortRules) {
        let Some(frontend) = port.node_port_frontend() else { return };
        if self.budget.take_counted_frontend() {
            let rules = port.node_port_rules(frontend.port);
            self.claim(port, frontend, Origin::NodePort, 1, rules);
        }
    }

    fn load_balancer_addresses(&mut self, port: &impl PortRules, family: &FamilyExposure<'_>) {
        let n_admitted = self.budget.frontends(family.addresses.load_balancer.len());
        for address in family.addresses.load_balancer.iter().take(n_admitted) {
            if self.budget.take_counted_frontend() {
                let rules = port.load_balancer_rules(*address);
                self.claim(port, port.frontend(*address), Origin::LoadBalancer, 3, rules);
            }
        }
    }

    fn external_addresses(&mut self, port: &impl PortRules, family: &FamilyExposure<'_>) {
        let n_admitted = self.budget.frontends(family.addresses.external.len());
        for address in family.addresses.external.iter().take(n_admitted) {
            if self.budget.take_counted_frontend() {
                let rules = port.external_rules(*address);
                self.claim(port, port.frontend(*address), Origin::External, 2, rules);
            }
        }
    }

    /// The same address may be there for several reasons: then the rules of all count, a packet
    /// meets those of `place` 0 first, and the best reason is the claim's.
    fn claim(
        &mut self,
        port: &impl PortRules,
        frontend: Frontend,
        origin: Origin,
        place: u8,
        rules: Vec<SharedRule>,
    ) {
        let index = port.exposure().index;
        let new = || Claimed { index, origin, rules: Vec::new(), targets: port.targets() };
        let claimed = self.claims.entry(frontend).or_insert_with(new);
        if claimed.index == index {
            claimed.rules.extend(rules.into_iter().map(|rule| (place, rule)));
        } else {
            self.problems.push(Problem::FrontendTwice { frontend });
        }
    }

    fn finish(mut self) -> Compiled {
        let created = self.created;
        let claims = self.claims.into_iter().map(|(frontend, mut claimed)| {
            claimed.rules.sort_by_key(|(place, _)| *place);
            let mut rules: Vec<SharedRule> = Vec::new();
            // An address that is there for two reasons is refused once.
            for (_, rule) in claimed.rules {
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
            let Claimed { origin, targets, .. } = claimed;
            RuleClaim { frontend, origin, created, rules: rules.into(), targets }
        });
        self.fragment.claims = claims.collect();
        self.fragment.chains.sort_unstable();
        self.fragment.chains.dedup_by_key(|chain| chain.id);
        self.fragment.rules.sort_unstable();
        self.fragment.rules.dedup();
        self.problems.extend(self.budget.problems());
        self.problems.sort_unstable();
        self.problems.dedup();
        Compiled { fragment: self.fragment, problems: self.problems }
    }
}
