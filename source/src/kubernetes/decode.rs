//! Decoding of what the API server sends into objects.
//!
//! An object that does not decode must not affect other objects: the frame around them is read
//! first, then each object on its own.

#[cfg(test)]
mod both;
mod json_list;
mod list;
mod protobuf;
mod protobuf_list;
mod table;
#[cfg(test)]
mod tests;

pub(super) use list::ListReader;
pub(super) use table::Table;

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::error_text::in_short;
use super::kind::ResourceKind;
use crate::object::{EndpointSlice, Metadata, Node, Object, OtherNode, Service, presence};
use crate::protobuf::{MessageReader, Schema};
use syntax::quoted::{Quoted, cut};

/// Most bytes of an object that are read. etcd takes 1.5 MiB by default, and JSON may have six bytes for one
/// (`\u003c`). Decoded it takes up to four times as much (`tests/memory.rs`).
pub(super) const LONGEST_OBJECT: usize = 16 << 20;

/// Advice where an answer is longer than those of API servers.
pub(super) const UNLIKE_AN_ANSWER: &str = "this is not an answer of an API server: check which server or proxy is at the address in the \
     kubeconfig";

/// Encoding of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

/// An object as it was sent, without the frame around it.
#[derive(Clone, Copy)]
enum Encoded<'a> {
    Json(&'a str),
    Protobuf(&'a [u8]),
}

/// An object of a kind that is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    Service(Box<Service>),
    EndpointSlice(Box<EndpointSlice>),
    Node(Box<Node>),
    OtherNode(Box<OtherNode>),
    Undecodable(Box<Undecodable>),
}

/// An object that is not what its kind should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Undecodable {
    pub(super) kind: ResourceKind,
    /// Metadata: no more than name, namespace and resource version, where these are fine.
    pub(super) metadata: Metadata,
    /// Field that cannot be decoded, and the reason.
    pub(super) problem: String,
}

/// An event of a watch, which is a line of it in JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The object is there, or is different now.
    Applied(Item),
    /// The object is gone. This is what it was.
    Deleted(Item),
    /// Everything up to this version has been sent.
    Bookmark {
        resource_version: String,
        /// With it, all objects that existed when the watch began have been sent.
        list_ends: bool,
    },
    /// The watch is at its end.
    Error(Status),
}

/// Reason for which the API server refuses something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    /// The HTTP status, 0 if unknown.
    pub(super) code: u16,
    pub(super) reason: String,
    /// Beginning of the server's words, on one line.
    #[serde(deserialize_with = "short_text")]
    pub(super) message: String,
    /// Time after which to ask again, by the header `Retry-After`.
    #[serde(skip)]
    pub(super) retry_after: Option<Duration>,
    /// True if a refusal came in Protobuf, which then is not its reason.
    #[serde(skip)]
    pub(super) is_protobuf: bool,
}

/// The end of a list, or of a page of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageEnd {
    /// Items that have not come before.
    pub(super) items: Vec<Item>,
    pub(super) resource_version: Option<String>,
    /// Token of the next page, if there is one.
    pub(super) next: Option<String>,
}

#[derive(Deserialize)]
struct LineFrame<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct PageFrame<'a> {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(borrow, deserialize_with = "present")]
    items: Vec<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PageMetadata {
    resource_version: String,
    r#continue: String,
}

#[derive(Deserialize)]
struct BookmarkFrame {
    metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMetadata {
    resource_version: String,
    #[serde(default)]
    annotations: BookmarkAnnotations,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BookmarkAnnotations {
    /// True if the bookmark ends a list which was sent as a stream.
    #[serde(rename = "k8s.io/initial-events-end", deserialize_with = "presence")]
    list_ends: bool,
}

/// Part of a bad object that its name needs.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head<'a> {
    #[serde(borrow)]
    metadata: HeadMetadata<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct HeadMetadata<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    namespace: Option<&'a RawValue>,
    #[serde(borrow)]
    resource_version: Option<&'a RawValue>,
}

impl Encoding {
    /// The encoding of a media type, as an answer's `Content-Type` has it. Nothing for any other.
    pub(super) fn of(media_type: &str) -> Option<Self> {
        let name = media_type.split(';').next().unwrap_or_default().trim();
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        match () {
            () if is("application/vnd.kubernetes.protobuf") => Some(Self::Protobuf),
            () if is("application/json") => Some(Self::Json),
            () => None,
        }
    }

    /// The encoding of an answer that begins so: an object in Protobuf with [`protobuf::PREFIX`], an event of a watch
    /// with its length, of which the first byte is 0 or, at 16 MiB, 1. JSON begins with none of these.
    pub(super) fn detect(beginning: &[u8]) -> Self {
        match beginning {
            [0 | 1 | b'k', ..] => Self::Protobuf,
            _ => Self::Json,
        }
    }
}

impl<'a> Encoded<'a> {
    /// Reads something else than an object of a followed kind.
    fn read<T: Deserialize<'a>>(self, schema: Schema) -> serde_json::Result<T> {
        match self {
            Self::Json(text) => serde_json::from_str(text),
            Self::Protobuf(message) => T::deserialize(MessageReader::new(schema, message)),
        }
    }

    /// The object, or which of its fields is wrong. Keeping track of where one is costs time, so a bad
    /// object is read twice rather than every object slowly.
    fn object<T: Object>(self) -> Result<Box<T>, String> {
        match self {
            Self::Json(text) => serde_json::from_str(text).map(Box::new).or_else(|_| {
                let mut deserializer = serde_json::Deserializer::from_str(text);
                serde_path_to_error::deserialize(&mut deserializer).map(Box::new)
            }),
            Self::Protobuf(message) => T::from_protobuf(message)
                .map(Box::new)
                .or_else(|_| serde_path_to_error::deserialize(T::reader(message)).map(Box::new)),
        }
        .map_err(|error| {
            let path = error.path().to_string();
            // The text is one line that no operator ever sees, so line and column are of no use.
            let problem = error.inner().to_string();
            let problem = problem.split(" at line ").next().unwrap_or_default();
            if path == "." { problem.to_owned() } else { format!("{path}: {problem}") }
        })
    }

    /// Returns what the name of a bad object needs.
    fn head(self) -> Metadata {
        match self {
            Self::Json(text) => {
                let Head { metadata: head } = serde_json::from_str(text).unwrap_or_default();
                Metadata {
                    name: text_in(head.name),
                    namespace: text_in(head.namespace),
                    resource_version: text_in(head.resource_version),
                    ..Metadata::default()
                }
            }
            Self::Protobuf(message) => protobuf::head(message),
        }
    }
}

impl Item {
    fn decode(kind: ResourceKind, object: Encoded<'_>) -> Self {
        let decoded = match kind {
            ResourceKind::Service => object.object().map(Self::Service),
            ResourceKind::EndpointSlice => object.object().map(Self::EndpointSlice),
            ResourceKind::Node => object.object().map(Self::Node),
            ResourceKind::OtherNode => object.object().map(Self::OtherNode),
        };
        decoded.unwrap_or_else(|problem| {
            let (metadata, problem) = (object.head(), cut(&problem));
            Self::Undecodable(Box::new(Undecodable { kind, metadata, problem }))
        })
    }

    /// The version of the object, which is how far the watch has come that sent it.
    pub(super) fn resource_version(&self) -> Option<&str> {
        let metadata = match self {
            Self::Service(service) => &service.metadata,
            Self::EndpointSlice(slice) => &slice.metadata,
            Self::Node(node) => &node.metadata,
            Self::OtherNode(node) => &node.metadata,
            Self::Undecodable(undecodable) => &undecodable.metadata,
        };
        metadata.resource_version.as_deref().filter(|version| !version.is_empty())
    }
}

impl Event {
    /// An event of a watch on objects of a kind.
    pub(super) fn decode(
        kind: ResourceKind,
        encoding: Encoding,
        event: &[u8],
    ) -> serde_json::Result<Self> {
        let (type_of_event, object) = match encoding {
            Encoding::Json => {
                let frame: LineFrame<'_> = serde_json::from_slice(event)?;
                (Cow::Borrowed(frame.kind), Encoded::Json(frame.object.get()))
            }
            Encoding::Protobuf => {
                let event = protobuf::Event::read(event)?;
                let wanted = if event.kind == "ERROR" { "Status" } else { kind.name() };
                let message = event.message(wanted)?;
                (event.kind, Encoded::Protobuf(message))
            }
        };
        Ok(match &*type_of_event {
            "ADDED" | "MODIFIED" => Self::Applied(Item::decode(kind, object)),
            "DELETED" => Self::Deleted(Item::decode(kind, object)),
            "BOOKMARK" => {
                let BookmarkFrame { metadata } = object.read(protobuf::BOOKMARK)?;
                let list_ends = metadata.annotations.list_ends;
                Self::Bookmark { resource_version: metadata.resource_version, list_ends }
            }
            "ERROR" => Self::Error(object.read(protobuf::STATUS)?),
            other => {
                let problem = format_args!("an event of the unknown type {}", Quoted(other));
                return Err(serde::de::Error::custom(problem));
            }
        })
    }
}

impl From<PageMetadata> for PageEnd {
    fn from(metadata: PageMetadata) -> Self {
        Self {
            items: Vec::new(),
            resource_version: non_empty(metadata.resource_version),
            next: non_empty(metadata.r#continue),
        }
    }
}

impl Status {
    /// Reads the object that a refusal should be.
    pub(super) fn decode(encoding: Encoding, object: &[u8]) -> serde_json::Result<Self> {
        match encoding {
            Encoding::Json => serde_json::from_slice(object),
            Encoding::Protobuf => {
                Encoded::Protobuf(protobuf::message(object, "Status")?).read(protobuf::STATUS)
            }
        }
    }

    /// The version that was asked for, or a page's token, is older than what the server remembers.
    pub(super) fn is_expired(&self) -> bool {
        self.code == 410 || matches!(self.reason.as_str(), "Expired" | "Gone")
    }

    /// True if the server has not come as far as the version that was asked for
    /// (`NewTooLargeResourceVersionError` in apiserver's storage/errors.go).
    pub(super) fn is_too_large_version(&self) -> bool {
        self.code == 504 && self.message.contains("Too large resource version")
    }
}

/// Items may be `null`, but not absent: what has none is no list, and an empty list means that
/// everything is gone.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<&'de RawValue>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A text for a log, as short as one should be.
fn short_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(|text| in_short(&text))
}

/// Returns a text, if the value is one. A value that is none is not kept: it may be a list as long as the object.
fn text_in(value: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(value?.get()).ok()
}

fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}
