//! Explanations of a Service.

use super::*;
use crate::claimants::Origin;
use crate::endpoints::{Decision, Topology};
use crate::mode::Mode;

fn mk_cluster(policy: TrafficPolicy) -> Planner {
    let mut planner = mk_planner([local(&["192.0.2.1", "10.244.1.1"])]);
    let web = Service {
        kind: ServiceKind::LoadBalancer,
        ports: vec![mk_port("http", Protocol::Tcp, 80, Some(30_080))],
        load_balancer: addresses(&["203.0.113.10"]),
        external_policy: policy,
        ..mk_service()
    };
    let mut endpoints = mk_slice(
        Family::V4,
        &[("10.244.1.11", "n1"), ("10.244.2.11", "n2"), ("10.244.2.12", "n2")],
    );
    endpoints.endpoints[2].conditions.ready = false;
    plan(&mut planner, [service(web), slice(endpoints)]);
    planner
}

fn name() -> ServiceName {
    ServiceName::new("ns", "web")
}

#[test]
fn every_frontend_has_its_policy_and_every_endpoint_its_decisions() {
    let explained = mk_cluster(TrafficPolicy::Local).explain_service(&name()).unwrap();
    let frontends: Vec<_> = explained
        .frontends
        .iter()
        .map(|it| {
            (it.frontend.to_string(), it.origin, it.policy, it.internal_frontend_of.is_some())
        })
        .collect();
    let (all, here) = (TrafficPolicy::Cluster, TrafficPolicy::Local);
    assert_eq!(
        frontends,
        [
            ("TCP 10.96.0.9:80".to_owned(), Origin::ClusterAddress, all, false),
            ("TCP 10.244.1.1:30080".to_owned(), Origin::NodePort, here, false),
            ("TCP 250.244.1.1:30080".to_owned(), Origin::NodePort, all, true),
            ("TCP 192.0.2.1:30080".to_owned(), Origin::NodePort, here, false),
            ("TCP 240.0.2.1:30080".to_owned(), Origin::NodePort, all, true),
            ("TCP 203.0.113.10:80".to_owned(), Origin::LoadBalancer, here, false),
            ("TCP 251.0.113.10:80".to_owned(), Origin::LoadBalancer, all, true),
        ]
    );
    let port = &explained.ports[0];
    assert_eq!(port.topology, Topology::Anywhere);
    let decisions: Vec<_> = port.endpoints.iter().map(|it| (it.cluster, it.local)).collect();
    assert_eq!(
        decisions,
        [
            (Decision::Used, Decision::Used),
            (Decision::Used, Decision::Elsewhere),
            (Decision::NotReady, Decision::NotReady),
        ]
    );
    assert_eq!(explained.problems, []);
}

#[test]
fn an_explanation_names_the_service_that_has_a_frontend_and_the_problem() {
    let mut planner = mk_cluster(TrafficPolicy::Cluster);
    let younger = Service {
        kind: ServiceKind::LoadBalancer,
        cluster_v4: Some([10, 96, 0, 10].into()),
        load_balancer: addresses(&["203.0.113.10"]),
        ..mk_named("other", 99)
    };
    plan(&mut planner, [service(younger)]);
    let explained = planner.explain_service(&ServiceName::new("ns", "other")).unwrap();
    let owners: Vec<_> = explained.frontends.iter().map(|it| it.owner.clone()).collect();
    assert_eq!(owners, [Some(ServiceName::new("ns", "other")), Some(name())]);
    assert!(matches!(explained.problems[..], [Problem::FrontendTaken { .. }]), "{explained:?}");
}

#[test]
fn a_change_that_waits_is_said_to_wait_and_unknown_services_are_unknown() {
    let mut planner = mk_cluster(TrafficPolicy::Cluster);
    assert_eq!(planner.explain_service(&ServiceName::new("ns", "wed")), None);
    assert!(!planner.explain_service(&name()).unwrap().is_waiting);
    planner.apply(Event::SliceRemoved(SliceName::new("ns", "web-1")));
    let waiting = planner.explain_service(&name()).unwrap();
    assert!(waiting.is_waiting);
    assert_eq!(waiting.ports[0].endpoints, [], "endpoints are as they are now");
    assert_eq!(waiting.frontends[0].real_servers.len(), 2, "frontends are as they were planned");
}

#[test]
fn in_iptables_mode_frontends_have_no_real_servers_and_a_node_port_no_address() {
    let mut planner = Planner::new(Settings { mode: Mode::Iptables, ..Settings::new("n1") });
    let web = Service {
        kind: ServiceKind::NodePort,
        ports: vec![mk_port("http", Protocol::Tcp, 80, Some(30_080))],
        ..mk_service()
    };
    let endpoints = mk_slice(Family::V4, &[("10.244.1.11", "n1")]);
    plan(&mut planner, [local(&["192.0.2.1"]), service(web), slice(endpoints)]);
    let explained = planner.explain_service(&name()).unwrap();
    let frontends = explained.frontends.iter().map(|it| it.frontend.to_string());
    let frontends: Vec<String> = frontends.collect();
    assert_eq!(frontends, ["TCP 10.96.0.9:80", "TCP 0.0.0.0:30080"]);
    assert!(explained.frontends[1].is_anywhere_on_node());
    assert_eq!(explained.frontends[0].owner, Some(name()));
    assert_eq!(explained.ports[0].endpoints[0].cluster, Decision::Used);
}

#[test]
fn a_summary_counts_endpoints_that_are_ready_and_used() {
    let counts = |policy| {
        let summaries = mk_cluster(policy).summarize_services(None, None, 10);
        assert!(summaries.is_last);
        let [web] = &summaries.services[..] else { panic!("{summaries:?}") };
        (web.endpoints, web.ready, web.used, web.frontends.len())
    };
    assert_eq!(counts(TrafficPolicy::Cluster), (3, 2, 2, 4));
    assert_eq!(counts(TrafficPolicy::Local), (3, 2, 2, 7));
    let mut internal = mk_cluster(TrafficPolicy::Cluster);
    let web = Service { internal_policy: TrafficPolicy::Local, ..mk_service() };
    plan(&mut internal, [service(web)]);
    assert_eq!(internal.summarize_services(None, None, 10).services[0].used, 1);
}
