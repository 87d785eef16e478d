//! Large sets are read beside the loop, and compared with what is desired when the reading ends.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use kernel::fake::{FakeAnswer, KernelCall};
use kernel::{KernelRead, RefusalClass};
use plan::actual::Actual;
use plan::event::Event;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{EndpointSlice, Family, Protocol, Service, ServiceKind};
use plan::op::{Op, PartKind};
use plan::sets::{SetId, SetKind};
use tokio::sync::OwnedMutexGuard;

use crate::world::{World, frontend, real_server, service, slice, tcp};

const LARGE: SetId = SetId { kind: SetKind::LoadBalancerSourceCidr, family: Family::V4 };
/// Number of ranges of the first Service: each is an entry of the set.
const RANGES: u32 = 5_000;

/// A pass that begins right after the damage, and one that may be under way.
const TWO_PASSES: Duration = Duration::from_secs(61);

/// A Service with a load balancer IP that admits clients of these ranges.
fn guarded(number: u16, ranges: std::ops::Range<u32>) -> (Service, EndpointSlice) {
    let mut service = service(number, Protocol::Tcp);
    service.kind = ServiceKind::LoadBalancer;
    let [high, low] = number.to_be_bytes();
    service.load_balancer = vec![[198, 51, high, low].into()];
    let first = u32::from(Ipv4Addr::new(172, 20, 0, 0));
    let net = |number| IpNet::from(Ipv4Net::from(Ipv4Addr::from(first + number)));
    service.source_ranges = ranges.map(net).collect();
    let slice = slice(&service, &[1]);
    (service, slice)
}

async fn in_sync() -> World {
    World::in_sync(&[guarded(1, 0..RANGES), tcp(2, &[1])]).await
}

async fn admit(world: &mut World, number: u16, ranges: std::ops::Range<u32>) {
    let (service, _) = guarded(number, ranges);
    world.send(Event::ServiceApplied(Box::new(service))).await;
}

fn entries(actual: &Actual) -> usize {
    actual.sets.get(&LARGE).map_or(0, |set| set.entries.len())
}

/// Begins a reading of the set that does not end before the lock is given back. The clock stands still
/// while it is under way.
async fn reading_begins(world: &World) -> OwnedMutexGuard<()> {
    let held = world.fake.set_lock().lock_owned().await;
    let before = world.fake.looks().sets_beside;
    while world.fake.looks().sets_beside == before {
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    held
}

fn remove_some(actual: &mut Actual, count: usize) {
    let all = &mut actual.sets.get_mut(&LARGE).unwrap().entries;
    let some: Vec<Entry> = all.iter().copied().take(count).collect();
    for entry in some {
        all.remove(&entry);
    }
}

fn add_extra(actual: &mut Actual) {
    let extra = Entry::AddressPort(frontend(9, Protocol::Tcp));
    actual.sets.get_mut(&LARGE).unwrap().entries.insert(extra);
}

/// The number of entries stays the same: only a pass finds it.
fn swap_one(actual: &mut Actual) {
    remove_some(actual, 1);
    add_extra(actual);
}

#[tokio::test(start_paused = true)]
async fn changes_do_not_wait_for_a_large_set_that_is_read() {
    let mut world = in_sync().await;
    let held = reading_begins(&world).await;
    let (looks, passes) = (world.fake.looks(), world.now().passes);
    for number in 3..6 {
        world.feed(&[tcp(number, &[1])]).await;
        let at = frontend(number, Protocol::Tcp);
        world.until("served", |_, actual| real_server(actual, &at, 1).is_some()).await;
    }
    // Drift checks go on.
    while world.fake.looks().drift_checks < looks.drift_checks + 40 {
        tokio::time::advance(Duration::from_millis(500)).await;
    }
    assert_eq!(world.fake.looks().sets_beside, looks.sets_beside, "one reading at a time");
    assert_eq!(world.now().passes, passes, "the pass has not compared everything");
    drop(held);
    world.compared().await;
    assert_eq!((world.now().failures, world.now().drift_repaired), (0, 0));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn what_is_written_to_it_meanwhile_is_no_drift_and_not_undone() {
    let mut world = in_sync().await;
    let held = reading_begins(&world).await;
    let n_entries = entries(&world.fake.actual());
    admit(&mut world, 1, 20..RANGES + 20).await;
    world.feed(&[guarded(7, 0..50)]).await;
    let seventh = guarded(7, 0..50).0.load_balancer[0];
    world.until("written", |_, actual| actual.addresses.contains(&seventh)).await;
    drop(held);
    world.compared().await;
    world.fake.take_log();
    world.compared().await;
    assert_eq!(world.fake.take_log(), []);
    assert_eq!((world.now().failures, world.now().drift_repaired), (0, 0));
    assert!(entries(&world.fake.actual()) > n_entries);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn damage_is_found_beside_what_is_written_meanwhile() {
    let mut world = in_sync().await;
    world.compared().await;
    world.fake.disturb(swap_one);
    let held = reading_begins(&world).await;
    world.feed(&[guarded(7, 0..50)]).await;
    let seventh = guarded(7, 0..50).0.load_balancer[0];
    world.until("written", |_, actual| actual.addresses.contains(&seventh)).await;
    drop(held);
    world.until("repaired", |status, _| status.drift_repaired == 2).await;
    world.compared().await;
    assert_eq!((world.now().failures, world.now().drift_repaired), (0, 2));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_to_it_is_repaired() {
    let mut world = in_sync().await;
    let n_entries = entries(&world.fake.actual());
    let mut drift = 0;
    type Damage = fn(&mut Actual);
    let damages: [(&str, usize, Damage); 4] = [
        ("missing", 3, |actual| remove_some(actual, 3)),
        ("extra", 1, add_extra),
        ("flushed", n_entries, |actual| actual.sets.get_mut(&LARGE).unwrap().entries.clear()),
        ("destroyed", n_entries + 1, |actual| drop(actual.sets.remove(&LARGE))),
    ];
    for (what, n_changes, damage) in damages {
        let took = world.time_until_whole(damage).await;
        assert!(took <= Duration::from_secs(2), "{what}: {took:?}");
        world.compared().await;
        drift += n_changes as u64;
        assert_eq!(world.now().drift_repaired, drift, "{what}");
    }
    assert_eq!(world.now().failures, 0);
    let took = world.time_until_whole(swap_one).await;
    assert!(took <= TWO_PASSES, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reading_that_fails_is_reported_and_made_again() {
    let mut world = in_sync().await;
    world.compared().await;
    world.fake.interfere(|request, _| match request {
        KernelCall::Read(KernelRead::Part(PartKind::Sets), _) => {
            FakeAnswer::refused(RefusalClass::Exhausted)
        }
        _ => FakeAnswer::Honest,
    });
    world.fake.disturb(|actual| remove_some(actual, 3));
    world.until("unreadable", |status, _| status.failed_readings >= 3).await;
    let passes = world.now().passes;
    world.feed(&[tcp(3, &[1])]).await;
    let at = frontend(3, Protocol::Tcp);
    world.until("served", |_, actual| real_server(actual, &at, 1).is_some()).await;
    world.until("unreadable for long", |status, _| status.failed_readings >= 20).await;
    assert_eq!(world.now().passes, passes, "that is no comparison of everything");
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    world.until("repaired", |status, _| status.drift_repaired == 3).await;
    world.compared().await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn one_of_another_program_is_reported_until_it_goes() {
    let mut world = in_sync().await;
    world.compared().await;
    world.fake.make_foreign(LARGE, true);
    world.until("reported", |status, _| status.failed_readings >= 3).await;
    world.feed(&[tcp(3, &[1])]).await;
    let at = frontend(3, Protocol::Tcp);
    world.until("served", |_, actual| real_server(actual, &at, 1).is_some()).await;
    world.fake.make_foreign(LARGE, false);
    let n_entries = RANGES as usize;
    world.until("whole", |it, actual| it.pending == 0 && entries(actual) >= n_entries).await;
    world.compared().await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn after_more_writes_than_are_remembered_the_next_pass_compares_it() {
    let mut world = in_sync().await;
    world.compared().await;
    let held = reading_begins(&world).await;
    let (passes, looks) = (world.now().passes, world.fake.looks().sets_beside);
    let n_entries = entries(&world.fake.actual());
    admit(&mut world, 1, 0..RANGES + 3_000).await;
    world.until("written", |_, actual| entries(actual) >= n_entries + 3_000).await;
    world.fake.disturb(swap_one);
    drop(held);
    world.until("compared", |status, _| status.passes > passes).await;
    assert!(world.fake.looks().sets_beside > looks, "the first reading said nothing");
    world.until("repaired", |status, _| status.drift_repaired == 2).await;
    world.compared().await;
    assert_eq!((world.now().failures, world.now().drift_repaired), (0, 2));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_meanwhile_stays_pending() {
    for is_removal in [true, false] {
        let mut world = in_sync().await;
        world.compared().await;
        let held = reading_begins(&world).await;
        world.fake.refuse(1, RefusalClass::Exhausted, move |op| match op {
            Op::RemoveEntry(set, _) => is_removal && *set == LARGE,
            Op::AddEntry(set, _) => !is_removal && *set == LARGE,
            _ => false,
        });
        admit(&mut world, 1, 1..RANGES + 1).await;
        world.until("refused", |status, _| status.failures == 1).await;
        assert!(world.now().pending > 0);
        drop(held);
        world.compared().await;
        // Otherwise a later comparison finds it.
        assert_eq!((world.now().pending, world.now().drift_repaired), (0, 0));
        world.assert_converged(&[]);
    }
}

#[tokio::test(start_paused = true)]
async fn entries_that_are_never_ours_are_known_after_one_more_reading() {
    let mut world = in_sync().await;
    world.compared().await;
    world.fake.disturb(|actual| actual.sets.get_mut(&LARGE).unwrap().n_unknown = 3);
    // The pass that is under way, and the drift check.
    world.compared().await;
    let (passes, looks) = (world.now().passes, world.fake.looks().sets_beside);
    world.until("ten passes", |status, _| status.passes == passes + 10).await;
    assert_eq!(world.fake.looks().sets_beside, looks + 10);
    assert_eq!((world.now().failures, world.now().drift_repaired), (0, 0));
}

/// Takes an entry of the first Service out of the set.
fn remove_of_first(actual: &mut Actual) {
    let first = guarded(1, 0..0).0.load_balancer[0];
    let all = &mut actual.sets.get_mut(&LARGE).unwrap().entries;
    let found = all.iter().find(|entry| entry.address() == Some(first)).copied();
    assert!(all.remove(&found.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn writes_without_end_do_not_put_its_repair_off_for_ever() {
    const FLIPPED: u32 = 3_000;
    // A drift check sees the first; only a pass finds the second.
    for (is_one_missing, repairs) in [(false, 1), (true, 2)] {
        let ranges = |turn: u32| turn % 2 * FLIPPED..(turn % 2 + 1) * FLIPPED;
        let mut world = World::in_sync(&[guarded(1, 0..RANGES), guarded(7, ranges(0))]).await;
        world.compared().await;
        let n_entries = entries(&world.fake.actual());
        world.fake.disturb(|actual| {
            add_extra(actual);
            if is_one_missing {
                remove_of_first(actual);
            }
        });
        let n_damaged = entries(&world.fake.actual());
        let last = |turn| {
            Entry::AddressPortNet(
                Frontend {
                    address: guarded(7, 0..0).0.load_balancer[0],
                    ..frontend(7, Protocol::Tcp)
                },
                *guarded(7, ranges(turn)).0.source_ranges.last().unwrap(),
            )
        };
        for turn in 1..8 {
            // More is written than is remembered, during every reading.
            let held = reading_begins(&world).await;
            admit(&mut world, 7, ranges(turn)).await;
            let is_written = |actual: &Actual| {
                actual.sets[&LARGE].entries.contains(&last(turn))
                    && [n_entries, n_damaged].contains(&entries(actual))
            };
            world
                .until("written", |status, actual| status.pending == 0 && is_written(actual))
                .await;
            drop(held);
            if world.now().drift_repaired > 0 {
                break;
            }
        }
        assert_eq!((world.now().failures, world.now().drift_repaired), (0, repairs));
        world.compared().await;
        assert_eq!((world.now().failures, world.now().drift_repaired), (0, repairs));
        world.assert_converged(&[]);
    }
}
