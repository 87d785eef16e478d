//! Sets that are about to be full.

use kernel::RefusalClass;
use kernel::fake::Fake;
use plan::actual::{Actual, ActualSet};
use plan::capacity::Capacity;
use plan::event::Event;
use plan::kernel_objects::Entry;
use plan::model::{Family, Protocol};
use plan::op::Op;
use plan::sets::{SetId, SetKind};
use reconcile::Pace;

use crate::world::{NODE_ADDRESS, World, frontend, service, tcp};

const CLUSTER_IP: SetId = SetId { kind: SetKind::ClusterIp, family: Family::V4 };

/// A node whose sets were made by another program, with a capacity of four entries.
fn mk_narrow() -> World {
    let set = || ActualSet { capacity: Capacity::new(4), ..ActualSet::default() };
    let actual = Actual {
        local_addresses: [NODE_ADDRESS.into(), [127, 0, 0, 1].into()].into_iter().collect(),
        sets: SetId::all(Family::V4).map(|it| (it, set())).collect(),
        ..Actual::default()
    };
    World::on(Fake::new(actual), Pace::default())
}

fn is_growth(op: &Op) -> bool {
    matches!(op, Op::GrowSet(..))
}

fn capacity(world: &World, set: SetId) -> u32 {
    world.fake.actual().sets[&set].capacity.entries()
}

async fn in_order(world: &mut World, services: u16) {
    let services = usize::from(services);
    world
        .until("in order", |status, actual| {
            // What goes from a set goes in a request of its own, when nothing is pending any more.
            let n_entries = actual.sets.get(&CLUSTER_IP).map_or(0, |set| set.entries.len());
            // Addresses come last, and the kernel may just be at them.
            let counts = [n_entries, actual.virtual_servers.len(), actual.addresses.len()];
            status.pending == 0 && counts == [services; 3]
        })
        .await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn sets_grow_while_services_come_and_go() {
    let mut world = mk_narrow();
    world.feed(&[tcp(1, &[1]), tcp(2, &[1])]).await;
    world.complete().await;
    assert!(!world.fake.take_log().iter().any(is_growth));
    assert_eq!(capacity(&world, CLUSTER_IP), 4, "as it was found");
    for number in 3..=40 {
        world.feed(&[tcp(number, &[1])]).await;
        if number % 3 == 0 {
            world.send(Event::ServiceRemoved(service(number - 1, Protocol::Tcp).name)).await;
        }
    }
    in_order(&mut world, 27).await;
    assert_eq!(world.now().failures, 0);
    let log = world.fake.take_log();
    let growths = log.iter().filter(|op| is_growth(op)).count();
    assert!((2..=10).contains(&growths), "{growths} growths");
    assert!(capacity(&world, CLUSTER_IP) >= 32);
    let narrow = SetId { kind: SetKind::LoadBalancer, family: Family::V4 };
    assert_eq!(capacity(&world, narrow), 4, "nothing was added to it");

    // It stays as large.
    let before = capacity(&world, CLUSTER_IP);
    for number in 1..=40 {
        world.send(Event::ServiceRemoved(service(number, Protocol::Tcp).name)).await;
    }
    in_order(&mut world, 0).await;
    assert_eq!(capacity(&world, CLUSTER_IP), before);
}

#[tokio::test(start_paused = true)]
async fn a_growth_that_is_refused_is_tried_again_until_it_is_done() {
    for class in [
        RefusalClass::Conflict,
        RefusalClass::Exhausted,
        RefusalClass::NotPermitted,
        RefusalClass::NotSupported,
        RefusalClass::Other,
    ] {
        let mut world = mk_narrow();
        world.complete().await;
        world.fake.refuse(5, class, is_growth);
        let services: Vec<_> = (1..=20).map(|number| tcp(number, &[1])).collect();
        world.feed(&services).await;
        world.until("refused", |status, _| status.failures > 5).await;
        in_order(&mut world, 20).await;
        assert!(capacity(&world, CLUSTER_IP) >= 32, "{class:?}");
        let tried = world.fake.take_log().iter().filter(|op| is_growth(op)).count();
        // KUBE-CLUSTER-IP and KUBE-IPVS-IPS.
        assert!(tried >= 7, "{class:?}: {tried}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_growth_whose_answer_was_lost_is_found_done() {
    let mut world = mk_narrow();
    world.complete().await;
    world.fake.lose_answers(2, is_growth);
    let services: Vec<_> = (1..=20).map(|number| tcp(number, &[1])).collect();
    world.feed(&services).await;
    world.until("lost", |status, _| status.failures >= 2).await;
    in_order(&mut world, 20).await;
    assert_eq!(world.now().failures, 2);
}

#[tokio::test(start_paused = true)]
async fn a_set_that_others_filled_is_read_again_and_grows() {
    let mut world = mk_narrow();
    world.complete().await;
    world.feed(&[tcp(1, &[1])]).await;
    in_order(&mut world, 1).await;
    world.fake.disturb(|actual| {
        let set = actual.sets.get_mut(&CLUSTER_IP).unwrap();
        set.entries.extend((100..103).map(|it| Entry::AddressPort(frontend(it, Protocol::Udp))));
    });
    let before = tokio::time::Instant::now();
    world.feed(&[tcp(2, &[1])]).await;
    world.until("full", |status, _| status.failures == 1).await;
    in_order(&mut world, 2).await;
    assert_eq!(before.elapsed().as_secs(), 0, "it does not wait for it");
    assert_eq!(world.now().failures, 1);
    assert_eq!(capacity(&world, CLUSTER_IP), 16);
}
