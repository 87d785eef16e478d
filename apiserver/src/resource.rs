//! The resources served, and the paths they are served at.

use std::fmt;

/// A resource type that this server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// `services`, v1.
    Services,
    /// `nodes`, v1, of the whole cluster.
    Nodes,
    /// `endpointslices`, discovery.k8s.io/v1.
    EndpointSlices,
    /// `servicecidrs`, networking.k8s.io/v1, of the whole cluster.
    ServiceCidrs,
    /// `events`, events.k8s.io/v1.
    Events,
}

/// Operation of a request, in the words of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// One object.
    Get,
    /// A collection.
    List,
    /// The changes of a collection.
    Watch,
    /// A new object.
    Create,
    /// A change of one object.
    Patch,
    /// Anything else: refused with 405.
    Other,
}

/// Target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Collection { resource: Resource, namespace: Option<String> },
    Object { resource: Resource, namespace: Option<String>, name: String },
    Unknown,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Services, Self::Nodes, Self::EndpointSlices, Self::ServiceCidrs, Self::Events];

    /// The kind of its objects.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Services => "Service",
            Self::Nodes => "Node",
            Self::EndpointSlices => "EndpointSlice",
            Self::ServiceCidrs => "ServiceCIDR",
            Self::Events => "Event",
        }
    }

    /// The name in paths.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Nodes => "nodes",
            Self::EndpointSlices => "endpointslices",
            Self::ServiceCidrs => "servicecidrs",
            Self::Events => "events",
        }
    }

    /// The API group; that of core is empty.
    pub fn group(self) -> &'static str {
        match self {
            Self::Services | Self::Nodes => "",
            Self::EndpointSlices => "discovery.k8s.io",
            Self::ServiceCidrs => "networking.k8s.io",
            Self::Events => "events.k8s.io",
        }
    }

    /// Group and version, as an object's `apiVersion` has them.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Services | Self::Nodes => "v1",
            Self::EndpointSlices => "discovery.k8s.io/v1",
            Self::ServiceCidrs => "networking.k8s.io/v1",
            Self::Events => "events.k8s.io/v1",
        }
    }

    /// True if the resource's objects live in namespaces.
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Self::Nodes | Self::ServiceCidrs)
    }

    /// The resource of an object's `apiVersion` and `kind`.
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|resource| resource.api_version() == api_version && resource.kind() == kind)
    }

    /// The path of the collection; all namespaces when none is given.
    pub fn path(self, namespace: Option<&str>) -> String {
        let version = self.api_version();
        let root = if self.group().is_empty() { "/api" } else { "/apis" };
        let plural = self.plural();
        match namespace {
            Some(namespace) => format!("{root}/{version}/namespaces/{namespace}/{plural}"),
            None => format!("{root}/{version}/{plural}"),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.plural())
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Other => "use",
        })
    }
}

impl Target {
    /// Reads a path of a request.
    pub(crate) fn of(path: &str) -> Self {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        match segments.as_slice() {
            ["api", "v1", rest @ ..] => Self::within("", rest),
            ["apis", group, "v1", rest @ ..] => Self::within(group, rest),
            _ => Self::Unknown,
        }
    }

    /// The resource that the path speaks of.
    pub(crate) fn resource(&self) -> Option<Resource> {
        match self {
            Self::Collection { resource, .. } | Self::Object { resource, .. } => Some(*resource),
            Self::Unknown => None,
        }
    }

    fn within(group: &str, rest: &[&str]) -> Self {
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        let named = |plural: &str| {
            Resource::ALL.into_iter().find(|resource| {
                resource.group() == group
                    && resource.plural() == plural
                    && (resource.is_namespaced() || namespace.is_none())
            })
        };
        match rest {
            [plural] => match named(plural) {
                Some(resource) => Self::Collection { resource, namespace },
                None => Self::Unknown,
            },
            [plural, name] => match named(plural) {
                Some(resource) if resource.is_namespaced() == namespace.is_some() => {
                    Self::Object { resource, namespace, name: (*name).to_owned() }
                }
                _ => Self::Unknown,
            },
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_resources() {
        let collection = |resource, namespace: Option<&str>| Target::Collection {
            resource,
            namespace: namespace.map(str::to_owned),
        };
        assert_eq!(Target::of("/api/v1/services"), collection(Resource::Services, None));
        assert_eq!(
            Target::of("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"),
            collection(Resource::EndpointSlices, Some("shop"))
        );
        assert_eq!(
            Target::of("/api/v1/nodes/one"),
            Target::Object { resource: Resource::Nodes, namespace: None, name: "one".to_owned() }
        );
        for unknown in [
            "/api/v1/pods",
            "/apis/discovery.k8s.io/v1/services",
            "/api/v1/namespaces/shop/nodes",
            "/api/v1/services/web",
            "/",
        ] {
            assert_eq!(Target::of(unknown), Target::Unknown, "{unknown}");
        }
    }

    #[test]
    fn every_path_is_read_back() {
        for resource in Resource::ALL {
            assert_eq!(Target::of(&resource.path(None)).resource(), Some(resource));
            assert_eq!(Resource::of(resource.api_version(), resource.kind()), Some(resource));
        }
    }
}
