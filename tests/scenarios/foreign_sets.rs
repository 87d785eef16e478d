//! Sets of another program that have our names and other types.

use kube_ipvs::kernel::fake::Fake;
use kube_ipvs::reconcile::Pace;
use plan::actual::Actual;
use plan::model::{EndpointSlice, Family, Protocol, Service};
use plan::sets::{SetId, SetKind};

use crate::world::{NODE_ADDRESS, World, frontend, node_port_service, slice, tcp};

const SET: SetId = SetId { kind: SetKind::NodePortTcp, family: Family::V4 };

/// A Service with a NodePort, and its endpoint.
fn with_node_port() -> (Service, EndpointSlice) {
    let service = node_port_service(2, 30_080);
    let slice = slice(&service, &[2]);
    (service, slice)
}

/// A node on which the set of TCP NodePorts is another program's.
fn mk_fake() -> Fake {
    let local_addresses = [NODE_ADDRESS.into()].into_iter().collect();
    let fake = Fake::new(Actual { local_addresses, ..Actual::default() });
    fake.make_foreign(SET, true);
    fake
}

/// Everything is served but NodePorts, whose marker the set would be. When the set is gone, they are.
async fn rest_is_served_and_the_set_heals(mut world: World) {
    let first = frontend(1, Protocol::Tcp);
    let is_node_port = |actual: &Actual| {
        actual.virtual_servers.keys().any(|it| it.address == std::net::IpAddr::from(NODE_ADDRESS))
    };
    world
        .until("the rest", |status, actual| {
            let is_bound = actual.addresses.contains(&first.address);
            is_bound && status.in_sync_once && status.pending > 0
        })
        .await;
    let failed = world.now().failed_readings;
    world.until("read again", |status, _| status.failed_readings > failed + 2).await;
    assert!(!is_node_port(&world.fake.actual()), "it would be nobody's after a restart");
    assert!(world.fake.actual().virtual_servers.contains_key(&first));
    world.feed(&[tcp(3, &[3])]).await;
    let third = frontend(3, Protocol::Tcp);
    world.until("a new one", |_, actual| actual.addresses.contains(&third.address)).await;
    world.fake.make_foreign(SET, false);
    world.until("whole", |status, actual| status.pending == 0 && is_node_port(actual)).await;
    world.compared().await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn at_a_takeover_the_rest_is_served() {
    let mut world = World::on(mk_fake(), Pace::default());
    world.feed(&[tcp(1, &[1]), with_node_port()]).await;
    world.complete().await;
    assert_eq!(world.now().readings, 1);
    rest_is_served_and_the_set_heals(world).await;
}

#[tokio::test(start_paused = true)]
async fn at_a_restart_the_rest_is_served() {
    let mut world = World::on(mk_fake(), Pace::default());
    let services = [tcp(1, &[1]), with_node_port()];
    world.feed(&services).await;
    world.complete().await;
    let mut again = World::on(world.stop().await, Pace::default());
    again.feed(&services).await;
    again.complete().await;
    rest_is_served_and_the_set_heals(again).await;
}

#[tokio::test(start_paused = true)]
async fn a_set_that_becomes_another_programs_is_found_and_the_rest_is_served() {
    let mut world = World::in_sync(&[tcp(1, &[1])]).await;
    world.fake.make_foreign(SET, true);
    world.feed(&[with_node_port()]).await;
    rest_is_served_and_the_set_heals(world).await;
}

#[tokio::test(start_paused = true)]
async fn no_entry_is_written_to_it() {
    let mut world = World::on(mk_fake(), Pace::default());
    world.feed(&[tcp(1, &[1]), with_node_port()]).await;
    world.complete().await;
    assert!(!world.fake.actual().sets.contains_key(&SET));
    assert!(world.now().has_pending_prerequisite);
}
