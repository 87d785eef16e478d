//! `kube-ipvs diff` and `kube-ipvs plan`, beside what the program then writes.

use bed::addresses::{POD_RANGE_IPV4, POD_RANGE_IPV6};
use serde_json::Value;

use super::run;
use crate::fixture::{Bed, ip, web};

/// Operations of an answer, in order.
fn operations(answer: &Value, field: &str) -> Vec<String> {
    let lines = answer[field].as_array().unwrap().iter();
    let mut operations: Vec<String> =
        lines.map(|line| line["operation"].as_str().unwrap().to_owned()).collect();
    operations.sort();
    operations
}

/// Operations that a log has, in order: at verbosity 4, there is a line for each.
fn written(log: &str) -> Vec<String> {
    let verbs = ["add ", "change ", "create ", "remove ", "drain ", "write ", "insert ", "delete "];
    let lines = log.lines().filter_map(|line| line.split_once("writer: ").map(|(_, text)| text));
    let operations = lines.filter(|text| verbs.iter().any(|verb| text.starts_with(verb)));
    let mut operations: Vec<String> = operations.map(str::to_owned).collect();
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
    bed.tool("ipset", &["del", "KUBE-CLUSTER-IP", "10.96.0.10,tcp:80"]);
    bed.tool("ipset", &["add", "KUBE-CLUSTER-IP", "10.96.0.77,tcp:80"]);
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
    assert_eq!(written(&proxy.log().unwrap()), foretold, "{}", proxy.log().unwrap());
    bed.wait_until("nothing differs", || is_whole(&bed));
    let takeover = run(&bed, &[&before[..], &["--hostname-override=node1"]].concat());
    assert_eq!(takeover.code, 0, "{takeover:?}");
}

#[test]
fn what_plan_says_of_a_manifest_is_what_applying_it_writes() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let proxy = bed.start(&["--v=4"]);
    let mut changed = web([bed.pod(1, 1), bed.pod(2, 1)]);
    changed.external = vec![ip("198.51.100.9")];
    let file = format!("{}-plan.yaml", bed.manifests.path().display());
    std::fs::write(&file, changed.to_yaml()).unwrap();
    let before = (bed.virtual_servers(), bed.entries(), bed.bound());
    let planned = run(&bed, &["plan", "-o", "json", "-f", &file]);
    assert_eq!(planned.code, 0, "{planned:?}");
    let foretold = operations(&planned.json(), "operations");
    assert!(
        foretold.contains(&"add address 198.51.100.9 to kube-ipvs0".to_owned()),
        "{foretold:?}"
    );
    assert_eq!((bed.virtual_servers(), bed.entries(), bed.bound()), before, "nothing is written");
    // Without the running program, the present state is that of the folder.
    let manifests = format!("--manifests={}", bed.manifests.path().display());
    let flags = ["--", &manifests, "--hostname-override=node1"];
    let words = [&["plan", "-o", "json", "-f", &file][..], &flags].concat();
    assert_eq!(operations(&run(&bed, &words).json(), "operations"), foretold);
    let begin = written(&proxy.log().unwrap()).len();
    bed.manifests.apply(&changed).unwrap();
    bed.wait_until("all of it is written", || {
        written(&proxy.log().unwrap()).len() >= begin + foretold.len()
    });
    let log = proxy.log().unwrap();
    let (_, after) = log.split_once("in sync with the kernel").unwrap();
    assert_eq!(written(after), foretold, "{log}");
    let gone = run(&bed, &["plan", "--delete", "-f", &file]);
    assert!(gone.code == 0 && gone.out.contains("address 198.51.100.9 on kube-ipvs0"), "{gone:?}");
    let missing = run(&bed, &["plan", "-f", "/nowhere.yaml"]);
    assert!(missing.code == 2 && missing.err.contains("/nowhere.yaml"), "{missing:?}");
    std::fs::write(&file, "kind: [").unwrap();
    let wrong = run(&bed, &["plan", "-f", &file]);
    assert!(wrong.code == 2 && wrong.err.contains(&file), "{wrong:?}");
    proxy.stop().unwrap();
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
