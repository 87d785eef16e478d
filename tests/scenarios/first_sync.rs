//! From nothing, or from what a former run left, to a kernel in sync.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kernel::fake::{Fake, FakeAnswer, KernelCall};
use kernel::{KernelRead, RefusalClass};
use plan::actual::Actual;
use plan::event::Event;
use plan::kernel_objects::Entry;
use plan::model::{Family, ObjectName, Protocol};
use plan::op::{Op, PartKind, Phase};
use plan::settings::Settings;
use reconcile::{Input, Pace};
use tokio::time::Instant;

use crate::world::{
    NODE_ADDRESS, World, dual_stack_tcp, frontend, real_server, settings, slice, tcp,
};

#[tokio::test(start_paused = true)]
async fn nothing_is_written_or_read_before_the_source_is_complete() {
    let mut world = World::new();
    world.feed(&[tcp(1, &[1])]).await;
    world.taken().await;
    // A kernel that changes its addresses meanwhile is no reason either.
    world.addresses.report(|happened| happened.others = true);
    world.feed(&[tcp(2, &[1])]).await;
    world.taken().await;
    assert_eq!(world.now().readings, 0);
    assert_eq!(world.fake.take_log(), []);
    world.complete().await;
    assert_eq!(world.now().readings, 1);
    let log = world.fake.take_log();
    assert_eq!(log.first(), Some(&Op::CreateLink));
    assert_eq!(log.len() as u64, world.now().operations);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn the_prerequisites_come_first_then_the_api_server_then_the_rest_by_phases() {
    let mut world = World::new();
    let (mut api_server, _) = tcp(9, &[]);
    api_server.name = ObjectName::api_server();
    let endpoints = slice(&api_server, &[9]);
    world.feed(&[tcp(1, &[1]), (api_server, endpoints), tcp(2, &[2])]).await;
    world.complete().await;
    let log = world.fake.take_log();
    let is_rest = |op: &Op| {
        let text = op.to_string();
        !op.is_prerequisite() && !text.contains("10.96.0.9")
    };
    let first = log.iter().position(is_rest).unwrap();
    let (early, rest) = log.split_at(first);
    assert!(rest.iter().all(is_rest), "{rest:?}");
    let phases = |ops: &[Op]| ops.iter().map(Op::phase).collect::<Vec<Phase>>();
    assert!(phases(early).is_sorted() && phases(rest).is_sorted());
    let server = frontend(9, Protocol::Tcp);
    assert!(early.iter().any(|op| matches!(op, Op::AddRealServer(of, _) if *of == server)));
    assert!(early.contains(&Op::BindAddress(server.address)));
    assert!(!rest.is_empty());
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn what_a_former_run_left_is_adopted_without_a_write() {
    let services = [tcp(1, &[1, 2]), tcp(2, &[3])];
    let kernel = World::in_sync(&services).await.stop().await;
    let before = kernel.actual();
    let mut world = World::on(kernel, Pace::default());
    world.feed(&services).await;
    world.complete().await;
    assert_eq!(world.fake.take_log(), []);
    assert_eq!(world.fake.actual(), before);
}

/// A host that lacks a family for one start: nothing of it is touched, and the next start goes on with it.
#[tokio::test(start_paused = true)]
async fn a_family_that_the_host_lacks_since_a_restart_stays_as_it_is() {
    let services = dual_stack_tcp(1);
    let both = Settings { families: Family::BOTH.into(), ..settings() };
    let local_addresses = [NODE_ADDRESS.into()].into_iter().collect();
    let fake = Fake::new(Actual { local_addresses, ..Actual::default() });
    let mut world = World::with(both.clone(), fake, Pace::default());
    world.feed(&services).await;
    world.complete().await;
    let before = world.fake.actual();
    assert_eq!(before.virtual_servers.len(), 2);
    for settings in [settings(), both] {
        let fake = world.stop().await;
        fake.take_log();
        world = World::with(settings, fake, Pace::default());
        world.feed(&services).await;
        world.complete().await;
        world.compared().await;
        assert_eq!(world.fake.take_log(), []);
        assert_eq!(world.fake.actual(), before);
    }
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_longer_desired_goes_at_the_first_comparison() {
    let kernel = World::in_sync(&[tcp(1, &[1]), tcp(2, &[3])]).await.stop().await;
    let mut world = World::on(kernel, Pace::default());
    world.feed(&[tcp(1, &[1])]).await;
    world.complete().await;
    assert!(!world.fake.take_log().is_empty());
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_cannot_be_read_at_the_start_is_tried_again_and_not_written_to() {
    let mut world = World::new();
    world.fake.fail_readings(usize::MAX);
    world.feed(&[tcp(1, &[1])]).await;
    world.say_complete().await;
    world.until("failing", |status, _| status.failed_readings > 0).await;
    let (started, failed) = (Instant::now(), world.now().failed_readings);
    // What comes now has nothing to rest on yet.
    world.feed(&[tcp(2, &[1])]).await;
    world.until("still failing", |status, _| status.failed_readings >= failed + 6).await;
    assert!(started.elapsed() >= Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(world.fake.take_log(), []);
    assert!(!world.now().in_sync_once);
    world.fake.fail_readings(0);
    world.until("in sync", |status, _| status.in_sync_once).await;
    assert_eq!((world.now().failures, world.now().drift_repaired), (0, 0));
    world.assert_converged(&[]);
}

/// Starts on what a run with three Services left, with so many of them now, while virtual servers
/// can be listed and not be read. Returns what makes them readable.
async fn started_half_blind(services: u8) -> (World, Arc<AtomicBool>) {
    let all = [tcp(1, &[1, 2]), tcp(2, &[1]), tcp(3, &[3])];
    let kernel = World::in_sync(&all).await.stop().await;
    let mut world = World::on(kernel, Pace::default());
    let readable = Arc::new(AtomicBool::new(false));
    let may_read = Arc::clone(&readable);
    world.fake.interfere(move |request, _| match request {
        KernelCall::Read(KernelRead::Part(PartKind::VirtualServers), _)
            if !may_read.load(Ordering::Relaxed) =>
        {
            FakeAnswer::refused(RefusalClass::Other)
        }
        _ => FakeAnswer::Honest,
    });
    world.feed(all.get(..services.into()).unwrap()).await;
    world.say_complete().await;
    world.until("failing", |status, _| status.failed_readings >= 3).await;
    (world, readable)
}

#[tokio::test(start_paused = true)]
async fn virtual_servers_that_cannot_be_read_are_taken_over_when_they_can() {
    let (mut world, readable) = started_half_blind(3).await;
    // What was not there is served all the same, and what is planned for the others is held back.
    world.feed(&[tcp(4, &[4]), tcp(1, &[2, 5])]).await;
    world.until("something new", |status, _| status.operations > 0).await;
    assert_eq!(world.now().pending, 3);
    let fourth = frontend(4, Protocol::Tcp).address.to_string();
    let log = world.fake.take_log();
    assert!(log.iter().all(|op| op.to_string().contains(&fourth)), "{log:?}");
    readable.store(true, Ordering::Relaxed);
    world.until("in order", |status, _| status.pending == 0).await;
    assert_eq!((world.now().readings, world.now().failures), (1, 0));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn what_tells_whose_they_are_stays_while_virtual_servers_cannot_be_read() {
    let (mut world, readable) = started_half_blind(0).await;
    let left = world.fake.actual();
    assert_eq!(left.virtual_servers.len(), 3);
    for at in left.virtual_servers.keys() {
        let records = left.sets.values().filter(|it| it.entries.contains(&Entry::AddressPort(*at)));
        assert_eq!(records.count(), 1, "nothing else tells that {at} is ours");
    }
    readable.store(true, Ordering::Relaxed);
    world.until("in order", |status, _| status.pending == 0).await;
    assert_eq!(world.fake.actual().virtual_servers.len(), 0);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn one_virtual_server_that_cannot_be_read_takes_no_other_along() {
    let before: Vec<_> = (1..=100).map(|number| tcp(number, &[1])).collect();
    let kernel = World::in_sync(&before).await.stop().await;
    let mut world = World::on(kernel, Pace::default());
    world.fake.spoil(frontend(37, Protocol::Tcp));
    // All have moved meanwhile.
    world.feed(&(1..=100).map(|number| tcp(number, &[2])).collect::<Vec<_>>()).await;
    world.say_complete().await;
    world.until("all others", |status, _| status.in_sync_once && status.pending == 1).await;
    let actual = world.fake.actual();
    let is_stale = |at: &u16| real_server(&actual, &frontend(*at, Protocol::Tcp), 2).is_none();
    assert_eq!((1..=100).filter(is_stale).collect::<Vec<u16>>(), [37]);
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_read_and_nobody_wants_goes() {
    let both = [tcp(1, &[1]), tcp(2, &[1])];
    let kernel = World::in_sync(&both).await.stop().await;
    let mut world = World::on(kernel, Pace::default());
    both.iter().zip(1..).for_each(|(_, number)| world.fake.spoil(frontend(number, Protocol::Tcp)));
    // One Service went before the start, the other goes after it.
    world.feed(&both[..1]).await;
    world.complete().await;
    world.send(Event::ServiceRemoved(both[0].0.name.clone())).await;
    world.until("gone", |_, actual| actual.virtual_servers.is_empty()).await;
    world.until("in order", |status, _| status.pending == 0).await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn what_others_change_after_the_listing_is_found_by_the_audit() {
    let services = [tcp(1, &[1]), tcp(2, &[]), tcp(3, &[1])];
    let kernel = World::in_sync(&services).await.stop().await;
    let mut world = World::on(kernel, Pace::default());
    let mut is_listed = false;
    world.fake.interfere(move |request, actual| {
        if matches!(request, KernelCall::Read(KernelRead::Part(PartKind::VirtualServers), _))
            && !is_listed
        {
            is_listed = true;
            let first = actual.virtual_servers.get_mut(&frontend(1, Protocol::Tcp)).unwrap();
            first.server = None;
            actual.virtual_servers.remove(&frontend(3, Protocol::Tcp));
        }
        FakeAnswer::Honest
    });
    world.feed(&services).await;
    world.complete().await;
    let actual = world.fake.actual();
    assert!(real_server(&actual, &frontend(3, Protocol::Tcp), 1).is_some(), "it is read");
    world.compared().await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn dozens_that_cannot_be_read_take_no_other_along() {
    let all = |endpoint| (1..=200).map(move |number| tcp(number, &[endpoint])).collect::<Vec<_>>();
    let kernel = World::in_sync(&all(1)).await.stop().await;
    let mut world = World::on(kernel, Pace::default());
    // Neighbours, and the first in every list.
    let spoiled: Vec<u16> = (1..=40).collect();
    spoiled.iter().for_each(|number| world.fake.spoil(frontend(*number, Protocol::Tcp)));
    world.feed(&all(2)).await;
    world.say_complete().await;
    world.until("all others", |status, _| status.in_sync_once && status.pending == 40).await;
    let actual = world.fake.actual();
    let is_stale = |at: &u16| real_server(&actual, &frontend(*at, Protocol::Tcp), 2).is_none();
    assert_eq!((1..=200).filter(is_stale).collect::<Vec<u16>>(), spoiled);
}

#[tokio::test(start_paused = true)]
async fn endpoints_that_change_during_the_takeover_do_not_wait_for_its_end() {
    let all: Vec<_> = (1..=4_000).map(|number| tcp(number, &[1])).collect();
    let kernel = World::in_sync(&all).await.stop().await;
    let mut world = World::on(kernel, Pace::default());
    let (last, _) = all.last().unwrap();
    let change = Event::SliceApplied(Box::new(slice(last, &[2])));
    world.feed(&all).await;
    world.heard(change.clone());
    // It comes when the first Services are read. How many are, until it is written, is counted.
    let (source, mut change) = (world.sender(), Some(change));
    let n_reads = Arc::new(AtomicUsize::new(0));
    let (mut is_written, counted) = (false, Arc::clone(&n_reads));
    world.fake.interfere(move |call, _| {
        match call {
            KernelCall::Read(KernelRead::Part(PartKind::VirtualServers), _) if !is_written => {
                if let Some(event) = change.take() {
                    source.try_send(Input::Change(event)).unwrap();
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
            KernelCall::Writing(Op::AddRealServer(..)) => is_written = true,
            _ => {}
        }
        FakeAnswer::Honest
    });
    world.complete().await;
    world.until("written", |status, _| status.operations > 0).await;
    let (before, whole) = (n_reads.load(Ordering::Relaxed), 4_000 / 256);
    assert!(before <= 3, "{before} of {whole} rounds came before");
    world.compared().await;
    world.assert_converged(&[]);
}

/// A change that comes while thousands of addresses are removed does not wait for the last of them.
#[tokio::test(start_paused = true)]
async fn changes_are_written_between_the_removals_at_the_end() {
    let world = World::in_sync(&[tcp(1, &[1])]).await;
    let old: Vec<IpAddr> = (0..5_000_u16)
        .map(|number| {
            let [high, low] = number.to_be_bytes();
            IpAddr::from([10, 97, high, low])
        })
        .collect();
    world.fake.disturb(|kernel| kernel.addresses.extend(&old));
    let mut world = World::on(world.stop().await, Pace::default());
    let service = tcp(1, &[1]);
    let change = Event::SliceApplied(Box::new(slice(&service.0, &[1, 2])));
    world.feed(&[service]).await;
    world.heard(change.clone());
    // It comes with the first address that is removed.
    let (source, mut change) = (world.sender(), Some(change));
    world.fake.interfere(move |call, _| {
        if let KernelCall::Writing(Op::UnbindAddress(_)) = call
            && let Some(event) = change.take()
        {
            source.try_send(Input::Change(event)).unwrap();
        }
        FakeAnswer::Honest
    });
    world.complete().await;
    let log = world.fake.take_log();
    let unbound = |ops: &[Op]| ops.iter().filter(|op| matches!(op, Op::UnbindAddress(_))).count();
    let added = log.iter().position(|op| matches!(op, Op::AddRealServer(..))).expect("it is added");
    let (before, after) = log.split_at(added);
    assert_eq!(unbound(&log), 5_000);
    assert!(unbound(before) <= 2_048 && unbound(after) > 0, "{} before", unbound(before));
    world.assert_converged(&[]);
}
