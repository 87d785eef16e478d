//! Lays out a cluster: nodes with pods, and clients outside, on one underlay.
//!
//! ```text
//!                  fabric (bridge in a namespace of its own, 192.168.0.1, forwards nothing)
//!        ┌──────────────┬──────────────┬───────────────┐
//!   eth0 .11       eth0 .12       eth0 .13        eth0 .100
//!     node1          node2          node3           client1
//!   cni0 10.244.1.1
//!     ├─ pod1-1 10.244.1.11
//!     └─ pod1-2 10.244.1.12
//! ```
//!
//! The setup is that of a kubelet and a CNI with plain routes: addresses, routes, forwarding,
//! hairpin on the pods' ports, bridged packets shown to iptables. Everything that is a service
//! proxy's business is left alone.
//!
//! A kernel without `br_netfilter` translates no packet that crosses a bridge. For such a host there are
//! [routed cables](PodCables::Routed).

use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result, bail};

use crate::addresses::{self, MAX_CLIENTS, MAX_NODES, MAX_PODS, ROUTED_IPV4, ROUTED_IPV6};
use crate::dump::dump;
use crate::namespace::Namespace;

/// Specification of a cluster to build.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// The nodes, from the first.
    pub nodes: Vec<NodeSpec>,
    /// Number of clients outside the cluster.
    pub clients: u8,
    /// True if there is IPv6. Without, it is disabled in every namespace, and only IPv4 addresses
    /// exist.
    pub ipv6: bool,
    /// Cables of all nodes.
    pub pod_cables: PodCables,
}

/// One node to build.
#[derive(Clone, Copy, Debug)]
pub struct NodeSpec {
    /// Number of pods on the node.
    pub pods: u8,
}

/// A running cluster. It disappears when dropped.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Host>,
    /// By node.
    pods: Vec<Vec<Host>>,
    clients: Vec<Host>,
    /// The underlay's bridge lives here.
    fabric: Namespace,
}

/// Cables from a node to its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodCables {
    /// All end on one bridge, `cni0`.
    Bridge,
    /// Each stands alone, with a route for its pod's address and the node's address towards its pods, as the plugin `ptp`
    /// lays them.
    Routed,
}

/// Variable by which a guest says that it was made into Enterprise Linux, whose kernel has no `br_netfilter`.
const ENTERPRISE_LINUX: &str = "KUBE_IPVS_ENTERPRISE_LINUX";

/// Sysctl of `br_netfilter` by which packets that cross a bridge pass iptables.
const BRIDGE_FILTERING: &str = "net/bridge/bridge-nf-call-iptables";

/// A node, a pod or a client.
#[derive(Debug)]
pub struct Host {
    /// `node1`, `pod1-2` (the second pod of the first node), `client1`.
    pub name: String,
    /// Network namespace of the host.
    pub namespace: Namespace,
    /// Its address; a node's is the one on the underlay.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address, if the cluster has IPv6.
    pub ipv6: Option<Ipv6Addr>,
}

impl Default for ClusterSpec {
    /// Two nodes with two pods each, one client, both families.
    fn default() -> Self {
        let nodes = vec![NodeSpec { pods: 2 }; 2];
        Self { nodes, clients: 1, ipv6: true, pod_cables: PodCables::of_host() }
    }
}

impl ClusterSpec {
    fn check(&self) -> Result<()> {
        let nodes = self.nodes.len();
        if nodes == 0 || nodes > usize::from(MAX_NODES) {
            bail!("a cluster has 1 to {MAX_NODES} nodes, not {nodes}");
        }
        if let Some(node) = self.nodes.iter().find(|node| node.pods > MAX_PODS) {
            bail!("a node has at most {MAX_PODS} pods, not {}", node.pods);
        }
        if self.clients > MAX_CLIENTS {
            bail!("a cluster has at most {MAX_CLIENTS} clients, not {}", self.clients);
        }
        Ok(())
    }

    /// The nodes with their numbers, from one.
    fn numbered(&self) -> impl Iterator<Item = (u8, NodeSpec)> + '_ {
        (1..).zip(self.nodes.iter().copied())
    }

    /// One label for each namespace, in the order in which hosts are made.
    fn labels(&self) -> Vec<String> {
        let mut labels = vec!["fabric".to_owned()];
        for (number, node) in self.numbered() {
            labels.push(node_name(number));
            labels.extend((1..=node.pods).map(|pod| pod_name(number, pod)));
        }
        labels.extend((1..=self.clients).map(client_name));
        labels
    }
}

impl Cluster {
    /// Builds it; when this returns, every host can reach every other.
    ///
    /// # Errors
    /// When the numbers do not fit the address plan, or a step fails; then nothing stays behind.
    pub fn build(spec: &ClusterSpec) -> Result<Self> {
        spec.check()?;
        let cluster = Self::create_namespaces(spec)?;
        cluster.lay_cables(spec.ipv6).context("laying the cables of the underlay")?;
        let cables = spec.pod_cables;
        for (number, node) in spec.numbered() {
            cluster
                .configure_node(number, cables)
                .with_context(|| format!("setting up {}", node_name(number)))?;
            for pod in 1..=node.pods {
                let host = cluster.pod(number, pod)?;
                host.namespace
                    .configure_links(&cables.lines_of_pod(host, number))
                    .with_context(|| format!("setting up {}", host.name))?;
            }
        }
        for client in &cluster.clients {
            client
                .namespace
                .configure_links(&client_lines(client, cluster.node(1)?))
                .with_context(|| format!("setting up {}", client.name))?;
        }
        Ok(cluster)
    }

    /// A node by its number, from one.
    ///
    /// # Errors
    /// When the cluster has no such node.
    pub fn node(&self, node: u8) -> Result<&Host> {
        numbered(&self.nodes, node).with_context(|| format!("the cluster has no node{node}"))
    }

    /// A pod by the number of its node and its own, both from one.
    ///
    /// # Errors
    /// When the cluster has no such pod.
    pub fn pod(&self, node: u8, pod: u8) -> Result<&Host> {
        numbered(&self.pods, node)
            .and_then(|pods| numbered(pods, pod))
            .with_context(|| format!("the cluster has no pod{node}-{pod}"))
    }

    /// A client by its number, from one.
    ///
    /// # Errors
    /// When the cluster has no such client.
    pub fn client(&self, client: u8) -> Result<&Host> {
        numbered(&self.clients, client)
            .with_context(|| format!("the cluster has no client{client}"))
    }

    /// All nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Host] {
        &self.nodes
    }

    /// The pods of all nodes.
    pub fn pods(&self) -> impl Iterator<Item = &Host> {
        self.pods.iter().flatten()
    }

    /// All clients.
    #[must_use]
    pub fn clients(&self) -> &[Host] {
        &self.clients
    }

    /// Sends a client's traffic to services and load-balancer addresses through another node than
    /// the first, as an outer router or load balancer would.
    ///
    /// # Errors
    /// When there is no such client or node, or the routes cannot be changed.
    pub fn route_services(&self, client: u8, node: u8) -> Result<()> {
        let node = self.node(node)?;
        self.client(client)?.namespace.configure_links(&service_routes(node))
    }

    /// Returns the state of every node, as text.
    #[must_use]
    pub fn dump(&self) -> String {
        self.nodes.iter().map(|node| dump(&node.namespace)).collect()
    }

    /// Creates all namespaces in one go, with the settings that links take over when they appear.
    fn create_namespaces(spec: &ClusterSpec) -> Result<Self> {
        let mut namespaces = Namespace::create_bare(&spec.labels())?.into_iter();
        let mut next = || -> Result<Namespace> {
            let namespace = namespaces.next().context("fewer namespaces than hosts")?;
            prepare(&namespace, spec.ipv6)?;
            Ok(namespace)
        };
        let fabric = next()?;
        let mut mk_host = |name: String, ipv4: Ipv4Addr, ipv6: Ipv6Addr| -> Result<Host> {
            Ok(Host { name, namespace: next()?, ipv4, ipv6: spec.ipv6.then_some(ipv6) })
        };
        let mut nodes = Vec::new();
        let mut pods = Vec::new();
        for (number, node) in spec.numbered() {
            let (ipv4, ipv6) = (addresses::node_ipv4(number), addresses::node_ipv6(number));
            nodes.push(mk_host(node_name(number), ipv4, ipv6)?);
            let mut of_node = Vec::new();
            for pod in 1..=node.pods {
                let ipv4 = addresses::pod_ipv4(number, pod);
                let ipv6 = addresses::pod_ipv6(number, pod);
                of_node.push(mk_host(pod_name(number, pod), ipv4, ipv6)?);
            }
            pods.push(of_node);
        }
        let mut clients = Vec::new();
        for client in 1..=spec.clients {
            let (ipv4, ipv6) = (addresses::client_ipv4(client), addresses::client_ipv6(client));
            clients.push(mk_host(client_name(client), ipv4, ipv6)?);
        }
        Ok(Self { nodes, pods, clients, fabric })
    }

    /// The underlay: a bridge, and a cable to each node and client that ends in its `eth0`.
    fn lay_cables(&self, ipv6: bool) -> Result<()> {
        let mut lines = vec![
            "link set lo up".to_owned(),
            // No host on this bridge asks for group memberships: snooping can only lose packets.
            "link add fabric type bridge mcast_snooping 0".to_owned(),
            "link set fabric up".to_owned(),
            format!("addr add {}/24 dev fabric", addresses::GATEWAY_IPV4),
        ];
        if ipv6 {
            lines.push(format!("addr add {}/64 dev fabric nodad", addresses::GATEWAY_IPV6));
        }
        for host in self.nodes.iter().chain(&self.clients) {
            let (name, inside) = (&host.name, host.namespace.name());
            lines.push(format!("link add {name} type veth peer name eth0 netns {inside}"));
            lines.push(format!("link set {name} master fabric up"));
        }
        // The underlay is a switch: what crosses it is no business of packet filters or routes.
        self.fabric.set_sysctl("net/ipv4/ip_forward", "0")?;
        set_bridge_filtering(&self.fabric, "0")?;
        self.fabric.configure_links(&lines)
    }

    /// A node's own addresses, the cables of its pods, and the way to the pods of the others.
    fn configure_node(&self, number: u8, cables: PodCables) -> Result<()> {
        let node = self.node(number)?;
        let mut lines = underlay_lines(node);
        lines.push(format!("route add default via {}", addresses::GATEWAY_IPV4));
        if node.ipv6.is_some() {
            lines.push(format!("route add default via {}", addresses::GATEWAY_IPV6));
        }
        let pods = numbered(&self.pods, number).map(Vec::as_slice).unwrap_or_default();
        lines.extend(cables.lines_of_node(number, node.ipv6.is_some(), pods));
        for (other, peer) in (1..).zip(&self.nodes).filter(|(other, _)| *other != number) {
            let range = addresses::pod_range_ipv4(other);
            lines.push(format!("route add {range} via {}", peer.ipv4));
            if let Some(ipv6) = peer.ipv6 {
                let range = addresses::pod_range_ipv6(other);
                lines.push(format!("route add {range} via {ipv6}"));
            }
        }
        node.namespace.set_sysctl("net/ipv4/ip_forward", "1")?;
        if node.ipv6.is_some() {
            node.namespace.set_sysctl("net/ipv6/conf/all/forwarding", "1")?;
        }
        set_bridge_filtering(&node.namespace, "1")?;
        node.namespace.configure_links(&lines)
    }
}

impl Host {
    /// The IPv6 address.
    ///
    /// # Errors
    /// When the cluster was built without IPv6.
    pub fn ipv6(&self) -> Result<Ipv6Addr> {
        self.ipv6.with_context(|| format!("{} has no IPv6 address", self.name))
    }

    /// All addresses, IPv4 first.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        let ipv6 = self.ipv6.map(IpAddr::V6);
        std::iter::once(IpAddr::V4(self.ipv4)).chain(ipv6).collect()
    }
}

fn node_name(node: u8) -> String {
    format!("node{node}")
}

fn pod_name(node: u8, pod: u8) -> String {
    format!("pod{node}-{pod}")
}

fn client_name(client: u8) -> String {
    format!("client{client}")
}

fn numbered<T>(items: &[T], number: u8) -> Option<&T> {
    items.get(usize::from(number).checked_sub(1)?)
}

/// Settings that must be there before the first link is, because links take them over.
fn prepare(namespace: &Namespace, ipv6: bool) -> Result<()> {
    if !namespace.has_sysctl("net/ipv6/conf/all/disable_ipv6")? {
        if ipv6 {
            bail!("the kernel has no IPv6; build the cluster without");
        }
        return Ok(());
    }
    let disable = if ipv6 { "0" } else { "1" };
    namespace.set_sysctls(&[
        ("net/ipv6/conf/all/disable_ipv6", disable),
        ("net/ipv6/conf/default/disable_ipv6", disable),
        // While an address is checked for duplicates nothing can be sent from it, for a second or
        // two; that holds for the link-local address too, which neighbours are asked from.
        ("net/ipv6/conf/all/accept_dad", "0"),
        ("net/ipv6/conf/default/accept_dad", "0"),
    ])
}

/// Sets whether packets that cross a bridge pass iptables as well. Does nothing without
/// br_netfilter.
fn set_bridge_filtering(namespace: &Namespace, value: &str) -> Result<()> {
    if !namespace.has_sysctl(BRIDGE_FILTERING)? {
        return Ok(());
    }
    namespace
        .set_sysctls(&[(BRIDGE_FILTERING, value), ("net/bridge/bridge-nf-call-ip6tables", value)])
}

/// A host's place on the underlay.
fn underlay_lines(host: &Host) -> Vec<String> {
    let mut lines = vec![
        "link set lo up".to_owned(),
        "link set eth0 up".to_owned(),
        format!("addr add {}/24 dev eth0", host.ipv4),
    ];
    lines.extend(host.ipv6.map(|ipv6| format!("addr add {ipv6}/64 dev eth0 nodad")));
    lines
}

impl PodCables {
    /// Those by which pods of this host reach one another through a Service.
    #[must_use]
    pub fn of_host() -> Self {
        if env::var_os(ENTERPRISE_LINUX).is_some() { Self::Routed } else { Self::Bridge }
    }

    /// Modules that a network plugin with these cables has loaded.
    #[must_use]
    pub const fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Bridge => &["br_netfilter"],
            Self::Routed => &[],
        }
    }

    fn lines_of_node(self, node: u8, ipv6: bool, pods: &[Host]) -> Vec<String> {
        let mut lines = Vec::new();
        if self == Self::Bridge {
            lines.push("link add cni0 type bridge mcast_snooping 0".to_owned());
            lines.push("link set cni0 up".to_owned());
            lines.push(format!("addr add {}/24 dev cni0", addresses::bridge_ipv4(node)));
            if ipv6 {
                lines.push(format!("addr add {}/64 dev cni0 nodad", addresses::bridge_ipv6(node)));
            }
        }
        for pod in pods {
            let (name, inside) = (&pod.name, pod.namespace.name());
            lines.push(format!("link add {name} type veth peer name eth0 netns {inside}"));
            if self == Self::Bridge {
                lines.push(format!("link set {name} master cni0 up"));
                lines.push(format!("link set dev {name} type bridge_slave hairpin on"));
                continue;
            }
            lines.push(format!("link set {name} up"));
            lines.push(format!("addr add {}/32 dev {name}", addresses::bridge_ipv4(node)));
            lines.push(format!("route add {} dev {name}", pod.ipv4));
            if let Some(address) = pod.ipv6 {
                let own = addresses::bridge_ipv6(node);
                lines.push(format!("addr add {own}/128 dev {name} nodad"));
                lines.push(format!("route add {address} dev {name}"));
            }
        }
        lines
    }

    fn lines_of_pod(self, pod: &Host, node: u8) -> Vec<String> {
        let gateway = addresses::bridge_ipv4(node);
        let gateway_ipv6 = pod.ipv6.map(|_| addresses::bridge_ipv6(node));
        let mut lines = match self {
            Self::Bridge => underlay_lines(pod),
            Self::Routed => {
                let mut lines = vec![
                    "link set lo up".to_owned(),
                    "link set eth0 up".to_owned(),
                    format!("addr add {}/32 dev eth0", pod.ipv4),
                    format!("route add {gateway} dev eth0 scope link"),
                ];
                lines.extend(
                    pod.ipv6.map(|address| format!("addr add {address}/128 dev eth0 nodad")),
                );
                lines.extend(gateway_ipv6.map(|it| format!("route add {it} dev eth0")));
                lines
            }
        };
        lines.push(format!("route add default via {gateway}"));
        lines.extend(gateway_ipv6.map(|it| format!("route add default via {it}")));
        lines
    }
}

fn client_lines(client: &Host, first_node: &Host) -> Vec<String> {
    let mut lines = underlay_lines(client);
    lines.extend(service_routes(first_node));
    lines
}

/// The way of a client to everything that services answer on.
fn service_routes(node: &Host) -> Vec<String> {
    let ipv4 = ROUTED_IPV4.iter().map(|range| format!("route replace {range} via {}", node.ipv4));
    let ipv6 = node.ipv6.into_iter().flat_map(|gateway| {
        ROUTED_IPV6.iter().map(move |range| format!("route replace {range} via {gateway}"))
    });
    ipv4.chain(ipv6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_must_fit_the_address_plan() {
        assert!(ClusterSpec::default().check().is_ok());
        let no_nodes = ClusterSpec { nodes: Vec::new(), ..ClusterSpec::default() };
        let many_nodes =
            ClusterSpec { nodes: vec![NodeSpec { pods: 0 }; 90], ..ClusterSpec::default() };
        let many_pods =
            ClusterSpec { nodes: vec![NodeSpec { pods: 245 }], ..ClusterSpec::default() };
        let many_clients = ClusterSpec { clients: 156, ..ClusterSpec::default() };
        for spec in [no_nodes, many_nodes, many_pods, many_clients] {
            assert!(spec.check().is_err(), "{spec:?}");
        }
    }

    #[test]
    fn labels_come_in_the_order_in_which_hosts_are_made() {
        let nodes = vec![NodeSpec { pods: 1 }, NodeSpec { pods: 2 }];
        let spec = ClusterSpec { nodes, clients: 2, ipv6: false, ..ClusterSpec::default() };
        let expected =
            ["fabric", "node1", "pod1-1", "node2", "pod2-1", "pod2-2", "client1", "client2"];
        assert_eq!(spec.labels(), expected);
    }

    #[test]
    fn names_of_hosts_fit_into_names_of_links() {
        // IFNAMSIZ of include/uapi/linux/if.h is 16 with the closing zero.
        assert!(pod_name(MAX_NODES, MAX_PODS).len() < 16);
        assert!(client_name(MAX_CLIENTS).len() < 16);
    }

    #[test]
    fn there_is_no_number_zero() {
        assert_eq!(numbered(&["first", "second"], 0), None);
        assert_eq!(numbered(&["first", "second"], 2), Some(&"second"));
        assert_eq!(numbered(&["first", "second"], 3), None);
    }
}
