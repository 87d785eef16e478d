//! docs/config.md says what the program does: its tables are made from the program's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use config::document::{KubeProxyConfiguration, VmoduleItem};
use config::flags;
use config::kube_ipvs::KubeIpvsConfiguration;
use config::read::Documents;
use config::reference::{FIELDS, OWN_FIELDS, RETIRED, default_of};
use config::setting::Setting;
use serde_json::Value;

/// Set to anything, it makes the test write the tables. `cargo xtask docs` sets it.
const WRITE: &str = "KUBE_IPVS_WRITE_DOCS";

const END: &str = "<!-- end of table -->";

#[test]
fn the_page_of_the_configuration_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/config.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let mut wanted = page.clone();
    for (name, table) in [
        ("fields", fields_table(&FIELDS, &kube_proxy())),
        ("own", fields_table(&OWN_FIELDS, &own())),
        ("flags", flags_table()),
        ("retired", retired_table()),
    ] {
        wanted = with_table(&wanted, name, &table);
    }
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, wanted).unwrap();
        return;
    }
    assert!(page == wanted, "docs/config.md is stale: cargo xtask docs");
}

#[test]
fn every_field_is_on_the_page() {
    let mut full = KubeProxyConfiguration::default().with_defaults();
    // What is left out where it is empty.
    full.logging.vmodule.push(VmoduleItem::default());
    full.logging.options.json.split_stream = true;
    full.logging.options.text.split_stream = true;
    full.windows_run_as_service = true;
    full.feature_gates.insert("AnyGate".to_owned(), true);
    assert_eq!(paths(&serde_json::to_value(full).unwrap()), known(&FIELDS));
    assert_eq!(paths(&own()), known(&OWN_FIELDS));
}

#[test]
fn the_page_of_limits_has_their_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/limits.md");
    let page = std::fs::read_to_string(path).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `limits."));
    let mut compared = BTreeSet::new();
    for row in rows {
        let (name, rest) = row.split_once("` | ").unwrap();
        let documented = rest.split(" |").next().unwrap().replace(',', "");
        if let Some(default) = own()["limits"][name].as_u64() {
            assert_eq!(documented, default.to_string(), "limits.{name}");
            compared.insert(name);
        }
    }
    assert_eq!(compared, ["frontends", "setEntries", "setSize"].into());
}

fn kube_proxy() -> Value {
    serde_json::to_value(KubeProxyConfiguration::default().with_defaults()).unwrap()
}

fn own() -> Value {
    serde_json::to_value(KubeIpvsConfiguration::default().with_defaults()).unwrap()
}

fn known(fields: &[Setting]) -> BTreeSet<String> {
    let known: BTreeSet<String> = fields.iter().map(|field| field.path.to_owned()).collect();
    assert_eq!(known.len(), fields.len(), "a field is there twice");
    known
}

/// All leaves by their paths. The gates' names are free.
fn leaves(document: &Value) -> BTreeMap<String, Value> {
    fn walk(value: &Value, path: &str, leaves: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(map) if path != "featureGates" => {
                for (name, value) in map {
                    let dot = if path.is_empty() { "" } else { "." };
                    walk(value, &format!("{path}{dot}{name}"), leaves);
                }
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                for item in items {
                    walk(item, &format!("{path}[]"), leaves);
                }
            }
            _ => drop(leaves.insert(path.to_owned(), value.clone())),
        }
    }
    let mut leaves = BTreeMap::new();
    walk(document, "", &mut leaves);
    leaves
}

fn paths(document: &Value) -> BTreeSet<String> {
    leaves(document).into_keys().collect()
}

#[test]
fn each_flag_sets_its_own_field() {
    let written = |documents: &Documents| {
        let documents = [
            serde_json::to_value(&documents.kube_proxy).unwrap(),
            serde_json::to_value(&documents.own).unwrap(),
        ];
        documents.map(|document| leaves(&document))
    };
    let unset = written(&Documents::default());
    for (document, fields) in [(0, FIELDS.as_slice()), (1, OWN_FIELDS.as_slice())] {
        for (setting, flag) in fields.iter().filter_map(|setting| Some((setting, setting.flag?))) {
            let value = match flag.value {
                "BOOL" => "true",
                "DURATION" => "7s",
                "SIZE" => "7Ki",
                "NAME=BOOL,..." => "AnyGate=true",
                "PATTERN=LEVEL,..." => "pattern=7",
                "ADDRESS" => "192.0.2.7",
                "ADDRESS:PORT" => "192.0.2.7:7",
                _ => "7",
            };
            let mut documents = Documents::default();
            let set = documents.set_flag(flag.name, value).unwrap();
            set.unwrap_or_else(|error| panic!("{error}"));
            let mut set = written(&documents);
            for (set, unset) in set.iter_mut().zip(&unset) {
                set.retain(|path, value| unset.get(path) != Some(value));
            }
            let mut changed = set[document].keys().map(String::as_str).collect::<Vec<_>>();
            // An item of this list has both.
            changed.retain(|path| *path != "logging.vmodule[].verbosity");
            assert_eq!(changed, [setting.path], "--{}", flag.name);
            assert!(set[1 - document].is_empty(), "--{}: {set:?}", flag.name);
        }
    }
}

fn with_table(page: &str, name: &str, table: &str) -> String {
    let begin = format!("<!-- table: {name} -->\n");
    let (before, rest) = page.split_once(&begin).expect("the beginning of a table");
    let (_, after) = rest.split_once(END).expect("the end of a table");
    format!("{before}{begin}{table}{END}{after}")
}

fn fields_table(fields: &[Setting], defaults: &Value) -> String {
    let rows = fields.iter().map(|field| {
        let flag = field.flag.map(|flag| format!("--{}", flag.name)).unwrap_or_default();
        let default = default_of(defaults, field.path);
        [code(field.path), field.kind.to_owned(), code(&default), code(&flag), sentence(field)]
    });
    table(["Field", "Type", "Default", "Flag", "Effect"], rows)
}

fn flags_table() -> String {
    let rows = flags::all().into_values().map(|entry| {
        let (flag, setting) = (entry.flag, entry.setting);
        let effect = match (setting.path, setting.effect.none_because()) {
            ("", _) => sentence(setting),
            (path, None) => code(path),
            (path, Some(_)) => format!("{}: no effect", code(path)),
        };
        let with_config = match (flag.with_config, setting.effect.none_because()) {
            (_, Some(_)) => "",
            (true, None) => "applies",
            (false, None) => "replaced",
        };
        [code(&format!("--{}", flag.name)), code(&entry.default), with_config.to_owned(), effect]
    });
    table(["Flag", "Default", "With `--config`", "Field or effect"], rows)
}

fn retired_table() -> String {
    let rows = RETIRED.iter().filter_map(|setting| {
        Some([code(&format!("--{}", setting.flag?.name)), sentence(setting)])
    });
    table(["Flag", "Effect"], rows)
}

fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = format!("\n| {} |\n|{}\n", head.join(" | "), " --- |".repeat(N));
    for row in rows {
        let _ = writeln!(table, "| {} |", row.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    table.push('\n');
    table
}

fn sentence(setting: &Setting) -> String {
    setting.to_string()
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}
