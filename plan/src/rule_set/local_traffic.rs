//! Criterion for traffic from this node's own pods.

use std::sync::Arc;

use ipnet::IpNet;

use super::{InvalidRuleSetSettings, LocalTraffic};
use crate::facts::NodeFacts;
use crate::model::Family;
use crate::settings::{LocalDetection, Settings};

impl LocalTraffic {
    /// The kernel's `IFNAMSIZ` (include/uapi/linux/if.h) counts the ending zero.
    const MOST_BYTES: usize = 15;

    /// Resolves the operator's settings for a family on this node.
    pub(crate) fn resolve(settings: &Settings, family: Family, facts: &NodeFacts) -> Self {
        let pod_network = facts.pod_network(settings, family);
        match &settings.local_detection {
            LocalDetection::None => LocalTraffic::Unknown,
            LocalDetection::ClusterCidr(nets) => {
                let cluster = nets.iter().find(|net| Family::of_net(net) == family);
                cluster
                    .map_or(LocalTraffic::Unknown, |it| LocalTraffic::of_cluster(*it, pod_network))
            }
            LocalDetection::NodeCidr => {
                pod_network.map_or(LocalTraffic::Unknown, LocalTraffic::Cidr)
            }
            LocalDetection::BridgeInterface(name) => LocalTraffic::Bridge(Arc::clone(name)),
            LocalDetection::InterfaceNamePrefix(name) => LocalTraffic::Prefix(Arc::clone(name)),
        }
    }

    /// It comes from the cluster's pod network, `node` of which is this node's.
    fn of_cluster(cluster: IpNet, node: Option<IpNet>) -> Self {
        match node {
            // The only node there is.
            Some(node) if node.contains(&cluster) => Self::Cidr(cluster),
            node => Self::ClusterCidr { cluster, node: node.filter(|node| cluster.contains(node)) },
        }
    }

    /// Only what can be written into a rule and read back the same.
    pub(super) fn checked(self) -> Result<Self, InvalidRuleSetSettings> {
        let (name, most_bytes) = match &self {
            Self::Unknown => return Ok(self),
            Self::Cidr(net) => return Ok(Self::Cidr(net.trunc())),
            Self::ClusterCidr { cluster, node } => {
                let (cluster, node) = (cluster.trunc(), node.map(|net| net.trunc()));
                return Ok(Self::ClusterCidr { cluster, node });
            }
            Self::Bridge(name) => (name, Self::MOST_BYTES),
            // The + after it takes one.
            Self::Prefix(name) => (name, Self::MOST_BYTES - 1),
        };
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"/:\"'\\!".contains(&byte);
        if (1..=most_bytes).contains(&name.len())
            && name.bytes().all(is_plain)
            && !name.ends_with('+')
        {
            Ok(self)
        } else {
            Err(InvalidRuleSetSettings::InterfaceName(name.to_string()))
        }
    }
}
