//! Changes by others are found at the next comparison, and put back.

use plan::actual::Actual;
use plan::model::{Family, Protocol};
use plan::sets::{SetId, SetKind};

use crate::world::{World, frontend, tcp};

const CLUSTER_IP: SetId = SetId { kind: SetKind::ClusterIp, family: Family::V4 };

/// Does damage, and asserts that the next comparison repairs it with so many operations.
async fn repaired(damage: impl FnOnce(&mut Actual), operations: usize) {
    let mut world = World::in_sync(&[tcp(1, &[1, 2]), tcp(2, &[1])]).await;
    let before = world.fake.actual();
    world.fake.disturb(damage);
    assert_ne!(world.fake.actual(), before);
    world.compared().await;
    assert_eq!(world.fake.actual(), before);
    let log = world.fake.take_log();
    assert_eq!(log.len(), operations, "{log:?}");
    assert_eq!(world.now().drift_repaired, operations as u64);
    world.compared().await;
    assert_eq!(world.fake.take_log(), []);
    assert_eq!(world.now().drift_repaired, operations as u64);
}

#[tokio::test(start_paused = true)]
async fn a_removed_virtual_server() {
    let remove = |actual: &mut Actual| {
        actual.virtual_servers.remove(&frontend(1, Protocol::Tcp));
    };
    repaired(remove, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_flushed_set() {
    repaired(|actual| actual.sets.get_mut(&CLUSTER_IP).unwrap().entries.clear(), 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_interface() {
    let remove = |actual: &mut Actual| {
        actual.link = false;
        actual.addresses.clear();
    };
    repaired(remove, 3).await;
}

#[tokio::test(start_paused = true)]
async fn removed_rules() {
    let remove = |actual: &mut Actual| {
        actual.rule_sets.remove(&Family::V4);
    };
    repaired(remove, 1).await;
}

#[tokio::test(start_paused = true)]
async fn after_the_end_of_the_source_the_state_stays_and_is_looked_after() {
    let mut world = World::in_sync(&[tcp(1, &[1])]).await;
    let before = world.fake.actual();
    world.end_source();
    world.compared().await;
    assert_eq!(world.fake.take_log(), []);
    assert_eq!(world.fake.actual(), before);
    world.fake.disturb(|actual| actual.virtual_servers.clear());
    world.compared().await;
    assert_eq!(world.fake.actual(), before);
    assert_eq!(world.now().drift_repaired, 2);
}
