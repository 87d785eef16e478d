//! The behaviour that a mode has for itself: a file for each mode.
//!
//! The planner and its store take the backend of the mode, and no code below them asks for the mode. What the rooms
//! that compile and compare have to know of a mode are its [`properties`](crate::mode::Properties).

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

/// Returns the last rules of a family's chain of Services, which lead to node ports at these addresses.
type TailRules = fn(Family, Option<&[IpAddr]>, &Settings) -> Vec<Box<str>>;

/// Behaviour of a mode.
#[derive(Debug)]
pub(crate) struct Backend {
    /// Jumps of the constant rules, in the order in which they are put before everything else of the built-in
    /// chain, or behind it: of two that go first into the same chain the later one comes to stand first.
    pub(crate) jumps: &'static [Jump],
    /// Jumps that kube-proxy has, or that we had, in another form or besides.
    pub(crate) former_jumps: &'static [Jump],
    /// Returns the constant rules of a family. True: another mode's rules still lead its connections. Last: the
    /// [`Backend::node_port_addresses`].
    pub(crate) rule_set: fn(Family, &RuleSetSettings, bool, Option<&[IpAddr]>) -> RuleSet,
    /// None: rules that lead to node ports are constant.
    pub(crate) tail: Option<TailRules>,
    /// Compiles a Service to chains, with the proxy ports that the relay has for it.
    pub(crate) compile_chains: fn(&Exposure<'_>, &ProxyPorts, &NodeFacts, &Settings) -> Compiled,
    /// Returns what the relay is to listen on for a Service.
    pub(crate) relay_ports: fn(&Exposure<'_>, &NodeFacts) -> Vec<RelayPort>,
    /// True if a Service may be planned in parts.
    pub(crate) plans_in_parts: bool,
    /// True if rules are without comments where there are very many endpoints.
    pub(crate) drops_comments: bool,
    /// True if rules lead to node ports at loopback addresses of a family. None: no rule depends on addresses.
    pub(crate) leads_loopback: Option<fn(Family, &Settings) -> bool>,
    /// Returns the operations that turn one virtual server into the desired one.
    pub(crate) repair: fn(&Desired, &Frontend, Option<&ActualVirtualServer>) -> Vec<Op>,
}

impl Backend {
    /// Returns the addresses of a family at which rules lead to node ports, in order. None: at all of the node's,
    /// as the kernel has them for each packet, or no rule depends on them.
    pub(crate) fn node_port_addresses(
        &self,
        family: Family,
        facts: &NodeFacts,
        settings: &Settings,
    ) -> Option<Vec<IpAddr>> {
        let with_loopback = self.leads_loopback?(family, settings);
        if settings.node_port_addresses.are_all(family) {
            return None;
        }
        let networks = settings.node_port_addresses.networks();
        let is_loopback = |address: &&IpAddr| {
            with_loopback
                && Family::of(**address) == family
                && address.is_loopback()
                && networks.iter().any(|net| net.contains(*address))
        };
        let loopback = facts.local_addresses().iter().filter(is_loopback).copied();
        let mut addresses: Vec<IpAddr> =
            facts.node_port_addresses(family).chain(loopback).collect();
        addresses.sort_unstable();
        Some(addresses)
    }

    /// True if clients of this node reach node ports at an address of the node.
    pub(crate) fn serves_node_ports(
        &self,
        address: IpAddr,
        facts: &NodeFacts,
        settings: &Settings,
    ) -> bool {
        let family = Family::of(address);
        if let Some(addresses) = self.node_port_addresses(family, facts, settings) {
            return addresses.contains(&address);
        }
        let leads_loopback = || self.leads_loopback.is_some_and(|leads| leads(family, settings));
        facts.local_addresses().contains(&address) && (!address.is_loopback() || leads_loopback())
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

/// Returns the jumps that any mode has or had.
pub fn jumps_of_all_modes() -> impl Iterator<Item = &'static Jump> {
    let of_mode = |mode| of(mode).jumps.iter().chain(of(mode).former_jumps);
    Mode::ALL.into_iter().flat_map(of_mode)
}

const PORTALS: &str = "kubernetes service portals";
const OUTSIDE: &str = "kubernetes externally-visible service portals";
const POSTROUTING: &str = "kubernetes postrouting rules";
const FORWARDING: &str = "kubernetes forwarding rules";
const HEALTH: &str = "kubernetes health check service ports";
const FIREWALL: &str = "kubernetes load balancer firewall";
