//! Endpoints that go while they still have connections.

use std::net::IpAddr;

use plan::model::{Protocol, Service};

use crate::world::{World, frontend, real_server, slice, tcp, words};

/// Pod 1 of Service 1 has connections and is no longer an endpoint.
async fn draining() -> (World, Service) {
    let (service, endpoints) = tcp(1, &[1, 2]);
    let mut world = World::in_sync(&[(service.clone(), endpoints)]).await;
    set_connections(&world, 3);
    world.apply_slice(slice(&service, &[2])).await;
    world
        .until("quiet", |_, actual| {
            real_server(actual, &frontend(1, Protocol::Tcp), 1).is_some_and(|it| it.weight == 0)
        })
        .await;
    (world, service)
}

fn set_connections(world: &World, connections: u64) {
    let socket = (IpAddr::from([10, 244, 0, 1]), 8080).into();
    world.fake.disturb(|actual| {
        let server = actual.virtual_servers.get_mut(&frontend(1, Protocol::Tcp)).unwrap();
        server.real_servers.get_mut(&socket).unwrap().connections = connections;
    });
}

const QUIET: &str = "change real server of TCP 10.96.0.1:80 to 10.244.0.1:8080 weight 0";

#[tokio::test(start_paused = true)]
async fn a_tcp_endpoint_gets_weight_0_and_goes_with_its_last_connection() {
    let (mut world, _) = draining().await;
    // It is no drift, however often the kernel is compared meanwhile.
    world.compared().await;
    world.compared().await;
    assert_eq!(words(&world.fake.take_log()), [QUIET]);
    assert_eq!(world.now().drift_repaired, 0);
    set_connections(&world, 0);
    world
        .until("gone", |_, actual| real_server(actual, &frontend(1, Protocol::Tcp), 1).is_none())
        .await;
    world.compared().await;
    assert_eq!(
        words(&world.fake.take_log()),
        ["remove real server 10.244.0.1:8080 from TCP 10.96.0.1:80"]
    );
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn looking_at_it_in_vain_does_not_put_off_the_comparison() {
    let (mut world, _) = draining().await;
    let readings = world.fake.readings();
    world.fake.fail_readings(usize::MAX);
    world.until("unreadable for long", |status, _| status.failed_readings >= 60).await;
    assert!(world.fake.readings() >= readings + 5, "{} {readings}", world.fake.readings());
    world.fake.fail_readings(0);
    world.compared().await;
    assert_eq!(words(&world.fake.take_log()), [QUIET]);
}

#[tokio::test(start_paused = true)]
async fn one_that_comes_back_gets_its_weight_back_and_keeps_its_connections() {
    let (mut world, service) = draining().await;
    world.apply_slice(slice(&service, &[1, 2])).await;
    world.compared().await;
    let back = "change real server of TCP 10.96.0.1:80 to 10.244.0.1:8080 weight 1";
    assert_eq!(words(&world.fake.take_log()), [QUIET, back]);
    let found = real_server(&world.fake.actual(), &frontend(1, Protocol::Tcp), 1).unwrap();
    assert_eq!((found.weight, found.connections), (1, 3));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn one_whose_connections_never_end_goes_when_its_time_is_up() {
    let (mut world, _) = draining().await;
    world
        .until("gone", |_, actual| real_server(actual, &frontend(1, Protocol::Tcp), 1).is_none())
        .await;
    // A quarter of an hour, compared twice a minute.
    assert!((29..=32).contains(&world.now().readings), "{:?}", world.now());
    world.assert_converged(&[]);
}
