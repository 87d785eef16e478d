//! Node ports on this node's loopback addresses, which IPVS cannot serve: it never sends on what
//! comes from there (`crosses_local_route_boundary` in net/netfilter/ipvs/ip_vs_xmit.c).
//! Connections to them are passed on by a process instead.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use crate::facts::NodeFacts;
use crate::model::{Family, Protocol, Service, ServicePort};

/// A TCP node port that localhost has too, in one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalhostPort {
    /// The port on localhost.
    pub port: NonZeroU16,
    /// Address at which the Service is reached from this node; of the family.
    pub to: SocketAddr,
}

/// Returns the port that a service port has on localhost. Connections to it are passed on to the
/// same port at the first address that serves node ports, so that what holds for node ports holds
/// for them; without such an address, to the Service's cluster address.
pub(crate) fn localhost_port(
    service: &Service,
    port: &ServicePort,
    family: Family,
    facts: &NodeFacts,
) -> Option<LocalhostPort> {
    let node_port = port.node_port.filter(|_| port.protocol == Protocol::Tcp)?;
    let serving = facts.node_port_addresses(family).find(|address| !needs_an_interface(*address));
    let to = match serving {
        Some(address) => SocketAddr::new(address, node_port.get()),
        None => SocketAddr::new(service.cluster_address(family)?, port.port.get()),
    };
    Some(LocalhostPort { port: node_port, to })
}

/// A link-local IPv6 address alone does not say where it is.
fn needs_an_interface(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::fixtures::{addresses, mk_port, mk_service, mk_slice};
    use crate::model::ServiceName;
    use crate::planner::Planner;
    use crate::settings::Settings;

    fn mk_planner(is_on: bool) -> Planner {
        let mut planner =
            Planner::new(Settings { localhost_node_ports: is_on, ..Settings::new("n1") });
        planner.apply(Event::LocalAddresses(addresses(&["127.0.0.1", "192.0.2.10", "fe80::10"])));
        planner
    }

    /// With a node port of each family and protocol.
    fn mk_reachable() -> Service {
        Service {
            cluster_v6: Some("fd00:96::9".parse().unwrap()),
            ports: vec![
                mk_port("https", Protocol::Tcp, 443, Some(30_443)),
                mk_port("http", Protocol::Tcp, 80, Some(30_080)),
                mk_port("http", Protocol::Udp, 80, Some(30_080)),
                mk_port("http", Protocol::Sctp, 80, Some(30_080)),
                mk_port("inner", Protocol::Tcp, 81, None),
            ],
            ..mk_service()
        }
    }

    fn reported(planner: &mut Planner, event: Event) -> Vec<(ServiceName, Vec<String>)> {
        planner.apply(event);
        let all = planner.plan().localhost.into_iter();
        let words = |port: &LocalhostPort| format!("{} {}", port.port, port.to);
        all.map(|(service, ports)| (service, ports.iter().map(words).collect())).collect()
    }

    fn applied(service: &Service) -> Event {
        Event::ServiceApplied(Box::new(service.clone()))
    }

    #[test]
    fn tcp_node_ports_are_reported_when_they_differ() {
        let mut planner = mk_planner(true);
        let mut service = mk_reachable();
        let name = service.name.clone();
        // There is no IPv6 address by itself for node ports, so the cluster's stands for it.
        let all = [
            "30080 192.0.2.10:30080",
            "30080 [fd00:96::9]:80",
            "30443 192.0.2.10:30443",
            "30443 [fd00:96::9]:443",
        ];
        let expected = |ports: &[&str]| {
            vec![(name.clone(), ports.iter().map(|port| (*port).to_owned()).collect::<Vec<_>>())]
        };
        assert_eq!(reported(&mut planner, applied(&service)), expected(&all));
        let slice = mk_slice(Family::V4, &[("10.244.1.2", "n2")]);
        assert_eq!(reported(&mut planner, Event::SliceApplied(Box::new(slice))), []);

        let addresses = addresses(&["192.0.2.9", "192.0.2.10", "2001:db8::1"]);
        let moved = [
            "30080 192.0.2.9:30080",
            "30080 [2001:db8::1]:30080",
            "30443 192.0.2.9:30443",
            "30443 [2001:db8::1]:30443",
        ];
        assert_eq!(reported(&mut planner, Event::LocalAddresses(addresses)), expected(&moved));
        service.ports.remove(0);
        service.cluster_v6 = None;
        assert_eq!(reported(&mut planner, applied(&service)), expected(&moved[..1]));
        assert_eq!(reported(&mut planner, Event::ServiceRemoved(name.clone())), expected(&[]));
        assert_eq!(reported(&mut planner, applied(&mk_service())), []);
    }

    #[test]
    fn link_local_addresses_do_not_say_where_they_are() {
        let networks = ["fe80::/10", "fd00::/8"].map(|net| net.parse().unwrap()).to_vec();
        let settings = Settings {
            node_port_addresses: crate::settings::NodePortAddresses::Networks(networks),
            localhost_node_ports: true,
            ..Settings::new("n1")
        };
        let mut planner = Planner::new(settings);
        planner.apply(Event::LocalAddresses(addresses(&["fe80::10"])));
        let service = Service { cluster_v4: None, ..mk_reachable() };
        let ports = reported(&mut planner, applied(&service)).remove(0).1;
        assert_eq!(ports, ["30080 [fd00:96::9]:80", "30443 [fd00:96::9]:443"]);
    }

    #[test]
    fn none_are_reported_unless_they_are_wanted() {
        let mut planner = mk_planner(false);
        assert_eq!(reported(&mut planner, applied(&mk_reachable())), []);
    }
}
