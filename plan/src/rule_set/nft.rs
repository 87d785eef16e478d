//! The constant layer of IPVS mode as rules of nf_tables: a table of our own in each family.
//!
//! It decides as the [`RuleSet`](super::RuleSet) does, by the same sets. But all rules that decide are in chains
//! of nat, so only the first packet of a connection meets them:
//!
//! - What a chain of nat leads on keeps its destination by a translation that changes nothing (`dnat to ip daddr`),
//!   which ends all later chains of nat, of other programs too. The kernel's own null binding is the same
//!   (`nf_nat_setup_info` in net/netfilter/nf_nat_core.c), so it costs nothing more.
//! - `reject` and `drop` stand in chains of nat as well (since Linux 5.9): a refused packet leaves no entry in
//!   connection tracking, and so the next one is asked again.
//! - Nothing accepts forwarded packets: in nf_tables, accepting ends a chain and not the hook.
//!
//! Number and text of the rules depend on what [`RuleSetSettings`] depend on, never on Services.

mod rule;
mod source_ranges;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use ipnet::IpNet;

use super::{LocalTraffic, RuleSetSettings};
use crate::model::{Family, Protocol};
use crate::sets::{SetId, SetKind};
use crate::settings::FastPath;

pub use rule::{Action, Key, Match, Rule};
pub use source_ranges::{SourceRanges, length_of, networks, set_name};

/// The name of our tables.
pub const TABLE: &str = "kube-ipvs";

/// A chain of our table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub name: &'static str,
    /// None: packets come by rules alone.
    pub hook: Option<Hook>,
    pub rules: Vec<Rule>,
}

/// A hook that packets come from: of nat, but for forwarded ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Packets from outside, and from pods.
    PreRouting,
    /// Packets that the node passes on, of which each meets the rules.
    Forward,
    /// Packets that the node itself sends.
    Output,
    /// Packets that leave the node, or go to a pod.
    PostRouting,
}

impl Hook {
    /// Place among all chains of the hook. Ours of nat are before those of others, who begin at -100 and 100
    /// (`NF_IP_PRI_NAT_DST`, `NF_IP_PRI_NAT_SRC` of include/uapi/linux/netfilter_ipv4.h), and ours of forwarded packets
    /// behind those of others, firewalld's at 10 among them: what they drop must not come to a flow table.
    #[must_use]
    pub const fn priority(self) -> i32 {
        match self {
            Self::PreRouting | Self::Output => -110,
            Self::PostRouting => 90,
            Self::Forward => 1_000,
        }
    }
}

/// Name of the flow table.
pub const FLOW_TABLE: &str = "flows";

/// Names of the chains.
const FORWARD: &str = "forward";
const PREROUTING: &str = "prerouting";
const OUTPUT: &str = "output";
const POSTROUTING: &str = "postrouting";
const CLUSTER: &str = "cluster";
const CLUSTER_FROM_NODE: &str = "cluster-from-node";
/// Leads to endpoints of this node, and local clients to any.
const LOCAL: &str = "local";
const LOCAL_FROM_NODE: &str = "local-from-node";
const MASQUERADED: &str = "masqueraded";
const INTERNAL_FRONTEND: &str = "internal-frontend";
const INTERNAL_FRONTEND_FROM_NODE: &str = "internal-frontend-from-node";
/// Lets a load balancer's clients pass.
pub const SOURCE_RANGES: &str = "source-ranges";
const REFUSE: &str = "refuse";
const MASQUERADING: &str = "masquerading";

/// Writes the rules of one family.
struct Writer<'a> {
    family: Family,
    settings: &'a RuleSetSettings,
}

/// Returns the chains of a family's table; those that rules lead to come first. No load balancer has source ranges.
#[must_use]
pub fn chains(family: Family, settings: &RuleSetSettings) -> Vec<Chain> {
    let writer = Writer { family, settings };
    let chain = |name, rules| Chain { name, hook: None, rules };
    let base = |name, hook, rules| Chain { name, hook: Some(hook), rules };
    let mut chains = vec![
        chain(REFUSE, refuse()),
        chain(MASQUERADED, writer.masqueraded()),
        chain(CLUSTER, writer.cluster()),
        chain(CLUSTER_FROM_NODE, writer.cluster_from_node()),
        chain(SOURCE_RANGES, source_ranges(family, &SourceRanges::default())),
    ];
    if let Some(network) = settings.internal_frontend_network {
        chains.push(chain(INTERNAL_FRONTEND, writer.internal_frontend(network)));
        chains
            .push(chain(INTERNAL_FRONTEND_FROM_NODE, writer.internal_frontend_from_node(network)));
    }
    chains.extend([
        chain(LOCAL, writer.local(INTERNAL_FRONTEND)),
        chain(LOCAL_FROM_NODE, writer.local(INTERNAL_FRONTEND_FROM_NODE)),
        chain(MASQUERADING, writer.masquerading()),
        base(PREROUTING, Hook::PreRouting, writer.services(CLUSTER, LOCAL)),
        base(OUTPUT, Hook::Output, writer.services_from_node()),
        base(POSTROUTING, Hook::PostRouting, writer.postrouting()),
    ]);
    if settings.offloads() {
        chains.push(base(FORWARD, Hook::Forward, vec![writer.offloaded()]));
    }
    chains
}

/// Returns the chains while rules of another mode lead connections. The node's own have a service address as their source
/// as soon as that is bound, and are masqueraded, or their answers would never come back.
#[must_use]
pub fn chains_before_dispatch(family: Family, settings: &RuleSetSettings) -> Vec<Chain> {
    let set = SetId { kind: SetKind::IpvsAddresses, family }.name().to_owned();
    let bound = Match::InSet { key: Key::SourceAddress, set, is_not: false };
    let routed = settings.routes.iter().map(|net| Match::Source { net: *net, is_not: false });
    let masquerade = Action::Masquerade { random_fully: settings.random_fully };
    let rules = [bound].into_iter().chain(routed).map(|from| Rule::new([from], masquerade.clone()));
    vec![Chain { name: POSTROUTING, hook: Some(Hook::PostRouting), rules: rules.collect() }]
}

/// Returns the rules of [`SOURCE_RANGES`]. `ranges`: lengths of the networks that load balancers' clients are in.
#[must_use]
pub fn source_ranges(family: Family, ranges: &SourceRanges) -> Vec<Rule> {
    let allowed = |key, set| Rule::new([Match::InSet { key, set, is_not: false }], Action::Return);
    let networks = ranges
        .lengths(family)
        .map(|length| allowed(Key::FrontendAndSourceNetwork(length), set_name(family, length)));
    let single = SetId { kind: SetKind::LoadBalancerSourceIp, family }.name().to_owned();
    let single = allowed(Key::FrontendAndSource, single);
    networks.chain([single, Rule::new([], Action::Drop)]).collect()
}

/// Refuses a connection: at once, and so that its client sees it.
fn refuse() -> Vec<Rule> {
    vec![
        // The reset that the kernel makes for a client on the node comes here itself: it goes from a service address
        // to a service address, and belongs to no connection that has been decided about.
        Rule::new([Match::Reset], Action::Return),
        // What is not TCP would be dropped without an answer.
        Rule::new([Match::Protocol(Protocol::Tcp)], Action::RejectWithReset),
        Rule::new([], Action::RejectAsUnreachable),
    ]
}

impl Writer<'_> {
    fn services_from_node(&self) -> Vec<Rule> {
        let loopback = match self.family {
            Family::V4 => "127.0.0.0/8",
            Family::V6 => "::1/128",
        };
        let loopback = loopback.parse().ok();
        let spared =
            loopback.map(|net| Rule::new([Match::Source { net, is_not: false }], Action::Return));
        spared.into_iter().chain(self.services(CLUSTER_FROM_NODE, LOCAL_FROM_NODE)).collect()
    }

    /// Finds the frontend that a connection is to. The first hit is final.
    fn services(&self, cluster: &'static str, local: &'static str) -> Vec<Rule> {
        let to = |kind, action| Rule::new([self.frontend(kind)], action);
        let mut rules = vec![
            // Most connections are to cluster IPs.
            to(SetKind::ClusterIp, Action::GoTo(cluster)),
            // All addresses are local at which Services are served.
            Rule::new([Match::NotLocalDestination], Action::Return),
            to(SetKind::NoEndpoints, Action::GoTo(REFUSE)),
            to(SetKind::LoadBalancerFirewall, Action::Jump(SOURCE_RANGES)),
            self.dropped(),
            to(SetKind::LoadBalancerLocal, Action::GoTo(local)),
            to(SetKind::LoadBalancer, Action::GoTo(MASQUERADED)),
            to(SetKind::ExternalIp, Action::GoTo(MASQUERADED)),
            to(SetKind::ExternalIpLocal, Action::GoTo(local)),
        ];
        rules.extend(self.refused_elsewhere());
        rules.extend(self.node_ports(local));
        rules
    }

    /// Refuses what is for a service address and no Service: it would lead to whatever listens on all of the node's
    /// addresses. Health checks come to service addresses, too.
    fn refused_elsewhere(&self) -> Vec<Rule> {
        let mut rules = vec![Rule::new(
            [self.port(Protocol::Tcp, SetKind::HealthCheckNodePort)],
            Action::Return,
        )];
        if let Some(port) = self.settings.health_port {
            rules.push(Rule::new([Match::Port(Protocol::Tcp, port)], Action::Return));
        }
        rules.push(Rule::new([self.service_address()], Action::GoTo(REFUSE)));
        let RuleSetSettings { routes, own, .. } = self.settings;
        let spared: Vec<Match> = own
            .iter()
            .map(|address| Match::Destination { net: (*address).into(), is_not: true })
            .collect();
        rules.extend(routes.iter().map(|route| {
            let inside = Match::Destination { net: *route, is_not: false };
            Rule::new([inside].into_iter().chain(spared.iter().cloned()), Action::GoTo(REFUSE))
        }));
        rules
    }

    fn node_ports(&self, to_local: &'static str) -> Vec<Rule> {
        let by_port = [
            (Protocol::Tcp, SetKind::NodePortLocalTcp, SetKind::NodePortTcp),
            (Protocol::Udp, SetKind::NodePortLocalUdp, SetKind::NodePortUdp),
        ];
        let mut rules = Vec::new();
        for (protocol, local, any) in by_port {
            rules.push(Rule::new([self.port(protocol, local)], Action::GoTo(to_local)));
            rules.push(Rule::new([self.port(protocol, any)], Action::GoTo(MASQUERADED)));
        }
        let sctp = |kind, action| Rule::new([self.frontend(kind)], action);
        rules.push(sctp(SetKind::NodePortLocalSctp, Action::GoTo(to_local)));
        rules.push(sctp(SetKind::NodePortSctp, Action::GoTo(MASQUERADED)));
        rules
    }

    fn cluster(&self) -> Vec<Rule> {
        let has_endpoints = [SetKind::NoEndpoints, SetKind::NoLocalEndpoints];
        let has_endpoints = has_endpoints.map(|kind| self.no_frontend(kind));
        // A frontend with an internal frontend has endpoints: it need not be looked up in other sets.
        let remote = self.masqueraded_for_being_remote().into_iter();
        remote
            .chain(self.led())
            .chain([
                Rule::new(has_endpoints, Action::KeepDestination),
                Rule::new([self.frontend(SetKind::NoEndpoints)], Action::GoTo(REFUSE)),
                Rule::new([], Action::Drop),
            ])
            .collect()
    }

    /// The node's own connections that took a cluster IP as their source are masqueraded as well: the answers to those
    /// would never come back. No pod has such an address, and no packet with a source of the node arrives.
    fn cluster_from_node(&self) -> Vec<Rule> {
        let mut rules = self.cluster();
        let is_decided = self.settings.masquerade_all
            || matches!(self.settings.local, LocalTraffic::Bridge(_) | LocalTraffic::Prefix(_));
        if !is_decided {
            let (key, set) = (Key::SourceFrontend, self.set(SetKind::ClusterIp));
            rules.insert(0, self.marked(Some(Match::InSet { key, set, is_not: false })));
        }
        rules
    }

    /// Marks what is not of this node's pods, or of the cluster's.
    fn masqueraded_for_being_remote(&self) -> Vec<Rule> {
        let interface = |name: &Arc<str>, is_prefix| Match::Interface {
            name: name.clone(),
            is_prefix,
            is_not: true,
        };
        let condition = match &self.settings.local {
            _ if self.settings.masquerade_all => return vec![self.marked(None)],
            LocalTraffic::Unknown => return Vec::new(),
            // The network may contain the service range, and then the node's own connections count as pods'.
            LocalTraffic::Cidr(net) | LocalTraffic::ClusterCidr { cluster: net, .. } => {
                if net.prefix_len() == 0 {
                    return Vec::new();
                }
                Match::Source { net: *net, is_not: true }
            }
            LocalTraffic::Bridge(name) => interface(name, false),
            LocalTraffic::Prefix(name) => interface(name, true),
        };
        vec![self.marked(Some(condition))]
    }

    fn marked(&self, condition: Option<Match>) -> Rule {
        Rule::new(condition, Action::SetMark(self.settings.mark))
    }

    /// Drops connections to a frontend for endpoints of this node that has none, unless local clients are led elsewhere. A
    /// client behind a load balancer tries again, and may come to a node that has endpoints.
    fn dropped(&self) -> Rule {
        let none = self.frontend(SetKind::NoLocalEndpoints);
        let led = self
            .settings
            .internal_frontend_network
            .map(|_| self.no_frontend(SetKind::InternalFrontend));
        Rule::new([none].into_iter().chain(led), Action::Drop)
    }

    fn local(&self, internal_frontend: &'static str) -> Vec<Rule> {
        let to = |kind, action| Rule::new([self.frontend(kind)], action);
        let mut rules = Vec::new();
        if self.settings.internal_frontend_network.is_some() {
            rules.push(to(SetKind::InternalFrontend, Action::Jump(internal_frontend)));
            // A frontend with a second internal frontend has endpoints on this node.
            let led = self.fast_path().map(Action::MapToOtherHalf);
            rules.extend(led.map(|led| to(SetKind::LocalInternalFrontend, led)));
            rules.push(to(SetKind::NoLocalEndpoints, Action::Drop));
        }
        rules.push(Rule::new([], Action::KeepDestination));
        rules
    }

    fn masqueraded(&self) -> Vec<Rule> {
        let marked = Rule::new([], Action::SetMark(self.settings.mark));
        let kept = Rule::new([], Action::KeepDestination);
        [marked].into_iter().chain(self.led()).chain([kept]).collect()
    }

    /// Leads to the frontend's internal frontend on the fast path, by a translation that connection tracking goes on with.
    fn led(&self) -> Option<Rule> {
        self.fast_path().map(|network| {
            Rule::new([self.frontend(SetKind::InternalFrontend)], Action::MapDestination(network))
        })
    }

    /// The network of internal frontends that all clients are led to.
    fn fast_path(&self) -> Option<IpNet> {
        let is_off = self.settings.fast_path == FastPath::Off;
        self.settings.internal_frontend_network.filter(|_| !is_off)
    }

    /// Moves connections that were led to internal frontends to the flow table. An answer must not do it: a policy that drops
    /// what clients send, and knows no connections, would be passed by. Nor can a connection's first packet, which is not looked up.
    fn offloaded(&self) -> Rule {
        let (key, set) = (Key::OriginalFrontend, self.set(SetKind::InternalFrontend));
        let is_led = Match::InSet { key, set, is_not: false };
        Rule::new([Match::FirstDirection, Match::TranslatedBefore, is_led], Action::Offload)
    }

    /// Leads this node's pods from a frontend to its internal frontend; other clients come back.
    fn internal_frontend(&self, network: IpNet) -> Vec<Rule> {
        let lead = |matches: Vec<Match>| Rule::new(matches, Action::MapDestination(network));
        let interface = |name: &Arc<str>, is_prefix| Match::Interface {
            name: name.clone(),
            is_prefix,
            is_not: false,
        };
        match &self.settings.local {
            LocalTraffic::Unknown => Vec::new(),
            LocalTraffic::Cidr(net) => vec![lead(from_inside(net))],
            LocalTraffic::ClusterCidr { cluster, node } => {
                self.internal_frontend_of_cluster(cluster, node.as_ref(), &lead)
            }
            LocalTraffic::Bridge(name) => vec![lead(vec![interface(name, false)])],
            LocalTraffic::Prefix(name) => vec![lead(vec![interface(name, true)])],
        }
    }

    /// Leads every pod of the cluster, and masquerades those that may be another node's: the answer of an endpoint
    /// elsewhere would go past this node. Pods of other nodes come here only for an address of the node itself.
    fn internal_frontend_of_cluster(
        &self,
        cluster: &IpNet,
        node: Option<&IpNet>,
        lead: &dyn Fn(Vec<Match>) -> Rule,
    ) -> Vec<Rule> {
        let pods =
            |more: Option<Match>| from_inside(cluster).into_iter().chain(more).collect::<Vec<_>>();
        let routes = &self.settings.routes;
        let to_route = |net: &IpNet| Match::Destination { net: *net, is_not: false };
        let mut rules: Vec<Rule> = node.map(|net| lead(from_inside(net))).into_iter().collect();
        rules.push(lead(pods(Some(self.service_address()))));
        rules.extend(routes.iter().map(|route| lead(pods(Some(to_route(route))))));
        rules.push(Rule::new(pods(None), Action::SetMark(self.settings.mark)));
        rules.push(lead(pods(None)));
        rules
    }

    fn internal_frontend_from_node(&self, network: IpNet) -> Vec<Rule> {
        vec![
            Rule::new([], Action::SetMark(self.settings.mark)),
            Rule::new([], Action::MapDestination(network)),
        ]
    }

    fn postrouting(&self) -> Vec<Rule> {
        let (key, set) = (Key::FrontendAndSource, self.set(SetKind::LoopBack));
        let hairpin = Match::InSet { key, set, is_not: false };
        vec![
            Rule::new([Match::Marked(self.settings.mark)], Action::GoTo(MASQUERADING)),
            Rule::new([hairpin], Action::Masquerade { random_fully: false }),
        ]
    }

    fn masquerading(&self) -> Vec<Rule> {
        vec![
            // So that a packet that passes here again, in a tunnel, is not masqueraded again.
            Rule::new([], Action::ClearMark(self.settings.mark)),
            Rule::new([], Action::Masquerade { random_fully: self.settings.random_fully }),
        ]
    }

    fn frontend(&self, kind: SetKind) -> Match {
        Match::InSet { key: Key::Frontend, set: self.set(kind), is_not: false }
    }

    fn no_frontend(&self, kind: SetKind) -> Match {
        Match::InSet { key: Key::Frontend, set: self.set(kind), is_not: true }
    }

    fn port(&self, protocol: Protocol, kind: SetKind) -> Match {
        Match::InSet { key: Key::Port(protocol), set: self.set(kind), is_not: false }
    }

    fn service_address(&self) -> Match {
        Match::InSet { key: Key::Address, set: self.set(SetKind::IpvsAddresses), is_not: false }
    }

    fn set(&self, kind: SetKind) -> String {
        SetId { kind, family: self.family }.name().to_owned()
    }
}

/// Matches a source inside a network, which is every source if the network is everything.
fn from_inside(net: &IpNet) -> Vec<Match> {
    if net.prefix_len() == 0 {
        Vec::new()
    } else {
        vec![Match::Source { net: *net, is_not: false }]
    }
}
