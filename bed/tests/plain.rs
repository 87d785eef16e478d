//! The test bed itself, without any service proxy in between: real namespaces, real packets.
//!
//! Needs root. SCTP is tested when `BED_SCTP=1` says so, and then the kernel must have it.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use bed::stream::ConnectionKind;
use bed::{
    Cluster, ClusterSpec, Connection, Host, Namespace, NodeSpec, Protocol, Question, Refusal,
    Server, Stream, StreamPlan, addresses, ask, ask_many,
};

const PORT: u16 = 8080;
/// For what is expected not to be answered.
const SHORT: Duration = Duration::from_millis(700);
const LONG: Duration = Duration::from_secs(30);

fn protocols() -> Vec<Protocol> {
    let mut protocols = vec![Protocol::Tcp, Protocol::Udp];
    if std::env::var("BED_SCTP").is_ok_and(|value| value == "1") {
        protocols.push(Protocol::Sctp);
    }
    protocols
}

fn mk_server(host: &Host) -> Result<Server> {
    let ports: Vec<_> = protocols().into_iter().map(|protocol| (protocol, PORT)).collect();
    Server::start(host, &ports)
}

fn mk_small_cluster() -> Result<Cluster> {
    let nodes = vec![NodeSpec { pods: 2 }];
    Cluster::build(&ClusterSpec { nodes, ..ClusterSpec::default() })
}

fn must_answer(asker: &Host, pod: &Host, expected_sources: [IpAddr; 2]) -> Result<usize> {
    let mut n_asked = 0;
    for (address, expected) in pod.addresses().into_iter().zip(expected_sources) {
        for protocol in protocols() {
            let question = Question::new(protocol, (address, PORT));
            let answer = ask(&asker.namespace, question)
                .with_context(|| format!("{} asking {question}", asker.name))?;
            assert_eq!(answer.server, pod.name, "{} asking {question}", asker.name);
            assert_eq!(answer.seen_source.ip(), expected, "{} asking {question}", asker.name);
            n_asked += 1;
        }
    }
    Ok(n_asked)
}

#[test]
fn every_host_reaches_every_pod_and_is_seen_as_itself() -> Result<()> {
    let cluster = Cluster::build(&ClusterSpec::default())?;
    let _servers = cluster.pods().map(mk_server).collect::<Result<Vec<_>>>()?;
    let mut n_asked = 0;
    for (pod_node, pod) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let pod = cluster.pod(pod_node, pod)?;
        for asker in cluster.pods() {
            n_asked += must_answer(asker, pod, [asker.ipv4.into(), asker.ipv6()?.into()])?;
        }
        for (number, node) in (1..).zip(cluster.nodes()) {
            // A node speaks to its own pods from the address of their bridge.
            let sources = if number == pod_node {
                [addresses::bridge_ipv4(number).into(), addresses::bridge_ipv6(number).into()]
            } else {
                [node.ipv4.into(), node.ipv6()?.into()]
            };
            n_asked += must_answer(node, pod, sources)?;
        }
    }
    assert_eq!(n_asked, 4 * (4 + 2) * 2 * protocols().len());
    Ok(())
}

#[test]
fn clients_send_to_services_through_the_chosen_node() -> Result<()> {
    let cluster = Cluster::build(&ClusterSpec::default())?;
    let _servers = cluster.pods().map(mk_server).collect::<Result<Vec<_>>>()?;
    // A rule of its own on each node stands in for a service.
    let client = cluster.client(1)?;
    for (node, service, endpoint) in [
        (1, "10.96.0.10", "10.244.1.12:8080"),
        (2, "10.96.0.10", "10.244.1.11:8080"),
        (2, "fd00:203::7", "[fd00:244:2::12]:8080"),
    ] {
        let (tool, source) = if service.contains(':') {
            ("ip6tables", client.ipv6()?.to_string())
        } else {
            ("iptables", client.ipv4.to_string())
        };
        for rule in [
            format!(
                "PREROUTING -d {service} -p tcp --dport 80 -j DNAT --to-destination {endpoint}"
            ),
            format!("POSTROUTING -s {source} -j MASQUERADE"),
        ] {
            let arguments: Vec<&str> =
                ["-t", "nat", "-A"].into_iter().chain(rule.split(' ')).collect();
            cluster.node(node)?.namespace.command(tool, &arguments)?;
        }
    }
    let client = &client.namespace;
    let ipv4 = Question::tcp(([10, 96, 0, 10], 80));
    assert_eq!(ask_many(client, ipv4, 5).to_string(), "pod1-2 saw 10.244.1.1 x5");
    cluster.route_services(1, 2)?;
    assert_eq!(ask_many(client, ipv4, 5).to_string(), "pod1-1 saw 192.168.0.12 x5");
    let ipv6 = Question::tcp(("fd00:203::7".parse::<IpAddr>()?, 80));
    assert_eq!(ask_many(client, ipv6, 5).to_string(), "pod2-2 saw fd00:244:2::1 x5");
    let dump = cluster.dump();
    assert!(dump.contains("--to-destination 10.244.1.12:8080"), "{dump}");
    assert!(dump.contains("inet 192.168.0.12/24"), "{dump}");
    Ok(())
}

#[test]
fn each_way_of_refusal_has_its_name() -> Result<()> {
    let cluster = mk_small_cluster()?;
    let (asker, pod) = (cluster.pod(1, 1)?, cluster.pod(1, 2)?);
    for address in pod.addresses() {
        for protocol in protocols() {
            let question = Question::new(protocol, (address, PORT));
            assert_eq!(ask(&asker.namespace, question), Err(Refusal::Refused), "{question}");
        }
    }
    let _server = mk_server(pod)?;
    for (tool, source) in [("iptables", "10.244.0.0/16"), ("ip6tables", "fd00:244::/32")] {
        pod.namespace.command(tool, &["-A", "INPUT", "-s", source, "-j", "DROP"])?;
    }
    for address in pod.addresses() {
        for protocol in protocols() {
            let question = Question::new(protocol, (address, PORT)).within(SHORT);
            let started = Instant::now();
            assert_eq!(ask(&asker.namespace, question), Err(Refusal::Timeout), "{question}");
            let waited = started.elapsed();
            assert!(waited >= SHORT, "{question} gave up after {waited:?}");
        }
    }
    let nowhere = Question::udp(([9, 9, 9, 9], PORT));
    assert_eq!(ask(&cluster.client(1)?.namespace, nowhere), Err(Refusal::Unreachable));
    Ok(())
}

#[test]
fn a_connection_lives_until_its_server_stops() -> Result<()> {
    let cluster = mk_small_cluster()?;
    let (asker, pod) = (cluster.pod(1, 1)?, cluster.pod(1, 2)?);
    let mut server = mk_server(pod)?;
    for protocol in protocols().into_iter().filter(|protocol| *protocol != Protocol::Udp) {
        let question = Question::new(protocol, (pod.ipv4, PORT)).within(SHORT);
        let mut connection = Connection::open(&asker.namespace, question)?;
        for _ in 0..3 {
            let answer = connection.say()?;
            assert_eq!(answer.server, "pod1-2");
            assert_eq!(answer.seen_source, connection.local_address()?);
        }
        drop(server);
        let ending = connection.say();
        assert!(matches!(ending, Err(Refusal::Closed | Refusal::Reset)), "{question}: {ending:?}");
        assert_eq!(ask(&asker.namespace, question), Err(Refusal::Refused), "{question}");
        // The port can be had again although a connection to it has just been cut.
        server = mk_server(pod)?;
        assert!(ask(&asker.namespace, question).is_ok(), "{question} after a restart");
    }
    Ok(())
}

#[test]
fn the_source_can_be_chosen() -> Result<()> {
    let cluster = mk_small_cluster()?;
    let (asker, pod) = (cluster.pod(1, 1)?, cluster.pod(1, 2)?);
    let _server = mk_server(pod)?;
    asker.namespace.configure_links(&["addr add 10.244.1.99/32 dev lo".to_owned()])?;
    cluster
        .node(1)?
        .namespace
        .configure_links(&["route add 10.244.1.99 via 10.244.1.11".to_owned()])?;
    pod.namespace.configure_links(&["route add 10.244.1.99 via 10.244.1.11".to_owned()])?;
    for protocol in protocols() {
        let question = Question::new(protocol, (pod.ipv4, PORT));
        let question = question.from_source(([10, 244, 1, 99], 4242));
        let answer = ask(&asker.namespace, question)?;
        assert_eq!(answer.seen_source.to_string(), "10.244.1.99:4242", "{question}");
    }
    Ok(())
}

#[test]
fn a_late_datagram_is_not_the_next_answer() -> Result<()> {
    let namespace = Namespace::create("late")?;
    let server = namespace.enter(|| UdpSocket::bind("127.0.0.1:0"))??;
    let question = Question::udp(server.local_addr()?).within(SHORT);
    let (go, may_go) = mpsc::channel::<()>();
    let (sent, was_sent) = mpsc::channel::<()>();
    let late_server = thread::spawn(move || -> Result<()> {
        let (_, peer) = server.recv_from(&mut [0; 16])?;
        may_go.recv()?;
        server.send_to(b"late 10.0.0.1:1\n", peer)?;
        sent.send(())?;
        server.recv_from(&mut [0; 16])?;
        server.send_to(b"prompt 10.0.0.1:1\n", peer)?;
        Ok(())
    });
    let mut connection = Connection::open(&namespace, question)?;
    assert_eq!(connection.say(), Err(Refusal::Timeout));
    go.send(())?;
    was_sent.recv()?;
    assert_eq!(connection.say()?.server, "prompt");
    late_server.join().map_err(|_| anyhow!("the late server panicked"))?
}

#[test]
fn a_stream_notices_an_outage_and_nothing_else() -> Result<()> {
    let cluster = mk_small_cluster()?;
    let (asker, pod) = (cluster.pod(1, 1)?, cluster.pod(1, 2)?);
    let server = mk_server(pod)?;
    let question = Question::tcp((pod.ipv4, PORT)).within(SHORT);
    let plan = StreamPlan { askers: 2, kept_open: 3, interval: Duration::from_millis(10) };
    let quiet = Stream::start(&asker.namespace, question, plan)?;
    quiet.wait_for_answers(60, LONG)?;
    let report = quiet.stop();
    report.require_no_failure(60)?;
    assert!(report.fresh > 0 && report.kept > 0, "{report}");
    assert_eq!(
        report.by_server.into_iter().collect::<Vec<_>>(),
        [("pod1-2".to_owned(), report.fresh)]
    );

    let disturbed = Stream::start(&asker.namespace, question, plan)?;
    disturbed.wait_for_answers(20, LONG)?;
    drop(server);
    let gone = disturbed.wait_for_answers(1000, Duration::from_millis(300));
    assert!(gone.is_err(), "answers from a server that is gone");
    let _server = mk_server(pod)?;
    disturbed.wait_for_answers(20, LONG)?;
    let report = disturbed.stop();
    assert!(report.require_no_failure(1).is_err(), "{report}");
    let of_kept = report.failures.iter().filter(|failure| failure.on == ConnectionKind::Kept);
    assert_eq!(of_kept.count(), 3, "each kept connection fails once: {report}");
    assert!(report.failures.iter().any(|failure| failure.refusal == Refusal::Refused), "{report}");
    Ok(())
}

#[test]
fn without_ipv6_there_is_none() -> Result<()> {
    let cluster = Cluster::build(&ClusterSpec { ipv6: false, ..ClusterSpec::default() })?;
    let (asker, pod) = (cluster.pod(1, 1)?, cluster.pod(2, 2)?);
    let _server = mk_server(pod)?;
    assert_eq!(ask(&asker.namespace, Question::tcp((pod.ipv4, PORT)))?.server, "pod2-2");
    for host in cluster.nodes().iter().chain(cluster.pods()).chain(cluster.clients()) {
        assert!(host.ipv6().is_err());
        assert_eq!(
            host.namespace.command("ip", &["-6", "-o", "addr", "show"])?,
            "",
            "{}",
            host.name
        );
    }
    Ok(())
}

#[test]
fn clusters_live_side_by_side_and_leave_nothing() -> Result<()> {
    let (first, second) = (mk_small_cluster()?, mk_small_cluster()?);
    let _server = mk_server(first.pod(1, 2)?)?;
    let question = Question::tcp((first.pod(1, 2)?.ipv4, PORT));
    assert!(ask(&first.pod(1, 1)?.namespace, question).is_ok());
    assert_eq!(ask(&second.pod(1, 1)?.namespace, question), Err(Refusal::Refused));
    let path = second.node(1)?.namespace.path();
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
    assert!(ask(&first.pod(1, 1)?.namespace, question).is_ok());
    Ok(())
}

#[test]
fn a_node_is_set_up_as_a_network_plugin_would() -> Result<()> {
    let cluster = mk_small_cluster()?;
    let node = &cluster.node(1)?.namespace;
    assert_eq!(node.sysctl("net/ipv4/ip_forward")?, "1");
    assert_eq!(node.sysctl("net/ipv6/conf/cni0/forwarding")?, "1");
    if node.has_sysctl("net/bridge/bridge-nf-call-iptables")? {
        assert_eq!(node.sysctl("net/bridge/bridge-nf-call-iptables")?, "1");
        assert_eq!(node.sysctl("net/bridge/bridge-nf-call-ip6tables")?, "1");
    }
    let port = node.command("ip", &["-d", "link", "show", "pod1-1"])?;
    assert!(port.contains("hairpin on") && port.contains("master cni0"), "{port}");
    assert!(node.sysctl("net/no_such_setting").is_err());
    assert!(!node.has_sysctl("net/no_such_setting")?);
    Ok(())
}

#[test]
fn programs_run_inside_and_say_what_went_wrong() -> Result<()> {
    let namespace = Namespace::create("programs")?;
    let links = namespace.command("ip", &["-o", "link", "show", "up"])?;
    assert!(links.contains("lo:") && !links.contains("eth0"), "{links}");
    let echoed = namespace.command_with_input("cat", &[], &"line\n".repeat(100_000))?;
    assert_eq!(echoed.len(), 500_000);

    let error = namespace.command("ip", &["link", "show", "eth7"]).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains(namespace.name()) && error.contains("ip link show eth7"), "{error}");
    assert!(error.contains("does not exist"), "{error}");
    let error = format!("{:#}", namespace.command("no-such-program", &[]).unwrap_err());
    assert!(error.contains("no-such-program") && error.contains("No such file"), "{error}");
    let lines = ["link set lo down".to_owned(), "link set eth7 up".to_owned()];
    let error = format!("{:#}", namespace.configure_links(&lines).unwrap_err());
    assert!(error.contains("link set eth7 up") && error.contains("Cannot find device"), "{error}");
    Ok(())
}

#[test]
fn daemons_live_inside_and_end_with_their_owner() -> Result<()> {
    let namespace = Namespace::create("daemons")?;
    let mk_sleeper = || {
        let mut command = Command::new("sleep");
        command.arg("1000");
        namespace.spawn(command)
    };
    let mut polite = mk_sleeper()?;
    assert!(polite.is_running()?);
    let inside = fs::read_link(format!("/proc/{}/ns/net", polite.child().id()))?;
    let own = namespace.enter(|| fs::read_link("/proc/thread-self/ns/net"))??;
    assert_eq!(inside, own);
    assert_ne!(inside, fs::read_link("/proc/self/ns/net")?);
    assert!(!polite.terminate(LONG)?.success(), "ended by a signal");

    let mut dropped = mk_sleeper()?;
    let process = format!("/proc/{}", dropped.child().id());
    assert!(fs::exists(&process)?);
    drop(dropped);
    assert!(!fs::exists(&process)?);
    Ok(())
}

#[test]
#[should_panic(expected = "inside of a namespace")]
fn a_panic_inside_goes_on_outside() {
    let namespace = Namespace::create("panic").unwrap();
    let _ = namespace.enter(|| panic!("inside of a namespace"));
}
