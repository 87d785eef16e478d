//! Clients that use few ports, again and again, while a node leaves mode ipvs.
//!
//! IPVS remembers closed connections for two minutes. When it forgets one, it must not cut off the
//! connection that rules have led from the same port since.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use bed::{
    Client, ClusterSpec, Connection, Load, LoadReport, NodeSpec, Protocol, Question, Refusal,
    Service, Traffic,
};

use crate::fixture::{Bed, TARGET, ip};

/// Port of the Service, and its port on the node.
const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
/// Longest time until each client has had some answers.
const LIMIT: Duration = Duration::from_secs(120);
/// First of the ports that clients use again.
const FIRST: u16 = 40_000;
/// Port of the connections that live until the end.
const OF_STREAM: u16 = 41_000;

/// A node and a Service with two endpoints here and one on another node.
pub(crate) fn mk_bed() -> Bed {
    let nodes = vec![NodeSpec { pods: 3 }, NodeSpec { pods: 1 }];
    let bed = Bed::with(&ClusterSpec { nodes, ..ClusterSpec::default() });
    let service = Service::new("web", ip("10.96.0.10"));
    let mut service = service.node_port(Protocol::Tcp, PORT, TARGET, NODE_PORT);
    service.cluster.push(ip("fd00:96::10"));
    bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(1, 2), bed.pod(2, 1)])).unwrap();
    bed
}

/// Addresses of the Service: of the cluster and of the node, of both families.
fn targets(bed: &Bed) -> [(&'static str, SocketAddr); 4] {
    let node = bed.cluster.node(1).unwrap();
    [
        ("cluster, IPv4", (ip("10.96.0.10"), PORT).into()),
        ("cluster, IPv6", (ip("fd00:96::10"), PORT).into()),
        ("node port, IPv4", (node.ipv4, NODE_PORT).into()),
        ("node port, IPv6", (node.ipv6().unwrap(), NODE_PORT).into()),
    ]
}

/// Clients outside, in a pod and on the node, by each address. No two use a port in common: IPVS could
/// not tell their answers apart.
pub(crate) fn clients(bed: &Bed) -> Vec<Client<'_>> {
    let sources =
        [("outside", bed.client()), ("pod", &bed.pod(1, 3).namespace), ("node", bed.node())];
    let ways = sources.iter().flat_map(|(who, from)| {
        targets(bed).into_iter().map(move |(way, target)| (format!("{who}, {way}"), *from, target))
    });
    let client = |(number, (name, from, target))| Client {
        name,
        from,
        target,
        traffic: Traffic::FewPorts(FIRST + 10 * u16::try_from(number).unwrap()),
        interval: Duration::from_millis(80),
        servers: BTreeSet::new(),
    };
    ways.enumerate().map(client).collect()
}

/// Connections from outside by each address, from a port of each.
fn streams(bed: &Bed) -> Vec<Connection> {
    let open = |(number, (_, target)): (u16, (&str, SocketAddr))| {
        let any: IpAddr = match target {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let question = Question::tcp(target).from_source((any, OF_STREAM + number));
        let mut connection = Connection::open(bed.client(), question).unwrap();
        connection.say().unwrap();
        connection
    };
    (0..).zip(targets(bed)).map(open).collect()
}

/// Makes sure that clients of a Service without endpoints are told at once, by an ICMP error. The
/// client is one that has no other connections: the kernel sends it few such errors.
fn refuses(bed: &Bed) {
    let mut service = Service::new("void", ip("10.96.0.77")).port(Protocol::Tcp, PORT, TARGET);
    service.cluster.push(ip("fd00:96::77"));
    bed.manifests.apply(&service).unwrap();
    for address in ["10.96.0.77", "fd00:96::77"] {
        bed.wait_until(&format!("{address} refuses"), || {
            let question = Question::tcp((ip(address), PORT));
            bed::ask(&bed.pod(1, 2).namespace, question) == Err(Refusal::Refused)
        });
    }
}

/// Waits until something is so.
#[track_caller]
fn until(what: &str, load: &Load, is_so: impl Fn() -> bool) {
    let so = bed::eventually(LIMIT, what, || {
        anyhow::ensure!(is_so(), "it is not so:\n{}", load.report());
        Ok(())
    });
    so.unwrap_or_else(|error| panic!("{error:#}"));
}

/// The rules that have IPVS forget connections.
fn forgetting(bed: &Bed) -> usize {
    let rules = bed.rules("iptables") + &bed.rules("ip6tables");
    rules.lines().filter(|line| line.contains("KUBE-IPVS-")).count()
}

/// Makes the node one whose rules cannot copy packets, for all that a probe can tell: the probe cannot
/// remove a chain of its name that a rule leads to. No packet comes there.
pub(crate) fn lack_copies(bed: &Bed) {
    for program in ["iptables", "ip6tables"] {
        for chain in ["KUBE-PROBE", "HOLDS-PROBE"] {
            bed.tool(program, &["-t", "mangle", "-N", chain]);
        }
        bed.tool(program, &["-t", "mangle", "-A", "HOLDS-PROBE", "-j", "KUBE-PROBE"]);
    }
}

/// Goes from mode ipvs to mode iptables under load, and until nothing of IPVS mode is left. With
/// `copies`, IPVS is shown copies of packets meanwhile.
fn switch(bed: &Bed, copies: bool) -> LoadReport {
    let proxy = bed.start(&["--proxy-mode=ipvs"]);
    let former = streams(bed);
    let load = Load::start(&clients(bed)).unwrap();
    let begun = Instant::now();
    load.wait_for_answers(40, LIMIT).unwrap();
    // IPVS has this connection to its end, and forgets those of `former` only with their real servers.
    let held = Connection::open(bed.client(), Question::tcp((ip("10.96.0.10"), PORT))).unwrap();
    for connection in former {
        connection.say_last().unwrap();
    }
    drop(proxy);
    let needed = ["expire_nodest_conn", "expire_quiescent_template", "conn_reuse_mode"];
    for name in needed {
        bed.node().set_sysctl(&format!("net/ipv4/vs/{name}"), "0").unwrap();
    }
    let proxy = bed.start(&["--proxy-mode=iptables"]);
    println!("after {:.3?}: rules lead", begun.elapsed());
    for name in needed {
        assert_eq!(bed.node().sysctl(&format!("net/ipv4/vs/{name}")).unwrap(), "1", "{name}");
    }
    until("copies are decided on", &load, || {
        let rules = bed.rules("iptables") + &bed.rules("ip6tables");
        !copies || rules.matches("-j TEE").count() == 2
    });
    println!("after {:.3?}: copies are decided on", begun.elapsed());
    let again = streams(bed);
    load.wait_for_answers(40, LIMIT).unwrap();
    if copies {
        refuses(bed);
    }
    // Three lines stand above the virtual server and the real server of `held`.
    until("what has drained goes", &load, || bed.virtual_servers().lines().count() == 5);
    held.abort().unwrap();
    // A real server is checked every 15 seconds, and removed at the second check without a connection.
    until("everything of IPVS mode is gone", &load, || {
        let links = bed.tool("ip", &["-oneline", "link"]);
        !links.contains("kube-ipvs0") && !bed.tool("ipset", &["save"]).contains("KUBE-")
    });
    assert_eq!(forgetting(bed), 0, "{}", proxy.log().unwrap());
    load.wait_for_answers(20, LIMIT).unwrap();
    for mut connection in again {
        let said = connection.say();
        assert!(said.is_ok() || !copies, "{said:?}");
    }
    load.stop()
}

#[test]
fn ports_that_are_used_again_while_the_node_leaves_mode_ipvs_cost_no_client_anything() {
    let report = switch(&mk_bed(), true);
    println!("{report}");
    report.require_no_failure(100).unwrap();
}

#[test]
fn without_copies_of_packets_such_clients_are_cut_off() {
    let bed = mk_bed();
    lack_copies(&bed);
    let report = switch(&bed, false);
    println!("{report}");
    assert!(report.sum("").resets > 0, "{report}");
}
