//! The packet-flow tests of kube-proxy's nftables mode (runPacketFlowTests in
//! pkg/proxy/nftables/proxier_test.go): what becomes of the first packet of a connection, followed through what is
//! planned in both forms of the rules. Where kube-proxy's nftables mode does something else, the row says so.
//! `tests/bed/flows/table.rs` has most of them with real packets.

use std::net::SocketAddr;

use plan::event::Event;
use plan::model::{EndpointSlice, Node as NodeObject, Protocol, Service, ServiceKind};
use plan::settings::{LocalDetection, NodePortAddresses, RuleForm, Settings};
use plan::trace::{Client, Fate, Origin, Source};

use crate::node::{Node, THIS};
use crate::words::{
    CLUSTER, LOCAL, applied, ip, ips, port, service, slice, slice_with, sliced, unsliced,
};

const HERE: &str = "10.244.0.2:8080";
const AWAY: &str = "10.244.1.2:8080";
const BOTH: &str = "10.244.0.2:8080 10.244.1.2:8080";
const BOTH_MASQUERADED: &str = "10.244.0.2:8080 10.244.1.2:8080 masqueraded";
const HERE_MASQUERADED: &str = "10.244.0.2:8080 masqueraded";
const REFUSED: &str = "refused";
const DROPPED: &str = "dropped";

/// The node's addresses in its Node object.
const PRIMARY: [&str; 2] = ["192.0.2.10", "2001:db8::10"];

const ENDPOINTS: [&str; 2] = ["10.244.0.2@n1", "10.244.1.2@n2"];

/// A client (`pod`, `node`, `outside`, or an address: that of a pod if it begins with 10, this node's own if it is one),
/// the frontend that it asks, and what becomes of it.
type Row = (&'static str, &'static str, &'static str);

fn pods_of_cluster() -> LocalDetection {
    let networks = ["10.244.0.0/16", "fd00:244::/48"];
    LocalDetection::ClusterCidr(networks.map(|net| net.parse().unwrap()).into())
}

/// A node for each form of the rules, with pods known by the cluster's network.
fn nodes(change: impl Fn(&mut Settings)) -> [Node; 2] {
    [RuleForm::Iptables, RuleForm::Nftables].map(|rule_form| {
        let mut settings =
            Settings { rule_form, local_detection: pods_of_cluster(), ..Settings::new(THIS) };
        change(&mut settings);
        let others =
            ["127.0.0.1", "192.0.2.20", "10.244.0.1", "::1", "2001:db8::20", "fd00:244::1"];
        let addresses: Vec<&str> = PRIMARY.into_iter().chain(others).collect();
        let mut node = Node::with_addresses(settings, &addresses);
        node.run([Event::NodeApplied(Box::new(NodeObject {
            addresses: ips(&PRIMARY),
            pod_cidrs: ["10.244.0.0/24", "fd00:244::/64"].map(|net| net.parse().unwrap()).into(),
            ..NodeObject::default()
        }))]);
        node
    })
}

/// A Service of type LoadBalancer with every kind of frontend, and an endpoint on each side.
fn web() -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        ports: vec![port("http", "80:30080/TCP")],
        external: ips(&["198.51.100.7"]),
        load_balancer: ips(&["203.0.113.5"]),
        ..service("web", &["10.96.0.9"])
    }
}

fn served(
    change: impl Fn(&mut Settings),
    service: &Service,
    slices: &[&EndpointSlice],
) -> [Node; 2] {
    let mut nodes = nodes(change);
    for node in &mut nodes {
        node.run([applied(service)].into_iter().chain(slices.iter().map(|it| sliced(it))));
    }
    nodes
}

/// Fate of a client's packet to a frontend such as `TCP 10.96.0.9:80`, in words.
fn fate(node: &Node, client_word: &str, frontend: &str) -> String {
    let (protocol, destination) = frontend.split_once(' ').unwrap();
    let protocol = match protocol {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        _ => Protocol::Sctp,
    };
    let destination: SocketAddr = destination.parse().unwrap();
    let is_v6 = destination.is_ipv6();
    let client = match client_word {
        "node" => Client::Node,
        "pod" if is_v6 => Client::Pod(ip("fd00:244::9")),
        "pod" => Client::Pod(ip("10.244.0.9")),
        "outside" if is_v6 => Client::Elsewhere(ip("2001:db8:5::1")),
        "outside" => Client::Elsewhere(ip("192.168.7.1")),
        address if address.starts_with("10.") => Client::Pod(ip(address)),
        address => node.planner.client_at(ip(address)),
    };
    let mut packet = node.planner.packet_of(client, protocol, destination).unwrap();
    if let (Origin::Node, Ok(source)) = (&packet.origin, client_word.parse()) {
        packet.source.set_ip(source);
    }
    let ways = node.planner.trace(&packet).unwrap().ways;
    let mut words: Vec<String> = ways.into_iter().map(|way| in_words(&way.fate)).collect();
    words.sort_unstable();
    words.dedup();
    let masqueraded = words.iter().filter(|it| it.ends_with(" masqueraded")).count();
    match masqueraded == words.len() {
        true => words.join(" ").replace(" masqueraded", "") + " masqueraded",
        false => words.join(" "),
    }
}

fn in_words(fate: &Fate) -> String {
    match fate {
        Fate::Endpoint { endpoint, source: Source::Client(_) } => endpoint.to_string(),
        Fate::Endpoint { endpoint, source: Source::Node } => format!("{endpoint} masqueraded"),
        Fate::Unanswered { endpoint, .. } => format!("{endpoint} unanswered"),
        Fate::Refused { .. } => REFUSED.to_owned(),
        Fate::Dropped => DROPPED.to_owned(),
        Fate::Delivered => "delivered".to_owned(),
        Fate::PassedOn => "passed on".to_owned(),
    }
}

#[track_caller]
fn check(case: &str, nodes: &[Node; 2], rows: &[Row]) {
    for node in nodes {
        let form = node.planner.settings().rule_form;
        for (client, frontend, expected) in rows {
            let found = fate(node, client, frontend);
            assert_eq!(found, *expected, "{case}: {client} to {frontend}, {form:?}");
        }
    }
}

#[test]
fn a_packet_to_a_service_without_endpoints_is_refused() {
    let mut rows = Vec::new();
    for client in ["pod", "node", "outside"] {
        for frontend in [
            "TCP 10.96.0.9:80",
            "TCP 198.51.100.7:80",
            "TCP 203.0.113.5:80",
            "TCP 192.0.2.10:30080",
        ] {
            rows.push((client, frontend, REFUSED));
        }
    }
    check("no endpoints", &served(|_| {}, &web(), &[]), &rows);
}

#[test]
fn a_cluster_ip_has_the_ports_and_protocols_of_its_service_and_no_others() {
    let mut nodes = nodes(|_| {});
    let one = service("one", &["10.96.0.8"]);
    let many = Service {
        ports: vec![
            port("http", "80/TCP"),
            port("https", "443/TCP"),
            port("dns-udp", "53/UDP"),
            port("dns-tcp", "53/TCP"),
            port("dns-sctp", "53/SCTP"),
        ],
        ..service("many", &["10.96.0.9"])
    };
    let ports = [
        ("http", "8080/TCP"),
        ("https", "8443/TCP"),
        ("dns-udp", "53/UDP"),
        ("dns-tcp", "5353/TCP"),
        ("dns-sctp", "53/SCTP"),
    ];
    for node in &mut nodes {
        node.run([
            applied(&one),
            applied(&many),
            sliced(&slice("one-1", "one", &["10.244.0.2@n1"])),
            sliced(&slice_with("many-1", "many", &ports, &ENDPOINTS)),
        ]);
    }
    check(
        "two Services",
        &nodes,
        &[
            ("pod", "TCP 10.96.0.8:80", HERE),
            // The endpoint asks itself.
            ("10.244.0.2", "TCP 10.96.0.8:80", HERE_MASQUERADED),
            ("pod", "TCP 10.96.0.9:80", BOTH),
            ("pod", "TCP 10.96.0.9:443", "10.244.0.2:8443 10.244.1.2:8443"),
            ("pod", "TCP 10.96.0.9:53", "10.244.0.2:5353 10.244.1.2:5353"),
            ("pod", "UDP 10.96.0.9:53", "10.244.0.2:53 10.244.1.2:53"),
            ("pod", "SCTP 10.96.0.9:53", "10.244.0.2:53 10.244.1.2:53"),
            ("pod", "UDP 10.96.0.9:80", REFUSED),
            ("pod", "TCP 10.96.0.8:443", REFUSED),
            // kube-proxy's nftables mode drops what is for an address of the ServiceCIDRs that no Service has. In IPVS
            // mode, kube-proxy's and here, no rule knows the ServiceCIDRs.
            ("pod", "TCP 10.96.0.50:80", "passed on"),
        ],
    );
}

#[test]
fn source_ranges_are_about_load_balancer_ips_alone() {
    let web = Service {
        load_balancer: ips(&["203.0.113.5", "203.0.113.6"]),
        source_ranges: ["192.0.2.0/24", "192.168.7.0/25"].map(|net| net.parse().unwrap()).into(),
        ..web()
    };
    let nodes = served(|_| {}, &web, &[&slice("web-1", "web", &["10.244.0.2@n1"])]);
    check(
        "ranges",
        &nodes,
        &[
            ("pod", "TCP 10.96.0.9:80", HERE),
            ("outside", "TCP 192.0.2.10:30080", HERE_MASQUERADED),
            ("192.168.7.200", "TCP 192.0.2.10:30080", HERE_MASQUERADED),
            ("192.168.7.200", "TCP 198.51.100.7:80", HERE_MASQUERADED),
        ],
    );
    for balancer in ["TCP 203.0.113.5:80", "TCP 203.0.113.6:80"] {
        check(
            "ranges",
            &nodes,
            &[
                ("outside", balancer, HERE_MASQUERADED),
                ("192.168.7.200", balancer, DROPPED),
                ("pod", balancer, DROPPED),
                ("192.0.2.10", balancer, HERE_MASQUERADED),
                // The source that the kernel chooses is the load balancer IP, which is local.
                ("node", balancer, HERE_MASQUERADED),
            ],
        );
    }
}

#[test]
fn a_node_port_is_at_the_addresses_that_are_chosen() {
    let web = Service {
        kind: ServiceKind::NodePort,
        ports: vec![port("http", "80:30080/TCP")],
        ..service("web", &["10.96.0.9", "fd00:96::9"])
    };
    let v4 = slice("web-1", "web", &ENDPOINTS);
    let v6 = slice("web-2", "web", &["fd00:244::2@n1", "fd00:244:0:1::2@n2"]);
    const BOTH_V6: &str = "[fd00:244:0:1::2]:8080 [fd00:244::2]:8080";
    const BOTH_V6_MASQUERADED: &str = "[fd00:244:0:1::2]:8080 [fd00:244::2]:8080 masqueraded";
    let networks = ["192.0.2.0/28", "2001:db8::10/128"];
    let networks = networks.map(|net| net.parse().unwrap()).to_vec();
    let everywhere = ["192.0.2.0/24", "2001:db8::/64"].map(|net| net.parse().unwrap()).to_vec();
    for (case, addresses, second) in [
        // kube-proxy's nftables mode takes the primary ones unless others are chosen.
        ("all, the default", NodePortAddresses::All, true),
        ("networks with all of them", NodePortAddresses::Networks(everywhere), true),
        ("networks with the first ones", NodePortAddresses::Networks(networks), false),
        ("the primary ones", NodePortAddresses::Primary(Vec::new()), false),
    ] {
        let nodes = served(|it| it.node_port_addresses = addresses.clone(), &web, &[&v4, &v6]);
        check(
            case,
            &nodes,
            &[
                ("pod", "TCP 10.96.0.9:80", BOTH),
                ("outside", "TCP 192.0.2.10:30080", BOTH_MASQUERADED),
                ("node", "TCP 192.0.2.10:30080", BOTH_MASQUERADED),
                ("pod", "TCP [fd00:96::9]:80", BOTH_V6),
                ("outside", "TCP [2001:db8::10]:30080", BOTH_V6_MASQUERADED),
                ("node", "TCP [2001:db8::10]:30080", BOTH_V6_MASQUERADED),
            ],
        );
        let [at_v4, at_v6] = match second {
            true => [BOTH_MASQUERADED, BOTH_V6_MASQUERADED],
            false => ["delivered"; 2],
        };
        check(
            case,
            &nodes,
            &[
                ("outside", "TCP 192.0.2.20:30080", at_v4),
                ("outside", "TCP [2001:db8::20]:30080", at_v6),
            ],
        );
    }
}

#[test]
fn the_internal_policy_is_about_cluster_ips() {
    let several = ["10.244.0.2@n1", "10.244.0.3@n1", "10.244.1.2@n2"];
    let elsewhere = ["10.244.1.2@n2", "10.244.2.2@n3"];
    for (case, policy, endpoints, expected) in [
        ("Cluster", CLUSTER, &ENDPOINTS[..], BOTH),
        ("Local, one is here", LOCAL, &ENDPOINTS, HERE),
        ("Local, two are here", LOCAL, &several, "10.244.0.2:8080 10.244.0.3:8080"),
        ("Local, none is here", LOCAL, &elsewhere, DROPPED),
    ] {
        let web = Service { internal_policy: policy, ..service("web", &["10.96.0.9"]) };
        let endpoints = slice("web-1", "web", endpoints);
        let mut nodes = served(|_| {}, &web, &[&endpoints]);
        check(case, &nodes, &[("pod", "TCP 10.96.0.9:80", expected)]);
        for node in &mut nodes {
            node.run([unsliced(&endpoints)]);
        }
        check(&format!("{case}, then none"), &nodes, &[("pod", "TCP 10.96.0.9:80", REFUSED)]);
    }
}

/// Endpoints of a load balancer's Service, and the outcome for a pod at the cluster IP and for a client outside at the load
/// balancer IP.
type Terminating = (&'static str, &'static [&'static str], &'static str, &'static str);

#[track_caller]
fn check_terminating(web: &Service, cases: &[Terminating]) {
    for (case, endpoints, pod, outside) in cases {
        let endpoints = slice("web-1", "web", endpoints);
        let mut nodes = served(|_| {}, web, &[&endpoints]);
        let rows = [("pod", "TCP 10.96.0.9:80", *pod), ("outside", "TCP 203.0.113.5:80", *outside)];
        check(case, &nodes, &rows);
        for node in &mut nodes {
            node.run([unsliced(&endpoints)]);
        }
        let refused = rows.map(|(client, frontend, _)| (client, frontend, REFUSED));
        check(&format!("{case}, then none"), &nodes, &refused);
    }
}

#[test]
fn endpoints_that_terminate_serve_a_local_policy_where_none_is_ready_here() {
    check_terminating(
        &Service { external_policy: LOCAL, ..web() },
        &[
            (
                "some are ready",
                &[
                    "10.244.0.2@n1",
                    "10.244.0.3@n1",
                    "10.244.0.4@n1 terminating",
                    "10.244.0.5@n1 ended",
                    "10.244.1.2@n2",
                ],
                "10.244.0.2:8080 10.244.0.3:8080 10.244.1.2:8080",
                "10.244.0.2:8080 10.244.0.3:8080",
            ),
            (
                "all here terminate",
                &[
                    "10.244.0.2@n1 terminating",
                    "10.244.0.3@n1 terminating",
                    "10.244.0.4@n1 ended",
                    "10.244.1.2@n2",
                ],
                AWAY,
                "10.244.0.2:8080 10.244.0.3:8080",
            ),
            ("one elsewhere terminates", &["10.244.1.2@n2 terminating"], AWAY, DROPPED),
            ("none serves", &["10.244.0.2@n1 ended", "10.244.1.2@n2 ended"], REFUSED, REFUSED),
        ],
    );
}

#[test]
fn endpoints_that_terminate_serve_a_cluster_policy_where_none_is_ready() {
    check_terminating(
        &web(),
        &[
            (
                "some are ready",
                &[
                    "10.244.0.2@n1",
                    "10.244.0.3@n1",
                    "10.244.1.3@n2 terminating",
                    "10.244.1.4@n2 ended",
                    "10.244.1.2@n2",
                ],
                "10.244.0.2:8080 10.244.0.3:8080 10.244.1.2:8080",
                "10.244.0.2:8080 10.244.0.3:8080 10.244.1.2:8080 masqueraded",
            ),
            (
                "all terminate",
                &[
                    "10.244.0.2@n1 terminating",
                    "10.244.0.3@n1 terminating",
                    "10.244.1.4@n2 ended",
                    "10.244.1.2@n2 terminating",
                ],
                "10.244.0.2:8080 10.244.0.3:8080 10.244.1.2:8080",
                "10.244.0.2:8080 10.244.0.3:8080 10.244.1.2:8080 masqueraded",
            ),
            (
                "one elsewhere terminates",
                &["10.244.1.2@n2 terminating"],
                AWAY,
                "10.244.1.2:8080 masqueraded",
            ),
            ("none serves", &["10.244.0.2@n1 ended", "10.244.1.2@n2 ended"], REFUSED, REFUSED),
        ],
    );
}

/// Frontends of [`web`].
const CLUSTER_IP: &str = "TCP 10.96.0.9:80";
const EXTERNAL_IP: &str = "TCP 198.51.100.7:80";
const BALANCER: &str = "TCP 203.0.113.5:80";
const NODE_PORT: &str = "TCP 192.0.2.10:30080";

/// A client, the frontend that it asks, and what becomes of it: with pods known by the cluster's network, without, and both
/// with `masqueradeAll`.
type Masqueraded = (&'static str, &'static str, [&'static str; 4]);

#[track_caller]
fn check_masquerading(case: &str, web: &Service, rows: &[Masqueraded]) {
    let settings = [(true, false), (false, false), (true, true), (false, true)];
    for (column, (knows_pods, masquerade_all)) in settings.into_iter().enumerate() {
        let change = |it: &mut Settings| {
            it.masquerade_all = masquerade_all;
            if !knows_pods {
                it.local_detection = LocalDetection::None;
            }
        };
        let nodes = served(change, web, &[&slice("web-1", "web", &ENDPOINTS)]);
        let rows: Vec<Row> = rows
            .iter()
            .map(|(client, frontend, expected)| (*client, *frontend, expected[column]))
            .collect();
        check(
            &format!("{case}, knows pods: {knows_pods}, masqueradeAll: {masquerade_all}"),
            &nodes,
            &rows,
        );
    }
}

#[test]
fn who_is_masqueraded_follows_the_policy_the_frontend_and_the_client() {
    const ALL: [&str; 4] = [BOTH_MASQUERADED; 4];
    // Upstream's tests say that both get the packet, and no more. The one on the other node answers past this one.
    const ONE_UNANSWERED: &str = "10.244.0.2:8080 10.244.1.2:8080 unanswered";
    check_masquerading(
        "both policies are Cluster",
        &web(),
        &[
            ("pod", CLUSTER_IP, [BOTH, BOTH, BOTH_MASQUERADED, BOTH_MASQUERADED]),
            ("pod", EXTERNAL_IP, ALL),
            ("pod", BALANCER, ALL),
            ("pod", NODE_PORT, ALL),
            (
                "192.0.2.10",
                CLUSTER_IP,
                [BOTH_MASQUERADED, BOTH, BOTH_MASQUERADED, BOTH_MASQUERADED],
            ),
            ("192.0.2.10", BALANCER, ALL),
            ("192.0.2.10", NODE_PORT, ALL),
            (
                "outside",
                CLUSTER_IP,
                [BOTH_MASQUERADED, ONE_UNANSWERED, BOTH_MASQUERADED, BOTH_MASQUERADED],
            ),
            ("outside", EXTERNAL_IP, ALL),
            ("outside", BALANCER, ALL),
            ("outside", NODE_PORT, ALL),
        ],
    );
    check_masquerading(
        "externalTrafficPolicy is Local",
        &Service { external_policy: LOCAL, ..web() },
        &[
            ("pod", CLUSTER_IP, [BOTH, BOTH, BOTH_MASQUERADED, BOTH_MASQUERADED]),
            ("pod", EXTERNAL_IP, [BOTH, HERE, BOTH, HERE]),
            ("pod", BALANCER, [BOTH, HERE, BOTH, HERE]),
            ("pod", NODE_PORT, [BOTH, HERE, BOTH, HERE]),
            (
                "192.0.2.10",
                CLUSTER_IP,
                [BOTH_MASQUERADED, BOTH, BOTH_MASQUERADED, BOTH_MASQUERADED],
            ),
            ("192.0.2.10", BALANCER, ALL),
            ("192.0.2.10", NODE_PORT, ALL),
            (
                "outside",
                CLUSTER_IP,
                [BOTH_MASQUERADED, ONE_UNANSWERED, BOTH_MASQUERADED, BOTH_MASQUERADED],
            ),
            ("outside", EXTERNAL_IP, [HERE; 4]),
            ("outside", BALANCER, [HERE; 4]),
            ("outside", NODE_PORT, [HERE; 4]),
        ],
    );
    check_masquerading(
        "internalTrafficPolicy is Local",
        &Service { internal_policy: LOCAL, ..web() },
        &[
            ("pod", CLUSTER_IP, [HERE, HERE, HERE_MASQUERADED, HERE_MASQUERADED]),
            ("pod", BALANCER, ALL),
            ("pod", NODE_PORT, ALL),
            (
                "192.0.2.10",
                CLUSTER_IP,
                [HERE_MASQUERADED, HERE, HERE_MASQUERADED, HERE_MASQUERADED],
            ),
            ("192.0.2.10", BALANCER, ALL),
            ("192.0.2.10", NODE_PORT, ALL),
            ("outside", CLUSTER_IP, [HERE_MASQUERADED, HERE, HERE_MASQUERADED, HERE_MASQUERADED]),
            ("outside", BALANCER, ALL),
            ("outside", NODE_PORT, ALL),
        ],
    );
}
