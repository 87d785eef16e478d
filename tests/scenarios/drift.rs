//! Changes by others are found at the next comparison, and put back.

use std::time::Duration;

use plan::actual::Actual;
use plan::model::{Family, Protocol};
use plan::sets::{SetId, SetKind};

use crate::closing::without_closings;
use crate::world::{World, frontend, real_server, tcp};

const CLUSTER_IP: SetId = SetId { kind: SetKind::ClusterIp, family: Family::V4 };

/// Does damage, and asserts that the next comparison repairs it with so many operations.
async fn repaired(damage: impl FnOnce(&mut Actual), operations: usize) {
    let mut world = World::in_sync(&[tcp(1, &[1, 2]), tcp(2, &[1])]).await;
    let before = world.fake.actual();
    world.fake.disturb(damage);
    assert_ne!(world.fake.actual(), before);
    world.compared().await;
    assert_eq!(world.fake.actual(), before);
    let log = without_closings(world.fake.take_log());
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
async fn changes_do_not_wait_for_rules_that_are_repaired() {
    let mut world = World::in_sync(&[tcp(1, &[1])]).await;
    let held = world.fake.xtables_lock().lock_owned().await;
    let looks = world.fake.looks().rule_sets;
    world.fake.disturb(|actual| actual.rule_sets.clear());
    // The clock stands still while the repair is under way.
    while world.fake.looks().rule_sets == looks {
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    for number in 2..5 {
        world.feed(&[tcp(number, &[1])]).await;
        let at = frontend(number, Protocol::Tcp);
        world.until("served", |_, actual| real_server(actual, &at, 1).is_some()).await;
    }
    assert!(world.fake.actual().rule_sets.is_empty());
    drop(held);
    world.until("repaired", |_, actual| actual.rule_sets.contains(&Family::V4)).await;
    world.compared().await;
    assert_eq!((world.now().failures, world.now().drift_repaired), (0, 1));
    world.assert_converged(&[]);
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
