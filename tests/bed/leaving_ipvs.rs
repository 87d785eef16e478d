//! A node that goes from mode ipvs to mode iptables: what happens to it between the first rule and
//! the removal of what IPVS mode left.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bed::{Connection, Host, Namespace, Protocol, Proxy, Question, Service, Stream, StreamPlan};

use crate::fixture::{Bed, TARGET, ip, web};

/// Addresses of the Service `web`.
const WEB: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
/// Addresses of the Service to which connections are held.
const HELD: [&str; 2] = ["10.96.0.20", "fd00:96::20"];

/// Pause between two looks at the rules.
const LOOK: Duration = Duration::from_millis(50);
/// Longest time until the rules and the sets of IPVS mode are removed, beside a program that reads them
/// again and again, on an emulated processor.
const REMOVAL: Duration = Duration::from_secs(60);

fn question(address: &str) -> Question {
    Question::tcp((ip(address), 80))
}

/// A connection to each of these addresses of a Service, whose only endpoint is a pod.
fn connect(from: &Namespace, addresses: [&str; 2], pod: &Host) -> [Connection; 2] {
    addresses.map(|address| {
        let mut connection = Connection::open(from, question(address)).unwrap();
        assert_eq!(connection.say().unwrap().server, pod.name, "{address}");
        connection
    })
}

/// Starts mode ipvs with this pod as the endpoint of `web`, has a pod connect to the Service `held`,
/// and starts mode iptables. The connections keep a virtual server of each family.
fn begin(bed: &Bed, pod: &Host, arguments: &[&str]) -> (Proxy, [Connection; 2]) {
    let mut held = Service::new("held", ip(HELD[0])).port(Protocol::Tcp, 80, TARGET);
    held.cluster.push(ip(HELD[1]));
    let near = bed.pod(1, 1);
    bed.manifests.apply(&held.pods([near])).unwrap();
    bed.manifests.apply(&web([pod])).unwrap();
    drop(bed.start(&[&["--proxy-mode=ipvs"], arguments].concat()));
    let held = connect(&bed.pod(1, 2).namespace, HELD, near);
    let proxy = bed.start(&[&["--proxy-mode=iptables"], arguments].concat());
    bed.wait_until("what IPVS mode left drains", || {
        let table = bed.virtual_servers();
        table.lines().filter(|line| line.split_whitespace().nth(3) == Some("0")).count() == 2
    });
    (proxy, held)
}

/// The local routes of ours, by family.
fn routes(bed: &Bed) -> [Vec<String>; 2] {
    ["-4", "-6"].map(|family| {
        let arguments = [family, "route", "show", "table", "local", "proto", "107"];
        bed.tool("ip", &arguments).lines().map(str::to_owned).collect()
    })
}

/// Closes the connections that IPVS leads, and waits until nothing of IPVS mode is left.
fn end(bed: &Bed, held: [Connection; 2]) {
    for connection in held {
        connection.abort().unwrap();
    }
    let outcome = bed::eventually(REMOVAL, "everything of IPVS mode is gone", || {
        let links = bed.tool("ip", &["-oneline", "link"]);
        let sets = bed.tool("ipset", &["list", "-name"]);
        let is_gone = !links.contains("kube-ipvs0")
            && !sets.contains("KUBE-")
            && routes(bed).iter().all(|of_family| of_family.is_empty());
        if is_gone { Ok(()) } else { anyhow::bail!("{links}\n{sets}\n{:?}", routes(bed)) }
    });
    outcome.unwrap();
}

#[test]
fn the_nodes_own_connections_are_masqueraded_meanwhile_and_go_on_after_it() {
    let bed = Bed::new();
    let far = bed.pod(2, 1);
    // Nothing is known of local traffic, so that iptables mode masquerades nothing by itself.
    let (proxy, held) = begin(&bed, far, &["--detect-local-mode=ClusterCIDR"]);
    assert_eq!(routes(&bed).map(|routes| routes.len()), [2, 2], "a route for each address");
    assert!(bed.bound().is_empty(), "{:?}", bed.bound());
    let mut own = connect(bed.node(), WEB, far);
    for address in WEB {
        let answer = bed::ask(bed.node(), question(address)).unwrap();
        assert_ne!(answer.seen_source.ip(), ip(address), "{}", proxy.log().unwrap());
    }
    end(&bed, held);
    for (connection, address) in own.iter_mut().zip(WEB) {
        let source = connection.local_address().unwrap();
        let answer = connection.say().map(|answer| answer.server);
        assert_eq!(answer.as_ref(), Ok(&far.name), "{address} from {source}");
    }
    connect(bed.node(), WEB, far);
    for family in ["iptables", "ip6tables"] {
        assert!(!bed.rules(family).contains("match-set"), "{}", bed.rules(family));
    }
}

#[test]
fn connections_are_tracked_from_the_first_rule_to_the_last_and_beyond() {
    let bed = Bed::new();
    let (near, pod) = (bed.pod(1, 1), &bed.pod(1, 2).namespace);
    let (_proxy, held) = begin(&bed, near, &[]);
    let mut by_rules = connect(pod, WEB, near);
    let plan = StreamPlan { interval: Duration::from_millis(50), askers: 1, kept_open: 2 };
    let streams = WEB.map(|address| Stream::start(pod, question(address), plan).unwrap());
    // The last rule that tracks connections must not go, not even for a moment: each connection would
    // be new after it.
    let tracks = |program: &str| match bed.node().command(program, &[]) {
        Ok(saved) => saved.contains("-A POSTROUTING"),
        // The rule with the set was read, and the set was gone when its name was asked for.
        Err(error) if format!("{error:#}").contains("Set with index") => true,
        Err(error) => panic!("{error:#}"),
    };
    let watched = AtomicBool::new(true);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut n_looks, began) = (0, Instant::now());
            // If it does not end, the other thread has panicked.
            while watched.load(Ordering::Relaxed) && began.elapsed() < 2 * REMOVAL {
                assert!(tracks("iptables-save") && tracks("ip6tables-save"));
                n_looks += 1;
                // An emulated processor has to do what is watched, too.
                thread::sleep(LOOK);
            }
            n_looks
        });
        end(&bed, held);
        watched.store(false, Ordering::Relaxed);
        assert!(watcher.join().unwrap() > 3);
    });
    for stream in streams {
        stream.stop().require_no_failure(20).unwrap();
    }
    for connection in &mut by_rules {
        assert_eq!(connection.say().unwrap().server, near.name);
    }
}

#[test]
fn ipvs_does_not_answer_for_connections_of_the_rules_whatever_its_sysctl_was() {
    let bed = Bed::new();
    let near = bed.pod(1, 1);
    bed.tool("modprobe", &["ip_vs"]);
    bed.node().set_sysctl("net/ipv4/vs/nat_icmp_send", "1").unwrap();
    let (_proxy, held) = begin(&bed, near, &[]);
    assert_eq!(bed.node().sysctl("net/ipv4/vs/nat_icmp_send").unwrap(), "0");
    let mut by_rules = connect(&bed.pod(1, 2).namespace, WEB, near);
    // Endpoints of both Services are real servers of what is left.
    let mut of_held = connect(&bed.pod(1, 2).namespace, HELD, near);
    for connection in by_rules.iter_mut().chain(&mut of_held) {
        assert_eq!(connection.say().unwrap().server, near.name);
    }
    drop(held);
}

/// Port of a server that sends without being asked.
const SENDING: u16 = 9_300;

/// Sends a byte every 100 ms on each connection to a pod, until the other end has gone.
fn send_from(pod: &Host) {
    let listener = pod.namespace.enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, SENDING)));
    let listener = listener.unwrap().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                while stream.write_all(b".").is_ok() {
                    thread::sleep(Duration::from_millis(100));
                }
            });
        }
    });
}

#[test]
fn a_half_closed_connection_goes_on_until_the_deadline_and_is_cut_then() {
    let bed = Bed::new();
    let near = bed.pod(1, 1);
    send_from(near);
    let sending = Service::new("sending", ip("10.96.0.40")).port(Protocol::Tcp, 80, SENDING);
    bed.manifests.apply(&sending.pods([near])).unwrap();
    let deadline = Duration::from_secs(25);
    let own = format!("drainDeadline: {}s", deadline.as_secs());
    let of_ipvs = bed.configuration("half-closed", &own);
    drop(bed.start(&["--config", &of_ipvs]));
    let connect = || TcpStream::connect(("10.96.0.40", 80));
    let mut connection = bed.client().enter(connect).unwrap().unwrap();
    connection.shutdown(Shutdown::Write).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut hears = || connection.read(&mut [0; 64]).map_err(|error| error.kind());
    assert!(hears().is_ok_and(|length| length > 0));

    let text = std::fs::read_to_string(&of_ipvs).unwrap();
    let of_iptables = bed.configuration("half-closed-iptables", "");
    std::fs::write(&of_iptables, text.replace("mode: ipvs", "mode: iptables")).unwrap();
    let switched = Instant::now();
    let _proxy = bed.start(&["--config", &of_iptables]);
    // Longer than real servers without open connections stay.
    while switched.elapsed() < Duration::from_secs(17) {
        assert!(hears().is_ok_and(|length| length > 0), "after {:?}", switched.elapsed());
    }
    let is_gone = || !bed.virtual_servers().contains("10.96.0.40");
    bed.wait_until("its time is over", is_gone);
    assert!(switched.elapsed() >= deadline, "{:?}", switched.elapsed());
    let last = loop {
        match hears() {
            Ok(length) if length > 0 => {}
            other => break other,
        }
    };
    // Nothing more comes, or a reset: the acknowledgement of the last byte may reach the rules, which
    // take it for a new connection.
    let is_cut = matches!(last, Err(ErrorKind::WouldBlock | ErrorKind::ConnectionReset));
    assert!(is_cut, "{last:?}");
}
