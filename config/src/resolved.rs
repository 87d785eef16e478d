//! The configuration as the program's parts want it: parsed, and with nothing left open.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use plan::mode::Mode;
use plan::model::Family;
use plan::op::PartKind;
use plan::scheduler::SchedulerName;
use plan::settings::{
    InternalFrontendNetworks, KUBELET_PORT, Listener, LocalDetection, NodePortAddresses, Settings,
};

use super::arguments::{Action, Arguments};
use super::document::{self, KubeProxyConfiguration};
use super::file::ConfigurationFile;
use super::flags;
use super::gates::{EXTERNAL_IPS, FeatureGates};
use super::kube_ipvs::KubeIpvsConfiguration;
use super::mode::{self, ModeChoice, Periods};
use super::networks::{cluster_networks, networks};
use super::service_routes::ServiceRoutes;
use super::validate::RoutableNetworks;
use super::words::{ArpReplies, DetectLocalMode, FastPathChoice, LogFormat, RuleBackend};
use forwarding::relay::PortRange;
use kernel::estimators::Run;
use kernel::rules::Variant;
use kernel::sysctl::ServiceAddressesArp;
use reconcile::Pace;
use serve::listen::Readers;
use serve::metrics::services::MeasuredServices;
use source::FollowNodes;
use source::kubernetes::ClientOptions;
use syntax::address;
use syntax::duration::GoDuration;

/// `reportingController` of Events, and the beginning of the user agent: what dashboards, alerts
/// and audit logs know.
pub const CONTROLLER: &str = "kube-proxy";

/// Everything that the program is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Configuration {
    /// Action of this run of the program.
    pub action: Action,
    /// The mode to serve in, and what happens on a host that cannot. What follows of the
    /// configuration is for the mode in the settings, which is the preferred one, unless
    /// [`in_mode`](Self::in_mode) says otherwise.
    pub modes: ModeChoice,
    /// Word for the mode in the file or the flags, whatever mode was asked for since.
    pub configured_mode: String,
    /// Settings of the planner; the families are all possible ones, not those that the host has.
    pub settings: Settings,
    /// Periods of the event loop, and its drain time.
    pub pace: Pace,
    /// Variant of iptables: nft, legacy, or the one in use.
    pub variant: Variant,
    /// Choice of the form of rules and sets in mode ipvs. The form in the settings is that of a host which has none
    /// yet and can do both, until a start has looked at its own.
    pub rule_backend: RuleBackend,
    /// Choice of the way of established connections in mode ipvs. That in the settings is what a host has which supports
    /// all, until a start has looked at its own.
    pub fast_path: FastPathChoice,
    /// Choice of the ARP requests for Service addresses that this node answers.
    pub service_addresses_arp: ServiceAddressesArp,
    /// Choice of the networks in which a local route stands for all service addresses.
    pub service_routes: ServiceRoutes,
    /// Mode of the kernel's rate estimators.
    pub estimators: Run,
    /// True if node ports are served on loopback addresses too.
    pub localhost_node_ports: bool,
    /// Times for which IPVS remembers connections.
    pub ipvs_timeouts: IpvsTimeouts,
    /// The relay of mode userspace.
    pub relayed: Relayed,
    /// Connection to the API server, if no folder of manifests stands for it.
    pub api_server: ApiServer,
    /// A folder of manifests instead of an API server.
    pub manifests: Option<PathBuf>,
    /// Choice to follow the cluster's other Nodes: automatic, always or never.
    pub follow_nodes: FollowNodes,
    /// The address that decides the primary family, where one was named.
    pub bind_address: Option<IpAddr>,
    /// Addresses and options of the health and metrics servers.
    pub served: Served,
    /// Services with metrics of their own.
    pub measured_services: MeasuredServices,
    /// The kernel's connection tracking.
    pub conntrack: Conntrack,
    pub gates: FeatureGates,
    /// For `/proc/self/oom_score_adj`, -1000 to 1000.
    pub oom_score_adj: i32,
    /// Format and verbosity of the log.
    pub logging: Logging,
    /// Path of the console's socket; empty: none.
    pub console_socket: String,
    /// True if what kube-proxy's other modes have left is removed.
    pub cleanup_other_modes: bool,
    /// The file that it was read from, to notice when that changes.
    pub file: Option<ConfigurationFile>,
    /// Effective configuration, in kube-proxy's words.
    pub document: KubeProxyConfiguration,
    /// Effective configuration, in our own words.
    pub own: KubeIpvsConfiguration,
    /// All flags with their values, in the order of names, for `/flagz`.
    pub flags: Vec<(&'static str, String)>,
    pub reported_version: String,
    /// Notes for the log on settings that have no effect or are deprecated.
    pub notes: Vec<String>,
}

/// Times for which IPVS remembers connections; zero leaves the kernel's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpvsTimeouts {
    /// Idle TCP connections.
    pub tcp: Duration,
    /// Closing TCP connections.
    pub tcp_fin: Duration,
    /// Idle UDP flows.
    pub udp: Duration,
}

/// The relay of mode userspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relayed {
    /// Range of the proxy ports; none: the kernel chooses them.
    pub ports: Option<PortRange>,
    /// Time after which a UDP client is forgotten if nothing passes either way.
    pub udp_idle: Duration,
}

/// Connection to the API server. With neither a kubeconfig nor a URL: as a pod of the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiServer {
    pub kubeconfig: Option<PathBuf>,
    /// Its URL, instead of the kubeconfig's.
    pub url: Option<String>,
    /// Requests a second in the long run; no limit if it is negative.
    pub qps: f32,
    /// Requests at once.
    pub burst: u32,
    /// True if lists and watches ask for JSON alone.
    pub only_json: bool,
}

/// Addresses and options of the health and metrics servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// The proxy's health; nowhere, if it was switched off.
    pub healthz: Option<SocketAddr>,
    /// Metrics, and what an operator looks into.
    pub metrics: SocketAddr,
    /// True if an address that cannot be listened on ends the program.
    pub hard_fail: bool,
    /// True if profiles are served.
    pub profiling: bool,
    /// Clients that may read the console's pages; none: there are no pages.
    pub console_page: Option<Readers>,
}

/// Format and verbosity of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logging {
    /// Format of a log line.
    pub format: LogFormat,
    /// Verbosity, as kube-proxy counts it.
    pub verbosity: u32,
}

/// Valid configuration, merged from files and flags.
pub(super) struct Merged {
    pub(super) configured_mode: String,
    pub(super) document: KubeProxyConfiguration,
    pub(super) own: KubeIpvsConfiguration,
    pub(super) file: Option<ConfigurationFile>,
    pub(super) notes: Vec<String>,
    pub(super) action: Action,
}

impl Merged {
    /// Resolves a valid configuration. Only the host's name can make this fail.
    pub(super) fn resolve(self, arguments: &Arguments) -> Result<Configuration, String> {
        let Self { configured_mode, document, own, file, mut notes, action } = self;
        let gates = FeatureGates::new(&document.feature_gates);
        notes.extend(gates.note());
        let connection = &document.client_connection;
        let named = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        let modes = ModeChoice::new(&document, &own);
        Ok(Configuration {
            action,
            modes,
            configured_mode,
            settings: Settings {
                load_balancers_before_nodes: own.load_balancers_before_nodes,
                ..settings(&document, &own, &gates, modes.preferred)?
            },
            pace: pace(&document, &own, modes.preferred),
            variant: own.iptables_variant.value(),
            rule_backend: own.rule_backend.value(),
            fast_path: own.fast_path.value(),
            service_addresses_arp: match own.service_addresses_arp.value() {
                ArpReplies::Quiet => ServiceAddressesArp::Quiet,
                ArpReplies::Compatible if document.ipvs.strict_arp => ServiceAddressesArp::Strict,
                ArpReplies::Compatible => ServiceAddressesArp::Answered,
            },
            service_routes: ServiceRoutes::new(&own),
            estimators: own.estimators.run.value(),
            localhost_node_ports: own.localhost_node_ports
                || document.node_port_addresses.iter().any(|text| text == "localhost"),
            ipvs_timeouts: IpvsTimeouts {
                tcp: document.ipvs.tcp_timeout.to_std(),
                tcp_fin: document.ipvs.tcp_fin_timeout.to_std(),
                udp: document.ipvs.udp_timeout.to_std(),
            },
            relayed: Relayed {
                ports: PortRange::parse(&document.port_range).unwrap_or_default(),
                udp_idle: own.udp_idle_timeout.unwrap_or_default().to_std(),
            },
            api_server: ApiServer {
                kubeconfig: named(&connection.kubeconfig),
                url: arguments.master.clone().filter(|url| !url.is_empty()),
                qps: connection.qps,
                burst: u32::try_from(connection.burst).unwrap_or_default(),
                only_json: connection.wants_only_json(),
            },
            manifests: named(&own.manifests),
            follow_nodes: own.follow_nodes.value(),
            bind_address: address::ip(&document.bind_address).filter(|a| !a.is_unspecified()),
            served: served(&document, &own)?,
            measured_services: own.service_metrics.value(),
            conntrack: conntrack(&document.conntrack),
            gates,
            oom_score_adj: document.oom_score_adj.unwrap_or_default(),
            logging: Logging {
                format: document.logging.format.value(),
                verbosity: document.logging.verbosity,
            },
            console_socket: own.console_socket.clone().unwrap_or_default(),
            cleanup_other_modes: own.cleanup_other_modes.unwrap_or_default(),
            flags: given_or_default(arguments),
            reported_version: arguments.reported_version().to_owned(),
            file,
            document,
            own,
            notes,
        })
    }
}

fn served(
    document: &KubeProxyConfiguration,
    own: &KubeIpvsConfiguration,
) -> Result<Served, String> {
    let metrics = address::socket(&document.metrics_bind_address);
    Ok(Served {
        healthz: address::socket(&document.healthz_bind_address),
        metrics: metrics.ok_or("metricsBindAddress must be IP:port")?,
        hard_fail: document.bind_address_hard_fail,
        profiling: document.enable_profiling,
        console_page: own.console_page.value(),
    })
}

/// The kernel's connection tracking. What is absent stays as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conntrack {
    /// Connections for each processor core.
    pub max_per_core: Option<u32>,
    /// Connections at least, where `max_per_core` is given.
    pub min: u32,
    /// `nf_conntrack_tcp_timeout_established`.
    pub tcp_established: Option<Duration>,
    /// `nf_conntrack_tcp_timeout_close_wait`.
    pub tcp_close_wait: Option<Duration>,
    /// True if `nf_conntrack_tcp_be_liberal` is set.
    pub tcp_be_liberal: bool,
    /// `nf_conntrack_udp_timeout`.
    pub udp: Option<Duration>,
    /// `nf_conntrack_udp_timeout_stream`.
    pub udp_stream: Option<Duration>,
}

impl Configuration {
    /// Returns the options of the API server's client.
    #[must_use]
    pub fn client_options(&self) -> ClientOptions {
        let server = &self.api_server;
        ClientOptions {
            kubeconfig: server.kubeconfig.clone(),
            master: server.url.clone(),
            qps: server.qps,
            burst: i32::try_from(server.burst).unwrap_or(i32::MAX),
            user_agent: format!("{CONTROLLER}/{}", self.reported_version),
            only_json: server.only_json,
        }
    }

    /// The same configuration for another mode.
    #[must_use]
    pub fn in_mode(&self, mode: Mode) -> Self {
        let settings = self.settings.clone();
        Self {
            settings: with_mode(settings, &self.document, &self.own, &self.service_routes, mode),
            pace: pace(&self.document, &self.own, mode),
            ..self.clone()
        }
    }

    /// True if the number of Services decides on local routes, which only virtual servers need.
    #[must_use]
    pub fn chooses_routes(&self) -> bool {
        self.service_routes.is_automatic && self.settings.mode.uses(PartKind::VirtualServers)
    }

    /// The same configuration with local routes to these networks, where the choice is automatic.
    #[must_use]
    pub fn with_routes(mut self, networks: Vec<IpNet>) -> Self {
        if self.chooses_routes() {
            self.settings.service_routes.clone_from(&networks);
        }
        if self.service_routes.is_automatic {
            self.service_routes.chosen = Some(networks);
        }
        self
    }

    /// Splits networks into those that local routes can lead to, beside what else the configuration
    /// names, and the reasons for which the others cannot be, in words.
    #[must_use]
    pub fn routable(&self, networks: &[IpNet]) -> (Vec<IpNet>, Vec<String>) {
        let mut routable = RoutableNetworks::new(&self.own, &self.document);
        let (mut taken, mut problems) = (Vec::new(), Vec::new());
        for network in networks {
            match routable.take(*network) {
                Ok(()) => taken.push(*network),
                Err(problem) => problems.push(format!("{network} {problem}")),
            }
        }
        (taken, problems)
    }
}

fn pace(document: &KubeProxyConfiguration, own: &KubeIpvsConfiguration, mode: Mode) -> Pace {
    let Periods { least, most, .. } = mode::periods(document, mode);
    Pace {
        min_sync_period: least.to_std(),
        sync_period: most.to_std(),
        drain_deadline: own.drain_deadline.unwrap_or_default().to_std(),
    }
}

/// The settings with what depends on the mode. Only virtual servers have addresses to route and internal
/// frontends.
fn with_mode(
    settings: Settings,
    document: &KubeProxyConfiguration,
    own: &KubeIpvsConfiguration,
    routes: &ServiceRoutes,
    mode: Mode,
) -> Settings {
    let has_virtual_servers = mode.uses(PartKind::VirtualServers);
    let internal_frontend_networks = if has_virtual_servers {
        own.internal_frontend.networks()
    } else {
        InternalFrontendNetworks::NONE
    };
    let service_routes = routes.chosen.clone().filter(|_| has_virtual_servers).unwrap_or_default();
    let iptables_localhost_node_ports = mode.balances_by_rules()
        && document.iptables.localhost_node_ports != Some(false)
        && includes_loopback(&settings.node_port_addresses);
    Settings {
        mode,
        limits: own.limits.resolve(mode),
        internal_frontend_networks,
        ipvs_internal_frontend_networks: own.internal_frontend.networks(),
        service_routes,
        iptables_localhost_node_ports,
        ..settings
    }
}

/// The TCP ports at the node's addresses on which kube-ipvs and the kubelet listen.
fn listeners(document: &KubeProxyConfiguration) -> Vec<(u16, Listener)> {
    let own = [
        (&document.healthz_bind_address, Listener::Health),
        (&document.metrics_bind_address, Listener::Metrics),
    ];
    let own = own.into_iter().filter_map(|(text, listener)| {
        let address = address::socket(text).filter(|address| !address.ip().is_loopback());
        address.map(|address| (address.port(), listener))
    });
    own.chain([(KUBELET_PORT, Listener::Kubelet)]).collect()
}

/// True if IPv4 node ports are to be served on loopback addresses, as far as a mode can
/// (`ContainsIPv4Loopback` in kube-proxy's pkg/proxy/util/nodeport_addresses.go).
fn includes_loopback(addresses: &NodePortAddresses) -> bool {
    let (networks, or_all) = match addresses {
        NodePortAddresses::All => return true,
        NodePortAddresses::Networks(networks) => (networks, true),
        NodePortAddresses::Primary(networks) => (networks, false),
    };
    let mut of_v4 = networks.iter().filter(|net| Family::of_net(net) == Family::V4).peekable();
    let loopback = loopback(Family::V4);
    (or_all && of_v4.peek().is_none())
        || of_v4.any(|net| net.contains(&loopback.network()) || net.addr().is_loopback())
}

fn settings(
    document: &KubeProxyConfiguration,
    own: &KubeIpvsConfiguration,
    gates: &FeatureGates,
    mode: Mode,
) -> Result<Settings, String> {
    let scheduler = match document.ipvs.scheduler.as_str() {
        "" => SchedulerName::default(),
        name => SchedulerName::new(name).map_err(|problem| problem.to_string())?,
    };
    let settings = Settings {
        scheduler,
        masquerade_all: document.iptables.masquerade_all,
        masquerade_bit: document
            .iptables
            .masquerade_bit
            .and_then(|bit| u8::try_from(bit).ok())
            .ok_or("iptables.masqueradeBit must be within the range [0, 31]")?,
        local_detection: local_detection(document),
        node_port_addresses: node_port_addresses(&document.node_port_addresses),
        exclude: networks(&document.ipvs.exclude_cidrs),
        listeners: listeners(document),
        accept_service_traffic: own.accept_service_traffic.value(),
        rule_form: own.rule_backend.value().form_without_host(),
        fast_path: own.fast_path.value().wanted(),
        health_port: address::socket(&document.healthz_bind_address)
            .filter(|socket| socket.ip().is_unspecified() && socket.port() > 0)
            .map(|socket| socket.port()),
        external_ips: gates.is_enabled(EXTERNAL_IPS),
        ..Settings::new(node_name(&document.hostname_override)?)
    };
    Ok(with_mode(settings, document, own, &ServiceRoutes::new(own), mode))
}

/// Kubernetes' node names are lower case.
fn node_name(overridden: &str) -> Result<Arc<str>, String> {
    let of_host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = match overridden.trim() {
        "" => of_host().trim().to_lowercase(),
        name => name.to_lowercase(),
    };
    if name.is_empty() {
        return Err("empty hostname is invalid: name the node with --hostname-override".to_owned());
    }
    Ok(name.into())
}

fn local_detection(document: &KubeProxyConfiguration) -> LocalDetection {
    let detect = &document.detect_local;
    match document.detect_local_mode.value() {
        DetectLocalMode::NodeCidr => LocalDetection::NodeCidr,
        DetectLocalMode::BridgeInterface => {
            LocalDetection::BridgeInterface((*detect.bridge_interface).into())
        }
        DetectLocalMode::InterfaceNamePrefix => {
            LocalDetection::InterfaceNamePrefix((*detect.interface_name_prefix).into())
        }
        DetectLocalMode::ClusterCidr => match cluster_networks(document) {
            networks if networks.is_empty() => LocalDetection::None,
            networks => LocalDetection::ClusterCidr(networks),
        },
    }
}

/// Returns the networks that `clusterCIDR` lists.
/// Networks, and the words that stand for some ([`NODE_PORT_WORDS`]).
fn node_port_addresses(texts: &[String]) -> NodePortAddresses {
    let has = |word: &str| texts.iter().any(|text| text == word);
    if texts.is_empty() || has("all") {
        return NodePortAddresses::All;
    }
    let mut chosen = networks(texts);
    if has("localhost") {
        chosen.extend(Family::BOTH.map(loopback));
    }
    if has("primary") {
        NodePortAddresses::Primary(chosen)
    } else {
        NodePortAddresses::Networks(chosen)
    }
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into(),
        Family::V6 => Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128).into(),
    }
}

/// The flags as they were given, or with their defaults.
fn given_or_default(arguments: &Arguments) -> Vec<(&'static str, String)> {
    let flags = flags::all().into_iter().map(|(name, flag)| {
        let given = arguments.values(name);
        (name, given.map_or(flag.default, |values| values.join(",")))
    });
    flags.collect()
}

/// Returns what the document says of it, without what it leaves to the kernel.
fn conntrack(document: &document::Conntrack) -> Conntrack {
    let unless_zero =
        |duration: GoDuration| Some(duration.to_std()).filter(|duration| !duration.is_zero());
    let number = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
    Conntrack {
        max_per_core: number(document.max_per_core).filter(|max| *max > 0),
        min: number(document.min).unwrap_or_default(),
        tcp_established: document.tcp_established_timeout.and_then(unless_zero),
        tcp_close_wait: document.tcp_close_wait_timeout.and_then(unless_zero),
        tcp_be_liberal: document.tcp_be_liberal,
        udp: unless_zero(document.udp_timeout),
        udp_stream: unless_zero(document.udp_stream_timeout),
    }
}
