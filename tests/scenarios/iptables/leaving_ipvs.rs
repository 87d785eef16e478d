//! A node that was in IPVS mode: what IPVS balances goes on until it ends.

mod copies;
mod led;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernel::fake::{FakeAnswer, KernelCall};
use kernel::{KernelRead, RefusalClass};
use plan::actual::Actual;
use plan::kernel_objects::Frontend;
use plan::mode::Mode;
use plan::model::{EndpointSlice, Family, Protocol, Service};
use plan::op::{Op, Subject};
use plan::routes::{LocalRoute, RouteOp};
use plan::sets::{SetId, SetKind};
use plan::settings::Settings;
use reconcile::{Pace, Status};
use tokio::time::Instant;

use copies::{assert_in_order, with_copies};

use crate::world::{NODE_ADDRESS, World, frontend, real_server, settings_in, tcp, udp};

/// Two Services for TCP and one for UDP.
fn cluster() -> Vec<(Service, EndpointSlice)> {
    vec![tcp(1, &[1, 2]), tcp(2, &[3]), udp(3, &[1])]
}

/// A node in sync in IPVS mode, with connections to pod 1 of Service 1, that was started again in
/// iptables mode.
async fn switched(pace: Pace) -> World {
    let services = cluster();
    let world = World::in_sync(&services).await;
    set_connections(&world, 3);
    switch(world, Mode::Iptables, pace, &services).await
}

async fn switch(
    world: World,
    mode: Mode,
    pace: Pace,
    services: &[(Service, EndpointSlice)],
) -> World {
    switch_with(settings_in(mode), world, pace, services).await
}

async fn switch_with(
    settings: Settings,
    world: World,
    pace: Pace,
    services: &[(Service, EndpointSlice)],
) -> World {
    let fake = world.stop().await;
    while fake.is_shared() {
        tokio::task::yield_now().await;
    }
    fake.take_log();
    let mut world = World::with(settings, fake, pace);
    world.feed(services).await;
    world.complete().await;
    world.until("in sync", |status, _| status.in_sync_once).await;
    world
}

fn set_connections(world: &World, connections: u64) {
    let socket = (IpAddr::from([10, 244, 0, 1]), 8080).into();
    world.fake.disturb(|actual| {
        let server = actual.virtual_servers.get_mut(&frontend(1, Protocol::Tcp)).unwrap();
        server.real_servers.get_mut(&socket).unwrap().connections = connections;
    });
}

#[tokio::test(start_paused = true)]
async fn connections_of_ipvs_go_on_and_everything_else_of_it_goes() {
    let mut world = switched(Pace::default()).await;
    world.until("draining", |status, _| status.n_left_by_ipvs.is_some()).await;
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    let actual = world.fake.actual();
    let draining = real_server(&actual, &frontend(1, Protocol::Tcp), 1).unwrap();
    assert_eq!((draining.weight, draining.connections), (0, 3));
    assert!(real_server(&actual, &frontend(1, Protocol::Tcp), 2).is_none(), "it had no connection");
    // Packets of its connection are for a local address, which is no source of the node's own.
    assert_eq!((actual.addresses.len(), actual.routes.len()), (0, 3));
    // New connections come here only if no rule led them to an endpoint.
    let admitted = |kind| {
        let of_kind = actual.sets.iter().filter(|(set, _)| set.kind == kind);
        of_kind.map(|(_, set)| set.entries.len()).sum::<usize>()
    };
    assert_eq!((admitted(SetKind::ClusterIp), admitted(SetKind::IpvsAddresses)), (0, 3));
    set_connections(&world, 0);
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
    assert!(world.fake.actual().virtual_servers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn rules_lead_to_every_service_before_a_virtual_server_is_touched() {
    let mut world = switched(Pace::default()).await;
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    let log = world.fake.take_log();
    let last_rule = log.iter().rposition(|op| matches!(op, Op::Chain(_))).unwrap();
    let first_removal = log.iter().position(|op| {
        matches!(
            op,
            Op::RemoveVirtualServer(_) | Op::RemoveRealServer(..) | Op::DrainRealServer(..)
        )
    });
    assert!(last_rule < first_removal.unwrap(), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_with_the_same_deadline() {
    let pace = Pace { drain_deadline: Duration::from_secs(300), ..Pace::default() };
    let mut world = switched(pace).await;
    world.until("draining", |status, _| status.n_left_by_ipvs.is_some()).await;
    let deadline = |world: &World| {
        let actual = world.fake.actual();
        real_server(&actual, &frontend(1, Protocol::Tcp), 1).map(|it| it.deadline)
    };
    let before = deadline(&world).unwrap();
    assert!(before.is_some());
    let services = cluster();
    let mut world = switch(world, Mode::Iptables, pace, &services).await;
    world.until("draining", |status, _| status.n_left_by_ipvs.is_some()).await;
    assert_eq!(deadline(&world), Some(before));
    tokio::time::sleep(Duration::from_secs(301)).await;
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
    assert_eq!(deadline(&world), None, "its time is over");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_does_not_cut_a_connection() {
    let services = cluster();
    let world = World::in_sync(&services).await;
    set_connections(&world, 3);
    let is_about_ipvs = |op: &Op| matches!(op.subject(), Subject::VirtualServer(_));
    world.fake.refuse(4, RefusalClass::Exhausted, is_about_ipvs);
    let mut world = switch(world, Mode::Iptables, Pace::default(), &services).await;
    world
        .until("alone", |status, actual| status.pending == 0 && actual.virtual_servers.len() == 1)
        .await;
    let actual = world.fake.actual();
    let draining = real_server(&actual, &frontend(1, Protocol::Tcp), 1).unwrap();
    assert_eq!((draining.weight, draining.connections), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_never_in_ipvs_mode_has_nothing_to_leave() {
    let mut world = super::in_sync(&cluster()).await;
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
    assert_eq!(world.fake.looks().frontends, 0);
}

#[tokio::test(start_paused = true)]
async fn in_ipvs_mode_nothing_is_left() {
    let mut world = World::in_sync(&cluster()).await;
    world.compared().await;
    assert_eq!(world.now().n_left_by_ipvs, None);
}

/// Waits for so many passes of the audit, which takes half a minute for each.
async fn passes(world: &mut World, n: u64) {
    let passes = world.now().passes + n;
    world.until("compared", |status, _| status.passes >= passes).await;
}

/// Set of the addresses that IPVS mode bound.
const BOUND: SetId = SetId { kind: SetKind::IpvsAddresses, family: Family::V4 };

/// True if the constant rules that were written last masquerade by the set of bound addresses.
fn masquerades_bound(world: &World) -> bool {
    let rules = world.fake.written_rules(Family::V4).unwrap();
    rules.first_input().contains("--match-set KUBE-IPVS-IPS src")
}

#[tokio::test(start_paused = true)]
async fn connections_of_the_node_are_masqueraded_until_ipvs_is_left_and_no_longer() {
    let world = switched(Pace::default()).await;
    assert!(masquerades_bound(&world));
    let mut world = switch(world, Mode::Iptables, Pace::default(), &cluster()).await;
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    assert!(masquerades_bound(&world));
    // Not once do they have a rule less than they need.
    let rewritten = |op: &Op| matches!(op, Op::WriteRuleSet(_));
    assert!(!world.fake.take_log().iter().any(rewritten));
    // The sets are not done with before no rule looks into them.
    world.fake.refuse(3, RefusalClass::Exhausted, rewritten);
    set_connections(&world, 0);
    world.until("no virtual server", |_, actual| actual.virtual_servers.is_empty()).await;
    world.until("refused", |status, _| status.pending > 0).await;
    assert!(masquerades_bound(&world));
    assert_ne!(world.now().n_left_by_ipvs, Some(0));
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
    assert!(!masquerades_bound(&world));
}

#[tokio::test(start_paused = true)]
async fn the_set_of_bound_addresses_is_completed_before_a_rule_looks_into_it() {
    for is_missing in [false, true] {
        let services = cluster();
        let world = World::in_sync(&services).await;
        set_connections(&world, 3);
        world.fake.disturb(|actual| {
            if is_missing {
                actual.sets.remove(&BOUND);
            } else {
                actual.sets.get_mut(&BOUND).unwrap().entries.clear();
            }
        });
        let world = switch(world, Mode::Iptables, Pace::default(), &services).await;
        let actual = world.fake.actual();
        assert_eq!(actual.sets[&BOUND].entries.len(), 3);
        assert!(masquerades_bound(&world));
        let log = world.fake.take_log();
        let place = |like: &dyn Fn(&Op) -> bool| log.iter().position(like).unwrap();
        let added = place(&|op| matches!(op, Op::AddEntry(set, _) if *set == BOUND));
        assert!(added < place(&|op| matches!(op, Op::WriteRuleSet(_))), "{log:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_that_the_kernel_refuses_is_in_no_rule() {
    let services = cluster();
    let world = World::in_sync(&services).await;
    world.fake.disturb(|actual| drop(actual.sets.remove(&BOUND)));
    let makes_set = |op: &Op| matches!(op, Op::CreateSet(..));
    world.fake.refuse(1, RefusalClass::NotSupported, makes_set);
    let mut world = switch(world, Mode::Iptables, Pace::default(), &services).await;
    assert!(!masquerades_bound(&world));
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
}

#[tokio::test(start_paused = true)]
async fn an_address_is_unbound_only_after_its_route_was_made() {
    let services = cluster();
    let world = World::in_sync(&services).await;
    set_connections(&world, 3);
    world.fake.refuse(1, RefusalClass::Other, |op| matches!(op, Op::Route(RouteOp::Add(_))));
    let world = switch(world, Mode::Iptables, Pace::default(), &services).await;
    let actual = world.fake.actual();
    assert_eq!((actual.addresses.len(), actual.routes.len()), (1, 2));
    let log = world.fake.take_log();
    for (at, op) in log.iter().enumerate() {
        if let Op::UnbindAddress(address) = op {
            let source = Some(IpAddr::from(NODE_ADDRESS));
            let route = LocalRoute { network: (*address).into(), source };
            let route = Op::Route(RouteOp::Add(route));
            assert!(log[..at].contains(&route), "{log:?}");
        }
    }
    // The next start does the rest, and goes on by what is there.
    let mut world = switch(world, Mode::Iptables, Pace::default(), &services).await;
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    let actual = world.fake.actual();
    assert_eq!((actual.addresses.len(), actual.routes.len()), (0, 3));
    assert!(masquerades_bound(&world));
}

#[tokio::test(start_paused = true)]
async fn connections_that_are_closed_are_not_waited_for() {
    let mut world = switched(Pace::default()).await;
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    world.until("counted", |status, _| status.n_connections_left_by_ipvs == 3).await;
    passes(&mut world, 10).await;
    assert!(real_server(&world.fake.actual(), &frontend(1, Protocol::Tcp), 1).is_some());
    world.fake.close_connections(frontend(1, Protocol::Tcp));
    let closed = Instant::now();
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
    // Two checks, which are 15 seconds apart by now.
    assert!((10..=60).contains(&closed.elapsed().as_secs()), "{:?}", closed.elapsed());
    assert_eq!(world.now().n_connections_left_by_ipvs, 0);
}

#[tokio::test(start_paused = true)]
async fn connections_that_cannot_be_read_drain_by_the_kernels_counters() {
    let services = cluster();
    let world = World::in_sync(&services).await;
    set_connections(&world, 3);
    world.fake.interfere(|call, _| match call {
        KernelCall::Read(KernelRead::Connections, _) => FakeAnswer::refused(RefusalClass::Other),
        _ => FakeAnswer::Honest,
    });
    let mut world = switch(world, Mode::Iptables, Pace::default(), &services).await;
    world.fake.close_connections(frontend(1, Protocol::Tcp));
    world.until("drains", |status, _| status.n_left_by_ipvs.is_some()).await;
    passes(&mut world, 10).await;
    assert_eq!(world.now().n_left_by_ipvs, Some(1));
    assert_eq!(world.now().failed_readings, 0);
    set_connections(&world, 0);
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_virtual_server_that_cannot_be_removed_is_looked_at_more_and_more_seldom() {
    let mut world = switched(Pace::default()).await;
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    let removes = |op: &Op| matches!(op, Op::RemoveVirtualServer(_) | Op::RemoveRealServer(..));
    world.fake.refuse(usize::MAX, RefusalClass::NotPermitted, removes);
    set_connections(&world, 0);
    passes(&mut world, 10).await;
    let (before, since) = (world.fake.looks().frontends, Instant::now());
    passes(&mut world, 20).await;
    let (listings, minutes) = (world.fake.looks().frontends - before, since.elapsed() / 60);
    assert!((2..=20).contains(&listings), "{listings} in {minutes:?} (seconds for minutes)");
    assert_eq!(world.now().n_left_by_ipvs, Some(1));
}

#[tokio::test(start_paused = true)]
async fn an_internal_frontend_goes_at_once() {
    let services = cluster();
    let world = World::in_sync(&services).await;
    let internal_frontend =
        Frontend { address: [240, 96, 0, 1].into(), ..frontend(1, Protocol::Tcp) };
    world.fake.disturb(|actual| {
        let server = actual.virtual_servers[&frontend(1, Protocol::Tcp)].clone();
        actual.virtual_servers.insert(internal_frontend, server);
        for server in actual.virtual_servers.values_mut() {
            server.real_servers.values_mut().for_each(|found| found.connections = 3);
        }
    });
    let mut world = switch(world, Mode::Iptables, Pace::default(), &services).await;
    world.until("drains", |status, _| status.n_left_by_ipvs.is_some()).await;
    let left = world.fake.actual().virtual_servers;
    assert!(!left.contains_key(&internal_frontend));
    assert_eq!(left.len(), 2, "those for TCP drain: {:?}", left.keys());
}

/// A node that leaves IPVS mode, and is killed after this number of operations. True if that was
/// before the end of it.
async fn killed_after(n_operations: usize, settings: &Settings) -> bool {
    let services = cluster();
    let world = World::in_sync(&services).await;
    set_connections(&world, 3);
    let fake = world.stop().await;
    while fake.is_shared() {
        tokio::task::yield_now().await;
    }
    let (mut left, is_cut) = (n_operations, Arc::new(AtomicBool::new(false)));
    let cut = Arc::clone(&is_cut);
    fake.interfere(move |call, _| match call {
        KernelCall::Writing(_) if left == 0 => {
            cut.store(true, Ordering::Relaxed);
            FakeAnswer::Lost { carried_out: false }
        }
        KernelCall::Writing(_) => {
            left -= 1;
            FakeAnswer::Honest
        }
        _ => FakeAnswer::Honest,
    });
    let mut world = World::with(settings.clone(), fake, Pace::default());
    world.feed(&services).await;
    world.say_complete().await;
    let is_over = |status: &Status| status.n_left_by_ipvs == Some(1);
    let cut = Arc::clone(&is_cut);
    world.until("cut", |status, _| cut.load(Ordering::Relaxed) || is_over(status)).await;
    let is_alive = |world: &World| {
        let found = real_server(&world.fake.actual(), &frontend(1, Protocol::Tcp), 1);
        found.is_some_and(|found| found.connections == 3)
    };
    assert!(is_alive(&world), "after {n_operations} operations");
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    let mut world = switch_with(settings.clone(), world, Pace::default(), &services).await;
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    assert!(is_alive(&world) && masquerades_bound(&world), "after {n_operations} operations");
    if !settings.syn_copies.is_empty() {
        assert_in_order(&world.fake.take_log());
    }
    set_connections(&world, 0);
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
    let actual = world.fake.actual();
    assert!(actual.virtual_servers.is_empty() && actual.addresses.is_empty());
    assert!(!masquerades_bound(&world));
    // The order of Services within a chain is free.
    let in_order = |actual: Actual| {
        let mut chains: Vec<_> = actual.chains.into_iter().collect();
        chains.iter_mut().for_each(|(_, rules)| rules.sort_unstable());
        chains.sort_unstable();
        chains
    };
    let fresh = super::in_sync(&services).await.fake.actual();
    assert_eq!(in_order(actual), in_order(fresh), "after {n_operations} operations");
    is_cut.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn a_kill_after_any_operation_cuts_nothing_and_the_next_start_goes_on() {
    for settings in [settings_in(Mode::Iptables), with_copies()] {
        let mut n_operations = 0;
        while killed_after(n_operations, &settings).await {
            n_operations += 1;
        }
        // Routes, addresses, rules, chains, real servers and entries of sets.
        assert!(n_operations > 20, "{n_operations}");
    }
}

#[tokio::test(start_paused = true)]
async fn addresses_stay_bound_if_the_route_of_a_network_gets_no_source() {
    let services = cluster();
    let world = World::in_sync(&services).await;
    set_connections(&world, 3);
    let network = "10.100.0.0/16".parse().unwrap();
    world.fake.disturb(|actual| {
        actual.routes.insert(network);
    });
    let is_of_network = move |op: &Op| op.subject() == Subject::Route(network);
    world.fake.refuse(1, RefusalClass::Other, is_of_network);
    let world = switch(world, Mode::Iptables, Pace::default(), &services).await;
    assert_eq!(world.fake.actual().addresses.len(), 3);
    let world = switch(world, Mode::Iptables, Pace::default(), &services).await;
    let actual = world.fake.actual();
    assert_eq!((actual.addresses.len(), actual.routes.len()), (0, 4));
    assert!(
        world.fake.written_rules(Family::V4).unwrap().first_input().contains("-s 10.100.0.0/16")
    );
}
