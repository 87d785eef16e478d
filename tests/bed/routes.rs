//! `serviceRoutes`: a local route in the place of an address for every Service.

use std::process::Command;
use std::time::Duration;

use apiserver::Resource;
use bed::{Connection, Namespace, Protocol, Proxy, Question, Refusal, Server, Service};
use node::cleanup;
use plan::settings::Settings;
use serde_json::json;

use crate::cluster::Cluster;
use crate::fixture::{Bed, TARGET, assert_shares, echoes, ip};

const BALANCED: &str = "203.0.113.10";
const SERVED: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
/// Inside the routes, and no Service's.
const UNASSIGNED: [&str; 2] = ["10.96.0.77", "fd00:96::77"];
const ROUTES: &str = "serviceRoutes: [10.96.0.0/16, 'fd00:96::/112']";
/// Port that the node itself listens on, on all of its addresses.
const DAEMON: u16 = 2222;

/// A Service with cluster addresses and a load balancer's, by TCP and UDP, with a pod on each node.
fn mk_bed() -> Bed {
    let bed = Bed::new();
    let mut service = Service::new("web", ip(SERVED[0])).port(Protocol::Tcp, 80, TARGET).port(
        Protocol::Udp,
        80,
        TARGET,
    );
    service.cluster.push(ip(SERVED[1]));
    service.load_balancer.push(ip(BALANCED));
    bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    bed
}

/// Our local routes, of both families.
fn routes(bed: &Bed) -> Vec<String> {
    let show =
        |family| bed.tool("ip", &[family, "route", "show", "table", "local", "proto", "107"]);
    let text = [show("-4"), show("-6")].concat();
    text.lines().map(|line| line.split_whitespace().take(4).collect::<Vec<_>>().join(" ")).collect()
}

const BOTH: [&str; 2] = ["local 10.96.0.0/16 dev lo", "local fd00:96::/112 dev lo"];

fn clients(bed: &Bed) -> [&Namespace; 4] {
    let pod = |node, pod| &bed.pod(node, pod).namespace;
    [bed.client(), pod(1, 1), pod(1, 2), bed.node()]
}

/// Everybody gets to both pods, whatever the family and the protocol.
fn assert_served(bed: &Bed) {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for from in clients(bed) {
            for target in SERVED {
                let tally = bed.ask(from, protocol, (ip(target), 80), 4);
                assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
            }
        }
    }
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(BALANCED), 80), 4);
    assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
}

#[test]
fn services_are_reached_and_nothing_else_through_their_networks() {
    let bed = mk_bed();
    let listening = [(ip("0.0.0.0"), DAEMON), (ip("::"), DAEMON)];
    let listening = listening.map(|socket| (Protocol::Tcp, socket.into()));
    let _daemon = Server::bind(bed.node(), "sshd", &listening).unwrap();
    let configuration = bed.configuration("routes", ROUTES);
    let _proxy = bed.start(&["--config", &configuration]);
    assert_served(&bed);
    assert_eq!(routes(&bed), BOTH);
    assert_eq!(bed.bound(), ["203.0.113.10/32"], "what is not inside");
    assert!(!bed.entries().iter().any(|entry| entry.starts_with("KUBE-IPVS-IPS 10.96.")));
    for from in clients(&bed) {
        for address in SERVED.into_iter().chain(UNASSIGNED) {
            for port in [DAEMON, 81] {
                let outcome = bed::ask(from, Question::tcp((ip(address), port)));
                assert_eq!(outcome, Err(Refusal::Refused), "{address} {port}");
            }
        }
        let outcome = bed::ask(from, Question::udp((ip(UNASSIGNED[0]), 80)));
        assert_eq!(outcome, Err(Refusal::Refused));
    }
    assert_eq!(echoes(&clients(&bed), &[SERVED, UNASSIGNED].concat()), Vec::<String>::new());
    // An address of the node's own that is inside stays what it is, as soon as it is there.
    bed.tool("ip", &["link", "add", "nodelocaldns", "type", "dummy"]);
    bed.tool("ip", &["link", "set", "nodelocaldns", "up"]);
    for own in ["10.96.200.10", "fd00:96::a10"] {
        bed.tool("ip", &["addr", "add", own, "dev", "nodelocaldns"]);
        for from in [bed.node(), &bed.pod(1, 1).namespace] {
            let tally = bed.ask(from, Protocol::Tcp, (ip(own), DAEMON), 1);
            assert_shares(&tally, &[("sshd", 1)]);
        }
    }
    let outcome = bed::ask(bed.node(), Question::tcp((ip(UNASSIGNED[0]), DAEMON)));
    assert_eq!(outcome, Err(Refusal::Refused), "the others are still refused");
}

#[test]
fn a_route_that_another_program_removes_is_put_back() {
    let bed = mk_bed();
    let configuration = bed.configuration("routes", ROUTES);
    let proxy = bed.start(&["--config", &configuration]);
    assert_served(&bed);
    for arguments in [
        &["-4", "route", "del", "local", "10.96.0.0/16", "table", "local"][..],
        &["-6", "route", "del", "local", "fd00:96::/112", "table", "local"],
        &["link", "del", "kube-ipvs0"],
    ] {
        bed.tool("ip", arguments);
        bed.wait_until("the routes are there again", || routes(&bed) == BOTH);
        bed.wait_until("the address is there again", || bed.bound() == ["203.0.113.10/32"]);
        assert_served(&bed);
    }
    proxy.stop().unwrap();
    // Another program's route to the same network becomes ours. A route of ours that is not desired
    // is removed.
    bed.tool("ip", &["route", "del", "local", "10.96.0.0/16", "table", "local"]);
    let add = ["route", "replace", "local"];
    let table = ["dev", "kube-ipvs0", "table", "local"];
    bed.tool("ip", &[&add[..], &["10.96.0.0/16"], &table, &["proto", "static"]].concat());
    bed.tool("ip", &[&add[..], &["10.98.0.0/16"], &table, &["proto", "107"]].concat());
    let proxy = bed.start(&["--config", &configuration]);
    assert_eq!(routes(&bed), BOTH);
    let all = bed.tool("ip", &["route", "show", "table", "local"]);
    assert_eq!(all.matches("10.96.0.0/16").count(), 1, "{all}");
    proxy.stop().unwrap();
}

/// Amazon's network plugin does so for pods with security groups of their own: what such a pod sends is
/// looked up in a table with a default route before the table `local` is.
#[test]
fn a_routing_rule_before_the_table_local_leads_no_client_past_ipvs() {
    let bed = mk_bed();
    let rules = || {
        let of_family = |family| bed.tool("ip", &[family, "rule", "show"]);
        [of_family("-4"), of_family("-6")].concat()
    };
    let has_ours = || {
        let of = |network: &str| format!("1:\tfrom all to {network} lookup local proto 107");
        rules().contains(&of("10.96.0.0/16")) && rules().contains(&of("fd00:96::/112"))
    };
    // Such pods know their gateway's hardware address: the node does not answer for it either then.
    let gateway = bed.tool("ip", &["-brief", "link", "show", "cni0"]);
    let gateway = gateway.split_whitespace().nth(2).unwrap();
    let known = ["neigh", "replace", "10.244.1.1", "lladdr", gateway, "dev", "eth0"];
    let known = || Command::new("ip").args(known).status();
    assert!(bed.pod(1, 2).namespace.enter(known).unwrap().unwrap().success());
    for line in [
        "route add default via 192.168.0.1 dev eth0 table 101",
        "route add 10.244.1.0/24 dev cni0 table 101",
        "rule add pref 20 lookup local",
        "rule add pref 10 iif cni0 lookup 101",
        "rule del pref 0",
        "-6 route add unreachable default table 101",
        "-6 route add fd00:244:1::/64 dev cni0 table 101",
        "-6 rule add pref 20 lookup local",
        "-6 rule add pref 10 iif cni0 lookup 101",
        "-6 rule del pref 0",
    ] {
        bed.tool("ip", &line.split(' ').collect::<Vec<_>>());
    }
    let assert_led = || {
        for target in SERVED {
            let tally = bed.ask(&bed.pod(1, 2).namespace, Protocol::Tcp, (ip(target), 80), 4);
            assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
        }
    };
    let configuration = bed.configuration("routes", ROUTES);
    let proxy = bed.start(&["--config", &configuration]);
    assert!(has_ours(), "{}", rules());
    assert_led();
    // What another program removes is put back.
    bed.tool("ip", &["rule", "del", "pref", "1"]);
    bed.tool("ip", &["-6", "rule", "del", "pref", "1"]);
    bed.wait_until("the rules are there again", has_ours);
    assert_led();
    proxy.stop().unwrap();
    // Cleanup takes it as well, and without routes it is said what is wrong.
    let outcome = bed.node().enter(|| cleanup::all(&Settings::new(""))).unwrap();
    assert!(outcome.is_complete(), "{outcome}");
    assert!(!rules().contains("proto 107"), "{}", rules());
    let log = bed.start(&[]).stop().unwrap();
    assert!(log.contains("precedes that of the table local"), "{log}");
    for family in ["-4", "-6"] {
        for line in ["rule add pref 0 lookup local", "rule del pref 10", "rule del pref 20"] {
            let words: Vec<&str> = [family].into_iter().chain(line.split(' ')).collect();
            bed.tool("ip", &words);
        }
    }
}

#[test]
fn from_addresses_to_routes_and_back_no_connection_is_cut() {
    let bed = mk_bed();
    let each = bed.configuration("each", "serviceRoutes: []");
    let routed = bed.configuration("routes", ROUTES);
    let bound = ["10.96.0.10/32", "203.0.113.10/32", "fd00:96::10/128"];
    let proxy = bed.start(&["--config", &each]);
    assert_served(&bed);
    assert_eq!(bed.bound(), bound);
    let mut connections = Vec::new();
    for from in [bed.client(), &bed.pod(1, 2).namespace, bed.node()] {
        for target in SERVED {
            let question = Question::tcp((ip(target), 80));
            connections.push(Connection::open(from, question).unwrap());
        }
    }
    let servers: Vec<String> =
        connections.iter_mut().map(|one| one.say().unwrap().server).collect();
    proxy.stop().unwrap();
    for (configuration, routes_then, bound_then, writes) in [
        (&routed, &BOTH[..], &bound[1..2], true),
        (&routed, &BOTH[..], &bound[1..2], false),
        (&each, &[], &bound[..], true),
        (&each, &[], &bound[..], false),
    ] {
        let started = bed.start(&["--config", configuration]);
        assert_eq!((routes(&bed), bed.bound()), (own(routes_then), own(bound_then)));
        assert_served(&bed);
        for (connection, server) in connections.iter_mut().zip(&servers) {
            assert_eq!(connection.say().unwrap().server, *server);
        }
        let log = started.stop().unwrap();
        let idle = log.contains("first comparison with the kernel changes=0");
        assert_eq!(idle, !writes, "{log}");
    }
}

#[test]
fn cleanup_takes_the_routes_too() {
    let bed = mk_bed();
    let configuration = bed.configuration("routes", ROUTES);
    bed.start(&["--config", &configuration]).stop().unwrap();
    assert_eq!(routes(&bed), BOTH, "stopping removes nothing");
    let outcome = bed.node().enter(|| cleanup::all(&Settings::new(""))).unwrap();
    assert!(outcome.is_complete(), "{outcome}");
    assert!(outcome.removed.contains(&"2 local routes".to_owned()), "{outcome}");
    assert_eq!(routes(&bed), Vec::<String>::new());
    assert!(!bed.virtual_servers().contains("8080"), "{}", bed.virtual_servers());
}

#[test]
fn what_is_excluded_no_route_leads_here() {
    let bed = mk_bed();
    let own = "serviceRoutes: [10.96.0.0/30]";
    let configuration = bed.configuration("excluded", own);
    let text = std::fs::read_to_string(&configuration).unwrap();
    let text = text.replace("{syncPeriod: 10m}", "{excludeCIDRs: [10.96.0.2/32]}");
    std::fs::write(&configuration, text).unwrap();
    bed.start(&["--config", &configuration]).stop().unwrap();
    let expected = ["local 10.96.0.0/31 dev lo", "local 10.96.0.3 dev lo"];
    assert_eq!(routes(&bed), expected);
}

#[test]
fn a_network_around_the_nodes_own_is_refused() {
    let bed = mk_bed();
    bed.tool("ip", &["link", "add", "second", "type", "dummy"]);
    bed.tool("ip", &["addr", "add", "10.96.3.4/24", "dev", "second"]);
    let configuration = bed.configuration("routes", ROUTES);
    let arguments = ["--config", configuration.as_str()];
    let Err(error) = Proxy::start(bed.node(), &bed.manifests, &arguments) else {
        panic!("it starts");
    };
    assert!(
        format!("{error:#}").contains("a network that contains this node's network 10.96.3.4/24"),
        "{error:#}"
    );
    assert_eq!(routes(&bed), Vec::<String>::new());
}

/// Number of Services beside the one with pods, from which on there are routes of both families.
const MANY: u32 = 5_000;
/// Numbers that are left when there are none of IPv4 any more, and none at all.
const FEW: u32 = 2_400;
const FEWER: u32 = 100;
/// Longest time until the number is looked at, and all addresses of a family are bound, a few at a time.
const PATIENCE: Duration = Duration::from_secs(120);

fn crowd(number: u32) -> String {
    format!("crowd-{number}")
}

fn wait_for_choice(proxy: &Proxy, words: &str) {
    if let Err(error) = proxy.wait_for_log(words, PATIENCE) {
        panic!("{error:#}\n{}", proxy.log().unwrap());
    }
}

#[test]
fn by_default_many_services_are_routed_and_few_are_bound_one_by_one() {
    // `serviceRoutes` is not set.
    let cluster = Cluster::in_mode("ipvs", "");
    let bed = &cluster.bed;
    cluster.apply(&json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16", "fd00:96::/112"]},
    }));
    let proxy = cluster.start(1);
    let bound = ["10.96.0.10/32", "fd00:96::10/128"];
    assert_eq!((routes(bed), bed.bound()), (vec![], own(&bound)));
    let mut connections = Vec::new();
    for from in [bed.client(), &bed.pod(1, 2).namespace, bed.node()] {
        connections.push(Connection::open(from, Question::tcp((ip(SERVED[0]), 80))).unwrap());
    }

    proxy.stop().unwrap();
    // A node that runs waits for a while of its own. One that comes from kube-proxy finds addresses.
    let mut of_kube_proxy = Vec::new();
    for number in 0..MANY {
        let address = std::net::Ipv4Addr::from(0x0a60_1000 + number).to_string();
        let of_v6 = format!("fd00:96::{:x}", 0x1000 + number);
        for address in [&address, &of_v6] {
            of_kube_proxy.push(format!("addr add {address} dev kube-ipvs0"));
        }
        cluster.apply(&json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": crowd(number), "namespace": "default"},
            "spec": {
                "clusterIP": address, "clusterIPs": [address, of_v6], "ports": [{"port": 80}],
                "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
            },
        }));
    }
    bed.node().configure_links(&of_kube_proxy).unwrap();
    let proxy = cluster.start(1);
    assert_eq!((routes(bed), bed.bound()), (own(&BOTH), vec![]));
    connections.iter_mut().for_each(|connection| drop(connection.say().unwrap()));
    let log = proxy.stop().unwrap();
    assert!(log.contains("serviceRoutes: auto starts with routes"), "{log}");
    assert_eq!(log.matches("in sync with the kernel").count(), 1, "one list, one takeover:\n{log}");
    assert!(!log.contains("another program changed"), "routes stay without addresses:\n{log}");

    // A start keeps what there is, and one that finds nothing asks first.
    let log = cluster.start(1).stop().unwrap();
    assert!(log.contains("first comparison with the kernel changes=0"), "{log}");
    let outcome = bed.node().enter(|| cleanup::all(&Settings::new(""))).unwrap();
    assert!(outcome.is_complete(), "{outcome}");
    let proxy = cluster.start(1);
    assert_eq!((routes(bed), bed.bound()), (own(&BOTH), vec![]));

    let mut connection =
        Connection::open(bed.client(), Question::tcp((ip(SERVED[0]), 80))).unwrap();
    let delete = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            assert!(cluster.api.delete(Resource::Services, "default", &crowd(number)));
        }
    };
    // What a start did not know is made good at once.
    proxy.stop().unwrap();
    delete(FEW..MANY);
    let mut proxy = cluster.start(1);
    let process = proxy.process();
    wait_for_choice(&proxy, "serviceRoutes: auto binds each address of IPv4, for 2401 Services");
    let addresses = usize::try_from(FEW).unwrap() + 1;
    bed.wait_for(PATIENCE, "some addresses are bound", || bed.bound().len() > addresses / 8);
    assert_eq!(routes(bed), BOTH, "the route stays until all are");
    assert!(bed.bound().len() < addresses);
    connection.say().unwrap();
    assert_served_by_cluster_ip(bed);
    bed.wait_for(PATIENCE, "addresses replace the route of IPv4", || {
        routes(bed) == BOTH[1..] && bed.bound().len() == addresses
    });
    connection.say().unwrap();
    assert_eq!(proxy.process(), process);
    let log = proxy.stop().unwrap();
    assert_eq!(log.matches("in sync with the kernel").count(), 1, "no other takeover:\n{log}");
    assert!(!log.contains("another program changed"), "{log}");
    delete(FEWER..FEW);
    let proxy = cluster.start(1);
    wait_for_choice(&proxy, "serviceRoutes: auto binds each address of IPv6, for 101 Services");
    let addresses = 2 * (usize::try_from(FEWER).unwrap() + 1);
    bed.wait_for(PATIENCE, "addresses replace routes", || {
        routes(bed).is_empty() && bed.bound().len() == addresses
    });
    connection.say().unwrap();
    proxy.stop().unwrap();
}

/// A new connection to a cluster IP is answered.
fn assert_served_by_cluster_ip(bed: &Bed) {
    for from in [bed.client(), &bed.pod(1, 2).namespace, bed.node()] {
        bed::ask(from, Question::tcp((ip(SERVED[0]), 80))).unwrap();
    }
}

fn own(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}
