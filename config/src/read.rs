//! From a file's text to documents.
//!
//! Fields that do not exist and fields that are written twice are accepted and reported, since
//! kube-proxy accepts them too. Everything else that is wrong is an error.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use super::document::{self, KubeProxyConfiguration};
use super::kube_ipvs::{self, KubeIpvsConfiguration};
use super::reference::{FIELDS, OWN_FIELDS};
use super::setting::Setting;
use super::settings::Section as _;
use super::text::nearest;
use super::tree::{Node, ValueKind, documents};

/// Documents of a file, and notes on them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Documents {
    pub kube_proxy: KubeProxyConfiguration,
    /// Ours, which may be missing.
    pub own: KubeIpvsConfiguration,
    /// Notes on what was written and has no effect.
    pub notes: Vec<String>,
}

impl Documents {
    /// Sets the field that has this flag. None: no field has it.
    pub fn set_flag(&mut self, flag: &str, text: &str) -> Option<Result<(), String>> {
        if flag == "vmodule" {
            return Some(document::add_vmodule(&mut self.kube_proxy.logging.vmodule, text));
        }
        self.own.set_flag(flag, text).or_else(|| self.kube_proxy.set_flag(flag, text))
    }
}

/// Reason for which a text is no configuration: in words, with the line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to decode: {0}")]
pub struct DecodeError(String);

/// Reads a file's text.
///
/// # Errors
/// When it is not YAML, when its first document is not kube-proxy's, and when a field has a value
/// of the wrong type.
pub fn read(text: &str) -> Result<Documents, DecodeError> {
    let trees = documents(text).map_err(DecodeError)?;
    let mut trees = trees.iter();
    let first = trees.next().ok_or_else(|| DecodeError("it is empty".to_owned()))?;
    expect(first, document::API_VERSION, document::KIND)?;
    let mut notes = Vec::new();
    let mut documents = Documents { kube_proxy: decode(first)?, ..Documents::default() };
    note_unknown_fields(first, "", &FIELDS, &mut notes);
    let mut has_own = false;
    for tree in trees {
        let (version, kind) = (tree.text("apiVersion"), tree.text("kind"));
        if (version, kind) != (Some(kube_ipvs::API_VERSION), Some(kube_ipvs::KIND)) {
            let (version, kind) = (version.unwrap_or_default(), kind.unwrap_or_default());
            notes.push(format!(
                "line {}: a document of kind {kind:?}, version {version:?} has no effect",
                tree.line
            ));
            continue;
        }
        if has_own {
            let (kind, line) = (kube_ipvs::KIND, tree.line);
            return Err(DecodeError(format!("line {line}: a second {kind}; only one is allowed")));
        }
        has_own = true;
        documents.own = decode(tree)?;
        note_unknown_fields(tree, "", &OWN_FIELDS, &mut notes);
    }
    documents.notes = notes;
    Ok(documents)
}

fn expect(tree: &Node, api_version: &str, kind: &str) -> Result<(), DecodeError> {
    let (found_version, found_kind) = (tree.text("apiVersion"), tree.text("kind"));
    let problem = match (found_version, found_kind) {
        (Some(version), Some(found)) if version == api_version && found == kind => return Ok(()),
        (_, None) => "Object 'Kind' is missing".to_owned(),
        (version, Some(found)) => {
            let version = version.unwrap_or_default();
            format!("no kind {found:?} is registered for version {version:?}")
        }
    };
    let line = tree.line;
    Err(DecodeError(format!(
        "line {line}: {problem}; a file must begin with apiVersion: {api_version}, kind: {kind}"
    )))
}

fn decode<T: DeserializeOwned>(tree: &Node) -> Result<T, DecodeError> {
    if !matches!(tree.kind, ValueKind::Map(_)) {
        return Err(DecodeError(format!("line {}: not a map of fields", tree.line)));
    }
    serde_path_to_error::deserialize(tree.value()).map_err(|error| {
        let (path, line) = (error.path().to_string(), line_of(tree, error.path()));
        DecodeError(format!("{path} (line {line}): {}", error.into_inner()))
    })
}

/// The line of the innermost node on the way that there is.
fn line_of(tree: &Node, path: &serde_path_to_error::Path) -> u64 {
    let mut node = tree;
    for segment in path {
        let next = match (segment, &node.kind) {
            (serde_path_to_error::Segment::Map { key }, _) => node.get(key),
            (serde_path_to_error::Segment::Seq { index }, ValueKind::List(items)) => {
                items.get(*index)
            }
            _ => None,
        };
        let Some(next) = next else { break };
        node = next;
    }
    node.line
}

/// Tells of what is unknown and what was written twice, in the order of the text.
fn note_unknown_fields(node: &Node, path: &str, fields: &[Setting], notes: &mut Vec<String>) {
    match &node.kind {
        ValueKind::List(items) => {
            let path = format!("{path}[]");
            for item in items {
                note_unknown_fields(item, &path, fields, notes);
            }
        }
        ValueKind::Map(entries) => {
            for (name, first, last) in node.duplicates() {
                let at = join(path, name);
                notes.push(format!("{at} (line {first}) has no effect: line {last} sets it again"));
            }
            let known = names_below(path, fields);
            if known.is_empty() {
                // A map whose names are free.
                return;
            }
            for (name, node) in entries {
                if known.contains(name.as_str()) {
                    note_unknown_fields(node, &join(path, name), fields, notes);
                } else {
                    notes.push(unknown(&join(path, name), node.line, &known, fields));
                }
            }
        }
        _ => {}
    }
}

fn unknown(at: &str, line: u64, siblings: &BTreeSet<&str>, fields: &[Setting]) -> String {
    let name = at.rsplit('.').next().unwrap_or(at);
    let elsewhere = || {
        let last = |path: &'static str| path.rsplit('.').next().unwrap_or(path);
        fields.iter().map(|field| field.path).find(|path| last(path) == name)
    };
    let near = nearest(name, siblings.iter().copied()).or_else(elsewhere);
    let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    format!("{at} (line {line}) has no effect: unknown field{hint}")
}

fn names_below<'a>(path: &str, fields: &'a [Setting]) -> BTreeSet<&'a str> {
    let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
    let below = fields.iter().filter_map(|field| field.path.strip_prefix(&prefix));
    below.filter_map(|rest| rest.split(['.', '[']).next()).collect()
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
