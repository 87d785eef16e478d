//! Networks of the pods of other nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::settings::overlap;

/// Networks of the pods of other nodes, as far as they are known, and how many nodes have each. No two of
/// them overlap, or one may be missed: the cluster gives every node its own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PodNetworks(BTreeMap<IpNet, usize>);

impl PodNetworks {
    /// Notes that a node has one. Returns true if it is new.
    pub(crate) fn add(&mut self, network: IpNet) -> bool {
        let n_nodes = self.0.entry(network.trunc()).or_default();
        *n_nodes += 1;
        *n_nodes == 1
    }

    /// Notes that a node has one no more. Returns true if no other has it.
    pub(crate) fn remove(&mut self, network: IpNet) -> bool {
        let network = network.trunc();
        let Some(n_nodes) = self.0.get_mut(&network) else { return false };
        *n_nodes -= 1;
        *n_nodes == 0 && self.0.remove(&network).is_some()
    }

    /// The one that an address is inside of.
    pub(crate) fn around(&self, address: IpAddr) -> Option<IpNet> {
        let (last, _) = self.0.range(..=IpNet::from(address)).next_back()?;
        Some(*last).filter(|network| network.contains(&address))
    }

    /// True if one of them is inside of a network, or around it.
    pub(crate) fn overlap(&self, network: &IpNet) -> bool {
        let until = IpNet::from(network.broadcast());
        let last = self.0.range(..=until).next_back();
        last.is_some_and(|(last, _)| overlap(last, network))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_is_there_for_as_long_as_a_node_has_it() {
        let mut networks = PodNetworks::default();
        assert!(networks.add(net("240.10.1.0/24")));
        assert!(!networks.add(net("240.10.1.7/24")), "the same network");
        assert!(!networks.remove(net("240.10.1.0/24")));
        assert!(networks.overlap(&net("240.0.0.0/4")));
        assert!(networks.remove(net("240.10.1.0/24")));
        assert!(!networks.remove(net("240.10.1.0/24")));
        assert_eq!(networks, PodNetworks::default());
    }

    #[test]
    fn the_one_around_an_address_is_found_among_many() {
        let mut networks = PodNetworks::default();
        for text in
            ["10.244.1.0/24", "10.244.3.0/24", "240.10.0.0/16", "fd00:1::/64", "fd00:3::/64"]
        {
            networks.add(net(text));
        }
        let around = |text: &str| {
            let found = networks.around(text.parse().unwrap());
            found.map(|network| network.to_string()).unwrap_or_default()
        };
        assert_eq!(around("10.244.1.0"), "10.244.1.0/24");
        assert_eq!(around("10.244.1.255"), "10.244.1.0/24");
        assert_eq!(around("10.244.2.1"), "");
        assert_eq!(around("240.10.3.4"), "240.10.0.0/16");
        assert_eq!(around("fd00:3::5"), "fd00:3::/64");
        assert_eq!(around("fd00:2::5"), "");
        assert_eq!(around("9.9.9.9"), "");
        assert!(networks.overlap(&net("240.0.0.0/4")), "inside");
        assert!(networks.overlap(&net("240.10.7.0/24")), "around");
        assert!(!networks.overlap(&net("0.0.0.0/8")));
        assert!(!networks.overlap(&net("feff::/16")));
        assert!(networks.overlap(&net("fd00::/16")));
    }
}
