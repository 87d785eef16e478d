//! A node that lacks something: IPVS, whose modules are not on the disk, or the iptables programs.
//!
//! Nothing in the guest has loaded IPVS yet: these tests have a guest of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bed::{Namespace, Protocol, Proxy, eventually};

use crate::cluster::{Cluster, get, mk_web};
use crate::fixture::{Bed, assert_shares, ip, web};

/// Time in which what the host can do is looked at again: the least that can be configured, and the
/// time that it takes under emulation.
const AGAIN: Duration = Duration::from_secs(40);
/// Programs that all names of iptables lead to.
const IPTABLES: [&str; 2] = ["/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi"];

/// Something on the disk that cannot be found as long as this lives.
struct Aside(PathBuf);

// === impl Aside ===

impl Aside {
    fn of(path: &Path) -> Self {
        let aside = Self(path.to_owned());
        fs::rename(path, aside.place()).unwrap();
        aside
    }

    /// The modules of IPVS. Neither the program nor the kernel itself can load them.
    fn ipvs() -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let modules = format!("/lib/modules/{}/kernel/net/netfilter/ipvs", release.trim());
        assert!(!has_ipvs(), "this test needs a kernel that has not loaded IPVS");
        Self::of(Path::new(&modules))
    }

    fn place(&self) -> PathBuf {
        self.0.with_extension("aside")
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        fs::rename(self.place(), &self.0).unwrap();
    }
}

fn has_ipvs() -> bool {
    fs::read_to_string("/proc/modules").unwrap().lines().any(|line| line.starts_with("ip_vs"))
}

/// Waits until no namespace uses IPVS any more, which a namespace that is being removed does.
fn unload_ipvs() {
    eventually(Duration::from_secs(60), "IPVS to be unloaded", || {
        let output = Command::new("modprobe").args(["-r", "ip_vs_rr", "ip_vs"]).output()?;
        anyhow::ensure!(!has_ipvs(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    })
    .unwrap();
}

fn has_rules(node: &Namespace) -> bool {
    let programs = ["iptables-nft-save", "iptables-legacy-save"];
    // A kind that the kernel does not have has no rules.
    programs.iter().any(|save| node.command(save, &[]).is_ok_and(|saved| saved.contains("KUBE-")))
}

#[test]
fn without_ipvs_mode_auto_serves_in_mode_iptables_says_why_and_looks_again() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    cluster.configure("mode: ipvs", "mode: auto");
    let text = fs::read_to_string(cluster.configuration()).unwrap();
    let own =
        "apiVersion: kube-ipvs.io/v1alpha1\nkind: KubeIpvsConfiguration\nfallbackRetry: 10s\n";
    fs::write(cluster.configuration(), format!("{text}---\n{own}")).unwrap();
    cluster.apply_service(&mk_web(bed, &[(1, 1)]));
    let aside = Aside::ipvs();
    let proxy = cluster.start(1);

    for target in ["10.96.0.10", "fd00:96::10"] {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(target), 80), 4);
        assert_shares(&tally, &[("pod1-1", 4)]);
    }
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("192.168.0.11"), 30_080), 2);
    assert_shares(&tally, &[("pod1-1", 2)]);
    assert!(bed.rules("iptables").contains("-A KUBE-SVC-"), "{}", bed.rules("iptables"));
    assert!(!bed.tool("ip", &["-oneline", "link"]).contains("kube-ipvs0"));
    assert!(!has_ipvs());

    let why = "this host cannot do mode ipvs, so mode iptables is taken: the kernel does not give \
               us IPVS";
    let log = proxy.log().unwrap();
    assert!(log.contains(why) && log.contains("modprobe ip_vs"), "{log}");
    let metrics = get(bed.node(), "127.0.0.1:10249", "/metrics").unwrap();
    let metric = "kube_ipvs_mode{configured=\"auto\",effective=\"iptables\"} 1";
    assert!(metrics.contains(metric), "{metrics}");
    let mode = get(bed.node(), "127.0.0.1:10249", "/proxyMode").unwrap();
    assert!(mode.ends_with("\r\n\r\niptables"), "{mode}");
    let event = event(&cluster, "ModeFallback");
    assert_eq!(event["type"], "Warning", "{event}");
    assert!(event["note"].as_str().unwrap().starts_with(why), "{event}");

    drop(aside);
    proxy
        .wait_for_log("this host can do mode ipvs now, and serves in mode iptables", AGAIN)
        .unwrap();
    event_about_return(&cluster);
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 2);
    assert_shares(&tally, &[("pod1-1", 2)]);
    assert!(!bed.tool("ip", &["-oneline", "link"]).contains("kube-ipvs0"), "a look left its mark");
    proxy.stop().unwrap();
    drop(cluster);
    unload_ipvs();
}

/// Waits for an Event about the first node.
fn event(cluster: &Cluster, reason: &str) -> serde_json::Value {
    eventually(Duration::from_secs(60), reason, || {
        let events = cluster.api.events();
        let mut named = events.iter().filter(|event| event["reason"] == reason);
        match named.find(|event| event["regarding"]["name"] == "node1") {
            Some(event) => Ok(event.clone()),
            None => anyhow::bail!("it is not among {events:?}"),
        }
    })
    .unwrap()
}

fn event_about_return(cluster: &Cluster) {
    let event = event(cluster, "ModeAvailable");
    assert_eq!(event["type"], "Normal", "{event}");
    assert!(event["note"].as_str().unwrap().contains("can do mode ipvs now"), "{event}");
}

#[test]
fn without_ipvs_and_without_a_fallback_it_says_so_and_how_to_get_it() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let _aside = Aside::ipvs();
    let arguments = ["--proxy-mode=ipvs"];
    let (status, log) = Proxy::run_to_its_end(bed.node(), &bed.manifests, &arguments).unwrap();
    assert!(!status.success(), "{log}");
    assert!(log.contains("the kernel does not give us IPVS"), "{log}");
    assert!(log.contains("modprobe ip_vs"), "it says what to do:\n{log}");
    assert!(!log.contains("panicked") && !log.contains("iptables is taken"), "{log}");
    assert!(!has_rules(bed.node()), "nothing of a Service is written");
}

#[test]
fn without_iptables_it_says_what_to_install_in_every_mode() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let programs = IPTABLES.map(|program| Aside::of(Path::new(program)));
    for mode in ["ipvs", "iptables", "auto"] {
        let arguments = [&format!("--proxy-mode={mode}")[..]];
        let (status, log) = Proxy::run_to_its_end(bed.node(), &bed.manifests, &arguments).unwrap();
        assert!(!status.success(), "{mode}:\n{log}");
        for program in ["iptables", "ip6tables"] {
            let missing = format!("{program} not found in PATH: install the package `iptables`");
            assert!(log.contains(&missing), "{mode}:\n{log}");
        }
        assert!(!log.contains("panicked"), "{mode}:\n{log}");
    }
    drop(programs);
    assert!(!has_rules(bed.node()), "nothing of a Service is written");
    // Mode ipvs was tried, which loads IPVS.
    drop(bed);
    unload_ipvs();
}
