//! Endpoints that an operator drains by hand.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use kernel::fake::Fake;
use plan::actual::Actual;
use plan::event::Event;
use plan::hand_drain::HandDrain;
use plan::mode::Mode;
use plan::model::Protocol;
use reconcile::hand_drains::MOST_HAND_DRAINS;
use reconcile::{Input, Pace};
use tokio::time::Instant;

use crate::world::{World, frontend, real_server, settings_in, slice, tcp, words};

const TEN_MINUTES: Duration = Duration::from_secs(600);

fn pod(last: u8) -> HandDrain {
    let address = IpAddr::from([10, 244, 0, last]);
    HandDrain { address, port: NonZeroU16::new(8080), service: None, is_forced: true }
}

async fn say(world: &World, input: Input) {
    world.sender().send(input).await.unwrap();
    world.taken().await;
}

async fn drain(world: &mut World, drain: &HandDrain) {
    say(world, Input::Drain(Box::new(drain.clone()), TEN_MINUTES)).await;
    world.heard(Event::HandDrainBegan(Box::new(drain.clone())));
}

fn has_weight(actual: &Actual, pod: u8, weight: u32) -> bool {
    let found = real_server(actual, &frontend(1, Protocol::Tcp), pod);
    found.is_some_and(|it| it.weight == weight)
}

/// Those of the reports that are about drains by hand.
fn reports(world: &World) -> Vec<String> {
    let all = world.reports.take().into_iter();
    all.filter(|report| report.contains("drained manually")).collect()
}

#[tokio::test(start_paused = true)]
async fn it_gets_weight_0_and_its_weight_back_when_its_time_is_up() {
    let mut world = World::in_sync(&[tcp(1, &[1, 2])]).await;
    drain(&mut world, &pod(1)).await;
    let began = Instant::now();
    world.until("drained", |_, actual| has_weight(actual, 1, 0)).await;
    world.compared().await;
    world.assert_converged(&[]);
    let change = |weight| {
        format!("change real server of TCP 10.96.0.1:80 to 10.244.0.1:8080 weight {weight}")
    };
    assert_eq!(words(&world.fake.take_log()), [change(0)]);
    world.until("back", |_, actual| has_weight(actual, 1, 1)).await;
    let took = began.elapsed();
    assert!(TEN_MINUTES <= took && took < TEN_MINUTES + Duration::from_secs(2), "{took:?}");
    world.heard(Event::HandDrainEnded(Box::new(pod(1))));
    world.compared().await;
    world.assert_converged(&[]);
    assert_eq!(words(&world.fake.take_log()), [change(1)]);
    assert_eq!(world.now().drift_repaired, 0);
    assert_eq!(
        reports(&world),
        [
            "10.244.0.1:8080 is drained manually: it gets no new connections from this node for \
             600 s (1 in force)",
            "10.244.0.1:8080 is no longer drained manually: its time is over (0 in force)",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_another_program_makes_of_its_weight_is_repaired() {
    let mut world = World::in_sync(&[tcp(1, &[1, 2])]).await;
    drain(&mut world, &pod(1)).await;
    world.until("drained", |_, actual| has_weight(actual, 1, 0)).await;
    world.fake.disturb(|actual| {
        let server = actual.virtual_servers.get_mut(&frontend(1, Protocol::Tcp)).unwrap();
        let socket = (IpAddr::from([10, 244, 0, 1]), 8080).into();
        server.real_servers.get_mut(&socket).unwrap().weight = 1;
    });
    world
        .until("repaired", |status, actual| status.drift_repaired == 1 && has_weight(actual, 1, 0))
        .await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn an_operator_ends_it_and_another_end_takes_the_place_of_the_first() {
    let mut world = World::in_sync(&[tcp(1, &[1, 2])]).await;
    drain(&mut world, &pod(1)).await;
    world.until("drained", |_, actual| has_weight(actual, 1, 0)).await;
    world.fake.take_log();
    say(&world, Input::Drain(Box::new(pod(1)), 2 * TEN_MINUTES)).await;
    let again = Instant::now();
    while again.elapsed() < TEN_MINUTES + Duration::from_secs(60) {
        world.compared().await;
    }
    assert!(has_weight(&world.fake.actual(), 1, 0));
    assert_eq!(words(&world.fake.take_log()), [""; 0]);
    // Ending another one changes nothing.
    say(&world, Input::Undrain(Box::new(pod(2)))).await;
    say(&world, Input::Undrain(Box::new(pod(1)))).await;
    world.until("back", |_, actual| has_weight(actual, 1, 1)).await;
    world.heard(Event::HandDrainEnded(Box::new(pod(1))));
    world.compared().await;
    world.assert_converged(&[]);
    assert!(again.elapsed() < 2 * TEN_MINUTES);
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_goes_meanwhile_drains_as_any_other() {
    let (service, endpoints) = tcp(1, &[1, 2]);
    let mut world = World::in_sync(&[(service.clone(), endpoints)]).await;
    drain(&mut world, &pod(1)).await;
    world.until("drained", |_, actual| has_weight(actual, 1, 0)).await;
    world.apply_slice(slice(&service, &[2])).await;
    world
        .until("gone", |_, actual| real_server(actual, &frontend(1, Protocol::Tcp), 1).is_none())
        .await;
    // It comes back within its time, and is drained still.
    world.apply_slice(slice(&service, &[1, 2])).await;
    world.until("drained again", |_, actual| has_weight(actual, 1, 0)).await;
    world.compared().await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn one_before_the_first_list_holds_from_the_takeover_on() {
    let mut world = World::new();
    drain(&mut world, &pod(1)).await;
    world.feed(&[tcp(1, &[1, 2])]).await;
    world.complete().await;
    assert!(has_weight(&world.fake.actual(), 1, 0));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_forgets_it() {
    let services = [tcp(1, &[1, 2])];
    let mut world = World::in_sync(&services).await;
    drain(&mut world, &pod(1)).await;
    world.until("drained", |_, actual| has_weight(actual, 1, 0)).await;
    let fake = world.stop().await;
    let mut world = World::on(fake, Pace::default());
    world.feed(&services).await;
    world.complete().await;
    assert!(has_weight(&world.fake.actual(), 1, 1));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn rules_of_mode_iptables_leave_it_out_and_take_it_in_again() {
    let settings = settings_in(Mode::Iptables);
    let fake = Fake::new(Actual::default());
    let mut world = World::with(settings, fake, Pace::default());
    world.feed(&[tcp(1, &[1, 2])]).await;
    world.complete().await;
    let leads_to_pod = |actual: &Actual| {
        let rules = actual.chains.values().flatten();
        rules.filter(|rule| rule.contains("--to-destination 10.244.0.1:8080")).count() > 0
    };
    assert!(leads_to_pod(&world.fake.actual()));
    drain(&mut world, &pod(1)).await;
    world.until("left out", |_, actual| !leads_to_pod(actual)).await;
    world.compared().await;
    world.assert_converged(&[]);
    world.until("back", |_, actual| leads_to_pod(actual)).await;
    world.heard(Event::HandDrainEnded(Box::new(pod(1))));
    world.compared().await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn there_is_a_limit() {
    let mut world = World::in_sync(&[tcp(1, &[1, 2])]).await;
    world.reports.take();
    for number in 0..=MOST_HAND_DRAINS {
        let [_, _, high, low] = u32::try_from(number).unwrap().to_be_bytes();
        let address = IpAddr::from([10, 1, high, low]);
        let other = HandDrain { address, port: None, service: None, is_forced: true };
        say(&world, Input::Drain(Box::new(other), TEN_MINUTES)).await;
    }
    world.compared().await;
    assert_eq!(reports(&world).len(), MOST_HAND_DRAINS);
}

/// Ports that a drain without force would leave without an endpoint, as the console asks before it drains.
async fn left_without(world: &World, pod: &HandDrain) -> usize {
    let of = pod.clone();
    let effects = world.inquiries.ask(move |view| {
        let services: Vec<_> = view.planner.with_endpoints_of(&of).into_iter().collect();
        view.planner.effects_of(&of, &services)
    });
    effects.await.unwrap().iter().map(|effect| effect.left_without.len()).sum()
}

#[tokio::test(start_paused = true)]
async fn drains_without_force_in_sequence_leave_a_service_one_endpoint() {
    let mut world = World::in_sync(&[tcp(1, &[1, 2])]).await;
    let gentle = |number| HandDrain { is_forced: false, ..pod(number) };
    assert_eq!(left_without(&world, &gentle(1)).await, 0);
    drain(&mut world, &gentle(1)).await;
    world.until("drained", |_, actual| has_weight(actual, 1, 0)).await;
    assert_eq!(left_without(&world, &gentle(2)).await, 1);
    assert_eq!(left_without(&world, &gentle(1)).await, 0, "it may last longer");
    say(&world, Input::Undrain(Box::new(gentle(1)))).await;
    world.heard(Event::HandDrainEnded(Box::new(gentle(1))));
    assert_eq!(left_without(&world, &gentle(2)).await, 0);
}
