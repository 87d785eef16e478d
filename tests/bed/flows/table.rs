//! Outcome of every kind of flow: the promise of the Service API, as operators know it from
//! kube-proxy's iptables mode.

use bed::Protocol;

use super::row::Client::{
    EndpointHere, OtherNode, Outside, PodElsewhere, PodHere, SecondOutside, ThisNode,
};
use super::row::Endpoints::{
    Away, Both, Ended, EndingAway, EndingHere, EndingHereReadyAway, Here, HostAway, HostHere, None,
};
use super::row::Frontend::{Balancer, Cluster, External, NodePort, PortElsewhere};
use super::row::Outcome::{Answer, Dropped, PassedOn, Refused, Rejected, Unanswered};
use super::row::Policy::{Anywhere, ExternalLocal, InternalLocal};
use super::row::Ranges::{
    Node as NodeOnly, OutsideAndPod, OutsideAndPodSharing, SecondOutsideSharing, Underlay,
};
use super::row::Seen::{Itself, Node};
use super::row::{Client, Frontend, Given, Outcome, Policy, Row, flow, to_balancer, to_restricted};

/// Clients that are asked about in every place.
pub(super) const ALL: &[Client] = &[Outside, PodHere, PodElsewhere, ThisNode, OtherNode];
const PODS: &[Client] = &[PodHere, PodElsewhere];
const NODES: &[Client] = &[ThisNode, OtherNode];
const NOT_PODS: &[Client] = &[Outside, ThisNode, OtherNode];
/// Clients whose packets go through this node's proxy, and are not a pod's.
const ENTERING: &[Client] = &[Outside, ThisNode];

/// Addresses that every node's proxy takes for the Service.
const PUBLIC: &[Frontend] = &[External, Balancer];
/// Frontends that `externalTrafficPolicy` is about.
const EXTERNAL: &[Frontend] = &[External, Balancer, NodePort];

/// Those to which cluster addresses lead everywhere.
const INTERNAL_CLUSTER: &[Policy] = &[Anywhere, ExternalLocal];
/// Those to which external frontends lead everywhere.
const EXTERNAL_CLUSTER: &[Policy] = &[Anywhere, InternalLocal];
const INTERNAL_LOCAL: &[Policy] = &[InternalLocal];
const EXTERNAL_LOCAL: &[Policy] = &[ExternalLocal];
const EVERY: &[Policy] = &[Anywhere, ExternalLocal, InternalLocal];

const POD1: &[&str] = &["pod1-1"];
const POD2: &[&str] = &["pod2-1"];
const POD1_POD2: &[&str] = &["pod1-1", "pod2-1"];
const NODE1: &[&str] = &["node1"];
const NODE2: &[&str] = &["node2"];

/// Flows without a usable endpoint, where every client gets the same.
pub(super) const NO_ENDPOINTS: &[Row] = &[
    flow(ALL, &[Cluster, External, Balancer, NodePort], EVERY, None, Refused),
    flow(ALL, &[Cluster, External, Balancer, NodePort], EVERY, Ended, Refused),
];

/// Flows that are for no Service and are not touched.
pub(super) const TO_PODS: &[Row] = &[
    flow(PODS, &[Frontend::None], &[Anywhere], Away, Answer(POD2, Itself)),
    flow(
        &[EndpointHere, ThisNode, OtherNode],
        &[Frontend::None],
        &[Anywhere],
        Away,
        Answer(POD2, Itself),
    ),
];

/// A cluster address leads to all endpoints. A pod keeps its address, all others have the
/// node's. What arrives at the node itself is not masqueraded: its answer comes by anyway.
pub(super) const TO_CLUSTER_ADDRESSES: &[Row] = &[
    flow(PODS, &[Cluster], INTERNAL_CLUSTER, Here, Answer(POD1, Itself)),
    flow(NOT_PODS, &[Cluster], INTERNAL_CLUSTER, Here, Answer(POD1, Node)),
    flow(PODS, &[Cluster], INTERNAL_CLUSTER, Away, Answer(POD2, Itself)),
    flow(NOT_PODS, &[Cluster], INTERNAL_CLUSTER, Away, Answer(POD2, Node)),
    flow(PODS, &[Cluster], INTERNAL_CLUSTER, Both, Answer(POD1_POD2, Itself)),
    flow(NOT_PODS, &[Cluster], INTERNAL_CLUSTER, Both, Answer(POD1_POD2, Node)),
    flow(PODS, &[Cluster], INTERNAL_CLUSTER, EndingHere, Answer(POD1, Itself)),
    flow(NOT_PODS, &[Cluster], INTERNAL_CLUSTER, EndingHere, Answer(POD1, Node)),
    flow(PODS, &[Cluster], INTERNAL_CLUSTER, EndingAway, Answer(POD2, Itself)),
    flow(NOT_PODS, &[Cluster], INTERNAL_CLUSTER, EndingAway, Answer(POD2, Node)),
    flow(PODS, &[Cluster], INTERNAL_CLUSTER, EndingHereReadyAway, Answer(POD2, Itself)),
    flow(NOT_PODS, &[Cluster], INTERNAL_CLUSTER, EndingHereReadyAway, Answer(POD2, Node)),
    flow(PODS, &[Cluster], INTERNAL_CLUSTER, HostHere, Answer(NODE1, Itself)),
    flow(NODES, &[Cluster], INTERNAL_CLUSTER, HostHere, Answer(NODE1, Node)),
    flow(&[Outside], &[Cluster], INTERNAL_CLUSTER, HostHere, Answer(NODE1, Itself)),
    flow(PODS, &[Cluster], INTERNAL_CLUSTER, HostAway, Answer(NODE2, Itself)),
    flow(NOT_PODS, &[Cluster], INTERNAL_CLUSTER, HostAway, Answer(NODE2, Node)),
    // A pod that reaches itself would not take an answer from itself for one of the Service.
    flow(&[EndpointHere], &[Cluster], EVERY, Here, Answer(POD1, Node)),
];

/// `internalTrafficPolicy: Local`: each client has the endpoints of the node it is on, or comes
/// through, and hears nothing if there are only others.
pub(super) const TO_LOCAL_CLUSTER_ADDRESSES: &[Row] = &[
    flow(&[PodHere], &[Cluster], INTERNAL_LOCAL, Here, Answer(POD1, Itself)),
    flow(ENTERING, &[Cluster], INTERNAL_LOCAL, Here, Answer(POD1, Node)),
    flow(&[PodElsewhere, OtherNode], &[Cluster], INTERNAL_LOCAL, Here, Dropped),
    flow(&[PodElsewhere], &[Cluster], INTERNAL_LOCAL, Away, Answer(POD2, Itself)),
    flow(&[OtherNode], &[Cluster], INTERNAL_LOCAL, Away, Answer(POD2, Node)),
    flow(&[Outside, PodHere, ThisNode], &[Cluster], INTERNAL_LOCAL, Away, Dropped),
    flow(&[PodHere], &[Cluster], INTERNAL_LOCAL, Both, Answer(POD1, Itself)),
    flow(ENTERING, &[Cluster], INTERNAL_LOCAL, Both, Answer(POD1, Node)),
    flow(&[PodElsewhere], &[Cluster], INTERNAL_LOCAL, Both, Answer(POD2, Itself)),
    flow(&[OtherNode], &[Cluster], INTERNAL_LOCAL, Both, Answer(POD2, Node)),
    flow(&[PodHere], &[Cluster], INTERNAL_LOCAL, EndingHere, Answer(POD1, Itself)),
    flow(ENTERING, &[Cluster], INTERNAL_LOCAL, EndingHere, Answer(POD1, Node)),
    flow(&[PodElsewhere, OtherNode], &[Cluster], INTERNAL_LOCAL, EndingHere, Dropped),
    flow(&[PodElsewhere], &[Cluster], INTERNAL_LOCAL, EndingAway, Answer(POD2, Itself)),
    flow(&[OtherNode], &[Cluster], INTERNAL_LOCAL, EndingAway, Answer(POD2, Node)),
    flow(&[Outside, PodHere, ThisNode], &[Cluster], INTERNAL_LOCAL, EndingAway, Dropped),
    // What serves here until it ends comes before what is ready elsewhere.
    flow(&[PodHere], &[Cluster], INTERNAL_LOCAL, EndingHereReadyAway, Answer(POD1, Itself)),
    flow(ENTERING, &[Cluster], INTERNAL_LOCAL, EndingHereReadyAway, Answer(POD1, Node)),
    flow(&[PodElsewhere], &[Cluster], INTERNAL_LOCAL, EndingHereReadyAway, Answer(POD2, Itself)),
    flow(&[OtherNode], &[Cluster], INTERNAL_LOCAL, EndingHereReadyAway, Answer(POD2, Node)),
    flow(&[Outside, PodHere], &[Cluster], INTERNAL_LOCAL, HostHere, Answer(NODE1, Itself)),
    flow(&[ThisNode], &[Cluster], INTERNAL_LOCAL, HostHere, Answer(NODE1, Node)),
    flow(&[PodElsewhere, OtherNode], &[Cluster], INTERNAL_LOCAL, HostHere, Dropped),
    flow(&[PodElsewhere], &[Cluster], INTERNAL_LOCAL, HostAway, Answer(NODE2, Itself)),
    flow(&[OtherNode], &[Cluster], INTERNAL_LOCAL, HostAway, Answer(NODE2, Node)),
    flow(&[Outside, PodHere, ThisNode], &[Cluster], INTERNAL_LOCAL, HostAway, Dropped),
];

/// External frontends lead to all endpoints, and all clients have the node's address: only so the
/// answer comes back by this node. `internalTrafficPolicy` is not about them.
pub(super) const TO_EXTERNAL_FRONTENDS: &[Row] = &[
    flow(ALL, EXTERNAL, EXTERNAL_CLUSTER, Here, Answer(POD1, Node)),
    flow(ALL, EXTERNAL, EXTERNAL_CLUSTER, Away, Answer(POD2, Node)),
    flow(ALL, EXTERNAL, EXTERNAL_CLUSTER, Both, Answer(POD1_POD2, Node)),
    flow(ALL, EXTERNAL, EXTERNAL_CLUSTER, EndingHere, Answer(POD1, Node)),
    flow(ALL, EXTERNAL, EXTERNAL_CLUSTER, EndingAway, Answer(POD2, Node)),
    flow(ALL, EXTERNAL, EXTERNAL_CLUSTER, EndingHereReadyAway, Answer(POD2, Node)),
    flow(&[Outside, PodHere], EXTERNAL, EXTERNAL_CLUSTER, HostHere, Answer(NODE1, Itself)),
    flow(&[ThisNode], EXTERNAL, EXTERNAL_CLUSTER, HostHere, Answer(NODE1, Node)),
    flow(&[PodElsewhere, OtherNode], PUBLIC, EXTERNAL_CLUSTER, HostHere, Answer(NODE1, Node)),
    flow(
        &[PodElsewhere, OtherNode],
        &[NodePort],
        EXTERNAL_CLUSTER,
        HostHere,
        Answer(NODE1, Itself),
    ),
    flow(&[Outside, PodHere, ThisNode], EXTERNAL, EXTERNAL_CLUSTER, HostAway, Answer(NODE2, Node)),
    flow(&[PodElsewhere], PUBLIC, EXTERNAL_CLUSTER, HostAway, Answer(NODE2, Itself)),
    flow(&[OtherNode], PUBLIC, EXTERNAL_CLUSTER, HostAway, Answer(NODE2, Node)),
    flow(&[PodElsewhere, OtherNode], &[NodePort], EXTERNAL_CLUSTER, HostAway, Answer(NODE2, Node)),
    // A pod that reaches itself, and one that asks its own node.
    flow(&[EndpointHere], EXTERNAL, EVERY, Here, Answer(POD1, Node)),
    flow(&[PodElsewhere, OtherNode], &[PortElsewhere], &[Anywhere], Both, Answer(POD1_POD2, Node)),
];

/// `externalTrafficPolicy: Local`: who is outside, as another node is for this one's node ports,
/// has this node's endpoints, keeps its address, and hears nothing if there are only others. The
/// cluster's own clients have all endpoints, as by a cluster address.
///
/// A pod elsewhere that asks the node port of this node is one of them, as far as `ClusterCIDR`
/// tells. It has the node's address: an endpoint beside it would answer without passing by this
/// node otherwise.
pub(super) const TO_LOCAL_EXTERNAL_FRONTENDS: &[Row] = &[
    flow(&[Outside], EXTERNAL, EXTERNAL_LOCAL, Here, Answer(POD1, Itself)),
    flow(&[OtherNode], &[NodePort], EXTERNAL_LOCAL, Here, Answer(POD1, Itself)),
    flow(&[PodHere], EXTERNAL, EXTERNAL_LOCAL, Here, Answer(POD1, Itself)),
    flow(&[ThisNode], EXTERNAL, EXTERNAL_LOCAL, Here, Answer(POD1, Node)),
    flow(&[PodElsewhere], PUBLIC, EXTERNAL_LOCAL, Here, Answer(POD1, Itself)),
    flow(&[PodElsewhere], &[NodePort], EXTERNAL_LOCAL, Here, Answer(POD1, Node)),
    flow(&[OtherNode], PUBLIC, EXTERNAL_LOCAL, Here, Answer(POD1, Node)),
    flow(&[Outside], EXTERNAL, EXTERNAL_LOCAL, Away, Dropped),
    flow(&[OtherNode], &[NodePort], EXTERNAL_LOCAL, Away, Dropped),
    flow(&[PodHere], EXTERNAL, EXTERNAL_LOCAL, Away, Answer(POD2, Itself)),
    flow(&[ThisNode], EXTERNAL, EXTERNAL_LOCAL, Away, Answer(POD2, Node)),
    flow(&[PodElsewhere], PUBLIC, EXTERNAL_LOCAL, Away, Answer(POD2, Itself)),
    flow(&[PodElsewhere], &[NodePort], EXTERNAL_LOCAL, Away, Answer(POD2, Node)),
    flow(&[OtherNode], PUBLIC, EXTERNAL_LOCAL, Away, Answer(POD2, Node)),
    flow(&[Outside], EXTERNAL, EXTERNAL_LOCAL, Both, Answer(POD1, Itself)),
    flow(&[OtherNode], &[NodePort], EXTERNAL_LOCAL, Both, Answer(POD1, Itself)),
    flow(&[PodHere], EXTERNAL, EXTERNAL_LOCAL, Both, Answer(POD1_POD2, Itself)),
    flow(&[ThisNode], EXTERNAL, EXTERNAL_LOCAL, Both, Answer(POD1_POD2, Node)),
    flow(&[PodElsewhere], PUBLIC, EXTERNAL_LOCAL, Both, Answer(POD1_POD2, Itself)),
    flow(&[PodElsewhere], &[NodePort], EXTERNAL_LOCAL, Both, Answer(POD1_POD2, Node)),
    flow(&[OtherNode], PUBLIC, EXTERNAL_LOCAL, Both, Answer(POD1_POD2, Node)),
    flow(&[Outside], EXTERNAL, EXTERNAL_LOCAL, EndingHere, Answer(POD1, Itself)),
    flow(&[OtherNode], &[NodePort], EXTERNAL_LOCAL, EndingHere, Answer(POD1, Itself)),
    flow(&[PodHere], EXTERNAL, EXTERNAL_LOCAL, EndingHere, Answer(POD1, Itself)),
    flow(&[ThisNode], EXTERNAL, EXTERNAL_LOCAL, EndingHere, Answer(POD1, Node)),
    flow(&[PodElsewhere], PUBLIC, EXTERNAL_LOCAL, EndingHere, Answer(POD1, Itself)),
    flow(&[PodElsewhere], &[NodePort], EXTERNAL_LOCAL, EndingHere, Answer(POD1, Node)),
    flow(&[OtherNode], PUBLIC, EXTERNAL_LOCAL, EndingHere, Answer(POD1, Node)),
    flow(&[Outside], EXTERNAL, EXTERNAL_LOCAL, EndingAway, Dropped),
    flow(&[OtherNode], &[NodePort], EXTERNAL_LOCAL, EndingAway, Dropped),
    flow(&[PodHere], EXTERNAL, EXTERNAL_LOCAL, EndingAway, Answer(POD2, Itself)),
    flow(&[ThisNode], EXTERNAL, EXTERNAL_LOCAL, EndingAway, Answer(POD2, Node)),
    flow(&[PodElsewhere], PUBLIC, EXTERNAL_LOCAL, EndingAway, Answer(POD2, Itself)),
    flow(&[PodElsewhere], &[NodePort], EXTERNAL_LOCAL, EndingAway, Answer(POD2, Node)),
    flow(&[OtherNode], PUBLIC, EXTERNAL_LOCAL, EndingAway, Answer(POD2, Node)),
    // What serves here until it ends is for who is outside; the others have what is ready.
    flow(&[Outside], EXTERNAL, EXTERNAL_LOCAL, EndingHereReadyAway, Answer(POD1, Itself)),
    flow(&[OtherNode], &[NodePort], EXTERNAL_LOCAL, EndingHereReadyAway, Answer(POD1, Itself)),
    flow(&[PodHere], EXTERNAL, EXTERNAL_LOCAL, EndingHereReadyAway, Answer(POD2, Itself)),
    flow(&[ThisNode], EXTERNAL, EXTERNAL_LOCAL, EndingHereReadyAway, Answer(POD2, Node)),
    flow(&[PodElsewhere], PUBLIC, EXTERNAL_LOCAL, EndingHereReadyAway, Answer(POD2, Itself)),
    flow(&[PodElsewhere], &[NodePort], EXTERNAL_LOCAL, EndingHereReadyAway, Answer(POD2, Node)),
    flow(&[OtherNode], PUBLIC, EXTERNAL_LOCAL, EndingHereReadyAway, Answer(POD2, Node)),
    flow(&[Outside], EXTERNAL, EXTERNAL_LOCAL, HostHere, Answer(NODE1, Itself)),
    flow(&[OtherNode], &[NodePort], EXTERNAL_LOCAL, HostHere, Answer(NODE1, Itself)),
    flow(PODS, EXTERNAL, EXTERNAL_LOCAL, HostHere, Answer(NODE1, Itself)),
    flow(&[ThisNode], EXTERNAL, EXTERNAL_LOCAL, HostHere, Answer(NODE1, Node)),
    flow(&[OtherNode], PUBLIC, EXTERNAL_LOCAL, HostHere, Answer(NODE1, Node)),
    flow(&[Outside], EXTERNAL, EXTERNAL_LOCAL, HostAway, Dropped),
    flow(&[OtherNode], &[NodePort], EXTERNAL_LOCAL, HostAway, Dropped),
    flow(&[PodHere], EXTERNAL, EXTERNAL_LOCAL, HostAway, Answer(NODE2, Itself)),
    flow(&[ThisNode], EXTERNAL, EXTERNAL_LOCAL, HostAway, Answer(NODE2, Node)),
    flow(&[PodElsewhere], PUBLIC, EXTERNAL_LOCAL, HostAway, Answer(NODE2, Itself)),
    flow(&[PodElsewhere], &[NodePort], EXTERNAL_LOCAL, HostAway, Answer(NODE2, Node)),
    flow(&[OtherNode], PUBLIC, EXTERNAL_LOCAL, HostAway, Answer(NODE2, Node)),
    // Pods and nodes that ask their own node.
    flow(&[PodElsewhere], &[PortElsewhere], EXTERNAL_LOCAL, Here, Answer(POD1, Itself)),
    flow(&[OtherNode], &[PortElsewhere], EXTERNAL_LOCAL, Here, Answer(POD1, Node)),
    flow(&[PodElsewhere], &[PortElsewhere], EXTERNAL_LOCAL, Both, Answer(POD1_POD2, Itself)),
    flow(&[OtherNode], &[PortElsewhere], EXTERNAL_LOCAL, Both, Answer(POD1_POD2, Node)),
    // A node that asks the other node's port is outside for it.
    flow(&[ThisNode, Outside], &[PortElsewhere], EXTERNAL_LOCAL, Here, Dropped),
    flow(&[ThisNode, Outside], &[PortElsewhere], EXTERNAL_LOCAL, Both, Answer(POD2, Itself)),
];

/// Source ranges: who is not in them hears nothing from the load balancer IP, wherever it asks
/// from. All other frontends are unrestricted.
pub(super) const TO_RANGES: &[Row] = &[
    to_balancer(OutsideAndPod, &[Outside, PodHere], &[Anywhere], Answer(POD1_POD2, Node)),
    to_balancer(OutsideAndPod, &[Outside], EXTERNAL_LOCAL, Answer(POD1, Itself)),
    to_balancer(OutsideAndPod, &[PodHere], EXTERNAL_LOCAL, Answer(POD1_POD2, Itself)),
    to_balancer(
        OutsideAndPod,
        &[SecondOutside, EndpointHere, PodElsewhere],
        INTERNAL_CLUSTER,
        Dropped,
    ),
    to_balancer(OutsideAndPod, NODES, INTERNAL_CLUSTER, Dropped),
    to_balancer(NodeOnly, &[ThisNode], INTERNAL_CLUSTER, Answer(POD1_POD2, Node)),
    to_balancer(NodeOnly, &[Outside, OtherNode], INTERNAL_CLUSTER, Dropped),
    to_balancer(NodeOnly, PODS, INTERNAL_CLUSTER, Dropped),
    to_balancer(Underlay, &[Outside, SecondOutside], &[Anywhere], Answer(POD1_POD2, Node)),
    to_balancer(Underlay, &[Outside, SecondOutside], EXTERNAL_LOCAL, Answer(POD1, Itself)),
    to_balancer(Underlay, NODES, INTERNAL_CLUSTER, Answer(POD1_POD2, Node)),
    to_balancer(Underlay, PODS, INTERNAL_CLUSTER, Dropped),
    // Two Services at one address: each has its own.
    to_balancer(OutsideAndPodSharing, &[Outside, PodHere], &[Anywhere], Answer(POD1_POD2, Node)),
    to_balancer(OutsideAndPodSharing, &[Outside], EXTERNAL_LOCAL, Answer(POD1, Itself)),
    to_balancer(OutsideAndPodSharing, &[PodHere], EXTERNAL_LOCAL, Answer(POD1_POD2, Itself)),
    to_balancer(OutsideAndPodSharing, &[SecondOutside, ThisNode], INTERNAL_CLUSTER, Dropped),
    to_balancer(SecondOutsideSharing, &[SecondOutside], &[Anywhere], Answer(POD1_POD2, Node)),
    to_balancer(SecondOutsideSharing, &[SecondOutside], EXTERNAL_LOCAL, Answer(POD1, Itself)),
    to_balancer(SecondOutsideSharing, &[Outside, PodHere, ThisNode], INTERNAL_CLUSTER, Dropped),
    // The other frontends of the same Services.
    to_restricted(
        OutsideAndPod,
        &[SecondOutside],
        &[Cluster],
        INTERNAL_CLUSTER,
        Answer(POD1_POD2, Node),
    ),
    to_restricted(OutsideAndPod, PODS, &[Cluster], INTERNAL_CLUSTER, Answer(POD1_POD2, Itself)),
    to_restricted(OutsideAndPod, NODES, &[Cluster], INTERNAL_CLUSTER, Answer(POD1_POD2, Node)),
    to_restricted(
        OutsideAndPod,
        &[SecondOutside],
        &[External, NodePort],
        &[Anywhere],
        Answer(POD1_POD2, Node),
    ),
    to_restricted(
        OutsideAndPod,
        &[SecondOutside],
        &[External, NodePort],
        EXTERNAL_LOCAL,
        Answer(POD1, Itself),
    ),
];

/// All of them.
pub(super) const ROWS: &[&[Row]] = &[
    NO_ENDPOINTS,
    TO_PODS,
    TO_CLUSTER_ADDRESSES,
    TO_LOCAL_CLUSTER_ADDRESSES,
    TO_EXTERNAL_FRONTENDS,
    TO_LOCAL_EXTERNAL_FRONTENDS,
    TO_RANGES,
];

/// Outcome in mode userspace of a flow with this outcome in mode ipvs; none: it is not tried.
///
/// - Endpoints see the node that a client's packets come to first, always.
/// - SCTP is refused.
/// - Rules refuse as in mode iptables.
/// - A pod elsewhere that asks the node port of this node is taken for one of this node's pods, and
///   gets all endpoints.
pub(super) fn in_mode_userspace(
    client: Client,
    frontend: Frontend,
    given: Given,
    protocol: Protocol,
    outcome: Outcome,
) -> Option<Outcome> {
    match outcome {
        // An endpoint is asked itself.
        _ if frontend == Frontend::None => Some(outcome),
        _ if protocol == Protocol::Sctp => Some(Rejected),
        _ if (client, frontend, given.policy) == (PodElsewhere, NodePort, ExternalLocal) => {
            Option::None
        }
        Refused => Some(refused_by_rules(client, frontend)),
        Answer(servers, _) => Some(Answer(servers, Node)),
        outcome => Some(outcome),
    }
}

/// Outcome in mode iptables of a flow with this outcome in mode ipvs; none: it depends on chance.
///
/// - kube-proxy's rules refuse with an ICMP message ([`refused_by_rules`]). IPVS mode has rules that reset
///   TCP connections.
/// - A pod elsewhere that asks the node port of this node is taken for one of this node's pods, and
///   keeps its address. An endpoint on the pod's node answers it directly, from an address that it
///   did not ask.
pub(super) fn in_mode_iptables(
    client: Client,
    frontend: Frontend,
    given: Given,
    outcome: Outcome,
) -> Option<Outcome> {
    match (client, frontend, given.policy, given.endpoints) {
        _ if outcome == Refused => Some(refused_by_rules(client, frontend)),
        (PodElsewhere, NodePort, ExternalLocal, Both) => Option::None,
        (PodElsewhere, NodePort, ExternalLocal, Here | EndingHere) => Some(Answer(POD1, Itself)),
        (PodElsewhere, NodePort, ExternalLocal, Away | EndingAway | EndingHereReadyAway) => {
            Some(Unanswered(POD2))
        }
        (PodElsewhere, NodePort, ExternalLocal, HostAway) => Some(Unanswered(NODE2)),
        _ => Some(outcome),
    }
}

/// Outcome of a flow that IPVS mode refuses, where kube-proxy's rules refuse: in OUTPUT only what is for
/// cluster addresses (`KUBE-SERVICES`). What a node sends to a public address leaves it.
fn refused_by_rules(client: Client, frontend: Frontend) -> Outcome {
    if NODES.contains(&client) && PUBLIC.contains(&frontend) { PassedOn } else { Rejected }
}
