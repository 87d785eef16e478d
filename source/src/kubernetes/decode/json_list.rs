//! A list in JSON, item by item as it comes.

use serde_json::value::RawValue;

use super::{Encoded, Item, LONGEST_OBJECT, PageEnd, PageFrame, list};
use crate::kubernetes::kind::ResourceKind;

/// The field of a list that has its items.
const ITEMS: &[u8] = b"items";

/// Cuts a list into its items, and decodes them.
///
/// Cutting looks at brackets and strings only. Each item, and what is left of the list without them, is
/// then read by serde_json: so a list that is no JSON is an error, if perhaps after some of its items.
#[derive(Debug)]
pub(crate) struct JsonList {
    kind: ResourceKind,
    /// Number of brackets that are open.
    depth: usize,
    string: Text,
    /// The last string of the list's own fields, without its quotes.
    name: Vec<u8>,
    /// Place in the list.
    place: Place,
    /// The item that has begun.
    item: Vec<u8>,
    /// The list without its items.
    frame: Vec<u8>,
}

/// Position outside or inside of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Text {
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Among the list's own fields.
    Frame,
    /// Between the name of the field with the items and its value.
    BeforeItems,
    /// In the array of items, of which there were some or none.
    Items { is_first: bool },
}

impl JsonList {
    /// Reads a list of objects of a kind.
    pub(super) fn new(kind: ResourceKind) -> Self {
        Self {
            kind,
            depth: 0,
            string: Text::Outside,
            name: Vec::new(),
            place: Place::Frame,
            item: Vec::new(),
            frame: Vec::new(),
        }
    }

    /// Reads on. Returns the items that are complete now.
    pub(super) fn read(&mut self, chunk: &[u8]) -> serde_json::Result<Vec<Item>> {
        let mut items = Vec::new();
        for byte in chunk {
            items.extend(self.byte(*byte)?);
        }
        if self.item.len() > LONGEST_OBJECT || self.frame.len() > list::LONGEST_FRAME {
            return Err(list::too_long());
        }
        Ok(items)
    }

    /// The end of the list.
    pub(super) fn end(self) -> serde_json::Result<PageEnd> {
        let frame: PageFrame<'_> = serde_json::from_slice(&self.frame)?;
        let decode = |item: &RawValue| Item::decode(self.kind, Encoded::Json(item.get()));
        Ok(PageEnd {
            // A server may write the field's name with escapes.
            items: frame.items.into_iter().map(decode).collect(),
            ..PageEnd::from(frame.metadata)
        })
    }

    fn byte(&mut self, byte: u8) -> serde_json::Result<Option<Item>> {
        if self.string != Text::Outside {
            self.string = match (self.string, byte) {
                (Text::Inside, b'\\') => Text::Escaped,
                (Text::Inside, b'"') => Text::Outside,
                _ => Text::Inside,
            };
            if self.depth == 1 && self.string != Text::Outside && self.name.len() <= ITEMS.len() {
                self.name.push(byte);
            }
            self.keep(byte);
            return Ok(None);
        }
        match (byte, self.place, self.depth) {
            (b',' | b']', Place::Items { is_first }, 2) => return self.separator(byte, is_first),
            (b'[', Place::BeforeItems, 1) => {
                self.keep(byte);
                self.place = Place::Items { is_first: true };
                self.depth = 2;
                return Ok(None);
            }
            (b'"', ..) => {
                self.string = Text::Inside;
                if self.depth == 1 {
                    self.name.clear();
                }
            }
            (b':', Place::Frame, 1) if self.name == ITEMS => self.place = Place::BeforeItems,
            (b',', Place::BeforeItems, 1) => self.place = Place::Frame,
            (b'{' | b'[', ..) => self.depth += 1,
            (b'}' | b']', Place::Items { .. }, ..=2) => {
                return Err(serde::de::Error::custom("a bracket that was not opened"));
            }
            (b'}' | b']', ..) => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.keep(byte);
        Ok(None)
    }

    /// The end of an item, or of all of them.
    fn separator(&mut self, byte: u8, is_first: bool) -> serde_json::Result<Option<Item>> {
        let is_empty = self.item.iter().all(u8::is_ascii_whitespace);
        if byte == b',' {
            self.place = Place::Items { is_first: false };
        } else {
            self.place = Place::Frame;
            self.depth = 1;
            self.frame.push(byte);
        }
        if is_empty && byte == b']' && is_first {
            return Ok(None);
        }
        let item: &RawValue = serde_json::from_slice(&self.item)?;
        let item = Item::decode(self.kind, Encoded::Json(item.get()));
        self.item.clear();
        Ok(Some(item))
    }

    fn keep(&mut self, byte: u8) {
        match self.place {
            Place::Items { .. } => self.item.push(byte),
            Place::Frame | Place::BeforeItems => self.frame.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of the items, and the version, of a list that comes in chunks of so many bytes.
    fn read(text: &str, chunk: usize) -> serde_json::Result<(Vec<String>, Option<String>)> {
        let mut reader = JsonList::new(ResourceKind::Service);
        let mut items = Vec::new();
        for chunk in text.as_bytes().chunks(chunk) {
            items.extend(reader.read(chunk)?);
        }
        let end = reader.end()?;
        items.extend(end.items);
        let names = items.into_iter().map(|item| match item {
            Item::Service(service) => service.metadata.name.unwrap_or_default(),
            other => format!("{other:?}"),
        });
        Ok((names.collect(), end.resource_version))
    }

    const LISTS: [(&str, &[&str]); 7] = [
        (r#"{"kind":"ServiceList","metadata":{"resourceVersion":"7"},"items":[]}"#, &[]),
        (r#"{"items":[{"metadata":{"name":"a"}}],"metadata":{"resourceVersion":"7"}}"#, &["a"]),
        (
            "{ \"metadata\" : { \"resourceVersion\" : \"7\" } ,\n \"items\" : [ {\"metadata\":{\"name\":\"a\"}} , \
             {\"metadata\":{\"name\":\"b\"}}\n ] }\n",
            &["a", "b"],
        ),
        (
            r#"{"items":[{"metadata":{"name":"a]}\"\\"},"items":[{"x":"]["}]},{"metadata":{"name":"\u0062,ü"}}],
               "metadata":{"resourceVersion":"7"}}"#,
            &[r#"a]}"\"#, "b,ü"],
        ),
        (
            r#"{"other":{"items":[1,2]},"x":"items","items":[{"metadata":{"name":"a"}}],
               "metadata":{"resourceVersion":"7","items":[]}}"#,
            &["a"],
        ),
        (r#"{"metadata":{"resourceVersion":"7"},"items":null,"more":[{}]}"#, &[]),
        (
            r#"{"metadata":{"resourceVersion":"7"},"\u0069tems":[{"metadata":{"name":"a"}}]}"#,
            &["a"],
        ),
    ];

    #[test]
    fn lists_are_the_same_in_chunks_of_any_size() {
        for (text, names) in LISTS {
            for chunk in 1..=text.len() {
                let (found, version) = read(text, chunk).unwrap();
                assert_eq!(found, names, "{text} in chunks of {chunk}");
                assert_eq!(version.as_deref(), Some("7"));
            }
        }
    }

    #[test]
    fn a_list_that_was_cut_off_is_an_error_wherever_that_was() {
        for (text, _) in LISTS {
            let text = text.trim_end();
            for (end, _) in text.char_indices() {
                assert!(read(&text[..end], 5).is_err(), "{}", &text[..end]);
            }
        }
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        for items in
            ["[,]", "[{},]", "[{}{}]", "[{]}", "[}]", "[{}}", "[nul]", "[{\"a\"}]", "{}", "3"]
        {
            let text = format!(r#"{{"metadata":{{}},"items":{items}}}"#);
            assert!(read(&text, 7).is_err(), "{text}");
        }
        for text in [
            r#"{"items":[]}{"#,
            r#"{"items":[],"items":[]}"#,
            "[]",
            "]",
            "}}",
            "\"",
            "{\"items\":[]",
        ] {
            assert!(read(text, 7).is_err(), "{text}");
        }
    }

    /// Bytes that never make an item, in each place of a list.
    #[test]
    fn a_list_without_an_end_is_read_no_further_than_needed() {
        for (begin, more) in [
            (r#"{"items":[{"metadata":{"name":""#, "x"),
            (r#"{"items":["#, " "),
            (r#"{"metadata":{"continue":""#, "x"),
            // A name that is not seen for what it is.
            (r#"{"it\u0065ms":["#, "{},"),
        ] {
            let mut reader = JsonList::new(ResourceKind::Service);
            reader.read(begin.as_bytes()).unwrap();
            let chunk = more.repeat(64 << 10);
            let most = LONGEST_OBJECT / chunk.len() + 1;
            let read = (0..most).map(|_| reader.read(chunk.as_bytes()));
            let errors: Vec<String> =
                read.filter_map(Result::err).map(|error| error.to_string()).collect();
            let error = errors.first().unwrap_or_else(|| panic!("{begin}"));
            assert!(error.contains("not an answer of an API server"), "{error}");
        }
    }
}
