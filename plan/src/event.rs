//! The closed list of everything that can change the input.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::hand_drain::HandDrain;
use crate::model::{EndpointSlice, Node, OtherNode, Service, ServiceName, SliceName};
use crate::scheduler::SchedulerName;
use crate::userspace::{ProxyPortId, ProxyPortState};

/// A change of the input. Events of different objects may come in any order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A Service is there, or is different now.
    ServiceApplied(Box<Service>),
    /// A Service is gone, or is no longer to be balanced.
    ServiceRemoved(ServiceName),
    /// An EndpointSlice is there, or is different now.
    SliceApplied(Box<EndpointSlice>),
    /// An EndpointSlice is gone, or no longer belongs to a Service.
    SliceRemoved(SliceName),
    /// This node's Node object is there, or is different now. Its removal changes nothing.
    NodeApplied(Box<Node>),
    /// The addresses of this node's interfaces, all but those of `kube-ipvs0`.
    LocalAddresses(Vec<IpAddr>),
    /// Another node of the cluster is there and has these addresses and networks of pods, or has others now.
    OtherNodeApplied(Arc<str>, OtherNode),
    /// Another node has left the cluster.
    OtherNodeRemoved(Arc<str>),
    /// The API server is reached at these addresses and ports, and at no others.
    ApiServerAddresses(Vec<SocketAddr>),
    /// The kernel does not have this scheduler: Services that chose it get the operator's.
    SchedulerMissing(SchedulerName),
    /// The kernel may have this scheduler now: Services that chose it get it, or it is missing.
    SchedulerLoaded(SchedulerName),
    /// The relay of mode userspace has this proxy port in this state. Those of Services that are gone
    /// are closed sooner or later.
    ProxyPort(Box<ProxyPortId>, ProxyPortState),
    /// An operator drains endpoints on this node.
    HandDrainBegan(Box<HandDrain>),
    /// The operator has ended that, or its time is over.
    HandDrainEnded(Box<HandDrain>),
}
