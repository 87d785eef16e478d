//! The fast path in faults: a connection goes on or is reset, and no other endpoint answers on it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bed::{
    ClusterSpec, Connection, Host, Namespace, NodeSpec, Protocol, Question, Refusal, Server,
    Service,
};

use super::NFTABLES;
use super::fast_path::{
    ADDRESSES, CLUSTER, Forwarded, NODE_PORT, OFFLOAD, offloads, say, version, web,
};
use crate::fixture::{Bed, TARGET, ip};

const ARGUMENTS: [&str; 4] = ["--cluster-cidr", CLUSTER, NFTABLES, OFFLOAD];
/// Protocols that the flow table carries.
const CARRIED: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
const NODE_PORT_OF_NODE: (&str, u16) = ("192.168.0.11", NODE_PORT);
/// Time to wait for what will not come.
const SHORT: Duration = Duration::from_secs(1);
/// Time limit of an answer that TCP may have to repeat some packets for.
const LONG: Duration = Duration::from_secs(15);

/// A connection, or a flow of datagrams, that later packets are sent on.
struct Open {
    name: String,
    protocol: Protocol,
    is_masqueraded: bool,
    server: String,
    connection: Connection,
}

/// Outcome of the next question on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoesOn,
    IsReset,
    /// The former endpoint answers, or the client is told that the connection is over.
    GoesOnOrIsReset,
    /// Another endpoint answers: of datagrams only.
    Moves,
    /// Any endpoint answers: of datagrams only.
    MovesOrStays,
}

impl Open {
    fn new(from: &Namespace, question: Question, is_masqueraded: bool) -> Self {
        let mut connection = Connection::open(from, question).unwrap();
        let server = say(&mut connection, 4);
        let name = format!("{question} from {} to {server}", from.name());
        Self { name, protocol: question.protocol, is_masqueraded, server, connection }
    }

    fn ask(&mut self) -> Result<String, Refusal> {
        self.connection.say().map(|it| it.server)
    }
}

impl Next {
    fn allows(self, server: &str, outcome: &Result<String, Refusal>) -> bool {
        match (self, outcome) {
            (Self::GoesOn | Self::GoesOnOrIsReset, Ok(by)) => by == server,
            (Self::Moves, Ok(by)) => by != server,
            (Self::MovesOrStays, Ok(_)) => true,
            (Self::IsReset | Self::GoesOnOrIsReset, Err(refusal)) => *refusal == Refusal::Reset,
            (Self::IsReset, Ok(_)) | (Self::GoesOn | Self::Moves | Self::MovesOrStays, Err(_)) => {
                false
            }
        }
    }
}

/// Opens connections of both families and protocols, masqueraded and not, to an endpoint of this node and to one elsewhere.
fn open(bed: &Bed) -> Vec<Open> {
    let pod = &bed.pod(1, 2).namespace;
    let mut all = Vec::new();
    for protocol in CARRIED {
        for (from, address, port, is_masqueraded) in [
            (bed.client(), ADDRESSES[0], 80, true),
            (bed.client(), ADDRESSES[1], 80, true),
            (bed.client(), NODE_PORT_OF_NODE.0, NODE_PORT_OF_NODE.1, true),
            (pod, ADDRESSES[0], 80, false),
            (pod, ADDRESSES[1], 80, false),
        ] {
            let question = Question::new(protocol, (ip(address), port)).within(LONG);
            // By round robin.
            let two = [(); 2].map(|()| Open::new(from, question, is_masqueraded));
            assert_ne!(two[0].server, two[1].server, "{}", two[0].name);
            all.extend(two);
        }
    }
    all
}

/// Asks on each once. Those that were reset are left out then.
#[track_caller]
fn require(all: &mut Vec<Open>, why: &str, expected: impl Fn(&Open) -> Next) {
    let (mut n_answered, mut n_reset, mut wrong) = (0, 0, Vec::new());
    all.retain_mut(|one| {
        let (expected, outcome) = (expected(one), one.ask());
        if !expected.allows(&one.server, &outcome) {
            wrong.push(format!("{}: {outcome:?} and not {expected:?}", one.name));
        }
        n_answered += usize::from(outcome.is_ok());
        n_reset += usize::from(outcome == Err(Refusal::Reset));
        outcome.is_ok()
    });
    println!("{why}: {n_answered} answered, {n_reset} reset");
    assert!(wrong.is_empty(), "{why}:\n{}", wrong.join("\n"));
}

/// Outcomes of a new connection of each protocol and client to each cluster IP and the NodePort.
fn ask_anew(bed: &Bed, limit: Duration) -> Vec<(String, Result<String, Refusal>)> {
    let mut outcomes = Vec::new();
    for protocol in CARRIED {
        for (address, port) in [(ADDRESSES[0], 80), (ADDRESSES[1], 80), NODE_PORT_OF_NODE] {
            for from in [bed.client(), &bed.pod(1, 2).namespace] {
                let question = Question::new(protocol, (ip(address), port)).within(limit);
                let outcome = bed::ask(from, question).map(|it| it.server);
                outcomes.push((format!("{question} from {}", from.name()), outcome));
            }
        }
    }
    outcomes
}

fn are_answered(outcomes: &[(String, Result<String, Refusal>)]) -> bool {
    outcomes.iter().all(|(_, outcome)| outcome.is_ok())
}

/// Requires that new connections are answered, at once.
#[track_caller]
fn require_new_ones(bed: &Bed, why: &str) {
    let outcomes = ask_anew(bed, LONG);
    assert!(are_answered(&outcomes), "{why}: {outcomes:?}");
}

/// Waits until new connections are answered again.
fn wait_for_new_ones(bed: &Bed, why: &str) {
    bed.wait_until(why, || are_answered(&ask_anew(bed, SHORT)));
}

/// True if the flow table has a connection with one of these words in its entry of conntrack.
fn is_offloaded(bed: &Bed, words: &[String]) -> bool {
    let entries = bed.tool("conntrack", &["-L"]);
    let mut offloaded = entries.lines().filter(|it| it.contains("[OFFLOAD]"));
    offloaded.any(|entry| entry.split(' ').any(|it| words.iter().any(|word| word == it)))
}

/// The same of connections to a pod.
fn is_offloaded_to(bed: &Bed, pod: &Host) -> bool {
    is_offloaded(bed, &pod.addresses().iter().map(|it| format!("src={it}")).collect::<Vec<_>>())
}

/// True if a table has an owner, and other programs cannot change it (`NFT_TABLE_F_PERSIST`, since Linux 6.9).
fn has_owners(bed: &Bed) -> bool {
    version(bed) >= (6, 9)
}

fn nft(bed: &Bed, script: &str) -> anyhow::Result<String> {
    bed.node().command_with_input("nft", &["-f", "-"], script)
}

// === state that other programs delete ===

#[test]
fn state_that_other_programs_delete_is_repaired_and_connections_go_on_or_are_reset() {
    let bed = Bed::new();
    bed.manifests.apply(&web(&bed)).unwrap();
    let proxy = bed.start(&ARGUMENTS);
    a_flush_of_conntrack(&bed);
    a_full_conntrack_table(&bed);
    a_deleted_internal_frontend(&bed);
    a_deleted_flow_table(&bed);
    deleted_tables(&bed);
    let (mut idle, mut busy) = (open(&bed), open(&bed));
    busy.retain(|one| one.protocol == Protocol::Tcp);
    drop(proxy);
    // No process owns them now. A nat rule of another program keeps conntrack and its translations active.
    let of_others = ["ip", "ip6"].map(|family| {
        format!(
            "add table {family} others
            add chain {family} others postrouting {{ type nat hook postrouting priority 100; }}
            add rule {family} others postrouting oifname elsewhere masquerade"
        )
    });
    nft(&bed, &of_others.join("\n")).unwrap();
    nft(&bed, DELETE_TABLES).unwrap();
    require(&mut busy, "tables deleted, no kube-ipvs, nat of others", |_| Next::GoesOn);
    nft(&bed, "delete table ip others\ndelete table ip6 others").unwrap();
    require(&mut busy, "no nat", |_| Next::IsReset);
    let _proxy = bed.start(&ARGUMENTS);
    require(&mut idle, "a start after that", |_| Next::GoesOn);
    a_policy_that_comes_later(&bed);
}

const DELETE_TABLES: &str = "delete table ip kube-ipvs\ndelete table ip6 kube-ipvs";

/// A packet in the middle of a connection without an entry: conntrack takes it for a new connection, or for invalid.
fn a_flush_of_conntrack(bed: &Bed) {
    for (loose, is_forgotten) in [("1", false), ("1", true), ("0", false)] {
        bed.node().set_sysctl("net/netfilter/nf_conntrack_tcp_loose", loose).unwrap();
        let mut all = open(bed);
        if is_forgotten {
            bed.tool("ipvsadm", &["-C"]);
            wait_for_new_ones(bed, "virtual servers are back");
        }
        bed.tool("conntrack", &["-F"]);
        let why = format!("conntrack flushed, loose={loose}, IPVS forgot={is_forgotten}");
        require(&mut all, &why, |one| match one.protocol {
            Protocol::Tcp if loose == "1" && !one.is_masqueraded && !is_forgotten => Next::GoesOn,
            Protocol::Tcp => Next::IsReset,
            _ if is_forgotten => Next::MovesOrStays,
            _ => Next::GoesOn,
        });
        require_new_ones(bed, &why);
    }
    bed.node().set_sysctl("net/netfilter/nf_conntrack_tcp_loose", "1").unwrap();
}

/// Puts the most entries of conntrack back.
struct Most(String);

impl Most {
    /// The limit of the host's network namespace counts for all namespaces.
    const PATH: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

    fn set(most: &str) -> Self {
        let before = fs::read_to_string(Self::PATH).unwrap();
        fs::write(Self::PATH, most).unwrap();
        Self(before.trim().to_owned())
    }
}

impl Drop for Most {
    fn drop(&mut self) {
        if let Err(error) = fs::write(Self::PATH, &self.0) {
            eprintln!("{}: {error}", Self::PATH);
        }
    }
}

fn a_full_conntrack_table(bed: &Bed) {
    let mut all = open(bed);
    let most = Most::set("1");
    for (protocol, address) in CARRIED.into_iter().zip(ADDRESSES) {
        let question = Question::new(protocol, (ip(address), 80)).within(SHORT);
        assert_eq!(bed::ask(bed.client(), question), Err(Refusal::Timeout), "{question}");
    }
    require(&mut all, "conntrack is full", |_| Next::GoesOn);
    drop(most);
    require_new_ones(bed, "conntrack has room again");
    require(&mut all, "conntrack has room again", |_| Next::GoesOn);
}

fn a_deleted_internal_frontend(bed: &Bed) {
    let mut all = open(bed);
    bed.tool("ipvsadm", &["-D", "-t", "250.96.0.10:80"]);
    bed.tool("ipvsadm", &["-D", "-u", "[feff:96::10]:80"]);
    require(&mut all, "internal frontends deleted", |_| Next::GoesOn);
    bed.wait_until("the internal frontends are back", || {
        let servers = bed.virtual_servers();
        servers.contains("TCP  250.96.0.10:80") && servers.contains("UDP  [feff:96::10]:80")
    });
    require_new_ones(bed, "internal frontends are back");
    require(&mut all, "internal frontends are back", |_| Next::GoesOn);
}

fn a_deleted_flow_table(bed: &Bed) {
    if !offloads(bed) {
        return;
    }
    let mut all = open(bed);
    let refused = nft(bed, "delete flowtable ip kube-ipvs flows").unwrap_err();
    let reason = if has_owners(bed) { "not permitted" } else { "busy" };
    assert!(format!("{refused:#}").contains(reason), "{refused:#}");
    let refused = bed.node().command("rmmod", &["nf_flow_table"]).unwrap_err();
    assert!(format!("{refused:#}").contains("in use"), "{refused:#}");
    // The rule goes before.
    let script = "flush chain ip kube-ipvs forward\ndelete flowtable ip kube-ipvs flows";
    assert_eq!(nft(bed, script).is_err(), has_owners(bed));
    require(&mut all, "the flow table deleted", |_| Next::GoesOn);
    bed.wait_until("the flow tables are there, with their devices", || {
        bed.tool("nft", &["list", "flowtables"]).matches("eth0").count() == 2
    });
    require(&mut all, "the flow table is back", |_| Next::GoesOn);
    let forwarded = Forwarded::begin(bed);
    require(&mut all, "the flow table is back", |_| Next::GoesOn);
    assert!(forwarded.count() <= all.len() as u64 / 4, "{}", forwarded.count());
    nft(bed, "delete table inet probe").unwrap();
}

/// Without any chain of nat no packet is translated: it comes to the node itself, which has the Service's address.
fn deleted_tables(bed: &Bed) {
    // Two lines are about the process that has a table.
    let listed = |family| {
        let text = bed.node().command("nft", &["list", "table", family, "kube-ipvs"]);
        let text = text.unwrap_or_default();
        let lines = text.lines().filter(|it| !it.contains("table ip") && !it.contains("flags "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = ["ip", "ip6"].map(listed);
    for (script, is_refused) in [(DELETE_TABLES, has_owners(bed)), ("flush ruleset", false)] {
        let (mut idle, mut busy) = (open(bed), open(bed));
        busy.retain(|one| one.protocol == Protocol::Tcp);
        assert_eq!(nft(bed, script).is_err(), is_refused, "{script}");
        let next = if has_owners(bed) { Next::GoesOn } else { Next::GoesOnOrIsReset };
        let what = script.lines().next().unwrap();
        require(&mut busy, &format!("{what}, at once"), |_| next);
        bed.wait_until("the tables are whole", || ["ip", "ip6"].map(listed) == before);
        require(&mut busy, &format!("{what}, those that went on"), |_| Next::GoesOn);
        require(&mut idle, &format!("{what}, those that were idle"), |_| Next::GoesOn);
    }
}

/// A connection is in the flow table for as long as it talks, and past policies.
fn a_policy_that_comes_later(bed: &Bed) {
    const ROUNDS: u32 = 8;
    let timeouts = ["tcp", "udp"].map(|it| format!("net/netfilter/nf_flowtable_{it}_timeout"));
    if offloads(bed) {
        for timeout in &timeouts {
            assert_eq!(bed.node().sysctl(timeout).unwrap(), "30");
            bed.node().set_sysctl(timeout, "3").unwrap();
        }
    }
    let mut all = [(Protocol::Tcp, ADDRESSES[1]), (Protocol::Udp, ADDRESSES[0])].map(
        |(protocol, address)| {
            let question = Question::new(protocol, (ip(address), 80)).within(SHORT * 2);
            Open::new(bed.client(), question, true)
        },
    );
    let policy = "add table inet later
        add chain inet later forward { type filter hook forward priority 10; }
        add rule inet later forward ip daddr 10.244.0.0/16 drop
        add rule inet later forward ip6 daddr fd00:244::/32 drop";
    nft(bed, policy).unwrap();
    if offloads(bed) {
        for _ in 0..ROUNDS {
            for one in &mut all {
                assert_eq!(one.ask().as_ref(), Ok(&one.server), "{}", one.name);
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        let ports: Vec<String> = all
            .iter()
            .map(|one| format!("sport={}", one.connection.local_address().unwrap().port()))
            .collect();
        assert!(is_offloaded(bed, &ports));
        bed.wait_until("idle ones leave the flow table", || !is_offloaded(bed, &ports));
    }
    for one in &mut all {
        assert_eq!(one.ask(), Err(Refusal::Timeout), "{}", one.name);
    }
    nft(bed, "delete table inet later").unwrap();
    for one in &mut all {
        bed.wait_until(&one.name.clone(), || one.ask().as_ref() == Ok(&one.server));
    }
}

// === endpoints, links and paths ===

#[test]
fn connections_follow_paths_that_change_and_no_endpoint_stands_in_for_another() {
    let nodes = [2, 2, 0].map(|pods| NodeSpec { pods }).to_vec();
    let bed = Bed::with(&ClusterSpec { nodes, ..ClusterSpec::default() });
    bed.manifests.apply(&web(&bed)).unwrap();
    let _proxy = bed.start(&ARGUMENTS);
    another_gateway(&bed);
    the_uplink_down(&bed);
    a_smaller_path(&bed);
    the_cable_of_a_pod_down(&bed);
    an_endpoint_that_vanishes(&bed);
    an_address_that_another_service_gets(&bed);
}

fn route_pods_of_second_node(bed: &Bed, last: u8, more: &str) {
    let lines = [
        format!("route replace 10.244.2.0/24 via 192.168.0.{last} {more}"),
        format!("route replace fd00:244:2::/64 via fd00:192::{last} {more}"),
    ];
    bed.node().configure_links(&lines).unwrap();
}

/// Packets of both families that a node passed on.
fn n_passed_on(node: &Namespace) -> u64 {
    let ipv4 = node.command("cat", &["/proc/net/snmp"]).unwrap();
    let ipv6 = node.command("cat", &["/proc/net/snmp6"]).unwrap();
    let mut lines = ipv4.lines().filter_map(|it| it.strip_prefix("Ip: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let (_, ipv4) =
        names.split(' ').zip(values.split(' ')).find(|it| it.0 == "ForwDatagrams").unwrap();
    let ipv6 = ipv6.lines().find_map(|it| it.strip_prefix("Ip6OutForwDatagrams")).unwrap();
    ipv4.parse::<u64>().unwrap() + ipv6.trim().parse::<u64>().unwrap()
}

fn another_gateway(bed: &Bed) {
    let third = &bed.cluster.node(3).unwrap().namespace;
    let redirects = ["all", "eth0"].map(|it| format!("net/ipv4/conf/{it}/send_redirects"));
    redirects.iter().for_each(|it| third.set_sysctl(it, "0").unwrap());
    let mut all = open(bed);
    let to_second = all.iter().filter(|one| one.server == "pod2-1").count() as u64;
    let before = n_passed_on(third);
    route_pods_of_second_node(bed, 13, "");
    require(&mut all, "another gateway", |_| Next::GoesOn);
    assert!(n_passed_on(third) - before >= to_second);
    let (before, forwarded) = (n_passed_on(third), Forwarded::begin(bed));
    require(&mut all, "another gateway", |_| Next::GoesOn);
    assert!(n_passed_on(third) - before >= to_second);
    if offloads(bed) {
        assert!(forwarded.count() <= to_second, "{}", forwarded.count());
    }
    route_pods_of_second_node(bed, 12, "");
    require(&mut all, "the former gateway", |_| Next::GoesOn);
}

/// Connections that are masqueraded for a link lose their entries with it (`masq_device_event` in net/netfilter/nf_nat_masquerade.c).
fn the_uplink_down(bed: &Bed) {
    let mut all = open(bed);
    bed.node().set_sysctl("net/ipv6/conf/eth0/keep_addr_on_down", "1").unwrap();
    assert_eq!(is_offloaded_to(bed, bed.pod(2, 1)), offloads(bed));
    bed.node().configure_links(&["link set eth0 down".to_owned()]).unwrap();
    assert!(!is_offloaded_to(bed, bed.pod(2, 1)));
    let lines = [
        "link set eth0 up",
        "route add default via 192.168.0.1",
        "route add default via fd00:192::1",
    ];
    bed.node().configure_links(&lines.map(str::to_owned)).unwrap();
    route_pods_of_second_node(bed, 12, "");
    require(&mut all, "the uplink down and up", |one| {
        let is_masqueraded_there = one.is_masqueraded && one.server == "pod2-1";
        match one.protocol {
            Protocol::Tcp if is_masqueraded_there => Next::IsReset,
            _ => Next::GoesOn,
        }
    });
    require_new_ones(bed, "the uplink down and up");
}

/// Sends a megabyte by lines that come back. `between` is told the number of each of 128 rounds.
fn transfer(from: &Namespace, target: SocketAddr, between: impl Fn(u32)) -> std::io::Result<usize> {
    const LINES: usize = 8;
    let text = "x".repeat(1_000);
    let mut stream = from.enter(|| TcpStream::connect_timeout(&target, LONG)).unwrap()?;
    stream.set_read_timeout(Some(LONG))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut n_arrived = 0;
    for round in 0..128 {
        between(round);
        stream.write_all(format!("{text}\n").repeat(LINES).as_bytes())?;
        for _ in 0..LINES {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            n_arrived +=
                usize::from(line.trim_end().rsplit(' ').next() == Some(&text)) * text.len();
        }
    }
    Ok(n_arrived)
}

/// The node behind, and then this node, says to senders that packets are too large.
fn a_smaller_path(bed: &Bed) {
    let second = &bed.cluster.node(2).unwrap().namespace;
    let narrow = |bytes: u32| {
        second.configure_links(&[format!("link set cni0 mtu {bytes}")]).unwrap();
    };
    let addresses = ["10.96.0.30", "fd00:96::30"];
    let mut service = Service::new("far", ip(addresses[0])).port(Protocol::Tcp, 80, TARGET);
    service.cluster.push(ip(addresses[1]));
    bed.manifests.apply(&service.pods([bed.pod(2, 1)])).unwrap();
    let forwarded = Forwarded::begin(bed);
    for from in [bed.client(), &bed.pod(1, 2).namespace] {
        for address in addresses {
            let target = SocketAddr::from((ip(address), 80));
            bed.wait_until("it is served", || bed::ask(from, Question::tcp(target)).is_ok());
            let before = forwarded.count();
            let arrived = transfer(from, target, |round| match round {
                40 => narrow(1_400),
                80 => route_pods_of_second_node(bed, 12, "mtu 1300"),
                _ => {}
            });
            let passed = forwarded.count() - before;
            println!("a smaller path, {address}: {passed} packets of the transfer met hooks");
            assert_eq!(arrived.unwrap(), 1_024_000, "{address}");
            let learned = from.command("ip", &["route", "get", address]).unwrap();
            assert!(learned.contains("mtu 1300"), "{learned}");
            assert!(!offloads(bed) || passed < 50, "{passed}");
            narrow(1_500);
            route_pods_of_second_node(bed, 12, "");
        }
    }
}

fn the_cable_of_a_pod_down(bed: &Bed) {
    let mut all = open(bed);
    assert_eq!(is_offloaded_to(bed, bed.pod(1, 1)), offloads(bed));
    bed.node().configure_links(&["link set pod1-1 down".to_owned()]).unwrap();
    assert!(!is_offloaded_to(bed, bed.pod(1, 1)));
    bed.node().configure_links(&["link set pod1-1 up".to_owned()]).unwrap();
    require(&mut all, "the cable of a pod down and up", |_| Next::GoesOn);
}

/// The Service without the first pod.
fn without_first(bed: &Bed) -> Service {
    let gone = bed.pod(1, 1).addresses();
    let mut without = web(bed);
    without.endpoints.retain(|it| !gone.contains(&it.address));
    without
}

fn an_endpoint_that_vanishes(bed: &Bed) {
    let question = Question::tcp((ip(ADDRESSES[0]), 80)).within(SHORT);
    let ask_twice = || [(); 2].map(|()| bed::ask(bed.client(), question).map(|it| it.server));
    bed.node().configure_links(&["link set pod1-1 down".to_owned()]).unwrap();
    let outcomes = ask_twice();
    assert!(outcomes.contains(&Err(Refusal::Timeout)), "{outcomes:?}");
    bed.manifests.apply(&without_first(bed)).unwrap();
    bed.wait_until("new connections go to the other endpoint", || {
        ask_twice() == ["pod2-1", "pod2-1"].map(|it| Ok(it.to_owned()))
    });
    bed.node().configure_links(&["link set pod1-1 up".to_owned()]).unwrap();
    bed.manifests.apply(&web(bed)).unwrap();
    bed.wait_until("both endpoints answer everywhere", || {
        let (first, second) = (ask_anew(bed, SHORT), ask_anew(bed, SHORT));
        first.iter().chain(&second).filter(|it| it.1.as_deref() == Ok("pod1-1")).count()
            == first.len()
    });
}

/// A new pod with the address of one that is gone, whose connections were not ended.
fn an_address_that_another_service_gets(bed: &Bed) {
    let mut all = open(bed);
    let (former, namespace) = (bed.pod(1, 1), Namespace::create("reused").unwrap());
    let (ipv4, ipv6) = (former.ipv4, former.ipv6().unwrap());
    let lines = [
        "link del pod1-1".to_owned(),
        format!("link add pod1-1 type veth peer name eth0 netns {}", namespace.name()),
        "link set pod1-1 master cni0 up".to_owned(),
    ];
    bed.node().configure_links(&lines).unwrap();
    let lines = [
        "link set eth0 up".to_owned(),
        format!("addr add {ipv4}/24 dev eth0"),
        format!("addr add {ipv6}/64 dev eth0 nodad"),
        "route add default via 10.244.1.1".to_owned(),
        "route add default via fd00:244:1::1".to_owned(),
    ];
    namespace.configure_links(&lines).unwrap();
    let host = Host { name: "reused".to_owned(), namespace, ipv4, ipv6: Some(ipv6) };
    let _server = Server::start(&host, &CARRIED.map(|it| (it, TARGET))).unwrap();
    // As network plugins announce an address.
    for gateway in ["10.244.1.1", "fd00:244:1::1"] {
        host.namespace.command("ping", &["-c", "1", gateway]).unwrap();
    }
    let other = Service::new("other", ip("10.96.0.20")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&without_first(bed)).unwrap();
    bed.manifests.apply(&other.pods([former])).unwrap();
    bed.wait_until("the other Service has the address", || {
        let question = Question::tcp((ip("10.96.0.20"), 80)).within(SHORT);
        bed::ask(bed.client(), question).is_ok_and(|it| it.server == "reused")
    });
    bed.wait_until("the Service does not", || {
        ask_anew(bed, SHORT).iter().all(|it| it.1.as_deref() == Ok("pod2-1"))
    });
    require(&mut all, "the address belongs to a pod of another Service", |one| {
        match (one.server.as_str(), one.protocol) {
            ("pod2-1", _) => Next::GoesOn,
            (_, Protocol::Tcp) => Next::IsReset,
            _ => Next::Moves,
        }
    });
}
