//! Settings that follow the Node object, and settings of the node itself.

use std::fs;

use serde_json::{Value, json};

use crate::cluster::{Cluster, get, mk_web};

/// The addresses at which the node port is served, of IPv4.
fn node_ports(cluster: &Cluster) -> Vec<String> {
    let shown = cluster.bed.virtual_servers();
    let addresses = shown.lines().filter_map(|line| line.split_whitespace().nth(1));
    let ours = addresses.filter_map(|address| address.strip_suffix(":30080"));
    let mut ours: Vec<String> =
        ours.filter(|address| !address.starts_with('[')).map(str::to_owned).collect();
    ours.sort();
    ours
}

#[test]
fn the_nodes_pod_network_and_addresses_are_followed_without_a_restart() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    cluster.configure("detectLocalMode: \"\"", "detectLocalMode: NodeCIDR");
    cluster.configure("nodePortAddresses: null", "nodePortAddresses: [primary]");
    let mut node = cluster.node_object(1);
    node["spec"] = json!({});
    node["status"] = json!({});
    cluster.apply(&node);
    cluster.apply_service(&mk_web(bed, &[(1, 1)]));
    let proxy = cluster.start(1);
    // A Node that is registered, and not yet told what it has.
    assert!(!bed.rules("iptables").contains("! -s"), "{}", bed.rules("iptables"));
    assert!(bed.virtual_servers().contains("10.96.0.10:80"));
    assert_eq!(node_ports(&cluster), Vec::<String>::new());

    let mut give = |pods: &str, address: &str| {
        node["spec"] = json!({"podCIDRs": [pods]});
        node["status"] = json!({"addresses": [{"type": "InternalIP", "address": address}]});
        cluster.apply(&node);
        bed.wait_until(&format!("{pods} is local"), || {
            bed.rules("iptables").contains(&format!("! -s {pods}"))
        });
        bed.wait_until(&format!("node ports are at {address}"), || {
            node_ports(&cluster) == [address]
        });
    };
    give("10.244.1.0/24", "192.168.0.11");
    give("10.244.9.0/24", "10.244.1.1");
    let log = proxy.stop().unwrap();
    assert_eq!(log.matches("kube-ipvs starts").count(), 1, "{log}");
}

#[test]
fn timeouts_and_the_score_are_as_configured() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    for (from, to) in [
        ("tcpEstablishedTimeout: null", "tcpEstablishedTimeout: 2h0m0s"),
        ("tcpCloseWaitTimeout: null", "tcpCloseWaitTimeout: 30m0s"),
        ("tcpBeLiberal: false", "tcpBeLiberal: true"),
        ("udpStreamTimeout: 0s", "udpStreamTimeout: 90s"),
        ("tcpFinTimeout: 0s\n  tcpTimeout: 0s", "tcpFinTimeout: 1m\n  tcpTimeout: 15m"),
    ] {
        cluster.configure(from, to);
    }
    let untouched = bed.node().sysctl("net/netfilter/nf_conntrack_udp_timeout").unwrap();
    let udp = |shown: &str| shown.split_whitespace().last().map(str::to_owned);
    bed.tool("modprobe", &["ip_vs"]);
    let before = udp(&bed.tool("ipvsadm", &["-L", "--timeout"]));
    let mut proxy = cluster.start(1);
    for (switch, value) in [
        ("nf_conntrack_tcp_timeout_established", "7200"),
        ("nf_conntrack_tcp_timeout_close_wait", "1800"),
        ("nf_conntrack_tcp_be_liberal", "1"),
        ("nf_conntrack_udp_timeout_stream", "90"),
        ("nf_conntrack_udp_timeout", &untouched),
    ] {
        let found = bed.node().sysctl(&format!("net/netfilter/{switch}")).unwrap();
        assert_eq!(found, value, "{switch}");
    }
    let shown = bed.tool("ipvsadm", &["-L", "--timeout"]);
    assert!(shown.contains(": 900 60 "), "{shown}");
    assert_eq!(udp(&shown), before, "0 leaves the kernel's value");
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", proxy.process())).unwrap();
    assert_eq!(score.trim(), "-999");
    // What is in force is shown, too.
    let shown = get(bed.node(), "127.0.0.1:10249", "/configz").unwrap();
    let (_, body) = shown.split_once("\r\n\r\n").unwrap();
    let shown: Value = serde_json::from_str(body).unwrap();
    assert_eq!(shown["kubeproxy.config.k8s.io"]["ipvs"]["tcpTimeout"], "15m0s");
}
