//! Clients that go on sending from one port: connection tracking does not hold them to a removed
//! endpoint, or to no endpoint at all. Entries of other clients stay.
//!
//! On the kernels that this runs on, IPVS forgets some of it by itself when a real server goes; not
//! what began before there was a virtual server, nor what goes by way of an internal frontend.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use bed::{ClusterSpec, Connection, Host, Namespace, Protocol, Question, Server, Service};

use crate::fixture::{Bed, PATIENCE, TARGET, ip};

const NODE_PORT: u16 = 30_053;
const LOCAL: &str = "--cluster-cidr=10.244.0.0/16,fd00:244::/32";

/// An entry of the first node's connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    destination: SocketAddr,
    client_port: u16,
    endpoint: SocketAddr,
    id: u32,
}

fn entries(bed: &Bed, protocol: Protocol) -> Vec<Entry> {
    let protocol = protocol.to_string().to_lowercase();
    let list = |family| bed.tool("conntrack", &["-L", "-f", family, "-p", &protocol, "-o", "id"]);
    let shown = ["ipv4", "ipv6"].map(list).concat();
    let mut entries: Vec<Entry> = shown.lines().map(entry).collect();
    entries.sort();
    entries
}

/// `udp 17 29 src=A dst=B sport=1 dport=2 src=C dst=A sport=3 dport=1 mark=0 use=1 id=4`
fn entry(line: &str) -> Entry {
    let value = |name: &str, nth: usize| {
        let values = line.split_whitespace().filter_map(|word| word.strip_prefix(name));
        values.clone().nth(nth).unwrap_or_else(|| panic!("{name} {nth}: {line}"))
    };
    let socket = |address: &str, port: &str| SocketAddr::new(ip(address), port.parse().unwrap());
    Entry {
        destination: socket(value("dst=", 0), value("dport=", 0)),
        client_port: value("sport=", 0).parse().unwrap(),
        endpoint: socket(value("src=", 1), value("sport=", 1)),
        id: value("id=", 0).parse().unwrap(),
    }
}

fn leads_to(bed: &Bed, protocol: Protocol, hosts: &[&Host]) -> Vec<Entry> {
    let addresses: Vec<IpAddr> = hosts.iter().flat_map(|host| host.addresses()).collect();
    let mut found = entries(bed, protocol);
    found.retain(|entry| addresses.contains(&entry.endpoint.ip()));
    found
}

/// Every kind of frontend, of both families.
fn dns(protocol: Protocol) -> Service {
    let mut service =
        Service::new("dns", ip("10.96.0.53")).node_port(protocol, 53, TARGET, NODE_PORT);
    service.cluster.push(ip("fd00:96::53"));
    service.external = vec![ip("198.51.100.53"), ip("fd00:203::53")];
    service
}

fn frontends() -> [SocketAddr; 6] {
    [
        (ip("10.96.0.53"), 53).into(),
        (ip("fd00:96::53"), 53).into(),
        (ip("198.51.100.53"), 53).into(),
        (ip("fd00:203::53"), 53).into(),
        (ip("192.168.0.11"), NODE_PORT).into(),
        (ip("fd00:192::11"), NODE_PORT).into(),
    ]
}

fn open(from: &Namespace, target: SocketAddr) -> Connection {
    let question = Question::udp(target).within(Duration::from_secs(1));
    Connection::open(from, question).unwrap()
}

/// From outside, from a pod of the node and from the node itself; two flows to each frontend, so
/// that there is one to each of two endpoints.
fn open_all(bed: &Bed) -> Vec<(SocketAddr, Connection)> {
    let clients = [bed.client(), &bed.pod(1, 2).namespace, bed.node()];
    let pairs = clients.iter().flat_map(|from| frontends().map(|target| (*from, target)));
    pairs.flat_map(|(from, target)| [(); 2].map(|()| (target, open(from, target)))).collect()
}

#[test]
fn a_client_moves_when_its_endpoint_is_gone_and_only_then() {
    let bed = Bed::new();
    let to = |pods: [&Host; 2]| bed.manifests.apply(&dns(Protocol::Udp).pods(pods)).unwrap();
    let (stays, goes, comes) = (bed.pod(1, 1), bed.pod(2, 1), bed.pod(2, 2));
    to([stays, goes]);
    let _proxy = bed.start(&[LOCAL]);
    let mut connections = open_all(&bed);
    let before: Vec<String> =
        connections.iter_mut().map(|(_, connection)| connection.say().unwrap().server).collect();
    let living = leads_to(&bed, Protocol::Udp, &[stays]);
    assert_eq!(living.len(), 18, "{living:?}");
    assert_eq!(leads_to(&bed, Protocol::Udp, &[goes]).len(), 18);

    to([stays, comes]);
    bed.wait_until("no flow leads to the endpoint that is gone", || {
        leads_to(&bed, Protocol::Udp, &[goes]).is_empty()
    });
    assert_eq!(leads_to(&bed, Protocol::Udp, &[stays]), living, "the same entries");
    for ((target, connection), before) in connections.iter_mut().zip(&before) {
        // The very first packet arrives.
        let after = connection.say().unwrap_or_else(|error| panic!("{target}: {error}")).server;
        if before == "pod1-1" {
            assert_eq!(after, "pod1-1", "{target}");
        } else {
            assert!(["pod1-1", "pod2-2"].contains(&&*after), "{target}: {after}");
        }
    }
    let kept = leads_to(&bed, Protocol::Udp, &[stays]);
    assert!(living.iter().all(|entry| kept.contains(entry)), "{living:?}\n{kept:?}");
}

#[test]
fn a_client_that_never_pauses_moves_within_moments() {
    let bed = Bed::new();
    let to = |pod: &Host| bed.manifests.apply(&dns(Protocol::Udp).pods([pod])).unwrap();
    to(bed.pod(2, 1));
    let _proxy = bed.start(&[LOCAL]);
    let question = Question::udp((ip("192.168.0.11"), NODE_PORT));
    let question = question.within(Duration::from_millis(200));
    let mut connection = Connection::open(bed.client(), question).unwrap();
    assert_eq!(connection.say().unwrap().server, "pod2-1");
    to(bed.pod(2, 2));
    let started = Instant::now();
    let mut lost = 0;
    loop {
        match connection.say() {
            Ok(answer) if answer.server == "pod2-2" => break,
            Ok(_) => {}
            Err(_) => lost += 1,
        }
        assert!(started.elapsed() < PATIENCE, "{lost} lost\n{}", bed.cluster.dump());
    }
    println!("moved after {:?}, {lost} lost", started.elapsed());
    assert!(lost < 10, "{lost} lost");
    for _ in 0..5 {
        assert_eq!(connection.say().unwrap().server, "pod2-2");
    }
}

#[test]
fn a_client_that_sent_before_there_was_an_endpoint_is_answered_on_the_same_port() {
    let bed = Bed::new();
    let _proxy = bed.start(&[LOCAL]);
    let mut connections: Vec<(SocketAddr, Connection)> =
        frontends().map(|target| (target, open(bed.client(), target))).into();
    let mut say_all = || -> BTreeMap<SocketAddr, bool> {
        connections.iter_mut().map(|(target, to)| (*target, to.say().is_ok())).collect()
    };
    let none: BTreeMap<SocketAddr, bool> = frontends().map(|target| (target, false)).into();
    let all: BTreeMap<SocketAddr, bool> = frontends().map(|target| (target, true)).into();
    assert_eq!(say_all(), none);
    let unanswered = entries(&bed, Protocol::Udp);
    assert!(unanswered.iter().any(|entry| entry.endpoint == entry.destination), "{unanswered:?}");

    bed.manifests.apply(&dns(Protocol::Udp)).unwrap();
    bed.wait_until("the addresses are there", || bed.bound().len() == 4);
    assert_eq!(say_all(), none, "there is no endpoint");
    bed.manifests.apply(&dns(Protocol::Udp).pods([bed.pod(1, 1)])).unwrap();
    bed.wait_until("all are answered", || say_all() == all);
    assert_eq!(say_all(), all);
}

#[test]
fn a_service_without_endpoints_that_is_removed_or_has_another_port_leaves_no_flows() {
    let bed = Bed::new();
    let pod = bed.pod(1, 1);
    let full = || dns(Protocol::Udp).pods([pod]);
    let mut other_port = full();
    other_port.ports.iter_mut().for_each(|port| (port.port, port.node_port) = (54, 30_054));
    bed.manifests.apply(&full()).unwrap();
    let _proxy = bed.start(&[LOCAL]);
    let fill = || {
        let target = SocketAddr::from((ip("10.96.0.53"), 53));
        bed.wait_until("it answers", || bed::ask(bed.client(), Question::udp(target)).is_ok());
        for (target, mut connection) in open_all(&bed) {
            connection.say().unwrap_or_else(|error| panic!("{target}: {error}"));
        }
        assert!(leads_to(&bed, Protocol::Udp, &[pod]).len() >= 36);
    };
    let none = |when: &str| {
        bed.wait_until(when, || leads_to(&bed, Protocol::Udp, &[pod]).is_empty());
    };
    fill();
    bed.manifests.apply(&dns(Protocol::Udp)).unwrap();
    none("none without endpoints");
    bed.manifests.apply(&full()).unwrap();
    fill();
    bed.manifests.apply(&other_port).unwrap();
    none("none to the former port");
    bed.manifests.apply(&full()).unwrap();
    fill();
    bed.manifests.remove("dns").unwrap();
    none("none of a Service that is gone");
}

#[test]
fn what_changed_while_the_program_was_down_is_made_good() {
    let bed = Bed::new();
    let (gone, new) = (bed.pod(2, 1), bed.pod(1, 1));
    let second =
        |pod| Service::new("second", ip("10.96.0.54")).port(Protocol::Udp, 53, TARGET).pods([pod]);
    bed.manifests.apply(&dns(Protocol::Udp).pods([gone])).unwrap();
    bed.manifests.apply(&second(gone)).unwrap();
    let proxy = bed.start(&[LOCAL]);
    let mut first = open(bed.client(), (ip("198.51.100.53"), 53).into());
    assert_eq!(first.say().unwrap().server, "pod2-1");
    let mut of_second = open(bed.client(), (ip("10.96.0.54"), 53).into());
    assert_eq!(of_second.say().unwrap().server, "pod2-1");
    proxy.stop().unwrap();
    bed.manifests.apply(&dns(Protocol::Udp).pods([new])).unwrap();
    bed.manifests.remove("second").unwrap();
    let _proxy = bed.start(&[LOCAL]);
    bed.wait_until("no flow leads to the endpoint that is gone", || {
        leads_to(&bed, Protocol::Udp, &[gone]).is_empty()
    });
    assert_eq!(first.say().unwrap().server, "pod1-1");
    assert!(of_second.say().is_err());
}

#[test]
fn other_hosts_flows_to_the_same_port_are_left_alone() {
    let bed = Bed::with(&ClusterSpec { clients: 2, ..ClusterSpec::default() });
    let foreign = bed.cluster.client(2).unwrap();
    let back = ["route add 10.244.1.0/24 via 192.168.0.11".to_owned()];
    foreign.namespace.configure_links(&back).unwrap();
    let ports = [(Protocol::Udp, NODE_PORT), (Protocol::Udp, 53)];
    let _server = Server::start(foreign, &ports).unwrap();
    let to = |pod| bed.manifests.apply(&dns(Protocol::Udp).pods([pod])).unwrap();
    let (goes, comes) = (bed.pod(2, 1), bed.pod(1, 1));
    to(goes);
    let _proxy = bed.start(&[LOCAL]);
    // Routed through the node, and its own.
    let mut connections = Vec::new();
    for from in [&bed.pod(1, 2).namespace, bed.node()] {
        for (_, port) in ports {
            connections.push(open(from, (foreign.ipv4, port).into()));
        }
    }
    for connection in &mut connections {
        assert_eq!(connection.say().unwrap().server, foreign.name);
    }
    let mut ours = open(bed.client(), (ip("192.168.0.11"), NODE_PORT).into());
    assert_eq!(ours.say().unwrap().server, "pod2-1");
    let before = leads_to(&bed, Protocol::Udp, &[foreign]);
    assert_eq!(before.len(), 4, "{before:?}");
    to(comes);
    bed.wait_until("no flow leads to the endpoint that is gone", || {
        leads_to(&bed, Protocol::Udp, &[goes]).is_empty()
    });
    bed.manifests.remove("dns").unwrap();
    bed.wait_until("the Service is gone", || bed.bound().is_empty());
    bed.wait_until("its flows too", || leads_to(&bed, Protocol::Udp, &[comes]).is_empty());
    assert_eq!(leads_to(&bed, Protocol::Udp, &[foreign]), before, "the same entries");
}

#[test]
fn of_sctp_the_entries_to_endpoints_that_are_gone_are_removed() {
    let bed = Bed::new();
    let to = |pods: [&Host; 2]| bed.manifests.apply(&dns(Protocol::Sctp).pods(pods)).unwrap();
    let (stays, goes, comes) = (bed.pod(1, 1), bed.pod(2, 1), bed.pod(2, 2));
    to([stays, goes]);
    let _proxy = bed.start(&[LOCAL]);
    let question = |target| Question::new(Protocol::Sctp, target);
    let mut connections = Vec::new();
    for target in frontends() {
        for _ in 0..2 {
            let mut connection = Connection::open(bed.client(), question(target)).unwrap();
            connections.push((connection.say().unwrap().server, connection));
        }
    }
    let living = leads_to(&bed, Protocol::Sctp, &[stays]);
    assert_eq!(living.len(), 6, "{living:?}");
    assert_eq!(leads_to(&bed, Protocol::Sctp, &[goes]).len(), 6);
    to([stays, comes]);
    bed.wait_until("no flow leads to the endpoint that is gone", || {
        leads_to(&bed, Protocol::Sctp, &[goes]).is_empty()
    });
    assert_eq!(leads_to(&bed, Protocol::Sctp, &[stays]), living, "the same entries");
    for (server, connection) in &mut connections {
        if server == "pod1-1" {
            assert_eq!(connection.say().unwrap().server, "pod1-1");
        }
    }
}

#[test]
fn with_the_policy_local_flows_of_the_clusters_own_clients_may_lead_to_other_nodes() {
    let bed = Bed::new();
    let local = |pods: &[&Host]| {
        let mut service = dns(Protocol::Udp).pods(pods.iter().copied());
        service.more.push("externalTrafficPolicy: Local".into());
        bed.manifests.apply(&service).unwrap();
    };
    let (here, there, comes) = (bed.pod(1, 1), bed.pod(2, 1), bed.pod(2, 2));
    local(&[here, there]);
    let _proxy = bed.start(&[LOCAL]);
    let external: Vec<SocketAddr> = frontends()[2..4].into();
    let mut connections = Vec::new();
    for target in &external {
        for _ in 0..2 {
            let mut connection = open(&bed.pod(1, 2).namespace, *target);
            connections.push((connection.say().unwrap().server, connection));
        }
    }
    let elsewhere = leads_to(&bed, Protocol::Udp, &[there]);
    assert_eq!(elsewhere.len(), 2, "{elsewhere:?}");
    // Another endpoint comes, and the one on this node goes.
    local(&[there, comes]);
    bed.wait_until("no flow leads to the endpoint that is gone", || {
        leads_to(&bed, Protocol::Udp, &[here]).is_empty()
    });
    assert_eq!(leads_to(&bed, Protocol::Udp, &[there]), elsewhere, "the same entries");
    for (before, connection) in &mut connections {
        let after = connection.say().unwrap().server;
        assert!(after == *before || before == "pod1-1", "{before} {after}");
        assert_ne!(after, "pod1-1");
    }
}
