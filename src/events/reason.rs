//! Reasons of Events, each with its meaning and the remedy. `docs/events.md` is made from them.

use std::fmt;

/// Objects that Events of a reason are about.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    Node,
    Service,
    ServiceOrNode,
    ServiceOrSlice,
}

#[cfg(test)]
impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "Node",
            Self::Service => "Service",
            Self::ServiceOrNode => "Service, Node",
            Self::ServiceOrSlice => "Service, EndpointSlice",
        })
    }
}

/// Declares the reasons in the order of their names.
macro_rules! reasons {
    ($($name:ident, $about:ident: $meaning:literal, $remedy:literal;)+) => {
        /// `reason` of an Event: one word for machines.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason {
            $(#[doc = $meaning] $name,)+
        }

        impl Reason {
            /// All of them.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the word.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// Returns the objects, the meaning and the remedy.
            #[cfg(test)]
            pub(crate) const fn described(self) -> (About, &'static str, &'static str) {
                match self { $(Self::$name => (About::$about, $meaning, $remedy),)+ }
            }
        }
    };
}

reasons! {
    AddressInsidePodNetwork, Service:
        "An external IP or load balancer IP is inside a network of pods. It is not served.",
        "Choose another address.";
    AddressNotPossible, Service:
        "An address is unspecified, loopback, link-local, multicast or broadcast. It is not served.",
        "Correct the address in `spec.externalIPs` or the load balancer's controller.";
    AddressOfApiServer, Service:
        "An address is the one by which the node reaches the API server. It is not served.",
        "Choose another address.";
    AddressOfNode, Service:
        "An address is in the status of a Node. Only that node serves it.",
        "If the Node is wrong, correct its `status.addresses`. If no load balancer uses a node's own address, set `loadBalancersBeforeNodes`.";
    ConfigurationChanged, Node:
        "The node serves with another configuration, in the same mode and process.",
        "Nothing.";
    EndpointDrained, Node:
        "An operator drained an endpoint on this node (`kube-ipvs drain`).",
        "Nothing. `kube-ipvs undrain` ends it.";
    EndpointUndrained, Node:
        "A drain by an operator ended.",
        "Nothing.";
    FailedToListenOnLocalhost, Service:
        "A NodePort cannot be served at 127.0.0.1 or ::1 (`localhostNodePorts`).",
        "Free the port: `ss -ltnp` on the node shows the process.";
    FailedToListenOnProxyPort, Service:
        "The relay of userspace mode cannot listen for a service port. Its clients are refused.",
        "The message has the kernel's answer. kube-ipvs retries.";
    FailedToStartMetricServer, Node:
        "The metrics server cannot listen, and `bindAddressHardFail` is set. The process ended.",
        "Free the port, or set another `metricsBindAddress`.";
    FailedToStartProxierHealthcheck, Node:
        "The health server cannot listen, and `bindAddressHardFail` is set. The process ended.",
        "Free the port, or set another `healthzBindAddress`.";
    FailedToStartServiceHealthcheck, Service:
        "The `healthCheckNodePort` cannot be served. Load balancers take the node for unhealthy.",
        "Free the port: `ss -ltnp` on the node shows the process.";
    FamilyNotServed, Node:
        "The node does not serve IPv4 or IPv6, because the kernel or iptables lacks something.",
        "Install what the message names, and restart the pod. `kube-ipvs preflight` lists all of it.";
    FrontendTaken, Service:
        "Another Service has this address and port.",
        "Give one of the two another address or port.";
    FrontendTwice, Service:
        "Two ports of the Service have the same address, port and protocol. One is served.",
        "Give one of the two another port or protocol.";
    HostLimited, Node:
        "The host lacks a protocol, a sysctl or conntrack buckets.",
        "Correct what the message names. `kube-ipvs preflight` lists all of it.";
    InternalFrontendTaken, Service:
        "Clients in the cluster reach only the endpoints of their own node by this address: another Service has its internal frontend.",
        "Choose another address.";
    KernelReadFailed, Node:
        "A part of the kernel's state cannot be read. Changes are written. Changes by other programs stay.",
        "See the alert `KubeIpvsKernelReadsFailing` in the [runbook](runbook.md).";
    KernelRefuses, Node:
        "The kernel has refused a prerequisite of all Services for 30 seconds.",
        "See the alert `KubeIpvsKernelOperationsFailing` in the [runbook](runbook.md).";
    LimitReached, ServiceOrNode:
        "A Service or a set is at a limit. What comes after the limit is not served.",
        "Reduce the Service, or raise the limit that the message names ([limits](limits.md)).";
    ManyNodePortAddresses, Node:
        "NodePorts take 20,000 virtual servers or more, one at each address of the node. They cost memory, and starts are slow.",
        "Set `nodePortAddresses: [primary]`.";
    ModeAvailable, Node:
        "A node that has fallen back could now serve in its configured mode.",
        "With `fallbackReturn: never`, restart the pod at a convenient time.";
    ModeFallback, Node:
        "The node cannot serve in its configured mode, and serves in another one.",
        "See the alert `KubeIpvsFallenBack` in the [runbook](runbook.md).";
    ModeSwitchFailed, Node:
        "A switch to another mode failed. The node serves in the former mode.",
        "Correct what the message names, and switch again ([modes](modes.md)).";
    ModeSwitchHeldUp, Node:
        "A switch to IPVS mode waits for something that the host lacks. Clients get the endpoints of the former mode.",
        "See the alert `KubeIpvsSwitchHeldUp` in the [runbook](runbook.md).";
    ModeSwitched, Node:
        "A switch of modes ended. A Warning names leftovers of the former mode.",
        "For a Warning: remove what the message names, or restart the node.";
    ModeSwitching, Node:
        "The node begins to serve in another mode.",
        "Nothing. `ModeSwitched` follows.";
    MoreProblems, Service:
        "The Service has more than ten problems. Those after the tenth have no Event.",
        "Correct those that have Events.";
    NoEffectInMode, Service:
        "An annotation of the Service has no effect in the node's mode. The Service is served.",
        "Remove the annotation, or use IPVS mode.";
    NoInternalFrontend, Service:
        "Clients in the cluster reach only the endpoints of their own node by this address: it cannot have an internal frontend.",
        "Choose another address, or another network in `internalFrontend`.";
    NoNodePortAddress, Service:
        "No address of the node is inside `nodePortAddresses`. The NodePort is not served on the node.",
        "Correct `nodePortAddresses`.";
    NotServedByKernel, Service:
        "The kernel lacks the protocol of a port. The port is not served.",
        "Load the module that the message names.";
    NotServedInMode, Service:
        "The node's mode does not have the protocol of a port (SCTP in userspace mode). The port is refused.",
        "Use another mode.";
    NotUsable, ServiceOrSlice:
        "A field of the object cannot be read. The field is ignored.",
        "Correct the field that the message names.";
    PortOfListener, Service:
        "A NodePort or external port of the Service is one on which kube-ipvs, the kubelet or the API server listens. Other hosts reach the Service instead.",
        "Give the Service another port.";
    SchedulerMissing, Service:
        "The node's kernel lacks the scheduler of the Service. The default scheduler is used.",
        "Install the kernel module that the message names.";
    SchedulerNotAllowed, Service:
        "`limits.schedulers` does not allow the scheduler of the Service. The default scheduler is used.",
        "Choose another scheduler, or extend `limits.schedulers`.";
    Starting, Node:
        "kube-ipvs started.",
        "Nothing.";
    SysctlChanged, Node:
        "A sysctl that Services need was changed.",
        "See the alert `KubeIpvsSysctlMismatch` in the [runbook](runbook.md).";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
