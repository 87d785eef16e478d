//! A Table of Nodes, as `kubectl get nodes` asks for it (meta.k8s.io/v1).

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Item, PageMetadata, text_in};
use crate::object::{
    Metadata, NodeAddress, NodeSpec, NodeStatus, OtherNode, at_most, null_is_default,
};

/// Most columns of a Table: Nodes have ten.
const MOST_CELLS: usize = 100;

/// A Table of Nodes: of each the name, its first InternalIP and its first ExternalIP.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// One for each row.
    pub(crate) nodes: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Frame<'a> {
    #[serde(default)]
    metadata: PageMetadata,
    column_definitions: Vec<Column>,
    #[serde(borrow, deserialize_with = "null_is_default")]
    rows: Vec<Row<'a>>,
}

#[derive(Deserialize)]
struct Column {
    name: String,
}

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow, deserialize_with = "at_most::<_, _, MOST_CELLS>")]
    cells: Vec<&'a RawValue>,
}

impl Table {
    /// Reads a Table by the names of its columns (`AddHandlers` in
    /// pkg/printers/internalversion/printers.go).
    ///
    /// # Errors
    /// When it is no JSON, no Table of all Nodes, or one without these columns.
    pub(crate) fn decode(text: &[u8]) -> serde_json::Result<Self> {
        let frame: Frame<'_> = serde_json::from_slice(text)?;
        if !frame.metadata.r#continue.is_empty() {
            return Err(serde::de::Error::custom("a part of a Table, where all was asked for"));
        }
        let [name, internal, external] = ["Name", "Internal-IP", "External-IP"].map(|name| {
            let position = frame.column_definitions.iter().position(|column| column.name == name);
            let missing = || format!("a Table of Nodes without the column {name}");
            position.ok_or_else(|| serde::de::Error::custom(missing()))
        });
        let (name, internal, external) = (name?, internal?, external?);
        let nodes = frame.rows.iter().map(|row| row.node(name, internal, external));
        Ok(Self { nodes: nodes.collect::<serde_json::Result<_>>()? })
    }
}

impl Row<'_> {
    /// The Node of a row with its cells at these places.
    fn node(&self, name: usize, internal: usize, external: usize) -> serde_json::Result<Item> {
        let address = |kind: &str, index| {
            let address = self.cell(index)?;
            let is_there = !address.is_empty() && address != "<none>";
            Ok(is_there.then(|| NodeAddress { kind: kind.to_owned(), address }))
        };
        let addresses: [serde_json::Result<_>; 2] =
            [address("InternalIP", internal), address("ExternalIP", external)];
        let [internal, external] = addresses;
        Ok(Item::OtherNode(Box::new(OtherNode {
            metadata: Metadata { name: Some(self.cell(name)?), ..Metadata::default() },
            spec: NodeSpec::default(),
            status: NodeStatus { addresses: internal?.into_iter().chain(external?).collect() },
        })))
    }

    fn cell(&self, index: usize) -> serde_json::Result<String> {
        let missing = || serde::de::Error::custom("a row of a Table without a text in each column");
        text_in(self.cells.get(index).copied()).ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Result<Vec<(String, Vec<String>)>, String> {
        let table = Table::decode(text.as_bytes()).map_err(|error| error.to_string())?;
        let nodes = table.nodes.into_iter().map(|item| {
            let Item::OtherNode(node) = item else { panic!("{item:?}") };
            let addresses = node.status.addresses.into_iter();
            (node.metadata.name.unwrap(), addresses.map(|each| each.address).collect())
        });
        Ok(nodes.collect())
    }

    #[test]
    fn rows_are_nodes_with_the_addresses_that_they_have() {
        let text = r#"{"kind":"Table","columnDefinitions":[{"name":"External-IP","priority":1},
            {"name":"Name"},{"name":"Internal-IP"}],"rows":[
            {"cells":["198.51.100.1","b","192.0.2.2"],"object":null},
            {"cells":["<none>","c","fd00::3"]},
            {"cells":["<none>","d","<none>"]}]}"#;
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let expected: Vec<(String, Vec<String>)> = vec![
            ("b".to_owned(), owned(&["192.0.2.2", "198.51.100.1"])),
            ("c".to_owned(), owned(&["fd00::3"])),
            ("d".to_owned(), Vec::new()),
        ];
        assert_eq!(addresses(text), Ok(expected));
        let columns = r#""columnDefinitions":[{"name":"Name"},{"name":"Internal-IP"},{"name":"External-IP"}]"#;
        assert_eq!(addresses(&format!("{{{columns},\"rows\":null}}")), Ok(Vec::new()));
        let error = addresses(r#"{"columnDefinitions":[{"name":"Name"}],"rows":[]}"#).unwrap_err();
        assert!(error.starts_with("a Table of Nodes without the column Internal-IP"), "{error}");
        for (rows, problem) in [
            (r#""rows":[{"cells":["b","192.0.2.2"]}]"#, "a row of a Table without a text"),
            (r#""rows":[{"cells":["b",7,"<none>"]}]"#, "a row of a Table without a text"),
            (r#""metadata":{"continue":"x"},"rows":[]"#, "a part of a Table"),
            (r#""metadata":{}"#, "missing field `rows`"),
        ] {
            let error = addresses(&format!("{{{columns},{rows}}}")).unwrap_err();
            assert!(error.starts_with(problem), "{rows}: {error}");
        }
        // A server that makes no Tables.
        let error = addresses(r#"{"kind":"NodeList","items":[]}"#).unwrap_err();
        assert!(error.starts_with("missing field `columnDefinitions`"), "{error}");
    }
}
