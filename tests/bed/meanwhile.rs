//! Clients of a node that goes from one mode to another: source ranges, masquerading, SCTP.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bed::{
    Answer, Client, ClusterSpec, Connection, Load, NodeSpec, Protocol, Proxy, Question, Refusal,
    Service, Stream, StreamPlan, Traffic,
};

use crate::fixture::{Bed, PROTOCOLS, TARGET, ip, web};
use crate::tenures::{switch, wait_for_mode};

/// Addresses of a load balancer that serves one client.
const GUARDED: [&str; 2] = ["203.0.113.30", "fd00:203::30"];
/// Cluster addresses of the Service `web`.
const WEB: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
/// Time after which a client counts as not served.
const SHORT: Duration = Duration::from_millis(400);

/// A cluster with two clients, and a Service of each protocol whose load balancer serves the first
/// client only.
fn guarded_bed() -> Bed {
    let spec =
        ClusterSpec { nodes: vec![NodeSpec { pods: 2 }; 2], clients: 2, ..Default::default() };
    let bed = Bed::with(&spec);
    let mut service = Service::new("guarded", ip("10.96.0.30"));
    for protocol in PROTOCOLS {
        service = service.port(protocol, 80, TARGET);
    }
    service.cluster.push(ip("fd00:96::30"));
    service.load_balancer = GUARDED.map(ip).to_vec();
    let [ipv4, ipv6] = <[_; 2]>::try_from(bed.cluster.client(1).unwrap().addresses()).unwrap();
    service.more = vec![format!("loadBalancerSourceRanges: [{ipv4}/32, \"{ipv6}/128\"]")];
    bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    bed
}

/// Switches the node to a mode while another client than those of the load balancer asks all the time.
/// Returns the number of its questions, and the answers that it got.
fn switch_beside_a_stranger(bed: &Bed, proxy: &Proxy, mode: &str) -> (usize, Vec<Answer>) {
    let stranger = &bed.cluster.client(2).unwrap().namespace;
    let watched = AtomicBool::new(true);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let (mut n_asked, mut answers) = (0, Vec::new());
            while watched.load(Ordering::Relaxed) {
                for (address, protocol) in
                    GUARDED.iter().flat_map(|it| PROTOCOLS.map(|protocol| (*it, protocol)))
                {
                    let question = Question::new(protocol, (ip(address), 80)).within(SHORT);
                    answers.extend(bed::ask(stranger, question));
                    n_asked += 1;
                }
            }
            (n_asked, answers)
        });
        switch(bed, &[&format!("--to={mode}"), "--no-wait"]).unwrap();
        wait_for_mode(bed, proxy, mode);
        thread::sleep(SHORT * 6);
        watched.store(false, Ordering::Relaxed);
        asking.join().unwrap()
    })
}

#[test]
fn a_load_balancers_source_ranges_hold_at_every_moment_of_a_switch() {
    let bed = guarded_bed();
    let proxy = bed.start(&["--proxy-mode=ipvs"]);
    let plan = StreamPlan { interval: Duration::from_millis(100), askers: 1, kept_open: 2 };
    let allowed = GUARDED.map(|address| {
        Stream::start(bed.client(), Question::tcp((ip(address), 80)), plan).unwrap()
    });
    for stream in &allowed {
        stream.wait_for_answers(5, Duration::from_secs(30)).unwrap();
    }
    for mode in ["iptables", "ipvs", "userspace", "ipvs"] {
        let (n_asked, answers) = switch_beside_a_stranger(&bed, &proxy, mode);
        assert!(n_asked > 0);
        assert_eq!(answers, [], "to mode {mode}: {}", proxy.log().unwrap());
    }
    for stream in allowed {
        stream.stop().require_no_failure(20).unwrap();
    }
}

/// On a node that forwards nothing else.
#[test]
fn what_is_masqueraded_is_accepted_at_every_moment_of_a_switch() {
    const NODE_PORT: u16 = 30_131;
    let bed = Bed::new();
    let only = bed.pod(1, 1);
    let mut service = Service::new("itself", ip("10.96.0.31"));
    service.cluster.push(ip("fd00:96::31"));
    let service = service.node_port(Protocol::Tcp, 80, TARGET, NODE_PORT);
    bed.manifests.apply(&service.pods([only])).unwrap();
    for family in ["iptables", "ip6tables"] {
        bed.tool(family, &["-A", "FORWARD", "-p", "tcp", "--syn", "-j", "DROP"]);
    }
    let proxy = bed.start(&["--proxy-mode=ipvs"]);
    let node = bed.cluster.node(1).unwrap();
    let [ipv4, ipv6]: [_; 2] = node.addresses().try_into().unwrap();
    let clients = [
        ("pod itself, IPv4", &only.namespace, (ip("10.96.0.31"), 80)),
        ("pod itself, IPv6", &only.namespace, (ip("fd00:96::31"), 80)),
        ("outside, IPv4", bed.client(), (ipv4, NODE_PORT)),
        ("outside, IPv6", bed.client(), (ipv6, NODE_PORT)),
    ];
    let clients = clients.map(|(name, from, target)| Client {
        name: name.to_owned(),
        from,
        target: target.into(),
        traffic: Traffic::Connections,
        interval: Duration::from_millis(10),
        servers: [only.name.clone()].into(),
    });
    let load = Load::start(&clients).unwrap();
    for mode in ["iptables", "userspace", "iptables", "ipvs", "userspace", "ipvs"] {
        load.wait_for_answers(10, Duration::from_secs(60)).unwrap();
        switch(&bed, &[&format!("--to={mode}"), "--no-wait"]).unwrap();
        wait_for_mode(&bed, &proxy, mode);
        let answered = load.wait_for_answers(10, Duration::from_secs(60));
        answered.unwrap_or_else(|error| panic!("{error:#}\n{}", proxy.log().unwrap()));
        load.report().require_no_failure(20).unwrap_or_else(|error| panic!("to {mode}: {error:#}"));
    }
    let report = load.stop();
    println!("{report}");
    report.require_no_failure(0).unwrap();
    // A client sends its first packet again, and may be accepted then.
    for program in ["iptables-save", "ip6tables-save"] {
        let saved = bed.tool(program, &["-c", "-t", "filter"]);
        let dropping =
            saved.lines().find(|line| line.contains("-A FORWARD") && line.contains("SYN"));
        assert!(dropping.is_some_and(|line| line.starts_with("[0:0]")), "{saved}");
    }
}

#[test]
fn sctp_associations_go_on_through_a_switch_and_back() {
    let bed = Bed::new();
    let mut service = web([bed.pod(1, 1), bed.pod(2, 1)]);
    service = service.port(Protocol::Sctp, 80, TARGET);
    bed.manifests.apply(&service).unwrap();
    let open = || -> Vec<Connection> {
        let targets = WEB.into_iter().flat_map(|address| {
            [bed.client(), &bed.pod(1, 2).namespace, bed.node()].map(|from| (from, address))
        });
        let open = |(from, address)| {
            let question = Question::sctp((ip(address), 80));
            let mut connection = Connection::open(from, question).unwrap();
            connection.say().unwrap();
            connection
        };
        targets.map(open).collect()
    };
    let mut proxy = bed.start(&["--proxy-mode=ipvs"]);
    let mut connections = open();
    for mode in ["iptables", "ipvs"] {
        drop(proxy);
        proxy = bed.start(&[&format!("--proxy-mode={mode}")]);
        for _ in 0..2 {
            let answers: Vec<Result<Answer, Refusal>> =
                connections.iter_mut().map(Connection::say).collect();
            assert!(answers.iter().all(Result::is_ok), "to mode {mode}: {answers:?}");
            thread::sleep(Duration::from_secs(2));
        }
        connections.extend(open());
    }
    drop(proxy);
}
