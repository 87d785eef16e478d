//! Rules of other programs on the node, as these lay them out: Services are served beside all of them, and their own
//! ports stay reachable where no Service has them.

use bed::{Connection, Protocol, Question, Server, Service};

use super::{NFTABLES, limit};
use crate::cluster::Cluster;
use crate::fixture::{Bed, TARGET, assert_shares, ip};

/// Port of a pod that others lead port 80 of the node to.
const PUBLISHED: u16 = 8_081;

/// Address that Istio gives the kubelet's probes.
const OF_PROBES: &str = "169.254.7.127";

/// Another program and its rules.
struct Neighbour {
    name: &'static str,
    /// Program that takes the rules, with its arguments.
    load: &'static [&'static str],
    rules: &'static str,
    /// True if it leads port 80 of the node to a pod.
    publishes: bool,
    /// Words of preflight about it, if it may drop Service traffic.
    said: Option<&'static str>,
}

const NFT: &[&str] = &["nft", "-f", "-"];
const RESTORE: &[&str] = &["iptables-restore", "--noflush"];

const NEIGHBOURS: [Neighbour; 8] = [
    Neighbour {
        name: "the kubelet",
        load: RESTORE,
        rules: include_str!("kubelet.rules"),
        publishes: false,
        said: None,
    },
    Neighbour {
        name: "Calico",
        load: RESTORE,
        rules: include_str!("calico.rules"),
        publishes: false,
        said: None,
    },
    Neighbour {
        name: "Cilium",
        load: RESTORE,
        rules: include_str!("cilium.rules"),
        publishes: false,
        said: None,
    },
    Neighbour {
        name: "Istio",
        load: RESTORE,
        rules: include_str!("istio.rules"),
        publishes: false,
        said: None,
    },
    Neighbour {
        name: "Docker in iptables",
        load: RESTORE,
        rules: include_str!("docker.rules"),
        publishes: true,
        said: None,
    },
    Neighbour {
        name: "Docker in nf_tables",
        load: NFT,
        rules: include_str!("docker.nft"),
        publishes: true,
        said: None,
    },
    Neighbour {
        name: "portmap in nf_tables",
        load: NFT,
        rules: include_str!("portmap.nft"),
        publishes: true,
        said: None,
    },
    Neighbour {
        name: "firewalld",
        load: NFT,
        rules: include_str!("firewalld.nft"),
        publishes: true,
        said: Some("filter_INPUT of the table firewalld"),
    },
];

impl Neighbour {
    fn settle(&self, bed: &Bed) {
        let published = format!("{}:{PUBLISHED}", bed.pod(1, 2).ipv4);
        let rules = self.rules.replace("PUBLISHED", &published);
        let [program, arguments @ ..] = self.load else { unreachable!() };
        bed.node().command_with_input(program, arguments, &rules).unwrap();
    }

    fn leave(bed: &Bed) {
        bed.tool("nft", &["flush", "ruleset"]);
    }
}

/// Asks every kind of frontend, and goes on with a connection to each.
fn require_served(bed: &Bed) {
    let pod = &bed.pod(1, 2).namespace;
    for address in ["10.96.0.10", "fd00:96::10", "198.51.100.10"] {
        for from in [bed.client(), pod, bed.node()] {
            let tally = bed.ask(from, Protocol::Tcp, (ip(address), 80), 4);
            assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
            assert!(!tally.sources().contains(&ip(OF_PROBES)), "{tally}");
        }
    }
    let (node, local) = (ip("192.168.0.11"), ip("203.0.113.11"));
    let tally = bed.ask(bed.client(), Protocol::Tcp, (node, 30_080), 4);
    assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
    let tally = bed.ask(bed.client(), Protocol::Tcp, (local, 80), 2);
    assert_shares(&tally, &[("pod1-1", 2)]);
    assert_eq!(tally.sources(), [bed.cluster.client(1).unwrap().ipv4.into()].into());
    for (from, to) in [(bed.client(), (local, 80)), (pod, (ip("10.96.0.10"), 80))] {
        let mut connection = Connection::open(from, Question::tcp(to)).unwrap();
        for _ in 0..5 {
            connection.say().unwrap();
        }
    }
}

#[test]
fn services_are_served_beside_the_rules_of_others() {
    let bed = Bed::new();
    let mut service =
        Service::new("web", ip("10.96.0.10")).node_port(Protocol::Tcp, 80, TARGET, 30_080);
    service.cluster.push(ip("fd00:96::10"));
    service.external = vec![ip("198.51.100.10")];
    bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let mut near = Service::new("near", ip("10.96.0.11")).port(Protocol::Tcp, 80, TARGET);
    near.load_balancer = vec![ip("203.0.113.11")];
    near.more = vec!["externalTrafficPolicy: Local".to_owned()];
    bed.manifests.apply(&near.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let _published = Server::start(bed.pod(1, 2), &[(Protocol::Tcp, PUBLISHED)]).unwrap();
    let program = bed::program().to_string_lossy().into_owned();
    for neighbour in &NEIGHBOURS {
        println!("beside {}", neighbour.name);
        neighbour.settle(&bed);
        for path in ["--fast-path=off", "--fast-path=auto"] {
            let words = ["--cluster-cidr", "10.244.0.0/16,fd00:244::/32", NFTABLES, path];
            let proxy = bed.start(&words);
            require_served(&bed);
            if neighbour.publishes {
                let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("192.168.0.11"), 80), 2);
                assert_shares(&tally, &[("pod1-2", 2)]);
            }
            drop(proxy);
        }
        let checked = bed.node().command(&program, &["preflight"]);
        let checked = checked.unwrap();
        match neighbour.said {
            Some(said) => assert!(checked.contains(said), "{checked}"),
            None => assert!(!checked.contains("the nftables chain"), "{checked}"),
        }
        Neighbour::leave(&bed);
    }
}

#[test]
fn a_policy_that_drops_answers_is_an_event_of_the_node() {
    let cluster = Cluster::in_mode("ipvs", "ruleBackend: nftables\n");
    let bed = &cluster.bed;
    bed.tool("iptables", &["-P", "FORWARD", "DROP"]);
    let _proxy = cluster.start(1);
    // Others are about other things of the host.
    bed.wait_for(limit(), "an Event about FORWARD", || {
        cluster.api.events().iter().any(|event| {
            let note = event["note"].as_str().unwrap_or_default();
            event["reason"] == "HostLimited"
                && note.contains("FORWARD")
                && note.contains("ruleBackend")
        })
    });
    let checked = bed.node().command(&bed::program().to_string_lossy(), &["preflight"]).unwrap();
    assert!(checked.contains("FORWARD"), "{checked}");
}
