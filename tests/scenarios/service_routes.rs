//! Addresses become local routes and back, while the loop goes on with everything else.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use console::comparison::{Comparison, Plan};
use kernel::RefusalClass;
use kernel::fake::{Fake, FakeAnswer, KernelCall};
use kernel::reader::KernelReader;
use plan::actual::Actual;
use plan::event::Event;
use plan::kernel_objects::Entry;
use plan::model::{EndpointSlice, Family, Protocol, Service};
use plan::op::Op;
use plan::routes::RouteOp;
use plan::sets::{SetId, SetKind};
use plan::settings::Settings;
use reconcile::Pace;
use reconcile::differences::Standing;
use tokio::time::Instant;

use crate::world::{NODE_ADDRESS, World, frontend, real_server, service, settings, slice, tcp};

const ROUTE: &str = "10.96.0.0/12";
const V6_ROUTE: &str = "fd00:96::/108";
const N_SERVICES: u16 = 200;

type Wrong = Arc<Mutex<Vec<String>>>;

/// Services with cluster IPs of both families.
fn dual_stack(numbers: impl Iterator<Item = u16>) -> Vec<(Service, EndpointSlice)> {
    let each = numbers.map(|number| {
        let mut service = service(number, Protocol::Tcp);
        service.cluster_v6 = Some(format!("fd00:96::{number:x}").parse().unwrap());
        let slice = slice(&service, &[1]);
        (service, slice)
    });
    each.collect()
}

/// Returns what is wrong with an operation, if a served address is neither bound nor routed after it, or
/// not known to the rules.
fn wrong_with(op: &Op, actual: &Actual) -> Option<String> {
    let filtered = |address: &IpAddr| {
        let set = SetId { kind: SetKind::IpvsAddresses, family: Family::of(*address) };
        let there = actual.sets.get(&set);
        there.is_some_and(|there| there.entries.contains(&Entry::Address(*address)))
    };
    let is_routed = |address: &IpAddr| actual.routes.iter().any(|net| net.contains(address));
    let served = || actual.virtual_servers.keys().map(|it| it.address);
    let is_wrong = match op {
        Op::UnbindAddress(address) => served().any(|it| it == *address) && !is_routed(address),
        Op::RemoveEntry(set, Entry::Address(address)) if set.kind == SetKind::IpvsAddresses => {
            served().any(|it| it == *address) && !is_routed(address)
        }
        Op::Route(RouteOp::Remove(network)) => {
            let others = || actual.routes.iter().filter(|net| *net != network);
            served().filter(|it| network.contains(it)).any(|it| {
                let is_bound = actual.addresses.contains(&it) && filtered(&it);
                !is_bound && !others().any(|net| net.contains(&it))
            })
        }
        Op::BindAddress(address) => !filtered(address),
        _ => false,
    };
    is_wrong.then(|| op.to_string())
}

/// Keeps account of what is wrong, and refuses what this says.
fn watch(fake: &Fake, is_refused: impl Fn(&Op) -> bool + Send + 'static) -> Wrong {
    let wrong = Wrong::default();
    let account = Arc::clone(&wrong);
    fake.interfere(move |call, actual| match call {
        KernelCall::Writing(op) => {
            account.lock().unwrap().extend(wrong_with(op, actual));
            if is_refused(op) {
                FakeAnswer::refused(RefusalClass::Other)
            } else {
                FakeAnswer::Honest
            }
        }
        _ => FakeAnswer::Honest,
    });
    wrong
}

fn n_bound(actual: &Actual) -> usize {
    actual.addresses.len()
}

/// Asserts that all differences from the plan that `kube-ipvs diff` has are pending.
async fn assert_is_nothing_but_pending(world: &World) {
    let reader = KernelReader::new(world.fake.copy());
    let compared =
        Comparison::new(Plan::OfLoop(world.inquiries.clone()), reader).run().await.unwrap();
    let standings: Vec<&Standing> =
        compared.differences.iter().map(|it| &it.difference.standing).collect();
    assert!(matches!(standings[..], [Standing::Pending { .. }]), "{standings:?}");
}

fn many() -> Vec<(Service, EndpointSlice)> {
    (1..=N_SERVICES).map(|number| tcp(number, &[1])).collect()
}

#[tokio::test(start_paused = true)]
async fn addresses_become_a_route_and_back_while_other_changes_are_written() {
    let mut world = World::in_sync(&many()).await;
    let wrong = watch(&world.fake, |_| false);
    let all = usize::from(N_SERVICES);
    let at = frontend(1, Protocol::Tcp);
    for (routes, pod, is_over) in [(&[ROUTE][..], 2, 0), (&[], 3, all)] {
        let started = Instant::now();
        world.order_routes(Family::V4, routes).await;
        let in_between = |actual: &Actual| (1..all).contains(&n_bound(actual));
        world.until("on the way", |_, actual| in_between(actual)).await;
        // A change, and a new Service.
        world.apply_slice(tcp(1, &[pod]).1).await;
        world.feed(&[tcp(1_000 + u16::from(pod), &[1])]).await;
        world.until("changed meanwhile", |_, actual| real_server(actual, &at, pod).is_some()).await;
        assert!(in_between(&world.fake.actual()), "other changes wait for nothing");
        world
            .until("over", |_, actual| {
                let n_new = if routes.is_empty() { usize::from(pod) - 1 } else { 0 };
                n_bound(actual) == is_over + n_new && actual.routes.len() == routes.len()
            })
            .await;
        let least = Duration::from_millis(500) * (u32::from(N_SERVICES) / 32);
        assert!(started.elapsed() >= least, "{:?}", started.elapsed());
        world.compared().await;
        world.assert_converged(&[]);
    }
    assert_eq!(*wrong.lock().unwrap(), [""; 0]);
    let now = world.now();
    assert_eq!((now.readings, now.drift_repaired, now.failures), (1, 0, 0), "one takeover");
}

#[tokio::test(start_paused = true)]
async fn no_address_goes_before_its_route_is_there_and_no_route_before_all_addresses_are() {
    let mut world = World::in_sync(&many()).await;
    let all = usize::from(N_SERVICES);
    let wrong = watch(&world.fake, |op| matches!(op, Op::Route(RouteOp::Add(_))));
    world.order_routes(Family::V4, &[ROUTE]).await;
    world.until("refused", |status, _| status.failures >= 3).await;
    world.compared().await;
    assert_eq!((n_bound(&world.fake.actual()), world.now().drift_repaired), (all, 0));
    assert!(world.now().has_pending_prerequisite);
    assert_is_nothing_but_pending(&world).await;
    let first = watch(&world.fake, |_| false);
    world.until("routed", |_, actual| n_bound(actual) == 0 && actual.routes.len() == 1).await;

    let kept = frontend(7, Protocol::Tcp).address;
    let second = watch(&world.fake, move |op| *op == Op::BindAddress(kept));
    world.order_routes(Family::V4, &[]).await;
    world.until("nearly bound", |_, actual| n_bound(actual) == all - 1).await;
    world.compared().await;
    assert_eq!((world.fake.actual().routes.len(), world.now().drift_repaired), (1, 0));
    assert_is_nothing_but_pending(&world).await;
    let third = watch(&world.fake, |_| false);
    world.until("bound", |_, actual| n_bound(actual) == all && actual.routes.is_empty()).await;
    world.compared().await;
    world.assert_converged(&[]);
    for wrong in [wrong, first, second, third] {
        assert_eq!(*wrong.lock().unwrap(), [""; 0]);
    }
    assert_eq!(world.now().pending, 0);
}

#[tokio::test(start_paused = true)]
async fn a_family_changes_by_itself() {
    let families = Family::BOTH.to_vec();
    let local = IpAddr::from(NODE_ADDRESS);
    let fake =
        Fake::new(Actual { local_addresses: [local].into_iter().collect(), ..Actual::default() });
    let mut world = World::with(Settings { families, ..settings() }, fake, Pace::default());
    world.feed(&dual_stack(1..=50)).await;
    world.complete().await;
    world.until("bound", |_, actual| n_bound(actual) == 100).await;
    world.fake.take_log();
    let wrong = watch(&world.fake, |_| false);
    world.order_routes(Family::V6, &[V6_ROUTE]).await;
    world.until("routed", |_, actual| n_bound(actual) == 50).await;
    world.compared().await;
    let families: BTreeSet<Option<Family>> =
        world.fake.take_log().iter().map(|op| op.subject().family()).collect();
    assert_eq!(families, BTreeSet::from([Some(Family::V6)]));
    // The other one begins, and the first one goes back meanwhile.
    world.order_routes(Family::V4, &[ROUTE]).await;
    world.order_routes(Family::V6, &[]).await;
    let v4 = ROUTE.parse().unwrap();
    world
        .until("changed", |_, actual| {
            actual.routes.len() == 1
                && actual.routes.contains(&v4)
                && actual.addresses.len() == 50
                && actual.addresses.iter().all(IpAddr::is_ipv6)
        })
        .await;
    world.compared().await;
    world.assert_converged(&[]);
    assert_eq!(*wrong.lock().unwrap(), [""; 0]);
    assert_eq!(world.now().drift_repaired, 0);
}

#[tokio::test(start_paused = true)]
async fn another_order_in_the_middle_is_followed_from_there() {
    let mut world = World::in_sync(&many()).await;
    let wrong = watch(&world.fake, |_| false);
    let all = usize::from(N_SERVICES);
    let half = |actual: &Actual| n_bound(actual) <= all / 2;
    world.order_routes(Family::V4, &[ROUTE]).await;
    world.until("half way", |_, actual| half(actual)).await;
    world.order_routes(Family::V4, &[]).await;
    world.until("back", |_, actual| n_bound(actual) == all && actual.routes.is_empty()).await;
    world.order_routes(Family::V4, &[ROUTE]).await;
    world.until("half way", |_, actual| half(actual)).await;
    world.order_routes(Family::V4, &["10.96.0.0/16"]).await;
    let narrow = "10.96.0.0/16".parse().unwrap();
    world
        .until("narrow", |_, actual| {
            n_bound(actual) == 0 && actual.routes.len() == 1 && actual.routes.contains(&narrow)
        })
        .await;
    world.compared().await;
    world.assert_converged(&[]);
    assert_eq!(*wrong.lock().unwrap(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_start_goes_on_from_the_middle_of_a_change() {
    let all = usize::from(N_SERVICES);
    let routed = || Settings { service_routes: vec![ROUTE.parse().unwrap()], ..settings() };
    let mut world = World::in_sync(&many()).await;
    world.order_routes(Family::V4, &[ROUTE]).await;
    world.until("half way", |_, actual| n_bound(actual) <= all / 2).await;
    // The route is there, so the next process begins with it.
    for is_back in [false, true] {
        let fake = world.stop().await;
        assert!(fake.actual().routes.len() == 1);
        let wrong = watch(&fake, |_| false);
        world = World::with(routed(), fake, Pace::default());
        world.feed(&many()).await;
        world.complete().await;
        world.until("routed", |_, actual| n_bound(actual) == 0).await;
        world.compared().await;
        world.assert_converged(&[]);
        assert_eq!(*wrong.lock().unwrap(), [""; 0]);
        if !is_back {
            world.order_routes(Family::V4, &[]).await;
            world.until("half way", |_, actual| n_bound(actual) >= all / 2).await;
        }
    }
    world.order_routes(Family::V4, &[]).await;
    world.until("bound", |_, actual| n_bound(actual) == all && actual.routes.is_empty()).await;
    // Services go in the middle as well.
    world.order_routes(Family::V4, &[ROUTE]).await;
    for (service, _) in many() {
        world.send(Event::ServiceRemoved(service.name)).await;
    }
    world.until("gone", |_, actual| actual.virtual_servers.is_empty()).await;
    world.compared().await;
    world.assert_converged(&[]);
    assert_eq!(n_bound(&world.fake.actual()), 0);
}
