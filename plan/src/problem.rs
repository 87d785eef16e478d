//! Problems of the input, in words for the person who can correct it.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnet::IpNet;

use crate::capacity::Capacity;
use crate::kernel_objects::{Frontend, PartKind};
use crate::mode::Mode;
use crate::model::{Family, Overrides, Protocol, ServiceName};
use crate::scheduler::SchedulerName;
use crate::sets::SetId;
use crate::settings::{Limit, Listener};

/// Number of problems of one Service that are listed. The rest is counted.
pub const MOST_PROBLEMS: usize = 10;

/// The fields of a Service that give it addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressField {
    /// `spec.clusterIPs`: chosen, or checked, by the API server.
    Cluster,
    /// `spec.externalIPs`: as the Service's author likes.
    External,
    /// `status.loadBalancer.ingress`: written by a controller.
    LoadBalancer,
}

/// The annotations of a Service that only mode ipvs can follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Override {
    /// [`Overrides::scheduler`]
    Scheduler,
    /// [`Overrides::scheduler_flags`]
    SchedulerFlags,
    /// [`Overrides::drain_deadline_seconds`]
    DrainDeadline,
    /// [`Overrides::weights`]
    Weights,
}

/// Something that keeps a part of a Service from being served as written. The rest of it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Problem {
    /// An address that no Service may have: unspecified, loopback, link-local, multicast,
    /// broadcast.
    ImpossibleAddress {
        /// Field that the address was written in.
        field: AddressField,
        address: IpAddr,
    },
    /// By its Node object, an address is another node's: only that one serves it.
    AddressOfNode {
        /// Field that the address was written in.
        field: AddressField,
        address: IpAddr,
        /// The node's name.
        node: Arc<str>,
    },
    /// A program of this node listens on a TCP port that the Service has at this node's addresses.
    PortOfListener {
        port: u16,
        /// The program.
        listener: Listener,
    },
    /// This node reaches the API server by an address.
    AddressOfApiServer {
        /// Field that the address was written in.
        field: AddressField,
        address: IpAddr,
    },
    /// An address inside a network of pods: it is, or can be, a pod's.
    InsidePodNetwork {
        /// Field that the address was written in.
        field: AddressField,
        address: IpAddr,
        network: IpNet,
    },
    /// Another Service, with a better reason or an older one, has this address and port already.
    FrontendTaken {
        /// Frontend that both claim.
        frontend: Frontend,
        /// Service that has it, or waits for it right before this Service.
        owner: ServiceName,
    },
    /// Two ports of the same Service claim the same address and port; the one with the better
    /// reason has it, or the first one.
    FrontendTwice {
        /// Frontend that both claim.
        frontend: Frontend,
    },
    /// The internal frontends of a frontend, which are for the cluster's own clients, are other
    /// frontends'.
    InternalFrontendTaken {
        frontend: Frontend,
        internal_frontend: Frontend,
        /// Service that has that internal frontend, or waits for it right before this Service.
        owner: ServiceName,
    },
    /// A frontend cannot have an internal frontend: no host can have the address, it is excluded, or a
    /// node, an endpoint or pods have it.
    NoInternalFrontend { frontend: Frontend },
    /// The kernel does not have the scheduler that the Service chose.
    SchedulerMissing {
        /// Its name.
        scheduler: SchedulerName,
    },
    /// No address of this node may serve node ports of this family.
    NoNodePortAddress { family: Family },
    /// The operator does not allow the scheduler that the Service chose.
    SchedulerNotAllowed {
        /// Its name.
        scheduler: SchedulerName,
    },
    /// The Service takes more of the node than one Service may.
    LimitReached {
        /// Kind of the limit.
        limit: Limit,
        /// The limit.
        most: usize,
        /// Number of frontends that are not served.
        left_out: usize,
    },
    /// The Service asks for something that only mode ipvs can do.
    NoEffect {
        /// The annotation's setting.
        setting: Override,
        /// Mode of the node.
        mode: Mode,
    },
    /// A port's protocol is SCTP, which the relay of mode userspace does not have.
    NotRelayed { port: NonZeroU16 },
    /// The Service takes more proxy ports in mode userspace than one may.
    TooManyProxyPorts {
        /// Number of proxy ports that it may take.
        most: usize,
        /// The first port that has none.
        first: NonZeroU16,
        /// Number of ports without, this one included.
        left_out: usize,
    },
    /// A port's protocol is one that the kernel does not have, in IPVS or for rules.
    NotBalanced {
        port: NonZeroU16,
        protocol: Protocol,
        /// Mode of the node.
        mode: Mode,
    },
    /// More than are listed: always the last one.
    More {
        /// Number of problems that are not listed.
        count: usize,
    },
}

/// A set that should have more entries than a set may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overfull {
    pub set: SetId,
    /// Number of entries it should have.
    pub wanted: usize,
    /// Number of entries it may have.
    pub most: Capacity,
}

/// Problems of one Service: the first [`MOST_PROBLEMS`], and the number of all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problems {
    first: Vec<Problem>,
    count: usize,
}

impl Problems {
    /// All of these.
    #[must_use]
    pub fn new(mut all: Vec<Problem>) -> Self {
        let count = all.len();
        all.truncate(MOST_PROBLEMS);
        all.shrink_to_fit();
        Self { first: all, count }
    }

    /// Adds `count` problems behind the others. Takes no more of them than are listed.
    pub fn extend(&mut self, problems: impl IntoIterator<Item = Problem>, count: usize) {
        let room = MOST_PROBLEMS - self.first.len();
        self.first.extend(problems.into_iter().take(room));
        self.count += count;
    }

    /// The listed ones, and how many more there are.
    #[must_use]
    pub fn into_list(self) -> Vec<Problem> {
        let Self { mut first, count } = self;
        let more = count - first.len();
        first.extend((more > 0).then_some(Problem::More { count: more }));
        first
    }
}

impl fmt::Display for Overfull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { set, wanted, most } = self;
        write!(
            f,
            "limits.setSize ({most}) is reached: set {set} needs {wanted} entries. Services whose entries \
             do not fit are not served correctly on this node. If all are needed, raise limits.setSize in \
             the node's KubeIpvsConfiguration"
        )
    }
}

impl Override {
    /// The annotations of a Service.
    pub fn of(overrides: &Overrides) -> impl Iterator<Item = Self> + use<> {
        let Overrides {
            scheduler,
            scheduler_flags,
            drain_deadline_seconds,
            weights,
            // Where there is no fast path, nothing is to be off it.
            is_off_fast_path: _,
        } = overrides;
        let written = [
            (scheduler.is_some(), Self::Scheduler),
            (scheduler_flags.is_some(), Self::SchedulerFlags),
            (drain_deadline_seconds.is_some(), Self::DrainDeadline),
            (weights.is_some(), Self::Weights),
        ];
        written.into_iter().filter_map(|(is_written, setting)| is_written.then_some(setting))
    }

    /// True if a mode follows it.
    #[must_use]
    pub fn has_effect(self, mode: Mode) -> bool {
        let drains = self == Self::DrainDeadline && mode.properties().drains;
        drains || mode.uses(PartKind::VirtualServers)
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheduler => "kube-ipvs.io/scheduler",
            Self::SchedulerFlags => "kube-ipvs.io/scheduler-flags",
            Self::DrainDeadline => "kube-ipvs.io/drain-deadline",
            Self::Weights => "kube-ipvs.io/weights",
        })
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Health => "the health check of kube-ipvs (healthzBindAddress)",
            Self::Metrics => "the metrics server of kube-ipvs (metricsBindAddress)",
            Self::Kubelet => "the kubelet",
            Self::ApiServer => "the API server",
        })
    }
}

impl fmt::Display for AddressField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "spec.clusterIPs",
            Self::External => "spec.externalIPs",
            Self::LoadBalancer => "status.loadBalancer.ingress",
        })
    }
}

const ONLY_IPVS: &str = "only IPVS mode has schedulers, weights and a drain deadline";
const ONLY_IPVS_SCHEDULES: &str = "only IPVS mode has schedulers and weights";

impl Problem {
    /// True if an address or port of the Service is not served because of it.
    ///
    /// False for what is served in another way, for an address that its own node serves, for NodePorts that
    /// the configuration gives no address, and for problems that are not listed.
    #[must_use]
    pub const fn leaves_out(&self) -> bool {
        match self {
            Self::ImpossibleAddress { .. }
            | Self::AddressOfApiServer { .. }
            | Self::InsidePodNetwork { .. }
            | Self::FrontendTaken { .. }
            | Self::FrontendTwice { .. }
            | Self::InternalFrontendTaken { .. }
            | Self::NoInternalFrontend { .. }
            | Self::LimitReached { .. }
            | Self::NotRelayed { .. }
            | Self::TooManyProxyPorts { .. }
            | Self::NotBalanced { .. } => true,
            Self::AddressOfNode { .. }
            | Self::PortOfListener { .. }
            | Self::SchedulerMissing { .. }
            | Self::NoNodePortAddress { .. }
            | Self::SchedulerNotAllowed { .. }
            | Self::NoEffect { .. }
            | Self::More { .. } => false,
        }
    }

    /// Writes what is wrong with an address.
    fn write_address(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ImpossibleAddress { field, address } => write!(
                f,
                "{field}: {address} is not served, because a Service cannot have it (unspecified, loopback, \
                 link-local, multicast or broadcast); choose another address"
            ),
            Self::AddressOfApiServer { field, address } => write!(
                f,
                "{field}: {address} is not served: this node reaches the API server at this address, and would be \
                 cut off from it; choose another address"
            ),
            Self::InsidePodNetwork { field, address, network } => write!(
                f,
                "{field}: {address} is not served: it is inside the pod network {network}, and the node would no \
                 longer reach the pod with this address; choose another address"
            ),
            Self::AddressOfNode { field, address, node } => {
                write_address_of_node(f, *field, *address, node)
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ImpossibleAddress { .. }
            | Self::AddressOfNode { .. }
            | Self::AddressOfApiServer { .. }
            | Self::InsidePodNetwork { .. } => self.write_address(f),
            Self::PortOfListener { port, listener } => write!(
                f,
                "connections from other hosts to TCP port {port} of this node reach this Service instead of \
                 {listener}, which listens there; give the Service another port"
            ),
            Self::FrontendTaken { frontend, owner } => write!(
                f,
                "{frontend} is not served for this Service, because Service {owner} has it (cluster IPs and \
                 NodePorts come first, then load balancer IPs, then external IPs; of the same kind, the \
                 older Service); give one of the two another address or port"
            ),
            Self::FrontendTwice { frontend } => write!(
                f,
                "{frontend} is claimed by two ports of this Service, and only one of them is served; \
                 give the other one another port or protocol"
            ),
            Self::InternalFrontendTaken { frontend, internal_frontend, owner } => write!(
                f,
                "clients in the cluster reach only this node's endpoints at {frontend}: its internal frontend \
                 {internal_frontend} is in use for Service {owner}, whose address differs in the first bits \
                 only; choose another address"
            ),
            Self::NoInternalFrontend { frontend } => write!(
                f,
                "clients in the cluster reach only this node's endpoints at {frontend}: the address of its \
                 internal frontend is excluded, is not a valid host address, or is in use by the frontend, a \
                 node, an endpoint or the pod network; choose another address, or another network for \
                 internal frontends (internalFrontend)"
            ),
            Self::SchedulerMissing { scheduler } => write!(
                f,
                "this node's kernel has no IPVS scheduler \"{scheduler}\" (module {}); the Service uses the default \
                 scheduler on this node",
                scheduler.module()
            ),
            Self::NoNodePortAddress { family } => write!(
                f,
                "no {family} address of this node serves NodePorts: none is inside nodePortAddresses of the \
                 node's configuration"
            ),
            Self::SchedulerNotAllowed { scheduler } => write!(
                f,
                "limits.schedulers does not allow the scheduler \"{scheduler}\"; the Service uses the default \
                 scheduler on this node"
            ),
            Self::LimitReached { limit, most, left_out } => write!(
                f,
                "{limit} ({most}) is reached: {left_out} of this Service's addresses and ports are \
                 not served on this node. Cluster IPs come first, ports in their order. If all are needed, raise {limit} in the node's KubeIpvsConfiguration"
            ),
            Self::NoEffect { setting, mode } => {
                let why = if mode.properties().drains { ONLY_IPVS_SCHEDULES } else { ONLY_IPVS };
                write!(f, "annotation {setting} has no effect on nodes in {}: {why}", mode.title())
            }
            Self::NotRelayed { port } => write!(
                f,
                "port {port} has protocol SCTP and is rejected on nodes in userspace mode, whose relay \
                 supports TCP and UDP only"
            ),
            Self::TooManyProxyPorts { most, first, left_out } => {
                too_many_proxy_ports(f, *most, *first, *left_out)
            }
            Self::NotBalanced { port, protocol, mode } => not_balanced(f, *port, *protocol, *mode),
            Self::More { count } => write!(
                f,
                "{count} more problems of this Service are not listed; correct those that are listed"
            ),
        }
    }
}

fn write_address_of_node(
    f: &mut fmt::Formatter<'_>,
    field: AddressField,
    address: IpAddr,
    node: &str,
) -> fmt::Result {
    write!(
        f,
        "{field}: {address} is in the status of Node {node}, so only that node serves it: other nodes \
         would be cut off from that node. If the Node is wrong, correct its status.addresses"
    )?;
    if field == AddressField::LoadBalancer {
        f.write_str(
            "; if no load balancer has a node's own address, set loadBalancersBeforeNodes: true \
             in the node's KubeIpvsConfiguration",
        )?;
    }
    Ok(())
}

fn not_balanced(
    f: &mut fmt::Formatter<'_>,
    port: NonZeroU16,
    protocol: Protocol,
    mode: Mode,
) -> fmt::Result {
    if mode.leads_by_rules() {
        write!(
            f,
            "port {port} has protocol {protocol} and is not served on nodes in {} whose rules cannot \
             match it (module xt_{})",
            mode.title(),
            protocol.to_string().to_lowercase()
        )
    } else {
        write!(
            f,
            "port {port} has protocol {protocol} and is rejected on nodes whose kernel has IPVS without \
             it (CONFIG_IP_VS_PROTO_{protocol})"
        )
    }
}

fn too_many_proxy_ports(
    f: &mut fmt::Formatter<'_>,
    most: usize,
    first: NonZeroU16,
    left_out: usize,
) -> fmt::Result {
    write!(
        f,
        "a Service gets at most {most} proxy ports on nodes in userspace mode: {left_out} of this \
         Service's ports, from port {first} on in the order of spec.ports, are rejected there; spread \
         the ports over several Services"
    )
}
