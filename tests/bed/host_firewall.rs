//! The node's own firewall, whose chain INPUT Service traffic passes in IPVS mode.

use std::net::SocketAddr;

use bed::{Namespace, Protocol, Question, Refusal, Server, Service};

use crate::cluster;
use crate::fixture::{Bed, PROTOCOLS, TARGET, assert_shares, ip};

/// Port of the node on which something of its own listens.
const OWN_PORT: u16 = 9100;
const NODE: [&str; 2] = ["192.168.0.11", "fd00:192::11"];

/// Rules of a firewall that accepts the kubelet, BGP and SSH.
const FIREWALL: &str = "
    for it in iptables ip6tables; do
        $it -A INPUT -i lo -j ACCEPT
        $it -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        $it -A INPUT -p tcp -m multiport --dports 22,179,10250 -j ACCEPT
    done
    ip6tables -I INPUT -p ipv6-icmp -j ACCEPT";
const POLICY: &str = "iptables -P INPUT DROP; ip6tables -P INPUT DROP";
const CLOSING: &str = "iptables -A INPUT -j REJECT --reject-with icmp-host-prohibited
    ip6tables -A INPUT -j REJECT --reject-with icmp6-adm-prohibited";

/// Frontends of two Services: one with both policies for all, one with the policy Local.
fn services(bed: &Bed) -> [Service; 2] {
    let of = |name: &str, last: u8, node_port: u16| {
        let mut service = Service::new(name, ip(&format!("10.96.0.{last}")));
        service.cluster.push(ip(&format!("fd00:96::{last}")));
        for (protocol, node_port) in PROTOCOLS.into_iter().zip(node_port..) {
            service = service.node_port(protocol, 80, TARGET, node_port);
        }
        let address = |net: &str| ip(&format!("{net}{last}"));
        service.load_balancer = ["203.0.113.", "fd00:203::"].map(address).to_vec();
        service.external = ["198.51.100.", "fd00:203::e"].map(address).to_vec();
        service.pods([bed.pod(1, 1)])
    };
    let mut near = of("near", 71, 30_081);
    near.more = vec!["externalTrafficPolicy: Local".into(), "healthCheckNodePort: 32700".into()];
    [of("web", 8, 30_091), near]
}

/// Addresses and ports of the frontends that a client uses with a protocol.
fn frontends(protocol: Protocol) -> Vec<(&'static str, u16)> {
    let index = PROTOCOLS.iter().position(|it| *it == protocol).unwrap();
    let offset = u16::try_from(index).unwrap();
    let mut all: Vec<(&str, u16)> = [
        "10.96.0.8",
        "fd00:96::8",
        "203.0.113.8",
        "fd00:203::8",
        "198.51.100.8",
        "fd00:203::e8",
        "10.96.0.71",
        "fd00:96::71",
        "203.0.113.71",
        "fd00:203::71",
        "198.51.100.71",
        "fd00:203::e71",
    ]
    .map(|address| (address, 80))
    .to_vec();
    for address in NODE {
        all.extend([(address, 30_081 + offset), (address, 30_091 + offset)]);
    }
    all
}

fn assert_all_served(bed: &Bed) {
    for from in [&bed.pod(1, 2).namespace, bed.client(), bed.node()] {
        for protocol in PROTOCOLS {
            for (address, port) in frontends(protocol) {
                let tally = bed.ask(from, protocol, (ip(address), port), 1);
                assert_shares(&tally, &[("pod1-1", 1)]);
            }
        }
    }
}

/// Asserts that what listens on the node itself is reachable neither at its addresses nor at a
/// Service's.
fn assert_own_port_is_shut(bed: &Bed) {
    for from in [&bed.pod(1, 2).namespace, bed.client()] {
        for address in NODE {
            assert_ne!(status(from, address, OWN_PORT), None);
        }
        for address in ["10.96.0.8", "fd00:96::8", "203.0.113.71", "fd00:203::71"] {
            assert_eq!(status(from, address, OWN_PORT), Some(Refusal::Refused), "{address}");
        }
    }
}

fn status(from: &Namespace, address: &str, port: u16) -> Option<Refusal> {
    bed::ask(from, Question::tcp((ip(address), port))).err()
}

fn shell(bed: &Bed, script: &str) {
    bed.tool("sh", &["-ec", script]);
}

#[test]
fn services_are_served_behind_a_firewall_of_the_node_and_nothing_else_is_let_in() {
    for closing in [POLICY, CLOSING] {
        let bed = Bed::new();
        let sockets = ["0.0.0.0", "::"]
            .map(|address| (Protocol::Tcp, SocketAddr::from((ip(address), OWN_PORT))));
        let _daemon = Server::bind(bed.node(), "exporter", &sockets).unwrap();
        shell(&bed, &format!("{FIREWALL}\n{closing}"));
        for service in services(&bed) {
            bed.manifests.apply(&service).unwrap();
        }
        let proxy = bed.start(&[]);
        assert_all_served(&bed);
        assert_own_port_is_shut(&bed);
        proxy.stop().unwrap();
    }
}

#[test]
fn the_firewall_decides_where_the_operator_wants_that_and_an_upgrade_writes_the_rules() {
    let bed = Bed::new();
    shell(&bed, &format!("{FIREWALL}\n{POLICY}"));
    for service in services(&bed) {
        bed.manifests.apply(&service).unwrap();
    }
    let never = bed.configuration("never", "acceptServiceTraffic: never");
    let proxy = bed.start(&["--config", &never]);
    for from in [&bed.pod(1, 2).namespace, bed.client()] {
        for address in ["10.96.0.8", "fd00:96::8", "203.0.113.71"] {
            assert_eq!(status(from, address, 80), Some(Refusal::Timeout), "{address}");
        }
    }
    let log = proxy.stop().unwrap();
    assert!(log.contains("acceptServiceTraffic"), "{log}");
    let _proxy = bed.start(&[]);
    assert_all_served(&bed);
}

/// Only clients of `spec.loadBalancerSourceRanges` are accepted, wherever the jump to their rules stands.
#[test]
fn source_ranges_hold_behind_a_firewall() {
    let bed = Bed::new();
    shell(&bed, &format!("{FIREWALL}\n{POLICY}"));
    for mut service in services(&bed) {
        service.more.push("loadBalancerSourceRanges: [10.244.0.0/16, \"fd00:244::/32\"]".into());
        bed.manifests.apply(&service).unwrap();
    }
    let _proxy = bed.start(&[]);
    for address in ["203.0.113.8", "fd00:203::8", "203.0.113.71", "fd00:203::71"] {
        let target = (ip(address), 80);
        let tally = bed.ask(&bed.pod(1, 2).namespace, Protocol::Tcp, target, 1);
        assert_shares(&tally, &[("pod1-1", 1)]);
        assert_eq!(status(bed.client(), address, 80), Some(Refusal::Timeout), "{address}");
    }
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("198.51.100.8"), 80), 1);
    assert_shares(&tally, &[("pod1-1", 1)]);
}

/// Google's load balancers ask for `/healthz` at their own address, on the node.
#[test]
fn the_health_of_the_node_is_answered_at_a_load_balancers_address() {
    let bed = Bed::new();
    for service in services(&bed) {
        bed.manifests.apply(&service).unwrap();
    }
    let proxy = bed.start(&[]);
    for address in ["203.0.113.8", "[fd00:203::8]", "203.0.113.71", "192.168.0.11"] {
        let socket = format!("{address}:10256");
        assert_eq!(cluster::status(bed.client(), &socket, "/healthz"), "200", "{address}");
    }
    assert_eq!(status(bed.client(), "203.0.113.8", 22), Some(Refusal::Refused));
    proxy.stop().unwrap();
    // One that listens on loopback is not for load balancers.
    let _proxy = bed.start(&["--healthz-bind-address=127.0.0.1:10256"]);
    assert_eq!(status(bed.client(), "203.0.113.8", 10_256), Some(Refusal::Refused));
}

/// Rules of a host firewall that was written with `nft` into iptables' own tables, of which `iptables-save`
/// shows nothing then (kube-router#1777, calico#8403).
const ONLY_OF_NFT: &str = "iptables -P INPUT ACCEPT
    iptables -t nat -P POSTROUTING ACCEPT
    nft add rule ip filter INPUT 'ct state { established, related } accept'
    nft add rule ip nat POSTROUTING 'oifname { \"eth8\", \"eth9\" } ip saddr 172.16.0.0/12 masquerade'";

#[test]
fn a_rule_that_only_nft_can_show_keeps_no_rule_from_being_written_or_repaired() {
    let bed = Bed::new();
    shell(&bed, ONLY_OF_NFT);
    let saved = bed.tool("iptables-save", &[]);
    for table in ["filter", "nat"] {
        assert!(saved.contains(&format!("# Table `{table}' is incompatible")), "{saved}");
    }
    let service =
        Service::new("far", ip("10.96.0.80")).node_port(Protocol::Tcp, 80, TARGET, 30_480);
    bed.manifests.apply(&service.pods([bed.pod(2, 1)])).unwrap();
    let _proxy = bed.start(&[]);
    let assert_masqueraded = || {
        for (from, target) in
            [(bed.node(), ("10.96.0.80", 80)), (bed.client(), ("192.168.0.11", 30_480))]
        {
            let tally = bed.ask(from, Protocol::Tcp, (ip(target.0), target.1), 2);
            assert_shares(&tally, &[("pod2-1", 2)]);
            assert_eq!(tally.sources(), [ip("192.168.0.11")].into(), "{tally}");
        }
    };
    assert_masqueraded();
    let rules = || {
        let chains = [("nat", "KUBE-SERVICES"), ("nat", "POSTROUTING"), ("filter", "INPUT")];
        chains.map(|(table, chain)| {
            let listed = bed.tool("nft", &["--stateless", "list", "chain", "ip", table, chain]);
            assert_eq!(listed.contains("ct state { established"), table == "filter", "{listed}");
            listed
        })
    };
    let before = rules();
    bed.tool("iptables", &["-t", "nat", "-F", "KUBE-SERVICES"]);
    bed.wait_until("the rules are repaired", || rules() == before);
    assert_masqueraded();
}
