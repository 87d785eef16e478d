//! Flags as they are written, each with its type. `src/config/reference.rs` says what they do.

use std::str::FromStr;

use clap::Args;

use crate::syntax::address;
use crate::syntax::duration::GoDuration;
use crate::syntax::quantity::Quantity;
use crate::version::VERSION;

/// Flags of a command line. In the order of `--help`, whose texts the reference has.
#[derive(Debug, Clone, Default, Args)]
#[expect(missing_docs, reason = "every flag is described in docs/config.md")]
pub struct Arguments {
    #[arg(long)]
    pub config: Option<String>,
    #[arg(long)]
    pub write_config_to: Option<String>,
    #[arg(long)]
    pub cleanup: Option<bool>,
    #[arg(long)]
    pub init_only: Option<bool>,
    #[arg(long)]
    pub hand_over: Option<bool>,
    #[arg(long)]
    pub cleanup_other_modes: Option<bool>,
    #[arg(long)]
    pub console_socket: Option<String>,
    #[arg(long)]
    pub master: Option<String>,
    #[arg(long)]
    pub kubeconfig: Option<String>,
    #[arg(long)]
    pub manifests: Option<String>,
    #[arg(long)]
    pub kube_api_content_type: Option<String>,
    #[arg(long)]
    pub kube_api_qps: Option<f32>,
    #[arg(long)]
    pub kube_api_burst: Option<i32>,
    #[arg(long)]
    pub config_sync_period: Option<GoDuration>,
    #[arg(long)]
    pub feature_gates: Vec<GateSettings>,
    #[arg(long)]
    pub hostname_override: Option<String>,
    #[arg(long, value_parser = ip_or_nothing)]
    pub bind_address: Option<String>,
    #[arg(long)]
    pub oom_score_adj: Option<i32>,
    #[arg(long, value_parser = socket_or_nothing)]
    pub healthz_bind_address: Option<String>,
    #[arg(long, value_parser = socket_or_nothing)]
    pub metrics_bind_address: Option<String>,
    #[arg(long)]
    pub bind_address_hard_fail: Option<bool>,
    #[arg(long)]
    pub console_page: Option<String>,
    #[arg(long)]
    pub service_metrics: Option<String>,
    #[arg(long)]
    pub profiling: Option<bool>,
    #[arg(long)]
    pub show_hidden_metrics_for_version: Option<String>,
    #[arg(long)]
    pub healthz_port: Option<i32>,
    #[arg(long)]
    pub metrics_port: Option<i32>,
    #[arg(long)]
    pub proxy_mode: Option<String>,
    #[arg(long)]
    pub fallback: Option<String>,
    #[arg(long)]
    pub ipvs_scheduler: Option<String>,
    #[arg(long)]
    pub ipvs_exclude_cidrs: Vec<String>,
    #[arg(long)]
    pub ipvs_strict_arp: Option<bool>,
    #[arg(long)]
    pub ipvs_sync_period: Option<GoDuration>,
    #[arg(long)]
    pub ipvs_min_sync_period: Option<GoDuration>,
    #[arg(long)]
    pub ipvs_tcp_timeout: Option<GoDuration>,
    #[arg(long)]
    pub ipvs_tcpfin_timeout: Option<GoDuration>,
    #[arg(long)]
    pub ipvs_udp_timeout: Option<GoDuration>,
    #[arg(long)]
    pub drain_deadline: Option<GoDuration>,
    #[arg(long)]
    pub iptables_sync_period: Option<GoDuration>,
    #[arg(long)]
    pub iptables_min_sync_period: Option<GoDuration>,
    #[arg(long)]
    pub nodeport_addresses: Vec<String>,
    #[arg(long)]
    pub proxy_port_range: Option<String>,
    #[arg(long)]
    pub udp_timeout: Option<GoDuration>,
    #[arg(long)]
    pub masquerade_all: Option<bool>,
    #[arg(long)]
    pub iptables_masquerade_bit: Option<i32>,
    #[arg(long)]
    pub iptables_localhost_nodeports: Option<bool>,
    #[arg(long)]
    pub iptables_variant: Option<String>,
    #[arg(long)]
    pub detect_local_mode: Option<String>,
    #[arg(long)]
    pub cluster_cidr: Option<String>,
    #[arg(long)]
    pub pod_bridge_interface: Option<String>,
    #[arg(long)]
    pub pod_interface_name_prefix: Option<String>,
    #[arg(long)]
    pub conntrack_max_per_core: Option<i32>,
    #[arg(long)]
    pub conntrack_min: Option<i32>,
    #[arg(long)]
    pub conntrack_tcp_timeout_established: Option<GoDuration>,
    #[arg(long)]
    pub conntrack_tcp_timeout_close_wait: Option<GoDuration>,
    #[arg(long)]
    pub conntrack_tcp_be_liberal: Option<bool>,
    #[arg(long)]
    pub conntrack_udp_timeout: Option<GoDuration>,
    #[arg(long)]
    pub conntrack_udp_timeout_stream: Option<GoDuration>,
    #[arg(short, long)]
    pub v: Option<u32>,
    #[arg(long)]
    pub vmodule: Vec<Vmodule>,
    #[arg(long)]
    pub logging_format: Option<String>,
    #[arg(long)]
    pub log_flush_frequency: Option<GoDuration>,
    #[arg(long)]
    pub log_text_split_stream: Option<bool>,
    #[arg(long)]
    pub log_text_info_buffer_size: Option<Quantity>,
    #[arg(long)]
    pub log_json_split_stream: Option<bool>,
    #[arg(long)]
    pub log_json_info_buffer_size: Option<Quantity>,
    #[arg(long)]
    pub boot_id_file: Option<String>,
    #[arg(long)]
    pub machine_id_file: Option<String>,
    #[arg(long, require_equals = true, num_args = 0..=1, default_missing_value = "true")]
    pub version: Option<String>,
    /// Flags that were given, by name, with their values as they were written.
    #[arg(skip)]
    pub given: Vec<(String, String)>,
}

/// One `--feature-gates`: `Name=true,Other=false`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateSettings(pub Vec<(String, bool)>);

/// One `--vmodule`: `pattern=3,other=4`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vmodule(pub Vec<(String, u32)>);

// === impl Arguments ===

impl Arguments {
    /// The version that is reported.
    #[must_use]
    pub fn reported_version(&self) -> &str {
        match self.version.as_deref() {
            Some(version) if version.starts_with('v') => version,
            _ => &VERSION,
        }
    }

    /// The configuration file, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.config.as_deref().filter(|path| !path.is_empty())
    }
}

// === impl GateSettings ===

impl FromStr for GateSettings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pairs = text.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("malformed pair {pair:?}, expect string=bool"))?;
            let value = go_bool(value.trim())
                .map_err(|problem| format!("invalid value of {}: {problem}", name.trim()))?;
            Ok((name.trim().to_owned(), value))
        });
        pairs.collect::<Result<_, String>>().map(Self)
    }
}

// === impl Vmodule ===

impl FromStr for Vmodule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pairs = text.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
            let problem = || format!("{pair:?} does not have the pattern=N format");
            let (pattern, level) = pair.split_once('=').ok_or_else(problem)?;
            Ok((pattern.to_owned(), level.parse().map_err(|_| problem())?))
        });
        pairs.collect::<Result<_, String>>().map(Self)
    }
}

/// Parses the values that Go's `strconv.ParseBool` accepts.
pub(crate) fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

fn ip_or_nothing(text: &str) -> Result<String, String> {
    if text.is_empty() || address::ip(text).is_some() {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not a valid IP address"))
    }
}

fn socket_or_nothing(text: &str) -> Result<String, String> {
    let is_address = address::ip(text).is_some() || address::socket(text).is_some();
    if text.is_empty() || is_address {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is neither an IP address nor IP:port"))
    }
}
