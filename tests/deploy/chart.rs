//! The chart's own files: that its values are documented, and that their schema knows what the program
//! knows. What Helm makes of them is in `rendered`.

use std::collections::BTreeSet;
use std::fs;

use config::reference::{FIELDS, OWN_FIELDS};
use config::setting::Setting;
use serde_json::{Value, json};

use super::{parse, read, root};

/// The chart, and the values for it.
pub(super) const FOLDER: &str = "deploy/helm";
pub(super) const CHART: &str = "deploy/helm/kube-ipvs";
pub(super) const OVERLAYS: &str = "deploy/kustomize/overlays";

const SCHEMA: &str = "deploy/helm/kube-ipvs/values.schema.json";
const VALUES: &str = "deploy/helm/kube-ipvs/values.yaml";

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
    let has_off = setting.words.iter().any(|(word, _)| *word == "off");
    let text = json!({"type": ["string", "null"]});
    // YAML of version 1.1, which Helm reads, takes `on` and `off` for truth values, and the program takes them.
    let scalar = json!({"type": ["boolean", "string", "null"]});
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
        "off" => scalar,
        _ if has_off => scalar,
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
    let others = [
        ".extraVolumeMounts[]",
        ".extraVolumes[]",
        ".global",
        ".podMonitor.metricRelabelings[]",
        ".podMonitor.relabelings[]",
        ".podSecurityContext",
        ".securityContext",
    ];
    allowed.extend(others.map(str::to_owned));
    assert_eq!(found, allowed);
}

/// Names of the schema that values.yaml does not have because they have no default.
const WITHOUT_DEFAULT: [&str; 11] = [
    ".affinity.nodeAffinity",
    ".affinity.podAffinity",
    ".affinity.podAntiAffinity",
    ".dnsConfig.nameservers",
    ".dnsConfig.options",
    ".dnsConfig.searches",
    ".global",
    ".initContainer.resources.limits",
    ".livenessProbe.initialDelaySeconds",
    ".readinessProbe.initialDelaySeconds",
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
fn every_value_has_a_default() {
    let schema: Value = serde_json::from_str(&read(SCHEMA)).unwrap();
    let defaults: Value = parse::<Value>(VALUES).remove(0);
    let mut found = Vec::new();
    without_default(&schema, &defaults, "", &mut found);
    assert_eq!(found, WITHOUT_DEFAULT);
}

/// Paths of values with their comments, in the order of the file: the names with a comment above them.
fn commented(text: &str) -> Vec<(String, String)> {
    let (mut found, mut comment, mut path) = (Vec::new(), Vec::new(), Vec::<(usize, &str)>::new());
    for line in text.lines() {
        let trimmed = line.trim_start();
        let depth = line.len() - trimmed.len();
        if let Some(words) = trimmed.strip_prefix("# ") {
            comment.push(words);
            continue;
        }
        if let Some((name, _)) = trimmed.split_once(':').filter(|(name, _)| is_name(name)) {
            path.retain(|(other, _)| *other < depth);
            path.push((depth, name));
            if !comment.is_empty() {
                let names: Vec<&str> = path.iter().map(|(_, name)| *name).collect();
                found.push((names.join("."), comment.join(" ")));
            }
        }
        comment.clear();
    }
    found
}

fn is_name(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_alphanumeric())
}

/// The chart's page: what Artifact Hub and `helm show readme` show.
fn page() -> String {
    let mut page = "\
# kube-ipvs

Service proxy in IPVS mode, a drop-in replacement for kube-proxy: a DaemonSet that runs on a node instead of kube-proxy.

```sh
helm install kube-ipvs deploy/helm/kube-ipvs --namespace kube-system --values VALUES
```

- [Install with Helm](https://kube-ipvs.io/docs/install-with-helm.html): examples, upgrade and rollback.
- [Runbook](https://kube-ipvs.io/docs/runbook.html): the alerts, and what to do at each.

`cargo xtask docs` writes this page from `values.yaml`.

| Value | Default | Meaning |
| --- | --- | --- |
"
    .to_owned();
    let text = read(VALUES);
    let defaults: Value = parse::<Value>(VALUES).remove(0);
    for (path, comment) in commented(&text) {
        let default = defaults.pointer(&format!("/{}", path.replace('.', "/"))).unwrap();
        let has_own = default.as_object().is_some_and(|it| !it.is_empty());
        let has_own = has_own
            && commented(&text).iter().any(|(other, _)| {
                other.strip_prefix(&path).is_some_and(|rest| rest.starts_with('.'))
            });
        let default = if has_own { "see below".to_owned() } else { format!("`{default}`") };
        // Markdown takes a bar for the end of the cell.
        let comment = syntax::site::with_addresses(&comment).replace('|', "\\|");
        page += &format!("| `{path}` | {default} | {comment} |\n");
    }
    page
}

#[test]
fn the_page_of_values_has_every_value() {
    let file = format!("{CHART}/README.md");
    let page = page();
    if std::env::var_os(WRITE).is_some() {
        // Another test writes the schema meanwhile.
        fs::write(root().join(&file), &page).unwrap();
        return;
    }
    assert!(read(&file) == page, "{file} is stale: cargo xtask docs");
    let schema: Value = serde_json::from_str(&read(SCHEMA)).unwrap();
    let mut missing = Vec::new();
    for (name, property) in schema["properties"].as_object().unwrap() {
        let below = property["properties"].as_object().into_iter().flatten();
        // Objects of Kubernetes, and the documents that docs/config.md has.
        let is_ours = !["resources", "affinity", "dnsConfig", "livenessProbe", "readinessProbe"]
            .contains(&name.as_str())
            && !name.ends_with("Configuration");
        let names = below.filter(|_| is_ours).map(|(other, _)| format!("{name}.{other}"));
        missing.extend(
            names
                .chain([name.clone()])
                .filter(|path| path != "global" && path != "updateStrategy.rollingUpdate")
                .filter(|path| !page.contains(&format!("| `{path}` |"))),
        );
    }
    assert!(missing.is_empty(), "values without a comment: {missing:?}");
}

#[test]
fn the_chart_has_the_rules_and_the_dashboard_of_the_kustomization() {
    for (file, copy) in [
        (super::observed::RULES, format!("{CHART}/files/rules.yaml")),
        (super::observed::DASHBOARD, format!("{CHART}/files/kube-ipvs.json")),
    ] {
        let text = read(file);
        if std::env::var_os(WRITE).is_some() {
            fs::write(root().join(&copy), &text).unwrap();
        }
        assert!(read(&copy) == text, "{copy} is stale: cargo xtask docs");
    }
}

#[test]
fn addresses_of_the_site_have_one_base() {
    let chart: Value = parse::<Value>(format!("{CHART}/Chart.yaml")).remove(0);
    let site = chart["home"].as_str().unwrap();
    let icon = chart["icon"].as_str().unwrap().strip_prefix(site).unwrap();
    assert!(root().join(icon.trim_start_matches('/')).exists(), "{icon}");
    let maintainer = &chart["maintainers"][0]["url"];
    assert_eq!(maintainer, site);
    let listed = |name: &str| -> Vec<String> {
        let list = chart["annotations"][name].as_str().unwrap();
        let list: Vec<Value> = serde_saphyr::from_str(list).unwrap();
        list.iter().map(|link| link["url"].as_str().unwrap().to_owned()).collect()
    };
    let links = ["artifacthub.io/links", "artifacthub.io/screenshots"].map(listed).concat();
    for link in links.into_iter().chain(super::observed::runbook_urls()) {
        let page = link.strip_prefix(&format!("{site}/")).unwrap_or_else(|| panic!("{link}"));
        let page = page.split('#').next().unwrap().replace(".html", ".md");
        assert!(root().join(&page).exists(), "{link}");
    }
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
