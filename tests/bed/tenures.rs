//! A running program goes from one mode to another: it stays the same process, and no connection
//! ends.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bed::{Connection, Protocol, Proxy, Question};

use crate::cluster::{Cluster, HEALTH, get, mk_web, status};
use crate::fixture::{Bed, TARGET, ip};
use crate::ports_again::lack_copies;

/// Time in which a changed configuration file is taken on or refused.
const PATIENCE: Duration = Duration::from_secs(60);
/// Own document of a configuration.
const OWN: &str = "drainDeadline: 10m";

fn mk_bed() -> Bed {
    let bed = Bed::new();
    let service = bed::Service::new("web", ip("10.96.0.10")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    bed
}

pub(crate) fn mk_connection(bed: &Bed) -> Connection {
    let mut connection =
        Connection::open(bed.client(), Question::tcp((ip("10.96.0.10"), 80))).unwrap();
    connection.say().unwrap();
    connection
}

/// Runs `kube-ipvs switch` on the node. An error has what it wrote.
pub(crate) fn switch(bed: &Bed, arguments: &[&str]) -> anyhow::Result<String> {
    let program = std::env::var("KUBE_IPVS").unwrap_or_else(|_| "/job/kube-ipvs".to_owned());
    bed.node().command(&program, &[&["switch"], arguments].concat())
}

pub(crate) fn wait_for_mode(bed: &Bed, proxy: &Proxy, mode: &str) {
    let served = || get(bed.node(), "127.0.0.1:10249", "/proxyMode").unwrap_or_default();
    let outcome = bed::eventually(Duration::from_secs(120), "the mode", || {
        let answer = served();
        if answer.ends_with(&format!("\r\n\r\n{mode}")) {
            return Ok(());
        }
        anyhow::bail!("{mode} is not served: {answer}")
    });
    outcome.unwrap_or_else(|error| panic!("{error:#}\n{}", proxy.log().unwrap()));
}

/// Asserts that the configuration file that the node has now is not in force.
pub(crate) fn assert_is_rejected(bed: &Bed) {
    let metrics = get(bed.node(), "127.0.0.1:10249", "/metrics").unwrap();
    assert!(metrics.contains("kube_ipvs_configuration_rejected 1"), "{metrics}");
}

pub(crate) fn has_dummy(bed: &Bed) -> bool {
    bed.tool("ip", &["-oneline", "link"]).contains("kube-ipvs0")
}

/// The rules, and the chains of Kubernetes, in order. With nf_tables, trying out what it can do makes the
/// empty tables that x_tables has from the start.
fn own_rules(bed: &Bed) -> [Vec<String>; 2] {
    ["iptables", "ip6tables"].map(|family| {
        let saved = bed.rules(family);
        let is_own = |line: &&str| line.starts_with("-A ") || line.starts_with(":KUBE-");
        let mut lines: Vec<String> = saved.lines().filter(is_own).map(str::to_owned).collect();
        // Tables in any order, rules of a chain in theirs.
        lines.sort_by_key(|line| line.split(' ').nth(1).map(str::to_owned));
        lines
    })
}

/// Waits until IPVS alone leads, and asks a new connection and an old one.
#[track_caller]
pub(crate) fn assert_ipvs_took_over(bed: &Bed, of_rules: &mut Connection) {
    bed.wait_until("IPVS leads", || !bed.rules("iptables").contains("KUBE-SVC-"));
    assert!(bed.virtual_servers().contains("10.96.0.10:80"), "{}", bed.virtual_servers());
    of_rules.say().unwrap();
    mk_connection(bed);
}

#[test]
fn an_order_switches_the_running_process_there_and_back() {
    let bed = mk_bed();
    let configuration = bed.configuration("order", OWN);
    let mut proxy = bed.start(&["--config", &configuration]);
    let process = proxy.process();
    let mut of_ipvs = mk_connection(&bed);

    let before = bed.virtual_servers();
    let said = switch(&bed, &["--to=iptables", "--dry-run"]).unwrap();
    assert!(said.contains("serves in IPVS mode"), "{said}");
    assert!(said.contains("host: supports iptables mode"), "{said}");
    assert!(said.contains("1 active and 0 inactive TCP connections"), "{said}");
    assert!(said.contains("the node can switch to iptables mode"), "{said}");
    assert!(!said.contains("no rule can have"), "{said}");
    lack_copies(&bed);
    let said = switch(&bed, &["--to=iptables", "--dry-run"]).unwrap();
    assert!(said.contains("TEE (module xt_TEE)"), "{said}");
    assert!(said.contains("a connection from a client port that was used before"), "{said}");
    assert!(said.contains("the node can switch to iptables mode"), "{said}");
    assert_eq!(bed.virtual_servers(), before);
    assert!(!bed.rules("iptables").contains("KUBE-SVC-"), "a dry run writes nothing");
    wait_for_mode(&bed, &proxy, "ipvs");

    let said = switch(&bed, &["--to=iptables", "--no-wait"]).unwrap();
    assert!(said.contains("in the mode of its configuration, ipvs"), "{said}");
    wait_for_mode(&bed, &proxy, "iptables");
    bed.wait_until("rules lead", || bed.rules("iptables").contains("KUBE-SVC-"));
    let mut of_rules = mk_connection(&bed);
    of_ipvs.say().unwrap();
    assert!(bed.virtual_servers().contains("10.96.0.10:80"), "{}", bed.virtual_servers());
    let metrics = get(bed.node(), "127.0.0.1:10249", "/metrics").unwrap();
    let mode = "kube_ipvs_mode{configured=\"ipvs\",effective=\"iptables\"} 1";
    assert!(metrics.contains(mode), "{metrics}");

    // It waits until nothing of the other mode is left.
    let said = switch(&bed, &["--to=ipvs"]).unwrap();
    assert!(said.contains("nothing of another mode is left"), "{said}");
    wait_for_mode(&bed, &proxy, "ipvs");
    assert!(!bed.rules("iptables").contains("KUBE-SVC-"), "{}", bed.rules("iptables"));
    of_ipvs.say().unwrap();
    of_rules.say().unwrap();
    mk_connection(&bed);
    assert!(switch(&bed, &["--to=ipvs"]).unwrap().contains("already serves in IPVS mode"));
    assert_eq!(proxy.process(), process);
    proxy.stop().unwrap();
    let said = format!("{:#}", switch(&bed, &["--to=ipvs"]).unwrap_err());
    assert!(said.contains("no kube-ipvs runs in this network namespace"), "{said}");
}

/// Time between two checks of one kind, of which a load balancer makes one a second.
const BETWEEN_CHECKS: Duration = Duration::from_millis(100);

#[test]
fn no_check_of_a_load_balancer_fails_during_a_switch() {
    let cluster = Cluster::in_mode("ipvs", OWN);
    let bed = &cluster.bed;
    let mut service = mk_web(bed, &[(1, 1)]);
    service.cluster.truncate(1);
    service.load_balancer = vec![ip("203.0.113.5")];
    service.more = vec!["externalTrafficPolicy: Local".into(), "healthCheckNodePort: 31000".into()];
    cluster.apply_service(&service);
    let _proxy = cluster.start(1);
    let checks = [
        (bed.client(), HEALTH, "/healthz"),
        (bed.client(), HEALTH, "/livez"),
        (bed.client(), HEALTH, "/readyz"),
        (bed.client(), "192.168.0.11:31000", "/"),
        (bed.node(), "127.0.0.1:10249", "/metrics"),
    ];
    for (from, address, path) in checks {
        bed.wait_until("it says yes", || status(from, address, path) == "200");
    }
    let done = AtomicBool::new(false);
    let polled = thread::scope(|scope| {
        let polling = checks.map(|(from, address, path)| {
            let done = &done;
            scope.spawn(move || {
                let (mut count, mut others) = (0, Vec::new());
                while !done.load(Ordering::Relaxed) {
                    let answer = status(from, address, path);
                    count += 1;
                    if answer != "200" {
                        others.push(format!("{address}{path}: {answer}"));
                    }
                    // Without a pause, checks leave the switch little of the guest's processor.
                    thread::sleep(BETWEEN_CHECKS);
                }
                (count, others)
            })
        });
        let switched = ["iptables", "ipvs"].map(|mode| switch(bed, &[&format!("--to={mode}")]));
        done.store(true, Ordering::Relaxed);
        for said in switched {
            said.unwrap();
        }
        polling.map(|one| one.join().unwrap())
    });
    for (count, others) in polled {
        assert!(count > 20, "{count}");
        assert_eq!(others, Vec::<String>::new());
    }
}

#[test]
fn a_mode_in_the_configuration_file_is_taken_on_and_one_that_cannot_be_is_not() {
    let bed = mk_bed();
    let path = bed.configuration("file", OWN);
    let text = fs::read_to_string(&path).unwrap();
    let mut proxy = bed.start(&["--config", &path]);
    let process = proxy.process();
    let mut of_ipvs = mk_connection(&bed);

    fs::write(&path, text.replace("mode: ipvs", "mode: nftables")).unwrap();
    proxy.wait_for_log("has changed and is not valid", PATIENCE).unwrap();
    mk_connection(&bed);
    assert_eq!(proxy.process(), process);

    fs::write(&path, text.replace("mode: ipvs", "mode: iptables")).unwrap();
    wait_for_mode(&bed, &proxy, "iptables");
    bed.wait_until("rules lead", || bed.rules("iptables").contains("KUBE-SVC-"));
    mk_connection(&bed);
    of_ipvs.say().unwrap();
    assert_eq!(proxy.process(), process);
    proxy.stop().unwrap();
}

#[test]
fn a_node_goes_back_to_its_mode_if_the_other_cannot_begin_after_all() {
    let cluster = Cluster::in_mode("iptables", "drainDeadline: 10m\n");
    let bed = &cluster.bed;
    let mut proxy = cluster.start(1);
    let process = proxy.process();
    let mut of_rules = mk_connection(bed);
    let before = own_rules(bed);

    // The check finds all of IPVS. That the routes are around the node's own network, it does not.
    let text = fs::read_to_string(cluster.configuration()).unwrap();
    let text = text.replace("mode: iptables", "mode: ipvs");
    fs::write(cluster.configuration(), format!("{text}serviceRoutes: [192.168.0.0/16]\n")).unwrap();
    proxy.wait_for_log("rolling back to iptables mode", PATIENCE).unwrap();
    let failed = cluster.event("ModeSwitchFailed");
    let note = failed["note"].as_str().unwrap();
    let why =
        "this node rolls back to iptables mode: it could not serve in IPVS mode: serviceRoutes";
    assert!(failed["type"] == "Warning" && note.starts_with(why), "{failed}");
    wait_for_mode(bed, &proxy, "iptables");
    bed.wait_until("the interface of mode ipvs is gone", || !has_dummy(bed));
    assert_is_rejected(bed);
    assert_eq!(own_rules(bed), before);
    of_rules.say().unwrap();
    mk_connection(bed);
    // It is left alone for minutes: each attempt interrupts health and metrics. One that came at once
    // would have failed by now.
    thread::sleep(PATIENCE / 3);
    assert_eq!(proxy.log().unwrap().matches("rolling back to iptables mode").count(), 1);

    // Another content is taken on at once.
    fs::write(cluster.configuration(), text).unwrap();
    wait_for_mode(bed, &proxy, "ipvs");
    assert_ipvs_took_over(bed, &mut of_rules);
    assert_eq!(proxy.process(), process);
    proxy.stop().unwrap();
}

#[test]
fn a_switch_that_is_held_up_is_given_up_and_the_former_mode_goes_on() {
    let bed = mk_bed();
    let path = bed.configuration("held-up", OWN);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("mode: ipvs", "mode: iptables")).unwrap();
    let mut proxy = bed.start(&["--config", &path]);
    let process = proxy.process();
    let mut connection = mk_connection(&bed);
    // A set that is unowned, in the place of one that mode ipvs needs, and in use.
    bed.tool("ipset", &["create", "KUBE-CLUSTER-IP", "hash:ip"]);
    let foreign = ["INPUT", "-m", "set", "--match-set", "KUBE-CLUSTER-IP", "src", "-j", "ACCEPT"];
    bed.tool("iptables", &[&["-A"], &foreign[..]].concat());

    let said = format!("{:#}", switch(&bed, &["--to=ipvs"]).unwrap_err());
    assert!(said.contains("has switched from IPVS mode to iptables mode"), "{said}");
    proxy.wait_for_log("rolling back to iptables mode: this lasted for 30s: ", PATIENCE).unwrap();
    proxy
        .wait_for_log("IPVS mode lacks prerequisites: create set KUBE-CLUSTER-IP", PATIENCE)
        .unwrap();
    mk_connection(&bed);
    // Changes reach clients again.
    let service = bed::Service::new("web", ip("10.96.0.10")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&service.pods([bed.pod(2, 2)])).unwrap();
    bed.wait_until("pod2-2 alone answers", || {
        let answer = bed::ask(bed.client(), Question::tcp((ip("10.96.0.10"), 80)));
        answer.is_ok_and(|answer| answer.server == "pod2-2")
    });
    connection.say().unwrap();
    bed.wait_until("nothing of IPVS is left", || !bed.virtual_servers().contains("10.96.0.10"));

    // What stood in the way is gone: the same order succeeds.
    bed.tool("iptables", &[&["-D"], &foreign[..]].concat());
    // Rules that mode ipvs left look into it, until they are cleaned up.
    bed.wait_until("the set is gone", || {
        let sets = bed.tool("ipset", &["list", "-name"]);
        !sets.lines().any(|set| set == "KUBE-CLUSTER-IP")
            || bed.node().command("ipset", &["destroy", "KUBE-CLUSTER-IP"]).is_ok()
    });
    let said = switch(&bed, &["--to=ipvs"]).unwrap();
    assert!(said.contains("nothing of another mode is left"), "{said}");
    mk_connection(&bed);
    connection.say().unwrap();
    assert_eq!(proxy.process(), process);
    proxy.stop().unwrap();
}

#[test]
fn connections_of_every_mode_live_through_switches_by_way_of_mode_userspace() {
    let bed = mk_bed();
    let configuration = bed.configuration("relay", OWN);
    let mut proxy = bed.start(&["--config", &configuration]);
    let process = proxy.process();
    let mut connections = vec![mk_connection(&bed)];
    for (mode, met) in [
        ("userspace", "IPVS mode: 1 virtual servers"),
        ("iptables", "relay: 1 TCP connections, which have 600s to end"),
        ("userspace", "rules of other modes; their connections continue"),
        ("ipvs", "UDP clients, which get a new endpoint"),
    ] {
        let said = switch(&bed, &[&format!("--to={mode}"), "--dry-run"]).unwrap();
        assert!(
            said.contains(met)
                && said.contains(&format!(
                    "can switch to {} mode",
                    if mode == "ipvs" { "IPVS" } else { mode }
                )),
            "{said}"
        );
        assert_eq!(said.contains("relay:"), connections.len() % 2 == 0, "{said}");
        let said = switch(&bed, &[&format!("--to={mode}"), "--no-wait"]).unwrap();
        assert!(said.contains("asked kube-ipvs"), "{said}");
        wait_for_mode(&bed, &proxy, mode);
        bed.wait_until(&format!("mode {mode} leads"), || {
            let rules = bed.rules("iptables");
            let has_portal = rules.contains("-A KUBE-PORTALS-CONTAINER -d 10.96.0.10/32");
            match mode {
                "userspace" => has_portal,
                "iptables" => !has_portal && rules.contains("KUBE-SVC-"),
                _ => !has_portal && bed.virtual_servers().contains("10.96.0.10:80 rr"),
            }
        });
        connections.push(mk_connection(&bed));
        for connection in &mut connections {
            connection.say().unwrap();
        }
        assert_eq!(proxy.process(), process);
    }
    proxy.stop().unwrap();
}
