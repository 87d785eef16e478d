//! Endpoints that go while they still have connections.

use std::net::IpAddr;
use std::time::Duration;

use kernel::fake::{Fake, FakeAnswer, KernelCall};
use plan::actual::Actual;
use plan::event::Event;
use plan::flows::Flow;
use plan::kernel_objects::Frontend;
use plan::model::{Overrides, Protocol, Service};
use plan::op::Op;
use plan::settings::{FastPath, RuleForm, Settings};
use reconcile::Pace;
use tokio::time::Instant;

use crate::world::{World, frontend, real_server, settings, slice, tcp, udp, words};

/// Pod 1 of Service 1 has connections and is no longer an endpoint.
async fn draining() -> (World, Service) {
    let (service, endpoints) = tcp(1, &[1, 2]);
    let mut world = World::in_sync(&[(service.clone(), endpoints)]).await;
    set_connections(&world, 3);
    world.apply_slice(slice(&service, &[2])).await;
    world
        .until("quiet", |_, actual| {
            real_server(actual, &frontend(1, Protocol::Tcp), 1).is_some_and(|it| it.weight == 0)
        })
        .await;
    (world, service)
}

fn set_connections(world: &World, connections: u64) {
    let socket = (IpAddr::from([10, 244, 0, 1]), 8080).into();
    world.fake.disturb(|actual| {
        let server = actual.virtual_servers.get_mut(&frontend(1, Protocol::Tcp)).unwrap();
        server.real_servers.get_mut(&socket).unwrap().connections = connections;
    });
}

/// The operations in words, without the kernel's seconds.
fn said(world: &World) -> Vec<String> {
    let ops = world.fake.take_log();
    let words = words(&ops).into_iter();
    words.map(|text| text.split(" until second").next().unwrap().to_owned()).collect()
}

const QUIET: &str = "drain real server 10.244.0.1:8080 of TCP 10.96.0.1:80";

#[tokio::test(start_paused = true)]
async fn a_tcp_endpoint_gets_weight_0_and_goes_with_its_last_connection() {
    let (mut world, _) = draining().await;
    // It is no drift, however often the kernel is compared meanwhile.
    world.compared().await;
    world.compared().await;
    assert_eq!(said(&world), [QUIET]);
    assert_eq!(world.now().drift_repaired, 0);
    set_connections(&world, 0);
    world
        .until("gone", |_, actual| real_server(actual, &frontend(1, Protocol::Tcp), 1).is_none())
        .await;
    world.compared().await;
    assert_eq!(said(&world), ["remove real server 10.244.0.1:8080 from TCP 10.96.0.1:80"]);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn looking_at_it_in_vain_does_not_put_off_the_comparison() {
    let (mut world, _) = draining().await;
    let drift_checks = world.fake.looks().drift_checks;
    world.fake.fail_readings(usize::MAX);
    world.until("unreadable for long", |status, _| status.failed_readings >= 60).await;
    let tried = world.fake.looks().drift_checks - drift_checks;
    assert!(tried >= 5, "{tried}");
    world.fake.fail_readings(0);
    world.compared().await;
    assert_eq!(said(&world), [QUIET]);
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_looked_at_puts_off_no_other() {
    let services = [tcp(1, &[1, 2]), tcp(2, &[1, 2])];
    let mut world = World::in_sync(&services).await;
    for (service, _) in &services {
        world.apply_slice(slice(service, &[2])).await;
    }
    world.fake.spoil(frontend(1, Protocol::Tcp));
    let is_gone = |actual: &Actual, number| {
        real_server(actual, &frontend(number, Protocol::Tcp), 1).is_none()
    };
    world.until("the other", |_, actual| is_gone(actual, 2)).await;
    assert!(!is_gone(&world.fake.actual(), 1));
    world.fake.unspoil();
    world.until("both", |_, actual| is_gone(actual, 1)).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_comes_back_gets_its_weight_back_and_keeps_its_connections() {
    let (mut world, service) = draining().await;
    world.apply_slice(slice(&service, &[1, 2])).await;
    world.compared().await;
    let back = "change real server of TCP 10.96.0.1:80 to 10.244.0.1:8080 weight 1";
    assert_eq!(said(&world), [QUIET, back]);
    let found = real_server(&world.fake.actual(), &frontend(1, Protocol::Tcp), 1).unwrap();
    assert_eq!((found.weight, found.connections), (1, 3));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn one_whose_connections_never_end_goes_when_its_time_is_up() {
    let (mut world, _) = draining().await;
    world
        .until("gone", |_, actual| real_server(actual, &frontend(1, Protocol::Tcp), 1).is_none())
        .await;
    // A quarter of an hour, compared twice a minute.
    assert!((29..=32).contains(&world.now().passes), "{:?}", world.now());
    world.assert_converged(&[]);
}

/// Returns the time from now on until pod 1 of Service 1 is gone.
async fn time_until_gone(world: &mut World) -> Duration {
    let started = Instant::now();
    world
        .until("gone", |_, actual| real_server(actual, &frontend(1, Protocol::Tcp), 1).is_none())
        .await;
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_service_chooses_the_time_of_its_endpoints_and_may_change_its_mind() {
    let (mut world, service) = draining().await;
    let chosen = |seconds| {
        let overrides = Overrides { drain_deadline_seconds: Some(seconds), ..Overrides::default() };
        let service = Service { overrides: Some(Box::new(overrides)), ..service.clone() };
        Event::ServiceApplied(Box::new(service))
    };
    // More time is for those that begin to drain from now on.
    world.send(chosen(7_200)).await;
    world.compared().await;
    world.send(chosen(60)).await;
    let took = time_until_gone(&mut world).await.as_secs();
    assert!((60..=76).contains(&took), "{took}: 60 s, counted from the next look");
    assert_eq!(world.now().drift_repaired, 0);

    world.send(chosen(0)).await;
    world.apply_slice(slice(&service, &[1, 2])).await;
    world.compared().await;
    set_connections(&world, 3);
    said(&world);
    world.apply_slice(slice(&service, &[2])).await;
    world.compared().await;
    assert_eq!(said(&world), ["remove real server 10.244.0.1:8080 from TCP 10.96.0.1:80"]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_does_not_put_the_deadline_off() {
    let (world, service) = draining().await;
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let fake = world.stop().await;
    // No proxy runs for a while.
    tokio::time::sleep(Duration::from_secs(100)).await;
    fake.take_log();
    let mut world = World::on(fake, Pace::default());
    world.feed(&[(service.clone(), slice(&service, &[2]))]).await;
    world.complete().await;
    assert_eq!(said(&world), Vec::<String>::new(), "it goes on as it was");
    time_until_gone(&mut world).await;
    let took = began.elapsed().as_secs();
    assert!((899..=902).contains(&took), "{took}");
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passed_while_nobody_looked_is_kept_at_the_start() {
    let (world, service) = draining().await;
    let fake = world.stop().await;
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    fake.take_log();
    let mut world = World::on(fake, Pace::default());
    world.feed(&[(service.clone(), slice(&service, &[2]))]).await;
    world.complete().await;
    assert_eq!(said(&world), ["remove real server 10.244.0.1:8080 from TCP 10.96.0.1:80"]);
    world.assert_converged(&[]);
}

/// The only endpoint of Service 1 has connections and has gone.
async fn without_endpoints() -> (World, Service) {
    let (service, endpoints) = tcp(1, &[1]);
    let mut world = World::in_sync(&[(service.clone(), endpoints)]).await;
    set_connections(&world, 3);
    world.apply_slice(slice(&service, &[])).await;
    world
        .until("quiet", |_, actual| {
            real_server(actual, &frontend(1, Protocol::Tcp), 1).is_some_and(|it| it.weight == 0)
        })
        .await;
    (world, service)
}

fn of_virtual_server(said: Vec<String>) -> Vec<String> {
    said.into_iter().filter(|text| text.contains("server")).collect()
}

#[tokio::test(start_paused = true)]
async fn the_virtual_server_of_the_last_endpoint_goes_with_its_last_connection() {
    let (mut world, _) = without_endpoints().await;
    world.compared().await;
    world.compared().await;
    assert_eq!(of_virtual_server(said(&world)), [QUIET]);
    assert_eq!(world.now().drift_repaired, 0);
    set_connections(&world, 0);
    let gone: fn(&Frontend) -> String = |at| format!("remove virtual server {at}");
    world.until("gone", |_, actual| actual.virtual_servers.is_empty()).await;
    world.compared().await;
    assert_eq!(said(&world), [gone(&frontend(1, Protocol::Tcp))]);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_virtual_server_without_endpoints_gets_a_new_one_and_the_old_one_drains_on() {
    let (mut world, service) = without_endpoints().await;
    said(&world);
    world.apply_slice(slice(&service, &[2])).await;
    world.compared().await;
    let actual = world.fake.actual();
    let at = frontend(1, Protocol::Tcp);
    let (old, new) = (real_server(&actual, &at, 1).unwrap(), real_server(&actual, &at, 2).unwrap());
    assert_eq!((old.weight, old.connections, new.weight), (0, 3, 1));
    let log = of_virtual_server(said(&world));
    assert!(
        log.iter().all(|text| !text.starts_with("create") && !text.contains("remove")),
        "{log:?}"
    );
    set_connections(&world, 0);
    time_until_gone(&mut world).await;
    world.compared().await;
    assert!(world.fake.actual().virtual_servers.contains_key(&at));
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_removing_what_has_drained() {
    let (world, service) = without_endpoints().await;
    let fake = world.stop().await;
    fake.take_log();
    let mut world = World::on(fake, Pace::default());
    world.feed(&[(service.clone(), slice(&service, &[]))]).await;
    world.complete().await;
    world.compared().await;
    assert_eq!(said(&world), Vec::<String>::new());
    world.until("gone", |_, actual| actual.virtual_servers.is_empty()).await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_draining_virtual_server_that_no_service_claims_any_more_goes_at_once() {
    let (mut world, service) = without_endpoints().await;
    said(&world);
    let started = Instant::now();
    world.send(Event::ServiceRemoved(service.name)).await;
    world.until("gone", |_, actual| actual.virtual_servers.is_empty()).await;
    assert!(started.elapsed() < Duration::from_secs(1));
    world.compared().await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_udp_virtual_server_goes_with_its_last_endpoint_at_once() {
    let (service, endpoints) = udp(1, &[1]);
    let mut world = World::in_sync(&[(service.clone(), endpoints)]).await;
    let started = Instant::now();
    world.apply_slice(slice(&service, &[])).await;
    world.until("gone", |_, actual| actual.virtual_servers.is_empty()).await;
    assert!(started.elapsed() < Duration::from_secs(1));
    world.compared().await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_the_kernel_refuses_is_tried_until_it_is_done() {
    use kernel::RefusalClass;
    let (mut world, _) = without_endpoints().await;
    let is_removal = |op: &Op| matches!(op, Op::RemoveVirtualServer(_) | Op::RemoveRealServer(..));
    world.fake.refuse(4, RefusalClass::Exhausted, is_removal);
    set_connections(&world, 0);
    world.until("gone", |_, actual| actual.virtual_servers.is_empty()).await;
    world.compared().await;
    assert_eq!(world.now().pending, 0);
    world.assert_converged(&[]);
}

fn fast() -> Settings {
    Settings { rule_form: RuleForm::Nftables, fast_path: FastPath::Conntrack, ..settings() }
}

/// A connection to Service 1 that leads to a pod. IPVS does not know it.
fn carried(pod: u8) -> Flow {
    let of = frontend(1, Protocol::Tcp);
    Flow {
        protocol: Protocol::Tcp,
        destination: (of.address, of.port).into(),
        reply_source: (IpAddr::from([10, 244, 0, pod]), 8080).into(),
    }
}

fn is_there(actual: &Actual, pod: u8) -> bool {
    let led_to = Frontend { address: [250, 96, 0, 1].into(), ..frontend(1, Protocol::Tcp) };
    [frontend(1, Protocol::Tcp), led_to].iter().any(|of| real_server(actual, of, pod).is_some())
}

/// Pod 1 of Service 1, which is on the fast path, is no longer an endpoint. Conntrack carries a connection to it, and one to
/// the other pod.
async fn carried_on(fake: Fake) -> World {
    let (service, endpoints) = tcp(1, &[1, 2]);
    let mut world = World::with(fast(), fake, Pace::default());
    world.feed(&[(service.clone(), endpoints)]).await;
    world.complete().await;
    world.fake.with_flows(|flows| flows.extend([carried(1), carried(2)]));
    world.apply_slice(slice(&service, &[2])).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_conntrack_carries_ends_at_the_deadline_after_its_real_servers() {
    for are_unreadable in [false, true] {
        let fake = Fake::new(Actual::default());
        fake.set_flows_unreadable(are_unreadable);
        fake.interfere(|request, actual| {
            if matches!(request, KernelCall::Flows(_)) {
                assert!(!is_there(actual, 1), "a client would be led to it again");
            }
            FakeAnswer::Honest
        });
        let mut world = carried_on(fake).await;
        let since = Instant::now();
        world.until("ended", |status, _| status.flows_removed == 1).await;
        let took = since.elapsed().as_secs();
        assert!((899..=902).contains(&took), "{took}");
        assert_eq!(world.fake.with_flows(|flows| flows.clone()), [carried(2)]);
        assert!(is_there(&world.fake.actual(), 2));
        world.compared().await;
        assert_eq!(world.now().drift_repaired, 0);
        world.assert_converged(&[]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_real_server_goes_with_the_last_connection_that_conntrack_carries() {
    let mut world = carried_on(Fake::new(Actual::default())).await;
    world.compared().await;
    world.compared().await;
    assert!(is_there(&world.fake.actual(), 1));
    let drained = world.inquiries.ask(|view| view.n_draining_connections()).await;
    assert_eq!(drained, Ok(1));
    let since = Instant::now();
    world.fake.with_flows(|flows| flows.retain(|flow| *flow != carried(1)));
    world.until("gone", |_, actual| !is_there(actual, 1)).await;
    assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
    assert_eq!(world.now().flows_removed, 0);
    world.compared().await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_is_back_before_its_connections_were_removed_keeps_them() {
    let fake = Fake::new(Actual::default());
    let mut world = carried_on(fake).await;
    world.fake.keep_flows(3);
    world.until("over", |_, actual| !is_there(actual, 1)).await;
    world.until("refused", |status, _| status.flows_pending > 0).await;
    let (service, endpoints) = tcp(1, &[1, 2]);
    world.feed(&[(service, endpoints)]).await;
    world.until("nothing to remove", |status, _| status.flows_pending == 0).await;
    world.compared().await;
    assert_eq!(world.fake.with_flows(|flows| flows.clone()), [carried(1), carried(2)]);
    world.assert_converged(&[]);
}
