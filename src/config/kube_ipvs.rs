//! `KubeIpvsConfiguration`: what kube-proxy has no word for.
//!
//! It is a second document of the same file. kube-proxy reads the first one only (sigs.k8s.io/yaml
//! decodes with go.yaml.in/yaml, whose `Unmarshal` decodes "the first document found"), so that a
//! file with both stays a file that kube-proxy takes.

use ipnet::IpNet;
use plan::capacity::Capacity;
use plan::mode::Mode;
use plan::model::Family;
use plan::scheduler::SchedulerName;
use plan::settings::{AcceptServiceTraffic, ShortCircuitNetworks, overlap};
use serde::{Deserialize, Deserializer, Serialize};

use super::mode::{FallbackMode, OnReturn};
use super::text::{Parsed, of_scalar};
use super::words::ArpReplies;
use crate::kernel::estimators::Run;
use crate::kernel::rules::Variant;
use crate::reconcile::DEFAULT_DRAIN_DEADLINE;
use crate::relay::DEFAULT_UDP_IDLE;
use crate::serve::listen::Readers;
use crate::serve::metrics::services::MeasuredServices;
use crate::source::FollowNodes;
use crate::syntax::address;
use crate::syntax::duration::GoDuration;

/// The group and version of our document.
pub const API_VERSION: &str = "kube-ipvs.io/v1alpha1";

/// The kind of our document.
pub const KIND: &str = "KubeIpvsConfiguration";

/// Default of `fallbackRetry`, in seconds. A probe runs a few programs, and what a host lacks comes
/// back by hand or not at all.
const FALLBACK_RETRY_SECONDS: i32 = 300;

/// Default of `consoleSocket`.
pub const DEFAULT_CONSOLE_SOCKET: &str = "/run/kube-ipvs/console.sock";

/// Our document.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct KubeIpvsConfiguration {
    pub accept_service_traffic: Parsed<AcceptServiceTraffic>,
    pub api_version: String,
    pub cleanup_other_modes: Option<bool>,
    #[serde(deserialize_with = "of_scalar")]
    pub console_page: Parsed<Option<Readers>>,
    pub console_socket: Option<String>,
    pub drain_deadline: Option<GoDuration>,
    pub estimators: Estimators,
    pub fallback: Parsed<FallbackMode>,
    pub fallback_retry: Option<GoDuration>,
    pub fallback_return: Parsed<OnReturn>,
    pub follow_nodes: Parsed<FollowNodes>,
    pub iptables_variant: Parsed<Variant>,
    pub kind: String,
    pub limits: Limits,
    pub load_balancers_before_nodes: bool,
    pub localhost_node_ports: bool,
    pub manifests: String,
    pub service_addresses_arp: Parsed<ArpReplies>,
    #[serde(deserialize_with = "of_scalar")]
    pub service_metrics: Parsed<MeasuredServices>,
    #[serde(deserialize_with = "word_or_list")]
    pub service_routes: Vec<String>,
    pub short_circuit: ShortCircuit,
    pub udp_idle_timeout: Option<GoDuration>,
}

/// `estimators`: the kernel threads, or the timer, that estimate how much goes through IPVS.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct Estimators {
    #[serde(deserialize_with = "of_scalar")]
    pub run: Parsed<Run>,
}

/// `limits`: what one Service may take of a node. Absent is the default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct Limits {
    pub frontends: Option<usize>,
    pub real_servers: Option<usize>,
    pub schedulers: Vec<String>,
    pub set_entries: Option<usize>,
    pub set_size: Option<u32>,
}

/// `shortCircuit`. Absent is the default, empty is off.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct ShortCircuit {
    pub ipv4: Option<String>,
    pub ipv6: Option<String>,
}

// === impl KubeIpvsConfiguration ===

impl KubeIpvsConfiguration {
    /// Takes another network for short circuits, or none, where the field is unset and its default
    /// overlaps a network in `used`. Returns a note for each.
    pub fn yield_short_circuits(&mut self, used: &[(IpNet, &str)]) -> Vec<String> {
        let overlapping = |network: IpNet| used.iter().find(|(net, _)| overlap(net, &network));
        let mut notes = Vec::new();
        for (family, name, field) in [
            (Family::V4, "shortCircuit.ipv4", &mut self.short_circuit.ipv4),
            (Family::V6, "shortCircuit.ipv6", &mut self.short_circuit.ipv6),
        ] {
            let default = ShortCircuitNetworks::DEFAULT.of(family).filter(|_| field.is_none());
            let Some((default, (net, what))) = default.and_then(|it| Some((it, overlapping(it)?)))
            else {
                continue;
            };
            let spare = ShortCircuitNetworks::SPARE.of(family);
            let spare = spare.filter(|spare| overlapping(*spare).is_none());
            let instead = match spare {
                Some(spare) => format!("{spare} is used instead"),
                None => "there are no short circuits".to_owned(),
            };
            notes.push(format!(
                "{name}: the default {default} is in use, {net} is {what}: {instead}. To choose another \
                 network, set {name}"
            ));
            *field = Some(spare.map(|network| network.to_string()).unwrap_or_default());
        }
        notes
    }

    /// With our values where there are none.
    #[must_use]
    pub fn with_defaults(mut self) -> Self {
        API_VERSION.clone_into(&mut self.api_version);
        KIND.clone_into(&mut self.kind);
        self.cleanup_other_modes.get_or_insert(true);
        self.console_socket.get_or_insert_with(|| DEFAULT_CONSOLE_SOCKET.to_owned());
        self.drain_deadline.get_or_insert(GoDuration::from(DEFAULT_DRAIN_DEADLINE));
        self.udp_idle_timeout.get_or_insert(GoDuration::from(DEFAULT_UDP_IDLE));
        self.fallback_retry.get_or_insert(GoDuration::from_secs(FALLBACK_RETRY_SECONDS));
        self.accept_service_traffic.or_default();
        self.console_page.or_default();
        self.estimators.run.or_default();
        self.fallback_return.or_default();
        self.follow_nodes.or_default();
        self.iptables_variant.or_default();
        self.service_addresses_arp.or_default();
        self.service_metrics.or_default();
        // The default of `limits.realServers` is one of the mode.
        let (limits, default) = (&mut self.limits, plan::settings::Limits::default());
        limits.frontends.get_or_insert(default.frontends);
        limits.set_entries.get_or_insert(default.set_entries);
        limits.set_size.get_or_insert(default.set_size.entries());
        let networks = ShortCircuitNetworks::default();
        let text = |net: Option<String>| net.unwrap_or_default();
        let short_circuit = &mut self.short_circuit;
        short_circuit.ipv4.get_or_insert_with(|| text(networks.v4.map(|net| net.to_string())));
        short_circuit.ipv6.get_or_insert_with(|| text(networks.v6.map(|net| net.to_string())));
        self
    }
}

/// Reads a list of texts, which may be one text without a list.
fn word_or_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "neither a word nor a list of texts")]
    enum WordOrList {
        Word(String),
        List(Vec<String>),
    }
    Ok(match WordOrList::deserialize(deserializer)? {
        WordOrList::Word(word) => vec![word],
        WordOrList::List(list) => list,
    })
}

// === impl Limits ===

impl Limits {
    /// The limits in a mode, where they are valid.
    #[must_use]
    pub fn resolve(&self, mode: Mode) -> plan::settings::Limits {
        let default = plan::settings::Limits::of_mode(mode);
        plan::settings::Limits {
            frontends: self.frontends.unwrap_or(default.frontends),
            real_servers: self.real_servers.unwrap_or(default.real_servers),
            schedulers: self
                .schedulers
                .iter()
                .filter_map(|name| SchedulerName::new(name).ok())
                .collect(),
            set_entries: self.set_entries.unwrap_or(default.set_entries),
            set_size: self.set_size.map_or(default.set_size, Capacity::new),
        }
    }
}

// === impl ShortCircuit ===

impl ShortCircuit {
    /// The networks, where they are networks of their family.
    #[must_use]
    pub fn networks(&self) -> ShortCircuitNetworks {
        let network = |text: &Option<String>| text.as_deref().and_then(address::cidr);
        ShortCircuitNetworks {
            v4: network(&self.ipv4).and_then(|net| match net {
                IpNet::V4(net) => Some(net),
                IpNet::V6(_) => None,
            }),
            v6: network(&self.ipv6).and_then(|net| match net {
                IpNet::V6(net) => Some(net),
                IpNet::V4(_) => None,
            }),
        }
    }
}
