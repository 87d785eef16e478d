//! A host of RHEL 10: without the modules of `kernel-modules-extra`, and without iptables, ipset and nft.
//!
//! `cargo xtask test` makes one of a guest. The flows that need the form of nf_tables alone run there, too.

use std::path::Path;

use bed::{ClusterSpec, PodCables, Protocol, Service, program};
use kernel::nftables;
use plan::model::Family;
use plan::rule_set::nft;

use crate::fixture::{Bed, TARGET, assert_shares, ip, web};
use crate::tenures::switch;

const PODS: [&str; 2] = ["--cluster-cidr", "10.244.0.0/16,fd00:244::/32"];

#[test]
fn a_node_without_extra_modules_and_programs_serves_in_ipvs_mode() {
    // A bridge, too, though its pods could not ask one another.
    let bed = Bed::with(&ClusterSpec { pod_cables: PodCables::Bridge, ..ClusterSpec::default() });
    for missing in ["iptables", "ipset", "nft"] {
        assert!(!Path::new("/usr/sbin").join(missing).exists(), "{missing}");
    }
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
    let proxy = bed.start(&PODS);
    ask();
    let kube_ipvs = program().to_string_lossy().into_owned();
    let sets = bed.tool(&kube_ipvs, &["sets", "KUBE-CLUSTER-IP"]);
    assert!(sets.contains("# by nftables") && sets.contains("10.96.0.10,tcp:80"), "{sets}");
    let checked = bed.node().command(&kube_ipvs, &["preflight"]).unwrap();
    assert!(checked.contains("this host can serve in IPVS mode"), "{checked}");
    drop(proxy);
    ask();
    let proxy = bed.start(&[&PODS[..], &["-v=4"]].concat());
    bed.wait_until("no program has run", || {
        proxy.log().unwrap().contains("programs run so far: 0,")
    });
    let log = proxy.log().unwrap();
    assert!(log.contains("first comparison with the kernel changes=0"), "{log}");
    ask();
}

#[test]
fn drift_is_repaired_where_no_program_could_show_it() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let ask = || {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 4);
        assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
    };
    let proxy = bed.start(
        &[&PODS[..], &["--ipvs-sync-period=5s", "--rule-backend=nftables", "-v=4"]].concat(),
    );
    bed.wait_until("no program has run", || {
        proxy.log().unwrap().contains("programs run so far: 0,")
    });
    // Where the kernel has owners of tables, it refuses this.
    let removed = bed.node().enter(|| nftables::remove_table(Family::V4, nft::TABLE)).unwrap();
    if let Err(refused) = removed {
        assert!(refused.to_string().contains("Operation not permitted"), "{refused}");
    }
    bed.tool("ipvsadm", &["-C"]);
    bed.wait_until("virtual servers are back", || bed.virtual_servers().contains("10.96.0.10:80"));
    ask();
    drop(proxy);
    for family in Family::BOTH {
        bed.node().enter(|| nftables::remove_own_chains(family)).unwrap().unwrap();
    }
    bed.tool("ip", &["address", "flush", "dev", "kube-ipvs0"]);
    let _proxy = bed.start(&PODS);
    ask();
}

#[test]
fn a_switch_to_a_mode_that_the_host_cannot_have_is_refused_with_what_it_lacks() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let _proxy = bed.start(&PODS);
    for mode in ["iptables", "userspace"] {
        let refused = format!("{:#}", switch(&bed, &["--to", mode]).unwrap_err());
        println!("{refused}");
        let said = format!("this node stays in IPVS mode, and cannot switch to {mode} mode: ");
        assert!(refused.contains(&said) && refused.contains("iptables"), "{refused}");
        assert_shares(
            &bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 2),
            &[("pod1-1", 2)],
        );
    }
}
