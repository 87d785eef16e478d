//! `kube-ipvs explain`, beside what packets do.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use bed::addresses::{POD_RANGE_IPV4, POD_RANGE_IPV6};
use bed::{ClusterSpec, Namespace, Protocol, Question, Service, ask};

use super::run;
use crate::cluster::{Cluster, mk_web};
use crate::fixture::{Bed, TARGET, ip, web};

const CLUSTERS: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
const BALANCERS: [&str; 2] = ["203.0.113.10", "fd00:203::10"];

/// Names of the servers that answer, and if they see the client's own address; none: no answer.
type Answered = Option<(BTreeSet<String>, bool)>;

/// Explanation of a client at a frontend.
fn explained(bed: &Bed, from: &str, address: &str, protocol: &str) -> Answered {
    let service = format!("default/web:{protocol}-80");
    let said = run(bed, &["explain", &service, "--from", from, "-o", "json"]);
    let answer = said.json();
    let frontends = answer["frontends"].as_array().unwrap();
    let frontend = frontends.iter().find(|it| it["address"] == address);
    let clients = frontend.unwrap_or_else(|| panic!("{answer:#}"))["clients"].as_array().unwrap();
    let [client] = &clients[..] else { panic!("{answer:#}") };
    let outcomes = client["outcomes"].as_array().unwrap();
    let [outcome] = &outcomes[..] else { panic!("{answer:#}") };
    if outcome["reached"] != "endpoint" {
        assert_eq!(outcome["reached"], "dropped", "{answer:#}");
        return None;
    }
    let endpoints = outcome["endpoints"].as_array().unwrap().iter();
    let names = endpoints.map(|it| {
        let socket: SocketAddr = it.as_str().unwrap().parse().unwrap();
        let pod = bed.cluster.pods().find(|pod| pod.addresses().contains(&socket.ip()));
        pod.unwrap().name.clone()
    });
    Some((names.collect(), outcome["seen"] != "node"))
}

/// Outcome of packets of a client with these addresses.
fn answered(from: &Namespace, own: &[IpAddr], address: &str, protocol: Protocol) -> Answered {
    let question = Question::new(protocol, (ip(address), 80));
    let mut names = BTreeSet::new();
    let mut is_seen = BTreeSet::new();
    // Rules choose by chance: one of two is passed over thirty times once in a thousand million.
    for _ in 0..30 {
        let answer = ask(from, question).ok()?;
        names.insert(answer.server);
        is_seen.insert(own.contains(&answer.seen_source.ip()));
    }
    assert_eq!(is_seen.len(), 1, "some are masqueraded, and some are not");
    Some((names, is_seen.contains(&true)))
}

/// Service of two protocols and families, whose load balancer IPs have source ranges.
fn restricted(bed: &Bed) -> Service {
    let mut service = Service::new("web", ip(CLUSTERS[0]));
    service.cluster.push(ip(CLUSTERS[1]));
    service.load_balancer = BALANCERS.map(ip).into();
    service = service.port(Protocol::Tcp, 80, TARGET).port(Protocol::Udp, 80, TARGET);
    service.more = vec![
        "externalTrafficPolicy: Local".into(),
        "loadBalancerSourceRanges: [192.168.0.101/32, 10.244.0.0/16, 'fd00:192::101/128', \
         'fd00:244::/32']"
            .into(),
    ];
    service.pods([bed.pod(1, 1), bed.pod(2, 1)])
}

fn packets_do_what_was_explained_in(mode: &str) {
    let local = format!("--cluster-cidr={POD_RANGE_IPV4},{POD_RANGE_IPV6}");
    let decides = match mode {
        "ipvs" => ["by the internal frontend 251.0.113.10:80", "KUBE-SOURCE-RANGES-FIREWALL"],
        "iptables" => ["in table filter", "KUBE-FW-"],
        _ => ["in table", "-j DROP"],
    };
    packets_do_what_was_explained_where(mode, &[&local], decides);
}

/// `local` says which traffic is of this node's pods, `decides` what decides on packets.
fn packets_do_what_was_explained_where(mode: &str, local: &[&str], decides: [&str; 2]) {
    let bed = Bed::with(&ClusterSpec { clients: 2, ..ClusterSpec::default() });
    bed.manifests.apply(&restricted(&bed)).unwrap();
    let mode_flag = format!("--proxy-mode={mode}");
    let proxy = bed.start(&[&[&*mode_flag], local].concat());
    let hosts = [bed.cluster.client(1).unwrap(), bed.cluster.client(2).unwrap(), bed.pod(1, 2)];
    let mut outcomes = BTreeSet::new();
    for (protocol, word) in [(Protocol::Tcp, "tcp"), (Protocol::Udp, "udp")] {
        for (address, host) in
            CLUSTERS.iter().chain(&BALANCERS).flat_map(|address| hosts.map(|host| (address, host)))
        {
            let own = host.addresses();
            let from = own.iter().find(|it| it.is_ipv4() == ip(address).is_ipv4()).unwrap();
            let expected = explained(&bed, &from.to_string(), address, word);
            let found = answered(&host.namespace, &own, address, protocol);
            assert_eq!(
                found,
                expected,
                "{} at {address} by {word} in mode {mode}\n{}",
                host.name,
                bed.cluster.dump()
            );
            outcomes.insert(found);
        }
    }
    // Both were let in and kept out, and endpoints were one here, and all.
    assert!(outcomes.contains(&None), "{outcomes:?}");
    let numbers: BTreeSet<usize> =
        outcomes.iter().flatten().map(|(names, _)| names.len()).collect();
    assert_eq!(numbers, BTreeSet::from([1, 2]), "{outcomes:?}");
    let text = run(&bed, &["explain", "web"]).out;
    assert!(decides.iter().all(|word| text.contains(word)), "{text}");
    proxy.stop().unwrap();
}

#[test]
fn packets_do_what_was_explained() {
    packets_do_what_was_explained_in("ipvs");
}

#[test]
fn packets_do_what_was_explained_in_mode_iptables() {
    packets_do_what_was_explained_in("iptables");
}

#[test]
fn packets_do_what_was_explained_in_mode_userspace() {
    packets_do_what_was_explained_in("userspace");
}

/// No Node says in which networks its pods are: their interfaces do.
#[test]
fn packets_do_what_was_explained_where_pods_are_known_by_their_interfaces() {
    let local = ["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=cni"];
    for mode in ["ipvs", "iptables"] {
        packets_do_what_was_explained_where(mode, &local, ["! -i cni+", "-j DROP"]);
    }
}

/// Asks who a pod gets, and requires the answer about it.
fn asks_by_name(bed: &Bed, pod: &str, address: &str, is_here: bool) {
    let said = run(bed, &["explain", "web", "--from", "pod", pod, "-o", "json"]);
    let answer = said.json();
    assert_eq!((said.code, &answer["pod"]["isHere"]), (0, &is_here.into()), "{said:?}");
    let frontends = answer["frontends"].as_array().unwrap();
    let clients = frontends.iter().flat_map(|it| it["clients"].as_array().unwrap());
    let addresses: BTreeSet<&str> = clients.map(|it| it["address"].as_str().unwrap()).collect();
    assert!(addresses.contains(address) && addresses.len() == 2, "both families: {addresses:?}");
}

/// Asks for a pod that is no endpoint.
fn asks_in_vain(bed: &Bed, looked_at: &str) {
    let said = run(bed, &["explain", "web", "--from", "pod", "pod1-2"]);
    let words = ["default/pod1-2", looked_at, "nearest: pod1-1", "-o wide"];
    assert!(said.code == 4 && words.iter().all(|word| said.err.contains(word)), "{said:?}");
    let other = run(bed, &["explain", "web", "--from", "pod", "shop/pod1-1"]);
    assert!(other.code == 4 && other.err.contains("0 EndpointSlices"), "{other:?}");
}

#[test]
fn a_pod_is_found_by_its_name_in_the_manifests() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&[]);
    asks_by_name(&bed, "pod1-1", "10.244.1.11", true);
    asks_by_name(&bed, "default/pod2-1", "10.244.2.11", false);
    asks_in_vain(&bed, "2 EndpointSlices with 4 endpoints");
    proxy.stop().unwrap();
}

#[test]
fn a_pod_is_found_by_its_name_by_the_api_server() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    cluster.apply_service(&mk_web(bed, &[(1, 1), (2, 1)]));
    let proxy = cluster.start(1);
    asks_by_name(bed, "pod1-1", "10.244.1.11", true);
    asks_by_name(bed, "pod2-1", "10.244.2.11", false);
    asks_in_vain(bed, "2 EndpointSlices with 4 endpoints");
    cluster.api.close();
    let unasked = run(bed, &["explain", "web", "--from", "pod", "pod1-1"]);
    let words = ["cannot look up the pod default/pod1-1", "no connection", "-o wide"];
    assert!(unasked.code == 3 && words.iter().all(|it| unasked.err.contains(it)), "{unasked:?}");
    // What needs no API server is answered.
    assert_eq!(run(bed, &["explain", "web", "--from", "pod"]).code, 0);
    proxy.stop().unwrap();
}
