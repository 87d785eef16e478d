//! Requests that the kernel refuses, and its answers: the table at `ipvs::Error`.

use std::net::IpAddr;

use ipvs::{
    Client, Error, ForwardingMethod, InterfaceName, Netmask, PersistenceEngine, RealServer,
    Scheduler, SyncDaemon, SyncRole, Timeouts, TunnelOptions, TunnelType, VirtualServer,
    VirtualServerId,
};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::Network;

fn web() -> VirtualServer {
    VirtualServer::new(VirtualServerId::tcp([10, 96, 0, 1], 80), Scheduler::ROUND_ROBIN)
}

fn real_server() -> RealServer {
    RealServer::new([10, 0, 0, 1], 80)
}

fn with_web(network: &Network) -> Client {
    let mut client = network.client();
    client.new_service(&web()).unwrap();
    client.new_destination(&web().id, &real_server()).unwrap();
    client
}

#[track_caller]
fn refused(result: Result<(), Error>, errno: Errno) -> Error {
    let error = result.expect_err("the kernel takes it");
    assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()), "{error}");
    error
}

#[test]
fn virtual_servers() {
    let network = Network::new("refused-virtual");
    let mut client = with_web(&network);
    assert!(refused(client.new_service(&web()), Errno::EXIST).is_exists());
    let mut absent = web();
    absent.id = VirtualServerId::udp([10, 96, 0, 1], 80);
    let error = refused(client.set_service(&absent), Errno::SRCH);
    assert!(error.is_no_such_service() && error.is_not_found());
    refused(client.delete_service(&absent.id), Errno::SRCH);
    refused(client.zero_service(&absent.id), Errno::SRCH);
    refused(client.service(&absent.id).map(|_| ()), Errno::SRCH);

    let scheduler = Scheduler::new("no-such").unwrap();
    let unknown = absent.clone().with_scheduler(scheduler);
    let error = refused(client.new_service(&unknown), Errno::NOENT);
    assert!(error.is_unknown_scheduler() && !error.is_not_found());
    assert!(error.to_string().ends_with("load module ip_vs_no-such"));
    refused(client.set_service(&web().with_scheduler(scheduler)), Errno::NOENT);
    let engine = PersistenceEngine::new("no-such").unwrap();
    let unknown = absent.with_persistence_engine(engine);
    let error = refused(client.new_service(&unknown), Errno::NOENT);
    assert!(error.to_string().ends_with("load module ip_vs_pe_no-such"), "{error}");

    let address: std::net::Ipv6Addr = "fd00::1".parse().unwrap();
    for length in [0, 129] {
        let mut server =
            VirtualServer::new(VirtualServerId::tcp(address, 80), Scheduler::ROUND_ROBIN);
        server.netmask = Netmask::Prefix(length);
        assert!(refused(client.new_service(&server), Errno::INVAL).is_invalid());
    }
}

#[test]
fn real_servers() {
    let network = Network::new("refused-real");
    let mut client = with_web(&network);
    let id = web().id;
    let absent_id = VirtualServerId::udp([10, 96, 0, 1], 80);
    let with_address = |address: IpAddr, port| {
        let mut server = real_server();
        (server.address, server.port) = (address, port);
        server
    };
    let absent = with_address(real_server().address, 81);
    refused(client.new_destination(&id, &real_server()), Errno::EXIST);
    refused(client.new_destination(&absent_id, &absent), Errno::SRCH);
    refused(client.set_destination(&absent_id, &absent), Errno::SRCH);
    refused(client.delete_destination(&absent_id, absent.socket_address()), Errno::SRCH);
    let error = refused(client.set_destination(&id, &absent), Errno::NOENT);
    assert!(error.is_not_found() && !error.is_no_such_service());
    refused(client.delete_destination(&id, absent.socket_address()), Errno::NOENT);

    let heavy = absent.with_weight(1 << 31);
    assert!(refused(client.new_destination(&id, &heavy), Errno::RANGE).is_invalid());
    let crossed = absent.with_upper_threshold(1).with_lower_threshold(2);
    refused(client.new_destination(&id, &crossed), Errno::RANGE);
    let multicast = with_address([224, 0, 0, 1].into(), 81);
    let error = refused(client.new_destination(&id, &multicast), Errno::INVAL);
    assert!(error.to_string().contains("is the loopback interface up?"), "{error}");
    let other_family = with_address("fd00::1".parse().unwrap(), 81);
    refused(client.new_destination(&id, &other_family), Errno::INVAL);
    let options = TunnelOptions::new(TunnelType::Gue);
    let portless = absent.with_forwarding(ForwardingMethod::Tunnel(options));
    refused(client.new_destination(&id, &portless), Errno::INVAL);
    assert_eq!(client.list_destinations(&id).unwrap().len(), 1);
}

#[test]
fn a_real_server_where_the_loopback_interface_is_down() {
    let network = Network::silent("loopback-down");
    let mut client = network.client();
    client.new_service(&web()).unwrap();
    refused(client.new_destination(&web().id, &real_server()), Errno::INVAL);
    network.ip("link set lo up");
    client.new_destination(&web().id, &real_server()).unwrap();
}

#[test]
fn daemons_and_timeouts() {
    let network = Network::new("refused-daemon");
    let mut client = network.client();
    let daemon = |name| SyncDaemon::new(SyncRole::Master, InterfaceName::new(name).unwrap());
    refused(client.delete_daemon(SyncRole::Master), Errno::SRCH);
    refused(client.new_daemon(&daemon("no-such")), Errno::NODEV);
    client.new_daemon(&daemon("lo")).unwrap();
    refused(client.new_daemon(&daemon("lo")), Errno::EXIST);
    let long = Timeouts::default().with_udp(u32::MAX);
    assert!(refused(client.set_timeouts(long), Errno::INVAL).is_invalid());
}

#[test]
fn everything_without_the_capability() {
    let network = Network::new("powerless");
    network.inside(|| {
        let mut client = Client::open().unwrap();
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        // Of this thread alone, which ends with the closure.
        rustix::thread::set_capabilities(None, none).unwrap();
        assert!(refused(client.new_service(&web()), Errno::PERM).is_permission());
        let error = client.list_services().unwrap_err();
        assert_eq!(
            error.to_string(),
            "list the virtual servers: Operation not permitted (os error 1): \
             CAP_NET_ADMIN in the initial user namespace is needed"
        );
    });
}
