//! `kube-ipvs diff` and `kube-ipvs plan`, beside what the program then writes.

use bed::addresses::{POD_RANGE_IPV4, POD_RANGE_IPV6};
use bed::{Protocol, Service};
use serde_json::Value;

use super::run;
use crate::cluster::{Cluster, mk_web};
use crate::fixture::{Bed, TARGET, ip, web};
use crate::handover::{be_kube_proxy, service};

/// Operations of an answer, in order.
fn operations(answer: &Value, field: &str) -> Vec<String> {
    let lines = answer[field].as_array().unwrap().iter();
    let mut operations: Vec<String> =
        lines.map(|line| line["operation"].as_str().unwrap().to_owned()).collect();
    operations.sort();
    operations
}

/// Operations that a log has, in order: at verbosity 4, there is a line for each. Without those that
/// close a frontend and open it again while its virtual server is made: they leave nothing behind. With the
/// sysctls that a start has set, in the words of `diff`.
fn written(log: &str) -> Vec<String> {
    let verbs = ["add ", "change ", "create ", "remove ", "drain ", "write ", "insert ", "delete "];
    let lines = log.lines().filter_map(|line| line.split_once("writer: ").map(|(_, text)| text));
    let operations = lines.filter(|text| verbs.iter().any(|verb| text.starts_with(verb)));
    let mut operations: Vec<String> = operations.map(str::to_owned).collect();
    operations.extend(log.lines().filter_map(|line| {
        let (change, _) = line.split_once("host::sysctls: ")?.1.split_once(" (it was ")?;
        let (name, value) = change.split_once('=')?;
        Some(format!("set {name} to {value}"))
    }));
    let closings: Vec<String> = operations
        .iter()
        .filter(|it| it.starts_with("add ") && it.ends_with("NO-ENDPOINTS"))
        .cloned()
        .collect();
    for closing in closings {
        let opening = closing.replacen("add ", "remove ", 1).replacen(" to set ", " from set ", 1);
        let at = |operations: &[String], wanted| operations.iter().position(|it| it == wanted);
        if let Some(opened) = at(&operations, &opening) {
            operations.remove(opened);
            if let Some(closed) = at(&operations, &closing) {
                operations.remove(closed);
            }
        }
    }
    operations.sort();
    operations
}

fn is_whole(bed: &Bed) -> bool {
    let diff = run(bed, &["diff"]);
    diff.code == 0 && diff.out.is_empty()
}

#[test]
fn damage_that_no_drift_check_sees_is_what_diff_says_and_a_takeover_repairs() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let config = format!("--config={}", bed.configuration("diff", ""));
    let proxy = bed.start(&[&config]);
    bed.wait_until("nothing differs", || is_whole(&bed));
    // The numbers stay as they are.
    bed.tool("ipvsadm", &["-e", "-t", "10.96.0.10:80", "-r", "10.244.1.11:8080", "-m", "-w", "7"]);
    bed.tool("ipvsadm", &["-E", "-t", "[fd00:96::10]:80", "-s", "wlc"]);
    let swapped = "del KUBE-CLUSTER-IP 10.96.0.10,tcp:80\nadd KUBE-CLUSTER-IP 10.96.0.77,tcp:80\n";
    bed.node().command_with_input("ipset", &["restore"], swapped).unwrap();
    let diff = run(&bed, &["diff", "-o", "json"]);
    assert_eq!(diff.code, 1, "{diff:?}");
    let foretold = operations(&diff.json(), "differences");
    assert_eq!(
        foretold,
        [
            "add 10.96.0.10,tcp:80 to set KUBE-CLUSTER-IP",
            "change real server of TCP 10.96.0.10:80 to 10.244.1.11:8080 weight 1",
            "change virtual server TCP [fd00:96::10]:80 to rr",
            "remove 10.96.0.77,tcp:80 from set KUBE-CLUSTER-IP",
        ]
    );
    let text = run(&bed, &["diff"]).out;
    let words = ["weight 7", "weight 1", "wlc", "default/web", "drift", "10.96.0.77,tcp:80"];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    proxy.stop().unwrap();
    // A takeover is foretold without a running program, and comes out as foretold.
    let manifests = format!("--manifests={}", bed.manifests.path().display());
    let before = ["diff", "--with=kube-proxy", "-o", "json", "--", &manifests, &config];
    let takeover = run(&bed, &[&before[..], &["--hostname-override=node1"]].concat());
    assert_eq!(takeover.code, 1, "{takeover:?}");
    assert_eq!(takeover.json()["kind"], "Takeover");
    assert_eq!(operations(&takeover.json(), "operations"), foretold, "{takeover:?}");
    let proxy = bed.start(&[&config, "--v=4"]);
    bed.wait_until("nothing differs", || is_whole(&bed));
    assert_eq!(written(&proxy.log().unwrap()), foretold, "{}", proxy.log().unwrap());
    let takeover = run(&bed, &[&before[..], &["--hostname-override=node1"]].concat());
    assert_eq!(takeover.code, 0, "{takeover:?}");
}

/// Numbers that look random, the same for the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let number = usize::try_from((mixed ^ (mixed >> 31)) % from.len() as u64).unwrap();
        &from[number]
    }
}

/// Services of the test that damages them, from 1.
const SERVICES: [u8; 6] = [1, 2, 3, 4, 5, 6];

/// Damages the kernel in one of the ways that leave the numbers as they are, which alone are looked at
/// every second.
fn damage(bed: &Bed, random: &mut Random) {
    let number = *random.pick(&SERVICES);
    let (address, other) = (format!("10.96.1.{number}:80"), format!("[fd00:96:1::{number}]:80"));
    match random.pick(&[0, 1, 2, 3]) {
        0 => {
            let endpoint = *random.pick(&["10.244.1.11:8080", "10.244.2.11:8080"]);
            let weight = *random.pick(&["3", "7", "11"]);
            bed.tool("ipvsadm", &["-e", "-t", &address, "-r", endpoint, "-m", "-w", weight]);
        }
        1 => {
            let which = if *random.pick(&[true, false]) { &address } else { &other };
            bed.tool("ipvsadm", &["-E", "-t", which, "-s", *random.pick(&["wlc", "sh"])]);
        }
        2 => {
            bed.tool("ipvsadm", &["-E", "-t", &address, "-s", "rr", "-p", "60"]);
        }
        _ => {
            let foreign = format!("10.96.9.{number},tcp:80");
            let own = format!("10.96.1.{number},tcp:80");
            // Once is enough.
            if bed.entries().contains(&format!("KUBE-CLUSTER-IP {own}")) {
                let change =
                    format!("del KUBE-CLUSTER-IP {own}\nadd KUBE-CLUSTER-IP {foreign}\nCOMMIT\n");
                bed.node().command_with_input("ipset", &["restore"], &change).unwrap();
            }
        }
    }
}

#[test]
fn what_diff_says_of_random_damage_is_what_the_running_program_then_writes() {
    let seed = std::env::var("SEED").map_or(18, |seed| seed.parse().unwrap());
    eprintln!("SEED={seed}");
    let mut random = Random(seed);
    let bed = Bed::new();
    for number in SERVICES {
        let mut service = Service::new(&format!("web-{number}"), ip(&format!("10.96.1.{number}")));
        service = service.port(Protocol::Tcp, 80, TARGET);
        service.cluster.push(ip(&format!("fd00:96:1::{number}")));
        bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    }
    let config = format!("--config={}", bed.configuration("random", ""));
    let proxy = bed.start(&[&config, "--v=4"]);
    bed.wait_until("nothing differs", || is_whole(&bed));
    let mut n_compared = 0;
    for round in 1..=6 {
        let begin = proxy.log().unwrap().len();
        for _ in 0..=round {
            damage(&bed, &mut random);
        }
        let foretold = operations(&run(&bed, &["diff", "-o", "json"]).json(), "differences");
        let log = proxy.log().unwrap();
        assert_eq!(
            written(&log[begin..]),
            [""; 0],
            "SEED={seed}: nothing is repaired before: {log}"
        );
        // The checks of every second see this, and look at everything.
        bed.tool("ipset", &["add", "KUBE-CLUSTER-IP", "10.96.8.8,tcp:80"]);
        let mut expected = foretold.clone();
        expected.push("remove 10.96.8.8,tcp:80 from set KUBE-CLUSTER-IP".to_owned());
        expected.sort();
        bed.wait_until("all is repaired, and looked at once more", || {
            proxy.log().unwrap()[begin..].contains("no other kernel state had changed")
        });
        // Another scheduler comes after everything else.
        bed.wait_until("nothing differs", || is_whole(&bed));
        let log = proxy.log().unwrap();
        assert_eq!(written(&log[begin..]), expected, "SEED={seed}, round {round}: {log}");
        n_compared += foretold.len();
    }
    assert!(n_compared >= 12, "{n_compared}");
    let status = run(&bed, &["status", "-o", "json"]).json();
    assert_eq!(status["kernel"]["driftRepaired"], n_compared + 6, "{status:#}");
    proxy.stop().unwrap();
}

#[test]
fn what_plan_says_of_manifests_is_among_what_a_start_writes() {
    let bed = Bed::new();
    let mut web = web([bed.pod(1, 1), bed.pod(2, 1)]);
    web.external = vec![ip("198.51.100.9")];
    bed.manifests.apply(&web).unwrap();
    let folder = bed.manifests.path().display().to_string();
    let local = format!("--cluster-cidr={POD_RANGE_IPV4},{POD_RANGE_IPV6}");
    for mode in ["--proxy-mode=ipvs", "--proxy-mode=iptables"] {
        let words = ["plan", "-o", "json", "-f", &folder, "--", "--hostname-override=node1"];
        let planned = run(&bed, &[&words[..], &[mode, &local]].concat());
        assert_eq!(planned.code, 0, "{planned:?}");
        let foretold = operations(&planned.json(), "operations");
        assert!(foretold.len() > 4, "{foretold:?}");
        let proxy = bed.start(&["--v=4", mode, &local]);
        let log = proxy.log().unwrap();
        let written = written(&log);
        let missing: Vec<&String> = foretold.iter().filter(|it| !written.contains(it)).collect();
        assert!(missing.is_empty(), "{missing:?} of {foretold:?}: {log}");
        proxy.stop().unwrap();
    }
}

#[test]
fn in_mode_iptables_a_node_is_whole_and_a_takeover_is_foretold_too() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let local = format!("--cluster-cidr={POD_RANGE_IPV4},{POD_RANGE_IPV6}");
    let flags = ["--proxy-mode=iptables", &local];
    let proxy = bed.start(&flags);
    bed.wait_until("nothing differs", || is_whole(&bed));
    proxy.stop().unwrap();
    let saved = bed.tool("iptables-save", &["-t", "nat"]);
    let chains = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
    let endpoint = chains.clone().find(|chain| chain.starts_with("KUBE-SEP-")).unwrap();
    bed.tool("iptables", &["-t", "nat", "-F", endpoint]);
    bed.tool("iptables", &["-t", "nat", "-F", "KUBE-POSTROUTING"]);
    bed.tool("iptables", &["-t", "nat", "-I", "KUBE-SERVICES", "-s", "192.0.2.77", "-j", "RETURN"]);
    let manifests = format!("--manifests={}", bed.manifests.path().display());
    let words = ["diff", "--with=kube-proxy", "-o", "json", "--", "--hostname-override=node1"];
    let takeover = run(&bed, &[&words[..], &[&manifests], &flags].concat());
    assert_eq!(takeover.code, 1, "{takeover:?}");
    let foretold = operations(&takeover.json(), "operations");
    assert!(foretold.iter().any(|operation| operation.contains(endpoint)), "{foretold:?}");
    assert!(foretold.contains(&"write IPv4 rules".to_owned()), "{foretold:?}");
    let proxy = bed.start(&[&flags[..], &["--v=4"]].concat());
    assert_eq!(written(&proxy.log().unwrap()), foretold, "{}", proxy.log().unwrap());
    bed.wait_until("nothing differs", || is_whole(&bed));
}

#[test]
fn without_a_program_diff_compares_with_the_api_server_and_writes_nothing() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    cluster.apply_service(&mk_web(bed, &[(1, 1), (2, 1)]));
    let proxy = cluster.start(1);
    bed.wait_until("nothing differs", || is_whole(bed));
    proxy.stop().unwrap();
    let config = format!("--config={}", cluster.configuration().display());
    let flags = ["diff", "-o", "json", "--", &config, "--hostname-override=node1"];
    let whole = run(bed, &flags);
    assert_eq!(whole.code, 0, "{whole:?}");
    assert_eq!((&whole.json()["kind"], &whole.json()["whole"]), (&"Diff".into(), &true.into()));
    // A sysctl that a start sets is a difference as well.
    bed.node().set_sysctl("net/ipv4/vs/conntrack", "0").unwrap();
    let of_sysctl = operations(&run(bed, &flags).json(), "differences");
    assert!(of_sysctl.contains(&"set net.ipv4.vs.conntrack to 1".to_owned()), "{of_sysctl:?}");
    let takeover = run(bed, &[&["diff", "--with=kube-proxy"], &flags[1..]].concat());
    let of_sysctl = operations(&takeover.json(), "operations");
    assert!(of_sysctl.contains(&"set net.ipv4.vs.conntrack to 1".to_owned()), "{of_sysctl:?}");
    bed.node().set_sysctl("net/ipv4/vs/conntrack", "1").unwrap();
    // The cluster changes, and so does the kernel, while no program runs.
    cluster.apply_service(&mk_web(bed, &[(1, 1), (2, 2)]));
    bed.tool("ipset", &["del", "KUBE-CLUSTER-IP", "10.96.0.10,tcp:80"]);
    let before = (bed.virtual_servers(), bed.entries(), bed.bound(), bed.rules("iptables"));
    let diff = run(bed, &flags);
    assert_eq!(diff.code, 1, "{diff:?}");
    let answer = diff.json();
    let lines = answer["differences"].as_array().unwrap();
    let of = |kind: &str, object: &str| {
        let mut found = lines.iter().filter(|it| it["kind"] == kind);
        found.any(|it| it["object"].as_str().unwrap().contains(object))
    };
    assert!(of("missing", "entry 10.96.0.10,tcp:80 of set KUBE-CLUSTER-IP"), "{answer:#}");
    assert!(of("missing", "real server 10.244.2.12:8080 of TCP 10.96.0.10:80"), "{answer:#}");
    assert!(lines.iter().all(|it| it["state"] == "atStart"), "{answer:#}");
    let after = (bed.virtual_servers(), bed.entries(), bed.bound(), bed.rules("iptables"));
    assert_eq!(after, before, "nothing is written");
    let refused = run(bed, &["diff", "--", "--kubeconfig=/nowhere"]);
    assert!(refused.code != 0 && refused.err.contains("/nowhere"), "{refused:?}");
}

#[test]
fn what_a_takeover_from_kube_proxy_changes_is_what_it_then_writes() {
    let bed = Bed::new();
    be_kube_proxy(bed.node());
    bed.manifests.apply(&service(&bed)).unwrap();
    let manifests = format!("--manifests={}", bed.manifests.path().display());
    let local = "--cluster-cidr=10.244.0.0/16";
    let flags = ["diff", "--with=kube-proxy", "-o", "json", "--", &manifests, local];
    let takeover = run(&bed, &[&flags[..], &["--hostname-override=node1"]].concat());
    assert_eq!(takeover.code, 1, "{takeover:?}");
    let foretold = operations(&takeover.json(), "operations");
    // What kube-proxy has left of a Service that is gone, and its rules.
    assert!(foretold.iter().any(|it| it.contains("10.96.0.99")), "{foretold:#?}");
    assert!(foretold.contains(&"write IPv4 rules".to_owned()), "{foretold:#?}");
    let proxy = bed.start(&[local, "--v=4"]);
    assert_eq!(written(&proxy.log().unwrap()), foretold, "{}", proxy.log().unwrap());
    proxy.stop().unwrap();
}
