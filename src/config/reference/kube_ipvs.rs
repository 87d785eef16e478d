//! The fields of our own document.

use plan::mode::Mode;
use plan::settings::AcceptServiceTraffic;

use super::Effect::{Does, DoesIn};
use super::Heading::{Actions, ApiServer, Balancing, Masquerading, Serving};
use super::{Setting, field};
use crate::config::mode::{FallbackMode, OnReturn};
use crate::config::words::ArpReplies;
use crate::kernel::estimators::Run;
use crate::kernel::rules::Variant;
use crate::serve::listen::Readers;
use crate::source::FollowNodes;

/// The fields of our own document. Its flags apply together with `--config`: kube-proxy has none by
/// these names.
pub const OWN_FIELDS: [Setting; 27] = [
    field(
        "acceptServiceTraffic",
        "string",
        DoesIn(
            Mode::Ipvs,
            "New connections to Services in INPUT, which they pass in mode ipvs alone: {words}. \
             docs/kernel-use.md has the rules",
        ),
    )
    .words::<AcceptServiceTraffic>(),
    field("apiVersion", "string", Does("Must be kube-ipvs.io/v1alpha1")),
    field(
        "cleanupOtherModes",
        "bool",
        Does(
            "Removes the leftovers of kube-proxy's other modes, iptables and nftables, once this \
             one carries the traffic. kube-proxy itself leaves the rules of mode iptables, and \
             packets meet both. In mode iptables, the state of mode ipvs stays",
        ),
    )
    .flag("cleanup-other-modes", "BOOL", Actions)
    .with_config(),
    field(
        "consolePage",
        "string",
        Does(
            "Pages for a browser at /console/ of the metrics server, for reading only: {words}",
        ),
    )
    .words::<Option<Readers>>()
    .flag("console-page", "READERS", Serving)
    .with_config(),
    field(
        "consoleSocket",
        "path",
        Does(
            "Unix socket at which the running program answers kube-ipvs status and the other \
             commands of docs/console.md, to root and its own user. Empty: none",
        ),
    )
    .flag("console-socket", "PATH", Actions)
    .with_config(),
    field(
        "drainDeadline",
        "duration",
        Does(
            "Time that the connections of a removed endpoint have to end before they are cut; in \
             mode iptables, those that mode ipvs left",
        ),
    )
    .flag("drain-deadline", "DURATION", Balancing)
    .with_config(),
    field(
        "estimators.run",
        "string",
        DoesIn(
            Mode::Ipvs,
            "IPVS statistics of the kernel (run_estimation, Linux 5.16 and later): {words}. \
             docs/estimators.md has the costs",
        ),
    )
    .words::<Run>(),
    field(
        "fallback",
        "string",
        DoesIn(
            Mode::Ipvs,
            "Mode for a host that cannot do ipvs: {words}. Empty: the program ends there, and \
             says what is missing. mode: auto sets it, too. docs/modes.md says when a node falls \
             back",
        ),
    )
    .words::<FallbackMode>()
    .flag("fallback", "MODE", Balancing)
    .with_config(),
    field(
        "fallbackRetry",
        "duration, 10s to 24h",
        DoesIn(
            Mode::Ipvs,
            "Pause between two looks at whether the host can do ipvs by now, on a node that has \
             fallen back",
        ),
    ),
    field(
        "fallbackReturn",
        "string",
        DoesIn(
            Mode::Ipvs,
            "Reaction of a node that has fallen back to a host that can do ipvs by now: {words}",
        ),
    )
    .words::<OnReturn>(),
    field(
        "followNodes",
        "string",
        Does(
            "Lists all Nodes every quarter of an hour, so that a Service with another node's \
             address in spec.externalIPs does not take the address away from that node: {words}",
        ),
    )
    .words::<FollowNodes>(),
    field(
        "iptablesVariant",
        "string",
        Does("Variant of iptables on hosts with both: {words}"),
    )
    .words::<Variant>()
    .flag("iptables-variant", "VARIANT", Masquerading)
    .with_config(),
    field("kind", "string", Does("Must be KubeIpvsConfiguration")),
    field(
        "limits.frontends",
        "number, 1 to 1000000",
        Does(
            "Most addresses and ports of one Service. Those beyond are left out, in the order of \
             docs/limits.md, with an Event. All limits are far above what Services need: they \
             keep one object from taking the whole node",
        ),
    ),
    field(
        "limits.realServers",
        "number, 1 to 100000000",
        Does(
            "Most real servers of one Service, in all of its virtual servers together. Unset: 1000000 \
             in mode ipvs, 50000 in modes iptables and userspace, where endpoints count once for each \
             port, and so do source ranges",
        ),
    ),
    field(
        "limits.schedulers",
        "list of schedulers",
        DoesIn(
            Mode::Ipvs,
            "Schedulers that the annotation kube-ipvs.io/scheduler may choose. Empty: all. Each \
             virtual server with mh takes 32 KB of kernel memory",
        ),
    ),
    field(
        "limits.setEntries",
        "number, 1 to 10000000",
        DoesIn(
            Mode::Ipvs,
            "Most entries of one Service in one set. Most of them are source ranges, once for \
             each address and port of its load balancers",
        ),
    ),
    field(
        "limits.setSize",
        "number, 65536 to 2147483648",
        DoesIn(Mode::Ipvs, "Most entries of a set, of all Services together"),
    ),
    field(
        "loadBalancersBeforeNodes",
        "bool",
        Does(
            "Serves a load balancer's address even if another Node's status has it, so that no \
             kubelet can take it from the Service. Only for clusters whose load balancers use no \
             node's own address: that node would be cut off",
        ),
    ),
    field(
        "localhostNodePorts",
        "bool",
        Does(
            "Serves TCP node ports on 127.0.0.1 and ::1 too, for programs on the node itself. \
             docs/privileges.md says who can reach them",
        ),
    ),
    field(
        "manifests",
        "directory",
        Does(
            "Reads Services, EndpointSlices and Nodes from the YAML files in this directory, \
             instead of from an API server, and follows their changes",
        ),
    )
    .flag("manifests", "DIRECTORY", ApiServer)
    .with_config(),
    field(
        "serviceAddressesArp",
        "string",
        DoesIn(
            Mode::Ipvs,
            "ARP replies of this node for Service addresses: {words}",
        ),
    )
    .words::<ArpReplies>(),
    field(
        "serviceMetrics",
        "off, top:N, all or namespaces:NAME,…",
        DoesIn(
            Mode::Ipvs,
            "Services with metrics of their own (kube_ipvs_service_*: connections, packets, bytes): \
             none, the N with the most traffic, all, or those of some namespaces. Each Service has \
             8 series on each node. The counters stand still where IPVS' statistics are off \
             (docs/estimators.md)",
        ),
    )
    .flag("service-metrics", "SERVICES", Serving)
    .with_config(),
    field(
        "serviceRoutes",
        "auto, networks, or both in a list",
        DoesIn(
            Mode::Ipvs,
            "Networks of cluster addresses: one local route for each replaces the addresses on \
             kube-ipvs0. auto: only where there are thousands of Services (IPv6: hundreds), and the \
             networks are those of the cluster's ServiceCIDRs unless the list has some. docs/service-addresses.md has the \
             consequences. Empty: every address is bound",
        ),
    ),
    field(
        "shortCircuit.ipv4",
        "network",
        DoesIn(
            Mode::Ipvs,
            "Unused network of up to 24 bits for short circuits: through them, clients in the cluster \
             reach all endpoints at an address with externalTrafficPolicy Local. Empty: these clients \
             get what clients outside get. If it is unset and clusterCIDR or nodePortAddresses overlaps \
             the default: 0.0.0.0/8, or empty if that is in use, too",
        ),
    ),
    field(
        "shortCircuit.ipv6",
        "network",
        DoesIn(Mode::Ipvs, "The same for IPv6, up to 96 bits, with fefe::/16 for 0.0.0.0/8"),
    ),
    field(
        "udpIdleTimeout",
        "duration",
        DoesIn(
            Mode::Userspace,
            "Time after which the relay forgets a UDP client if nothing passes either way. \
             kube-proxy had 250ms, which cuts slow answers off",
        ),
    )
    .flag("udp-timeout", "DURATION", Balancing)
    .with_config(),
];
