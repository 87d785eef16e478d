//! Answers that IPVS takes for another connection's.
//!
//! A node's IPVS tells whose an answer is by the client's address and port and the real server's
//! (`ip_vs_conn_out_get` in net/netfilter/ipvs/ip_vs_conn.c). A client may use a port again with
//! another destination while the node remembers the former connection, and masquerading may choose
//! one that the node has had from the client itself. Where another node sends such a connection to
//! the same real server, its answer gets the former destination's address, and is lost. With
//! thousands of connections in a minute, that happens in one run of many.

use std::net::{IpAddr, SocketAddr};

use bed::Host;

use super::world::World;

/// A connection as its real server sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    client: SocketAddr,
    server: SocketAddr,
}

/// Finds a connection to this address that has no answer, and on another node the one that has got it,
/// and says which.
pub(super) fn find(world: &World, address: IpAddr) -> Option<String> {
    let nodes = || world.bed.cluster.nodes().iter();
    let unanswered = nodes().flat_map(|node| {
        let tracked = said(node, "conntrack", "-L");
        let seen: Vec<Seen> =
            tracked.lines().filter_map(|line| unanswered(line, address)).collect();
        seen.into_iter().map(move |seen| (node, seen))
    });
    unanswered.into_iter().find_map(|(node, seen)| {
        let others = nodes().filter(|other| other.namespace.name() != node.namespace.name());
        others.into_iter().find_map(|other| {
            let known = said(other, "ipvsadm", "-Lnc");
            let line = known.lines().find(|line| connection(line) == Some(seen))?;
            Some(format!("{seen:?} to {address} is taken for this of another node: {line}"))
        })
    })
}

fn said(node: &Host, program: &str, option: &str) -> String {
    node.namespace.command(program, &[option]).unwrap_or_default()
}

/// From a line of `conntrack -L`, which has a connection from the client's side and then from the
/// server's.
fn unanswered(line: &str, address: IpAddr) -> Option<Seen> {
    let (asked, answer) = line.split_once("[UNREPLIED]")?;
    let value = |text: &str, key: &str| {
        text.split_whitespace().find_map(|word| word.strip_prefix(key).map(str::to_owned))
    };
    if value(asked, "dst=")?.parse() != Ok(address) {
        return None;
    }
    let socket = |address: &str, port: &str| {
        let address: IpAddr = value(answer, address)?.parse().ok()?;
        Some(SocketAddr::new(address, value(answer, port)?.parse().ok()?))
    };
    Some(Seen { client: socket("dst=", "dport=")?, server: socket("src=", "sport=")? })
}

/// From a line of `ipvsadm -Lnc`: protocol, time left, state, client, virtual server, real server.
fn connection(line: &str) -> Option<Seen> {
    let mut sockets = line.split_whitespace().skip(3).map(str::parse::<SocketAddr>);
    let (client, _, server) = (sockets.next()?, sockets.next()?, sockets.next()?);
    Some(Seen { client: client.ok()?, server: server.ok()? })
}

#[test]
fn the_connection_that_gets_anothers_answer_is_told() {
    let tracked = "tcp      6 106 SYN_SENT src=fd00:244:2::12 dst=fd00:203::2:29 sport=57154 \
                   dport=80 [UNREPLIED] src=fd00:192::11 dst=fd00:244:2::12 sport=8080 \
                   dport=57154 mark=0 use=1";
    let known = "TCP 00:04  CLOSE       [fd00:244:2::12]:57154 [fd00:192::11]:31014 \
                 [fd00:192::11]:8080";
    let seen = unanswered(tracked, "fd00:203::2:29".parse().unwrap());
    assert!(seen.is_some() && seen == connection(known), "{seen:?}");
    assert_eq!(unanswered(tracked, "fd00:203::2:28".parse().unwrap()), None);
    assert_ne!(connection(&known.replace("57154", "57155")), seen);
    let known = "UDP 04:44  UDP         10.0.0.1:68 10.96.0.1:53 10.244.1.1:8080";
    assert_eq!(connection(known).unwrap().server, "10.244.1.1:8080".parse().unwrap());
}
