//! The command line.
//!
//! Flags that kube-proxy has too carry kube-proxy's names and meaning.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use ipnet::IpNet;
use plan::settings::{LocalDetection, SchedulerName, Settings};

use crate::kernel::rules::Variant;
use crate::reconcile::Pace;

/// kube-proxy's IPVS mode: Services and EndpointSlices in, IPVS out.
#[derive(Debug, Clone, Parser)]
#[command(name = "kube-ipvs", version, about, max_term_width = 100)]
pub struct Arguments {
    /// Read Services, EndpointSlices and this node's Node from the YAML files in this folder, and
    /// follow them as they are saved. No API server is needed.
    #[arg(long, value_name = "DIRECTORY")]
    pub manifests: PathBuf,

    /// This node's name, as EndpointSlices have it in nodeName. Default: the host's name.
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,

    /// The only mode there is.
    #[arg(long, value_name = "MODE", default_value = "ipvs")]
    pub proxy_mode: ProxyMode,

    /// The scheduler of every virtual server: rr, wrr, lc, wlc, sh, dh, sed, nq, mh, … as the
    /// kernel has them.
    #[arg(long, value_name = "NAME", default_value = "rr")]
    pub ipvs_scheduler: String,

    /// Virtual servers, addresses and set entries inside these networks are somebody else's, and
    /// are never touched.
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub ipvs_exclude_cidrs: Vec<IpNet>,

    /// Answer ARP only on the interface that has the address (`arp_ignore` 1, `arp_announce` 2).
    #[arg(long)]
    pub ipvs_strict_arp: bool,

    /// How often the kernel is read and compared with what it should be.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30s")]
    pub ipvs_sync_period: Duration,

    /// Changes that come within this time after a write go together.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0s")]
    pub ipvs_min_sync_period: Duration,

    /// How long an idle TCP connection is remembered by IPVS; 0 leaves the kernel's value.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0s")]
    pub ipvs_tcp_timeout: Duration,

    /// How long a closing TCP connection is remembered by IPVS; 0 leaves the kernel's value.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0s")]
    pub ipvs_tcpfin_timeout: Duration,

    /// How long an idle UDP flow is remembered by IPVS; 0 leaves the kernel's value.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0s")]
    pub ipvs_udp_timeout: Duration,

    /// Masquerade everything that is sent to a cluster address.
    #[arg(long)]
    pub masquerade_all: bool,

    /// The bit of the packet mark that means "masquerade this".
    #[arg(long, value_name = "BIT", default_value_t = 14,
          value_parser = clap::value_parser!(u8).range(0..=31))]
    pub iptables_masquerade_bit: u8,

    /// How traffic from this node's own pods is recognised, which is then not masqueraded.
    #[arg(long, value_name = "MODE", default_value = "ClusterCIDR")]
    pub detect_local_mode: DetectLocalMode,

    /// With ClusterCIDR: the pods' networks, one of each family at most.
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub cluster_cidr: Vec<IpNet>,

    /// With BridgeInterface: the bridge that this node's pods are on.
    #[arg(long, value_name = "INTERFACE")]
    pub pod_bridge_interface: Option<String>,

    /// With InterfaceNamePrefix: how the interfaces of this node's pods begin.
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,

    /// Serve NodePorts on the node's addresses inside these networks only.
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub nodeport_addresses: Vec<IpNet>,

    /// Which iptables to use, where the host has both.
    #[arg(long, value_name = "VARIANT", default_value = "auto")]
    pub iptables_variant: IptablesVariant,

    /// How much to log: 0 to 10, as kube-proxy counts; 4 and more show every kernel change.
    #[arg(short, long = "v", value_name = "LEVEL", default_value_t = 0)]
    pub verbosity: u8,
}

/// `--proxy-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProxyMode {
    /// IPVS.
    Ipvs,
}

/// `--detect-local-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DetectLocalMode {
    /// By `--cluster-cidr`.
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    /// By the Node's `spec.podCIDRs`.
    #[value(name = "NodeCIDR")]
    NodeCidr,
    /// By `--pod-bridge-interface`.
    #[value(name = "BridgeInterface")]
    BridgeInterface,
    /// By `--pod-interface-name-prefix`.
    #[value(name = "InterfaceNamePrefix")]
    InterfaceNamePrefix,
}

/// `--iptables-variant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IptablesVariant {
    /// The one that holds the cluster's rules already, or else the host's default.
    Auto,
    /// The one on nftables.
    Nft,
    /// The one on the old kernel interface.
    Legacy,
}

// === impl Arguments ===

impl Arguments {
    /// What planning needs of it.
    ///
    /// # Errors
    /// When values contradict each other: in words, with the flag's name.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        Ok(Settings {
            scheduler: SchedulerName::new(&self.ipvs_scheduler).context("--ipvs-scheduler")?,
            masquerade_all: self.masquerade_all,
            masquerade_bit: self.iptables_masquerade_bit,
            local_detection: self.local_detection()?,
            node_port_addresses: self.nodeport_addresses.clone(),
            exclude: self.ipvs_exclude_cidrs.clone(),
            ..Settings::new(self.node_name()?)
        })
    }

    /// What the event loop needs of it.
    #[must_use]
    pub fn pace(&self) -> Pace {
        Pace {
            min_sync_period: self.ipvs_min_sync_period,
            sync_period: self.ipvs_sync_period,
            ..Pace::default()
        }
    }

    /// Kubernetes' node names are lower case.
    fn node_name(&self) -> anyhow::Result<String> {
        let name = match &self.hostname_override {
            Some(name) => name.clone(),
            None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        };
        let name = name.trim().to_lowercase();
        if name.is_empty() {
            bail!("the node's name is empty; give one with --hostname-override");
        }
        Ok(name)
    }

    fn local_detection(&self) -> anyhow::Result<LocalDetection> {
        Ok(match self.detect_local_mode {
            DetectLocalMode::ClusterCidr => {
                let v4 = self.cluster_cidr.iter().filter(|cidr| cidr.addr().is_ipv4()).count();
                let v6 = self.cluster_cidr.len() - v4;
                if v4 > 1 || v6 > 1 {
                    bail!("--cluster-cidr: {v4} IPv4 and {v6} IPv6 networks; at most one of each");
                }
                match self.cluster_cidr.as_slice() {
                    [] => LocalDetection::None,
                    cidrs => LocalDetection::ClusterCidr(cidrs.to_vec()),
                }
            }
            DetectLocalMode::NodeCidr => LocalDetection::NodeCidr,
            DetectLocalMode::BridgeInterface => LocalDetection::BridgeInterface(named(
                self.pod_bridge_interface.as_deref(),
                "--detect-local-mode=BridgeInterface needs --pod-bridge-interface",
            )?),
            DetectLocalMode::InterfaceNamePrefix => LocalDetection::InterfaceNamePrefix(named(
                self.pod_interface_name_prefix.as_deref(),
                "--detect-local-mode=InterfaceNamePrefix needs --pod-interface-name-prefix",
            )?),
        })
    }
}

/// An interface's name goes into a rule's text, so it must be one (`dev_valid_name` in
/// net/core/dev.c: at most 15 octets, no slash, no colon, no white space).
fn named(name: Option<&str>, missing: &'static str) -> anyhow::Result<std::sync::Arc<str>> {
    let name = name.context(missing)?;
    let valid = (1..=15).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:+\"'\\!".contains(&byte));
    if !valid {
        bail!("{name:?} cannot be an interface's name (or its beginning)");
    }
    Ok(name.into())
}

impl From<IptablesVariant> for Variant {
    fn from(variant: IptablesVariant) -> Self {
        match variant {
            IptablesVariant::Auto => Self::Auto,
            IptablesVariant::Nft => Self::Nft,
            IptablesVariant::Legacy => Self::Legacy,
        }
    }
}

/// Whole seconds, or what Go writes: `30s`, `1m30s`, `500ms`, `2h`.
fn seconds(text: &str) -> Result<Duration, String> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let number: u64 = number.parse().map_err(|_| duration_problem(text))?;
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let unit = match unit {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3_600),
            _ => return Err(duration_problem(text)),
        };
        let part = u32::try_from(number).map_err(|_| duration_problem(text))?;
        total = unit
            .checked_mul(part)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(|| duration_problem(text))?;
        rest = after;
    }
    if text.is_empty() { Err(duration_problem(text)) } else { Ok(total) }
}

fn duration_problem(text: &str) -> String {
    format!("{text:?} is not a duration such as 30s, 1m30s or 500ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(more: &[&str]) -> Arguments {
        let all = ["kube-ipvs", "--manifests", "/x", "--hostname-override", "Node1"];
        Arguments::try_parse_from(all.iter().chain(more)).unwrap()
    }

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn defaults_are_kube_proxys() {
        let settings = arguments(&[]).settings().unwrap();
        assert_eq!(settings, Settings::new("node1"));
        assert_eq!(arguments(&[]).pace(), Pace::default());
    }

    #[test]
    fn durations_are_written_as_in_go() {
        for (text, milliseconds) in
            [("30", 30_000), ("30s", 30_000), ("1m30s", 90_000), ("500ms", 500), ("0s", 0)]
        {
            assert_eq!(seconds(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "s", "1x", "-1s", "1m30", "99999999999999999999h"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn contradictions_are_named() {
        let problem = |more: &[&str]| format!("{:#}", arguments(more).settings().unwrap_err());
        assert!(
            problem(&["--cluster-cidr", "10.0.0.0/8,10.1.0.0/16"]).contains("--cluster-cidr: 2")
        );
        assert!(problem(&["--ipvs-scheduler", "round robin"]).contains("--ipvs-scheduler"));
        assert!(
            problem(&["--detect-local-mode", "BridgeInterface"])
                .contains("needs --pod-bridge-interface")
        );
        let quoted = ["--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", "a\" -j"];
        assert!(problem(&quoted).contains("cannot be an interface's name"));
    }
}
