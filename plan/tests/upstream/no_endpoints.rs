//! TestNoEndpointsMetric: the Services that have endpoints, though none that a policy allows; and
//! what becomes of a frontend when its last endpoint goes.

use plan::local::Side;
use plan::model::{Family, Service, ServiceKind};
use plan::op::Op;

use crate::node::{Node, check, said};
use crate::words::{CLUSTER, LOCAL, applied, port, removed, service, slice, sliced};

#[test]
fn services_without_endpoints_here_are_counted() {
    let here = "10.244.0.2@n1";
    let elsewhere = "10.244.1.2@n2";
    for (row, internal, external, endpoints, expected) in [
        ("Local inside, one is here", LOCAL, CLUSTER, &[here, elsewhere][..], (0, 0)),
        ("Local outside, one is here", CLUSTER, LOCAL, &[here, elsewhere], (0, 0)),
        ("Local on both sides, one is here", LOCAL, LOCAL, &[here, elsewhere], (0, 0)),
        ("Local inside, none is here", LOCAL, CLUSTER, &[elsewhere], (1, 0)),
        ("Local outside, none is here", CLUSTER, LOCAL, &[elsewhere], (0, 1)),
        ("Local on both sides, none is here", LOCAL, LOCAL, &[elsewhere], (1, 1)),
        ("Local on both sides, there are none", LOCAL, LOCAL, &[], (0, 0)),
        ("Local on both sides, none is ready", LOCAL, LOCAL, &["10.244.1.2@n2 unready"], (0, 0)),
        (
            "Local on both sides, the one here terminates",
            LOCAL,
            LOCAL,
            &["10.244.0.2@n1 terminating", elsewhere],
            (0, 0),
        ),
        (
            "Local on both sides, those elsewhere terminate",
            LOCAL,
            LOCAL,
            &["10.244.1.2@n2 terminating"],
            (1, 1),
        ),
        ("Cluster on both sides, none is here", CLUSTER, CLUSTER, &[elsewhere], (0, 0)),
    ] {
        let web = Service {
            kind: ServiceKind::NodePort,
            internal_policy: internal,
            external_policy: external,
            ports: vec![port("http", "80:30080/TCP")],
            ..service("web", &["10.96.0.9"])
        };
        let mut node = Node::after([applied(&web), sliced(&slice("web-1", "web", endpoints))]);
        let counts = |node: &Node, family| {
            let gaps = node.planner.local_gaps();
            (gaps.count(Side::Internal, family), gaps.count(Side::External, family))
        };
        assert_eq!(counts(&node, Family::V4), expected, "{row}");
        assert_eq!(counts(&node, Family::V6), (0, 0), "{row}");
        node.run([removed(&web)]);
        assert_eq!(counts(&node, Family::V4), (0, 0), "{row}: removed");
    }
}

/// A gauge counts Services, however many of their ports have a gap.
#[test]
fn a_service_with_several_ports_counts_once() {
    let web = Service {
        kind: ServiceKind::NodePort,
        external_policy: LOCAL,
        ports: vec![port("http", "80:30080/TCP"), port("https", "443:30443/TCP")],
        ..service("web", &["10.96.0.9", "fd00:96::9"])
    };
    let ports = [("http", "8080/TCP"), ("https", "8443/TCP")];
    let node = Node::after([
        applied(&web),
        sliced(&crate::words::slice_with("web-4", "web", &ports, &["10.244.1.2@n2"])),
        sliced(&crate::words::slice_with("web-6", "web", &ports, &["fd00:244:1::2@n2"])),
    ]);
    let gaps = node.planner.local_gaps();
    assert_eq!(Family::BOTH.map(|family| gaps.count(Side::External, family)), [1, 1]);
    assert_eq!(Family::BOTH.map(|family| gaps.count(Side::Internal, family)), [0, 0]);
}

/// Addresses that are refused stay bound: clients get an answer, and not from the default route.
#[test]
fn a_frontend_is_refused_while_it_has_no_endpoints() {
    let endpoints = slice("web-1", "web", &["10.244.1.2@n2"]);
    let mut node = Node::after([applied(&service("web", &["10.96.0.9"])), sliced(&endpoints)]);
    let always =
        ["kube-ipvs0 10.96.0.9", "KUBE-CLUSTER-IP 10.96.0.9,tcp:80", "KUBE-IPVS-IPS 10.96.0.9"];
    let served = [&always[..], &["TCP 10.96.0.9:80 rr: 10.244.1.2:8080"]].concat();
    let refused = [&always[..], &["KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80"]].concat();
    check("one endpoint", &node.state(), &served);
    let plan = node.run([sliced(&slice("web-1", "web", &[]))]);
    check("none", &node.state(), &refused);
    assert_eq!(
        said(&plan.ops),
        [
            "add 10.96.0.9,tcp:80 to set KUBE-NO-ENDPOINTS",
            "remove real server 10.244.1.2:8080 from TCP 10.96.0.9:80",
            "remove virtual server TCP 10.96.0.9:80 after its last real server",
        ],
        "refused before it is taken apart, and what is connected may end"
    );
    let plan = node.run([sliced(&endpoints)]);
    check("one again", &node.state(), &served);
    assert_eq!(
        said(&plan.ops),
        [
            "create virtual server TCP 10.96.0.9:80 rr",
            "add real server 10.244.1.2:8080 weight 1 to TCP 10.96.0.9:80",
            "remove 10.96.0.9,tcp:80 from set KUBE-NO-ENDPOINTS",
        ],
        "complete before it is no longer refused"
    );
}

/// A Service that goes takes its virtual servers along at once; one that only lost its endpoints
/// lets connections end.
#[test]
fn losing_endpoints_is_not_being_removed() {
    let endpoints = slice("web-1", "web", &["10.244.1.2@n2"]);
    let web = service("web", &["10.96.0.9"]);
    let start = || Node::after([applied(&web), sliced(&endpoints)]);
    let waits_for_drain = |op: &Op| matches!(op, Op::RemoveVirtualServerWhenDrained(_));
    let is_removed = |op: &Op| matches!(op, Op::RemoveVirtualServer(_));
    for (row, event, waits, is_gone) in [
        (
            "its endpoint is not ready",
            sliced(&slice("web-1", "web", &["10.244.1.2@n2 unready"])),
            true,
            false,
        ),
        ("its slice is gone", crate::words::unsliced(&endpoints), true, false),
        ("the Service is gone", removed(&web), false, true),
        (
            "the Service has another port",
            applied(&Service { ports: vec![port("http", "81/TCP")], ..web.clone() }),
            false,
            true,
        ),
    ] {
        let ops = start().run([event]).ops;
        assert_eq!(ops.iter().any(waits_for_drain), waits, "{row}: {ops:?}");
        assert_eq!(ops.iter().any(is_removed), is_gone, "{row}: {ops:?}");
    }
}
