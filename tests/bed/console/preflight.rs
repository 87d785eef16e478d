//! `kube-ipvs preflight`.

use super::{Said, run};
use crate::fixture::{Bed, web};

fn found(said: &Said, name: &str) -> Vec<(String, String)> {
    let json = said.json();
    let checks = json["checks"].as_array().unwrap().iter().filter(|check| check["name"] == name);
    let words = checks.map(|check| {
        let word = |field: &str| check[field].as_str().unwrap().to_owned();
        (word("state"), word("found"))
    });
    words.collect()
}

/// Rules and chains of ours, virtual servers and interfaces. Tables without rules come with a look.
fn state(bed: &Bed) -> [String; 3] {
    let rules = bed.rules("iptables");
    let rules = rules.lines().filter(|line| line.starts_with("-A") || line.starts_with(":KUBE"));
    let rules: Vec<&str> = rules.collect();
    // A bridge comes up some time after its ports.
    let links = bed.tool("ip", &["-br", "link"]);
    let links: Vec<&str> = links.lines().filter_map(|it| it.split_whitespace().next()).collect();
    [rules.join("\n"), bed.virtual_servers(), links.join(" ")]
}

#[test]
fn a_host_is_checked_before_the_program_runs_and_is_left_as_it_was() {
    let bed = Bed::new();
    let before = state(&bed);
    let preflight = run(&bed, &["preflight", "-o", "json"]);
    assert_eq!(preflight.code, 0, "{preflight:?}");
    let answer = preflight.json();
    assert_eq!((&answer["kind"], &answer["mode"]), (&"Preflight".into(), &"ipvs".into()));
    for name in
        ["privileges", "IPVS", "scheduler", "ipset", "interface", "iptables", "state of IPVS"]
    {
        let states: Vec<String> = found(&preflight, name).into_iter().map(|it| it.0).collect();
        assert_eq!(states, ["ok"], "{name}: {preflight:?}");
    }
    let idle = found(&preflight, "idle connections");
    assert!(idle[0].0 == "warning" && idle[0].1.contains("900 s"), "{idle:?}");
    assert_eq!(before, state(&bed));
    let text = run(&bed, &["preflight"]);
    assert!(text.out.contains("this host can serve in IPVS mode"), "{text:?}");
    // A scheduler that no kernel has.
    let file = std::env::temp_dir().join("preflight.conf");
    let document = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                    mode: ipvs\nipvs: {scheduler: nosuch}\n";
    std::fs::write(&file, document).unwrap();
    let failed = run(&bed, &["preflight", "--config", file.to_str().unwrap()]);
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(
        failed.out.contains("the kernel does not have the IPVS scheduler nosuch"),
        "{failed:?}"
    );
}

#[test]
fn what_a_takeover_would_meet_is_counted() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&[]);
    bed.tool("iptables", &["-P", "FORWARD", "DROP"]);
    bed.tool("iptables", &["-N", "KUBE-OF-OTHERS"]);
    let running = run(&bed, &["preflight", "-o", "json"]);
    assert!(running.json()["configuration"].as_str().unwrap().contains("running"), "{running:?}");
    let virtual_servers = bed.virtual_servers().lines().filter(|it| it.starts_with("TCP")).count();
    let state = found(&running, "state of IPVS");
    let expected = format!("{virtual_servers} virtual servers");
    assert!(state[0].0 == "note" && state[0].1.contains(&expected), "{state:?}");
    let policy = found(&running, "FORWARD policy");
    assert!(policy.iter().any(|it| it.0 == "note" && it.1.contains("DROP")), "{policy:?}");
    let foreign = found(&running, "other KUBE- chains");
    assert!(foreign.iter().any(|it| it.1.contains("KUBE-OF-OTHERS")), "{foreign:?}");
    let iptables = run(&bed, &["preflight", "--mode", "iptables", "-o", "json"]);
    let policy = found(&iptables, "FORWARD policy");
    assert!(policy.iter().any(|it| it.0 == "warning"), "{policy:?}");
    proxy.stop().unwrap();
}
