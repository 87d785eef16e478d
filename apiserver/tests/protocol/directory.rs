//! Objects from files, and the program that serves them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use apiserver::{Directory, Options, Resource, Server};
use serde_json::{Value, json};

use crate::service;

fn put(directory: &Path, name: &str, text: &str) {
    let partial = directory.join(format!("{name}.partial"));
    fs::write(&partial, text).unwrap();
    fs::rename(partial, directory.join(name)).unwrap();
}

fn served(server: &Server) -> Vec<String> {
    let services = server.list(Resource::Services);
    let told = |service: &Value| {
        let text = |pointer: &str| service.pointer(pointer).unwrap().as_str().unwrap().to_owned();
        format!("{} {}", text("/metadata/name"), text("/spec/clusterIP"))
    };
    services.iter().map(told).collect()
}

#[test]
fn files_are_the_objects() {
    let server = Server::start(Options::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut directory = Directory::new(folder.path());
    let mut poll = || directory.poll(&server).unwrap();
    put(folder.path(), "a.json", &service("a", "10.96.0.1").to_string());
    let two = json!({"kind": "List", "items": [service("b", "10.96.0.2"), service("c", "None")]});
    put(folder.path(), "rest.json", &two.to_string());
    put(folder.path(), "notes.txt", "no object");
    assert_eq!(poll(), Vec::<String>::new());
    assert_eq!(served(&server), ["a 10.96.0.1", "b 10.96.0.2", "c None"]);
    let version = server.resource_version();
    poll();
    assert_eq!(server.resource_version(), version, "nothing has changed");

    put(folder.path(), "a.json", &service("a", "10.96.0.9").to_string());
    // One object goes with its list, and one moves to another file.
    put(folder.path(), "rest.json", &service("b", "10.96.0.2").to_string());
    put(folder.path(), "moved.json", &service("c", "None").to_string());
    assert_eq!(poll(), Vec::<String>::new());
    assert_eq!(served(&server), ["a 10.96.0.9", "b 10.96.0.2", "c None"]);
    fs::remove_file(folder.path().join("rest.json")).unwrap();
    poll();
    assert_eq!(served(&server), ["a 10.96.0.9", "c None"]);

    put(folder.path(), "a.json", "{");
    let problems = poll();
    assert!(problems.len() == 1 && problems[0].contains("a.json: is no JSON"), "{problems:?}");
    assert_eq!(poll(), Vec::<String>::new(), "a problem is told once");
    assert_eq!(served(&server), ["a 10.96.0.9", "c None"], "what was there stays");
    put(folder.path(), "a.json", &service("a", "10.96.0.3").to_string());
    poll();
    assert_eq!(served(&server), ["a 10.96.0.3", "c None"]);
    assert!(Directory::new(folder.path().join("none")).poll(&server).is_err());
}

#[tokio::test]
async fn the_program_serves_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let objects = folder.path().join("objects");
    fs::create_dir(&objects).unwrap();
    put(&objects, "a.json", &service("a", "10.96.0.1").to_string());
    let kubeconfig = folder.path().join("kubeconfig");
    let mut program = Command::new(env!("CARGO_BIN_EXE_kube-ipvs-apiserver"))
        .args(["--listen", "127.0.0.1:0", "--san", "api.example.net", "--kubeconfig"])
        .arg(&kubeconfig)
        .arg("--objects")
        .arg(&objects)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.starts_with("ready https://127.0.0.1:"), "{ready}");

    let text = fs::read_to_string(kubeconfig).unwrap();
    let kubeconfig = kube::config::Kubeconfig::from_yaml(&text).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await;
    let client = kube::Client::try_from(config.unwrap()).unwrap();
    let services = kube::Api::<k8s_openapi::api::core::v1::Service>::all(client);
    let count = async || services.list(&Default::default()).await.unwrap().items.len();
    assert_eq!(count().await, 1);
    fs::remove_file(objects.join("a.json")).unwrap();
    let begun = Instant::now();
    while count().await > 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "the object stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    program.kill().unwrap();
    program.wait().unwrap();
}
