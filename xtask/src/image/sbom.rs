//! Components of an image, in CycloneDX 1.5 (<https://cyclonedx.org/docs/1.5/json/>): the crates that
//! are linked into the program, and Debian's packages.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use super::source::Source;
use crate::architecture::Architecture;
use crate::build;
use crate::vm::debian::Package;

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Crate>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Crate {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// None: it is ours.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
struct DependencyKind {
    /// None: it is linked; otherwise `dev` or `build`.
    kind: Option<String>,
}

/// The document of an image of this architecture.
pub(crate) fn of(
    source: &Source,
    architecture: Architecture,
    packages: &[Package],
) -> Result<Vec<u8>> {
    let mut metadata = Vec::new();
    let arguments = ["metadata", "--locked", "--format-version=1", "--filter-platform"];
    build::cargo_into(&[&arguments[..], &[architecture.target()]].concat(), &[], &mut metadata)?;
    let metadata: Metadata =
        serde_json::from_slice(&metadata).context("cannot read the output of `cargo metadata`")?;
    let crates = metadata.linked_into("kube-ipvs")?;
    let crates = crates.iter().map(|it| it.component());
    let packages = packages.iter().map(|it| component(it, architecture));
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "kube-ipvs",
                "name": "kube-ipvs",
                "version": source.version,
                "licenses": [{ "expression": "Apache-2.0" }],
                "properties": [
                    { "name": "commit", "value": source.commit },
                    { "name": "architecture", "value": architecture.to_string() },
                ],
            },
        },
        "components": crates.chain(packages).collect::<Vec<_>>(),
    });
    serde_json::to_vec_pretty(&document).context("cannot encode the SBOM")
}

fn component(package: &Package, architecture: Architecture) -> Value {
    let [name, version] = ["Package", "Version"].map(|field| package.field(field));
    let purl = format!("pkg:deb/debian/{name}@{version}?arch={architecture}");
    json!({ "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl })
}

impl Metadata {
    /// The crates that are linked into a program, in the order of their names.
    fn linked_into(&self, program: &str) -> Result<Vec<&Crate>> {
        let by_id: BTreeMap<&str, &Crate> =
            self.packages.iter().map(|it| (it.id.as_str(), it)).collect();
        let nodes: BTreeMap<&str, &Node> =
            self.resolve.nodes.iter().map(|it| (it.id.as_str(), it)).collect();
        let first = self.packages.iter().find(|it| it.name == program);
        let first =
            first.with_context(|| format!("`cargo metadata` lists no package {program}"))?;
        let (mut found, mut waiting) = (BTreeSet::new(), vec![first.id.as_str()]);
        while let Some(id) = waiting.pop() {
            if found.insert(id) {
                let node = nodes
                    .get(id)
                    .with_context(|| format!("`cargo metadata` lists no dependencies of {id}"))?;
                let is_linked = |it: &&Dependency| it.dep_kinds.iter().any(|it| it.kind.is_none());
                waiting.extend(node.deps.iter().filter(is_linked).map(|it| it.pkg.as_str()));
            }
        }
        let mut crates: Vec<&Crate> =
            found.iter().filter_map(|id| by_id.get(id).copied()).collect();
        crates.retain(|it| it.id != first.id);
        crates.sort_by_key(|it| (&it.name, &it.version));
        Ok(crates)
    }
}

impl Crate {
    fn component(&self) -> Value {
        let Self { name, version, license, source, .. } = self;
        let purl = format!("pkg:cargo/{name}@{version}");
        let mut component =
            json!({ "type": "library", "bom-ref": purl, "name": name, "version": version });
        if let Some(fields) = component.as_object_mut() {
            if source.is_some() {
                fields.insert("purl".to_owned(), json!(purl));
            }
            if let Some(license) = license {
                // `MIT/Apache-2.0` is how crates wrote it before there were expressions.
                let expression = license.replace('/', " OR ");
                fields.insert("licenses".to_owned(), json!([{ "expression": expression }]));
            }
        }
        component
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_listed_and_what_only_builds_or_tests_is_not() {
        let metadata = json!({
            "packages": [
                { "id": "1", "name": "kube-ipvs", "version": "0.1.0", "license": null, "source": null },
                { "id": "2", "name": "b", "version": "1.0.0", "license": "MIT/Apache-2.0", "source": "registry" },
                { "id": "3", "name": "a", "version": "2.0.0", "license": "MIT", "source": "registry" },
                { "id": "4", "name": "of-tests", "version": "3.0.0", "license": "MIT", "source": "registry" },
            ],
            "resolve": { "nodes": [
                { "id": "1", "deps": [
                    { "pkg": "2", "dep_kinds": [{ "kind": null }, { "kind": "dev" }] },
                    { "pkg": "4", "dep_kinds": [{ "kind": "dev" }] },
                ] },
                { "id": "2", "deps": [{ "pkg": "3", "dep_kinds": [{ "kind": null }] }] },
                { "id": "3", "deps": [] },
                { "id": "4", "deps": [] },
            ] },
        });
        let metadata: Metadata = serde_json::from_value(metadata).unwrap();
        let crates = metadata.linked_into("kube-ipvs").unwrap();
        assert_eq!(crates.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(
            crates[1].component(),
            json!({
                "type": "library",
                "bom-ref": "pkg:cargo/b@1.0.0",
                "name": "b",
                "version": "1.0.0",
                "purl": "pkg:cargo/b@1.0.0",
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            })
        );
        assert!(metadata.linked_into("nothing").is_err());
    }
}
