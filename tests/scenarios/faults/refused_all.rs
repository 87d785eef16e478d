//! The kernel refuses everything, for a while: 24,000 operations.

use std::time::Duration;

use kernel::RefusalClass;
use kernel::fake::{Fake, FakeAnswer, KernelCall};
use plan::model::Protocol;
use reconcile::Pace;
use tokio::time::Instant;

use super::is_soak;
use crate::world::{World, frontend, tcp};

/// A virtual server, two real servers, two entries and an address each.
fn services() -> u16 {
    if is_soak() { 20_000 } else { 4_000 }
}

/// Returns the most that is tried again in one go: 1,024 subjects, each of up to three operations;
/// or, by the audit, what is due of one set.
fn at_once() -> usize {
    (3 * 1_024).max(services().into())
}

fn refuse_all(fake: &Fake) {
    fake.interfere(|request, _| match request {
        KernelCall::Writing(op) if !op.is_prerequisite() => {
            FakeAnswer::refused(RefusalClass::NotPermitted)
        }
        _ => FakeAnswer::Honest,
    });
}

/// Waits until so much is pending, without a look at the kernel each time.
async fn owing(world: &World, count: usize) {
    world.status.clone().wait_for(|status| status.pending == count).await.unwrap();
}

/// The numbers of operations in the requests since the last time.
fn requests(world: &World) -> Vec<usize> {
    let reports = world.reports.take().into_iter();
    reports
        .filter_map(|words| {
            words.strip_prefix("written ")?.split(',').next()?.parse::<usize>().ok()
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn everything_is_pending_and_tried_again_in_parts_until_it_is_whole() {
    let fake = Fake::default();
    refuse_all(&fake);
    let mut world = World::on(fake, Pace::default());
    let services: Vec<_> = (1..=services()).map(|number| tcp(number, &[1, 2])).collect();
    world.feed(&services).await;
    world.say_complete().await;
    let n_pending = 4 * services.len();
    owing(&world, n_pending).await;
    requests(&world);
    // Each is tried again some times, more and more rarely.
    let (started, operations) = (Instant::now(), world.now().operations);
    for _ in 0..4 {
        world.compared().await;
    }
    let tried = requests(&world);
    assert!(tried.iter().all(|count| *count <= at_once()), "{tried:?}");
    let rounds = (world.now().operations - operations) / (6 * services.len() as u64);
    assert!(rounds <= 12, "{rounds} times in {:?}", started.elapsed());
    assert_eq!(world.now().pending, n_pending);

    let allowed = Instant::now();
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    owing(&world, 0).await;
    assert!(allowed.elapsed() <= Duration::from_secs(75), "{:?}", allowed.elapsed());
    let tried = requests(&world);
    assert!(tried.iter().all(|count| *count <= at_once()), "{tried:?}");
    let last = frontend(services.len().try_into().unwrap(), Protocol::Tcp);
    assert!(world.fake.actual().virtual_servers.contains_key(&last));
    world.compared().await;
    assert_eq!(world.now().drift_repaired, 0);
    world.assert_converged(&[]);
}
