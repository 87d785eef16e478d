//! Objects and events of watches in Protobuf, as the real server encodes them.
//!
//! Fields have the numbers, and the order, of `generated.proto` in k8s.io/api's core/v1 and discovery/v1, and in
//! k8s.io/apimachinery's pkg/apis/meta/v1 and pkg/runtime. As there (gogo/protobuf), a field is written though it is
//! empty or 0, unless it is a pointer or a list in Go. Fields of rare use are left out.
//!
//! A value of another type than its field's becomes a number where bytes belong, and the other way round.

use serde_json::Value;

/// Media type of objects, and of each event of a watch.
pub(crate) const OBJECT: &str = "application/vnd.kubernetes.protobuf";
pub(crate) const STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// `protoEncodingPrefix` in pkg/runtime/serializer/protobuf/protobuf.go.
const PREFIX: &[u8] = b"k8s\0";

/// Wire types (<https://protobuf.dev/programming-guides/encoding>).
const VARINT: u64 = 0;
const BYTES: u64 = 2;

type Message = &'static [Field];

/// Number, name in JSON, and type.
type Field = (u64, &'static str, Type);

#[derive(Clone, Copy)]
enum Type {
    Text,
    /// `*string`
    TextPointer,
    Texts,
    Number,
    /// `*int32`
    NumberPointer,
    Truth,
    /// `*bool`
    TruthPointer,
    Time,
    /// `*Time`
    TimePointer,
    Struct(Message),
    Pointer(Message),
    Structs(Message),
    /// `map[string]string`
    TextMap,
    /// `map[ResourceName]Quantity`, each of which is a message with a text.
    Quantities,
    /// A number or a text.
    IntOrString,
    /// `FieldsV1`: JSON in a message.
    Json,
}

use Type::{
    IntOrString, Json, Number, NumberPointer, Pointer, Quantities, Struct, Structs, Text, TextMap,
    TextPointer, Texts, Time, TimePointer, Truth, TruthPointer,
};

const TYPE_META: Message = &[(1, "apiVersion", Text), (2, "kind", Text)];

const OBJECT_META: Message = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (4, "selfLink", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (7, "generation", Number),
    (8, "creationTimestamp", Time),
    (9, "deletionTimestamp", TimePointer),
    (10, "deletionGracePeriodSeconds", NumberPointer),
    (11, "labels", TextMap),
    (12, "annotations", TextMap),
    (13, "ownerReferences", Structs(OWNER_REFERENCE)),
    (14, "finalizers", Texts),
    (17, "managedFields", Structs(MANAGED_FIELDS)),
];

const OWNER_REFERENCE: Message = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", TruthPointer),
    (7, "blockOwnerDeletion", TruthPointer),
];

const MANAGED_FIELDS: Message = &[
    (1, "manager", Text),
    (2, "operation", Text),
    (3, "apiVersion", Text),
    (4, "time", TimePointer),
    (6, "fieldsType", Text),
    (7, "fieldsV1", Json),
    (8, "subresource", Text),
];

const LIST_META: Message = &[
    (1, "selfLink", Text),
    (2, "resourceVersion", Text),
    (3, "continue", Text),
    (4, "remainingItemCount", NumberPointer),
];

const STATUS: Message = &[
    (1, "metadata", Struct(LIST_META)),
    (2, "status", Text),
    (3, "message", Text),
    (4, "reason", Text),
    (5, "details", Pointer(STATUS_DETAILS)),
    (6, "code", Number),
];

const STATUS_DETAILS: Message = &[
    (1, "name", Text),
    (2, "group", Text),
    (3, "kind", Text),
    (4, "causes", Structs(STATUS_CAUSE)),
    (5, "retryAfterSeconds", Number),
    (6, "uid", Text),
];

const STATUS_CAUSE: Message = &[(1, "reason", Text), (2, "message", Text), (3, "field", Text)];

const SERVICE: Message = &[
    (1, "metadata", Struct(OBJECT_META)),
    (2, "spec", Struct(SERVICE_SPEC)),
    (3, "status", Struct(SERVICE_STATUS)),
];

const SERVICE_SPEC: Message = &[
    (1, "ports", Structs(SERVICE_PORT)),
    (2, "selector", TextMap),
    (3, "clusterIP", Text),
    (4, "type", Text),
    (5, "externalIPs", Texts),
    (7, "sessionAffinity", Text),
    (8, "loadBalancerIP", Text),
    (9, "loadBalancerSourceRanges", Texts),
    (10, "externalName", Text),
    (11, "externalTrafficPolicy", Text),
    (12, "healthCheckNodePort", Number),
    (13, "publishNotReadyAddresses", Truth),
    (14, "sessionAffinityConfig", Pointer(SESSION_AFFINITY_CONFIG)),
    (17, "ipFamilyPolicy", TextPointer),
    (18, "clusterIPs", Texts),
    (19, "ipFamilies", Texts),
    (20, "allocateLoadBalancerNodePorts", TruthPointer),
    (21, "loadBalancerClass", TextPointer),
    (22, "internalTrafficPolicy", TextPointer),
    (23, "trafficDistribution", TextPointer),
];

const SERVICE_PORT: Message = &[
    (1, "name", Text),
    (2, "protocol", Text),
    (3, "port", Number),
    (4, "targetPort", IntOrString),
    (5, "nodePort", Number),
    (6, "appProtocol", TextPointer),
];

const SESSION_AFFINITY_CONFIG: Message = &[(1, "clientIP", Pointer(CLIENT_IP_CONFIG))];

const CLIENT_IP_CONFIG: Message = &[(1, "timeoutSeconds", NumberPointer)];

const SERVICE_STATUS: Message = &[(1, "loadBalancer", Struct(LOAD_BALANCER_STATUS))];

const LOAD_BALANCER_STATUS: Message = &[(1, "ingress", Structs(LOAD_BALANCER_INGRESS))];

const LOAD_BALANCER_INGRESS: Message =
    &[(1, "ip", Text), (2, "hostname", Text), (3, "ipMode", TextPointer)];

const ENDPOINT_SLICE: Message = &[
    (1, "metadata", Struct(OBJECT_META)),
    (2, "endpoints", Structs(ENDPOINT)),
    (3, "ports", Structs(ENDPOINT_PORT)),
    (4, "addressType", Text),
];

const ENDPOINT: Message = &[
    (1, "addresses", Texts),
    (2, "conditions", Struct(ENDPOINT_CONDITIONS)),
    (3, "hostname", TextPointer),
    (4, "targetRef", Pointer(OBJECT_REFERENCE)),
    (5, "deprecatedTopology", TextMap),
    (6, "nodeName", TextPointer),
    (7, "zone", TextPointer),
    (8, "hints", Pointer(ENDPOINT_HINTS)),
];

const ENDPOINT_CONDITIONS: Message =
    &[(1, "ready", TruthPointer), (2, "serving", TruthPointer), (3, "terminating", TruthPointer)];

const OBJECT_REFERENCE: Message = &[
    (1, "kind", Text),
    (2, "namespace", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "resourceVersion", Text),
    (7, "fieldPath", Text),
];

const ENDPOINT_HINTS: Message = &[(1, "forZones", Structs(FOR)), (2, "forNodes", Structs(FOR))];

/// `ForZone` and `ForNode`.
const FOR: Message = &[(1, "name", Text)];

const ENDPOINT_PORT: Message = &[
    (1, "name", TextPointer),
    (2, "protocol", TextPointer),
    (3, "port", NumberPointer),
    (4, "appProtocol", TextPointer),
];

const NODE: Message = &[
    (1, "metadata", Struct(OBJECT_META)),
    (2, "spec", Struct(NODE_SPEC)),
    (3, "status", Struct(NODE_STATUS)),
];

const NODE_SPEC: Message = &[
    (1, "podCIDR", Text),
    (2, "externalID", Text),
    (3, "providerID", Text),
    (4, "unschedulable", Truth),
    (5, "taints", Structs(TAINT)),
    (7, "podCIDRs", Texts),
];

const TAINT: Message =
    &[(1, "key", Text), (2, "value", Text), (3, "effect", Text), (4, "timeAdded", TimePointer)];

const NODE_STATUS: Message = &[
    (1, "capacity", Quantities),
    (2, "allocatable", Quantities),
    (3, "phase", Text),
    (4, "conditions", Structs(NODE_CONDITION)),
    (5, "addresses", Structs(NODE_ADDRESS)),
    (6, "daemonEndpoints", Struct(NODE_DAEMON_ENDPOINTS)),
    (7, "nodeInfo", Struct(NODE_SYSTEM_INFO)),
    (8, "images", Structs(CONTAINER_IMAGE)),
];

const NODE_CONDITION: Message = &[
    (1, "type", Text),
    (2, "status", Text),
    (3, "lastHeartbeatTime", Time),
    (4, "lastTransitionTime", Time),
    (5, "reason", Text),
    (6, "message", Text),
];

const NODE_ADDRESS: Message = &[(1, "type", Text), (2, "address", Text)];

const NODE_DAEMON_ENDPOINTS: Message = &[(1, "kubeletEndpoint", Struct(&[(1, "Port", Number)]))];

const NODE_SYSTEM_INFO: Message = &[
    (1, "machineID", Text),
    (2, "systemUUID", Text),
    (3, "bootID", Text),
    (4, "kernelVersion", Text),
    (5, "osImage", Text),
    (6, "containerRuntimeVersion", Text),
    (7, "kubeletVersion", Text),
    (8, "kubeProxyVersion", Text),
    (9, "operatingSystem", Text),
    (10, "architecture", Text),
];

const CONTAINER_IMAGE: Message = &[(1, "names", Texts), (2, "sizeBytes", Number)];

/// The schema of a kind of object.
fn schema(kind: &str) -> Option<Message> {
    Some(match kind {
        "Service" => SERVICE,
        "EndpointSlice" => ENDPOINT_SLICE,
        "Node" => NODE,
        "ServiceList" => &[(1, "metadata", Struct(LIST_META)), (2, "items", Structs(SERVICE))],
        "EndpointSliceList" => {
            &[(1, "metadata", Struct(LIST_META)), (2, "items", Structs(ENDPOINT_SLICE))]
        }
        "NodeList" => &[(1, "metadata", Struct(LIST_META)), (2, "items", Structs(NODE))],
        "Status" => STATUS,
        _ => return None,
    })
}

/// Encodes an object, or a list of objects. Nothing for kinds that are not known here,
/// which are those that no client follows.
#[must_use]
pub fn message(object: &Value) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    encode(schema(object.get("kind")?.as_str()?)?, object, &mut message);
    Some(message)
}

/// Encodes an object, or a list of objects, with its envelope (`Unknown`).
#[must_use]
pub fn object(object: &Value) -> Option<Vec<u8>> {
    let message = message(object)?;
    let mut type_meta = Vec::new();
    encode(TYPE_META, object, &mut type_meta);
    let mut unknown = PREFIX.to_vec();
    bytes(&mut unknown, 1, &type_meta);
    bytes(&mut unknown, 2, &message);
    // `contentEncoding` and `contentType`
    bytes(&mut unknown, 3, &[]);
    bytes(&mut unknown, 4, &[]);
    Some(unknown)
}

/// Encodes an event of a watch (`WatchEvent`), with its length before it (`lengthDelimitedFrameWriter` in
/// pkg/util/framer/framer.go).
#[must_use]
pub fn event(kind: &str, object_of_event: &Value) -> Option<Vec<u8>> {
    let (mut extension, mut event) = (Vec::new(), Vec::new());
    bytes(&mut extension, 1, &object(object_of_event)?);
    bytes(&mut event, 1, kind.as_bytes());
    bytes(&mut event, 2, &extension);
    let length = u32::try_from(event.len()).ok()?;
    Some([&length.to_be_bytes()[..], &event].concat())
}

fn encode(message: Message, object: &Value, out: &mut Vec<u8>) {
    for (number, name, kind) in message {
        let value = object.get(name).filter(|value| !value.is_null());
        if field(*number, *kind, value, out).is_none() {
            // It is of another type.
            match kind {
                Number | NumberPointer | Truth | TruthPointer => bytes(out, *number, b"x"),
                _ => varint_field(out, *number, 0),
            }
        }
    }
}

/// Encodes a field, which may be absent. Nothing if its value is of another type.
fn field(number: u64, kind: Type, value: Option<&Value>, out: &mut Vec<u8>) -> Option<()> {
    let Some(value) = value else {
        match kind {
            Text | Time => bytes(out, number, &[]),
            Number | Truth => varint_field(out, number, 0),
            Struct(message) => nested(number, message, &Value::Null, out),
            IntOrString => int_or_string(number, &Value::from(0), out)?,
            _ => {}
        }
        return Some(());
    };
    match kind {
        Text | TextPointer => bytes(out, number, value.as_str()?.as_bytes()),
        // Negative ones have 64 bits.
        Number | NumberPointer => varint_field(out, number, value.as_i64()?.cast_unsigned()),
        Truth | TruthPointer => varint_field(out, number, value.as_bool()?.into()),
        Time | TimePointer => time(number, value.as_str()?, out)?,
        Struct(message) | Pointer(message) => {
            value.as_object()?;
            nested(number, message, value, out);
        }
        Texts => {
            for text in value.as_array()? {
                match text.as_str() {
                    Some(text) => bytes(out, number, text.as_bytes()),
                    None => varint_field(out, number, 0),
                }
            }
        }
        Structs(message) => {
            for item in value.as_array()? {
                if item.is_object() {
                    nested(number, message, item, out);
                } else {
                    varint_field(out, number, 0);
                }
            }
        }
        TextMap | Quantities => map(number, kind, value.as_object()?, out),
        IntOrString => int_or_string(number, value, out)?,
        Json => {
            let mut json = Vec::new();
            bytes(&mut json, 1, value.to_string().as_bytes());
            bytes(out, number, &json);
        }
    }
    Some(())
}

fn nested(number: u64, message: Message, object: &Value, out: &mut Vec<u8>) {
    let mut nested = Vec::new();
    encode(message, object, &mut nested);
    bytes(out, number, &nested);
}

/// Entries are in the order of their keys, as in JSON.
fn map(number: u64, kind: Type, entries: &serde_json::Map<String, Value>, out: &mut Vec<u8>) {
    for (key, value) in entries {
        let mut entry = Vec::new();
        bytes(&mut entry, 1, key.as_bytes());
        match (kind, value.as_str()) {
            (Quantities, Some(text)) => {
                let mut quantity = Vec::new();
                bytes(&mut quantity, 1, text.as_bytes());
                bytes(&mut entry, 2, &quantity);
            }
            (_, Some(text)) => bytes(&mut entry, 2, text.as_bytes()),
            (_, None) => varint_field(&mut entry, 2, 0),
        }
        bytes(out, number, &entry);
    }
}

fn time(number: u64, text: &str, out: &mut Vec<u8>) -> Option<()> {
    let time: jiff::Timestamp = text.parse().ok()?;
    let mut message = Vec::new();
    varint_field(&mut message, 1, time.as_second().cast_unsigned());
    varint_field(&mut message, 2, 0);
    bytes(out, number, &message);
    Some(())
}

/// `IntOrString` in pkg/util/intstr/generated.proto.
fn int_or_string(number: u64, value: &Value, out: &mut Vec<u8>) -> Option<()> {
    let (kind, int, text) = match value {
        Value::String(text) => (1, 0, text.as_str()),
        other => (0, other.as_i64()?, ""),
    };
    let mut message = Vec::new();
    varint_field(&mut message, 1, kind);
    varint_field(&mut message, 2, int.cast_unsigned());
    bytes(&mut message, 3, text.as_bytes());
    bytes(out, number, &message);
    Some(())
}

fn varint_field(out: &mut Vec<u8>, number: u64, value: u64) {
    varint(out, (number << 3) | VARINT);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    varint(out, (number << 3) | BYTES);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
