//! The first sync, and the takeover of chains that are there.

use kernel::fake::{FakeAnswer, KernelCall};
use kernel::{KernelRead, RefusalClass};
use plan::chains::{ChainHash, ChainId, ChainName, PortChain, ServicePortName};
use plan::mode::Mode;
use plan::model::{Family, ObjectName, Protocol, Service};
use plan::op::{Op, PartKind};
use plan::settings::Settings;
use reconcile::Pace;

use super::{
    SERVICES, empty, in_any_order, in_sync, is_own, log, on, restarted, services, settle, short,
    start,
};
use crate::world::{World, node_port_service, service, settings_in, slice, tcp, udp};

/// A chain of a Service that is gone, as kube-proxy or a former process left it.
fn leftover(kind: PortChain) -> ChainId {
    let port = ServicePortName::new(&ObjectName::new("ns", "gone"), "p");
    ChainId::of_port(Family::V4, kind, ChainHash::of_port(&port, Protocol::Tcp))
}

#[tokio::test(start_paused = true)]
async fn the_constant_rules_come_first_and_a_rule_after_the_chain_it_leads_to() {
    let mut world = on(empty());
    world.feed(&[tcp(1, &[1, 2])]).await;
    world.complete().await;
    let expected = [
        "write IPv4 rules",
        "write SEP 2",
        "write SEP 2",
        "write SVC 2",
        "insert SERVICES",
        "insert SERVICES",
    ];
    assert_eq!(log(&world), expected);
    assert!(services(&world).last().unwrap().ends_with("-j KUBE-NODEPORTS"));
    world.assert_converged(&[]);
    assert!(!world.fake.actual().link, "no interface");
    assert!(world.fake.actual().sets.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_api_servers_service_is_written_before_the_others() {
    let api =
        Service { name: ObjectName::new("default", "kubernetes"), ..service(200, Protocol::Tcp) };
    let endpoints = slice(&api, &[9]);
    let mut world = on(empty());
    world.feed(&[tcp(1, &[1, 2]), tcp(2, &[1]), (api, endpoints)]).await;
    world.complete().await;
    let written = world.reports.take().into_iter().filter(|it| it.starts_with("written"));
    let written: Vec<String> = written.collect();
    // The rules, then the tail and its three operations, then the rest in one request.
    assert_eq!(written, ["written 1, refused 0", "written 4, refused 0", "written 7, refused 0"]);
    let first = world.fake.take_log();
    assert!(first[4].to_string().contains("default/kubernetes:p"), "{:?}", first[4]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_changes_nothing_and_reads_each_familys_chains_once() {
    let cluster = [tcp(1, &[1, 2]), udp(2, &[1]), tcp(3, &[])];
    let world = in_sync(&cluster).await;
    let before = world.fake.actual();
    let looks = world.fake.looks();
    let mut world = restarted(world).await;
    start(&mut world, &cluster).await;
    assert_eq!(world.fake.actual(), before);
    assert_eq!(world.now().operations, 0);
    assert_eq!(world.now().drift_repaired, 0);
    assert_eq!(world.fake.looks().chains - looks.chains, 1);
}

#[tokio::test(start_paused = true)]
async fn chains_that_no_service_asks_for_are_removed_at_the_end() {
    let cluster = [tcp(1, &[1, 2]), tcp(2, &[1])];
    let world = in_sync(&cluster).await;
    let before = world.fake.actual();
    let fake = world.stop().await;
    fake.disturb(|actual| {
        let [svc, sep] = [leftover(PortChain::Cluster), leftover(PortChain::Endpoint)];
        // As kube-proxy had it before Kubernetes 1.24.
        let former = leftover(PortChain::FormerExternal);
        actual.chains.insert(former, vec![format!("-j {}", svc.name).into()]);
        actual.chains.insert(sep, vec!["-j MARK --set-xmark 0x4000/0x4000".into()]);
        actual.chains.insert(svc, vec![format!("-j {}", sep.name).into()]);
        let shared = actual.chains.get_mut(&SERVICES).unwrap();
        // kube-proxy writes it in any order, and here its tail is not the last.
        shared.push(format!("-d 10.96.9.9/32 -p tcp -j {}", svc.name).into());
        shared.push(format!("-d 203.0.113.9/32 -p tcp -j {}", former.name).into());
        shared.push("-d 10.96.9.9/32 -j RETURN".into());
    });
    let mut world = on(fake);
    world.feed(&cluster).await;
    world.complete().await;
    assert_eq!(in_any_order(&world.fake.actual()), in_any_order(&before));
    let log = log(&world);
    assert_eq!(log.iter().filter(|op| op.starts_with("remove")).count(), 3, "{log:?}");
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_found_chain_with_other_rules_is_written() {
    let cluster = [tcp(1, &[1, 2]), tcp(2, &[1])];
    let world = in_sync(&cluster).await;
    let before = world.fake.actual();
    let fake = world.stop().await;
    fake.disturb(|actual| {
        let mut own: Vec<_> = actual.chains.iter_mut().filter(|(id, _)| is_own(id)).collect();
        own.sort_unstable_by_key(|(id, _)| **id);
        own[0].1.clear();
    });
    let mut world = on(fake);
    world.feed(&cluster).await;
    world.complete().await;
    assert_eq!(world.fake.actual(), before);
    assert_eq!(log(&world).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_family_that_cannot_be_read_holds_up_no_other() {
    let families = vec![Family::V4, Family::V6];
    let settings = Settings { families, ..settings_in(Mode::Iptables) };
    let cluster = [tcp(1, &[1]), tcp(2, &[1])];
    let mut world = World::with(settings.clone(), empty(), Pace::default());
    start(&mut world, &cluster).await;
    let before = world.fake.actual();
    let fake = world.stop().await;
    fake.interfere(|request, _| match request {
        KernelCall::Read(KernelRead::Part(PartKind::Chains), Some(Family::V6)) => {
            FakeAnswer::Lost { carried_out: false }
        }
        _ => FakeAnswer::Honest,
    });
    let mut world = World::with(settings, fake, Pace::default());
    world.feed(&cluster).await;
    world.complete().await;
    assert!(world.now().failed_readings > 0);
    // Its own rules may be there twice until it can be read.
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    settle(&mut world).await;
    assert_eq!(world.fake.actual(), before);
}

#[tokio::test(start_paused = true)]
async fn if_no_family_can_be_read_nothing_is_written_but_what_is_known_to_be_missing() {
    let fake = empty();
    fake.interfere(|request, _| match request {
        KernelCall::Read(KernelRead::Part(PartKind::Chains), _) => {
            FakeAnswer::Lost { carried_out: false }
        }
        _ => FakeAnswer::Honest,
    });
    let mut world = on(fake);
    world.feed(&[tcp(1, &[1])]).await;
    world.say_complete().await;
    world.until("tried", |status, _| status.failed_readings >= 3).await;
    assert!(!world.now().in_sync_once);
    assert_eq!(world.fake.take_log(), []);
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    world.until("in sync", |status, _| status.in_sync_once).await;
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn many_services_are_written_in_few_requests() {
    let cluster: Vec<_> = (1..=3_000).map(|number| tcp(number, &[1])).collect();
    let mut world = on(empty());
    world.feed(&cluster).await;
    world.complete().await;
    let written = world.reports.take().into_iter().filter(|it| it.starts_with("written"));
    // The rules, one Service, and three rounds.
    assert_eq!(written.count(), 5);
    assert_eq!(world.fake.actual().chains.keys().filter(|id| is_own(id)).count(), 6_000);
    assert_eq!(services(&world).len(), 3_001);
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn with_x_tables_a_request_grows_with_what_stands_unless_something_is_refused() {
    let cluster: Vec<_> = (1..=8_000).map(|number| tcp(number, &[1, 2])).collect();
    for n_refused in [0, 1] {
        let fake = empty();
        fake.keep_x_tables();
        let concerned = |op: &Op| short(op).starts_with("write SVC");
        fake.refuse(n_refused, RefusalClass::Exhausted, concerned);
        let mut world = on(fake);
        world.feed(&cluster).await;
        world.complete().await;
        world.until("settled", |status, _| status.pending == 0).await;
        let reports = world.reports.take().into_iter();
        let written = reports
            .filter_map(|it| it.strip_prefix("written ")?.split(',').next()?.parse::<usize>().ok());
        let written: Vec<usize> = written.collect();
        let most = if n_refused == 0 { 6 } else { usize::MAX };
        assert!(written.len() <= most, "{written:?}");
        let is_small = written.iter().all(|n| *n <= 4_096);
        assert_eq!(is_small, n_refused > 0, "{written:?}");
        world.assert_converged(&[]);
    }
}

#[tokio::test(start_paused = true)]
async fn services_that_claim_one_frontend_keep_their_owner_over_a_restart() {
    let (first, mut second) = (node_port_service(1, 30_080), node_port_service(2, 30_080));
    second.created = 9;
    let pods = [slice(&first, &[1]), slice(&second, &[2])];
    let [one, other] = pods;
    let cluster = [(second, other), (first, one)];
    let world = in_sync(&cluster).await;
    let node_ports = |world: &World| {
        let actual = world.fake.actual();
        let mut rules = actual.chains.iter();
        let found = rules.find(|(id, _)| {
            matches!(id.name, ChainName::Shared(plan::chains::SharedChain::NodePorts))
                && id.table == plan::rule_set::Table::Nat
        });
        found.unwrap().1.clone()
    };
    let before = node_ports(&world);
    assert!(before.iter().all(|rule| rule.contains("\"ns/s1:p\"")), "{before:?}");
    let mut world = restarted(world).await;
    start(&mut world, &cluster).await;
    assert_eq!(node_ports(&world), before);
    assert!(!world.fake.take_log().iter().any(|op| matches!(op, Op::Chain(_))));
}
