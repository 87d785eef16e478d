//! Answers that IPVS takes for another connection's.
//!
//! A node's IPVS tells whose an answer is by the client's address and port and the real server's
//! (`ip_vs_conn_out_get` in net/netfilter/ipvs/ip_vs_conn.c), and finds the entry that was made
//! last. Where a client uses one port for two frontends that lead to one real server, the former
//! connection's answers get the latter's address, and are lost, until the latter's entry is gone:
//! two minutes after its end. Masquerading gives both another port, but is undone before IPVS
//! looks. The kernel chooses a socket's port by its destination (`inet_hash_connect`), so it does
//! that. Each question of the bed has therefore a port of its own.
//!
//! One case is left: a port that masquerading chooses and that another node knows from this one, as
//! a client of its own. With thousands of connections in a minute, that happens in one run of
//! several.

use std::net::{IpAddr, SocketAddr};

use bed::{Connection, Host, Protocol, Question, Refusal, Service};

use super::trial::SILENCE;
use super::world::World;
use crate::fixture::{Bed, TARGET, ip};

/// A connection as its real server sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    client: SocketAddr,
    server: SocketAddr,
}

/// A connection of connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tracked {
    client: SocketAddr,
    seen: Seen,
}

/// A connection of IPVS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Balanced {
    virtual_server: SocketAddr,
    seen: Seen,
}

/// Finds a connection to this address whose answers may have been taken for another one's, on any
/// node, and says which.
pub(super) fn find(world: &World, protocol: Protocol, address: IpAddr) -> Option<String> {
    let nodes = world.bed.cluster.nodes();
    let known: Vec<(&str, String)> =
        nodes.iter().map(|node| (node.namespace.name(), said(node, "ipvsadm", "-Lnc"))).collect();
    nodes.iter().find_map(|node| {
        let tracked = said(node, "conntrack", "-L");
        let to_address = tracked.lines().filter(|line| is_of(line, protocol));
        to_address.filter_map(|line| tracked_to(address, line)).find_map(|it| {
            let here = known.iter().find(|(name, _)| *name == node.namespace.name());
            let own = here.and_then(|(_, known)| {
                let here = known.lines().filter(|line| is_of(line, protocol));
                let itself = Seen { client: it.client, server: it.seen.server };
                here.filter_map(balanced).find(|other| other.seen == itself)
            });
            let others = known.iter().flat_map(|(_, known)| known.lines());
            let mut others = others.filter(|line| is_of(line, protocol));
            let other = others.find(|line| {
                balanced(line).is_some_and(|other| {
                    other.seen == it.seen
                        && own.is_none_or(|own| own.virtual_server != other.virtual_server)
                })
            })?;
            Some(format!("{it:?} to {address} may be taken for this: {other}"))
        })
    })
}

fn is_of(line: &str, protocol: Protocol) -> bool {
    let name = format!("{protocol:?} ");
    line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(&name))
}

fn said(node: &Host, program: &str, option: &str) -> String {
    node.namespace.command(program, &[option]).unwrap_or_default()
}

/// From a line of `conntrack -L`, which has a connection from the client's side and then from the
/// server's: nothing if it is not to this address.
fn tracked_to(address: IpAddr, line: &str) -> Option<Tracked> {
    let values = |key: &str| -> Vec<&str> {
        line.split_whitespace().filter_map(|word| word.strip_prefix(key)).collect()
    };
    let (from, to) = (values("src="), values("dst="));
    let (from_ports, to_ports) = (values("sport="), values("dport="));
    let socket = |addresses: &[&str], ports: &[&str], side: usize| {
        let address: IpAddr = addresses.get(side)?.parse().ok()?;
        Some(SocketAddr::new(address, ports.get(side)?.parse().ok()?))
    };
    let client = socket(&from, &from_ports, 0)?;
    let seen = Seen { client: socket(&to, &to_ports, 1)?, server: socket(&from, &from_ports, 1)? };
    (to.first()?.parse() == Ok(address)).then_some(Tracked { client, seen })
}

/// From a line of `ipvsadm -Lnc`: protocol, time left, state, client, virtual server, real server.
fn balanced(line: &str) -> Option<Balanced> {
    let mut sockets = line.split_whitespace().skip(3).map(str::parse::<SocketAddr>);
    let client = sockets.next()?.ok()?;
    let virtual_server = sockets.next()?.ok()?;
    Some(Balanced { virtual_server, seen: Seen { client, server: sockets.next()?.ok()? } })
}

#[test]
fn a_port_used_for_two_frontends_of_one_endpoint_loses_the_former_connections_answers() {
    let bed = Bed::new();
    for (name, last) in [("one", 1), ("two", 2)] {
        let mut service = Service::new(name, ip(&format!("fd00:96::{last}")));
        service.load_balancer = vec![ip(&format!("fd00:203::{last}"))];
        let service = service.port(Protocol::Tcp, 80, TARGET).pods([bed.pod(1, 1)]);
        bed.manifests.apply(&service).unwrap();
    }
    let _proxy = bed.start(&[]);
    let (client, bridge) = (bed.pod(1, 2), ip("fd00:244:1::1"));
    let open = |last: u8, port: u16| {
        let question = Question::tcp((ip(&format!("fd00:203::{last}")), 80)).within(SILENCE);
        let question = question.from_source((client.ipv6().unwrap(), port));
        let mut connection = Connection::open(&client.namespace, question).unwrap();
        let answer = connection.say().unwrap();
        assert_eq!((answer.server.as_str(), answer.seen_source.ip()), ("pod1-1", bridge));
        (connection, answer.seen_source.port())
    };
    let (mut former, former_port) = open(1, 20_001);
    let (latter, latter_port) = open(2, 20_001);
    // The endpoint, and connection tracking, can tell them.
    assert_ne!(former_port, latter_port);
    assert_eq!(former.say(), Err(Refusal::Timeout));
    drop(latter);
    assert_eq!(former.say(), Err(Refusal::Timeout), "its entry is there for two minutes more");
    // Another port is of no harm.
    let (mut third, _) = open(1, 20_002);
    let _fourth = open(2, 20_003);
    third.say().unwrap();
}

#[test]
fn a_tracked_connection_is_matched_with_that_of_ipvs() {
    let tracked = "tcp      6 106 SYN_SENT src=fd00:244:2::12 dst=fd00:203::2:29 sport=57154 \
                   dport=80 [UNREPLIED] src=fd00:192::11 dst=fd00:244:2::12 sport=8080 \
                   dport=57154 mark=0 use=1";
    let known = "TCP 00:04  CLOSE       [fd00:244:2::12]:57154 [fd00:192::11]:31014 \
                 [fd00:192::11]:8080";
    let it = tracked_to("fd00:203::2:29".parse().unwrap(), tracked).unwrap();
    assert_eq!(it.seen, balanced(known).unwrap().seen);
    assert_eq!(it.client, it.seen.client, "it is not masqueraded");
    assert_eq!(tracked_to("fd00:203::2:28".parse().unwrap(), tracked), None);
    assert_ne!(balanced(&known.replace("57154", "57155")).unwrap().seen, it.seen);
    assert!(is_of(tracked, Protocol::Tcp) && is_of(known, Protocol::Tcp));
    assert!(!is_of(known, Protocol::Udp));
}
