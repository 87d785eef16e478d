//! `KubeIpvsConfiguration`: what kube-proxy has no word for.
//!
//! It is a second document of the same file. kube-proxy reads the first one only (sigs.k8s.io/yaml
//! decodes with go.yaml.in/yaml, whose `Unmarshal` decodes "the first document found"), so that a
//! file with both stays a file that kube-proxy takes.

use ipnet::IpNet;
use plan::capacity::Capacity;
use plan::mode::Mode;
use plan::model::Family;
use plan::scheduler::{SCHEDULERS, SchedulerName};
use plan::settings::{AcceptServiceTraffic, InternalFrontendNetworks, overlap};
use serde::{Deserialize, Deserializer};

use super::settings::{Refused, Section as _, not_negative, positive, settings, within};
use super::text::{Parsed, of_scalar};
use super::words::{ArpReplies, FallbackMode, FastPathChoice, OnReturn, RuleBackend};
use forwarding::relay::DEFAULT_UDP_IDLE;
use kernel::estimators::Run;
use kernel::rules::Variant;
use reconcile::DEFAULT_DRAIN_DEADLINE;
use serve::listen::Readers;
use serve::metrics::services::MeasuredServices;
use source::FollowNodes;
use syntax::address;
use syntax::duration::GoDuration;

/// The group and version of our document.
pub const API_VERSION: &str = "kube-ipvs.io/v1alpha1";

/// The kind of our document.
pub const KIND: &str = "KubeIpvsConfiguration";

/// Default of `fallbackRetry`, in seconds. A probe runs a few programs, and what a host lacks comes
/// back by hand or not at all.
const FALLBACK_RETRY_SECONDS: i32 = 300;

/// Longest path of a socket that commands still reach by way of `/proc/PID/root`: the kernel takes 107
/// bytes (`sockaddr_un` in include/uapi/linux/un.h, its end included).
const LONGEST_SOCKET_PATH: usize = 85;

/// Default of `consoleSocket`.
pub const DEFAULT_CONSOLE_SOCKET: &str = "/run/kube-ipvs/console.sock";

/// Word in `serviceRoutes` that has the number of Services decide.
pub(super) const AUTO: &str = "auto";

settings! {
    /// Our document.
    pub struct KubeIpvsConfiguration at "" {
        /// New connections to Services in the INPUT chain, which they pass in IPVS mode only:
        /// {words}. Rules: docs/internals/kernel-use.md
        accept_service_traffic: Parsed<AcceptServiceTraffic> = "acceptServiceTraffic", "string" {
            in: [Ipvs], default: AcceptServiceTraffic::default(),
        }
        /// Must be kube-ipvs.io/v1alpha1
        api_version: String = "apiVersion", "string" { default: API_VERSION, }
        /// Removes the leftovers of kube-proxy's other modes, iptables and nftables, once the new
        /// mode carries the traffic. kube-proxy leaves the rules of its iptables mode, and packets
        /// then pass both sets of rules. In iptables mode, IPVS state stays
        cleanup_other_modes: Option<bool> = "cleanupOtherModes", "bool" {
            default: true, flag: "cleanup-other-modes" "BOOL" Actions with_config,
        }
        /// Read-only web pages at /console/ of the metrics server: {words}
        console_page: Parsed<Option<Readers>> = "consolePage" (deserialize_with = "of_scalar"),
            "string" {
            default: None::<Readers>, flag: "console-page" "READERS" Serving with_config,
        }
        /// Unix socket for kube-ipvs status and the other commands (docs/console.md), open to root
        /// and the user of kube-ipvs. Empty: none
        console_socket: Option<String> = "consoleSocket", "path" {
            default: DEFAULT_CONSOLE_SOCKET.to_owned(),
            flag: "console-socket" "PATH" Actions with_config, check: socket_path,
        }
        /// Time for connections to a removed endpoint to end before they are cut; in iptables mode,
        /// for the connections left from IPVS mode
        drain_deadline: Option<GoDuration> = "drainDeadline", "duration" {
            default: GoDuration::from(DEFAULT_DRAIN_DEADLINE),
            flag: "drain-deadline" "DURATION" Balancing with_config, check: not_negative,
        }
        estimators: Estimators = "estimators";
        /// Mode for a host without IPVS support: {words}. Empty: kube-ipvs exits and logs the
        /// missing prerequisites. mode: auto sets it, too. When a node falls back: docs/modes.md
        fallback: Parsed<FallbackMode> = "fallback", "string" {
            in: [Ipvs], flag: "fallback" "MODE" Balancing with_config,
        }
        /// Interval at which a node that has fallen back checks whether the host now supports IPVS
        fallback_retry: Option<GoDuration> = "fallbackRetry", "duration, 10s to 24h" {
            in: [Ipvs], default: GoDuration::from_secs(FALLBACK_RETRY_SECONDS),
            check: fallback_retry,
        }
        /// Reaction of a node that has fallen back once the host supports IPVS: {words}
        fallback_return: Parsed<OnReturn> = "fallbackReturn", "string" {
            in: [Ipvs], default: OnReturn::default(),
        }
        /// Path of established connections: {words}. Costs: docs/fast-path.md
        fast_path: Parsed<FastPathChoice> = "fastPath" (deserialize_with = "of_scalar"), "string" {
            in: [Ipvs], default: FastPathChoice::default(),
            flag: "fast-path" "PATH" Balancing with_config,
        }
        /// Lists all Nodes every 15 minutes, so that a Service with another node's address in
        /// spec.externalIPs does not take the address away from that node: {words}
        follow_nodes: Parsed<FollowNodes> = "followNodes", "string" {
            default: FollowNodes::default(),
        }
        /// Variant of iptables on hosts with both: {words}
        iptables_variant: Parsed<Variant> = "iptablesVariant", "string" {
            default: Variant::default(),
            flag: "iptables-variant" "VARIANT" Masquerading with_config,
        }
        /// Must be KubeIpvsConfiguration
        kind: String = "kind", "string" { default: KIND, }
        limits: Limits = "limits";
        /// Serves a load balancer IP even if another Node's status has it, so that no kubelet can
        /// take it from the Service. Only for clusters whose load balancers never use a node's own
        /// address: that node would be cut off
        load_balancers_before_nodes: bool = "loadBalancersBeforeNodes", "bool" {}
        /// Serves TCP NodePorts on 127.0.0.1 and ::1, too, for processes on the node itself. Who
        /// can reach them: docs/internals/privileges.md
        localhost_node_ports: bool = "localhostNodePorts", "bool" {}
        /// Reads Services, EndpointSlices and Nodes from the YAML files in this directory instead
        /// of an API server, and follows changes of the files
        manifests: String = "manifests", "directory" {
            flag: "manifests" "DIRECTORY" ApiServer with_config,
        }
        /// Form of the constant rules and sets: {words}. Differences: docs/modes.md
        rule_backend: Parsed<RuleBackend> = "ruleBackend", "string" {
            in: [Ipvs], default: RuleBackend::default(),
            flag: "rule-backend" "BACKEND" Masquerading with_config,
        }
        /// ARP replies of this node for Service addresses: {words}
        service_addresses_arp: Parsed<ArpReplies> = "serviceAddressesArp", "string" {
            in: [Ipvs], default: ArpReplies::default(),
        }
        /// Services with their own metrics (kube_ipvs_service_*: connections, packets, bytes):
        /// none, the N with the most traffic, all, or those of some namespaces. Each Service has 8
        /// series on each node. The counters do not advance while IPVS statistics are off
        /// (docs/sizing.md)
        service_metrics: Parsed<MeasuredServices> = "serviceMetrics" (deserialize_with = "of_scalar"),
            "off, top:N, all or namespaces:NAME,…" {
            in: [Ipvs], default: MeasuredServices::default(),
            flag: "service-metrics" "SERVICES" Serving with_config,
        }
        /// Networks of cluster IPs: one local route for each replaces the addresses on kube-ipvs0.
        /// auto: only with thousands of Services (IPv6: hundreds); the networks are the cluster's
        /// ServiceCIDRs unless the list has some. Empty: every address is bound. Consequences:
        /// docs/service-addresses.md
        service_routes: Option<Vec<String>> = "serviceRoutes" (deserialize_with = "word_or_list"),
            "auto, networks, or both in a list" {
            in: [Ipvs], default: vec![AUTO.to_owned()],
        }
        internal_frontend: InternalFrontend = "internalFrontend";
        /// Time after which the relay forgets an idle UDP client. kube-proxy used 250ms, which cuts
        /// off slow answers
        udp_idle_timeout: Option<GoDuration> = "udpIdleTimeout", "duration" {
            in: [Userspace], default: GoDuration::from(DEFAULT_UDP_IDLE),
            flag: "udp-timeout" "DURATION" Balancing with_config, check: positive,
        }
    }
}

settings! {
    /// `estimators`: the kernel threads, or the timer, that estimate how much goes through IPVS.
    pub struct Estimators at "estimators." {
        /// IPVS statistics of the kernel (run_estimation, Linux 5.16 and later): {words}. Costs:
        /// docs/sizing.md
        run: Parsed<Run> = "run" (deserialize_with = "of_scalar"), "string" {
            in: [Ipvs], default: Run::default(),
        }
    }
}

settings! {
    /// `limits`: what one Service may take of a node. Absent is the default.
    pub struct Limits at "limits." {
        /// Most addresses and ports of one Service. kube-ipvs leaves out those beyond, and sends an
        /// Event; which ones: docs/limits.md. All limits are far above what Services need: they
        /// keep one object from using up the node
        frontends: Option<usize> = "frontends", "number, 1 to 1000000" {
            default: plan::settings::Limits::default().frontends,
            check: |limit| within(limit, 1..=1_000_000),
        }
        /// Most real servers of one Service, over all of its virtual servers. Unset: 1000000 in
        /// IPVS mode, 50000 in iptables and userspace modes, where endpoints and source ranges
        /// count once for each port
        real_servers: Option<usize> = "realServers", "number, 1 to 100000000" {
            check: |limit| within(limit, 1..=100_000_000),
        }
        /// Schedulers that the annotation kube-ipvs.io/scheduler may select. Empty: all. Each
        /// virtual server with mh takes 32 KB of kernel memory
        schedulers: Vec<String> = "schedulers", "list of schedulers" {
            in: [Ipvs], check: schedulers,
        }
        /// Most entries of one Service in one set. Most of the entries are source ranges, once for
        /// each load balancer IP and port
        set_entries: Option<usize> = "setEntries", "number, 1 to 10000000" {
            in: [Ipvs], default: plan::settings::Limits::default().set_entries,
            check: |limit| within(limit, 1..=10_000_000),
        }
        /// Most entries of a set, over all Services
        set_size: Option<u32> = "setSize", "number, 65536 to 2147483648" {
            in: [Ipvs], default: plan::settings::Limits::default().set_size.entries(),
            check: |limit| within(limit, 65_536..=1 << 31),
        }
    }
}

settings! {
    /// `internalFrontend`. Absent is the default, empty is off.
    pub struct InternalFrontend at "internalFrontend." {
        /// Unused network of up to 24 bits for internal frontends. Through them, clients in the
        /// cluster reach all endpoints at an address with externalTrafficPolicy Local. Empty: these
        /// clients reach only this node's endpoints, as clients outside do. If unset and
        /// clusterCIDR or nodePortAddresses overlaps the default: 0.0.0.0/8, or empty if that is in
        /// use, too
        ipv4: Option<String> = "ipv4", "network" { in: [Ipvs], default: internal_frontend(Family::V4), }
        /// Unused IPv6 network of up to 96 bits for internal frontends, as internalFrontend.ipv4,
        /// with fefe::/16 instead of 0.0.0.0/8
        ipv6: Option<String> = "ipv6", "network" { in: [Ipvs], default: internal_frontend(Family::V6), }
    }
}

impl KubeIpvsConfiguration {
    /// Takes another network for internal frontends, or none, where the field is unset and its default
    /// overlaps a network in `used`. Returns a note for each.
    pub fn yield_internal_frontends(&mut self, used: &[(IpNet, &str)]) -> Vec<String> {
        let overlapping = |network: IpNet| used.iter().find(|(net, _)| overlap(net, &network));
        let mut notes = Vec::new();
        for (family, name, field) in [
            (Family::V4, "internalFrontend.ipv4", &mut self.internal_frontend.ipv4),
            (Family::V6, "internalFrontend.ipv6", &mut self.internal_frontend.ipv6),
        ] {
            let default = InternalFrontendNetworks::DEFAULT.of(family).filter(|_| field.is_none());
            let Some((default, (net, what))) = default.and_then(|it| Some((it, overlapping(it)?)))
            else {
                continue;
            };
            let spare = InternalFrontendNetworks::SPARE.of(family);
            let spare = spare.filter(|spare| overlapping(*spare).is_none());
            let instead = match spare {
                Some(spare) => format!("{spare} is used instead"),
                None => "internal frontends are off".to_owned(),
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
        self.fill_defaults();
        self
    }
}

/// Reads a list of texts, which may be one text without a list. An empty text is an empty list.
fn word_or_list<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "neither a word nor a list of texts")]
    enum WordOrList {
        Word(String),
        List(Vec<String>),
    }
    Ok(Option::deserialize(deserializer)?.map(|given| match given {
        WordOrList::Word(word) if word.is_empty() => Vec::new(),
        WordOrList::Word(word) => vec![word],
        WordOrList::List(list) => list,
    }))
}

/// Refuses a path that commands cannot reach.
fn socket_path(path: &Option<String>) -> Option<Refused> {
    let path = path.as_deref()?;
    let problem = if !path.is_empty() && !path.starts_with('/') {
        "must be an absolute path, or empty to turn the console off".to_owned()
    } else if path.len() > LONGEST_SOCKET_PATH {
        format!("must have at most {LONGEST_SOCKET_PATH} bytes")
    } else {
        return None;
    };
    Some((path.to_owned(), problem))
}

/// Refuses a pause that is too short for probes, or longer than a day.
fn fallback_retry(pause: &Option<GoDuration>) -> Option<Refused> {
    let allowed = GoDuration::from_secs(10)..=GoDuration::from_secs(86_400);
    let pause = pause.filter(|pause| !allowed.contains(pause))?;
    Some((pause.to_string(), "must be from 10s to 24h".to_owned()))
}

/// Refuses names of no scheduler.
fn schedulers(names: &[String]) -> Option<Refused> {
    let known = SCHEDULERS.map(|scheduler| scheduler.name);
    let wrong = names.iter().map(String::as_str).filter(|name| !known.contains(name));
    let wrong: Vec<&str> = wrong.collect();
    let problem = || format!("must be one of {}", known.join(", "));
    (!wrong.is_empty()).then(|| (wrong.join(", "), problem()))
}

/// Default network for internal frontends, as text.
fn internal_frontend(family: Family) -> String {
    let network = InternalFrontendNetworks::DEFAULT.of(family);
    network.map(|network| network.to_string()).unwrap_or_default()
}

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

impl InternalFrontend {
    /// The networks, where they are networks of their family.
    #[must_use]
    pub fn networks(&self) -> InternalFrontendNetworks {
        let network = |text: &Option<String>| text.as_deref().and_then(address::cidr);
        InternalFrontendNetworks {
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
