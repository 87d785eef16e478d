//! Changes by other programs are found by the next drift check, and put back.

use std::time::Duration;

use kernel::KernelRead;
use kernel::fake::{FakeAnswer, KernelCall};
use plan::actual::Actual;
use plan::chains::{ChainId, SharedChain};
use plan::model::Family;
use plan::op::PartKind;
use plan::rule_set::Table;
use reconcile::Status;
use tokio::time::Instant;

use super::{SERVICES, in_any_order, in_sync, is_own, log, settle, start};
use crate::world::{World, tcp, udp};

/// Does damage, and asserts that the next drift checks repair it with these operations.
async fn repaired(damage: impl FnOnce(&mut Actual), operations: &[&str]) {
    let mut world = in_sync(&[tcp(1, &[1, 2]), tcp(2, &[]), udp(3, &[1])]).await;
    let before = world.fake.actual();
    world.fake.disturb(damage);
    assert_ne!(world.fake.actual(), before);
    let (started, looks) = (Instant::now(), world.fake.looks());
    world.until("repaired", |status, _| status.drift_repaired == operations.len() as u64).await;
    assert!(started.elapsed() <= Duration::from_secs(2), "{:?}", started.elapsed());
    settle(&mut world).await;
    assert_eq!(log(&world), operations);
    assert_eq!(in_any_order(&world.fake.actual()), in_any_order(&before));
    assert_eq!(world.now().drift_repaired, operations.len() as u64);
    assert_eq!(world.fake.looks().chains - looks.chains, 1, "each family is read once");
    world.assert_converged(&[]);
}

fn first_own(actual: &mut Actual) -> &mut Vec<Box<str>> {
    let first = actual.chains.keys().filter(|id| is_own(id)).min().copied().unwrap();
    actual.chains.get_mut(&first).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_flushed_chain() {
    repaired(|actual| first_own(actual).clear(), &["write SVC 1"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_rule_of_another_program_in_a_chain() {
    let add = |actual: &mut Actual| first_own(actual).push("-j ACCEPT".into());
    repaired(add, &["write SVC 1"]).await;
}

#[tokio::test(start_paused = true)]
async fn rules_of_another_program_in_a_shared_chain() {
    let add = |actual: &mut Actual| {
        let rules = actual.chains.get_mut(&SERVICES).unwrap();
        rules.insert(0, "-j ACCEPT".into());
        rules.insert(2, "-d 10.96.7.7/32 -j RETURN".into());
    };
    repaired(add, &["delete SERVICES", "delete SERVICES"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_rule_and_one_that_is_there_twice() {
    let change = |actual: &mut Actual| {
        let rules = actual.chains.get_mut(&SERVICES).unwrap();
        rules.remove(0);
        let twice = rules[0].clone();
        rules.insert(0, twice);
    };
    repaired(change, &["insert SERVICES", "delete SERVICES"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_rule_behind_the_last_one() {
    let add = |actual: &mut Actual| {
        actual.chains.get_mut(&SERVICES).unwrap().push("-j ACCEPT".into());
    };
    repaired(add, &["write SERVICES 3"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_refusal() {
    let filter = ChainId::shared(Family::V4, Table::Filter, SharedChain::Services);
    let flush = move |actual: &mut Actual| actual.chains.get_mut(&filter).unwrap().clear();
    repaired(flush, &["insert SERVICES"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_jump_that_is_gone() {
    let remove = |actual: &mut Actual| {
        actual.rule_sets.remove(&Family::V4);
    };
    repaired(remove, &["write IPv4 rules"]).await;
}

#[tokio::test(start_paused = true)]
async fn everything_flushed_and_removed() {
    let mut world = in_sync(&[tcp(1, &[1, 2]), tcp(2, &[]), udp(3, &[1])]).await;
    let before = world.fake.actual();
    world.fake.disturb(|actual| {
        actual.chains.clear();
        actual.rule_sets.clear();
    });
    settle(&mut world).await;
    assert_eq!(in_any_order(&world.fake.actual()), in_any_order(&before));
    assert_eq!(log(&world)[0], "write IPv4 rules");
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn what_another_program_does_again_and_again_is_repaired_each_time() {
    let mut world = in_sync(&[tcp(1, &[1, 2])]).await;
    for _ in 0..20 {
        let repaired = world.now().drift_repaired;
        world.fake.disturb(|actual| first_own(actual).clear());
        let started = Instant::now();
        world.until("repaired", |status: &Status, _| status.drift_repaired > repaired).await;
        assert!(started.elapsed() <= Duration::from_secs(2), "{:?}", started.elapsed());
        // It is reported before it is written.
        world.compared().await;
    }
    settle(&mut world).await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn chains_that_cannot_be_read_are_read_later() {
    let mut world: World = in_sync(&[tcp(1, &[1, 2])]).await;
    world.fake.disturb(|actual| first_own(actual).clear());
    world.until("checked", |_, _| true).await;
    world.fake.fail_readings(4);
    settle(&mut world).await;
    world.assert_converged(&[]);
    start(&mut world, &[]).await;
    assert_eq!(world.now().pending, 0);
}

#[tokio::test(start_paused = true)]
async fn chains_that_were_changed_and_cannot_be_read_are_read_again() {
    let mut world = in_sync(&[tcp(1, &[1, 2])]).await;
    let before = world.fake.actual();
    let mut n_failing = 3;
    world.fake.interfere(move |request, _| match request {
        KernelCall::Read(KernelRead::Part(PartKind::Chains), _) if n_failing > 0 => {
            n_failing -= 1;
            FakeAnswer::Lost { carried_out: false }
        }
        _ => FakeAnswer::Honest,
    });
    world.fake.disturb(|actual| drop(actual.chains.remove(&SERVICES)));
    world.until("tried", |status, _| status.failed_readings == 3).await;
    world.compared().await;
    world.compared().await;
    assert_eq!(world.fake.actual().chains, before.chains);
    world.assert_converged(&[]);
}
