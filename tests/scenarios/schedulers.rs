//! Virtual servers that get another scheduler, for which the kernel takes its time.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kernel::RefusalClass;
use kernel::fake::{FakeAnswer, KernelCall};
use plan::event::Event;
use plan::model::{EndpointSlice, Overrides, Protocol, Service, ServicePort};
use plan::op::{Op, Subject};
use plan::scheduler::SchedulerName;
use plan::settings::Settings;
use reconcile::inquiry::View;
use reconcile::{Input, Pace};

use crate::world::{World, frontend, real_server, settings, slice, tcp};

const SERVICES: u16 = 300;

fn services() -> Vec<(Service, EndpointSlice)> {
    (1..=SERVICES).map(|number| tcp(number, &[1])).collect()
}

fn named(name: &str) -> SchedulerName {
    SchedulerName::new(name).unwrap()
}

fn with_scheduler(service: Service, name: &str) -> Service {
    let scheduler = Some(named(name));
    Service {
        overrides: Some(Box::new(Overrides { scheduler, ..Overrides::default() })),
        ..service
    }
}

/// The sizes of the requests that were made since the last time.
fn requests(world: &World) -> Vec<usize> {
    let reports = world.reports.take().into_iter();
    let size = |words: String| words.strip_prefix("written ")?.split(',').next()?.parse().ok();
    reports.filter_map(size).collect()
}

fn is_change(op: &Op) -> bool {
    matches!(op, Op::ChangeVirtualServer(..))
}

/// A restart with another scheduler, as an operator does it.
#[tokio::test(start_paused = true)]
async fn all_virtual_servers_are_changed_a_few_at_a_time_and_other_changes_come_between() {
    let services = services();
    let fake = World::in_sync(&services).await.stop().await;
    fake.take_log();
    let settings = Settings { scheduler: named("lc"), ..settings() };
    let mut world = World::with(settings, fake, Pace::default());
    world.feed(&services).await;
    let (service, _) = &services[9];
    let other = Event::SliceApplied(Box::new(slice(service, &[1, 2])));
    world.heard(other.clone());
    let (source, mut other) = (world.sender(), Some(other));
    world.fake.interfere(move |call, _| {
        if let KernelCall::Writing(op) = call
            && is_change(op)
            && let Some(event) = other.take()
        {
            source.try_send(Input::Change(event)).unwrap();
        }
        FakeAnswer::Honest
    });
    world.complete().await;
    world.until("changed", |status, _| status.pending == 0).await;
    let log = world.fake.take_log();
    let changes = log.iter().filter(|op| is_change(op)).count();
    assert_eq!(changes, usize::from(SERVICES));
    let at = log.iter().position(|op| matches!(op, Op::AddRealServer(..))).unwrap();
    let before = log[..at].iter().filter(|op| is_change(op)).count();
    assert!(before <= 4, "{before} changes came before");
    assert!(requests(&world).iter().filter(|size| **size == 2).count() >= changes / 2 - 1);
    world.compared().await;
    world.assert_converged(&[]);
}

/// The kernel has a program look for the module each time that it is asked.
#[tokio::test(start_paused = true)]
async fn a_scheduler_that_the_kernel_lacks_is_asked_for_once() {
    let mut world = World::in_sync(&[]).await;
    let n_asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&n_asked);
    world.fake.interfere(move |call, _| match call {
        KernelCall::Writing(
            Op::CreateVirtualServer(_, server) | Op::ChangeVirtualServer(_, server),
        ) if server.scheduler.as_str() == "twos" => {
            counted.fetch_add(1, Ordering::Relaxed);
            FakeAnswer::refused(RefusalClass::NoScheduler)
        }
        _ => FakeAnswer::Honest,
    });
    let chosen: Vec<_> = services()
        .into_iter()
        .map(|(service, slice)| (with_scheduler(service, "twos"), slice))
        .collect();
    world.feed(&chosen).await;
    let last = frontend(SERVICES, Protocol::Tcp);
    world
        .until("served by the default one", |status, actual| {
            status.pending == 0 && real_server(actual, &last, 1).is_some()
        })
        .await;
    assert!(n_asked.load(Ordering::Relaxed) <= 2, "{n_asked:?}");
    world.compared().await;
}

/// A Service of so many ports.
fn with_ports(number: u16, n_ports: u16) -> (Service, EndpointSlice) {
    let (mut service, mut slice) = tcp(number, &[1]);
    let (port, of_slice) = (service.ports[0].clone(), slice.ports[0].clone());
    for number in 1..n_ports {
        let name = format!("p{number}");
        let number = NonZeroU16::new(port.port.get() + number).unwrap();
        service.ports.push(ServicePort {
            name: name.as_str().into(),
            port: number,
            ..port.clone()
        });
        let mut of_slice = of_slice.clone();
        of_slice.name = name.as_str().into();
        slice.ports.push(of_slice);
    }
    (service, slice)
}

/// A tenant's Service with many ports does not put off another's.
#[tokio::test(start_paused = true)]
async fn services_take_turns() {
    let services = [with_ports(1, 90), tcp(2, &[1])];
    let mut world = World::in_sync(&services).await;
    world.fake.take_log();
    for (service, _) in services {
        let service = with_scheduler(service, "lc");
        world.send(Event::ServiceApplied(Box::new(service))).await;
    }
    world
        .until("changed", |status, actual| {
            let scheduler = |number| {
                let server = actual.virtual_servers.get(&frontend(number, Protocol::Tcp));
                server.and_then(|it| it.server.as_ref()).map(|it| it.scheduler.clone())
            };
            status.pending == 0 && scheduler(2) == Some(named("lc"))
        })
        .await;
    let changed = world.fake.take_log().into_iter().filter_map(|op| match op {
        Op::ChangeVirtualServer(frontend, _) => Some(frontend),
        _ => None,
    });
    let changed: Vec<_> = changed.collect();
    assert_eq!(changed.len(), 91);
    let at = changed.iter().position(|it| *it == frontend(2, Protocol::Tcp)).unwrap();
    assert!(at < 8, "{at} of the other Service came before");
}

/// As any other write that is refused, with growing pauses.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_refused_is_retried_less_and_less_often() {
    let services = [tcp(1, &[1])];
    let mut world = World::in_sync(&services).await;
    world.fake.interfere(|call, _| match call {
        KernelCall::Writing(Op::ChangeVirtualServer(..)) => {
            FakeAnswer::refused(RefusalClass::Exhausted)
        }
        _ => FakeAnswer::Honest,
    });
    let [(service, _)] = services;
    world.send(Event::ServiceApplied(Box::new(with_scheduler(service, "lc")))).await;
    world.until("refused again and again", |status, _| status.failures >= 5).await;
    let subject = Subject::VirtualServer(frontend(1, Protocol::Tcp));
    let attempts = move |view: &View<'_>| view.pending.get(&subject).map(|it| it.attempts);
    let attempts = world.inquiries.ask(attempts).await.unwrap();
    assert!(attempts >= Some(5), "pauses grow with the attempts: {attempts:?}");
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    world.until("in order", |status, _| status.pending == 0).await;
    world.compared().await;
}
