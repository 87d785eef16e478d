//! Every kind of client at once, from everywhere, while something happens to the node.
//!
//! `cargo xtask soak` has a thousand streams and ten kills.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bed::Traffic;
use bed::{
    Client, ClusterSpec, Host, Load, LoadReport, NodeSpec, Protocol, Proxy, Server, Service,
};

use crate::churn::{Random, amount, patience};
use crate::fixture::{Bed, TARGET, ip};
use crate::killed::launch;

/// Port of each Service, and the one that its pods listen on: each Service has one of its own, as
/// IPVS cannot tell two ways to one endpoint apart (`flows::mistaken`).
pub(crate) const PORT: u16 = 80;
pub(crate) const ANY: u16 = 9_101;
pub(crate) const LOCAL: u16 = 9_102;
const STICKY: u16 = 9_103;
/// Ports on the node: of the Service for any endpoint, and of the one for local endpoints.
pub(crate) const NODE_PORT: u16 = 30_101;
pub(crate) const LOCAL_NODE_PORT: u16 = 30_102;

/// Number of clients and their pace.
#[derive(Clone, Copy)]
pub(crate) struct Amount {
    /// Streams of each client that has streams: there are 24.
    pub(crate) streams: usize,
    /// Time between the questions on a stream.
    pub(crate) stream: Duration,
    /// Pause between short connections.
    pub(crate) rest: Duration,
    /// Time between datagrams.
    pub(crate) datagram: Duration,
}

/// Longest time until each client has had some answers.
fn limit() -> Duration {
    Duration::from_secs(amount(60, 300))
}

/// A node with Services for every kind of client. Three pods serve, a fourth one is a client.
pub(crate) struct Loaded {
    pub(crate) bed: Bed,
    _servers: Vec<Server>,
}

/// A way to a Service.
struct Way {
    name: &'static str,
    target: SocketAddr,
    /// True if clients outside get local endpoints only.
    local: bool,
}

impl Amount {
    /// As many as this machine can do, or a thousand streams in the long form.
    pub(crate) fn new(bed: &Bed) -> Self {
        // On an emulated machine all of it takes many times longer.
        let slowness = (patience(bed).as_secs_f64() / 4.0).max(1.0);
        let pause = |short, long| Duration::from_millis(amount(short, long)).mul_f64(slowness);
        Self {
            streams: usize::try_from(amount(4, 42)).unwrap(),
            stream: pause(600, 4_000),
            rest: pause(250, 500),
            datagram: pause(100, 200),
        }
    }

    /// Half as much. An emulated machine that is busy with a change of the mode besides serves its own timers late.
    pub(crate) fn halved(self) -> Self {
        Self {
            streams: self.streams.div_ceil(2),
            stream: self.stream * 2,
            rest: self.rest * 2,
            datagram: self.datagram * 2,
        }
    }
}

impl Loaded {
    pub(crate) fn new() -> Self {
        let nodes = vec![NodeSpec { pods: 3 }, NodeSpec { pods: 1 }];
        let bed = Bed::with(&ClusterSpec { nodes, ..ClusterSpec::default() });
        let ports: Vec<(Protocol, u16)> = [ANY, LOCAL, STICKY]
            .into_iter()
            .flat_map(|port| [(Protocol::Tcp, port), (Protocol::Udp, port)])
            .collect();
        let servers = serving(&bed).map(|pod| Server::start(pod, &ports).unwrap()).into();
        let loaded = Self { bed, _servers: servers };
        for service in loaded.services() {
            loaded.bed.manifests.apply(&service).unwrap();
        }
        loaded
    }

    fn services(&self) -> [Service; 3] {
        let mk = |name: &str, last: u8, target: u16, node_port: u16| {
            let mut service = Service::new(name, ip(&format!("10.96.0.{last}")));
            service.cluster.push(ip(&format!("fd00:96::{last}")));
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                service = service.node_port(protocol, PORT, target, node_port);
            }
            service.pods(serving(&self.bed))
        };
        let mut any = mk("any", 11, ANY, NODE_PORT);
        any.external = vec![ip("198.51.100.11"), ip("fd00:203::11")];
        let mut local = mk("local", 12, LOCAL, LOCAL_NODE_PORT);
        local.load_balancer = vec![ip("203.0.113.12"), ip("fd00:203::12")];
        local.more = vec!["externalTrafficPolicy: Local".to_owned()];
        let mut sticky = mk("sticky", 13, STICKY, 0);
        sticky.affinity = Some(3_600);
        [any, local, sticky]
    }

    /// Takes one of three endpoints from the Service for any endpoint; it had all, or two others.
    fn remove_an_endpoint(&self, random: &mut Random) {
        let [mut any, ..] = self.services();
        let removed = usize::try_from(random.below(3)).unwrap();
        let host = serving(&self.bed)[removed];
        let gone: [IpAddr; 2] = [host.ipv4.into(), host.ipv6().unwrap().into()];
        any.endpoints.retain(|endpoint| !gone.contains(&endpoint.address));
        self.bed.manifests.apply(&any).unwrap();
    }

    /// All clients: from outside, from a pod and from the node, by every kind of address.
    pub(crate) fn clients(&self, amount: Amount) -> Vec<Client<'_>> {
        let mut clients = Vec::new();
        let sources = [
            ("outside", self.bed.client()),
            ("pod", &self.bed.pod(1, 3).namespace),
            ("node", self.bed.node()),
        ];
        for (who, from) in sources {
            for ipv6 in [false, true] {
                for way in self.ways(ipv6) {
                    let family = if ipv6 { "IPv6" } else { "IPv4" };
                    let only_local = way.local && who == "outside";
                    let here = [self.bed.pod(1, 1), self.bed.pod(1, 2)];
                    let servers: BTreeSet<String> = if only_local {
                        here.iter().map(|pod| pod.name.clone()).collect()
                    } else {
                        BTreeSet::new()
                    };
                    let mut add = |kind: &str, traffic, interval| {
                        let name = format!("{kind}, {who}, {}, {family}", way.name);
                        let (target, servers) = (way.target, servers.clone());
                        clients.push(Client { name, from, target, traffic, interval, servers });
                    };
                    if way.name == "affinity" {
                        add("affinity", Traffic::Affinity, amount.rest);
                        continue;
                    }
                    add("streams", Traffic::Streams(amount.streams), amount.stream);
                    add("connections", Traffic::Connections, amount.rest);
                    add("datagrams", Traffic::Datagrams, amount.datagram);
                }
            }
        }
        clients
    }

    fn ways(&self, ipv6: bool) -> [Way; 5] {
        let node = self.bed.cluster.node(1).unwrap();
        let address: IpAddr = if ipv6 { node.ipv6().unwrap().into() } else { node.ipv4.into() };
        let pick = |four: &str, six: &str| ip(if ipv6 { six } else { four });
        let mk = |name, address, port, local| Way { name, target: (address, port).into(), local };
        [
            mk("cluster", pick("10.96.0.11", "fd00:96::11"), PORT, false),
            mk("node port", address, NODE_PORT, false),
            mk("external", pick("198.51.100.11", "fd00:203::11"), PORT, false),
            mk("load balancer, local", pick("203.0.113.12", "fd00:203::12"), PORT, true),
            mk("affinity", pick("10.96.0.13", "fd00:96::13"), PORT, false),
        ]
    }
}

pub(crate) fn serving(bed: &Bed) -> [&Host; 3] {
    [bed.pod(1, 1), bed.pod(1, 2), bed.pod(2, 1)]
}

#[test]
fn a_kill_and_a_new_start_cost_no_client_anything() {
    let loaded = Loaded::new();
    let proxy = loaded.bed.start(&[]);
    let load = Load::start(&loaded.clients(Amount::new(&loaded.bed))).unwrap();
    let some = usize::try_from(amount(3, 10)).unwrap();
    load.wait_for_answers(some, limit()).unwrap();
    let mut proxy = Some(proxy);
    for _ in 0..amount(1, 10) {
        drop(proxy.take()); // SIGKILL
        load.wait_for_answers(some, limit()).unwrap();
        proxy = Some(loaded.bed.start(&[]));
        load.wait_for_answers(some, limit()).unwrap();
    }
    let report = load.stop();
    println!("{report}");
    report.require_no_failure(some * 3).unwrap();
}

#[test]
fn the_load_notices_when_connections_are_cut() {
    let loaded = Loaded::new();
    drop(loaded.bed.start(&[]));
    let is_ipv4 = |client: &Client<'_>| client.name.contains("IPv4");
    let all = loaded.clients(Amount { streams: 2, ..Amount::new(&loaded.bed) });
    let clients: Vec<Client<'_>> = all.into_iter().filter(is_ipv4).collect();
    let load = Load::start(&clients).unwrap();
    load.wait_for_answers(2, limit()).unwrap();
    let before = load.report();
    before.require_no_failure(2).unwrap();
    // No proxy is there to put this right.
    loaded.bed.tool("ipvsadm", &["-C"]);
    // Connections through an internal frontend of `externalTrafficPolicy: Local` live on in connection
    // tracking alone.
    let depends_on_ipvs = |name: &str| name.contains("outside") || !name.contains("local");
    let unaware = |report: &LoadReport| {
        let clients = report.clients.iter().filter(|(name, _)| depends_on_ipvs(name));
        let mut failures = clients.map(|(name, counts)| match name.split(',').next() {
            Some("streams") => counts.resets + counts.timeouts,
            Some("datagrams") => counts.lost,
            _ => counts.refused + counts.timeouts,
        });
        failures.any(|failures| failures == 0)
    };
    loaded.bed.wait_until("every client of IPVS notices", || !unaware(&load.report()));
    let report = load.stop();
    println!("{report}");
    report.require_no_failure(0).unwrap_err();
}

#[test]
fn a_switch_from_ipvs_to_iptables_cuts_refuses_and_delays_no_client() {
    let loaded = Loaded::new();
    let bed = &loaded.bed;
    let proxy = bed.start(&["--proxy-mode=ipvs"]);
    let load = Load::start(&loaded.clients(Amount::new(bed))).unwrap();
    let some = usize::try_from(amount(3, 10)).unwrap();
    load.wait_for_answers(some, limit()).unwrap();
    drop(proxy);
    let proxy = bed.start(&["--proxy-mode=iptables"]);
    load.wait_for_answers(some, limit()).unwrap();
    // Streams stay with IPVS for as long as they live.
    assert!(bed.virtual_servers().contains("10.96.0.11:80"), "{}", proxy.log().unwrap());
    let report = load.stop();
    println!("{report}");
    for (name, counts) in &report.clients {
        // A virtual server for UDP that goes drops what comes until the kernel's next tick. On the
        // node itself, a datagram that is dropped so is an error of its socket, too.
        let most_lost = if name.starts_with("datagrams") { 2 } else { 0 };
        assert!(counts.lost <= most_lost && counts.others <= counts.lost, "{name}:\n{report}");
        assert_eq!(counts.failed(), counts.lost + counts.others, "{name}:\n{report}");
        // Flows of datagrams and clients with affinity may move: the modes remember them in
        // different places.
        let moves = name.starts_with("datagrams") || name.starts_with("affinity");
        assert!(counts.moved == 0 || moves, "{name}:\n{report}");
        assert!(counts.answers >= some * 2, "{name}:\n{report}");
    }
}

#[test]
fn when_the_last_connection_of_ipvs_has_ended_nothing_of_it_is_left() {
    let bed = Bed::new();
    let service = Service::new("web", ip("10.96.0.10")).port(Protocol::Tcp, PORT, TARGET);
    bed.manifests.apply(&service.pods([bed.pod(1, 1)])).unwrap();
    drop(bed.start(&["--proxy-mode=ipvs"]));
    assert!(bed.bound().contains(&"10.96.0.10/32".to_owned()));
    let _proxy = bed.start(&["--proxy-mode=iptables"]);
    let is_left = || {
        let links = bed.tool("ip", &["-oneline", "link"]);
        let rules = bed.rules("iptables") + &bed.rules("ip6tables");
        links.contains("kube-ipvs0")
            || bed.virtual_servers().contains("10.96.0.10")
            || bed.tool("ipset", &["save"]).contains("KUBE-")
            || rules.contains("KUBE-IPVS-FILTER")
            || rules.contains("match-set")
    };
    bed.wait_until("everything of IPVS mode is gone", || !is_left());
    let answer = bed::ask(bed.client(), bed::Question::tcp((ip("10.96.0.10"), PORT)));
    assert_eq!(answer.unwrap().server, "pod1-1");
}

/// Requires that no client was cut, refused or delayed by a switch, apart from what the two modes
/// cannot carry over, and from the datagrams that removed endpoints cost: IPVS drops what comes to a
/// removed real server until the kernel's next tick, which is an error of the socket on the node itself.
fn require_unnoticed(
    report: &LoadReport,
    at_least: usize,
    n_removed_endpoints: usize,
    may_move: impl Fn(&str) -> bool,
) {
    println!("{report}");
    for (name, counts) in &report.clients {
        let most_lost = if name.starts_with("datagrams") { n_removed_endpoints } else { 0 };
        assert!(counts.lost <= most_lost && counts.others <= counts.lost, "{name}:\n{report}");
        assert_eq!(counts.failed(), counts.lost + counts.others, "{name}:\n{report}");
        assert!(counts.moved == 0 || may_move(name), "{name}:\n{report}");
        assert!(counts.answers >= at_least, "{name}:\n{report}");
    }
}

#[test]
fn a_switch_from_iptables_to_ipvs_cuts_refuses_and_delays_no_client() {
    let loaded = Loaded::new();
    let bed = &loaded.bed;
    let proxy = bed.start(&["--proxy-mode=iptables"]);
    let load = Load::start(&loaded.clients(Amount::new(bed))).unwrap();
    let some = usize::try_from(amount(3, 10)).unwrap();
    load.wait_for_answers(some, limit()).unwrap();
    drop(proxy);
    let proxy = bed.start(&["--proxy-mode=ipvs"]);
    load.wait_for_answers(some, limit()).unwrap();
    let log = proxy.log().unwrap();
    let leads = "new connections go to IPVS from now on";
    assert_eq!(log.matches(leads).count(), 2, "for each family:\n{log}");
    bed.wait_until("everything of iptables mode is gone", || {
        let rules = bed.rules("iptables") + &bed.rules("ip6tables");
        !["KUBE-SVC-", "KUBE-SEP-", "KUBE-EXTERNAL-SERVICES", "from a service address"]
            .iter()
            .any(|left| rules.contains(left))
    });
    load.wait_for_answers(some, limit()).unwrap();
    // Affinity begins anew: the modes remember clients in different places.
    require_unnoticed(&load.stop(), some * 3, 0, |name| name.starts_with("affinity"));
}

#[test]
fn the_nodes_own_connections_are_answered_during_a_switch_without_a_detector() {
    let loaded = Loaded::new();
    let bed = &loaded.bed;
    let start = |mode: &str| {
        let folder = bed.manifests.path().to_string_lossy().into_owned();
        let mode = format!("--proxy-mode={mode}");
        let arguments = ["--manifests", &folder, "--hostname-override", "node1", &mode];
        Proxy::start_with(bed.node(), &arguments).unwrap()
    };
    let mut proxy = start("iptables");
    proxy.wait_until_in_sync().unwrap();
    // Many connections begin while addresses are bound and rules still lead. That takes longer on an
    // emulated machine, which can do fewer in that time.
    let amount = Amount::new(bed);
    let amount = Amount { rest: amount.rest / 50, ..amount };
    let is_of_node = |client: &Client<'_>| client.name.contains("connections, node, cluster");
    let of_node: Vec<Client<'_>> = loaded.clients(amount).into_iter().filter(is_of_node).collect();
    assert_eq!(of_node.len(), 2, "one of each family");
    let many = of_node.iter().flat_map(|client| {
        (1..=8).map(move |number| {
            let name = format!("{}, {number}", client.name);
            Client { name, ..client.clone() }
        })
    });
    let load = Load::start(&many.collect::<Vec<_>>()).unwrap();
    load.wait_for_answers(3, limit()).unwrap();
    drop(proxy);
    let mut proxy = start("ipvs");
    proxy.wait_until_in_sync().unwrap();
    load.wait_for_answers(3, limit()).unwrap();
    require_unnoticed(&load.stop(), 6, 0, |_| false);
}

/// Number of kills before the switch is let through. After each, an endpoint is removed.
const KILLS: usize = 3;

/// Kills the program again and again on its way from one mode to the other, lets it through, and checks
/// that no client has noticed.
fn kill_at_random_points(from: &str, to: &str, most_lost: usize, check: impl Fn(&Bed, &Proxy)) {
    let mut random = Random::new();
    let some = usize::try_from(amount(2, 5)).unwrap();
    let [from, to] = [from, to].map(|mode| format!("--proxy-mode={mode}"));
    for time in 0..amount(2, 20) {
        let loaded = Loaded::new();
        let bed = &loaded.bed;
        let proxy = bed.start(&[&from]);
        let longest = patience(bed) / 2;
        let load = Load::start(&loaded.clients(Amount::new(bed))).unwrap();
        load.wait_for_answers(some, limit()).unwrap();
        drop(proxy);
        kill(&loaded, &to, longest, &mut random);
        let proxy = bed.start(&[&to]);
        load.wait_for_answers(some, limit()).unwrap();
        println!("time {time}");
        check(bed, &proxy);
        // Flows of datagrams leave an endpoint at once when it is removed.
        let moves = |name: &str| name.starts_with("affinity") || name.starts_with("datagrams");
        require_unnoticed(&load.stop(), some * 2, most_lost, moves);
    }
}

/// Starts the program and kills it after a while, again and again.
fn kill(loaded: &Loaded, mode: &str, longest: Duration, random: &mut Random) {
    for _ in 0..KILLS {
        let starting = launch(&loaded.bed, &[mode]);
        random.rest(longest);
        drop(starting); // SIGKILL
        loaded.remove_an_endpoint(random);
    }
}

#[test]
fn killed_at_random_points_of_a_switch_to_ipvs_it_goes_on_and_no_client_notices() {
    kill_at_random_points("iptables", "ipvs", KILLS, |_, _| {});
}

#[test]
fn killed_at_random_points_of_a_switch_to_iptables_it_goes_on_and_no_client_notices() {
    // A virtual server for UDP that goes costs a flow up to two datagrams.
    kill_at_random_points("ipvs", "iptables", KILLS + 2, |bed, proxy| {
        // Streams stay with IPVS for as long as they live.
        assert!(bed.virtual_servers().contains("10.96.0.11:80"), "{}", proxy.log().unwrap());
    });
}

#[test]
fn killed_at_random_points_of_a_switch_to_userspace_it_goes_on_and_streams_of_ipvs_live() {
    let mut random = Random::new();
    let loaded = Loaded::new();
    let bed = &loaded.bed;
    let proxy = bed.start(&["--proxy-mode=ipvs"]);
    let longest = patience(bed) / 2;
    // What the relay leads ends with the process.
    let is_stream = |client: &Client<'_>| client.name.starts_with("streams");
    let streams: Vec<Client<'_>> =
        loaded.clients(Amount::new(bed)).into_iter().filter(is_stream).collect();
    let load = Load::start(&streams).unwrap();
    load.wait_for_answers(2, limit()).unwrap();
    drop(proxy);
    kill(&loaded, "--proxy-mode=userspace", longest, &mut random);
    let proxy = bed.start(&["--proxy-mode=userspace"]);
    bed.wait_until("portals lead", || {
        bed.rules("iptables").contains("-A KUBE-PORTALS-CONTAINER -d 10.96.0.11/32")
    });
    for address in ["10.96.0.11", "fd00:96::11"] {
        for from in [bed.client(), &bed.pod(1, 3).namespace, bed.node()] {
            let answer = bed::ask(from, bed::Question::tcp((ip(address), PORT)));
            assert!(answer.is_ok(), "{address}: {answer:?}\n{}", proxy.log().unwrap());
        }
    }
    load.wait_for_answers(2, limit()).unwrap();
    require_unnoticed(&load.stop(), 4, 0, |_| false);
}
