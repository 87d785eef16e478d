//! Settings that do not go with the host and the Node.

use std::net::IpAddr;

use config::warnings::{Checked, Mismatch, Situation};
use ipnet::IpNet;
use plan::model::Family;

use crate::{from_file, from_flags};

const V4: &[Family] = &[Family::V4];
const V6: &[Family] = &[Family::V6];
const BOTH: &[Family] = &[Family::V4, Family::V6];

/// Node ports are chosen, so that nothing is said about them.
const CHOSEN: &str = "nodePortAddresses: [primary]\n";

fn check(text: &str, host: &[Family], node: &[&str], pods: &[&str]) -> Result<Checked, Mismatch> {
    let node: Vec<IpAddr> = node.iter().map(|address| address.parse().unwrap()).collect();
    let pods: Vec<IpNet> = pods.iter().map(|net| net.parse().unwrap()).collect();
    let situation = Situation { host, node_addresses: &node, pod_cidrs: &pods };
    from_file(text, &[]).check(situation)
}

#[test]
fn the_primary_family_comes_first() {
    for (text, node, families) in [
        ("", &[][..], BOTH),
        ("", &["192.0.2.1", "2001:db8::1"], BOTH),
        ("", &["2001:db8::1", "192.0.2.1"], &[Family::V6, Family::V4]),
        ("bindAddress: '2001:db8::2'\n", &["192.0.2.1"], &[Family::V6, Family::V4]),
        ("bindAddress: 192.0.2.9\n", &["2001:db8::1"], BOTH),
        ("bindAddress: '::'\n", &["192.0.2.1"], BOTH),
        ("bindAddress: 0.0.0.0\n", &["2001:db8::1"], &[Family::V6, Family::V4]),
    ] {
        let checked = check(&format!("{CHOSEN}{text}"), BOTH, node, &[]).unwrap();
        assert_eq!(checked, Checked { families: families.to_vec(), warnings: vec![] }, "{text}");
    }
    let single = check(CHOSEN, V6, &["2001:db8::1"], &[]).unwrap();
    assert_eq!(single.families, V6);
    let said = check(CHOSEN, V4, &["2001:db8::1"], &[]).unwrap_err().to_string();
    assert!(said.starts_with("no support for primary IP family \"IPv6\"; "), "{said}");
    assert!(said.contains("--bind-address"), "{said}");
}

#[test]
fn node_ports_should_be_limited_in_every_family() {
    const UNSET: &str = "nodePortAddresses is unset; NodePort connections will be accepted on all \
                         local IPs. Consider using `--nodeport-addresses primary`";
    const ONE_OF_TWO: &str = "cluster appears to be dual-stack but nodePortAddresses contains only \
                              IPv4 addresses; NodePort connections will be accepted on all local \
                              IPv6 IPs";
    const OTHER: &str = "cluster appears to be IPv4-primary but nodePortAddresses contains only \
                         IPv6 addresses; NodePort connections will be accepted on all local IPv4 \
                         IPs";
    for (text, pods, warning) in [
        ("", &[][..], Some(UNSET)),
        ("nodePortAddresses: [10.0.0.0/8]", &[], None),
        ("nodePortAddresses: [10.0.0.0/8, 'fd00::/8']", &["10.1.0.0/16", "fd01::/64"], None),
        ("nodePortAddresses: ['fd00::/8']", &[], Some(OTHER)),
        (
            "nodePortAddresses: [10.0.0.0/8]\nclusterCIDR: 10.0.0.0/8,fd00::/8",
            &[],
            Some(ONE_OF_TWO),
        ),
        ("nodePortAddresses: [10.0.0.0/8]", &["10.1.0.0/16", "fd01::/64"], Some(ONE_OF_TWO)),
        (
            "nodePortAddresses: [10.0.0.0/8]\nipvs: {excludeCIDRs: [1.0.0.0/8, 'fd00::/8']}",
            &[],
            Some(ONE_OF_TWO),
        ),
    ] {
        let checked = check(text, BOTH, &["192.0.2.1"], pods).unwrap();
        assert_eq!(checked.warnings, warning.into_iter().collect::<Vec<_>>(), "{text}");
    }
    assert_eq!(from_flags(&[]).primary_family(&[]), Family::V4);
}

#[test]
fn networks_of_the_wrong_family_are_told_and_sometimes_fatal() {
    let cluster = "clusterCIDRs contains only IPv6 addresses";
    let pods = "node.spec.podCIDRs contains only IPv6 addresses";
    for (text, host, pod_cidrs, problem, is_fatal) in [
        ("clusterCIDR: fd00::/64\n", BOTH, &[][..], format!("IPv4-primary but {cluster}"), false),
        ("clusterCIDR: fd00::/64\n", V4, &[], format!("IPv4-only but {cluster}"), true),
        (
            "clusterCIDR: fd00::/64\ndetectLocalMode: NodeCIDR\n",
            V4,
            &[],
            format!("IPv4-only but {cluster}"),
            false,
        ),
        (
            "detectLocalMode: NodeCIDR\n",
            BOTH,
            &["fd00::/64"],
            format!("IPv4-primary but {pods}"),
            true,
        ),
        ("detectLocalMode: NodeCIDR\n", V4, &["fd00::/64"], format!("IPv4-only but {pods}"), true),
        ("", V4, &["fd00::/64"], format!("IPv4-only but {pods}"), false),
        (
            "ipvs: {excludeCIDRs: ['fd00::/64']}\n",
            V4,
            &[],
            "IPv4-only but ipvs.excludeCIDRs contains only IPv6 addresses".to_owned(),
            false,
        ),
        (
            "healthzBindAddress: '[fd00::1]:10256'\n",
            V4,
            &[],
            "IPv4-only but healthzBindAddress is IPv6".to_owned(),
            false,
        ),
        (
            "metricsBindAddress: '[::1]:10249'\n",
            V4,
            &[],
            "IPv4-only but metricsBindAddress is IPv6".to_owned(),
            false,
        ),
    ] {
        let problem = format!("cluster is {problem}");
        match check(&format!("{CHOSEN}{text}"), host, &["192.0.2.1"], pod_cidrs) {
            Ok(checked) => {
                assert!(!is_fatal, "{text}");
                assert_eq!(checked.warnings, [problem], "{text}");
            }
            Err(error) => {
                assert!(is_fatal, "{text}: {error}");
                let said = format!("kube-proxy configuration is incorrect: {problem}; ");
                assert!(error.to_string().starts_with(&said), "{text}: {error}");
                assert!(error.to_string().contains("detectLocalMode"), "{error}");
            }
        }
    }
}

#[test]
fn what_is_of_both_families_or_of_none_goes_with_every_host() {
    for text in [
        "clusterCIDR: 10.0.0.0/8,fd00::/64\n",
        "ipvs: {excludeCIDRs: [10.0.0.0/8, 'fd00::/64']}\n",
        "healthzBindAddress: '[::]:10256'\n",
    ] {
        let checked = check(&format!("{CHOSEN}{text}"), V4, &["192.0.2.1"], &[]).unwrap();
        assert!(checked.warnings.is_empty(), "{text}: {:?}", checked.warnings);
    }
    // With both families, the wrong address to listen on is none.
    let text = format!("{CHOSEN}healthzBindAddress: '[fd00::1]:10256'\n");
    assert!(check(&text, BOTH, &["192.0.2.1"], &[]).unwrap().warnings.is_empty());
}
