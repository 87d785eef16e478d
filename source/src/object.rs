//! Kubernetes objects as they are written in JSON, YAML or Protobuf, reduced to the fields that matter.
//!
//! The field names are those of the API reference (core/v1 Service and Node, discovery.k8s.io/v1
//! EndpointSlice); a field that is not here is skipped without being stored. A field may be absent
//! or `null` wherever the API's own encoder leaves it out or writes `null` for an empty list.
//! Numbers are wider than the API's: one that is out of range still decodes, and so does the rest
//! of the object. [`convert`] warns of the number.
//!
//! [`convert`]: super::convert

mod schema;
#[cfg(test)]
mod tests;

pub use schema::Object;

use std::fmt;
use std::marker::PhantomData;
use std::time::SystemTime;

use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Longest value of a label, and longest name of a port, in bytes (`LabelValueMaxLength` and
/// `DNS1123LabelMaxLength` in apimachinery's util/validation).
pub(crate) const LONGEST_LABEL: usize = 63;

/// Longest name of an object, in bytes (`DNS1123SubdomainMaxLength` there).
pub(crate) const LONGEST_NAME: usize = 253;

/// Most items of a list in an object, where the API has no limit of its own: an object of 1.5 MiB, the largest
/// that etcd takes by default, has fewer ports, addresses or source ranges.
const MOST_ITEMS: usize = 200_000;

/// Most endpoints of a slice: ten times as many as the API takes (`maxEndpoints` in
/// pkg/apis/discovery/validation), which files need not keep to.
const MOST_ENDPOINTS: usize = 10_000;

/// Most addresses of an endpoint (`maxAddresses` there), and most of its hints of each kind, of which there may be 8.
const MOST_OF_ENDPOINT: usize = 100;

/// `metadata` of any object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    pub name: Option<String>,
    pub namespace: Option<String>,
    /// `creationTimestamp`, RFC 3339.
    pub creation_timestamp: Option<String>,
    /// `deletionTimestamp`, RFC 3339.
    pub deletion_timestamp: Option<String>,
    /// `resourceVersion`: version from which a watch can resume after this object.
    pub resource_version: Option<String>,
    /// `labels`, as far as they have a meaning here.
    #[serde(deserialize_with = "null_is_default")]
    pub labels: Labels,
    /// `annotations`, as far as they have a meaning here.
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: Annotations,
}

/// The annotations that mean something to a node's proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// `endpoints.kubernetes.io/last-change-trigger-time` of a slice, RFC 3339: time of the
    /// change that made the controller write the slice.
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub last_change_trigger_time: Option<String>,
    /// `kube-ipvs.io/scheduler` of a Service: its scheduler.
    #[serde(rename = "kube-ipvs.io/scheduler")]
    pub scheduler: Option<String>,
    /// `kube-ipvs.io/scheduler-flags` of a Service: that scheduler's flags.
    #[serde(rename = "kube-ipvs.io/scheduler-flags")]
    pub scheduler_flags: Option<String>,
    /// `kube-ipvs.io/drain-deadline` of a Service: how long connections to an endpoint that goes
    /// may take to end.
    #[serde(rename = "kube-ipvs.io/drain-deadline")]
    pub drain_deadline: Option<String>,
    /// `kube-ipvs.io/weights` of a Service: the shares of its endpoints by how far they are.
    #[serde(rename = "kube-ipvs.io/weights")]
    pub weights: Option<String>,
    /// `kube-ipvs.io/fast-path` of a Service: off, or the operator's choice.
    #[serde(rename = "kube-ipvs.io/fast-path")]
    pub fast_path: Option<String>,
}

/// The labels that mean something to a node's proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// `service.kubernetes.io/service-proxy-name`, whatever its value: another proxy's Service.
    #[serde(rename = "service.kubernetes.io/service-proxy-name", deserialize_with = "presence")]
    pub service_proxy_name: bool,
    /// `service.kubernetes.io/headless`, whatever its value: a headless Service's slice.
    #[serde(rename = "service.kubernetes.io/headless", deserialize_with = "presence")]
    pub headless: bool,
    /// `kubernetes.io/service-name`: the Service that a slice belongs to.
    #[serde(rename = "kubernetes.io/service-name")]
    pub service_name: Option<String>,
    /// `topology.kubernetes.io/zone`: the zone that a node is in.
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub zone: Option<String>,
}

/// core/v1 Service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Service {
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_is_default")]
    pub spec: ServiceSpec,
    #[serde(deserialize_with = "null_is_default")]
    pub status: ServiceStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `type`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs", deserialize_with = "at_most::<_, _, MOST_ITEMS>")]
    pub cluster_ips: Vec<String>,
    #[serde(deserialize_with = "at_most::<_, _, MOST_ITEMS>")]
    pub ip_families: Vec<String>,
    #[serde(rename = "externalIPs", deserialize_with = "at_most::<_, _, MOST_ITEMS>")]
    pub external_ips: Vec<String>,
    #[serde(deserialize_with = "at_most::<_, _, MOST_ITEMS>")]
    pub load_balancer_source_ranges: Vec<String>,
    #[serde(deserialize_with = "at_most::<_, _, MOST_ITEMS>")]
    pub ports: Vec<ServicePort>,
    pub session_affinity: Option<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub session_affinity_config: SessionAffinityConfig,
    pub external_traffic_policy: Option<String>,
    pub internal_traffic_policy: Option<String>,
    pub health_check_node_port: Option<i64>,
}

/// One of a Service's `spec.ports`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<i64>,
    pub node_port: Option<i64>,
}

/// `spec.sessionAffinityConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    #[serde(rename = "clientIP", deserialize_with = "null_is_default")]
    pub client_ip: ClientIpConfig,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    pub timeout_seconds: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer` of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    #[serde(deserialize_with = "at_most::<_, _, MOST_ITEMS>")]
    pub ingress: Vec<LoadBalancerIngress>,
}

/// One of `status.loadBalancer.ingress`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerIngress {
    pub ip: Option<String>,
    pub ip_mode: Option<String>,
}

/// discovery.k8s.io/v1 EndpointSlice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    pub address_type: Option<String>,
    #[serde(deserialize_with = "at_most::<_, _, MOST_ITEMS>")]
    pub ports: Vec<SlicePort>,
    #[serde(deserialize_with = "at_most::<_, _, MOST_ENDPOINTS>")]
    pub endpoints: Vec<Endpoint>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SlicePort {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<i64>,
}

/// One of a slice's `endpoints`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    #[serde(deserialize_with = "at_most::<_, _, MOST_OF_ENDPOINT>")]
    pub addresses: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Conditions,
    pub node_name: Option<String>,
    pub zone: Option<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub hints: Hints,
}

/// `conditions` of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

/// `hints` of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hints {
    #[serde(deserialize_with = "at_most::<_, _, MOST_OF_ENDPOINT>")]
    pub for_zones: Vec<Named>,
    #[serde(deserialize_with = "at_most::<_, _, MOST_OF_ENDPOINT>")]
    pub for_nodes: Vec<Named>,
}

/// One of `hints.forZones` or `hints.forNodes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Named {
    pub name: String,
}

/// core/v1 Node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_is_default")]
    pub spec: NodeSpec,
    #[serde(deserialize_with = "null_is_default")]
    pub status: NodeStatus,
}

/// core/v1 Node of another node, of which only addresses and networks of pods are of interest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OtherNode {
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_is_default")]
    pub spec: NodeSpec,
    #[serde(deserialize_with = "null_is_default")]
    pub status: NodeStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    #[serde(rename = "podCIDRs", deserialize_with = "at_most::<_, _, MOST_ITEMS>")]
    pub pod_cidrs: Vec<String>,
    #[serde(deserialize_with = "at_most::<_, _, MOST_ITEMS>")]
    pub taints: Vec<Taint>,
}

/// One of a Node's `spec.taints`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    #[serde(deserialize_with = "at_most::<_, _, MOST_ITEMS>")]
    pub addresses: Vec<NodeAddress>,
}

/// One of a Node's `status.addresses`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `type`.
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

/// The taint that the cluster autoscaler puts on a node that it is about to remove.
const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

impl NodeStatus {
    /// True if it has more than one InternalIP, or more than one ExternalIP.
    pub fn has_several_of_a_type(&self) -> bool {
        let number = |kind| self.addresses.iter().filter(|address| address.kind == kind).count();
        number("InternalIP") > 1 || number("ExternalIP") > 1
    }

    /// The addresses that packets reach the node by, as they are written: every InternalIP, then
    /// every ExternalIP. With each, its place in the list.
    pub fn reachable(&self) -> impl Iterator<Item = (usize, &str)> {
        ["InternalIP", "ExternalIP"].into_iter().flat_map(|wanted| {
            let addresses = self.addresses.iter().enumerate();
            addresses
                .filter(move |(_, address)| address.kind == wanted)
                .map(|(index, address)| (index, address.address.as_str()))
        })
    }
}

impl EndpointSlice {
    /// Returns the time of the change that made the slice what it is, if its controller says so in
    /// words that are a time.
    #[must_use]
    pub fn triggered_at(&self) -> Option<SystemTime> {
        let text = self.metadata.annotations.last_change_trigger_time.as_deref()?;
        text.parse::<jiff::Timestamp>().ok().map(SystemTime::from)
    }
}

impl Node {
    /// True if the node is about to leave the cluster: a load balancer should then send it no new
    /// connections.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
            || self.spec.taints.iter().any(|taint| taint.key == TO_BE_DELETED_TAINT)
    }
}

/// The API's encoder writes `null` for an empty list or struct: it means the same as leaving it
/// out.
pub(crate) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Some labels mean something by being there, whatever their value.
pub(crate) fn presence<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

/// A list of up to so many.
struct Bounded<T, const MOST: usize>(Vec<T>);

struct BoundedVisitor<T, const MOST: usize>(PhantomData<T>);

/// Decodes a list of at most `MOST` items. `null` is an empty one. Where an item takes 64 bytes and is written
/// as `{}`, the memory of a longer one is twenty times its text.
pub(crate) fn at_most<'de, D, T, const MOST: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let list: Option<Bounded<T, MOST>> = Option::deserialize(deserializer)?;
    Ok(list.map(|list| list.0).unwrap_or_default())
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Bounded<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BoundedVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for BoundedVisitor<T, MOST> {
    type Value = Bounded<T, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            if list.len() == MOST {
                return Err(A::Error::custom(format_args!("more than {MOST} items")));
            }
            // Twice as many as there are, and no more than there may be.
            if list.len() == list.capacity() {
                list.reserve_exact(list.len().max(4).min(MOST - list.len()));
            }
            list.push(item);
        }
        Ok(Bounded(list))
    }
}
