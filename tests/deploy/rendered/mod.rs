//! Tests of the objects that Helm and kustomize make of `deploy/`, and of the alerts by promtool. `cargo xtask chart`
//! installs the programs and runs these tests.

mod alerts;
mod pods;
mod same;
mod values;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use config::Configuration;
use k8s_openapi::api::apps::v1::DaemonSet;
use serde_json::Value;

use crate::{chart, program, root};

/// Programs that render the chart.
const HELM: [&str; 2] = ["helm-3", "helm-4"];

/// All that makes the chart render.
const LEAST: &str =
    "{image: {repository: registry.example/kube-ipvs}, apiServer: 'https://192.0.2.10:6443'}";

/// Runs one of the installed programs, and returns what it writes, or its error.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let path = root().join("target/deploy-tools").join(program);
    let output = Command::new(&path)
        .args(arguments)
        .current_dir(root())
        // Neither a cluster nor a person's settings count.
        .env_clear()
        .env("HOME", "/nonexistent")
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}: run `cargo xtask chart`", path.display()));
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        // promtool tells on standard output which test failed.
        let text = [output.stdout, output.stderr].concat();
        Err(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The objects of a text that a program has rendered.
fn objects(text: &str) -> Vec<Value> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    objects.into_iter().filter(|object| !object.is_null()).collect()
}

/// Renders the chart with values files.
fn helm_with(program: &str, files: &[PathBuf]) -> Result<Vec<Value>, String> {
    let files: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let mut arguments = vec!["template", "kube-ipvs", chart::CHART, "--namespace", "kube-system"];
    arguments.extend(files.iter().flat_map(|file| ["--values", file]));
    run(program, &arguments).map(|text| objects(&text))
}

/// Renders the chart with the least values, and others.
fn helm(program: &str, values: &str) -> Result<Vec<Value>, String> {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = [LEAST, values]
        .iter()
        .enumerate()
        .map(|(number, text)| {
            let file = folder.path().join(format!("{number}.yaml"));
            fs::write(&file, text).unwrap();
            file
        })
        .collect();
    helm_with(program, &files)
}

/// Builds a kustomization.
fn kustomize(folder: &Path) -> Vec<Value> {
    objects(&run("kubectl", &["kustomize", folder.to_str().unwrap()]).unwrap())
}

/// The values files beside the chart, by name.
fn values_files() -> Vec<(String, PathBuf)> {
    let folder = root().join(chart::FOLDER).join("values");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| (file.file_stem().unwrap().to_str().unwrap().to_owned(), file)).collect()
}

/// The only object of a kind.
fn only<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<&Value> = objects.iter().filter(|object| object["kind"] == kind).collect();
    let [object] = found[..] else { panic!("{} objects of kind {kind}", found.len()) };
    object
}

/// The ConfigMap of the configuration.
fn config_map(objects: &[Value]) -> &Value {
    let is_it = |object: &&Value| object.pointer("/data/config.yaml").is_some();
    objects.iter().find(is_it).unwrap()
}

fn daemon_set(objects: &[Value]) -> DaemonSet {
    serde_json::from_value(only(objects, "DaemonSet").clone()).unwrap()
}

/// Returns what the program makes of each container's command line with the file of the ConfigMap.
fn understood(objects: &[Value]) -> Vec<Configuration> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let text = config_map(objects)["data"]["config.yaml"].as_str().unwrap();
    fs::write(&file, text).unwrap();
    let containers = crate::containers(&daemon_set(objects));
    let commands = containers.iter().map(|container| container.command.clone().unwrap());
    commands.map(|command| program::understood(&command, &file)).collect()
}

#[test]
fn programs_are_of_the_versions_that_the_documents_name() {
    assert!(run("helm-3", &["version"]).unwrap().contains("v3.17.2"));
    assert!(run("helm-4", &["version"]).unwrap().contains("v4.3.1"));
    assert!(run("kubectl", &["version", "--client"]).unwrap().contains("v1.37.1"));
    assert!(run("promtool", &["--version"]).unwrap().contains("promtool, version"));
}
