//! `kube-ipvs explain`, beside what packets do.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use bed::{ClusterSpec, Namespace, Protocol, Question, Service, ask};

use super::run;
use crate::fixture::{Bed, TARGET, ip};

const CLUSTER: &str = "10.96.0.10";
const BALANCER: &str = "203.0.113.10";

/// Names of the servers that answer, and if they see the client's own address; none: no answer.
type Answered = Option<(BTreeSet<String>, bool)>;

/// Explanation of a client at a frontend.
fn explained(bed: &Bed, from: &str, address: &str) -> Answered {
    let said = run(bed, &["explain", "default/web:80", "--from", from, "-o", "json"]);
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
fn answered(from: &Namespace, own: &[IpAddr], address: &str) -> Answered {
    let question = Question::new(Protocol::Tcp, (ip(address), 80));
    let mut names = BTreeSet::new();
    let mut is_seen = BTreeSet::new();
    for _ in 0..6 {
        let answer = ask(from, question).ok()?;
        names.insert(answer.server);
        is_seen.insert(own.contains(&answer.seen_source.ip()));
    }
    assert_eq!(is_seen.len(), 1, "some are masqueraded, and some are not");
    Some((names, is_seen.contains(&true)))
}

#[test]
fn packets_do_what_was_explained() {
    let bed = Bed::with(&ClusterSpec { clients: 2, ..ClusterSpec::default() });
    let mut service = Service::new("web", ip(CLUSTER)).port(Protocol::Tcp, 80, TARGET);
    service.load_balancer.push(ip(BALANCER));
    service.more = vec![
        "externalTrafficPolicy: Local".into(),
        "loadBalancerSourceRanges: [192.168.0.101/32, 10.244.0.0/16]".into(),
    ];
    bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&[]);
    let client = bed.cluster.client(1).unwrap();
    let second = bed.cluster.client(2).unwrap();
    let pod = bed.pod(1, 2);
    let hosts = [("client", client), ("client", second), ("pod", pod)];
    for (kind, host) in hosts {
        let from = host.ipv4.to_string();
        for address in [CLUSTER, BALANCER] {
            let expected = explained(&bed, &from, address);
            let found = answered(&host.namespace, &host.addresses(), address);
            assert_eq!(found, expected, "{kind} {from} at {address}\n{}", bed.cluster.dump());
        }
    }
    // Both were let in and kept out.
    let balancer = |host: &bed::Host| explained(&bed, &host.ipv4.to_string(), BALANCER);
    let (names, is_seen) = [client, second].into_iter().find_map(balancer).unwrap();
    assert_eq!((names.len(), is_seen), (1, true));
    assert!([client, second].into_iter().any(|host| balancer(host).is_none()));
    let (names, _) = balancer(pod).unwrap();
    assert_eq!(names.len(), 2, "clients in the cluster get all endpoints");

    let text = run(&bed, &["explain", "web"]);
    assert!(text.out.contains("by the short circuit 251.0.113.10:80"), "{text:?}");
    assert!(text.out.contains("KUBE-SOURCE-RANGES-FIREWALL"), "{text:?}");
    proxy.stop().unwrap();
}
