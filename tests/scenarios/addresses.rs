//! Addresses that others take off the interface are reports, and put back at once.

use std::net::IpAddr;
use std::time::Duration;

use plan::op::Op;
use tokio::time::Instant;

use crate::world::{World, tcp};

/// Shorter than any period of the loop.
const AT_ONCE: Duration = Duration::from_millis(10);

async fn in_sync() -> (World, Vec<IpAddr>) {
    let world = World::in_sync(&[tcp(1, &[1, 2]), tcp(2, &[1])]).await;
    let mut addresses: Vec<IpAddr> = world.fake.actual().addresses.into_iter().collect();
    addresses.sort();
    assert_eq!(addresses.len(), 2);
    (world, addresses)
}

#[tokio::test(start_paused = true)]
async fn an_address_that_was_taken_is_put_back_at_once() {
    let (mut world, addresses) = in_sync().await;
    let (before, started) = (world.fake.actual(), Instant::now());
    world.fake.disturb(|actual| assert!(actual.addresses.remove(&addresses[0])));
    world.addresses.report(|happened| {
        happened.taken.insert(addresses[0]);
        // An address that no Service has, or ever had.
        happened.taken.insert([10, 96, 200, 200].into());
    });
    world.until("back", |_, actual| *actual == before).await;
    assert!(started.elapsed() < AT_ONCE);
    assert_eq!(world.fake.take_log(), [Op::BindAddress(addresses[0])]);
    assert_eq!(world.now().drift_repaired, 1);
}

#[tokio::test(start_paused = true)]
async fn an_interface_that_was_deleted_is_made_anew_at_once_with_its_addresses() {
    let (mut world, addresses) = in_sync().await;
    let (before, started) = (world.fake.actual(), Instant::now());
    world.fake.disturb(|actual| {
        actual.link = false;
        actual.addresses.clear();
    });
    world.addresses.report(|happened| happened.anything = true);
    world.until("back", |_, actual| *actual == before).await;
    assert!(started.elapsed() < AT_ONCE);
    let mut log = world.fake.take_log();
    assert_eq!(log.remove(0), Op::CreateLink);
    log.sort_by_key(|op| format!("{op:?}"));
    assert_eq!(log, addresses.iter().map(|address| Op::BindAddress(*address)).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn what_is_as_it_should_be_costs_a_look_and_no_write() {
    let (mut world, addresses) = in_sync().await;
    world.addresses.report(|happened| {
        happened.anything = true;
        happened.taken.extend(&addresses);
    });
    world.compared().await;
    assert_eq!(world.fake.take_log(), []);
    assert_eq!(world.now().drift_repaired, 0);
}
