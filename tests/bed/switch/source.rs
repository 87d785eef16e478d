//! The node's own connections, and answers of real servers that IPVS does not know.

use bed::Refusal;

use super::ground::{Ground, TCP, answers, connect};

#[test]
fn the_node_sends_from_a_bound_address_unless_a_rule_has_that_masqueraded() {
    let ground = Ground::new();
    let (near, far, node) = (ground.pod(1), ground.bed.pod(2, 1), ground.bed.node());
    let ask = |way, pod| {
        ground.to_iptables_without_masquerade(way, pod);
        let answer = bed::ask(node, way.question());
        answer.map(|answer| (answer.server, answer.seen_source.ip()))
    };
    for way in TCP {
        ground.bind(way);
        assert_eq!(ask(way, near), Ok((near.name.clone(), way.address())));
        assert_eq!(ask(way, far), Err(Refusal::Timeout), "its answer ends at another node");
        let set = ground.bound_addresses(way);
        let program = way.program("iptables");
        ground.run(&format!("{program} -t nat -I OUTPUT {set} src -j KUBE-MARK-MASQ"));
        for pod in [near, far] {
            let (server, source) = ask(way, pod).unwrap();
            assert_eq!(server, pod.name);
            assert_ne!(source, way.address());
        }
    }
}

#[test]
fn nat_icmp_send_cuts_what_dnat_sends_to_a_real_server() {
    let ground = Ground::new();
    let (one, two, node) = (ground.pod(1), ground.pod(2), ground.bed.node());
    let set = |value| node.set_sysctl("net/ipv4/vs/nat_icmp_send", value).unwrap();
    assert_eq!(node.sysctl("net/ipv4/vs/nat_icmp_send").unwrap(), "0");
    for way in TCP {
        ground.balance(way, &[one, two]);
        ground.to_iptables(way, &[two]);
        let [mut outside, mut pod, _] = ground.clients().map(|client| connect(client, way, two));
        answers(&mut outside, two);
        set("1");
        assert_eq!(outside.say(), Err(Refusal::Timeout));
        assert_eq!(pod.say(), Err(Refusal::Timeout));
        set("0");
        connect(ground.bed.client(), way, two);
    }
}
