//! The pod sees the right source address: masquerading happens exactly when it should.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use bed::{Namespace, Protocol, Question, Refusal, Service, Tally};

use crate::fixture::{Bed, PROTOCOLS, TARGET, assert_shares, ip, web};

const CLUSTER: [&str; 2] = ["10.96.0.10", "fd00:96::10"];

fn sources(tally: &Tally) -> BTreeSet<IpAddr> {
    assert_eq!(tally.refused(), 0, "{tally}");
    tally.sources()
}

fn set(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

/// The sources that the pod `pod1-1` sees for both families of cluster addresses.
fn seen(bed: &Bed, from: &Namespace) -> BTreeSet<IpAddr> {
    let tallies = CLUSTER.map(|target| bed.ask(from, Protocol::Tcp, (ip(target), 80), 2));
    tallies.iter().flat_map(sources).collect()
}

#[test]
fn a_cluster_address_masquerades_what_is_not_local_pod_traffic() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let node = "apiVersion: v1\nkind: Node\nmetadata:\n  name: node1\nspec:\n  podCIDRs:\n  - \
                10.244.1.0/24\n  - fd00:244:1::/64\n";
    bed.manifests.write("node.yaml", node).unwrap();
    let pod = set(&["10.244.1.12", "fd00:244:1::12"]);
    let bridge = set(&["10.244.1.1", "fd00:244:1::1"]);
    let client = set(&["192.168.0.100", "fd00:192::100"]);
    let cases: [(&[&str], &BTreeSet<IpAddr>, &BTreeSet<IpAddr>); 6] = [
        (&["--cluster-cidr=10.244.0.0/16,fd00:244::/32"], &pod, &bridge),
        (&["--detect-local-mode=NodeCIDR"], &pod, &bridge),
        (&["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"], &pod, &bridge),
        (
            &["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=cni"],
            &pod,
            &bridge,
        ),
        // Nothing is known of local traffic: nothing is masqueraded, unless everything is.
        (&["--detect-local-mode=ClusterCIDR"], &pod, &client),
        (&["--masquerade-all"], &bridge, &bridge),
    ];
    for (arguments, from_pod, from_outside) in cases {
        let proxy = bed.start(arguments);
        assert_eq!(&seen(&bed, &bed.pod(1, 2).namespace), from_pod, "a pod, {arguments:?}");
        assert_eq!(&seen(&bed, bed.client()), from_outside, "a client, {arguments:?}");
        proxy.stop().unwrap();
    }
}

/// The network of the pods may contain the service range, or be it: the node's own connections have a
/// cluster IP as their source, and still are no pods'.
#[test]
fn the_nodes_own_connections_are_masqueraded_although_cluster_cidr_contains_the_service_range() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(2, 1)])).unwrap();
    let node = set(&["192.168.0.11", "fd00:192::11"]);
    for cluster_cidr in ["10.0.0.0/8,fd00::/16", "10.96.0.0/12,fd00:96::/108"] {
        let proxy = bed.start(&[&format!("--cluster-cidr={cluster_cidr}")]);
        assert_eq!(seen(&bed, bed.node()), node, "{cluster_cidr}");
        let pod = seen(&bed, &bed.pod(1, 2).namespace);
        if cluster_cidr.starts_with("10.0.0.0/8") {
            assert_eq!(pod, set(&["10.244.1.12", "fd00:244:1::12"]));
        }
        proxy.stop().unwrap();
    }
}

#[test]
fn external_frontends_masquerade_all_clients() {
    let bed = Bed::new();
    let mut service = Service::new("public", ip("10.96.0.40"))
        .node_port(Protocol::Tcp, 80, TARGET, 30_090)
        .node_port(Protocol::Sctp, 80, TARGET, 30_091)
        .pods([bed.pod(1, 1)]);
    service.external = vec![ip("198.51.100.8")];
    service.load_balancer = vec![ip("203.0.113.8")];
    bed.manifests.apply(&service).unwrap();
    let _proxy = bed.start(&[]);
    let bridge = set(&["10.244.1.1"]);
    for from in [bed.client(), &bed.pod(1, 2).namespace] {
        for (protocol, target, port) in [
            (Protocol::Tcp, "198.51.100.8", 80),
            (Protocol::Tcp, "203.0.113.8", 80),
            (Protocol::Tcp, "192.168.0.11", 30_090),
            (Protocol::Sctp, "192.168.0.11", 30_091),
        ] {
            let tally = bed.ask(from, protocol, (ip(target), port), 2);
            assert_eq!(sources(&tally), bridge, "{target}: {tally}");
        }
    }
}

#[test]
fn a_local_policy_keeps_the_clients_address_and_stays_on_this_node() {
    let bed = Bed::new();
    let mut service = Service::new("near", ip("10.96.0.41"))
        .node_port(Protocol::Tcp, 80, TARGET, 30_092)
        .pods([bed.pod(1, 1), bed.pod(2, 1)]);
    service.external = vec![ip("198.51.100.9")];
    service.load_balancer = vec![ip("203.0.113.9")];
    service.more = vec!["externalTrafficPolicy: Local".into()];
    bed.manifests.apply(&service).unwrap();
    let _proxy = bed.start(&[]);
    for (target, port) in [("198.51.100.9", 80), ("203.0.113.9", 80), ("192.168.0.11", 30_092)] {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(target), port), 4);
        assert_shares(&tally, &[("pod1-1", 4)]);
        assert_eq!(sources(&tally), set(&["192.168.0.100"]), "{target}: {tally}");
    }
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.41"), 80), 4);
    assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
}

/// With `ClusterCIDR`, a pod of another node is a client of the cluster too, but the answer of an
/// endpoint elsewhere would go past this node.
#[test]
fn a_pod_of_another_node_that_asks_a_node_port_here_hears_every_endpoint() {
    let bed = Bed::new();
    let mut service = Service::new("near", ip("10.96.0.41"))
        .node_port(Protocol::Tcp, 80, TARGET, 30_092)
        .pods([bed.pod(1, 1), bed.pod(2, 1)]);
    service.external = vec![ip("198.51.100.9"), ip("fd00:203::9")];
    service.cluster.push(ip("fd00:96::41"));
    service.more = vec!["externalTrafficPolicy: Local".into()];
    bed.manifests.apply(&service).unwrap();
    let (here, elsewhere) = (&bed.pod(1, 2).namespace, &bed.pod(2, 2).namespace);
    let node = "apiVersion: v1\nkind: Node\nmetadata:\n  name: node1\nspec:\n  podCIDRs:\n  - ";
    let cluster_cidr = "--cluster-cidr=10.244.0.0/16,fd00:244::/32";
    let anywhere = &[("pod1-1", 2), ("pod2-1", 2)][..];
    let (pod_v4, pod_v6) = ("10.244.1.12", "fd00:244:1::12");
    let masqueraded_v4 = &["10.244.1.1", "192.168.0.11"][..];
    let masqueraded_v6 = &["fd00:244:1::1", "fd00:192::11"][..];
    for (pod_cidrs, node_port_v4, node_port_v6) in [
        // Which pods are this node's is not known. A network plugin with pools of its own leaves
        // the Node's range unused.
        (None, masqueraded_v4, masqueraded_v6),
        (Some("10.244.7.0/24\n  - fd00:244:7::/64"), masqueraded_v4, masqueraded_v6),
        (Some("10.244.1.0/24\n  - fd00:244:1::/64"), &[pod_v4][..], &[pod_v6][..]),
    ] {
        if let Some(pod_cidrs) = pod_cidrs {
            bed.manifests.write("node.yaml", &format!("{node}{pod_cidrs}\n")).unwrap();
        }
        let proxy = bed.start(&[cluster_cidr]);
        for (from, target, port, expected) in [
            (here, "192.168.0.11", 30_092, node_port_v4),
            (here, "fd00:192::11", 30_092, node_port_v6),
            (here, "198.51.100.9", 80, &[pod_v4]),
            (here, "fd00:203::9", 80, &[pod_v6]),
            (elsewhere, "192.168.0.11", 30_092, masqueraded_v4),
            (elsewhere, "fd00:192::11", 30_092, masqueraded_v6),
        ] {
            let tally = bed.ask(from, Protocol::Tcp, (ip(target), port), 4);
            assert_shares(&tally, anywhere);
            assert_eq!(sources(&tally), set(expected), "{pod_cidrs:?} {target}: {tally}");
        }
        proxy.stop().unwrap();
    }
}

#[test]
fn a_service_port_that_is_another_services_node_port_keeps_the_clients_address() {
    let bed = Bed::new();
    let endpoint = || [bed.pod(1, 1)];
    let mut owner = Service::new("owner", ip("10.96.0.43")).pods(endpoint());
    let mut same = Service::new("same-port", ip("10.96.0.44")).pods(endpoint());
    owner.cluster.push(ip("fd00:96::43"));
    same.cluster.push(ip("fd00:96::44"));
    same.external = vec![ip("198.51.100.44"), ip("fd00:203::44")];
    same.load_balancer = vec![ip("203.0.113.44"), ip("fd00:203::2:44")];
    same.more = vec!["externalTrafficPolicy: Local".into()];
    for protocol in PROTOCOLS {
        owner = owner.node_port(protocol, 80, TARGET, 30_095);
        same = same.port(protocol, 30_095, TARGET);
    }
    bed.manifests.apply(&owner).unwrap();
    bed.manifests.apply(&same).unwrap();
    let _proxy = bed.start(&["--cluster-cidr=10.244.0.0/16,fd00:244::/32"]);
    let pod = &bed.pod(1, 2).namespace;
    let (pod_v4, pod_v6) = (set(&["10.244.1.12"]), set(&["fd00:244:1::12"]));
    let (client_v4, client_v6) = (set(&["192.168.0.100"]), set(&["fd00:192::100"]));
    let node = set(&["10.244.1.1"]);
    for protocol in PROTOCOLS {
        for (from, target, expected) in [
            (pod, "10.96.0.44", &pod_v4),
            (pod, "fd00:96::44", &pod_v6),
            (pod, "203.0.113.44", &pod_v4),
            (pod, "198.51.100.44", &pod_v4),
            (bed.client(), "203.0.113.44", &client_v4),
            (bed.client(), "fd00:203::2:44", &client_v6),
            (bed.client(), "198.51.100.44", &client_v4),
            (bed.client(), "fd00:203::44", &client_v6),
            // What is still masqueraded.
            (bed.client(), "10.96.0.44", &node),
            (bed.client(), "192.168.0.11", &node),
            (pod, "192.168.0.11", &node),
        ] {
            let tally = bed.ask(from, protocol, (ip(target), 30_095), 1);
            assert_eq!(&sources(&tally), expected, "{protocol:?} {target}: {tally}");
        }
    }
}

#[test]
fn source_ranges_let_in_whom_they_name() {
    let bed = Bed::new();
    let mut service = Service::new("private", ip("10.96.0.42"))
        .port(Protocol::Tcp, 80, TARGET)
        .pods([bed.pod(1, 1)]);
    service.load_balancer = vec![ip("203.0.113.10")];
    service.more = vec!["loadBalancerSourceRanges: [192.168.0.100/32]".into()];
    bed.manifests.apply(&service).unwrap();
    let _proxy = bed.start(&[]);
    let target = (ip("203.0.113.10"), 80);
    assert_shares(&bed.ask(bed.client(), Protocol::Tcp, target, 2), &[("pod1-1", 2)]);
    let question = Question::tcp(target);
    let outcome = bed::ask(&bed.pod(1, 2).namespace, question);
    assert_eq!(outcome, Err(Refusal::Timeout));
}

#[test]
fn another_masquerade_bit_is_another_mark_and_works_the_same() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let _proxy = bed.start(&["--iptables-masquerade-bit", "20"]);
    assert!(bed.rules("iptables").contains("0x100000/0x100000"), "{}", bed.rules("iptables"));
    assert_eq!(seen(&bed, bed.client()), set(&["10.244.1.1", "fd00:244:1::1"]));
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    let bed = Bed::new();
    let mut service = web([bed.pod(1, 1)]);
    service = service.port(Protocol::Udp, 80, TARGET).port(Protocol::Sctp, 80, TARGET);
    bed.manifests.apply(&service).unwrap();
    let _proxy = bed.start(&[]);
    for (target, bridge) in CLUSTER.into_iter().zip(["10.244.1.1", "fd00:244:1::1"]) {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let tally = bed.ask(&bed.pod(1, 1).namespace, protocol, (ip(target), 80), 3);
            assert_shares(&tally, &[("pod1-1", 3)]);
            assert_eq!(sources(&tally), set(&[bridge]), "{protocol:?}");
        }
    }
}

/// Masquerading may choose any port. Connection tracking puts back the client's own before IPVS
/// looks; where nothing is masqueraded, there is nothing to put back.
#[test]
fn a_source_port_that_is_a_node_port_gets_its_answers_if_masquerading_chose_it() {
    const PORT: u16 = 30_096;
    let bed = Bed::new();
    let pods = || [bed.pod(1, 1), bed.pod(2, 1)];
    let mut service = web(pods()).port(Protocol::Udp, 80, TARGET);
    service.load_balancer = vec![ip("203.0.113.10"), ip("fd00:203::10")];
    let mut owner = Service::new("owner", ip("10.96.0.11")).pods(pods());
    owner.cluster.push(ip("fd00:96::11"));
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        owner = owner.node_port(protocol, 80, TARGET, PORT);
    }
    bed.manifests.apply(&service).unwrap();
    bed.manifests.apply(&owner).unwrap();
    let _proxy = bed.start(&["--cluster-cidr=10.244.0.0/16,fd00:244::/32"]);
    let (node, pod) = (bed.node(), &bed.pod(1, 2).namespace);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for program in ["iptables", "ip6tables"] {
            let marked = ["-m", "mark", "--mark", "0x4000/0x4000", "-j", "MASQUERADE"];
            let name = protocol.to_string().to_lowercase();
            let ports = ["-p", &name, "--to-ports", &PORT.to_string()];
            bed.tool(program, &[&["-t", "nat", "-I", "POSTROUTING"], &marked[..], &ports].concat());
        }
        for (from, target) in
            [(bed.client(), CLUSTER), (node, CLUSTER), (pod, ["203.0.113.10", "fd00:203::10"])]
        {
            // Each endpoint once: there is one port for all.
            bed.tool("conntrack", &["-F"]);
            for target in target.map(ip) {
                let tally = bed::ask_many(from, Question::new(protocol, (target, 80)), 2);
                assert_shares(&tally, &[("pod1-1", 1), ("pod2-1", 1)]);
            }
        }
        assert!(bed.tool("conntrack", &["-L"]).contains(&format!("dport={PORT}")));
        let target = (IpAddr::from(bed.pod(2, 1).ipv4), TARGET);
        let from_node_port =
            Question::new(protocol, target).from_source((ip("192.168.0.11"), PORT));
        let outcome = bed::ask(node, from_node_port.within(Duration::from_millis(1500)));
        assert_eq!(
            outcome,
            Err(Refusal::Timeout),
            "if not, the warning of node/src/host/local_ports.rs can go"
        );
    }
}
