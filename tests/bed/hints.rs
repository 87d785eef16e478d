//! Topology hints: packets go where the slices mean this node's clients to go.

use bed::{Protocol, Service};

use crate::fixture::{Bed, assert_shares, ip, web};

/// This node, in zone a.
const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata:\n  name: node1\n  labels:\n    \
                    topology.kubernetes.io/zone: a\n";
const CLUSTER: [&str; 2] = ["10.96.0.10", "fd00:96::10"];

/// `web` on three pods, with these hints in this order.
fn hinted(bed: &Bed, hints: [Option<&'static str>; 3]) -> Service {
    let mut service = web([]);
    for (pod, hints) in [(1, 1), (2, 1), (2, 2)].into_iter().zip(hints) {
        let pod = bed.pod(pod.0, pod.1);
        service.endpoints.extend(web([pod]).endpoints.into_iter().map(|mut endpoint| {
            endpoint.hints = hints;
            endpoint
        }));
    }
    service
}

/// Waits until exactly these pods are real servers, of both families, then asks from outside, from
/// a pod and from the node: they answer, each as often as the others.
fn assert_served_by(bed: &Bed, service: &Service, pods: &[&str]) {
    bed.manifests.apply(service).unwrap();
    let sockets = |name: &str| {
        let (node, pod) = name.strip_prefix("pod").unwrap().split_once('-').unwrap();
        [format!("10.244.{node}.1{pod}:8080"), format!("[fd00:244:{node}::1{pod}]:8080")]
    };
    let expected: Vec<String> = pods.iter().flat_map(|name| sockets(name)).collect();
    bed.wait_until(&format!("{pods:?} are the real servers"), || {
        let shown = bed.virtual_servers();
        let real = shown.lines().filter_map(|line| line.trim().strip_prefix("-> "));
        // One that goes drains first.
        let taking = real.filter(|line| line.split_whitespace().nth(2) == Some("1"));
        let taking: Vec<&str> = taking.filter_map(|line| line.split(' ').next()).collect();
        taking.len() == expected.len() && expected.iter().all(|it| taking.contains(&it.as_str()))
    });
    let shares: Vec<(&str, usize)> = pods.iter().map(|name| (*name, 2)).collect();
    for from in [bed.client(), &bed.pod(1, 2).namespace, bed.node()] {
        for target in CLUSTER {
            let tally = bed.ask(from, Protocol::Tcp, (ip(target), 80), 2 * pods.len());
            assert_shares(&tally, &shares);
        }
    }
}

#[test]
fn packets_go_to_the_endpoints_that_hints_mean_for_this_zone_or_this_node() {
    let bed = Bed::new();
    bed.manifests.write("node.yaml", NODE).unwrap();
    let zones = |first, second, third| hinted(&bed, [first, second, third]);
    let (a, b) = (Some("{forZones: [{name: a}]}"), Some("{forZones: [{name: b}]}"));
    bed.manifests.apply(&zones(a, b, a)).unwrap();
    let proxy = bed.start(&[]);
    assert_served_by(&bed, &zones(a, b, a), &["pod1-1", "pod2-2"]);
    // An endpoint here that is meant for another zone is not for clients here.
    assert_served_by(&bed, &zones(b, a, b), &["pod2-1"]);
    // Hints that one endpoint lacks say nothing, nor do those without a word about this zone.
    assert_served_by(&bed, &zones(a, None, b), &["pod1-1", "pod2-1", "pod2-2"]);
    assert_served_by(&bed, &zones(b, b, b), &["pod1-1", "pod2-1", "pod2-2"]);

    let here = Some("{forZones: [{name: a}], forNodes: [{name: node1}]}");
    let there = Some("{forZones: [{name: a}], forNodes: [{name: node2}]}");
    let elsewhere = Some("{forZones: [{name: b}], forNodes: [{name: node2}]}");
    assert_served_by(&bed, &zones(here, there, elsewhere), &["pod1-1"]);
    // None is for this node, or one endpoint is for no node: the zone's.
    assert_served_by(&bed, &zones(there, there, elsewhere), &["pod1-1", "pod2-1"]);
    assert_served_by(&bed, &zones(here, a, elsewhere), &["pod1-1", "pod2-1"]);

    // The node moves to another zone.
    bed.manifests.write("node.yaml", &NODE.replace("zone: a", "zone: b")).unwrap();
    assert_served_by(&bed, &zones(there, there, elsewhere), &["pod2-2"]);
    proxy.stop().unwrap();
}
