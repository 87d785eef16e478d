//! A node that was in IPVS mode: what IPVS balances goes on until it ends.

use std::net::IpAddr;
use std::time::Duration;

use kube_ipvs::kernel::RefusalClass;
use kube_ipvs::reconcile::Pace;
use plan::mode::Mode;
use plan::model::{EndpointSlice, Protocol, Service};
use plan::op::{Op, Subject};
use plan::sets::SetKind;

use crate::world::{World, frontend, real_server, settings_in, tcp, udp};

/// Two Services for TCP and one for UDP.
fn cluster() -> Vec<(Service, EndpointSlice)> {
    vec![tcp(1, &[1, 2]), tcp(2, &[3]), udp(3, &[1])]
}

/// A node in sync in IPVS mode, with connections to pod 1 of Service 1, that was started again in
/// iptables mode.
async fn switched(pace: Pace) -> World {
    let services = cluster();
    let world = World::in_sync(&services).await;
    set_connections(&world, 3);
    switch(world, Mode::Iptables, pace, &services).await
}

async fn switch(
    world: World,
    mode: Mode,
    pace: Pace,
    services: &[(Service, EndpointSlice)],
) -> World {
    let fake = world.stop().await;
    while fake.is_shared() {
        tokio::task::yield_now().await;
    }
    fake.take_log();
    let mut world = World::with(settings_in(mode), fake, pace);
    world.feed(services).await;
    world.complete().await;
    world.until("in sync", |status, _| status.in_sync_once).await;
    world
}

fn set_connections(world: &World, connections: u64) {
    let socket = (IpAddr::from([10, 244, 0, 1]), 8080).into();
    world.fake.disturb(|actual| {
        let server = actual.virtual_servers.get_mut(&frontend(1, Protocol::Tcp)).unwrap();
        server.real_servers.get_mut(&socket).unwrap().connections = connections;
    });
}

#[tokio::test(start_paused = true)]
async fn connections_of_ipvs_go_on_and_everything_else_of_it_goes() {
    let mut world = switched(Pace::default()).await;
    world.until("draining", |status, _| status.n_left_by_ipvs.is_some()).await;
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    let actual = world.fake.actual();
    let draining = real_server(&actual, &frontend(1, Protocol::Tcp), 1).unwrap();
    assert_eq!((draining.weight, draining.connections), (0, 3));
    assert!(real_server(&actual, &frontend(1, Protocol::Tcp), 2).is_none(), "it had no connection");
    // Packets of its connection are for a local address.
    assert_eq!(actual.addresses.len(), 3);
    // New connections come here only if no rule led them to an endpoint.
    let admitted = |kind| {
        let of_kind = actual.sets.iter().filter(|(set, _)| set.kind == kind);
        of_kind.map(|(_, set)| set.entries.len()).sum::<usize>()
    };
    assert_eq!((admitted(SetKind::ClusterIp), admitted(SetKind::IpvsAddresses)), (0, 3));
    set_connections(&world, 0);
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
    assert!(world.fake.actual().virtual_servers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn rules_lead_to_every_service_before_a_virtual_server_is_touched() {
    let mut world = switched(Pace::default()).await;
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    let log = world.fake.take_log();
    let last_rule = log.iter().rposition(|op| matches!(op, Op::Chain(_))).unwrap();
    let first_removal = log.iter().position(|op| {
        matches!(
            op,
            Op::RemoveVirtualServer(_) | Op::RemoveRealServer(..) | Op::DrainRealServer(..)
        )
    });
    assert!(last_rule < first_removal.unwrap(), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_with_the_same_deadline() {
    let pace = Pace { drain_deadline: Duration::from_secs(300), ..Pace::default() };
    let mut world = switched(pace).await;
    world.until("draining", |status, _| status.n_left_by_ipvs.is_some()).await;
    let deadline = |world: &World| {
        let actual = world.fake.actual();
        real_server(&actual, &frontend(1, Protocol::Tcp), 1).map(|it| it.deadline)
    };
    let before = deadline(&world).unwrap();
    assert!(before.is_some());
    let services = cluster();
    let mut world = switch(world, Mode::Iptables, pace, &services).await;
    world.until("draining", |status, _| status.n_left_by_ipvs.is_some()).await;
    assert_eq!(deadline(&world), Some(before));
    tokio::time::sleep(Duration::from_secs(301)).await;
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
    assert_eq!(deadline(&world), None, "its time is up");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_does_not_cut_a_connection() {
    let services = cluster();
    let world = World::in_sync(&services).await;
    set_connections(&world, 3);
    let is_about_ipvs = |op: &Op| matches!(op.subject(), Subject::VirtualServer(_));
    world.fake.refuse(4, RefusalClass::Exhausted, is_about_ipvs);
    let mut world = switch(world, Mode::Iptables, Pace::default(), &services).await;
    world
        .until("alone", |status, actual| status.pending == 0 && actual.virtual_servers.len() == 1)
        .await;
    let actual = world.fake.actual();
    let draining = real_server(&actual, &frontend(1, Protocol::Tcp), 1).unwrap();
    assert_eq!((draining.weight, draining.connections), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_never_in_ipvs_mode_has_nothing_to_leave() {
    let mut world = super::in_sync(&cluster()).await;
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
    assert_eq!(world.fake.looks().frontends, 0);
}

#[tokio::test(start_paused = true)]
async fn in_ipvs_mode_nothing_is_left() {
    let mut world = World::in_sync(&cluster()).await;
    world.compared().await;
    assert_eq!(world.now().n_left_by_ipvs, None);
}
