//! A YAML text as a tree that still knows its lines, and which fields were written twice.
//!
//! Documents are made from trees: what is unknown or written twice can be told with its line, null
//! counts as absent wherever it stands (as it does for Go), and an error of type names field and
//! line.

use std::collections::HashMap;
use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Number, Value};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

/// Most nodes of a file. A configuration has a few hundred nodes.
const MAX_NODES: usize = 100_000;

/// Greatest depth to which a file may nest.
const MAX_DEPTH: usize = 48;

/// A node, and on which line it begins, from 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) line: u64,
    pub(super) kind: ValueKind,
}

/// Kind of a node, with its content.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ValueKind {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    /// In the order of the text, with all that was written twice.
    Map(Vec<(String, Node)>),
}

pub(super) fn documents(text: &str) -> Result<Vec<Node>, String> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // Every entry is wanted: the later one counts, and the former is told of.
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        budget: serde_saphyr::budget! {
            max_nodes: MAX_NODES,
            max_depth: MAX_DEPTH,
        },
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| error.to_string())
}

impl Node {
    /// Returns the value of a name of a map: the last, if the name was written more than once.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let ValueKind::Map(entries) = &self.kind else { return None };
        entries.iter().rev().find(|(key, _)| key == name).map(|(_, node)| node)
    }

    /// Returns the value of a name of a map, if it is a text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match &self.get(name)?.kind {
            ValueKind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// As JSON has it, where a name has one value, and without what is null.
    pub(super) fn value(&self) -> Value {
        match &self.kind {
            ValueKind::Null => Value::Null,
            ValueKind::Bool(value) => Value::Bool(*value),
            ValueKind::Number(number) => Value::Number(number.clone()),
            ValueKind::Text(text) => Value::String(text.clone()),
            ValueKind::List(items) => Value::Array(items.iter().map(Self::value).collect()),
            ValueKind::Map(entries) => {
                let mut map = Map::new();
                for (name, node) in entries {
                    match node.value() {
                        Value::Null => map.remove(name),
                        value => map.insert(name.clone(), value),
                    };
                }
                Value::Object(map)
            }
        }
    }

    /// The names of a map that were written more than once, with the lines of the first and the
    /// last, in the order of the text.
    pub(super) fn duplicates(&self) -> Vec<(&str, u64, u64)> {
        let ValueKind::Map(entries) = &self.kind else { return Vec::new() };
        let mut first: HashMap<&str, u64> = HashMap::new();
        let mut twice: Vec<(&str, u64, u64)> = Vec::new();
        for (name, node) in entries {
            let name = name.as_str();
            let Some(line) = first.get(name) else {
                first.insert(name, node.line);
                continue;
            };
            match twice.iter_mut().find(|(known, ..)| *known == name) {
                Some((_, _, last)) => *last = node.line,
                None => twice.push((name, *line, node.line)),
            }
        }
        twice
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<ValueKind>::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line(), kind: spanned.value })
    }
}

impl<'de> Deserialize<'de> for ValueKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = ValueKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<ValueKind, E> {
        Ok(ValueKind::Null)
    }

    fn visit_none<E>(self) -> Result<ValueKind, E> {
        Ok(ValueKind::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<ValueKind, D::Error> {
        ValueKind::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<ValueKind, E> {
        Ok(ValueKind::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<ValueKind, E> {
        Ok(ValueKind::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<ValueKind, E> {
        Ok(ValueKind::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<ValueKind, E> {
        Number::from_f64(value)
            .map(ValueKind::Number)
            .ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<ValueKind, E> {
        Ok(ValueKind::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ValueKind, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(ValueKind::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<ValueKind, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(ValueKind::Map(map))
    }
}
