//! Random changes with random faults in between: what is left is right.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernel::RefusalClass;
use kernel::fake::{Fake, FakeAnswer, KernelCall};
use plan::actual::Actual;
use plan::event::Event;
use plan::mode::Mode;
use plan::model::{EndpointSlice, ObjectName, Protocol, Service};
use proptest::collection::vec;
use proptest::prelude::*;
use reconcile::Pace;

use super::life::foreign;
use super::{is_soak, with_paused_clock};
use crate::world::{NODE_ADDRESS, World, node_port_service, service, settings_in, slice};

#[derive(Debug, Clone)]
enum Step {
    /// This Service has these endpoints now.
    Applied(u16, Vec<u8>),
    Removed(u16),
    /// Pods have so many connections.
    Connections(u64),
    Restarted,
    /// Time passes until all has been compared.
    Pause,
}

/// Fate of a request, by its number: as in a storm, many are spared and many in a row not.
#[derive(Debug, Clone, Copy)]
enum Weather {
    Calm,
    Refused(RefusalClass),
    Lost(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..=8_u16, vec(1..=6_u8, 0..4)).prop_map(|(number, mut pods)| {
            pods.sort_unstable();
            pods.dedup();
            Step::Applied(number, pods)
        }),
        2 => (1..=8_u16).prop_map(Step::Removed),
        1 => (0..3_u64).prop_map(Step::Connections),
        1 => Just(Step::Restarted),
        2 => Just(Step::Pause),
    ];
    vec(step, 1..40)
}

fn weather() -> impl Strategy<Value = Vec<(Weather, usize)>> {
    let classes = [
        RefusalClass::Conflict,
        RefusalClass::Exhausted,
        RefusalClass::NotPermitted,
        RefusalClass::NotSupported,
        RefusalClass::Other,
    ];
    let weather = prop_oneof![
        2 => Just(Weather::Calm),
        2 => prop::sample::select(classes.to_vec()).prop_map(Weather::Refused),
        1 => any::<bool>().prop_map(Weather::Lost),
    ];
    vec((weather, 1..12_usize), 1..30)
}

/// A Service by its number: TCP, UDP or a node port.
fn numbered(number: u16) -> Service {
    match number {
        1..=3 => service(number, Protocol::Tcp),
        4..=5 => service(number, Protocol::Udp),
        _ => node_port_service(number, 30_000 + number),
    }
}

fn stormy(fake: &Fake, weather: Vec<(Weather, usize)>) -> Arc<AtomicBool> {
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let mut weather = weather.into_iter().flat_map(|(it, long)| std::iter::repeat_n(it, long));
    fake.interfere(move |request, _| {
        if over.load(Ordering::Relaxed) {
            return FakeAnswer::Honest;
        }
        match (weather.next().unwrap_or(Weather::Calm), request) {
            (Weather::Calm, _) => FakeAnswer::Honest,
            (Weather::Refused(class), KernelCall::Writing(_) | KernelCall::Flows(_)) => {
                FakeAnswer::refused(class)
            }
            (Weather::Refused(_), KernelCall::Read(..)) => FakeAnswer::Lost { carried_out: false },
            (Weather::Lost(carried_out), _) => FakeAnswer::Lost { carried_out },
        }
    });
    is_over
}

async fn restart(
    world: World,
    mode: Mode,
    cluster: &BTreeMap<ObjectName, (Service, EndpointSlice)>,
) -> World {
    let fake = world.stop().await;
    while fake.is_shared() {
        tokio::task::yield_now().await;
    }
    let mut world = World::with(settings_in(mode), fake, Pace::default());
    let cluster: Vec<_> = cluster.values().cloned().collect();
    world.feed(&cluster).await;
    world.say_complete().await;
    world
}

fn set_connections(world: &World, connections: u64) {
    world.fake.disturb(|actual| {
        let ours = actual.virtual_servers.iter_mut().filter(|(at, _)| **at != foreign().0);
        for real in ours.flat_map(|(_, server)| server.real_servers.values_mut()) {
            real.connections = connections;
        }
    });
}

/// Waits until nothing is pending, nothing drains, and everything has been compared.
async fn settle(world: &mut World) {
    world.taken().await;
    for _ in 0..3 {
        world
            .until("settled", |it, _| it.in_sync_once && it.pending == 0 && it.flows_pending == 0)
            .await;
        world.compared().await;
    }
}

async fn ride_out(mode: Mode, steps: Vec<Step>, weather: Vec<(Weather, usize)>) {
    let local_addresses = [IpAddr::from(NODE_ADDRESS)].into_iter().collect();
    let virtual_servers = [foreign()].into_iter().collect();
    let fake = Fake::new(Actual { local_addresses, virtual_servers, ..Actual::default() });
    let is_over = stormy(&fake, weather);
    let mut cluster = BTreeMap::new();
    let mut world = World::with(settings_in(mode), fake, Pace::default());
    world.say_complete().await;
    for step in steps {
        match step {
            Step::Applied(number, pods) => {
                let service = numbered(number);
                let slice = slice(&service, &pods);
                world.send(Event::ServiceApplied(Box::new(service.clone()))).await;
                world.send(Event::SliceApplied(Box::new(slice.clone()))).await;
                cluster.insert(service.name.clone(), (service, slice));
            }
            Step::Removed(number) => {
                let name = numbered(number).name;
                cluster.remove(&name);
                world.send(Event::SliceRemoved(name.clone())).await;
                world.send(Event::ServiceRemoved(name)).await;
            }
            Step::Connections(connections) => set_connections(&world, connections),
            Step::Restarted => world = restart(world, mode, &cluster).await,
            Step::Pause => world.compared().await,
        }
    }
    is_over.store(true, Ordering::Relaxed);
    set_connections(&world, 0);
    settle(&mut world).await;
    world.assert_converged(&[foreign().0]);
    let actual = world.fake.actual();
    assert_eq!(actual.virtual_servers.get(&foreign().0), Some(&foreign().1));
    world.fake.take_log();
    let started = tokio::time::Instant::now();
    while started.elapsed() < Duration::from_secs(70) {
        world.compared().await;
    }
    assert_eq!(world.fake.take_log(), [], "it goes on writing");
    world.stop().await;
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if is_soak() { 20_000 } else { 24 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn after_a_storm_of_faults_everything_is_as_desired(
        steps in steps(),
        weather in weather(),
    ) {
        with_paused_clock(ride_out(Mode::Ipvs, steps, weather));
    }

    #[test]
    fn after_a_storm_of_faults_everything_is_as_desired_in_iptables_mode(
        steps in steps(),
        weather in weather(),
    ) {
        with_paused_clock(ride_out(Mode::Iptables, steps, weather));
    }
}
