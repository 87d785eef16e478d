//! Real servers: add, list, change, delete; and what is counted for them.

use std::io::Read as _;
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ipvs::{
    Batch, Client, ForwardingMethod, Listing, RealServer, Scheduler, TunnelFlags, TunnelOptions,
    TunnelType, VirtualServer, VirtualServerId,
};

use crate::Network;

fn web() -> VirtualServerId {
    VirtualServerId::tcp([10, 96, 0, 1], 80)
}

fn with_web(network: &Network) -> Client {
    let mut client = network.client();
    client.new_service(&VirtualServer::new(web(), Scheduler::WEIGHTED_ROUND_ROBIN)).unwrap();
    client
}

fn tunnel(kind: TunnelType, port: u16, flags: TunnelFlags) -> ForwardingMethod {
    ForwardingMethod::Tunnel(TunnelOptions::new(kind).with_port(port).with_flags(flags))
}

/// One of every kind, with the command that ipvsadm would make of it.
fn every_kind() -> Vec<(RealServer, &'static str)> {
    let at = |last| RealServer::new([10, 0, 0, last], 80);
    let v6: Ipv6Addr = "fd00::a".parse().unwrap();
    let forwarded = |last, forwarding| at(last).with_forwarding(forwarding);
    vec![
        (at(1), "-r 10.0.0.1:80 -m -w 1"),
        (at(2).with_weight(0), "-r 10.0.0.2:80 -m -w 0"),
        (
            at(3).with_weight(65_535).with_upper_threshold(200).with_lower_threshold(100),
            "-r 10.0.0.3:80 -m -w 65535",
        ),
        (forwarded(4, ForwardingMethod::DirectRoute), "-r 10.0.0.4:80 -g -w 1"),
        (
            forwarded(5, tunnel(TunnelType::Ipip, 0, TunnelFlags::empty())),
            "-r 10.0.0.5:80 -i -w 1 --tun-type ipip",
        ),
        (
            forwarded(6, tunnel(TunnelType::Gue, 6080, TunnelFlags::REMOTE_CHECKSUM)),
            "-r 10.0.0.6:80 -i -w 1 --tun-type gue --tun-port 6080 --tun-remcsum",
        ),
        (
            forwarded(7, tunnel(TunnelType::Gre, 0, TunnelFlags::CHECKSUM)),
            "-r 10.0.0.7:80 -i -w 1 --tun-type gre --tun-csum",
        ),
        (
            RealServer::new(v6, 80).with_forwarding(tunnel(
                TunnelType::Ipip,
                0,
                TunnelFlags::empty(),
            )),
            "-r [fd00::a]:80 -i -w 1 --tun-type ipip",
        ),
    ]
}

fn listed(client: &mut Client) -> Vec<RealServer> {
    let mut listed: Vec<_> =
        client.list_destinations(&web()).unwrap().into_iter().map(|found| found.server).collect();
    listed.sort_by_key(RealServer::socket_address);
    listed
}

#[test]
fn every_kind_is_added_listed_and_deleted() {
    let network = Network::new("real-kinds");
    let mut client = with_web(&network);
    let mut wanted = Vec::new();
    let mut commands = vec!["-A -t 10.96.0.1:80 -s wrr".to_owned()];
    for (server, command) in every_kind() {
        client.new_destination(&web(), &server).unwrap();
        wanted.push(server);
        commands.push(format!("-a -t 10.96.0.1:80 {command}"));
    }
    wanted.sort_by_key(RealServer::socket_address);
    commands.sort();
    assert_eq!(listed(&mut client), wanted);
    assert_eq!(network.saved(), commands);
    // `ipvsadm -S` leaves thresholds out.
    let thresholds = network.ipvsadm("-L -n --thresholds");
    let mut lines = thresholds.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert!(
        lines.any(|words| words[..] == ["->", "10.0.0.3:80", "200", "100", "0", "0"]),
        "{thresholds}"
    );

    for server in &wanted {
        client.delete_destination(&web(), server.socket_address()).unwrap();
    }
    assert_eq!(listed(&mut client), []);
}

#[test]
fn methods_that_ipvsadm_has_no_word_for_are_kept() {
    let network = Network::new("methods");
    let mut client = with_web(&network);
    for forwarding in [ForwardingMethod::Local, ForwardingMethod::Bypass] {
        let server = RealServer::new([10, 0, 0, 1], 80).with_forwarding(forwarding);
        client.new_destination(&web(), &server).unwrap();
        assert_eq!(listed(&mut client), [server]);
        client.delete_destination(&web(), server.socket_address()).unwrap();
    }
}

#[test]
fn a_change_replaces_everything_but_address_and_port() {
    let network = Network::new("real-change");
    let mut client = with_web(&network);
    let first = RealServer::new([10, 0, 0, 1], 80);
    client.new_destination(&web(), &first).unwrap();
    let changed = first
        .with_forwarding(tunnel(TunnelType::Gue, 6080, TunnelFlags::CHECKSUM))
        .with_weight(9)
        .with_upper_threshold(20)
        .with_lower_threshold(10);
    client.set_destination(&web(), &changed).unwrap();
    assert_eq!(listed(&mut client), [changed]);
    client.set_destination(&web(), &first).unwrap();
    assert_eq!(listed(&mut client), [first], "nothing of the tunnel is left");
    assert!(network.saved().contains(&"-a -t 10.96.0.1:80 -r 10.0.0.1:80 -m -w 1".to_owned()));
}

#[test]
fn a_listing_longer_than_a_datagram_is_whole() {
    let network = Network::new("long");
    let mut client = with_web(&network);
    let mut batch = Batch::new();
    let servers: Vec<_> =
        (0..2_000_u16).map(|number| RealServer::new([10, 0, 0, 1], 1 + number)).collect();
    for server in &servers {
        batch.new_destination(&web(), server);
    }
    assert!(client.send(&batch).unwrap().iter().all(Result::is_ok));
    assert_eq!(listed(&mut client), servers);
}

#[test]
fn a_virtual_server_that_is_gone_has_no_real_servers() {
    let network = Network::new("gone");
    let mut client = with_web(&network);
    assert_eq!(client.list_all().unwrap().len(), 1, "empty, yet there");
    client.delete_service(&web()).unwrap();
    assert_eq!(client.list_destinations(&web()).unwrap(), []);
    assert_eq!(client.list_all().unwrap(), []);
}

#[test]
fn connections_are_counted_and_counters_zeroed() {
    let network = Network::new("traffic");
    network.ip("addr add 10.96.0.1/32 dev lo");
    network.ip("addr add 10.0.0.1/32 dev lo");
    let mut client = with_web(&network);
    client.new_destination(&web(), &RealServer::new([10, 0, 0, 1], 8080)).unwrap();
    let (connection, accepted) = network.inside(|| {
        let listener = TcpListener::bind(("10.0.0.1", 8080)).unwrap();
        let connection = TcpStream::connect(("10.96.0.1", 80)).unwrap();
        (connection, listener.accept().unwrap().0)
    });

    // The counters are brought up to date every two seconds, the number of connections at once.
    assert_eq!(client.list_destinations(&web()).unwrap()[0].active_connections, 1);
    let found = eventually(&mut client, |listing| {
        let real_server = listing.real_servers[0].statistics;
        [listing.virtual_server.statistics, real_server].iter().all(|counted| {
            counted.connections == 1 && counted.incoming_packets >= 2 && counted.incoming_bytes > 80
        })
    });
    let bytes = found.real_servers[0].statistics.incoming_bytes.to_string();
    let text = network.ipvsadm("-L -n --stats --exact");
    assert!(text.contains(&bytes), "{bytes} in {text}");

    client.zero_service(&web()).unwrap();
    let found = client.list_all().unwrap().remove(0);
    for zeroed in [found.virtual_server.statistics, found.real_servers[0].statistics] {
        assert_eq!((zeroed.connections, zeroed.incoming_packets, zeroed.incoming_bytes), (0, 0, 0));
    }
    assert_eq!(found.real_servers[0].active_connections, 1, "the connection lives on");

    drop(accepted);
    let mut rest = Vec::new();
    (&connection).read_to_end(&mut rest).unwrap();
    eventually(&mut client, |listing| listing.virtual_server.statistics.incoming_packets > 0);
    client.zero_all().unwrap();
    assert_eq!(client.service(&web()).unwrap().statistics.incoming_packets, 0);
}

/// Waits until the only virtual server is as it should be, and returns it.
fn eventually(client: &mut Client, holds: impl Fn(&Listing) -> bool) -> Listing {
    let start = Instant::now();
    loop {
        let listing = client.list_all().unwrap().remove(0);
        if holds(&listing) {
            return listing;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{listing:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
