//! The program with a kernel in memory, asked for its health in the middle of a round.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use plan::actual::Actual;
use serde_json::json;
use tokio_util::task::TaskTracker;

use crate::app::changes::Changes;
use crate::app::orders::Orders;
use crate::app::serving::ServingThread;
use crate::app::source::Source;
use crate::app::tenure::Threads;
use crate::app::tests::mk_parts;
use config::cli;
use config::{Arguments, Configuration};
use kernel::fake::Fake;
use reconcile::observer::{Observer, Report};
use source::Options;
use source::manifests::Manifests;

/// Longer than anything takes that goes well, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(45);

/// Number of operations from which on a round is a large one.
const LARGE: usize = 4_096;

const PORTS: u16 = 2_000;

/// Keeps the event loop's thread inside the first large round until it is let go.
#[derive(Debug)]
struct Gate {
    /// Receives the number of operations that were planned.
    entered: mpsc::Sender<usize>,
    /// Ends the wait when its sender is dropped.
    leave: mpsc::Receiver<()>,
}

impl Observer for Gate {
    fn report(&mut self, report: &Report<'_>) {
        let Report::Planned { plan, .. } = report else { return };
        if plan.ops.len() >= LARGE && self.entered.send(plan.ops.len()).is_ok() {
            // It ends by an error: nothing is ever sent.
            let _ = self.leave.recv();
        }
    }
}

/// A Service of 2,000 UDP ports at five addresses, as a manifest, and its only endpoint.
fn manifest() -> String {
    let port = |number| {
        let name = format!("port-{number}");
        json!({"name": name, "port": number, "protocol": "UDP"})
    };
    let ports: Vec<_> = (1..=PORTS).map(port).collect();
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "large", "namespace": "default"},
        "spec": {
            "type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
            "externalIPs": ["203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4"],
            "ports": ports,
        },
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "large", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "large"},
        },
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": [{"addresses": ["10.244.0.1"], "conditions": {"ready": true}}],
    });
    format!("{service}\n---\n{slice}\n")
}

/// An address on which no process listens.
pub(super) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The configuration of a program with these words on its command line.
fn configuration(words: &[&str]) -> Configuration {
    let words = ["kube-ipvs"].iter().chain(words).map(Into::into);
    Configuration::load(&cli::parse(words).unwrap()).unwrap()
}

/// Answer to a request, or an error if none comes while the test has patience.
fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let started = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(address) {
            Err(error) if started.elapsed() >= PATIENCE => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(2)),
            Ok(stream) => break stream,
        }
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Health and metrics are answered while the loop's thread has not come back from a round.
#[test]
fn health_and_metrics_are_answered_in_the_middle_of_a_round_with_a_very_large_service() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("large.yaml"), manifest()).unwrap();
    let (health, metrics) = (free_address(), free_address());
    let configuration = configuration(&[
        "--hostname-override=node-1",
        &format!("--manifests={}", folder.path().display()),
        &format!("--healthz-bind-address={health}"),
        &format!("--metrics-bind-address={metrics}"),
    ]);
    let (entered, entering) = mpsc::channel();
    let (let_go, leave) = mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let program = thread::spawn(move || {
        let local_addresses = [[192, 0, 2, 11].into()].into_iter().collect();
        let source = Manifests::new(folder.path(), &Options::new("node-1")).unwrap();
        let kernel = Fake::new(Actual { local_addresses, ..Actual::default() });
        let gate = Box::new(Gate { entered, leave });
        let parts = mk_parts(&configuration, Source::Manifests(source), None, kernel, gate);
        let at_work = TaskTracker::new();
        let threads = Threads::start(&at_work, ServingThread::start().unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let shutdown = async {
            let _ = ended.await;
        };
        let (arguments, mut orders) = (Arguments::default(), Orders::default());
        let (arguments, orders) = (&arguments, &mut orders);
        let changes = Changes {
            arguments,
            configured: &configuration,
            rejected: None,
            is_rejected: std::sync::Arc::default(),
            orders,
        };
        runtime.block_on(parts.run(&threads, &at_work, shutdown, changes)).unwrap();
    });
    let ops = entering.recv_timeout(PATIENCE).expect("a large round is planned");
    assert!(ops >= LARGE, "{ops}");
    // The loop's thread goes on when `let_go` is dropped, so all of these come before.
    for (address, path) in [(health, "/livez"), (health, "/healthz"), (metrics, "/metrics")] {
        let answer = get(address, path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {answer}");
    }
    drop((let_go, entering));
    end.send(()).unwrap();
    program.join().unwrap();
}
