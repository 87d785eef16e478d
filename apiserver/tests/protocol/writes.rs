//! Events: what clients write, and what is refused of it.

use apiserver::{Options, Resource};
use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, server};

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn event(name: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "reportingController": "kube-ipvs",
        "reportingInstance": "kube-ipvs-n1",
        "action": "Start",
        "reason": "Started",
        "type": "Normal",
        "regarding": {"kind": "Node", "name": "n1"},
        "note": "it has started",
    })
}

async fn post(client: &mut Client, path: &str, body: &Value) -> (u16, Value) {
    let body = ("application/json", body.to_string());
    let answer = client.send(Method::POST, path, body).await.unwrap();
    (answer.status.as_u16(), answer.json().await)
}

#[tokio::test]
async fn events_are_created_patched_and_read() {
    let server = server(Options::default());
    let mut client = Client::new(&server).await;
    let (status, created) = post(&mut client, EVENTS, &event("started.1")).await;
    assert_eq!((status, &created["kind"]), (201, &json!("Event")));
    let (status, again) = post(&mut client, EVENTS, &event("started.1")).await;
    assert_eq!((status, &again["reason"]), (409, &json!("AlreadyExists")));

    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:05:05.000006Z"}});
    let path = format!("{EVENTS}/started.1");
    let merge = "application/merge-patch+json";
    let patch = |patch: &Value| (merge, patch.to_string());
    let answer = client.send(Method::PATCH, &path, patch(&series)).await.unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json().await["series"]["count"], 2);
    let list = client.good(EVENTS).await;
    assert_eq!(list["items"][0]["series"]["count"], 2);
    assert_eq!(list["items"][0]["note"], "it has started");
    assert_eq!(server.events()[0]["kind"], "Event");

    // A null takes a field away.
    let answer = client.send(Method::PATCH, &path, patch(&json!({"series": null}))).await.unwrap();
    assert_eq!(answer.json().await.get("series"), None);
    let missing = format!("{EVENTS}/another");
    let answer = client.send(Method::PATCH, &missing, patch(&series)).await.unwrap();
    assert_eq!(answer.status, 404);
    let other = ("application/yaml", "{}".to_owned());
    assert_eq!(client.send(Method::PATCH, &path, other).await.unwrap().status, 415);
}

#[tokio::test]
async fn what_the_real_server_refuses_is_refused() {
    let server = server(Options::default());
    let mut client = Client::new(&server).await;
    let long = "x".repeat(1025);
    for (field, value, cause) in [
        ("eventTime", json!(null), "eventTime"),
        ("reportingController", json!(""), "reportingController"),
        ("reportingInstance", json!(&long[..129]), "reportingInstance"),
        ("action", json!(""), "action"),
        ("reason", json!(""), "reason"),
        ("note", json!(long), "message"),
        ("type", json!("Bad"), "type"),
        ("series", json!({"count": 1, "lastObservedTime": "x"}), "series.count"),
    ] {
        let mut wrong = event("wrong");
        wrong[field] = value;
        let (status, answer) = post(&mut client, EVENTS, &wrong).await;
        assert_eq!((status, &answer["reason"]), (422, &json!("Invalid")), "{field}");
        let causes = answer["details"]["causes"].as_array().unwrap();
        assert_eq!((causes.len(), &causes[0]["field"]), (1, &json!(cause)), "{answer}");
    }
    // An event about a node is not for any namespace.
    let mut elsewhere = event("elsewhere");
    elsewhere["metadata"]["namespace"] = json!("shop");
    let shop = "/apis/events.k8s.io/v1/namespaces/shop/events";
    assert_eq!(post(&mut client, shop, &elsewhere).await.0, 422);
    assert_eq!(post(&mut client, EVENTS, &elsewhere).await.0, 400);
    assert_eq!(post(&mut client, "/apis/events.k8s.io/v1/events", &event("e")).await.0, 405);
    assert_eq!(post(&mut client, EVENTS, &json!({"kind": "Service"})).await.0, 400);
    assert_eq!(post(&mut client, EVENTS, &json!([])).await.0, 400);
    assert_eq!(server.list(Resource::Events), Vec::<Value>::new());
}
