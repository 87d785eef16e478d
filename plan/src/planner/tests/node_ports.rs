//! NodePorts at many addresses, and the order in which their policy changes.

use super::*;
use crate::sets::SetKind;

fn mk_node_port(name: &str, protocol: Protocol, port: u16) -> Service {
    Service {
        ports: vec![mk_port("http", protocol, 80, Some(port))],
        kind: ServiceKind::LoadBalancer,
        ..mk_named(name, 0)
    }
}

#[test]
fn virtual_servers_of_node_ports_are_counted_and_so_are_services_own_addresses() {
    let announced = Service {
        load_balancer: addresses(&["203.0.113.5"]),
        ..mk_node_port("tcp", Protocol::Tcp, 30080)
    };
    let mut planner = mk_planner([
        local(&["127.0.0.1", "192.0.2.10", "203.0.113.5"]),
        service(announced),
        service(mk_node_port("udp", Protocol::Udp, 30053)),
        service(mk_node_port("sctp", Protocol::Sctp, 30132)),
        slice(mk_slice_of("tcp-1", "tcp", &["10.244.1.2"])),
        slice(mk_slice_of("udp-1", "udp", &["10.244.1.2"])),
        slice(mk_slice_of("sctp-1", "sctp", &["10.244.1.2"])),
    ]);
    let of_node_ports = planner.desired().frontends().filter(|it| it.port > 30_000).count();
    assert_eq!((planner.n_node_port_servers(), of_node_ports), (6, 6));
    let addresses = NodePortAddressCount { all: 2, of_services: 1 };
    assert_eq!(planner.count_node_port_addresses(), addresses);
    plan(&mut planner, [local(&["127.0.0.1", "192.0.2.10"])]);
    assert_eq!(planner.n_node_port_servers(), 3);
    let addresses = NodePortAddressCount { all: 1, of_services: 0 };
    assert_eq!(planner.count_node_port_addresses(), addresses);
}

#[test]
fn connections_are_masqueraded_before_other_nodes_endpoints_get_any() {
    let with_policy = |external_policy| Service {
        external_policy,
        load_balancer: addresses(&["203.0.113.5"]),
        ..mk_node_port("tcp", Protocol::Tcp, 30080)
    };
    let mut endpoints = mk_slice_of("tcp-1", "tcp", &["10.244.0.2", "10.244.1.2"]);
    endpoints.endpoints[0].node = Some("n1".into());
    let mut planner = mk_planner([
        local(&["192.0.2.10"]),
        service(with_policy(TrafficPolicy::Local)),
        slice(endpoints),
    ]);
    let changed = plan(&mut planner, [service(with_policy(TrafficPolicy::Cluster))]).ops;
    let spared = |op: &Op| matches!(op, Op::RemoveEntry(set, _) if set.kind.spares_masquerading());
    let is_added = |op: &Op| matches!(op, Op::AddRealServer(frontend, _) if frontend.port != 80);
    let last_spared = changed.iter().rposition(spared).unwrap();
    let first_added = changed.iter().position(is_added).unwrap();
    assert!(last_spared < first_added, "{changed:?}");
    let sets = [SetKind::LoadBalancerLocal, SetKind::NodePortLocalTcp];
    for kind in sets {
        assert!(
            changed.iter().any(|op| matches!(op, Op::RemoveEntry(set, _) if set.kind == kind)),
            "{kind:?}"
        );
    }
}
