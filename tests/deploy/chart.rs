//! The chart's own files: that its values are documented, and that their schema knows what the program
//! knows. What Helm makes of them is in `rendered`.

use std::collections::BTreeSet;
use std::fs;

use config::reference::{FIELDS, OWN_FIELDS};
use config::setting::Setting;
use serde_json::{Map, Value, json};

use super::{parse, read, root};

/// The chart, and the values for it.
pub(super) const FOLDER: &str = "deploy/helm";
pub(super) const CHART: &str = "deploy/helm/kube-ipvs";
pub(super) const OVERLAYS: &str = "deploy/kustomize/overlays";

const SCHEMA: &str = "deploy/helm/kube-ipvs/values.schema.json";

/// Set to anything, it makes the test write the schema. `cargo xtask docs` sets it.
const WRITE: &str = "KUBE_IPVS_WRITE_DOCS";

/// A duration as Go writes it.
const DURATION: &str = "^[+-]?(0|([0-9.]+(ns|us|µs|ms|s|m|h))+)$";

/// The names of the overlays of the kustomization.
pub(super) fn overlays() -> BTreeSet<String> {
    let entries = fs::read_dir(root().join(OVERLAYS)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The schema of a field of a configuration, by the word that docs/config.md has for its type. Anything
/// may be null, as kubeadm writes it for what is not set.
fn schema_of(setting: &Setting) -> Value {
    let texts = json!({"type": ["array", "null"], "items": {"type": "string"}});
    let text = json!({"type": ["string", "null"]});
    let (kind, range) = setting.kind.split_once(", ").unwrap_or((setting.kind, ""));
    match kind {
        "bool" => json!({"type": ["boolean", "null"]}),
        "number" => {
            let mut schema = json!({"type": ["number", "null"]});
            if let Some((least, most)) = range.split_once(" to ") {
                schema["minimum"] = least.parse::<i64>().unwrap().into();
                schema["maximum"] = most.parse::<i64>().unwrap().into();
            }
            schema
        }
        "duration" if range == "or nanoseconds" => {
            json!({"type": ["string", "number", "null"], "pattern": DURATION})
        }
        "duration" => json!({"type": ["string", "null"], "pattern": DURATION}),
        "size" => json!({"type": ["string", "number", "null"]}),
        "map of bool" => {
            json!({"type": ["object", "null"], "additionalProperties": {"type": "boolean"}})
        }
        // A word, or a list.
        "auto" => json!({"type": ["array", "string", "null"], "items": {"type": "string"}}),
        list if list.starts_with("list of ") => texts,
        _ => text,
    }
}

/// The schema of a document: what the program knows, and nothing else.
fn document(fields: &[Setting]) -> Value {
    let mut schema = json!({"type": "object", "additionalProperties": false, "properties": {}});
    for setting in fields {
        let mut parts = setting.path.split('.').peekable();
        let mut here = schema["properties"].as_object_mut().unwrap();
        while let Some(part) = parts.next() {
            let (name, is_list) = part.strip_suffix("[]").map_or((part, false), |it| (it, true));
            if parts.peek().is_none() {
                let is_new = here.insert(name.to_owned(), schema_of(setting)).is_none();
                assert!(is_new, "{}", setting.path);
                break;
            }
            let part = here.entry(name).or_insert_with(|| object(is_list));
            let part = if is_list { &mut part["items"] } else { part };
            here = part["properties"].as_object_mut().unwrap();
        }
    }
    schema
}

/// The schema of an object without properties, or of a list of those.
fn object(is_list: bool) -> Value {
    let object =
        |types: Value| json!({"type": types, "additionalProperties": false, "properties": {}});
    if is_list {
        json!({"type": ["array", "null"], "items": object(json!("object"))})
    } else {
        object(json!(["object", "null"]))
    }
}

#[test]
fn the_schema_of_values_has_the_fields_of_both_documents() {
    let text = read(SCHEMA);
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    let properties = schema["properties"].as_object_mut().unwrap();
    properties.insert("kubeProxyConfiguration".to_owned(), document(&FIELDS));
    properties.insert("kubeIpvsConfiguration".to_owned(), document(&OWN_FIELDS));
    let wanted = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
    if std::env::var_os(WRITE).is_some() {
        fs::write(root().join(SCHEMA), wanted).unwrap();
        return;
    }
    assert!(text == wanted, "{SCHEMA} is stale: cargo xtask docs");
}

/// Collects objects of a schema that take any property, but for maps whose values have a schema, and for
/// objects of Kubernetes, which the API server checks.
fn open_objects(schema: &Value, path: &str, found: &mut Vec<String>) {
    let is_object = schema["type"] == "object" || schema["type"][0] == "object";
    let additional = &schema["additionalProperties"];
    if is_object && additional != &json!(false) && !additional.is_object() {
        found.push(path.to_owned());
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        open_objects(property, &format!("{path}.{name}"), found);
    }
    if schema["items"].is_object() {
        open_objects(&schema["items"], &format!("{path}[]"), found);
    }
}

#[test]
fn the_schema_of_values_takes_nothing_that_it_does_not_know() {
    let schema: Value = serde_json::from_str(&read(SCHEMA)).unwrap();
    let mut found = Vec::new();
    open_objects(&schema, "", &mut found);
    let affinities = ["nodeAffinity", "podAffinity", "podAntiAffinity"];
    let mut allowed = affinities.map(|name| format!(".affinity.{name}")).to_vec();
    allowed.push(".global".to_owned());
    assert_eq!(found, allowed);
}

/// Names of the schema that values.yaml does not have because they have no default.
const WITHOUT_DEFAULT: [&str; 5] = [
    ".affinity.nodeAffinity",
    ".affinity.podAffinity",
    ".affinity.podAntiAffinity",
    ".global",
    ".resources.limits",
];

/// Collects names that a schema has and the defaults have not.
fn without_default(schema: &Value, defaults: &Value, path: &str, found: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match &defaults[name] {
            Value::Null => found.push(path),
            // The fields of both documents have the program's defaults.
            _ if path.ends_with("Configuration") => {}
            value => without_default(property, value, &path, found),
        }
    }
}

#[test]
fn every_value_has_a_default_and_a_comment() {
    let schema: Value = serde_json::from_str(&read(SCHEMA)).unwrap();
    let file = format!("{CHART}/values.yaml");
    let defaults: Value = parse::<Value>(&file).remove(0);
    let mut found = Vec::new();
    without_default(&schema, &defaults, "", &mut found);
    assert_eq!(found, WITHOUT_DEFAULT);

    let text = read(&file);
    let lines: Vec<&str> = text.lines().collect();
    let mut commented = Map::new();
    for (above, line) in lines.iter().zip(lines.iter().skip(1)).chain([(&"", &lines[0])]) {
        let is_name = line.starts_with(|c: char| c.is_ascii_lowercase());
        if is_name && let Some((name, _)) = line.split_once(':') {
            assert!(above.starts_with("# "), "{name} has no comment above it");
            commented.insert(name.to_owned(), Value::Null);
        }
        // Inside of these, every name is a value of the chart's own.
        if let Some((name, _)) = line.trim_start().split_once(": ")
            && ["repository", "tag", "digest", "pullPolicy", "podMonitor", "rules", "labels"]
                .contains(&name)
        {
            assert!(above.trim_start().starts_with("# "), "{name} has no comment above it");
        }
    }
    let names: Vec<&String> = defaults.as_object().unwrap().keys().collect();
    assert_eq!(commented.keys().collect::<Vec<_>>(), names);
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart: Value = parse::<Value>(format!("{CHART}/Chart.yaml")).remove(0);
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], env!("CARGO_PKG_VERSION"), "{field}");
    }
}

#[test]
fn every_overlay_has_values_for_the_chart() {
    let entries = fs::read_dir(root().join(FOLDER).join("values")).unwrap();
    let files = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: BTreeSet<String> =
        files.map(|file| file.strip_suffix(".yaml").unwrap().to_owned()).collect();
    assert!(names.remove("base"), "{names:?}");
    assert_eq!(names, overlays());
    let page = read("docs/platforms.md");
    for name in names.iter().filter(|name| *name != "example") {
        assert!(page.contains(&format!("`{OVERLAYS}/{name}/`")), "{name}");
        assert!(page.contains(&format!("`{FOLDER}/values/{name}.yaml`")), "{name}");
    }
}
