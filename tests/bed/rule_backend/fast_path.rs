//! The fast path: IPVS chooses the endpoint, connection tracking translates, and the flow table carries.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use bed::{Connection, Load, Protocol, Question, Refusal, Service};

use super::{NFTABLES, limit, require_unnoticed, some};
use crate::churn::{Random, amount, patience};
use crate::fixture::{Bed, TARGET, annotated, assert_shares, ip};
use crate::killed::launch;
use crate::load::{Amount, Loaded};
use crate::ports_again;

pub(super) const OFF: &str = "--fast-path=off";
pub(super) const CONNTRACK: &str = "--fast-path=conntrack";
pub(super) const OFFLOAD: &str = "--fast-path=offload";

/// Networks of the pods.
pub(super) const CLUSTER: &str = "10.244.0.0/16,fd00:244::/32";
pub(super) const NODE_PORT: u16 = 30_080;
pub(super) const ADDRESSES: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
/// Frontends of the Service: at its cluster addresses, and at those of the node.
pub(super) const FRONTENDS: [(&str, u16); 4] = [
    ("10.96.0.10", 80),
    ("fd00:96::10", 80),
    ("192.168.0.11", NODE_PORT),
    ("fd00:192::11", NODE_PORT),
];

/// Address of a load balancer.
const BALANCED: &str = "203.0.113.10";

/// A Service with these frontends, by TCP and UDP.
pub(super) fn web(bed: &Bed) -> Service {
    let mut service = Service::new("web", ip(ADDRESSES[0]));
    service.cluster.push(ip(ADDRESSES[1]));
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        service = service.node_port(protocol, 80, TARGET, NODE_PORT);
    }
    service.pods([bed.pod(1, 1), bed.pod(2, 1)])
}

/// Version of the guest's kernel.
pub(super) fn version(bed: &Bed) -> (u32, u32) {
    let release = bed.tool("uname", &["-r"]);
    let mut numbers = release.split('.').map(|it| it.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// True if this kernel's flow tables are used.
pub(super) fn offloads(bed: &Bed) -> bool {
    let version = version(bed);
    let is_there = bed.tool("nft", &["list", "flowtables"]).contains("flowtable");
    assert_eq!(is_there, version >= (6, 1), "{version:?}");
    is_there
}

/// Counts the packets of translated connections that are forwarded by way of the hooks.
pub(super) struct Forwarded<'a>(&'a Bed);

impl<'a> Forwarded<'a> {
    pub(super) fn begin(bed: &'a Bed) -> Self {
        let table = "add table inet probe
            add chain inet probe forward { type filter hook forward priority 50; }
            add rule inet probe forward ct status dnat counter";
        bed.node().command_with_input("nft", &["-f", "-"], table).unwrap();
        Self(bed)
    }

    pub(super) fn count(&self) -> u64 {
        let text = self.0.tool("nft", &["list", "chain", "inet", "probe", "forward"]);
        let (_, rest) = text.split_once("counter packets ").unwrap();
        rest.split_whitespace().next().unwrap().parse().unwrap()
    }
}

pub(super) fn say(connection: &mut Connection, times: usize) -> String {
    let first = connection.say().unwrap().server;
    for _ in 1..times {
        assert_eq!(connection.say().unwrap().server, first, "one connection has one endpoint");
    }
    first
}

#[test]
fn packets_of_connections_that_go_on_meet_no_hook() {
    let bed = Bed::new();
    bed.manifests.apply(&web(&bed)).unwrap();
    let proxy = bed.start(&["--cluster-cidr", CLUSTER, NFTABLES, OFFLOAD]);
    let offloads = offloads(&bed);
    let log = proxy.log().unwrap();
    assert_eq!(log.contains("fastPath: conntrack instead of offload"), !offloads, "{log}");
    let forwarded = Forwarded::begin(&bed);
    let clients = [("outside", bed.client()), ("pod", &bed.pod(1, 2).namespace)];
    let mut lines = String::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for (who, from) in clients {
            for (address, port) in FRONTENDS {
                for _ in 0..2 {
                    let question = Question::new(protocol, (ip(address), port));
                    let mut connection = Connection::open(from, question).unwrap();
                    say(&mut connection, 4);
                    let before = forwarded.count();
                    let server = say(&mut connection, 20);
                    let passed = forwarded.count() - before;
                    lines += &format!("{protocol} {who} {address} {port} {server}: {passed}\n");
                }
            }
        }
    }
    println!("{lines}");
    let counts = lines.lines().map(|it| it.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    if offloads {
        assert!(counts.clone().all(|it| it <= 2), "{lines}");
    } else {
        assert!(counts.clone().all(|it| it >= 40), "{lines}");
    }
}

/// With `externalTrafficPolicy: Local`, clients outside have an internal frontend of their own: this node's endpoints see their
/// addresses.
#[test]
fn clients_of_both_policies_are_on_the_fast_path_at_one_frontend() {
    let bed = Bed::new();
    let mut near = web(&bed);
    near.more.push("externalTrafficPolicy: Local".to_owned());
    bed.manifests.apply(&near).unwrap();
    let _proxy = bed.start(&["--cluster-cidr", CLUSTER, NFTABLES, OFFLOAD]);
    let offloads = offloads(&bed);
    let forwarded = Forwarded::begin(&bed);
    let (outside, pod) = (bed.client(), &bed.pod(1, 2).namespace);
    let outer = &FRONTENDS[2..];
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for (address, port) in outer {
            let question = Question::new(protocol, (ip(address), *port));
            let seen = bed::ask(outside, question).unwrap().seen_source.ip();
            let own = if address.contains(':') { "fd00:192::100" } else { "192.168.0.100" };
            assert_eq!(seen, ip(own), "{protocol} {address}");
            let mut servers = Vec::new();
            for from in [outside, outside, pod, pod] {
                let mut connection = Connection::open(from, question).unwrap();
                say(&mut connection, 4);
                let before = forwarded.count();
                servers.push(say(&mut connection, 20));
                let passed = forwarded.count() - before;
                let is_past = if offloads { passed <= 2 } else { passed >= 40 };
                assert!(is_past, "{protocol} {} {address}: {passed}", from.name());
            }
            servers[2..].sort();
            assert_eq!(servers, ["pod1-1", "pod1-1", "pod1-1", "pod2-1"], "{protocol} {address}");
        }
    }
    let mut far = near.clone();
    far.endpoints.retain(|it| it.node != "node1");
    bed.manifests.apply(&far).unwrap();
    let question = Question::tcp((ip(outer[0].0), NODE_PORT)).within(Duration::from_secs(1));
    bed.wait_until("clients outside are not answered", || {
        bed::ask(outside, question) == Err(Refusal::Timeout)
    });
    assert_eq!(bed::ask(pod, question).map(|it| it.server), Ok("pod2-1".to_owned()));
    bed.manifests.apply(&near).unwrap();
    bed.wait_until("they are again", || {
        bed::ask(outside, question).is_ok_and(|it| it.server == "pod1-1")
    });
}

/// Networks of kube-ipvs' local routes of IPv4.
fn own_routes(bed: &Bed) -> Vec<String> {
    let text = bed.tool("ip", &["route", "show", "table", "local", "proto", "107"]);
    let network = |line: &str| line.split_whitespace().nth(1).unwrap().to_owned();
    text.lines().map(network).collect()
}

/// With a route to the network of cluster IPs, their internal frontends have one as well. Those of other addresses are bound.
#[test]
fn internal_frontends_of_routed_services_are_local_by_a_route() {
    let bed = Bed::new();
    let mut near = web(&bed);
    near.load_balancer.push(ip(BALANCED));
    near.more.push("externalTrafficPolicy: Local".to_owned());
    bed.manifests.apply(&near).unwrap();
    let routed = bed.configuration(
        "routed",
        "serviceRoutes: [10.96.0.0/16]\nruleBackend: nftables\nfastPath: offload",
    );
    let routed = ["--config", &routed];
    let each = ["--cluster-cidr", CLUSTER, NFTABLES, OFFLOAD];
    let routes = || own_routes(&bed);
    let bound =
        || -> Vec<String> { bed.bound().into_iter().filter(|it| it.contains('.')).collect() };
    let (outside, pod) = (bed.client(), &bed.pod(1, 2).namespace);
    let mut connections: Vec<(Connection, String)> = Vec::new();
    let mut go_on = |why: &str| {
        for from in [outside, pod, bed.node()] {
            for (address, port) in [FRONTENDS[0], FRONTENDS[2], (BALANCED, 80)] {
                let question = Question::tcp((ip(address), port));
                let mut connection = Connection::open(from, question).unwrap();
                let server = say(&mut connection, 4);
                connections.push((connection, server));
            }
        }
        for (connection, server) in &mut connections {
            assert_eq!(connection.say().map(|it| it.server), Ok(server.clone()), "{why}");
        }
    };

    let mut proxy = bed.start(&routed);
    assert_eq!(routes(), ["10.96.0.0/16", "250.96.0.0/16"]);
    let outer = ["203.0.113.10/32", "243.0.113.10/32", "251.0.113.10/32"];
    // Those of the NodePort, at 192.168.0.11 and 10.244.1.1.
    let of_node = ["240.168.0.11/32", "248.168.0.11/32", "250.244.1.1/32", "242.244.1.1/32"];
    let mut expected: Vec<&str> = outer.into_iter().chain(of_node).collect();
    expected.sort_unstable();
    assert_eq!(bound(), expected, "those inside the route are not");
    go_on("a first start");
    let offloads = offloads(&bed);
    let forwarded = Forwarded::begin(&bed);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for from in [outside, pod] {
            for (address, port) in [FRONTENDS[0], FRONTENDS[2], (BALANCED, 80)] {
                let question = Question::new(protocol, (ip(address), port));
                let mut connection = Connection::open(from, question).unwrap();
                say(&mut connection, 4);
                let before = forwarded.count();
                say(&mut connection, 20);
                let passed = forwarded.count() - before;
                let is_past = if offloads { passed <= 2 } else { passed >= 40 };
                assert!(is_past, "{protocol} {} {address}: {passed}", from.name());
            }
        }
        for from in [outside, pod, bed.node()] {
            let tally = bed.ask(from, protocol, (ip(ADDRESSES[0]), 80), 4);
            assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
            // Clients that ask an internal frontend, or what is beside it, are refused.
            for address in ["250.96.0.10", "250.96.0.77"] {
                let question = Question::new(protocol, (ip(address), 80));
                let refused = bed::ask(from, question.within(Duration::from_secs(1)));
                assert!(refused.is_err(), "{protocol} {} {address}: {refused:?}", from.name());
            }
        }
    }

    proxy.stop().unwrap();
    proxy = bed.start(&routed);
    go_on("a restart");
    let log = proxy.stop().unwrap();
    assert!(log.contains("first comparison with the kernel changes=0"), "{log}");

    proxy = bed.start(&each);
    bed.wait_until("addresses replace the routes", || routes().is_empty());
    let inside = ["10.96.0.10/32", "250.96.0.10/32"];
    expected.extend(inside);
    expected.sort_unstable();
    assert_eq!(bound(), expected);
    go_on("addresses again");
    proxy.stop().unwrap();
    let outcome = bed.node().enter(|| node::cleanup::all(&plan::settings::Settings::new("")));
    assert!(outcome.unwrap().is_complete());
    assert_eq!(routes(), Vec::<String>::new());
}

#[test]
fn a_changed_path_is_taken_on_by_the_running_process_and_costs_no_client_anything() {
    let loaded = Loaded::new();
    let bed = &loaded.bed;
    let mut in_file = "off";
    let configuration = bed.configuration("path", "ruleBackend: nftables\nfastPath: off");
    let mut proxy = bed.start(&["--config", &configuration]);
    let process = proxy.process();
    let load = Load::start(&loaded.clients(Amount::new(bed))).unwrap();
    load.wait_for_answers(some(), limit()).unwrap();
    for (path, n_changes) in ["offload", "off"].into_iter().zip(1..) {
        let text = fs::read_to_string(&configuration).unwrap();
        let text = text.replace(&format!("fastPath: {in_file}"), &format!("fastPath: {path}"));
        fs::write(&configuration, text).unwrap();
        in_file = path;
        bed::eventually(limit(), "the path to be in force", || {
            let log = proxy.log()?;
            let n_runs = log.matches("in sync with the kernel").count();
            anyhow::ensure!(n_runs == 1 + n_changes, "{path} is not in force: {log}");
            Ok(())
        })
        .unwrap();
        let tables = bed.tool("nft", &["list", "ruleset"]);
        assert_eq!(tables.contains("flow add @flows"), path == "offload" && version(bed) >= (6, 1));
        load.wait_for_answers(some(), limit()).unwrap();
    }
    assert_eq!(proxy.process(), process);
    proxy.stop().unwrap();
    // IPVS remembers clients with affinity by the virtual server, which is another one.
    require_unnoticed(&load.stop(), 0);
}

#[test]
fn changes_of_the_path_that_are_killed_at_random_points_go_on_where_they_ended() {
    let loaded = Loaded::new();
    let bed = &loaded.bed;
    let mut random = Random::new();
    drop(bed.start(&[NFTABLES, OFF]));
    let load = Load::start(&loaded.clients(Amount::new(bed))).unwrap();
    load.wait_for_answers(some(), limit()).unwrap();
    let longest = u64::try_from(patience(bed).as_millis()).unwrap().min(6_000);
    for _ in 0..amount(3, 60) {
        let proxy = launch(bed, &[NFTABLES, random.of(&[OFF, CONNTRACK, OFFLOAD])]);
        std::thread::sleep(Duration::from_millis(random.below(longest)));
        drop(proxy); // SIGKILL
    }
    for path in [OFFLOAD, OFF] {
        drop(bed.start(&[NFTABLES, path]));
        load.wait_for_answers(some(), limit()).unwrap();
    }
    require_unnoticed(&load.stop(), 0);
}

/// The kernel is still in the middle of the former connection from a port when a client uses it again: IPVS has not seen
/// its end.
#[test]
fn ports_that_are_used_again_lead_to_the_endpoint_that_answers() {
    let bed = ports_again::mk_bed();
    let _proxy = bed.start(&["--cluster-cidr", CLUSTER, NFTABLES, OFFLOAD]);
    let load = Load::start(&ports_again::clients(&bed)).unwrap();
    let (answers, limit) = (amount(60, 50_000), Duration::from_secs(amount(120, 6_000)));
    load.wait_for_answers(usize::try_from(answers).unwrap(), limit).unwrap();
    let report = load.stop();
    println!("{report}");
    report.require_no_failure(1).unwrap();
}

/// IPVS may forget a connection, or lose its endpoint: conntrack carries it.
#[test]
fn connections_go_on_without_ipvs_and_without_their_endpoint_in_the_service() {
    let bed = Bed::new();
    bed.manifests.apply(&web(&bed)).unwrap();
    for path in [CONNTRACK, OFFLOAD] {
        let proxy = bed.start(&["--cluster-cidr", CLUSTER, NFTABLES, path]);
        let mut connections: Vec<(Connection, String)> = Vec::new();
        for from in [bed.client(), &bed.pod(1, 2).namespace, bed.node()] {
            for (address, port) in FRONTENDS {
                let question = Question::tcp((ip(address), port));
                let mut connection = Connection::open(from, question).unwrap();
                let server = say(&mut connection, 3);
                connections.push((connection, server));
            }
        }
        let mut go_on = |why: &str| {
            for (connection, server) in &mut connections {
                assert_eq!(connection.say().map(|it| it.server), Ok(server.clone()), "{why}");
            }
        };
        let question = Question::udp((ip(ADDRESSES[0]), 80));
        let mut flows: Vec<Connection> = (0..4)
            .map(|_| {
                let mut flow = Connection::open(bed.client(), question).unwrap();
                say(&mut flow, 3);
                flow
            })
            .collect();
        let mut without = web(&bed);
        without.endpoints.retain(|it| it.address != IpAddr::from(bed.pod(2, 1).ipv4));
        bed.manifests.apply(&without).unwrap();
        bed.wait_until("new connections go to the other endpoint", || {
            let question = Question::tcp((ip(ADDRESSES[0]), 80));
            bed::ask(bed.client(), question).is_ok_and(|it| it.server == "pod1-1")
        });
        for flow in &mut flows {
            bed.wait_until("a flow of datagrams is led to the other endpoint", || {
                flow.say().is_ok_and(|it| it.server == "pod1-1")
            });
        }
        go_on("an endpoint that is gone from the Service");
        bed.tool("ipvsadm", &["-C"]);
        go_on("IPVS without anything");
        bed.wait_until("virtual servers are back", || {
            bed.virtual_servers().contains("10.96.0.10:80")
        });
        go_on("virtual servers that are back");
        drop(proxy);
        go_on("no proxy");
        bed.manifests.apply(&web(&bed)).unwrap();
    }
}

#[test]
fn the_network_of_internal_frontends_is_shut_and_a_service_that_is_gone_is_refused() {
    let bed = Bed::new();
    bed.manifests.apply(&web(&bed)).unwrap();
    let _proxy = bed.start(&["--cluster-cidr", CLUSTER, NFTABLES, OFFLOAD]);
    let routed = [("250.96.0.10", "250.0.0.0/8"), ("feff:96::10", "feff::/16")];
    for (address, network) in routed {
        let via = if address.contains(':') { "fd00:192::11" } else { "192.168.0.11" };
        let family = if address.contains(':') { "-6" } else { "-4" };
        bed.client().command("ip", &[family, "route", "add", network, "via", via]).unwrap();
        for from in [bed.client(), &bed.pod(1, 2).namespace, bed.node()] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let question =
                    Question::new(protocol, (ip(address), 80)).within(Duration::from_secs(1));
                let refused = bed::ask(from, question).unwrap_err();
                // A process of the node itself is told by its own call.
                let is_told = refused == Refusal::Refused
                    || refused.to_string().contains("Operation not permitted");
                assert!(is_told, "{protocol} {address} {}: {refused}", from.name());
            }
        }
    }
    for (address, port) in FRONTENDS {
        bed.ask(bed.client(), Protocol::Tcp, (ip(address), port), 2);
    }
    // Without endpoints, and then without the Service.
    let mut empty = web(&bed);
    empty.endpoints.clear();
    bed.manifests.apply(&empty).unwrap();
    for (address, port) in FRONTENDS {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let question =
                Question::new(protocol, (ip(address), port)).within(Duration::from_secs(1));
            bed.wait_until("it is refused", || {
                bed::ask(bed.client(), question) == Err(Refusal::Refused)
            });
        }
    }
}

/// A policy that knows no connections is asked about each packet until one of the client's was let through.
#[test]
fn a_policy_without_states_holds_and_a_scheduler_that_counts_stays_on_the_full_path() {
    let bed = Bed::new();
    bed.manifests.apply(&web(&bed)).unwrap();
    let mut counted = Service::new("counted", ip("10.96.0.20")).port(Protocol::Tcp, 80, TARGET);
    counted = counted.pods([bed.pod(1, 1), bed.pod(2, 1)]);
    let text = annotated(&counted, "kube-ipvs.io/scheduler: lc");
    bed.manifests.write("counted.yaml", &text).unwrap();
    let _proxy = bed.start(&["--cluster-cidr", CLUSTER, NFTABLES, OFFLOAD]);
    let servers = bed.virtual_servers();
    assert!(servers.contains("250.96.0.10:80") && !servers.contains("250.96.0.20:80"), "{servers}");
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.20"), 80), 4);
    assert_eq!(tally.refused(), 0, "{tally}");

    let policy = "add table inet policed
        add chain inet policed forward { type filter hook forward priority 10; }
        add rule inet policed forward ip daddr 10.244.0.0/16 drop";
    bed.node().command_with_input("nft", &["-f", "-"], policy).unwrap();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let question =
            Question::new(protocol, (ip(ADDRESSES[0]), 80)).within(Duration::from_secs(2));
        let outcome = Connection::open(bed.client(), question).and_then(|mut it| {
            it.say()?;
            it.say()
        });
        assert_eq!(outcome, Err(Refusal::Timeout), "{protocol}");
    }
    bed.tool("nft", &["delete", "table", "inet", "policed"]);
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(ADDRESSES[0]), 80), 2);
    assert_shares(&tally, &[("pod1-1", 1), ("pod2-1", 1)]);
}

/// Calico and kube-router let established connections pass first. A rule without states is asked about each packet.
#[test]
fn a_policy_that_comes_later_reaches_connections_that_are_not_offloaded() {
    let bed = Bed::new();
    bed.manifests.apply(&web(&bed)).unwrap();
    for path in [CONNTRACK, OFFLOAD] {
        let _proxy = bed.start(&["--cluster-cidr", CLUSTER, NFTABLES, path]);
        let goes_on_without_states = path == OFFLOAD && offloads(&bed);
        for (states, goes_on) in [
            ("ct state established,related accept", true),
            ("ct state invalid drop", goes_on_without_states),
        ] {
            let target = (ip(ADDRESSES[0]), 80);
            let question = Question::tcp(target).within(Duration::from_secs(2));
            let mut connection = Connection::open(bed.client(), question).unwrap();
            say(&mut connection, 4);
            let policy = format!(
                "add table inet later
                add chain inet later forward {{ type filter hook forward priority 10; }}
                add rule inet later forward {states}
                add rule inet later forward ip daddr 10.244.0.0/16 drop"
            );
            bed.node().command_with_input("nft", &["-f", "-"], &policy).unwrap();
            let outcome = connection.say().map(drop);
            bed.tool("nft", &["delete", "table", "inet", "later"]);
            let expected = if goes_on { Ok(()) } else { Err(Refusal::Timeout) };
            assert_eq!(outcome, expected, "{path}, {states}");
        }
    }
}

#[test]
fn the_devices_of_pods_that_come_and_go_are_followed() {
    let bed = Bed::new();
    bed.manifests.apply(&web(&bed)).unwrap();
    let _proxy = bed.start(&["--cluster-cidr", CLUSTER, NFTABLES, OFFLOAD]);
    if !offloads(&bed) {
        return;
    }
    let listed = || bed.tool("nft", &["list", "flowtables"]);
    assert!(listed().contains("eth0") && !listed().contains("kube-ipvs0"), "{}", listed());
    bed.tool("ip", &["link", "add", "later0", "type", "veth", "peer", "name", "later1"]);
    bed.wait_until("it is listed", || listed().contains("later0"));
    bed.tool("ip", &["link", "del", "later0"]);
    bed.wait_until("it is not", || !listed().contains("later"));
}
