use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use plan::event::Event;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::timeout;

use super::*;

/// Far longer than anything takes on a busy machine; a test that passes does not wait for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A source under way, and what it has said.
struct Followed {
    events: Receiver<SourceEvent>,
    running: tokio::task::JoinHandle<()>,
}

impl Followed {
    fn new(directory: &Path) -> Self {
        let (sink, events) = channel(16);
        let manifests = Manifests::new(directory, &Options::new("node1")).unwrap();
        Self { events, running: tokio::spawn(manifests.run(sink)) }
    }

    async fn next(&mut self) -> SourceEvent {
        timeout(PATIENCE, self.events.recv()).await.expect("nothing is said").unwrap()
    }

    /// The next thing said is this address of Service `default/a`; none for its removal.
    async fn says(&mut self, address: Option<&str>) {
        match (self.next().await, address) {
            (SourceEvent::Change(Event::ServiceApplied(service)), Some(address)) => {
                assert_eq!(service.cluster_v4, Some(address.parse().unwrap()));
            }
            (SourceEvent::Change(Event::ServiceRemoved(_)), None) => {}
            (other, _) => panic!("{other:?} instead of {address:?}"),
        }
    }

    async fn next_warning(&mut self) -> String {
        match self.next().await {
            SourceEvent::Warning(warning) => warning.to_string(),
            other => panic!("{other:?} is no warning"),
        }
    }
}

fn mk_service(address: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\n\
         spec: {{clusterIP: {address}, ports: [{{port: 80}}]}}\n"
    )
}

#[test]
fn a_directory_that_cannot_be_listed_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let error =
        Manifests::new(root.path().join("typo"), &Options::new("node1")).unwrap_err().to_string();
    assert!(error.contains("typo: No such file") && error.contains("--manifests"), "{error}");
    fs::write(root.path().join("file"), "").unwrap();
    let error =
        Manifests::new(root.path().join("file"), &Options::new("node1")).unwrap_err().to_string();
    assert!(error.contains("file: Not a directory"), "{error}");
}

#[tokio::test]
async fn changes_are_followed_as_they_are_saved() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.yaml");
    fs::write(&file, mk_service("10.96.0.1")).unwrap();
    let mut followed = Followed::new(directory.path());
    followed.says(Some("10.96.0.1")).await;
    assert_eq!(followed.next().await, SourceEvent::Complete);

    fs::write(&file, mk_service("10.96.0.2")).unwrap();
    followed.says(Some("10.96.0.2")).await;

    let hidden = directory.path().join(".a.yaml.swp");
    fs::write(&hidden, mk_service("10.96.0.3")).unwrap();
    fs::rename(&hidden, &file).unwrap();
    followed.says(Some("10.96.0.3")).await;

    fs::write(&file, "kind: [").unwrap();
    let warning = followed.next_warning().await;
    assert!(warning.contains("a.yaml: does not parse"), "{warning}");
    fs::remove_file(&file).unwrap();
    followed.says(None).await;
}

#[tokio::test]
async fn an_empty_directory_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let mut followed = Followed::new(directory.path());
    assert_eq!(followed.next().await, SourceEvent::Complete);
    fs::write(directory.path().join("a.yaml"), mk_service("10.96.0.1")).unwrap();
    followed.says(Some("10.96.0.1")).await;
}

/// The kubelet's way with a ConfigMap: the files are links into `..data`, which is a link to a
/// directory, and is replaced in one step.
#[tokio::test]
async fn a_config_map_is_swapped() {
    let root = tempfile::tempdir().unwrap();
    let generation = |name: &str, address: &str| {
        fs::create_dir(root.path().join(name)).unwrap();
        fs::write(root.path().join(name).join("a.yaml"), mk_service(address)).unwrap();
        symlink(name, root.path().join("..data_tmp")).unwrap();
        fs::rename(root.path().join("..data_tmp"), root.path().join("..data")).unwrap();
    };
    generation("..2026_01", "10.96.0.1");
    symlink("..data/a.yaml", root.path().join("a.yaml")).unwrap();
    let mut followed = Followed::new(root.path());
    followed.says(Some("10.96.0.1")).await;
    assert_eq!(followed.next().await, SourceEvent::Complete);
    generation("..2026_02", "10.96.0.2");
    fs::remove_dir_all(root.path().join("..2026_01")).unwrap();
    followed.says(Some("10.96.0.2")).await;
}

#[tokio::test]
async fn a_directory_that_is_removed_and_there_again() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("manifests");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("a.yaml"), mk_service("10.96.0.1")).unwrap();
    let mut followed = Followed::new(&directory);
    followed.says(Some("10.96.0.1")).await;
    assert_eq!(followed.next().await, SourceEvent::Complete);

    fs::rename(&directory, root.path().join("away")).unwrap();
    fs::remove_dir_all(root.path().join("away")).unwrap();
    let warning = followed.next_warning().await;
    assert!(warning.contains("stays in use"), "{warning}");

    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("a.yaml"), mk_service("10.96.0.2")).unwrap();
    followed.says(Some("10.96.0.2")).await;
    // The new directory is watched, not the old one.
    fs::write(directory.join("a.yaml"), mk_service("10.96.0.3")).unwrap();
    followed.says(Some("10.96.0.3")).await;
}

#[tokio::test]
async fn it_ends_when_the_receiver_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let mut followed = Followed::new(directory.path());
    assert_eq!(followed.next().await, SourceEvent::Complete);
    drop(followed.events);
    timeout(PATIENCE, followed.running).await.expect("still running").unwrap();
}

#[tokio::test]
async fn ten_thousand_objects_in_a_hundred_files() {
    let directory = tempfile::tempdir().unwrap();
    for file in 0..100 {
        let mut text = String::new();
        for index in 0..100 {
            let service = mk_service(&format!("10.96.{file}.{}", index + 1));
            text.push_str(&service.replace("name: a", &format!("name: s-{file}-{index}")));
            text.push_str("---\n");
        }
        fs::write(directory.path().join(format!("{file}.yaml")), text).unwrap();
    }
    let mut followed = Followed::new(directory.path());
    let mut n_services = 0;
    loop {
        match followed.next().await {
            SourceEvent::Change(Event::ServiceApplied(_)) => n_services += 1,
            SourceEvent::Complete => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(n_services, 10_000);
}

/// A list as `kubectl get -o json` writes it: one line an object, its own kind at the end.
#[test]
fn ten_thousand_objects_in_a_list() {
    let object = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"sN"},"spec":{}}"#;
    let items: Vec<_> = (0..10_000).map(|index| object.replace('N', &index.to_string())).collect();
    let text = format!(r#"{{"apiVersion":"v1","items":[{}],"kind":"List"}}"#, items.join(","));
    assert_eq!(parse(text.as_bytes()).unwrap().len(), 10_000);
}

/// The examples that the project shows people have nothing wrong in them.
#[test]
fn the_examples_are_fine() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples");
    let files = fs::read_dir(&directory).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        (FileName::from(name), FileChange::Read(fs::read(&path).unwrap()))
    });
    let outcome = Folder::new(&directory, &Options::new("node1")).apply(files);
    assert_eq!(outcome.warnings, []);
    let services = |event: &&Event| matches!(event, Event::ServiceApplied(_));
    let slices = |event: &&Event| matches!(event, Event::SliceApplied(_));
    assert_eq!(outcome.events.iter().filter(services).count(), 6);
    assert_eq!(outcome.events.iter().filter(slices).count(), 6);
}
