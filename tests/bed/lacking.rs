//! A node that lacks something: IPVS, whose modules are not on the disk, or the iptables programs. What
//! becomes of it when it has IPVS again.
//!
//! Nothing in the guest has loaded IPVS yet: these tests have a guest of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bed::{Namespace, Protocol, Proxy, eventually};

use crate::cluster::{Cluster, get};
use crate::fixture::{Bed, assert_shares, ip, web};
use crate::tenures::{
    assert_ipvs_took_over, assert_is_rejected, has_dummy, mk_connection, wait_for_mode,
};

/// Time in which what the host can do is looked at again: the least that can be configured, and the
/// time that it takes under emulation.
const AGAIN: Duration = Duration::from_secs(40);
/// Programs that all names of iptables lead to.
const IPTABLES: [&str; 2] = ["/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi"];

/// Something on the disk that cannot be found as long as this lives.
struct Aside(PathBuf);

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

/// Waits until no namespace uses IPVS any more, which a namespace that is being removed does. Its closed
/// connections keep it for a minute (`TCP_TIMEWAIT_LEN` of include/net/tcp.h), orphaned ones longer.
fn unload_ipvs() {
    eventually(Duration::from_secs(180), "IPVS to be unloaded", || {
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
    let cluster = Cluster::in_mode("auto", "fallbackRetry: 10s\n");
    let bed = &cluster.bed;
    let aside = Aside::ipvs();
    let proxy = cluster.start(1);

    for target in ["10.96.0.10", "fd00:96::10"] {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(target), 80), 4);
        assert_shares(&tally, &[("pod1-1", 4)]);
    }
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("192.168.0.11"), 30_080), 2);
    assert_shares(&tally, &[("pod1-1", 2)]);
    assert!(bed.rules("iptables").contains("-A KUBE-SVC-"), "{}", bed.rules("iptables"));
    assert!(!has_dummy(bed) && !has_ipvs());

    let why = "this host does not support IPVS mode; falling back to iptables mode: IPVS is not \
               available in this kernel";
    let log = proxy.log().unwrap();
    assert!(log.contains(why) && log.contains("modprobe ip_vs"), "{log}");
    let metrics = get(bed.node(), "127.0.0.1:10249", "/metrics").unwrap();
    let metric = "kube_ipvs_mode{configured=\"auto\",effective=\"iptables\"} 1";
    assert!(metrics.contains(metric), "{metrics}");
    let mode = get(bed.node(), "127.0.0.1:10249", "/proxyMode").unwrap();
    assert!(mode.ends_with("\r\n\r\niptables"), "{mode}");
    let event = cluster.event("ModeFallback");
    assert_eq!(event["type"], "Warning", "{event}");
    assert!(event["note"].as_str().unwrap().starts_with(why), "{event}");

    drop(aside);
    proxy
        .wait_for_log("this host now supports IPVS mode, and serves in iptables mode", AGAIN)
        .unwrap();
    event_about_return(&cluster);
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 2);
    assert_shares(&tally, &[("pod1-1", 2)]);
    assert!(!has_dummy(bed), "a look left its mark");
    proxy.stop().unwrap();
    drop(cluster);
    unload_ipvs();
}

#[test]
fn with_a_fallback_mode_ipvs_is_asked_for_and_mode_iptables_serves() {
    let cluster = Cluster::in_mode("ipvs", "fallback: iptables\n");
    let bed = &cluster.bed;
    let _aside = Aside::ipvs();
    let proxy = cluster.start(1);
    wait_for_mode(bed, &proxy, "iptables");
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 2);
    assert_shares(&tally, &[("pod1-1", 2)]);
    let metrics = get(bed.node(), "127.0.0.1:10249", "/metrics").unwrap();
    let metric = "kube_ipvs_mode{configured=\"ipvs\",effective=\"iptables\"} 1";
    assert!(metrics.contains(metric), "{metrics}");
    cluster.event("ModeFallback");
    proxy.stop().unwrap();
}

#[test]
fn with_fallback_return_switch_the_process_goes_on_in_mode_ipvs_once_the_host_has_it() {
    let cluster = Cluster::in_mode("auto", "fallbackRetry: 10s\nfallbackReturn: switch\n");
    let bed = &cluster.bed;
    let aside = Aside::ipvs();
    let mut proxy = cluster.start(1);
    let process = proxy.process();
    wait_for_mode(bed, &proxy, "iptables");
    let mut of_rules = mk_connection(bed);

    drop(aside);
    wait_for_mode(bed, &proxy, "ipvs");
    event_about_return(&cluster);
    assert_ipvs_took_over(bed, &mut of_rules);
    let switched = cluster.event("ModeSwitched");
    let note = switched["note"].as_str().unwrap();
    assert_eq!(note, "this node serves in IPVS mode, and nothing of iptables mode is left");
    assert_eq!(proxy.process(), process);
    proxy.stop().unwrap();
    drop(cluster);
    unload_ipvs();
}

#[test]
fn a_node_that_cannot_return_after_all_stays_in_the_mode_that_it_fell_back_to() {
    let own = "fallbackRetry: 10s\nfallbackReturn: switch\nserviceRoutes: [192.168.0.0/16]\n";
    let cluster = Cluster::in_mode("auto", own);
    let bed = &cluster.bed;
    let aside = Aside::ipvs();
    let mut proxy = cluster.start(1);
    let process = proxy.process();
    let mut of_rules = mk_connection(bed);

    // The host has all of IPVS then. That the routes are around the node's own network, no look finds.
    drop(aside);
    proxy.wait_for_log("rolling back to iptables mode", AGAIN).unwrap();
    cluster.event("ModeSwitchFailed");
    wait_for_mode(bed, &proxy, "iptables");
    of_rules.say().unwrap();
    mk_connection(bed);
    std::thread::sleep(Duration::from_secs(15));
    assert_eq!(proxy.log().unwrap().matches("rolling back to iptables mode").count(), 1);
    assert!(!has_dummy(bed));
    assert_eq!(proxy.process(), process);
    proxy.stop().unwrap();
    drop(cluster);
    unload_ipvs();
}

#[test]
fn a_mode_that_the_host_lacks_changes_nothing_and_is_taken_on_once_the_host_has_it() {
    let cluster = Cluster::in_mode("iptables", "");
    let bed = &cluster.bed;
    let mut proxy = cluster.start(1);
    let process = proxy.process();
    let mut of_rules = mk_connection(bed);
    let before = ["iptables", "ip6tables"].map(|family| bed.rules(family));

    let aside = Aside::ipvs();
    cluster.configure("mode: iptables", "mode: ipvs");
    let failed = cluster.event("ModeSwitchFailed");
    let note = failed["note"].as_str().unwrap();
    let why = "this node stays in iptables mode instead of switching to IPVS mode: this host does not support";
    assert!(failed["type"] == "Warning" && note.starts_with(why), "{failed}");
    assert_is_rejected(bed);
    // The second check finds the same, and is not reported.
    std::thread::sleep(Duration::from_secs(15));
    assert_is_rejected(bed);
    wait_for_mode(bed, &proxy, "iptables");
    assert_eq!(["iptables", "ip6tables"].map(|family| bed.rules(family)), before);
    assert!(!has_dummy(bed) && !has_ipvs());
    of_rules.say().unwrap();
    mk_connection(bed);

    drop(aside);
    wait_for_mode(bed, &proxy, "ipvs");
    assert_ipvs_took_over(bed, &mut of_rules);
    assert_eq!(proxy.process(), process);
    let events = cluster.api.events();
    let n_failed = events.iter().filter(|event| event["reason"] == "ModeSwitchFailed").count();
    assert_eq!(n_failed, 1, "{events:?}");
    proxy.stop().unwrap();
    drop(cluster);
    unload_ipvs();
}

fn event_about_return(cluster: &Cluster) {
    let event = cluster.event("ModeAvailable");
    assert_eq!(event["type"], "Normal", "{event}");
    assert!(event["note"].as_str().unwrap().contains("now supports IPVS mode"), "{event}");
}

#[test]
fn without_ipvs_and_without_a_fallback_it_says_so_and_how_to_get_it() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let _aside = Aside::ipvs();
    let arguments = ["--proxy-mode=ipvs"];
    let (status, log) = Proxy::run_to_its_end(bed.node(), &bed.manifests, &arguments).unwrap();
    assert!(!status.success(), "{log}");
    assert!(log.contains("IPVS is not available in this kernel"), "{log}");
    assert!(log.contains("modprobe ip_vs"), "it says what to do:\n{log}");
    assert!(!log.contains("panicked") && !log.contains("iptables is taken"), "{log}");
    assert!(!has_rules(bed.node()), "nothing of a Service is written");
}

#[test]
fn without_iptables_it_says_what_to_install_in_every_mode() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let programs = IPTABLES.map(|program| Aside::of(Path::new(program)));
    for mode in ["ipvs", "iptables", "userspace", "auto"] {
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
