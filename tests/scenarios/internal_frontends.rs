//! Clients are led to an internal frontend only while it is there.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use ipnet::IpNet;
use kernel::RefusalClass;
use kernel::fake::{Fake, FakeAnswer, KernelCall};
use plan::actual::Actual;
use plan::event::Event;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{EndpointSlice, Family, Protocol, Service, ServiceKind, TrafficPolicy};
use plan::op::{Op, Subject};
use plan::routes::RouteOp;
use plan::sets::{SetId, SetKind};
use plan::settings::{FastPath, InternalFrontendNetworks, RuleForm, Settings};
use reconcile::Pace;
use reconcile::Status;

use crate::closing::opens;
use crate::world::{World, dual_stack_tcp, service, settings, slice};

/// A load balancer's Service for this node's endpoints, all of which are on another node: only its
/// internal frontend has a virtual server.
pub(crate) fn local(number: u16, last_byte: u8) -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer: vec![[198, 51, 100, last_byte].into()],
        source_ranges: vec!["10.0.0.0/8".parse().unwrap()],
        external_policy: TrafficPolicy::Local,
        ..service(number, Protocol::Tcp)
    }
}

/// Returns the operation in words if it is wrong now: if it leads clients to an internal frontend that
/// is not there, or takes away one that they are led to.
pub(crate) fn misleads(op: &Op, actual: &Actual) -> Option<String> {
    let is_led_there = |like: &dyn Fn(&Frontend) -> bool| {
        let sets = actual.sets.iter().filter(|(set, _)| set.kind.leads_to_internal_frontends());
        let mut entries = sets.flat_map(|(set, there)| there.entries.iter().map(|it| (*set, *it)));
        entries.any(|(set, entry)| like(&internal_frontend_of(set, &entry)))
    };
    let is_wrong = match op {
        Op::AddEntry(set, entry) if set.kind.leads_to_internal_frontends() => {
            let internal_frontend = internal_frontend_of(*set, entry);
            let restricted = SetId { kind: SetKind::LoadBalancerFirewall, family: set.family };
            let is_restricted = actual.sets.get(&restricted).is_some_and(|there| {
                there.entries.contains(&Entry::AddressPort(internal_frontend))
            });
            !actual.virtual_servers.contains_key(&internal_frontend)
                || !actual.addresses.contains(&internal_frontend.address)
                || !is_restricted
        }
        Op::RemoveVirtualServer(frontend) => {
            is_led_there(&|internal_frontend| internal_frontend == frontend)
        }
        Op::UnbindAddress(address) => {
            is_led_there(&|internal_frontend| internal_frontend.address == *address)
        }
        _ => false,
    };
    is_wrong.then(|| op.to_string()).or_else(|| opens(op, actual))
}

fn internal_frontend_of(set: SetId, entry: &Entry) -> Frontend {
    let Entry::AddressPort(frontend) = entry else { panic!("{entry}") };
    assert_eq!(set.kind, SetKind::InternalFrontend);
    let address = InternalFrontendNetworks::default().address_for(frontend.address);
    Frontend { address: address.unwrap(), ..*frontend }
}

/// Removal of something by another program.
type Take = fn(&mut Actual);

/// Filter of the operations that are refused.
type Concerns = fn(&Op) -> bool;

fn watched(fake: &Fake) -> Arc<Mutex<Vec<String>>> {
    let wrong = Arc::new(Mutex::new(Vec::new()));
    let account = Arc::clone(&wrong);
    fake.interfere(move |request, actual| {
        if let KernelCall::Writing(op) = request {
            account.lock().unwrap().extend(misleads(op, actual));
        }
        FakeAnswer::Honest
    });
    wrong
}

fn outer() -> Frontend {
    Frontend { address: [198, 51, 100, 5].into(), protocol: Protocol::Tcp, port: 80 }
}

fn internal_frontend() -> Frontend {
    Frontend { address: [246, 51, 100, 5].into(), ..outer() }
}

fn is_led(actual: &Actual) -> bool {
    let sets = actual.sets.iter().filter(|(set, _)| set.kind.leads_to_internal_frontends());
    sets.flat_map(|(_, there)| &there.entries).any(|it| *it == Entry::AddressPort(outer()))
}

fn with_slice(service: Service) -> (Service, EndpointSlice) {
    let slice = slice(&service, &[1]);
    (service, slice)
}

#[tokio::test(start_paused = true)]
async fn clients_are_led_to_an_internal_frontend_only_after_all_of_it_is_there() {
    let refused: [Concerns; 3] = [
        |op| matches!(op, Op::CreateVirtualServer(at, _) if *at == internal_frontend()),
        |op| *op == Op::BindAddress(internal_frontend().address),
        |op| {
            matches!(op, Op::AddEntry(set, it) if set.kind == SetKind::LoadBalancerFirewall
            && it.address() == Some(internal_frontend().address))
        },
    ];
    for concerns in refused {
        let mut world = World::in_sync(&[]).await;
        let wrong = watched(&world.fake);
        world.fake.refuse(3, RefusalClass::Exhausted, concerns);
        world.feed(&[with_slice(local(1, 5))]).await;
        world.until("pending", |status, _| status.pending == 2).await;
        assert!(!is_led(&world.fake.actual()));
        let failures = world.now().failures;
        world.until("tried again", |status, _| status.failures > failures).await;
        assert_eq!(world.now().pending, 2, "a part of it, and the way there");
        assert!(!is_led(&world.fake.actual()));
        world.until("in order", |status, _| status.pending == 0).await;
        assert!(is_led(&world.fake.actual()));
        assert_eq!(*wrong.lock().unwrap(), [""; 0]);
        world.compared().await;
        assert_eq!(world.now().drift_repaired, 0);
        world.assert_converged(&[]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_internal_frontend_stays_as_long_as_clients_may_be_led_there() {
    let (service, endpoints) = with_slice(local(1, 5));
    let mut world = World::in_sync(&[(service.clone(), endpoints)]).await;
    let wrong = watched(&world.fake);
    let is_way =
        |op: &Op| matches!(op, Op::RemoveEntry(set, _) if set.kind.leads_to_internal_frontends());
    world.fake.refuse(3, RefusalClass::Exhausted, is_way);
    world.send(Event::ServiceRemoved(service.name)).await;
    world.until("pending", |status, _| status.failures == 2).await;
    let actual = world.fake.actual();
    assert!(is_led(&actual) && actual.virtual_servers.contains_key(&internal_frontend()));
    assert!(actual.addresses.contains(&internal_frontend().address));
    world.until("gone", |status, _| status.pending == 0).await;
    assert_eq!(*wrong.lock().unwrap(), [""; 0]);
    assert_eq!(world.now().failures, 3);
    world.compared().await;
    assert_eq!(world.now().drift_repaired, 0);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn clients_are_no_longer_led_to_an_internal_frontend_that_cannot_be_put_back() {
    let takes: [(Take, Concerns); 2] = [
        (
            |actual| assert!(actual.virtual_servers.remove(&internal_frontend()).is_some()),
            |op| matches!(op, Op::CreateVirtualServer(at, _) if *at == internal_frontend()),
        ),
        (
            |actual| assert!(actual.addresses.remove(&internal_frontend().address)),
            |op| *op == Op::BindAddress(internal_frontend().address),
        ),
    ];
    for (take, concerns) in takes {
        let mut world = World::in_sync(&[with_slice(local(1, 5))]).await;
        world.fake.refuse(4, RefusalClass::Exhausted, concerns);
        world.fake.disturb(take);
        // The kernel has it a moment before the status says so.
        let is_cut_off = |status: &Status, actual: &Actual| status.pending >= 2 && !is_led(actual);
        world.until("cut off", is_cut_off).await;
        world.until("in order", |status, _| status.pending == 0).await;
        assert!(is_led(&world.fake.actual()));
        world.compared().await;
        world.assert_converged(&[]);
    }
}

/// Two frontends with the same internal frontend.
#[tokio::test(start_paused = true)]
async fn a_frontend_gets_its_internal_frontend_when_that_is_free() {
    let first = Service { created: 1, ..local(1, 5) };
    let mut second = local(2, 5);
    second.load_balancer = vec![IpAddr::from([214, 51, 100, 5])];
    let endpoints = slice(&second, &[2]);
    let mut world = World::in_sync(&[with_slice(first.clone()), (second, endpoints)]).await;
    let wrong = watched(&world.fake);
    world.fake.lose_answers(2, |op| op.subject() == Subject::VirtualServer(internal_frontend()));
    world.send(Event::ServiceRemoved(first.name)).await;
    world.taken().await;
    world.compared().await;
    world.until("in order", |status, _| status.pending == 0).await;
    assert_eq!(*wrong.lock().unwrap(), [""; 0]);
    let actual = world.fake.actual();
    assert!(actual.virtual_servers.contains_key(&internal_frontend()));
    let ways = SetId { kind: SetKind::InternalFrontend, family: Family::V4 };
    let second = Frontend { address: [214, 51, 100, 5].into(), ..outer() };
    assert!(actual.sets[&ways].entries.contains(&Entry::AddressPort(second)));
    world.assert_converged(&[]);
}

/// The same, and the one with the better claim comes later.
#[tokio::test(start_paused = true)]
async fn nobody_is_led_any_more_to_an_internal_frontend_that_another_frontend_gets() {
    let first = Service { created: 1, ..local(1, 5) };
    let mut second = Service { created: 2, ..local(2, 5) };
    second.load_balancer = vec![IpAddr::from([214, 51, 100, 5])];
    let endpoints = slice(&second, &[2]);
    let mut world = World::in_sync(&[(second, endpoints)]).await;
    world.feed(&[with_slice(first)]).await;
    world.taken().await;
    world.compared().await;
    let log = world.fake.take_log();
    let place = |is: &dyn Fn(&Op) -> bool| log.iter().position(is).unwrap();
    let is_led_off =
        |op: &Op| matches!(op, Op::RemoveEntry(set, _) if set.kind.leads_to_internal_frontends());
    let is_served = |op: &Op| matches!(op, Op::AddRealServer(at, _) if *at == internal_frontend());
    assert!(place(&is_led_off) < place(&is_served), "{log:?}");
    world.assert_converged(&[]);
}

/// On the fast path a route stands for all IPv6 addresses of internal frontends.
#[tokio::test(start_paused = true)]
async fn clients_are_led_to_internal_frontends_only_by_a_route_that_is_there() {
    let route: IpNet = "feff::/16".parse().unwrap();
    let settings = Settings {
        rule_form: RuleForm::Nftables,
        fast_path: FastPath::Conntrack,
        families: Family::BOTH.to_vec(),
        ..settings()
    };
    let fake = Fake::new(Actual::default());
    fake.refuse(
        3,
        RefusalClass::Exhausted,
        move |op| matches!(op, Op::Route(RouteOp::Add(it)) if it.network == route),
    );
    let mut world = World::with(settings, fake, Pace::default());
    world.feed(&dual_stack_tcp(1)).await;
    world.complete().await;
    let is_led = |actual: &Actual| {
        let mut led = actual
            .sets
            .iter()
            .filter(|(set, _)| set.kind.leads_to_internal_frontends() && set.family == Family::V6);
        led.any(|(_, there)| !there.entries.is_empty())
    };
    world.until("pending", |status, _| status.pending > 0).await;
    assert!(!is_led(&world.fake.actual()));
    world.until("in order", |status, _| status.pending == 0).await;
    let actual = world.fake.actual();
    assert!(is_led(&actual) && actual.routes.contains(&route), "{:?}", actual.routes);
    world.compared().await;
    world.assert_converged(&[]);
}
