//! The servers as clients see them: real connections on 127.0.0.1.

use std::collections::HashMap;
use std::io;
use std::sync::Mutex;

use axum::Router;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use rustix::io::Errno;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use std::num::NonZeroU16;

use plan::local::HealthCheck;
use plan::mode::Mode;
use plan::model::ServiceName;

use super::*;
use crate::listen::Server;
use crate::metrics::ServedMode;
use crate::service_health::NodeAddresses;

/// An answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// As they were sent, but for the date.
    pub(super) headers: Vec<String>,
    pub(super) body: String,
}

/// Sends a request as it stands, and reads to the end of the connection.
pub(super) async fn exchange(address: SocketAddr, request: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.filter(|line| !line.starts_with("Date:")).map(str::to_owned).collect();
    Ok(Answer { status, headers, body: body.to_owned() })
}

/// A request without a body.
pub(super) async fn ask(address: SocketAddr, method: &str, path: &str) -> Answer {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n");
    exchange(address, &request).await.unwrap()
}

pub(super) async fn get(address: SocketAddr, path: &str) -> Answer {
    ask(address, "GET", path).await
}

/// Waits until a process listens on an address.
pub(super) async fn until_listening(address: SocketAddr) {
    while TcpStream::connect(address).await.is_err() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// An address on which no process listens.
pub(super) fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn options() -> Options {
    Options {
        families: Family::BOTH.to_vec(),
        sync_period: Duration::from_secs(30),
        health_address: Some(free_address()),
        metrics_address: Some(free_address()),
        hard_fail: true,
        node_port_addresses: NodePortAddresses::All,
        pages: Pages {
            mode: ServedMode { configured: "ipvs".to_owned(), effective: Mode::Ipvs },
            configz: json!({"kubeproxy.config.k8s.io": {"kind": "KubeProxyConfiguration"}}),
            flags: vec![("v".to_owned(), "2".to_owned()), ("config".to_owned(), "/c".to_owned())],
            profiling: None,
            flagz: true,
            statusz: true,
            following: Some(Box::new(|| "Service: following\n".to_owned())),
            more: Router::new(),
        },
    }
}

/// Servers that run: the health server's address, the metrics server's, and the handles.
struct Running {
    health_address: SocketAddr,
    metrics_address: SocketAddr,
    health: SharedHealth,
    metrics: Arc<Metrics>,
    task: JoinHandle<Result<Infallible, ListenError>>,
}

async fn running(options: Options) -> Running {
    let (failures, _) = mpsc::channel(1);
    let [health_address, metrics_address] =
        [options.health_address.unwrap(), options.metrics_address.unwrap()];
    let servers = Servers::new(options, failures, Listeners::new()).unwrap();
    let (health, metrics) = (servers.health(), servers.metrics());
    let task = tokio::spawn(servers.run());
    // Both listen as soon as the task has run once.
    while TcpStream::connect(metrics_address).await.is_err() {
        assert!(!task.is_finished(), "{:?}", task.await);
        tokio::task::yield_now().await;
    }
    Running { health_address, metrics_address, health, metrics, task }
}

#[tokio::test]
async fn the_health_server_answers_at_two_paths() {
    let servers = running(options()).await;
    let at = servers.health_address;
    let unknown = get(at, "/healthz").await;
    assert_eq!(unknown.status, 503, "{unknown:?}");
    servers.health.node_leaving(false);
    let healthz = get(at, "/healthz").await;
    assert_eq!(healthz.status, 200, "{healthz:?}");
    let length = format!("Content-Length: {}", healthz.body.len());
    assert_eq!(
        healthz.headers,
        [
            "Content-Type: application/json",
            "X-Content-Type-Options: nosniff",
            &length,
            "Connection: close",
        ]
    );
    let body: Value = serde_json::from_str(&healthz.body).unwrap();
    assert_eq!(body["nodeEligible"], true);
    assert!(healthz.body.starts_with(r#"{"lastUpdated":""#) && healthz.body.ends_with("}}"));
    servers.health.node_leaving(true);
    assert_eq!(get(at, "/healthz").await.status, 503);
    assert_eq!(ask(at, "POST", "/livez").await.status, 200);
    assert_eq!(get(at, "/").await.status, 404);
    assert_eq!(get(at, "/healthz/ping").await.status, 404);
    let counted = servers.metrics.text().unwrap();
    for line in [
        "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 2",
        "kubeproxy_proxy_livez_total{code=\"200\"} 1",
        "kubeproxy_proxy_livez_total{code=\"503\"} 0",
    ] {
        assert!(counted.lines().any(|counted| counted == line), "{line} is not in\n{counted}");
    }
}

#[tokio::test]
async fn the_metrics_server_has_kube_proxys_pages() {
    let servers = running(options()).await;
    let at = servers.metrics_address;
    let plain = "Content-Type: text/plain; charset=utf-8".to_owned();
    let cases = [
        ("/healthz", "ok"),
        ("/healthz/ping", "ok"),
        ("/healthz?verbose", "[+]ping ok\nhealthz check passed\n"),
        ("/proxyMode", "ipvs"),
        ("/following", "Service: following\n"),
    ];
    for (path, body) in cases {
        let answer = get(at, path).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, body), "{path}");
        assert!(answer.headers.contains(&plain), "{path}: {answer:?}");
    }
    let configz = get(at, "/configz").await;
    assert_eq!(configz.body, r#"{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration"}}"#);
    assert!(configz.headers.contains(&"Content-Type: application/json".to_owned()));
    for path in ["/", "/nothing", "/proxymode", "/debug/flags/v", "/debug/pprof/profile"] {
        assert_eq!(get(at, path).await.status, 404, "{path}");
    }
}

/// Metrics that take as long as they are told to, as those of many Services take long.
struct SlowMetrics {
    desc: Desc,
    begun: mpsc::UnboundedSender<()>,
    end: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Collector for SlowMetrics {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.begun.send(()).unwrap();
        // Who waits for health meanwhile never tells it to end.
        self.end.lock().unwrap().recv_timeout(Duration::from_secs(30)).unwrap();
        Vec::new()
    }
}

#[tokio::test]
async fn health_is_answered_while_a_scrape_is_gathered() {
    let servers = running(options()).await;
    servers.health.node_leaving(false);
    let (begun, mut has_begun) = mpsc::unbounded_channel();
    let (end, until) = std::sync::mpsc::channel();
    let desc = Desc::new("slow".to_owned(), "Slow.".to_owned(), Vec::new(), HashMap::new());
    let slow = SlowMetrics { desc: desc.unwrap(), begun, end: Mutex::new(until) };
    servers.metrics.add(slow).unwrap();
    let address = servers.metrics_address;
    let scrapes = [(); 2].map(|()| tokio::spawn(get(address, "/metrics")));
    has_begun.recv().await.unwrap();
    for address in [servers.health_address, servers.metrics_address] {
        assert_eq!(get(address, "/healthz").await.status, 200);
    }
    assert!(has_begun.try_recv().is_err(), "one is gathered at a time");
    for _ in &scrapes {
        end.send(()).unwrap();
    }
    for scrape in scrapes {
        assert_eq!(scrape.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn metrics_are_scraped_in_the_text_format() {
    let servers = running(options()).await;
    let answer = get(servers.metrics_address, "/metrics").await;
    let media_type = "Content-Type: text/plain; version=0.0.4; charset=utf-8".to_owned();
    assert!(answer.status == 200 && answer.headers.contains(&media_type), "{answer:?}");
    let types: String = answer
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(types, include_str!("metrics/scrape.types"));
}

#[tokio::test]
async fn checks_of_the_metrics_server_are_counted_and_forgotten() {
    let servers = running(options()).await;
    let at = servers.metrics_address;
    let one = r#"kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 1"#;
    assert!(!get(at, "/metrics/slis").await.body.contains("kubernetes_healthcheck"));
    get(at, "/healthz").await;
    let slis = get(at, "/metrics/slis").await.body;
    assert!(slis.contains(one) && slis.contains("process_start_time_seconds"), "{slis}");
    assert_eq!(ask(at, "DELETE", "/metrics/slis").await.body, "metrics reset\n");
    assert!(!get(at, "/metrics/slis").await.body.contains("kubernetes_healthcheck"));
}

#[tokio::test]
async fn flags_and_status_have_the_form_that_the_client_accepts() {
    let servers = running(options()).await;
    let at = servers.metrics_address;
    let accepting = async |path: &str, accept: &str| {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: n1\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        );
        exchange(at, &request).await.unwrap()
    };
    let text = get(at, "/flagz").await.body;
    assert!(text.starts_with("\nkube-proxy flagz\nWarning: "), "{text}");
    assert!(text.ends_with("\n\nconfig=/c\nv=2\n"), "{text}");
    let flags = accepting("/flagz", "application/json;v=v1beta1;g=config.k8s.io;as=Flagz").await;
    assert_eq!(
        serde_json::from_str::<Value>(&flags.body).unwrap(),
        json!({
            "kind": "Flagz",
            "apiVersion": "config.k8s.io/v1beta1",
            "metadata": {"name": "kube-proxy"},
            "flags": {"config": "/c", "v": "2"},
        })
    );
    let old = "application/yaml, application/json; v=v1alpha1; g=config.k8s.io; as=Statusz";
    let status = accepting("/statusz", old).await;
    let body: Value = serde_json::from_str(&status.body).unwrap();
    assert_eq!(body["apiVersion"], "config.k8s.io/v1alpha1");
    assert_eq!(body["paths"].as_array().unwrap().len(), 5);
    let is_warning = |header: &String| header.starts_with("Warning: 299 - \"");
    assert!(status.headers.iter().any(is_warning), "{status:?}");
    assert!(!flags.headers.iter().any(is_warning), "{flags:?}");
    let text = accepting("/statusz", "text/html, */*;q=0.8").await.body;
    assert!(text.contains("\nUp: 0 hr 00 min 0"), "{text}");
    assert!(text.contains("\nPaths: /configz /flagz /healthz /metrics /proxyMode\n"), "{text}");
    for accept in
        ["application/json", "image/png", "application/json;v=v1;g=config.k8s.io;as=Flagz"]
    {
        assert_eq!(accepting("/flagz", accept).await.status, 406, "{accept}");
    }
}

#[tokio::test]
async fn verbosity_is_changed_where_profiling_is_on() {
    let set = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&set);
    let mut options = options();
    options.pages.profiling = Some(Box::new(move |verbosity| {
        if verbosity == 9 {
            return Err("not today".to_owned());
        }
        kept.lock().unwrap().push(verbosity);
        Ok(())
    }));
    let servers = running(options).await;
    let at = servers.metrics_address;
    let change = async |body: &str| {
        let request = format!(
            "PUT /debug/flags/v HTTP/1.1\r\nHost: n1\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        );
        let answer = exchange(at, &request).await.unwrap();
        (answer.status, answer.body)
    };
    let said = "successfully set klog.logging.verbosity to 6".to_owned();
    assert_eq!(change("6\n").await, (200, said));
    assert_eq!(change("much").await.0, 400);
    assert_eq!(change("9").await, (500, "not today".to_owned()));
    assert_eq!(change(&"1".repeat(1_000)).await.0, 413);
    assert_eq!(*set.lock().unwrap(), [6]);
    assert_eq!(get(at, "/debug/flags/v").await.status, 405);
    let profile = get(at, "/debug/pprof/profile?seconds=1").await;
    assert!(profile.status == 501 && profile.body.contains("perf record"), "{profile:?}");
}

#[tokio::test(start_paused = true)]
async fn a_port_that_is_taken_is_the_end_or_is_tried_again() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let error = listen::listen(Server::Metrics, address, true).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(&format!("metrics server: cannot listen on {address}: ")), "{text}");
    assert!(text.contains(&io::Error::from(Errno::ADDRINUSE).to_string()), "{text}");
    assert!(matches!(error.server, Server::Metrics), "{error:?}");
    let again = tokio::spawn(listen::listen(Server::Health, address, false));
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert!(!again.is_finished());
    drop(taken);
    let started = tokio::time::Instant::now();
    assert_eq!(again.await.unwrap().unwrap().local_addr().unwrap(), address);
    assert_eq!(started.elapsed(), Duration::from_secs(3));
}

#[tokio::test]
async fn servers_that_cannot_listen_end_and_close_what_they_had() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = options();
    options.metrics_address = Some(taken.local_addr().unwrap());
    let health_address = options.health_address.unwrap();
    let (failures, _) = mpsc::channel(1);
    let ended = Servers::new(options, failures, Listeners::new()).unwrap().run().await;
    assert_eq!(ended.unwrap_err().server, Server::Metrics);
    while TcpStream::connect(health_address).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn dropping_the_servers_and_their_listeners_closes_everything() {
    let servers = running(options()).await;
    let mut idle = TcpStream::connect(servers.metrics_address).await.unwrap();
    assert_eq!(get(servers.metrics_address, "/proxyMode").await.status, 200);
    servers.task.abort();
    assert!(servers.task.await.unwrap_err().is_cancelled());
    assert_eq!(idle.read(&mut [0]).await.unwrap_or(0), 0);
    assert!(TcpStream::connect(servers.metrics_address).await.is_err());
}

#[tokio::test]
async fn an_unspecified_address_is_both_families() {
    let listener = listen::open("0.0.0.0:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let host_has_v6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    assert_eq!(TcpStream::connect(("::1", port)).await.is_ok(), host_has_v6);
    let exact = listen::open_exactly("0.0.0.0:0".parse().unwrap()).unwrap();
    let port = exact.local_addr().unwrap().port();
    assert!(TcpStream::connect(("::1", port)).await.is_err());
}

#[tokio::test]
async fn the_oldest_connection_is_closed_for_a_new_one() {
    let listener = listen::open(free_address()).unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(|| async { "yes" });
    let task = tokio::spawn(listen::serve(listener, router, 2));
    let mut oldest = TcpStream::connect(address).await.unwrap();
    let mut other = TcpStream::connect(address).await.unwrap();
    // Neither says anything, and yet others are answered.
    for _ in 0..3 {
        assert_eq!(get(address, "/").await.body, "yes");
    }
    assert_eq!(oldest.read(&mut [0]).await.unwrap_or(0), 0);
    // Those that were answered have gone, so it was one connection that had to make room.
    let request = b"GET / HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n";
    other.write_all(request).await.unwrap();
    let mut answer = String::new();
    other.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("yes"), "{answer}");
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_header_is_waited_for_as_long_as_an_idle_connection() {
    let listener = listen::open(free_address()).unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(|| async { "yes" });
    let task = tokio::spawn(listen::serve(listener, router, 2));
    let started = tokio::time::Instant::now();
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(b"GET / HTTP/1.1\r\nHost: ").await.unwrap();
    let mut rest = Vec::new();
    half.read_to_end(&mut rest).await.unwrap();
    assert!(!String::from_utf8_lossy(&rest).contains("200"), "{rest:?}");
    assert!(started.elapsed() <= Duration::from_secs(76), "{:?}", started.elapsed());
    task.abort();
}

/// A request on a connection that stays open, and the status of the answer.
async fn ask_on(stream: &mut TcpStream, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: n1\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4_096];
    let length = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

fn options_at(health: SocketAddr, metrics: SocketAddr, mode: Mode) -> Options {
    let mut options = options();
    (options.health_address, options.metrics_address) = (Some(health), Some(metrics));
    options.node_port_addresses = NodePortAddresses::Networks(vec!["127.0.0.0/8".parse().unwrap()]);
    options.pages.mode.effective = mode;
    options
}

fn mk_check(name: &str, address: SocketAddr) -> (ServiceName, Option<HealthCheck>) {
    let port = NonZeroU16::new(address.port()).unwrap();
    (ServiceName::new("ns", name), Some(HealthCheck { port, local_v4: Some(1), local_v6: None }))
}

#[tokio::test]
async fn a_switch_closes_no_listener_and_no_connection() {
    let [health, metrics, first, second] = [(); 4].map(|()| free_address());
    let listeners = Listeners::new();
    let begin = |options: Options| {
        let (failures, _) = mpsc::channel(1);
        Servers::new(options, failures, Arc::clone(&listeners)).unwrap()
    };
    let servers = begin(options_at(health, metrics, Mode::Ipvs));
    servers.health().node_leaving(false);
    let served = tokio::spawn(servers.run());
    let local = NodeAddresses { local: vec![[127, 0, 0, 1].into()], node: Vec::new() };
    let checks = [mk_check("first", first), mk_check("second", second)];
    listeners.checks.round(checks, Some(local.clone()));
    for address in [health, metrics, first, second] {
        until_listening(address).await;
    }
    let mut of_health = TcpStream::connect(health).await.unwrap();
    let mut of_metrics = TcpStream::connect(metrics).await.unwrap();
    let mut of_check = TcpStream::connect(first).await.unwrap();
    assert!(ask_on(&mut of_metrics, "/proxyMode").await.ends_with("\r\n\r\nipvs"));

    // Between two tenures, everything is answered.
    served.abort();
    assert!(served.await.unwrap_err().is_cancelled());
    for (stream, path) in
        [(&mut of_health, "/healthz"), (&mut of_metrics, "/healthz"), (&mut of_check, "/")]
    {
        assert!(ask_on(stream, path).await.starts_with("HTTP/1.1 200 OK"));
    }
    for address in [health, first, second] {
        assert_eq!(get(address, "/healthz").await.status, 200);
    }

    // The next one has planned one of the Services so far.
    let servers = begin(options_at(health, metrics, Mode::Iptables));
    let observed = servers.health();
    let _served = tokio::spawn(servers.run());
    listeners.checks.round([mk_check("second", second)], Some(local));
    while !ask_on(&mut of_metrics, "/proxyMode").await.ends_with("\r\n\r\niptables") {}
    for (stream, path) in [(&mut of_health, "/healthz"), (&mut of_check, "/")] {
        assert!(ask_on(stream, path).await.starts_with("HTTP/1.1 200 OK"), "{path}");
    }
    assert!(observed.lock().is_healthy(Moment::now()));
    listeners.checks.planned_all();
    while TcpStream::connect(first).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(get(second, "/").await.status, 200);
    assert_eq!(get(health, "/healthz").await.status, 200);
}

#[tokio::test]
async fn changed_addresses_are_moved() {
    let [health, metrics, other] = [(); 3].map(|()| free_address());
    let listeners = Listeners::new();
    let begin = |options: Options| {
        let (failures, _) = mpsc::channel(1);
        let servers = Servers::new(options, failures, Arc::clone(&listeners)).unwrap();
        tokio::spawn(servers.run())
    };
    let served = begin(options_at(health, metrics, Mode::Ipvs));
    until_listening(health).await;
    served.abort();
    drop(served.await);
    let served = begin(options_at(other, metrics, Mode::Ipvs));
    until_listening(other).await;
    while TcpStream::connect(health).await.is_ok() {
        tokio::task::yield_now().await;
    }
    served.abort();
    drop(served.await);
    // The same port at another address.
    let everywhere = SocketAddr::from(([0, 0, 0, 0], other.port()));
    let served = begin(options_at(everywhere, metrics, Mode::Ipvs));
    let second = SocketAddr::from(([127, 0, 0, 2], other.port()));
    until_listening(second).await;
    assert!(!served.is_finished());
}
