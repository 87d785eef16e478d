//! TestExternalIPsNoEndpoint, TestExternalIPs, TestOnlyLocalExternalIPs, TestLoadBalancer,
//! TestOnlyLocalLoadBalancing, TestLoadBalancerSourceRanges, TestAcceptIPVSTraffic: the exact state
//! for addresses from outside the cluster.

use plan::event::Event;
use plan::model::{Node as NodeObject, Service, ServiceKind};
use plan::settings::Settings;

use crate::node::{Node, THIS, check};
use crate::words::{LOCAL, applied, ips, port, removed, service, slice, sliced};

const CLUSTER_IP: [&str; 3] =
    ["kube-ipvs0 10.96.0.9", "KUBE-CLUSTER-IP 10.96.0.9,tcp:80", "KUBE-IPVS-IPS 10.96.0.9"];

fn with_external(addresses: &[&str]) -> Service {
    Service { external: ips(addresses), ..service("web", &["10.96.0.9"]) }
}

fn balanced(addresses: &[&str]) -> Service {
    let kind = ServiceKind::LoadBalancer;
    Service { kind, load_balancer: ips(addresses), ..service("web", &["10.96.0.9"]) }
}

fn state(service: &Service, endpoints: &[&str]) -> Node {
    Node::after([applied(service), sliced(&slice("web-1", "web", endpoints))])
}

fn beside_cluster_ip(expected: &[&'static str]) -> Vec<&'static str> {
    [&CLUSTER_IP, expected].concat()
}

#[test]
fn external_addresses() {
    let endpoints = ["10.244.0.2@n1", "10.244.1.2@n2"];
    for (row, service, endpoints, expected) in [
        (
            "without endpoints",
            with_external(&["198.51.100.7"]),
            &[][..],
            &[
                "kube-ipvs0 198.51.100.7",
                "KUBE-IPVS-IPS 198.51.100.7",
                "KUBE-EXTERNAL-IP 198.51.100.7,tcp:80",
                "KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80",
                "KUBE-NO-ENDPOINTS 198.51.100.7,tcp:80",
            ][..],
        ),
        (
            "two, one of the other family, one that nobody can have",
            with_external(&["198.51.100.7", "198.51.100.8", "2001:db8:7::7", "127.0.0.1"]),
            &endpoints,
            &[
                "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "TCP 198.51.100.7:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "TCP 198.51.100.8:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "kube-ipvs0 198.51.100.7",
                "kube-ipvs0 198.51.100.8",
                "KUBE-IPVS-IPS 198.51.100.7",
                "KUBE-IPVS-IPS 198.51.100.8",
                "KUBE-EXTERNAL-IP 198.51.100.7,tcp:80",
                "KUBE-EXTERNAL-IP 198.51.100.8,tcp:80",
                "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
            ],
        ),
    ] {
        check(row, &state(&service, endpoints).state(), &beside_cluster_ip(expected));
    }
}

#[test]
fn external_addresses_for_this_nodes_endpoints() {
    let local = |addresses: &[&str]| Service { external_policy: LOCAL, ..with_external(addresses) };
    let endpoints = ["10.244.0.2@n1", "10.244.1.2@n2"];
    for (row, service, endpoints, expected) in [
        (
            "for this node's endpoints, with an internal frontend for the cluster's own clients",
            local(&["198.51.100.7"]),
            &endpoints[..],
            &[
                "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "TCP 198.51.100.7:80 rr: 10.244.0.2:8080",
                "TCP 246.51.100.7:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "kube-ipvs0 198.51.100.7",
                "kube-ipvs0 246.51.100.7",
                "KUBE-IPVS-IPS 198.51.100.7",
                "KUBE-IPVS-IPS 246.51.100.7",
                "KUBE-EXTERNAL-IP-LOCAL 198.51.100.7,tcp:80",
                "KUBE-INTERNAL-FRONTEND 198.51.100.7,tcp:80",
                "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
            ][..],
        ),
        (
            "for this node's endpoints, of which there are none: kube-proxy uses the others",
            local(&["198.51.100.7"]),
            &["10.244.1.2@n2"],
            &[
                "TCP 10.96.0.9:80 rr: 10.244.1.2:8080",
                "TCP 246.51.100.7:80 rr: 10.244.1.2:8080",
                "kube-ipvs0 198.51.100.7",
                "kube-ipvs0 246.51.100.7",
                "KUBE-IPVS-IPS 198.51.100.7",
                "KUBE-IPVS-IPS 246.51.100.7",
                "KUBE-EXTERNAL-IP-LOCAL 198.51.100.7,tcp:80",
                "KUBE-INTERNAL-FRONTEND 198.51.100.7,tcp:80",
                "KUBE-NO-LOCAL-ENDPOINTS 198.51.100.7,tcp:80",
            ],
        ),
        (
            "for this node's endpoints, and there are none anywhere",
            local(&["198.51.100.7"]),
            &["10.244.0.2@n1 unready"],
            &[
                "kube-ipvs0 198.51.100.7",
                "KUBE-IPVS-IPS 198.51.100.7",
                "KUBE-EXTERNAL-IP-LOCAL 198.51.100.7,tcp:80",
                "KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80",
                "KUBE-NO-ENDPOINTS 198.51.100.7,tcp:80",
                "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
            ],
        ),
    ] {
        check(row, &state(&service, endpoints).state(), &beside_cluster_ip(expected));
    }
}

#[test]
fn load_balancers_addresses() {
    let local = |addresses: &[&str]| Service { external_policy: LOCAL, ..balanced(addresses) };
    let endpoints = ["10.244.0.2@n1", "10.244.1.2@n2"];
    for (row, service, endpoints, expected) in [
        (
            "one, and one of the other family",
            balanced(&["203.0.113.5", "2001:db8:5::5"]),
            &endpoints[..],
            &[
                "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "TCP 203.0.113.5:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "kube-ipvs0 203.0.113.5",
                "KUBE-IPVS-IPS 203.0.113.5",
                "KUBE-LOAD-BALANCER 203.0.113.5,tcp:80",
                "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
            ][..],
        ),
        (
            "for this node's endpoints",
            local(&["203.0.113.5"]),
            &endpoints,
            &[
                "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "TCP 203.0.113.5:80 rr: 10.244.0.2:8080",
                "TCP 251.0.113.5:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "kube-ipvs0 203.0.113.5",
                "kube-ipvs0 251.0.113.5",
                "KUBE-IPVS-IPS 203.0.113.5",
                "KUBE-IPVS-IPS 251.0.113.5",
                "KUBE-LOAD-BALANCER 203.0.113.5,tcp:80",
                "KUBE-LOAD-BALANCER-LOCAL 203.0.113.5,tcp:80",
                "KUBE-INTERNAL-FRONTEND 203.0.113.5,tcp:80",
                "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
            ],
        ),
        (
            "left over after the type changed: the policy says nothing any more",
            Service { kind: ServiceKind::ClusterIp, ..local(&["203.0.113.5"]) },
            &["10.244.1.2@n2"],
            &[
                "TCP 10.96.0.9:80 rr: 10.244.1.2:8080",
                "TCP 203.0.113.5:80 rr: 10.244.1.2:8080",
                "kube-ipvs0 203.0.113.5",
                "KUBE-IPVS-IPS 203.0.113.5",
                "KUBE-LOAD-BALANCER 203.0.113.5,tcp:80",
            ],
        ),
        (
            "without endpoints",
            balanced(&["203.0.113.5"]),
            &[],
            &[
                "kube-ipvs0 203.0.113.5",
                "KUBE-IPVS-IPS 203.0.113.5",
                "KUBE-LOAD-BALANCER 203.0.113.5,tcp:80",
                "KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80",
                "KUBE-NO-ENDPOINTS 203.0.113.5,tcp:80",
            ],
        ),
    ] {
        check(row, &state(&service, endpoints).state(), &beside_cluster_ip(expected));
    }
}

/// Clients that may use a load balancer's address.
#[test]
fn source_ranges() {
    const FIREWALL: &str = "KUBE-LOAD-BALANCER-FW 203.0.113.5,tcp:80";
    let object = NodeObject { addresses: ips(&["192.0.2.10"]), ..NodeObject::default() };
    let node = Event::NodeApplied(Box::new(object));
    for (row, ranges, local, expected) in [
        ("none: everybody", &[][..], false, &[][..]),
        (
            "one",
            &["10.0.0.0/8"],
            false,
            &[FIREWALL, "KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.5,tcp:80,10.0.0.0/8"],
        ),
        (
            "with bits behind the prefix",
            &["10.1.2.3/8"],
            false,
            &[FIREWALL, "KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.5,tcp:80,10.0.0.0/8"],
        ),
        (
            "one that holds this node, whose own clients come from the address itself",
            &["192.0.2.0/24"],
            false,
            &[
                FIREWALL,
                "KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.5,tcp:80,192.0.2.0/24",
                "KUBE-LOAD-BALANCER-SOURCE-IP 203.0.113.5,tcp:80,203.0.113.5",
            ],
        ),
        (
            "several, one of the other family",
            &["10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"],
            false,
            &[
                FIREWALL,
                "KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.5,tcp:80,10.0.0.0/8",
                "KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.5,tcp:80,192.0.2.1/32",
            ],
        ),
        ("of the other family only: everybody", &["2001:db8::/32"], false, &[]),
        ("one that holds everybody: everybody", &["10.0.0.0/8", "0.0.0.0/0"], false, &[]),
        (
            "for this node's endpoints: for the internal frontend just the same",
            &["10.0.0.0/8"],
            true,
            &[
                FIREWALL,
                "KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.5,tcp:80,10.0.0.0/8",
                "KUBE-LOAD-BALANCER-FW 251.0.113.5,tcp:80",
                "KUBE-LOAD-BALANCER-SOURCE-CIDR 251.0.113.5,tcp:80,10.0.0.0/8",
                "KUBE-LOAD-BALANCER-LOCAL 203.0.113.5,tcp:80",
            ],
        ),
    ] {
        let mut service = balanced(&["203.0.113.5"]);
        service.source_ranges = ranges.iter().map(|net| net.parse().unwrap()).collect();
        if local {
            service.external_policy = LOCAL;
        }
        let mut run = state(&service, &["10.244.0.2@n1"]);
        run.run([node.clone()]);
        let expected = [expected, &["KUBE-LOAD-BALANCER 203.0.113.5,tcp:80"]].concat();
        check(row, &run.entries("KUBE-LOAD-BALANCER"), &expected);
        service.source_ranges.clear();
        run.run([applied(&service)]);
        assert_eq!(run.set("KUBE-LOAD-BALANCER-FW"), [].into(), "{row}, then for everybody");
        assert_eq!(run.set("KUBE-LOAD-BALANCER-SOURCE-CIDR"), [].into(), "{row}");
        assert_eq!(run.set("KUBE-LOAD-BALANCER-SOURCE-IP"), [].into(), "{row}");
    }
}

/// Restricting does not restrict what is no load balancer's.
#[test]
fn source_ranges_are_for_load_balancers_addresses_only() {
    let mut service = balanced(&["203.0.113.5"]);
    service.external = ips(&["198.51.100.7"]);
    service.ports = vec![port("http", "80:30080/TCP")];
    service.source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
    let node = state(&service, &["10.244.1.2@n2"]);
    let restricted = node.set("KUBE-LOAD-BALANCER-FW");
    assert_eq!(restricted, ["203.0.113.5,tcp:80".to_owned()].into());
}

#[test]
fn every_kind_of_address_is_in_its_own_set() {
    let mut service = balanced(&["203.0.113.5"]);
    service.external = ips(&["198.51.100.7"]);
    service.ports = vec![port("http", "80:30080/TCP")];
    let mut node = state(&service, &["10.244.1.2@n2"]);
    check(
        "all kinds",
        &node.state(),
        &beside_cluster_ip(&[
            "TCP 10.96.0.9:80 rr: 10.244.1.2:8080",
            "TCP 198.51.100.7:80 rr: 10.244.1.2:8080",
            "TCP 203.0.113.5:80 rr: 10.244.1.2:8080",
            "TCP 192.0.2.10:30080 rr: 10.244.1.2:8080",
            "kube-ipvs0 198.51.100.7",
            "kube-ipvs0 203.0.113.5",
            "KUBE-IPVS-IPS 198.51.100.7",
            "KUBE-IPVS-IPS 203.0.113.5",
            "KUBE-EXTERNAL-IP 198.51.100.7,tcp:80",
            "KUBE-LOAD-BALANCER 203.0.113.5,tcp:80",
            "KUBE-NODE-PORT-TCP 30080",
        ]),
    );
    node.run([removed(&service)]);
    assert_eq!(node.state(), [].into());
}

/// A load balancer's Service with everything that one can have, for this node's endpoints.
#[test]
fn a_service_with_everything() {
    let mut service = balanced(&["203.0.113.5"]);
    service.external = ips(&["198.51.100.7"]);
    service.ports = vec![port("http", "80:30080/TCP")];
    service.external_policy = LOCAL;
    service.health_check_node_port = Some(crate::words::number(31_000));
    service.source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
    let mut node = Node::with_addresses(Settings::new(THIS), &["127.0.0.1", "192.0.2.10"]);
    node.run([
        applied(&service),
        sliced(&slice("web-1", "web", &["10.244.0.2@n1", "10.244.1.2@n2"])),
    ]);
    check(
        "everything",
        &node.state(),
        &beside_cluster_ip(&[
            "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
            "TCP 198.51.100.7:80 rr: 10.244.0.2:8080",
            "TCP 246.51.100.7:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
            "TCP 203.0.113.5:80 rr: 10.244.0.2:8080",
            "TCP 251.0.113.5:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
            "TCP 192.0.2.10:30080 rr: 10.244.0.2:8080",
            "TCP 240.0.2.10:30080 rr: 10.244.0.2:8080, 10.244.1.2:8080",
            "kube-ipvs0 198.51.100.7",
            "kube-ipvs0 203.0.113.5",
            "kube-ipvs0 246.51.100.7",
            "kube-ipvs0 251.0.113.5",
            "kube-ipvs0 240.0.2.10",
            "KUBE-IPVS-IPS 198.51.100.7",
            "KUBE-IPVS-IPS 203.0.113.5",
            "KUBE-IPVS-IPS 246.51.100.7",
            "KUBE-IPVS-IPS 251.0.113.5",
            "KUBE-IPVS-IPS 240.0.2.10",
            "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
            "KUBE-EXTERNAL-IP-LOCAL 198.51.100.7,tcp:80",
            "KUBE-LOAD-BALANCER 203.0.113.5,tcp:80",
            "KUBE-LOAD-BALANCER-LOCAL 203.0.113.5,tcp:80",
            "KUBE-LOAD-BALANCER-FW 203.0.113.5,tcp:80",
            "KUBE-LOAD-BALANCER-FW 251.0.113.5,tcp:80",
            "KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.5,tcp:80,10.0.0.0/8",
            "KUBE-LOAD-BALANCER-SOURCE-CIDR 251.0.113.5,tcp:80,10.0.0.0/8",
            "KUBE-NODE-PORT-TCP 30080",
            "KUBE-NODE-PORT-LOCAL-TCP 30080",
            "KUBE-HEALTH-CHECK-NODE-PORT 31000",
            "KUBE-INTERNAL-FRONTEND 198.51.100.7,tcp:80",
            "KUBE-INTERNAL-FRONTEND 203.0.113.5,tcp:80",
            "KUBE-INTERNAL-FRONTEND 192.0.2.10,tcp:30080",
        ]),
    );
}
