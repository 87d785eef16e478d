//! Many changes at once are written in rounds.

use std::num::NonZeroU16;
use std::time::Duration;

use kernel::fake::{Fake, FakeAnswer, KernelCall};
use plan::actual::Actual;
use plan::event::Event;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{EndpointSlice, Family, ObjectName, Protocol, Service};
use plan::op::{Op, Subject};
use plan::sets::{SetId, SetKind};
use reconcile::{Input, Pace};
use tokio::time::Instant;

use crate::world::{NODE_ADDRESS, World, frontend, real_server, slice, tcp};

const STORM: u16 = 5_000;

const NO_ENDPOINTS: SetId = SetId { kind: SetKind::NoEndpoints, family: Family::V4 };

/// Number of Services that go into one round.
const ROUND: usize = 256;

fn services(count: u16) -> Vec<(Service, EndpointSlice)> {
    (1..=count).map(|number| tcp(number, &[1])).collect()
}

/// The virtual servers that operations are about, in the order in which they first appear.
fn order(log: &[Op]) -> Vec<Frontend> {
    let mut order = Vec::new();
    for op in log {
        if let Subject::VirtualServer(frontend) = op.subject()
            && order.last() != Some(&frontend)
        {
            order.push(frontend);
        }
    }
    order
}

fn on(pace: Pace) -> World {
    let local_addresses = [NODE_ADDRESS.into()].into_iter().collect();
    World::on(Fake::new(Actual { local_addresses, ..Actual::default() }), pace)
}

#[tokio::test(start_paused = true)]
async fn in_a_storm_everyone_is_served_in_turn_and_the_newest_state_is_written() {
    let all = services(STORM);
    let mut world = on(Pace { min_sync_period: Duration::from_secs(600), ..Pace::default() });
    world.feed(&all).await;
    world.complete().await;
    world.fake.take_log();
    world.reports.take();
    // All of it comes within the minimum period. In the middle comes one more, and the first of
    // all changes again at the end.
    let (first, middle) = (usize::from(STORM), usize::from(STORM / 2));
    let changed = |number: usize| slice(&all[number - 1].0, &[1, 2]);
    for number in (middle + 1..=first).rev() {
        world.apply_slice(changed(number)).await;
    }
    let other = tcp(STORM + 1, &[7]);
    world.feed(std::slice::from_ref(&other)).await;
    for number in (1..=middle).rev() {
        world.apply_slice(changed(number)).await;
    }
    world.apply_slice(slice(&all[first - 1].0, &[1, 3])).await;
    let last = frontend(1, Protocol::Tcp);
    world.until("written", |_, actual| real_server(actual, &last, 2).is_some()).await;

    let log = world.fake.take_log();
    let order = order(&log);
    let place = |number: u16| {
        let at = frontend(number, Protocol::Tcp);
        order.iter().position(|it| *it == at).unwrap()
    };
    assert!((middle - ROUND..=middle + ROUND).contains(&place(STORM + 1)), "in its turn");
    assert!(place(STORM) < ROUND && place(1) >= usize::from(STORM) - ROUND);
    // What was meanwhile was never written.
    let of_first = log
        .iter()
        .filter(|op| op.subject() == Subject::VirtualServer(frontend(STORM, Protocol::Tcp)));
    let words: Vec<String> = of_first.map(ToString::to_string).collect();
    assert_eq!(words, ["add real server 10.244.0.3:8080 weight 1 to TCP 10.96.19.136:80"]);
    let reports = world.reports.take();
    let rounds = reports.iter().filter(|it| it.starts_with("end of changes")).count();
    assert!(rounds >= usize::from(STORM) / ROUND, "{rounds}");
    let most = reports.iter().filter_map(|it| it.strip_prefix("planned ")?.parse().ok()).max();
    assert!(most.is_some_and(|ops: usize| ops <= 2 * ROUND), "{most:?} at once");
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_first_change_goes_out_at_once_and_the_next_one_waits() {
    let period = Duration::from_secs(10);
    let mut world = on(Pace { min_sync_period: period, ..Pace::default() });
    world.feed(&services(1)).await;
    world.complete().await;
    world.compared().await;
    let first = frontend(1, Protocol::Tcp);
    let started = Instant::now();
    world.apply_slice(slice(&tcp(1, &[]).0, &[1, 2])).await;
    world.until("written", |_, actual| real_server(actual, &first, 2).is_some()).await;
    assert_eq!(started.elapsed(), Duration::ZERO);
    world.apply_slice(slice(&tcp(1, &[]).0, &[1, 2, 3])).await;
    world.until("written", |_, actual| real_server(actual, &first, 3).is_some()).await;
    assert_eq!(started.elapsed(), period);
}

#[tokio::test(start_paused = true)]
async fn the_first_service_does_not_wait_for_the_others() {
    let mut world = World::new();
    let mut all = services(1_000);
    let (mut api_server, _) = tcp(2_000, &[]);
    api_server.name = ObjectName::api_server();
    let endpoints = slice(&api_server, &[9]);
    all.push((api_server, endpoints));
    world.feed(&all).await;
    world.complete().await;
    let log = world.fake.take_log();
    let server = frontend(2_000, Protocol::Tcp);
    let bound = log.iter().position(|op| *op == Op::BindAddress(server.address)).unwrap();
    let is_early = |op: &Op| op.is_prerequisite() || op.to_string().contains("10.96.7.208");
    assert!(log[..bound].iter().all(is_early), "{:?}", &log[..bound]);
    let reports = world.reports.take();
    let rounds = reports.iter().filter(|it| it.starts_with("end of comparison")).count();
    assert_eq!(rounds, 5, "one for itself, then of 256: {rounds}");
    let planned = reports.iter().find_map(|it| it.strip_prefix("planned "));
    assert_eq!(planned, Some("5"), "nothing of another Service");
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_takeover_that_a_change_waits_for_is_short() {
    let mut world = World::new();
    world.feed(&services(1_000)).await;
    let change = Event::SliceApplied(Box::new(slice(&tcp(1, &[]).0, &[1, 2])));
    world.heard(change.clone());
    let (inputs, mut change) = (world.sender(), Some(change));
    world.fake.interfere(move |call, _| {
        let writes_first = matches!(&call, KernelCall::Writing(Op::AddRealServer { .. }));
        if let Some(change) = change.take_if(|_| writes_first) {
            inputs.try_send(Input::Change(change)).unwrap();
        }
        FakeAnswer::Honest
    });
    world.complete().await;
    let reports = world.reports.take();
    let rounds = reports.iter().filter(|it| it.starts_with("end of comparison")).count();
    assert_eq!(rounds, 5, "256, 64 with the change, 256, 256 and the rest: {reports:?}");
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn what_is_complete_is_adopted_in_rounds_and_what_is_in_excess_goes() {
    let all = services(1_000);
    let fake = World::in_sync(&all).await.stop().await;
    let before = fake.actual();
    let mut world = World::on(fake, Pace::default());
    world.feed(&all).await;
    world.complete().await;
    assert_eq!(world.fake.take_log(), []);
    assert_eq!((world.fake.actual(), world.now().operations), (before, 0));

    let fake = world.stop().await;
    let mut world = World::on(fake, Pace::default());
    world.feed(&all[..400]).await;
    world.complete().await;
    let log = world.fake.take_log();
    let is_removal = |op: &Op| op.phase() >= Op::UnbindAddress(NODE_ADDRESS.into()).phase();
    assert!(log.iter().all(is_removal) && log.is_sorted_by_key(Op::phase));
    world.assert_converged(&[]);
}

/// A TCP Service of so many ports with one endpoint.
fn large(number: u16, ports: u16) -> (Service, EndpointSlice) {
    let (mut service, slice) = tcp(number, &[1]);
    let mut port = service.ports.remove(0);
    service.ports = (1..=ports)
        .map(|number| {
            port.port = NonZeroU16::new(number).unwrap();
            port.clone()
        })
        .collect();
    (service, slice)
}

/// Three operations each, which makes three parts.
const PORTS: u16 = 6_000;

#[tokio::test(start_paused = true)]
async fn a_large_service_that_is_complete_is_adopted_in_parts_and_nothing_of_it_goes() {
    let mut all = services(300);
    all.push(large(1_000, PORTS));
    let fake = World::in_sync(&all).await.stop().await;
    let before = fake.actual();
    assert_eq!(before.virtual_servers.len(), 300 + usize::from(PORTS));
    let mut world = World::on(fake, Pace::default());
    world.feed(&all).await;
    world.reports.take();
    world.complete().await;
    assert_eq!(world.fake.take_log(), []);
    assert_eq!((world.fake.actual(), world.now().operations), (before, 0));
    let reports = world.reports.take();
    let rounds = reports.iter().filter(|it| it.starts_with("end of comparison")).count();
    assert!(rounds >= 4, "{reports:?}");
}

#[tokio::test(start_paused = true)]
async fn a_large_service_at_the_start_lets_others_go_first_and_is_bound_when_it_is_complete() {
    let mut world = World::new();
    let mut all = services(300);
    let (mut oldest, endpoints) = large(1_000, PORTS);
    oldest.created = 1;
    all.insert(0, (oldest, endpoints));
    world.feed(&all).await;
    world.complete().await;
    let log = world.fake.take_log();
    let of_large = frontend(1_000, Protocol::Tcp).address;
    let is_of_large =
        |op: &Op| matches!(op.subject(), Subject::VirtualServer(at) if at.address == of_large);
    let last = log.iter().rposition(is_of_large).unwrap();
    let bound = log.iter().position(|op| *op == Op::BindAddress(of_large)).unwrap();
    let other = frontend(1, Protocol::Tcp).address;
    let served = log.iter().position(|op| *op == Op::BindAddress(other)).unwrap();
    assert!(served < last && last < bound, "{served} {last} {bound}");
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_changes_again_and_again_cuts_nobody_at_the_start() {
    // Two rounds, if it is planned in one of them only.
    let mut all = services(2 * u16::try_from(ROUND).unwrap());
    all[7].0.name = ObjectName::api_server();
    let api_server = all[7].0.clone();
    all[7].1 = slice(&api_server, &[1]);
    let kernel = World::in_sync(&all).await.stop().await;
    let at = frontend(8, Protocol::Tcp);
    // That is written in the first round, in which it changes for the second.
    kernel.disturb(|actual| drop(actual.virtual_servers.remove(&at)));
    kernel.take_log();
    let mut world = World::on(kernel, Pace::default());
    world.feed(&all).await;
    world.taken().await;
    let (event, inputs) = (slice(&api_server, &[1, 2]), world.sender());
    world.fake.interfere(move |request, _| {
        if matches!(request, KernelCall::Writing(Op::CreateVirtualServer(..))) {
            let event = Event::SliceApplied(Box::new(event.clone()));
            inputs.try_send(Input::Change(event)).unwrap();
        }
        FakeAnswer::Honest
    });
    world.complete().await;
    let removed = |op: &Op| matches!(op, Op::RemoveVirtualServer(_));
    assert_eq!(world.fake.take_log().iter().filter(|op| removed(op)).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_has_endpoints_again_is_not_refused_until_the_last_round_of_the_start() {
    let (without, _) = tcp(1, &[]);
    let kernel = World::in_sync(&[tcp(1, &[])]).await.stop().await;
    let refused = Entry::AddressPort(frontend(1, Protocol::Tcp));
    assert!(kernel.actual().sets[&NO_ENDPOINTS].entries.contains(&refused));
    let mut all = services(1_000);
    all[0] = (without.clone(), slice(&without, &[1]));
    let mut world = World::on(kernel, Pace::default());
    world.feed(&all).await;
    world.fake.take_log();
    world.complete().await;
    let log = world.fake.take_log();
    let allowed = log.iter().position(|op| *op == Op::RemoveEntry(NO_ENDPOINTS, refused)).unwrap();
    let last = log.iter().rposition(|op| matches!(op, Op::CreateVirtualServer(..))).unwrap();
    assert!(allowed < last, "{allowed} {last}");
    world.compared().await;
    assert_eq!(world.now().drift_repaired, 0);
}
