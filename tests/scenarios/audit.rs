//! Changes by others are noticed by a drift check, or found by the audit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kernel::fake::{Fake, FakeAnswer, KernelCall};
use kernel::{KernelRead, RefusalClass};
use plan::actual::{Actual, ActualVirtualServer};
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Family, ObjectName, Protocol};
use plan::op::{Op, PartKind};
use plan::sets::{SetId, SetKind};
use plan::settings::Settings;
use reconcile::Pace;
use tokio::time::Instant;

use crate::world::{NODE_ADDRESS, World, frontend, real_server, settings, slice, tcp};

const CLUSTER_IP: SetId = SetId { kind: SetKind::ClusterIp, family: Family::V4 };
const SECOND: Duration = Duration::from_secs(1);
type Damage = fn(&mut Actual);

/// A pass that begins right after the damage, and one that may be under way.
const TWO_PASSES: Duration = Duration::from_secs(61);

async fn in_sync(count: u16) -> World {
    let services: Vec<_> = (1..=count).map(|number| tcp(number, &[1, 2])).collect();
    World::in_sync(&services).await
}

fn stranger_at(address: [u8; 4], port: u16) -> (Frontend, ActualVirtualServer) {
    let frontend = Frontend { address: address.into(), protocol: Protocol::Tcp, port };
    let theirs = ActualVirtualServer { server: None, real_servers: [].into_iter().collect() };
    (frontend, theirs)
}

fn delete_real_server(actual: &mut Actual, number: u16, pod: u8) {
    let server = actual.virtual_servers.get_mut(&frontend(number, Protocol::Tcp)).unwrap();
    let gone = server.real_servers.remove(&([10, 244, 0, pod], 8080).into());
    assert!(gone.is_some());
}

#[tokio::test(start_paused = true)]
async fn whatever_is_flushed_is_back_within_two_seconds() {
    let damages: [(&str, Damage); 7] = [
        ("all virtual servers", |actual| actual.virtual_servers.clear()),
        ("a virtual server", |actual| {
            actual.virtual_servers.remove(&frontend(7, Protocol::Tcp));
        }),
        ("a flushed set", |actual| actual.sets.get_mut(&CLUSTER_IP).unwrap().entries.clear()),
        ("a destroyed set", |actual| drop(actual.sets.remove(&CLUSTER_IP))),
        ("rules", |actual| actual.rule_sets.clear()),
        ("the interface", |actual| {
            actual.link = false;
            actual.addresses.clear();
        }),
        ("everything", |actual| {
            let local_addresses = actual.local_addresses.clone();
            *actual = Actual { local_addresses, ..Actual::default() };
        }),
    ];
    let mut world = in_sync(300).await;
    for (what, damage) in damages {
        let took = world.time_until_whole(damage).await;
        assert!(took <= 2 * SECOND, "{what}: {took:?}");
        world.compared().await;
    }
    assert_eq!(world.now().failures, 0);
}

#[tokio::test(start_paused = true)]
async fn flushed_addresses_are_reported_and_put_back_at_once() {
    let mut world = in_sync(3).await;
    world.addresses.report(|happened| happened.anything = true);
    let took = world.time_until_whole(|actual| actual.addresses.clear()).await;
    assert!(took <= SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_virtual_server_at_our_address_goes_and_one_elsewhere_stays() {
    let mut world = in_sync(3).await;
    let (ours, theirs) = stranger_at([10, 96, 0, 1], 81);
    let insert = |actual: &mut Actual| drop(actual.virtual_servers.insert(ours, theirs));
    let took = world.time_until_whole(insert).await;
    assert!(took <= 2 * SECOND, "{took:?}");

    world.compared().await;
    let repaired = world.now().drift_repaired;
    let listed = world.fake.looks().frontends;
    let (elsewhere, theirs) = stranger_at([172, 16, 0, 1], 80);
    world.fake.disturb(|actual| drop(actual.virtual_servers.insert(elsewhere, theirs)));
    world.compared().await;
    world.compared().await;
    assert_eq!(world.fake.looks().frontends, listed + 1, "then it is known");
    assert_eq!(world.now().drift_repaired, repaired);
    world.assert_converged(&[elsewhere]);
}

#[tokio::test(start_paused = true)]
async fn what_only_the_audit_can_see_is_found_within_a_pass() {
    let mut world = in_sync(300).await;
    for number in [1, 77, 300] {
        let took = world.time_until_whole(|it| delete_real_server(it, number, 1)).await;
        assert!(took <= TWO_PASSES, "{took:?}");
    }
    let swap = |actual: &mut Actual| {
        let entries = &mut actual.sets.get_mut(&CLUSTER_IP).unwrap().entries;
        assert!(entries.remove(&Entry::AddressPort(frontend(5, Protocol::Tcp))));
        let (other, _) = stranger_at([10, 99, 0, 1], 1);
        entries.insert(Entry::AddressPort(other));
    };
    let took = world.time_until_whole(swap).await;
    assert!(took <= TWO_PASSES, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_stands_beside_an_excess_address_goes_with_it() {
    let mut world = in_sync(3).await;
    let (frontend, theirs) = stranger_at([10, 99, 0, 1], 80);
    let add = |actual: &mut Actual| {
        actual.addresses.insert(frontend.address);
        actual.virtual_servers.insert(frontend, theirs);
    };
    let took = world.time_until_whole(add).await;
    assert!(took <= TWO_PASSES, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_does_not_count_is_listed_once_a_pass() {
    let mut world = in_sync(30).await;
    world.fake.keep_number();
    world.compared().await;
    let (ours, theirs) = stranger_at([10, 96, 0, 1], 81);
    let damage = |actual: &mut Actual| {
        actual.virtual_servers.remove(&frontend(9, Protocol::Tcp));
        actual.virtual_servers.insert(ours, theirs);
    };
    let took = world.time_until_whole(damage).await;
    assert!(took <= TWO_PASSES, "{took:?}");
    world.compared().await;
    let (passes, listed) = (world.now().passes, world.fake.looks().frontends);
    world.until("ten passes", |status, _| status.passes == passes + 10).await;
    assert_eq!(world.fake.looks().frontends, listed + 10);
}

#[tokio::test(start_paused = true)]
async fn where_something_is_wrong_the_rest_is_looked_at_without_a_pause() {
    let mut world = in_sync(300).await;
    world.reports.take();
    let damage = |actual: &mut Actual| {
        actual.virtual_servers.remove(&frontend(3, Protocol::Tcp));
        // By itself, that would be found within a pass.
        for number in [1, 150, 299] {
            delete_real_server(actual, number, 2);
        }
    };
    let took = world.time_until_whole(damage).await;
    assert!(took <= 2 * SECOND, "{took:?}");
    world.compared().await;
    // The last of these may have begun before the damage was whole.
    world.compared().await;
    let paces: Vec<String> =
        world.reports.take().into_iter().filter(|it| it.starts_with("full speed")).collect();
    assert_eq!(paces, ["full speed", "full speed is over"]);
    assert_eq!(world.now().drift_repaired, 3 + 3);
}

#[tokio::test(start_paused = true)]
async fn somebody_who_fights_us_does_not_make_us_busy() {
    let mut world = in_sync(3).await;
    let first = frontend(1, Protocol::Tcp);
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    // Whenever it is looked at, one of its real servers has just been deleted.
    world.fake.interfere(move |request, actual| {
        if matches!(request, KernelCall::Read(KernelRead::Part(PartKind::VirtualServers), _)) {
            counted.fetch_add(1, Ordering::Relaxed);
            let server = actual.virtual_servers.get_mut(&first).unwrap();
            server.real_servers.remove(&([10, 244, 0, 1], 8080).into());
        }
        FakeAnswer::Honest
    });
    let passes = world.now().passes;
    let started = Instant::now();
    world.until("many passes", |status, _| status.passes == passes + 100).await;
    assert!(started.elapsed() >= 85 * SECOND, "{:?}", started.elapsed());
    assert!(count.load(Ordering::Relaxed) >= 100);
}

#[tokio::test(start_paused = true)]
async fn an_idle_hour_is_drift_checks_and_a_pass_spread_over_every_period() {
    const SERVICES: usize = 900;
    let mut world = in_sync(900).await;
    world.compared().await;
    let (since, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, peak) = (Arc::clone(&since), Arc::clone(&most));
    world.fake.interfere(move |request, _| {
        match request {
            KernelCall::Read(KernelRead::DriftCheck, _) => count.store(0, Ordering::Relaxed),
            // Small ones are read in one go.
            KernelCall::Read(KernelRead::Part(PartKind::Sets), _) => {}
            _ => drop(peak.fetch_max(1 + count.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed)),
        }
        FakeAnswer::Honest
    });
    let (before, status, started) = (world.fake.looks(), world.now(), Instant::now());
    world.until("an hour later", |it, _| it.passes == status.passes + 120).await;
    assert_eq!(started.elapsed(), 3_600 * SECOND);
    let looks = world.fake.looks();
    assert_eq!(looks.drift_checks - before.drift_checks, 3_600);
    assert_eq!(looks.virtual_servers - before.virtual_servers, 120 * SERVICES);
    assert_eq!(looks.sets - before.sets, 120 * plan::sets::ALL.len());
    assert_eq!(looks.addresses - before.addresses, 120);
    let others = [looks.frontends, looks.rule_sets];
    assert_eq!(others, [before.frontends, before.rule_sets]);
    assert!(most.load(Ordering::Relaxed) <= 2, "{most:?} requests between two drift checks");
    assert_eq!(world.fake.take_log(), []);
    let now = world.now();
    assert_eq!((now.operations, now.failed_readings), (status.operations, 0));
}

#[tokio::test(start_paused = true)]
async fn a_draining_or_foreign_virtual_server_is_no_drift() {
    let services = [tcp(1, &[1, 2]), tcp(2, &[1])];
    let mut world = World::in_sync(&services).await;
    let (foreign, theirs) = stranger_at([172, 16, 0, 1], 80);
    world.fake.disturb(|actual| {
        actual.virtual_servers.insert(foreign, theirs);
        let servers = actual.virtual_servers.values_mut();
        servers.flat_map(|it| it.real_servers.values_mut()).for_each(|it| it.connections = 1);
    });
    world.apply_slice(slice(&services[0].0, &[2])).await;
    world.apply_slice(slice(&services[1].0, &[])).await;
    world.compared().await;
    let listed = world.fake.looks().frontends;
    world.compared().await;
    world.compared().await;
    let second = frontend(2, Protocol::Tcp);
    assert!(real_server(&world.fake.actual(), &second, 1).is_some_and(|it| it.weight == 0));
    assert_eq!(world.now().drift_repaired, 0);
    assert_eq!(world.fake.looks().frontends, listed, "their number is as expected");
}

#[tokio::test(start_paused = true)]
async fn odd_periods_are_harmless() {
    for period in [Duration::ZERO, Duration::MAX] {
        let pace = Pace { min_sync_period: period, sync_period: period, ..Pace::default() };
        let local_addresses = [NODE_ADDRESS.into()].into_iter().collect();
        let fake = Fake::new(Actual { local_addresses, ..Actual::default() });
        let mut world = World::on(fake, pace);
        world.feed(&[tcp(1, &[1])]).await;
        world.complete().await;
        if period.is_zero() {
            let (passes, started) = (world.now().passes, Instant::now());
            world.until("passes", |status, _| status.passes == passes + 60).await;
            assert!((59..=61).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
        }
        let clear = |actual: &mut Actual| actual.virtual_servers.clear();
        let took = world.time_until_whole(clear).await;
        assert!(took <= 2 * SECOND, "{period:?}: {took:?}");
    }
}

/// A node of both families, whose kernel has nothing yet.
fn of_both_families() -> World {
    let local_addresses = [NODE_ADDRESS.into()].into_iter().collect();
    let settings = Settings { families: Family::BOTH.to_vec(), ..settings() };
    let fake = Fake::new(Actual { local_addresses, ..Actual::default() });
    World::with(settings, fake, Pace::default())
}

#[tokio::test(start_paused = true)]
async fn rules_that_cannot_be_read_leave_those_of_the_other_family_alone() {
    let mut world = of_both_families();
    let spoil = |world: &World| {
        world.fake.interfere(|request, _| match request {
            KernelCall::Read(KernelRead::Part(PartKind::Rules), Some(Family::V6))
            | KernelCall::Writing(Op::WriteRuleSet(Family::V6)) => {
                FakeAnswer::refused(RefusalClass::Other)
            }
            _ => FakeAnswer::Honest,
        });
    };
    spoil(&world);
    world.feed(&[tcp(1, &[1])]).await;
    world.complete().await;
    assert_eq!((world.now().pending, world.now().has_pending_prerequisite), (1, true));
    assert!(real_server(&world.fake.actual(), &frontend(1, Protocol::Tcp), 1).is_some());
    let cleared = |actual: &mut Actual| assert!(actual.rule_sets.remove(&Family::V4));
    assert!(world.time_until_whole(cleared).await <= 2 * SECOND);
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    world.until("in order", |status, _| status.pending == 0).await;
    world.assert_converged(&[]);
    // Later on.
    spoil(&world);
    world.fake.disturb(|actual| actual.rule_sets.clear());
    let started = Instant::now();
    world.until("the other", |_, actual| actual.rule_sets.contains(&Family::V4)).await;
    assert!(started.elapsed() <= 2 * SECOND, "{:?}", started.elapsed());
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    world.until("both", |_, actual| actual.rule_sets.len() == 2).await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_keeps_nothing_else_from_being_compared() {
    // Two of them, which must not take turns.
    let mut world = of_both_families();
    world.feed(&[1, 2, 3].map(|number| tcp(number, &[1]))).await;
    world.complete().await;
    world.fake.interfere(|request, _| match request {
        KernelCall::Read(KernelRead::Part(PartKind::Rules), _) => {
            FakeAnswer::refused(RefusalClass::Other)
        }
        _ => FakeAnswer::Honest,
    });
    world.fake.disturb(|actual| actual.rule_sets.clear());
    world.until("unreadable", |status, _| status.failed_readings >= 2).await;
    let took = world.time_until_whole(|actual| actual.virtual_servers.clear()).await;
    assert!(took <= 2 * SECOND, "{took:?}");
    world.until("unreadable for a while", |status, _| status.failed_readings >= 5).await;
    let at = frontend(2, Protocol::Tcp);
    let started = Instant::now();
    world.fake.disturb(|actual| {
        actual.virtual_servers.get_mut(&at).unwrap().real_servers.clear();
    });
    world.until("whole but for the rules", |_, it| real_server(it, &at, 1).is_some()).await;
    assert!(started.elapsed() <= TWO_PASSES, "{:?}", started.elapsed());
    // That is no comparison of everything.
    let passes = world.now().passes;
    tokio::time::sleep(TWO_PASSES).await;
    assert_eq!(world.now().passes, passes);
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    // Rules are repaired beside the passes.
    world.until("both", |_, actual| actual.rule_sets.len() == 2).await;
    world.compared().await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn after_a_flush_the_api_server_comes_back_first_and_changes_in_between() {
    let mut services: Vec<_> = (1..=2_000).map(|number| tcp(number, &[1])).collect();
    services[1_500].0.name = ObjectName::api_server();
    let (api_server, changing) = (services[1_500].0.clone(), services[1_999].0.clone());
    services[1_500].1 = slice(&api_server, &[1]);
    let mut world = World::in_sync(&services).await;
    world.fake.disturb(|actual| actual.virtual_servers.clear());
    let (first, last) = (frontend(1_501, Protocol::Tcp), frontend(2_000, Protocol::Tcp));
    world.until("begun", |_, actual| !actual.virtual_servers.is_empty()).await;
    world.apply_slice(slice(&changing, &[1, 2])).await;
    world.until("whole", |_, actual| actual.virtual_servers.len() == 2_000).await;
    let log = world.fake.take_log();
    let created: Vec<Frontend> = log
        .iter()
        .filter_map(|op| match op {
            Op::CreateVirtualServer(frontend, _) => Some(*frontend),
            _ => None,
        })
        .collect();
    assert_eq!(created.first(), Some(&first));
    world.compared().await;
    assert!(real_server(&world.fake.actual(), &last, 2).is_some());
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn what_the_kernel_refuses_is_nobodys_damage() {
    let mut world = in_sync(3).await;
    world.fake.keep_number();
    world.fake.refuse(usize::MAX, RefusalClass::Exhausted, |op| {
        matches!(op, Op::CreateVirtualServer(..))
    });
    world.feed(&[tcp(4, &[1])]).await;
    // It, its address, and what opens its port.
    world.until("pending", |status, _| status.pending == 3).await;
    world.compared().await;
    world.compared().await;
    let reports = world.reports.take();
    assert!(!reports.iter().any(|words| words.starts_with("full speed")), "{reports:?}");
    assert_eq!(world.now().drift_repaired, 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_stays_pending_whatever_else_is_done_about_it() {
    let mut world = in_sync(21).await;
    world.fake.keep_number();
    world.fake.refuse(20, RefusalClass::Exhausted, |op| matches!(op, Op::ChangeVirtualServer(..)));
    // What others did to all of them is repaired together, in two parts, since one has to be made.
    world.fake.disturb(|actual| {
        for number in 1..=20 {
            delete_real_server(actual, number, 1);
            actual.virtual_servers.get_mut(&frontend(number, Protocol::Tcp)).unwrap().server = None;
        }
        actual.virtual_servers.remove(&frontend(21, Protocol::Tcp));
    });
    // The one that is missing is closed, and opened again.
    let all = world.now().operations + 2 * 20 + 3 + 2;
    world.until("tried", |status, _| status.operations == all).await;
    let now = world.now();
    assert_eq!((now.failures, now.pending, now.drift_repaired), (20, 20, 2 * 20 + 3));
    world.until("in order", |status, _| status.pending == 0).await;
    assert_eq!(world.now().drift_repaired, now.drift_repaired, "nobody else is to blame");
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_read_keeps_no_other_from_being_compared() {
    let mut world = in_sync(100).await;
    world.fake.spoil(frontend(7, Protocol::Tcp));
    let took = world.time_until_whole(|actual| delete_real_server(actual, 8, 1)).await;
    assert!(took <= TWO_PASSES, "{took:?}");
    // A change is written to it all the same, and what is wrong with it is repaired when it can be
    // read.
    world.apply_slice(slice(&tcp(7, &[]).0, &[1, 2, 3])).await;
    let seventh = frontend(7, Protocol::Tcp);
    world.until("changed", |_, actual| real_server(actual, &seventh, 3).is_some()).await;
    world.fake.disturb(|actual| delete_real_server(actual, 7, 1));
    let passes = world.now().passes;
    tokio::time::sleep(2 * TWO_PASSES).await;
    assert_eq!(world.now().passes, passes, "not everything was compared");
    assert!(real_server(&world.fake.actual(), &seventh, 1).is_none());
    world.fake.unspoil();
    world.until("whole", |_, actual| real_server(actual, &seventh, 1).is_some()).await;
    world.assert_converged(&[]);
}
