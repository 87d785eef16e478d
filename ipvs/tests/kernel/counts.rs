//! Virtual servers counted without a listing.

use std::time::Instant;

use ipvs::{AddressFamily, Batch, Netmask, Scheduler, VirtualServer, VirtualServerId};

use crate::Network;

fn mk_server(id: VirtualServerId) -> VirtualServer {
    VirtualServer::new(id, Scheduler::ROUND_ROBIN)
}

#[test]
fn virtual_servers_of_ipv4_and_firewall_marks_are_counted_in_their_namespace() {
    let (network, other) = (Network::new("count"), Network::new("count-other"));
    let (counter, mut client) = (network.counter(), network.client());
    assert_eq!(counter.count().unwrap().ipv4, 0);

    let mark = |family| VirtualServerId::FirewallMark { family, mark: 7.try_into().unwrap() };
    let added = [
        (VirtualServerId::tcp([10, 96, 0, 1], 80), 1),
        (VirtualServerId::udp([10, 96, 0, 1], 80), 2),
        (mark(AddressFamily::Ipv4), 3),
        (VirtualServerId::tcp("fd00::1".parse::<std::net::Ipv6Addr>().unwrap(), 80), 3),
        (mark(AddressFamily::Ipv6), 3),
    ];
    for (id, expected) in added {
        client.new_service(&mk_server(id)).unwrap();
        assert_eq!(counter.count().unwrap().ipv4, expected, "{id}");
    }
    assert_eq!(other.counter().count().unwrap().ipv4, 0);
    network.ipvsadm("-D -u 10.96.0.1:80");
    assert_eq!(counter.count().unwrap().ipv4, 2);
    network.ipvsadm("-C");
    assert_eq!(counter.count().unwrap().ipv4, 0);
}

#[test]
fn virtual_servers_of_ipv4_alone_are_listed_by_one_call() {
    let network = Network::new("count-list");
    let (counter, mut client) = (network.counter(), network.client());
    let mark =
        VirtualServerId::FirewallMark { family: AddressFamily::Ipv4, mark: 7.try_into().unwrap() };
    let sticky = mk_server(VirtualServerId::udp([10, 96, 0, 1], 53)).with_persistence(360);
    let mut batch = Batch::new();
    batch.new_service(&sticky.with_netmask(Netmask::Prefix(24)));
    batch.new_service(&VirtualServer::new(mark, Scheduler::SOURCE_HASHING));
    for port in 1..=1_000 {
        batch.new_service(&mk_server(VirtualServerId::tcp([10, 96, 0, 1], port)));
    }
    assert!(client.send(&batch).unwrap().iter().all(Result::is_ok));
    let listed: Vec<_> = client.list_services().unwrap().into_iter().map(|it| it.server).collect();
    assert_eq!(listed.len(), 1_002);
    assert_eq!(counter.list_only_ipv4().unwrap(), Some(listed));

    let v6 = VirtualServerId::tcp("fd00::1".parse::<std::net::Ipv6Addr>().unwrap(), 80);
    client.new_service(&mk_server(v6)).unwrap();
    assert_eq!(counter.list_only_ipv4().unwrap(), None);
    client.delete_service(&v6).unwrap();
    network.ipvsadm("-C");
    assert_eq!(counter.list_only_ipv4().unwrap(), Some(Vec::new()));
}

#[test]
fn users_of_the_module_tell_of_virtual_servers_of_ipv6() {
    let network = Network::new("count-users");
    let (counter, mut client) = (network.counter(), network.client());
    let server = |port| {
        mk_server(VirtualServerId::tcp("fd00::1".parse::<std::net::Ipv6Addr>().unwrap(), port))
    };
    // The scheduler's module is loaded now, if it is one.
    client.new_service(&server(1)).unwrap();
    let users = || counter.count().unwrap().users.unwrap();
    let mut batch = Batch::new();
    for port in 2..=1_001 {
        batch.new_service(&server(port));
    }
    let before = users();
    assert!(client.send(&batch).unwrap().iter().all(Result::is_ok));
    assert_eq!(users(), before + 1_000);
    network.ipvsadm("-D -t [fd00::1]:500");
    assert_eq!(users(), before + 999);

    let begin = Instant::now();
    for _ in 0..1_000 {
        let _users = users();
    }
    println!("counting takes {:?} beside 1,000 virtual servers", begin.elapsed() / 1_000);
}
