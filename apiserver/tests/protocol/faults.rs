//! Faults strike as asked for, as often as asked for, and are counted.

use std::time::{Duration, Instant};

use apiserver::{Fault, On, Options, Resource, Server};
use serde_json::json;

use crate::client::{Answer, Client, server};
use crate::{SERVICES, names, service};

async fn watch(server: &Server, query: &str) -> Answer {
    Client::new(server).await.open(&format!("{SERVICES}?watch=1&{query}")).await
}

#[tokio::test]
async fn statuses() {
    let server = server(Options::default());
    let busy = Fault::Status { code: 429, retry_after: Some(2) };
    let busy = server.inject(busy, On::list(Resource::Services).times(1));
    let down = Fault::Status { code: 503, retry_after: None };
    let down = server.inject(down, On::watch(Resource::Services).times(2));
    let mut client = Client::new(&server).await;
    let answer = client.open(SERVICES).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.headers["retry-after"]),
        (429, &"2".parse().unwrap())
    );
    let answer = answer.json().await;
    assert_eq!(answer["reason"], "TooManyRequests");
    assert_eq!(answer["details"]["retryAfterSeconds"], 2);
    client.good(SERVICES).await;
    for expected in [503, 503, 200] {
        assert_eq!(
            client.open(&format!("{SERVICES}?watch=1&timeoutSeconds=1")).await.status,
            expected
        );
        client = Client::new(&server).await;
    }
    assert_eq!((busy.hits(), down.hits()), (1, 2));
    let missing = server.inject(Fault::NotServed, On::resource(Resource::ServiceCidrs));
    let answer = client.open("/apis/networking.k8s.io/v1/servicecidrs").await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.bytes().await.0, b"404 page not found\n");
    assert_eq!(missing.hits(), 1);
    server.inject(Fault::NotJson, On::list(Resource::Services).times(1));
    let answer = client.open(SERVICES).await;
    assert_eq!(answer.status, 200);
    assert!(answer.bytes().await.0.starts_with(b"<html>"));
}

#[tokio::test]
async fn a_closed_listener_opens_again_at_its_port() {
    let server = server(Options::default());
    let mut running = watch(&server, "resourceVersion=1").await;
    let address = server.address();
    server.close();
    assert!(running.piece().await.unwrap().is_err(), "the watch is cut");
    let refused = Client::connect(&server, "localhost", None).await.err().unwrap();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    server.reopen().unwrap();
    assert_eq!(server.address(), address);
    Client::new(&server).await.good(SERVICES).await;
    let mut running = watch(&server, "resourceVersion=1").await;
    server.disconnect();
    assert!(running.piece().await.unwrap().is_err(), "the watch is cut");
    Client::new(&server).await.good(SERVICES).await;
}

#[tokio::test]
async fn a_watch_is_reset_within_an_event() {
    let server = server(Options::default());
    let mut running = watch(&server, "resourceVersion=1").await;
    server.apply(service("a", "10.96.0.1")).unwrap();
    assert_eq!(running.told().await, "ADDED a 2");
    let reset = server.inject(Fault::Reset { after: 40 }, On::watch(Resource::Services).times(1));
    server.apply(service("b", "10.96.0.2")).unwrap();
    let (bytes, error) = running.bytes().await;
    assert_eq!(bytes.len(), 40);
    assert!(bytes.starts_with(b"{"));
    let told = format!("{:?}", error.expect("an error"));
    assert!(told.contains("ConnectionReset"), "{told}");
    assert_eq!(reset.hits(), 1);

    server.inject(Fault::Reset { after: 10 }, On::list(Resource::Services).times(1));
    let answer = Client::new(&server).await.open(SERVICES).await;
    let (bytes, error) = answer.bytes().await;
    assert_eq!((bytes.len(), error.is_some()), (10, true));
}

#[tokio::test]
async fn slow_bodies() {
    let server = server(Options::default());
    server.apply(service("a", "10.96.0.1")).unwrap();
    let mut client = Client::new(&server).await;
    let size = client.open(SERVICES).await.bytes().await.0.len();
    let slow = server.inject(Fault::Slow { bytes_per_second: size }, On::list(Resource::Services));
    let begun = Instant::now();
    assert_eq!(names(&client.good(SERVICES).await), ["a"]);
    let lasted = begun.elapsed();
    assert!(lasted > Duration::from_millis(800) && lasted < Duration::from_secs(5), "{lasted:?}");
    slow.lift();
    let begun = Instant::now();
    client.good(SERVICES).await;
    assert!(begun.elapsed() < Duration::from_millis(500));
    assert_eq!(slow.hits(), 1);
}

#[tokio::test]
async fn silence_ends_when_it_is_lifted() {
    let bookmark_period = Duration::from_millis(50);
    let server = server(Options { bookmark_period, ..Options::default() });
    let query = "resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=1";
    let mut running = watch(&server, query).await;
    assert_eq!(running.told().await, "BOOKMARK - 1");
    let silence = server.inject(Fault::Silence, On::watch(Resource::Services));
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.apply(service("a", "10.96.0.1")).unwrap();
    // Bookmarks from before may be on their way still.
    let begun = Instant::now();
    while !running.is_silent().await {
        assert!(begun.elapsed() < Duration::from_secs(5), "it is not silent");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(running.is_silent().await, "not even its time ends it");
    assert_eq!(silence.hits(), 1);
    silence.lift();
    assert_eq!(running.told().await, "ADDED a 2");
}

#[tokio::test]
async fn watches_that_end_or_have_expired() {
    let server = server(Options::default());
    let mut running = watch(&server, "resourceVersion=1").await;
    let end = server.inject(Fault::End, On::watch(Resource::Services).times(2));
    assert_eq!(running.told().await, "end");
    assert_eq!(watch(&server, "resourceVersion=1").await.told().await, "end");
    assert_eq!(end.hits(), 2);

    let expired = server.inject(Fault::Expired, On::watch(Resource::Services).times(1));
    let event = watch(&server, "resourceVersion=1").await.event().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(expired.hits(), 1);

    for name in ["a", "b"] {
        server.apply(service(name, "10.96.0.1")).unwrap();
    }
    let expired = server.inject(Fault::Expired, On::list(Resource::Services).times(1));
    let mut client = Client::new(&server).await;
    let first = client.good(&format!("{SERVICES}?limit=1")).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let path = format!("{SERVICES}?limit=1&continue={token}");
    let (status, answer) = client.get(&path).await;
    assert_eq!((status, &answer["reason"]), (410, &json!("Expired")));
    assert_eq!(names(&client.good(&path).await), ["b"]);
    assert_eq!(expired.hits(), 1);
}

#[tokio::test]
async fn events_that_come_twice_or_do_not_fit() {
    let server = server(Options::default());
    let mut running = watch(&server, "resourceVersion=1").await;
    let twice = server.inject(Fault::Duplicate, On::watch(Resource::Services).times(1));
    let wrong = On::resource(Resource::Services).times(2);
    for name in ["a", "b"] {
        server.apply(service(name, "10.96.0.1")).unwrap();
    }
    let told = [running.told().await, running.told().await, running.told().await];
    assert_eq!(told, ["ADDED a 2", "ADDED a 2", "ADDED b 3"]);
    assert_eq!(twice.hits(), 1);
    let wrong = server.inject(Fault::WrongSchema, wrong);
    server.apply(service("c", "10.96.0.1")).unwrap();
    assert_eq!(running.event().await.unwrap()["object"]["spec"]["ports"], "x");
    let list = Client::new(&server).await.good(SERVICES).await;
    assert_eq!(list["items"][0]["spec"]["ports"], "x");
    assert_eq!(list["items"][1]["spec"]["ports"], json!([{"port": 80}]));
    assert_eq!(wrong.hits(), 2);
}
