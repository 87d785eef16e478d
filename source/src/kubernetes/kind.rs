//! Kinds of objects that are followed.

/// A kind of object that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ResourceKind {
    /// core/v1 Service.
    Service,
    /// discovery.k8s.io/v1 EndpointSlice.
    EndpointSlice,
    /// core/v1 Node: this node's.
    Node,
    /// core/v1 Node: all but this node's, and of them the addresses.
    OtherNode,
}

impl ResourceKind {
    /// Those without which nothing is complete.
    pub(super) const ALL: [Self; 3] = [Self::Service, Self::EndpointSlice, Self::Node];

    /// Its name, as it is in an object's `kind`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node | Self::OtherNode => "Node",
        }
    }

    /// Its name in metrics.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Service | Self::EndpointSlice | Self::Node => self.name(),
            Self::OtherNode => "OtherNode",
        }
    }

    /// Returns the path of all objects of the kind.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Service => "/api/v1/services",
            Self::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::Node | Self::OtherNode => "/api/v1/nodes",
        }
    }

    /// Returns the selector by labels of the wanted objects: what belongs to another proxy, or is
    /// not for a proxy at all, is not even sent.
    pub(super) const fn labels(self) -> Option<&'static str> {
        match self {
            Self::Service => Some("!service.kubernetes.io/service-proxy-name"),
            Self::EndpointSlice => Some("!service.kubernetes.io/headless"),
            Self::Node | Self::OtherNode => None,
        }
    }

    /// The field in that selector which API servers before Kubernetes 1.31 do not know
    /// (kubernetes#123905). Objects are wanted without it just as well: headless Services are left
    /// out when they are converted.
    pub(super) const fn dispensable_field(self) -> Option<&'static str> {
        match self {
            Self::Service => Some("spec.clusterIP"),
            Self::EndpointSlice | Self::Node | Self::OtherNode => None,
        }
    }

    /// Returns the selector by fields of the wanted objects.
    pub(super) fn fields(self, node_name: &str) -> Option<String> {
        match self {
            Self::Service => Some("spec.clusterIP!=None".to_owned()),
            Self::EndpointSlice => None,
            Self::Node => Some(format!("metadata.name={node_name}")),
            Self::OtherNode => Some(format!("metadata.name!={node_name}")),
        }
    }
}
