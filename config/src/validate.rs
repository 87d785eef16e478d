//! Checks of a document, which report all violations at once.
//!
//! Paths and words are kube-proxy's, so that what is known about them is found; the name that the
//! field has in a file follows in brackets.

mod kube_ipvs;

pub use kube_ipvs::{RoutableNetworks, routed, used, validate_own};

use std::fmt;

use plan::mode::Mode;
use plan::op::PartKind;

use super::document::{Conntrack, Ipvs, KubeProxyConfiguration, Logging};
use super::gates::{FeatureGates, LOGGING_ALPHA};
use super::mode::{self, ModeChoice, Periods};
use super::settings::{NOT_NEGATIVE, POSITIVE};
use super::words::{DetectLocalMode, LogFormat, NODE_PORT_WORDS, REFUSED};
use forwarding::relay::PortRange;
use syntax::address;
use syntax::duration::GoDuration;

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Path that kube-proxy reports for the field.
    path: String,
    /// Path of the field in a file.
    field: &'static str,
    problem: String,
}

const LINUX: &str = "KubeProxyLinuxConfiguration";
const NOT_DUAL_STACK: &str = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. \
                              [10.100.0.0/16, fde4:8dba:82e1::/48]";

/// All that is wrong with a document that has its defaults. `choice` is of the modes; `cluster_cidrs` is what `clusterCIDR`
/// lists, where an empty flag is a list with an empty item.
#[must_use]
pub fn validate(
    document: &KubeProxyConfiguration,
    choice: &ModeChoice,
    cluster_cidrs: &[String],
) -> Vec<Violation> {
    let mut found = KubeProxyViolations(Vec::new());
    found.masquerade_bit(document);
    if document.mode.invalid().is_none() && choice.preferred.uses(PartKind::VirtualServers) {
        found.ipvs(&document.ipvs);
    }
    found.linux(document);
    if let Some((mode, problem)) = document.mode.invalid() {
        found.invalid("Mode.ProxyMode", "mode", mode, problem);
    }
    found.burst(document.client_connection.burst);
    found.periods(document, choice);
    found.addresses(document);
    found.node_port_addresses(&document.node_port_addresses);
    found.local_detection(document, cluster_cidrs);
    found.logging(&document.logging, &document.feature_gates);
    if choice.may(Mode::relays)
        && let Err(problem) = PortRange::parse(&document.port_range)
    {
        found.invalid("PortRange", "portRange", &document.port_range, &problem.to_string());
    }
    found.0
}

struct KubeProxyViolations(Vec<Violation>);

impl Violation {
    /// True if the violation is that the mode is another one of kube-proxy's.
    pub(super) fn is_about_another_mode(&self) -> bool {
        self.field == "mode" && REFUSED.iter().any(|(_, why)| self.problem.ends_with(why))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} [{}]", self.path, self.problem, self.field)
    }
}

impl KubeProxyViolations {
    fn add(&mut self, path: impl fmt::Display, field: &'static str, problem: String) {
        let path = format!("KubeProxyConfiguration.{path}");
        self.0.push(Violation { path, field, problem });
    }

    fn invalid(
        &mut self,
        path: impl fmt::Display,
        field: &'static str,
        value: impl fmt::Debug,
        problem: &str,
    ) {
        self.add(path, field, format!("Invalid value: {value:?}: {problem}"));
    }

    fn masquerade_bit(&mut self, document: &KubeProxyConfiguration) {
        if let Some(bit) = document.iptables.masquerade_bit.filter(|bit| !(0..=31).contains(bit)) {
            let path = "KubeProxyIPTablesConfiguration.MasqueradeBit";
            self.invalid(path, "iptables.masqueradeBit", bit, "must be within the range [0, 31]");
        }
    }

    fn ipvs(&mut self, ipvs: &Ipvs) {
        for (name, field, value) in [
            ("TCPTimeout", "ipvs.tcpTimeout", ipvs.tcp_timeout),
            ("TCPFinTimeout", "ipvs.tcpFinTimeout", ipvs.tcp_fin_timeout),
            ("UDPTimeout", "ipvs.udpTimeout", ipvs.udp_timeout),
        ] {
            self.duration(&format!("KubeProxyIPVSConfiguration.{name}"), field, value);
        }
        for (index, text) in ipvs.exclude_cidrs.iter().enumerate() {
            if address::cidr(text).is_none() {
                let path = format!("KubeProxyIPVSConfiguration.ExcludeCidrs[{index}]");
                self.invalid(path, "ipvs.excludeCIDRs", text, "must be a valid CIDR");
            }
        }
        if !ipvs.scheduler.is_empty()
            && let Err(problem) = plan::scheduler::SchedulerName::new(&ipvs.scheduler)
        {
            let path = "KubeProxyIPVSConfiguration.Scheduler";
            self.invalid(path, "ipvs.scheduler", &ipvs.scheduler, &problem.to_string());
        }
    }

    fn linux(&mut self, document: &KubeProxyConfiguration) {
        self.conntrack(&document.conntrack);
        let range = -1_000..=1_000;
        if let Some(score) = document.oom_score_adj.filter(|score| !range.contains(score)) {
            let problem = "must be within the range [-1000, 1000]";
            self.invalid(format!("{LINUX}.OOMScoreAdj"), "oomScoreAdj", score, problem);
        }
    }

    fn conntrack(&mut self, conntrack: &Conntrack) {
        let path = |name: &str| format!("{LINUX}.KubeProxyConntrackConfiguration.{name}");
        for (name, field, value) in [
            ("MaxPerCore", "conntrack.maxPerCore", conntrack.max_per_core),
            ("Min", "conntrack.min", conntrack.min),
        ] {
            if let Some(value) = value.filter(|value| *value < 0) {
                self.invalid(path(name), field, value, NOT_NEGATIVE);
            }
        }
        let established = conntrack.tcp_established_timeout.unwrap_or_default();
        let close_wait = conntrack.tcp_close_wait_timeout.unwrap_or_default();
        for (name, field, value) in [
            ("TCPEstablishedTimeout", "conntrack.tcpEstablishedTimeout", established),
            ("TCPCloseWaitTimeout", "conntrack.tcpCloseWaitTimeout", close_wait),
            ("UDPTimeout", "conntrack.udpTimeout", conntrack.udp_timeout),
            ("UDPStreamTimeout", "conntrack.udpStreamTimeout", conntrack.udp_stream_timeout),
        ] {
            self.duration(&path(name), field, value);
        }
    }

    fn duration(&mut self, path: &str, field: &'static str, value: GoDuration) {
        if value < GoDuration::ZERO {
            self.invalid(path, field, value.to_string(), NOT_NEGATIVE);
        }
    }

    fn burst(&mut self, burst: i32) {
        if burst < 0 {
            self.invalid("ClientConnection.Burst", "clientConnection.burst", burst, NOT_NEGATIVE);
        }
    }

    fn periods(&mut self, document: &KubeProxyConfiguration, choice: &ModeChoice) {
        self.positive("ConfigSyncPeriod", "configSyncPeriod", document.config_sync_period);
        for mode in choice.modes() {
            let Periods { least, most, fields: [min_field, field] } = mode::periods(document, mode);
            self.positive("SyncPeriod", field, most);
            self.duration("MinSyncPeriod", min_field, least);
            if least > most {
                let problem =
                    "must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod";
                self.invalid("SyncPeriod", field, least.to_string(), problem);
            }
        }
    }

    fn positive(&mut self, path: &str, field: &'static str, value: GoDuration) {
        if value <= GoDuration::ZERO {
            self.invalid(path, field, value.to_string(), POSITIVE);
        }
    }

    fn addresses(&mut self, document: &KubeProxyConfiguration) {
        let bind = &document.bind_address;
        if address::ip(bind).is_none() {
            let problem = "not a valid textual representation of an IP address";
            self.invalid("BindAddress", "bindAddress", bind, problem);
        }
        if !document.healthz_bind_address.is_empty() {
            let field = "healthzBindAddress";
            self.host_port("HealthzBindAddress", field, &document.healthz_bind_address);
        }
        let field = "metricsBindAddress";
        self.host_port("MetricsBindAddress", field, &document.metrics_bind_address);
    }

    fn host_port(&mut self, path: &'static str, field: &'static str, text: &str) {
        let Some((host, port)) = address::split_host_port(text) else {
            return self.invalid(path, field, text, "must be IP:port");
        };
        if address::ip(host).is_none() {
            self.invalid(path, field, host, "must be a valid IP");
        }
        if !port.parse::<u16>().is_ok_and(|port| port > 0) {
            self.invalid(path, field, port, "must be a valid port");
        }
    }

    fn node_port_addresses(&mut self, addresses: &[String]) {
        for (index, text) in addresses.iter().enumerate() {
            let is_word = NODE_PORT_WORDS.contains(&text.as_str());
            if !is_word && address::cidr(text).is_none() {
                let path = format!("NodePortAddresses[{index}]");
                self.invalid(path, "nodePortAddresses", text, "must be a valid CIDR");
            }
        }
    }

    fn local_detection(&mut self, document: &KubeProxyConfiguration, cluster_cidrs: &[String]) {
        let detect = &document.detect_local;
        if let Some((mode, problem)) = document.detect_local_mode.invalid() {
            let problem = format!("Unsupported value: {mode:?}: {problem}");
            return self.add("DetectLocalMode", "detectLocalMode", problem);
        }
        match document.detect_local_mode.value() {
            DetectLocalMode::ClusterCidr => self.cluster_cidrs(cluster_cidrs),
            DetectLocalMode::NodeCidr => {}
            DetectLocalMode::BridgeInterface => {
                let (name, field) = ("InterfaceName", "detectLocal.bridgeInterface");
                self.interface(name, field, &detect.bridge_interface);
            }
            DetectLocalMode::InterfaceNamePrefix => {
                let (name, field) = ("InterfacePrefix", "detectLocal.interfaceNamePrefix");
                self.interface(name, field, &detect.interface_name_prefix);
            }
        }
    }

    /// An interface's name goes into a rule's text, so it must be one (`dev_valid_name` in
    /// net/core/dev.c: at most 15 bytes, no slash, no colon, no white space).
    fn interface(&mut self, name: &str, field: &'static str, interface: &str) {
        let path = format!("DetectLocalConfiguration.{name}");
        if interface.is_empty() {
            return self.invalid(path, field, interface, "must not be empty");
        }
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"/:+\"'\\!".contains(&byte);
        if interface.len() > 15 || !interface.bytes().all(plain) {
            let problem = "cannot be an interface's name (or its beginning)";
            self.invalid(path, field, interface, problem);
        }
    }

    fn cluster_cidrs(&mut self, cidrs: &[String]) {
        let (path, field) = ("DetectLocalConfiguration.ClusterCIDRs", "clusterCIDR");
        if cidrs.len() > 2 {
            return self.invalid(path, field, cidrs, NOT_DUAL_STACK);
        }
        for (index, text) in cidrs.iter().enumerate() {
            if address::cidr(text).is_none() {
                let problem = "must be a valid CIDR block (e.g. 10.100.0.0/16 or \
                               fde4:8dba:82e1::/48)";
                self.invalid(format!("{path}[{index}]"), field, text, problem);
            }
        }
        let families: Vec<bool> = cidrs
            .iter()
            .filter_map(|text| address::cidr(text))
            .map(|net| net.addr().is_ipv4())
            .collect();
        if let [one, other] = families[..]
            && one == other
        {
            self.invalid(path, field, cidrs, NOT_DUAL_STACK);
        }
    }

    fn logging(&mut self, logging: &Logging, gates: &std::collections::BTreeMap<String, bool>) {
        let frequency = logging.flush_frequency.duration();
        if frequency <= GoDuration::ZERO {
            let (path, problem) = ("logging.flushFrequency", "Must be greater than zero");
            self.invalid(path, path, frequency.to_string(), problem);
        }
        // A flag may be empty.
        if logging.format.valid().is_none() {
            let path = "logging.format";
            self.invalid(path, path, logging.format.to_string(), "Unsupported log format");
        }
        self.verbosity("logging.verbosity".to_owned(), "logging.verbosity", logging.verbosity);
        self.vmodule(logging);
        if FeatureGates::new(gates).is_enabled(LOGGING_ALPHA) {
            return;
        }
        let (text, json) = (&logging.options.text, &logging.options.json);
        for (path, is_used) in [
            ("logging.options.text.splitStream", text.split_stream),
            ("logging.options.text.infoBufferSize", !text.info_buffer_size.is_zero()),
            ("logging.options.json.splitStream", json.split_stream),
            ("logging.options.json.infoBufferSize", !json.info_buffer_size.is_zero()),
        ] {
            if is_used {
                self.add(path, path, format!("Forbidden: Feature {LOGGING_ALPHA} is disabled"));
            }
        }
    }

    fn vmodule(&mut self, logging: &Logging) {
        let field = "logging.vmodule";
        if !logging.vmodule.is_empty() && logging.format != LogFormat::Text.into() {
            self.add(field, field, "Forbidden: Only supported for text log format".to_owned());
        }
        for (index, item) in logging.vmodule.iter().enumerate() {
            let path = format!("{field}[{index}]");
            if item.file_pattern.is_empty() {
                let problem = "Required value: File pattern must not be empty";
                self.add(&path, field, problem.to_owned());
            }
            if item.file_pattern.contains(['=', ',']) {
                let problem = "File pattern must not contain equal sign or comma";
                self.invalid(&path, field, &item.file_pattern, problem);
            }
            self.verbosity(path, field, item.verbosity);
        }
    }

    fn verbosity(&mut self, path: String, field: &'static str, verbosity: u32) {
        if i32::try_from(verbosity).is_err() {
            self.invalid(path, field, verbosity, &format!("Must be <= {}", i32::MAX));
        }
    }
}
