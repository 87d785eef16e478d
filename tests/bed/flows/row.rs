//! The words of which the table of flows is made.

use std::fmt;

/// Client that asks. "Here" is the first node, through which clients outside come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Client {
    /// A client outside, which the ranges [`Ranges::OutsideAndPod`] allow.
    Outside,
    /// A client outside, which they do not allow.
    SecondOutside,
    /// A pod here that is no endpoint.
    PodHere,
    /// A pod here that is the endpoint itself.
    EndpointHere,
    /// A pod on the other node, by way of that node's proxy.
    PodElsewhere,
    /// The node here.
    ThisNode,
    /// The other node, by way of its own proxy.
    OtherNode,
}

/// Frontend that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Frontend {
    /// The cluster address.
    Cluster,
    /// An external address.
    External,
    /// A load balancer IP.
    Balancer,
    /// The node port of the node here.
    NodePort,
    /// The node port of the other node.
    PortElsewhere,
    /// None: the pod `pod2-1` itself.
    None,
}

/// The traffic policies of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Policy {
    /// Both are Cluster.
    Anywhere,
    /// `externalTrafficPolicy: Local`
    ExternalLocal,
    /// `internalTrafficPolicy: Local`
    InternalLocal,
}

/// Places of the endpoints of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Endpoints {
    /// `pod1-1`
    Here,
    /// `pod2-1`
    Away,
    /// `pod1-1` and `pod2-1`
    Both,
    /// There are none.
    None,
    /// `pod1-1`, about to end, and serving.
    EndingHere,
    /// `pod2-1`, about to end, and serving.
    EndingAway,
    /// `pod1-1`, about to end, and serving; `pod2-1` is ready.
    EndingHereReadyAway,
    /// `pod1-1`, about to end, and not serving any more.
    Ended,
    /// `node1`: a pod in the network of the node here.
    HostHere,
    /// `node2`: a pod in the network of the other node.
    HostAway,
}

/// Clients that may use the load balancer IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ranges {
    /// All clients.
    Unrestricted,
    /// [`Client::Outside`] and [`Client::PodHere`].
    OutsideAndPod,
    /// The node here.
    Node,
    /// Nodes and clients outside, which are one network.
    Underlay,
    /// The same as `OutsideAndPod`; another port of the same address is for
    /// [`Client::SecondOutside`].
    OutsideAndPodSharing,
    /// [`Client::SecondOutside`], at the other port of the address of `OutsideAndPodSharing`.
    SecondOutsideSharing,
}

/// Properties of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Given {
    pub(super) policy: Policy,
    pub(super) endpoints: Endpoints,
    pub(super) ranges: Ranges,
}

/// Source that an endpoint takes for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The client itself.
    Itself,
    /// The node whose proxy led the way.
    Node,
}

/// Outcome of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Exactly these servers answer, and they see this source.
    Answer(&'static [&'static str], Seen),
    /// The client is rejected.
    Refused,
    /// The client hears nothing.
    Dropped,
    /// Exactly these servers get the packet, and the client hears nothing: they answer it past the node
    /// that led there, from an address that it did not ask.
    Unanswered(&'static [&'static str]),
    /// Rules refuse with an ICMP message.
    Rejected,
    /// It leaves the client's node as it is, for a host that has no such address: no server answers.
    PassedOn,
}

/// For each of the clients, frontends and policies: given these endpoints and ranges, this comes
/// of it, with each protocol and family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) clients: &'static [Client],
    pub(super) frontends: &'static [Frontend],
    pub(super) policies: &'static [Policy],
    pub(super) endpoints: Endpoints,
    pub(super) ranges: Ranges,
    pub(super) outcome: Outcome,
}

/// A row about a Service without source ranges.
pub(super) const fn flow(
    clients: &'static [Client],
    frontends: &'static [Frontend],
    policies: &'static [Policy],
    endpoints: Endpoints,
    outcome: Outcome,
) -> Row {
    Row { clients, frontends, policies, endpoints, ranges: Ranges::Unrestricted, outcome }
}

/// A row about a load balancer IP with source ranges, of a Service with both endpoints.
pub(super) const fn to_balancer(
    ranges: Ranges,
    clients: &'static [Client],
    policies: &'static [Policy],
    outcome: Outcome,
) -> Row {
    to_restricted(ranges, clients, &[Frontend::Balancer], policies, outcome)
}

/// A row about a Service whose load balancer IP has source ranges.
pub(super) const fn to_restricted(
    ranges: Ranges,
    clients: &'static [Client],
    frontends: &'static [Frontend],
    policies: &'static [Policy],
    outcome: Outcome,
) -> Row {
    Row { clients, frontends, policies, endpoints: Endpoints::Both, ranges, outcome }
}

impl Row {
    /// The Services that the row is about.
    pub(super) fn givens(&self) -> impl Iterator<Item = Given> {
        let Self { endpoints, ranges, .. } = *self;
        self.policies.iter().map(move |policy| Given { policy: *policy, endpoints, ranges })
    }
}

impl fmt::Display for Given {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, endpoints, ranges } = self;
        write!(formatter, "a Service with policy {policy:?}, endpoints {endpoints:?}")?;
        match ranges {
            Ranges::Unrestricted => Ok(()),
            ranges => write!(formatter, ", ranges {ranges:?}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer(servers, seen) => {
                let seen = match seen {
                    Seen::Itself => "the client itself",
                    Seen::Node => "the node",
                };
                write!(formatter, "{}, taking it for {seen}", servers.join(" and "))
            }
            Self::Refused => formatter.write_str("refused at once"),
            Self::Dropped => formatter.write_str("no answer"),
            Self::Unanswered(servers) => {
                write!(
                    formatter,
                    "no answer, since {} answers past the node",
                    servers.join(" and ")
                )
            }
            Self::PassedOn => formatter.write_str("no answer, since it is routed on"),
            Self::Rejected => formatter.write_str("refused with an ICMP message"),
        }
    }
}
