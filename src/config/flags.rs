//! From flags to documents, and what becomes of flags beside a file.

use std::collections::BTreeMap;

use serde_json::Value;

use super::arguments::Arguments;
use super::defaults::{HEALTHZ_PORT, METRICS_PORT};
use super::document::{FlushFrequency, KubeProxyConfiguration, Logging, VmoduleItem};
use super::kube_ipvs::KubeIpvsConfiguration;
use super::reference::{self, FIELDS, FLAGS_ONLY, Flag, Heading, OWN_FIELDS, Setting};
use super::text::{Parsed, Text};
use crate::syntax::address;
use crate::syntax::duration::GoDuration;

/// A flag, its setting and its default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagEntry {
    /// Flag.
    pub flag: Flag,
    /// Setting that the flag belongs to.
    pub setting: &'static Setting,
    /// Default as it would be written. Empty: none.
    pub default: String,
}

/// Every flag but retired ones, by name.
#[must_use]
pub fn all() -> BTreeMap<&'static str, FlagEntry> {
    let kube_proxy = serde_json::to_value(document(&Arguments::default())).unwrap_or_default();
    let own = serde_json::to_value(KubeIpvsConfiguration::default().with_defaults());
    let own = own.unwrap_or_default();
    let entry = |setting: &'static Setting, document: &Value| {
        let flag = setting.flag?;
        let default = match setting.path {
            "" => flag.default.to_owned(),
            path => reference::default_of(document, path),
        };
        Some((flag.name, FlagEntry { flag, setting, default }))
    };
    let of_kube_proxy = FIELDS.iter().chain(&FLAGS_ONLY);
    let of_kube_proxy = of_kube_proxy.filter_map(|setting| entry(setting, &kube_proxy));
    of_kube_proxy.chain(OWN_FIELDS.iter().filter_map(|setting| entry(setting, &own))).collect()
}

/// kube-proxy's document as the flags have it, where there is no file.
#[must_use]
pub(super) fn document(arguments: &Arguments) -> KubeProxyConfiguration {
    let mut document = KubeProxyConfiguration::default().with_defaults();
    // kube-proxy decides about the least period before it knows the mode, so that without a file
    // IPVS has the value of iptables.
    document.ipvs.min_sync_period = GoDuration::from_secs(1);
    connection(arguments, &mut document);
    served(arguments, &mut document);
    balancing(arguments, &mut document);
    local_detection(arguments, &mut document);
    conntrack(arguments, &mut document);
    logging(arguments, &mut document.logging);
    document
}

/// Logging flags count beside a file: what they say goes first.
pub(super) fn logging(arguments: &Arguments, logging: &mut Logging) {
    set_text(&arguments.logging_format, &mut logging.format);
    set(&arguments.v, &mut logging.verbosity);
    if let Some(frequency) = arguments.log_flush_frequency {
        logging.flush_frequency = FlushFrequency::Text(frequency);
    }
    let (text, json) = (&mut logging.options.text, &mut logging.options.json);
    set(&arguments.log_text_split_stream, &mut text.split_stream);
    set(&arguments.log_text_info_buffer_size, &mut text.info_buffer_size);
    set(&arguments.log_json_split_stream, &mut json.split_stream);
    set(&arguments.log_json_info_buffer_size, &mut json.info_buffer_size);
    let pairs = arguments.vmodule.iter().flat_map(|vmodule| &vmodule.0);
    let items = pairs.map(|(pattern, verbosity)| VmoduleItem {
        file_pattern: pattern.clone(),
        verbosity: *verbosity,
    });
    logging.vmodule.splice(0..0, items);
}

/// Our own flags count beside a file: kube-proxy has none by these names to be true to.
pub(super) fn own(arguments: &Arguments, own: &mut KubeIpvsConfiguration) {
    if arguments.console_socket.is_some() {
        own.console_socket.clone_from(&arguments.console_socket);
    }
    if arguments.cleanup_other_modes.is_some() {
        own.cleanup_other_modes = arguments.cleanup_other_modes;
    }
    if arguments.drain_deadline.is_some() {
        own.drain_deadline = arguments.drain_deadline;
    }
    set_text(&arguments.fallback, &mut own.fallback);
    set_text(&arguments.iptables_variant, &mut own.iptables_variant);
    set(&arguments.manifests, &mut own.manifests);
    set_text(&arguments.console_page, &mut own.console_page);
    set_text(&arguments.service_metrics, &mut own.service_metrics);
    if arguments.udp_timeout.is_some() {
        own.udp_idle_timeout = arguments.udp_timeout;
    }
}

/// Returns notes on flags that were given and are deprecated or have no effect.
#[must_use]
pub(super) fn notes(arguments: &Arguments) -> Vec<String> {
    let given = arguments.given.iter();
    let given: Vec<(&Setting, Flag)> =
        given.filter_map(|(name, _)| reference::of_flag(name)).collect();
    let mut notes = Vec::new();
    if let Some(file) = arguments.file() {
        notes.extend(replaced(&given, file));
    }
    for (setting, Flag { name, .. }) in given {
        match name {
            "healthz-port" => notes.push(deprecated(name, "healthz-bind-address")),
            "metrics-port" => notes.push(deprecated(name, "metrics-bind-address")),
            _ => {}
        }
        if let Some(why) = setting.effect.none_because() {
            notes.push(format!("--{name} has no effect: {why}"));
        }
    }
    notes
}

fn replaced(given: &[(&Setting, Flag)], file: &str) -> Option<String> {
    let replaced: Vec<String> = given
        .iter()
        .filter(|(_, flag)| !flag.with_config)
        .map(|(_, flag)| format!("--{}", flag.name))
        .collect();
    let verb = if replaced.len() == 1 { "has" } else { "have" };
    (!replaced.is_empty()).then(|| {
        format!(
            "{} {verb} no effect: the file {file} (--config) replaces flags",
            replaced.join(", ")
        )
    })
}

fn deprecated(name: &str, instead: &str) -> String {
    format!("--{name} is deprecated; use --{instead}")
}

// === impl FlagEntry ===

impl FlagEntry {
    /// Text of `--help`: the effect, and on a line of its own the default, and what becomes of the
    /// flag beside a file.
    #[must_use]
    pub fn help(&self) -> String {
        let Self { flag, setting, default } = self;
        let with_config = match (flag.with_config, setting.path) {
            // These are about the command line itself.
            _ if flag.heading == Heading::Options => None,
            _ if setting.effect.none_because().is_some() => None,
            (true, "") => Some("applies".to_owned()),
            (true, path) => Some(format!("overrides {path}")),
            (false, "") => Some("ignored".to_owned()),
            (false, path) => Some(format!("replaced by {path}")),
        };
        let default = (!default.is_empty()).then(|| format!("[default: {default}]"));
        let with_config = with_config.map(|text| format!("[with --config: {text}]"));
        let notes: Vec<String> = default.into_iter().chain(with_config).collect();
        format!("{setting}\n{}", notes.join(" ")).trim_end().to_owned()
    }
}

fn connection(arguments: &Arguments, document: &mut KubeProxyConfiguration) {
    let connection = &mut document.client_connection;
    set(&arguments.kubeconfig, &mut connection.kubeconfig);
    set(&arguments.kube_api_content_type, &mut connection.content_type);
    set(&arguments.kube_api_qps, &mut connection.qps);
    set(&arguments.kube_api_burst, &mut connection.burst);
    set(&arguments.config_sync_period, &mut document.config_sync_period);
    for (name, enabled) in arguments.feature_gates.iter().flat_map(|settings| &settings.0) {
        document.feature_gates.insert(name.clone(), *enabled);
    }
}

fn served(arguments: &Arguments, document: &mut KubeProxyConfiguration) {
    set_unless_empty(&arguments.bind_address, &mut document.bind_address);
    set_unless_empty(&arguments.healthz_bind_address, &mut document.healthz_bind_address);
    set_unless_empty(&arguments.metrics_bind_address, &mut document.metrics_bind_address);
    // kube-proxy does not look at the ports when it only writes its configuration.
    if arguments.write_config_to.as_deref().unwrap_or_default().is_empty() {
        let (healthz, metrics) = (arguments.healthz_port, arguments.metrics_port);
        with_port(healthz, HEALTHZ_PORT, &mut document.healthz_bind_address);
        with_port(metrics, METRICS_PORT, &mut document.metrics_bind_address);
    }
    set(&arguments.bind_address_hard_fail, &mut document.bind_address_hard_fail);
    set(&arguments.profiling, &mut document.enable_profiling);
    let version = &mut document.show_hidden_metrics_for_version;
    set(&arguments.show_hidden_metrics_for_version, version);
    set_option(&arguments.oom_score_adj, &mut document.oom_score_adj);
}

fn balancing(arguments: &Arguments, document: &mut KubeProxyConfiguration) {
    set_text(&arguments.proxy_mode, &mut document.mode);
    let ipvs = &mut document.ipvs;
    set(&arguments.ipvs_scheduler, &mut ipvs.scheduler);
    ipvs.exclude_cidrs = list(&arguments.ipvs_exclude_cidrs);
    set(&arguments.ipvs_strict_arp, &mut ipvs.strict_arp);
    set(&arguments.ipvs_sync_period, &mut ipvs.sync_period);
    set(&arguments.ipvs_min_sync_period, &mut ipvs.min_sync_period);
    set(&arguments.ipvs_tcp_timeout, &mut ipvs.tcp_timeout);
    set(&arguments.ipvs_tcpfin_timeout, &mut ipvs.tcp_fin_timeout);
    set(&arguments.ipvs_udp_timeout, &mut ipvs.udp_timeout);
    document.node_port_addresses = list(&arguments.nodeport_addresses);
    set(&arguments.proxy_port_range, &mut document.port_range);
    let iptables = &mut document.iptables;
    set(&arguments.masquerade_all, &mut iptables.masquerade_all);
    set_option(&arguments.iptables_masquerade_bit, &mut iptables.masquerade_bit);
    set_option(&arguments.iptables_localhost_nodeports, &mut iptables.localhost_node_ports);
    set(&arguments.iptables_sync_period, &mut iptables.sync_period);
    set(&arguments.iptables_min_sync_period, &mut iptables.min_sync_period);
}

fn local_detection(arguments: &Arguments, document: &mut KubeProxyConfiguration) {
    set_text(&arguments.detect_local_mode, &mut document.detect_local_mode);
    set(&arguments.cluster_cidr, &mut document.cluster_cidr);
    let detect = &mut document.detect_local;
    set(&arguments.pod_bridge_interface, &mut detect.bridge_interface);
    set(&arguments.pod_interface_name_prefix, &mut detect.interface_name_prefix);
}

fn conntrack(arguments: &Arguments, document: &mut KubeProxyConfiguration) {
    let conntrack = &mut document.conntrack;
    set_option(&arguments.conntrack_max_per_core, &mut conntrack.max_per_core);
    set_option(&arguments.conntrack_min, &mut conntrack.min);
    let established = &mut conntrack.tcp_established_timeout;
    set_option(&arguments.conntrack_tcp_timeout_established, established);
    let close_wait = &mut conntrack.tcp_close_wait_timeout;
    set_option(&arguments.conntrack_tcp_timeout_close_wait, close_wait);
    set(&arguments.conntrack_tcp_be_liberal, &mut conntrack.tcp_be_liberal);
    set(&arguments.conntrack_udp_timeout, &mut conntrack.udp_timeout);
    set(&arguments.conntrack_udp_timeout_stream, &mut conntrack.udp_stream_timeout);
}

fn set<T: Clone>(given: &Option<T>, field: &mut T) {
    if let Some(value) = given {
        field.clone_from(value);
    }
}

fn set_text<T: Text>(given: &Option<String>, field: &mut Parsed<T>) {
    if let Some(text) = given {
        *field = Parsed::new(text);
    }
}

fn set_option<T: Clone>(given: &Option<T>, field: &mut Option<T>) {
    if given.is_some() {
        field.clone_from(given);
    }
}

fn set_unless_empty(given: &Option<String>, field: &mut String) {
    if let Some(value) = given.as_ref().filter(|value| !value.is_empty()) {
        field.clone_from(value);
    }
}

/// Flags that may be given more than once, each time with any number of items.
fn list(given: &[String]) -> Vec<String> {
    let given = given.iter().filter(|items| !items.is_empty());
    given.flat_map(|items| items.split(',')).map(|item| item.trim().to_owned()).collect()
}

/// The flags from before there were addresses: 0 means not to serve, another number is the port of
/// an address that has none.
fn with_port(given: Option<i32>, default: u16, field: &mut String) {
    let port = given.unwrap_or_else(|| i32::from(default));
    match u16::try_from(port) {
        Ok(0) => field.clear(),
        Ok(port) => *field = address::with_port(field, port),
        // Found by validation, as part of the address.
        Err(_) if address::ip(field).is_some() => *field = format!("{field}:{port}"),
        Err(_) => {}
    }
}
