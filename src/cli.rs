//! The command line: every flag of kube-proxy's, with its name and meaning, and a few of our own.
//!
//! This module reads flags as they are written. `src/config` says what they mean, and what holds
//! where nothing is written.

mod help;
pub(crate) mod retired;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::str::FromStr;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser};

use crate::config::address;
use crate::config::duration::GoDuration;
use crate::config::quantity::Quantity;
use crate::version::VERSION;

/// kube-proxy's IPVS mode: Services and EndpointSlices in, IPVS out.
///
/// docs/config.md says more of each flag.
#[derive(Debug, Clone, Default, Parser)]
#[command(name = "kube-ipvs", about, max_term_width = 100, disable_version_flag = true)]
pub struct Arguments {
    /// Read the configuration from this file: a KubeProxyConfiguration as kube-proxy has it, and
    /// after it, if there is one, a KubeIpvsConfiguration. It replaces all other flags but those
    /// that say otherwise.
    #[arg(long, value_name = "FILE", help_heading = "Files and actions")]
    pub config: Option<String>,

    /// Write the configuration that would be in force to this file, and end.
    #[arg(long, value_name = "FILE", help_heading = "Files and actions")]
    pub write_config_to: Option<String>,

    /// Remove everything that this program and kube-proxy have put into the kernel, and end.
    #[arg(long, value_name = "BOOL", value_parser = go_bool, help_heading = "Files and actions")]
    pub cleanup: Option<bool>,

    /// Do only what needs all privileges, and end.
    #[arg(long, value_name = "BOOL", value_parser = go_bool, help_heading = "Files and actions")]
    pub init_only: Option<bool>,

    /// Read Services, EndpointSlices and this node's Node from the YAML files in this folder, and
    /// follow them as they are saved. No API server is needed. Has effect with --config too.
    #[arg(long, value_name = "DIRECTORY", help_heading = "Files and actions")]
    pub manifests: Option<String>,

    /// Remove what kube-proxy's other modes have left, once IPVS carries the traffic. Has effect with
    /// --config too.
    #[arg(long, value_name = "BOOL", value_parser = go_bool, help_heading = "Files and actions")]
    pub cleanup_other_modes: Option<bool>,

    /// The API server, instead of the one that the kubeconfig names. Has effect with --config too.
    #[arg(long, value_name = "URL", help_heading = "The API server")]
    pub master: Option<String>,

    /// Kubeconfig of the API server. Without it and without --master: as a pod of the cluster.
    #[arg(long, value_name = "FILE", help_heading = "The API server")]
    pub kubeconfig: Option<String>,

    /// Content type for the API server. No effect: JSON.
    #[arg(long, value_name = "TYPE", help_heading = "The API server")]
    pub kube_api_content_type: Option<String>,

    /// Requests per second to the API server on average.
    #[arg(long, value_name = "NUMBER", help_heading = "The API server")]
    pub kube_api_qps: Option<f32>,

    /// Burst of requests to the API server.
    #[arg(long, value_name = "NUMBER", help_heading = "The API server")]
    pub kube_api_burst: Option<i32>,

    /// Resync period of kube-proxy's informers. No effect.
    #[arg(long, value_name = "DURATION", help_heading = "The API server")]
    pub config_sync_period: Option<GoDuration>,

    /// Feature gates, as all components of Kubernetes take them.
    #[arg(long, value_name = "NAME=BOOL", help_heading = "The API server")]
    pub feature_gates: Vec<GateSettings>,

    /// This node's name, as EndpointSlices have it in nodeName. Default: the host's name. Has
    /// effect with --config too.
    #[arg(long, value_name = "NAME", help_heading = "The node")]
    pub hostname_override: Option<String>,

    /// This node's primary address, if it is not the one that its Node object names first. Nothing
    /// is bound to it.
    #[arg(long, value_name = "ADDRESS", value_parser = ip_or_nothing, help_heading = "The node")]
    pub bind_address: Option<String>,

    /// OOM score adjustment of this process, -1000 to 1000.
    #[arg(long, value_name = "NUMBER", help_heading = "The node")]
    pub oom_score_adj: Option<i32>,

    /// Address and port of the health server (/healthz, /livez).
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_or_nothing,
          help_heading = "What is served")]
    pub healthz_bind_address: Option<String>,

    /// Address and port of the metrics server.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_or_nothing,
          help_heading = "What is served")]
    pub metrics_bind_address: Option<String>,

    /// End when an address cannot be served on, instead of trying again.
    #[arg(long, value_name = "BOOL", value_parser = go_bool, help_heading = "What is served")]
    pub bind_address_hard_fail: Option<bool>,

    /// Serve /debug/flags/v, which changes the log's verbosity.
    #[arg(long, value_name = "BOOL", value_parser = go_bool, help_heading = "What is served")]
    pub profiling: Option<bool>,

    /// Show metrics that this version has hidden: kube-proxy's previous minor version.
    #[arg(long, value_name = "VERSION", help_heading = "What is served")]
    pub show_hidden_metrics_for_version: Option<String>,

    /// Deprecated: the port of --healthz-bind-address, if that has none; 0 serves nothing.
    #[arg(long, value_name = "PORT", help_heading = "What is served")]
    pub healthz_port: Option<i32>,

    /// Deprecated: the port of --metrics-bind-address, if that has none.
    #[arg(long, value_name = "PORT", help_heading = "What is served")]
    pub metrics_port: Option<i32>,

    /// The proxy mode: ipvs, the only one yet.
    #[arg(long, value_name = "MODE", help_heading = "Balancing")]
    pub proxy_mode: Option<String>,

    /// The scheduler of every virtual server: rr, wrr, lc, wlc, sh, dh, sed, nq, mh, ... as the
    /// kernel has them.
    #[arg(long, value_name = "NAME", help_heading = "Balancing")]
    pub ipvs_scheduler: Option<String>,

    /// Networks of other programs: virtual servers, addresses and set entries inside them are never
    /// touched.
    #[arg(long, value_name = "CIDRS", help_heading = "Balancing")]
    pub ipvs_exclude_cidrs: Vec<String>,

    /// Answer ARP only on the interface that has the address (arp_ignore 1, arp_announce 2).
    #[arg(long, value_name = "BOOL", value_parser = go_bool, help_heading = "Balancing")]
    pub ipvs_strict_arp: Option<bool>,

    /// Period in which all kernel state is compared with the desired state.
    #[arg(long, value_name = "DURATION", help_heading = "Balancing")]
    pub ipvs_sync_period: Option<GoDuration>,

    /// Least time between two writes: changes within it are written together.
    #[arg(long, value_name = "DURATION", help_heading = "Balancing")]
    pub ipvs_min_sync_period: Option<GoDuration>,

    /// IPVS timeout of idle TCP connections; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", help_heading = "Balancing")]
    pub ipvs_tcp_timeout: Option<GoDuration>,

    /// IPVS timeout of TCP connections after a FIN; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", help_heading = "Balancing")]
    pub ipvs_tcpfin_timeout: Option<GoDuration>,

    /// IPVS timeout of idle UDP flows; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", help_heading = "Balancing")]
    pub ipvs_udp_timeout: Option<GoDuration>,

    /// Time that the connections of a removed endpoint have to end. Has effect
    /// with --config too.
    #[arg(long, value_name = "DURATION", help_heading = "Balancing")]
    pub drain_deadline: Option<GoDuration>,

    /// Serve node ports on the node's addresses inside these networks only. Words for some: primary
    /// (the first of each family in the Node object), localhost, all.
    #[arg(long, value_name = "CIDRS", help_heading = "Balancing")]
    pub nodeport_addresses: Vec<String>,

    /// Masquerade everything that is sent to a cluster address.
    #[arg(long, value_name = "BOOL", value_parser = go_bool, help_heading = "Masquerading")]
    pub masquerade_all: Option<bool>,

    /// The bit of the packet mark that means "masquerade this", 0 to 31.
    #[arg(long, value_name = "BIT", help_heading = "Masquerading")]
    pub iptables_masquerade_bit: Option<i32>,

    /// Kind of iptables to use, where the host has both: auto, nft or legacy. Has
    /// effect with --config too.
    #[arg(long, value_name = "VARIANT", help_heading = "Masquerading")]
    pub iptables_variant: Option<String>,

    /// Way to detect traffic of this node's own pods: ClusterCIDR, NodeCIDR, BridgeInterface or
    /// InterfaceNamePrefix.
    #[arg(long, value_name = "MODE", help_heading = "Masquerading")]
    pub detect_local_mode: Option<String>,

    /// With ClusterCIDR: the pods' networks, one of each family at most.
    #[arg(long, value_name = "CIDRS", help_heading = "Masquerading")]
    pub cluster_cidr: Option<String>,

    /// With BridgeInterface: the bridge that this node's pods are on.
    #[arg(long, value_name = "INTERFACE", help_heading = "Masquerading")]
    pub pod_bridge_interface: Option<String>,

    /// With InterfaceNamePrefix: the prefix of the interfaces of this node's pods.
    #[arg(long, value_name = "PREFIX", help_heading = "Masquerading")]
    pub pod_interface_name_prefix: Option<String>,

    /// Limit of tracked connections per processor core; 0 leaves the kernel's limit.
    #[arg(long, value_name = "NUMBER", help_heading = "Connection tracking")]
    pub conntrack_max_per_core: Option<i32>,

    /// Least limit of tracked connections, whatever the number of cores.
    #[arg(long, value_name = "NUMBER", help_heading = "Connection tracking")]
    pub conntrack_min: Option<i32>,

    /// Conntrack timeout of established TCP connections; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", help_heading = "Connection tracking")]
    pub conntrack_tcp_timeout_established: Option<GoDuration>,

    /// Conntrack timeout of TCP connections in CLOSE_WAIT; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", help_heading = "Connection tracking")]
    pub conntrack_tcp_timeout_close_wait: Option<GoDuration>,

    /// Take TCP packets outside the window for valid ones.
    #[arg(long, value_name = "BOOL", value_parser = go_bool, help_heading = "Connection tracking")]
    pub conntrack_tcp_be_liberal: Option<bool>,

    /// Conntrack timeout of UDP flows without an answer; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", help_heading = "Connection tracking")]
    pub conntrack_udp_timeout: Option<GoDuration>,

    /// Conntrack timeout of UDP flows with answers; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", help_heading = "Connection tracking")]
    pub conntrack_udp_timeout_stream: Option<GoDuration>,

    /// Verbosity of the log, 0 to 10 as with kube-proxy; 4 and more show every kernel change.
    #[arg(short, long, value_name = "LEVEL", help_heading = "Logging")]
    pub v: Option<u32>,

    /// Verbosity by source file. No effect.
    #[arg(long, value_name = "PATTERN=LEVEL", help_heading = "Logging")]
    pub vmodule: Vec<Vmodule>,

    /// Format of the log: text or json.
    #[arg(long, value_name = "FORMAT", help_heading = "Logging")]
    pub logging_format: Option<String>,

    /// Period in which log lines are flushed. No effect.
    #[arg(long, value_name = "DURATION", help_heading = "Logging")]
    pub log_flush_frequency: Option<GoDuration>,

    /// With text: errors to standard error, the rest to standard output. No effect.
    #[arg(long, value_name = "BOOL", value_parser = go_bool, help_heading = "Logging")]
    pub log_text_split_stream: Option<bool>,

    /// With text and two streams: size of the buffer. No effect.
    #[arg(long, value_name = "SIZE", help_heading = "Logging")]
    pub log_text_info_buffer_size: Option<Quantity>,

    /// With json: errors to standard error, the rest to standard output. No effect.
    #[arg(long, value_name = "BOOL", value_parser = go_bool, help_heading = "Logging")]
    pub log_json_split_stream: Option<bool>,

    /// With json and two streams: size of the buffer. No effect.
    #[arg(long, value_name = "SIZE", help_heading = "Logging")]
    pub log_json_info_buffer_size: Option<Quantity>,

    /// Setting of kube-proxy's mode iptables.
    #[arg(long, value_name = "BOOL", value_parser = go_bool, help_heading = "Of no effect")]
    pub iptables_localhost_nodeports: Option<bool>,

    /// Setting of kube-proxy's mode iptables.
    #[arg(long, value_name = "DURATION", help_heading = "Of no effect")]
    pub iptables_sync_period: Option<GoDuration>,

    /// Setting of kube-proxy's mode iptables.
    #[arg(long, value_name = "DURATION", help_heading = "Of no effect")]
    pub iptables_min_sync_period: Option<GoDuration>,

    /// Setting of a library that kube-proxy has.
    #[arg(long, value_name = "FILES", help_heading = "Of no effect")]
    pub boot_id_file: Option<String>,

    /// Setting of a library that kube-proxy has.
    #[arg(long, value_name = "FILES", help_heading = "Of no effect")]
    pub machine_id_file: Option<String>,

    /// Print the version and end; --version=vX.Y.Z changes the version that is reported.
    #[arg(long, value_name = "true|raw|vX.Y.Z", require_equals = true, num_args = 0..=1,
          default_missing_value = "true")]
    pub version: Option<String>,

    /// The flags that were given, by name, with their values as they were written.
    #[arg(skip)]
    pub given: Vec<(String, String)>,
}

/// One `--feature-gates`: `Name=true,Other=false`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateSettings(pub Vec<(String, bool)>);

/// One `--vmodule`: `pattern=3,other=4`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vmodule(pub Vec<(String, u32)>);

/// The command line is answered already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The text that was asked for, such as the version.
    Asked(String),
    /// The mistake, and how to use the program.
    Wrong(String),
}

/// Reads a command line, whose first word is the program's name.
///
/// # Errors
/// When there is nothing left to do but print.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Arguments, Answer> {
    let matches = command()
        .try_get_matches_from(words.into_iter().map(with_hyphens))
        .map_err(|error| Answer::from(&error))?;
    let mut arguments =
        Arguments::from_arg_matches(&matches).map_err(|error| Answer::from(&error))?;
    arguments.given = given(&matches);
    arguments.answer_version()?;
    Ok(arguments)
}

/// The command line as it is read: like Go's flags, which take a boolean with or without `=true`,
/// a value that begins with a hyphen, and of a flag given twice the last one.
pub fn command() -> clap::Command {
    let command = Arguments::command().mut_args(help::completed).args(retired::arguments());
    command.args_override_self(true).mut_args(|arg| {
        let is_bool = arg.get_value_names().is_some_and(|names| names == ["BOOL"]);
        if is_bool {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true")
        } else if arg.get_action().takes_values() && arg.get_num_args().is_none() {
            arg.allow_hyphen_values(true)
        } else {
            arg
        }
    })
}

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

    fn answer_version(&self) -> Result<(), Answer> {
        match self.version.as_deref() {
            None => Ok(()),
            Some(version) if version.starts_with('v') => Ok(()),
            Some("raw") => Err(Answer::Asked(format!(
                "kube-ipvs version={} arch={}\n",
                self.reported_version(),
                std::env::consts::ARCH
            ))),
            Some(other) => match go_bool(other) {
                Ok(false) => Ok(()),
                Ok(true) => Err(Answer::Asked(format!("kube-ipvs {}\n", self.reported_version()))),
                Err(problem) => Err(Answer::Wrong(format!("Error: --version: {problem}\n"))),
            },
        }
    }
}

// === impl Answer ===

impl Answer {
    /// Prints it where it belongs: what was asked for is a success, everything else is not.
    pub fn print(&self) -> ExitCode {
        // Write errors are ignored: the reader may have closed its end.
        match self {
            Self::Asked(text) => {
                let _ = std::io::stdout().write_all(text.as_bytes());
                ExitCode::SUCCESS
            }
            Self::Wrong(text) => {
                let _ = std::io::stderr().write_all(text.as_bytes());
                ExitCode::FAILURE
            }
        }
    }
}

impl From<&clap::Error> for Answer {
    fn from(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        if error.use_stderr() { Self::Wrong(text) } else { Self::Asked(text) }
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

/// Go's flags take underscores for hyphens.
fn with_hyphens(word: OsString) -> OsString {
    match word.to_str() {
        Some(text) if text.starts_with("--") => {
            let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
            (name.replace('_', "-") + value).into()
        }
        _ => word,
    }
}

fn given(matches: &ArgMatches) -> Vec<(String, String)> {
    let on_the_command_line =
        |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    let value = |id: &clap::Id| {
        let values = matches.get_raw(id.as_str()).into_iter().flatten();
        values.map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(",")
    };
    // The derived group that all arguments are in has an id too, and no name.
    let is_flag = |id: &&clap::Id| id.as_str() != "Arguments";
    let ids = matches.ids().filter(is_flag).filter(on_the_command_line);
    ids.map(|id| (id.as_str().replace('_', "-"), value(id))).collect()
}

/// Parses the values that Go's `strconv.ParseBool` accepts.
fn go_bool(text: &str) -> Result<bool, String> {
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
