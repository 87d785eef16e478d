//! Objects and events in Protobuf, as the API server puts them into envelopes.
//!
//! The numbers of fields are those of `generated.proto` in k8s.io/apimachinery's pkg/runtime and pkg/apis/meta/v1, the
//! prefix is `protoEncodingPrefix` in pkg/runtime/serializer/protobuf/protobuf.go.

use std::borrow::Cow;

use serde::de::Error as _;
use serde_json::{Error, Result};

use crate::object::Metadata;
use crate::protobuf::Kind::{Map, Message, Number, Text};
use crate::protobuf::{Fields, Schema, Value, field, text};

/// Beginning of every object.
pub(super) const PREFIX: &[u8] = b"k8s\0";

/// Fields of `Unknown`.
pub(super) const TYPE_META: u64 = 1;
pub(super) const RAW: u64 = 2;

/// `kind` of `TypeMeta`.
const KIND: u32 = 2;

/// `Status`.
pub(super) const STATUS: Schema =
    &[field(3, "message", Text), field(4, "reason", Text), field(6, "code", Number)];

/// An object, as far as a bookmark has it.
pub(super) const BOOKMARK: Schema = &[field(
    1,
    "metadata",
    Message(&[field(6, "resourceVersion", Text), field(12, "annotations", Map)]),
)];

/// `ListMeta`.
pub(super) const LIST_META: Schema =
    &[field(2, "resourceVersion", Text), field(3, "continue", Text)];

/// `WatchEvent`, with the envelope of its object.
pub(super) struct Event<'a> {
    pub(super) kind: Cow<'a, str>,
    object: &'a [u8],
}

impl<'a> Event<'a> {
    pub(super) fn read(event: &'a [u8]) -> Result<Self> {
        let (mut kind, mut extension): (_, &[u8]) = (Cow::default(), &[]);
        for field in Fields(event) {
            match field? {
                (1, Value::Bytes(bytes)) => kind = text(bytes),
                (2, Value::Bytes(bytes)) => extension = bytes,
                _ => {}
            }
        }
        let mut object: &[u8] = &[];
        // `RawExtension`
        for field in Fields(extension) {
            if let (1, Value::Bytes(bytes)) = field? {
                object = bytes;
            }
        }
        Ok(Self { kind, object })
    }

    /// The message of its object, which is to be of this kind.
    pub(super) fn message(&self, kind: &str) -> Result<&'a [u8]> {
        message(self.object, kind)
    }
}

/// Returns the message in an envelope (`Unknown`), which is to be of this kind.
pub(super) fn message<'a>(object: &'a [u8], wanted: &str) -> Result<&'a [u8]> {
    let unknown = object.strip_prefix(PREFIX);
    let unknown = unknown.ok_or_else(|| Error::custom("no object of Kubernetes in Protobuf"))?;
    let (mut found, mut message): (_, &[u8]) = (Cow::default(), &[]);
    for field in Fields(unknown) {
        let (number, value) = field?;
        match (u64::from(number), value) {
            (TYPE_META, Value::Bytes(bytes)) => found = kind(bytes)?,
            (RAW, Value::Bytes(bytes)) => message = bytes,
            other => check_rest(other)?,
        }
    }
    check_kind(&found, wanted)?;
    Ok(message)
}

/// Checks that the message of an envelope is neither compressed nor in another encoding, by a field behind it.
pub(super) fn check_rest((number, value): (u64, Value<'_>)) -> Result<()> {
    match (number, value) {
        // `contentEncoding` and `contentType`
        (3 | 4, Value::Bytes(bytes)) if !bytes.is_empty() => {
            Err(Error::custom("an object in Protobuf with content of another type"))
        }
        _ => Ok(()),
    }
}

/// Returns the kind in a `TypeMeta`.
pub(super) fn kind(type_meta: &[u8]) -> Result<Cow<'_, str>> {
    let mut kind = Cow::default();
    for field in Fields(type_meta) {
        if let (KIND, Value::Bytes(bytes)) = field? {
            kind = text(bytes);
        }
    }
    Ok(kind)
}

/// Checks the kind of a message, which does not say itself what it is.
pub(super) fn check_kind(found: &str, wanted: &str) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    let found = syntax::quoted::Quoted(found);
    Err(Error::custom(format_args!("an object of the kind {found}, not {wanted}")))
}

/// Returns what the name of a bad object needs, as far as that is fine.
pub(super) fn head(object: &[u8]) -> Metadata {
    let mut head = Metadata::default();
    let mut fields = Fields(object).map_while(Result::ok);
    let metadata = fields.find_map(|field| match field {
        (1, Value::Bytes(metadata)) => Some(metadata),
        _ => None,
    });
    for (number, value) in Fields(metadata.unwrap_or_default()).map_while(Result::ok) {
        let Value::Bytes(bytes) = value else { continue };
        let text = Some(text(bytes).into_owned()).filter(|text| !text.is_empty());
        match number {
            1 => head.name = text,
            3 => head.namespace = text,
            6 => head.resource_version = text,
            _ => {}
        }
    }
    head
}
