//! The fields of our own document.

use super::Effect::Does;
use super::Heading::{Actions, ApiServer, Balancing, Masquerading};
use super::{Setting, field};

/// The fields of our own document. Its flags apply together with `--config`: kube-proxy has none by
/// these names.
pub const OWN_FIELDS: [Setting; 21] = [
    field("apiVersion", "string", Does("Must be kube-ipvs.io/v1alpha1")),
    field(
        "cleanupOtherModes",
        "bool",
        Does(
            "Removes the leftovers of kube-proxy's modes iptables and nftables once IPVS carries \
             the traffic. kube-proxy itself leaves the rules of mode iptables, and packets meet \
             both",
        ),
    )
    .flag("cleanup-other-modes", "BOOL", Actions)
    .with_config(),
    field(
        "drainDeadline",
        "duration",
        Does("Time that the connections of a removed endpoint have to end before they are cut"),
    )
    .flag("drain-deadline", "DURATION", Balancing)
    .with_config(),
    field(
        "estimators.cpus",
        "list of processors, such as 0-3,8",
        Does(
            "Processors of the kernel's estimator threads (est_cpulist, Linux 6.2 and later). \
             Empty: unchanged",
        ),
    ),
    field(
        "estimators.nice",
        "number, -20 to 19",
        Does(
            "Niceness of the kernel's estimator threads (est_nice, Linux 6.2 and later). Absent: \
             unchanged",
        ),
    ),
    field(
        "estimators.run",
        "string",
        Does(
            "IPVS statistics of the kernel (run_estimation, Linux 5.16 and later): on, off, or \
             auto (unchanged, but off where estimation would hold up packets). \
             docs/estimators.md has the costs",
        ),
    ),
    field(
        "followNodes",
        "string",
        Does(
            "Lists all Nodes every quarter of an hour, so that a Service with another node's \
             address in spec.externalIPs does not take the address away from that node: auto \
             (from the first Service with an external or a load balancer's address on), always, \
             never",
        ),
    ),
    field(
        "iptablesVariant",
        "string",
        Does(
            "Variant of iptables on hosts with both: auto (the one with the cluster's rules), nft \
             or legacy",
        ),
    )
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
        Does("Most real servers of one Service, in all of its virtual servers together"),
    ),
    field(
        "limits.schedulers",
        "list of schedulers",
        Does(
            "Schedulers that the annotation kube-ipvs.io/scheduler may choose. Empty: all. Each \
             virtual server with mh takes 32 KB of kernel memory",
        ),
    ),
    field(
        "limits.setEntries",
        "number, 1 to 10000000",
        Does(
            "Most entries of one Service in one set. Most of them are source ranges, once for \
             each address and port of its load balancers",
        ),
    ),
    field(
        "limits.setSize",
        "number, 65536 to 2147483648",
        Does("Most entries of a set, of all Services together"),
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
        Does(
            "ARP replies of this node for Service addresses: compatible (as ipvs.strictARP says) \
             or quiet (none, while its own addresses are answered for on every interface: Service \
             addresses have scope host, arp_ignore is 3, arp_announce is 2)",
        ),
    ),
    field(
        "serviceRoutes",
        "list of networks",
        Does(
            "Networks of cluster addresses: one local route for each replaces the addresses on \
             kube-ipvs0. docs/service-addresses.md has the consequences. Empty: every address is \
             bound",
        ),
    ),
    field(
        "shortCircuit.ipv4",
        "network",
        Does(
            "Unused network of up to 24 bits for short circuits: through them, clients in the cluster \
             reach all endpoints at an address with externalTrafficPolicy Local. If it is \
             full, 0.0.0.0/8 is used as well. Empty: these clients get what clients outside get",
        ),
    ),
    field(
        "shortCircuit.ipv6",
        "network",
        Does("The same for IPv6, up to 96 bits. If it is full, fefe::/16 is used as well"),
    ),
];
