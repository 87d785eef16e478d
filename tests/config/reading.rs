//! Reading of a file: what is taken of it, and what is not.

use config::document::{Iptables, KubeProxyConfiguration};
use config::read::{Documents, read};
use config::text::Parsed;
use syntax::duration::GoDuration;

use crate::{HEAD, from_file, load, load_file};

fn read_rest(rest: &str) -> Documents {
    read(&format!("{HEAD}{rest}")).unwrap_or_else(|error| panic!("{rest}: {error}"))
}

/// Configuration that kubeadm writes: everything that it leaves to kube-proxy is a zero value.
const KUBEADM: &str = include_str!("../kubeadm/config.conf");

#[test]
fn an_empty_document_and_one_of_zero_values_are_the_defaults() {
    let defaults = KubeProxyConfiguration::default().with_defaults();
    assert_eq!(read_rest("").kube_proxy.with_defaults(), defaults);
    let kubeadm = read(KUBEADM).unwrap();
    assert!(kubeadm.notes.is_empty(), "{:?}", kubeadm.notes);
    let mut kubeadm = kubeadm.kube_proxy.with_defaults();
    assert_eq!(kubeadm.client_connection.kubeconfig, "/var/lib/kube-proxy/kubeconfig.conf");
    kubeadm.client_connection.kubeconfig.clear();
    kubeadm.cluster_cidr.clear();
    kubeadm.mode = Parsed::Unset;
    assert_eq!(kubeadm, defaults);
}

#[test]
fn what_kubeadm_writes_is_written_back_as_it_was() {
    let written = serde_saphyr::to_string(&read(KUBEADM).unwrap().kube_proxy).unwrap();
    let again = read(&written).unwrap().kube_proxy;
    assert_eq!(again, read(KUBEADM).unwrap().kube_proxy);
    let lines = |text: &str| {
        let mut lines: Vec<String> =
            text.lines().map(|line| line.replace(['"', '\''], "")).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&written), lines(KUBEADM));
}

#[test]
fn addresses_have_defaults_of_the_family_of_the_bind_address() {
    for (text, healthz, metrics) in [
        ("", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("bindAddress: 9.8.7.6", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("bindAddress: 2001:db8::1", "[::]:10256", "[::1]:10249"),
        ("healthzBindAddress: 1.2.3.4", "1.2.3.4:10256", "127.0.0.1:10249"),
        ("healthzBindAddress: 'fd00:1::5'", "[fd00:1::5]:10256", "127.0.0.1:10249"),
        ("healthzBindAddress: 1.2.3.4:12345", "1.2.3.4:12345", "127.0.0.1:10249"),
        ("metricsBindAddress: 2.3.4.5", "0.0.0.0:10256", "2.3.4.5:10249"),
        ("metricsBindAddress: '[fd00:1::5]:23456'", "0.0.0.0:10256", "[fd00:1::5]:23456"),
    ] {
        let served = from_file(text, &[]).served;
        assert_eq!(served.healthz, healthz.parse().ok(), "{text}");
        assert_eq!(served.metrics, metrics.parse().unwrap(), "{text}");
    }
}

#[test]
fn every_kind_of_value_is_read() {
    let document = read_rest(
        "clientConnection: {qps: 7.5, burst: 3}\n\
         conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 1h30m}\n\
         featureGates: {AllowServiceExternalIPs: false}\n\
         iptables: {masqueradeAll: yes, masqueradeBit: 12}\n\
         logging:\n  flushFrequency: 5000000000\n  vmodule:\n  - {filePattern: 'ipvs*', verbosity: 5}\n\
         \x20 options: {text: {infoBufferSize: 64Ki}, json: {infoBufferSize: 512}}\n\
         nodePortAddresses: [primary]\n",
    );
    assert!(document.notes.is_empty(), "{:?}", document.notes);
    let document = document.kube_proxy;
    assert_eq!(document.client_connection.qps, 7.5);
    assert_eq!(document.conntrack.max_per_core, Some(0));
    assert_eq!(document.conntrack.tcp_established_timeout, Some(GoDuration::from_secs(5_400)));
    assert!(!document.feature_gates["AllowServiceExternalIPs"]);
    let iptables =
        Iptables { masquerade_all: true, masquerade_bit: Some(12), ..Iptables::default() };
    assert_eq!(document.iptables, iptables);
    assert_eq!(document.logging.flush_frequency.duration(), GoDuration::from_secs(5));
    assert_eq!(document.logging.vmodule[0].verbosity, 5);
    assert!(!document.logging.options.json.info_buffer_size.is_zero());
    assert_eq!(document.node_port_addresses, ["primary"]);
}

#[test]
fn unknown_fields_are_told_with_their_line_and_the_nearest_name() {
    let documents = read_rest(
        "clusterCidr: 10.0.0.0/8\n\
         ipvs:\n  strictArp: true\n  shceduler: wlc\n\
         scheduler: wlc\n\
         logging:\n  vmodule:\n  - {pattern: a, filePattern: b}\n\
         something: else\n",
    );
    assert_eq!(
        documents.notes,
        [
            "clusterCidr (line 3) has no effect: unknown field; did you mean clusterCIDR?",
            "ipvs.strictArp (line 5) has no effect: unknown field; did you mean strictARP?",
            "ipvs.shceduler (line 6) has no effect: unknown field; did you mean scheduler?",
            "scheduler (line 7) has no effect: unknown field; did you mean \
             ipvs.scheduler?",
            "logging.vmodule[].pattern (line 10) has no effect: unknown field",
            "something (line 11) has no effect: unknown field",
        ]
    );
}

#[test]
fn of_a_field_that_is_written_twice_the_last_counts() {
    let documents =
        read_rest("mode: iptables\nipvs:\n  scheduler: rr\n  scheduler: sh\nmode: ipvs\n");
    assert_eq!(documents.kube_proxy.mode.to_string(), "ipvs");
    assert_eq!(documents.kube_proxy.ipvs.scheduler, "sh");
    assert_eq!(
        documents.notes,
        [
            "mode (line 3) has no effect: line 7 sets it again",
            "ipvs.scheduler (line 5) has no effect: line 6 sets it again",
        ]
    );
}

#[test]
fn what_cannot_be_read_is_said_with_its_line() {
    for (text, problem) in [
        ("", "it is empty"),
        ("mode: ipvs", "line 1: Object 'Kind' is missing"),
        (
            "apiVersion: v1\nkind: ConfigMap",
            "no kind \"ConfigMap\" is registered for version \"v1\"",
        ),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1\nkind: KubeProxyConfiguration",
            "for version \"kubeproxy.config.k8s.io/v1\"",
        ),
        ("just text", "line 1: Object 'Kind' is missing"),
        ("a: [", "line 1"),
    ] {
        let said = read(text).unwrap_err().to_string();
        assert!(said.starts_with("failed to decode: ") && said.contains(problem), "{text}: {said}");
    }
    for (rest, problem) in [
        ("mode: 7", "mode (line 3): invalid type: integer"),
        ("iptables:\n  masqueradeBit: many", "iptables.masqueradeBit (line 4): invalid type"),
        ("ipvs: {syncPeriod: 30}", "ipvs.syncPeriod (line 3): invalid type: integer `30`"),
        ("ipvs:\n\n  syncPeriod: 30", "ipvs.syncPeriod (line 5): "),
        ("ipvs: {syncPeriod: '30'}", "time: missing unit in duration \"30\""),
        ("nodePortAddresses:\n- 10.0.0.0/8\n- 7", "nodePortAddresses[1] (line 5)"),
        ("nodePortAddresses: primary", "nodePortAddresses (line 3): invalid type"),
        ("featureGates: {A: maybe}", "featureGates.A (line 3): invalid type"),
        ("oomScoreAdj: 99999999999", "oomScoreAdj (line 3)"),
        ("logging: {options: {text: {infoBufferSize: x}}}", "\"x\" is not a size"),
        ("ipvs: nothing", "ipvs (line 3): invalid type"),
    ] {
        let said = load_file(rest, &[]).unwrap_err().to_string();
        assert!(said.contains(problem), "{rest}: {said}");
        assert!(said.starts_with("failed complete: read the configuration file /"), "{said}");
    }
    let said = load(&["--config", "/nowhere/config.conf"]).unwrap_err().to_string();
    assert!(said.contains("/nowhere/config.conf: No such file"), "{said}");
}

#[test]
fn the_second_document_is_ours() {
    let configuration = from_file(
        "---\napiVersion: kube-ipvs.io/v1alpha1\nkind: KubeIpvsConfiguration\n\
         drainDeadline: 1m\ncleanupOtherModes: false\niptablesVariant: legacy\nmanifest: /x\n",
        &[],
    );
    assert_eq!(configuration.pace.drain_deadline.as_secs(), 60);
    assert!(!configuration.cleanup_other_modes);
    assert_eq!(configuration.variant, kernel::rules::Variant::Legacy);
    assert_eq!(configuration.notes.len(), 1);
    assert!(
        configuration.notes[0].ends_with("did you mean manifests?"),
        "{:?}",
        configuration.notes
    );

    let ours = "---\napiVersion: kube-ipvs.io/v1alpha1\nkind: KubeIpvsConfiguration\n";
    let twice = load_file(&format!("{ours}{ours}"), &[]).unwrap_err().to_string();
    assert!(twice.contains("a second KubeIpvsConfiguration; only one is allowed"), "{twice}");
    let other = from_file("---\napiVersion: v1\nkind: ConfigMap\n", &[]);
    assert!(other.notes[0].contains("a document of kind \"ConfigMap\""), "{:?}", other.notes);
    let invalid = load_file(&format!("{ours}iptablesVariant: new\ndrainDeadline: -1s\n"), &[]);
    let invalid = invalid.unwrap_err().to_string();
    for problem in
        ["iptablesVariant: Invalid value: \"new\"", "drainDeadline: Invalid value: \"-1s\""]
    {
        assert!(invalid.contains(problem), "{invalid}");
    }
}
