//! The addresses of a Pod, looked for on demand: names of Pods are not kept.
//!
//! A node's proxy may not list Pods. EndpointSlices, which it may list, name the Pod of each endpoint
//! (`targetRef`), so a Pod is found if it is an endpoint of a Service, ready or not.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;

use super::manifests::documents;
use super::object::{LONGEST_NAME, null_is_default};

/// Extensions of manifests.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSearch {
    namespace: String,
    name: String,
    n_slices: usize,
    n_endpoints: usize,
    addresses: BTreeSet<IpAddr>,
    node: Option<String>,
    /// The other Pods that were met.
    others: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPod {
    pub namespace: String,
    pub name: String,
    /// Its addresses, one of each family at most as a rule.
    pub addresses: Vec<IpAddr>,
    pub node: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNotFound {
    /// Number of EndpointSlices in its namespace.
    pub n_slices: usize,
    pub n_endpoints: usize,
    /// Names of the Pods that these are.
    pub names: Vec<String>,
}

/// An EndpointSlice, as far as it names Pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodSlice {
    metadata: PodSliceMetadata,
    #[serde(deserialize_with = "null_is_default")]
    endpoints: Vec<PodEndpoint>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct PodSliceMetadata {
    namespace: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodEndpoint {
    #[serde(deserialize_with = "null_is_default")]
    addresses: Vec<String>,
    node_name: Option<String>,
    target_ref: Option<TargetRef>,
}

/// `targetRef` of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct TargetRef {
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

impl PodSearch {
    /// A search that has not looked at anything.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            n_slices: 0,
            n_endpoints: 0,
            addresses: BTreeSet::new(),
            node: None,
            others: BTreeSet::new(),
        }
    }

    /// The Pod's namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Looks at a slice. One of another namespace is left out.
    pub fn look_at(&mut self, slice: &PodSlice) {
        let namespace = slice.metadata.namespace.as_deref().unwrap_or("default");
        if namespace != self.namespace {
            return;
        }
        self.n_slices += 1;
        self.n_endpoints += slice.endpoints.len();
        for endpoint in &slice.endpoints {
            let Some(target) = &endpoint.target_ref else { continue };
            let is_in_namespace =
                target.namespace.as_deref().is_none_or(|namespace| namespace == self.namespace);
            let (Some("Pod"), Some(name), true) =
                (target.kind.as_deref(), target.name.as_deref(), is_in_namespace)
            else {
                continue;
            };
            if name == self.name {
                // Of several addresses, the first one counts, as for Services.
                let first = endpoint.addresses.first();
                self.addresses.extend(first.and_then(|address| address.parse::<IpAddr>().ok()));
                let node = endpoint.node_name.as_ref().filter(|name| name.len() <= LONGEST_NAME);
                self.node = self.node.take().or_else(|| node.cloned());
            } else if name.len() <= LONGEST_NAME {
                // The API server does not check it, and no Pod has a longer one.
                self.others.insert(name.to_owned());
            }
        }
    }

    /// Looks at the manifests of a folder. Objects that are no EndpointSlices are left out.
    pub fn look_at_folder(&mut self, folder: &Path) -> Result<(), String> {
        let unread = |path: &Path, error: &dyn std::fmt::Display| {
            format!("cannot read the manifests in {}: {error}", path.display())
        };
        for entry in std::fs::read_dir(folder).map_err(|error| unread(folder, &error))? {
            let path = entry.map_err(|error| unread(folder, &error))?.path();
            let is_manifest =
                path.extension().is_some_and(|it| EXTENSIONS.iter().any(|ext| it == *ext));
            if !is_manifest {
                continue;
            }
            let content = std::fs::read(&path).map_err(|error| unread(&path, &error))?;
            let objects = documents(&content).map_err(|error| unread(&path, &error))?;
            objects.into_iter().for_each(|object| self.look_at_value(object));
        }
        Ok(())
    }

    fn look_at_value(&mut self, mut value: serde_json::Value) {
        let items = value.get_mut("items").map(serde_json::Value::take);
        if let Some(serde_json::Value::Array(items)) = items {
            items.into_iter().for_each(|item| self.look_at_value(item));
        } else if value.get("kind").is_some_and(|kind| kind == "EndpointSlice")
            && let Ok(slice) = serde_json::from_value(value)
        {
            self.look_at(&slice);
        }
    }

    /// Ends the search.
    pub fn end(self) -> Result<FoundPod, PodNotFound> {
        let Self { namespace, name, n_slices, n_endpoints, addresses, node, others } = self;
        if addresses.is_empty() {
            return Err(PodNotFound { n_slices, n_endpoints, names: others.into_iter().collect() });
        }
        Ok(FoundPod { namespace, name, addresses: addresses.into_iter().collect(), node })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICES: &str = "
kind: List
items:
- kind: EndpointSlice
  metadata: {name: cart-1, namespace: shop}
  addressType: IPv4
  endpoints:
  - {addresses: [10.244.2.11], nodeName: n2, targetRef: {kind: Pod, namespace: shop, name: cart-a}}
  - {addresses: [10.244.2.12], targetRef: {kind: Pod, namespace: shop, name: cart-b}}
  - {addresses: [192.0.2.7]}
---
kind: EndpointSlice
metadata: {name: cart-2, namespace: shop}
addressType: IPv6
endpoints:
- {addresses: ['fd00:244:2::11', 'fd00::1'], targetRef: {kind: Pod, name: cart-a}}
- {addresses: ['fd00::2'], targetRef: {kind: Node, name: cart-a}}
---
kind: EndpointSlice
metadata: {name: cart-3}
endpoints:
- {addresses: [10.244.2.99], targetRef: {kind: Pod, name: cart-a}}
---
kind: EndpointSlice
metadata: {name: none, namespace: shop}
endpoints: null
---
kind: Service
";

    fn search(namespace: &str, name: &str) -> Result<FoundPod, PodNotFound> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("slices.yaml"), SLICES).unwrap();
        std::fs::write(folder.path().join("notes.txt"), "kind: [").unwrap();
        let mut search = PodSearch::new(namespace, name);
        search.look_at_folder(folder.path()).unwrap();
        search.end()
    }

    #[test]
    fn a_pod_has_an_address_of_each_family() {
        let found = search("shop", "cart-a").unwrap();
        let addresses: Vec<String> = found.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.244.2.11", "fd00:244:2::11"]);
        assert_eq!(found.node.as_deref(), Some("n2"));
        let other = search("default", "cart-a").unwrap();
        assert_eq!(other.addresses, [IpAddr::from([10, 244, 2, 99])]);
    }

    #[test]
    fn a_pod_that_is_no_endpoint_is_not_found() {
        let missing = search("shop", "cart-c").unwrap_err();
        let names = vec!["cart-a".to_owned(), "cart-b".to_owned()];
        assert_eq!(missing, PodNotFound { n_slices: 3, n_endpoints: 5, names });
        assert_eq!(search("nowhere", "cart-a").unwrap_err().n_slices, 0);
    }

    #[test]
    fn names_that_no_pod_and_no_node_can_have_are_not_kept() {
        let long = "x".repeat(1 << 20);
        let endpoint = |name: &str| {
            format!(
                r#"{{"addresses":["10.244.2.11"],"nodeName":"{long}","targetRef":{{"kind":"Pod","name":"{name}"}}}}"#
            )
        };
        let endpoints = [endpoint("cart-a"), endpoint(&long), endpoint("cart-b")].join(",");
        let text = format!(r#"{{"metadata":{{"namespace":"shop"}},"endpoints":[{endpoints}]}}"#);
        let slice: PodSlice = serde_json::from_str(&text).unwrap();
        let mut search = PodSearch::new("shop", "cart-a");
        search.look_at(&slice);
        assert_eq!(search.others, BTreeSet::from(["cart-b".to_owned()]));
        assert_eq!(search.end().unwrap().node, None);
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_named() {
        let mut search = PodSearch::new("shop", "cart-a");
        let error = search.look_at_folder(Path::new("/nowhere")).unwrap_err();
        assert!(error.contains("/nowhere"), "{error}");
    }
}
