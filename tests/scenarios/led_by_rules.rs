//! The takeover in ipvs mode of a node whose connections rules of iptables mode lead: nothing is
//! refused, because these rules go on leading until everything else is there.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kernel::fake::{Fake, FakeAnswer, KernelCall};
use kernel::{KernelRead, RefusalClass};
use plan::actual::Actual;
use plan::chains::{ChainId, SharedChain};
use plan::flows::Flow;
use plan::kernel_objects::Frontend;
use plan::mode::Mode;
use plan::model::{EndpointSlice, Family, Protocol, Service};
use plan::op::{Op, PartKind};
use plan::rule_set::Table;
use plan::sets::SetKind;
use plan::settings::Settings;
use reconcile::Pace;
use tokio::time::Instant;

use crate::world::{World, frontend, settings_in, tcp, udp, words};

const DISPATCH: ChainId = ChainId::shared(Family::V4, Table::Nat, SharedChain::Services);

type Cluster = Vec<(Service, EndpointSlice)>;

fn cluster() -> Cluster {
    vec![tcp(1, &[1, 2]), udp(2, &[3]), tcp(3, &[4])]
}

fn frontends() -> [Frontend; 3] {
    [frontend(1, Protocol::Tcp), frontend(2, Protocol::Udp), frontend(3, Protocol::Tcp)]
}

/// A kernel in sync in iptables mode, with no process at work on it.
async fn led_by_rules() -> Fake {
    let mut world =
        World::with(settings_in(Mode::Iptables), World::new().stop().await, Pace::default());
    world.feed(&cluster()).await;
    world.complete().await;
    let fake = stopped(world).await;
    assert!(is_led_by_rules(&fake.actual()));
    fake.take_log();
    fake
}

async fn stopped(world: World) -> Fake {
    let fake = world.stop().await;
    while fake.is_shared() {
        tokio::task::yield_now().await;
    }
    fake
}

/// The event loop in ipvs mode on this kernel, with the cluster as its input.
async fn started(fake: Fake) -> World {
    let mut world = World::with(settings_in(Mode::Ipvs), fake, Pace::default());
    world.feed(&cluster()).await;
    world.say_complete().await;
    world
}

fn is_led_by_rules(actual: &Actual) -> bool {
    actual.chains.get(&DISPATCH).is_some_and(|rules| rules.len() > 1)
}

/// True if IPVS serves a frontend: all of it is there, and the address is bound.
fn is_served_by_ipvs(actual: &Actual, frontend: &Frontend) -> bool {
    let server = actual.virtual_servers.get(frontend);
    let has_endpoints = server.is_some_and(|it| it.real_servers.values().any(|it| it.weight > 0));
    let entries = actual
        .sets
        .values()
        .filter(|set| set.entries.iter().any(|entry| entry.frontend().as_ref() == Some(frontend)));
    let is_bound = actual.addresses.contains(&frontend.address);
    // While the node leaves IPVS mode, each address has a route in its place.
    let is_local = is_bound || actual.routes.iter().any(|it| it.contains(&frontend.address));
    has_endpoints && is_local && entries.count() > 0
}

/// Faults: frontends that neither rules nor IPVS serve.
fn unserved(actual: &Actual) -> Vec<Frontend> {
    if is_led_by_rules(actual) {
        return Vec::new();
    }
    frontends().into_iter().filter(|it| !is_served_by_ipvs(actual, it)).collect()
}

/// Watches the kernel from now on. Only the first `most` operations are carried out, as if the
/// process had been killed then. Returns what was unserved before each operation.
fn watch(fake: &Fake, most: usize) -> Arc<Mutex<Vec<String>>> {
    let violations = Arc::new(Mutex::new(Vec::new()));
    let (noted, mut n_written) = (Arc::clone(&violations), 0);
    fake.interfere(move |call, actual| {
        let unserved = unserved(actual);
        if !unserved.is_empty() {
            noted.lock().unwrap().push(format!("{call:?}: {unserved:?}"));
        }
        n_written += usize::from(matches!(call, KernelCall::Writing(_)));
        if n_written > most { FakeAnswer::Lost { carried_out: false } } else { FakeAnswer::Honest }
    });
    violations
}

/// Has the kernel refuse the first Service's virtual server so often. Returns its frontend.
fn refuse_virtual_server(fake: &Fake, times: usize, class: RefusalClass) -> Frontend {
    let at = frontend(1, Protocol::Tcp);
    let is_it =
        move |op: &Op| matches!(op, Op::CreateVirtualServer(frontend, _) if *frontend == at);
    fake.refuse(times, class, is_it);
    at
}

fn writes_rules(log: &[Op]) -> Vec<usize> {
    let is_it = |(_, op): &(usize, &Op)| **op == Op::WriteRuleSet(Family::V4);
    log.iter().enumerate().filter(is_it).map(|(at, _)| at).collect()
}

#[tokio::test(start_paused = true)]
async fn the_dispatch_is_written_last() {
    let fake = led_by_rules().await;
    let violations = watch(&fake, usize::MAX);
    let mut world = started(fake).await;
    world.until("in sync", |status, _| status.in_sync_once).await;
    let log = world.fake.take_log();
    let [before, dispatch] = writes_rules(&log)[..] else { panic!("{:?}", words(&log)) };
    let carries = |op: &&Op| matches!(op, Op::BindAddress(_) | Op::AddRealServer(..));
    assert!(log[..before].iter().all(Op::is_prerequisite), "{:?}", words(&log));
    assert_eq!(dispatch, log.len() - 1, "{:?}", words(&log));
    assert_eq!(log[before..dispatch].iter().filter(carries).count(), 3 + 4);
    assert!(!is_led_by_rules(&world.fake.actual()));
    assert_eq!(*violations.lock().unwrap(), [""; 0]);
    assert_eq!((world.now().drift_repaired, world.now().failures), (0, 0));
    world.compared().await;
    assert_eq!(world.fake.take_log(), []);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_killed_after_any_operation_is_gone_on_with() {
    let mut n_operations = None;
    for most in 0.. {
        let fake = led_by_rules().await;
        let first = watch(&fake, most);
        let mut world = started(fake).await;
        let is_over = |status: &reconcile::Status| status.in_sync_once || status.failures > 0;
        world.until("over", |status, _| is_over(status)).await;
        let fake = stopped(world).await;
        if fake.take_log().len() <= most {
            n_operations = Some(most);
            break;
        }
        let second = watch(&fake, usize::MAX);
        let mut world = started(fake).await;
        world.until("in sync", |status, _| status.in_sync_once).await;
        assert!(!is_led_by_rules(&world.fake.actual()));
        let log = words(&world.fake.take_log());
        for violations in [first, second] {
            assert_eq!(*violations.lock().unwrap(), [""; 0], "after {most}: {log:?}");
        }
        world.assert_converged(&[]);
    }
    assert!(n_operations.unwrap() > 20, "{n_operations:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_virtual_server_holds_the_dispatch_up_until_it_is_there() {
    let fake = led_by_rules().await;
    let violations = watch(&fake, usize::MAX);
    refuse_virtual_server(&fake, 2, RefusalClass::Exhausted);
    let mut world = started(fake).await;
    world.until("refused", |status, _| status.pending > 0).await;
    assert!(!world.now().in_sync_once);
    world.until("in sync", |status, _| status.in_sync_once).await;
    assert_eq!(world.now().pending, 0);
    assert_eq!(*violations.lock().unwrap(), [""; 0]);
    let log = world.fake.take_log();
    assert_eq!(writes_rules(&log).last(), Some(&(log.len() - 1)), "{:?}", words(&log));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_virtual_server_that_is_always_refused_does_not_keep_the_others_from_ipvs() {
    let fake = led_by_rules().await;
    let at = refuse_virtual_server(&fake, usize::MAX, RefusalClass::Other);
    let mut world = started(fake).await;
    let started = Instant::now();
    world.until("in sync", |status, _| status.in_sync_once).await;
    let took = started.elapsed();
    let expected = Duration::from_secs(10)..Duration::from_secs(11);
    assert!(expected.contains(&took), "{took:?}");
    assert_eq!(unserved(&world.fake.actual()), [at]);
}

#[tokio::test(start_paused = true)]
async fn the_dispatch_never_comes_before_a_set_that_it_looks_into() {
    let fake = led_by_rules().await;
    let violations = watch(&fake, usize::MAX);
    let is_it = |op: &Op| matches!(op, Op::CreateSet(set, _) if set.kind == SetKind::ClusterIp);
    fake.refuse(6, RefusalClass::Exhausted, is_it);
    let mut world = started(fake).await;
    let started = Instant::now();
    world.until("in sync", |status, _| status.in_sync_once).await;
    assert!(started.elapsed() > Duration::from_secs(20), "{:?}", started.elapsed());
    assert_eq!((world.now().pending, world.now().has_pending_prerequisite), (0, false));
    assert_eq!(*violations.lock().unwrap(), [""; 0]);
    world.assert_converged(&[]);
}

/// Returns what was reported of a dispatch that is held up.
fn held_up(world: &World) -> Vec<String> {
    let mut reports = world.reports.take();
    reports.retain(|report| report.starts_with("stalled"));
    reports
}

#[tokio::test(start_paused = true)]
async fn what_holds_the_dispatch_up_is_reported_every_ten_minutes_until_it_is_there() {
    let fake = led_by_rules().await;
    let violations = watch(&fake, usize::MAX);
    let is_it = |op: &Op| matches!(op, Op::CreateSet(set, _) if set.kind == SetKind::ClusterIp);
    fake.refuse(40, RefusalClass::NotSupported, is_it);
    let mut world = started(fake).await;
    let started = Instant::now();
    world.until("held up", |status, _| status.is_held_up).await;
    let took = started.elapsed();
    assert!((Duration::from_secs(10)..Duration::from_secs(12)).contains(&took), "{took:?}");
    let first = held_up(&world);
    assert_eq!(first.len(), 1, "{first:?}");
    let why = "because IPVS mode lacks prerequisites: create set KUBE-CLUSTER-IP";
    assert!(first[0].contains(why), "{first:?}");
    // Changes of Services wait, and nothing else is written.
    world.apply_slice(tcp(3, &[4, 5]).1).await;
    assert!(is_led_by_rules(&world.fake.actual()) && !world.now().in_sync_once);

    world.until("in sync", |status, _| status.in_sync_once).await;
    let minutes = started.elapsed().as_secs() / 60;
    assert!((30..50).contains(&minutes), "{minutes}");
    let others = held_up(&world);
    let (last, repeated) = others.split_last().unwrap();
    assert_eq!(last, "stalled no more");
    assert_eq!(u64::try_from(repeated.len()).unwrap(), minutes / 10, "{repeated:?}");
    assert!(repeated.iter().all(|report| *report == first[0]), "{repeated:?}");
    assert!(!world.now().is_held_up);
    assert_eq!(*violations.lock().unwrap(), [""; 0]);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn rules_that_are_refused_before_the_dispatch_or_with_it_hold_it_up() {
    for n_accepted in [0, 1] {
        let fake = led_by_rules().await;
        let violations = watch(&fake, usize::MAX);
        let n_written = AtomicUsize::new(0);
        fake.refuse(8, RefusalClass::NotSupported, move |op| {
            let is_it = *op == Op::WriteRuleSet(Family::V4);
            is_it && n_written.fetch_add(1, Ordering::Relaxed) >= n_accepted
        });
        let mut world = started(fake).await;
        world.until("held up", |status, _| status.is_held_up).await;
        let reports = held_up(&world);
        assert!(reports[0].contains("lacks prerequisites: write"), "{n_accepted}: {reports:?}");
        assert!(is_led_by_rules(&world.fake.actual()) && !world.now().in_sync_once);
        world.until("in sync", |status, _| status.in_sync_once).await;
        assert_eq!(held_up(&world).last().unwrap(), "stalled no more");
        assert!(!world.now().is_held_up && !is_led_by_rules(&world.fake.actual()));
        assert_eq!(*violations.lock().unwrap(), [""; 0]);
        world.assert_converged(&[]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_first_is_repaired_without_the_dispatch() {
    let fake = led_by_rules().await;
    refuse_virtual_server(&fake, usize::MAX, RefusalClass::Other);
    let mut world = started(fake).await;
    world.until("refused", |status, _| status.pending > 0).await;
    world.fake.disturb(|actual| actual.rule_sets.clear());
    world.until("repaired", |status, _| status.drift_repaired > 0).await;
    assert!(is_led_by_rules(&world.fake.actual()));
    assert!(!world.now().in_sync_once);
    world.until("in sync", |status, _| status.in_sync_once).await;
    assert_eq!(world.now().drift_repaired, 1);
}

#[tokio::test(start_paused = true)]
async fn rules_that_cannot_be_read_may_lead_connections() {
    let fake = led_by_rules().await;
    let mut is_read = false;
    fake.interfere(move |call, _| match call {
        KernelCall::Read(KernelRead::Part(PartKind::Rules), _) if !is_read => {
            is_read = true;
            FakeAnswer::refused(RefusalClass::Other)
        }
        _ => FakeAnswer::Honest,
    });
    let mut world = started(fake).await;
    world.until("in sync", |status, _| status.in_sync_once).await;
    let log = world.fake.take_log();
    assert_eq!(writes_rules(&log).len(), 2);
    assert_eq!(writes_rules(&log).last(), Some(&(log.len() - 1)), "{:?}", words(&log));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_family_that_no_rules_lead_has_its_dispatch_at_once() {
    let fake = led_by_rules().await;
    let settings = Settings { families: Family::BOTH.into(), ..settings_in(Mode::Ipvs) };
    let mut world = World::with(settings, fake, Pace::default());
    world.feed(&cluster()).await;
    world.complete().await;
    let log = world.fake.take_log();
    let n_written = |family| log.iter().filter(|op| **op == Op::WriteRuleSet(family)).count();
    assert_eq!(Family::BOTH.map(n_written), [2, 1]);
    assert_eq!(log.last(), Some(&Op::WriteRuleSet(Family::V4)));
}

#[tokio::test(start_paused = true)]
async fn flows_that_rules_led_to_an_endpoint_that_is_gone_go_with_the_dispatch() {
    let fake = led_by_rules().await;
    refuse_virtual_server(&fake, usize::MAX, RefusalClass::Other);
    let flow = |pod: u8| Flow {
        protocol: Protocol::Udp,
        destination: (frontend(2, Protocol::Udp).address, 80).into(),
        reply_source: (IpAddr::from([10, 244, 0, pod]), 8080).into(),
    };
    fake.with_flows(|flows| flows.extend([flow(3), flow(9)]));
    let mut world = started(fake).await;
    world.until("clean", |status, _| status.flows_removed == 1).await;
    // The client's next datagram goes the same way.
    assert!(is_led_by_rules(&world.fake.actual()));
    world.fake.with_flows(|flows| flows.push(flow(9)));
    world.until("in sync", |status, _| status.in_sync_once).await;
    world.until("clean", |status, _| status.flows_removed == 2).await;
    world.fake.with_flows(|flows| assert_eq!(*flows, [flow(3)]));
}

#[tokio::test(start_paused = true)]
async fn there_and_back_leaves_a_node_that_is_served_all_the_time() {
    let mut fake = led_by_rules().await;
    for mode in [Mode::Ipvs, Mode::Iptables, Mode::Ipvs] {
        let violations = watch(&fake, usize::MAX);
        let mut world = World::with(settings_in(mode), fake, Pace::default());
        world.feed(&cluster()).await;
        world.complete().await;
        assert_eq!(*violations.lock().unwrap(), [""; 0], "to {mode:?}");
        assert_eq!(is_led_by_rules(&world.fake.actual()), mode == Mode::Iptables);
        if mode == Mode::Iptables {
            world.until("left", |status, _| status.n_left_by_ipvs == Some(0)).await;
        }
        fake = stopped(world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_family_of_which_most_is_refused_goes_on_by_the_former_rules() {
    for is_address in [true, false] {
        let fake = led_by_rules().await;
        let violations = watch(&fake, usize::MAX);
        let n_refused = AtomicUsize::new(0);
        fake.refuse(60, RefusalClass::Other, move |op| {
            let is_it = match op {
                Op::BindAddress(_) => is_address,
                Op::CreateVirtualServer(..) => !is_address,
                _ => false,
            };
            // All of them, more than once.
            is_it && n_refused.fetch_add(1, Ordering::Relaxed) < 60
        });
        let mut world = started(fake).await;
        world.until("held up", |status, _| status.is_held_up).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(is_led_by_rules(&world.fake.actual()));
        assert_eq!((world.now().in_sync_once, world.now().is_carried), (false, false));
        let report = held_up(&world).remove(0);
        let op = if is_address {
            "prerequisites: add address 10.96."
        } else {
            "prerequisites: create virtual server"
        };
        assert!(report.contains(op), "{report}");
        world.until("in sync", |status, _| status.in_sync_once && status.is_carried).await;
        assert!(!world.now().is_held_up && !is_led_by_rules(&world.fake.actual()));
        assert_eq!(*violations.lock().unwrap(), [""; 0]);
        world.assert_converged(&[]);
    }
}
