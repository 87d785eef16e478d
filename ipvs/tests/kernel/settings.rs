//! Properties that a network namespace has once.

use ipvs::{InterfaceName, SyncDaemon, SyncRole, Timeouts};

use crate::Network;

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
    assert_eq!(client.timeouts().unwrap(), Timeouts { tcp: 900, tcp_fin: 120, udp: 300 });
    client.set_timeouts(Timeouts { tcp: 800, ..Timeouts::default() }).unwrap();
    client.set_timeouts(Timeouts { tcp_fin: 70, ..Timeouts::default() }).unwrap();
    client.set_timeouts(Timeouts { udp: 60, ..Timeouts::default() }).unwrap();
    assert_eq!(client.timeouts().unwrap(), Timeouts { tcp: 800, tcp_fin: 70, udp: 60 });
    assert!(network.ipvsadm("-L -n --timeout").contains("800 70 60"));
}

#[test]
fn sync_daemons_are_started_listed_and_stopped() {
    let network = Network::new("daemons");
    let mut client = network.client();
    assert_eq!(client.list_daemons().unwrap(), []);
    let loopback = InterfaceName::new("lo").unwrap();
    let master = SyncDaemon {
        sync_id: 9,
        datagram_length: 1_100,
        group: Some([224, 0, 0, 99].into()),
        port: 8_849,
        ttl: 3,
        ..SyncDaemon::new(SyncRole::Master, loopback)
    };
    let backup = SyncDaemon { role: SyncRole::Backup, ..master };
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
    let wide = SyncDaemon { group: Some(group.into()), interface, ..master };
    client.new_daemon(&wide).unwrap();
    assert_eq!(client.list_daemons().unwrap(), [wide]);
    assert!(network.ipvsadm("-L --daemon").contains("group=ff02::99"));
    client.delete_daemon(SyncRole::Master).unwrap();
}
