//! The behaviour that a mode has for itself: a file for each mode.
//!
//! The planner takes the backend of its mode once, and no code asks for the mode after that. What rooms below
//! have to know of a mode, which compile and compare, are its [`properties`](crate::mode::Properties).

mod iptables;
mod ipvs;
pub(crate) mod userspace;

use std::net::IpAddr;

use crate::actual::ActualVirtualServer;
use crate::exposure::Exposure;
use crate::facts::NodeFacts;
use crate::iptables::compile::Compiled;
use crate::ipvs::desired::Desired;
use crate::kernel_objects::Frontend;
use crate::mode::Mode;
use crate::model::Family;
use crate::op::Op;
use crate::rule_set::{Jump, RuleSet, RuleSetSettings};
use crate::settings::Settings;
use crate::userspace::{ProxyPorts, RelayPort};

/// Behaviour of a mode.
#[derive(Debug)]
pub(crate) struct Backend {
    /// Jumps of the constant rules, in the order in which they are put before everything else of the built-in
    /// chain, or behind it: of two that go first into the same chain the later one comes to stand first.
    pub(crate) jumps: &'static [Jump],
    /// Jumps that kube-proxy has, or that we had, in another form or besides.
    pub(crate) former_jumps: &'static [Jump],
    /// Returns the constant rules of a family. True: another mode's rules still lead its connections.
    pub(crate) rule_set: fn(Family, &RuleSetSettings, bool, &NodeFacts, &Settings) -> RuleSet,
    /// Returns the last rules of a family's chain of Services, which lead to node ports. None: such rules are
    /// constant.
    pub(crate) tail: fn(Family, &NodeFacts, &Settings) -> Option<Vec<Box<str>>>,
    /// Compiles a Service to chains, with the proxy ports that the relay has for it.
    pub(crate) compile_chains: fn(&Exposure<'_>, &ProxyPorts, &NodeFacts, &Settings) -> Compiled,
    /// Returns what the relay is to listen on for a Service.
    pub(crate) relay_ports: fn(&Exposure<'_>, &NodeFacts) -> Vec<RelayPort>,
    /// True if a Service may be planned in parts.
    pub(crate) plans_in_parts: bool,
    /// True if rules are without comments where there are very many endpoints.
    pub(crate) drops_comments: bool,
    /// Returns the addresses of a family at which rules lead to node ports, in order. None: at all of the
    /// node's, as the kernel has them for each packet, or no rule does.
    pub(crate) node_port_addresses: fn(Family, &NodeFacts, &Settings) -> Option<Vec<IpAddr>>,
    /// True if rules lead to node ports at a loopback address of the node.
    pub(crate) serves_loopback: fn(IpAddr, &Settings) -> bool,
    /// Returns the operations that turn one virtual server into the desired one.
    pub(crate) repair: fn(&Desired, &Frontend, Option<&ActualVirtualServer>) -> Vec<Op>,
}

impl Backend {
    /// True if clients of this node reach node ports at an address of the node.
    pub(crate) fn serves_node_ports(
        &self,
        address: IpAddr,
        facts: &NodeFacts,
        settings: &Settings,
    ) -> bool {
        match (self.node_port_addresses)(Family::of(address), facts, settings) {
            Some(addresses) => addresses.contains(&address),
            None => {
                let is_led = !address.is_loopback() || (self.serves_loopback)(address, settings);
                is_led && facts.local_addresses().contains(&address)
            }
        }
    }
}

/// Returns the backend of a mode.
pub(crate) const fn of(mode: Mode) -> &'static Backend {
    match mode {
        Mode::Ipvs => &ipvs::BACKEND,
        Mode::Iptables => &iptables::BACKEND,
        Mode::Userspace => &userspace::BACKEND,
    }
}

/// Returns the jumps of a mode, in the order in which they are written.
#[must_use]
pub fn jumps(mode: Mode) -> &'static [Jump] {
    of(mode).jumps
}

/// Returns the jumps of a mode that kube-proxy has, or that we had, in another form or besides.
#[must_use]
pub fn former_jumps(mode: Mode) -> &'static [Jump] {
    of(mode).former_jumps
}

const PORTALS: &str = "kubernetes service portals";
const OUTSIDE: &str = "kubernetes externally-visible service portals";
const POSTROUTING: &str = "kubernetes postrouting rules";
const FORWARDING: &str = "kubernetes forwarding rules";
const HEALTH: &str = "kubernetes health check service ports";
const FIREWALL: &str = "kubernetes load balancer firewall";
