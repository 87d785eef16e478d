//! Test_EndpointSliceReadyAndTerminatingCluster, …Local, …OnlyReadyAndTerminatingCluster, …Local:
//! endpoints that terminate are the last resort, on each side by itself.

use plan::model::{Service, ServiceKind};

use crate::node::{Node, check, said};
use crate::words::{CLUSTER, LOCAL, applied, ips, service, slice, sliced};

fn run(external_policy: plan::model::TrafficPolicy, endpoints: &[&str]) -> Node {
    let web = Service {
        kind: ServiceKind::NodePort,
        external: ips(&["198.51.100.7"]),
        external_policy,
        ..service("web", &["10.96.0.9"])
    };
    Node::after([applied(&web), sliced(&slice("web-1", "web", endpoints))])
}

/// The lists of the three frontends, the loop-back entries, and the refusals.
fn check_state(row: &str, node: &Node, expected: &[&str]) {
    let mut found = node.virtual_servers();
    found.extend(node.entries("KUBE-LOOP-BACK"));
    found.extend(node.entries("KUBE-NO-"));
    check(row, &found, expected);
}

#[test]
fn ready_endpoints_go_before_terminating_ones() {
    let endpoints = [
        "10.244.0.2@n1",
        "10.244.0.3@n1",
        "10.244.0.4@n1 terminating",
        "10.244.0.5@n1 ended",
        "10.244.1.2@n2",
        "10.244.1.3@n2 terminating",
    ];
    // An endpoint on this node may reach itself by an old connection.
    let loop_back = [
        "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
        "KUBE-LOOP-BACK 10.244.0.3,tcp:8080,10.244.0.3",
        "KUBE-LOOP-BACK 10.244.0.4,tcp:8080,10.244.0.4",
        "KUBE-LOOP-BACK 10.244.0.5,tcp:8080,10.244.0.5",
    ];
    let cluster = [
        "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.0.3:8080, 10.244.1.2:8080",
        "TCP 198.51.100.7:80 rr: 10.244.0.2:8080, 10.244.0.3:8080, 10.244.1.2:8080",
    ];
    check_state("Cluster", &run(CLUSTER, &endpoints), &[&cluster[..], &loop_back].concat());
    let local = [
        "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.0.3:8080, 10.244.1.2:8080",
        "TCP 198.51.100.7:80 rr: 10.244.0.2:8080, 10.244.0.3:8080",
        "TCP 246.51.100.7:80 rr: 10.244.0.2:8080, 10.244.0.3:8080, 10.244.1.2:8080",
    ];
    check_state("Local", &run(LOCAL, &endpoints), &[&local[..], &loop_back].concat());
}

#[test]
fn terminating_endpoints_are_used_if_no_ready_one_is_left() {
    let endpoints = [
        "10.244.0.2@n1 terminating",
        "10.244.0.3@n1 terminating",
        "10.244.0.4@n1 ended",
        "10.244.0.5@n1 unready",
        "10.244.1.2@n2 terminating",
        "10.244.1.3@n2 ended",
    ];
    let loop_back = [
        "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
        "KUBE-LOOP-BACK 10.244.0.3,tcp:8080,10.244.0.3",
        "KUBE-LOOP-BACK 10.244.0.4,tcp:8080,10.244.0.4",
        "KUBE-LOOP-BACK 10.244.0.5,tcp:8080,10.244.0.5",
    ];
    let cluster = [
        "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.0.3:8080, 10.244.1.2:8080",
        "TCP 198.51.100.7:80 rr: 10.244.0.2:8080, 10.244.0.3:8080, 10.244.1.2:8080",
    ];
    check_state("Cluster", &run(CLUSTER, &endpoints), &[&cluster[..], &loop_back].concat());
    let local = [
        "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.0.3:8080, 10.244.1.2:8080",
        "TCP 198.51.100.7:80 rr: 10.244.0.2:8080, 10.244.0.3:8080",
        "TCP 246.51.100.7:80 rr: 10.244.0.2:8080, 10.244.0.3:8080, 10.244.1.2:8080",
    ];
    check_state("Local", &run(LOCAL, &endpoints), &[&local[..], &loop_back].concat());
}

/// Ready ones elsewhere do not keep those that terminate here from the clients that must stay here.
#[test]
fn each_side_falls_back_by_itself() {
    for (row, policy, endpoints, expected) in [
        (
            "Local, terminating here, ready elsewhere",
            LOCAL,
            ["10.244.0.2@n1 terminating", "10.244.1.2@n2"],
            &[
                "TCP 10.96.0.9:80 rr: 10.244.1.2:8080",
                "TCP 198.51.100.7:80 rr: 10.244.0.2:8080",
                "TCP 246.51.100.7:80 rr: 10.244.1.2:8080",
                "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
            ][..],
        ),
        (
            "Local, ended here, ready elsewhere",
            LOCAL,
            ["10.244.0.2@n1 ended", "10.244.1.2@n2"],
            &[
                "TCP 10.96.0.9:80 rr: 10.244.1.2:8080",
                "TCP 246.51.100.7:80 rr: 10.244.1.2:8080",
                "KUBE-NO-LOCAL-ENDPOINTS 198.51.100.7,tcp:80",
                "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
            ],
        ),
        (
            "Local, all terminate elsewhere",
            LOCAL,
            ["10.244.1.2@n2 terminating", "10.244.2.2@n3 terminating"],
            &[
                "TCP 10.96.0.9:80 rr: 10.244.1.2:8080, 10.244.2.2:8080",
                "TCP 246.51.100.7:80 rr: 10.244.1.2:8080, 10.244.2.2:8080",
                "KUBE-NO-LOCAL-ENDPOINTS 198.51.100.7,tcp:80",
            ],
        ),
        (
            "Cluster, terminating here, ready elsewhere",
            CLUSTER,
            ["10.244.0.2@n1 terminating", "10.244.1.2@n2"],
            &[
                "TCP 10.96.0.9:80 rr: 10.244.1.2:8080",
                "TCP 198.51.100.7:80 rr: 10.244.1.2:8080",
                "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
            ],
        ),
        (
            "Cluster, all have ended",
            CLUSTER,
            ["10.244.0.2@n1 ended", "10.244.1.2@n2 ended"],
            &[
                "KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80",
                "KUBE-NO-ENDPOINTS 198.51.100.7,tcp:80",
                "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
            ],
        ),
    ] {
        check_state(row, &run(policy, &endpoints), expected);
    }
}

/// A rolling update as this node sees it, step by step: there is always an endpoint that serves.
#[test]
fn a_rolling_update_of_the_only_endpoint() {
    let mut node = run(LOCAL, &["10.244.0.2@n1"]);
    for (step, endpoints, expected) in [
        ("ready", &["10.244.0.2@n1"][..], Some("10.244.0.2:8080")),
        ("terminating", &["10.244.0.2@n1 terminating"], Some("10.244.0.2:8080")),
        (
            "its successor starts",
            &["10.244.0.2@n1 terminating", "10.244.0.3@n1 unready"],
            Some("10.244.0.2:8080"),
        ),
        (
            "its successor is ready",
            &["10.244.0.2@n1 terminating", "10.244.0.3@n1"],
            Some("10.244.0.3:8080"),
        ),
        ("it has ended", &["10.244.0.2@n1 ended", "10.244.0.3@n1"], Some("10.244.0.3:8080")),
        ("it is gone", &["10.244.0.3@n1"], Some("10.244.0.3:8080")),
        ("all are gone", &[], None),
    ] {
        node.run([sliced(&slice("web-1", "web", endpoints))]);
        for frontend in ["TCP 10.96.0.9:80", "TCP 198.51.100.7:80", "TCP 246.51.100.7:80"] {
            assert_eq!(node.real_servers(frontend).as_deref(), expected, "{step}: {frontend}");
        }
    }
}

/// Since kube-proxy 1.36 (kubernetes/kubernetes#135593): the address of a pod that has ended is given to a new pod while the
/// former one is not deleted yet, on this node or on another one, and both are endpoints of the Service.
#[test]
fn an_address_that_a_new_pod_has_already_is_the_new_pods() {
    const FORMER: [&str; 3] =
        ["10.244.0.2@n1 terminating", "10.244.0.2@n1 ended", "10.244.0.2@n2 terminating"];
    let run = |slices: &[plan::model::EndpointSlice]| {
        let web = Service {
            kind: ServiceKind::NodePort,
            external: ips(&["198.51.100.7"]),
            external_policy: LOCAL,
            ..service("web", &["10.96.0.9"])
        };
        Node::after([applied(&web)].into_iter().chain(slices.iter().map(sliced)))
    };
    let other = "10.244.1.2@n2";
    let alone = run(&[slice("web-1", "web", &["10.244.0.2@n1", other])]);
    assert_eq!(alone.real_servers("TCP 198.51.100.7:80").unwrap(), "10.244.0.2:8080");
    for former in FORMER {
        let new = "10.244.0.2@n1";
        for slices in [
            &[slice("web-1", "web", &[former, new, other])][..],
            &[slice("web-1", "web", &[other, new, former])],
            &[slice("web-1", "web", &[former, other]), slice("web-2", "web", &[new])],
            &[slice("web-1", "web", &[new]), slice("web-2", "web", &[former, other])],
        ] {
            let mut node = run(slices);
            assert_eq!(node.state(), alone.state(), "{former}: {slices:?}");
            // The former pod goes, and the new one keeps its connections.
            let events = slices.iter().map(|it| {
                let mut left = it.clone();
                left.endpoints.retain(|it| !it.conditions.terminating);
                sliced(&left)
            });
            let plan = node.run(events);
            assert_eq!(said(&plan.ops), [""; 0], "{former}: {slices:?}");
        }
    }
}
