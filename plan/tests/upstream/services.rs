//! TestBuildServiceMapAddRemove, …ServiceHeadless, …ServiceUpdate, TestServiceToServiceMap,
//! TestIPv4Proxier, TestIPv6Proxier, TestIPv4ProxierWithNoEndpoints: what of a Service is served.

use plan::model::{Family, Service, ServiceKind};
use plan::settings::Settings;

use crate::node::{Node, THIS, check};
use crate::words::{
    LOCAL, applied, ip, ips, number, port, removed, service, slice, sliced, unsliced,
};

#[test]
fn a_service_comes_and_goes_without_a_trace() {
    let mut node = Node::after([]);
    let before = node.kernel.actual().clone();
    let many = Service {
        kind: ServiceKind::LoadBalancer,
        external: ips(&["198.51.100.7"]),
        load_balancer: ips(&["203.0.113.5"]),
        source_ranges: vec!["192.0.2.0/24".parse().unwrap()],
        external_policy: LOCAL,
        health_check_node_port: Some(number(31_000)),
        ports: vec![port("http", "80:30080/TCP"), port("dns", "53:30053/UDP")],
        ..service("web", &["10.96.0.9"])
    };
    let endpoints = slice("web-1", "web", &["10.244.0.2@n1", "10.244.1.2@n2"]);
    node.run([applied(&many), sliced(&endpoints)]);
    assert_ne!(*node.kernel.actual(), before);
    node.run([removed(&many)]);
    assert_eq!(*node.kernel.actual(), before, "its endpoints stay known, and serve nobody");
    node.run([applied(&many)]);
    node.run([unsliced(&endpoints), removed(&many)]);
    assert_eq!(*node.kernel.actual(), before);
}

#[test]
fn one_of_two_services_is_removed() {
    let web = service("web", &["10.96.0.9"]);
    let dns = Service { ports: vec![port("http", "53/UDP")], ..service("dns", &["10.96.0.10"]) };
    let mut ports = slice("dns-1", "dns", &["10.244.1.53@n2"]);
    ports.ports[0].protocol = plan::model::Protocol::Udp;
    let web_slice = slice("web-1", "web", &["10.244.1.2@n2"]);
    let mut node = Node::after([applied(&web), applied(&dns), sliced(&ports), sliced(&web_slice)]);
    let of_dns = [
        "UDP 10.96.0.10:53 rr: 10.244.1.53:8080",
        "kube-ipvs0 10.96.0.10",
        "KUBE-CLUSTER-IP 10.96.0.10,udp:53",
        "KUBE-IPVS-IPS 10.96.0.10",
    ];
    let of_web = [
        "TCP 10.96.0.9:80 rr: 10.244.1.2:8080",
        "kube-ipvs0 10.96.0.9",
        "KUBE-CLUSTER-IP 10.96.0.9,tcp:80",
        "KUBE-IPVS-IPS 10.96.0.9",
    ];
    check("both", &node.state(), &[of_dns, of_web].concat());
    node.run([removed(&web)]);
    check("one removed", &node.state(), &of_dns);
}

/// Each step is a Service's new state, and what is served then.
#[test]
fn an_updated_service_is_served_as_it_is_now() {
    let endpoints = slice("web-1", "web", &["10.244.0.2@n1"]);
    let mut node = Node::after([sliced(&endpoints)]);
    let cluster_ip = service("web", &["10.96.0.9"]);
    let node_port = Service {
        kind: ServiceKind::NodePort,
        ports: vec![port("http", "80:30080/TCP")],
        ..cluster_ip.clone()
    };
    let load_balancer = Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer: ips(&["203.0.113.5"]),
        ..node_port.clone()
    };
    let other_port = Service { ports: vec![port("http", "81:30081/TCP")], ..load_balancer.clone() };
    let renamed = Service { ports: vec![port("other", "81/TCP")], ..cluster_ip.clone() };
    let moved = service("web", &["10.96.0.11"]);
    let cluster_only = ["TCP 10.96.0.9:80 rr: 10.244.0.2:8080"];
    for (step, service, expected) in [
        ("ClusterIP", &cluster_ip, &cluster_only[..]),
        (
            "NodePort",
            &node_port,
            &["TCP 10.96.0.9:80 rr: 10.244.0.2:8080", "TCP 192.0.2.10:30080 rr: 10.244.0.2:8080"],
        ),
        (
            "LoadBalancer",
            &load_balancer,
            &[
                "TCP 10.96.0.9:80 rr: 10.244.0.2:8080",
                "TCP 192.0.2.10:30080 rr: 10.244.0.2:8080",
                "TCP 203.0.113.5:80 rr: 10.244.0.2:8080",
            ],
        ),
        (
            "other ports",
            &other_port,
            &[
                "TCP 10.96.0.9:81 rr: 10.244.0.2:8080",
                "TCP 192.0.2.10:30081 rr: 10.244.0.2:8080",
                "TCP 203.0.113.5:81 rr: 10.244.0.2:8080",
            ],
        ),
        ("a port of a name that no endpoint has", &renamed, &[]),
        ("ClusterIP again", &cluster_ip, &cluster_only),
        ("another address", &moved, &["TCP 10.96.0.11:80 rr: 10.244.0.2:8080"]),
    ] {
        node.run([applied(service)]);
        check(step, &node.virtual_servers(), expected);
    }
    check("addresses", &node.addresses(), &["kube-ipvs0 10.96.0.11"]);
}

#[test]
fn the_same_again_changes_nothing() {
    let web = service("web", &["10.96.0.9"]);
    let endpoints = slice("web-1", "web", &["10.244.0.2@n1"]);
    let mut node = Node::after([applied(&web), sliced(&endpoints)]);
    let plan = node.run([applied(&web), sliced(&endpoints)]);
    assert_eq!((plan.ops, plan.problems), (vec![], vec![]));
    assert!(!node.planner.is_dirty());
}

/// A headless Service has no cluster address, and so nothing to serve; nor is there anything in a
/// family in which it has none, whatever else it has of that family.
#[test]
fn a_service_is_served_in_the_families_in_which_it_has_a_cluster_address() {
    let with = |cluster: &[&str]| Service {
        kind: ServiceKind::LoadBalancer,
        external: ips(&["198.51.100.7", "2001:db8:7::7"]),
        load_balancer: ips(&["203.0.113.5", "2001:db8:5::5"]),
        ports: vec![port("http", "80:30080/TCP")],
        ..service("web", cluster)
    };
    let v4 = [
        "TCP 10.96.0.9:80 rr: 10.244.0.2:8080",
        "TCP 198.51.100.7:80 rr: 10.244.0.2:8080",
        "TCP 203.0.113.5:80 rr: 10.244.0.2:8080",
        "TCP 192.0.2.10:30080 rr: 10.244.0.2:8080",
    ];
    let v6 = [
        "TCP [fd00:96::9]:80 rr: [fd00:244::2]:8080",
        "TCP [2001:db8:7::7]:80 rr: [fd00:244::2]:8080",
        "TCP [2001:db8:5::5]:80 rr: [fd00:244::2]:8080",
        "TCP [2001:db8::10]:30080 rr: [fd00:244::2]:8080",
    ];
    let both = [v4, v6].concat();
    let families = |families: &[Family]| {
        let mut settings = Settings::new(THIS);
        settings.families = families.to_vec();
        settings
    };
    use Family::{V4, V6};
    for (row, settings, cluster, expected) in [
        ("IPv4", families(&[V4, V6]), &["10.96.0.9"][..], &v4[..]),
        ("IPv6", families(&[V4, V6]), &["fd00:96::9"], &v6),
        ("both", families(&[V4, V6]), &["10.96.0.9", "fd00:96::9"], &both),
        ("headless", families(&[V4, V6]), &[], &[]),
        ("both, the node has IPv4 only", families(&[V4]), &["10.96.0.9", "fd00:96::9"], &v4),
        ("both, the node has IPv6 only", families(&[V6]), &["10.96.0.9", "fd00:96::9"], &v6),
        ("IPv4, the node has IPv6 only", families(&[V6]), &["10.96.0.9"], &[]),
    ] {
        let mut node = Node::new(settings);
        let slices = [
            sliced(&slice("web-4", "web", &["10.244.0.2@n1"])),
            sliced(&slice("web-6", "web", &["fd00:244::2@n1"])),
        ];
        node.run(slices.into_iter().chain([applied(&with(cluster))]));
        check(row, &node.virtual_servers(), expected);
        if expected.is_empty() {
            assert_eq!(node.state(), [].into(), "{row}");
        }
    }
}

#[test]
fn services_of_either_family_live_side_by_side() {
    let node = Node::after([
        applied(&service("four", &["10.96.0.4"])),
        applied(&service("six", &["fd00:96::6"])),
        applied(&service("lonely", &["10.96.0.5", "fd00:96::5"])),
        sliced(&slice("four-1", "four", &["10.244.1.4@n2"])),
        sliced(&slice("six-1", "six", &["fd00:244:1::6@n2"])),
    ]);
    check(
        "with endpoints, and without",
        &node.state(),
        &[
            "TCP 10.96.0.4:80 rr: 10.244.1.4:8080",
            "TCP [fd00:96::6]:80 rr: [fd00:244:1::6]:8080",
            "kube-ipvs0 10.96.0.4",
            "kube-ipvs0 10.96.0.5",
            "kube-ipvs0 fd00:96::5",
            "kube-ipvs0 fd00:96::6",
            "KUBE-CLUSTER-IP 10.96.0.4,tcp:80",
            "KUBE-CLUSTER-IP 10.96.0.5,tcp:80",
            "KUBE-6-CLUSTER-IP fd00:96::5,tcp:80",
            "KUBE-6-CLUSTER-IP fd00:96::6,tcp:80",
            "KUBE-NO-ENDPOINTS 10.96.0.5,tcp:80",
            "KUBE-6-NO-ENDPOINTS fd00:96::5,tcp:80",
            "KUBE-IPVS-IPS 10.96.0.4",
            "KUBE-IPVS-IPS 10.96.0.5",
            "KUBE-6-IPVS-IPS fd00:96::5",
            "KUBE-6-IPVS-IPS fd00:96::6",
        ],
    );
}

#[test]
fn a_port_number_may_be_there_once_a_protocol() {
    let ports = vec![port("dns", "53/UDP"), port("dns-tcp", "53/TCP"), port("m", "53/SCTP")];
    let dns = Service { ports, ..service("dns", &["10.96.0.10"]) };
    let endpoints = crate::words::slice_with(
        "dns-1",
        "dns",
        &[("dns", "5353/UDP"), ("dns-tcp", "5354/TCP"), ("m", "5355/SCTP")],
        &["10.244.1.53@n2"],
    );
    let node = Node::after([applied(&dns), sliced(&endpoints)]);
    check(
        "three protocols",
        &node.virtual_servers(),
        &[
            "TCP 10.96.0.10:53 rr: 10.244.1.53:5354",
            "UDP 10.96.0.10:53 rr: 10.244.1.53:5353",
            "SCTP 10.96.0.10:53 rr: 10.244.1.53:5355",
        ],
    );
}

/// The order in which objects come, and whether they come together, makes no difference.
#[test]
fn endpoints_may_be_known_before_their_service() {
    let web = applied(&service("web", &["10.96.0.9"]));
    let endpoints = sliced(&slice("web-1", "web", &["10.244.0.2@n1"]));
    let together = Node::after([web.clone(), endpoints.clone()]);
    let mut endpoints_first = Node::after([endpoints.clone()]);
    assert_eq!(endpoints_first.state(), [].into());
    endpoints_first.run([web.clone()]);
    let mut service_first = Node::after([web]);
    service_first.run([endpoints]);
    assert_eq!(endpoints_first.kernel, together.kernel);
    assert_eq!(service_first.kernel, together.kernel);
    assert!(together.planner.desired().has_address(ip("10.96.0.9")));
}
