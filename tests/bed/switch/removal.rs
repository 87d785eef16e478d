//! State that the kernel removes together with real servers, virtual servers and addresses.

use std::thread;
use std::time::{Duration, Instant};

use bed::{Connection, Refusal, eventually};

use super::ground::{Ground, TCP, answers, connect};

/// Unowned virtual servers, at addresses for documentation.
const DUMMIES: [&str; 2] = ["-t 192.0.2.1:1", "-t [2001:db8::1]:1"];
/// Time that the kernel needs to expire the connections of a real server that was removed.
const EXPIRED: Duration = Duration::from_millis(200);

#[test]
fn a_connection_of_ipvs_is_reset_with_its_real_server_or_virtual_server() {
    let ground = Ground::new();
    let (one, two, client) = (ground.pod(1), ground.pod(2), ground.bed.client());
    for way in TCP {
        let dummy = DUMMIES[usize::from(way.ipv6)];
        let only_real_server = || ground.real_server("-d", way, one, "");
        let last_of_family = || ground.unbalance(way);
        let not_the_last = || {
            ground.run(&format!("ipvsadm -A {dummy} -s rr"));
            ground.unbalance(way);
        };
        let removals: [&dyn Fn(); 3] = [&only_real_server, &last_of_family, &not_the_last];
        for remove in removals {
            ground.to_ipvs(way);
            ground.balance(way, &[one]);
            let mut of_ipvs = connect(client, way, one);
            ground.to_iptables(way, &[two]);
            let mut of_iptables = connect(client, way, two);
            remove();
            thread::sleep(EXPIRED);
            assert!(ground.balanced(way).is_empty(), "{:?}", ground.balanced(way));
            assert_eq!(of_ipvs.say(), Err(Refusal::Reset), "{way:?}");
            answers(&mut of_iptables, two);
            ground.run("ipvsadm -C");
        }
    }
}

#[test]
fn a_real_server_of_weight_0_keeps_its_connections_and_lets_a_lost_clients_port_go() {
    let ground = Ground::new();
    let (one, two, client) = (ground.pod(1), ground.pod(2), ground.bed.client());
    for way in TCP {
        ground.to_ipvs(way);
        ground.balance(way, &[one]);
        let question = way.question().from_source(ground.source(way, 20_500));
        let mut connection = Connection::open(client, question).unwrap();
        answers(&mut connection, one);
        ground.real_server("-e", way, one, "-m -w 0");
        answers(&mut connection, one);
        assert!(bed::ask(client, way.question()).is_err(), "no real server takes new connections");
        ground.to_iptables(way, &[two]);
        answers(&mut connection, one);
        connect(client, way, two);
        // The client forgets its connection, the node does not.
        let program = way.program("iptables");
        let silence = ["OUTPUT", "-p", "tcp", "--sport", "20500", "-j", "DROP"];
        client.command(&program, &[&["-I"], &silence[..]].concat()).unwrap();
        connection.abort().unwrap();
        client.command(&program, &[&["-D"], &silence[..]].concat()).unwrap();
        assert!(ground.balanced(way).iter().any(|line| line.contains("ESTABLISHED")));
        let begin = Instant::now();
        let answer = bed::ask(client, question.within(Duration::from_secs(10))).unwrap();
        assert_eq!(answer.server, two.name);
        let took = begin.elapsed();
        assert!(took > Duration::from_millis(900), "the first SYN is dropped: {took:?}");
        assert!(ground.balanced(way).is_empty(), "{:?}", ground.balanced(way));
    }
}

#[test]
fn without_its_address_on_the_node_a_connection_waits_or_is_reset_if_it_is_masqueraded() {
    let ground = Ground::new();
    let (one, two) = (ground.pod(1), ground.pod(2));
    for way in TCP {
        ground.to_ipvs(way);
        ground.balance(way, &[one]);
        let [mut outside, mut pod, mut node] =
            ground.clients().map(|client| connect(client, way, one));
        ground.to_iptables(way, &[two]);
        ground.unbind(way);
        assert_eq!(pod.say(), Err(Refusal::Timeout));
        assert_eq!(node.say(), Err(Refusal::Timeout));
        // Another interface than before: connection tracking forgets what it has masqueraded
        // (nf_nat_oif_changed in net/netfilter/nf_nat_core.c).
        assert_eq!(outside.say(), Err(Refusal::Reset));
        ground.bind(way);
        for connection in [&mut pod, &mut node] {
            let alive = || Ok(connection.say()?);
            let answer = eventually(Duration::from_secs(20), "TCP to send again", alive);
            assert_eq!(answer.unwrap().server, one.name);
        }
    }
}
