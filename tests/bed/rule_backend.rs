//! Mode ipvs with its sets and rules in nf_tables (`ruleBackend: nftables`): into that form and out of it under every kind
//! of traffic, and what is in the kernel then.

mod fast_path;
mod fast_path_devices;
mod fast_path_drain;
mod fast_path_faults;
mod neighbours;
mod taken_over;

use std::time::Duration;

use bed::{Load, LoadReport, Protocol, Proxy, Question, Service};

use crate::churn::{Random, amount, patience};
use crate::fixture::{Bed, TARGET, assert_shares, ip};
use crate::handover;
use crate::killed::launch;
use crate::load::{Amount, Loaded};

const IPTABLES: &str = "--rule-backend=iptables";
const NFTABLES: &str = "--rule-backend=nftables";

/// Longest time until each client has had some answers.
fn limit() -> Duration {
    Duration::from_secs(amount(120, 300))
}

fn some() -> usize {
    usize::try_from(amount(3, 10)).unwrap()
}

/// Names of what each form leaves in the node.
fn forms(bed: &Bed) -> Vec<&'static str> {
    let rules = bed.rules("iptables") + &bed.rules("ip6tables");
    let tables = bed.tool("nft", &["list", "tables"]);
    let mut forms = Vec::new();
    if rules.contains("KUBE-SERVICES") {
        forms.push("iptables");
    }
    if bed.tool("ipset", &["list", "-name"]).contains("KUBE-") {
        forms.push("ipset");
    }
    if tables.contains("kube-ipvs") {
        forms.push("nf_tables");
    }
    forms
}

fn wait_for(bed: &Bed, expected: &[&str]) {
    bed.wait_for(limit(), &format!("{expected:?} are what is there"), || forms(bed) == expected);
}

/// Requires that no client was cut, refused or delayed. Datagrams to a removed real server may be lost until the kernel's
/// next tick, and clients with affinity begin anew between the modes.
fn require_unnoticed(report: &LoadReport, n_removals: usize) {
    println!("{report}");
    for (name, counts) in &report.clients {
        let most_lost = if name.starts_with("datagrams") { n_removals } else { 0 };
        assert!(counts.lost <= most_lost && counts.others <= counts.lost, "{name}:\n{report}");
        assert_eq!(counts.failed(), counts.lost + counts.others, "{name}:\n{report}");
        let moves = name.starts_with("datagrams") || name.starts_with("affinity");
        assert!(counts.moved == 0 || moves, "{name}:\n{report}");
        assert!(counts.answers >= some() * 2, "{name}:\n{report}");
    }
}

#[test]
fn a_change_of_the_form_and_back_costs_no_client_anything() {
    let loaded = Loaded::new();
    let bed = &loaded.bed;
    let mut proxy = bed.start(&[IPTABLES]);
    let load = Load::start(&loaded.clients(Amount::new(bed))).unwrap();
    load.wait_for_answers(some(), limit()).unwrap();
    // A start without the word keeps what is there.
    for (words, expected) in [
        (&[NFTABLES, "--cleanup-other-modes=false"][..], &["nf_tables"][..]),
        (&["--rule-backend=auto"], &["nf_tables"]),
        (&[IPTABLES], &["iptables", "ipset"]),
        (&["--rule-backend=auto"], &["iptables", "ipset"]),
    ] {
        drop(proxy);
        proxy = bed.start(words);
        wait_for(bed, expected);
        load.wait_for_answers(some(), limit()).unwrap();
    }
    drop(proxy);
    let report = load.stop();
    println!("{report}");
    report.require_no_failure(some() * 4).unwrap();
}

#[test]
fn a_change_of_the_mode_from_nf_tables_and_back_costs_no_client_anything() {
    let loaded = Loaded::new();
    let bed = &loaded.bed;
    let proxy = bed.start(&[NFTABLES]);
    let load = Load::start(&loaded.clients(Amount::new(bed).halved())).unwrap();
    load.wait_for_answers(some(), limit()).unwrap();
    drop(proxy);
    let proxy = bed.start(&["--proxy-mode=iptables", NFTABLES]);
    bed.wait_for(limit(), "the table is gone", || !forms(bed).contains(&"nf_tables"));
    load.wait_for_answers(some(), limit()).unwrap();
    drop(proxy);
    let _proxy = bed.start(&[NFTABLES]);
    wait_for(bed, &["nf_tables"]);
    load.wait_for_answers(some(), limit()).unwrap();
    require_unnoticed(&load.stop(), 2);
}

#[test]
fn what_kube_proxy_left_in_ipvs_mode_is_taken_over_into_nf_tables() {
    let bed = Bed::new();
    handover::be_kube_proxy(bed.node());
    let mut connections: Vec<_> =
        handover::TARGETS.into_iter().map(|target| handover::open(bed.client(), target)).collect();
    bed.manifests.apply(&handover::service(&bed)).unwrap();
    let _proxy = bed.start(&["--cluster-cidr", "10.244.0.0/16", NFTABLES]);
    wait_for(&bed, &["nf_tables"]);
    // Deleted while no proxy ran: the sets that were there say that its virtual servers are a proxy's.
    assert!(!bed.virtual_servers().contains("10.96.0.99"), "{}", bed.virtual_servers());
    for (connection, server) in &mut connections {
        assert_eq!(connection.say().unwrap().server, *server);
    }
    for (address, port) in handover::TARGETS {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(address), port), 4);
        assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
    }
}

#[test]
fn a_host_port_and_a_policy_of_others_meet_the_rules_as_documented() {
    let bed = Bed::new();
    let service =
        Service::new("web", ip("10.96.0.10")).node_port(Protocol::Tcp, 80, TARGET, 30_080);
    bed.manifests.apply(&service.pods([bed.pod(1, 1)])).unwrap();
    let _elsewhere = bed::Server::start(bed.pod(1, 2), &[(Protocol::Tcp, 8_081)]).unwrap();
    let port_map = |chain: &str| {
        let to = format!("{}:8081", bed.pod(1, 2).ipv4);
        let jump = ["-t", "nat", "-A", chain, "-p", "tcp", "--dport", "80", "-j", "DNAT"];
        bed.tool("iptables", &[&jump[..], &["--to-destination", &to]].concat());
    };
    // As the plugin portmap of a container network has it, in iptables and in nf_tables.
    port_map("PREROUTING");
    let of_nft = format!(
        "add table ip cni_hostport
        add chain ip cni_hostport prerouting {{ type nat hook prerouting priority dstnat; }}
        add rule ip cni_hostport prerouting tcp dport 80 dnat to {}:8081",
        bed.pod(1, 2).ipv4
    );
    bed.node().command_with_input("nft", &["-f", "-"], &of_nft).unwrap();
    bed.tool("iptables", &["-P", "FORWARD", "DROP"]);
    let proxy = bed.start(&["--cluster-cidr", "10.244.0.0/16", NFTABLES]);
    let log = proxy.log().unwrap();
    assert!(log.contains("FORWARD") && log.contains("ruleBackend"), "{log}");
    // The endpoint's answers meet FORWARD.
    let question = Question::tcp((ip("10.96.0.10"), 80));
    bed::ask(bed.client(), question.within(Duration::from_secs(1))).unwrap_err();
    bed.tool("iptables", &["-P", "FORWARD", "ACCEPT"]);
    for target in [(ip("10.96.0.10"), 80), (ip("192.168.0.11"), 30_080)] {
        let tally = bed.ask(bed.client(), Protocol::Tcp, target, 2);
        assert_shares(&tally, &[("pod1-1", 2)]);
    }
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("192.168.0.11"), 80), 2);
    assert_shares(&tally, &[("pod1-2", 2)]);
}

#[test]
fn changes_that_are_killed_at_random_points_go_on_where_they_ended() {
    let loaded = Loaded::new();
    let bed = &loaded.bed;
    let mut random = Random::new();
    drop(bed.start(&[IPTABLES]));
    let load = Load::start(&loaded.clients(Amount::new(bed))).unwrap();
    load.wait_for_answers(some(), limit()).unwrap();
    // A start takes about as long as this, emulated.
    let longest = u64::try_from(patience(bed).as_millis()).unwrap().min(6_000);
    for _ in 0..amount(4, 60) {
        let proxy = launch(bed, &[random.of(&[IPTABLES, NFTABLES])]);
        std::thread::sleep(Duration::from_millis(random.below(longest)));
        drop(proxy); // SIGKILL
    }
    for (word, expected) in [(NFTABLES, &["nf_tables"][..]), (IPTABLES, &["iptables", "ipset"])] {
        let proxy = bed.start(&[word]);
        wait_for(bed, expected);
        load.wait_for_answers(some(), limit()).unwrap();
        drop(proxy);
    }
    let report = load.stop();
    println!("{report}");
    report.require_no_failure(some() * 2).unwrap();
}

#[test]
fn a_restart_writes_nothing_and_drift_is_repaired() {
    let bed = Bed::new();
    let service =
        Service::new("web", ip("10.96.0.10")).node_port(Protocol::Tcp, 80, TARGET, 30_080);
    bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let ask = || {
        for target in [(ip("10.96.0.10"), 80), (ip("192.168.0.11"), 30_080)] {
            let tally = bed.ask(bed.client(), Protocol::Tcp, target, 4);
            assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
        }
    };
    drop(bed.start(&[NFTABLES]));
    ask();
    let listed = |table: &str| {
        let text = bed.tool("nft", &["list", "table", table, "kube-ipvs"]);
        // Two lines are about the process that has the table.
        let lines =
            text.lines().filter(|line| !line.contains("table ip") && !line.contains("flags "));
        lines.filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = listed("ip");
    let proxy = bed.start(&["--ipvs-sync-period=5s", "-v=4"]);
    let log = proxy.log().unwrap();
    assert!(log.contains("first comparison with the kernel changes=0"), "{log}");
    assert_eq!(listed("ip"), before);

    // Where the kernel has owners, no other program changes the table, and a flush of everything spares it.
    let _refused = bed.node().command("nft", &["flush", "ruleset"]);
    let is_whole =
        || bed.tool("nft", &["list", "tables"]).contains("ip kube-ipvs") && listed("ip") == before;
    bed.wait_until("the table is whole", is_whole);
    // Kernels without owners count no elements: the audit sees that some went.
    let _refused =
        bed.node().command("nft", &["flush", "set", "ip", "kube-ipvs", "KUBE-CLUSTER-IP"]);
    bed.wait_for(limit(), "the set is whole", is_whole);
    ask();
    drop(proxy);
    // No process owns the tables now.
    bed.tool("nft", &["flush", "chain", "ip", "kube-ipvs", "prerouting"]);
    bed.tool("nft", &["flush", "set", "ip", "kube-ipvs", "KUBE-CLUSTER-IP"]);
    let _proxy = bed.start(&[]);
    assert_eq!(listed("ip"), before);
    ask();
}

#[test]
fn sets_are_printed_as_ipset_does_and_cleanup_removes_the_tables() {
    let bed = Bed::new();
    let service =
        Service::new("web", ip("10.96.0.10")).node_port(Protocol::Tcp, 80, TARGET, 30_080);
    bed.manifests.apply(&service.pods([bed.pod(1, 1)])).unwrap();
    let printed = || bed.tool(&bed::program().to_string_lossy(), &["sets"]);
    let lines = |text: &str| {
        let adds = text.lines().filter(|line| line.starts_with("add "));
        let mut adds: Vec<String> = adds.map(str::to_owned).collect();
        adds.sort();
        adds
    };
    let proxy = bed.start(&[IPTABLES]);
    let by_ipset = lines(&bed.tool("ipset", &["save"]));
    assert_eq!(lines(&printed()), by_ipset);
    drop(proxy);
    let proxy = bed.start(&[NFTABLES]);
    wait_for(&bed, &["nf_tables"]);
    let by_us = lines(&printed());
    assert_eq!(by_us, by_ipset);
    drop(proxy);
    let (ended, log) = Proxy::run_to_its_end(bed.node(), &bed.manifests, &["--cleanup"]).unwrap();
    assert!(ended.success(), "{log}");
    assert_eq!(forms(&bed), [""; 0], "{log}");
    assert!(!bed.virtual_servers().contains("10.96.0.10"));
    bed::ask(bed.client(), Question::tcp((ip("10.96.0.10"), 80))).unwrap_err();
}
