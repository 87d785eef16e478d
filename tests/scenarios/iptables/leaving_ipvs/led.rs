//! IPVS serves until the rules lead.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernel::fake::{Fake, FakeAnswer, KernelCall};
use kernel::{KernelRead, RefusalClass};
use plan::actual::Actual;
use plan::chains::ChainOp;
use plan::kernel_objects::Frontend;
use plan::mode::Mode;
use plan::model::{EndpointSlice, Family, Overrides, Protocol, Service};
use plan::op::{Op, PartKind, Subject};
use plan::sets::SetKind;
use plan::settings::Settings;
use reconcile::Pace;
use tokio::time::Instant;

use super::{cluster, set_connections, switch, switch_with};
use crate::world::{
    NODE_ADDRESS, World, dual_stack_tcp, frontend, real_server, service, settings_in, slice, tcp,
};

/// True if an operation takes something of IPVS mode's away.
fn takes_away(op: &Op) -> bool {
    match op {
        Op::DrainRealServer(..)
        | Op::RemoveRealServer(..)
        | Op::RemoveVirtualServer(_)
        | Op::RemoveVirtualServerWhenDrained(_) => true,
        Op::RemoveEntry(set, _) => set.kind == SetKind::ClusterIp,
        _ => false,
    }
}

/// A node in sync in IPVS mode, with connections to pod 1 of Service 1, that was started again in
/// iptables mode on a kernel that refuses `n` operations which are `refused`.
async fn switched_refusing(
    services: &[(Service, EndpointSlice)],
    n: usize,
    class: RefusalClass,
    refused: impl Fn(&Op) -> bool + Send + 'static,
) -> World {
    let world = World::in_sync(services).await;
    set_connections(&world, 3);
    world.fake.refuse(n, class, refused);
    switch(world, Mode::Iptables, Pace::default(), services).await
}

/// Has the kernel refuse operations that are `refused`, until the flag is taken away.
fn refuse_while(
    world: &World,
    class: RefusalClass,
    refused: impl Fn(KernelCall<'_>) -> bool + Send + 'static,
) -> Arc<AtomicBool> {
    let lasts = Arc::new(AtomicBool::new(true));
    let goes_on = Arc::clone(&lasts);
    world.fake.interfere(move |call, _| {
        if goes_on.load(Ordering::Relaxed) && refused(call) {
            FakeAnswer::refused(class)
        } else {
            FakeAnswer::Honest
        }
    });
    lasts
}

#[tokio::test(start_paused = true)]
async fn nothing_of_ipvs_goes_before_the_last_chain_is_there() {
    // Another program holds the lock for a moment, for longer than single Services are waited for, and
    // for so long that retries are a minute apart.
    for (seconds, is_held_up) in [(3, false), (20, true), (300, true)] {
        let services = cluster();
        let world = World::in_sync(&services).await;
        set_connections(&world, 3);
        let is_chain = |call: KernelCall<'_>| matches!(call, KernelCall::Writing(Op::Chain(_)));
        let lasts = refuse_while(&world, RefusalClass::Exhausted, is_chain);
        let mut world = switch(world, Mode::Iptables, Pace::default(), &services).await;
        if is_held_up {
            world.until("held up", |status, _| status.is_held_up).await;
        }
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert_eq!((world.now().is_carried, world.now().is_held_up), (false, is_held_up));
        assert_eq!(world.now().n_left_by_ipvs, None);
        assert!(!world.fake.take_log().iter().any(takes_away));
        let reports = world.reports.take();
        let held_up = reports.iter().find(|report| report.starts_with("stalled"));
        let names_rules = |it: &String| {
            it.split_once("iptables mode lacks rules: ")
                .is_some_and(|(_, why)| why.contains("KUBE-"))
        };
        assert_eq!(held_up.is_some_and(names_rules), is_held_up, "{reports:?}");
        lasts.store(false, Ordering::Relaxed);
        world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
        assert_eq!((world.now().is_carried, world.now().is_held_up), (true, false));
        let log = world.fake.take_log();
        let last_chain = log.iter().rposition(|op| matches!(op, Op::Chain(_))).unwrap();
        let first_removal = log.iter().position(takes_away).unwrap();
        assert!(last_chain < first_removal, "{log:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn constant_rules_that_are_refused_hold_everything_back() {
    let services = cluster();
    let refused = |op: &Op| matches!(op, Op::WriteRuleSet(_));
    let mut world = switched_refusing(&services, 9, RefusalClass::Exhausted, refused).await;
    world.until("held up", |status, _| status.is_held_up).await;
    assert!(!world.fake.take_log().iter().any(takes_away));
    world.until("led", |status, _| status.is_carried && !status.is_held_up).await;
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn chains_that_cannot_be_read_hold_their_family_back() {
    let services = cluster();
    let world = World::in_sync(&services).await;
    set_connections(&world, 3);
    let is_reading = |call: KernelCall<'_>| {
        matches!(call, KernelCall::Read(KernelRead::Part(PartKind::Chains), Some(Family::V4)))
    };
    let lasts = refuse_while(&world, RefusalClass::Other, is_reading);
    let settings = Settings { families: Family::BOTH.into(), ..settings_in(Mode::Iptables) };
    let mut world = switch_with(settings, world, Pace::default(), &services).await;
    world.until("held up", |status, _| status.is_held_up).await;
    assert!(!world.fake.take_log().iter().any(takes_away));
    lasts.store(false, Ordering::Relaxed);
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
}

/// The host lacks a family since the former process. Nothing leads its new connections, and what IPVS has
/// of it ends by itself: otherwise clients would come to the endpoints of that moment for ever.
#[tokio::test(start_paused = true)]
async fn a_family_that_the_host_lacks_since_a_restart_drains_when_the_other_one_is_led() {
    let services = dual_stack_tcp(1);
    let both = Settings { families: Family::BOTH.into(), ..settings_in(Mode::Ipvs) };
    let local_addresses = [NODE_ADDRESS.into()].into_iter().collect();
    let fake = Fake::new(Actual { local_addresses, ..Actual::default() });
    let mut world = World::with(both, fake, Pace::default());
    world.feed(&services).await;
    world.complete().await;
    let address = services[1].0.cluster_v6.unwrap().into();
    let of_v6 = Frontend { address, ..frontend(1, Protocol::Tcp) };
    let set_v6_connections = |world: &World, connections| {
        world.fake.disturb(|actual| {
            let servers = &mut actual.virtual_servers.get_mut(&of_v6).unwrap().real_servers;
            servers.values_mut().for_each(|it| it.connections = connections);
        });
    };
    set_v6_connections(&world, 3);
    let settings = settings_in(Mode::Iptables);
    let mut world = switch_with(settings, world, Pace::default(), &services).await;
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    let actual = world.fake.actual();
    let [draining] = *actual.virtual_servers[&of_v6].real_servers.values().collect::<Vec<_>>()
    else {
        panic!("{actual:?}")
    };
    assert_eq!((draining.weight, draining.connections), (0, 3));
    let log = world.fake.take_log();
    let last_chain = log.iter().rposition(|op| matches!(op, Op::Chain(_))).unwrap();
    assert!(last_chain < log.iter().position(takes_away).unwrap(), "{log:?}");
    set_v6_connections(&world, 0);
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
    assert!(world.fake.actual().virtual_servers.is_empty());
}

/// A Service whose rules need the match `recent`, which a kernel may lack.
fn affine(number: u16) -> (Service, EndpointSlice) {
    let service = Service { affinity: Some(600), ..service(number, Protocol::Tcp) };
    let slice = slice(&service, &[1]);
    (service, slice)
}

#[tokio::test(start_paused = true)]
async fn a_service_whose_rules_are_refused_is_served_by_ipvs_as_before() {
    let services = vec![tcp(1, &[1, 2]), tcp(2, &[3]), affine(3)];
    let refused = |op: &Op| match op {
        Op::Chain(ChainOp::Write(_, rules)) => rules.iter().any(|rule| rule.contains("-m recent")),
        _ => false,
    };
    let started = Instant::now();
    let mut world = switched_refusing(&services, 40, RefusalClass::NotSupported, refused).await;
    world.until("led", |status, _| status.is_carried).await;
    assert!(started.elapsed() < Duration::from_secs(12), "others do not wait for it");
    set_connections(&world, 0);
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    let is_of_it = |op: &Op| match op.subject() {
        Subject::VirtualServer(it) => it == frontend(3, Protocol::Tcp),
        Subject::Entry(_, entry) => entry.frontend() == Some(frontend(3, Protocol::Tcp)),
        _ => false,
    };
    let actual = world.fake.actual();
    assert_eq!(real_server(&actual, &frontend(3, Protocol::Tcp), 1).unwrap().weight, 1);
    assert!(!world.fake.take_log().iter().any(|op| takes_away(op) && is_of_it(op)));
    assert_ne!(world.now().n_left_by_ipvs, Some(0));
    // When its rules are there at last, it drains like the others.
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
    assert_eq!(world.now().pending, 0);
}

#[tokio::test(start_paused = true)]
async fn a_service_drains_for_as_long_as_it_asks_for() {
    let mut services = cluster();
    let overrides = Overrides { drain_deadline_seconds: Some(24 * 3_600), ..Overrides::default() };
    services[0].0.overrides = Some(Box::new(overrides));
    let pace = Pace { drain_deadline: Duration::from_secs(300), ..Pace::default() };
    let world = World::in_sync(&services).await;
    set_connections(&world, 3);
    let mut world = switch(world, Mode::Iptables, pace, &services).await;
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    // A restart knows it as well.
    let mut world = switch(world, Mode::Iptables, pace, &services).await;
    tokio::time::sleep(Duration::from_secs(23 * 3_600)).await;
    let actual = world.fake.actual();
    assert!(real_server(&actual, &frontend(1, Protocol::Tcp), 1).is_some());
    tokio::time::sleep(Duration::from_secs(3_700)).await;
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_large_table_of_connections_is_not_read_for_a_few_of_them() {
    let services = vec![tcp(1, &[1]), tcp(2, &[3]), affine(3)];
    for is_draining in [true, false] {
        let refused = move |op: &Op| match op {
            Op::Chain(ChainOp::Write(_, rules)) => {
                !is_draining && rules.iter().any(|rule| rule.contains("-m recent"))
            }
            _ => false,
        };
        let world = World::in_sync(&services).await;
        set_connections(&world, 3);
        let socket = (IpAddr::from([10, 244, 0, 1]), 8080).into();
        world.fake.disturb(|actual| {
            let server = actual.virtual_servers.get_mut(&frontend(3, Protocol::Tcp)).unwrap();
            server.real_servers.get_mut(&socket).unwrap().connections = 30_000;
        });
        world.fake.refuse(usize::MAX, RefusalClass::NotSupported, refused);
        let mut world = switch(world, Mode::Iptables, Pace::default(), &services).await;
        world.until("draining", |status, _| status.n_left_by_ipvs.is_some()).await;
        let before = world.fake.looks().connections;
        let started = Instant::now();
        for _ in 0..5 {
            world.compared().await;
        }
        let looks = world.fake.looks().connections - before;
        // Where all drain, that is known. Of others only a reading tells, which is broken off, and made
        // again after a minute.
        let minutes = usize::try_from(started.elapsed().as_secs() / 60).unwrap();
        let expected = if is_draining { 0..=0 } else { 2..=minutes + 1 };
        assert!(expected.contains(&looks), "{is_draining}: {looks} in {minutes}");
    }
}
