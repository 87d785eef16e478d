//! Virtual servers: add, read, list, change, delete, flush.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;

use ipvs::{AddressFamily, Flags, Netmask, RealServer, Scheduler, VirtualServer, VirtualServerId};

use crate::Network;

const SCHEDULERS: [Scheduler; 13] = [
    Scheduler::ROUND_ROBIN,
    Scheduler::WEIGHTED_ROUND_ROBIN,
    Scheduler::LEAST_CONNECTION,
    Scheduler::WEIGHTED_LEAST_CONNECTION,
    Scheduler::SOURCE_HASHING,
    Scheduler::DESTINATION_HASHING,
    Scheduler::SHORTEST_EXPECTED_DELAY,
    Scheduler::NEVER_QUEUE,
    Scheduler::MAGLEV_HASHING,
    Scheduler::WEIGHTED_FAILOVER,
    Scheduler::WEIGHTED_OVERFLOW,
    Scheduler::LOCALITY_BASED_LEAST_CONNECTION,
    Scheduler::LOCALITY_BASED_LEAST_CONNECTION_REPLICATED,
];

/// One of every kind, with the command that ipvsadm would make of it.
fn every_kind() -> Vec<(VirtualServer, &'static str)> {
    let v4 = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
    let v6 = IpAddr::V6("fd00::1".parse::<Ipv6Addr>().unwrap());
    let mark = |family| {
        let mark = NonZeroU32::new(0x7fff_0001).unwrap();
        VirtualServerId::FirewallMark { family, mark }
    };
    let plain = |id| VirtualServer::new(id, Scheduler::ROUND_ROBIN);
    let flagged = |id, scheduler, flags| VirtualServer::new(id, scheduler).with_flags(flags);
    let masked = |id, netmask| plain(id).with_persistence(60).with_netmask(netmask);
    vec![
        (plain(VirtualServerId::tcp(v4, 80)), "-A -t 10.96.0.1:80 -s rr"),
        (plain(VirtualServerId::udp(v4, 80)), "-A -u 10.96.0.1:80 -s rr"),
        (plain(VirtualServerId::sctp(v4, 80)), "-A --sctp-service 10.96.0.1:80 -s rr"),
        (plain(VirtualServerId::tcp(v6, 80)), "-A -t [fd00::1]:80 -s rr"),
        (plain(VirtualServerId::udp(v6, 80)), "-A -u [fd00::1]:80 -s rr"),
        (plain(VirtualServerId::sctp(v6, 80)), "-A --sctp-service [fd00::1]:80 -s rr"),
        (plain(mark(AddressFamily::Ipv4)), "-A -f 2147418113 -s rr"),
        (plain(mark(AddressFamily::Ipv6)), "-A -f 2147418113 -6 -s rr"),
        (
            plain(VirtualServerId::tcp(v4, 81)).with_persistence(10_800),
            "-A -t 10.96.0.1:81 -s rr -p 10800",
        ),
        (
            masked(VirtualServerId::tcp(v4, 82), Netmask::Prefix(24)),
            "-A -t 10.96.0.1:82 -s rr -p 60 -M 255.255.255.0",
        ),
        (
            masked(VirtualServerId::tcp(v4, 83), Netmask::Ipv4(Ipv4Addr::new(255, 0, 255, 0))),
            "-A -t 10.96.0.1:83 -s rr -p 60 -M 255.0.255.0",
        ),
        (
            masked(VirtualServerId::tcp(v6, 82), Netmask::Prefix(64)),
            "-A -t [fd00::1]:82 -s rr -p 60 -M 64",
        ),
        (
            flagged(VirtualServerId::udp(v4, 53), Scheduler::ROUND_ROBIN, Flags::ONE_PACKET),
            "-A -u 10.96.0.1:53 -s rr -o",
        ),
        (
            flagged(VirtualServerId::tcp(v4, 84), Scheduler::MAGLEV_HASHING, Flags::MH_PORT),
            "-A -t 10.96.0.1:84 -s mh -b mh-port",
        ),
        (
            flagged(
                VirtualServerId::tcp(v4, 85),
                Scheduler::SOURCE_HASHING,
                Flags::SH_FALLBACK | Flags::SH_PORT,
            ),
            "-A -t 10.96.0.1:85 -s sh -b sh-fallback,sh-port",
        ),
        (
            flagged(VirtualServerId::tcp(v4, 86), Scheduler::ROUND_ROBIN, Flags::SCHEDULER_3),
            "-A -t 10.96.0.1:86 -s rr -b flag-3",
        ),
    ]
}

#[test]
fn every_kind_is_added_read_listed_and_deleted() {
    let network = Network::new("kinds");
    let mut client = network.client();
    let every_kind = every_kind();
    for (server, _) in &every_kind {
        client.new_service(server).unwrap();
        let found = client.service(&server.id).unwrap();
        assert_eq!(found.server, *server);
        assert!(found.hashed && found.server.is_same_configuration(server));
    }

    let mut listed: Vec<_> =
        client.list_services().unwrap().into_iter().map(|found| found.server).collect();
    let mut wanted: Vec<_> = every_kind.iter().map(|(server, _)| server.clone()).collect();
    listed.sort_by_key(|server| server.id);
    wanted.sort_by_key(|server| server.id);
    assert_eq!(listed, wanted);
    let mut commands: Vec<_> = every_kind.iter().map(|(_, command)| *command).collect();
    commands.sort_unstable();
    assert_eq!(network.saved(), commands);

    for (server, _) in &every_kind {
        client.delete_service(&server.id).unwrap();
        assert!(client.service(&server.id).unwrap_err().is_no_such_service());
    }
    assert_eq!(client.list_services().unwrap(), []);
    assert_eq!(network.saved(), [""; 0]);
}

#[test]
fn what_ipvsadm_adds_is_read() {
    let network = Network::new("foreign");
    for (_, command) in every_kind() {
        network.ipvsadm(command);
    }
    let mut client = network.client();
    for (server, command) in every_kind() {
        let found = client.service(&server.id).unwrap().server;
        assert!(found.is_same_configuration(&server), "{command}: {found:?}");
    }
}

#[test]
fn every_scheduler_is_known() {
    let network = Network::new("schedulers");
    let mut client = network.client();
    for (port, scheduler) in (1..).zip(SCHEDULERS) {
        let id = VirtualServerId::tcp([10, 96, 0, 1], port);
        client.new_service(&VirtualServer::new(id, scheduler)).unwrap();
        client.new_destination(&id, &RealServer::new([10, 0, 0, 1], 80)).unwrap();
        assert_eq!(client.service(&id).unwrap().server.scheduler, scheduler);
        let line = format!("-A -t 10.96.0.1:{port} -s {scheduler}");
        assert!(network.saved().contains(&line), "{line}");
    }
}

#[test]
fn a_change_replaces_everything_but_the_identity() {
    let network = Network::new("change");
    let mut client = network.client();
    let id = VirtualServerId::tcp([10, 96, 0, 1], 80);
    client.new_service(&VirtualServer::new(id, Scheduler::ROUND_ROBIN)).unwrap();
    client.new_destination(&id, &RealServer::new([10, 0, 0, 1], 80)).unwrap();

    let mut changed = VirtualServer::new(id, Scheduler::MAGLEV_HASHING).with_persistence(30);
    changed.flags |= Flags::MH_PORT;
    changed.netmask = Netmask::Prefix(16);
    client.set_service(&changed).unwrap();
    let found = client.service(&id).unwrap();
    assert_eq!((found.server, found.hashed), (changed, true));
    assert_eq!(
        network.saved(),
        [
            "-A -t 10.96.0.1:80 -s mh -p 30 -M 255.255.0.0 -b mh-port",
            "-a -t 10.96.0.1:80 -r 10.0.0.1:80 -m -w 1"
        ]
    );

    let plain = VirtualServer::new(id, Scheduler::LEAST_CONNECTION);
    client.set_service(&plain).unwrap();
    assert_eq!(client.service(&id).unwrap().server, plain, "flags are cleared too");
    assert_eq!(client.list_destinations(&id).unwrap().len(), 1);
}

#[test]
fn the_kernels_own_flag_may_be_in_what_is_asked_for() {
    let network = Network::new("hashed");
    let mut client = network.client();
    let id = VirtualServerId::tcp([10, 96, 0, 1], 80);
    let mut server = VirtualServer::new(id, Scheduler::ROUND_ROBIN);
    server.flags |= Flags::HASHED;
    client.new_service(&server).unwrap();
    client.set_service(&server).unwrap();
    assert!(client.service(&id).unwrap().hashed);
    client.delete_service(&id).unwrap();
    assert_eq!(client.list_services().unwrap(), []);
}

#[test]
fn a_flush_deletes_everything_in_this_namespace_and_nothing_in_another() {
    let (network, neighbour) = (Network::new("flush"), Network::new("neighbour"));
    let id = VirtualServerId::tcp([10, 96, 0, 1], 80);
    for network in [&network, &neighbour] {
        let mut client = network.client();
        client.new_service(&VirtualServer::new(id, Scheduler::ROUND_ROBIN)).unwrap();
        client.new_destination(&id, &RealServer::new([10, 0, 0, 1], 80)).unwrap();
    }
    network.client().flush().unwrap();
    assert_eq!(network.client().list_all().unwrap(), []);
    assert_eq!(neighbour.client().list_all().unwrap().len(), 1);
}
