//! A client's port, used again after the switch while IPVS still knows its former connection.
//!
//! When IPVS forgets the former connection, it deletes the entry of connection tracking, which is
//! the latter's by then (`ip_vs_conn_drop_conntrack` in net/netfilter/ipvs/ip_vs_nfct.c). Two ways
//! round that are tried: to leave such a port to IPVS, and to have IPVS forget the former connection
//! first. The latter shows IPVS a copy of each SYN that connection tracking does not track: for a
//! real server of weight 0, IPVS takes its hands off connection tracking and forgets
//! (`ip_vs_in_hook` in net/netfilter/ipvs/ip_vs_core.c).

use std::thread;
use std::time::Duration;

use bed::{Connection, Refusal};

use super::ground::{Ground, TCP, Way, answers, connect};

/// Time that IPVS needs to forget.
const FORGOTTEN: Duration = Duration::from_millis(200);
/// Port that is used twice.
const AGAIN: u16 = 20_700;
/// Mark of the copies.
const MARK: &str = "0x8000000/0x8000000";

/// Rules that show IPVS an untracked copy of each SYN to the Service's address, and drop what comes of
/// it.
///
/// IPVS has no real server for the copy, and would answer it with an ICMP error that refuses the
/// client. A copy that is routed to a broadcast address is not answered (`icmp_send` in
/// net/ipv4/icmp.c). IPv6 has no such addresses, so its copies have a hop limit of their own, by which
/// answers to them are known.
fn copies(ground: &Ground, way: Way) -> String {
    let bound = ground.bound_addresses(way);
    let (gateway, stamped, answers) = if way.ipv6 {
        (
            "::1",
            format!(
                "-A COPY -p tcp -m mark --mark {MARK} -m conntrack --ctstate UNTRACKED \
                 -j HL --hl-set 173\n"
            ),
            "-A OUTPUT -p ipv6-icmp -m icmp6 --icmpv6-type port-unreachable -m u32 \
             --u32 \"0x34&0xffff=0x6ad\" -j DROP\n",
        )
    } else {
        ("127.255.255.255", String::new(), "")
    };
    format!(
        "*mangle\n:COPY - [0:0]\n:SHOW - [0:0]\n{stamped}\
         -A COPY -p tcp -m tcp --syn -m conntrack --ctstate NEW {bound} dst -g SHOW\n\
         -A SHOW -j MARK --set-xmark {MARK}\n-A SHOW -j TEE --gateway {gateway}\n\
         -A SHOW -j MARK --set-xmark 0x0/0x8000000\n\
         -A PREROUTING -j COPY\n-A OUTPUT -j COPY\nCOMMIT\n\
         *filter\n{answers}-A OUTPUT -p tcp -m mark --mark {MARK} -m conntrack \
         --ctstate UNTRACKED -m tcp --syn -j DROP\nCOMMIT\n"
    )
}

/// A connection that was closed just now, whose port its client can use again at once, and one that
/// lives.
fn closed_and_living(ground: &Ground, way: Way) -> Connection {
    let (one, client) = (ground.pod(1), ground.bed.client());
    ground.to_ipvs(way);
    ground.balance(way, &[one]);
    let mut closed = again(ground, way);
    answers(&mut closed, one);
    closed.abort().unwrap();
    connect(client, way, one)
}

fn again(ground: &Ground, way: Way) -> Connection {
    let question = way.question().from_source(ground.source(way, AGAIN));
    Connection::open(ground.bed.client(), question).unwrap()
}

/// True if IPVS knows a connection from the port that is used twice.
fn is_known(ground: &Ground, way: Way) -> bool {
    ground.balanced(way).iter().any(|line| line.contains(&format!(":{AGAIN} ")))
}

#[test]
fn a_port_used_again_loses_its_connection_when_ipvs_forgets_the_former() {
    let ground = Ground::new();
    let (one, two, other) = (ground.pod(1), ground.pod(2), ground.bed.pod(2, 1));
    for way in TCP {
        let _living = closed_and_living(&ground, way);
        ground.to_iptables(way, &[two]);
        let mut latter = again(&ground, way);
        answers(&mut latter, two);
        assert!(is_known(&ground, way));
        // What the rules choose next is another one, as it is in n - 1 of n cases.
        ground.to_iptables(way, &[other]);
        answers(&mut latter, two);
        ground.real_server("-d", way, one, "");
        thread::sleep(FORGOTTEN);
        assert_eq!(latter.say(), Err(Refusal::Reset), "{way:?}");
    }
}

#[test]
fn answers_by_dnat_keep_the_former_connection_in_ipvs_and_count_as_active() {
    let ground = Ground::new();
    let one = ground.pod(1);
    for way in TCP {
        let living = closed_and_living(&ground, way);
        living.abort().unwrap();
        let is_active = || ground.balanced(way).iter().any(|line| line.contains("SYN_SENT"));
        assert!(!is_active(), "{:?}", ground.balanced(way));
        ground.to_iptables(way, &[one]);
        let mut latter = again(&ground, way);
        answers(&mut latter, one);
        assert!(is_active() && is_known(&ground, way), "{:?}", ground.balanced(way));
        let shown = ground.run("ipvsadm -Ln");
        let endpoint = way.endpoint(one).to_string();
        let mut lines = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let counted = lines.find(|words| words.get(1) == Some(&endpoint.as_str())).unwrap();
        assert_eq!(counted[4], "1", "its active connections: {shown}");
    }
}

#[test]
fn a_set_of_the_clients_of_ipvs_leaves_their_ports_to_ipvs() {
    let ground = Ground::new();
    let (one, two) = (ground.pod(1), ground.pod(2));
    for way in TCP {
        let mut living = closed_and_living(&ground, way);
        let set = if way.ipv6 { "KUBE-6-SWITCH" } else { "KUBE-SWITCH" };
        let (family, address) = (if way.ipv6 { "inet6" } else { "inet" }, way.address());
        ground.run(&format!("ipset create {set} hash:ip,port,ip family {family} timeout 130"));
        for line in ground.balanced(way) {
            let client: std::net::SocketAddr =
                line.split_whitespace().nth(3).unwrap().parse().unwrap();
            let (ip, port) = (client.ip(), client.port());
            ground.run(&format!("ipset add {set} {ip},tcp:{port},{address}"));
        }
        let bound = ground.bound_addresses(way);
        let of_ipvs = "-m conntrack --ctstate ESTABLISHED -m conntrack ! --ctstate DNAT";
        let keep = format!("-j SET --add-set {set} src,src,dst --exist --timeout 130");
        ground.restore(
            way,
            &format!("*mangle\n-A PREROUTING {bound} dst {of_ipvs} {keep}\nCOMMIT\n"),
        );
        let to_ipvs = format!("-A KUBE-SERVICES -m set --match-set {set} src,src,dst -j ACCEPT");
        ground.services(way, &[vec![way.masquerade(), to_ipvs], way.dispatch(&[two])].concat());
        let mut latter = again(&ground, way);
        answers(&mut latter, one);
        connect(ground.bed.client(), way, two);
        let later = Connection::open(ground.bed.client(), way.question()).unwrap();
        let port = later.local_address().unwrap().port();
        let entries = ground.run(&format!("ipset list {set}"));
        assert!(!entries.contains(&format!("tcp:{port},")), "only IPVS's clients: {entries}");
        ground.run(&format!("ipset flush {set}"));
        answers(&mut living, one);
        let entries = ground.run(&format!("ipset list {set}"));
        assert!(entries.contains(",tcp:"), "a connection keeps itself in the set: {entries}");
    }
}

#[test]
fn an_untracked_copy_of_the_syn_has_ipvs_forget_the_former_connection_without_harm() {
    let ground = Ground::new();
    let (one, two, other) = (ground.pod(1), ground.pod(2), ground.bed.pod(2, 1));
    for way in TCP {
        let mut living = closed_and_living(&ground, way);
        ground.to_iptables(way, &[two]);
        ground.real_server("-e", way, one, "-m -w 0");
        ground.restore(way, &copies(&ground, way));
        let mut latter = again(&ground, way);
        answers(&mut latter, two);
        connect(&ground.pod(3).namespace, way, two);
        connect(ground.bed.node(), way, two);
        ground.bed.wait_until("IPVS forgets the former", || !is_known(&ground, way));
        answers(&mut living, one);
        ground.to_iptables(way, &[other]);
        answers(&mut latter, two);
        living.abort().unwrap();
        ground.real_server("-d", way, one, "");
        thread::sleep(FORGOTTEN);
        answers(&mut latter, two);
    }
}
