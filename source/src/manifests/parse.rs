//! A manifest's text: YAML or JSON, any number of documents.

#[cfg(test)]
mod tests;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use super::object::Object;

/// The largest file that is read. 10,000 Services with their EndpointSlices are about 30 MiB.
pub(super) const MAX_FILE_BYTES: u64 = 256 << 20;

/// Most nodes (maps, sequences, scalars) that a file may have. Each takes at least a few bytes.
const MAX_NODES: usize = 64 << 20;

/// Most levels that a file may nest. The largest objects, custom resource definitions, stay below,
/// and a thread's stack of 2 MiB is enough for it in an unoptimised build too.
const MAX_DEPTH: usize = 48;

/// Most nodes that a file's aliases may stand for, all together: an alias of an alias of an alias
/// must not become gigabytes.
const MAX_ALIASED_NODES: usize = 100_000;

/// Reason for which a text is not a manifest, with line and column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

/// A document: an error in it says where in the object it is.
struct Document(Object);

/// The objects in a text, the items of lists among them.
///
/// # Errors
/// When any of the documents is not YAML, or has a field of the wrong type.
pub fn parse(bytes: &[u8]) -> Result<Vec<Object>, ParseError> {
    let documents: Vec<Document> = documents(bytes)?;
    let mut objects = Vec::with_capacity(documents.len());
    for Document(object) in documents {
        match object {
            Object::List(items) => objects.extend(items),
            other => objects.push(other),
        }
    }
    Ok(objects)
}

/// The documents in a text, within limits that any manifest keeps to.
pub(crate) fn documents<T: DeserializeOwned>(bytes: &[u8]) -> Result<Vec<T>, ParseError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        ParseError(format!("not UTF-8 text at line {line}"))
    })?;
    // An error would carry a copy of the text around it; line and column are enough.
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_events: 2 * MAX_NODES,
            max_nodes: MAX_NODES,
            max_documents: MAX_NODES,
            max_depth: MAX_DEPTH,
            max_total_scalar_bytes: usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX),
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_ALIASED_NODES,
        },
    };
    serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| ParseError(error.to_string()))
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde_path_to_error::deserialize(deserializer).map(Document).map_err(|error| {
            let path = error.path().to_string();
            let error = error.into_inner();
            // "." is the document itself, "?" a place that has no path.
            if matches!(path.as_str(), "." | "?") {
                error
            } else {
                D::Error::custom(format_args!("{path}: {error}"))
            }
        })
    }
}
