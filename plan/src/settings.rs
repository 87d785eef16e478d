//! What the operator chose, resolved.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::model::Family;

/// Everything an operator can choose that changes what is planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// This node's name, as EndpointSlices have it in `nodeName`.
    pub node_name: Arc<str>,
    /// The families that this host can do.
    pub families: Vec<Family>,
    /// The scheduler of every virtual server.
    pub scheduler: SchedulerName,
    /// Masquerade everything sent to a cluster address.
    pub masquerade_all: bool,
    /// The bit of the packet mark that means "masquerade this", 0 to 31.
    pub masquerade_bit: u8,
    /// Whether masquerading picks source ports at random (`--random-fully`, iptables 1.6.2).
    pub random_fully: bool,
    /// How traffic from this node's own pods is recognised, which then is not masqueraded.
    pub local_detection: LocalDetection,
    /// Where node ports are served.
    pub node_port_addresses: NodePortAddresses,
    /// Whether `spec.externalIPs` counts (the feature gate `AllowServiceExternalIPs`).
    pub external_ips: bool,
    /// Whatever is inside these is somebody else's: never changed, never removed.
    pub exclude: Vec<IpNet>,
}

/// On which of this node's addresses node ports are served.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NodePortAddresses {
    /// On all of them.
    #[default]
    All,
    /// On those inside these networks; on all of a family of which none is named.
    Networks(Vec<IpNet>),
    /// On those by which the cluster knows this node: the first one of each family in its Node
    /// object. On none as long as that is not known.
    Primary,
}

/// A scheduler's name as the kernel has it: `rr`, `wlc`, `sh`, … The kernel decides which exist.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SchedulerName(Arc<str>);

/// How traffic from this node's own pods is recognised.
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

/// A scheduler name that the kernel could not even be asked about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "scheduler {0:?}: a scheduler's name has 1 to 15 visible ASCII characters, such as rr, wlc, sh"
)]
pub struct InvalidSchedulerName(String);

// === impl Settings ===

impl Settings {
    /// Settings for a node of this name, everything else as kube-proxy has it by default.
    pub fn new(node_name: impl Into<Arc<str>>) -> Self {
        Self {
            node_name: node_name.into(),
            families: Family::BOTH.to_vec(),
            scheduler: SchedulerName::default(),
            masquerade_all: false,
            masquerade_bit: 14,
            random_fully: true,
            local_detection: LocalDetection::None,
            node_port_addresses: NodePortAddresses::All,
            external_ips: true,
            exclude: Vec::new(),
        }
    }

    /// Whether an address is somebody else's.
    #[must_use]
    pub fn excludes(&self, address: IpAddr) -> bool {
        self.exclude.iter().any(|net| net.contains(&address))
    }
}

// === impl SchedulerName ===

impl SchedulerName {
    /// The kernel's `IP_VS_SCHEDNAME_MAXLEN` (include/uapi/linux/ip_vs.h) counts the ending zero.
    const MOST_OCTETS: usize = 15;

    /// A name that may be handed to the kernel.
    ///
    /// # Errors
    /// When it is empty, longer than 15 octets, or has anything but visible ASCII characters.
    pub fn new(name: &str) -> Result<Self, InvalidSchedulerName> {
        if (1..=Self::MOST_OCTETS).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic())
        {
            Ok(Self(name.into()))
        } else {
            Err(InvalidSchedulerName(name.to_owned()))
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for SchedulerName {
    /// Round robin.
    fn default() -> Self {
        Self("rr".into())
    }
}

impl fmt::Display for SchedulerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
