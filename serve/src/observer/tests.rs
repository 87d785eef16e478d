use std::net::SocketAddr;
use std::num::NonZeroU16;

use plan::capacity::{Capacity, SetSize};
use plan::chains::{ChainId, ChainName, ChainOp};
use plan::model::{
    Conditions, Endpoint, EndpointSlice, ObjectName, Overrides, Protocol, Service, ServiceKind,
    ServicePort, SlicePort, TrafficPolicy,
};
use plan::rule_set::Table;
use plan::scheduler::SchedulerName;
use plan::sets::{SetId, SetKind};
use plan::settings::{NodePortAddresses, Settings};
use tokio::time::Instant;

use plan::mode::Mode;

use super::*;
use crate::health::Health;
use crate::service_health::{Scope, ServiceHealth};
use crate::tests::{free_address, get, until_listening};
use kernel::ReadError;
use kernel::Refusal;
use kernel::RefusalClass;
use reconcile::observer::Pass;

/// An observer, and what it feeds. No timeout, so what waits is not healthy.
struct World {
    observing: ServerObserver,
    health: SharedHealth,
    metrics: Arc<Metrics>,
    services: Option<ServiceHealth>,
    planner: Planner,
    retry_queue: RetryQueue,
    /// Number of Services that a round leaves, and the age of the oldest change.
    left: Option<(usize, Duration)>,
}

impl World {
    fn new() -> Self {
        let families = Family::BOTH.to_vec();
        let health = SharedHealth::new(Health::new(&families, Duration::ZERO, Moment::now()));
        let metrics = Arc::new(Metrics::new(Mode::Ipvs, &families).unwrap());
        let networks = NodePortAddresses::Networks(vec!["127.0.0.0/8".parse().unwrap()]);
        let (failures, _) = tokio::sync::mpsc::channel(1);
        let scope = Scope {
            families: vec![Family::V4],
            node_port_addresses: networks,
            metrics: Arc::clone(&metrics),
            failures,
        };
        let updates = CheckUpdates::default();
        let services = ServiceHealth::new(scope, health.clone(), updates.clone());
        Self {
            observing: ServerObserver::new(health.clone(), Arc::clone(&metrics), updates),
            health,
            metrics,
            services: Some(services),
            planner: Planner::new(Settings::new("n1")),
            retry_queue: RetryQueue::default(),
            left: None,
        }
    }

    fn arrive(&mut self, event: Event) {
        self.observing.arrived(&event);
        self.planner.apply(event);
    }

    fn plan(&mut self) {
        let plan = self.planner.plan();
        self.observing.planned(&plan, &self.planner, Duration::from_millis(2));
    }

    fn end(&mut self, kind: RoundKind, triggers: &[(Family, SystemTime)]) {
        self.observing.round_ended(&Round {
            families: &Family::BOTH,
            kind,
            took: Duration::from_millis(250),
            triggers,
            backlog: self.left.map_or(0, |(backlog, _)| backlog),
            waiting: self.left.map(|(_, age)| age),
            oldest: Duration::from_millis(300),
            pending: &self.retry_queue,
        });
    }

    fn write(&mut self, ops: &[Op], results: &[Result<(), Refusal>]) {
        let (took, planner) = (Duration::ZERO, &self.planner);
        self.observing.written(&KernelWrite { ops, results, took, planner });
    }

    fn refuse(&mut self, op: Op) {
        let refusal = Refusal::new(RefusalClass::Exhausted, "no");
        self.retry_queue.record(op, refusal, Instant::now());
    }

    fn is_healthy(&self) -> bool {
        self.health.lock().is_healthy(Moment::now())
    }

    /// The value of a metric, written with its labels.
    fn value(&self, metric: &str) -> f64 {
        let text = self.metrics.text().unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{metric} is not in\n{text}")).parse().unwrap()
    }
}

fn mk_service(check_port: u16) -> Event {
    let number = |port| NonZeroU16::new(port).unwrap();
    Event::ServiceApplied(Box::new(Service {
        created: 1,
        kind: ServiceKind::LoadBalancer,
        cluster_v4: Some([10, 96, 0, 9].into()),
        load_balancer: vec![[203, 0, 113, 9].into()],
        external_policy: TrafficPolicy::Local,
        health_check_node_port: NonZeroU16::new(check_port),
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: number(80),
            node_port: None,
        }],
        ..Service::new(ObjectName::new("ns", "web"))
    }))
}

fn mk_slice(node: &str) -> Event {
    Event::SliceApplied(Box::new(EndpointSlice {
        name: ObjectName::new("ns", "web-1"),
        service: ObjectName::new("ns", "web"),
        family: Family::V4,
        ports: vec![SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: NonZeroU16::new(8080).unwrap(),
        }],
        endpoints: vec![Endpoint {
            address: [10, 244, 1, 2].into(),
            conditions: Conditions::default(),
            node: Some(node.into()),
            zone: None,
            hints: None,
        }],
    }))
}

const SERVICES_PENDING: &str = "kubeproxy_sync_proxy_rules_service_changes_pending";
const SLICES_PENDING: &str = "kubeproxy_sync_proxy_rules_endpoint_changes_pending";

#[test]
fn changes_are_pending_until_they_are_planned() {
    let mut world = World::new();
    world.arrive(mk_service(0));
    world.arrive(mk_service(30_999));
    world.arrive(mk_slice("n1"));
    world.arrive(mk_slice("n2"));
    assert_eq!((world.value(SERVICES_PENDING), world.value(SLICES_PENDING)), (1.0, 2.0));
    world.plan();
    assert_eq!((world.value(SERVICES_PENDING), world.value(SLICES_PENDING)), (0.0, 0.0));
    assert_eq!(world.value("kubeproxy_sync_proxy_rules_service_changes_total"), 4.0);
    assert_eq!(world.value("kubeproxy_sync_proxy_rules_endpoint_changes_total"), 2.0);
}

#[test]
fn each_endpoint_change_is_measured_once_everything_is_written() {
    let mut world = World::new();
    let count = "kube_ipvs_endpoint_change_to_kernel_duration_seconds_count";
    let arrive = |world: &mut World| {
        world.arrive(mk_slice("n1"));
        world.arrive(mk_slice("n2"));
        world.observing.taken(2);
        world.observing.waiting(1);
    };
    // What there is at the start.
    arrive(&mut world);
    world.end(RoundKind::Comparison, &[]);
    assert_eq!(world.value(count), 0.0);
    arrive(&mut world);
    world.left = Some((1, Duration::from_secs(3)));
    world.end(RoundKind::Changes, &[]);
    assert_eq!(world.value(count), 0.0, "a part of it waits");
    world.left = None;
    world.end(RoundKind::Retry, &[]);
    assert_eq!(world.value(count), 0.0, "retries say nothing of what waits");
    world.end(RoundKind::Changes, &[]);
    assert_eq!(world.value(count), 2.0);
}

#[test]
fn what_waits_is_written_when_a_round_ends_that_began_with_it() {
    let mut world = World::new();
    assert!(world.is_healthy());
    world.observing.waiting(1);
    assert!(!world.is_healthy());
    world.end(RoundKind::Retry, &[]);
    assert!(!world.is_healthy());
    let last = r#"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"}"#;
    assert_eq!(world.value(last), 0.0);
    let ago = SystemTime::now() - Duration::from_secs(7);
    world.end(RoundKind::Changes, &[(Family::V4, ago), (Family::V4, ago), (Family::V6, ago)]);
    assert!(world.is_healthy());
    assert!(world.value(last) > 1e9);
    let compared = "kube_ipvs_audit_last_completed_timestamp_seconds";
    assert_eq!(world.value(compared), 0.0);
    world.end(RoundKind::Comparison, &[]);
    assert!(world.value(compared) > 1e9);
    let count = r#"kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}"#;
    assert_eq!(world.value(count), 2.0);
    let bucket = r#"kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le=""#;
    assert_eq!(world.value(&format!("{bucket}6\"}}")), 0.0);
    assert_eq!(world.value(&format!("{bucket}60\"}}")), 2.0);
}

#[test]
fn only_refused_prerequisites_make_the_node_unhealthy() {
    let mut world = World::new();
    world.refuse(Op::BindAddress([10, 96, 0, 9].into()));
    world.end(RoundKind::Changes, &[]);
    assert!(world.is_healthy());
    assert_eq!(world.value(r#"kube_ipvs_pending_retries{class="exhausted"}"#), 1.0);
    let rules = Op::WriteRuleSet(Family::V6);
    world.refuse(rules.clone());
    world.end(RoundKind::Retry, &[]);
    let body = world.health.lock().livez(Moment::now()).body;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let families = [&body["status"]["IPv4"]["healthy"], &body["status"]["IPv6"]["healthy"]];
    assert_eq!(families, [true, false]);
    world.retry_queue.resolve(&rules.subject());
    world.end(RoundKind::Retry, &[]);
    assert!(world.is_healthy());
    world.refuse(Op::CreateLink);
    world.end(RoundKind::Comparison, &[]);
    assert!(!world.is_healthy());
}

#[test]
fn what_the_kernel_answers_is_counted_by_kind_and_class() {
    let mut world = World::new();
    let rules = Op::WriteRuleSet(Family::V4);
    let refused = || Err(Refusal::new(RefusalClass::Other, "no"));
    world.write(&[rules.clone(), rules.clone(), Op::CreateLink], &[Ok(()), refused(), refused()]);
    let operation = |name: &str, result: &str| {
        format!("kube_ipvs_operations_total{{operation=\"{name}\",result=\"{result}\"}}")
    };
    assert_eq!(world.value(&operation("write_rules", "done")), 1.0);
    assert_eq!(world.value(&operation("write_rules", "other")), 1.0);
    assert_eq!(world.value(&operation("create_link", "other")), 1.0);
    let failures = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total";
    assert_eq!(world.value(&format!("{failures}{{ip_family=\"IPv4\"}}")), 1.0);
    assert_eq!(world.value(&format!("{failures}{{ip_family=\"IPv6\"}}")), 0.0);
    world
        .observing
        .report(&Report::Drifted { repairs: &[&rules, &rules], planner: &world.planner });
    assert_eq!(world.value(r#"kube_ipvs_drift_repaired_total{operation="write_rules"}"#), 2.0);
    world.observing.report(&Report::ReadingFailed(&ReadError::new("sets", "no")));
    assert_eq!(world.value("kube_ipvs_kernel_read_failures_total"), 1.0);
}

#[test]
fn what_should_be_there_is_counted() {
    let mut world = World::new();
    world.arrive(mk_service(0));
    world.arrive(mk_slice("n2"));
    world.plan();
    let desired = world.planner.desired();
    let servers = desired.n_real_servers();
    assert!(servers > 0);
    assert_eq!(world.value("kube_ipvs_real_servers"), servers as f64);
    let entries = |set: &str| world.value(&format!("kube_ipvs_set_entries{{set=\"{set}\"}}"));
    assert_eq!((entries("KUBE-CLUSTER-IP"), entries("KUBE-6-CLUSTER-IP")), (1.0, 0.0));
    let capacity = r#"kube_ipvs_set_capacity{set="KUBE-CLUSTER-IP"}"#;
    assert_eq!(world.value(capacity), 65_536.0);
    let set = SetId { kind: SetKind::ClusterIp, family: Family::V4 };
    let grow = Op::GrowSet(set, SetSize { capacity: Capacity::new(131_072), expected: 60_000 });
    let refused = Err(Refusal::new(RefusalClass::Exhausted, "no"));
    world.write(std::slice::from_ref(&grow), &[refused]);
    assert_eq!(world.value(capacity), 65_536.0);
    world.write(&[grow], &[Ok(())]);
    assert_eq!(world.value(capacity), 131_072.0);
    let desired = world.planner.desired();
    assert_eq!(world.value("kube_ipvs_virtual_servers"), desired.n_virtual_servers() as f64);
    assert_eq!(
        world.value("kube_ipvs_addresses"),
        3.0,
        "cluster, load balancer, and its internal frontend"
    );
    let gaps = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    let gap = |policy| format!("{gaps}{{ip_family=\"IPv4\",traffic_policy=\"{policy}\"}}");
    assert_eq!((world.value(&gap("external")), world.value(&gap("internal"))), (1.0, 0.0));
    world.arrive(Event::ServiceRemoved(ObjectName::new("ns", "web")));
    world.plan();
    assert_eq!(world.value(&gap("external")), 0.0);
    assert_eq!(world.value("kube_ipvs_virtual_servers"), 0.0);
}

#[test]
fn what_a_round_leaves_goes_on_waiting() {
    let mut world = World::new();
    let last = r#"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}"#;
    let rounds = r#"kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}"#;
    world.observing.waiting(7);
    world.left = Some((5, Duration::from_secs(90)));
    world.end(RoundKind::Changes, &[]);
    assert!(!world.is_healthy());
    let body = world.health.lock().livez(Moment::now()).body;
    assert!(body.contains("changes of 5 Services are pending, the oldest for 90 s"), "{body}");
    assert!((90.0..95.0).contains(&world.value("kube_ipvs_oldest_pending_change_seconds")));
    assert_eq!(world.value("kube_ipvs_pending_services"), 5.0);
    assert_eq!((world.value(last), world.value(rounds)), (0.0, 1.0));
    // The oldest is written, and what is left is younger.
    world.left = Some((9, Duration::from_secs(2)));
    world.end(RoundKind::Changes, &[]);
    assert!((2.0..7.0).contains(&world.value("kube_ipvs_oldest_pending_change_seconds")));
    world.left = None;
    world.end(RoundKind::Changes, &[]);
    assert!(world.is_healthy());
    assert_eq!(world.value("kube_ipvs_oldest_pending_change_seconds"), 0.0);
    assert!(world.value(last) > 0.0 && world.value("kube_ipvs_pending_services") == 0.0);
    let whole = world.value("kube_ipvs_event_to_kernel_duration_seconds_sum");
    assert!((whole - 0.9).abs() < 1e-9, "{whole}");
    assert_eq!(world.value("kube_ipvs_event_to_kernel_duration_seconds_count"), 3.0);
    let waited = world.value("kube_ipvs_event_to_plan_duration_seconds_sum");
    assert!((waited - 0.15).abs() < 1e-9, "{waited}");
}

#[tokio::test(start_paused = true)]
async fn a_pending_change_gets_older_without_further_reports() {
    let mut world = World::new();
    world.observing.waiting(1);
    tokio::time::advance(Duration::from_secs(40)).await;
    assert_eq!(world.value("kube_ipvs_oldest_pending_change_seconds"), 40.0);
    world.observing.waiting(2);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(world.value("kube_ipvs_oldest_pending_change_seconds"), 42.0, "the oldest counts");
}

#[test]
fn the_audit_is_measured() {
    let mut world = World::new();
    let pass = |full_speed| Pass {
        took: Duration::from_secs(30),
        cost: Duration::from_millis(80),
        full_speed,
    };
    world.observing.report(&Report::DriftChecked { took: Duration::ZERO, as_expected: true });
    world.observing.report(&Report::DriftChecked { took: Duration::ZERO, as_expected: false });
    world.observing.report(&Report::FullSpeed(true));
    world.observing.report(&Report::FullSpeed(true));
    assert_eq!(world.value("kube_ipvs_audit_full_speed"), 1.0);
    world.observing.report(&Report::PassEnded(pass(true)));
    world.observing.report(&Report::FullSpeed(false));
    world.observing.report(&Report::PassEnded(pass(false)));
    for (metric, expected) in [
        (r#"kube_ipvs_drift_checks_total{result="clean"}"#, 1.0),
        (r#"kube_ipvs_drift_checks_total{result="drifted"}"#, 1.0),
        ("kube_ipvs_audit_full_speed", 0.0),
        ("kube_ipvs_audit_full_speed_starts_total", 1.0),
        (r#"kube_ipvs_audit_passes_total{speed="full"}"#, 1.0),
        (r#"kube_ipvs_audit_passes_total{speed="background"}"#, 1.0),
        ("kube_ipvs_audit_pass_duration_seconds", 30.0),
        ("kube_ipvs_audit_pass_busy_seconds_count", 2.0),
    ] {
        assert_eq!(world.value(metric), expected, "{metric}");
    }
    assert!(world.value("kube_ipvs_audit_last_completed_timestamp_seconds") > 1e9);
}

#[test]
fn services_with_problems_are_counted_until_all_are_solved() {
    let mut world = World::new();
    let Event::ServiceApplied(service) = mk_service(0) else { panic!() };
    let wrong = Service { external: vec![[127, 0, 0, 1].into()], ..(*service).clone() };
    let scheduler = SchedulerName::new("mh").unwrap();
    let overrides = Overrides { scheduler: Some(scheduler.clone()), ..Overrides::default() };
    let odd = Service { overrides: Some(Box::new(overrides)), ..(*service).clone() };
    world.arrive(Event::SchedulerMissing(scheduler));
    for (service, with_problems, not_served) in
        [(&wrong, 1.0, 1.0), (&odd, 1.0, 0.0), (&wrong, 1.0, 1.0), (&*service, 0.0, 0.0)]
    {
        world.arrive(Event::ServiceApplied(Box::new(service.clone())));
        world.plan();
        assert_eq!(world.value("kube_ipvs_services_with_problems"), with_problems);
        assert_eq!(world.value("kube_ipvs_services_not_served"), not_served);
    }
}

#[tokio::test]
async fn a_health_check_says_yes_only_after_the_kernel_has_it() {
    let mut world = World::new();
    let task = tokio::spawn(world.services.take().unwrap().run());
    let address: SocketAddr = free_address();
    world.arrive(Event::LocalAddresses(vec![[127, 0, 0, 1].into(), [192, 0, 2, 1].into()]));
    world.arrive(Event::NodeApplied(Box::default()));
    world.arrive(mk_service(address.port()));
    world.plan();
    world.end(RoundKind::Changes, &[]);
    until_listening(address).await;
    assert_eq!(get(address, "/").await.status, 503);
    world.arrive(mk_slice("n1"));
    world.plan();
    world.end(RoundKind::Retry, &[]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(get(address, "/").await.status, 503, "planned, and not written");
    world.end(RoundKind::Changes, &[]);
    while get(address, "/").await.status != 200 {
        assert!(!task.is_finished());
    }
    task.abort();
}

#[test]
fn where_no_chain_can_be_written_nothing_counts_as_written() {
    let mut world = World::new();
    let last = r#"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}"#;
    let of_v6 = last.replace("IPv4", "IPv6");
    let latency = r#"kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"}"#;
    let chain = |number: u8| {
        let name = ChainName::parse(Table::Nat, &format!("KUBE-SVC-AAAAAAAAAAAAAAA{number}"));
        let id = ChainId { family: Family::V4, table: Table::Nat, name: name.unwrap() };
        Op::Chain(ChainOp::Remove(id))
    };
    let ago = SystemTime::now() - Duration::from_secs(3);
    let refused = |class| Err(Refusal::new(class, "no"));
    for class in [
        RefusalClass::Exhausted,
        RefusalClass::NotPermitted,
        RefusalClass::AnswerLost,
        RefusalClass::NotInstalled,
    ] {
        world.metrics.proxy.synced(Family::V4, SystemTime::UNIX_EPOCH);
        world.write(&[chain(2), chain(3)], &[refused(class), refused(class)]);
        let measured = world.value(latency);
        world.retry_queue.record(chain(2), Refusal::new(class, "no"), Instant::now());
        world.end(RoundKind::Changes, &[(Family::V4, ago)]);
        assert_eq!((world.value(last), world.value(latency)), (0.0, measured));
        assert!(world.value(&of_v6) > 0.0);
        assert!(!world.is_healthy());
        // One that is written later counts, and so does the round then.
        world.write(&[chain(3)], &[Ok(())]);
        world.end(RoundKind::Retry, &[]);
        assert!(world.is_healthy() && world.value(last) > 1.0);
        // So does a chain that is no longer desired.
        world.write(&[chain(2)], &[refused(class)]);
        assert!(!world.is_healthy());
        world.retry_queue.resolve(&chain(2).subject());
        world.end(RoundKind::Retry, &[]);
        assert!(world.is_healthy());
    }
    for class in [RefusalClass::NotSupported, RefusalClass::Conflict, RefusalClass::Other] {
        world.write(&[chain(2)], &[refused(class)]);
        world.retry_queue.record(chain(2), Refusal::new(class, "no"), Instant::now());
        world.metrics.proxy.synced(Family::V4, SystemTime::UNIX_EPOCH);
        world.end(RoundKind::Changes, &[]);
        assert!(world.is_healthy() && world.value(last) > 1.0, "it is about this chain alone");
    }
}
