//! Clients by where they are, and the packets that they send.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

use super::{Origin, Packet};
use crate::model::{Family, Protocol};
use crate::planner::Planner;
use crate::settings::LocalDetection;

/// A client by where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Client {
    /// A pod of this node, with this address.
    Pod(IpAddr),
    /// This node itself.
    Node,
    /// Another node, a pod there, or a host outside of the cluster, with this address.
    Elsewhere(IpAddr),
}

/// Port of a client: no rule asks for it.
const CLIENT_PORT: u16 = 40_000;

/// Interface by which pods' packets come, where no rule knows it by its name.
const OF_PODS: &str = "cni0";

/// Interfaces by which others' packets come: the first one that rules do not take for that of pods.
const OF_OTHERS: [&str; 2] = ["eth0", "uplink0"];

impl Planner {
    /// Returns the first packet of a client's connection. None: the node's own address is not known.
    #[must_use]
    pub fn packet_of(
        &self,
        client: Client,
        protocol: Protocol,
        destination: SocketAddr,
    ) -> Option<Packet> {
        let detection = &self.settings().local_detection;
        let (source, origin) = match client {
            Client::Node => (self.own_source(destination.ip())?, Origin::Node),
            Client::Pod(address) => (address, interface_of_pods(detection)),
            Client::Elsewhere(address) => (address, interface_of_others(detection)),
        };
        let source = SocketAddr::new(source, CLIENT_PORT);
        Some(Packet { protocol, source, destination, origin })
    }

    /// Returns where the client with an address is, as far as is known: a pod of this node is inside
    /// the Node's `podCIDRs`, or an endpoint that its slice says is on this node.
    #[must_use]
    pub fn client_at(&self, address: IpAddr) -> Client {
        if self.is_local(address) {
            Client::Node
        } else if self.pod_networks().iter().any(|net| net.contains(&address))
            || self.has_endpoint_here(address)
        {
            Client::Pod(address)
        } else {
            Client::Elsewhere(address)
        }
    }

    /// Returns where the client is whose packets come in this way: where pods are known by their interfaces,
    /// these decide, and otherwise its address.
    #[must_use]
    pub fn client_by(&self, address: IpAddr, origin: &Origin) -> Client {
        let is_of_pods = match (&self.settings().local_detection, origin) {
            (
                LocalDetection::BridgeInterface(bridge),
                Origin::Interface { name, is_by_bridge_port },
            ) => *is_by_bridge_port && name == bridge,
            (LocalDetection::InterfaceNamePrefix(prefix), Origin::Interface { name, .. }) => {
                name.starts_with(&**prefix)
            }
            _ => return self.client_at(address),
        };
        match is_of_pods {
            true => Client::Pod(address),
            false => Client::Elsewhere(address),
        }
    }

    /// True if a client with an address is neither this node nor a pod of it. False where no network of
    /// this node's pods is known.
    pub(super) fn is_elsewhere(&self, address: IpAddr) -> bool {
        let family = Family::of(address);
        let is_known = self.pod_networks().iter().any(|net| Family::of_net(net) == family);
        let is_inside = || self.pod_networks().iter().any(|net| net.contains(&address));
        is_known && !self.is_local(address) && !is_inside()
    }

    /// Returns a pod of this node that is no endpoint of any Service, as an example. None: no network
    /// of its pods is known.
    #[must_use]
    pub fn example_pod(&self, family: Family) -> Option<Client> {
        let of_family = |net: &&IpNet| Family::of_net(net) == family;
        let of_node = self.pod_networks().iter().find(of_family);
        let of_cluster = match &self.settings().local_detection {
            LocalDetection::ClusterCidr(networks) => networks.iter().find(of_family),
            _ => None,
        };
        // The last ones are given to pods last.
        let last = |net: &IpNet| match net.broadcast() {
            IpAddr::V4(last) => IpAddr::V4(Ipv4Addr::from_bits(last.to_bits().saturating_sub(1))),
            IpAddr::V6(last) => IpAddr::V6(Ipv6Addr::from_bits(last.to_bits().saturating_sub(1))),
        };
        of_node.or(of_cluster).map(last).map(Client::Pod)
    }

    /// Returns a host outside of the cluster and of these networks, as an example: its address is one
    /// of those for documentation (RFC 5737, RFC 3849).
    #[must_use]
    pub fn example_outside(&self, family: Family, outside_of: &[IpNet]) -> Option<Client> {
        let examples: [IpAddr; 3] = match family {
            Family::V4 => [[192, 0, 2, 254], [198, 51, 100, 254], [203, 0, 113, 254]]
                .map(|address| IpAddr::V4(address.into())),
            Family::V6 => [0xff, 0xfe, 0xfd]
                .map(|last| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, last))),
        };
        let is_inside = |address: &IpAddr| outside_of.iter().any(|net| net.contains(address));
        let mut free = examples.into_iter().filter(|it| !is_inside(it));
        let found = free.find(|address| self.client_at(*address) == Client::Elsewhere(*address));
        found.map(Client::Elsewhere)
    }

    fn pod_networks(&self) -> &[IpNet] {
        &self.facts().node().pod_cidrs
    }
}

fn interface_of_pods(detection: &LocalDetection) -> Origin {
    match detection {
        LocalDetection::BridgeInterface(name) => {
            Origin::Interface { name: name.clone(), is_by_bridge_port: true }
        }
        LocalDetection::InterfaceNamePrefix(prefix) => {
            Origin::Interface { name: prefix.clone(), is_by_bridge_port: false }
        }
        LocalDetection::None | LocalDetection::ClusterCidr(_) | LocalDetection::NodeCidr => {
            Origin::Interface { name: OF_PODS.into(), is_by_bridge_port: true }
        }
    }
}

fn interface_of_others(detection: &LocalDetection) -> Origin {
    let is_of_pods = |name: &&str| match detection {
        LocalDetection::BridgeInterface(bridge) => **bridge == **name,
        LocalDetection::InterfaceNamePrefix(prefix) => name.starts_with(&**prefix),
        LocalDetection::None | LocalDetection::ClusterCidr(_) | LocalDetection::NodeCidr => false,
    };
    let name = OF_OTHERS.into_iter().find(|name| !is_of_pods(name)).unwrap_or_default();
    Origin::Interface { name: name.into(), is_by_bridge_port: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::fixtures::addresses;
    use crate::model::Node;
    use crate::settings::Settings;

    fn mk_planner(detection: LocalDetection) -> Planner {
        let settings = Settings { local_detection: detection, ..Settings::new("n1") };
        let mut planner = Planner::new(settings);
        planner.apply(Event::LocalAddresses(addresses(&["192.0.2.1", "10.244.1.1"])));
        planner.apply(Event::NodeApplied(Box::new(Node {
            addresses: addresses(&["192.0.2.1"]),
            pod_cidrs: vec!["10.244.1.0/24".parse().unwrap()],
            ..Node::default()
        })));
        planner
    }

    #[test]
    fn a_client_is_where_its_address_is() {
        let planner = mk_planner(LocalDetection::None);
        let at = |address: &str| planner.client_at(address.parse().unwrap());
        assert_eq!(at("192.0.2.1"), Client::Node);
        assert_eq!(at("127.0.0.1"), Client::Node);
        assert_eq!(at("10.244.1.1"), Client::Node);
        assert_eq!(at("10.244.1.7"), Client::Pod(addresses(&["10.244.1.7"])[0]));
        assert_eq!(at("10.244.2.7"), Client::Elsewhere(addresses(&["10.244.2.7"])[0]));
    }

    #[test]
    fn examples_are_inside_and_outside_of_the_networks() {
        let planner = mk_planner(LocalDetection::None);
        let pod = planner.example_pod(Family::V4).unwrap();
        assert_eq!(pod, Client::Pod(addresses(&["10.244.1.254"])[0]));
        assert_eq!(planner.example_pod(Family::V6), None);
        let ranges = ["192.0.2.0/24".parse().unwrap()];
        let outside = planner.example_outside(Family::V4, &ranges).unwrap();
        assert_eq!(outside, Client::Elsewhere(addresses(&["198.51.100.254"])[0]));
        let everything = ["0.0.0.0/0".parse().unwrap()];
        assert_eq!(planner.example_outside(Family::V4, &everything), None);
    }

    #[test]
    fn packets_come_by_the_interfaces_that_rules_ask_for() {
        let destination = "10.96.0.1:80".parse().unwrap();
        let name = |detection: LocalDetection, client| {
            let planner = mk_planner(detection);
            let packet = planner.packet_of(client, Protocol::Tcp, destination).unwrap();
            match packet.origin {
                Origin::Interface { name, .. } => name.to_string(),
                Origin::Node => "the node".to_owned(),
            }
        };
        let pod = Client::Pod(addresses(&["10.244.1.7"])[0]);
        let other = Client::Elsewhere(addresses(&["203.0.113.7"])[0]);
        let bridge = LocalDetection::BridgeInterface("br0".into());
        let prefix = LocalDetection::InterfaceNamePrefix("eth".into());
        assert_eq!(name(bridge.clone(), pod), "br0");
        assert_eq!(name(bridge.clone(), other), "eth0");
        assert_eq!(name(prefix.clone(), pod), "eth");
        assert_eq!(name(prefix, other), "uplink0");
        assert_eq!(name(bridge, Client::Node), "the node");
    }
}
