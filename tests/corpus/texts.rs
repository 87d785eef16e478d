//! Texts of rules that the clusters' kube-proxy had no reason to write: other detectors, other
//! addresses for node ports, other features of the host, and many endpoints.

use std::sync::Arc;

use plan::mode::Mode;
use plan::model::Family;
use plan::settings::{LocalDetection, NodePortAddresses, Settings};

use crate::cluster::{Node, settings};
use crate::flows::objects::{ADDRESSES, cluster, endpoints, service};
use crate::saved::Saved;

fn rules(settings: &Settings, objects: &str, family: Family) -> Saved {
    Node::with(settings.clone(), &ADDRESSES, objects).rules(family)
}

/// The rules of the only chain whose name begins so.
fn of_port<'a>(saved: &'a Saved, prefix: &str) -> &'a [String] {
    let chains: Vec<_> = saved.ours().filter(|(_, chain, _)| chain.starts_with(prefix)).collect();
    assert_eq!(chains.len(), 1, "{prefix}");
    chains[0].2
}

fn local() -> String {
    cluster(&service("externalTrafficPolicy: Local"), &endpoints(&["ready"], &["ready"]))
}

#[test]
fn each_detector_has_a_match_of_its_own() {
    let networks = |nets: &[&str]| {
        LocalDetection::ClusterCidr(nets.iter().map(|net| net.parse().unwrap()).collect())
    };
    let bridge = LocalDetection::BridgeInterface(Arc::from("cbr0"));
    let prefix = LocalDetection::InterfaceNamePrefix(Arc::from("veth"));
    let to = "-d 172.30.0.41/32";
    for (detection, masquerade_all, not_local, is_local) in [
        (
            networks(&["10.128.7.7/9"]),
            false,
            Some("! -s 10.128.0.0/9 -d 172.30.0.41/32"),
            Some("-s 10.128.0.0/9 "),
        ),
        (bridge, false, Some("-d 172.30.0.41/32 ! -i cbr0"), Some("-i cbr0 ")),
        (prefix, false, Some("-d 172.30.0.41/32 ! -i veth+"), Some("-i veth+ ")),
        // Everything is local.
        (networks(&["0.0.0.0/0"]), false, None, Some("")),
        // No network of this family.
        (networks(&["fd00:10::/64"]), false, None, None),
        (LocalDetection::None, false, None, None),
        (LocalDetection::None, true, Some(to), None),
        (networks(&["10.128.0.0/9"]), true, Some(to), Some("-s 10.128.0.0/9 ")),
    ] {
        let settings =
            Settings { local_detection: detection, masquerade_all, ..settings(Mode::Iptables) };
        let saved = rules(&settings, &local(), Family::V4);
        let masquerade = not_local.map(|it| {
            format!(
                "{it} -p tcp -m comment --comment \"ns/svc:p80 cluster IP\" -m tcp --dport 80 \
                 -j KUBE-MARK-MASQ"
            )
        });
        let first = &of_port(&saved, "KUBE-SVC-")[0];
        assert_eq!(first.ends_with("-j KUBE-MARK-MASQ").then_some(first), masquerade.as_ref());
        let pods = is_local.map(|it| {
            format!("{it}-m comment --comment \"pod traffic for ns/svc:p80 external destinations\"")
        });
        let external = of_port(&saved, "KUBE-EXT-");
        let found = external.iter().find(|rule| rule.contains("pod traffic"));
        assert_eq!(found.map(|rule| rule.split(" -j ").next().unwrap()), pods.as_deref());
    }
}

#[test]
fn the_last_rules_lead_to_node_ports_at_the_chosen_addresses() {
    const NOTE: &str = "-m comment --comment \"kubernetes service nodeports; NOTE: this must be \
                        the last rule in this chain\"";
    let networks = |nets: &[&str]| {
        NodePortAddresses::Networks(nets.iter().map(|net| net.parse().unwrap()).collect())
    };
    let to_local =
        |but: &str| format!("{but}{NOTE} -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS");
    let to = |address: &str| format!("-d {address} {NOTE} -j KUBE-NODEPORTS");
    for (addresses, localhost, family, expected) in [
        (NodePortAddresses::All, true, Family::V4, vec![to_local("")]),
        (NodePortAddresses::All, false, Family::V4, vec![to_local("! -d 127.0.0.0/8 ")]),
        (NodePortAddresses::All, true, Family::V6, vec![to_local("! -d ::1/128 ")]),
        (networks(&["0.0.0.0/0"]), false, Family::V4, vec![to_local("! -d 127.0.0.0/8 ")]),
        (networks(&["192.168.0.0/24"]), true, Family::V4, vec![to("192.168.0.2/32")]),
        // No network of this family is all of them.
        (networks(&["192.168.0.0/24"]), true, Family::V6, vec![to_local("! -d ::1/128 ")]),
        (networks(&["fd00:77::/64"]), false, Family::V6, vec![to("fd00:77::15/128")]),
        (
            networks(&["192.168.0.0/24", "127.0.0.0/8"]),
            true,
            Family::V4,
            vec![to("127.0.0.1/32"), to("192.168.0.2/32")],
        ),
        (networks(&["10.0.0.0/8"]), false, Family::V4, vec![]),
    ] {
        let settings = Settings {
            node_port_addresses: addresses.clone(),
            iptables_localhost_node_ports: localhost,
            ..settings(Mode::Iptables)
        };
        let saved = rules(&settings, &local(), family);
        let last = saved.rules("nat", "KUBE-SERVICES").iter();
        let last: Vec<_> = last.filter(|rule| rule.contains("NOTE")).cloned().collect();
        assert_eq!(last, expected, "{addresses:?} {localhost} {family}");
        assert!(saved.rules("nat", "KUBE-SERVICES").ends_with(&last));
    }
}

#[test]
fn what_the_host_has_decides_on_counters_and_invalid_packets() {
    const PORT: &str = "-p tcp -m comment --comment \"ns/svc:p80\" -m tcp --dport 3001";
    let all = settings(Mode::Iptables);
    for (settings, counted, invalid, firewall) in [
        (all.clone(), true, Some("-m nfacct --nfacct-name  ct_state_invalid_dropped_pkts "), true),
        (Settings { nfacct: false, ..all.clone() }, false, Some(""), true),
        (Settings { drop_invalid: false, ..all.clone() }, true, None, true),
        (
            Settings { iptables_localhost_node_ports: false, nfacct: false, ..all.clone() },
            false,
            Some(""),
            false,
        ),
    ] {
        let saved = rules(&settings, &local(), Family::V4);
        let external = saved.ours().find(|(_, chain, _)| chain.starts_with("KUBE-EXT-")).unwrap().1;
        let from_here = format!(
            "-d 127.0.0.0/8 {PORT} -m nfacct --nfacct-name  localhost_nps_accepted_pkts \
             -j {external}"
        );
        let anyone = format!("{PORT} -j {external}");
        let expected = if counted { vec![from_here, anyone] } else { vec![anyone] };
        assert_eq!(saved.rules("nat", "KUBE-NODEPORTS"), expected);
        let drop = invalid.map(|it| format!("-m conntrack --ctstate INVALID {it}-j DROP"));
        let first = &saved.rules("filter", "KUBE-FORWARD")[0];
        assert_eq!(first.contains("INVALID").then_some(first), drop.as_ref());
        assert_eq!(!saved.rules("filter", "KUBE-FIREWALL").is_empty(), firewall);
        let health = "-p tcp -m comment --comment \"ns/svc:p80 health check node port\" \
                      -m tcp --dport 31000 -j ACCEPT";
        assert_eq!(saved.rules("filter", "KUBE-NODEPORTS"), [health]);
    }
}

#[test]
fn the_health_check_node_port_is_open_without_endpoints() {
    let objects = cluster(&service("externalTrafficPolicy: Local"), &endpoints(&[], &[]));
    let saved = rules(&settings(Mode::Iptables), &objects, Family::V4);
    assert_eq!(saved.rules("filter", "KUBE-NODEPORTS").len(), 1);
    assert!(saved.rules("nat", "KUBE-NODEPORTS").is_empty());
}

/// A slice with so many endpoints elsewhere.
fn many(n: usize) -> String {
    let states = vec!["ready"; n.min(250)];
    let slice = endpoints(&[], &states);
    let slices = (0..n.div_ceil(250)).map(|index| {
        let slice = slice.replace("name: svc-1,", &format!("name: svc-{index},"));
        slice.replace("10.128.1.", &format!("10.129.{index}."))
    });
    slices.collect::<Vec<_>>().join("---\n")
}

#[test]
fn with_more_than_a_thousand_endpoints_rules_about_them_have_no_comments() {
    for (n, has_comments) in [(1_000, true), (1_250, false)] {
        let objects = cluster(&service(""), &many(n));
        let saved = rules(&settings(Mode::Iptables), &objects, Family::V4);
        let cluster = of_port(&saved, "KUBE-SVC-");
        assert_eq!(cluster.len(), n + 1);
        // The rule that masquerades, and those of other chains, have theirs.
        assert!(cluster[0].contains("ns/svc:p80 cluster IP"));
        assert!(of_port(&saved, "KUBE-EXT-")[0].contains("masquerade traffic for ns/svc:p80"));
        let about_endpoints = saved.ours().filter(|(_, chain, _)| chain.starts_with("KUBE-SEP-"));
        let about_endpoints = about_endpoints.flat_map(|(_, _, rules)| rules);
        assert!(
            cluster[1..]
                .iter()
                .chain(about_endpoints)
                .all(|rule| { rule.contains("-m comment") == has_comments })
        );
    }
}
