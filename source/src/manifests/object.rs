//! An object in a manifest, whose kind is only known once it is read.
//!
//! `apiVersion` and `kind` say which type the other fields have. In hand-written files they come
//! first, and the rest is then read straight into that type, so that an error still knows its
//! line. Fields that come before them are kept as a tree until they are known. The exception are
//! the `items` of a list, which say themselves what they are: `kubectl get -o json` writes the
//! list's own kind after its items.

#[cfg(test)]
mod tests;

use std::fmt;

use serde::de::value::{MapAccessDeserializer, StringDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use serde_path_to_error::Track;

use crate::object::{EndpointSlice, Node, Service};

/// An object of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// core/v1 Service.
    Service(Box<Service>),
    /// discovery.k8s.io/v1 EndpointSlice.
    EndpointSlice(Box<EndpointSlice>),
    /// core/v1 Node.
    Node(Box<Node>),
    /// core/v1 List, ServiceList and NodeList, discovery.k8s.io/v1 EndpointSliceList.
    List(Vec<Self>),
    /// An object that means nothing here.
    Other {
        /// Its `apiVersion` and `kind`, with a slash between them.
        kind: String,
    },
    /// An object that does not say what it is; its fields. The items of a typed list need not.
    Untyped(Map<String, Value>),
}

/// The kinds that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ManifestKind {
    Service,
    EndpointSlice,
    Node,
    /// A list, and what its items are where they do not say it themselves.
    List(Option<(&'static str, &'static str)>),
    Other,
}

/// Fields that are known of an object while the others are being read.
#[derive(Default)]
struct PartialObject {
    api_version: Option<String>,
    kind: Option<String>,
    items: Vec<ListItem>,
    /// The fields that came before the kind was known.
    early: Map<String, Value>,
}

struct ObjectVisitor {
    /// True if the object is one of a list's items.
    listed: bool,
}

/// An object that is one of a list's items, and not a list itself. So the author of a manifest
/// cannot choose how deep lists nest.
struct ListItem(Object);

/// The fields that were read before the kind was known, then the rest of the map.
struct ChainedFields<A> {
    early: serde_json::map::IntoIter,
    pending: Option<(String, Value)>,
    rest: A,
}

const CORE: &str = "v1";
const DISCOVERY: &str = "discovery.k8s.io/v1";

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor { listed: false })
    }
}

impl<'de> Deserialize<'de> for ListItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor { listed: true }).map(Self)
    }
}

impl ManifestKind {
    fn of(api_version: &str, kind: &str) -> Self {
        match (api_version, kind) {
            (CORE, "Service") => Self::Service,
            (DISCOVERY, "EndpointSlice") => Self::EndpointSlice,
            (CORE, "Node") => Self::Node,
            (CORE, "List") => Self::List(None),
            (CORE, "ServiceList") => Self::List(Some((CORE, "Service"))),
            (CORE, "NodeList") => Self::List(Some((CORE, "Node"))),
            (DISCOVERY, "EndpointSliceList") => Self::List(Some((DISCOVERY, "EndpointSlice"))),
            _ => Self::Other,
        }
    }
}

impl PartialObject {
    fn known(&self) -> Option<ManifestKind> {
        Some(ManifestKind::of(self.api_version.as_deref()?, self.kind.as_deref()?))
    }

    fn into_list<E: serde::de::Error>(
        self,
        item: Option<(&'static str, &'static str)>,
    ) -> Result<Object, E> {
        let mut items: Vec<_> = self.items.into_iter().map(|ListItem(item)| item).collect();
        let Some((api_version, kind)) = item else { return Ok(Object::List(items)) };
        for (index, item) in items.iter_mut().enumerate() {
            if let Object::Untyped(fields) = item {
                let mut fields = std::mem::take(fields);
                fields.insert("apiVersion".to_owned(), api_version.into());
                fields.insert("kind".to_owned(), kind.into());
                *item = serde_path_to_error::deserialize(Value::Object(fields))
                    .map_err(|error| E::custom(format_args!("items[{index}].{error}")))?;
            }
        }
        Ok(Object::List(items))
    }

    fn into_other(self) -> Object {
        match (self.api_version, self.kind) {
            (Some(api_version), Some(kind)) => {
                Object::Other { kind: format!("{api_version}/{kind}") }
            }
            _ => Object::Untyped(self.early),
        }
    }
}

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut head = PartialObject::default();
        loop {
            match head.known() {
                Some(ManifestKind::Service) => return read(head, map).map(Object::Service),
                Some(ManifestKind::EndpointSlice) => {
                    return read(head, map).map(Object::EndpointSlice);
                }
                Some(ManifestKind::Node) => return read(head, map).map(Object::Node),
                Some(ManifestKind::List(_) | ManifestKind::Other) | None => {}
            }
            let Some(key) = map.next_key::<String>()? else { break };
            match (key.as_str(), head.known()) {
                ("apiVersion", _) => head.api_version = map.next_value()?,
                ("kind", _) => head.kind = map.next_value()?,
                ("items", None | Some(ManifestKind::List(_))) if !self.listed => {
                    head.items = map.next_value::<Option<_>>()?.unwrap_or_default();
                }
                (_, None) => {
                    let value = map.next_value()?;
                    head.early.insert(key, value);
                }
                (_, Some(_)) => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        match head.known() {
            Some(ManifestKind::List(_)) if self.listed => {
                Err(A::Error::custom("a list within a list"))
            }
            Some(ManifestKind::List(item)) => head.into_list(item),
            _ => Ok(head.into_other()),
        }
    }
}

/// The fields that were read already and those that were not, as one typed object.
fn read<'de, A: MapAccess<'de>, T: DeserializeOwned>(
    head: PartialObject,
    rest: A,
) -> Result<T, A::Error> {
    let chain = ChainedFields { early: head.early.into_iter(), pending: None, rest };
    T::deserialize(MapAccessDeserializer::new(chain))
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for ChainedFields<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let Some((key, value)) = self.early.next() else { return self.rest.next_key_seed(seed) };
        let name = StringDeserializer::<A::Error>::new(key.clone());
        self.pending = Some((key, value));
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        let Some((key, value)) = self.pending.take() else {
            return self.rest.next_value_seed(seed);
        };
        let mut track = Track::new();
        seed.deserialize(serde_path_to_error::Deserializer::new(value, &mut track)).map_err(
            |error| match track.path().to_string().as_str() {
                "." => A::Error::custom(format_args!("{key}: {error}")),
                path => A::Error::custom(format_args!("{key}.{path}: {error}")),
            },
        )
    }
}
