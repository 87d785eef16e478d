//! Facts about this node: its Node object, its interfaces' addresses, its neighbours, its kernel, and
//! the endpoints that its operator drains.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::hand_drain::{HandDrain, HandDrains};
use crate::hash::{HashMap, HashSet};
use crate::model::{Family, Node};
use crate::pod_networks::PodNetworks;
use crate::scheduler::SchedulerName;
use crate::settings::{LocalDetection, NodePortAddresses, Settings, overlap};

/// Facts about this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    node: Node,
    /// Addresses of all interfaces but `kube-ipvs0`.
    local: HashSet<IpAddr>,
    /// Those of them that serve node ports, in order.
    node_ports: Vec<IpAddr>,
    /// The addresses of the cluster's other nodes, and the names of those that have each, in order.
    others: HashMap<IpAddr, Vec<Arc<str>>>,
    /// Networks of their pods, as far as they are known.
    other_pods: PodNetworks,
    /// Addresses and ports by which this node reaches the API server, whatever says so.
    api_server: BTreeSet<SocketAddr>,
    /// Number of endpoints at each address inside the networks of internal frontends, in all slices.
    endpoints_inside: HashMap<IpAddr, usize>,
    /// Schedulers that the kernel does not have.
    missing_schedulers: BTreeSet<SchedulerName>,
    /// Families with more than [`MANY_ENDPOINTS`].
    many_endpoints: BTreeSet<Family>,
    /// Families with service addresses that are local although rules lead to Services.
    bound: BTreeMap<Family, BoundAddresses>,
    /// Endpoints that an operator drains.
    hand_drains: HandDrains,
}

/// Service addresses of a family that are local to the node although rules lead to Services: for as
/// long as the node leaves IPVS mode, or comes to it. Those that are bound are in the set
/// [`SetKind::IpvsAddresses`](crate::sets::SetKind::IpvsAddresses), which has to be there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BoundAddresses {
    /// Networks that are local by a route, in order.
    pub routes: Vec<IpNet>,
    /// True if a pod that IPVS leads to itself is masqueraded: until the chains of Services are
    /// written, IPVS leads. Such pods are in the set
    /// [`SetKind::LoopBack`](crate::sets::SetKind::LoopBack), which has to be there.
    pub hairpins: bool,
    /// Packets that IPVS is shown copies of; none: it is shown no copies.
    pub copies: Option<SynCopies>,
}

/// Packets that IPVS is shown copies of, so that it forgets former connections: the first ones of TCP
/// connections to such addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SynCopies {
    /// True if those to node ports are copied, too. They are in the set
    /// [`SetKind::NodePortTcp`](crate::sets::SetKind::NodePortTcp), which has to be there.
    pub node_ports: bool,
}

/// Number of endpoints of all service ports of a family above which rules about endpoints have no
/// comments, as in kube-proxy (`largeClusterEndpointsThreshold` in pkg/proxy/iptables/proxier.go).
pub const MANY_ENDPOINTS: usize = 1_000;

impl NodeFacts {
    /// A node with this object, whose interfaces have these addresses.
    pub fn new(node: Node, local: impl IntoIterator<Item = IpAddr>, settings: &Settings) -> Self {
        let local: HashSet<IpAddr> = local.into_iter().collect();
        let node_ports = node_port_addresses(&node, &local, settings);
        Self { node, local, node_ports, ..Self::default() }
    }

    /// The same node with another object.
    #[must_use]
    pub fn with_node(self, node: Node, settings: &Settings) -> Self {
        let node_ports = node_port_addresses(&node, &self.local, settings);
        Self { node, node_ports, ..self }
    }

    /// The same node whose interfaces have other addresses.
    #[must_use]
    pub fn with_local_addresses(self, local: HashSet<IpAddr>, settings: &Settings) -> Self {
        let node_ports = node_port_addresses(&self.node, &local, settings);
        Self { local, node_ports, ..self }
    }

    /// True if this node, another node or an endpoint is known to have an address, which is inside the
    /// networks of internal frontends.
    pub(crate) fn is_in_use(&self, address: IpAddr) -> bool {
        self.local.contains(&address)
            || self.others.contains_key(&address)
            || self.endpoints_inside.contains_key(&address)
    }

    /// True if pods are known to be inside a network, or around it. Those of other nodes may then be
    /// anywhere in it: not of every node is it known where its pods are.
    pub(crate) fn has_pods_inside(&self, network: &IpNet) -> bool {
        self.node.pod_cidrs.iter().any(|pods| overlap(pods, network))
            || self.other_pods.overlap(network)
    }

    /// Notes an endpoint inside the networks of internal frontends. Returns true if its address is new.
    pub(crate) fn add_endpoint_inside(&mut self, address: IpAddr) -> bool {
        let count = self.endpoints_inside.entry(address).or_default();
        *count += 1;
        *count == 1
    }

    /// Notes that such an endpoint is gone. Returns true if it was the last one at its address.
    pub(crate) fn remove_endpoint_inside(&mut self, address: IpAddr) -> bool {
        let Some(count) = self.endpoints_inside.get_mut(&address) else { return false };
        *count -= 1;
        *count == 0 && self.endpoints_inside.remove(&address).is_some()
    }

    /// Notes that another node has an address. Returns true if it is the first one by name.
    pub(crate) fn add_other_node(&mut self, address: IpAddr, name: &Arc<str>) -> bool {
        let names = self.others.entry(address).or_default();
        let Err(place) = names.binary_search(name) else { return false };
        names.insert(place, Arc::clone(name));
        place == 0
    }

    /// Notes that another node has an address no more. Returns true if it was the first one by
    /// name.
    pub(crate) fn remove_other_node(&mut self, address: IpAddr, name: &Arc<str>) -> bool {
        // Two nodes with the same address are an error, and that is over when one of them goes.
        let Some(names) = self.others.get_mut(&address) else { return false };
        let Ok(place) = names.binary_search(name) else { return false };
        names.remove(place);
        if names.is_empty() {
            self.others.remove(&address);
        }
        place == 0
    }

    /// Notes that another node's pods are inside a network. Returns true if that is new.
    pub(crate) fn add_other_pods(&mut self, network: IpNet) -> bool {
        self.other_pods.add(network)
    }

    /// Notes that another node's pods are inside a network no more. Returns true if no node's are.
    pub(crate) fn remove_other_pods(&mut self, network: IpNet) -> bool {
        self.other_pods.remove(network)
    }

    /// Notes whether the kernel lacks a scheduler. Returns whether that is new.
    pub(crate) fn note_scheduler(&mut self, scheduler: &SchedulerName, is_missing: bool) -> bool {
        if is_missing {
            self.missing_schedulers.insert(scheduler.clone())
        } else {
            self.missing_schedulers.remove(scheduler)
        }
    }

    /// Notes that an operator drains endpoints, or no longer does. Returns whether that is new.
    pub(crate) fn note_hand_drain(&mut self, drain: &HandDrain, is_drained: bool) -> bool {
        if is_drained {
            self.hand_drains.insert(drain.clone())
        } else {
            self.hand_drains.remove(drain)
        }
    }

    /// Endpoints that an operator drains.
    #[must_use]
    pub fn hand_drains(&self) -> &HandDrains {
        &self.hand_drains
    }

    /// The other node whose address this is, unless it is this one's as well.
    #[must_use]
    pub fn other_node(&self, address: IpAddr) -> Option<&Arc<str>> {
        self.others.get(&address)?.first().filter(|_| !self.local.contains(&address))
    }

    /// Notes where the API server is reached. Returns the addresses of which that is new.
    pub(crate) fn note_api_server(&mut self, new: BTreeSet<SocketAddr>) -> BTreeSet<IpAddr> {
        let former = std::mem::replace(&mut self.api_server, new);
        former.symmetric_difference(&self.api_server).map(SocketAddr::ip).collect()
    }

    /// True if the API server is reached by an address.
    pub(crate) fn has_api_server(&self, address: IpAddr) -> bool {
        self.api_server.iter().any(|server| server.ip() == address)
    }

    /// The ports at which the API server is reached by an address, unless this node has it.
    pub(crate) fn api_server_ports(&self, address: IpAddr) -> impl Iterator<Item = u16> {
        let is_elsewhere = !self.local.contains(&address);
        let all = SocketAddr::new(address, 0)..=SocketAddr::new(address, u16::MAX);
        self.api_server.range(all).filter(move |_| is_elsewhere).map(SocketAddr::port)
    }

    /// The ports at which the API server listens on this node's own addresses.
    pub(crate) fn own_api_server_ports(&self) -> impl Iterator<Item = u16> {
        self.api_server.iter().filter(|it| self.local.contains(&it.ip())).map(SocketAddr::port)
    }

    /// The network of pods that an address is inside of, unless this node has the address.
    ///
    /// A network that has a Service's own cluster address as well is not of pods only: some write
    /// one around all that the cluster has, load balancers included.
    pub(crate) fn pod_network_around(
        &self,
        address: IpAddr,
        cluster_address: Option<IpAddr>,
        settings: &Settings,
    ) -> Option<IpNet> {
        let configured: &[IpNet] = match &settings.local_detection {
            LocalDetection::ClusterCidr(networks) => networks,
            _ => &[],
        };
        let others = self.other_pods.around(address);
        let mut networks = self.node.pod_cidrs.iter().chain(configured).copied().chain(others);
        let is_of_pods = |network: &IpNet| {
            network.contains(&address) && !cluster_address.is_some_and(|it| network.contains(&it))
        };
        networks.find(is_of_pods).filter(|_| !self.local.contains(&address))
    }

    /// True if all service ports of a family together have very many endpoints.
    #[must_use]
    pub fn has_many_endpoints(&self, family: Family) -> bool {
        self.many_endpoints.contains(&family)
    }

    /// Notes whether all service ports of a family together have very many endpoints. Returns
    /// whether that is new.
    pub(crate) fn note_many_endpoints(&mut self, family: Family, are_many: bool) -> bool {
        if are_many {
            self.many_endpoints.insert(family)
        } else {
            self.many_endpoints.remove(&family)
        }
    }

    /// The service addresses of a family that are local although rules lead to Services; none if
    /// there are none.
    #[must_use]
    pub fn bound(&self, family: Family) -> Option<&BoundAddresses> {
        self.bound.get(&family)
    }

    /// Notes the families with such addresses. Returns those where that is new.
    pub(crate) fn note_bound(&mut self, bound: BTreeMap<Family, BoundAddresses>) -> Vec<Family> {
        let former = std::mem::replace(&mut self.bound, bound);
        let is_new = |family: &Family| former.get(family) != self.bound.get(family);
        Family::BOTH.into_iter().filter(is_new).collect()
    }

    /// True if the kernel is known not to have a scheduler.
    #[must_use]
    pub fn lacks_scheduler(&self, scheduler: &SchedulerName) -> bool {
        self.missing_schedulers.contains(scheduler)
    }

    /// Returns the facts from the Node object.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The address by which the cluster knows this node: the first one of the family.
    #[must_use]
    pub fn own_address(&self, family: Family) -> Option<IpAddr> {
        own_address(&self.node, family)
    }

    /// The address on which the relay of mode userspace listens: that by which the cluster knows this
    /// node, if it is at an interface, and else the lowest one.
    #[must_use]
    pub fn relay_address(&self, family: Family) -> Option<IpAddr> {
        let own = self.own_address(family).filter(|own| self.local.contains(own));
        own.or_else(|| {
            let others = self.local.iter().copied().filter(|address| {
                Family::of(*address) == family
                    && !address.is_loopback()
                    && !address.is_unspecified()
                    && !is_link_local_v6(*address)
            });
            others.min()
        })
    }

    /// The first of the Node's `podCIDRs` of a family.
    fn pod_cidr(&self, family: Family) -> Option<IpNet> {
        self.node.pod_cidrs.iter().copied().find(|net| Family::of_net(net) == family)
    }

    /// The network of this node's pods, as far as the rules have to know it.
    ///
    /// Beside a cluster's network it has to be in use, which an address of the node in it shows: a
    /// network plugin with pools of its own leaves the Node's `podCIDRs` unused, and other nodes'
    /// pods may be inside.
    #[must_use]
    pub fn pod_network(&self, settings: &Settings, family: Family) -> Option<IpNet> {
        let has_address = |net: &IpNet| self.local.iter().any(|address| net.contains(address));
        match settings.local_detection {
            LocalDetection::NodeCidr => self.pod_cidr(family),
            LocalDetection::ClusterCidr(_) => self.pod_cidr(family).filter(has_address),
            _ => None,
        }
    }

    /// The addresses of all interfaces but `kube-ipvs0`.
    #[must_use]
    pub fn local_addresses(&self) -> &HashSet<IpAddr> {
        &self.local
    }

    /// The networks of a family in which this node's addresses serve NodePorts. One of length 0: all
    /// of them do.
    #[must_use]
    pub fn node_port_networks(&self, settings: &Settings, family: Family) -> Vec<IpNet> {
        let everything = match family {
            Family::V4 => IpNet::V4(Ipv4Net::default()),
            Family::V6 => IpNet::V6(Ipv6Net::default()),
        };
        let (own, chosen) = match &settings.node_port_addresses {
            NodePortAddresses::Primary(besides) => (self.own_address(family), &besides[..]),
            NodePortAddresses::Networks(chosen) => (None, &chosen[..]),
            NodePortAddresses::All => (None, &[][..]),
        };
        if settings.node_port_addresses.are_all(family) {
            return vec![everything];
        }
        let chosen = chosen.iter().filter(|net| Family::of_net(net) == family);
        let mut networks: Vec<IpNet> = chosen.map(IpNet::trunc).collect();
        networks.extend(own.map(IpNet::from));
        networks.sort_unstable();
        networks.dedup();
        networks
    }

    /// The addresses of a family that serve node ports, in order.
    pub fn node_port_addresses(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.node_ports.iter().copied().filter(move |address| Family::of(*address) == family)
    }
}

/// Never loopback: IPVS does not balance what comes from there.
fn node_port_addresses(node: &Node, local: &HashSet<IpAddr>, settings: &Settings) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for family in &settings.families {
        let serves = served(node, settings, *family);
        addresses.extend(local.iter().copied().filter(|address| {
            Family::of(*address) == *family
                && !address.is_loopback()
                && !address.is_unspecified()
                && serves(*address)
        }));
    }
    addresses.sort_unstable();
    addresses
}

/// Returns a test for the addresses of a family that the operator has chosen. If that is all of
/// them, link-local IPv6 addresses are left out, since every interface of every pod has one on the
/// node's side.
fn served<'a>(
    node: &Node,
    settings: &'a Settings,
    family: Family,
) -> Box<dyn Fn(IpAddr) -> bool + 'a> {
    let networks = match &settings.node_port_addresses {
        NodePortAddresses::All => &[][..],
        NodePortAddresses::Networks(networks) => networks,
        NodePortAddresses::Primary(besides) => {
            let own = own_address(node, family);
            return Box::new(move |address| {
                let is_inside = |net: &IpNet| {
                    net.contains(&address) && (net.prefix_len() > 0 || !is_link_local_v6(address))
                };
                Some(address) == own || besides.iter().any(is_inside)
            });
        }
    };
    if settings.node_port_addresses.are_all(family) {
        Box::new(|address| !is_link_local_v6(address))
    } else {
        Box::new(move |address| networks.iter().any(|net| net.contains(&address)))
    }
}

fn own_address(node: &Node, family: Family) -> Option<IpAddr> {
    node.addresses.iter().copied().find(|address| Family::of(*address) == family)
}

fn is_link_local_v6(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}
