//! Cost of a change of the input, and the time at which it is written.

use std::net::IpAddr;
use std::time::Duration;

use kernel::fake::Fake;
use plan::actual::ActualVirtualServer;
use plan::kernel_objects::Frontend;
use plan::model::Protocol;
use reconcile::Pace;
use tokio::time::Instant;

use crate::world::{
    NODE_ADDRESS, World, frontend, node_port_service, real_server, slice, tcp, udp, words,
};

#[tokio::test(start_paused = true)]
async fn an_endpoint_more_among_500_services_is_one_operation_and_no_reading() {
    let services: Vec<_> = (1..=500).map(|number| tcp(number, &[1, 2])).collect();
    let mut world = World::in_sync(&services).await;
    let operations = world.now().operations;
    world.apply_slice(slice(&services[250].0, &[1, 2, 3])).await;
    world.until("written", |status, _| status.operations > operations).await;
    assert_eq!(world.now().readings, 1);
    world.compared().await;
    assert_eq!(
        words(&world.fake.take_log()),
        ["add real server 10.244.0.3:8080 weight 1 to TCP 10.96.0.251:80"]
    );
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_udp_endpoint_is_removed_at_once() {
    let services = [udp(1, &[1, 2])];
    let mut world = World::in_sync(&services).await;
    world.apply_slice(slice(&services[0].0, &[2])).await;
    world.compared().await;
    assert_eq!(
        words(&world.fake.take_log()),
        ["remove real server 10.244.0.1:8080 from UDP 10.96.0.1:80"]
    );
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_changes_within_the_minimum_period_is_one_write() {
    let pace = Pace { min_sync_period: Duration::from_secs(10), ..Pace::default() };
    let mut world = World::on(Fake::default(), pace);
    let services = [udp(1, &[1])];
    world.feed(&services).await;
    world.complete().await;
    world.fake.take_log();
    let (started, operations) = (Instant::now(), world.now().operations);
    for pod in 2..=101 {
        world.apply_slice(slice(&services[0].0, &[pod])).await;
        world.taken().await;
    }
    world.until("written", |status, _| status.operations > operations).await;
    assert!(started.elapsed() >= pace.min_sync_period, "{:?}", started.elapsed());
    world.compared().await;
    assert_eq!(
        words(&world.fake.take_log()),
        [
            "add real server 10.244.0.101:8080 weight 1 to UDP 10.96.0.1:80",
            "remove real server 10.244.0.1:8080 from UDP 10.96.0.1:80",
        ]
    );
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn node_ports_follow_the_addresses_of_the_node() {
    let service = node_port_service(1, 30_080);
    let endpoints = slice(&service, &[1]);
    let mut world = World::in_sync(&[(service, endpoints)]).await;
    let (old, new) = (IpAddr::from(NODE_ADDRESS), IpAddr::from([192, 0, 2, 77]));
    let at = |address| Frontend { address, protocol: Protocol::Tcp, port: 30_080 };
    assert!(world.fake.actual().virtual_servers.contains_key(&at(old)));
    world.fake.disturb(|actual| {
        actual.local_addresses.remove(&old);
        actual.local_addresses.insert(new);
    });
    world.addresses.report(|happened| happened.others = true);
    world
        .until("moved", |_, actual| {
            real_server(actual, &at(new), 1).is_some()
                && !actual.virtual_servers.contains_key(&at(old))
        })
        .await;
    assert_eq!(world.now().readings, 1);
    world.compared().await;
    assert_eq!(
        words(&world.fake.take_log()),
        [
            "create virtual server TCP 192.0.2.77:30080 rr",
            "add real server 10.244.0.1:8080 weight 1 to TCP 192.0.2.77:30080",
            "remove virtual server TCP 192.0.2.11:30080",
        ]
    );
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_comes_while_the_kernel_cannot_be_read_is_not_lost() {
    let services = [udp(1, &[1])];
    let mut world = World::in_sync(&services).await;
    world.fake.fail_readings(3);
    world.until("unreadable", |status, _| status.failed_readings == 1).await;
    world.apply_slice(slice(&services[0].0, &[2])).await;
    world.compared().await;
    assert_eq!(world.now().failed_readings, 3);
    assert_eq!(world.fake.take_log().len(), 2);
    assert_eq!(world.now().drift_repaired, 0);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_virtual_server_survives() {
    let mut world = World::in_sync(&[tcp(1, &[1])]).await;
    let foreign = Frontend { address: [172, 16, 0, 1].into(), protocol: Protocol::Tcp, port: 80 };
    let theirs = ActualVirtualServer { server: None, real_servers: [].into_iter().collect() };
    world.fake.disturb(|actual| {
        actual.virtual_servers.insert(foreign, theirs.clone());
    });
    world.feed(&[tcp(2, &[1])]).await;
    world.compared().await;
    world.compared().await;
    let actual = world.fake.actual();
    assert_eq!(actual.virtual_servers.get(&foreign), Some(&theirs));
    assert!(real_server(&actual, &frontend(2, Protocol::Tcp), 1).is_some());
    world.assert_converged(&[foreign]);
}
