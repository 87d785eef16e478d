//! Lists as Tables ("Receiving resources as Tables"): rows for people, with a few cells for each object.

use serde_json::{Value, json};

use crate::list::Page;
use crate::resource::Resource;

/// Columns of Nodes, in order, with their priority (`AddHandlers` in
/// pkg/printers/internalversion/printers.go).
const COLUMNS: [(&str, u8); 10] = [
    ("Name", 0),
    ("Status", 0),
    ("Roles", 0),
    ("Age", 0),
    ("Version", 0),
    ("Internal-IP", 1),
    ("External-IP", 1),
    ("OS-Image", 1),
    ("Kernel-Version", 1),
    ("Container-Runtime", 1),
];

/// Part of its object that a row has, by the parameter `includeObject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Include {
    /// Nothing.
    None,
    /// The metadata.
    #[default]
    Metadata,
    /// All of it.
    Object,
}

/// True if a client that accepts this wants a Table before anything else, of what this server has
/// columns for.
pub(crate) fn is_wanted(resource: Resource, accept: &str) -> bool {
    let first = accept.split(',').next().unwrap_or_default();
    let wants = |part: &str| first.split(';').any(|each| each.trim() == part);
    resource == Resource::Nodes && wants("as=Table") && wants("g=meta.k8s.io") && wants("v=v1")
}

/// A list as a Table.
pub(crate) fn table(page: &Page, include: Include) -> Value {
    let columns = COLUMNS.map(|(name, priority)| {
        json!({
            "name": name, "type": "string", "format": if name == "Name" { "name" } else { "" },
            "description": "", "priority": priority,
        })
    });
    let rows = page.items.iter().map(|node| {
        let object = match include {
            Include::None => Value::Null,
            Include::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": node.get("metadata"),
            }),
            Include::Object => Value::clone(node),
        };
        json!({"cells": cells(node), "object": object})
    });
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1",
        "metadata": page.metadata,
        "columnDefinitions": columns,
        "rows": rows.collect::<Vec<_>>(),
    })
}

/// Cells of a Node's row: of each type of address the first.
fn cells(node: &Value) -> [Value; COLUMNS.len()] {
    let text = |pointer: &str, otherwise: &str| {
        node.pointer(pointer).cloned().unwrap_or_else(|| json!(otherwise))
    };
    let information = |field: &str| text(&format!("/status/nodeInfo/{field}"), "<unknown>");
    let addresses = node.pointer("/status/addresses").and_then(Value::as_array);
    let first = |wanted: &str| {
        let mut addresses = addresses.into_iter().flatten();
        let found = addresses.find(|each| each.get("type").is_some_and(|kind| kind == wanted));
        found.and_then(|address| address.get("address")).cloned().unwrap_or_else(|| json!("<none>"))
    };
    [
        text("/metadata/name", ""),
        json!("Ready"),
        json!("<none>"),
        json!("4d2h"),
        information("kubeletVersion"),
        first("InternalIP"),
        first("ExternalIP"),
        information("osImage"),
        information("kernelVersion"),
        information("containerRuntimeVersion"),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn tables_are_for_who_asks_for_them_first() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert!(is_wanted(Resource::Nodes, kubectl));
        for (resource, accept) in [
            (Resource::Services, kubectl),
            (Resource::Nodes, "application/json"),
            (Resource::Nodes, "application/json,application/json;as=Table;v=v1;g=meta.k8s.io"),
            (Resource::Nodes, "application/json;as=Table;v=v2;g=meta.k8s.io"),
        ] {
            assert!(!is_wanted(resource, accept), "{resource} {accept}");
        }
    }

    #[test]
    fn a_row_has_the_first_address_of_each_type() {
        let addresses = json!([
            {"type": "Hostname", "address": "b"},
            {"type": "InternalIP", "address": "192.0.2.2"},
            {"type": "InternalIP", "address": "fd00::2"},
        ]);
        let node = json!({"metadata": {"name": "b"}, "status": {"addresses": addresses}});
        let metadata = json!({"resourceVersion": "7"}).as_object().cloned().unwrap();
        let table = table(&Page { metadata, items: vec![Arc::new(node)] }, Include::None);
        assert_eq!(table["metadata"]["resourceVersion"], "7");
        assert_eq!(table["columnDefinitions"][5]["name"], "Internal-IP");
        assert_eq!(table["rows"][0]["cells"][5], "192.0.2.2");
        assert_eq!(table["rows"][0]["cells"][6], "<none>");
        assert_eq!(table["rows"][0]["object"], Value::Null);
    }
}
