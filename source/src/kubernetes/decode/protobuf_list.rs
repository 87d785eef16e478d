//! A list in Protobuf, item by item as it comes.

use serde::Deserialize as _;
use serde::de::Error as _;
use serde_json::{Error, Result};

use super::list::{LONGEST_FRAME, too_long};
use super::protobuf::{LIST_META, PREFIX, RAW, TYPE_META, check_kind, check_rest, kind};
use super::{Encoded, Item, LONGEST_OBJECT, PageEnd, PageMetadata};
use crate::kubernetes::kind::ResourceKind;
use crate::protobuf::{Fields, Head, MessageReader, Value};

/// Fields of a list of any kind, such as `ServiceList` in k8s.io/api's core/v1/generated.proto.
const METADATA: u64 = 1;
const ITEMS: u64 = 2;

/// Cuts a list into its items, and decodes them.
#[derive(Debug)]
pub(crate) struct ProtobufList {
    kind: ResourceKind,
    place: Place,
    /// Bytes that have come, from the first incomplete field on.
    unread: Vec<u8>,
    /// `ListMeta`, which Go always writes.
    metadata: Option<PageMetadata>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the envelope.
    Prefix,
    /// Among the envelope's fields, before the list; true after its kind, which comes first.
    Envelope { has_kind: bool },
    /// In the list, of which so many bytes are left.
    List { left: usize },
    /// Among the envelope's fields that come after the list.
    Rest,
}

impl ProtobufList {
    pub(super) fn new(kind: ResourceKind) -> Self {
        Self { kind, place: Place::Prefix, unread: Vec::new(), metadata: None }
    }

    pub(super) fn read(&mut self, chunk: &[u8]) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        let mut unread = std::mem::take(&mut self.unread);
        unread.extend_from_slice(chunk);
        let mut rest = unread.as_slice();
        while let Some(length) = self.take(rest, &mut items)? {
            rest = rest.get(length..).unwrap_or_default();
        }
        let n_read = unread.len() - rest.len();
        unread.drain(..n_read);
        self.unread = unread;
        Ok(items)
    }

    pub(super) fn end(self) -> Result<PageEnd> {
        if self.place != Place::Rest || !self.unread.is_empty() {
            return Err(Error::custom("a list that is cut off"));
        }
        // An empty list would remove all that there is.
        let missing = || Error::custom("a list without its metadata");
        self.metadata.map(PageEnd::from).ok_or_else(missing)
    }

    /// Takes what comes next, and returns its length; nothing if it is not complete.
    fn take(&mut self, unread: &[u8], items: &mut Vec<Item>) -> Result<Option<usize>> {
        match self.place {
            Place::Prefix => {
                let Some(prefix) = unread.get(..PREFIX.len()) else { return Ok(None) };
                if prefix != PREFIX {
                    return Err(Error::custom("no object of Kubernetes in Protobuf"));
                }
                self.place = Place::Envelope { has_kind: false };
                Ok(Some(PREFIX.len()))
            }
            Place::List { left: 0 } => {
                self.place = Place::Rest;
                Ok(Some(0))
            }
            Place::List { left } => self.take_from_list(unread, left, items),
            Place::Envelope { has_kind } => self.take_from_envelope(unread, has_kind),
            Place::Rest => {
                let Some((head, value)) = whole_field(unread, LONGEST_FRAME)? else {
                    return Ok(None);
                };
                // A second list.
                if head.number == RAW {
                    return Err(Error::custom("more than one list"));
                }
                check_rest((head.number, value))?;
                Ok(Some(head.whole()))
            }
        }
    }

    fn take_from_envelope(&mut self, unread: &[u8], has_kind: bool) -> Result<Option<usize>> {
        let Some(head) = Head::read(unread)? else { return Ok(None) };
        if head.number == RAW {
            if !head.has_bytes() {
                return Err(Error::custom("an envelope without an object"));
            }
            if !has_kind {
                return Err(Error::custom("an object without its kind before it"));
            }
            self.place = Place::List { left: head.length };
            return Ok(Some(head.begin));
        }
        let Some((head, value)) = whole_field(unread, LONGEST_FRAME)? else { return Ok(None) };
        match (head.number, value) {
            (TYPE_META, Value::Bytes(type_meta)) => {
                check_kind(&kind(type_meta)?, &format!("{}List", self.kind.name()))?;
                self.place = Place::Envelope { has_kind: true };
            }
            other => check_rest(other)?,
        }
        Ok(Some(head.whole()))
    }

    fn take_from_list(
        &mut self,
        unread: &[u8],
        left: usize,
        items: &mut Vec<Item>,
    ) -> Result<Option<usize>> {
        let list = unread.get(..left).unwrap_or(unread);
        let longest = match Head::read(list)? {
            Some(Head { number: ITEMS, .. }) => LONGEST_OBJECT,
            _ => LONGEST_FRAME,
        };
        let Some((head, value)) = whole_field(list, longest)? else {
            let is_all = list.len() == left;
            return if is_all { Err(Error::custom("an item that is cut off")) } else { Ok(None) };
        };
        match (head.number, value) {
            (METADATA, Value::Bytes(metadata)) => {
                let metadata = MessageReader::new(LIST_META, metadata);
                self.metadata = Some(PageMetadata::deserialize(metadata)?);
            }
            (ITEMS, Value::Bytes(item)) => {
                items.push(Item::decode(self.kind, Encoded::Protobuf(item)));
            }
            (METADATA | ITEMS, _) => return Err(Error::custom("an item that is no message")),
            _ => {}
        }
        self.place = Place::List { left: left - head.whole() };
        Ok(Some(head.whole()))
    }
}

/// Returns the field that these bytes begin with, once all of it has come.
///
/// # Errors
/// When it is none, or longer than it may be.
fn whole_field(bytes: &[u8], longest: usize) -> Result<Option<(Head, Value<'_>)>> {
    let Some(head) = Head::read(bytes)? else { return Ok(None) };
    if head.length > longest {
        return Err(too_long());
    }
    let Some(whole) = bytes.get(..head.whole()) else { return Ok(None) };
    let value = Fields(whole).next().transpose()?;
    Ok(value.map(|(_, value)| (head, value)))
}
