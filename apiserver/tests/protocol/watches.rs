//! "Efficient detection of changes", "Watch bookmarks" and "Streaming lists".

use std::time::{Duration, Instant};

use apiserver::{Options, Release, Resource, Server};
use serde_json::json;

use crate::client::{Answer, Client, server};
use crate::{SERVICES, service};

async fn watch(server: &Server, query: &str) -> Answer {
    let answer = Client::new(server).await.open(&format!("{SERVICES}?watch=true&{query}")).await;
    assert_eq!(answer.status, 200);
    answer
}

#[tokio::test]
async fn changes_after_a_version() {
    let server = server(Options::default());
    server.apply(service("a", "10.96.0.1")).unwrap();
    let from = server.resource_version();
    server.apply(service("b", "10.96.0.2")).unwrap();
    let mut watch = watch(&server, &format!("resourceVersion={from}")).await;
    assert_eq!(watch.headers["transfer-encoding"], "chunked");
    assert_eq!(watch.headers["content-type"], "application/json");
    let added = watch.event().await.unwrap();
    assert_eq!(added["type"], "ADDED");
    assert_eq!(added["object"]["kind"], "Service");
    assert_eq!(added["object"]["apiVersion"], "v1");
    server.apply(service("a", "10.96.0.9")).unwrap();
    assert_eq!(watch.told().await, format!("MODIFIED a {}", from + 2));
    // Another resource's change is not told.
    server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})).unwrap();
    server.delete(Resource::Services, "shop", "a");
    let deleted = watch.event().await.unwrap();
    assert_eq!(deleted["type"], "DELETED");
    assert_eq!(deleted["object"]["spec"]["clusterIP"], "10.96.0.9");
    assert_eq!(deleted["object"]["metadata"]["resourceVersion"], (from + 4).to_string());
    assert_eq!(server.watches(Resource::Services), 1);
    drop(watch);
    let begun = Instant::now();
    while server.watches(Resource::Services) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "the watch goes on without its client");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// "Get State and Start at Most Recent", "Get State and Start at Any".
#[tokio::test]
async fn without_a_version_the_state_comes_first() {
    let server = server(Options::default());
    server.apply(service("b", "10.96.0.1")).unwrap();
    server.apply(service("a", "10.96.0.1")).unwrap();
    for query in ["", "resourceVersion=0"] {
        let mut watch = watch(&server, query).await;
        assert_eq!(watch.told().await, "ADDED a 3");
        assert_eq!(watch.told().await, "ADDED b 2");
        assert!(watch.is_silent().await, "no bookmark was asked for");
    }
}

#[tokio::test]
async fn a_watch_from_the_future_waits_for_it() {
    let server = server(Options::default());
    let future = server.resource_version() + 2;
    let mut watch = watch(&server, &format!("resourceVersion={future}")).await;
    for name in ["a", "b", "c"] {
        server.apply(service(name, "10.96.0.1")).unwrap();
    }
    assert_eq!(watch.told().await, format!("ADDED c {}", future + 1));
}

#[tokio::test]
async fn an_old_version_is_an_error_event() {
    let server = server(Options::default());
    server.apply(service("a", "10.96.0.1")).unwrap();
    let from = server.resource_version();
    let mut early = watch(&server, &format!("resourceVersion={from}")).await;
    server.apply(service("b", "10.96.0.1")).unwrap();
    let oldest = server.compact();
    let mut late = watch(&server, &format!("resourceVersion={from}")).await;
    let event = late.event().await.unwrap();
    assert_eq!(
        event,
        json!({"type": "ERROR", "object": {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": format!("too old resource version: {from} ({oldest})"),
            "reason": "Expired", "code": 410,
        }})
    );
    assert_eq!(late.told().await, "end");
    assert_eq!(early.told().await, format!("ADDED b {oldest}"), "one that has begun goes on");
    let mut present = watch(&server, &format!("resourceVersion={oldest}")).await;
    server.delete(Resource::Services, "shop", "a");
    assert_eq!(present.told().await, format!("DELETED a {}", oldest + 1));
}

#[tokio::test]
async fn history_has_an_end() {
    let server = server(Options { history: 2, ..Options::default() });
    for name in ["a", "b", "c", "d"] {
        server.apply(service(name, "10.96.0.1")).unwrap();
    }
    assert_eq!(watch(&server, "resourceVersion=2").await.told().await, "ERROR - -");
    assert_eq!(watch(&server, "resourceVersion=3").await.told().await, "ADDED c 4");
}

/// An object that stops matching is deleted for this watch, and one that begins to match is added.
#[tokio::test]
async fn selectors_turn_changes_into_others() {
    let server = server(Options::default());
    server.apply(service("a", "None")).unwrap();
    let query = "fieldSelector=spec.clusterIP%21%3DNone&resourceVersion=1";
    let mut watch = watch(&server, query).await;
    server.apply(service("a", "10.96.0.1")).unwrap();
    assert_eq!(watch.told().await, "ADDED a 3");
    server.apply(service("a", "10.96.0.2")).unwrap();
    assert_eq!(watch.told().await, "MODIFIED a 4");
    server.apply(service("a", "None")).unwrap();
    let deleted = watch.event().await.unwrap();
    assert_eq!(deleted["type"], "DELETED");
    // The last state that matched, at the version of the change.
    assert_eq!(deleted["object"]["spec"]["clusterIP"], "10.96.0.2");
    assert_eq!(deleted["object"]["metadata"]["resourceVersion"], "5");
    server.delete(Resource::Services, "shop", "a");
    assert!(watch.is_silent().await);
}

#[tokio::test]
async fn bookmarks_tell_the_version_of_the_whole_store() {
    let bookmark_period = Duration::from_millis(100);
    let server = server(Options { bookmark_period, ..Options::default() });
    let mut watch = watch(&server, "resourceVersion=1&allowWatchBookmarks=true").await;
    assert_eq!(watch.told().await, "BOOKMARK - 1");
    server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})).unwrap();
    let bookmark = loop {
        let event = watch.event().await.unwrap();
        if event["object"]["metadata"]["resourceVersion"] == "2" {
            break event;
        }
    };
    assert_eq!(bookmark["object"]["kind"], "Service");
    assert_eq!(bookmark["object"]["apiVersion"], "v1");
    assert_eq!(bookmark["object"]["metadata"].get("annotations"), None);
}

#[tokio::test]
async fn a_watch_ends_in_good_order() {
    let server = server(Options::default());
    let begun = Instant::now();
    let mut watch = watch(&server, "resourceVersion=1&timeoutSeconds=1").await;
    assert_eq!(watch.told().await, "end");
    let lasted = begun.elapsed();
    assert!(lasted > Duration::from_millis(900) && lasted < Duration::from_secs(5), "{lasted:?}");
}

const STREAMING: &str =
    "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

#[tokio::test]
async fn a_streaming_list_says_where_it_ends() {
    let server = server(Options::default());
    for name in ["b", "a"] {
        server.apply(service(name, "10.96.0.1")).unwrap();
    }
    for version in ["", "&resourceVersion=0", "&resourceVersion=2"] {
        let mut watch = watch(&server, &format!("{STREAMING}{version}")).await;
        assert_eq!(watch.told().await, "ADDED a 3");
        assert_eq!(watch.told().await, "ADDED b 2");
        let bookmark = watch.event().await.unwrap();
        assert_eq!(bookmark["type"], "BOOKMARK");
        assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], "3");
        assert_eq!(
            bookmark["object"]["metadata"]["annotations"],
            json!({"k8s.io/initial-events-end": "true"})
        );
    }
    let mut empty = watch(&server, &format!("{STREAMING}&labelSelector=none")).await;
    assert_eq!(empty.told().await, "BOOKMARK - 3");
    server.compact();
    let mut compacted = watch(&server, &format!("{STREAMING}&resourceVersion=2")).await;
    assert_eq!(compacted.told().await, "ADDED a 3", "not older than is no exact version");
}

#[tokio::test]
async fn streaming_lists_are_refused_as_servers_do() {
    let refused = |release, query: &'static str| async move {
        let server = server(Options { release, ..Options::default() });
        let mut client = Client::new(&server).await;
        let (status, answer) = client.get(&format!("{SERVICES}?watch=true&{query}")).await;
        assert_eq!((status, &answer["reason"]), (422, &json!("Invalid")), "{query}");
        answer["details"]["causes"][0]["field"].as_str().unwrap().to_owned()
    };
    let of_match = "resourceVersionMatch";
    assert_eq!(refused(Release::V1_30, STREAMING).await, "sendInitialEvents");
    assert_eq!(refused(Release::V1_21, STREAMING).await, of_match);
    assert_eq!(refused(Release::V1_36, "sendInitialEvents=true").await, of_match);
    assert_eq!(refused(Release::V1_36, "resourceVersionMatch=NotOlderThan").await, of_match);

    // One that does not know the parameter passes over it.
    let server = server(Options { release: Release::V1_21, ..Options::default() });
    let mut ignored = watch(&server, "sendInitialEvents=true&resourceVersion=1").await;
    server.apply(service("a", "10.96.0.1")).unwrap();
    assert_eq!(ignored.told().await, "ADDED a 2");
}

/// The options are refused before the field, as `ListResource` has it.
#[tokio::test]
async fn services_are_selected_by_cluster_ip_since_1_31() {
    let field = "fieldSelector=spec.clusterIP%21%3DNone";
    for release in Release::ALL {
        let server = server(Options { release, ..Options::default() });
        let mut client = Client::new(&server).await;
        let (status, _) = client.get(&format!("{SERVICES}?{field}")).await;
        assert_eq!(status, if release.selects_services() { 200 } else { 400 }, "{release:?}");
        if !release.streams_lists() {
            let stream = format!("{SERVICES}?watch=true&{STREAMING}&{field}");
            assert_eq!(client.get(&stream).await.0, 422, "{release:?}");
        }
    }
}
