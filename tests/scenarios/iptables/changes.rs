//! Changes of Services, endpoints and the node while it runs.

use std::time::Duration;

use plan::chains::ChainId;
use plan::event::Event;
use plan::mode::Mode;
use plan::model::Protocol;
use plan::rule_set::Table;
use plan::settings::{NodePortAddresses, Settings};
use reconcile::Pace;
use tokio::time::Instant;

use super::{empty, in_sync, is_own, log, services, settle, start};
use crate::world::{NODE_ADDRESS, World, node_port_service, service, settings_in, slice, tcp};

#[tokio::test(start_paused = true)]
async fn an_endpoint_costs_its_own_chain_and_its_services() {
    let others: Vec<_> = (2..=40).map(|number| tcp(number, &[1, 2])).collect();
    let mut world = in_sync(&others).await;
    let (service, pods) = tcp(1, &[1]);
    world.feed(&[(service.clone(), pods)]).await;
    settle(&mut world).await;
    assert_eq!(log(&world), ["write SEP 2", "write SVC 1", "insert SERVICES"]);
    world.apply_slice(slice(&service, &[1, 2])).await;
    settle(&mut world).await;
    assert_eq!(log(&world), ["write SEP 2", "write SVC 2"]);
    world.apply_slice(slice(&service, &[2])).await;
    settle(&mut world).await;
    assert_eq!(log(&world), ["write SVC 1", "remove SEP"]);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_frontend_is_refused_before_it_is_led_nowhere_and_led_before_it_is_no_longer_refused() {
    let (service, pods) = tcp(1, &[1]);
    let mut world = in_sync(&[(service.clone(), pods)]).await;
    world.apply_slice(slice(&service, &[])).await;
    settle(&mut world).await;
    let expected = ["insert SERVICES", "delete SERVICES", "remove SVC", "remove SEP"];
    assert_eq!(log(&world), expected);
    world.apply_slice(slice(&service, &[1])).await;
    settle(&mut world).await;
    let expected = ["write SEP 2", "write SVC 1", "insert SERVICES", "delete SERVICES"];
    assert_eq!(log(&world), expected);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_removed_service() {
    let mut world = in_sync(&[]).await;
    let before = world.fake.actual();
    let node_port = node_port_service(1, 30_080);
    world.feed(&[(node_port.clone(), slice(&node_port, &[1, 2, 3]))]).await;
    settle(&mut world).await;
    world.send(Event::ServiceRemoved(node_port.name.clone())).await;
    world.send(Event::SliceRemoved(node_port.name)).await;
    settle(&mut world).await;
    // The last rules came with the first Service.
    let left = world.fake.actual();
    let tail: Vec<Box<str>> = services(&world);
    assert_eq!(tail.len(), 1, "{tail:?}");
    assert_eq!(left.chains.len(), before.chains.len());
}

#[tokio::test(start_paused = true)]
async fn changes_wait_for_the_minimum_period_after_the_last_write() {
    let period = Duration::from_secs(1);
    let pace = Pace { min_sync_period: period, ..Pace::default() };
    let mut world = World::with(settings_in(Mode::Iptables), empty(), pace);
    start(&mut world, &[tcp(1, &[1])]).await;
    world.reports.take();
    let started = Instant::now();
    world.feed(&[tcp(2, &[1])]).await;
    world.until("written", |_, actual| actual.chains.len() >= 10).await;
    assert!(started.elapsed() < period, "the last write was long ago");
    // One after the other, as they happen to a cluster in a rollout.
    for number in 3..8 {
        world.feed(&[tcp(number, &[1])]).await;
        world.taken().await;
    }
    let started = Instant::now();
    world.until("written", |_, actual| actual.chains.len() >= 20).await;
    assert!(started.elapsed() <= period, "{:?}", started.elapsed());
    let rounds = world.reports.take().into_iter().filter(|it| it.starts_with("end of changes"));
    assert_eq!(rounds.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_last_rules_follow_the_nodes_addresses() {
    let networks = vec!["192.0.2.0/24".parse().unwrap()];
    let node_port_addresses = NodePortAddresses::Networks(networks);
    let settings = Settings { node_port_addresses, ..settings_in(Mode::Iptables) };
    let mut world = World::with(settings, empty(), Pace::default());
    let node_port = node_port_service(1, 30_080);
    start(&mut world, &[(node_port.clone(), slice(&node_port, &[1]))]).await;
    let [.., last] = &*services(&world) else { panic!("no rules") };
    assert!(last.starts_with("-d 192.0.2.11/32 "), "{last}");
    world.fake.disturb(|actual| {
        actual.local_addresses.remove(&NODE_ADDRESS.into());
        actual.local_addresses.insert([192, 0, 2, 77].into());
    });
    world.addresses.report(|happened| happened.others = true);
    settle(&mut world).await;
    let [.., last] = &*services(&world) else { panic!("no rules") };
    assert!(last.starts_with("-d 192.0.2.77/32 "), "{last}");
    world.assert_converged(&[]);
    assert_eq!(world.now().drift_repaired, 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_or_written_while_nothing_changes() {
    let mut world = in_sync(&[
        tcp(1, &[1]),
        (service(2, Protocol::Sctp), slice(&service(2, Protocol::Sctp), &[1])),
    ])
    .await;
    let looks = world.fake.looks();
    for _ in 0..200 {
        world.compared().await;
    }
    assert_eq!(log(&world), [""; 0]);
    assert_eq!(world.fake.looks().chains, looks.chains);
    assert_eq!(world.fake.looks().rule_sets, looks.rule_sets);
    assert_eq!((world.fake.looks().sets, world.fake.looks().frontends), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_rules_of_a_changed_table_are_counted_and_those_that_were_written() {
    let (service, endpoints) = tcp(1, &[1, 2]);
    let mut world = in_sync(&[(service.clone(), endpoints)]).await;
    let counted = |world: &World| {
        let reports = world.reports.take().into_iter();
        reports.filter(|it| it.starts_with("rules")).collect::<Vec<_>>()
    };
    counted(&world);
    world.apply_slice(slice(&service, &[1, 2, 3])).await;
    world
        .until("written", |_, actual| actual.chains.keys().filter(|it| is_own(it)).count() == 4)
        .await;
    let of_nat = |world: &World| {
        let of_nat = |(chain, rules): (&ChainId, &Vec<Box<str>>)| {
            if chain.table == Table::Nat { rules.len() } else { 0 }
        };
        world.fake.actual().chains.iter().map(of_nat).sum::<usize>()
    };
    // The constant ones stand beside: KUBE-POSTROUTING has three, KUBE-MARK-MASQ one. The chain of
    // the Service has a rule for each endpoint, that of the new endpoint two.
    let expected = format!("rules IPv4 nat {}, written 5", of_nat(&world) + 4);
    assert_eq!(counted(&world), [expected]);
}
