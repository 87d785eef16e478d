//! Services, endpoints and the node, valid by construction.
//!
//! The types carry what planning needs and nothing else: a cluster has hundreds of thousands of
//! endpoints, and each is held in memory for as long as it lives.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::ops::Deref;
use std::sync::Arc;

use ipnet::IpNet;

use crate::scheduler::SchedulerName;

/// Namespace and name of the API server's own Service.
const API_SERVER: [&str; 2] = ["default", "kubernetes"];

/// One of the two address families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The transport protocols a Service can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// A namespaced name: of a Service or of an EndpointSlice. Copies share it: of every name there is
/// one in each of a dozen tables.
#[derive(Debug, Clone)]
#[cfg_attr(not(test), derive(PartialEq, Eq, Hash, PartialOrd, Ord))]
pub struct ObjectName(Arc<NameParts>);

/// Parts of an [`ObjectName`].
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameParts {
    /// The Kubernetes namespace, which many names share.
    pub namespace: Arc<str>,
    /// The name within it.
    pub name: Box<str>,
}

/// A Service's name.
pub type ServiceName = ObjectName;

/// An EndpointSlice's name.
pub type SliceName = ObjectName;

/// A Service that is to be balanced: it has an address, is not headless, is not an ExternalName,
/// and is not left to another proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub name: ServiceName,
    /// `metadata.creationTimestamp` in seconds since 1970, 0 if unknown: where two Services claim
    /// the same address and port, the older one has it.
    pub created: i64,
    /// `spec.type`.
    pub kind: ServiceKind,
    /// The IPv4 cluster address.
    pub cluster_v4: Option<Ipv4Addr>,
    /// The IPv6 cluster address.
    pub cluster_v6: Option<Ipv6Addr>,
    /// `spec.externalIPs`, both families.
    pub external: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` whose `ipMode` is not `Proxy`, both families.
    pub load_balancer: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`, both families; empty means "everyone".
    pub source_ranges: Vec<IpNet>,
    /// Session affinity by client address: how many seconds a client is remembered.
    pub affinity: Option<u32>,
    /// `spec.externalTrafficPolicy`.
    pub external_policy: TrafficPolicy,
    /// `spec.internalTrafficPolicy`.
    pub internal_policy: TrafficPolicy,
    /// `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<NonZeroU16>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// Values that its annotations override; most Services have none of these annotations.
    pub overrides: Option<Box<Overrides>>,
}

/// Settings of one Service that override the operator's. Absent: the operator's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Overrides {
    pub scheduler: Option<SchedulerName>,
    /// The scheduler's flags, `IP_VS_SVC_F_SCHED1` to `3` (0x08, 0x10, 0x20).
    pub scheduler_flags: Option<u32>,
    /// Number of seconds that the connections of an endpoint that goes may take to end.
    pub drain_deadline_seconds: Option<u32>,
    /// The shares of its endpoints.
    pub weights: Option<Weights>,
    /// True if IPVS is to translate every packet of its connections.
    pub is_off_fast_path: bool,
}

/// The shares of endpoints by how far they are, from 1 to 65,535.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights {
    /// On this node.
    pub node: u16,
    /// On another node of this node's zone.
    pub zone: u16,
    /// Anywhere else.
    pub elsewhere: u16,
}

/// `spec.type`, as far as it is balanced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServiceKind {
    /// ClusterIP.
    ClusterIp,
    /// NodePort.
    NodePort,
    /// LoadBalancer.
    LoadBalancer,
}

/// Endpoints that are meant: all of the cluster's, or this node's only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum TrafficPolicy {
    /// All endpoints.
    #[default]
    Cluster,
    /// This node's endpoints.
    Local,
}

/// One of `spec.ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, empty if it has none. EndpointSlice ports are matched by it.
    pub name: Arc<str>,
    pub protocol: Protocol,
    /// The port that clients connect to.
    pub port: NonZeroU16,
    /// The port on each node.
    pub node_port: Option<NonZeroU16>,
}

/// Some of a Service's endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Namespace and name.
    pub name: SliceName,
    /// The Service it belongs to (label `kubernetes.io/service-name`, same namespace).
    pub service: ServiceName,
    /// `addressType`.
    pub family: Family,
    /// The ports that every endpoint of the slice has.
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<Endpoint>,
}

/// One of a slice's `ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlicePort {
    /// Its name, empty if it has none.
    pub name: Arc<str>,
    pub protocol: Protocol,
    /// The port that the pods listen on.
    pub port: NonZeroU16,
}

/// One of a slice's `endpoints`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `addresses[0]`; of the slice's family.
    pub address: IpAddr,
    /// `conditions`.
    pub conditions: Conditions,
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// `zone`.
    pub zone: Option<Arc<str>>,
    /// `hints`, which the endpoints of a slice mostly share; often there are none.
    pub hints: Option<Arc<Hints>>,
}

/// An endpoint's `conditions`, with the API's meaning of absent ones filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conditions {
    /// Absent means true.
    pub ready: bool,
    /// Absent means true.
    pub serving: bool,
    /// Absent means false.
    pub terminating: bool,
}

/// An endpoint's `hints`: who should use it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hints {
    /// `forZones[].name`.
    pub zones: Vec<Arc<str>>,
    /// `forNodes[].name`.
    pub nodes: Vec<Arc<str>>,
}

/// Facts from this node's Node object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// `status.addresses`: every InternalIP, then every ExternalIP, in their order.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
}

/// Facts from the Node object of another node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OtherNode {
    /// `status.addresses`: every InternalIP and every ExternalIP.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`; none if they are not known.
    pub pod_cidrs: Vec<IpNet>,
}

impl OtherNode {
    /// One of which only the addresses are known.
    #[must_use]
    pub fn at(addresses: Vec<IpAddr>) -> Self {
        Self { addresses, pod_cidrs: Vec::new() }
    }

    /// True if nothing is known of it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.pod_cidrs.is_empty()
    }
}

impl Family {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The family of a network.
    #[must_use]
    pub fn of_net(net: &IpNet) -> Self {
        Self::of(net.addr())
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

impl Protocol {
    /// Returns its name in lower case, as iptables and the names of chains have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

impl ObjectName {
    /// A name from its two parts.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Box<str>>) -> Self {
        Self(Arc::new(NameParts { namespace: namespace.into(), name: name.into() }))
    }

    /// True if there is no other copy.
    #[must_use]
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns the name of the API server's own Service.
    #[must_use]
    pub fn api_server() -> Self {
        let [namespace, name] = API_SERVER;
        Self::new(namespace, name)
    }

    /// True if this is the name of the API server's own Service.
    #[must_use]
    pub fn is_api_server(&self) -> bool {
        [&*self.namespace, &*self.name] == API_SERVER
    }
}

impl Deref for ObjectName {
    type Target = NameParts;

    fn deref(&self) -> &NameParts {
        &self.0
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Service {
    /// A Service of type ClusterIP without addresses and ports, otherwise as the API's defaults
    /// are.
    #[must_use]
    pub fn new(name: ServiceName) -> Self {
        Self {
            name,
            created: 0,
            kind: ServiceKind::ClusterIp,
            cluster_v4: None,
            cluster_v6: None,
            external: Vec::new(),
            load_balancer: Vec::new(),
            source_ranges: Vec::new(),
            affinity: None,
            external_policy: TrafficPolicy::Cluster,
            internal_policy: TrafficPolicy::Cluster,
            health_check_node_port: None,
            ports: Vec::new(),
            overrides: None,
        }
    }

    /// The cluster address of a family.
    #[must_use]
    pub fn cluster_address(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.cluster_v4.map(IpAddr::V4),
            Family::V6 => self.cluster_v6.map(IpAddr::V6),
        }
    }

    /// True if the external frontends are for this node's endpoints. The policy says nothing where
    /// there are none by type: a load balancer's addresses may outlive the type LoadBalancer.
    #[must_use]
    pub fn is_external_policy_local(&self) -> bool {
        self.external_policy == TrafficPolicy::Local
            && (self.kind != ServiceKind::ClusterIp || !self.external.is_empty())
    }

    /// The node port at which a load balancer asks for this node's endpoints, if it does.
    #[must_use]
    pub fn answers_health_checks(&self) -> Option<NonZeroU16> {
        let port = self.health_check_node_port;
        let is_asked = self.kind == ServiceKind::LoadBalancer && self.is_external_policy_local();
        port.filter(|_| is_asked)
    }
}

impl Default for Conditions {
    fn default() -> Self {
        Self { ready: true, serving: true, terminating: false }
    }
}
