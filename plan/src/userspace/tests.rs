use std::net::IpAddr;

use super::*;
use crate::backend::userspace::jumps;
use crate::hash::HashSet;
use crate::model::Family;
use crate::rule_set::{Jump, JumpPlace, LocalTraffic, RuleSet, RuleSetSettings, Table};

/// Chains and rules as `iptables-save` prints them, edited by hand.
const IPV4: &str = include_str!("ipv4.rules");
const IPV6: &str = include_str!("ipv6.rules");

fn portal<'a>(name: &'a str, frontend: &str, proxy: &str) -> Portal<'a> {
    static UNKNOWN: LocalTraffic = LocalTraffic::Unknown;
    let frontend = match frontend.parse() {
        Ok(port) => PortalFrontend::NodePort(port),
        Err(_) => PortalFrontend::Address(frontend.parse().unwrap()),
    };
    Portal {
        name,
        protocol: RelayProtocol::Tcp,
        frontend,
        proxy: Some(proxy.parse().unwrap()),
        proxy_for_local: None,
        local: &UNKNOWN,
        source_ranges: &[],
    }
}

fn nets(nets: &[&str]) -> Vec<IpNet> {
    nets.iter().map(|net| net.parse().unwrap()).collect()
}

/// Writes jumps and rules as `iptables-save` does, but for counters and its order of chains.
fn saved(jumps: &[Jump], rules: &[PortalRule]) -> String {
    let mut text = String::new();
    for table in [Table::Nat, Table::Filter] {
        text += &format!("*{table}\n");
        let chains = || PortalChain::ALL.into_iter().filter(|chain| chain.table() == table);
        for chain in chains() {
            text += &format!(":{chain} - [0:0]\n");
        }
        let leads_there = |jump: &&Jump| chains().any(|chain| chain.name() == jump.to);
        for jump in jumps.iter().filter(leads_there) {
            text += &format!("-A {} {}\n", jump.from, jump.rule());
        }
        for chain in chains() {
            for rule in rules.iter().filter(|rule| rule.chain == chain) {
                text += &format!("-A {chain} {}\n", rule.text);
            }
        }
        text += "COMMIT\n";
    }
    text
}

fn all(portals: &[Portal<'_>], doors: &[ProxyPortDoor<'_>]) -> Vec<PortalRule> {
    let portals = portals.iter().flat_map(Portal::rules);
    portals.chain(doors.iter().flat_map(ProxyPortDoor::rules)).collect()
}

fn texts(portal: &Portal<'_>, chain: PortalChain) -> Vec<String> {
    let rules = portal.rules().into_iter().filter(|rule| rule.chain == chain);
    rules.map(|rule| rule.text).collect()
}

#[test]
fn rules_of_ipv4_are_as_saved() {
    let pods = LocalTraffic::Cidr("10.244.0.0/16".parse().unwrap());
    let ranges = nets(&["203.0.113.0/24", "2001:db8::/32", "192.0.2.0/24"]);
    let cluster = portal("ns/web:http", "10.96.0.10:80", "192.0.2.1:40001");
    let rules = all(
        &[
            cluster.clone(),
            Portal {
                proxy: "192.0.2.1:40002".parse().ok(),
                proxy_for_local: cluster.proxy,
                local: &pods,
                frontend: PortalFrontend::Address("198.51.100.10:80".parse().unwrap()),
                source_ranges: &ranges,
                ..cluster.clone()
            },
            Portal {
                proxy: "192.0.2.1:40002".parse().ok(),
                proxy_for_local: cluster.proxy,
                local: &pods,
                ..portal("ns/web:http", "30080", "192.0.2.1:40001")
            },
            Portal {
                protocol: RelayProtocol::Udp,
                ..portal("kube-system/dns", "10.96.0.11:53", "192.0.2.1:40003")
            },
        ],
        &[
            ProxyPortDoor {
                name: "ns/web:http",
                protocol: RelayProtocol::Tcp,
                proxy: cluster.proxy.unwrap(),
                has_node_port: true,
            },
            ProxyPortDoor {
                name: "ns/web:http",
                protocol: RelayProtocol::Tcp,
                proxy: "192.0.2.1:40002".parse().unwrap(),
                has_node_port: true,
            },
            ProxyPortDoor {
                name: "kube-system/dns",
                protocol: RelayProtocol::Udp,
                proxy: "192.0.2.1:40003".parse().unwrap(),
                has_node_port: false,
            },
        ],
    );
    assert_eq!(saved(&jumps(None), &rules), IPV4);
}

#[test]
fn rules_of_ipv6_are_as_saved() {
    let bridge = LocalTraffic::Bridge("cbr0".into());
    let prefix = LocalTraffic::Prefix("veth".into());
    let ranges = nets(&["2001:db8:1::/48"]);
    let cluster = portal("ns/web:http", "[fd00:96::10]:80", "[2001:db8::1]:40001");
    let external = Portal {
        proxy: "[2001:db8::1]:40002".parse().ok(),
        proxy_for_local: cluster.proxy,
        ..cluster.clone()
    };
    let address = |address: &str| PortalFrontend::Address(address.parse().unwrap());
    let rules = all(
        &[
            cluster.clone(),
            Portal {
                frontend: address("[2001:db8:f::10]:80"),
                local: &bridge,
                source_ranges: &ranges,
                ..external.clone()
            },
            Portal { frontend: address("[2001:db8:f::11]:80"), local: &prefix, ..external },
        ],
        &[ProxyPortDoor {
            name: "ns/web:http",
            protocol: RelayProtocol::Tcp,
            proxy: cluster.proxy.unwrap(),
            has_node_port: true,
        }],
    );
    let node_ports = ["2001:db8::1".parse().unwrap()];
    assert_eq!(saved(&jumps(Some(&node_ports)), &rules), IPV6);
}

#[test]
fn pods_outside_of_the_source_ranges_have_no_internal_frontend() {
    let chain = PortalChain::AddressesOfArriving;
    let pods = LocalTraffic::Cidr("10.244.0.0/16".parse().unwrap());
    let sources = |ranges: &[&str]| {
        let ranges = nets(ranges);
        let portal = Portal {
            proxy_for_local: Some("192.0.2.1:40002".parse().unwrap()),
            local: &pods,
            source_ranges: &ranges,
            ..portal("ns/web", "198.51.100.10:80", "192.0.2.1:40001")
        };
        let texts = texts(&portal, chain).into_iter();
        let local = texts.filter(|text| text.ends_with(":40002"));
        local.map(|text| text.split(" -d").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(sources(&[]), ["-s 10.244.0.0/16"]);
    assert_eq!(sources(&["0.0.0.0/0"]), ["-s 10.244.0.0/16"]);
    assert_eq!(sources(&["10.0.0.0/8"]), ["-s 10.244.0.0/16"]);
    assert_eq!(sources(&["10.244.7.0/24"]), ["-s 10.244.7.0/24"]);
    assert_eq!(sources(&["203.0.113.0/24"]), [""; 0]);
}

#[test]
fn source_ranges_of_the_other_family_let_nobody_in() {
    let ranges = nets(&["2001:db8::/32"]);
    let portal = Portal {
        source_ranges: &ranges,
        ..portal("ns/web", "198.51.100.10:80", "192.0.2.1:40001")
    };
    assert_eq!(portal.rules(), []);
}

#[test]
fn a_range_of_everything_is_no_match_of_a_source() {
    let ranges = nets(&["0.0.0.0/0"]);
    let open = portal("ns/web", "198.51.100.10:80", "192.0.2.1:40001");
    let portal = Portal { source_ranges: &ranges, ..open.clone() };
    let chain = PortalChain::AddressesOfArriving;
    assert_eq!(texts(&portal, chain)[..1], texts(&open, chain));
}

#[test]
fn node_ports_come_last_and_addresses_first() {
    let places: Vec<_> = jumps(None)
        .iter()
        .filter(|jump| jump.table == Table::Nat)
        .map(|jump| (jump.to, jump.place))
        .collect();
    let expected = [
        ("KUBE-PORTALS-CONTAINER", JumpPlace::First),
        ("KUBE-PORTALS-HOST", JumpPlace::First),
        ("KUBE-NODEPORT-CONTAINER", JumpPlace::Last),
        ("KUBE-NODEPORT-HOST", JumpPlace::Last),
    ];
    assert_eq!(places, expected);
}

#[test]
fn jumps_to_former_addresses_of_node_ports_are_taken_out() {
    let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
    let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
    let rule_set =
        |node_ports: Option<&[IpAddr]>| RuleSet::userspace(Family::V4, &settings, node_ports);
    for (before, after, expected) in [
        (Some(&[one, other][..]), Some(&[other][..]), vec!["-d 192.0.2.1/32"]),
        (None, Some(&[one][..]), vec!["-m addrtype --dst-type LOCAL"]),
        (Some(&[one][..]), None, vec!["-d 192.0.2.1/32"]),
        (Some(&[one][..]), Some(&[one, other][..]), vec![]),
    ] {
        let saved = rule_set(before).first_input().replace("-I PREROUTING 1", "-A PREROUTING");
        let saved = saved.replace("-I OUTPUT 1", "-A OUTPUT").replace("-I INPUT 1", "-A INPUT");
        let found = rule_set(after).compare(&saved);
        let froms: Vec<&str> = found.superseded_jumps.iter().map(|jump| jump.from).collect();
        let both = if expected.is_empty() { vec![] } else { vec!["PREROUTING", "OUTPUT"] };
        assert_eq!(froms, both, "{before:?} {after:?}");
        let input = rule_set(after).restore_input(&found);
        for start in expected {
            assert!(input.contains(&format!("-D PREROUTING {start} ")), "{input}");
            assert!(input.contains(&format!("-D OUTPUT {start} ")), "{input}");
        }
    }
}

#[test]
fn a_written_rule_set_is_found_again() {
    let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
    let rule_set = RuleSet::userspace(Family::V6, &settings, None);
    let mut saved = rule_set.first_input();
    for chain in ["PREROUTING", "OUTPUT", "INPUT", "FORWARD"] {
        saved = saved.replace(&format!("-I {chain} 1"), &format!("-A {chain}"));
    }
    let found = rule_set.compare(&saved);
    assert!(found.matches(), "{found}");
    assert!(saved.contains("-A PREROUTING -m addrtype --dst-type LOCAL -m comment"), "{saved}");
}

/// The longest name that iptables takes has 28 characters.
#[test]
fn chains_have_names_of_their_own() {
    let names: HashSet<&str> = PortalChain::ALL.iter().map(|chain| chain.name()).collect();
    assert_eq!(names.len(), PortalChain::ALL.len());
    assert!(names.iter().all(|name| name.len() <= 28));
}

#[test]
fn sctp_is_not_relayed() {
    let relayed = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(RelayProtocol::of);
    assert_eq!(relayed, [Some(RelayProtocol::Tcp), Some(RelayProtocol::Udp), None]);
}
