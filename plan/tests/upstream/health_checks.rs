//! TestHealthCheckNodePort, TestHealthCheckNodePortE2E, Test_HealthCheckNodePortWhenTerminating:
//! what a load balancer is answered, and where.

use plan::local::HealthCheck;
use plan::model::{Family, Service, ServiceKind};

use crate::node::Node;
use crate::words::{CLUSTER, LOCAL, applied, ips, number, port, removed, service, slice, sliced};

fn checked(port: u16) -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer: ips(&["203.0.113.5"]),
        external_policy: LOCAL,
        health_check_node_port: Some(number(port)),
        ..service("web", &["10.96.0.9"])
    }
}

/// Returns the answer about a Service that has a cluster address of IPv4 only.
fn answers(port: u16, local_v4: usize) -> Option<HealthCheck> {
    Some(HealthCheck { port: number(port), local_v4: Some(local_v4), local_v6: None })
}

#[test]
fn the_set_has_the_ports_of_load_balancers_for_this_nodes_endpoints() {
    for (row, service, expected) in [
        ("a load balancer's", checked(31_000), &["31000"][..]),
        (
            "for the cluster's endpoints",
            Service { external_policy: CLUSTER, ..checked(31_000) },
            &[],
        ),
        ("of type NodePort", Service { kind: ServiceKind::NodePort, ..checked(31_000) }, &[]),
        ("of type ClusterIP", Service { kind: ServiceKind::ClusterIp, ..checked(31_000) }, &[]),
        ("without a port", Service { health_check_node_port: None, ..checked(31_000) }, &[]),
        (
            "without an address yet",
            Service { load_balancer: vec![], ..checked(31_000) },
            &["31000"],
        ),
        ("without ports of its own", Service { ports: vec![], ..checked(31_000) }, &[]),
    ] {
        let mut node = Node::after([]);
        let plan = node.run([applied(&service)]);
        let entries = node.set("KUBE-HEALTH-CHECK-NODE-PORT");
        assert_eq!(entries, expected.iter().map(|port| (*port).to_owned()).collect(), "{row}");
        let reported: Vec<_> = plan.health_checks.into_iter().map(|(_, check)| check).collect();
        let check = expected.iter().map(|_| answers(31_000, 0));
        assert_eq!(reported, check.collect::<Vec<_>>(), "{row}");
    }
}

#[test]
fn the_set_of_each_family_in_which_the_service_is_has_it() {
    let service = Service { cluster_v6: Some("fd00:96::9".parse().unwrap()), ..checked(31_000) };
    let mut node = Node::after([applied(&service)]);
    for family in ["", "6-"] {
        let set = format!("KUBE-{family}HEALTH-CHECK-NODE-PORT");
        assert_eq!(node.set(&set), ["31000".to_owned()].into());
    }
    let v6 = slice("web-6", "web", &["fd00:244::2@n1", "fd00:244::3@n1", "fd00:244:1::2@n2"]);
    let v4 = slice("web-4", "web", &["10.244.0.2@n1", "10.244.1.2@n2"]);
    let plan = node.run([sliced(&v4), sliced(&v6)]);
    let [(_, Some(check))] = &plan.health_checks[..] else { panic!("{:?}", plan.health_checks) };
    assert_eq!((check.local(Family::V4), check.local(Family::V6)), (Some(1), Some(2)));
}

/// Each step with what is reported then; nothing is reported if nothing changes.
#[test]
fn what_is_told_follows_the_service_and_its_endpoints() {
    let two_ports = Service {
        ports: vec![port("http", "80/TCP"), port("metrics", "9090/TCP")],
        ..checked(31_001)
    };
    let endpoints = |texts: &[&str]| {
        let ports = [("http", "8080/TCP"), ("metrics", "8081/TCP")];
        sliced(&crate::words::slice_with("web-1", "web", &ports, texts))
    };
    let mut node = Node::after([]);
    for (step, event, expected, ports) in [
        ("a Service", applied(&checked(31_000)), vec![answers(31_000, 0)], &["31000"][..]),
        (
            "two endpoints here",
            endpoints(&["10.244.0.2@n1", "10.244.0.3@n1", "10.244.1.2@n2"]),
            vec![answers(31_000, 2)],
            &["31000"],
        ),
        (
            "another one elsewhere",
            endpoints(&["10.244.0.2@n1", "10.244.0.3@n1", "10.244.1.2@n2", "10.244.2.2@n3"]),
            vec![],
            &["31000"],
        ),
        (
            "another port, and one more of its own",
            applied(&two_ports),
            vec![answers(31_001, 2)],
            &["31001"],
        ),
        (
            "one here is not ready, one terminates",
            endpoints(&["10.244.0.2@n1 unready", "10.244.0.3@n1 terminating", "10.244.0.4@n1"]),
            vec![answers(31_001, 1)],
            &["31001"],
        ),
        (
            "only terminating ones are here: they still serve, and nobody new is to come",
            endpoints(&["10.244.0.2@n1 terminating", "10.244.0.3@n1 terminating"]),
            vec![answers(31_001, 0)],
            &["31001"],
        ),
        ("no longer for this node's", applied(&service("web", &["10.96.0.9"])), vec![None], &[]),
        ("again", applied(&checked(31_000)), vec![answers(31_000, 0)], &["31000"]),
        ("gone", removed(&checked(31_000)), vec![None], &[]),
    ] {
        let plan = node.run([event]);
        let heard: Vec<_> = plan.health_checks.into_iter().map(|(_, check)| check).collect();
        assert_eq!(heard, expected, "{step}");
        let entries = node.set("KUBE-HEALTH-CHECK-NODE-PORT");
        assert_eq!(entries, ports.iter().map(|port| (*port).to_owned()).collect(), "{step}");
    }
}

#[test]
fn terminating_endpoints_serve_without_counting() {
    let terminating = slice("web-1", "web", &["10.244.0.2@n1 terminating", "10.244.1.2@n2"]);
    let mut node = Node::after([]);
    let plan = node.run([applied(&checked(31_000)), sliced(&terminating)]);
    assert_eq!(plan.health_checks, [(checked(31_000).name, answers(31_000, 0))]);
    assert_eq!(node.real_servers("TCP 203.0.113.5:80").unwrap(), "10.244.0.2:8080");
}
