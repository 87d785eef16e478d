use std::collections::BTreeMap;
use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::sync::LazyLock;
use std::time::Instant;

use plan::planner::{Plan, Planner};
use plan::settings::Settings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use reconcile::observer::{Round, RoundKind};
use reconcile::retry_queue::RetryQueue;

/// Listeners that run, and the handle that updates them.
struct World {
    updates: PortUpdates,
    meters: Meters,
    failures: mpsc::Receiver<NodePortListenFailure>,
    task: JoinHandle<()>,
}

impl World {
    fn new() -> Self {
        Self::of_at_most(CONNECTIONS)
    }

    fn of_at_most(connections: usize) -> Self {
        let (updates, meters) = (PortUpdates::default(), mk_meters());
        let (sender, failures) = mpsc::channel(8);
        let passing = Passing::new(connections, meters.clone());
        let listeners = Listeners::new(updates.clone(), passing, sender);
        Self { updates, meters, failures, task: tokio::spawn(listeners.run()) }
    }

    /// A Service has one port, and it leads there.
    fn tell(&self, name: &str, port: u16, to: SocketAddr) {
        self.updates.put(mk_ports(name, &[mk_port(port, to)]));
    }

    fn gone(&self, name: &str) {
        self.updates.put(mk_ports(name, &[]));
    }

    fn counted(&self) -> [u64; 3] {
        [&self.meters.passed, &self.meters.failed, &self.meters.refused].map(IntCounter::get)
    }

    async fn until_open(&self, connections: i64) {
        until("connections are counted", || self.meters.open.get() == connections).await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn mk_meters() -> Meters {
    let counter = || IntCounter::new("n", "n").unwrap();
    let gauge = || IntGauge::new("n", "n").unwrap();
    Meters {
        open: gauge(),
        passed: counter(),
        failed: counter(),
        refused: counter(),
        listen_failures: gauge(),
    }
}

fn mk_port(port: u16, to: SocketAddr) -> LocalhostPort {
    LocalhostPort { port: NonZeroU16::new(port).unwrap(), to }
}

fn mk_ports(name: &str, ports: &[LocalhostPort]) -> BTreeMap<ServiceName, Vec<LocalhostPort>> {
    BTreeMap::from([(ServiceName::new("ns", name), ports.to_vec())])
}

/// A port that was free a moment ago. Outgoing connections of other tests have none of them.
fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(22_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Returns a Service's listener and its address, and a port of localhost for it.
async fn mk_service() -> (TcpListener, SocketAddr, u16) {
    let service = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let address = service.local_addr().unwrap();
    (service, address, free_port())
}

/// Answers each connection with a name, and then with what it says itself, until it ends.
fn spawn_echo(service: TcpListener, name: &'static str) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = service.accept().await.unwrap();
            tokio::spawn(async move {
                stream.write_all(name.as_bytes()).await.unwrap();
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    })
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Nothing here takes long, and nothing may hang.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), work).await.unwrap()
}

/// Connects as soon as the address has a listener.
async fn connect(address: SocketAddr) -> TcpStream {
    let started = Instant::now();
    loop {
        match TcpStream::connect(address).await {
            Ok(stream) => return stream,
            Err(error) => assert!(started.elapsed() < Duration::from_secs(20), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn until_closed(address: SocketAddr) {
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The first bytes that come.
async fn read(stream: &mut TcpStream, length: usize) -> String {
    let mut bytes = vec![0; length];
    soon(stream.read_exact(&mut bytes)).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

async fn assert_echoes(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
    assert_eq!(read(stream, text.len()).await, text);
}

async fn assert_reset(stream: &mut TcpStream) {
    let outcome = soon(stream.read(&mut [0; 8])).await;
    assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn either_side_may_end_what_it_says_and_go_on_listening() {
    let world = World::new();
    let (service, to, port) = mk_service().await;
    world.tell("web", port, to);
    for the_client_ends_first in [true, false] {
        let mut client = connect(at(port)).await;
        let (mut server, _) = soon(service.accept()).await.unwrap();
        let (first, second) = if the_client_ends_first {
            (&mut client, &mut server)
        } else {
            (&mut server, &mut client)
        };
        first.write_all(b"question").await.unwrap();
        first.shutdown().await.unwrap();
        let mut heard = String::new();
        soon(second.read_to_string(&mut heard)).await.unwrap();
        assert_eq!(heard, "question");
        world.until_open(1).await;
        // More than fits into any buffer on the way.
        let answer = vec![b'x'; 8 * 1_024 * 1_024];
        let answered = async {
            second.write_all(&answer).await.unwrap();
            second.shutdown().await.unwrap();
        };
        let mut heard = Vec::new();
        let (_, length) =
            soon(async { tokio::join!(answered, first.read_to_end(&mut heard)) }).await;
        assert_eq!(length.unwrap(), answer.len());
        world.until_open(0).await;
    }
    assert_eq!(world.counted(), [2, 0, 0]);
}

#[tokio::test]
async fn a_reset_of_one_side_is_one_of_the_other() {
    let world = World::new();
    let (service, to, port) = mk_service().await;
    world.tell("web", port, to);
    for the_client_breaks_off in [true, false] {
        let client = connect(at(port)).await;
        let (server, _) = soon(service.accept()).await.unwrap();
        let (first, mut second) =
            if the_client_breaks_off { (client, server) } else { (server, client) };
        first.set_zero_linger().unwrap();
        drop(first);
        assert_reset(&mut second).await;
        world.until_open(0).await;
    }
}

#[tokio::test]
async fn a_service_that_refuses_is_a_reset() {
    let world = World::new();
    let (service, to, port) = mk_service().await;
    drop(service);
    world.tell("web", port, to);
    assert_reset(&mut connect(at(port)).await).await;
    world.until_open(0).await;
    assert_eq!(world.counted(), [0, 1, 0]);
}

#[tokio::test]
async fn connections_are_many_but_not_too_many() {
    let world = World::of_at_most(300);
    let (service, to, port) = mk_service().await;
    let _echo = spawn_echo(service, "web");
    world.tell("web", port, to);
    let mut clients = Vec::new();
    for _ in 0..300 {
        let mut client = connect(at(port)).await;
        assert_eq!(read(&mut client, 3).await, "web");
        clients.push(client);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert_echoes(client, &number.to_string()).await;
    }
    assert_eq!(world.meters.open.get(), 300);
    assert_reset(&mut connect(at(port)).await).await;
    assert_eq!(world.counted(), [300, 0, 1]);
    // One that ends makes room.
    drop(clients.pop());
    world.until_open(299).await;
    let mut client = connect(at(port)).await;
    assert_eq!(read(&mut client, 3).await, "web");
    drop(client);
    drop(clients);
    world.until_open(0).await;
    assert_eq!(world.counted(), [301, 0, 1]);
}

#[tokio::test]
async fn a_port_goes_with_its_service_and_its_connections_stay() {
    let world = World::new();
    let (service, to, port) = mk_service().await;
    let _echo = spawn_echo(service, "web");
    world.tell("web", port, to);
    let mut client = connect(at(port)).await;
    assert_eq!(read(&mut client, 3).await, "web");
    world.gone("web");
    until_closed(at(port)).await;
    assert_echoes(&mut client, "still here").await;
    // They do not keep the port from a Service that has it next.
    let (other, to, _) = mk_service().await;
    let _other = spawn_echo(other, "api");
    world.tell("api", port, to);
    assert_eq!(read(&mut connect(at(port)).await, 3).await, "api");
    assert_echoes(&mut client, "and here").await;
}

#[tokio::test]
async fn new_connections_go_where_the_service_is_now() {
    let world = World::new();
    let (first, first_to, port) = mk_service().await;
    let (second, second_to, _) = mk_service().await;
    let _echoes = [spawn_echo(first, "one"), spawn_echo(second, "two")];
    world.tell("web", port, first_to);
    let mut early = connect(at(port)).await;
    assert_eq!(read(&mut early, 3).await, "one");
    world.tell("web", port, second_to);
    let mut name = String::new();
    while name != "two" {
        name = read(&mut connect(at(port)).await, 3).await;
    }
    assert_echoes(&mut early, "where I was").await;
}

#[tokio::test]
async fn a_port_of_two_services_is_there_as_long_as_one_of_them() {
    let world = World::new();
    let (first, first_to, port) = mk_service().await;
    let (second, second_to, _) = mk_service().await;
    let _echoes = [spawn_echo(first, "one"), spawn_echo(second, "two")];
    world.tell("a", port, first_to);
    world.tell("b", port, second_to);
    assert_eq!(read(&mut connect(at(port)).await, 3).await, "one");
    world.gone("a");
    let mut name = String::new();
    while name != "two" {
        name = read(&mut connect(at(port)).await, 3).await;
    }
    world.gone("b");
    until_closed(at(port)).await;
}

#[tokio::test]
async fn only_localhost_is_listened_on() {
    let world = World::new();
    let (service, to, port) = mk_service().await;
    let _echo = spawn_echo(service, "web");
    world.tell("web", port, to);
    connect(at(port)).await;
    let elsewhere = SocketAddr::from(([127, 0, 0, 3], port));
    let error = TcpStream::connect(elsewhere).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn ipv6_has_its_own_localhost() {
    let world = World::new();
    let Ok(service) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await else {
        // This host has none; what has none is a failure that is reported.
        let to = SocketAddr::from((Ipv6Addr::LOCALHOST, 1));
        let (mut world, port) = (world, free_port());
        world.tell("web", port, to);
        let failure = soon(world.failures.recv()).await.unwrap();
        assert_eq!(failure.address, SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
        return;
    };
    let (to, port) = (service.local_addr().unwrap(), free_port());
    let _echo = spawn_echo(service, "six");
    world.tell("web", port, to);
    let mut client = connect(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await;
    assert_eq!(read(&mut client, 3).await, "six");
    TcpStream::connect(at(port)).await.unwrap_err();
}

#[tokio::test]
async fn a_port_of_another_process_is_left_alone_and_retried() {
    let mut world = World::new();
    let (service, to, port) = mk_service().await;
    let _echo = spawn_echo(service, "web");
    // A listener on all addresses has the port too.
    let taken = TcpListener::bind(("0.0.0.0", port)).await.unwrap();
    world.tell("web", port, to);
    let failure = soon(world.failures.recv()).await.unwrap();
    let expected = NodePortListenFailure {
        service: ServiceName::new("ns", "web"),
        address: at(port),
        kind: io::ErrorKind::AddrInUse,
        reason: failure.reason.clone(),
    };
    assert_eq!(failure, expected);
    until("it is counted", || world.meters.listen_failures.get() == 1).await;
    // Others are not held up, and it is not reported again.
    let free = free_port();
    world.tell("api", free, to);
    assert_eq!(read(&mut connect(at(free)).await, 3).await, "web");
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    world.failures.try_recv().unwrap_err();
    drop(taken);
    assert_eq!(read(&mut connect(at(port)).await, 3).await, "web");
    until("it is no longer counted", || world.meters.listen_failures.get() == 0).await;
}

#[tokio::test]
async fn a_port_that_is_no_longer_wanted_is_not_tried_again() {
    let mut world = World::new();
    let (_service, to, port) = mk_service().await;
    let taken = TcpListener::bind(at(port)).await.unwrap();
    world.tell("web", port, to);
    soon(world.failures.recv()).await.unwrap();
    world.gone("web");
    until("it is no longer counted", || world.meters.listen_failures.get() == 0).await;
    drop(taken);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    TcpStream::connect(at(port)).await.unwrap_err();
}

#[test]
fn a_failure_says_what_to_do() {
    let failure = |kind| {
        let service = ServiceName::new("ns", "web");
        NodePortListenFailure { service, address: at(80), kind, reason: "No".to_owned() }
            .to_string()
    };
    assert_eq!(
        failure(io::ErrorKind::PermissionDenied),
        "Service ns/web: cannot listen on 127.0.0.1:80 for its NodePort: No; a port this low needs \
         the capability CAP_NET_BIND_SERVICE, or a lower net.ipv4.ip_unprivileged_port_start: the \
         Service cannot be reached there; kube-ipvs retries"
    );
    assert!(failure(io::ErrorKind::AddrInUse).contains("`ss -ltnp`"));
    assert!(
        failure(io::ErrorKind::AddrNotAvailable).contains(": No; the Service cannot be reached")
    );
}

fn round_ended(observer: &mut LocalhostObserver, kind: RoundKind) {
    observer.report(&Report::RoundEnded(mk_round(kind)));
}

fn mk_round(kind: RoundKind) -> Round<'static> {
    static PENDING: LazyLock<RetryQueue> = LazyLock::new(RetryQueue::default);
    Round {
        families: &[],
        kind,
        took: Duration::ZERO,
        triggers: &[],
        backlog: 0,
        waiting: None,
        oldest: Duration::ZERO,
        pending: &PENDING,
    }
}

#[tokio::test]
async fn the_loop_reports_ports_after_it_has_written_them() {
    let thread = LocalhostThread::default();
    let (mut observer, updates) = (thread.observer(), thread.0.updates.clone());
    let planner = Planner::new(Settings::new("n1"));
    let ports = |name: &str, port| mk_ports(name, &[mk_port(port, at(port))]);
    for changes in [ports("web", 1), ports("api", 2), ports("web", 3)] {
        let plan = Plan { localhost: changes.into_iter().collect(), ..Plan::default() };
        observer.report(&Report::Planned { plan: &plan, planner: &planner, took: Duration::ZERO });
    }
    let peek = || updates.peek();
    assert!(peek().is_empty(), "nothing is written yet");
    round_ended(&mut observer, RoundKind::Retry);
    assert!(peek().is_empty(), "something else was");
    round_ended(&mut observer, RoundKind::Changes);
    let expected: BTreeMap<_, _> = ports("web", 3).into_iter().chain(ports("api", 2)).collect();
    assert_eq!(soon(updates.next()).await.values, expected);
    drop(observer);

    // The next loop plans one of them, and then the rest.
    let mut observer = thread.observer();
    let plan = Plan { localhost: ports("web", 4).into_iter().collect(), ..Plan::default() };
    observer.report(&Report::Planned { plan: &plan, planner: &planner, took: Duration::ZERO });
    let round = Round { backlog: 1, ..mk_round(RoundKind::Comparison) };
    observer.report(&Report::RoundEnded(round));
    assert_eq!(soon(updates.next()).await.values, ports("web", 4));
    round_ended(&mut observer, RoundKind::Comparison);
    assert_eq!(soon(updates.next()).await.values, mk_ports("api", &[]));
    round_ended(&mut observer, RoundKind::Changes);
    assert!(peek().is_empty());
    drop(observer);
    drop(thread);
    assert!(soon(updates.next()).await.has_ended);
}

/// The thread and its own runtime, as the program has them.
#[tokio::test]
async fn connections_outlive_the_loop_and_then_the_listener_until_their_time_is_over() {
    let (service, to, port) = mk_service().await;
    let _echo = spawn_echo(service, "web");
    let (failures, _failed) = mpsc::channel(8);
    let drain = Duration::from_millis(300);
    // As a later configuration has it.
    let (configured, followed) = watch::channel(Duration::ZERO);
    let thread = start(mk_meters(), failures, followed).unwrap();
    configured.send_replace(drain);
    let mut observer = thread.observer();
    observer.planned.extend(mk_ports("web", &[mk_port(port, to)]));
    round_ended(&mut observer, RoundKind::Comparison);
    let mut client = connect(at(port)).await;
    assert_eq!(read(&mut client, 3).await, "web");
    assert_echoes(&mut client, "here").await;
    drop(observer);
    let mut second = connect(at(port)).await;
    assert_eq!(read(&mut second, 3).await, "web");
    let stopped = Instant::now();
    drop(thread);
    until_closed(at(port)).await;
    assert_echoes(&mut client, "there").await;
    assert_reset(&mut client).await;
    assert!(stopped.elapsed() >= drain);
}
