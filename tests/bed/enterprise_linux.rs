//! A host with the modules of RHEL 10's package `kernel-modules-core` alone, and without iptables, ipset and nft.
//!
//! Nothing in the guest has loaded the others yet: these tests have a guest of their own.

use std::fs;
use std::path::{Path, PathBuf};

use bed::{Protocol, Service, program};

use crate::fixture::{Bed, TARGET, assert_shares, ip, load_once};
use crate::lacking::Aside;

/// Beginnings of modules' paths that are in `kernel-modules-extra` (`def_variants.yaml.rhel` of the kernel's package, as
/// in github.com/xcp-ng-rpms/kernel): first match wins there, and all else of these folders is in
/// `kernel-modules-core`. Its `net/sctp/` is left, since servers of these tests listen on SCTP.
const EXTRA: [&str; 8] = [
    "net/netfilter/ipset/",
    "net/netfilter/nft_compat",
    "net/netfilter/xt_",
    "net/bridge/br_netfilter",
    "net/ipv4/netfilter/ip_",
    "net/ipv4/netfilter/ipt_",
    "net/ipv4/netfilter/arp",
    "net/ipv6/netfilter/ip6",
];
/// Programs that are not there either.
const PROGRAMS: [&str; 4] = ["xtables-nft-multi", "xtables-legacy-multi", "ipset", "nft"];

/// Takes all of it off the disk.
fn be_enterprise_linux() -> Vec<Aside> {
    let loaded = fs::read_to_string("/proc/modules").unwrap();
    assert!(!loaded.contains("ip_set") && !loaded.contains("nft_compat"), "{loaded}");
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let modules = PathBuf::from(format!("/lib/modules/{}/kernel", release.trim()));
    let mut paths = Vec::new();
    for folder in [
        "net/netfilter",
        "net/netfilter/ipset",
        "net/bridge",
        "net/ipv4/netfilter",
        "net/ipv6/netfilter",
    ] {
        let found = fs::read_dir(modules.join(folder)).unwrap();
        paths.extend(found.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()));
    }
    let is_extra = |path: &PathBuf| {
        let place = path.strip_prefix(&modules).unwrap().to_str().unwrap();
        EXTRA.iter().any(|extra| place.starts_with(extra))
    };
    paths.retain(is_extra);
    assert!(paths.len() > 50, "{paths:?}");
    let programs = PROGRAMS.map(|name| Path::new("/usr/sbin").join(name));
    paths.extend(programs.into_iter().filter(|path| path.exists()));
    load_once(&["sctp", "nf_conntrack"]);
    paths.iter().map(|path| Aside::of(path)).collect()
}

#[test]
fn a_node_without_extra_modules_and_programs_serves_in_ipvs_mode() {
    let _aside = be_enterprise_linux();
    let bed = Bed::new();
    let mut service =
        Service::new("web", ip("10.96.0.10")).node_port(Protocol::Tcp, 80, TARGET, 30_080);
    service.cluster.push(ip("fd00:96::10"));
    service.external = vec![ip("198.51.100.10")];
    bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let mut local = Service::new("local", ip("10.96.0.11")).port(Protocol::Udp, 53, TARGET);
    local.load_balancer = vec![ip("203.0.113.11")];
    local.more = vec!["externalTrafficPolicy: Local".to_owned()];
    bed.manifests.apply(&local.pods([bed.pod(1, 2), bed.pod(2, 2)])).unwrap();
    let empty = Service::new("empty", ip("10.96.0.12")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&empty).unwrap();

    let ask = || {
        for address in ["10.96.0.10", "fd00:96::10", "198.51.100.10"] {
            for from in [bed.client(), bed.node()] {
                let tally = bed.ask(from, Protocol::Tcp, (ip(address), 80), 4);
                assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
            }
        }
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("192.168.0.11"), 30_080), 4);
        assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
        let tally = bed.ask(bed.client(), Protocol::Udp, (ip("203.0.113.11"), 53), 2);
        assert_shares(&tally, &[("pod1-2", 2)]);
        let refused = bed::ask(bed.client(), bed::Question::tcp((ip("10.96.0.12"), 80)));
        assert!(matches!(refused, Err(bed::Refusal::Refused)), "{refused:?}");
    };
    // What no file and no flag says: the mode, and the form of the rules.
    let proxy = bed.start(&["--cluster-cidr", "10.244.0.0/16,fd00:244::/32"]);
    ask();
    let kube_ipvs = program().to_string_lossy().into_owned();
    let sets = bed.tool(&kube_ipvs, &["sets", "KUBE-CLUSTER-IP"]);
    assert!(sets.contains("# by nftables") && sets.contains("10.96.0.10,tcp:80"), "{sets}");
    let checked = bed.node().command(&kube_ipvs, &["preflight"]).unwrap();
    assert!(checked.contains("this host can serve in mode ipvs"), "{checked}");
    drop(proxy);
    ask();
    let proxy = bed.start(&["--cluster-cidr", "10.244.0.0/16,fd00:244::/32", "-v=4"]);
    bed.wait_until("no program has run", || {
        proxy.log().unwrap().contains("programs run so far: 0,")
    });
    let log = proxy.log().unwrap();
    assert!(log.contains("first comparison with the kernel changes=0"), "{log}");
    ask();
}
