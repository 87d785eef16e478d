use crate::facts::NodeFacts;
use crate::fixtures::{Compiled, compile, mk_port, mk_service, mk_slice};
use crate::model::{Family, Overrides, Protocol, Service, ServiceKind};
use crate::problem::Problem;
use crate::scheduler::SchedulerName;
use crate::settings::{Limit, Limits, Settings};

const HERE: &str = "n1";

/// A load balancer with so many ports, external and load-balancer addresses, and two endpoints of
/// each port, one of them here.
fn mk_large(n_ports: u16, n_external: u8, n_load_balancer: u8) -> Service {
    let outer = |first: u8, count: u8| (1..=count).map(move |last| [first, 0, 113, last].into());
    Service {
        kind: ServiceKind::LoadBalancer,
        external: outer(198, n_external).collect(),
        load_balancer: outer(203, n_load_balancer).collect(),
        ports: (1..=n_ports).map(|n| mk_port("http", Protocol::Tcp, n, None)).collect(),
        ..mk_service()
    }
}

fn compile_with(service: &Service, limits: Limits) -> Compiled {
    let settings = Settings { limits, ..Settings::new(HERE) };
    let slice = mk_slice(Family::V4, &[("10.244.0.2", HERE), ("10.244.1.2", "n2")]);
    compile(service, &[&slice], &NodeFacts::default(), &settings)
}

fn served(compiled: &Compiled) -> Vec<String> {
    let frontends = compiled.fragment.claims.iter().map(|claim| claim.frontend);
    frontends.map(|frontend| format!("{}:{}", frontend.address, frontend.port)).collect()
}

fn bound(compiled: &Compiled) -> Vec<String> {
    compiled.fragment.addresses.iter().map(ToString::to_string).collect()
}

fn reached(limit: Limit, most: usize, left_out: usize) -> Problem {
    Problem::LimitReached { limit, most, left_out }
}

#[test]
fn of_too_many_frontends_cluster_addresses_are_served_first_and_then_ports_in_order() {
    let service = mk_large(3, 2, 1);
    let with = |frontends| compile_with(&service, Limits { frontends, ..Limits::default() });
    assert_eq!((served(&with(12)).len(), with(12).problems), (12, vec![]));
    let five = with(5);
    assert_eq!(
        served(&five),
        ["10.96.0.9:1", "10.96.0.9:2", "10.96.0.9:3", "203.0.113.1:1", "203.0.113.1:2"]
    );
    assert_eq!(five.problems, [reached(Limit::Frontends, 5, 7)]);
    assert_eq!(bound(&five), ["10.96.0.9", "203.0.113.1"]);
    let two = with(2);
    assert_eq!(served(&two), ["10.96.0.9:1", "10.96.0.9:2"]);
    assert_eq!(bound(&two), ["10.96.0.9"]);
    assert_eq!(two.problems, [reached(Limit::Frontends, 2, 10)]);
    let text = two.problems[0].to_string();
    assert!(
        text.contains("limits.frontends (2)") && text.contains(" 10 of this Service"),
        "{text}"
    );
}

#[test]
fn a_load_balancer_whose_source_ranges_do_not_fit_is_closed_and_not_open_to_everyone() {
    let mut service = mk_large(1, 1, 3);
    service.source_ranges =
        (0..3_u8).map(|n| ipnet::IpNet::from(std::net::IpAddr::from([10, n, 0, 1]))).collect();
    let compiled = compile_with(&service, Limits { set_entries: 8, ..Limits::default() });
    assert_eq!(
        served(&compiled),
        ["10.96.0.9:1", "198.0.113.1:1", "203.0.113.1:1", "203.0.113.2:1"]
    );
    assert_eq!(compiled.problems, [reached(Limit::SetEntries, 8, 1)]);
}

#[test]
fn real_servers_are_counted_over_all_virtual_servers() {
    let service = mk_large(3, 1, 0);
    let with = |real_servers| compile_with(&service, Limits { real_servers, ..Limits::default() });
    assert_eq!(with(12).problems, []);
    let nine = with(9);
    assert_eq!(served(&nine), ["10.96.0.9:1", "10.96.0.9:2", "10.96.0.9:3", "198.0.113.1:1"]);
    assert_eq!(nine.problems, [reached(Limit::RealServers, 9, 2)]);
    // Endpoints of a port count although none of its frontends is served.
    let three = with(3);
    assert_eq!(served(&three), ["10.96.0.9:1"]);
    assert_eq!(three.problems, [reached(Limit::RealServers, 3, 5)]);
}

#[test]
fn what_endpoints_here_take_of_a_set_counts() {
    let service = mk_large(3, 0, 0);
    let compiled = compile_with(&service, Limits { set_entries: 2, ..Limits::default() });
    assert_eq!(served(&compiled), ["10.96.0.9:1", "10.96.0.9:2"]);
    assert_eq!(compiled.problems, [reached(Limit::SetEntries, 2, 1)]);
}

/// Ports times addresses are 800,000,000 here: they are not even looked at.
#[test]
fn what_is_left_out_costs_nothing() {
    let mut service = mk_large(20_000, 0, 0);
    service.external =
        (0..40_000_u32).map(|n| std::net::Ipv4Addr::from_bits(n << 8 | 7).into()).collect();
    service.external.drain(..1);
    let limits = Limits { frontends: 100, ..Limits::default() };
    let work = crate::work::of(|| compile_with(&service, limits));
    assert!(work < 1_000_000, "{work}");
}

#[test]
fn a_scheduler_that_the_operator_does_not_allow_is_not_used() {
    let name = |name| SchedulerName::new(name).unwrap();
    let overrides = Overrides { scheduler: Some(name("mh")), ..Overrides::default() };
    let service = Service { overrides: Some(Box::new(overrides)), ..mk_service() };
    for (allowed, expected) in [(vec![], "mh"), (vec!["sh", "mh"], "mh"), (vec!["sh"], "rr")] {
        let schedulers = allowed.into_iter().map(name).collect();
        let compiled = compile_with(&service, Limits { schedulers, ..Limits::default() });
        assert_eq!(compiled.fragment.claims[0].server.scheduler.as_str(), expected);
        let problem = Problem::SchedulerNotAllowed { scheduler: name("mh") };
        let is_said = compiled.problems == [problem];
        assert_eq!((is_said, compiled.problems.is_empty()), (expected == "rr", expected == "mh"));
    }
}

/// A call center's gateway: as many ports as a Service has room for, in both families.
#[test]
fn a_large_service_reaches_no_limit() {
    let mut service = mk_large(5_000, 1, 1);
    service.cluster_v6 = Some("fd00:96::9".parse().unwrap());
    service.source_ranges = vec!["10.0.0.0/8".parse().unwrap(), "192.0.2.0/24".parse().unwrap()];
    service.external_policy = crate::model::TrafficPolicy::Local;
    assert_eq!(compile_with(&service, Limits::default()).problems, []);
}
