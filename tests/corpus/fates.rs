//! Packets traced through kube-proxy's rules and through ours: their fates are the same.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use plan::mode::Mode;
use plan::model::{Family, Protocol};

use crate::cluster::{Node, Stage, clusters, settings};
use crate::saved::Saved;
use crate::tracer::{Fates, Packet, Tracer};

/// Sources of each kind: a pod of the cluster, clients outside inside and outside of the source
/// ranges of the clusters' load balancers, the node, and the node by loopback.
const SOURCES: [(&str, Option<&str>); 9] = [
    ("10.130.200.1", Some("cni0")),
    ("192.0.2.9", Some("eth0")),
    ("198.18.0.1", Some("eth0")),
    ("10.0.2.15", None),
    ("127.0.0.1", None),
    ("fd00:10::ffff:1", Some("cni0")),
    ("2001:db8:1::9", Some("eth0")),
    ("2001:db8:ffff::9", Some("eth0")),
    ("fd00:77::15", None),
];

/// Every frontend that a rule of nat or filter is about; node ports at each address of the node.
fn destinations(saved: &Saved, own: &[IpAddr]) -> BTreeSet<(Protocol, SocketAddr)> {
    let mut found = BTreeSet::new();
    for (_, chain, rules) in saved
        .ours()
        .filter(|(_, chain, _)| !chain.starts_with("KUBE-S") || *chain == "KUBE-SERVICES")
    {
        for rule in rules {
            let words: Vec<_> = rule.split(' ').collect();
            let after =
                |word: &str| words.iter().position(|it| *it == word).map(|at| words[at + 1]);
            let (Some(protocol), Some(port)) = (after("-p"), after("--dport")) else { continue };
            let protocol = match protocol {
                "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                "sctp" => Protocol::Sctp,
                other => panic!("{other}"),
            };
            let port = port.parse().unwrap();
            let address = after("-d").filter(|_| chain != "KUBE-NODEPORTS");
            match address.map(|net| net.split('/').next().unwrap().parse().unwrap()) {
                Some(address) => drop(found.insert((protocol, SocketAddr::new(address, port)))),
                None => found.extend(own.iter().map(|it| (protocol, SocketAddr::new(*it, port)))),
            }
        }
    }
    found
}

fn assert_same(theirs: &Fates, ours: &Fates, place: &str) {
    let fates = |fates: &Fates| -> Vec<String> { fates.keys().map(ToString::to_string).collect() };
    assert_eq!(fates(theirs), fates(ours), "{place}");
    for (fate, probability) in theirs {
        assert!((probability - ours[fate]).abs() < 1e-9, "{place}: {fate}: {probability}");
    }
    let sum: f64 = ours.values().sum();
    assert!((sum - 1.0).abs() < 1e-9, "{place}: {sum}");
}

fn compare(stage: &Stage, node: &Node, family: Family) -> usize {
    let Some(left) = stage.rules("iptables", family) else { return 0 };
    let mut own = stage.node_addresses();
    own.retain(|address| Family::of(*address) == family);
    let (left, here) = (Saved::parse(&left), node.rules(family));
    let both = [&left, &here].map(|saved| Tracer::new(saved, own.iter().copied()));
    let mut sources: Vec<(IpAddr, Option<&str>)> =
        SOURCES.iter().map(|(address, by)| (address.parse().unwrap(), *by)).collect();
    // An endpoint on this node, which may come to itself.
    sources.extend(stage.endpoints_here().into_iter().take(8).map(|it| (it, Some("cni0"))));
    sources.retain(|(source, _)| Family::of(*source) == family);
    let mut compared = 0;
    for (protocol, destination) in destinations(&left, &own) {
        for (source, arrives_by) in &sources {
            if arrives_by.is_some() && destination.ip().is_loopback() {
                continue;
            }
            let packet = Packet {
                protocol,
                source: *source,
                destination,
                arrives_by: *arrives_by,
                known_to: Vec::new(),
            };
            let place = format!("{} {source} to {protocol} {destination}", stage.name());
            let [theirs, ours] = both.each_ref().map(|tracer| tracer.trace(packet.clone()));
            assert_same(&theirs, &ours, &place);
            compared += 1;
        }
    }
    compared
}

#[test]
fn packets_meet_what_they_meet_with_kube_proxy() {
    for stage in clusters().iter().flatten() {
        let node = Node::at(stage, settings(Mode::Iptables));
        let compared: usize = Family::BOTH.iter().map(|it| compare(stage, &node, *it)).sum();
        assert!(compared > 500, "{}: {compared}", stage.name());
    }
}
