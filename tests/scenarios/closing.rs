//! A frontend at a local address is served, or refused.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};

use kernel::fake::{Fake, FakeAnswer, KernelCall};
use kernel::{KernelRead, RefusalClass};
use plan::actual::Actual;
use plan::event::Event;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Protocol, Service, ServicePort};
use plan::op::{Op, PartKind};
use plan::sets::{SetId, SetKind};
use plan::settings::{InternalFrontendNetworks, Settings};
use reconcile::Pace;

use crate::world::{NODE_ADDRESS, World, frontend, service, settings, slice, tcp};

/// Returns the operation in words if it lets clients past the access filter to a frontend that has no
/// virtual server: to what listens there on the node.
pub(crate) fn opens(op: &Op, actual: &Actual) -> Option<String> {
    let is_local = |it: &Frontend| is_local(actual, it.address);
    let is_served = |it: &Frontend| actual.virtual_servers.contains_key(it);
    let is_open = match op {
        Op::BindAddress(address) => admitted(actual)
            .any(|it| it.address == *address && !is_served(&it) && !is_closed(actual, &it)),
        Op::AddEntry(set, Entry::AddressPort(it)) if set.kind.admits() => {
            is_local(it) && !is_served(it) && !is_closed(actual, it)
        }
        Op::RemoveEntry(SetId { kind: SetKind::NoEndpoints, .. }, Entry::AddressPort(it)) => {
            is_local(it) && !is_served(it) && admitted(actual).any(|admitted| admitted == *it)
        }
        Op::RemoveVirtualServer(it) => {
            let is_admitted = admitted(actual).any(|admitted| admitted == *it);
            is_served(it) && is_local(it) && is_admitted && !is_closed(actual, it)
        }
        _ => false,
    };
    is_open.then(|| format!("opens the node: {op}"))
}

/// Leaves out the entries of `KUBE-NO-ENDPOINTS` that were added and then removed: with them frontends
/// are closed for as long as their virtual servers are made or removed.
pub(crate) fn without_closings(mut log: Vec<Op>) -> Vec<Op> {
    while let Some((added, removed)) = closing(&log) {
        log.remove(removed);
        log.remove(added);
    }
    log
}

/// Returns the places of an addition of such an entry and of its removal.
fn closing(log: &[Op]) -> Option<(usize, usize)> {
    log.iter().enumerate().find_map(|(added, op)| match op {
        Op::AddEntry(set, entry) if set.kind == SetKind::NoEndpoints => {
            let removal = Op::RemoveEntry(*set, *entry);
            let removed = log[added..].iter().position(|op| *op == removal)?;
            Some((added, added + removed))
        }
        _ => None,
    })
}

fn is_local(actual: &Actual, address: IpAddr) -> bool {
    actual.addresses.contains(&address) || actual.routes.iter().any(|it| it.contains(&address))
}

fn admitted(actual: &Actual) -> impl Iterator<Item = Frontend> {
    let sets = actual.sets.iter().filter(|(set, _)| set.kind.admits());
    sets.flat_map(|(_, there)| &there.entries).filter_map(|entry| match entry {
        Entry::AddressPort(frontend) => Some(*frontend),
        _ => None,
    })
}

fn is_closed(actual: &Actual, frontend: &Frontend) -> bool {
    [SetKind::NoEndpoints, SetKind::NoLocalEndpoints].into_iter().any(|kind| {
        let set = SetId { kind, family: frontend.family() };
        let entry = Entry::AddressPort(*frontend);
        actual.sets.get(&set).is_some_and(|there| there.entries.contains(&entry))
    })
}

/// Refuses to make these virtual servers as long as it says so, and keeps account of what opens the
/// node.
fn refuse(
    fake: &Fake,
    refused: impl Fn(&Frontend) -> bool + Send + 'static,
) -> Arc<Mutex<Vec<String>>> {
    let wrong = Arc::new(Mutex::new(Vec::new()));
    let account = Arc::clone(&wrong);
    fake.interfere(move |request, actual| {
        let KernelCall::Writing(op) = request else { return FakeAnswer::Honest };
        account.lock().unwrap().extend(opens(op, actual));
        match op {
            Op::CreateVirtualServer(at, _) if refused(at) => {
                FakeAnswer::refused(RefusalClass::NotSupported)
            }
            _ => FakeAnswer::Honest,
        }
    });
    wrong
}

fn two_ports(number: u16) -> Service {
    let port = |name: &str, number| ServicePort {
        name: name.into(),
        protocol: Protocol::Tcp,
        port: NonZeroU16::new(number).unwrap(),
        node_port: None,
    };
    Service { ports: vec![port("p", 80), port("q", 9100)], ..service(number, Protocol::Tcp) }
}

fn with_both(service: Service) -> (Service, plan::model::EndpointSlice) {
    let mut slice = slice(&service, &[1]);
    let mut other = slice.ports[0].clone();
    other.name = "q".into();
    slice.ports.push(other);
    (service, slice)
}

fn second(number: u16) -> Frontend {
    Frontend { port: 9100, ..frontend(number, Protocol::Tcp) }
}

#[tokio::test(start_paused = true)]
async fn an_address_is_bound_when_its_virtual_server_is_there() {
    let mut world = World::in_sync(&[]).await;
    let at = frontend(1, Protocol::Tcp);
    let wrong = refuse(&world.fake, move |it| *it == at);
    world.feed(&[tcp(1, &[1]), tcp(2, &[2])]).await;
    world.until("refused more than once", |status, _| status.failures >= 3).await;
    let actual = world.fake.actual();
    assert!(!is_local(&actual, at.address) && is_closed(&actual, &at));
    assert!(is_local(&actual, frontend(2, Protocol::Tcp).address), "the other one");
    world.compared().await;
    assert_eq!(world.now().drift_repaired, 0);
    assert!(is_closed(&world.fake.actual(), &at));
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    world.until("in order", |status, _| status.pending == 0).await;
    assert_eq!(*wrong.lock().unwrap(), [""; 0]);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn one_port_that_is_refused_is_closed_and_the_others_are_served() {
    let mut world = World::in_sync(&[]).await;
    let wrong = refuse(&world.fake, |it| *it == second(1));
    world.feed(&[with_both(two_ports(1))]).await;
    world.until("refused more than once", |status, _| status.failures >= 3).await;
    let actual = world.fake.actual();
    let at = frontend(1, Protocol::Tcp);
    assert!(is_local(&actual, at.address) && actual.virtual_servers.contains_key(&at));
    assert!(is_closed(&actual, &second(1)) && !is_closed(&actual, &at));
    // It goes away while it is refused.
    world.send(Event::ServiceApplied(Box::new(service(1, Protocol::Tcp)))).await;
    world.until("in order", |status, _| status.pending == 0).await;
    assert_eq!(*wrong.lock().unwrap(), [""; 0]);
    world.compared().await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_port_that_comes_to_an_address_or_goes_is_never_open_before_it_is_served() {
    let is_around = |v4: &str| InternalFrontendNetworks { v4: v4.parse().ok(), v6: None };
    for settings in [
        settings(),
        Settings { service_routes: vec!["10.96.0.0/16".parse().unwrap()], ..settings() },
        Settings { internal_frontend_networks: is_around("10.0.0.0/8"), ..settings() },
    ] {
        let local_addresses = [IpAddr::from(NODE_ADDRESS)].into_iter().collect();
        let fake = Fake::new(Actual { local_addresses, ..Actual::default() });
        let mut world = World::with(settings, fake, Pace::default());
        let refusing = Arc::new(Mutex::new(false));
        let is_refused = Arc::clone(&refusing);
        let wrong = refuse(&world.fake, move |it| *it == second(1) && *is_refused.lock().unwrap());
        world.feed(&[with_both(service(1, Protocol::Tcp))]).await;
        world.complete().await;
        world.compared().await;
        world.feed(&[with_both(two_ports(1))]).await;
        world
            .until("served", |it, actual| {
                it.pending == 0 && actual.virtual_servers.contains_key(&second(1))
            })
            .await;
        world.compared().await;
        world.assert_converged(&[]);
        // Another program removes it, and it is refused from then on.
        *refusing.lock().unwrap() = true;
        world.fake.disturb(|actual| drop(actual.virtual_servers.remove(&second(1))));
        world.until("closed", |it, actual| it.pending > 1 && is_closed(actual, &second(1))).await;
        *refusing.lock().unwrap() = false;
        world.until("served again", |status, _| status.pending == 0).await;
        world.feed(&[with_both(service(1, Protocol::Tcp))]).await;
        world.compared().await;
        world.assert_converged(&[]);
        assert_eq!(*wrong.lock().unwrap(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_at_a_restart_is_closed_and_stays_so() {
    let mut world = World::in_sync(&[tcp(1, &[1])]).await;
    let at = frontend(1, Protocol::Tcp);
    world.fake.disturb(|actual| drop(actual.virtual_servers.remove(&at)));
    let fake = world.stop().await;
    let wrong = refuse(&fake, move |it| *it == at);
    for _ in 0..2 {
        world = World::on(fake.clone(), Pace::default());
        world.feed(&[tcp(1, &[1])]).await;
        world.complete().await;
        world.compared().await;
        assert!(is_closed(&world.fake.actual(), &at));
        world.stop().await;
    }
    fake.interfere(|_, _| FakeAnswer::Honest);
    world = World::on(fake, Pace::default());
    world.feed(&[tcp(1, &[1])]).await;
    world.complete().await;
    world.compared().await;
    assert_eq!(*wrong.lock().unwrap(), [""; 0]);
    world.assert_converged(&[]);
}

/// The kernel refuses the entry that is to close it, a few times.
#[tokio::test(start_paused = true)]
async fn a_port_that_cannot_be_closed_is_let_past_the_filter_later_and_removed_later() {
    use RefusalClass::{AnswerLost, Conflict, Exhausted, SetFull};
    for class in [Conflict, Exhausted, SetFull, AnswerLost] {
        let mut world = World::in_sync(&[with_both(service(1, Protocol::Tcp))]).await;
        let wrong = Arc::new(Mutex::new(Vec::new()));
        let (account, left) = (Arc::clone(&wrong), Arc::new(Mutex::new(5)));
        let times = Arc::clone(&left);
        world.fake.interfere(move |request, actual| {
            let KernelCall::Writing(op) = request else { return FakeAnswer::Honest };
            account.lock().unwrap().extend(opens(op, actual));
            let mut times = times.lock().unwrap();
            match op {
                Op::AddEntry(set, _) if set.kind == SetKind::NoEndpoints && *times > 0 => {
                    *times -= 1;
                    match class {
                        AnswerLost => FakeAnswer::Lost { carried_out: *times % 2 == 0 },
                        class => FakeAnswer::refused(class),
                    }
                }
                _ => FakeAnswer::Honest,
            }
        });
        world.feed(&[with_both(two_ports(1))]).await;
        let is_there = |actual: &Actual| actual.virtual_servers.contains_key(&second(1));
        let is_served = |actual: &Actual| is_there(actual) && !is_closed(actual, &second(1));
        world.until("served", |it, actual| it.pending == 0 && is_served(actual)).await;
        assert_eq!(*left.lock().unwrap(), 0);
        world.assert_converged(&[]);
        *left.lock().unwrap() = 5;
        world.feed(&[with_both(service(1, Protocol::Tcp))]).await;
        world.until("gone", |it, actual| it.pending == 0 && !is_there(actual)).await;
        world.compared().await;
        assert_eq!(*left.lock().unwrap(), 0);
        assert_eq!(*wrong.lock().unwrap(), [""; 0], "{class:?}");
        world.assert_converged(&[]);
        assert_eq!(world.now().drift_repaired, 0);
    }
}

/// More than are retried in one go: those that wait must not keep the others from their turn.
#[tokio::test(start_paused = true)]
async fn many_virtual_servers_that_are_refused_are_retried_all_of_them() {
    let mut world = World::in_sync(&[]).await;
    let wrong = refuse(&world.fake, |_| true);
    let services: Vec<_> = (1..=1_500).map(|number| tcp(number, &[1])).collect();
    world.feed(&services).await;
    let is_twice = |failures| failures >= 2 * 1_500;
    let n_pending = 3 * 1_500;
    world.until("refused", |it, _| is_twice(it.failures) && it.pending == n_pending).await;
    let first_rounds = world.now().operations;
    let started = tokio::time::Instant::now();
    for _ in 0..4 {
        world.compared().await;
    }
    // Of a virtual server and its real server.
    let n_tried = (world.now().operations - first_rounds) / (2 * 1_500);
    assert!((4..=12).contains(&n_tried), "{n_tried} times in {:?}", started.elapsed());
    world.until("pending", |status, _| status.pending == n_pending).await;
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    world.until("in order", |status, _| status.pending == 0).await;
    assert_eq!(*wrong.lock().unwrap(), [""; 0]);
    world.compared().await;
    assert_eq!(world.now().drift_repaired, 0);
    world.assert_converged(&[]);
}

const SHARED: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));

/// A Service with an external IP that others have, too, at this port.
fn sharing(number: u16, port: u16) -> (Service, plan::model::EndpointSlice) {
    let mut service = service(number, Protocol::Tcp);
    service.external = vec![SHARED];
    service.ports[0].port = NonZeroU16::new(port).unwrap();
    let slice = slice(&service, &[1]);
    (service, slice)
}

fn shared(port: u16) -> Frontend {
    Frontend { address: SHARED, protocol: Protocol::Tcp, port }
}

#[tokio::test(start_paused = true)]
async fn a_refused_port_of_one_service_keeps_a_shared_address_from_no_other() {
    let (hostile, victim) = (sharing(1, 9100), sharing(2, 80));
    for hostile_comes_first in [true, false] {
        let mut world = World::in_sync(&[]).await;
        let wrong = refuse(&world.fake, |it| it.port >= 9100);
        if hostile_comes_first {
            world.feed(std::slice::from_ref(&hostile)).await;
            world.until("refused again and again", |status, _| status.failures >= 12).await;
            assert!(!is_local(&world.fake.actual(), SHARED), "nothing is served there");
            let failures = world.now().failures;
            world.feed(std::slice::from_ref(&victim)).await;
            world.until("bound", |_, actual| is_local(actual, SHARED)).await;
            assert_eq!(world.now().failures, failures, "before the other one's next attempt");
        } else {
            world.feed(&[hostile.clone(), victim.clone()]).await;
            world.until("bound", |_, actual| is_local(actual, SHARED)).await;
        }
        let is_served = |actual: &Actual| {
            is_local(actual, SHARED)
                && actual.virtual_servers.contains_key(&shared(80))
                && !is_closed(actual, &shared(80))
        };
        world.compared().await;
        assert!(is_served(&world.fake.actual()));
        assert!(is_closed(&world.fake.actual(), &shared(9100)));
        // It takes another port, which is refused as well, and goes.
        world.fake.take_log();
        world.feed(&[sharing(1, 9200)]).await;
        world.until("closed", |_, actual| is_closed(actual, &shared(9200))).await;
        world.compared().await;
        assert!(is_served(&world.fake.actual()));
        world.send(Event::ServiceRemoved(hostile.0.name.clone())).await;
        world.until("in order", |status, _| status.pending == 0).await;
        assert!(is_served(&world.fake.actual()));
        let touches = |op: &Op| match op {
            Op::UnbindAddress(address) | Op::BindAddress(address) => *address == SHARED,
            Op::RemoveVirtualServer(it) => *it == shared(80),
            _ => false,
        };
        let log = world.fake.take_log();
        assert_eq!(log.iter().find(|op| touches(op)), None);
        assert_eq!(*wrong.lock().unwrap(), [""; 0]);
        world.assert_converged(&[]);
    }
}

/// The host is started again, or the process alone: the address is bound when the other Service is served.
#[tokio::test(start_paused = true)]
async fn a_shared_address_is_bound_after_a_restart_though_a_port_at_it_is_refused() {
    let services = [sharing(1, 9100), sharing(2, 80)];
    let mut world = World::in_sync(&[]).await;
    let mut wrong = refuse(&world.fake, |it| it.port == 9100);
    world.feed(&services).await;
    world.until("bound", |_, actual| is_local(actual, SHARED)).await;
    for is_host in [false, true] {
        let mut fake = world.stop().await;
        if is_host {
            let local_addresses = fake.actual().local_addresses;
            fake = Fake::new(Actual { local_addresses, ..Actual::default() });
            assert_eq!(*wrong.lock().unwrap(), [""; 0]);
            wrong = refuse(&fake, |it| it.port == 9100);
        }
        world = World::on(fake, Pace::default());
        world.feed(&services).await;
        world.complete().await;
        assert!(is_local(&world.fake.actual(), SHARED));
        world.compared().await;
        assert!(is_closed(&world.fake.actual(), &shared(9100)));
        assert!(!is_closed(&world.fake.actual(), &shared(80)));
    }
    assert_eq!(*wrong.lock().unwrap(), [""; 0]);
}

/// A port at an address that stays is removed from its Service while no process runs.
#[tokio::test(start_paused = true)]
async fn a_port_that_a_former_process_left_is_closed_until_the_filter_does_not_know_it() {
    let routed = Settings { service_routes: vec!["10.96.0.0/16".parse().unwrap()], ..settings() };
    type Fault = fn(KernelCall<'_>) -> bool;
    let faults: [Fault; 3] = [
        |_| false,
        |call| matches!(call, KernelCall::Read(KernelRead::Part(PartKind::VirtualServers), _)),
        |call| match call {
            KernelCall::Writing(Op::RemoveEntry(set, _)) => set.kind.admits(),
            _ => false,
        },
    ];
    for settings in [settings(), routed] {
        for is_faulty in faults {
            let local_addresses = [IpAddr::from(NODE_ADDRESS)].into_iter().collect();
            let fake = Fake::new(Actual { local_addresses, ..Actual::default() });
            let mut world = World::with(settings.clone(), fake, Pace::default());
            world.feed(&[with_both(two_ports(1))]).await;
            world.complete().await;
            let fake = world.stop().await;
            let wrong = Arc::new(Mutex::new(Vec::new()));
            let (account, mut left) = (Arc::clone(&wrong), 3);
            fake.interfere(move |call, actual| {
                if let KernelCall::Writing(op) = call {
                    account.lock().unwrap().extend(opens(op, actual));
                }
                if left > 0 && is_faulty(call) {
                    left -= 1;
                    return FakeAnswer::refused(RefusalClass::Exhausted);
                }
                FakeAnswer::Honest
            });
            world = World::with(settings.clone(), fake, Pace::default());
            world.feed(&[with_both(service(1, Protocol::Tcp))]).await;
            world.complete().await;
            world.until("in order", |status, _| status.pending == 0).await;
            assert_eq!(*wrong.lock().unwrap(), [""; 0]);
            world.compared().await;
            assert_eq!(*wrong.lock().unwrap(), [""; 0]);
            world.assert_converged(&[]);
        }
    }
}
