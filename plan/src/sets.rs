//! The table of ipsets: constant. The first seventeen have kube-proxy's names and types, known to
//! network plugins, runbooks and dashboards; the others are for what kube-proxy's ipvs mode cannot
//! do.

use std::fmt;

use crate::model::Family;

/// Purpose of a set. Each exists once a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetKind {
    /// This node's endpoints, for a pod that reaches itself through its Service.
    LoopBack,
    /// Cluster addresses.
    ClusterIp,
    /// External addresses, any endpoint.
    ExternalIp,
    /// External addresses, this node's endpoints.
    ExternalIpLocal,
    /// Load-balancer addresses.
    LoadBalancer,
    /// Those of them that only some clients may use.
    LoadBalancerFirewall,
    /// Those of them for this node's endpoints.
    LoadBalancerLocal,
    /// Those of them that this node itself may use.
    LoadBalancerSourceIp,
    /// Load-balancer addresses, each with a network whose clients may use it.
    LoadBalancerSourceCidr,
    /// TCP node ports.
    NodePortTcp,
    /// Those of them for this node's endpoints.
    NodePortLocalTcp,
    /// UDP node ports.
    NodePortUdp,
    /// Those of them for this node's endpoints.
    NodePortLocalUdp,
    /// SCTP node ports, with the node's address: `bitmap:port` knows no SCTP.
    NodePortSctp,
    /// Those of them for this node's endpoints.
    NodePortLocalSctp,
    /// Health check node ports.
    HealthCheckNodePort,
    /// Addresses on `kube-ipvs0`.
    IpvsAddresses,
    /// Frontends of which the cluster's own clients, or on the fast path all, are led to the internal frontend.
    InternalFrontend,
    /// Frontends of which the other clients are led to the internal frontend with this node's endpoints, on the fast path.
    LocalInternalFrontend,
    /// Frontends whose Service has no endpoints.
    NoEndpoints,
    /// Frontends for this node's endpoints, of which there are none, though there are others.
    NoLocalEndpoints,
}

/// A set: what it is for, and its family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId {
    /// Purpose of the set.
    pub kind: SetKind,
    pub family: Family,
}

/// The set types in use, as ipset names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SetType {
    /// `hash:ip`
    HashAddress,
    /// `hash:ip,port`
    HashAddressPort,
    /// `hash:ip,port,ip`
    HashAddressPortAddress,
    /// `hash:ip,port,net`
    HashAddressPortNet,
    /// `bitmap:port`
    BitmapPort,
}

/// Every set of a family, in the order in which they are made.
pub const ALL: [SetKind; 21] = [
    SetKind::LoopBack,
    SetKind::ClusterIp,
    SetKind::ExternalIp,
    SetKind::ExternalIpLocal,
    SetKind::LoadBalancer,
    SetKind::LoadBalancerFirewall,
    SetKind::LoadBalancerLocal,
    SetKind::LoadBalancerSourceIp,
    SetKind::LoadBalancerSourceCidr,
    SetKind::NodePortTcp,
    SetKind::NodePortLocalTcp,
    SetKind::NodePortUdp,
    SetKind::NodePortLocalUdp,
    SetKind::NodePortSctp,
    SetKind::NodePortLocalSctp,
    SetKind::HealthCheckNodePort,
    SetKind::IpvsAddresses,
    SetKind::InternalFrontend,
    SetKind::LocalInternalFrontend,
    SetKind::NoEndpoints,
    SetKind::NoLocalEndpoints,
];

/// Sets that earlier versions made, and that nothing looks into any more.
pub const FORMER: [&str; 4] = [
    "KUBE-SHORT-CIRCUIT",
    "KUBE-6-SHORT-CIRCUIT",
    "KUBE-SPARE-SHORT-CIRCUIT",
    "KUBE-6-SPARE-SHORT-CIRCUIT",
];

impl SetId {
    /// Every set of a family, in the order in which they are made.
    pub fn all(family: Family) -> impl Iterator<Item = Self> {
        ALL.into_iter().map(move |kind| Self { kind, family })
    }

    /// The set of this name, if it is one of ours.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Family::BOTH.into_iter().flat_map(Self::all).find(|set| set.name() == name)
    }

    /// The kernel's name for it. A set's name has at most 31 bytes (`IPSET_MAXNAMELEN`, which
    /// counts the ending zero), so two of the IPv6 names are cut.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.family {
            Family::V4 => self.kind.names().0,
            Family::V6 => self.kind.names().1,
        }
    }

    /// Its type.
    #[must_use]
    pub const fn set_type(self) -> SetType {
        self.kind.set_type()
    }
}

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl SetKind {
    /// True if kube-proxy's mode ipvs has it as well.
    #[must_use]
    pub const fn is_of_kube_proxy(self) -> bool {
        !matches!(
            self,
            Self::InternalFrontend
                | Self::LocalInternalFrontend
                | Self::NoEndpoints
                | Self::NoLocalEndpoints
        )
    }

    /// True if its entries lead clients from a frontend to an internal frontend.
    #[must_use]
    pub const fn leads_to_internal_frontends(self) -> bool {
        matches!(self, Self::InternalFrontend | Self::LocalInternalFrontend)
    }

    /// True if connections to its entries are not masqueraded that otherwise are: only this node's
    /// endpoints get them.
    #[must_use]
    pub const fn spares_masquerading(self) -> bool {
        matches!(
            self,
            Self::LoadBalancerLocal
                | Self::NodePortLocalTcp
                | Self::NodePortLocalUdp
                | Self::NodePortLocalSctp
        )
    }

    /// True if its entries let clients past the access filter, `KUBE-IPVS-FILTER`, to a frontend.
    #[must_use]
    pub const fn admits(self) -> bool {
        matches!(
            self,
            Self::ClusterIp | Self::ExternalIp | Self::ExternalIpLocal | Self::LoadBalancer
        )
    }

    /// True if its entries have the access filter refuse frontends.
    #[must_use]
    pub const fn closes(self) -> bool {
        matches!(self, Self::NoEndpoints | Self::NoLocalEndpoints)
    }

    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::LoopBack => ("KUBE-LOOP-BACK", "KUBE-6-LOOP-BACK"),
            Self::ClusterIp => ("KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP"),
            Self::ExternalIp => ("KUBE-EXTERNAL-IP", "KUBE-6-EXTERNAL-IP"),
            Self::ExternalIpLocal => ("KUBE-EXTERNAL-IP-LOCAL", "KUBE-6-EXTERNAL-IP-LOCAL"),
            Self::LoadBalancer => ("KUBE-LOAD-BALANCER", "KUBE-6-LOAD-BALANCER"),
            Self::LoadBalancerFirewall => ("KUBE-LOAD-BALANCER-FW", "KUBE-6-LOAD-BALANCER-FW"),
            Self::LoadBalancerLocal => ("KUBE-LOAD-BALANCER-LOCAL", "KUBE-6-LOAD-BALANCER-LOCAL"),
            Self::LoadBalancerSourceIp => {
                ("KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-6-LOAD-BALANCER-SOURCE-IP")
            }
            Self::LoadBalancerSourceCidr => {
                ("KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-6-LOAD-BALANCER-SOURCE-CID")
            }
            Self::NodePortTcp => ("KUBE-NODE-PORT-TCP", "KUBE-6-NODE-PORT-TCP"),
            Self::NodePortLocalTcp => ("KUBE-NODE-PORT-LOCAL-TCP", "KUBE-6-NODE-PORT-LOCAL-TCP"),
            Self::NodePortUdp => ("KUBE-NODE-PORT-UDP", "KUBE-6-NODE-PORT-UDP"),
            Self::NodePortLocalUdp => ("KUBE-NODE-PORT-LOCAL-UDP", "KUBE-6-NODE-PORT-LOCAL-UDP"),
            Self::NodePortSctp => ("KUBE-NODE-PORT-SCTP-HASH", "KUBE-6-NODE-PORT-SCTP-HASH"),
            Self::NodePortLocalSctp => {
                ("KUBE-NODE-PORT-LOCAL-SCTP-HASH", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS")
            }
            Self::HealthCheckNodePort => {
                ("KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-6-HEALTH-CHECK-NODE-PORT")
            }
            Self::IpvsAddresses => ("KUBE-IPVS-IPS", "KUBE-6-IPVS-IPS"),
            Self::InternalFrontend => ("KUBE-INTERNAL-FRONTEND", "KUBE-6-INTERNAL-FRONTEND"),
            Self::LocalInternalFrontend => {
                ("KUBE-INTERNAL-FRONTEND-LOCAL", "KUBE-6-INTERNAL-FRONTEND-LOCAL")
            }
            Self::NoEndpoints => ("KUBE-NO-ENDPOINTS", "KUBE-6-NO-ENDPOINTS"),
            Self::NoLocalEndpoints => ("KUBE-NO-LOCAL-ENDPOINTS", "KUBE-6-NO-LOCAL-ENDPOINTS"),
        }
    }

    const fn set_type(self) -> SetType {
        match self {
            Self::LoopBack | Self::LoadBalancerSourceIp => SetType::HashAddressPortAddress,
            Self::LoadBalancerSourceCidr => SetType::HashAddressPortNet,
            Self::ClusterIp
            | Self::ExternalIp
            | Self::ExternalIpLocal
            | Self::LoadBalancer
            | Self::LoadBalancerFirewall
            | Self::LoadBalancerLocal
            | Self::NodePortSctp
            | Self::NodePortLocalSctp
            | Self::InternalFrontend
            | Self::LocalInternalFrontend
            | Self::NoEndpoints
            | Self::NoLocalEndpoints => SetType::HashAddressPort,
            Self::NodePortTcp
            | Self::NodePortLocalTcp
            | Self::NodePortUdp
            | Self::NodePortLocalUdp
            | Self::HealthCheckNodePort => SetType::BitmapPort,
            Self::IpvsAddresses => SetType::HashAddress,
        }
    }
}

impl SetType {
    /// ipset's name for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HashAddress => "hash:ip",
            Self::HashAddressPort => "hash:ip,port",
            Self::HashAddressPortAddress => "hash:ip,port,ip",
            Self::HashAddressPortNet => "hash:ip,port,net",
            Self::BitmapPort => "bitmap:port",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_has_a_name_of_its_own_that_the_kernel_takes() {
        let mut names: Vec<&str> =
            Family::BOTH.into_iter().flat_map(SetId::all).map(SetId::name).collect();
        assert_eq!(names.len(), 42);
        assert!(names.iter().all(|name| name.len() <= 31), "{names:?}");
        assert!(names.iter().all(|name| SetId::by_name(name).is_some_and(|s| s.name() == *name)));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 42);
    }

    #[test]
    fn an_ipv6_name_is_the_ipv4_name_with_a_6_cut_to_fit() {
        for kind in ALL {
            let (v4, v6) = kind.names();
            let mut expected = v4.replacen("KUBE-", "KUBE-6-", 1);
            expected.truncate(31);
            assert_eq!(v6, expected);
        }
    }
}
