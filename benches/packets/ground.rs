//! Hosts that send to one another: a client outside, a node with a pod, another node's pod.

use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bed::{Cluster, ClusterSpec, Host, Namespace, NodeSpec, Protocol, Service};
use clap::ValueEnum;

/// Port of every endpoint.
pub(crate) const TARGET: u16 = 8080;
/// Port of every Service.
pub(crate) const PORT: u16 = 80;
/// Port of the Service `near` on every node.
pub(crate) const NODE_PORT: u16 = 30_081;
/// Longest time that a packet may take: only a lost one takes it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Address family of everything that is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Family {
    /// IPv4.
    #[default]
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Way of a packet and its answer through the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// A client outside, a cluster address, a pod of the node; masqueraded.
    Cluster,
    /// The same by the node's port.
    NodePort,
    /// The same by a load balancer's address with externalTrafficPolicy Local; not masqueraded.
    LoadBalancer,
    /// A pod of the node, a cluster address, another node's pod; not masqueraded.
    FromPod,
    /// The same by a load balancer's address with externalTrafficPolicy Local: the internal frontend.
    InternalFrontend,
    /// A client outside and a pod of the node, without a Service.
    Forwarded,
    /// The node itself and a host outside, without a Service.
    OfNode,
}

/// Service that has packets measured, with one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measured {
    /// Its endpoint is a pod of the node.
    Near,
    /// Its endpoint is another node's pod.
    Far,
    /// A load balancer with externalTrafficPolicy Local, its endpoint is a pod of the node.
    Local,
    /// A load balancer with externalTrafficPolicy Local, its endpoint is another node's pod.
    LocalElsewhere,
}

/// The hosts, and the sockets of the endpoints.
pub(crate) struct Ground {
    pub(crate) family: Family,
    cluster: Cluster,
    near: Endpoint,
    far: Endpoint,
    outside: Endpoint,
}

/// Sockets that answer, which the measuring thread has.
pub(crate) struct Endpoint {
    pub(crate) address: IpAddr,
    pub(crate) datagrams: UdpSocket,
    pub(crate) listener: TcpListener,
}

/// A way with those at its ends.
pub(crate) struct Trial<'a> {
    /// Network namespace of the client.
    pub(crate) client: &'a Namespace,
    /// Address that the client asks.
    pub(crate) target: SocketAddr,
    /// The one that answers.
    pub(crate) endpoint: &'a Endpoint,
    /// True if the client's address is replaced on the way.
    pub(crate) is_masqueraded: bool,
}

impl Family {
    /// The text for this family.
    pub(crate) fn choose<T>(self, ipv4: T, ipv6: T) -> T {
        match self {
            Self::Ipv4 => ipv4,
            Self::Ipv6 => ipv6,
        }
    }

    fn of(self, host: &Host) -> Result<IpAddr> {
        Ok(match self {
            Self::Ipv4 => host.ipv4.into(),
            Self::Ipv6 => host.ipv6()?.into(),
        })
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.choose("IPv4", "IPv6"))
    }
}

impl Way {
    pub(crate) const ALL: [Self; 7] = [
        Self::Cluster,
        Self::NodePort,
        Self::LoadBalancer,
        Self::FromPod,
        Self::InternalFrontend,
        Self::Forwarded,
        Self::OfNode,
    ];

    /// The way between the same hosts without a Service.
    pub(crate) fn without_service(self) -> Trip {
        Trip { way: self, by_service: false }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "outside, cluster address",
            Self::NodePort => "outside, NodePort",
            Self::LoadBalancer => "outside, load balancer, Local",
            Self::FromPod => "pod, cluster address",
            Self::InternalFrontend => "pod, internal frontend",
            Self::Forwarded => "outside, no Service",
            Self::OfNode => "the node, no Service",
        })
    }
}

/// A way, by a Service or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trip {
    way: Way,
    by_service: bool,
}

impl From<Way> for Trip {
    fn from(way: Way) -> Self {
        Self { way, by_service: !matches!(way, Way::Forwarded | Way::OfNode) }
    }
}

impl fmt::Display for Trip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.by_service { "" } else { " (straight to the endpoint)" };
        write!(f, "{}{how}", self.way)
    }
}

impl Measured {
    pub(crate) const ALL: [Self; 4] = [Self::Near, Self::Far, Self::Local, Self::LocalElsewhere];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Local => "local",
            Self::LocalElsewhere => "local-elsewhere",
        }
    }

    /// Returns the cluster address.
    pub(crate) fn cluster(self, family: Family) -> &'static str {
        match self {
            Self::Near => family.choose("10.96.1.1", "fd00:96::101"),
            Self::Far => family.choose("10.96.1.2", "fd00:96::102"),
            Self::Local => family.choose("10.96.1.3", "fd00:96::103"),
            Self::LocalElsewhere => family.choose("10.96.1.4", "fd00:96::104"),
        }
    }

    /// Returns the load balancer's address, if there is one.
    pub(crate) fn load_balancer(self, family: Family) -> Option<&'static str> {
        match self {
            Self::Near | Self::Far => None,
            Self::Local => Some(family.choose("203.0.113.3", "fd00:203::3")),
            Self::LocalElsewhere => Some(family.choose("203.0.113.4", "fd00:203::4")),
        }
    }

    pub(crate) fn endpoint(self, ground: &Ground) -> IpAddr {
        match self {
            Self::Near | Self::Local => ground.near.address,
            Self::Far | Self::LocalElsewhere => ground.far.address,
        }
    }

    /// Returns the Service with its endpoint.
    pub(crate) fn service(self, ground: &Ground) -> Result<Service> {
        let family = ground.family;
        let address: IpAddr = self.cluster(family).parse()?;
        let node_port = if self == Self::Near { NODE_PORT } else { 0 };
        let mut service = Service::new(self.name(), address)
            .node_port(Protocol::Tcp, PORT, TARGET, node_port)
            .node_port(Protocol::Udp, PORT, TARGET, node_port);
        if let Some(address) = self.load_balancer(family) {
            service.load_balancer = vec![address.parse()?];
            service.more = vec!["externalTrafficPolicy: Local".into()];
        }
        let node = match self {
            Self::Near | Self::Local => 1,
            Self::Far | Self::LocalElsewhere => 2,
        };
        let mut service = service.pods([ground.cluster.pod(node, 1)?]);
        service.endpoints.retain(|endpoint| endpoint.address.is_ipv4() == address.is_ipv4());
        Ok(service)
    }
}

impl Ground {
    /// Builds the hosts, without anything of Services.
    pub(crate) fn build(family: Family) -> Result<Self> {
        // What a node's other software has loaded already. Rules that look at a bridge's ports load
        // it otherwise, and bridged packets would cost more from then on.
        let status = Command::new("modprobe").args(["-a", "br_netfilter"]).status();
        ensure!(status.context("start modprobe")?.success(), "br_netfilter cannot be loaded");
        let nodes = vec![NodeSpec { pods: 1 }; 2];
        let cluster = Cluster::build(&ClusterSpec { nodes, clients: 2, ..ClusterSpec::default() })?;
        for host in cluster.pods().chain(cluster.clients()).chain(cluster.nodes()) {
            // A segment is a packet.
            let off = ["-K", "eth0", "tso", "off", "gso", "off", "gro", "off"];
            host.namespace.command("ethtool", &off)?;
        }
        let near = Endpoint::open(cluster.pod(1, 1)?, family)?;
        let far = Endpoint::open(cluster.pod(2, 1)?, family)?;
        let outside = Endpoint::open(cluster.client(2)?, family)?;
        Ok(Self { family, cluster, near, far, outside })
    }

    /// The node that all packets pass.
    pub(crate) fn node(&self) -> Result<&Namespace> {
        Ok(&self.cluster.node(1)?.namespace)
    }

    /// The node's own address.
    pub(crate) fn node_address(&self) -> Result<IpAddr> {
        self.family.of(self.cluster.node(1)?)
    }

    /// Those at the ends of a way.
    pub(crate) fn trial(&self, trip: Trip, masquerades: bool) -> Result<Trial<'_>> {
        let Trip { way, by_service } = trip;
        let outside = &self.cluster.client(1)?.namespace;
        let (client, endpoint) = match way {
            Way::Cluster | Way::NodePort | Way::LoadBalancer | Way::Forwarded => {
                (outside, &self.near)
            }
            Way::FromPod | Way::InternalFrontend => (&self.cluster.pod(1, 1)?.namespace, &self.far),
            Way::OfNode => (self.node()?, &self.outside),
        };
        let of = |address: Option<&str>| -> Result<SocketAddr> {
            let address: IpAddr = address.context("there is no such address")?.parse()?;
            Ok((address, PORT).into())
        };
        let target = match way {
            _ if !by_service => (endpoint.address, TARGET).into(),
            Way::Cluster => of(Some(Measured::Near.cluster(self.family)))?,
            Way::NodePort => (self.node_address()?, NODE_PORT).into(),
            Way::LoadBalancer => of(Measured::Local.load_balancer(self.family))?,
            Way::FromPod => of(Some(Measured::Far.cluster(self.family)))?,
            Way::InternalFrontend => of(Measured::LocalElsewhere.load_balancer(self.family))?,
            Way::Forwarded | Way::OfNode => (endpoint.address, TARGET).into(),
        };
        let is_masqueraded =
            masquerades && by_service && matches!(way, Way::Cluster | Way::NodePort);
        if way == Way::Forwarded || (!by_service && client.name() == outside.name()) {
            self.route_to_pods()?;
        }
        Ok(Trial { client, target, endpoint, is_masqueraded })
    }

    /// Has the client outside send what is for pods through the node.
    fn route_to_pods(&self) -> Result<()> {
        let range = self.family.choose("10.244.1.0/24", "fd00:244:1::/64");
        let line = format!("route replace {range} via {}", self.node_address()?);
        self.cluster.client(1)?.namespace.configure_links(&[line])
    }
}

impl Endpoint {
    fn open(host: &Host, family: Family) -> Result<Self> {
        let address = family.of(host)?;
        let socket = SocketAddr::from((address, TARGET));
        let (datagrams, listener) = host
            .namespace
            .enter(|| -> Result<_> { Ok((UdpSocket::bind(socket)?, TcpListener::bind(socket)?)) })?
            .with_context(|| format!("listen on {socket} in {}", host.name))?;
        datagrams.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { address, datagrams, listener })
    }
}
