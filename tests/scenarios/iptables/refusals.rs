//! Writes of chains that the kernel refuses, or whose answers are lost.

use std::time::Duration;

use kernel::RefusalClass;
use kernel::fake::{FakeAnswer, KernelCall};
use plan::actual::Actual;
use plan::chains::{ChainId, ChainOp, SharedChain};
use plan::event::Event;
use plan::model::{Family, Protocol, Service};
use plan::op::Op;
use plan::rule_set::Table;
use tokio::time::Instant;

use super::{SERVICES, empty, in_sync, log, on, services, settle};
use crate::world::{World, service, slice, tcp};

/// A Service whose rules need the match `recent`.
fn with_affinity(number: u16) -> Service {
    Service { affinity: Some(600), ..service(number, Protocol::Tcp) }
}

/// From now on the kernel lacks the match `recent`.
fn lack_recent(world: &World) {
    world.fake.interfere(|request, _| match request {
        KernelCall::Writing(Op::Chain(ChainOp::Write(_, rules)))
            if rules.iter().any(|rule| rule.contains("-m recent")) =>
        {
            FakeAnswer::refused(RefusalClass::NotSupported)
        }
        _ => FakeAnswer::Honest,
    });
}

fn leads_to(world: &World, number: u8) -> bool {
    let address = format!("-d 10.96.0.{number}/32 ");
    services(world).iter().any(|rule| rule.starts_with(&address))
}

#[tokio::test(start_paused = true)]
async fn a_refused_chain_harms_no_other_service() {
    let mut world = in_sync(&[]).await;
    lack_recent(&world);
    let looks = world.fake.looks();
    let affine = with_affinity(1);
    world.feed(&[tcp(2, &[1]), (affine.clone(), slice(&affine, &[1, 2])), tcp(3, &[1])]).await;
    world.until("written", |status, _| status.pending > 0).await;
    assert!(leads_to(&world, 2) && leads_to(&world, 3) && !leads_to(&world, 1));
    // Its two endpoints, its own chain, and the rule that leads there.
    assert_eq!(world.now().pending, 4);
    log(&world);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(600) {
        world.compared().await;
    }
    let tried = log(&world);
    assert!(tried.len() <= 4 * 16, "with growing pauses: {}", tried.len());
    assert_eq!(world.fake.looks().chains, looks.chains, "and nothing is read for it");
    // Meanwhile the others change.
    world.feed(&[tcp(2, &[1, 2])]).await;
    world.until("written", |_, actual| actual.chains.values().flatten().count() >= 12).await;
    assert_eq!(world.now().pending, 4);

    world.fake.interfere(|_, _| FakeAnswer::Honest);
    let started = Instant::now();
    settle(&mut world).await;
    assert!(leads_to(&world, 1));
    assert!(started.elapsed() <= Duration::from_secs(300), "{:?}", started.elapsed());
    assert_eq!(world.now().drift_repaired, 0);
    assert_eq!(world.fake.looks().chains, looks.chains);
    world.assert_converged(&[]);
}

/// iptables-legacy names no change that is refused, and gives up looking for them.
#[tokio::test(start_paused = true)]
async fn with_x_tables_many_refused_chains_keep_no_other_service_waiting() {
    let fake = empty();
    fake.keep_x_tables();
    let mut world = on(fake);
    lack_recent(&world);
    let is_refused = |number: u16| number.is_multiple_of(3);
    let cluster: Vec<_> = (1..=90)
        .map(|number| match is_refused(number) {
            true => (with_affinity(number), slice(&with_affinity(number), &[1])),
            false => tcp(number, &[1]),
        })
        .collect();
    // All of them are in one batch.
    world.feed(&cluster).await;
    world.say_complete().await;
    world.until("some are refused", |status, _| status.pending > 90).await;
    let started = Instant::now();
    // The endpoint, the chain and the rule that leads there, of each Service that is refused.
    world.until("only these", |status, _| status.pending == 90).await;
    assert!(started.elapsed() < Duration::from_secs(180), "{:?}", started.elapsed());
    for number in 1..=90 {
        assert_eq!(leads_to(&world, u8::try_from(number).unwrap()), !is_refused(number));
    }
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    settle(&mut world).await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_cannot_change_stays_as_it_was_and_goes_on_serving() {
    let mut world = in_sync(&[tcp(1, &[1, 2]), tcp(2, &[1])]).await;
    let before = world.fake.actual();
    lack_recent(&world);
    let affine = with_affinity(1);
    world.feed(&[(affine.clone(), slice(&affine, &[1, 2]))]).await;
    world.until("refused", |status, _| status.pending == 3).await;
    assert_eq!(world.fake.actual(), before);
    // Another program flushes what leads there: it comes back.
    world.fake.disturb(|actual| actual.chains.get_mut(&SERVICES).unwrap().clear());
    // What is found is reported before it is repaired, by another thread.
    let leads_to = |actual: &Actual, number: u8| {
        let address = format!("-d 10.96.0.{number}/32 ");
        actual.chains[&SERVICES].iter().any(|rule| rule.starts_with(&address))
    };
    world
        .until("repaired", |status, actual| {
            status.drift_repaired > 0 && leads_to(actual, 1) && leads_to(actual, 2)
        })
        .await;
    // It is never written.
    let plain = service(1, Protocol::Tcp);
    world.feed(&[(plain.clone(), slice(&plain, &[1, 2]))]).await;
    settle(&mut world).await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_shared_chain_is_written_around_a_chain_that_is_refused() {
    let mut world = in_sync(&[tcp(2, &[1])]).await;
    lack_recent(&world);
    let affine = with_affinity(1);
    world.feed(&[(affine.clone(), slice(&affine, &[1]))]).await;
    world.until("refused", |status, _| status.pending == 3).await;
    // With a rule behind its last one it has to be written as a whole.
    world.fake.disturb(|actual| {
        actual.chains.get_mut(&SERVICES).unwrap().push("-j ACCEPT".into());
    });
    let is_last = |rules: &[Box<str>]| rules.last().is_some_and(|it| it.ends_with("-NODEPORTS"));
    world.until("repaired", |_, actual| is_last(&actual.chains[&SERVICES])).await;
    assert!(leads_to(&world, 2) && !leads_to(&world, 1));
    assert_eq!(world.now().pending, 3);
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    settle(&mut world).await;
    assert!(leads_to(&world, 1));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn after_everything_was_flushed_all_but_the_refused_comes_back() {
    let affine = with_affinity(1);
    let mut world = in_sync(&[(affine.clone(), slice(&affine, &[1])), tcp(2, &[1])]).await;
    lack_recent(&world);
    world.fake.disturb(|actual| {
        actual.chains.clear();
        actual.rule_sets.clear();
    });
    world.until("written", |status, actual| status.pending > 0 && !actual.chains.is_empty()).await;
    world.compared().await;
    assert!(leads_to(&world, 2) && !leads_to(&world, 1));
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    settle(&mut world).await;
    assert!(leads_to(&world, 1));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_goes_while_its_chains_are_refused_leaves_nothing() {
    let mut world = in_sync(&[tcp(2, &[1])]).await;
    let before = world.fake.actual();
    lack_recent(&world);
    let affine = with_affinity(1);
    world.feed(&[(affine.clone(), slice(&affine, &[1]))]).await;
    world.until("refused", |status, _| status.pending == 3).await;
    world.send(Event::ServiceRemoved(affine.name.clone())).await;
    world.send(Event::SliceRemoved(affine.name)).await;
    settle(&mut world).await;
    assert_eq!(world.fake.actual(), before);
    assert_eq!(world.now().drift_repaired, 0);
}

#[tokio::test(start_paused = true)]
async fn each_operation_is_retried_whatever_the_refusal() {
    let classes = [
        RefusalClass::Conflict,
        RefusalClass::Exhausted,
        RefusalClass::NotPermitted,
        RefusalClass::NotSupported,
        RefusalClass::Other,
    ];
    for class in classes {
        let (service, pods) = tcp(1, &[1, 2]);
        let mut world = in_sync(&[(service.clone(), pods), tcp(2, &[1])]).await;
        world.fake.refuse(4, class, |op| matches!(op, Op::Chain(_)));
        world.apply_slice(slice(&service, &[2, 3])).await;
        settle(&mut world).await;
        world.assert_converged(&[]);
        // A refused deletion of a rule that is desired again by then.
        let filter = ChainId::shared(Family::V4, Table::Filter, SharedChain::Services);
        let deletes =
            move |op: &Op| matches!(op, Op::Chain(ChainOp::Delete(chain, _)) if *chain == filter);
        world.apply_slice(slice(&service, &[])).await;
        settle(&mut world).await;
        world.fake.refuse(1, class, deletes);
        world.apply_slice(slice(&service, &[1])).await;
        world.taken().await;
        world.apply_slice(slice(&service, &[])).await;
        settle(&mut world).await;
        world.assert_converged(&[]);
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_lost_answers_the_familys_chains_are_compared_and_not_once_for_each() {
    let (service, pods) = tcp(1, &[1]);
    let mut world = in_sync(&[(service.clone(), pods), tcp(2, &[1])]).await;
    let looks = world.fake.looks();
    world.fake.lose_answers(41, |op| matches!(op, Op::Chain(_)));
    let pods: Vec<u8> = (1..=40).collect();
    world.apply_slice(slice(&service, &pods)).await;
    settle(&mut world).await;
    let n_read = world.fake.looks().chains - looks.chains;
    assert!((1..=3).contains(&n_read), "{n_read}");
    world.assert_converged(&[]);
    assert_eq!(world.now().drift_repaired, 0);
}

#[tokio::test(start_paused = true)]
async fn a_whole_write_of_a_shared_chain_settles_its_rules() {
    let mut world = in_sync(&[tcp(1, &[1])]).await;
    // A rule that is refused, and then comes with the rest of its chain.
    world.fake.refuse(1, RefusalClass::Other, |op| matches!(op, Op::Chain(ChainOp::Insert(..))));
    world.feed(&[tcp(2, &[1])]).await;
    world.until("refused", |status, _| status.pending == 1).await;
    world.fake.disturb(|actual| {
        actual.chains.get_mut(&SERVICES).unwrap().push("-j ACCEPT".into());
    });
    settle(&mut world).await;
    let rules = services(&world);
    assert_eq!(rules.len(), 3, "{rules:?}");
    world.assert_converged(&[]);
}
