//! Addresses, node ports, traffic policies, load balancers.

use std::collections::BTreeSet;

use plan::event::Event;
use plan::kernel_objects::LINK;
use plan::model::{Family, OtherNode, Service};
use plan::problem::Problem;
use plan::settings::{NodePortAddresses, Settings};

use super::{NONE_HERE, ONE_HERE, balanced, node_port, run, strings, web};
use crate::node::{Node, THIS, check, said};
use crate::words::{CLUSTER, LOCAL, applied, ips, port, removed, service, slice, sliced};

/// 72236: whatever is bound is in the set by which the rules protect the host's own ports.
#[test]
fn bug_1_host_ports_behind_service_addresses() {
    let everything = Service { external: ips(&["198.51.100.7"]), ..balanced(LOCAL) };
    let mut node = run(&everything, &ONE_HERE);
    let protected = |node: &Node| node.set("KUBE-IPVS-IPS");
    let bound = |node: &Node| -> BTreeSet<String> {
        node.kernel.actual().addresses.iter().map(ToString::to_string).collect()
    };
    assert_eq!(bound(&node).len(), 5, "with the internal frontends");
    assert_eq!(protected(&node), bound(&node));
    node.run([applied(&web())]);
    assert_eq!(protected(&node), bound(&node));
    // Protected before it is bound, and as long as it is.
    let mut node = Node::after([]);
    let ops = said(&node.run([applied(&web())]).ops);
    let at = |op: &str| ops.iter().position(|it| it == op).unwrap();
    assert!(at("add 10.96.0.9 to set KUBE-IPVS-IPS") < at("add address 10.96.0.9 to kube-ipvs0"));
    let ops = said(&node.run([removed(&web())]).ops);
    let at = |op: &str| ops.iter().position(|it| it == op).unwrap();
    let unbound = at("remove address 10.96.0.9 from kube-ipvs0");
    assert!(unbound < at("remove 10.96.0.9 from set KUBE-IPVS-IPS"));
}

/// The problem names the node whose name comes first, of two with one address, whichever was
/// applied first; and the other node when that one goes.
#[test]
fn a_withheld_address_is_told_with_its_node() {
    let service = Service { load_balancer: ips(&["192.0.2.20"]), ..web() };
    let apply =
        |node: &str| Event::OtherNodeApplied(node.into(), OtherNode::at(ips(&["192.0.2.20"])));
    let nodes = |plan: &plan::planner::Plan| -> Vec<String> {
        let problems = plan.problems.iter().flat_map(|(_, problems)| problems);
        let node = |problem: &Problem| match problem {
            Problem::AddressOfNode { node, .. } => node.to_string(),
            other => panic!("{other}"),
        };
        problems.map(node).collect()
    };
    for order in [["n2", "n3"], ["n3", "n2"]] {
        let mut node = run(&service, &ONE_HERE);
        node.run([apply(order[0])]);
        let second = node.run([apply(order[1])]);
        let news: &[&str] = if order[1] == "n2" { &["n2"] } else { &[] };
        assert_eq!(nodes(&second), news, "{order:?}");
        let third = node.run([Event::OtherNodeRemoved("n2".into())]);
        assert_eq!(nodes(&third), ["n3"], "{order:?}");
        node.run([Event::OtherNodeRemoved("n3".into())]);
        assert!(node.real_servers("TCP 192.0.2.20:80").is_some(), "{order:?}");
    }
}

/// 127410, 104679 and eight more: another node's address as an external one cuts no client off.
/// That node itself serves it.
#[test]
fn bug_3_an_external_address_is_another_nodes() {
    let external = Service { external: ips(&["192.0.2.20"]), ..web() };
    let balancer = Service { load_balancer: ips(&["192.0.2.20"]), ..web() };
    let other = |addresses| Event::OtherNodeApplied("n2".into(), OtherNode::at(ips(addresses)));
    for (row, service) in [("external", external), ("load balancer's", balancer)] {
        let mut node = run(&service, &ONE_HERE);
        let without = run(&web(), &ONE_HERE);
        assert!(node.addresses().contains("kube-ipvs0 192.0.2.20"), "{row}: nobody's so far");
        node.run([other(&["192.0.2.20", "2001:db8::20"])]);
        assert_eq!(node.kernel, without.kernel, "{row}: n2's");
        node.run([other(&["192.0.2.21"])]);
        assert!(node.addresses().contains("kube-ipvs0 192.0.2.20"), "{row}: no longer n2's");
        node.run([other(&["192.0.2.20"])]);
        node.run([Event::OtherNodeRemoved("n2".into())]);
        assert!(node.real_servers("TCP 192.0.2.20:80").is_some(), "{row}: n2 has left");
        let own = Event::LocalAddresses(ips(&["192.0.2.10", "192.0.2.20"]));
        node.run([other(&["192.0.2.20"]), own]);
        assert!(node.real_servers("TCP 192.0.2.20:80").is_some(), "{row}: this node's as well");
        assert!(!node.addresses().contains("kube-ipvs0 192.0.2.20"), "{row}: and so not bound");
    }
}

/// 114815: a node port is served on a node's address that is a load balancer's as well.
#[test]
fn bug_4_node_port_on_an_address_that_is_a_load_balancers() {
    let both = Service {
        load_balancer: ips(&["192.0.2.10"]),
        ports: vec![port("http", "80:30080/TCP")],
        ..balanced(CLUSTER)
    };
    let node = run(&both, &NONE_HERE);
    for frontend in ["TCP 192.0.2.10:80", "TCP 192.0.2.10:30080"] {
        assert_eq!(node.real_servers(frontend).as_deref(), Some("10.244.1.2:8080"), "{frontend}");
    }
    check("only the cluster's is bound", &node.addresses(), &["kube-ipvs0 10.96.0.9"]);
}

/// 88212, and 48 and 49 of sync time (73382, 84906, 53736): what did not change costs nothing.
#[test]
fn bug_8_and_48_only_what_changes_is_touched() {
    let mut node = Node::after((1_u8..=200).flat_map(|last| {
        let name = format!("s{last}");
        [
            applied(&service(&name, &[&format!("10.96.1.{last}")])),
            sliced(&slice(&name, &name, &[&format!("10.244.1.{last}@n2")])),
        ]
    }));
    let plan = node.run([sliced(&slice("s7", "s7", &["10.244.1.7@n2", "10.244.2.7@n3"]))]);
    assert_eq!(said(&plan.ops), ["add real server 10.244.2.7:8080 weight 1 to TCP 10.96.1.7:80"]);
    assert_eq!(node.compare(), [""; 0]);
}

/// 129147, 112185: the node's addresses change, or cannot be read for a moment.
#[test]
fn bug_9_and_10_node_ports_follow_the_nodes_addresses() {
    let mut node = run(&node_port("80:30080/TCP"), &NONE_HERE);
    let served = |node: &Node| -> Vec<String> {
        let lines = node.virtual_servers().into_iter();
        lines.filter(|line| line.contains(":30080 ")).collect()
    };
    assert_eq!(served(&node), ["TCP 192.0.2.10:30080 rr: 10.244.1.2:8080"]);
    let before = node.kernel.clone();
    let plan = node.run([Event::LocalAddresses(vec![])]);
    assert_eq!(served(&node), [""; 0]);
    let name = web().name;
    let problem = Problem::NoNodePortAddress { family: Family::V4 };
    assert_eq!(plan.problems, [(name.clone(), vec![problem])]);
    assert!(node.real_servers("TCP 10.96.0.9:80").is_some(), "the rest is served");
    let plan = node.run([Event::LocalAddresses(ips(&["127.0.0.1", "192.0.2.10"]))]);
    assert_eq!(node.kernel, before);
    assert_eq!(plan.problems, [(name, vec![])]);
    node.run([Event::LocalAddresses(ips(&["192.0.2.10", "172.17.0.1"]))]);
    assert_eq!(
        served(&node),
        ["TCP 172.17.0.1:30080 rr: 10.244.1.2:8080", "TCP 192.0.2.10:30080 rr: 10.244.1.2:8080"]
    );
}

/// Calico, kubelet and others skip the interface by its name.
#[test]
fn bug_12_the_interface_has_the_name_that_others_skip() {
    assert_eq!(LINK, "kube-ipvs0");
}

/// 89923: networks of both families.
#[test]
fn bug_16_node_port_addresses_of_both_families() {
    let mut settings = Settings::new(THIS);
    let networks = vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/64".parse().unwrap()];
    settings.node_port_addresses = NodePortAddresses::Networks(networks);
    let sctp =
        Service { cluster_v6: Some("fd00:96::9".parse().unwrap()), ..node_port("80:30080/SCTP") };
    let mut node = Node::new(settings);
    node.run([applied(&sctp)]);
    assert_eq!(node.set("KUBE-NODE-PORT-SCTP-HASH"), strings(&["192.0.2.10,sctp:30080"]));
    assert_eq!(node.set("KUBE-6-NODE-PORT-SCTP-HASH"), strings(&["2001:db8::10,sctp:30080"]));
}

/// 93456, 75262, 92857 and five more: from nodes and pods, a load balancer's address reaches every
/// endpoint, whatever externalTrafficPolicy says to others.
#[test]
fn bug_19_load_balancer_for_local_endpoints_from_inside() {
    for (row, endpoints, inside) in [
        ("none is here", &NONE_HERE[..], "10.244.1.2:8080"),
        ("one is here", &ONE_HERE, "10.244.0.2:8080, 10.244.1.2:8080"),
    ] {
        let node = run(&balanced(LOCAL), endpoints);
        assert_eq!(node.real_servers("TCP 251.0.113.5:80").unwrap(), inside, "{row}");
        assert_eq!(node.set("KUBE-INTERNAL-FRONTEND"), strings(&["203.0.113.5,tcp:80"]), "{row}");
    }
}

/// 97081: clients from outside are never sent to another node, whose answer they would not take.
#[test]
fn bug_20_nobody_falls_back_to_other_nodes() {
    let everything = Service {
        external: ips(&["198.51.100.7"]),
        ports: vec![port("http", "80:30080/TCP")],
        ..balanced(LOCAL)
    };
    let node = run(&everything, &NONE_HERE);
    let outside = ["198.51.100.7,tcp:80", "203.0.113.5,tcp:80", "192.0.2.10,tcp:30080"];
    for frontend in ["TCP 198.51.100.7:80", "TCP 203.0.113.5:80", "TCP 192.0.2.10:30080"] {
        assert_eq!(node.real_servers(frontend), None, "{frontend}");
    }
    assert_eq!(node.set("KUBE-NO-LOCAL-ENDPOINTS"), strings(&outside));
    assert_eq!(node.set("KUBE-NO-ENDPOINTS"), strings(&[]));
}

/// 121371: internalTrafficPolicy Local means it, also where there is something external.
#[test]
fn bug_21_internal_policy_local_does_not_fall_back() {
    for external_policy in [CLUSTER, LOCAL] {
        let service = Service { internal_policy: LOCAL, ..balanced(external_policy) };
        let node = run(&service, &NONE_HERE);
        assert_eq!(node.real_servers("TCP 10.96.0.9:80"), None);
        assert!(node.set("KUBE-NO-LOCAL-ENDPOINTS").contains("10.96.0.9,tcp:80"));
    }
}

/// 66062, 57678: externalTrafficPolicy is for node ports too, and not for the cluster address.
#[test]
fn bug_23_external_policy_for_node_ports() {
    let local = Service { external_policy: LOCAL, ..node_port("80:30080/TCP") };
    let node = run(&local, &ONE_HERE);
    assert_eq!(node.real_servers("TCP 192.0.2.10:30080").unwrap(), "10.244.0.2:8080");
    let all = "10.244.0.2:8080, 10.244.1.2:8080";
    assert_eq!(node.real_servers("TCP 10.96.0.9:80").unwrap(), all);
}

/// 88698, 62638, 112460: what is restricted stays so without being written again and again, be it
/// to a single address; and 119656: the rules do not grow with it (as in j of what was read).
#[test]
fn bug_25_source_ranges_do_not_flap_nor_make_rules_grow() {
    let mut restricted = balanced(CLUSTER);
    let nets = ["192.0.2.1/32", "10.0.0.0/8", "10.1.0.0/16"];
    restricted.source_ranges = nets.iter().map(|net| net.parse().unwrap()).collect();
    let mut node = run(&restricted, &NONE_HERE);
    let rules = |node: &Node| Family::BOTH.map(|family| node.planner.rule_set(family).unwrap());
    assert_eq!(rules(&node), rules(&Node::after([])));
    for _ in 0..3 {
        assert_eq!(node.compare(), [""; 0]);
    }
    restricted.source_ranges.reverse();
    let plan = node.run([applied(&restricted)]);
    assert_eq!(said(&plan.ops), [""; 0], "another order is no change");
    assert_eq!(node.set("KUBE-LOAD-BALANCER-SOURCE-CIDR").len(), 3);
}

/// The review of 119791: each Service restricts its own ports of an address that they share.
#[test]
fn bug_26_services_sharing_an_address_with_other_ranges() {
    let sharing = |name: &str, cluster: &str, text: &str, range: &str| Service {
        name: service(name, &[]).name,
        cluster_v4: Some(cluster.parse().unwrap()),
        ports: vec![port("http", text)],
        source_ranges: vec![range.parse().unwrap()],
        ..balanced(CLUSTER)
    };
    let one = sharing("one", "10.96.0.9", "80/TCP", "10.0.0.0/8");
    let other = sharing("other", "10.96.0.8", "443/TCP", "172.16.0.0/12");
    let everybody = Service {
        source_ranges: vec![],
        ..sharing("everybody", "10.96.0.7", "25/TCP", "0.0.0.0/0")
    };
    let mut node = Node::after([applied(&one), applied(&other), applied(&everybody)]);
    let restricted = |node: &Node| node.set("KUBE-LOAD-BALANCER-FW");
    let ranges = |node: &Node| node.set("KUBE-LOAD-BALANCER-SOURCE-CIDR");
    assert_eq!(restricted(&node), strings(&["203.0.113.5,tcp:80", "203.0.113.5,tcp:443"]));
    let both = ["203.0.113.5,tcp:80,10.0.0.0/8", "203.0.113.5,tcp:443,172.16.0.0/12"];
    assert_eq!(ranges(&node), strings(&both));
    node.run([removed(&one)]);
    assert_eq!(restricted(&node), strings(&["203.0.113.5,tcp:443"]));
    assert_eq!(ranges(&node), strings(&both[1..]));
}
