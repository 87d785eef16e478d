//! Objects as a server makes them: the metadata it fills in, and what it leaves out of lists.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use jiff::{Timestamp, Unit};
use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// A stored object: without `kind` and `apiVersion`, as the items of a list are.
pub(crate) type Object = Arc<Value>;

/// Place of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) resource: Resource,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

impl Identity {
    /// The key within its resource: lists come in this order, which is that of the real store.
    pub(crate) fn key(&self) -> String {
        key(self.namespace.as_deref(), &self.name)
    }

    /// Reads `apiVersion`, `kind`, `metadata.namespace` and `metadata.name`. An object of a
    /// namespaced resource without a namespace goes to `default`.
    pub(crate) fn of(object: &Value) -> Result<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let api_version = text("/apiVersion").context("the object has no apiVersion")?;
        let kind = text("/kind").context("the object has no kind")?;
        let name = text("/metadata/name").context("the object has no metadata.name")?;
        let Some(resource) = Resource::of(api_version, kind) else {
            bail!("objects of apiVersion {api_version} and kind {kind} are not served");
        };
        let namespace = resource
            .is_namespaced()
            .then(|| text("/metadata/namespace").unwrap_or("default").to_owned());
        Ok(Self { resource, namespace, name: name.to_owned() })
    }
}

pub(crate) fn key(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// Makes an object ready to be stored: the server owns the version, the uid and the time of
/// creation. Returns `None` when nothing changes, which the real server answers without a new
/// version.
pub(crate) fn prepare(
    identity: &Identity,
    mut object: Value,
    previous: Option<&Value>,
    version: u64,
    managed_fields: bool,
) -> Option<Value> {
    let fields = object.as_object_mut()?;
    fields.remove("kind");
    fields.remove("apiVersion");
    let metadata = fields.entry("metadata").or_insert_with(|| json!({})).as_object_mut()?;
    let earlier = |field: &str| {
        previous
            .and_then(|previous| previous.get("metadata"))
            .and_then(|metadata| metadata.get(field))
            .cloned()
    };
    metadata.insert("name".to_owned(), json!(identity.name));
    if let Some(namespace) = &identity.namespace {
        metadata.insert("namespace".to_owned(), json!(namespace));
    }
    // A test may give its own; the real server would not take them.
    for (field, fresh) in [("uid", uid(version)), ("creationTimestamp", now())] {
        match earlier(field) {
            Some(value) => {
                metadata.insert(field.to_owned(), value);
            }
            None => {
                metadata.entry(field).or_insert_with(|| json!(fresh));
            }
        }
    }
    metadata.remove("managedFields");
    if managed_fields {
        let written = managed(identity.resource, &object);
        // The time is kept while the fields stay the same: otherwise nothing would ever be equal.
        let entry = earlier("managedFields")
            .and_then(|entries| entries.get(0).cloned())
            .filter(|entry| entry.get("fieldsV1") == Some(&written))
            .unwrap_or_else(|| {
                json!({
                    "manager": "kube-controller-manager",
                    "operation": "Update",
                    "apiVersion": identity.resource.api_version(),
                    "time": now(),
                    "fieldsType": "FieldsV1",
                    "fieldsV1": written,
                })
            });
        set(&mut object, "managedFields", json!([entry]));
    }
    if let Some(version) = earlier("resourceVersion") {
        set(&mut object, "resourceVersion", version);
    }
    if previous == Some(&object) {
        return None;
    }
    set_version(&mut object, version);
    Some(object)
}

/// The object with another resource version.
pub(crate) fn at_version(object: &Value, version: u64) -> Value {
    let mut object = object.clone();
    set_version(&mut object, version);
    object
}

/// The object as it is told on its own, in a response or in a watch event: with `kind` and
/// `apiVersion`.
pub(crate) fn typed(resource: Resource, object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.insert("kind".to_owned(), json!(resource.kind()));
        fields.insert("apiVersion".to_owned(), json!(resource.api_version()));
    }
    object
}

/// The object of a bookmark: its type with nothing set but the version ("Watch bookmarks"). The
/// real server writes the zero values of required fields along, so this one does.
pub(crate) fn bookmark(resource: Resource, version: u64, ends_initial_events: bool) -> Value {
    let mut object = match resource {
        Resource::Services => json!({"spec": {}, "status": {"loadBalancer": {}}}),
        Resource::Nodes => json!({
            "spec": {},
            "status": {
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
                "nodeInfo": {
                    "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "",
                    "osImage": "", "containerRuntimeVersion": "", "kubeletVersion": "",
                    "kubeProxyVersion": "", "operatingSystem": "", "architecture": "",
                },
            },
        }),
        Resource::EndpointSlices => json!({"addressType": "", "endpoints": null, "ports": null}),
        Resource::ServiceCidrs => json!({"spec": {}, "status": {}}),
        Resource::Events => json!({"eventTime": null, "regarding": {}}),
    };
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".to_owned(), json!(version.to_string()));
    metadata.insert("creationTimestamp".to_owned(), Value::Null);
    if ends_initial_events {
        metadata.insert("annotations".to_owned(), json!({"k8s.io/initial-events-end": "true"}));
    }
    if let Some(fields) = object.as_object_mut() {
        fields.insert("metadata".to_owned(), Value::Object(metadata));
    }
    typed(resource, &object)
}

/// Damages an object so that it is still JSON but no longer fits its schema.
pub(crate) fn damage(resource: Resource, object: &mut Value) {
    let (parent, field) = match resource {
        Resource::EndpointSlices => ("", "ports"),
        Resource::Services => ("/spec", "ports"),
        Resource::ServiceCidrs => ("/spec", "cidrs"),
        Resource::Nodes => ("/metadata", "labels"),
        Resource::Events => ("", "regarding"),
    };
    if let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        fields.insert(field.to_owned(), json!("x"));
    }
}

fn set_version(object: &mut Value, version: u64) {
    set(object, "resourceVersion", json!(version.to_string()));
}

fn set(object: &mut Value, field: &str, value: Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert(field.to_owned(), value);
    }
}

/// `FieldsV1` of what a controller wrote ("Field Management"): a tree of `f:` keys.
fn managed(resource: Resource, object: &Value) -> Value {
    let mut tree = Map::new();
    for (field, value) in object.as_object().into_iter().flatten() {
        match field.as_str() {
            "metadata" => {
                let mut metadata = Map::new();
                for field in ["labels", "annotations"] {
                    if let Some(value) = value.get(field) {
                        metadata.insert(format!("f:{field}"), owned(value));
                    }
                }
                tree.insert("f:metadata".to_owned(), Value::Object(metadata));
            }
            "status" if resource != Resource::Events => {}
            _ => {
                tree.insert(format!("f:{field}"), owned(value));
            }
        }
    }
    Value::Object(tree)
}

fn owned(value: &Value) -> Value {
    let mut tree = Map::new();
    for (field, value) in value.as_object().into_iter().flatten() {
        tree.insert(format!("f:{field}"), owned(value));
    }
    Value::Object(tree)
}

/// `metav1.Time`: RFC 3339, whole seconds.
fn now() -> String {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now).to_string()
}

/// A uid that no other object of this run has, in the form of a version 4 UUID.
fn uid(version: u64) -> String {
    let nanoseconds = Timestamp::now().as_nanosecond().unsigned_abs();
    format!(
        "{:08x}-{:04x}-4{:03x}-a{:03x}-{version:012x}",
        (nanoseconds >> 28) & 0xffff_ffff,
        (nanoseconds >> 12) & 0xffff,
        nanoseconds & 0xfff,
        (nanoseconds >> 8) & 0xfff,
    )
}
