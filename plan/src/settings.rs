//! Settings of the operator, resolved.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::address::can_be_bound;
use crate::capacity::Capacity;
use crate::mode::Mode;
use crate::model::{Family, Protocol};
use crate::network;
use crate::scheduler::SchedulerName;

/// Everything an operator can choose that changes what is planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// This node's name, as EndpointSlices have it in `nodeName`.
    pub node_name: Arc<str>,
    /// Mechanism by which the node balances.
    pub mode: Mode,
    /// The families that this host can do.
    pub families: Vec<Family>,
    /// The scheduler of every virtual server.
    pub scheduler: SchedulerName,
    /// Masquerade everything sent to a cluster address.
    pub masquerade_all: bool,
    /// The bit of the packet mark that means "masquerade this", 0 to 31.
    pub masquerade_bit: u8,
    /// True if masquerading picks source ports at random (`--random-fully`, iptables 1.6.2).
    pub random_fully: bool,
    /// Criterion for traffic from this node's own pods. Such traffic is not masqueraded.
    pub local_detection: LocalDetection,
    /// Addresses at which node ports are served.
    pub node_port_addresses: NodePortAddresses,
    /// True if node ports are served on loopback addresses too, as far as a process can.
    pub localhost_node_ports: bool,
    /// True if mode iptables serves IPv4 node ports on loopback addresses, by rules: kube-proxy's
    /// `iptables.localhostNodePorts`, where node port addresses include loopback ones.
    pub iptables_localhost_node_ports: bool,
    /// True if mode iptables drops packets that connection tracking calls invalid: not where
    /// `nf_conntrack_tcp_be_liberal` is on.
    pub drop_invalid: bool,
    /// True if rules may count packets by name (the match `nfacct`).
    pub nfacct: bool,
    /// Protocols that the mode cannot balance on this kernel: in mode ipvs their ports are refused, in the
    /// others no rule can be about them.
    pub unbalanced: Vec<Protocol>,
    /// Families in which a node that leaves mode ipvs shows IPVS copies of packets
    /// ([`SynCopies`](crate::facts::SynCopies)).
    pub syn_copies: Vec<Family>,
    /// True if `spec.externalIPs` counts (the feature gate `AllowServiceExternalIPs`).
    pub external_ips: bool,
    /// True if a Service is served at its load balancer's address although another Node's status
    /// has it. That node is cut off from all others if the address is really its own.
    pub load_balancers_before_nodes: bool,
    /// Says if the rules of IPVS mode accept Service traffic.
    pub accept_service_traffic: AcceptServiceTraffic,
    /// Form of the constant rules of IPVS mode; [`Settings::has_tables`] says which is in force.
    pub rule_form: RuleForm,
    /// Path of established connections in IPVS mode.
    pub fast_path: FastPath,
    /// Port at which the health server listens on all addresses; none: it does not.
    pub health_port: Option<u16>,
    /// Networks of the internal frontends: see [`InternalFrontendNetworks`].
    pub internal_frontend_networks: InternalFrontendNetworks,
    /// The networks of the internal frontends that mode ipvs has, whatever the mode is: what it left inside
    /// them is ours.
    pub ipvs_internal_frontend_networks: InternalFrontendNetworks,
    /// The networks in which a local route stands for the addresses: these are not bound one by
    /// one. None: all addresses are.
    pub service_routes: Vec<IpNet>,
    /// Those of them in which addresses are bound all the same: while the node changes from one way
    /// to the other ([`Planner::set_service_routes`](crate::planner::Planner::set_service_routes)).
    pub bound_routes: Vec<IpNet>,
    /// Networks in which everything belongs to others: never changed, never removed.
    pub exclude: Vec<IpNet>,
    /// TCP ports at this node's addresses on which programs of the node listen.
    pub listeners: Vec<(u16, Listener)>,
    /// Limits to what one Service may take of this node.
    pub limits: Limits,
}

/// A program that listens at this node's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Listener {
    /// kube-ipvs' own health checks.
    Health,
    /// kube-ipvs' own metrics.
    Metrics,
    /// The kubelet's API.
    Kubelet,
    /// The API server.
    ApiServer,
}

/// The kubelet's default port (`KubeletPort` in Kubernetes' pkg/cluster/ports/ports.go).
pub const KUBELET_PORT: u16 = 10_250;

/// Limits to what one Service may take of a node. The defaults are far above what Services need:
/// they keep one object from taking all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Frontends of one Service, internal frontends included.
    pub frontends: usize,
    /// Real servers of one Service in all of its virtual servers; and endpoints of all its ports. Where
    /// rules lead, source ranges count as well.
    pub real_servers: usize,
    /// Entries of one Service in one set.
    pub set_entries: usize,
    /// The largest that a set may grow.
    pub set_size: Capacity,
    /// The schedulers that an annotation may ask for; empty: all.
    pub schedulers: Vec<SchedulerName>,
}

/// A limit that one Service may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Limit {
    /// [`Limits::frontends`]
    Frontends,
    /// [`Limits::real_servers`]
    RealServers,
    /// [`Limits::set_entries`]
    SetEntries,
}

/// Addresses of this node at which node ports are served.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NodePortAddresses {
    /// All of them.
    #[default]
    All,
    /// Those inside these networks; all of a family of which none is named.
    Networks(Vec<IpNet>),
    /// Those by which the cluster knows this node, the first one of each family in its Node object
    /// (none as long as that is not known), and those inside these networks.
    Primary(Vec<IpNet>),
}

/// The networks of the internal frontends.
///
/// A frontend with externalTrafficPolicy Local promises one thing to clients outside the cluster
/// (this node's endpoints) and another to the cluster's own (all endpoints), and IPVS has one list
/// of real servers for each address and port. So it has an internal frontend, which is for the cluster's
/// own clients: the same port at another address, the frontend's with the first bits replaced by
/// this network's. The rules turn one into the other for those clients (`NETMAP`).
///
/// On the fast path all clients are led to internal frontends, and such a frontend has a second one, for clients outside: at
/// the same address in the other half of the network.
///
/// Two frontends whose addresses differ in the first bits only would have the same internal frontend:
/// the one with the better claim has it, the other one has none, and an Event says so. So it is if
/// no host can have the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InternalFrontendNetworks {
    /// For IPv4; none: no internal frontends.
    pub v4: Option<Ipv4Net>,
    /// For IPv6; none: no internal frontends.
    pub v6: Option<Ipv6Net>,
}

/// Form of the constant rules of mode ipvs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuleForm {
    /// Rules of iptables that look into ipsets ([`rule_set`](crate::rule_set)).
    #[default]
    Iptables,
    /// Tables of nf_tables ([`nft`](crate::rule_set::nft)).
    Nftables,
}

/// Way of the packets of established connections in mode ipvs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FastPath {
    /// IPVS looks up and translates each packet.
    #[default]
    Off,
    /// IPVS chooses the endpoint of the first packet, and connection tracking translates the others: clients are led to a
    /// internal frontend at every frontend whose clients all have the same endpoints. Only rules in nf_tables lead there.
    Conntrack,
    /// The same, and the kernel's flow table takes connections that are forwarded past all hooks (since Linux 6.1).
    Offload,
}

impl FastPath {
    /// Returns the word of the configuration for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Conntrack => "conntrack",
            Self::Offload => "offload",
        }
    }
}

impl RuleForm {
    /// Returns the word of the configuration for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

/// Choice whether the rules of mode ipvs let new connections to frontends in. There, unlike in the
/// other modes, these pass INPUT before they are balanced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AcceptServiceTraffic {
    /// They are let in before the host's other rules, as if they did not pass INPUT.
    #[default]
    Always,
    /// The host's other rules decide, as with kube-proxy.
    Never,
}

/// Criterion by which traffic from this node's own pods is recognised.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalDetection {
    /// Not at all.
    #[default]
    None,
    /// `ClusterCIDR`: it comes from inside the first of these of its family.
    ClusterCidr(Vec<IpNet>),
    /// `NodeCIDR`: it comes from inside the Node's first `podCIDRs` of its family.
    NodeCidr,
    /// `BridgeInterface`: it arrives by this bridge.
    BridgeInterface(Arc<str>),
    /// `InterfaceNamePrefix`: it arrives by an interface whose name begins so.
    InterfaceNamePrefix(Arc<str>),
}

impl Settings {
    /// True if sets and constant rules are in tables of nf_tables.
    #[must_use]
    pub fn has_tables(&self) -> bool {
        self.mode.has_virtual_servers() && self.rule_form == RuleForm::Nftables
    }

    /// True if connection tracking translates established connections of frontends whose clients all have the same endpoints.
    #[must_use]
    pub fn has_fast_path(&self) -> bool {
        self.fast_path_in_force() != FastPath::Off
    }

    /// Returns the way of established connections that the form of the rules has.
    #[must_use]
    pub fn fast_path_in_force(&self) -> FastPath {
        if self.has_tables() { self.fast_path } else { FastPath::Off }
    }

    /// True if rules let new connections to frontends in. In nf_tables accepting ends a chain, and not the hook.
    #[must_use]
    pub fn lets_traffic_in(&self) -> bool {
        self.accept_service_traffic == AcceptServiceTraffic::Always && !self.has_tables()
    }

    /// Settings for a node of this name, everything else as kube-proxy has it by default.
    pub fn new(node_name: impl Into<Arc<str>>) -> Self {
        Self {
            node_name: node_name.into(),
            mode: Mode::default(),
            families: Family::BOTH.to_vec(),
            scheduler: SchedulerName::default(),
            masquerade_all: false,
            masquerade_bit: 14,
            random_fully: true,
            local_detection: LocalDetection::None,
            node_port_addresses: NodePortAddresses::All,
            localhost_node_ports: false,
            iptables_localhost_node_ports: false,
            drop_invalid: true,
            nfacct: false,
            unbalanced: Vec::new(),
            syn_copies: Vec::new(),
            external_ips: true,
            load_balancers_before_nodes: false,
            accept_service_traffic: AcceptServiceTraffic::default(),
            rule_form: RuleForm::default(),
            fast_path: FastPath::default(),
            health_port: Some(10_256),
            internal_frontend_networks: InternalFrontendNetworks::default(),
            ipvs_internal_frontend_networks: InternalFrontendNetworks::default(),
            service_routes: Vec::new(),
            bound_routes: Vec::new(),
            exclude: Vec::new(),
            listeners: vec![(KUBELET_PORT, Listener::Kubelet)],
            limits: Limits::default(),
        }
    }

    /// True if an address is excluded: what is found there, and is not desired, is left alone.
    #[must_use]
    pub fn excludes(&self, address: IpAddr) -> bool {
        self.exclude.iter().any(|net| net.contains(&address))
    }

    /// True if an address is local by a route.
    #[must_use]
    pub fn is_routed(&self, address: IpAddr) -> bool {
        self.all_routes().any(|net| net.contains(&address)) && !self.excludes(address)
    }

    /// Returns the local route by which an address is local.
    #[must_use]
    pub fn route_to(&self, address: IpAddr) -> Option<IpNet> {
        if !self.is_routed(address) {
            return None;
        }
        self.routes(Family::of(address)).into_iter().find(|net| net.contains(&address))
    }

    /// Returns the addresses at which a frontend at this one may have internal frontends.
    pub fn internal_frontends_of(&self, address: IpAddr) -> impl Iterator<Item = IpAddr> {
        let networks = self.internal_frontend_networks;
        let local = networks.local_address_for(address).filter(|_| self.has_fast_path());
        networks.address_for(address).into_iter().chain(local)
    }

    /// True if a service address is bound, and not only local by a route.
    #[must_use]
    pub fn is_to_be_bound(&self, address: IpAddr) -> bool {
        let unbound = self.service_routes.iter().filter(|net| !self.bound_routes.contains(net));
        let mut unbound = self.with_internal_frontends(unbound.copied());
        self.excludes(address) || !unbound.any(|net| net.contains(&address))
    }

    /// Networks that are local by a route.
    fn all_routes(&self) -> impl Iterator<Item = IpNet> {
        self.with_internal_frontends(self.service_routes.iter().copied())
    }

    /// Returns these networks of Services and those of internal frontends that have a route with them, on the fast path.
    /// All of IPv6's has one, since each address would make new connections dearer. Of IPv4's, those parts have one that
    /// internal frontends of these networks are in: with a local route of IPv4, the kernel looks up the source of every
    /// packet that it forwards (`fib_has_custom_local_routes` in net/ipv4/fib_frontend.c).
    fn with_internal_frontends(
        &self,
        service_routes: impl Iterator<Item = IpNet>,
    ) -> impl Iterator<Item = IpNet> {
        let has_fast_path = self.has_fast_path();
        let networks = self.internal_frontend_networks;
        let of_v6 = networks.v6.filter(|_| has_fast_path).map(IpNet::V6);
        let and_own = move |network: IpNet| {
            let own = networks.routed_for(network).filter(|_| has_fast_path);
            [Some(network), own].into_iter().flatten()
        };
        service_routes.flat_map(and_own).chain(of_v6)
    }

    /// Returns the networks with a local route that is there for these ones of Services.
    #[must_use]
    pub fn routed_with(&self, service_routes: &[IpNet]) -> Vec<IpNet> {
        self.with_internal_frontends(service_routes.iter().copied()).collect()
    }

    /// True if there should be this local route.
    #[must_use]
    pub fn has_route(&self, network: &IpNet) -> bool {
        let family = Family::of_net(network);
        self.families.contains(&family) && self.routes(family).contains(network)
    }

    /// The local routes of a family, in order: none leads an excluded address here, where Services'
    /// addresses are bound one by one.
    #[must_use]
    pub fn routes(&self, family: Family) -> Vec<IpNet> {
        let of_family = self.all_routes().filter(|net| Family::of_net(net) == family);
        let mut routes: Vec<IpNet> =
            of_family.flat_map(|net| network::without(net, &self.exclude)).collect();
        routes.sort_unstable();
        routes.dedup();
        routes
    }
}

impl NodePortAddresses {
    /// True if node ports of a family are served at every address of the node: no network of the
    /// family is none that restricts it, and one of length 0 restricts nothing.
    #[must_use]
    pub fn are_all(&self, family: Family) -> bool {
        match self {
            Self::All => true,
            Self::Networks(networks) => {
                let mut chosen = networks.iter().filter(|net| Family::of_net(net) == family);
                chosen.clone().next().is_none() || chosen.any(|net| net.prefix_len() == 0)
            }
            Self::Primary(_) => false,
        }
    }

    /// The networks that are named.
    pub(crate) fn networks(&self) -> &[IpNet] {
        match self {
            Self::All => &[],
            Self::Networks(networks) | Self::Primary(networks) => networks,
        }
    }

    /// True if node ports may be served at an IPv6 link-local address: a network of these has some.
    #[must_use]
    pub fn may_be_link_local(&self) -> bool {
        let link_local = Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);
        let overlaps = |net: &Ipv6Net| net.contains(&link_local) || link_local.contains(net);
        let has =
            |net: &IpNet| matches!(net, IpNet::V6(net) if net.prefix_len() > 0 && overlaps(net));
        self.networks().iter().any(has)
    }
}

impl Limits {
    /// The number that a limit is.
    #[must_use]
    pub const fn of(&self, limit: Limit) -> usize {
        match limit {
            Limit::Frontends => self.frontends,
            Limit::RealServers => self.real_servers,
            Limit::SetEntries => self.set_entries,
        }
    }
}

impl Limits {
    /// The defaults of a mode. In iptables mode an endpoint of a port is a chain with two rules, and
    /// one rule more or several that choose it.
    #[must_use]
    pub fn of_mode(mode: Mode) -> Self {
        let real_servers = if mode.leads_by_rules() { 50_000 } else { 1_000_000 };
        Self {
            frontends: 65_536,
            real_servers,
            set_entries: 131_072,
            set_size: Capacity::new(4_194_304),
            schedulers: Vec::new(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::of_mode(Mode::default())
    }
}

impl fmt::Display for Limit {
    /// Writes the name that it has in the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Frontends => "limits.frontends",
            Self::RealServers => "limits.realServers",
            Self::SetEntries => "limits.setEntries",
        })
    }
}

impl InternalFrontendNetworks {
    /// No internal frontends at all.
    pub const NONE: Self = Self { v4: None, v6: None };

    /// Networks that are reserved and mostly not in use: 240.0.0.0/4 (RFC 1112, class E) and a part of
    /// the abolished site-local addresses (RFC 3879), feff::/16.
    pub const DEFAULT: Self = Self {
        v4: Some(Ipv4Net::new_assert(Ipv4Addr::new(240, 0, 0, 0), 4)),
        v6: Some(Ipv6Net::new_assert(Ipv6Addr::new(0xfeff, 0, 0, 0, 0, 0, 0, 0), 16)),
    };

    /// Networks that stand in for default ones that are in use: no host has an address there (RFC 1122,
    /// and another part of the site-local addresses). Earlier versions had a second internal frontend in
    /// them for a frontend whose first one another Service had.
    pub const SPARE: Self = Self {
        v4: Some(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8)),
        v6: Some(Ipv6Net::new_assert(Ipv6Addr::new(0xfefe, 0, 0, 0, 0, 0, 0, 0), 16)),
    };

    /// The network of a family.
    #[must_use]
    pub fn of(&self, family: Family) -> Option<IpNet> {
        match family {
            Family::V4 => self.v4.map(IpNet::V4),
            Family::V6 => self.v6.map(IpNet::V6),
        }
    }

    /// The network that an address is inside, if an internal frontend could be there: 0.0.0.0 and the
    /// like are not ours.
    #[must_use]
    pub fn around(&self, address: IpAddr) -> Option<IpNet> {
        let network = self.of(Family::of(address))?;
        (network.contains(&address) && can_be_bound(address)).then_some(network)
    }

    /// True if an internal frontend may be at an address, or may have been in an earlier version, which
    /// had two networks: see [`Self::SPARE`].
    #[must_use]
    pub fn may_have_had(&self, address: IpAddr) -> bool {
        let is_spare =
            self.of(Family::of(address)).is_some() && Self::SPARE.around(address).is_some();
        is_spare || self.around(address).is_some()
    }

    /// An address's internal frontend; none if there are none, if it would be the address itself, or if
    /// no host can have it.
    #[must_use]
    pub fn address_for(&self, address: IpAddr) -> Option<IpAddr> {
        let mapped = network::inside(self.of(Family::of(address))?, address);
        (mapped != address && can_be_bound(mapped)).then_some(mapped)
    }

    /// The part of IPv4's network that the internal frontends of a network of Services are in; none if it has an address
    /// that no host can have, as a local route would have it answered, or if it would be the network itself.
    fn routed_for(&self, network: IpNet) -> Option<IpNet> {
        let IpNet::V4(own) = self.of(Family::of_net(&network))? else { return None };
        let length = network.prefix_len().max(own.prefix_len());
        let first = network::inside(own.into(), network.network());
        let part = IpNet::new(first, length).ok()?.trunc();
        let is_clear = can_be_bound(part.network()) && can_be_bound(part.broadcast());
        (part != network && is_clear).then_some(part)
    }

    /// An address's internal frontend with this node's endpoints, on the fast path; none as for
    /// [`address_for`](Self::address_for), and for an address inside the network.
    #[must_use]
    pub fn local_address_for(&self, address: IpAddr) -> Option<IpAddr> {
        let network = self.of(Family::of(address)).filter(|network| !network.contains(&address))?;
        Some(network::in_other_half(network, address)).filter(|mapped| can_be_bound(*mapped))
    }
}

/// True if networks have addresses in common.
#[must_use]
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

impl Default for InternalFrontendNetworks {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_frontends_of_a_routed_network_have_a_route_of_their_own_where_it_is_all_theirs() {
        for (own, network, part) in [
            ("240.0.0.0/4", "10.96.0.0/12", Some("250.96.0.0/12")),
            ("240.0.0.0/4", "34.118.224.0/20", Some("242.118.224.0/20")),
            ("240.16.0.0/12", "10.0.0.0/8", Some("240.16.0.0/12")),
            ("0.0.0.0/8", "10.96.0.0/12", Some("0.96.0.0/12")),
            // 255.255.255.255 and 0.0.0.0 would be inside.
            ("240.0.0.0/4", "31.240.0.0/12", None),
            ("0.0.0.0/8", "10.0.0.0/12", None),
            ("240.0.0.0/4", "240.96.0.0/12", None),
            ("240.0.0.0/4", "fd00:96::/108", None),
        ] {
            let networks = InternalFrontendNetworks { v4: own.parse().ok(), v6: None };
            let network: IpNet = network.parse().unwrap();
            let expected = part.map(|it| it.parse::<IpNet>().unwrap());
            assert_eq!(networks.routed_for(network), expected, "{own} {network}");
            let Some(part) = expected else { continue };
            for address in [network.network(), network.broadcast()] {
                let internal = networks.address_for(address).unwrap();
                assert!(part.contains(&internal), "{own} {network} {internal}");
            }
        }
    }

    #[test]
    fn node_ports_are_link_local_only_where_a_network_of_these_is_chosen() {
        let mk = |networks: &[&str]| {
            let networks = networks.iter().map(|net| net.parse().unwrap()).collect();
            NodePortAddresses::Networks(networks)
        };
        for networks in [&["fe80::/64"][..], &["10.0.0.0/8", "fe80::1/128"], &["fe00::/8"]] {
            assert!(mk(networks).may_be_link_local(), "{networks:?}");
        }
        for networks in [&["::/0"][..], &["fd00::/8", "169.254.0.0/16"], &[]] {
            assert!(!mk(networks).may_be_link_local(), "{networks:?}");
        }
        assert!(!NodePortAddresses::All.may_be_link_local());
    }
}
