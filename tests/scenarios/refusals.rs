//! Operations that the kernel refuses, or does without saying so.

use std::time::Duration;

use kernel::RefusalClass;
use kernel::fake::Fake;
use kernel::worker::{KernelHandle, WorkerGone};
use plan::actual::Actual;
use plan::event::Event;
use plan::kernel_objects::{Entry, Frontend, VirtualServer};
use plan::model::{Overrides, Protocol};
use plan::op::{Op, Subject};
use plan::planner::Planner;
use plan::scheduler::SchedulerName;
use reconcile::{Input, Pace, Reconciler};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::world::{
    NODE_ADDRESS, World, frontend, node_port_service, real_server, settings, slice, tcp,
};

/// True if an operation puts the first Service's virtual server there.
fn creates_first(op: &Op) -> bool {
    matches!(op, Op::CreateVirtualServer(of, _) if *of == frontend(1, Protocol::Tcp))
}

/// Follows the refusals of one subject, because of which so many are pending: the seconds between them,
/// and from the last one to success.
async fn delays(world: &mut World, refusals: u32, pending: usize) -> Vec<u64> {
    let mut seconds = Vec::new();
    let mut last = Instant::now();
    for _ in 1..refusals {
        let failures = world.now().failures;
        world.until("tried again", |status, _| status.failures > failures).await;
        seconds.push(last.elapsed().as_secs());
        assert_eq!(world.now().pending, pending);
        last = Instant::now();
    }
    world.until("in order", |status, _| status.pending == 0).await;
    seconds.push(last.elapsed().as_secs());
    seconds
}

#[tokio::test(start_paused = true)]
async fn a_refused_virtual_server_stays_pending_and_harms_no_other() {
    let mut world = World::in_sync(&[]).await;
    world.fake.refuse(4, RefusalClass::NotSupported, creates_first);
    world.feed(&[tcp(1, &[1]), tcp(2, &[2])]).await;
    // It, its address, and what opens its port.
    world.until("pending", |status, _| status.pending == 3).await;
    let second = frontend(2, Protocol::Tcp);
    world.until("the other", |_, actual| real_server(actual, &second, 2).is_some()).await;
    assert_eq!(delays(&mut world, 4, 3).await, [1, 2, 4, 8]);
    assert_eq!(world.now().readings, 1);
    world.compared().await;
    assert_eq!(world.now().drift_repaired, 0);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn an_entry_for_which_a_set_has_no_room_stays_pending() {
    let mut world = World::in_sync(&[]).await;
    let first = frontend(1, Protocol::Tcp);
    let concerns =
        move |op: &Op| matches!(op, Op::AddEntry(_, e) if e.address() == Some(first.address));
    world.fake.refuse(2, RefusalClass::SetFull, concerns);
    world.feed(&[tcp(1, &[1])]).await;
    world.until("refused", |status, _| status.failures == 2).await;
    world.until("in order", |status, _| status.pending == 0).await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn lost_answers_are_made_good_by_a_retry() {
    let mut world = World::in_sync(&[]).await;
    let started = Instant::now();
    world.fake.lose_answers(usize::MAX, |op| matches!(op, Op::CreateVirtualServer(..)));
    world.fake.lose_answers(1, |op| matches!(op, Op::AddEntry(..)));
    world.feed(&[tcp(1, &[1]), tcp(2, &[2])]).await;
    world.until("lost", |status, _| status.failures >= 3).await;
    world.until("in order", |status, _| status.pending == 0).await;
    assert!(started.elapsed() < Duration::from_secs(1));
    assert_eq!(world.now().readings, 1);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn an_address_for_which_the_interface_is_missing_repairs_everything() {
    let mut world = World::in_sync(&[tcp(1, &[1])]).await;
    world.fake.disturb(|actual| {
        actual.link = false;
        actual.addresses.clear();
    });
    let started = Instant::now();
    world.feed(&[tcp(2, &[2])]).await;
    world
        .until("repaired", |status, actual| actual.addresses.len() == 2 && status.pending == 0)
        .await;
    assert!(started.elapsed() < Duration::from_secs(1));
    assert_eq!(world.now().readings, 1, "only the addresses were read");
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_does_not_make_an_unreadable_kernel_busy() {
    let mut world = World::in_sync(&[tcp(1, &[1])]).await;
    world.fake.disturb(|actual| {
        actual.link = false;
        actual.addresses.clear();
    });
    world.fake.fail_readings(usize::MAX);
    let started = Instant::now();
    world.feed(&[tcp(2, &[2])]).await;
    // The retry and the drift check are each tried every five seconds.
    world.until("unreadable for long", |status, _| status.failed_readings >= 12).await;
    assert!(started.elapsed() >= Duration::from_secs(25), "{:?}", started.elapsed());
    world.fake.fail_readings(0);
    world
        .until("repaired", |status, actual| actual.addresses.len() == 2 && status.pending == 0)
        .await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_virtual_server_that_could_not_be_removed_is_not_taken_for_a_foreign_one() {
    let (service, endpoints) = tcp(1, &[1]);
    let mut world = World::in_sync(&[(service.clone(), endpoints)]).await;
    // The comparison comes before the fourth attempt, when nothing tells any more whose it is.
    world.fake.refuse(5, RefusalClass::Exhausted, |op| matches!(op, Op::RemoveVirtualServer(_)));
    world.send(Event::ServiceRemoved(service.name)).await;
    // The entry that tells whose it is stays with it.
    world.until("pending", |status, _| status.pending == 2).await;
    world.compared().await;
    world
        .until("removed", |status, actual| {
            assert!(status.pending > 0 || actual.virtual_servers.is_empty(), "forgotten");
            status.pending == 0
        })
        .await;
    assert_eq!(world.now().drift_repaired, 0);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn attempts_get_rarer_while_a_part_of_the_subject_succeeds() {
    let (service, endpoints) = tcp(1, &[1]);
    let mut world = World::in_sync(&[(service.clone(), endpoints)]).await;
    let subject = Subject::VirtualServer(frontend(1, Protocol::Tcp));
    world.fake.disturb(|actual| {
        for server in actual.virtual_servers.values_mut() {
            server.real_servers.values_mut().for_each(|it| it.connections = 1);
        }
    });
    // Pod 1 drains, which every retry writes again; pod 2 is refused.
    world.fake.refuse(4, RefusalClass::Exhausted, move |op| {
        op.subject() == subject && matches!(op, Op::AddRealServer(..))
    });
    world.apply_slice(slice(&service, &[2])).await;
    world.until("pending", |status, _| status.pending == 1).await;
    assert_eq!(delays(&mut world, 4, 1).await, [1, 2, 4, 8]);
}

#[tokio::test(start_paused = true)]
async fn what_has_drained_resolves_nothing_else_of_its_virtual_server() {
    let (service, endpoints) = tcp(1, &[1]);
    let mut world = World::in_sync(&[(service.clone(), endpoints)]).await;
    let at = frontend(1, Protocol::Tcp);
    let set_connections = |world: &World, connections| {
        world.fake.disturb(|actual| {
            for server in actual.virtual_servers.values_mut() {
                server.real_servers.values_mut().for_each(|it| it.connections = connections);
            }
        });
    };
    set_connections(&world, 1);
    world.fake.refuse(8, RefusalClass::Exhausted, |op| matches!(op, Op::AddRealServer(..)));
    world.apply_slice(slice(&service, &[2])).await;
    world.until("pending", |status, _| status.failures >= 7).await;
    // Before the next attempt, which is a minute away, pod 1 has drained.
    set_connections(&world, 0);
    world
        .until("drained", |status, actual| {
            assert_eq!(status.pending, 1, "pod 2 is still missing");
            real_server(actual, &at, 1).is_none()
        })
        .await;
    world.until("served", |status, _| status.pending == 0).await;
    assert!(real_server(&world.fake.actual(), &at, 2).is_some());
    assert_eq!(world.now().drift_repaired, 0);
}

#[tokio::test(start_paused = true)]
async fn who_chose_a_scheduler_that_the_kernel_lacks_gets_the_default_one() {
    let choosing = |number| {
        let (mut service, slice) = tcp(number, &[1, 2]);
        let scheduler = SchedulerName::new("mh").ok();
        service.overrides = Some(Box::new(Overrides { scheduler, ..Overrides::default() }));
        (service, slice)
    };
    let mut world = World::in_sync(&[]).await;
    let mh = |server: &VirtualServer| server.scheduler.as_str() == "mh";
    world.fake.refuse(usize::MAX, RefusalClass::NoScheduler, move |op| match op {
        Op::CreateVirtualServer(_, server) | Op::ChangeVirtualServer(_, server) => mh(server),
        _ => false,
    });
    world.feed(&[choosing(1), tcp(2, &[1])]).await;
    let scheduler = |actual: &Actual, number| {
        let found = actual.virtual_servers.get(&frontend(number, Protocol::Tcp))?;
        Some(found.server.as_ref()?.scheduler.as_str().to_owned())
    };
    world
        .until("served all the same", |status, actual| {
            status.pending == 0 && scheduler(actual, 1).as_deref() == Some("rr")
        })
        .await;
    assert!(real_server(&world.fake.actual(), &frontend(1, Protocol::Tcp), 2).is_some());
    // Who comes next is not tried with it any more.
    let failures = world.now().failures;
    world.feed(&[choosing(3)]).await;
    world.until("the next", |_, actual| scheduler(actual, 3).as_deref() == Some("rr")).await;
    assert_eq!(world.now().failures, failures);
    // Its module is loaded, but does not have it: one more try, and no more.
    let name = SchedulerName::new("mh").unwrap();
    world.fake.load_scheduler(name.clone());
    world.until("tried", |status, _| status.failures > failures).await;
    world.until("served", |status, _| status.pending == 0).await;
    let failures = world.now().failures;
    world.compared().await;
    assert_eq!(world.now().failures, failures);
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_that_is_loaded_later_is_used_from_then_on() {
    let (mut service, slice) = tcp(1, &[1, 2]);
    let name = SchedulerName::new("mh").unwrap();
    let scheduler = Some(name.clone());
    service.overrides = Some(Box::new(Overrides { scheduler, ..Overrides::default() }));
    let mut world = World::in_sync(&[]).await;
    let at = frontend(1, Protocol::Tcp);
    world.fake.refuse(
        1,
        RefusalClass::NoScheduler,
        move |op| matches!(op, Op::CreateVirtualServer(frontend, _) if *frontend == at),
    );
    world.feed(&[(service, slice)]).await;
    let used = move |actual: &Actual| {
        let found = actual.virtual_servers.get(&at)?;
        Some(found.server.as_ref()?.scheduler.as_str().to_owned())
    };
    world.until("without it", |_, actual| used(actual).as_deref() == Some("rr")).await;
    world.compared().await;
    assert_eq!(used(&world.fake.actual()).as_deref(), Some("rr"), "nothing has changed");
    world.fake.load_scheduler(name);
    world.until("with it", |_, actual| used(actual).as_deref() == Some("mh")).await;
    assert_eq!(real_server(&world.fake.actual(), &at, 2).map(|it| it.weight > 0), Some(true));
    world.compared().await;
    assert_eq!((world.now().pending, world.now().drift_repaired), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_virtual_server_waits_for_what_tells_whose_it_is() {
    let mut world = World::in_sync(&[]).await;
    let service = node_port_service(7, 30_007);
    let at_node_port =
        Frontend { address: NODE_ADDRESS.into(), port: 30_007, ..frontend(7, Protocol::Tcp) };
    let is_sign = |op: &Op| matches!(op, Op::AddEntry(_, Entry::Port(30_007)));
    world.fake.refuse(3, RefusalClass::Exhausted, is_sign);
    world.feed(&[(service.clone(), slice(&service, &[1]))]).await;
    let cluster = frontend(7, Protocol::Tcp);
    // The entry, and what waits for it.
    world
        .until("the other one", |status, actual| {
            status.pending == 2 && real_server(actual, &cluster, 1).is_some()
        })
        .await;
    assert!(!world.fake.actual().virtual_servers.contains_key(&at_node_port));
    world.until("in order", |status, _| status.pending == 0).await;
    assert!(world.fake.actual().virtual_servers.contains_key(&at_node_port));
    assert_eq!(world.now().failures, 3);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_kernel_worker_that_panics_ends_the_loop_with_an_error() {
    let fake = Fake::default();
    fake.interfere(|_, _| panic!("on purpose"));
    let kernel = KernelHandle::start(fake, ()).unwrap();
    let reconciler = Reconciler::new(Planner::new(settings()), kernel, Pace::default()).unwrap();
    let (inputs, inbox) = mpsc::channel(1);
    inputs.send(Input::Complete).await.unwrap();
    let ended = reconciler.run(inbox, None, std::future::pending()).await;
    assert_eq!(ended, Err(WorkerGone));
}
