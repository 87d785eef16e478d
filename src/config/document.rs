//! `KubeProxyConfiguration` as it is written: the same fields, names and zero values as
//! kube-proxy's (`kubeproxy.config.k8s.io/v1alpha1`).
//!
//! Fields are in the order of their names, as kube-proxy writes them. Nothing here is checked:
//! that is done in `src/config/validate.rs`, on the document that files and flags end up as.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::mode::ProxyMode;
use super::resolved::LogFormat;
use super::text::Parsed;
use super::words::DetectLocalMode;
use crate::syntax::duration::GoDuration;
use crate::syntax::quantity::Quantity;

/// The group and version of kube-proxy's document.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";

/// The kind of kube-proxy's document.
pub const KIND: &str = "KubeProxyConfiguration";

/// kube-proxy's document.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct KubeProxyConfiguration {
    pub api_version: String,
    pub bind_address: String,
    pub bind_address_hard_fail: bool,
    pub client_connection: ClientConnection,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    pub config_sync_period: GoDuration,
    pub conntrack: Conntrack,
    pub detect_local: DetectLocal,
    pub detect_local_mode: Parsed<DetectLocalMode>,
    pub enable_profiling: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    pub healthz_bind_address: String,
    pub hostname_override: String,
    pub iptables: Iptables,
    pub ipvs: Ipvs,
    pub kind: String,
    pub logging: Logging,
    pub metrics_bind_address: String,
    pub mode: Parsed<ProxyMode>,
    pub nftables: Nftables,
    #[serde(serialize_with = "null_if_empty")]
    pub node_port_addresses: Vec<String>,
    pub oom_score_adj: Option<i32>,
    pub port_range: String,
    pub show_hidden_metrics_for_version: String,
    #[serde(skip_serializing_if = "is_false")]
    pub windows_run_as_service: bool,
    pub winkernel: Winkernel,
}

/// `clientConnection`: how to talk to the API server.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct ClientConnection {
    pub accept_content_types: String,
    pub burst: i32,
    pub content_type: String,
    pub kubeconfig: String,
    #[serde(serialize_with = "whole_if_whole")]
    pub qps: f32,
}

/// `conntrack`: the kernel's connection tracking.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct Conntrack {
    pub max_per_core: Option<i32>,
    pub min: Option<i32>,
    pub tcp_be_liberal: bool,
    pub tcp_close_wait_timeout: Option<GoDuration>,
    pub tcp_established_timeout: Option<GoDuration>,
    pub udp_stream_timeout: GoDuration,
    pub udp_timeout: GoDuration,
}

/// `detectLocal`: what belongs to `detectLocalMode`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct DetectLocal {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

/// `iptables`: of that mode, and what other modes have from it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct Iptables {
    pub localhost_node_ports: Option<bool>,
    pub masquerade_all: bool,
    pub masquerade_bit: Option<i32>,
    pub min_sync_period: GoDuration,
    pub sync_period: GoDuration,
}

/// `ipvs`: of our mode.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct Ipvs {
    #[serde(rename = "excludeCIDRs", serialize_with = "null_if_empty")]
    pub exclude_cidrs: Vec<String>,
    pub min_sync_period: GoDuration,
    pub scheduler: String,
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    pub sync_period: GoDuration,
    pub tcp_fin_timeout: GoDuration,
    pub tcp_timeout: GoDuration,
    pub udp_timeout: GoDuration,
}

/// `logging`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct Logging {
    pub flush_frequency: FlushFrequency,
    #[serde(skip_serializing_if = "is_unset")]
    pub format: Parsed<LogFormat>,
    pub options: FormatOptions,
    pub verbosity: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vmodule: Vec<VmoduleItem>,
}

/// `logging.flushFrequency`: a duration, or a number of nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushFrequency {
    /// As nanoseconds, which is what the zero value is written as.
    Nanoseconds(i64),
    /// As text.
    Text(GoDuration),
}

/// `logging.options`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct FormatOptions {
    pub json: OutputRouting,
    pub text: OutputRouting,
}

/// `logging.options.json` and `logging.options.text`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct OutputRouting {
    pub info_buffer_size: Quantity,
    #[serde(skip_serializing_if = "is_false")]
    pub split_stream: bool,
}

/// An item of `logging.vmodule`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct VmoduleItem {
    pub file_pattern: String,
    pub verbosity: u32,
}

/// `nftables`: of that mode.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct Nftables {
    pub masquerade_all: bool,
    pub masquerade_bit: Option<i32>,
    pub min_sync_period: GoDuration,
    pub sync_period: GoDuration,
}

/// `winkernel`: of Windows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct Winkernel {
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    pub forward_health_check_vip: bool,
    pub network_name: String,
    pub root_hns_endpoint_name: String,
    pub source_vip: String,
}

// === impl FlushFrequency ===

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
