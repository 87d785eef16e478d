//! The length of an event about an EndpointSlice as Protobuf, which is what kube-proxy asks for.
//!
//! Messages with the field numbers of `k8s.io/api/discovery/v1/generated.proto`,
//! `k8s.io/api/core/v1/generated.proto` (`ObjectReference`), and of
//! `k8s.io/apimachinery/pkg`'s `apis/meta/v1/generated.proto` and `runtime/generated.proto`.

use std::collections::BTreeMap;

use prost::Message as _;
use serde_json::Value;

/// Bytes before each event of a watch: its length
/// (`lengthDelimitedFrameWriter` in apimachinery's util/framer/framer.go).
const FRAME: usize = 4;

/// Prefix of an object (`protoEncodingPrefix` in runtime/serializer/protobuf/protobuf.go).
const PREFIX: &[u8] = b"k8s\0";

#[derive(Clone, PartialEq, prost::Message)]
struct WatchEvent {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(message, optional, tag = "2")]
    object: Option<Raw>,
}

/// `RawExtension`, and `FieldsV1`.
#[derive(Clone, PartialEq, prost::Message)]
struct Raw {
    #[prost(bytes = "vec", tag = "1")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EndpointSlice {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<Endpoint>,
    #[prost(message, repeated, tag = "3")]
    ports: Vec<Port>,
    #[prost(string, tag = "4")]
    address_type: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Endpoint {
    #[prost(string, repeated, tag = "1")]
    addresses: Vec<String>,
    #[prost(message, optional, tag = "2")]
    conditions: Option<Conditions>,
    #[prost(message, optional, tag = "4")]
    target_ref: Option<ObjectReference>,
    #[prost(string, optional, tag = "6")]
    node_name: Option<String>,
    #[prost(string, optional, tag = "7")]
    zone: Option<String>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Conditions {
    #[prost(bool, optional, tag = "1")]
    ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    terminating: Option<bool>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Port {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    protocol: Option<String>,
    #[prost(int64, optional, tag = "3")]
    port: Option<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ObjectReference {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    generate_name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(int64, tag = "7")]
    generation: i64,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Time>,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    owner_references: Vec<OwnerReference>,
    #[prost(message, repeated, tag = "17")]
    managed_fields: Vec<ManagedFields>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OwnerReference {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
    #[prost(string, tag = "5")]
    api_version: String,
    #[prost(bool, tag = "6")]
    controller: bool,
    #[prost(bool, tag = "7")]
    block_owner_deletion: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ManagedFields {
    #[prost(string, tag = "1")]
    manager: String,
    #[prost(string, tag = "2")]
    operation: String,
    #[prost(string, tag = "3")]
    api_version: String,
    #[prost(message, optional, tag = "4")]
    time: Option<Time>,
    #[prost(string, tag = "6")]
    fields_type: String,
    #[prost(message, optional, tag = "7")]
    fields: Option<Raw>,
}

/// Bytes of the event that says that a slice has changed.
pub(crate) fn event_length(slice: &Value) -> usize {
    let metadata = slice.get("metadata").unwrap_or(&Value::Null);
    let object = EndpointSlice {
        metadata: Some(object_meta(metadata)),
        endpoints: each(slice, "endpoints").map(endpoint).collect(),
        ports: each(slice, "ports").map(port).collect(),
        address_type: text(slice, "addressType"),
    };
    let type_meta =
        Some(TypeMeta { api_version: text(slice, "apiVersion"), kind: text(slice, "kind") });
    let unknown = Unknown { type_meta, raw: object.encode_to_vec() };
    let raw = [PREFIX, &unknown.encode_to_vec()].concat();
    let event = WatchEvent { kind: "MODIFIED".to_owned(), object: Some(Raw { raw }) };
    FRAME + event.encoded_len()
}

fn object_meta(metadata: &Value) -> ObjectMeta {
    ObjectMeta {
        name: text(metadata, "name"),
        generate_name: text(metadata, "generateName"),
        namespace: text(metadata, "namespace"),
        uid: text(metadata, "uid"),
        resource_version: text(metadata, "resourceVersion"),
        generation: metadata.get("generation").and_then(Value::as_i64).unwrap_or_default(),
        creation_timestamp: time(metadata, "creationTimestamp"),
        labels: map(metadata, "labels"),
        annotations: map(metadata, "annotations"),
        owner_references: each(metadata, "ownerReferences")
            .map(|owner| OwnerReference {
                kind: text(owner, "kind"),
                name: text(owner, "name"),
                uid: text(owner, "uid"),
                api_version: text(owner, "apiVersion"),
                controller: truth(owner, "controller").unwrap_or_default(),
                block_owner_deletion: truth(owner, "blockOwnerDeletion").unwrap_or_default(),
            })
            .collect(),
        managed_fields: each(metadata, "managedFields")
            .map(|fields| ManagedFields {
                manager: text(fields, "manager"),
                operation: text(fields, "operation"),
                api_version: text(fields, "apiVersion"),
                time: time(fields, "time"),
                fields_type: text(fields, "fieldsType"),
                // FieldsV1 is JSON in Protobuf too.
                fields: fields.get("fieldsV1").map(|it| Raw { raw: it.to_string().into_bytes() }),
            })
            .collect(),
    }
}

fn endpoint(endpoint: &Value) -> Endpoint {
    let optional = |field| endpoint.get(field).and_then(Value::as_str).map(str::to_owned);
    Endpoint {
        addresses: each(endpoint, "addresses")
            .filter_map(|address| address.as_str().map(str::to_owned))
            .collect(),
        conditions: endpoint.get("conditions").map(|conditions| Conditions {
            ready: truth(conditions, "ready"),
            serving: truth(conditions, "serving"),
            terminating: truth(conditions, "terminating"),
        }),
        target_ref: endpoint.get("targetRef").map(|target| ObjectReference {
            kind: text(target, "kind"),
            namespace: text(target, "namespace"),
            name: text(target, "name"),
            uid: text(target, "uid"),
        }),
        node_name: optional("nodeName"),
        zone: optional("zone"),
    }
}

fn port(port: &Value) -> Port {
    Port {
        name: Some(text(port, "name")),
        protocol: Some(text(port, "protocol")),
        port: port.get("port").and_then(Value::as_i64),
    }
}

fn text(object: &Value, field: &str) -> String {
    object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn truth(object: &Value, field: &str) -> Option<bool> {
    object.get(field)?.as_bool()
}

/// Any time: all have the same length.
fn time(object: &Value, field: &str) -> Option<Time> {
    object.get(field).map(|_| Time { seconds: 1_768_478_400 })
}

fn each<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    object.get(field).and_then(Value::as_array).into_iter().flatten()
}

fn map(object: &Value, field: &str) -> BTreeMap<String, String> {
    let fields = object.get(field).and_then(Value::as_object).into_iter().flatten();
    fields
        .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect()
}
