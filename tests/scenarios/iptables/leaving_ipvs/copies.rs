//! Copies of packets, by which IPVS forgets the connections from ports that are used again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernel::RefusalClass;
use plan::kernel_objects::Frontend;
use plan::mode::Mode;
use plan::model::{Family, Protocol};
use plan::op::Op;
use plan::sets::{SetId, SetKind};
use plan::settings::Settings;
use reconcile::Pace;
use tokio::time::Instant;

use super::{cluster, set_connections, switch, switch_with};
use crate::world::{World, settings_in};

/// Settings of a host whose rules can show IPVS copies of packets.
pub(super) fn with_copies() -> Settings {
    Settings { syn_copies: Family::BOTH.to_vec(), ..settings_in(Mode::Iptables) }
}

/// True if the constant rules that were written last show IPVS copies of packets.
fn shows_copies(world: &World) -> bool {
    let rules = world.fake.written_rules(Family::V4).unwrap();
    rules.first_input().contains("-j TEE")
}

/// Requires that real servers have lost their weight before the constant rules were written last, and
/// that none was removed before that.
#[track_caller]
pub(super) fn assert_in_order(log: &[Op]) {
    let is_tcp = |frontend: &Frontend| frontend.protocol == Protocol::Tcp;
    let rules = log.iter().rposition(|op| matches!(op, Op::WriteRuleSet(_)));
    let rules = rules.unwrap_or_else(|| panic!("no rules: {log:?}"));
    let drained = log.iter().rposition(|op| matches!(op, Op::DrainRealServer(..)));
    assert!(drained.is_none_or(|drained| drained < rules), "{log:?}");
    let removed = log.iter().position(|op| match op {
        Op::RemoveRealServer(frontend, _) | Op::RemoveVirtualServer(frontend) => is_tcp(frontend),
        _ => false,
    });
    assert!(removed.is_none_or(|removed| rules < removed), "{log:?}");
}

/// A node that leaves IPVS mode by a host that can show IPVS copies, as [`switched`].
async fn switched_with_copies() -> World {
    let services = cluster();
    let world = World::in_sync(&services).await;
    set_connections(&world, 3);
    switch_with(with_copies(), world, Pace::default(), &services).await
}

#[tokio::test(start_paused = true)]
async fn ipvs_is_shown_copies_when_all_weights_are_0_and_nothing_is_removed_for_a_while() {
    let mut world = switched_with_copies().await;
    world.until("drains", |status, _| status.n_left_by_ipvs.is_some()).await;
    let shown = Instant::now();
    assert!(shows_copies(&world));
    let left: Vec<Protocol> = {
        let actual = world.fake.actual();
        let weights = actual.virtual_servers.values().flat_map(|it| it.real_servers.values());
        assert!(weights.clone().all(|found| found.weight == 0));
        assert_eq!(weights.count(), 3, "also those without connections");
        actual.virtual_servers.keys().map(|frontend| frontend.protocol).collect()
    };
    assert_eq!(left, [Protocol::Tcp, Protocol::Tcp], "datagrams go by the rules at once");
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    assert!((9..=11).contains(&shown.elapsed().as_secs()), "{:?}", shown.elapsed());
    assert_in_order(&world.fake.take_log());
    set_connections(&world, 0);
    world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
    assert!(!shows_copies(&world));
}

#[tokio::test(start_paused = true)]
async fn a_restart_takes_no_copies_away_and_begins_the_pause_anew() {
    let mut world = switched_with_copies().await;
    world.until("drains", |status, _| status.n_left_by_ipvs.is_some()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut world = switch_with(with_copies(), world, Pace::default(), &cluster()).await;
    world.until("drains", |status, _| status.n_left_by_ipvs.is_some()).await;
    let shown = Instant::now();
    assert!(shows_copies(&world));
    assert_eq!(world.fake.actual().virtual_servers.len(), 2);
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    assert!((9..=11).contains(&shown.elapsed().as_secs()), "{:?}", shown.elapsed());
    assert_in_order(&world.fake.take_log());
}

#[tokio::test(start_paused = true)]
async fn rules_that_are_refused_are_waited_for() {
    let services = cluster();
    let world = World::in_sync(&services).await;
    set_connections(&world, 3);
    let drains = AtomicBool::new(false);
    world.fake.refuse(3, RefusalClass::Exhausted, move |op| {
        drains.fetch_or(matches!(op, Op::DrainRealServer(..)), Ordering::Relaxed);
        matches!(op, Op::WriteRuleSet(_)) && drains.load(Ordering::Relaxed)
    });
    let mut world = switch_with(with_copies(), world, Pace::default(), &services).await;
    world.until("drains", |status, _| status.n_left_by_ipvs.is_some()).await;
    assert!(!shows_copies(&world));
    let begun = Instant::now();
    world.until("alone", |_, actual| actual.virtual_servers.len() == 1).await;
    assert!((50..=75).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert!(shows_copies(&world));
    assert_in_order(&world.fake.take_log());
}

#[tokio::test(start_paused = true)]
async fn node_ports_are_in_no_rule_without_their_set() {
    let services = cluster();
    for is_there in [true, false] {
        let world = World::in_sync(&services).await;
        set_connections(&world, 3);
        let set = SetId { kind: SetKind::NodePortTcp, family: Family::V4 };
        if !is_there {
            world.fake.disturb(|actual| drop(actual.sets.remove(&set)));
        }
        let mut world = switch_with(with_copies(), world, Pace::default(), &services).await;
        world.until("drains", |status, _| status.n_left_by_ipvs.is_some()).await;
        let input = world.fake.written_rules(Family::V4).unwrap().first_input();
        assert!(input.contains("-j TEE"), "{input}");
        assert_eq!(input.contains("KUBE-NODE-PORT-TCP"), is_there);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_to_ipvs_mode_shows_no_copies_before_a_weight_is_back() {
    let mut world = switched_with_copies().await;
    world.until("drains", |status, _| status.n_left_by_ipvs.is_some()).await;
    let world = switch(world, Mode::Ipvs, Pace::default(), &cluster()).await;
    let log = world.fake.take_log();
    let rules = log.iter().position(|op| matches!(op, Op::WriteRuleSet(Family::V4))).unwrap();
    let weight =
        log.iter().position(|op| matches!(op, Op::AddRealServer(..) | Op::ChangeRealServer(..)));
    assert!(rules < weight.unwrap(), "{log:?}");
    assert!(!shows_copies(&world));
}
