//! Properties that a network namespace has once.

use ipvs::{InterfaceName, SyncDaemon, SyncRole, Timeouts};

use crate::Network;

fn of(tcp: u32, tcp_fin: u32, udp: u32) -> Timeouts {
    Timeouts::default().with_tcp(tcp).with_tcp_fin(tcp_fin).with_udp(udp)
}

#[test]
fn version_and_size_are_read() {
    let network = Network::new("info");
    let info = network.client().info().unwrap();
    assert_eq!(info.version.to_string(), "1.2.1");
    let head = format!("version 1.2.1 (size={})", info.connection_table_size);
    assert!(network.ipvsadm("-L -n").contains(&head), "{head}");
}

#[test]
fn timeouts_are_set_one_by_one() {
    let network = Network::new("timeouts");
    let mut client = network.client();
    assert_eq!(client.timeouts().unwrap(), of(900, 120, 300));
    client.set_timeouts(Timeouts::default().with_tcp(800)).unwrap();
    client.set_timeouts(Timeouts::default().with_tcp_fin(70)).unwrap();
    client.set_timeouts(Timeouts::default().with_udp(60)).unwrap();
    assert_eq!(client.timeouts().unwrap(), of(800, 70, 60));
    assert!(network.ipvsadm("-L -n --timeout").contains("800 70 60"));
}

#[test]
fn sync_daemons_are_started_listed_and_stopped() {
    let network = Network::new("daemons");
    let mut client = network.client();
    assert_eq!(client.list_daemons().unwrap(), []);
    let loopback = InterfaceName::new("lo").unwrap();
    let daemon = |role, interface| {
        SyncDaemon::new(role, interface)
            .with_sync_id(9)
            .with_datagram_length(1_100)
            .with_group([224, 0, 0, 99])
            .with_port(8_849)
            .with_ttl(3)
    };
    let [master, backup] = [SyncRole::Master, SyncRole::Backup].map(|role| daemon(role, loopback));
    client.new_daemon(&master).unwrap();
    client.new_daemon(&backup).unwrap();
    assert_eq!(client.list_daemons().unwrap(), [master, backup]);
    let text = network.ipvsadm("-L --daemon");
    let words =
        "master sync daemon (mcast=lo, syncid=9, maxlen=1100, group=224.0.0.99, port=8849, ttl=3)";
    assert!(text.contains(words), "{text}");

    client.delete_daemon(SyncRole::Master).unwrap();
    assert_eq!(client.list_daemons().unwrap(), [backup]);
    client.delete_daemon(SyncRole::Backup).unwrap();
    assert_eq!(client.list_daemons().unwrap(), []);

    let group: std::net::Ipv6Addr = "ff02::99".parse().unwrap();
    network.ip("link add wide type dummy");
    network.ip("link set wide up");
    network.ip("addr add fd00::1/64 dev wide nodad");
    let interface = InterfaceName::new("wide").unwrap();
    let wide = daemon(SyncRole::Master, interface).with_group(group);
    client.new_daemon(&wide).unwrap();
    assert_eq!(client.list_daemons().unwrap(), [wide]);
    assert!(network.ipvsadm("-L --daemon").contains("group=ff02::99"));
    client.delete_daemon(SyncRole::Master).unwrap();
}
