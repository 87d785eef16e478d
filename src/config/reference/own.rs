//! The fields of our own document.

use super::{Field, does};

/// The fields of our own document.
pub const OWN_FIELDS: [Field; 21] = [
    does("apiVersion", "string", "must be kube-ipvs.io/v1alpha1"),
    does(
        "cleanupOtherModes",
        "bool",
        "removes what kube-proxy's modes iptables and nftables have left, once IPVS carries \
         the traffic; kube-proxy leaves the rules of mode iptables where they are, and \
         packets meet both",
    ),
    does(
        "drainDeadline",
        "duration",
        "how long the connections of a removed endpoint may take to end, before they are cut",
    ),
    does(
        "estimators.cpus",
        "list of processors, such as 0-3,8",
        "the processors on which the kernel's threads estimate (est_cpulist, Linux 6.2 and later); \
         empty: as the kernel has it",
    ),
    does(
        "estimators.nice",
        "number, -20 to 19",
        "the niceness of these threads (est_nice, Linux 6.2 and later); absent: as the kernel has \
         it",
    ),
    does(
        "estimators.run",
        "string",
        "whether the kernel keeps up IPVS's statistics (run_estimation, Linux 5.16 and later): on, \
         off, or auto (as the kernel has it, but off where that would hold up packets); \
         docs/estimators.md says what it costs",
    ),
    does(
        "followNodes",
        "string",
        "whether to list all Nodes every quarter of an hour, so that a Service that names another \
         node's address in spec.externalIPs does not take it away from that node: auto (from the \
         first Service on that has an external or a load balancer's address), always, or never",
    ),
    does(
        "iptablesVariant",
        "string",
        "which iptables to use, where the host has both: auto (where the cluster's rules \
         are), nft or legacy",
    ),
    does("kind", "string", "must be KubeIpvsConfiguration"),
    does(
        "limits.frontends",
        "number, 1 to 1000000",
        "the addresses and ports at which one Service is served: of a Service with more, those \
         behind it are left out, in the order of docs/limits.md, and an Event says so. All limits \
         are far above what Services need; they keep one object from taking the whole node",
    ),
    does(
        "limits.realServers",
        "number, 1 to 100000000",
        "the real servers of one Service in all of its virtual servers together",
    ),
    does(
        "limits.schedulers",
        "list of schedulers",
        "the schedulers that the annotation kube-ipvs.io/scheduler may ask for; empty: all. Each \
         virtual server with mh takes 32 KB of kernel memory",
    ),
    does(
        "limits.setEntries",
        "number, 1 to 10000000",
        "the entries of one Service in one set; most are its source ranges, once for each of its \
         load balancer's addresses and ports",
    ),
    does(
        "limits.setSize",
        "number, 65536 to 2147483648",
        "the entries up to which a set may grow, those of all Services together",
    ),
    does(
        "loadBalancersBeforeNodes",
        "bool",
        "serves a load balancer's address that another Node's status has too, so that no kubelet \
         can take it from the Service; only where no load balancer has a node's own address: that \
         node could not be reached any more",
    ),
    does(
        "localhostNodePorts",
        "bool",
        "serves TCP node ports on 127.0.0.1 and ::1 too, for what runs on the node itself; \
         docs/privileges.md says who gets there",
    ),
    does(
        "manifests",
        "directory",
        "reads Services, EndpointSlices and Nodes from the files in this folder instead of an API \
         server",
    ),
    does(
        "serviceAddressesArp",
        "string",
        "whether this node answers ARP requests for the addresses of Services: compatible (as \
         ipvs.strictARP says) or quiet (never, but for its own addresses on every interface: \
         service addresses have scope host, arp_ignore is 3 and arp_announce 2)",
    ),
    does(
        "serviceRoutes",
        "list of networks",
        "the networks of cluster addresses: one local route each then leads all of their \
         addresses here, in the place of an address on kube-ipvs0 for every Service; \
         docs/service-addresses.md says what that changes; empty: every address is bound",
    ),
    does(
        "shortCircuit.ipv4",
        "network",
        "where the cluster's own clients are led that use an address with externalTrafficPolicy \
         Local, so that they reach all endpoints: a network of up to 24 bits that nobody uses; \
         where it has no room, 0.0.0.0/8 is used as well; empty: they get what clients outside get",
    ),
    does("shortCircuit.ipv6", "network", "the same for IPv6, up to 96 bits; beside it, fefe::/16"),
];
