//! docs/config.md says what the program does: its tables are made from the program's own.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use kube_ipvs::cli;
use kube_ipvs::config::document::{KubeProxyConfiguration, VmoduleItem};
use kube_ipvs::config::own::KubeIpvsConfiguration;
use kube_ipvs::config::reference::{
    Effect, FIELDS, FLAGS, Field, Flag, Meaning, OWN_FIELDS, default_of, find,
};
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
        ("fields", fields(&FIELDS, &kube_proxy(), Meaning::Field)),
        ("own", fields(&OWN_FIELDS, &own(), Meaning::OwnField)),
        ("flags", flags()),
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
fn every_flag_is_on_the_page_and_its_field_exists() {
    let mut command = cli::command();
    command.build();
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let named: BTreeSet<&str> = shown.filter_map(clap::Arg::get_long).collect();
    let known: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
    assert_eq!(known, named.into_iter().collect::<Vec<_>>());
    for flag in &FLAGS {
        match flag.meaning {
            Meaning::Field(path) | Meaning::FieldBut { path, .. } => {
                assert!(find(&FIELDS, path).is_some(), "{}: {path}", flag.name);
            }
            Meaning::OwnField(path) => {
                assert!(find(&OWN_FIELDS, path).is_some(), "{}: {path}", flag.name);
            }
            Meaning::Itself { .. } => {}
        }
    }
}

fn kube_proxy() -> Value {
    serde_json::to_value(KubeProxyConfiguration::default().with_defaults()).unwrap()
}

fn own() -> Value {
    serde_json::to_value(KubeIpvsConfiguration::default().with_defaults()).unwrap()
}

fn known(fields: &[Field]) -> BTreeSet<String> {
    let known: BTreeSet<String> = fields.iter().map(|field| field.path.to_owned()).collect();
    assert_eq!(known.len(), fields.len(), "a field is there twice");
    known
}

/// The paths of all leaves. The gates' names are free.
fn paths(document: &Value) -> BTreeSet<String> {
    fn walk(value: &Value, path: &str, paths: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) if path != "featureGates" => {
                for (name, value) in map {
                    let dot = if path.is_empty() { "" } else { "." };
                    walk(value, &format!("{path}{dot}{name}"), paths);
                }
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                for item in items {
                    walk(item, &format!("{path}[]"), paths);
                }
            }
            _ => drop(paths.insert(path.to_owned())),
        }
    }
    let mut paths = BTreeSet::new();
    walk(document, "", &mut paths);
    paths
}

fn with_table(page: &str, name: &str, table: &str) -> String {
    let begin = format!("<!-- table: {name} -->\n");
    let (before, rest) = page.split_once(&begin).expect("the beginning of a table");
    let (_, after) = rest.split_once(END).expect("the end of a table");
    format!("{before}{begin}{table}{END}{after}")
}

fn fields(fields: &[Field], defaults: &Value, meaning: impl Fn(&'static str) -> Meaning) -> String {
    let mut table = "\n| Field | Type | Default | Flag | What it does |\n\
                     | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for field in fields {
        let means = |flag: &&Flag| match flag.meaning {
            Meaning::FieldBut { path, .. } => Meaning::Field(path) == meaning(field.path),
            other => other == meaning(field.path),
        };
        let flags: Vec<String> =
            FLAGS.iter().filter(means).map(|flag| format!("`--{}`", flag.name)).collect();
        let (path, kind) = (field.path, cell(field.kind));
        let default = code(&default_of(defaults, field.path));
        let (flags, effect) = (flags.join(", "), effect(field.effect));
        let _ = writeln!(table, "| `{path}` | {kind} | {default} | {flags} | {effect} |");
    }
    table.push('\n');
    table
}

fn flags() -> String {
    let (kube_proxy, own) = (kube_proxy(), own());
    let mut table = "\n| Flag | Default | What it does |\n| --- | --- | --- |\n".to_owned();
    for flag in &FLAGS {
        let default = code(&flag.default(&kube_proxy, &own));
        let effect = match flag.meaning {
            Meaning::Field(path) | Meaning::FieldBut { path, .. } => {
                format!("`{path}`{}", no_effect(find(&FIELDS, path)))
            }
            Meaning::OwnField(path) => format!("`{path}` of our own document"),
            Meaning::Itself { effect: of, .. } => effect(of),
        };
        let _ = writeln!(table, "| `--{}` | {default} | {effect} |", flag.name);
    }
    table.push('\n');
    table
}

fn no_effect(field: Option<&Field>) -> &'static str {
    match field.map(|field| field.effect) {
        Some(Effect::Nothing(_)) => ", no effect",
        _ => "",
    }
}

fn effect(effect: Effect) -> String {
    match effect {
        Effect::Does(what) => cell(what),
        Effect::Nothing(why) => format!("no effect: {}", cell(why)),
    }
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
