//! A list, item by item as it comes: what is in memory of it is an item and not all of them.

use super::json_list::JsonList;
use super::protobuf_list::ProtobufList;
use super::{Encoding, Item, LONGEST_OBJECT, PageEnd, UNLIKE_AN_ANSWER};
use crate::kubernetes::kind::ResourceKind;

/// Most bytes of a list without its items, and of a field of it in Protobuf. An API server's have some hundred, and
/// the longest of what they have is a token. Items of JSON in it, with a name that [`JsonList`] does not see, are
/// decoded together.
pub(super) const LONGEST_FRAME: usize = 64 << 10;

/// Cuts a list into its items, and decodes them.
#[derive(Debug)]
pub(crate) enum ListReader {
    Json(JsonList),
    Protobuf(ProtobufList),
}

impl ListReader {
    /// Reads a list of objects of a kind.
    pub(crate) fn new(kind: ResourceKind, encoding: Encoding) -> Self {
        match encoding {
            Encoding::Json => Self::Json(JsonList::new(kind)),
            Encoding::Protobuf => Self::Protobuf(ProtobufList::new(kind)),
        }
    }

    /// Reads on. Returns the items that are complete now.
    pub(crate) fn read(&mut self, chunk: &[u8]) -> serde_json::Result<Vec<Item>> {
        match self {
            Self::Json(list) => list.read(chunk),
            Self::Protobuf(list) => list.read(chunk),
        }
    }

    /// The end of the list.
    pub(crate) fn end(self) -> serde_json::Result<PageEnd> {
        match self {
            Self::Json(list) => list.end(),
            Self::Protobuf(list) => list.end(),
        }
    }
}

pub(super) fn too_long() -> serde_json::Error {
    serde::de::Error::custom(format_args!(
        "an item has more than {} MiB, or the rest more than {} KiB; {UNLIKE_AN_ANSWER}",
        LONGEST_OBJECT >> 20,
        LONGEST_FRAME >> 10
    ))
}
