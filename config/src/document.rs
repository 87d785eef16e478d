//! `KubeProxyConfiguration` as it is written: the same fields, names and zero values as
//! kube-proxy's (`kubeproxy.config.k8s.io/v1alpha1`).
//!
//! Fields are in the order of their names, as kube-proxy writes them. What is not a matter of one field
//! alone, and kube-proxy's own paths for what is wrong, are in `config/src/validate.rs`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::settings::{Field, settings};
use super::text::Parsed;
use super::words::{DetectLocalMode, LogFormat, ProxyMode};
use syntax::address;
use syntax::duration::{GoDuration, InvalidDuration};
use syntax::quantity::Quantity;

/// The group and version of kube-proxy's document.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";

/// The kind of kube-proxy's document.
pub const KIND: &str = "KubeProxyConfiguration";

/// Media type in which kube-proxy talks to the API server, if no other is configured.
pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

const SYNC_PERIOD: GoDuration = GoDuration::from_secs(30);
const MIN_SYNC_PERIOD: GoDuration = GoDuration::from_secs(1);

const UNBUFFERED: &str = "log lines are not buffered";
const STANDARD_ERROR: &str = "all log lines go to standard error";
const NFTABLES: &str = "it belongs to kube-proxy's nftables mode";
const WINDOWS: &str = "it belongs to kube-proxy on Windows";

settings! {
    /// kube-proxy's document.
    pub struct KubeProxyConfiguration at "" {
        /// Must be kubeproxy.config.k8s.io/v1alpha1
        api_version: String = "apiVersion", "string" { default: API_VERSION, }
        /// Address whose IP family is this node's primary one. Nothing listens on it. Unspecified
        /// (0.0.0.0 or ::): the family of the first address in the Node object. In a file, the
        /// defaults of healthzBindAddress and metricsBindAddress have its family, too
        bind_address: String = "bindAddress", "address" {
            default: "0.0.0.0", flag: "bind-address" "ADDRESS" Node,
            set: set_address,
        }
        /// Exits if kube-ipvs cannot listen on the address of the health or the metrics server,
        /// instead of retrying
        bind_address_hard_fail: bool = "bindAddressHardFail", "bool" {
            flag: "bind-address-hard-fail" "BOOL" Serving,
        }
        client_connection: ClientConnection = "clientConnection";
        /// Pod networks for detectLocalMode ClusterCIDR, at most one of each IP family
        cluster_cidr: String = "clusterCIDR", "networks, separated by a comma" {
            flag: "cluster-cidr" "CIDR,..." Masquerading,
        }
        config_sync_period: GoDuration = "configSyncPeriod", "duration" {
            unused: "watches deliver every change, and the audit compares all kernel state within \
                     ipvs.syncPeriod",
            default: GoDuration::from_secs(15 * 60),
            flag: "config-sync-period" "DURATION" ApiServer,
        }
        conntrack: Conntrack = "conntrack";
        detect_local: DetectLocal = "detectLocal";
        /// Method to recognise traffic of this node's own pods, which is not masqueraded: {words}.
        /// Empty: ClusterCIDR
        detect_local_mode: Parsed<DetectLocalMode> = "detectLocalMode", "string" {
            flag: "detect-local-mode" "MODE" Masquerading,
        }
        /// Serves /debug/flags/v on the metrics server: a PUT of a number changes the log
        /// verbosity. /debug/pprof has no profiles; use perf
        enable_profiling: bool = "enableProfiling", "bool" { flag: "profiling" "BOOL" Serving, }
        /// AllowServiceExternalIPs=false ignores spec.externalIPs. ComponentFlagz and
        /// ComponentStatusz serve their pages. LoggingAlphaOptions permits alpha options of the
        /// log. AllAlpha and AllBeta set these gates by stage. Other feature gates of Kubernetes
        /// have no effect; a log line names them
        feature_gates: BTreeMap<String, bool> = "featureGates" (skip_serializing_if = "BTreeMap::is_empty"),
            "map of bool" {
            flag: "feature-gates" "NAME=BOOL,..." ApiServer,
        }
        /// Address and port of the health server (/healthz, /livez, /readyz)
        healthz_bind_address: String = "healthzBindAddress", "address:port" {
            flag: "healthz-bind-address" "ADDRESS:PORT" Serving,
            set: set_socket,
        }
        /// Name of this node, as EndpointSlices have it in nodeName. Empty: the host's name
        hostname_override: String = "hostnameOverride", "string" {
            flag: "hostname-override" "NAME" Node with_config,
            set: set_unless_empty,
        }
        iptables: Iptables = "iptables";
        ipvs: Ipvs = "ipvs";
        /// Must be KubeProxyConfiguration
        kind: String = "kind", "string" { default: KIND, }
        logging: Logging = "logging";
        /// Address and port of the metrics server (/metrics)
        metrics_bind_address: String = "metricsBindAddress", "address:port" {
            flag: "metrics-bind-address" "ADDRESS:PORT" Serving,
            set: set_socket,
        }
        /// Mode of the proxy: {words}. Empty: ipvs. nftables and kernelspace are refused
        mode: Parsed<ProxyMode> = "mode", "string" { flag: "proxy-mode" "MODE" Balancing, }
        nftables: Nftables = "nftables";
        /// Networks whose addresses on this node serve NodePorts. Instead of a network: primary
        /// (the first address of each family in the Node object), localhost (127.0.0.1 and ::1, as
        /// with localhostNodePorts), all. Empty or all: every address but loopback
        node_port_addresses: Vec<String> = "nodePortAddresses" (serialize_with = "null_if_empty"),
            "list of networks, primary, localhost, all" {
            flag: "nodeport-addresses" "CIDR,..." Balancing,
        }
        /// OOM score adjustment of this process, -1000 to 1000
        oom_score_adj: Option<i32> = "oomScoreAdj", "number, -1000 to 1000" {
            default: -999, flag: "oom-score-adj" "NUMBER" Node,
        }
        /// Ports of the node on which the relay listens, at most two for each Service port:
        /// 40000-40999, 40000+999 or one port, outside of the NodePort range. Empty: the kernel
        /// chooses them
        port_range: String = "portRange", "string" {
            in: [Userspace], flag: "proxy-port-range" "RANGE" Balancing,
        }
        show_hidden_metrics_for_version: String = "showHiddenMetricsForVersion", "string" {
            unused: "kube-ipvs has no hidden metrics",
            flag: "show-hidden-metrics-for-version" "VERSION" Serving,
        }
        windows_run_as_service: bool = "windowsRunAsService" (skip_serializing_if = "is_false"),
            "bool" {
            unused: WINDOWS,
        }
        winkernel: Winkernel = "winkernel";
    }
}

settings! {
    /// `clientConnection`: how to talk to the API server.
    pub struct ClientConnection at "clientConnection." {
        /// Media types in which lists and watches are accepted: with application/json and without
        /// application/vnd.kubernetes.protobuf, JSON alone. Empty: contentType decides
        accept_content_types: String = "acceptContentTypes", "string" {}
        /// Largest burst of requests to the API server
        burst: i32 = "burst", "number" { default: 10, flag: "kube-api-burst" "NUMBER" ApiServer, }
        /// Media type of lists and watches: application/json for JSON alone; any other for Protobuf,
        /// and for JSON from a server without it
        content_type: String = "contentType", "string" {
            default: CONTENT_TYPE, flag: "kube-api-content-type" "TYPE" ApiServer,
        }
        /// Kubeconfig file for the API server. Empty without --master: the pod's service account
        kubeconfig: String = "kubeconfig", "file" { flag: "kubeconfig" "FILE" ApiServer, }
        /// Requests per second to the API server on average; negative: no limit
        qps: f32 = "qps" (serialize_with = "whole_if_whole"), "number" {
            default: 5.0_f32, flag: "kube-api-qps" "NUMBER" ApiServer,
        }
    }
}

settings! {
    /// `conntrack`: the kernel's connection tracking.
    pub struct Conntrack at "conntrack." {
        /// Raises nf_conntrack_max to this number times the number of online CPUs, or to
        /// conntrack.min if that is more. A product above 1048576 is cut to 1048576, regardless of
        /// conntrack.min. 0 leaves nf_conntrack_max unchanged
        max_per_core: Option<i32> = "maxPerCore", "number" {
            default: 32 * 1_024, flag: "conntrack-max-per-core" "NUMBER" Conntrack,
        }
        /// Lowest nf_conntrack_max that conntrack.maxPerCore sets, unless its product is above
        /// 1048576; no effect if conntrack.maxPerCore is 0
        min: Option<i32> = "min", "number" {
            default: 128 * 1_024, flag: "conntrack-min" "NUMBER" Conntrack,
        }
        /// Sets nf_conntrack_tcp_be_liberal to 1: TCP packets outside of the window count as valid;
        /// false leaves it unchanged
        tcp_be_liberal: bool = "tcpBeLiberal", "bool" {
            flag: "conntrack-tcp-be-liberal" "BOOL" Conntrack,
        }
        /// Sets nf_conntrack_tcp_timeout_close_wait, the timeout of TCP connections in CLOSE_WAIT;
        /// 0s leaves it unchanged
        tcp_close_wait_timeout: Option<GoDuration> = "tcpCloseWaitTimeout", "duration" {
            default: GoDuration::from_secs(3_600),
            flag: "conntrack-tcp-timeout-close-wait" "DURATION" Conntrack,
        }
        /// Sets nf_conntrack_tcp_timeout_established, the timeout of idle TCP connections; 0s
        /// leaves it unchanged
        tcp_established_timeout: Option<GoDuration> = "tcpEstablishedTimeout", "duration" {
            default: GoDuration::from_secs(24 * 3_600),
            flag: "conntrack-tcp-timeout-established" "DURATION" Conntrack,
        }
        /// Sets nf_conntrack_udp_timeout_stream, the timeout of UDP flows with answers; 0s leaves
        /// it unchanged
        udp_stream_timeout: GoDuration = "udpStreamTimeout", "duration" {
            flag: "conntrack-udp-timeout-stream" "DURATION" Conntrack,
        }
        /// Sets nf_conntrack_udp_timeout, the timeout of UDP flows without an answer; 0s leaves it
        /// unchanged
        udp_timeout: GoDuration = "udpTimeout", "duration" {
            flag: "conntrack-udp-timeout" "DURATION" Conntrack,
        }
    }
}

settings! {
    /// `detectLocal`: what belongs to `detectLocalMode`.
    pub struct DetectLocal at "detectLocal." {
        /// Bridge of this node's pods, for detectLocalMode BridgeInterface
        bridge_interface: String = "bridgeInterface", "string" {
            flag: "pod-bridge-interface" "INTERFACE" Masquerading,
        }
        /// Prefix of the names of this node's pod interfaces, for detectLocalMode
        /// InterfaceNamePrefix
        interface_name_prefix: String = "interfaceNamePrefix", "string" {
            flag: "pod-interface-name-prefix" "PREFIX" Masquerading,
        }
    }
}

settings! {
    /// `iptables`: of that mode, and what other modes have from it.
    pub struct Iptables at "iptables." {
        /// Serves IPv4 NodePorts on loopback addresses, too, if nodePortAddresses includes
        /// 127.0.0.0 or a network of loopback addresses (an empty list does): sets
        /// net.ipv4.conf.all.route_localnet to 1. In IPVS mode, set localhostNodePorts of
        /// KubeIpvsConfiguration
        localhost_node_ports: Option<bool> = "localhostNodePorts", "bool" {
            in: [Iptables], default: true, flag: "iptables-localhost-nodeports" "BOOL" Masquerading,
        }
        /// Masquerades all traffic to cluster IPs
        masquerade_all: bool = "masqueradeAll", "bool" {
            flag: "masquerade-all" "BOOL" Masquerading,
        }
        /// Bit of the packet mark that requests masquerading, 0 to 31
        masquerade_bit: Option<i32> = "masqueradeBit", "number, 0 to 31" {
            default: 14, flag: "iptables-masquerade-bit" "BIT" Masquerading,
        }
        /// Minimum time between two writes; changes in between are written together
        min_sync_period: GoDuration = "minSyncPeriod", "duration" {
            in: [Iptables, Userspace], default: MIN_SYNC_PERIOD,
            flag: "iptables-min-sync-period" "DURATION" Balancing,
        }
        /// Half of the time that a change may be pending before /healthz fails. kube-ipvs does not
        /// rewrite rules periodically: it notices most changes by other programs within a second
        sync_period: GoDuration = "syncPeriod", "duration" {
            in: [Iptables, Userspace], default: SYNC_PERIOD,
            flag: "iptables-sync-period" "DURATION" Balancing,
        }
    }
}

settings! {
    /// `ipvs`: of our mode.
    pub struct Ipvs at "ipvs." {
        /// Networks of other programs: kube-ipvs does not remove unowned virtual servers, addresses
        /// and set entries inside them, in IPVS mode and after a switch from it
        exclude_cidrs: Vec<String> = "excludeCIDRs" (serialize_with = "null_if_empty"),
            "list of networks" {
            flag: "ipvs-exclude-cidrs" "CIDR,..." Balancing,
        }
        /// Minimum time between two writes; changes in between are written together
        min_sync_period: GoDuration = "minSyncPeriod", "duration" {
            in: [Ipvs], flag: "ipvs-min-sync-period" "DURATION" Balancing,
        }
        /// Scheduler of the virtual servers: rr, wrr, lc, wlc, sh, dh, sed, nq, mh or another one
        /// of the kernel. Empty: rr
        scheduler: String = "scheduler", "string" {
            in: [Ipvs], flag: "ipvs-scheduler" "NAME" Balancing,
        }
        /// Sets arp_ignore to 1 and arp_announce to 2: the node answers ARP requests only on the
        /// interface that has the address, and not for Service addresses
        strict_arp: bool = "strictARP", "bool" {
            in: [Ipvs], flag: "ipvs-strict-arp" "BOOL" Balancing,
        }
        /// Period of the audit, which compares all kernel state with the desired state, a part at a
        /// time. The period grows if the audit would use more than 0.8 % of a CPU. Independent of
        /// it, kube-ipvs notices most flushes and deletions within a second
        sync_period: GoDuration = "syncPeriod", "duration" {
            in: [Ipvs], default: SYNC_PERIOD, flag: "ipvs-sync-period" "DURATION" Balancing,
        }
        /// IPVS timeout of TCP connections after a FIN; 0s leaves the kernel's value
        tcp_fin_timeout: GoDuration = "tcpFinTimeout", "duration" {
            in: [Ipvs], flag: "ipvs-tcpfin-timeout" "DURATION" Balancing,
        }
        /// IPVS timeout of idle TCP connections; 0s leaves the kernel's value
        tcp_timeout: GoDuration = "tcpTimeout", "duration" {
            in: [Ipvs], flag: "ipvs-tcp-timeout" "DURATION" Balancing,
        }
        /// IPVS timeout of idle UDP flows; 0s leaves the kernel's value
        udp_timeout: GoDuration = "udpTimeout", "duration" {
            in: [Ipvs], flag: "ipvs-udp-timeout" "DURATION" Balancing,
        }
    }
}

settings! {
    /// `logging`.
    pub struct Logging at "logging." {
        flush_frequency: FlushFrequency = "flushFrequency", "duration, or nanoseconds" {
            unused: UNBUFFERED, default: FlushFrequency::Text(GoDuration::from_secs(5)),
            flag: "log-flush-frequency" "DURATION" Logging with_config,
        }
        /// Format of the log: {words}
        format: Parsed<LogFormat> = "format" (skip_serializing_if = "is_unset"), "string" {
            default: LogFormat::Text, flag: "logging-format" "FORMAT" Logging with_config,
        }
        options: FormatOptions = "options";
        /// Log verbosity, on kube-proxy's scale: from 4 on, every kernel change is logged. The
        /// environment variable RUST_LOG overrides it
        verbosity: u32 = "verbosity", "number" { flag: "v" "LEVEL" Logging with_config, }
        vmodule: Vec<VmoduleItem> = "vmodule" (skip_serializing_if = "Vec::is_empty");
    }
}

/// `logging.flushFrequency`: a duration, or a number of nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushFrequency {
    /// As nanoseconds, which is what the zero value is written as.
    Nanoseconds(i64),
    Text(GoDuration),
}

settings! {
    /// `logging.options`.
    pub struct FormatOptions at "logging.options." {
        json: JsonOptions = "json";
        text: TextOptions = "text";
    }
}

settings! {
    /// `logging.options.json`.
    pub struct JsonOptions at "logging.options.json." {
        info_buffer_size: Quantity = "infoBufferSize", "size" {
            unused: UNBUFFERED, flag: "log-json-info-buffer-size" "SIZE" Logging with_config,
        }
        split_stream: bool = "splitStream" (skip_serializing_if = "is_false"), "bool" {
            unused: STANDARD_ERROR, flag: "log-json-split-stream" "BOOL" Logging with_config,
        }
    }
}

settings! {
    /// `logging.options.text`.
    pub struct TextOptions at "logging.options.text." {
        info_buffer_size: Quantity = "infoBufferSize", "size" {
            unused: UNBUFFERED, flag: "log-text-info-buffer-size" "SIZE" Logging with_config,
        }
        split_stream: bool = "splitStream" (skip_serializing_if = "is_false"), "bool" {
            unused: STANDARD_ERROR, flag: "log-text-split-stream" "BOOL" Logging with_config,
        }
    }
}

settings! {
    /// An item of `logging.vmodule`.
    pub struct VmoduleItem at "logging.vmodule[]." {
        file_pattern: String = "filePattern", "string" {
            unused: "it names kube-proxy's source files",
            flag: "vmodule" "PATTERN=LEVEL,..." Logging with_config repeated,
        }
        verbosity: u32 = "verbosity", "number" { unused: "it selects kube-proxy's source files", }
    }
}

settings! {
    /// `nftables`: of that mode.
    pub struct Nftables at "nftables." {
        masquerade_all: bool = "masqueradeAll", "bool" { unused: NFTABLES, }
        masquerade_bit: Option<i32> = "masqueradeBit", "number" { unused: NFTABLES, default: 14, }
        min_sync_period: GoDuration = "minSyncPeriod", "duration" {
            unused: NFTABLES, default: MIN_SYNC_PERIOD,
        }
        sync_period: GoDuration = "syncPeriod", "duration" {
            unused: NFTABLES, default: SYNC_PERIOD,
        }
    }
}

settings! {
    /// `winkernel`: of Windows.
    pub struct Winkernel at "winkernel." {
        enable_dsr: bool = "enableDSR", "bool" { unused: WINDOWS, }
        forward_health_check_vip: bool = "forwardHealthCheckVip", "bool" { unused: WINDOWS, }
        network_name: String = "networkName", "string" { unused: WINDOWS, }
        root_hns_endpoint_name: String = "rootHnsEndpointName", "string" { unused: WINDOWS, }
        source_vip: String = "sourceVip", "string" { unused: WINDOWS, }
    }
}

impl ClientConnection {
    /// True if lists and watches are to come in JSON alone. As for client-go, the media type is what is accepted
    /// where nothing else is (`NewRequest` in rest/request.go).
    pub(super) fn wants_only_json(&self) -> bool {
        let listed = !self.accept_content_types.is_empty();
        let accepted = if listed { &self.accept_content_types } else { &self.content_type };
        let names = || accepted.split(',').filter_map(|it| it.split(';').next());
        let has = |wanted: &str| names().any(|name| name.trim().eq_ignore_ascii_case(wanted));
        has("application/json") && !has(CONTENT_TYPE)
    }
}

impl FlushFrequency {
    /// Returns the frequency as a duration.
    #[must_use]
    pub fn duration(self) -> GoDuration {
        match self {
            Self::Nanoseconds(nanoseconds) => GoDuration::from_nanos(nanoseconds),
            Self::Text(duration) => duration,
        }
    }
}

impl Field for FlushFrequency {
    fn is_unset(&self) -> bool {
        self.duration() == GoDuration::ZERO
    }

    fn set(&mut self, text: &str) -> Result<(), String> {
        let duration = text.parse().map_err(|problem: InvalidDuration| problem.to_string())?;
        *self = Self::Text(duration);
        Ok(())
    }
}

impl Default for FlushFrequency {
    fn default() -> Self {
        Self::Nanoseconds(0)
    }
}

impl Serialize for FlushFrequency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nanoseconds(nanoseconds) => serializer.serialize_i64(*nanoseconds),
            Self::Text(duration) => duration.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for FlushFrequency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = FlushFrequency;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a duration such as 5s, or a number of nanoseconds")
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<FlushFrequency, E> {
                Ok(FlushFrequency::Nanoseconds(value))
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<FlushFrequency, E> {
                i64::try_from(value).map(FlushFrequency::Nanoseconds).map_err(E::custom)
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<FlushFrequency, E> {
                value.parse().map(FlushFrequency::Text).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

fn is_unset<T>(text: &Parsed<T>) -> bool {
    matches!(text, Parsed::Unset)
}

/// Go writes an unset slice as null.
fn null_if_empty<S: Serializer>(list: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    if list.is_empty() { serializer.serialize_none() } else { list.serialize(serializer) }
}

/// Go writes a whole number without a point.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn whole_if_whole<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    #[expect(clippy::cast_possible_truncation, reason = "compared with the original")]
    let whole = *value as i64;
    #[expect(clippy::cast_precision_loss, reason = "compared with the original")]
    if whole as f32 == *value {
        serializer.serialize_i64(whole)
    } else {
        // The shortest text that is this value, which as a f64 is another number.
        let text = value.to_string();
        serializer.serialize_f64(text.parse().unwrap_or_else(|_| f64::from(*value)))
    }
}

fn set_unless_empty(field: &mut String, text: &str) -> Result<(), String> {
    if !text.is_empty() {
        text.clone_into(field);
    }
    Ok(())
}

fn set_address(field: &mut String, text: &str) -> Result<(), String> {
    if !text.is_empty() && address::ip(text).is_none() {
        return Err(format!("{text:?} is not a valid IP address"));
    }
    set_unless_empty(field, text)
}

/// Sets a field to an address, with or without a port.
fn set_socket(field: &mut String, text: &str) -> Result<(), String> {
    let is_address = address::ip(text).is_some() || address::socket(text).is_some();
    if !text.is_empty() && !is_address {
        return Err(format!("{text:?} is neither an IP address nor IP:port"));
    }
    set_unless_empty(field, text)
}

/// Adds `pattern=3,other=4`.
pub(super) fn add_vmodule(items: &mut Vec<VmoduleItem>, text: &str) -> Result<(), String> {
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let problem = || format!("{pair:?} does not have the pattern=N format");
        let (pattern, level) = pair.split_once('=').ok_or_else(problem)?;
        let verbosity = level.parse().map_err(|_| problem())?;
        items.push(VmoduleItem { file_pattern: pattern.to_owned(), verbosity });
    }
    Ok(())
}
