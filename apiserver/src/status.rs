//! Answers to requests that the server does not carry out: objects of kind `Status`.

use serde_json::{Map, Value, json};

use crate::resource::{Resource, Verb};

/// A refusal: HTTP status and the `Status` object of the API reference (`meta/v1`, Status).
#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) details: Option<Value>,
    pub(crate) retry_after: Option<u32>,
    /// The token to go on with, inconsistently; only in a 410 for a `continue` token.
    pub(crate) next: Option<String>,
}

impl Status {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, reason, message, details: None, retry_after: None, next: None }
    }

    /// A refusal with the reason that the API gives for such a code.
    pub(crate) fn of_code(code: u16) -> Self {
        let (reason, message) = match code {
            400 => ("BadRequest", "the server rejected our request for an unknown reason"),
            401 => ("Unauthorized", "Unauthorized"),
            403 => ("Forbidden", "forbidden"),
            404 => ("NotFound", "the server could not find the requested resource"),
            406 => {
                ("NotAcceptable", "only the following media types are accepted: application/json")
            }
            409 => ("Conflict", "the object has been modified"),
            410 => ("Expired", "The resourceVersion for the provided list is too old."),
            415 => ("UnsupportedMediaType", "the media type of the request is not supported"),
            422 => ("Invalid", "the server rejected our request due to an error in our request"),
            429 => ("TooManyRequests", "Too many requests, please try again later."),
            500 => ("InternalError", "Internal error occurred: etcdserver: leader changed"),
            503 => ("ServiceUnavailable", "apiserver is shutting down"),
            504 => ("Timeout", "Timeout: request did not complete within the allotted timeout"),
            _ => ("", "unknown"),
        };
        Self::new(code, reason, message)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// The request accepts nothing that there is (`NewNotAcceptableError` in apiserver's
    /// endpoints/handlers/negotiation/errors.go).
    pub(crate) fn not_acceptable(has_protobuf: bool) -> Self {
        let protobuf = if has_protobuf { ", application/vnd.kubernetes.protobuf" } else { "" };
        let message =
            format!("only the following media types are accepted: application/json{protobuf}");
        Self::new(406, "NotAcceptable", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::of_code(401)
    }

    pub(crate) fn forbidden(verb: Verb, resource: Resource, namespace: Option<&str>) -> Self {
        let group = resource.group();
        let scope = match namespace {
            Some(namespace) => format!("in the namespace \"{namespace}\""),
            None => "at the cluster scope".to_owned(),
        };
        let message = format!(
            "{resource} is forbidden: User \"test\" cannot {verb} resource \"{resource}\" \
             in API group \"{group}\" {scope}"
        );
        let mut status = Self::new(403, "Forbidden", message);
        status.details = Some(details(resource, None));
        status
    }

    pub(crate) fn not_found(resource: Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", qualified(resource));
        let mut status = Self::new(404, "NotFound", message);
        status.details = Some(details(resource, Some(name)));
        status
    }

    pub(crate) fn already_exists(resource: Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", qualified(resource));
        let mut status = Self::new(409, "AlreadyExists", message);
        status.details = Some(details(resource, Some(name)));
        status
    }

    /// "Unavailable resource versions": a version from the future.
    pub(crate) fn too_large(wanted: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
        let mut status = Self::new(504, "Timeout", message);
        status.retry_after = Some(1);
        status.details = Some(json!({
            "causes": [{
                "reason": "ResourceVersionTooLarge",
                "message": "Too large resource version",
            }],
            "retryAfterSeconds": 1,
        }));
        status
    }

    /// "410 Gone responses", at the start of a watch.
    pub(crate) fn watch_expired(wanted: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {wanted} ({oldest})"))
    }

    /// "410 Gone responses", for a list at an exact version.
    pub(crate) fn list_expired() -> Self {
        Self::of_code(410)
    }

    /// The API reference, common parameters, `continue`: a 410 comes with a token to go on with.
    pub(crate) fn continue_expired(next: String) -> Self {
        let mut status = Self::new(
            410,
            "Expired",
            "The provided continue parameter is too old to display a consistent list result. \
             You can start a new list without the continue parameter, or use the continue token \
             in this response to retrieve the remainder of the results.",
        );
        status.next = Some(next);
        status
    }

    /// A refusal of fields: each one a reason, a field, and what is wrong with it.
    pub(crate) fn invalid(group: &str, kind: &str, name: &str, causes: &[Cause]) -> Self {
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let told: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let told = match told.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let mut status =
            Self::new(422, "Invalid", format!("{qualified} \"{name}\" is invalid: {told}"));
        let causes: Vec<Value> = causes
            .iter()
            .map(|cause| {
                json!({"reason": cause.reason, "message": cause.message, "field": cause.field})
            })
            .collect();
        status.details =
            Some(json!({"name": name, "group": group, "kind": kind, "causes": causes}));
        status
    }

    /// The `Status` object.
    pub(crate) fn to_value(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(next) = &self.next {
            metadata.insert("continue".to_owned(), json!(next));
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        let details = match (&self.details, self.retry_after) {
            (Some(details), _) => Some(details.clone()),
            (None, Some(seconds)) => Some(json!({"retryAfterSeconds": seconds})),
            (None, None) => None,
        };
        if let (Some(details), Some(status)) = (details, status.as_object_mut()) {
            status.insert("details".to_owned(), details);
        }
        status
    }
}

/// One wrong field.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    pub(crate) reason: &'static str,
    pub(crate) field: &'static str,
    pub(crate) message: String,
}

impl Cause {
    pub(crate) fn forbidden(field: &'static str, why: &str) -> Self {
        Self { reason: "FieldValueForbidden", field, message: format!("Forbidden: {why}") }
    }

    pub(crate) fn required(field: &'static str) -> Self {
        Self { reason: "FieldValueRequired", field, message: "Required value".to_owned() }
    }

    pub(crate) fn invalid(field: &'static str, value: &str, why: &str) -> Self {
        let message = format!("Invalid value: \"{value}\": {why}");
        Self { reason: "FieldValueInvalid", field, message }
    }

    pub(crate) fn not_supported(field: &'static str, value: &str, supported: &str) -> Self {
        let message = format!("Unsupported value: \"{value}\": supported values: {supported}");
        Self { reason: "FieldValueNotSupported", field, message }
    }
}

fn qualified(resource: Resource) -> String {
    match resource.group() {
        "" => resource.plural().to_owned(),
        group => format!("{}.{group}", resource.plural()),
    }
}

fn details(resource: Resource, name: Option<&str>) -> Value {
    let mut details = Map::new();
    details.insert("kind".to_owned(), json!(resource.plural()));
    if !resource.group().is_empty() {
        details.insert("group".to_owned(), json!(resource.group()));
    }
    if let Some(name) = name {
        details.insert("name".to_owned(), json!(name));
    }
    Value::Object(details)
}
