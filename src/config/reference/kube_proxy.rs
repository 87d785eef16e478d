//! The fields of kube-proxy's document.

use plan::mode::Mode;

use super::Effect::{Does, DoesIn, DoesInAny, Nothing};
use super::Heading::{ApiServer, Balancing, Conntrack, Logging, Masquerading, Node, Serving};
use super::{Setting, field};
use crate::config::LogFormat;
use crate::config::mode::ProxyMode;
use crate::config::words::DetectLocalMode;

const JSON: &str = "the API client asks for JSON";
const UNBUFFERED: &str = "log lines are not buffered";
const STANDARD_ERROR: &str = "all log lines go to standard error";
const NFTABLES: &str = "it belongs to kube-proxy's mode nftables";
const WINDOWS: &str = "it belongs to kube-proxy on Windows";

/// The fields of kube-proxy's document, in the order of their names.
pub const FIELDS: [Setting; 63] = [
    field("apiVersion", "string", Does("Must be kubeproxy.config.k8s.io/v1alpha1")),
    field(
        "bindAddress",
        "address",
        Does(
            "Address whose IP family is this node's primary one. Nothing listens on it. \
             Unspecified (0.0.0.0 or ::): the family of the first address in the Node object. In a \
             file, the defaults of healthzBindAddress and metricsBindAddress have its family, too",
        ),
    )
    .flag("bind-address", "ADDRESS", Node),
    field(
        "bindAddressHardFail",
        "bool",
        Does(
            "Ends the program if it cannot listen on the address of the health or the metrics \
             server, instead of trying again",
        ),
    )
    .flag("bind-address-hard-fail", "BOOL", Serving),
    field("clientConnection.acceptContentTypes", "string", Nothing(JSON)),
    field("clientConnection.burst", "number", Does("Largest burst of requests to the API server"))
        .flag("kube-api-burst", "NUMBER", ApiServer),
    field("clientConnection.contentType", "string", Nothing(JSON)).flag(
        "kube-api-content-type",
        "TYPE",
        ApiServer,
    ),
    field(
        "clientConnection.kubeconfig",
        "file",
        Does(
            "Kubeconfig file for the API server. Empty, and without --master: the service account \
             of the pod",
        ),
    )
    .flag("kubeconfig", "FILE", ApiServer),
    field(
        "clientConnection.qps",
        "number",
        Does("Requests per second to the API server on average; negative: no limit"),
    )
    .flag("kube-api-qps", "NUMBER", ApiServer),
    field(
        "clusterCIDR",
        "networks, separated by a comma",
        Does("Pod networks for detectLocalMode ClusterCIDR, at most one of each IP family"),
    )
    .flag("cluster-cidr", "CIDR,...", Masquerading),
    field(
        "configSyncPeriod",
        "duration",
        Nothing(
            "watches deliver every change, and the audit compares all kernel state every \
             ipvs.syncPeriod",
        ),
    )
    .flag("config-sync-period", "DURATION", ApiServer),
    field(
        "conntrack.maxPerCore",
        "number",
        Does(
            "Raises nf_conntrack_max to this number times the online processors, or to \
             conntrack.min if that is more; to 1048576 if the product is larger than that, \
             whatever conntrack.min is; 0 leaves nf_conntrack_max unchanged",
        ),
    )
    .flag("conntrack-max-per-core", "NUMBER", Conntrack),
    field(
        "conntrack.min",
        "number",
        Does(
            "Lowest nf_conntrack_max that conntrack.maxPerCore sets, unless its product is above \
             1048576; no effect if conntrack.maxPerCore is 0",
        ),
    )
    .flag("conntrack-min", "NUMBER", Conntrack),
    field(
        "conntrack.tcpBeLiberal",
        "bool",
        Does(
            "Sets nf_conntrack_tcp_be_liberal to 1: TCP packets outside of the window count as \
             valid; false leaves it unchanged",
        ),
    )
    .flag("conntrack-tcp-be-liberal", "BOOL", Conntrack),
    field(
        "conntrack.tcpCloseWaitTimeout",
        "duration",
        Does(
            "Sets nf_conntrack_tcp_timeout_close_wait, the timeout of TCP connections in \
             CLOSE_WAIT; 0s leaves it unchanged",
        ),
    )
    .flag("conntrack-tcp-timeout-close-wait", "DURATION", Conntrack),
    field(
        "conntrack.tcpEstablishedTimeout",
        "duration",
        Does(
            "Sets nf_conntrack_tcp_timeout_established, the timeout of idle TCP connections; 0s \
             leaves it unchanged",
        ),
    )
    .flag("conntrack-tcp-timeout-established", "DURATION", Conntrack),
    field(
        "conntrack.udpStreamTimeout",
        "duration",
        Does(
            "Sets nf_conntrack_udp_timeout_stream, the timeout of UDP flows with answers; 0s \
             leaves it unchanged",
        ),
    )
    .flag("conntrack-udp-timeout-stream", "DURATION", Conntrack),
    field(
        "conntrack.udpTimeout",
        "duration",
        Does(
            "Sets nf_conntrack_udp_timeout, the timeout of UDP flows without an answer; 0s leaves \
             it unchanged",
        ),
    )
    .flag("conntrack-udp-timeout", "DURATION", Conntrack),
    field(
        "detectLocal.bridgeInterface",
        "string",
        Does("Bridge of this node's pods, for detectLocalMode BridgeInterface"),
    )
    .flag("pod-bridge-interface", "INTERFACE", Masquerading),
    field(
        "detectLocal.interfaceNamePrefix",
        "string",
        Does(
            "Prefix of the names of this node's pod interfaces, for detectLocalMode \
             InterfaceNamePrefix",
        ),
    )
    .flag("pod-interface-name-prefix", "PREFIX", Masquerading),
    field(
        "detectLocalMode",
        "string",
        Does(
            "Way to recognise traffic of this node's own pods, which is not masqueraded: {words}. \
             Empty: ClusterCIDR",
        ),
    )
    .words::<DetectLocalMode>()
    .flag("detect-local-mode", "MODE", Masquerading),
    field(
        "enableProfiling",
        "bool",
        Does(
            "Serves /debug/flags/v on the metrics server: a PUT of a number changes the verbosity \
             of the log. There are no profiles: /debug/pprof says to use perf",
        ),
    )
    .flag("profiling", "BOOL", Serving),
    field(
        "featureGates",
        "map of bool",
        Does(
            "AllowServiceExternalIPs=false ignores spec.externalIPs. ComponentFlagz and \
             ComponentStatusz serve their pages. LoggingAlphaOptions permits the options it stands \
             for. AllAlpha and AllBeta set those of these that are of their stage. Other feature \
             gates of Kubernetes have no effect; a line of the log names them",
        ),
    )
    .flag("feature-gates", "NAME=BOOL,...", ApiServer),
    field(
        "healthzBindAddress",
        "address:port",
        Does("Address and port of the health server (/healthz, /livez, /readyz)"),
    )
    .flag("healthz-bind-address", "ADDRESS:PORT", Serving),
    field(
        "hostnameOverride",
        "string",
        Does("Name of this node, as EndpointSlices have it in nodeName. Empty: the host's name"),
    )
    .flag("hostname-override", "NAME", Node)
    .with_config(),
    field(
        "iptables.localhostNodePorts",
        "bool",
        DoesIn(
            Mode::Iptables,
            "Serves IPv4 node ports on loopback addresses too, if nodePortAddresses include \
             127.0.0.0 or a network of loopback addresses (an empty list does): sets \
             net.ipv4.conf.all.route_localnet to 1. In mode ipvs, set localhostNodePorts of \
             KubeIpvsConfiguration",
        ),
    )
    .flag("iptables-localhost-nodeports", "BOOL", Masquerading),
    field("iptables.masqueradeAll", "bool", Does("Masquerades all traffic to cluster addresses"))
        .flag("masquerade-all", "BOOL", Masquerading),
    field(
        "iptables.masqueradeBit",
        "number, 0 to 31",
        Does("Bit of the packet mark that requests masquerading, 0 to 31"),
    )
    .flag("iptables-masquerade-bit", "BIT", Masquerading),
    field(
        "iptables.minSyncPeriod",
        "duration",
        DoesInAny(
            &[Mode::Iptables, Mode::Userspace],
            "Minimum time between two writes; changes that arrive in between go together",
        ),
    )
    .flag("iptables-min-sync-period", "DURATION", Balancing),
    field(
        "iptables.syncPeriod",
        "duration",
        DoesInAny(
            &[Mode::Iptables, Mode::Userspace],
            "Half of the time that a change may wait to be written before /healthz fails. No rules \
             are written periodically: changes by other programs are mostly noticed within a \
             second",
        ),
    )
    .flag("iptables-sync-period", "DURATION", Balancing),
    field(
        "ipvs.excludeCIDRs",
        "list of networks",
        Does(
            "Networks of other programs: virtual servers, addresses and set entries inside them \
             that no Service asks for are not removed, in mode ipvs and after a switch from it",
        ),
    )
    .flag("ipvs-exclude-cidrs", "CIDR,...", Balancing),
    field(
        "ipvs.minSyncPeriod",
        "duration",
        DoesIn(
            Mode::Ipvs,
            "Minimum time between two writes; changes that arrive in between go together",
        ),
    )
    .flag("ipvs-min-sync-period", "DURATION", Balancing),
    field(
        "ipvs.scheduler",
        "string",
        DoesIn(
            Mode::Ipvs,
            "Scheduler of the virtual servers: rr, wrr, lc, wlc, sh, dh, sed, nq, mh or another \
             one of the kernel. Empty: rr",
        ),
    )
    .flag("ipvs-scheduler", "NAME", Balancing),
    field(
        "ipvs.strictARP",
        "bool",
        DoesIn(
            Mode::Ipvs,
            "Sets arp_ignore to 1 and arp_announce to 2: ARP requests are answered only on the \
             interface that has the address, and none for Service addresses",
        ),
    )
    .flag("ipvs-strict-arp", "BOOL", Balancing),
    field(
        "ipvs.syncPeriod",
        "duration",
        DoesIn(
            Mode::Ipvs,
            "Period of the audit, which compares all kernel state with the desired state, a part \
             at a time; longer where the audit would take more than one part in 125 of the time. \
             Independent of it, flushes and deletions are mostly noticed within a second",
        ),
    )
    .flag("ipvs-sync-period", "DURATION", Balancing),
    field(
        "ipvs.tcpFinTimeout",
        "duration",
        DoesIn(
            Mode::Ipvs,
            "IPVS timeout of TCP connections after a FIN; 0s leaves the kernel's value",
        ),
    )
    .flag("ipvs-tcpfin-timeout", "DURATION", Balancing),
    field(
        "ipvs.tcpTimeout",
        "duration",
        DoesIn(Mode::Ipvs, "IPVS timeout of idle TCP connections; 0s leaves the kernel's value"),
    )
    .flag("ipvs-tcp-timeout", "DURATION", Balancing),
    field(
        "ipvs.udpTimeout",
        "duration",
        DoesIn(Mode::Ipvs, "IPVS timeout of idle UDP flows; 0s leaves the kernel's value"),
    )
    .flag("ipvs-udp-timeout", "DURATION", Balancing),
    field("kind", "string", Does("Must be KubeProxyConfiguration")),
    field("logging.flushFrequency", "duration, or nanoseconds", Nothing(UNBUFFERED))
        .flag("log-flush-frequency", "DURATION", Logging)
        .with_config(),
    field("logging.format", "string", Does("Format of the log: {words}"))
        .words::<LogFormat>()
        .flag("logging-format", "FORMAT", Logging)
        .with_config(),
    field("logging.options.json.infoBufferSize", "size", Nothing(UNBUFFERED))
        .flag("log-json-info-buffer-size", "SIZE", Logging)
        .with_config(),
    field("logging.options.json.splitStream", "bool", Nothing(STANDARD_ERROR))
        .flag("log-json-split-stream", "BOOL", Logging)
        .with_config(),
    field("logging.options.text.infoBufferSize", "size", Nothing(UNBUFFERED))
        .flag("log-text-info-buffer-size", "SIZE", Logging)
        .with_config(),
    field("logging.options.text.splitStream", "bool", Nothing(STANDARD_ERROR))
        .flag("log-text-split-stream", "BOOL", Logging)
        .with_config(),
    field(
        "logging.verbosity",
        "number",
        Does(
            "Verbosity of the log, as kube-proxy counts it: from 4 on every kernel change is \
             logged. The environment variable RUST_LOG overrides it",
        ),
    )
    .flag("v", "LEVEL", Logging)
    .with_config(),
    field(
        "logging.vmodule[].filePattern",
        "string",
        Nothing("it names source files of kube-proxy"),
    )
    .flag("vmodule", "PATTERN=LEVEL,...", Logging)
    .with_config(),
    field(
        "logging.vmodule[].verbosity",
        "number",
        Nothing("it is about source files of kube-proxy"),
    ),
    field(
        "metricsBindAddress",
        "address:port",
        Does("Address and port of the metrics server (/metrics)"),
    )
    .flag("metrics-bind-address", "ADDRESS:PORT", Serving),
    field(
        "mode",
        "string",
        Does("Mode of the proxy: {words}. Empty: ipvs. nftables and kernelspace are refused"),
    )
    .words::<ProxyMode>()
    .flag("proxy-mode", "MODE", Balancing),
    field("nftables.masqueradeAll", "bool", Nothing(NFTABLES)),
    field("nftables.masqueradeBit", "number", Nothing(NFTABLES)),
    field("nftables.minSyncPeriod", "duration", Nothing(NFTABLES)),
    field("nftables.syncPeriod", "duration", Nothing(NFTABLES)),
    field(
        "nodePortAddresses",
        "list of networks, primary, localhost, all",
        Does(
            "Networks whose addresses on this node serve node ports. Instead of a network: \
             primary (the first address of each family in the Node object), localhost (127.0.0.1 \
             and ::1, as with localhostNodePorts), all. Empty or all: every address but loopback",
        ),
    )
    .flag("nodeport-addresses", "CIDR,...", Balancing),
    field(
        "oomScoreAdj",
        "number, -1000 to 1000",
        Does("OOM score adjustment of this process, -1000 to 1000"),
    )
    .flag("oom-score-adj", "NUMBER", Node),
    field(
        "portRange",
        "string",
        DoesIn(
            Mode::Userspace,
            "Ports of the node on which the relay listens, two at most for each Service port: \
             40000-40999, 40000+999 or one port, outside of the range of node ports. Empty: the \
             kernel chooses them",
        ),
    )
    .flag("proxy-port-range", "RANGE", Balancing),
    field("showHiddenMetricsForVersion", "string", Nothing("there are no hidden metrics")).flag(
        "show-hidden-metrics-for-version",
        "VERSION",
        Serving,
    ),
    field("windowsRunAsService", "bool", Nothing(WINDOWS)),
    field("winkernel.enableDSR", "bool", Nothing(WINDOWS)),
    field("winkernel.forwardHealthCheckVip", "bool", Nothing(WINDOWS)),
    field("winkernel.networkName", "string", Nothing(WINDOWS)),
    field("winkernel.rootHnsEndpointName", "string", Nothing(WINDOWS)),
    field("winkernel.sourceVip", "string", Nothing(WINDOWS)),
];
