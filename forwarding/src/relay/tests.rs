use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::time::Instant as StdInstant;

use plan::model::{Family, TrafficPolicy};
use plan::userspace::RelayProtocol;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, advance};

use super::balancer::Balancer;
use super::*;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const DRAIN: Duration = Duration::from_secs(60);

/// A relay that runs, and its handle.
struct World {
    relay: Relay,
    reports: Reports,
    meters: Meters,
    task: JoinHandle<()>,
}

impl World {
    /// A UDP flow that should end does not end because it is silent.
    fn new() -> Self {
        Self::with(&Settings { udp_idle: Duration::from_secs(86_400), ..Settings::default() })
    }

    fn with(settings: &Settings) -> Self {
        let meters = mk_meters();
        let (server, relay, reports) = Server::new(settings, meters.clone());
        Self { relay, reports, meters, task: tokio::spawn(server.run()) }
    }

    fn set(&self, service: &str, ports: &[RelayPort]) {
        self.relay.set([(ServiceName::new("ns", service), ports.to_vec())].into());
    }

    /// Waits for a report on a Service, and returns that on its port for clients anywhere.
    async fn state(&self, service: &str) -> Report {
        self.state_of(service, TrafficPolicy::Cluster).await
    }

    async fn state_of(&self, service: &str, policy: TrafficPolicy) -> Report {
        soon(async {
            loop {
                let reports = self.reports.next().await.expect("the relay runs");
                let mut of_service = reports
                    .into_iter()
                    .filter(|(id, _)| *id.service.name == *service && id.policy == policy);
                if let Some((_, state)) = of_service.next() {
                    return state;
                }
            }
        })
        .await
    }

    /// Sets a Service with one port, and returns its proxy port.
    async fn serve(&self, service: &str, port: RelayPort) -> SocketAddr {
        self.set(service, &[port]);
        listening(self.state(service).await)
    }

    /// Passed, failed, refused, cut.
    fn counted(&self) -> [u64; 4] {
        let Meters { passed, failed, refused, cut, .. } = &self.meters;
        [passed, failed, refused, cut].map(IntCounter::get)
    }

    async fn until_open(&self, connections: i64) {
        until("connections are counted", || self.meters.open.get() == connections).await;
    }

    async fn until_udp_clients(&self, clients: i64) {
        until("UDP clients are counted", || self.meters.udp_clients.get() == clients).await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Time that stands still unless it is advanced, whatever the sockets do meanwhile: of itself, paused
/// time runs to the next timer as soon as every task waits.
struct FrozenTime {
    _end: std::sync::mpsc::Sender<()>,
}

impl FrozenTime {
    fn new() -> Self {
        let (end, ended) = std::sync::mpsc::channel();
        // tokio does not advance paused time while something blocks (runtime/blocking/schedule.rs).
        tokio::task::spawn_blocking(move || ended.recv());
        Self { _end: end }
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
        cut: counter(),
        endpoint_failures: counter(),
        udp_clients: gauge(),
        udp_evicted: counter(),
        udp_lost: counter(),
        listen_failures: gauge(),
    }
}

fn mk_port(protocol: RelayProtocol, endpoints: &[SocketAddr]) -> RelayPort {
    RelayPort {
        name: "http".into(),
        protocol,
        address: LOCALHOST,
        endpoints: endpoints.into(),
        local_endpoints: None,
        affinity_seconds: None,
        drain_seconds: Some(60),
    }
}

fn tcp(endpoints: &[SocketAddr]) -> RelayPort {
    mk_port(RelayProtocol::Tcp, endpoints)
}

fn udp(endpoints: &[SocketAddr]) -> RelayPort {
    mk_port(RelayProtocol::Udp, endpoints)
}

/// An address of this process's own: ports of a certain number are not in another program's way.
fn own_address() -> IpAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    IpAddr::from([127, 64 + high % 64, middle, low.max(1)])
}

fn mk_range(first: u16, last: u16) -> PortRange {
    let port = |port| NonZeroU16::new(port).unwrap();
    PortRange::new(port(first), port(last)).unwrap()
}

fn listening(state: Report) -> SocketAddr {
    match state {
        Report::Listening(address) => address,
        Report::Failed(failure) => panic!("{failure}"),
        Report::Closed => panic!("closed"),
    }
}

async fn mk_endpoint() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An endpoint that answers each connection with a name, and then with what it says itself.
async fn mk_echo(name: &'static str) -> SocketAddr {
    let (listener, address) = mk_endpoint().await;
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                stream.write_all(name.as_bytes()).await.unwrap();
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    address
}

/// An endpoint that refuses.
async fn mk_refusing() -> SocketAddr {
    mk_endpoint().await.1
}

/// An endpoint that does not answer: its backlog of one connection is full, and no process accepts.
async fn mk_silent() -> (SocketAddr, impl Sized) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let first = TcpStream::connect(address).await.unwrap();
    (address, (listener, first))
}

/// A UDP endpoint that answers with its name, the port that a datagram came from, and the datagram.
async fn mk_udp_echo(name: &'static str) -> (SocketAddr, JoinHandle<()>) {
    let socket = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut buffer = vec![0; 70_000];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let text = String::from_utf8_lossy(&buffer[..length]);
            let answer = format!("{name} {} {text}", from.port());
            socket.send_to(answer.as_bytes(), from).await.unwrap();
        }
    });
    (address, task)
}

/// Fails a test that waits for too long, whether time stands still or not.
async fn give_up(what: &str) {
    let started = StdInstant::now();
    loop {
        assert!(started.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_micros(50));
        yield_now().await;
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let holds = async {
        while !is_so() {
            yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = holds => {}
        () = give_up(what) => {}
    }
}

/// Nothing here takes long, and nothing may hang.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        result = work => result,
        () = give_up("this is done") => unreachable!(),
    }
}

async fn connect(address: SocketAddr) -> TcpStream {
    soon(TcpStream::connect(address)).await.unwrap()
}

/// Connects from another address than others.
async fn connect_from(source: [u8; 4], address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    soon(socket.connect(address)).await.unwrap()
}

async fn read(stream: &mut TcpStream, length: usize) -> String {
    let mut bytes = vec![0; length];
    soon(stream.read_exact(&mut bytes)).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Connects, and returns the name of the endpoint that answers.
async fn who(address: SocketAddr) -> String {
    read(&mut connect(address).await, 3).await
}

async fn assert_echoes(stream: &mut TcpStream, text: &str) {
    soon(stream.write_all(text.as_bytes())).await.unwrap();
    assert_eq!(read(stream, text.len()).await, text);
}

async fn assert_reset(stream: &mut TcpStream) {
    let outcome = soon(stream.read(&mut [0; 8])).await;
    assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

async fn assert_refused(address: SocketAddr) {
    let error = soon(TcpStream::connect(address)).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

/// A client's socket, connected to a proxy port: it hears answers from there only.
async fn mk_client(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(address).await.unwrap();
    socket
}

/// Asks a UDP endpoint, and returns its name and the port of the flow.
async fn ask(client: &UdpSocket, text: &str) -> (String, u16) {
    client.send(text.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 70_000];
    let length = soon(client.recv(&mut buffer)).await.unwrap();
    let answer = String::from_utf8(buffer[..length].to_vec()).unwrap();
    let mut words = answer.splitn(3, ' ');
    let name = words.next().unwrap().to_owned();
    let port = words.next().unwrap().parse().unwrap();
    assert_eq!(words.next().unwrap(), text);
    (name, port)
}

#[tokio::test]
async fn either_side_may_end_what_it_says_and_go_on_listening() {
    let world = World::new();
    let (endpoint, address) = mk_endpoint().await;
    let proxy = world.serve("web", tcp(&[address])).await;
    for the_client_ends_first in [true, false] {
        let mut client = connect(proxy).await;
        let (mut server, _) = soon(endpoint.accept()).await.unwrap();
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
        let answer: Vec<u8> =
            (0..8 * 1_024 * 1_024_u32).map(|byte| byte.to_le_bytes()[1]).collect();
        let answered = async {
            second.write_all(&answer).await.unwrap();
            second.shutdown().await.unwrap();
        };
        let mut heard = Vec::new();
        let (_, length) =
            soon(async { tokio::join!(answered, first.read_to_end(&mut heard)) }).await;
        assert_eq!(length.unwrap(), answer.len());
        assert!(heard == answer, "bytes differ");
        world.until_open(0).await;
    }
    assert_eq!(world.counted(), [2, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_half_closed_connection_may_not_be_silent_for_ever() {
    let _frozen = FrozenTime::new();
    let idle = Duration::from_secs(100);
    let world = World::with(&Settings { half_closed_idle: idle, ..Settings::default() });
    let (endpoint, address) = mk_endpoint().await;
    let proxy = world.serve("web", tcp(&[address])).await;
    for the_client_ends_first in [true, false] {
        let mut client = connect(proxy).await;
        let (mut server, _) = soon(endpoint.accept()).await.unwrap();
        // Whole ones may be silent.
        advance(idle * 10).await;
        let (first, second) = if the_client_ends_first {
            (&mut client, &mut server)
        } else {
            (&mut server, &mut client)
        };
        first.shutdown().await.unwrap();
        assert_eq!(soon(second.read(&mut [0; 8])).await.unwrap(), 0);
        for _ in 0..5 {
            advance(idle * 9 / 10).await;
            second.write_all(b"more").await.unwrap();
            assert_eq!(read(first, 4).await, "more");
        }
        // At the latest after twice the time.
        until("it has ended", || world.meters.open.get() == 1).await;
        for _ in 0..3 {
            advance(idle).await;
            yield_now().await;
        }
        assert_reset(first).await;
        world.until_open(0).await;
    }
}

#[tokio::test]
async fn a_reset_of_one_side_is_one_of_the_other() {
    let world = World::new();
    let (endpoint, address) = mk_endpoint().await;
    let proxy = world.serve("web", tcp(&[address])).await;
    for (connections, the_client_breaks_off) in [(1, true), (2, false)] {
        let client = connect(proxy).await;
        let (server, _) = soon(endpoint.accept()).await.unwrap();
        // A reset before that would be a failure to connect, and another try.
        until("it is passed on", || world.meters.passed.get() == connections).await;
        let (first, mut second) =
            if the_client_breaks_off { (client, server) } else { (server, client) };
        first.set_zero_linger().unwrap();
        drop(first);
        assert_reset(&mut second).await;
        world.until_open(0).await;
    }
}

#[tokio::test]
async fn endpoints_take_turns() {
    let world = World::new();
    let endpoints = [mk_echo("one").await, mk_echo("two").await, mk_echo("six").await];
    let proxy = world.serve("web", tcp(&endpoints)).await;
    let mut names = Vec::new();
    for _ in 0..6 {
        names.push(who(proxy).await);
    }
    assert_eq!(names[..3], names[3..]);
    let different: BTreeSet<&String> = names.iter().collect();
    assert_eq!(different.len(), 3);
}

#[tokio::test]
async fn an_endpoint_that_refuses_is_passed_over() {
    let world = World::new();
    let dead = [mk_refusing().await, mk_refusing().await, mk_refusing().await];
    let live = mk_echo("one").await;
    let proxy = world.serve("web", tcp(&[dead[0], live, dead[1], dead[2]])).await;
    for _ in 0..8 {
        assert_eq!(who(proxy).await, "one");
    }
    assert!(world.meters.endpoint_failures.get() >= 3);
    assert_eq!(world.counted(), [8, 0, 0, 0]);
}

#[tokio::test]
async fn a_service_without_an_endpoint_that_answers_is_a_reset() {
    let world = World::new();
    let proxy = world.serve("web", tcp(&[mk_refusing().await])).await;
    assert_reset(&mut connect(proxy).await).await;
    assert_eq!(world.meters.endpoint_failures.get(), 4);
    assert_eq!(world.serve("web", tcp(&[])).await, proxy);
    assert_reset(&mut connect(proxy).await).await;
    world.until_open(0).await;
    assert_eq!(world.counted(), [0, 2, 0, 0]);
}

/// kube-proxy dialed in the loop that accepts: all clients waited for the dead endpoint.
#[tokio::test(start_paused = true)]
async fn a_silent_endpoint_delays_its_own_client_only() {
    let _frozen = FrozenTime::new();
    let world = World::new();
    let (silent, _held) = mk_silent().await;
    let live = mk_echo("one").await;
    let proxy = world.serve("web", tcp(&[silent, live])).await;
    // One of two has to wait; the other is served while no time passes.
    let (mut first, mut second) = (connect(proxy).await, connect(proxy).await);
    let (mut one, mut two) = ([0; 3], [0; 3]);
    let is_first = soon(async {
        tokio::select! {
            read = first.read_exact(&mut one) => { read.unwrap(); true }
            read = second.read_exact(&mut two) => { read.unwrap(); false }
        }
    })
    .await;
    world.until_open(2).await;
    for _ in 0..10 {
        // Half of them wait as well, and are given up.
        drop(connect(proxy).await);
    }
    assert_eq!(world.meters.endpoint_failures.get(), 0);
    let waiting = if is_first { &mut second } else { &mut first };
    advance(Duration::from_millis(250)).await;
    assert_eq!(read(waiting, 3).await, "one");
    assert!(world.meters.endpoint_failures.get() >= 1);
}

#[tokio::test(start_paused = true)]
async fn silent_endpoints_are_given_up_after_four_tries() {
    let _frozen = FrozenTime::new();
    let world = World::new();
    let (silent, _held) = mk_silent().await;
    let proxy = world.serve("web", tcp(&[silent])).await;
    let mut client = connect(proxy).await;
    let failures = &world.meters.endpoint_failures;
    world.until_open(1).await;
    for (tries, longest) in (1..).zip([250, 500, 1_000, 2_000]) {
        assert_eq!(failures.get(), tries - 1);
        // The try has begun.
        for _ in 0..100 {
            yield_now().await;
        }
        advance(Duration::from_millis(longest)).await;
        until("the try has failed", || failures.get() == tries).await;
    }
    assert_reset(&mut client).await;
    world.until_open(0).await;
    assert_eq!(world.counted(), [0, 1, 0, 0]);
}

#[tokio::test]
async fn a_client_with_affinity_keeps_its_endpoint_as_long_as_it_answers() {
    let world = World::new();
    let (one, two) = (mk_echo("one").await, mk_echo("two").await);
    let affinity_seconds = Some(10_800);
    let proxy = world.serve("web", RelayPort { affinity_seconds, ..tcp(&[one, two]) }).await;
    let first = read(&mut connect_from([127, 0, 0, 11], proxy).await, 3).await;
    let second = read(&mut connect_from([127, 0, 0, 12], proxy).await, 3).await;
    assert_ne!(first, second);
    for _ in 0..3 {
        assert_eq!(read(&mut connect_from([127, 0, 0, 11], proxy).await, 3).await, first);
        assert_eq!(read(&mut connect_from([127, 0, 0, 12], proxy).await, 3).await, second);
    }
    // The client of the removed endpoint gets the remaining one, and both stay there.
    let left = if first == "one" { one } else { two };
    world.serve("web", RelayPort { affinity_seconds, ..tcp(&[left, mk_refusing().await]) }).await;
    for _ in 0..3 {
        assert_eq!(read(&mut connect_from([127, 0, 0, 12], proxy).await, 3).await, first);
        assert_eq!(read(&mut connect_from([127, 0, 0, 11], proxy).await, 3).await, first);
    }
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(LOCALHOST, port)
}

fn client(number: u32) -> IpAddr {
    IpAddr::from(Ipv4Addr::from_bits(number))
}

fn mk_balancer(ports: &[u16], affinity: Option<u64>) -> (Balancer, Instant) {
    let (mut balancer, now) = (Balancer::new(0), Instant::now());
    let addresses: Vec<SocketAddr> = ports.iter().map(|port| at(*port)).collect();
    balancer.update(&addresses, affinity.map(Duration::from_secs), DRAIN, now);
    (balancer, now)
}

#[tokio::test]
async fn affinity_lasts_for_its_time_since_the_last_connection() {
    let (mut balancer, now) = mk_balancer(&[1, 2], Some(100));
    let mut port = |number, seconds| {
        let now = now + Duration::from_secs(seconds);
        balancer.choose(client(number), now).unwrap().address.port()
    };
    assert_eq!((port(1, 0), port(2, 0), port(3, 0)), (1, 2, 1));
    assert_eq!((port(1, 99), port(2, 99)), (1, 2));
    assert_eq!((port(1, 198), port(2, 200)), (1, 2));
    // The third one's time was over long ago, the second one's is now.
    assert_eq!((port(3, 200), port(2, 300)), (1, 2));
    assert_eq!((port(2, 400), port(1, 297)), (1, 1));
}

#[tokio::test]
async fn a_failure_ends_affinity() {
    let (mut balancer, now) = mk_balancer(&[1, 2, 3], Some(100));
    let first = balancer.choose(client(1), now).unwrap();
    let other = balancer.choose_another(client(1), &first, now).unwrap();
    assert_ne!(other.address, first.address);
    // A second connection that failed at the same endpoint follows.
    assert_eq!(balancer.choose_another(client(1), &first, now).unwrap().address, other.address);
    assert_eq!(balancer.choose(client(1), now).unwrap().address, other.address);
    balancer.forget(client(1), &first);
    assert_eq!(balancer.choose(client(1), now).unwrap().address, other.address);
}

#[tokio::test]
async fn one_that_failed_is_not_next_unless_it_is_alone() {
    let (mut balancer, now) = mk_balancer(&[1, 2], None);
    let first = balancer.choose(client(1), now).unwrap();
    drop(balancer.choose(client(2), now));
    assert_eq!(balancer.choose_another(client(1), &first, now).unwrap().address, at(2));
    let (mut balancer, now) = mk_balancer(&[1], None);
    let first = balancer.choose(client(1), now).unwrap();
    assert_eq!(balancer.choose_another(client(1), &first, now).unwrap().address, at(1));
    balancer.update(&[], None, DRAIN, now);
    assert!(balancer.choose_another(client(1), &first, now).is_none());
}

#[tokio::test]
async fn affinity_ends_with_its_setting() {
    let (mut balancer, now) = mk_balancer(&[1, 2], Some(100));
    drop(balancer.choose(client(1), now));
    balancer.update(&[at(1), at(2)], None, DRAIN, now);
    assert_eq!(balancer.remembered(), 0);
    let turns = [(); 4].map(|()| balancer.choose(client(1), now).unwrap().address.port());
    assert_eq!(turns, [2, 1, 2, 1]);
    assert_eq!(balancer.remembered(), 0);
}

#[tokio::test]
async fn endpoints_that_are_named_twice_have_one_turn() {
    let (mut balancer, now) = mk_balancer(&[1, 2, 1], None);
    let turns = [(); 4].map(|()| balancer.choose(client(1), now).unwrap().address.port());
    assert_eq!(turns, [1, 2, 1, 2]);
}

#[tokio::test]
async fn clients_are_forgotten_when_their_time_is_over_or_they_are_too_many() {
    let (mut balancer, now) = mk_balancer(&[1, 2], Some(100));
    for number in 0..50_000 {
        drop(balancer.choose(client(number), now));
    }
    let later = now + Duration::from_secs(100);
    for number in 100_000..120_000 {
        drop(balancer.choose(client(number), later));
    }
    assert_eq!(balancer.remembered(), 20_000);
    for number in 200_000..400_000 {
        let later = later + Duration::from_micros(number.into());
        drop(balancer.choose(client(number), later));
        assert!(balancer.remembered() <= 65_536);
    }
    assert!(balancer.remembered() > 50_000);
    let last = later + Duration::from_secs(1);
    let former = balancer.remembered();
    drop(balancer.choose(client(399_999), last));
    assert_eq!(balancer.remembered(), former, "the latest is remembered");
}

#[tokio::test(start_paused = true)]
async fn connections_to_an_endpoint_that_goes_have_time_to_end() {
    let _frozen = FrozenTime::new();
    let world = World::new();
    let (one, two) = (mk_echo("one").await, mk_echo("two").await);
    let proxy = world.serve("web", tcp(&[one])).await;
    let mut ends = connect(proxy).await;
    let mut stays = connect(proxy).await;
    for client in [&mut ends, &mut stays] {
        assert_eq!(read(client, 3).await, "one");
    }
    assert_eq!(world.serve("web", tcp(&[two])).await, proxy);
    for _ in 0..3 {
        assert_eq!(who(proxy).await, "two");
    }
    advance(DRAIN - Duration::from_secs(1)).await;
    assert_echoes(&mut stays, "still here").await;
    ends.shutdown().await.unwrap();
    assert_eq!(soon(ends.read(&mut [0; 8])).await.unwrap(), 0);
    assert_echoes(&mut stays, "and here").await;
    assert_eq!(world.meters.cut.get(), 0);
    advance(Duration::from_secs(1)).await;
    assert_reset(&mut stays).await;
    assert_eq!(world.meters.cut.get(), 1);
    world.until_open(0).await;
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_comes_back_keeps_its_connections() {
    let _frozen = FrozenTime::new();
    let world = World::new();
    let (one, two) = (mk_echo("one").await, mk_echo("two").await);
    let proxy = world.serve("web", tcp(&[one])).await;
    let mut client = connect(proxy).await;
    assert_eq!(read(&mut client, 3).await, "one");
    world.serve("web", tcp(&[two])).await;
    world.serve("web", tcp(&[two])).await;
    advance(DRAIN / 2).await;
    world.serve("web", tcp(&[one, two])).await;
    advance(DRAIN * 10).await;
    assert_echoes(&mut client, "still here").await;
    world.serve("web", tcp(&[two])).await;
    advance(DRAIN).await;
    assert_reset(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn a_port_goes_with_its_service_and_its_connections_have_time_to_end() {
    let _frozen = FrozenTime::new();
    let world = World::new();
    let one = mk_echo("one").await;
    let proxy = world.serve("web", tcp(&[one])).await;
    let mut ends = connect(proxy).await;
    let mut stays = connect(proxy).await;
    for client in [&mut ends, &mut stays] {
        assert_eq!(read(client, 3).await, "one");
    }
    world.set("web", &[]);
    // Reports come in order: this one after the port is closed.
    let other = world.serve("api", tcp(&[one])).await;
    assert_refused(proxy).await;
    assert_eq!(world.relay.ports_in_use(), 2);
    for client in [&mut ends, &mut stays] {
        assert_echoes(client, "still here").await;
    }
    drop(ends);
    world.until_open(1).await;
    assert_eq!(world.relay.ports_in_use(), 2);
    advance(DRAIN).await;
    assert_reset(&mut stays).await;
    until("the port is free", || world.relay.ports_in_use() == 1).await;
    assert_eq!(who(other).await, "one");
}

#[tokio::test]
async fn clients_that_the_kernel_has_connected_are_served_when_a_port_goes() {
    let world = World::new();
    let proxy = world.serve("web", tcp(&[mk_echo("one").await])).await;
    // Nothing runs here between these.
    let clients = [(); 20].map(|()| std::net::TcpStream::connect(proxy).unwrap());
    world.set("web", &[]);
    for client in clients {
        client.set_nonblocking(true).unwrap();
        let mut client = TcpStream::from_std(client).unwrap();
        assert_eq!(read(&mut client, 3).await, "one");
        assert_echoes(&mut client, "here").await;
    }
    assert_refused(proxy).await;
}

#[tokio::test]
async fn clients_that_get_this_nodes_endpoints_have_a_port_of_their_own() {
    let world = World::new();
    let (one, two) = (mk_echo("one").await, mk_echo("two").await);
    let port = tcp(&[one, two]);
    let local = RelayPort { local_endpoints: Some([two].into()), ..port.clone() };
    world.set("web", std::slice::from_ref(&local));
    let reports = soon(world.reports.next()).await.unwrap();
    let addresses: Vec<_> = reports.values().cloned().map(listening).collect();
    let policies: Vec<_> = reports.keys().map(|id| id.policy).collect();
    assert_eq!(policies, [TrafficPolicy::Cluster, TrafficPolicy::Local]);
    for _ in 0..4 {
        assert_eq!(who(addresses[1]).await, "two");
    }
    let names = BTreeSet::from([who(addresses[0]).await, who(addresses[0]).await]);
    assert_eq!(names.len(), 2);
    // It goes with the policy.
    assert_eq!(world.serve("web", port).await, addresses[0]);
    assert_refused(addresses[1]).await;
    world.set("web", &[local]);
    let again = listening(world.state_of("web", TrafficPolicy::Local).await);
    assert_eq!(who(again).await, "two");
}

#[tokio::test]
async fn a_port_moves_with_the_address_of_the_node() {
    let world = World::new();
    let one = mk_echo("one").await;
    let proxy = world.serve("web", tcp(&[one])).await;
    let mut client = connect(proxy).await;
    assert_eq!(read(&mut client, 3).await, "one");
    let address = IpAddr::from([127, 0, 0, 3]);
    let moved = world.serve("web", RelayPort { address, ..tcp(&[one]) }).await;
    assert_eq!(moved.ip(), address);
    assert_eq!(who(moved).await, "one");
    assert_refused(proxy).await;
    assert_echoes(&mut client, "still here").await;
    drop(client);
    until("the former port is free", || world.relay.ports_in_use() == 1).await;
}

#[tokio::test]
async fn ipv6_is_listened_on_by_itself() {
    let world = World::new();
    let one = mk_echo("one").await;
    let address = IpAddr::from(std::net::Ipv6Addr::LOCALHOST);
    let on_ipv6 = RelayPort { address, ..tcp(&[one]) };
    world.set("web", &[tcp(&[one]), on_ipv6]);
    soon(async {
        let mut reports = BTreeMap::new();
        while reports.len() < 2 {
            reports.extend(world.reports.next().await.unwrap());
        }
        for (id, state) in reports {
            match state {
                Report::Listening(address) => {
                    assert_eq!(Family::of(address.ip()), id.family);
                }
                // This host has none.
                Report::Failed(_) => {
                    assert_eq!(id.family, Family::V6);
                }
                Report::Closed => panic!("{id} is closed"),
            }
        }
    })
    .await;
}

/// Thousands, if the host allows for so many files: four for each.
#[tokio::test]
async fn connections_are_many_but_not_too_many() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let files = usize::try_from(limit.maximum.unwrap_or(100_000)).unwrap();
    let most = 2_000.min(files / 8);
    let world = World::with(&Settings { connections: most, ..Settings::default() });
    let proxy = world.serve("web", tcp(&[mk_echo("one").await, mk_echo("two").await])).await;
    // A second time, since what is lost the first time is missing then.
    for wave in 1..=2 {
        let mut clients = Vec::new();
        for _ in 0..most {
            clients.push(connect(proxy).await);
        }
        for client in &mut clients {
            read(client, 3).await;
        }
        for (number, client) in clients.iter_mut().enumerate() {
            assert_echoes(client, &number.to_string()).await;
        }
        assert_eq!(world.meters.open.get(), i64::try_from(most).unwrap());
        assert_reset(&mut connect(proxy).await).await;
        assert_eq!(world.meters.refused.get(), wave);
        // One that ends makes room.
        drop(clients.pop());
        world.until_open(i64::try_from(most).unwrap() - 1).await;
        read(&mut connect(proxy).await, 3).await;
        drop(clients);
        world.until_open(0).await;
    }
    world.set("web", &[]);
    until("the port is free", || world.relay.ports_in_use() == 0).await;
}

#[tokio::test]
async fn udp_clients_keep_their_endpoints_and_hear_from_the_proxy_port() {
    let world = World::new();
    let ((one, _), (two, _)) = (mk_udp_echo("one").await, mk_udp_echo("two").await);
    let proxy = world.serve("dns", udp(&[one, two])).await;
    let (first, second) = (mk_client(proxy).await, mk_client(proxy).await);
    let (first_flow, second_flow) = (ask(&first, "a").await, ask(&second, "b").await);
    assert_ne!(first_flow.0, second_flow.0);
    for text in ["c", "", "d"] {
        assert_eq!(ask(&first, text).await, first_flow);
        assert_eq!(ask(&second, text).await, second_flow);
    }
    assert_eq!(world.meters.udp_clients.get(), 2);
    // The largest question of which the answer is a datagram, too.
    let long = "x".repeat(65_507 - "one 65535 ".len());
    assert_eq!(ask(&first, &long).await, first_flow);
}

#[tokio::test(start_paused = true)]
async fn a_udp_client_is_forgotten_when_nothing_passes_either_way() {
    let _frozen = FrozenTime::new();
    let world = World::with(&Settings::default());
    let endpoint = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    let proxy = world.serve("dns", udp(&[endpoint.local_addr().unwrap()])).await;
    let client = mk_client(proxy).await;
    let mut byte = [0];
    client.send(b"a").await.unwrap();
    let (_, flow) = soon(endpoint.recv_from(&mut byte)).await.unwrap();
    // Questions alone keep it, and answers alone.
    for _ in 0..3 {
        advance(DEFAULT_UDP_IDLE * 9 / 10).await;
        client.send(b"a").await.unwrap();
        assert_eq!(soon(endpoint.recv_from(&mut byte)).await.unwrap().1, flow);
    }
    for _ in 0..3 {
        advance(DEFAULT_UDP_IDLE * 9 / 10).await;
        endpoint.send_to(b"b", flow).await.unwrap();
        soon(client.recv(&mut byte)).await.unwrap();
    }
    assert_eq!(world.meters.udp_clients.get(), 1);
    advance(DEFAULT_UDP_IDLE).await;
    world.until_udp_clients(0).await;
    client.send(b"a").await.unwrap();
    assert_ne!(soon(endpoint.recv_from(&mut byte)).await.unwrap().1, flow);
}

#[tokio::test]
async fn udp_flows_to_an_endpoint_that_goes_end_at_once() {
    let world = World::new();
    let ((one, _), (two, _)) = (mk_udp_echo("one").await, mk_udp_echo("two").await);
    let affinity_seconds = Some(10_800);
    let proxy = world.serve("dns", RelayPort { affinity_seconds, ..udp(&[one]) }).await;
    let client = mk_client(proxy).await;
    assert_eq!(ask(&client, "a").await.0, "one");
    assert_eq!(world.serve("dns", RelayPort { affinity_seconds, ..udp(&[two]) }).await, proxy);
    world.until_udp_clients(0).await;
    assert_eq!(ask(&client, "b").await.0, "two");
    let kept = ask(&client, "c").await;
    world.serve("dns", RelayPort { affinity_seconds, ..udp(&[two, one]) }).await;
    assert_eq!(ask(&client, "d").await, kept);
    world.set("dns", &[]);
    world.until_udp_clients(0).await;
    until("the port is free", || world.relay.ports_in_use() == 0).await;
    UdpSocket::bind(proxy).await.unwrap();
}

#[tokio::test]
async fn a_udp_endpoint_that_refuses_is_passed_over() {
    let world = World::new();
    let (one, _echo) = mk_udp_echo("one").await;
    let (gone, task) = mk_udp_echo("two").await;
    task.abort();
    drop(task.await);
    let affinity_seconds = Some(10_800);
    let mut answer = vec![0; 100];
    // Each begins with a random one of the two.
    for service in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
        let proxy = world.serve(service, RelayPort { affinity_seconds, ..udp(&[gone, one]) }).await;
        let client = mk_client(proxy).await;
        let failures = world.meters.endpoint_failures.get();
        client.send(b"a").await.unwrap();
        let mut is_answered = false;
        until("the first one is answered or refused", || {
            is_answered |= client.try_recv(&mut answer).is_ok();
            is_answered || world.meters.endpoint_failures.get() > failures
        })
        .await;
        // What was sent to the endpoint that is gone is lost. The next one is not.
        client.send(b"a").await.unwrap();
        let length = soon(client.recv(&mut answer)).await.unwrap();
        assert!(answer[..length].starts_with(b"one "));
    }
    assert!(world.meters.endpoint_failures.get() <= 10);
}

#[tokio::test]
async fn udp_clients_are_many_but_not_too_many() {
    let world = World::with(&Settings { udp_clients: 50, ..Settings::default() });
    let (one, _echo) = mk_udp_echo("one").await;
    let proxy = world.serve("dns", udp(&[one])).await;
    let mut clients = Vec::new();
    for _ in 0..50 {
        clients.push(mk_client(proxy).await);
        ask(clients.last().unwrap(), "a").await;
    }
    // The first one asks again, so that the second one has been silent longest.
    let again = ask(&clients[0], "b").await;
    let late = mk_client(proxy).await;
    ask(&late, "a").await;
    assert_eq!((world.meters.udp_evicted.get(), world.meters.udp_clients.get()), (1, 50));
    assert_eq!(ask(&clients[0], "c").await.1, again.1, "it has kept its socket");
    ask(&clients[1], "b").await;
    assert_eq!((world.meters.udp_evicted.get(), world.meters.udp_clients.get()), (2, 50));
    // Those of a port that goes make room.
    let (two, _echo) = mk_udp_echo("two").await;
    world.set("dns", &[]);
    let proxy = world.serve("api", udp(&[two])).await;
    world.until_udp_clients(0).await;
    assert_eq!(ask(&mk_client(proxy).await, "a").await.0, "two");
}

#[tokio::test]
async fn an_address_with_very_many_udp_clients_takes_places_from_its_own() {
    let world = World::with(&Settings { udp_clients: 8, ..Settings::default() });
    let (one, _echo) = mk_udp_echo("one").await;
    let proxy = world.serve("dns", udp(&[one])).await;
    let bind_of = |ip: &'static str| async move {
        let client = UdpSocket::bind((ip, 0)).await.unwrap();
        client.connect(proxy).await.unwrap();
        client
    };
    let modest = bind_of("127.0.0.2").await;
    let port = ask(&modest, "a").await.1;
    // All at once, or one could get a former one's port.
    let mut greedy = Vec::new();
    for _ in 0..50 {
        greedy.push(bind_of("127.0.0.3").await);
        ask(&greedy[greedy.len() - 1], "a").await;
    }
    assert_eq!((world.meters.udp_evicted.get(), world.meters.udp_clients.get()), (43, 8));
    assert_eq!(ask(&modest, "b").await.1, port, "it was silent longest, and has kept its socket");
}

#[tokio::test]
async fn datagrams_without_an_endpoint_are_counted() {
    let world = World::new();
    let proxy = world.serve("dns", udp(&[])).await;
    mk_client(proxy).await.send(b"a").await.unwrap();
    until("it is counted", || world.meters.udp_lost.get() == 1).await;
    assert_eq!(world.meters.udp_clients.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_range_is_told_and_what_comes_back_is_used() {
    // None of it waits for the time to try again.
    let _frozen = FrozenTime::new();
    let range = mk_range(40_000, 40_001);
    let world = World::with(&Settings { ports: Some(range), ..Settings::default() });
    let address = own_address();
    let one = mk_echo("one").await;
    let port = RelayPort { address, ..tcp(&[one]) };
    let first = world.serve("a", port.clone()).await;
    let dns = RelayPort { protocol: RelayProtocol::Udp, ..port.clone() };
    let second = world.serve("b", dns).await;
    let ports = BTreeSet::from([first.port(), second.port()]);
    assert_eq!(ports, BTreeSet::from([40_000, 40_001]), "one each, whatever the protocol");
    let mut client = connect(first).await;
    assert_eq!(read(&mut client, 3).await, "one");

    world.set("c", std::slice::from_ref(&port));
    let failure = NoProxyPort::Exhausted { range, served: 2, taken: 0 };
    assert_eq!(world.state("c").await, Report::Failed(failure.clone()));
    until("it is counted", || world.meters.listen_failures.get() == 1).await;
    // A second caller gets the same answer.
    world.set("c", std::slice::from_ref(&port));
    assert_eq!(world.state("c").await, Report::Failed(failure));

    // A port does not come back before its last connection has ended.
    world.set("a", &[]);
    world.set("d", std::slice::from_ref(&port));
    assert!(matches!(world.state("d").await, Report::Failed(_)));
    world.set("d", &[]);
    drop(client);
    assert_eq!(listening(world.state("c").await), first);
    assert_eq!(who(first).await, "one");
    until("it is no longer counted", || world.meters.listen_failures.get() == 0).await;
    world.set("b", &[]);
    assert_eq!(world.serve("d", port).await, second);
}

#[tokio::test]
async fn ports_of_other_programs_are_passed_over() {
    let range = mk_range(41_000, 41_003);
    let world = World::with(&Settings { ports: Some(range), ..Settings::default() });
    let address = own_address();
    let mut others = Vec::new();
    for port in [41_000, 41_001, 41_003] {
        others.push(TcpListener::bind((address, port)).await.unwrap());
    }
    let port = RelayPort { address, ..tcp(&[mk_echo("one").await]) };
    assert_eq!(world.serve("a", port.clone()).await.port(), 41_002);
    world.set("b", std::slice::from_ref(&port));
    let failure = NoProxyPort::Exhausted { range, served: 1, taken: 3 };
    assert_eq!(world.state("b").await, Report::Failed(failure));
    // They are tried again.
    drop(others.pop());
    let report = soon(world.state("b")).await;
    assert_eq!(listening(report).port(), 41_003);
}

#[tokio::test]
async fn what_is_gone_is_reported_as_closed() {
    let world = World::new();
    world.serve("web", tcp(&[])).await;
    world.set("web", &[]);
    assert_eq!(world.state("web").await, Report::Closed);
    assert_eq!(world.relay.ports_in_use(), 0);
    // Only the latest report on a port counts.
    world.set("web", &[tcp(&[])]);
    until("it is listened on", || world.relay.ports_in_use() == 1).await;
    world.set("web", &[]);
    until("it is not", || world.relay.ports_in_use() == 0).await;
    world.set("web", &[tcp(&[])]);
    until("it is again", || world.relay.ports_in_use() == 1).await;
    listening(world.state("web").await);
}

#[tokio::test]
async fn an_address_that_is_not_there_is_told() {
    let world = World::new();
    let address = IpAddr::from([192, 0, 2, 1]);
    world.set("web", &[RelayPort { address, ..tcp(&[]) }]);
    let state = world.state("web").await;
    let Report::Failed(failure) = state else { panic!("{state:?}") };
    let text = failure.to_string();
    assert!(text.starts_with("cannot listen on 192.0.2.1: "), "{text}");
    assert_eq!(world.relay.ports_in_use(), 0);
    // The Service has it elsewhere.
    world.serve("web", tcp(&[])).await;
    until("it is no longer counted", || world.meters.listen_failures.get() == 0).await;
}

#[test]
fn half_of_the_files_are_left_for_everything_else() {
    let Settings { connections, udp_clients, .. } = Settings::default();
    let files = usize::try_from(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)).unwrap();
    assert!(connections > 0 && udp_clients > 0);
    assert!(2 * connections + udp_clients <= files / 2);
}

#[test]
fn an_exhausted_range_says_what_to_do() {
    let failure = NoProxyPort::Exhausted { range: mk_range(40_000, 40_009), served: 8, taken: 2 };
    assert_eq!(
        failure.to_string(),
        "no port of --proxy-port-range 40000-40009 is free: of its 10 ports, 8 serve other Service \
         ports or their last connections, and other programs have 2 (`ss -ltunp` shows them); widen the \
         range, or leave it empty to let the kernel choose"
    );
}

#[test]
fn every_port_of_a_range_is_handed_out_once_from_a_random_one_on() {
    let range = mk_range(1_000, 1_099);
    let mut starts = BTreeSet::new();
    for _ in 0..20 {
        let allocator = PortAllocator::new(Some(range));
        let mut leases = Vec::new();
        let mut ports = Vec::new();
        for _ in 0..100 {
            let (port, lease) = allocator.bind(LOCALHOST, |address| Ok(address.port())).unwrap();
            ports.push(port);
            leases.push(lease);
        }
        allocator.bind(LOCALHOST, |_| Ok(())).unwrap_err();
        starts.insert(ports[0]);
        // What came back first is handed out first.
        drop(leases.remove(70));
        drop(leases.remove(5));
        let again = [70, 5].map(|_| {
            let (port, lease) = allocator.bind(LOCALHOST, |address| Ok(address.port())).unwrap();
            leases.push(lease);
            port
        });
        assert_eq!(again, [ports[70], ports[5]]);
        ports.sort_unstable();
        assert_eq!(ports, (1_000..=1_099).collect::<Vec<_>>());
        assert_eq!(allocator.leased(), 100);
    }
    assert!(starts.len() > 5, "{starts:?}");
}

#[test]
fn a_port_that_came_back_waits_for_all_others() {
    let allocator = PortAllocator::new(Some(mk_range(1_000, 1_009)));
    let mut ports = Vec::new();
    for _ in 0..30 {
        let (port, _lease) = allocator.bind(LOCALHOST, |address| Ok(address.port())).unwrap();
        ports.push(port);
    }
    let first: BTreeSet<&u16> = ports[..10].iter().collect();
    assert_eq!(first.len(), 10);
    assert_eq!(ports[..10], ports[10..20]);
    assert_eq!(ports[..10], ports[20..]);
}

#[test]
fn a_range_that_was_changed_hands_out_its_own_ports_only() {
    let (former, new) = (mk_range(1_000, 1_009), mk_range(1_005, 1_008));
    let allocator = PortAllocator::new(Some(former));
    let bind = || allocator.bind(LOCALHOST, |address| Ok(address.port())).unwrap();
    let mut leases: Vec<_> = (0..10).map(|_| bind()).collect();
    allocator.set_range(Some(former));
    allocator.bind(LOCALHOST, |_| Ok(())).unwrap_err();
    allocator.set_range(Some(new));
    assert_eq!(allocator.leased(), 10);
    leases.clear();
    let mut ports: Vec<u16> = (0..4)
        .map(|_| {
            let (port, lease) = bind();
            leases.push((port, lease));
            port
        })
        .collect();
    allocator.bind(LOCALHOST, |_| Ok(())).unwrap_err();
    ports.sort_unstable();
    assert_eq!((ports, allocator.leased()), ((1_005..=1_008).collect(), 4));
    allocator.set_range(None);
    assert_eq!(bind().0, 0, "the kernel chooses");
}

/// The thread and its own runtime, as the program has them.
#[tokio::test]
async fn a_later_configuration_counts_for_ports_that_are_open() {
    let hour = Settings { drain: Duration::from_secs(3_600), ..Settings::default() };
    let (relay, reports) = start(&hour, mk_meters()).unwrap();
    let service = ServiceName::new("ns", "web");
    // The Service says nothing of the time to drain.
    let port = RelayPort { drain_seconds: None, ..tcp(&[mk_echo("one").await]) };
    relay.set([(service.clone(), vec![port])].into());
    let (_, state) = soon(reports.next()).await.unwrap().pop_first().unwrap();
    let mut client = connect(listening(state)).await;
    assert_eq!(read(&mut client, 3).await, "one");
    let ports = Some(mk_range(1, 1));
    relay.reconfigure(&Settings { drain: Duration::ZERO, ports, ..Settings::default() });
    relay.set([(service, Vec::new())].into());
    assert_reset(&mut client).await;
}

#[test]
fn ranges_are_as_kube_proxy_takes_them() {
    let parsed = |text| PortRange::parse(text).map(|range| range.map(|range| range.to_string()));
    for none in ["", " ", "0", "0-0"] {
        assert_eq!(parsed(none), Ok(None), "{none:?}");
    }
    for (text, range) in [
        ("40000-40999", "40000-40999"),
        (" 40000 - 40999 ", "40000-40999"),
        ("40000+999", "40000-40999"),
        ("40000", "40000-40000"),
        ("1-65535", "1-65535"),
    ] {
        assert_eq!(parsed(text), Ok(Some(range.to_owned())), "{text:?}");
    }
    for (text, reason) in [
        ("a-b", "a port must be a number"),
        ("1-", "a port must be a number"),
        ("-1", "a port must be a number"),
        ("+1", "a port must be a number"),
        ("99999999999", "a port must be a number"),
        ("2-1", "it ends before it begins"),
        ("65535+1", "the last port is 65535"),
        ("1-65536", "the last port is 65535"),
        ("0-9", "the first port is 1"),
    ] {
        let error = parsed(text).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("write 40000-40999"), "{text:?}: {error}");
    }
    let all = PortRange::parse("1-65535").unwrap().unwrap();
    assert_eq!(all.count(), 65_535);
}

#[test]
fn a_proxy_port_is_named_by_its_service_port() {
    let id = |port: &str, policy| ProxyPortId {
        service: ServiceName::new("ns", "web"),
        port: port.into(),
        protocol: RelayProtocol::Tcp,
        family: Family::V4,
        policy,
    };
    assert_eq!(id("http", TrafficPolicy::Cluster).to_string(), "ns/web:http (TCP, IPv4)");
    let local = id("", TrafficPolicy::Local).to_string();
    assert_eq!(local, "ns/web (TCP, IPv4, this node's endpoints)");
}

/// The thread and its own runtime, as the program has them.
#[tokio::test]
async fn everything_is_closed_when_the_handle_is_gone() {
    let (relay, reports) = start(&Settings::default(), mk_meters()).unwrap();
    let service = ServiceName::new("ns", "web");
    relay.set([(service, vec![tcp(&[mk_echo("one").await])])].into());
    let (_, state) = soon(reports.next()).await.unwrap().pop_first().unwrap();
    let proxy = listening(state);
    let mut client = connect(proxy).await;
    assert_eq!(read(&mut client, 3).await, "one");
    assert_echoes(&mut client, "here").await;
    drop(relay);
    assert_reset(&mut client).await;
    soon(async { while TcpStream::connect(proxy).await.is_ok() {} }).await;
    assert!(soon(reports.next()).await.is_none());
    assert!(soon(reports.next()).await.is_none());
}
