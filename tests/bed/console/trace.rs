//! `kube-ipvs trace`: what it foretells, beside what packets do.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bed::addresses::{POD_RANGE_IPV4, POD_RANGE_IPV6};
use bed::{ClusterSpec, Connection, Host, Protocol, Question, Refusal, Server, Service, ask};

use super::{Said, run};
use crate::fixture::{Bed, PROTOCOLS, TARGET, ip, web};

/// Time limit of an answer that should not come.
const SILENCE: Duration = Duration::from_millis(1_500);
/// Time limit of one that should.
const ANSWER: Duration = Duration::from_secs(10);
/// Services of the random cluster.
const SERVICES: u8 = 24;
/// Services that are tried at once: the console has 16 connections at a time.
const AT_ONCE: usize = 8;

/// Words of a trace on a flow.
#[derive(Debug, PartialEq, Eq)]
enum Foretold {
    /// These servers answer, each of which sees this source.
    Answers(BTreeSet<(String, IpAddr)>),
    Refused,
    Dropped,
    /// No server of the cluster answers.
    Elsewhere,
}

/// Numbers that look random, the same for the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    fn is_one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }
}

fn trace(bed: &Bed, source: &str, target: SocketAddr, protocol: Protocol, more: &[&str]) -> Said {
    let protocol = format!("{protocol:?}").to_lowercase();
    let destination = format!("{target}/{protocol}");
    run(bed, &[&["trace", source, &destination], more].concat())
}

/// Returns what a trace says, by the names of servers.
fn foretold(bed: &Bed, source: &str, target: SocketAddr, protocol: Protocol) -> Foretold {
    let said = trace(bed, source, target, protocol, &["-o", "json"]);
    let answer = said.json();
    let ways = answer["ways"].as_array().unwrap();
    let ends: BTreeSet<&str> = ways.iter().map(|way| way["end"].as_str().unwrap()).collect();
    assert_eq!(ends.len(), 1, "{said:?}");
    let code = |is_lost| assert_eq!(said.code, i32::from(is_lost), "{said:?}");
    match ends.first().copied().unwrap() {
        "endpoint" => {
            code(false);
            let choices = ways.iter().flat_map(|way| way["endpoints"].as_array().unwrap());
            let server = |choice: &serde_json::Value| {
                let endpoint: SocketAddr = choice["endpoint"].as_str().unwrap().parse().unwrap();
                let sees = choice["sees"].as_str().unwrap_or_else(|| panic!("{said:?}"));
                (name_of(bed, endpoint.ip()), sees.parse().unwrap())
            };
            Foretold::Answers(choices.map(server).collect())
        }
        "unanswered" => {
            code(true);
            Foretold::Dropped
        }
        "refused" => {
            code(true);
            Foretold::Refused
        }
        "dropped" => {
            code(true);
            Foretold::Dropped
        }
        _ => Foretold::Elsewhere,
    }
}

fn name_of(bed: &Bed, address: IpAddr) -> String {
    let mut hosts = bed.cluster.pods().chain(bed.cluster.nodes());
    hosts.find(|host| host.addresses().contains(&address)).unwrap().name.clone()
}

/// Returns what is wrong with a flow, if anything is.
fn mistake(
    bed: &Bed,
    (word, client): (&str, &Host),
    target: SocketAddr,
    protocol: Protocol,
    (mode, has_affinity): (&str, bool),
) -> Option<String> {
    let foretold = foretold(bed, word, target, protocol);
    let question = Question::new(protocol, target);
    let seen = match &foretold {
        Foretold::Answers(expected) => {
            let mut found = BTreeSet::new();
            // Endpoints of IPVS and of the relay take turns; rules choose by chance, and one of six is passed over
            // sixty times once in 60,000 flows.
            let n_questions = if mode == "iptables" { 60 } else { 2 * expected.len() };
            for _ in 0..n_questions {
                if mode == "iptables" && found == *expected {
                    break;
                }
                match ask(&client.namespace, question.within(ANSWER)) {
                    Ok(answer) => drop(found.insert((answer.server, answer.seen_source.ip()))),
                    Err(refusal) => return Some(format!("{foretold:?}, but {refusal}")),
                }
            }
            let is_right = if has_affinity {
                found.len() == 1 && found.is_subset(expected)
            } else {
                found == *expected
            };
            return (!is_right).then(|| format!("{foretold:?}, but {found:?}"));
        }
        _ => ask(&client.namespace, question.within(SILENCE)),
    };
    let is_right = match (&foretold, &seen) {
        (Foretold::Refused, Err(Refusal::Refused)) => true,
        // Of the node's own datagrams, rules of OUTPUT tell the socket themselves.
        (Foretold::Refused, Err(Refusal::Other(error))) => {
            mode != "ipvs" && protocol == Protocol::Udp && error.contains("not permitted")
        }
        (Foretold::Dropped, Err(Refusal::Timeout)) => true,
        // The node's own rules drop a packet before it has left: the socket gets an error.
        (Foretold::Dropped, Err(Refusal::Other(error))) => error.contains("not permitted"),
        (Foretold::Elsewhere, seen) => seen.is_err(),
        _ => false,
    };
    (!is_right).then(|| format!("{foretold:?}, but {seen:?}"))
}

/// A Service of random kind, policies, endpoints and source ranges.
fn random_service(bed: &Bed, number: u8, random: &mut Random) -> (Service, Protocol) {
    let mut service = Service::new(&format!("random-{number}"), ip(&format!("10.96.1.{number}")));
    service.cluster.push(ip(&format!("fd00:96::{number}")));
    let protocol = [Protocol::Tcp, Protocol::Udp][random.below(2)];
    let node_port = if random.is_one_in(3) { 0 } else { 31_000 + u16::from(number) };
    service = service.node_port(protocol, 80, TARGET, node_port);
    if random.is_one_in(2) {
        service.external = [format!("198.51.100.{number}"), format!("fd00:203::1:{number}")]
            .map(|it| ip(&it))
            .into();
    }
    if node_port > 0 && random.is_one_in(2) {
        service.load_balancer = [format!("203.0.113.{number}"), format!("fd00:203::2:{number}")]
            .map(|it| ip(&it))
            .into();
    }
    let has_outer = node_port > 0 || !service.external.is_empty();
    if has_outer && random.is_one_in(2) {
        service.more.push("externalTrafficPolicy: Local".to_owned());
    }
    if random.is_one_in(4) {
        service.more.push("internalTrafficPolicy: Local".to_owned());
    }
    if !service.load_balancer.is_empty() && random.is_one_in(2) {
        let ranges = match random.below(3) {
            0 => "[\"192.168.0.0/24\", \"fd00:192::/64\"]".to_owned(),
            1 => "[\"10.244.0.0/16\", \"fd00:244::/32\"]".to_owned(),
            _ => {
                let own = bed.cluster.client(1).unwrap().addresses().into_iter();
                let own = own.map(|it| format!("\"{it}/{}\"", if it.is_ipv4() { 32 } else { 128 }));
                format!("[{}]", own.collect::<Vec<_>>().join(", "))
            }
        };
        service.more.push(format!("loadBalancerSourceRanges: {ranges}"));
    }
    if random.is_one_in(6) {
        service.affinity = Some(600);
    }
    for host in bed.cluster.pods() {
        service = match random.below(6) {
            0 | 1 => service.pods([host]),
            2 => service.terminating_pod(host, true),
            3 => service.terminating_pod(host, false),
            _ => service,
        };
    }
    if random.is_one_in(8) {
        service = service.pods([bed.cluster.node(1).unwrap()]);
    }
    (service, protocol)
}

/// Returns the address and port of every frontend of a Service.
fn targets(bed: &Bed, service: &Service) -> Vec<SocketAddr> {
    let served = service.cluster.iter().chain(&service.external).chain(&service.load_balancer);
    let mut targets: Vec<SocketAddr> =
        served.map(|address| SocketAddr::new(*address, 80)).collect();
    let port = service.ports[0].node_port;
    if port > 0 {
        let own = bed.cluster.node(1).unwrap().addresses();
        targets.extend(own.into_iter().map(|address| SocketAddr::new(address, port)));
    }
    targets
}

/// Returns what is wrong with a flow to a Service, in words.
fn try_flow(
    bed: &Bed,
    (service, protocol): &(Service, Protocol),
    client: &Host,
    target: SocketAddr,
    mode: &str,
) -> Option<String> {
    let source = if client.name == "node1" {
        "node".to_owned()
    } else {
        let of_family = |it: &IpAddr| it.is_ipv4() == target.is_ipv4();
        client.addresses().into_iter().find(of_family).unwrap().to_string()
    };
    let how = (mode, service.affinity.is_some());
    let mistake = mistake(bed, (&source, client), target, *protocol, how)?;
    Some(format!("{} to {target} of {}: {mistake}", client.name, service.name))
}

#[test]
fn traces_of_a_random_cluster_come_true() {
    traces_come_true("ipvs");
}

#[test]
fn traces_of_a_random_cluster_come_true_in_mode_iptables() {
    traces_come_true("iptables");
}

#[test]
fn traces_of_a_random_cluster_come_true_in_mode_userspace() {
    traces_come_true("userspace");
}

fn traces_come_true(mode: &str) {
    let seed = std::env::var("SEED").map_or(18, |seed| seed.parse().unwrap());
    let bed = Bed::with(&ClusterSpec { clients: 2, ..ClusterSpec::default() });
    let node = bed.cluster.node(1).unwrap();
    let _host = Server::start(node, &PROTOCOLS.map(|protocol| (protocol, TARGET))).unwrap();
    // By nature the kernel refuses a client but a few times a second.
    node.namespace.set_sysctl("net/ipv4/icmp_ratemask", "0").unwrap();
    node.namespace.set_sysctl("net/ipv6/icmp/ratelimit", "0").unwrap();
    let mut random = Random(seed);
    let services: Vec<(Service, Protocol)> =
        (1..=SERVICES).map(|number| random_service(&bed, number, &mut random)).collect();
    let yaml: Vec<String> = services.iter().map(|(service, _)| service.to_yaml()).collect();
    bed.manifests.write("random.yaml", &yaml.join("---\n")).unwrap();
    let local = format!("--cluster-cidr={POD_RANGE_IPV4},{POD_RANGE_IPV6}");
    let proxy = bed.start(&[&format!("--proxy-mode={mode}"), &local]);
    let mut flows: Vec<Vec<(usize, SocketAddr)>> = Vec::new();
    for (service, _) in &services {
        let client = |target: SocketAddr| (random.below(5), target);
        flows.push(targets(&bed, service).into_iter().map(client).collect());
    }
    let clients = [
        bed.cluster.client(1).unwrap(),
        bed.cluster.client(2).unwrap(),
        bed.pod(1, 1),
        bed.pod(1, 2),
        node,
    ];
    let mistakes = Mutex::new(Vec::new());
    let (next, both) = (AtomicUsize::new(0), services.iter().zip(&flows).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((service, flows)) = both.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = flows.iter().filter_map(|(client, target)| {
                        try_flow(&bed, service, clients[*client], *target, mode)
                    });
                    let found: Vec<String> = found.collect();
                    mistakes.lock().unwrap().extend(found);
                }
            });
        }
    });
    let mistakes = mistakes.into_inner().unwrap();
    let n_flows: usize = flows.iter().map(Vec::len).sum();
    let shown = || format!("{}\n{}", mistakes.join("\n"), yaml.join("---\n"));
    assert!(mistakes.is_empty(), "seed {seed}, {} of {n_flows}:\n{}", mistakes.len(), shown());
    assert!(n_flows > 100, "{n_flows}");
    eprintln!("{n_flows} flows of {SERVICES} random Services are as they were traced");
    proxy.stop().unwrap();
}

/// A route names a source for the node's own connections. Masquerading does not ask it.
#[test]
fn the_source_of_masquerading_is_foretold_on_a_node_with_several_addresses() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(2, 1)])).unwrap();
    let local = format!("--cluster-cidr={POD_RANGE_IPV4},{POD_RANGE_IPV6}");
    let _proxy = bed.start(&[&local]);
    let router = bed.cluster.node(2).unwrap().ipv4.to_string();
    let pods = bed::addresses::pod_range_ipv4(2).to_string();
    let ip = |words: &[&str]| bed.node().command("ip", words).unwrap();
    ip(&["address", "add", "192.168.0.50/24", "dev", "eth0"]);
    ip(&["address", "add", "198.18.0.50/24", "dev", "eth0"]);
    for source in ["192.168.0.50", "198.18.0.50"] {
        ip(&["route", "change", &pods, "via", &router, "src", source]);
        let client = bed.cluster.client(1).unwrap();
        let word = client.ipv4.to_string();
        let target: SocketAddr = "10.96.0.10:80".parse().unwrap();
        let how = ("ipvs", false);
        assert_eq!(mistake(&bed, (&word, client), target, Protocol::Tcp, how), None);
    }
}

#[test]
fn a_trace_names_rules_and_entries_that_the_node_has_and_connections_that_there_are() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&[]);
    let target: SocketAddr = "10.96.0.10:80".parse().unwrap();
    let address = bed.cluster.client(1).unwrap().ipv4.to_string();
    let said = trace(&bed, &address, target, Protocol::Tcp, &["-o", "json"]);
    let answer = said.json();
    assert_eq!((&answer["kind"], &answer["service"]), (&"Trace".into(), &"default/web".into()));
    let steps = answer["ways"][0]["steps"].as_array().unwrap();
    let rules: Vec<_> = steps.iter().filter(|step| step["step"] == "rule").collect();
    assert!(rules.len() > 3, "{said:?}");
    let saved = bed.rules("iptables");
    for rule in &rules {
        let (chain, text) = (rule["chain"].as_str().unwrap(), rule["rule"].as_str().unwrap());
        let line = format!("-A {chain} {text}");
        assert!(saved.lines().any(|it| it == line), "{line} is not in\n{saved}");
    }
    let entries = rules.iter().flat_map(|rule| rule["entries"].as_array().unwrap());
    let entries: Vec<String> =
        entries.map(|entry| entry.as_str().unwrap().replace(": ", " ")).collect();
    let here = bed.entries();
    assert!(entries.contains(&"KUBE-CLUSTER-IP 10.96.0.10,tcp:80".to_owned()), "{entries:?}");
    for entry in &entries {
        assert!(here.contains(entry), "{entry} is not in {here:?}");
    }
    let shares = answer["ways"][0]["endpoints"].as_array().unwrap().iter();
    assert!(shares.clone().all(|choice| choice["share"] == 0.5), "{said:?}");
    let connection = Connection::open(bed.client(), Question::tcp(target)).unwrap();
    let live = trace(&bed, &address, target, Protocol::Tcp, &["--live"]);
    let client = connection.local_address().unwrap().to_string();
    assert!(live.out.contains(&client), "{live:?}");
    assert!(live.out.contains("ESTABLISHED"), "{live:?}");
    let other = trace(&bed, "node", target, Protocol::Tcp, &["--live"]);
    assert!(other.out.contains("no connections to it"), "{other:?}");
    proxy.stop().unwrap();
}
