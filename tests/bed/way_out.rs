//! The way from kube-proxy's ipvs mode to its iptables mode by way of ours, and the way back, while
//! clients are connected: what `docs/roll-back.md` tells operators to do.

use bed::{Connection, Namespace, Proxy, Question};

use crate::fixture::{Bed, ip};
use crate::handover::{TARGETS, be_kube_proxy, open, service};

/// Opens a connection by each way in.
fn open_all(from: &Namespace) -> Vec<(Connection, String)> {
    TARGETS.into_iter().map(|target| open(from, target)).collect()
}

#[track_caller]
fn assert_alive(connections: &mut [(Connection, String)]) {
    for (connection, server) in connections {
        assert_eq!(connection.say().unwrap().server, *server);
    }
}

#[track_caller]
fn assert_served(bed: &Bed) {
    for (address, port) in TARGETS {
        bed::ask(bed.client(), Question::tcp((ip(address), port))).unwrap();
    }
}

#[test]
fn from_kube_proxys_ipvs_mode_to_its_iptables_mode_no_connection_ends() {
    let bed = Bed::new();
    be_kube_proxy(bed.node());
    bed.manifests.apply(&service(&bed)).unwrap();
    let mut through_kube_proxy = open_all(bed.client());

    let proxy = bed.start(&["--proxy-mode=ipvs"]);
    assert_alive(&mut through_kube_proxy);
    let mut through_ipvs = open_all(bed.client());

    drop(proxy);
    // A closed connection would hold IPVS' real servers for two minutes.
    let proxy = bed.start(&["--proxy-mode=iptables", "--drain-deadline=10s"]);
    let mut by_rules = open_all(bed.client());
    for connections in [&mut through_kube_proxy, &mut through_ipvs, &mut by_rules] {
        assert_alive(connections);
    }
    drop((through_kube_proxy, through_ipvs));
    bed.wait_until("everything of IPVS mode is gone", || {
        !bed.tool("ip", &["-oneline", "link"]).contains("kube-ipvs0")
            && !bed.tool("ipset", &["save"]).contains("KUBE-")
    });
    assert_alive(&mut by_rules);
    assert_served(&bed);

    drop(proxy);
    assert_alive(&mut by_rules);
    assert_served(&bed);
    // kube-proxy writes all of its chains anew when it starts, each table in one COMMIT.
    let saved = bed.rules("iptables");
    assert!(saved.contains("KUBE-SVC-") && !saved.contains("match-set"), "{saved}");
    bed.node().command_with_input("iptables-restore", &["--noflush"], &all_anew(&saved)).unwrap();
    assert_eq!(bed.rules("iptables"), saved);
    assert_alive(&mut by_rules);
    assert_served(&bed);
}

/// The input that writes the chains with kube-proxy's names as they are, without the jumps to them.
fn all_anew(saved: &str) -> String {
    let is_kept = |line: &&str| {
        [":KUBE-", "-A KUBE-", "*", "COMMIT"].iter().any(|start| line.starts_with(start))
    };
    let counters = |line: &str| if line.starts_with(':') { " [0:0]\n" } else { "\n" };
    saved.lines().filter(is_kept).fold(String::new(), |text, line| text + line + counters(line))
}

#[test]
fn handed_over_to_kube_proxys_ipvs_mode_a_node_serves_on() {
    let bed = Bed::new();
    bed.manifests.apply(&service(&bed)).unwrap();
    drop(bed.start(&["--proxy-mode=ipvs"]));
    let mut connections = open_all(bed.client());
    let ended = Proxy::run_to_its_end(bed.node(), &bed.manifests, &["--hand-over"]);
    let (status, log) = ended.unwrap();
    assert!(status.success(), "{log}");
    let left = bed.rules("iptables") + &bed.tool("ipset", &["save"]);
    assert!(!left.contains("NO-ENDPOINTS") && !left.contains("INTERNAL-FRONTEND"), "{left}");
    assert_alive(&mut connections);
    assert_served(&bed);
}

/// The local routes of ours, of both families.
fn routes(bed: &Bed) -> String {
    let of = |family| bed.tool("ip", &[family, "route", "show", "table", "local", "proto", "107"]);
    of("-4") + &of("-6")
}

#[test]
fn handed_over_while_it_leaves_mode_ipvs_a_node_has_what_kube_proxy_knows_and_serves_on() {
    let bed = Bed::new();
    bed.manifests.apply(&service(&bed)).unwrap();
    drop(bed.start(&["--proxy-mode=ipvs"]));
    let mut of_ipvs = open_all(bed.client());
    let proxy = bed.start(&["--proxy-mode=iptables"]);
    bed.wait_until("rules copy packets", || bed.rules("iptables").contains("KUBE-IPVS-COPY"));
    let mut by_rules = open_all(bed.client());
    assert!(routes(&bed).contains("10.96.0.10"), "{}", routes(&bed));
    drop(proxy);
    let ended = Proxy::run_to_its_end(bed.node(), &bed.manifests, &["--hand-over"]);
    let (status, log) = ended.unwrap();
    assert!(status.success(), "{log}");
    assert_eq!(routes(&bed), "", "{log}");
    assert!(bed.bound().contains(&"10.96.0.10/32".to_owned()), "{:?}", bed.bound());
    let rules = bed.rules("iptables") + &bed.rules("ip6tables");
    for gone in ["KUBE-IPVS-COPY", "KUBE-IPVS-FORGET", "-j TEE", "INTERNAL-FRONTEND"] {
        assert!(!rules.contains(gone), "{gone}:\n{rules}");
    }
    for connections in [&mut of_ipvs, &mut by_rules] {
        assert_alive(connections);
    }
    assert_served(&bed);
    // The node's own connections have a service address as their source, and are masqueraded.
    for _ in 0..4 {
        bed::ask(bed.node(), Question::tcp((ip("10.96.0.10"), 80))).unwrap();
    }
}
