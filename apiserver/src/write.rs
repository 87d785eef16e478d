//! Writes of clients: events, and whatever else they create or patch.

use serde_json::Value;

use crate::object::{self, Identity};
use crate::resource::Resource;
use crate::status::{Cause, Status};
use crate::store::Store;

/// The longest `note` of an event, and the longest of its other texts (events.k8s.io/v1, Event).
const NOTE_LIMIT: usize = 1024;
const TEXT_LIMIT: usize = 128;

/// Creates an object from the body of a POST.
pub(crate) fn create(
    store: &Store,
    resource: Resource,
    namespace: Option<&str>,
    body: &[u8],
) -> Result<Value, Status> {
    let mut object = read(resource, body)?;
    if resource.is_namespaced() != namespace.is_some() {
        return Err(Status::new(405, "MethodNotAllowed", "create needs the object's namespace"));
    }
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    if text("/metadata/namespace").is_some_and(|given| Some(given) != namespace) {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let Some(name) = text("/metadata/name").map(str::to_owned) else {
        let causes = [Cause::required("metadata.name")];
        return Err(Status::invalid(resource.group(), resource.kind(), "", &causes));
    };
    let identity = Identity { resource, namespace: namespace.map(str::to_owned), name };
    validate(&identity, &object)?;
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    let written = store
        .put(&identity, object, true)
        .ok_or_else(|| Status::already_exists(resource, &identity.name))?;
    Ok(object::typed(resource, &written.object))
}

/// Merges the body of a PATCH into an object (RFC 7386).
pub(crate) fn patch(
    store: &Store,
    identity: &Identity,
    content_type: &str,
    body: &[u8],
) -> Result<Value, Status> {
    if content_type != "application/merge-patch+json" {
        let message = format!("the body of the request was in an unknown format: {content_type}");
        return Err(Status::new(415, "UnsupportedMediaType", message));
    }
    let change: Value = serde_json::from_slice(body)
        .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
    let resource = identity.resource;
    let before = store
        .get(resource, &identity.key())
        .ok_or_else(|| Status::not_found(resource, &identity.name))?;
    let mut object = Value::clone(&before);
    merge(&mut object, change);
    validate(identity, &object)?;
    let written = store
        .put(identity, object, false)
        .ok_or_else(|| Status::not_found(resource, &identity.name))?;
    Ok(object::typed(resource, &written.object))
}

fn read(resource: Resource, body: &[u8]) -> Result<Value, Status> {
    let object: Value = serde_json::from_slice(body)
        .map_err(|error| Status::bad_request(format!("the object cannot be read: {error}")))?;
    for (field, expected) in [("kind", resource.kind()), ("apiVersion", resource.api_version())] {
        let given = object.get(field).and_then(Value::as_str);
        if given.is_some_and(|given| given != expected) {
            return Err(Status::bad_request(format!(
                "the {field} of the object does not fit the path: it should be {expected}"
            )));
        }
    }
    if object.is_object() {
        Ok(object)
    } else {
        Err(Status::bad_request("the body is not a JSON object"))
    }
}

/// Refuses an event that the real server would refuse (events.k8s.io/v1, Event: which fields are
/// required, and how long they may be).
fn validate(identity: &Identity, object: &Value) -> Result<(), Status> {
    if identity.resource != Resource::Events {
        return Ok(());
    }
    let text = |field: &str| object.pointer(field).and_then(Value::as_str).unwrap_or("");
    let mut causes = Vec::new();
    if text("/eventTime").parse::<jiff::Timestamp>().is_err() {
        causes.push(Cause::required("eventTime"));
    }
    for (pointer, field) in [
        ("/reportingController", "reportingController"),
        ("/reportingInstance", "reportingInstance"),
        ("/action", "action"),
        ("/reason", "reason"),
    ] {
        if text(pointer).is_empty() {
            causes.push(Cause::required(field));
        } else if text(pointer).len() > TEXT_LIMIT {
            causes.push(Cause::invalid(field, "", "can have at most 128 characters"));
        }
    }
    if text("/note").len() > NOTE_LIMIT {
        causes.push(Cause::invalid("message", "", "can have at most 1024 characters"));
    }
    if !matches!(text("/type"), "Normal" | "Warning") {
        causes.push(Cause::invalid("type", "", "has invalid value"));
    }
    // What an event of the whole cluster regards has no namespace: it goes to one of these two.
    let namespace = identity.namespace.as_deref();
    if text("/regarding/namespace").is_empty()
        && !matches!(namespace, Some("default" | "kube-system"))
    {
        causes.push(Cause::invalid(
            "involvedObject.namespace",
            "",
            "does not match event.namespace",
        ));
    }
    if let Some(series) = object.get("series").filter(|series| !series.is_null()) {
        if series.get("count").and_then(Value::as_u64).is_none_or(|count| count < 2) {
            causes.push(Cause::invalid("series.count", "", "should be at least 2"));
        }
        if series.get("lastObservedTime").and_then(Value::as_str).is_none() {
            causes.push(Cause::required("series.lastObservedTime"));
        }
    }
    if causes.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid("", "Event", &identity.name, &causes))
    }
}

fn merge(target: &mut Value, change: Value) {
    match change {
        Value::Object(changes) => {
            if !target.is_object() {
                *target = Value::Object(serde_json::Map::new());
            }
            let Some(fields) = target.as_object_mut() else { return };
            for (field, change) in changes {
                if change.is_null() {
                    fields.remove(&field);
                } else {
                    merge(fields.entry(field).or_insert(Value::Null), change);
                }
            }
        }
        other => *target = other,
    }
}
