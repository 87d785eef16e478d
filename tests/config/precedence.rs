//! Precedence of flags and file, and the meaning of flags.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use config::{Action, LogFormat};
use kernel::rules::Variant;
use kernel::sysctl::ServiceAddressesArp;
use plan::settings::{KUBELET_PORT, Listener, LocalDetection, NodePortAddresses, Settings};
use reconcile::Pace;

use crate::{from_file, from_flags, load, load_file};

#[test]
fn without_anything_all_is_as_with_kube_proxy() {
    let configuration = from_flags(&["--hostname-override", " Node1 "]);
    let listeners = vec![(10_256, Listener::Health), (KUBELET_PORT, Listener::Kubelet)];
    let expected = Settings { listeners, health_port: Some(10_256), ..Settings::new("node1") };
    assert_eq!(configuration.settings, expected);
    assert_eq!(configuration.action, Action::Run);
    assert_eq!(configuration.document.mode.to_string(), "ipvs");
    assert_eq!(configuration.document.detect_local_mode.to_string(), "ClusterCIDR");
    assert_eq!(configuration.bind_address, None);
    assert_eq!(configuration.served.healthz, "0.0.0.0:10256".parse().ok());
    assert_eq!(configuration.served.metrics, "127.0.0.1:10249".parse().unwrap());
    assert_eq!(configuration.oom_score_adj, -999);
    assert_eq!(configuration.conntrack.max_per_core, Some(32_768));
    assert_eq!(configuration.conntrack.min, 131_072);
    assert_eq!(configuration.conntrack.tcp_established, Some(Duration::from_secs(86_400)));
    assert_eq!(configuration.conntrack.tcp_close_wait, Some(Duration::from_secs(3_600)));
    assert_eq!(configuration.conntrack.udp, None);
    assert_eq!(configuration.api_server.kubeconfig, None);
    assert_eq!((configuration.api_server.qps, configuration.api_server.burst), (5.0, 10));
    assert!(configuration.cleanup_other_modes);
    assert_eq!(configuration.variant, Variant::Auto);
    assert_eq!(configuration.manifests, None);
    assert!(configuration.notes.is_empty(), "{:?}", configuration.notes);
}

#[test]
fn json_alone_is_followed_if_it_is_what_is_accepted() {
    let connection = |fields: &str| from_file(&format!("clientConnection: {{{fields}}}"), &[]);
    for (fields, expected) in [
        ("", false),
        ("contentType: application/vnd.kubernetes.protobuf", false),
        ("contentType: application/json", true),
        ("contentType: 'Application/JSON; charset=utf-8'", true),
        ("contentType: application/yaml", false),
        ("acceptContentTypes: application/json", true),
        (
            "contentType: application/json, acceptContentTypes: 'application/vnd.kubernetes.protobuf, application/json'",
            false,
        ),
    ] {
        let configuration = connection(fields);
        assert_eq!(configuration.client_options().only_json, expected, "{fields}");
        assert!(configuration.notes.is_empty(), "{:?}", configuration.notes);
    }
    let flags = from_flags(&["--kube-api-content-type=application/json"]);
    assert!(flags.client_options().only_json);
}

#[test]
fn the_periods_depend_on_where_they_come_from() {
    let second = Duration::from_secs(1);
    let pace = Pace { min_sync_period: second, ..Pace::default() };
    assert_eq!(from_flags(&[]).pace, pace);
    assert_eq!(from_flags(&["--proxy-mode=ipvs"]).pace, pace);
    for text in ["", "mode: ipvs", "ipvs: {scheduler: rr}", "iptables: {minSyncPeriod: 7s}"] {
        assert_eq!(from_file(text, &[]).pace, Pace::default(), "{text}");
    }
    let given = ["--ipvs-sync-period=5s", "--ipvs-min-sync-period=2s", "--drain-deadline=1m"];
    let given_pace =
        Pace { min_sync_period: 2 * second, sync_period: 5 * second, drain_deadline: 60 * second };
    assert_eq!(from_flags(&given).pace, given_pace);
    // Those of another mode do nothing, and it is told.
    let other = from_flags(&["--iptables-sync-period=5s", "--iptables-min-sync-period=2s"]);
    assert_eq!(other.pace, pace);
    assert_eq!(
        other.notes,
        ["iptables-sync-period", "iptables-min-sync-period"].map(|name| format!(
            "--{name} has no effect: it belongs to iptables and userspace modes"
        ))
    );
}

#[test]
fn a_file_replaces_the_flags_also_where_it_says_nothing() {
    let flags = ["--ipvs-scheduler=wlc", "--masquerade-all", "--conntrack-min=7"];
    let configuration = from_file("ipvs: {scheduler: sh}\n", &flags);
    assert_eq!(configuration.settings.scheduler.as_str(), "sh");
    assert!(!configuration.settings.masquerade_all);
    assert_eq!(configuration.conntrack.min, 131_072);
    assert_eq!(configuration.notes.len(), 1);
    let note = &configuration.notes[0];
    assert!(
        note.contains("have no effect: the file ") && note.contains("--ipvs-scheduler"),
        "{note}"
    );
    for flag in ["--masquerade-all", "--conntrack-min"] {
        assert!(note.contains(flag), "{note}");
    }
}

#[test]
fn some_flags_count_beside_a_file() {
    let configuration = from_file(
        "hostnameOverride: from-file\nlogging: {verbosity: 1, format: json}\n---\n\
         apiVersion: kube-ipvs.io/v1alpha1\nkind: KubeIpvsConfiguration\ndrainDeadline: 1m\n\
         iptablesVariant: nft\n",
        &[
            "--hostname-override=From-Flag",
            "--master=https://192.0.2.1:6443",
            "-v=5",
            "--drain-deadline=2m",
            "--manifests=/manifests",
            "--cleanup-other-modes=false",
            "--console-socket=/run/other.sock",
        ],
    );
    assert_eq!(configuration.settings.node_name.as_ref(), "from-flag");
    assert_eq!(configuration.document.hostname_override, "from-flag");
    assert_eq!(configuration.api_server.url.as_deref(), Some("https://192.0.2.1:6443"));
    assert_eq!(configuration.logging.verbosity, 5);
    assert_eq!(configuration.logging.format, LogFormat::Json);
    assert_eq!(configuration.pace.drain_deadline, Duration::from_secs(120));
    assert_eq!(configuration.variant, Variant::Nft);
    assert_eq!(configuration.manifests, Some(PathBuf::from("/manifests")));
    assert!(!configuration.cleanup_other_modes);
    assert_eq!(configuration.console_socket, "/run/other.sock");
    assert!(configuration.notes.is_empty(), "{:?}", configuration.notes);
    assert_eq!(
        from_file("hostnameOverride: ' From-File '\n", &[]).settings.node_name.as_ref(),
        "from-file"
    );
}

#[test]
fn of_vmodule_the_flags_come_first() {
    let text = "logging: {vmodule: [{filePattern: file, verbosity: 1}]}\n";
    let configuration = from_file(text, &["--vmodule=a=2,b=3"]);
    let patterns: Vec<&str> =
        configuration.document.logging.vmodule.iter().map(|i| i.file_pattern.as_str()).collect();
    assert_eq!(patterns, ["a", "b", "file"]);
    assert!(configuration.notes.iter().any(|note| note.contains("vmodule")));
    assert!(from_file(text, &[]).notes[0].contains("logging.vmodule has no effect"));
}

#[test]
fn a_name_of_nothing_but_spaces_is_refused() {
    let said = load(&["--hostname-override", "  "]).unwrap_err().to_string();
    assert_eq!(said, "failed complete: empty hostname-override is invalid");
    // An empty one is none.
    assert!(!from_flags(&["--hostname-override="]).settings.node_name.is_empty());
    assert!(!from_file("hostnameOverride: '  '\n", &[]).settings.node_name.is_empty());
}

#[test]
fn the_ports_of_old_complete_addresses_without_one() {
    for (words, healthz, metrics) in [
        (&["--healthz-port=1", "--metrics-port=2"][..], "0.0.0.0:10256", "127.0.0.1:10249"),
        (&["--healthz-bind-address=1.2.3.4", "--healthz-port=1"], "1.2.3.4:1", "127.0.0.1:10249"),
        (&["--healthz-bind-address=::1"], "[::1]:10256", "127.0.0.1:10249"),
        (&["--metrics-bind-address=1.2.3.4", "--metrics-port=2"], "0.0.0.0:10256", "1.2.3.4:2"),
        (&["--metrics-bind-address=[::1]:5", "--metrics-port=2"], "0.0.0.0:10256", "[::1]:5"),
        // An empty one is none.
        (
            &["--healthz-bind-address=", "--metrics-bind-address="],
            "0.0.0.0:10256",
            "127.0.0.1:10249",
        ),
        // The defaults are of IPv4 before it is known that the node is not.
        (&["--bind-address=::1"], "0.0.0.0:10256", "127.0.0.1:10249"),
    ] {
        let configuration = from_flags(words);
        assert_eq!(configuration.served.healthz, healthz.parse().ok(), "{words:?}");
        assert_eq!(configuration.served.metrics, metrics.parse().unwrap(), "{words:?}");
    }
    assert_eq!(from_flags(&["--healthz-port=0"]).served.healthz, None);
    let said = load(&["--metrics-port=0"]).unwrap_err().to_string();
    assert!(said.contains("MetricsBindAddress: Invalid value: \"\": must be IP:port"), "{said}");
    let said = load(&["--healthz-bind-address=1.2.3.4", "--healthz-port=70000"]).unwrap_err();
    assert!(said.to_string().contains("must be a valid port"), "{said}");
}

#[test]
fn every_setting_arrives() {
    let flags = from_flags(&[
        "--bind-address=2001:db8::1",
        "--cluster-cidr=10.244.0.0/16,fd00:244::/32",
        "--ipvs-scheduler=mh",
        "--ipvs-exclude-cidrs=172.30.0.0/16,fd00::/8",
        "--ipvs-exclude-cidrs=172.31.0.0/16",
        "--ipvs-strict-arp",
        "--ipvs-tcp-timeout=1m",
        "--ipvs-tcpfin-timeout=2m",
        "--ipvs-udp-timeout=3m",
        "--iptables-masquerade-bit=20",
        "--masquerade-all",
        "--nodeport-addresses=192.0.2.0/24",
        "--feature-gates=AllowServiceExternalIPs=false,AllAlpha=true",
        "--feature-gates=AllAlpha=false",
        "--kubeconfig=/kubeconfig",
        "--kube-api-qps=2.5",
        "--kube-api-burst=9",
        "--bind-address-hard-fail",
        "--profiling",
        "--oom-score-adj=-998",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-be-liberal",
        "--conntrack-tcp-timeout-close-wait=0s",
        "--conntrack-udp-timeout=10s",
        "--conntrack-udp-timeout-stream=20s",
        "--logging-format=json",
    ]);
    assert_eq!(flags.bind_address, Some("2001:db8::1".parse::<IpAddr>().unwrap()));
    let settings = &flags.settings;
    let pods = ["10.244.0.0/16", "fd00:244::/32"].map(|net| net.parse().unwrap());
    assert_eq!(settings.local_detection, LocalDetection::ClusterCidr(pods.to_vec()));
    assert_eq!(settings.scheduler.as_str(), "mh");
    assert_eq!(settings.exclude.len(), 3);
    assert_eq!((settings.masquerade_bit, settings.masquerade_all), (20, true));
    let networks = vec!["192.0.2.0/24".parse().unwrap()];
    assert_eq!(settings.node_port_addresses, NodePortAddresses::Networks(networks));
    assert!(!settings.external_ips);
    assert!(!flags.gates.is_enabled("LoggingAlphaOptions"), "the last one counts");
    assert_eq!(flags.service_addresses_arp, ServiceAddressesArp::Strict);
    assert!(flags.served.hard_fail && flags.served.profiling);
    let timeouts = flags.ipvs_timeouts;
    assert_eq!([timeouts.tcp, timeouts.tcp_fin, timeouts.udp].map(|t| t.as_secs()), [60, 120, 180]);
    assert_eq!(flags.api_server.kubeconfig, Some(PathBuf::from("/kubeconfig")));
    assert_eq!((flags.api_server.qps, flags.api_server.burst), (2.5, 9));
    assert_eq!(flags.oom_score_adj, -998);
    assert_eq!(flags.conntrack.max_per_core, None);
    assert_eq!(flags.conntrack.tcp_close_wait, None);
    assert!(flags.conntrack.tcp_be_liberal);
    assert_eq!(flags.conntrack.udp, Some(Duration::from_secs(10)));
    assert_eq!(flags.conntrack.udp_stream, Some(Duration::from_secs(20)));
    assert_eq!(flags.logging.format, LogFormat::Json);
}

#[test]
fn local_traffic_is_detected_as_chosen() {
    for (text, detection) in [
        ("clusterCIDR: 10.0.0.0/8\ndetectLocalMode: NodeCIDR\n", LocalDetection::NodeCidr),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\n",
            LocalDetection::BridgeInterface("cni0".into()),
        ),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}\n",
            LocalDetection::InterfaceNamePrefix("veth".into()),
        ),
        ("detectLocalMode: ClusterCIDR\n", LocalDetection::None),
        (
            "clusterCIDR: 10.0.0.0/8\n",
            LocalDetection::ClusterCidr(vec!["10.0.0.0/8".parse().unwrap()]),
        ),
    ] {
        assert_eq!(from_file(text, &[]).settings.local_detection, detection, "{text}");
    }
    let primary = from_file("nodePortAddresses: [primary]\n", &[]);
    assert_eq!(primary.settings.node_port_addresses, NodePortAddresses::Primary(Vec::new()));
}

#[test]
fn one_action_at_a_time() {
    let write = Action::WriteConfig(PathBuf::from("/out"));
    for (words, action) in [
        (&["--write-config-to=/out", "--cleanup", "--init-only"][..], write),
        (&["--cleanup", "--hand-over", "--init-only"], Action::Cleanup),
        (&["--hand-over", "--init-only"], Action::HandOver),
        (&["--init-only"], Action::InitOnly),
        (&["--cleanup=false", "--init-only=false", "--write-config-to="], Action::Run),
    ] {
        assert_eq!(from_flags(words).action, action, "{words:?}");
        assert_eq!(from_file("", words).action, action, "{words:?}");
    }
}

#[test]
fn other_modes_are_refused_but_for_cleaning_up() {
    for (mode, why) in [
        ("nftables", "kube-ipvs has no nftables mode, and none is planned: run kube-proxy"),
        ("kernelspace", "kernelspace is kube-proxy's mode on Windows"),
    ] {
        let flag = format!("--proxy-mode={mode}");
        let field = format!("mode: {mode}\n");
        for said in [load(&[&flag]).unwrap_err(), load_file(&field, &[]).unwrap_err()] {
            let said = said.to_string();
            assert!(said.contains(why), "{said}");
        }
        assert_eq!(from_flags(&[&flag, "--cleanup"]).action, Action::Cleanup);
    }
    assert_eq!(from_flags(&["--proxy-mode="]).document.mode.to_string(), "ipvs");
}
