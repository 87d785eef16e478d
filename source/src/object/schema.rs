//! The fields of the objects in Protobuf.
//!
//! Their numbers, and which of them Go leaves out of JSON, are those of Kubernetes: `generated.proto` and `types.go` of
//! k8s.io/api's core/v1 and discovery/v1, and of k8s.io/apimachinery's pkg/apis/meta/v1.

use serde::de::DeserializeOwned;
use serde_json::Result;

use super::{EndpointSlice, Node, OtherNode, Service};
use crate::protobuf::Kind::{
    AnyNumber, AnyText, Map, Message, Messages, Number, Text, Texts, Time, Truth,
};
use crate::protobuf::{MessageReader, Schema, field};

/// An object that the API server sends.
pub trait Object: DeserializeOwned {
    /// Reads its message.
    ///
    /// # Errors
    /// When it is no such message, in serde's words.
    fn from_protobuf(message: &[u8]) -> Result<Self> {
        Self::deserialize(Self::reader(message))
    }

    #[doc(hidden)]
    fn reader(message: &[u8]) -> impl serde::Deserializer<'_, Error = serde_json::Error>;
}

macro_rules! objects {
    ($($object:ident: $schema:ident,)*) => {$(
        impl Object for $object {
            fn reader(message: &[u8]) -> impl serde::Deserializer<'_, Error = serde_json::Error> {
                MessageReader::new($schema, message)
            }
        }
    )*};
}

objects! {
    Service: SERVICE,
    EndpointSlice: ENDPOINT_SLICE,
    Node: NODE,
    OtherNode: NODE,
}

/// meta/v1 ObjectMeta.
const METADATA: Schema = &[
    field(1, "name", Text),
    field(3, "namespace", Text),
    field(6, "resourceVersion", Text),
    field(8, "creationTimestamp", Time),
    field(9, "deletionTimestamp", Time),
    field(11, "labels", Map),
    field(12, "annotations", Map),
];

/// core/v1 Service.
const SERVICE: Schema = &[
    field(1, "metadata", Message(METADATA)),
    field(2, "spec", Message(SERVICE_SPEC)),
    field(3, "status", Message(SERVICE_STATUS)),
];

const SERVICE_SPEC: Schema = &[
    field(1, "ports", Messages(SERVICE_PORT)),
    field(3, "clusterIP", Text),
    field(4, "type", Text),
    field(5, "externalIPs", Texts),
    field(7, "sessionAffinity", Text),
    field(9, "loadBalancerSourceRanges", Texts),
    field(11, "externalTrafficPolicy", Text),
    field(12, "healthCheckNodePort", Number),
    field(14, "sessionAffinityConfig", Message(SESSION_AFFINITY_CONFIG)),
    field(18, "clusterIPs", Texts),
    field(19, "ipFamilies", Texts),
    field(22, "internalTrafficPolicy", AnyText),
];

const SERVICE_PORT: Schema = &[
    field(1, "name", Text),
    field(2, "protocol", Text),
    field(3, "port", AnyNumber),
    field(5, "nodePort", Number),
];

const SESSION_AFFINITY_CONFIG: Schema = &[field(1, "clientIP", Message(CLIENT_IP_CONFIG))];

const CLIENT_IP_CONFIG: Schema = &[field(1, "timeoutSeconds", AnyNumber)];

const SERVICE_STATUS: Schema = &[field(1, "loadBalancer", Message(LOAD_BALANCER_STATUS))];

const LOAD_BALANCER_STATUS: Schema = &[field(1, "ingress", Messages(LOAD_BALANCER_INGRESS))];

const LOAD_BALANCER_INGRESS: Schema = &[field(1, "ip", Text), field(3, "ipMode", AnyText)];

/// discovery/v1 EndpointSlice.
const ENDPOINT_SLICE: Schema = &[
    field(1, "metadata", Message(METADATA)),
    field(2, "endpoints", Messages(ENDPOINT)),
    field(3, "ports", Messages(SLICE_PORT)),
    field(4, "addressType", AnyText),
];

const SLICE_PORT: Schema =
    &[field(1, "name", AnyText), field(2, "protocol", AnyText), field(3, "port", AnyNumber)];

const ENDPOINT: Schema = &[
    field(1, "addresses", Texts),
    field(2, "conditions", Message(CONDITIONS)),
    field(6, "nodeName", AnyText),
    field(7, "zone", AnyText),
    field(8, "hints", Message(HINTS)),
];

const CONDITIONS: Schema =
    &[field(1, "ready", Truth), field(2, "serving", Truth), field(3, "terminating", Truth)];

const HINTS: Schema =
    &[field(1, "forZones", Messages(NAMED)), field(2, "forNodes", Messages(NAMED))];

/// `ForZone` and `ForNode`.
const NAMED: Schema = &[field(1, "name", AnyText)];

/// core/v1 Node.
const NODE: Schema = &[
    field(1, "metadata", Message(METADATA)),
    field(2, "spec", Message(NODE_SPEC)),
    field(3, "status", Message(NODE_STATUS)),
];

const NODE_SPEC: Schema = &[field(5, "taints", Messages(TAINT)), field(7, "podCIDRs", Texts)];

const TAINT: Schema = &[field(1, "key", AnyText)];

const NODE_STATUS: Schema = &[field(5, "addresses", Messages(NODE_ADDRESS))];

const NODE_ADDRESS: Schema = &[field(1, "type", AnyText), field(2, "address", AnyText)];
