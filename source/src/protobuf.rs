//! Protobuf as serde reads JSON: a message is a map with the names that its fields have in JSON.
//!
//! The types of [`object`](super::object), with all their limits, are those of both encodings. A schema lists the fields
//! of a message that are read; of any other field only the length is read. The wire format is that of
//! <https://protobuf.dev/programming-guides/encoding>, without groups, which no message of Kubernetes has.
//!
//! Fields that JSON leaves out are left out here too: Go writes a string or number that is not a pointer into a message
//! even if it is empty or 0 (gogo/protobuf), and with `omitempty` not into JSON. A field that comes twice is an error, as
//! in JSON.

use std::borrow::Cow;

use serde::de::value::{CowStrDeserializer, StrDeserializer};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Result};

/// Fields of a message that are read.
pub(crate) type Schema = &'static [Field];

/// A field of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) number: u32,
    /// Its name in JSON.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

/// Type of a field in Go, as far as it matters for what JSON has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// `string` with `omitempty`.
    Text,
    /// `*string`, or `string` without `omitempty`.
    AnyText,
    /// `[]string`
    Texts,
    /// `int32` with `omitempty`.
    Number,
    /// `*int32`, or `int32` without `omitempty`.
    AnyNumber,
    /// `*bool`
    Truth,
    /// meta/v1 `Time`: RFC 3339 in JSON.
    Time,
    /// `map[string]string`
    Map,
    /// A struct.
    Message(Schema),
    /// A list of structs.
    Messages(Schema),
}

/// Value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    /// 4 or 8 bytes, which no field that is read has.
    Fixed,
    Bytes(&'a [u8]),
}

/// Beginning of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) number: u64,
    /// Bytes of the beginning, with the value of a number.
    pub(crate) begin: usize,
    /// Bytes of the value behind it.
    pub(crate) length: usize,
    wire: Wire,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Varint(u64),
    Fixed,
    Bytes,
}

/// The fields of a message, in their order. An error is the last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

/// A message, as serde reads it.
#[derive(Debug)]
pub(crate) struct MessageReader<'a> {
    schema: Schema,
    fields: Fields<'a>,
    /// Field whose name was read.
    ahead: Option<(Field, Value<'a>)>,
}

/// A value, with the fields behind it: a list, or a map, is a row of fields with the same number.
struct ValueReader<'a, 'b> {
    field: Field,
    value: Value<'a>,
    rest: &'b mut Fields<'a>,
}

/// The values of a row of fields with the same number.
struct Row<'a, 'b> {
    number: u32,
    first: Option<Value<'a>>,
    rest: &'b mut Fields<'a>,
}

struct ListReader<'a, 'b> {
    item: Field,
    row: Row<'a, 'b>,
}

struct MapReader<'a, 'b> {
    row: Row<'a, 'b>,
    /// Value of the key that was read.
    value: Value<'a>,
}

/// Most bytes of a number: ten times seven bits.
const LONGEST_NUMBER: usize = 10;

/// Fields of an entry of a map.
const KEY: u32 = 1;
const VALUE: u32 = 2;

/// Field of a Time (`ProtoTime` in apimachinery's meta/v1/time_proto.go): JSON has whole seconds too.
const SECONDS: u32 = 1;

/// Returns a field of a schema.
pub(crate) const fn field(number: u32, name: &'static str, kind: Kind) -> Field {
    Field { number, name, kind }
}

impl Head {
    /// Reads the beginning of a field, which these bytes begin with. Nothing if there are too few of them.
    ///
    /// # Errors
    /// When no field begins so.
    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Self>> {
        let Some((tag, mut begin)) = varint(bytes)? else { return Ok(None) };
        let number = tag >> 3;
        let (wire, length) = match tag & 7 {
            1 => (Wire::Fixed, 8),
            5 => (Wire::Fixed, 4),
            kind @ (0 | 2) => {
                let behind = bytes.get(begin..).unwrap_or_default();
                let Some((value, more)) = varint(behind)? else { return Ok(None) };
                begin += more;
                if kind == 0 {
                    (Wire::Varint(value), 0)
                } else {
                    (Wire::Bytes, usize::try_from(value).unwrap_or(usize::MAX))
                }
            }
            kind => {
                return Err(Error::custom(format_args!(
                    "field {number} has the unknown wire type {kind}"
                )));
            }
        };
        Ok(Some(Self { number, begin, length, wire }))
    }

    /// True if the value may be a message.
    pub(crate) fn has_bytes(&self) -> bool {
        self.wire == Wire::Bytes
    }

    /// Bytes of the whole field.
    pub(crate) fn whole(&self) -> usize {
        self.begin.saturating_add(self.length)
    }
}

/// Reads a number, which these bytes begin with, and returns its length with it. Nothing if there are too few of them.
#[inline]
fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>> {
    // Nearly all are of one byte.
    if let Some(byte @ ..0x80) = bytes.first() {
        return Ok(Some((u64::from(*byte), 1)));
    }
    let mut number = 0;
    for (index, byte) in bytes.iter().enumerate().take(LONGEST_NUMBER) {
        number |= u64::from(byte & 0x7f) << (7 * index);
        if *byte < 0x80 {
            return Ok(Some((number, index + 1)));
        }
    }
    if bytes.len() < LONGEST_NUMBER {
        return Ok(None);
    }
    Err(Error::custom(format_args!("a number of more than {LONGEST_NUMBER} bytes")))
}

/// Returns a text as JSON has it: Go writes each byte that is not UTF-8 into it as U+FFFD (`appendString` in
/// encoding/json/encode.go), and into Protobuf as it is.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Cow::Owned(text)
}

/// Returns a Time as JSON has it.
fn time(message: &[u8]) -> Result<String> {
    let mut seconds = 0;
    for field in Fields(message) {
        if let (SECONDS, Value::Varint(value)) = field? {
            seconds = value.cast_signed();
        }
    }
    let time = jiff::Timestamp::from_second(seconds);
    time.map(|time| time.to_string()).map_err(|_| Error::custom("a time that is out of range"))
}

impl<'a> Fields<'a> {
    #[inline]
    fn read(&mut self) -> Result<(u32, Value<'a>)> {
        let cut_off = || Error::custom("a message that is cut off");
        let head = Head::read(self.0)?.ok_or_else(cut_off)?;
        let (field, rest) = self.0.split_at_checked(head.whole()).ok_or_else(cut_off)?;
        self.0 = rest;
        let value = match head.wire {
            Wire::Varint(value) => Value::Varint(value),
            Wire::Fixed => Value::Fixed,
            Wire::Bytes => Value::Bytes(field.get(head.begin..).unwrap_or_default()),
        };
        // One that is larger has no name anyway.
        Ok((u32::try_from(head.number).unwrap_or_default(), value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl Kind {
    /// True if JSON has nothing for this value.
    fn leaves_out(self, value: Value<'_>) -> bool {
        match self {
            Self::Text | Self::Time => value == Value::Bytes(&[]),
            Self::Number => value == Value::Varint(0),
            _ => false,
        }
    }
}

impl<'a> MessageReader<'a> {
    pub(crate) fn new(schema: Schema, message: &'a [u8]) -> Self {
        Self { schema, fields: Fields(message), ahead: None }
    }
}

impl<'de> Deserializer<'de> for MessageReader<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_map(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for MessageReader<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        while let Some((number, value)) = self.fields.next().transpose()? {
            let field = self.schema.iter().find(|field| field.number == number);
            let Some(field) = field.filter(|field| !field.kind.leaves_out(value)) else { continue };
            self.ahead = Some((*field, value));
            return seed.deserialize(StrDeserializer::new(field.name)).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        let ahead = self.ahead.take();
        let (field, value) =
            ahead.ok_or_else(|| Error::custom("a value is read before its name"))?;
        seed.deserialize(ValueReader { field, value, rest: &mut self.fields })
    }
}

impl<'de> Deserializer<'de> for ValueReader<'de, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let Self { field: Field { number, name, kind }, value, rest } = self;
        let row = Row { number, first: Some(value), rest };
        match (kind, value) {
            (Kind::Text | Kind::AnyText, Value::Bytes(bytes)) => match text(bytes) {
                Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
                Cow::Owned(text) => visitor.visit_string(text),
            },
            // As Go does: what has more than 32 bits is cut.
            (Kind::Number | Kind::AnyNumber, Value::Varint(value)) => {
                visitor.visit_i64(i64::from(value as i32))
            }
            (Kind::Truth, Value::Varint(value)) => visitor.visit_bool(value != 0),
            (Kind::Time, Value::Bytes(message)) => visitor.visit_string(time(message)?),
            (Kind::Message(schema), Value::Bytes(message)) => {
                visitor.visit_map(MessageReader::new(schema, message))
            }
            (Kind::Texts, Value::Bytes(_)) => {
                visitor.visit_seq(ListReader { item: field(number, name, Kind::AnyText), row })
            }
            (Kind::Messages(schema), Value::Bytes(_)) => {
                let item = field(number, name, Kind::Message(schema));
                visitor.visit_seq(ListReader { item, row })
            }
            (Kind::Map, Value::Bytes(_)) => visitor.visit_map(MapReader { row, value }),
            (_, Value::Varint(value)) => visitor.visit_u64(value),
            (_, Value::Bytes(bytes)) => visitor.visit_bytes(bytes),
            (_, Value::Fixed) => Err(Error::custom("a number of 4 or 8 bytes")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_some(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier
    }
}

impl<'a> Row<'a, '_> {
    fn next(&mut self) -> Option<Value<'a>> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        // Of what is no field, the message's reader learns.
        let mut ahead = *self.rest;
        let (number, value) = ahead.next()?.ok()?;
        if number != self.number {
            return None;
        }
        *self.rest = ahead;
        Some(value)
    }
}

impl<'de> SeqAccess<'de> for ListReader<'de, '_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(value) = self.row.next() else { return Ok(None) };
        seed.deserialize(ValueReader { field: self.item, value, rest: &mut Fields(&[]) }).map(Some)
    }
}

impl<'de> MapAccess<'de> for MapReader<'de, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        let Some(entry) = self.row.next() else { return Ok(None) };
        let Value::Bytes(entry) = entry else {
            return Err(Error::custom("an entry of a map that is no message"));
        };
        let mut key: &[u8] = &[];
        self.value = Value::Bytes(&[]);
        for field in Fields(entry) {
            match field? {
                (KEY, Value::Bytes(bytes)) => key = bytes,
                (VALUE, value) => self.value = value,
                _ => {}
            }
        }
        seed.deserialize(CowStrDeserializer::new(text(key))).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        let field = field(VALUE, "value", Kind::AnyText);
        seed.deserialize(ValueReader { field, value: self.value, rest: &mut Fields(&[]) })
    }
}
