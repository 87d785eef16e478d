//! Settings that cannot be, in kube-proxy's words.

use config::reference::{FIELDS, OWN_FIELDS, default_of};
use plan::settings::NodePortAddresses;

use crate::{from_file, load, load_file};

/// Returns what is said of a file, a line for each problem.
fn problems(rest: &str) -> Vec<String> {
    let said = match load_file(rest, &[]) {
        Ok(_) => return Vec::new(),
        Err(error) => error.to_string(),
    };
    let (head, problems) = said.split_once("\n- ").unwrap_or_else(|| panic!("{rest}: {said}"));
    assert_eq!(head, "failed validate: ");
    problems.split("\n- ").map(str::to_owned).collect()
}

/// Each text has one problem, which is this, below `KubeProxyConfiguration`.
fn check(cases: &[(&str, &str)]) {
    for (text, problem) in cases {
        assert_eq!(problems(text), [format!("KubeProxyConfiguration.{problem}")], "{text}");
    }
}

#[test]
fn values_must_be_in_their_range() {
    check(&[
        (
            "iptables: {masqueradeBit: 32}",
            "KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 32: must be within the \
             range [0, 31] [iptables.masqueradeBit]",
        ),
        (
            "iptables: {masqueradeBit: -1}",
            "KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: -1: must be within the \
             range [0, 31] [iptables.masqueradeBit]",
        ),
        (
            "oomScoreAdj: -1001",
            "KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: -1001: must be within the \
             range [-1000, 1000] [oomScoreAdj]",
        ),
        (
            "oomScoreAdj: 1001",
            "KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: 1001: must be within the \
             range [-1000, 1000] [oomScoreAdj]",
        ),
        (
            "clientConnection: {burst: -5}",
            "ClientConnection.Burst: Invalid value: -5: must be greater than or equal to 0 \
             [clientConnection.burst]",
        ),
        (
            "bindAddress: 10.10.12.11:2000",
            "BindAddress: Invalid value: \"10.10.12.11:2000\": not a valid textual representation \
             of an IP address [bindAddress]",
        ),
        (
            "mode: IPVS",
            "Mode.ProxyMode: Invalid value: \"IPVS\": must be iptables, ipvs, userspace, auto or blank (blank \
             means the best-available proxy [which is ipvs here]) [mode]",
        ),
        (
            "ipvs: {scheduler: round robin}",
            "KubeProxyIPVSConfiguration.Scheduler: Invalid value: \"round robin\": scheduler \
             \"round robin\": a scheduler's name has 1 to 15 visible ASCII characters, such as \
             rr, wlc, sh [ipvs.scheduler]",
        ),
    ]);
    for fine in ["iptables: {masqueradeBit: 0}", "oomScoreAdj: 1000", "ipvs: {scheduler: mh}"] {
        from_file(fine, &[]);
    }
}

#[test]
fn durations_must_make_sense() {
    const LINUX: &str = "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration";
    const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
    for (field, path) in [
        ("ipvs.tcpTimeout", "KubeProxyIPVSConfiguration.TCPTimeout"),
        ("ipvs.tcpFinTimeout", "KubeProxyIPVSConfiguration.TCPFinTimeout"),
        ("ipvs.udpTimeout", "KubeProxyIPVSConfiguration.UDPTimeout"),
        ("conntrack.tcpEstablishedTimeout", &format!("{LINUX}.TCPEstablishedTimeout")),
        ("conntrack.tcpCloseWaitTimeout", &format!("{LINUX}.TCPCloseWaitTimeout")),
        ("conntrack.udpTimeout", &format!("{LINUX}.UDPTimeout")),
        ("conntrack.udpStreamTimeout", &format!("{LINUX}.UDPStreamTimeout")),
        ("ipvs.minSyncPeriod", "MinSyncPeriod"),
    ] {
        let (group, name) = field.split_once('.').unwrap();
        let problem = format!("{path}: Invalid value: \"-5s\": {NOT_NEGATIVE} [{field}]");
        check(&[(&format!("{group}: {{{name}: -5s}}"), &problem)]);
    }
    for (field, name) in [("maxPerCore", "MaxPerCore"), ("min", "Min")] {
        let problem =
            format!("{LINUX}.{name}: Invalid value: -1: {NOT_NEGATIVE} [conntrack.{field}]");
        check(&[(&format!("conntrack: {{{field}: -1}}"), &problem)]);
    }
    check(&[
        (
            "configSyncPeriod: -1s",
            "ConfigSyncPeriod: Invalid value: \"-1s\": must be greater than 0 [configSyncPeriod]",
        ),
        (
            "ipvs: {syncPeriod: 1s, minSyncPeriod: 5s}",
            "SyncPeriod: Invalid value: \"5s\": must be greater than or equal to \
             KubeProxyConfiguration.MinSyncPeriod [ipvs.syncPeriod]",
        ),
        (
            "logging: {flushFrequency: -1s}",
            "logging.flushFrequency: Invalid value: \"-1s\": Must be greater than zero \
             [logging.flushFrequency]",
        ),
    ]);
    assert_eq!(problems("ipvs: {syncPeriod: -1s}").len(), 2, "also less than the least period");
    from_file("conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s}", &[]);
}

#[test]
fn addresses_to_listen_on_are_ip_and_port() {
    for (text, value, problem) in [
        ("10.10.10.10", "", ""),
        ("10.10.10.10:12345", "", ""),
        ("'[fd00:4321:67::1]:12345'", "", ""),
        ("127.0.0.1:0", "0", "must be a valid port"),
        ("127.0.0.1:65536", "65536", "must be a valid port"),
        ("127.0.0.1:http", "http", "must be a valid port"),
        ("127.0.0:10256", "127.0.0", "must be a valid IP"),
        ("localhost:10256", "localhost", "must be a valid IP"),
        ("'[::g]:10256'", "::g", "must be a valid IP"),
        ("some host", "some host", "must be IP:port"),
        ("'::1:x:'", "::1:x:", "must be IP:port"),
    ] {
        for (field, name) in [
            ("healthzBindAddress", "HealthzBindAddress"),
            ("metricsBindAddress", "MetricsBindAddress"),
        ] {
            let text = format!("{field}: {text}");
            if problem.is_empty() {
                from_file(&text, &[]);
            } else {
                let problem = format!("{name}: Invalid value: {value:?}: {problem} [{field}]");
                check(&[(&text, &problem)]);
            }
        }
    }
}

#[test]
fn node_port_addresses_are_networks_or_words_for_some() {
    let networks = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let (v4, v6) = ("127.0.0.0/8", "::1/128");
    for (fine, chosen) in [
        ("[]", NodePortAddresses::All),
        ("[127.0.0.0/8]", NodePortAddresses::Networks(networks(&[v4]))),
        ("[0.0.0.0/0, '::/0']", NodePortAddresses::Networks(networks(&["0.0.0.0/0", "::/0"]))),
        ("[primary]", NodePortAddresses::Primary(Vec::new())),
        ("[primary, primary]", NodePortAddresses::Primary(Vec::new())),
        ("[10.0.0.0/8, primary]", NodePortAddresses::Primary(networks(&["10.0.0.0/8"]))),
        ("[localhost]", NodePortAddresses::Networks(networks(&[v4, v6]))),
        ("[primary, localhost]", NodePortAddresses::Primary(networks(&[v4, v6]))),
        ("[localhost, all]", NodePortAddresses::All),
    ] {
        let configuration = from_file(&format!("nodePortAddresses: {fine}"), &[]);
        assert_eq!(configuration.settings.node_port_addresses, chosen, "{fine}");
        assert_eq!(configuration.localhost_node_ports, fine.contains("localhost"), "{fine}");
    }
    for (list, index, value, problem) in [
        ("[127.0.0.1]", 0, "127.0.0.1", "must be a valid CIDR"),
        ("[127.0.0.0/8, x]", 1, "x", "must be a valid CIDR"),
        ("['::1/129']", 0, "::1/129", "must be a valid CIDR"),
        ("[Primary]", 0, "Primary", "must be a valid CIDR"),
    ] {
        let problem = format!(
            "NodePortAddresses[{index}]: Invalid value: {value:?}: {problem} [nodePortAddresses]"
        );
        check(&[(&format!("nodePortAddresses: {list}"), &problem)]);
    }
}

#[test]
fn excluded_networks_are_networks() {
    from_file("ipvs: {excludeCIDRs: [192.168.59.0/24, 'fd00:10:96::/112']}", &[]);
    for (list, index, value) in [("[10.0.0.0/33]", 0, "10.0.0.0/33"), ("[10.0.0.0/8, x]", 1, "x")] {
        let problem = format!(
            "KubeProxyIPVSConfiguration.ExcludeCidrs[{index}]: Invalid value: {value:?}: must be \
             a valid CIDR [ipvs.excludeCIDRs]"
        );
        check(&[(&format!("ipvs: {{excludeCIDRs: {list}}}"), &problem)]);
    }
}

#[test]
fn detection_has_what_it_needs() {
    const MODE: &str = "detectLocalMode";
    check(&[
        (
            "detectLocalMode: Guess",
            "DetectLocalMode: Unsupported value: \"Guess\": supported values: \"ClusterCIDR\", \
             \"NodeCIDR\", \"BridgeInterface\", \"InterfaceNamePrefix\", \"\" [detectLocalMode]",
        ),
        (
            "detectLocalMode: BridgeInterface",
            "DetectLocalConfiguration.InterfaceName: Invalid value: \"\": must not be empty \
             [detectLocal.bridgeInterface]",
        ),
        (
            "detectLocalMode: InterfaceNamePrefix",
            "DetectLocalConfiguration.InterfacePrefix: Invalid value: \"\": must not be empty \
             [detectLocal.interfaceNamePrefix]",
        ),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: 'a\" -j'}",
            "DetectLocalConfiguration.InterfaceName: Invalid value: \"a\\\" -j\": cannot be an \
             interface's name (or its beginning) [detectLocal.bridgeInterface]",
        ),
    ]);
    // Other modes ignore the field.
    for mode in ["NodeCIDR", "BridgeInterface\ndetectLocal: {bridgeInterface: cni0}"] {
        from_file(&format!("{MODE}: {mode}\nclusterCIDR: nonsense"), &[]);
    }
}

#[test]
fn the_pods_networks_are_one_or_a_pair() {
    for fine in ["10.0.0.0/8", "fd00::/8", "10.0.0.0/8,fd00::/8", "fd00::/8,10.0.0.0/8"] {
        from_file(&format!("clusterCIDR: {fine}"), &[]);
    }
    for (text, n_problems, problem) in [
        ("10.0.0.0", 1, "must be a valid CIDR block"),
        ("10.0.0.0/8, fd00::/8", 1, "must be a valid CIDR block"),
        ("x,y", 2, "must be a valid CIDR block"),
        ("10.0.0.0/8,10.1.0.0/16", 1, "single CIDR or dual-stack pair"),
        ("10.0.0.0/8,fd00::/8,10.1.0.0/16", 1, "single CIDR or dual-stack pair"),
        (",", 2, "must be a valid CIDR block"),
    ] {
        let found = problems(&format!("clusterCIDR: '{text}'"));
        assert_eq!(found.len(), n_problems, "{text}: {found:?}");
        assert!(found[0].contains(problem) && found[0].ends_with("[clusterCIDR]"), "{found:?}");
    }
    // As a flag, an empty text is a list with an empty network.
    let said = load(&["--cluster-cidr="]).unwrap_err().to_string();
    assert!(
        said.contains("ClusterCIDRs[0]: Invalid value: \"\": must be a valid CIDR block"),
        "{said}"
    );
    from_file("clusterCIDR: ''", &["--cluster-cidr="]);
}

#[test]
fn logging_is_as_it_can_be() {
    check(&[
        (
            "logging: {format: xml}",
            "logging.format: Invalid value: \"xml\": Unsupported log format [logging.format]",
        ),
        (
            "logging: {verbosity: 4294967295}",
            "logging.verbosity: Invalid value: 4294967295: Must be <= 2147483647 \
             [logging.verbosity]",
        ),
        (
            "logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}",
            "logging.vmodule: Forbidden: Only supported for text log format [logging.vmodule]",
        ),
        (
            "logging: {vmodule: [{verbosity: 1}]}",
            "logging.vmodule[0]: Required value: File pattern must not be empty [logging.vmodule]",
        ),
        (
            "logging: {vmodule: [{filePattern: 'a,b', verbosity: 1}]}",
            "logging.vmodule[0]: Invalid value: \"a,b\": File pattern must not contain equal sign \
             or comma [logging.vmodule]",
        ),
        (
            "logging: {options: {json: {splitStream: true}}}",
            "logging.options.json.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled \
             [logging.options.json.splitStream]",
        ),
        (
            "logging: {options: {text: {infoBufferSize: 1}}}",
            "logging.options.text.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is \
             disabled [logging.options.text.infoBufferSize]",
        ),
    ]);
    let said = load(&["--logging-format="]).unwrap_err().to_string();
    assert!(
        said.ends_with("Invalid value: \"\": Unsupported log format [logging.format]"),
        "{said}"
    );
    from_file(
        "featureGates: {LoggingAlphaOptions: true}\nlogging: {options: {json: {splitStream: true}}}",
        &[],
    );
}

#[test]
fn what_other_versions_of_kube_proxy_take_is_told_once_and_starts() {
    let notes =
        from_file("featureGates: {KubeProxyIPVS: true, TopologyAwareHints: true}", &[]).notes;
    assert_eq!(
        notes,
        ["featureGates: KubeProxyIPVS, TopologyAwareHints have no effect: kube-ipvs knows \
             AllowServiceExternalIPs, ComponentFlagz, ComponentStatusz, LoggingAlphaOptions"]
    );
    let notes = from_file("", &["--logtostderr", "--log-dir=/var/log", "--cleanup-ipvs"]).notes;
    assert_eq!(
        notes,
        [
            "--logtostderr has no effect: the log goes to standard error only",
            "--log-dir has no effect: the log goes to standard error only",
            "--cleanup-ipvs has no effect: --cleanup removes IPVS state, too",
        ]
    );
}

#[test]
fn every_word_of_the_reference_is_taken_and_written_as_it_was() {
    const OWN: &str = "---\napiVersion: kube-ipvs.io/v1alpha1\nkind: KubeIpvsConfiguration\n";
    let mut n_fields = 0;
    for (head, document, fields) in [("", 0, FIELDS.as_slice()), (OWN, 1, OWN_FIELDS.as_slice())] {
        for setting in fields.iter().filter(|setting| !setting.words.is_empty()) {
            n_fields += 1;
            for (word, _) in setting.words {
                let (section, field) = setting.path.split_once('.').unwrap_or(("", setting.path));
                let line = match section {
                    "" => format!("{field}: {word}\n"),
                    section => format!("{section}: {{{field}: {word}}}\n"),
                };
                // What some words need beside them.
                let names = "detectLocal: {bridgeInterface: cni0, interfaceNamePrefix: veth}\n";
                let configuration = from_file(&format!("{names}{head}{line}"), &[]);
                let documents = [
                    serde_json::to_value(&configuration.document).unwrap(),
                    serde_json::to_value(&configuration.own).unwrap(),
                ];
                assert_eq!(&default_of(&documents[document], setting.path), word, "{line}");
            }
        }
    }
    assert_eq!(n_fields, 13);
}

#[test]
fn everything_is_said_at_once() {
    let said = problems(
        "oomScoreAdj: 5000\nbindAddress: a\nmetricsBindAddress: b\nipvs: {excludeCIDRs: [z]}\n\
         mode: w\n",
    );
    // The networks of IPVS are only looked at in its mode, as with kube-proxy.
    assert_eq!(said.len(), 4, "{said:?}");
}

#[test]
fn flags_and_fields_without_effect_are_said_with_what_is_wrong() {
    let said = load_file("Mode: ipvs\nmode: nftables\n", &["--ipvs-scheduler=rr"]);
    let said = said.unwrap_err().to_string();
    let (_, notes) = said.split_once("\nbesides:\n- ").unwrap_or_else(|| panic!("{said}"));
    assert!(notes.contains("--ipvs-scheduler has no effect: the file "), "{notes}");
    assert!(notes.contains("unknown field; did you mean mode?"), "{notes}");
}
