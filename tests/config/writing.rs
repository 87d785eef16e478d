//! Configuration as it is written and served, which is the one that holds.

use config::read::read;
use serde_json::json;

use crate::{file, from_file, from_flags, load};

#[test]
fn what_is_written_can_be_read_and_means_the_same() {
    let configuration = from_flags(&[
        "--proxy-mode=ipvs",
        "--hostname-override=node1",
        "--cluster-cidr=10.244.0.0/16,fd00:244::/32",
        "--feature-gates=AllowServiceExternalIPs=false",
        "--kube-api-qps=0.1",
        "--nodeport-addresses=primary",
        "--masquerade-all",
        "--iptables-sync-period=7s",
        "--vmodule=a=1",
        "--drain-deadline=90s",
        "--manifests=/manifests",
    ]);
    let text = configuration.to_yaml().unwrap();
    let file = file(&text);
    let again = load(&["--config", file.path().to_str().unwrap()]).unwrap();
    assert_eq!(again.document, configuration.document, "{text}");
    assert_eq!(again.own, configuration.own, "{text}");
    assert_eq!(again.settings, configuration.settings);
    assert_eq!(again.pace, configuration.pace);
    assert_eq!(again.to_yaml().unwrap(), text);
    let documents = read(&text).unwrap();
    assert!(documents.notes.is_empty(), "{:?}", documents.notes);
    // Only the mode's own periods are there.
    for line in ["mode: ipvs", "detectLocalMode: ClusterCIDR", "qps: 0.1", "drainDeadline: 1m30s"] {
        assert!(text.lines().any(|written| written.trim() == line), "{line}: {text}");
    }
    assert_eq!(documents.kube_proxy.iptables.sync_period.as_nanos(), 0);
    assert_eq!(documents.kube_proxy.nftables.min_sync_period.as_nanos(), 0);
    assert!(documents.kube_proxy.iptables.masquerade_all);
}

#[test]
fn what_is_served_is_kube_proxys_document() {
    let served = from_file("clientConnection: {qps: 7}\n", &[]).to_configz().unwrap();
    let document = &served["kubeproxy.config.k8s.io"];
    assert_eq!(document["apiVersion"], "kubeproxy.config.k8s.io/v1alpha1");
    assert_eq!(document["kind"], "KubeProxyConfiguration");
    assert_eq!(document["ipvs"]["syncPeriod"], "30s");
    assert_eq!(document["ipvs"]["minSyncPeriod"], "0s");
    assert_eq!(document["iptables"]["syncPeriod"], "0s");
    assert_eq!(document["conntrack"]["tcpEstablishedTimeout"], "24h0m0s");
    assert_eq!(document["clientConnection"]["qps"], json!(7));
    assert_eq!(document["nodePortAddresses"], json!(null));
    assert_eq!(document["logging"]["flushFrequency"], "5s");
    assert_eq!(document["featureGates"], json!(null), "left out where it is empty");
    assert_eq!(served["kube-ipvs.io"]["drainDeadline"], "15m0s");
}

#[test]
fn flags_have_their_values() {
    let configuration =
        from_flags(&["--ipvs_scheduler=sh", "--masquerade-all", "--ipvs-exclude-cidrs=10.0.0.0/8"]);
    let value = |name: &str| {
        let found = configuration.flags.iter().find(|(flag, _)| *flag == name);
        found.unwrap_or_else(|| panic!("{name}")).1.clone()
    };
    for (name, wanted) in [
        ("ipvs-scheduler", "sh"),
        ("masquerade-all", "true"),
        ("ipvs-exclude-cidrs", "10.0.0.0/8"),
        ("ipvs-strict-arp", "false"),
        ("ipvs-sync-period", "30s"),
        ("ipvs-min-sync-period", "1s"),
        ("conntrack-tcp-timeout-established", "24h0m0s"),
        ("healthz-bind-address", "0.0.0.0:10256"),
        ("drain-deadline", "15m0s"),
        ("cleanup-other-modes", "true"),
        ("console-socket", "/run/kube-ipvs/console.sock"),
        ("config", ""),
        ("v", "0"),
    ] {
        assert_eq!(value(name), wanted, "{name}");
    }
    assert!(configuration.flags.is_sorted());
}
