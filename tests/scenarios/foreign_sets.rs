//! Sets of another program that have our names and other types.

use kernel::fake::{Fake, FakeAnswer, KernelCall};
use kernel::{KernelRead, RefusalClass};
use plan::actual::Actual;
use plan::mode::Mode;
use plan::model::{EndpointSlice, Family, Protocol, Service};
use plan::op::{Op, PartKind};
use plan::sets::{SetId, SetKind};
use reconcile::Pace;

use crate::world::{NODE_ADDRESS, World, frontend, node_port_service, settings_in, slice, tcp};

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
    // It may stay for ever: a restart would not help, and other modes' rules do not wait for it.
    assert!(world.now().pending > 0 && !world.now().has_pending_prerequisite);
}

/// The other program's set may never go; a set that could not be read for a moment tells whose
/// virtual servers are.
#[tokio::test(start_paused = true)]
async fn leaving_ipvs_ends_beside_such_a_set_and_not_because_of_one_that_is_unread_for_a_moment() {
    let bound = SetId { kind: SetKind::IpvsAddresses, family: Family::V4 };
    for foreign in [Some(SET), Some(bound), None] {
        let services = [tcp(1, &[1]), with_node_port()];
        let world = World::in_sync(&services).await;
        if let Some(set) = foreign {
            world.fake.make_foreign(set, true);
        }
        let fake = world.stop().await;
        // From the takeover on, which has read what it needs.
        let mut n_unread = None;
        if foreign.is_none() {
            fake.interfere(move |call, _| {
                if let KernelCall::Writing(Op::Chain(_)) = call {
                    n_unread.get_or_insert(40);
                }
                match (call, &mut n_unread) {
                    (KernelCall::Read(KernelRead::Part(PartKind::Sets), _), Some(left))
                        if *left > 0 =>
                    {
                        *left -= 1;
                        FakeAnswer::refused(RefusalClass::Other)
                    }
                    _ => FakeAnswer::Honest,
                }
            });
        }
        let mut world = World::with(settings_in(Mode::Iptables), fake, Pace::default());
        world.feed(&services).await;
        world.complete().await;
        world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
        if foreign.is_none() {
            assert!(world.fake.actual().virtual_servers.is_empty());
        }
    }
}
