//! An independent judge: the client and the watcher of the `kube` crate take this server for a
//! real one.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its own functions too"
)]

use std::time::Duration;

use apiserver::{Credentials, Options, Release, Resource, Server};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ObjectReference, Service};
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::watcher;
use kube::{Client, Config};
use serde_json::json;

async fn client(server: &Server, credentials: &Credentials) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig(credentials)).unwrap();
    let options = KubeConfigOptions::default();
    Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap()).unwrap()
}

fn service(name: &str, port: u16) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": port, "protocol": "TCP"}]},
    })
}

fn start(options: Options) -> (Server, Credentials) {
    let server = Server::start(options).unwrap();
    let credentials = Credentials::Certificate(server.client_certificate("judge").unwrap());
    (server, credentials)
}

/// Waits for `count` events of the watcher and returns a word for each.
async fn told<S>(events: &mut S, count: usize) -> Vec<String>
where
    S: futures::Stream<Item = watcher::Result<watcher::Event<Service>>> + Unpin,
{
    let mut told = Vec::new();
    while told.len() < count {
        let event = tokio::time::timeout(Duration::from_secs(10), events.next()).await;
        let event = event.unwrap_or_else(|_| panic!("no more events after {told:?}"));
        let port = |service: &Service| {
            service.spec.as_ref().unwrap().ports.as_ref().unwrap().first().unwrap().port
        };
        told.push(match event.unwrap().unwrap() {
            watcher::Event::Init => "init".to_owned(),
            watcher::Event::InitApply(service) => format!("init {}", port(&service)),
            watcher::Event::InitDone => "done".to_owned(),
            watcher::Event::Apply(service) => format!("apply {}", port(&service)),
            watcher::Event::Delete(service) => format!("delete {}", port(&service)),
        });
    }
    told
}

async fn follow(options: Options, config: watcher::Config) -> Server {
    let (server, credentials) = start(options);
    for port in 1..=5 {
        server.apply(service(&format!("s{port}"), port)).unwrap();
    }
    let services: Api<Service> = Api::all(client(&server, &credentials).await);
    let mut events = watcher(services, config).boxed();
    assert_eq!(
        told(&mut events, 7).await,
        ["init", "init 1", "init 2", "init 3", "init 4", "init 5", "done"]
    );
    server.apply(service("s6", 6)).unwrap();
    server.apply(service("s1", 10)).unwrap();
    assert!(server.delete(Resource::Services, "shop", "s2"));
    assert_eq!(told(&mut events, 3).await, ["apply 6", "apply 10", "delete 2"]);
    server
}

#[tokio::test]
async fn the_watcher_lists_in_pages_and_follows() {
    let server = follow(Options::default(), watcher::Config::default().page_size(2)).await;
    let requests = server.requests();
    let limits: Vec<_> = requests.iter().map(|request| request.parameter("limit")).collect();
    let two = Some("2".to_owned());
    assert_eq!(limits, [two.clone(), two.clone(), two, None]);
}

#[tokio::test]
async fn the_watcher_streams_its_list() {
    let server = follow(Options::default(), watcher::Config::default().streaming_lists()).await;
    assert_eq!(server.requests().len(), 1);
    assert_eq!(server.watches(Resource::Services), 1);
}

#[tokio::test]
async fn the_watcher_is_refused_by_an_old_server() {
    for release in [Release::V1_30, Release::V1_26] {
        let (server, credentials) = start(Options { release, ..Options::default() });
        let services: Api<Service> = Api::all(client(&server, &credentials).await);
        let config = watcher::Config::default().streaming_lists();
        let mut events = watcher(services, config).boxed();
        loop {
            match events.next().await.unwrap() {
                Ok(watcher::Event::Init) => {}
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    let told = format!("{error:?}");
                    assert!(told.contains("422") && told.contains("Invalid"), "{told}");
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn the_client_lists_and_gets() {
    let (server, _) = start(Options { tokens: vec!["secret".to_owned()], ..Options::default() });
    server.apply(service("web", 80)).unwrap();
    let client = client(&server, &Credentials::Token("secret".to_owned())).await;
    let services: Api<Service> = Api::namespaced(client, "shop");
    assert_eq!(services.list(&ListParams::default()).await.unwrap().items.len(), 1);
    assert_eq!(services.get("web").await.unwrap().spec.unwrap().ports.unwrap()[0].port, 80);
    let missing = services.get("none").await.unwrap_err();
    assert!(matches!(missing, kube::Error::Api(status) if status.is_not_found()));
    server.remove_token("secret");
    let refused = services.get("web").await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 401));
}

#[tokio::test]
async fn the_recorder_records_and_counts_events() {
    let (server, credentials) = start(Options::default());
    let reporter = Reporter { controller: "kube-ipvs".to_owned(), instance: Some("n1".to_owned()) };
    let recorder = Recorder::new(client(&server, &credentials).await, reporter);
    let node = ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some("n1".to_owned()),
        ..ObjectReference::default()
    };
    let event = Event {
        type_: EventType::Warning,
        reason: "Started".to_owned(),
        note: Some("it has started".to_owned()),
        action: "Start".to_owned(),
        secondary: None,
    };
    recorder.publish(&event, &node).await.unwrap();
    recorder.publish(&event, &node).await.unwrap();
    let events = server.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["metadata"]["namespace"], "default");
    assert_eq!(events[0]["regarding"]["name"], "n1");
    assert_eq!(events[0]["series"]["count"], 2);
}
