//! Every field and every flag, with what it does here. The one place where that is said: unknown
//! fields are told from known ones by it, and docs/config.md is made from it.

mod own;

use serde_json::Value;

pub use own::OWN_FIELDS;

/// A field of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its name, after the names of what it is in and a dot. `[]` is any item of a list.
    pub path: &'static str,
    /// Values that can be written.
    pub kind: &'static str,
    /// Effect of the field.
    pub effect: Effect,
}

/// A flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag {
    /// Its name, without the hyphens before it.
    pub name: &'static str,
    /// Meaning of the flag.
    pub meaning: Meaning,
}

/// Meaning of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The same as a field of kube-proxy's document.
    Field(&'static str),
    /// The same as a field of kube-proxy's document, with another default.
    FieldBut {
        /// The field.
        path: &'static str,
        /// Value if there is neither the flag nor a file.
        default: &'static str,
    },
    /// The same as a field of our own document.
    OwnField(&'static str),
    /// Something that no document can say.
    Itself {
        /// Value if the flag is not given.
        default: &'static str,
        /// Effect of the flag.
        effect: Effect,
    },
}

/// Effect of a field or a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// This.
    Does(&'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

// === impl Flag ===

impl Flag {
    /// Value if the flag is not given, as it would be written. `kube_proxy` and `own` are the
    /// documents with nothing but defaults.
    #[must_use]
    pub fn default(&self, kube_proxy: &Value, own: &Value) -> String {
        match self.meaning {
            Meaning::Field(path) => default_of(kube_proxy, path),
            Meaning::OwnField(path) => default_of(own, path),
            Meaning::FieldBut { default, .. } | Meaning::Itself { default, .. } => {
                default.to_owned()
            }
        }
    }
}

/// Default of a field, as text. An empty list's text is empty.
#[must_use]
pub fn default_of(document: &Value, path: &str) -> String {
    let pointer = format!("/{}", path.replace("[]", "/0").replace('.', "/"));
    match document.pointer(&pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

/// Why a flag does nothing, if it does nothing.
#[must_use]
pub fn why_flag_has_no_effect(name: &str) -> Option<&'static str> {
    let effect = match FLAGS.iter().find(|flag| flag.name == name)?.meaning {
        Meaning::Field(path) | Meaning::FieldBut { path, .. } => find(&FIELDS, path)?.effect,
        Meaning::OwnField(path) => find(&OWN_FIELDS, path)?.effect,
        Meaning::Itself { effect, .. } => effect,
    };
    match effect {
        Effect::Does(_) => None,
        Effect::Nothing(why) => Some(why),
    }
}

/// A field by its path.
#[must_use]
pub fn find(fields: &'static [Field], path: &str) -> Option<&'static Field> {
    fields.iter().find(|field| field.path == path)
}

const fn does(path: &'static str, kind: &'static str, what: &'static str) -> Field {
    Field { path, kind, effect: Effect::Does(what) }
}

const fn nothing(path: &'static str, kind: &'static str, why: &'static str) -> Field {
    Field { path, kind, effect: Effect::Nothing(why) }
}

const fn flag(name: &'static str, path: &'static str) -> Flag {
    Flag { name, meaning: Meaning::Field(path) }
}

const fn own(name: &'static str, path: &'static str) -> Flag {
    Flag { name, meaning: Meaning::OwnField(path) }
}

const fn flag_but(name: &'static str, path: &'static str, default: &'static str) -> Flag {
    Flag { name, meaning: Meaning::FieldBut { path, default } }
}

const fn itself(name: &'static str, default: &'static str, effect: Effect) -> Flag {
    Flag { name, meaning: Meaning::Itself { default, effect } }
}

/// The fields of kube-proxy's document, in the order of their names.
pub const FIELDS: [Field; 63] = [
    does("apiVersion", "string", "must be kubeproxy.config.k8s.io/v1alpha1"),
    does(
        "bindAddress",
        "address",
        "the primary address of this node, if it is not the one that its Node object names \
         first; nothing is bound to it",
    ),
    does(
        "bindAddressHardFail",
        "bool",
        "ends the program when healthzBindAddress or metricsBindAddress cannot be listened \
         on, instead of trying again",
    ),
    nothing("clientConnection.acceptContentTypes", "string", "the API server is asked for JSON"),
    does("clientConnection.burst", "number", "how many requests may go to the API server at once"),
    nothing("clientConnection.contentType", "string", "the API server is asked for JSON"),
    does(
        "clientConnection.kubeconfig",
        "file",
        "how to reach the API server; without it and without --master: as a pod of the cluster",
    ),
    does(
        "clientConnection.qps",
        "number",
        "how many requests a second go to the API server in the long run",
    ),
    does(
        "clusterCIDR",
        "networks, separated by a comma",
        "with detectLocalMode ClusterCIDR: the pods' networks, one of each family at most",
    ),
    nothing(
        "configSyncPeriod",
        "duration",
        "the API server's watches bring every change, and the kernel is compared every \
         ipvs.syncPeriod",
    ),
    does(
        "conntrack.maxPerCore",
        "number",
        "nf_conntrack_max is set to this times the processor cores, at least conntrack.min, at \
         most 1048576; 0 leaves it",
    ),
    does("conntrack.min", "number", "the least nf_conntrack_max, where maxPerCore is not 0"),
    does("conntrack.tcpBeLiberal", "bool", "sets nf_conntrack_tcp_be_liberal"),
    does(
        "conntrack.tcpCloseWaitTimeout",
        "duration",
        "nf_conntrack_tcp_timeout_close_wait; 0s leaves it",
    ),
    does(
        "conntrack.tcpEstablishedTimeout",
        "duration",
        "nf_conntrack_tcp_timeout_established; 0s leaves it",
    ),
    does("conntrack.udpStreamTimeout", "duration", "nf_conntrack_udp_timeout_stream; 0s leaves it"),
    does("conntrack.udpTimeout", "duration", "nf_conntrack_udp_timeout; 0s leaves it"),
    does(
        "detectLocal.bridgeInterface",
        "string",
        "with detectLocalMode BridgeInterface: the bridge that this node's pods are on",
    ),
    does(
        "detectLocal.interfaceNamePrefix",
        "string",
        "with detectLocalMode InterfaceNamePrefix: how the interfaces of this node's pods begin",
    ),
    does(
        "detectLocalMode",
        "string",
        "how traffic from this node's own pods is recognised, which then is not masqueraded: \
         ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix; empty is ClusterCIDR",
    ),
    does(
        "enableProfiling",
        "bool",
        "lets how much is logged be changed at metricsBindAddress, by a PUT of a number to \
         /debug/flags/v. There are no profiles: /debug/pprof says to use perf",
    ),
    does(
        "featureGates",
        "map of bool",
        "gates of Kubernetes 1.36; AllowServiceExternalIPs=false ignores spec.externalIPs, \
         ComponentFlagz and ComponentStatusz serve their pages, LoggingAlphaOptions lets its \
         options be written; the others do nothing, and one that 1.36 does not know is told",
    ),
    does("healthzBindAddress", "address:port", "where to serve whether this node can take traffic"),
    does("hostnameOverride", "string", "this node's name, instead of the host's"),
    nothing(
        "iptables.localhostNodePorts",
        "bool",
        "it is of kube-proxy's mode iptables, where it is true unless something else is said; \
         localhostNodePorts of our own document is for IPVS",
    ),
    does(
        "iptables.masqueradeAll",
        "bool",
        "masquerades everything that is sent to a cluster address",
    ),
    does(
        "iptables.masqueradeBit",
        "number, 0 to 31",
        "the bit of the packet mark that means \"masquerade this\"",
    ),
    nothing("iptables.minSyncPeriod", "duration", "it is of kube-proxy's mode iptables"),
    nothing("iptables.syncPeriod", "duration", "it is of kube-proxy's mode iptables"),
    does(
        "ipvs.excludeCIDRs",
        "list of networks",
        "virtual servers, addresses and set entries inside these that no Service wants are left alone",
    ),
    does(
        "ipvs.minSyncPeriod",
        "duration",
        "changes that come within this time after a write go together",
    ),
    does("ipvs.scheduler", "string", "the scheduler of every virtual server; empty is rr"),
    does("ipvs.strictARP", "bool", "sets arp_ignore to 1 and arp_announce to 2"),
    does(
        "ipvs.syncPeriod",
        "duration",
        "in this time all of the kernel is compared with what it should be, a little at a time; \
         longer where that would take more than a fortieth of it. What was flushed or deleted is \
         mostly noticed within a second",
    ),
    does(
        "ipvs.tcpFinTimeout",
        "duration",
        "how long IPVS remembers a closing TCP connection; 0s leaves it",
    ),
    does(
        "ipvs.tcpTimeout",
        "duration",
        "how long IPVS remembers an idle TCP connection; 0s leaves it",
    ),
    does("ipvs.udpTimeout", "duration", "how long IPVS remembers an idle UDP flow; 0s leaves it"),
    does("kind", "string", "must be KubeProxyConfiguration"),
    nothing("logging.flushFrequency", "duration, or nanoseconds", "log lines are not held back"),
    does("logging.format", "string", "text or json"),
    nothing("logging.options.json.infoBufferSize", "size", "log lines are not held back"),
    nothing("logging.options.json.splitStream", "bool", "all log lines go to standard error"),
    nothing("logging.options.text.infoBufferSize", "size", "log lines are not held back"),
    nothing("logging.options.text.splitStream", "bool", "all log lines go to standard error"),
    does("logging.verbosity", "number", "how much to log; 4 and more show every kernel change"),
    nothing("logging.vmodule[].filePattern", "string", "it names source files of kube-proxy's"),
    nothing("logging.vmodule[].verbosity", "number", "it is of source files of kube-proxy's"),
    does("metricsBindAddress", "address:port", "where to serve metrics"),
    does("mode", "string", "ipvs, or empty, which is ipvs here; iptables and nftables are refused"),
    nothing("nftables.masqueradeAll", "bool", "it is of kube-proxy's mode nftables"),
    nothing("nftables.masqueradeBit", "number", "it is of kube-proxy's mode nftables"),
    nothing("nftables.minSyncPeriod", "duration", "it is of kube-proxy's mode nftables"),
    nothing("nftables.syncPeriod", "duration", "it is of kube-proxy's mode nftables"),
    does(
        "nodePortAddresses",
        "list of networks, primary, localhost, all",
        "node ports are served on the node's addresses inside these; primary: on the first \
         address of each family in the Node object; localhost: on 127.0.0.1 and ::1, as with \
         localhostNodePorts; all, or an empty list: on all but loopback",
    ),
    does(
        "oomScoreAdj",
        "number, -1000 to 1000",
        "how readily the kernel ends this process when memory is short",
    ),
    nothing("portRange", "string", "kube-proxy has no use for it any more either"),
    nothing("showHiddenMetricsForVersion", "string", "there are no hidden metrics"),
    nothing("windowsRunAsService", "bool", "it is of Windows"),
    nothing("winkernel.enableDSR", "bool", "it is of Windows"),
    nothing("winkernel.forwardHealthCheckVip", "bool", "it is of Windows"),
    nothing("winkernel.networkName", "string", "it is of Windows"),
    nothing("winkernel.rootHnsEndpointName", "string", "it is of Windows"),
    nothing("winkernel.sourceVip", "string", "it is of Windows"),
];

/// All flags, in the order of their names.
pub const FLAGS: [Flag; 63] = [
    flag("bind-address", "bindAddress"),
    flag("bind-address-hard-fail", "bindAddressHardFail"),
    itself(
        "boot-id-file",
        "/proc/sys/kernel/random/boot_id",
        Effect::Nothing("it is of a library that kube-proxy has"),
    ),
    itself(
        "cleanup",
        "false",
        Effect::Does(
            "removes everything that this program and kube-proxy have put into the kernel, and \
                      ends",
        ),
    ),
    own("cleanup-other-modes", "cleanupOtherModes"),
    flag("cluster-cidr", "clusterCIDR"),
    itself("config", "", Effect::Does("the file with the configuration")),
    flag("config-sync-period", "configSyncPeriod"),
    flag("conntrack-max-per-core", "conntrack.maxPerCore"),
    flag("conntrack-min", "conntrack.min"),
    flag("conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal"),
    flag("conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout"),
    flag("conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout"),
    flag("conntrack-udp-timeout", "conntrack.udpTimeout"),
    flag("conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout"),
    flag("detect-local-mode", "detectLocalMode"),
    own("drain-deadline", "drainDeadline"),
    flag("feature-gates", "featureGates"),
    flag("healthz-bind-address", "healthzBindAddress"),
    itself(
        "healthz-port",
        "10256",
        Effect::Does(
            "deprecated: the port of --healthz-bind-address, if that has none; 0 serves nothing",
        ),
    ),
    itself("help", "false", Effect::Does("prints how to use the program, and ends")),
    flag("hostname-override", "hostnameOverride"),
    itself("init-only", "false", Effect::Does("does only what needs all privileges, and ends")),
    flag("iptables-localhost-nodeports", "iptables.localhostNodePorts"),
    flag("iptables-masquerade-bit", "iptables.masqueradeBit"),
    flag("iptables-min-sync-period", "iptables.minSyncPeriod"),
    flag("iptables-sync-period", "iptables.syncPeriod"),
    own("iptables-variant", "iptablesVariant"),
    flag("ipvs-exclude-cidrs", "ipvs.excludeCIDRs"),
    flag_but("ipvs-min-sync-period", "ipvs.minSyncPeriod", "1s"),
    flag("ipvs-scheduler", "ipvs.scheduler"),
    flag("ipvs-strict-arp", "ipvs.strictARP"),
    flag("ipvs-sync-period", "ipvs.syncPeriod"),
    flag("ipvs-tcp-timeout", "ipvs.tcpTimeout"),
    flag("ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout"),
    flag("ipvs-udp-timeout", "ipvs.udpTimeout"),
    flag("kube-api-burst", "clientConnection.burst"),
    flag("kube-api-content-type", "clientConnection.contentType"),
    flag("kube-api-qps", "clientConnection.qps"),
    flag("kubeconfig", "clientConnection.kubeconfig"),
    flag("log-flush-frequency", "logging.flushFrequency"),
    flag("log-json-info-buffer-size", "logging.options.json.infoBufferSize"),
    flag("log-json-split-stream", "logging.options.json.splitStream"),
    flag("log-text-info-buffer-size", "logging.options.text.infoBufferSize"),
    flag("log-text-split-stream", "logging.options.text.splitStream"),
    flag("logging-format", "logging.format"),
    itself(
        "machine-id-file",
        "/etc/machine-id,/var/lib/dbus/machine-id",
        Effect::Nothing("it is of a library that kube-proxy has"),
    ),
    own("manifests", "manifests"),
    flag("masquerade-all", "iptables.masqueradeAll"),
    itself(
        "master",
        "",
        Effect::Does("the API server, instead of the one that the kubeconfig names"),
    ),
    flag("metrics-bind-address", "metricsBindAddress"),
    itself(
        "metrics-port",
        "10249",
        Effect::Does(
            "deprecated: the port of --metrics-bind-address, if that has none; 0 is refused, as \
                      kube-proxy refuses it",
        ),
    ),
    flag("nodeport-addresses", "nodePortAddresses"),
    flag("oom-score-adj", "oomScoreAdj"),
    flag("pod-bridge-interface", "detectLocal.bridgeInterface"),
    flag("pod-interface-name-prefix", "detectLocal.interfaceNamePrefix"),
    flag("profiling", "enableProfiling"),
    flag("proxy-mode", "mode"),
    flag("show-hidden-metrics-for-version", "showHiddenMetricsForVersion"),
    flag("v", "logging.verbosity"),
    itself(
        "version",
        "false",
        Effect::Does(
            "prints the version and ends; --version=vX.Y.Z changes the version that is reported",
        ),
    ),
    flag_but("vmodule", "logging.vmodule[].filePattern", ""),
    itself(
        "write-config-to",
        "",
        Effect::Does(
            "writes the configuration that would be in force to this file, and ends; goes before \
                      all other actions",
        ),
    ),
];
