#[cfg(feature = "browser-tests")]
mod browser;
mod pictures;

use std::net::{IpAddr, SocketAddr};

use axum::Json;
use axum::extract::Query;
use axum::http::header::{CONTENT_SECURITY_POLICY, LOCATION};
use plan::kernel_objects::Frontend;
use plan::model::Protocol;
use plan::problem::Problem;
use serde_json::{Value, json};

use super::*;
use crate::API_VERSION;
use crate::answers::Reason;
use serve::listen::Peer;

/// Elements of HTML that have no end.
const VOID: [&str; 3] = ["meta", "link", "input"];

fn answer(kind: &str, mut content: Value) -> Json<Value> {
    content["apiVersion"] = API_VERSION.into();
    content["kind"] = kind.into();
    Json(content)
}

fn status() -> Value {
    json!({
        "program": {"version": "v0.1.0", "commit": "abc", "pid": 7, "node": "node-1", "seconds": 7_384.0,
            "kernelRelease": "6.12.0"},
        "mode": {"served": "ipvs", "configured": "auto", "fallenBack": null, "families": ["IPv4", "IPv6"],
            "isHeldUp": false, "leftByIpvs": null},
        "source": {"manifests": null, "following": ["Service: following, heard of 3 s ago"]},
        "input": {"services": 12, "slices": 14, "endpoints": 40, "withWarnings": 1, "waiting": 0,
            "waitingSeconds": null},
        "kernel": {"inSyncOnce": true, "virtualServers": 30, "realServers": 80, "addresses": 13,
            "operations": 500, "refused": 2, "driftRepaired": 1, "auditPasses": 9, "failedReadings": 0,
            "pending": 1, "pendingFirst": [{"operation": "add 10.96.0.9 to <b>", "reason": "full",
                "attempts": 3}],
            "sysctlMismatches": 0, "sysctlsPutBack": 0, "flowsRemoved": 4},
        "draining": {"virtualServers": 1, "connections": 2, "byHand": 3},
        "sets": [{"name": "KUBE-CLUSTER-IP", "entries": 65_000, "capacity": 65_536},
            {"name": "KUBE-LOOP-BACK", "entries": 0, "capacity": 65_536}],
        "errors": [{"number": 1, "at": "2026-11-24T03:00:00.000Z", "what": "write",
            "service": "shop/cart", "isError": true, "text": "refused", "seconds": null}],
    })
}

fn services() -> Value {
    json!({
        "services": [{"namespace": "shop", "name": "cart", "type": "ClusterIP",
            "clusterAddresses": ["10.96.0.10"], "externalAddresses": ["203.0.113.9"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080}],
            "endpoints": 3, "ready": 2, "used": 2, "warnings": 1,
            "connections": {"active": 3, "inactive": 1}}],
        "next": "shop/cart",
        "uncounted": null,
    })
}

fn traffic(connections: u64) -> Value {
    json!({"connections": 9, "incomingPackets": 9, "outgoingPackets": 9, "incomingBytes": 9,
        "outgoingBytes": 9, "connectionsPerSecond": connections, "incomingPacketsPerSecond": 0,
        "outgoingPacketsPerSecond": 0, "incomingBytesPerSecond": 1_200, "outgoingBytesPerSecond": 40_000})
}

fn endpoint(address: &str, used: &str, weight: Option<u32>, draining: Option<f64>) -> Value {
    let counted = weight.map(|_| 2);
    json!({"endpoint": address, "node": "node-1", "zone": null, "hints": null, "use": used,
        "weight": weight, "active": counted, "inactive": counted, "drainingSeconds": draining,
        "traffic": weight.map(|_| traffic(3))})
}

/// A warning in the planner's words.
fn warning() -> String {
    let address = IpAddr::from([203, 0, 113, 9]);
    let frontend = Frontend { address, protocol: Protocol::Tcp, port: 443 };
    Problem::FrontendTwice { frontend }.to_string()
}

fn service(name: &str) -> Value {
    let frontend = |address: &str, port: u16, kind: &str, endpoints: Value| {
        json!({"protocol": "TCP", "address": address, "port": port, "portName": "http", "kind": kind,
            "trafficPolicy": "Cluster", "hints": "none", "internalFrontendOf": null, "takenBy": null,
            "scheduler": "rr", "persistenceSeconds": null, "isInKernel": true, "traffic": traffic(5),
            "endpoints": endpoints})
    };
    let endpoints = json!([
        endpoint("10.244.1.5:8080", "used", Some(1), None),
        endpoint("10.244.1.6:8080", "gone", Some(0), Some(61.0)),
        endpoint("10.244.2.7:8080", "notReady", None, None),
    ]);
    json!({
        "namespace": "shop", "name": name, "type": "LoadBalancer", "mode": "ipvs",
        "internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Local", "affinitySeconds": 600,
        "sourceRanges": ["192.0.2.0/24"], "healthCheck": {"port": 31000, "localEndpoints": 1},
        "isWaiting": true, "warnings": [warning()],
        "frontends": [frontend("10.96.0.10", 80, "clusterAddress", endpoints.clone()),
            frontend("203.0.113.9", 80, "loadBalancer", endpoints)],
        "moreFrontends": 0, "uncounted": null,
    })
}

fn trace() -> Value {
    json!({
        "mode": "ipvs",
        "packet": {"protocol": "tcp", "asked": "outside", "source": "192.0.2.7",
            "destination": "203.0.113.9:80", "interface": "eth0"},
        "service": "shop/cart", "arrives": true,
        "ways": [{"steps": [
            {"step": "rule", "hook": "PREROUTING", "table": "nat", "chain": "KUBE-SERVICES", "number": 3,
                "rule": "-m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER",
                "entries": ["KUBE-LOAD-BALANCER: 203.0.113.9,tcp:80"], "isOfEndpoint": false},
            {"step": "mark", "mark": "0x4000"},
            {"step": "routing", "isLocal": true},
            {"step": "virtualServer", "address": "203.0.113.9:80", "scheduler": "rr", "persistence": null},
            ], "end": "endpoint", "share": null,
            "endpoints": [{"endpoint": "10.244.1.5:8080", "weight": 1, "share": 0.5, "sees": null,
                "isMasqueraded": true}]}],
        "notes": ["the kernel is not in sync yet"],
    })
}

fn site() -> Site {
    Site::new(answers(), Handle::current(), Duration::ZERO)
}

/// Answers as the program gives them.
fn answers() -> Router {
    let failure = |reason, message: &str| FailureAnswer::new(reason, message).into_response();
    let of_service = move |Query(asked): Query<Asked>| async move {
        match asked.name.as_str() {
            "shop/cart" => answer("Service", service("cart")).into_response(),
            "shop/<i>" => answer("Service", service("<i>\"&")).into_response(),
            _ => failure(Reason::NotFound, "no Service shop/crat; is it shop/cart?"),
        }
    };
    let of_trace = move |Query(asked): Query<Asked>| async move {
        match asked.destination.parse::<SocketAddr>() {
            Ok(_) => answer("Trace", trace()).into_response(),
            Err(_) => failure(Reason::BadRequest, "it needs an address and a port"),
        }
    };
    Router::new()
        .route("/v1/status", get(|| async { answer("Status", status()) }))
        .route("/v1/services", get(|| async { answer("Services", services()) }))
        .route("/v1/service", get(of_service))
        .route("/v1/trace", get(of_trace))
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Asked {
    name: String,
    destination: String,
}

async fn ask(path: &str) -> Response {
    ask_of(site(), path).await
}

async fn ask_of(site: Site, path: &str) -> Response {
    let peer = SocketAddr::from(([127, 0, 0, 1], 40_000));
    let router = pages(site, Readers::Loopback).layer(Extension(Peer(peer)));
    let request = Request::get(path).header("Host", "localhost:10249").body(Body::empty()).unwrap();
    let Ok(response) = router.oneshot(request).await;
    response
}

async fn read(path: &str) -> (u16, String) {
    read_from(site(), path).await
}

async fn read_from(site: Site, path: &str) -> (u16, String) {
    let response = ask_of(site, path).await;
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), LONGEST_ANSWER).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[test]
fn pages_are_made_on_the_runtime_and_shared() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let console = std::thread::Builder::new().name("console".to_owned());
    let console = console.spawn(move || runtime.block_on(ended)).unwrap();
    let site = Site::new(answers(), handle, Duration::from_secs(60));
    let made = Arc::new(std::sync::Mutex::new(Vec::new()));
    let served = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for _ in 0..3 {
        let made = Arc::clone(&made);
        let render = move |found: Result<Status, Failure>| {
            let thread = std::thread::current().name().map(str::to_owned);
            made.lock().unwrap().push((thread, found.is_ok()));
            layout::page(Place::Status, "Status", |_| {})
        };
        let page = served.block_on(site.show("/v1/status", &[], render));
        assert_eq!(page.status, StatusCode::OK);
    }
    assert_eq!(*made.lock().unwrap(), [(Some("console".to_owned()), true)]);
    drop(end);
    assert!(console.join().unwrap().is_err(), "it is told to end");
}

/// Checks that each element that begins ends, in order, and that nothing runs or is styled in place.
fn assert_well_formed(page: &str) {
    let mut open = Vec::new();
    for tag in page.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').unwrap();
        let name = tag.split_whitespace().next().unwrap();
        if let Some(ended) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(ended), "{page}");
        } else if !name.starts_with('!') && !VOID.contains(&name) {
            open.push(name);
        }
        assert!(name != "script" || (tag.contains("src=") && text.is_empty()), "{tag}");
        assert!(!tag.contains("style=") && !tag.contains(" on"), "{tag}");
        assert!(name != "style", "{tag}");
    }
    assert!(open.is_empty(), "{open:?}");
}

#[tokio::test]
async fn every_page_is_whole_html_without_scripts_in_it() {
    for (path, expected) in [
        ("/console/", "node-1"),
        ("/console/services", "cart</a>"),
        ("/console/service?name=shop/cart", "10.96.0.10:80"),
        ("/console/trace", "<form"),
        ("/console/trace?source=outside&destination=203.0.113.9:80", "KUBE-LOAD-BALANCER"),
    ] {
        let (status, page) = read(path).await;
        assert_eq!(status, 200, "{path}: {page}");
        assert!(page.starts_with("<!doctype html>\n<html lang=\"en\">"), "{path}: {page}");
        assert!(page.contains(expected), "{path}: {page}");
        assert_well_formed(&page);
    }
}

#[tokio::test]
async fn browsers_are_told_to_keep_to_this_node() {
    for path in ["/console/", "/console/style.css", "/console/live.js", "/console/service?name=x/y"]
    {
        let response = ask(path).await;
        let policy = response.headers().get(CONTENT_SECURITY_POLICY).unwrap().to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    }
    let response = ask("/console").await;
    assert_eq!(response.headers().get(LOCATION).unwrap(), "/console/");
    assert!(!SCRIPT.contains("http:") && !SCRIPT.contains("https:"), "it asks its own page only");
}

#[tokio::test]
async fn names_are_text_and_never_elements() {
    let (_, page) = read("/console/service?name=shop/%3Ci%3E").await;
    assert!(page.contains("shop/&lt;i&gt;") && !page.contains("<i>"), "{page}");
    assert_well_formed(&page);
    let (_, page) = read("/console/").await;
    assert!(page.contains("add 10.96.0.9 to &lt;b&gt;"), "{page}");
    let (status, page) = read("/console/trace?destination=%22%3E%3Cb%3E").await;
    assert_eq!(status, 400);
    assert!(
        page.contains("value=\"&quot;&gt;&lt;b&gt;\""),
        "what was asked stays in the form: {page}"
    );
    assert!(page.contains("it needs an address and a port"), "{page}");
    assert_well_formed(&page);
}

#[tokio::test]
async fn live_pages_ask_again_and_a_form_does_not() {
    for (path, expected) in [
        ("/console/", true),
        ("/console/services", true),
        ("/console/service?name=shop/cart", true),
        ("/console/trace?source=node&destination=203.0.113.9:80", false),
    ] {
        let (_, page) = read(path).await;
        assert_eq!(page.contains("<main data-live=\"2000\">"), expected, "{path}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_said_with_the_nearest_name() {
    let (status, page) = read("/console/service?name=shop/crat").await;
    assert_eq!(status, 404);
    assert!(page.contains("no Service shop/crat; is it shop/cart?"), "{page}");
    assert_well_formed(&page);
}

#[tokio::test]
async fn a_service_is_drawn_with_its_frontends_and_each_endpoint_once() {
    let (_, page) = read("/console/service?name=shop/cart").await;
    let (_, svg) = page.split_once("<svg").unwrap();
    let (svg, tables) = svg.split_once("</svg>").unwrap();
    // Two kinds of clients, two frontends, three endpoints.
    assert_eq!(svg.matches("<rect").count(), 7, "{svg}");
    // To each frontend from its clients, and from each to the two endpoints that the kernel has.
    assert_eq!(svg.matches("<path").count(), 6, "{svg}");
    assert_eq!(svg.matches("<path class=\"draining\"").count(), 2, "{svg}");
    assert_eq!(svg.matches("<rect class=\"draining\"").count(), 1, "{svg}");
    assert_eq!(svg.matches("<rect class=\"unused\"").count(), 1, "{svg}");
    for text in ["in the cluster", "outside", "5 connections/s, 1.2 KiB/s in, 39.1 KiB/s out"] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    // What two frontends give to one endpoint is added up.
    assert!(svg.contains("4 open, 6 connections/s, 2.3 KiB/s in, 78.1 KiB/s out"), "{svg}");
    assert!(tables.contains("61s") && tables.contains("not used: not ready"), "{tables}");
    for text in [warning().as_str(), "a change of it is pending", "192.0.2.0/24"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let link = "/console/trace?source=outside&amp;destination=203.0.113.9%3A80&amp;protocol=tcp";
    assert!(tables.contains(link), "{tables}");
}

#[tokio::test]
async fn a_client_elsewhere_gets_nothing() {
    let peer = SocketAddr::from(([192, 0, 2, 7], 40_000));
    let router = pages(site(), Readers::Loopback).layer(Extension(Peer(peer)));
    let request =
        Request::get("/console/").header("Host", "localhost").body(Body::empty()).unwrap();
    let Ok(response) = router.oneshot(request).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
}
