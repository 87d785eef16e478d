//! TestNodePortIPv4, TestNodePortIPv6, TestOnlyLocalNodePorts: the exact state for node ports.

use plan::model::{Service, ServiceKind};
use plan::settings::{NodePortAddresses, Settings};

use crate::node::{Node, THIS, check};
use crate::words::{LOCAL, applied, port, service, slice_with, sliced};

const ADDRESSES: [&str; 6] =
    ["127.0.0.1", "192.0.2.10", "198.51.100.3", "::1", "2001:db8::10", "2001:db8:3::3"];

struct Row {
    name: &'static str,
    cluster: &'static str,
    /// As kubectl prints it.
    port: &'static str,
    local: bool,
    endpoints: &'static [&'static str],
    /// The whole state.
    expected: &'static [&'static str],
}

fn check_rows(rows: &[Row]) {
    for row in rows {
        let mut web = Service {
            kind: ServiceKind::NodePort,
            ports: vec![port("p", row.port)],
            ..service("web", &[row.cluster])
        };
        if row.local {
            web.external_policy = LOCAL;
        }
        let target = format!("8080/{}", web.ports[0].protocol);
        let endpoints = slice_with("web-1", "web", &[("p", &target)], row.endpoints);
        let mut node = Node::with_addresses(Settings::new(THIS), &ADDRESSES);
        node.run([applied(&web), sliced(&endpoints)]);
        check(row.name, &node.state(), row.expected);
    }
}

#[test]
fn ipv4_node_ports() {
    check_rows(&[
        Row {
            name: "TCP, with endpoints of both families",
            cluster: "10.96.0.9",
            port: "80:30080/TCP",
            local: false,
            endpoints: &["10.244.0.2@n1", "10.244.1.2@n2", "fd00:244::2@n1"],
            expected: &[
                "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "TCP 192.0.2.10:30080 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "TCP 198.51.100.3:30080 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "kube-ipvs0 10.96.0.9",
                "KUBE-CLUSTER-IP 10.96.0.9,tcp:80",
                "KUBE-IPVS-IPS 10.96.0.9",
                "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
                "KUBE-NODE-PORT-TCP 30080",
            ],
        },
        Row {
            name: "UDP",
            cluster: "10.96.0.9",
            port: "53:30053/UDP",
            local: false,
            endpoints: &["10.244.1.2@n2"],
            expected: &[
                "UDP 10.96.0.9:53 rr: 10.244.1.2:8080",
                "UDP 192.0.2.10:30053 rr: 10.244.1.2:8080",
                "UDP 198.51.100.3:30053 rr: 10.244.1.2:8080",
                "kube-ipvs0 10.96.0.9",
                "KUBE-CLUSTER-IP 10.96.0.9,udp:53",
                "KUBE-IPVS-IPS 10.96.0.9",
                "KUBE-NODE-PORT-UDP 30053",
            ],
        },
        Row {
            name: "no endpoints: kube-proxy has empty virtual servers",
            cluster: "10.96.0.9",
            port: "80:30080/TCP",
            local: false,
            endpoints: &[],
            expected: &[
                "kube-ipvs0 10.96.0.9",
                "KUBE-CLUSTER-IP 10.96.0.9,tcp:80",
                "KUBE-IPVS-IPS 10.96.0.9",
                "KUBE-NODE-PORT-TCP 30080",
                "KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80",
                "KUBE-NO-ENDPOINTS 192.0.2.10,tcp:30080",
                "KUBE-NO-ENDPOINTS 198.51.100.3,tcp:30080",
            ],
        },
    ]);
}

#[test]
fn ipv4_node_ports_of_sctp() {
    check_rows(&[
        Row {
            name: "SCTP has an entry for each of the node's addresses",
            cluster: "10.96.0.9",
            port: "80:30080/SCTP",
            local: false,
            endpoints: &["10.244.1.2@n2"],
            expected: &[
                "SCTP 10.96.0.9:80 rr: 10.244.1.2:8080",
                "SCTP 192.0.2.10:30080 rr: 10.244.1.2:8080",
                "SCTP 198.51.100.3:30080 rr: 10.244.1.2:8080",
                "kube-ipvs0 10.96.0.9",
                "KUBE-CLUSTER-IP 10.96.0.9,sctp:80",
                "KUBE-IPVS-IPS 10.96.0.9",
                "KUBE-NODE-PORT-SCTP-HASH 192.0.2.10,sctp:30080",
                "KUBE-NODE-PORT-SCTP-HASH 198.51.100.3,sctp:30080",
            ],
        },
        Row {
            name: "SCTP for this node's endpoints, with internal frontends",
            cluster: "10.96.0.9",
            port: "80:30080/SCTP",
            local: true,
            endpoints: &["10.244.0.2@n1", "10.244.1.2@n2"],
            expected: &[
                "SCTP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "SCTP 192.0.2.10:30080 rr: 10.244.0.2:8080",
                "SCTP 198.51.100.3:30080 rr: 10.244.0.2:8080",
                "SCTP 240.0.2.10:30080 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "SCTP 246.51.100.3:30080 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "kube-ipvs0 10.96.0.9",
                "kube-ipvs0 240.0.2.10",
                "kube-ipvs0 246.51.100.3",
                "KUBE-CLUSTER-IP 10.96.0.9,sctp:80",
                "KUBE-IPVS-IPS 10.96.0.9",
                "KUBE-IPVS-IPS 240.0.2.10",
                "KUBE-IPVS-IPS 246.51.100.3",
                "KUBE-LOOP-BACK 10.244.0.2,sctp:8080,10.244.0.2",
                "KUBE-NODE-PORT-SCTP-HASH 192.0.2.10,sctp:30080",
                "KUBE-NODE-PORT-SCTP-HASH 198.51.100.3,sctp:30080",
                "KUBE-NODE-PORT-LOCAL-SCTP-HASH 192.0.2.10,sctp:30080",
                "KUBE-NODE-PORT-LOCAL-SCTP-HASH 198.51.100.3,sctp:30080",
                "KUBE-INTERNAL-FRONTEND 192.0.2.10,sctp:30080",
                "KUBE-INTERNAL-FRONTEND 198.51.100.3,sctp:30080",
            ],
        },
    ]);
}

#[test]
fn ipv6_node_ports() {
    check_rows(&[
        Row {
            name: "TCP, with endpoints of both families",
            cluster: "fd00:96::9",
            port: "80:30080/TCP",
            local: false,
            endpoints: &["fd00:244::2@n1", "fd00:244:1::2@n2", "10.244.0.2@n1"],
            expected: &[
                "TCP [fd00:96::9]:80 rr: [fd00:244::2]:8080, [fd00:244:1::2]:8080",
                "TCP [2001:db8::10]:30080 rr: [fd00:244::2]:8080, [fd00:244:1::2]:8080",
                "TCP [2001:db8:3::3]:30080 rr: [fd00:244::2]:8080, [fd00:244:1::2]:8080",
                "kube-ipvs0 fd00:96::9",
                "KUBE-6-CLUSTER-IP fd00:96::9,tcp:80",
                "KUBE-6-IPVS-IPS fd00:96::9",
                "KUBE-6-LOOP-BACK fd00:244::2,tcp:8080,fd00:244::2",
                "KUBE-6-NODE-PORT-TCP 30080",
            ],
        },
        Row {
            name: "no endpoints",
            cluster: "fd00:96::9",
            port: "80:30080/UDP",
            local: false,
            endpoints: &[],
            expected: &[
                "kube-ipvs0 fd00:96::9",
                "KUBE-6-CLUSTER-IP fd00:96::9,udp:80",
                "KUBE-6-IPVS-IPS fd00:96::9",
                "KUBE-6-NODE-PORT-UDP 30080",
                "KUBE-6-NO-ENDPOINTS fd00:96::9,udp:80",
                "KUBE-6-NO-ENDPOINTS 2001:db8::10,udp:30080",
                "KUBE-6-NO-ENDPOINTS 2001:db8:3::3,udp:30080",
            ],
        },
        Row {
            name: "endpoints of IPv4 only",
            cluster: "fd00:96::9",
            port: "80:30080/TCP",
            local: false,
            endpoints: &["10.244.0.2@n1"],
            expected: &[
                "kube-ipvs0 fd00:96::9",
                "KUBE-6-CLUSTER-IP fd00:96::9,tcp:80",
                "KUBE-6-IPVS-IPS fd00:96::9",
                "KUBE-6-NODE-PORT-TCP 30080",
                "KUBE-6-NO-ENDPOINTS fd00:96::9,tcp:80",
                "KUBE-6-NO-ENDPOINTS 2001:db8::10,tcp:30080",
                "KUBE-6-NO-ENDPOINTS 2001:db8:3::3,tcp:30080",
            ],
        },
        Row {
            name: "SCTP for this node's endpoints, with internal frontends",
            cluster: "fd00:96::9",
            port: "80:30080/SCTP",
            local: true,
            endpoints: &["fd00:244:1::2@n2"],
            expected: &[
                "SCTP [fd00:96::9]:80 rr: [fd00:244:1::2]:8080",
                "SCTP [feff:db8::10]:30080 rr: [fd00:244:1::2]:8080",
                "SCTP [feff:db8:3::3]:30080 rr: [fd00:244:1::2]:8080",
                "kube-ipvs0 fd00:96::9",
                "kube-ipvs0 feff:db8::10",
                "kube-ipvs0 feff:db8:3::3",
                "KUBE-6-CLUSTER-IP fd00:96::9,sctp:80",
                "KUBE-6-IPVS-IPS fd00:96::9",
                "KUBE-6-IPVS-IPS feff:db8::10",
                "KUBE-6-IPVS-IPS feff:db8:3::3",
                "KUBE-6-NODE-PORT-SCTP-HASH 2001:db8::10,sctp:30080",
                "KUBE-6-NODE-PORT-SCTP-HASH 2001:db8:3::3,sctp:30080",
                "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS 2001:db8::10,sctp:30080",
                "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS 2001:db8:3::3,sctp:30080",
                "KUBE-6-NO-LOCAL-ENDPOINTS 2001:db8::10,sctp:30080",
                "KUBE-6-NO-LOCAL-ENDPOINTS 2001:db8:3::3,sctp:30080",
                "KUBE-6-INTERNAL-FRONTEND 2001:db8::10,sctp:30080",
                "KUBE-6-INTERNAL-FRONTEND 2001:db8:3::3,sctp:30080",
            ],
        },
    ]);
}

#[test]
fn node_ports_for_this_nodes_endpoints_at_chosen_addresses() {
    let mut settings = Settings::new(THIS);
    let networks = vec!["198.51.100.0/24".parse().unwrap(), "2001:db8:3::/48".parse().unwrap()];
    settings.node_port_addresses = NodePortAddresses::Networks(networks);
    let web = Service {
        kind: ServiceKind::NodePort,
        external_policy: LOCAL,
        ports: vec![port("http", "80:30080/TCP")],
        ..service("web", &["10.96.0.9", "fd00:96::9"])
    };
    let http = [("http", "8080/TCP")];
    let mut node = Node::with_addresses(settings, &ADDRESSES);
    node.run([
        applied(&web),
        sliced(&slice_with("web-4", "web", &http, &["10.244.0.2@n1", "10.244.1.2@n2"])),
        sliced(&slice_with("web-6", "web", &http, &["fd00:244::2@n1", "fd00:244:1::2@n2"])),
    ]);
    check(
        "virtual servers",
        &node.virtual_servers(),
        &[
            "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
            "TCP 198.51.100.3:30080 rr: 10.244.0.2:8080",
            "TCP 246.51.100.3:30080 rr: 10.244.0.2:8080, 10.244.1.2:8080",
            "TCP [fd00:96::9]:80 rr: [fd00:244::2]:8080, [fd00:244:1::2]:8080",
            "TCP [2001:db8:3::3]:30080 rr: [fd00:244::2]:8080",
            "TCP [feff:db8:3::3]:30080 rr: [fd00:244::2]:8080, [fd00:244:1::2]:8080",
        ],
    );
    check(
        "sets",
        &node.entries("KUBE-NODE-PORT"),
        &["KUBE-NODE-PORT-TCP 30080", "KUBE-NODE-PORT-LOCAL-TCP 30080"],
    );
    check(
        "sets of IPv6",
        &node.entries("KUBE-6-NODE-PORT"),
        &["KUBE-6-NODE-PORT-TCP 30080", "KUBE-6-NODE-PORT-LOCAL-TCP 30080"],
    );
}
