//! Rolling updates under thousands of short connections: none is refused, reset or kept waiting.
//!
//! A pod here ends as a real one should: it is listed as terminating, goes on serving, and stops
//! listening only when both nodes drain it and every connection that began before has ended. What
//! is refused or reset then was sent to it by a node that knew better.
//!
//! `cargo xtask soak` makes many more connections.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bed::addresses::{POD_RANGE_IPV4, POD_RANGE_IPV6};
use bed::{ClusterSpec, Host, Namespace, NodeSpec, Protocol, Proxy, Service};
use socket2::{Domain, SockRef, Socket, Type};

use crate::churn::amount;
use crate::fixture::{Bed, ip};

/// Pods of each node that are endpoints in turn. One more is a client.
const BACKENDS: u8 = 4;
/// Endpoints that are ready at once.
const READY: usize = 4;
/// The time between two steps of the rolling update. Each replaces one endpoint.
const STEP: Duration = Duration::from_millis(250);
/// A connection that took so long has lost a packet: TCP sends again after one second.
const SLOW: Duration = Duration::from_millis(900);
/// Time limit of a connection.
const LIMIT: Duration = Duration::from_secs(30);
/// Events, losses and delays that are shown.
const SHOWN: usize = 60;
/// Ports that the pods listen on, one for each Service. One port for both would let a client's port
/// be used for two ways to one endpoint, which IPVS cannot tell apart: `flows::mistaken`.
const TARGETS: [u16; 2] = [9001, 9002];

/// A pod's server. It closes each connection after one answer.
struct Web {
    stops: Vec<Socket>,
    threads: Vec<JoinHandle<()>>,
}

/// One stream of short connections.
#[derive(Clone, Copy)]
struct Asker<'a> {
    name: &'static str,
    from: &'a Namespace,
    target: SocketAddr,
    /// The source ports to use in turn. None: what the kernel chooses.
    ports: Option<(u16, u16)>,
    /// True if the client resets the connection in the end. Otherwise the server closes it first,
    /// and the client can use the port again at once.
    aborts: bool,
}

/// A connection that did not go as it should.
struct Loss {
    asker: &'static str,
    at: Duration,
    took: Duration,
    source: Option<SocketAddr>,
    what: String,
}

/// Answers, losses and events so far. All times are since the start.
#[derive(Default)]
struct Outcome {
    answers: AtomicUsize,
    losses: Mutex<Vec<Loss>>,
    delayed: Mutex<Vec<Loss>>,
    events: Mutex<Vec<(Duration, String)>>,
    /// Time at which each asker began the connection that it is at.
    begun: Mutex<BTreeMap<&'static str, Duration>>,
}

impl Web {
    fn start(host: &Host) -> Self {
        let mut web = Self { stops: Vec::new(), threads: Vec::new() };
        let addresses = host.addresses().into_iter();
        for (address, port) in addresses.flat_map(|ip| TARGETS.map(|port| (ip, port))) {
            let listener = host.namespace.enter(|| listen((address, port).into())).unwrap();
            web.stops.push(Socket::from(listener.try_clone().unwrap()));
            let name = host.name.clone();
            web.threads.push(thread::spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    let _ = answer(stream, &name);
                }
            }));
        }
        web
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        for socket in &self.stops {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        self.stops.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn listen(address: SocketAddr) -> TcpListener {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket.listen(1024).unwrap();
    socket.into()
}

fn answer(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.read_exact(&mut [0])?;
    stream.write_all(name.as_bytes())
}

impl Asker<'_> {
    fn ask(&self, number: usize) -> Result<String, (Option<SocketAddr>, String)> {
        let socket = Socket::new(Domain::for_address(self.target), Type::STREAM, None).unwrap();
        if let Some((first, last)) = self.ports {
            let span = usize::from(last - first);
            let port = first + u16::try_from(number % span).unwrap();
            let any: IpAddr = match self.target {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            socket.set_reuse_address(true).unwrap();
            let source = SocketAddr::new(any, port);
            socket.bind(&source.into()).map_err(|e| (Some(source), format!("bind: {e}")))?;
        }
        let connected = socket.connect_timeout(&self.target.into(), LIMIT);
        let source = socket.local_addr().ok().and_then(|address| address.as_socket());
        let said = |what: &str, error: std::io::Error| (source, format!("{what}: {error}"));
        connected.map_err(|error| said("connect", error))?;
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.write_all(b"?").map_err(|error| said("write", error))?;
        let mut text = String::new();
        if self.aborts {
            let mut chunk = [0; 64];
            let length = stream.read(&mut chunk).map_err(|error| said("read", error))?;
            text.push_str(&String::from_utf8_lossy(&chunk[..length]));
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        } else {
            stream.read_to_string(&mut text).map_err(|error| said("read", error))?;
        }
        if text.is_empty() { Err((source, "closed".to_owned())) } else { Ok(text) }
    }

    fn run(&self, outcome: &Outcome, started: Instant, stop: &AtomicBool) {
        let work = || {
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let begin = Instant::now();
                outcome.begun.lock().unwrap().insert(self.name, begin - started);
                let answered = self.ask(number);
                let loss = |source, what| Loss {
                    asker: self.name,
                    at: begin - started,
                    took: begin.elapsed(),
                    source,
                    what,
                };
                match answered {
                    Ok(name) => {
                        outcome.answers.fetch_add(1, Ordering::Relaxed);
                        if begin.elapsed() > SLOW {
                            outcome.delayed.lock().unwrap().push(loss(None, name));
                        }
                    }
                    Err((source, what)) => outcome.losses.lock().unwrap().push(loss(source, what)),
                }
            }
        };
        self.from.enter(work).unwrap();
    }
}

impl fmt::Display for Outcome {
    /// The pods' last events, each loss, and each answer that waited for a packet to be sent again.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, event) in self.events.lock().unwrap().iter().rev().take(SHOWN) {
            writeln!(formatter, "{at:?} {event}")?;
        }
        let (delayed, losses) = (self.delayed.lock().unwrap(), self.losses.lock().unwrap());
        for delayed in delayed.iter().take(SHOWN) {
            writeln!(formatter, "delayed: {delayed}")?;
        }
        for loss in losses.iter().take(SHOWN) {
            writeln!(formatter, "lost: {loss}")?;
        }
        let answers = self.answers.load(Ordering::Relaxed);
        let events = self.events.lock().unwrap();
        let n_stopped = events.iter().filter(|(_, event)| event.ends_with("stopped")).count();
        let (lost, delayed) = (losses.len(), delayed.len());
        write!(
            formatter,
            "{answers} answers, {n_stopped} pods stopped, {lost} lost, {delayed} delayed"
        )
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asker, at, took, source, what } = self;
        write!(formatter, "{asker} at {at:?}, took {took:?}, from {source:?}: {what}")
    }
}

/// The two Services. Of a terminating pod it is known since when both nodes drain it.
fn services(
    ready: &VecDeque<&Host>,
    terminating: &VecDeque<(Option<Duration>, &Host)>,
) -> Vec<Service> {
    let mk = |name: &str, last: u8, target: u16| {
        let text = |net: &str| ip(&format!("{net}{last}"));
        let node_port = 30_000 + u16::from(last);
        let mut service = Service::new(name, text("10.96.0."));
        service = service.node_port(Protocol::Tcp, 80, target, node_port);
        service.cluster.push(text("fd00:96::"));
        service.external = vec![text("198.51.100."), text("fd00:203::")];
        for (_, pod) in terminating {
            service = service.terminating_pod(pod, true);
        }
        service.pods(ready.iter().copied())
    };
    let mut local = mk("local", 11, TARGETS[1]);
    local.more = vec!["externalTrafficPolicy: Local".to_owned()];
    vec![mk("web", 10, TARGETS[0]), local]
}

/// True if no node sends new connections to a pod.
fn is_drained(bed: &Bed, pod: &Host) -> bool {
    bed.cluster.nodes().iter().all(|node| {
        let namespace = netlink::Namespace::at(&node.namespace.path()).unwrap();
        let listings = ipvs::Client::open_in(&namespace).unwrap().list_all().unwrap();
        let mut servers = listings.iter().flat_map(|listing| &listing.real_servers);
        let addresses = pod.addresses();
        !servers.any(|real| real.server.weight > 0 && addresses.contains(&real.server.address))
    })
}

/// Replaces one endpoint after the other until there are enough answers. Returns who serves then.
fn roll(
    bed: &Bed,
    mut webs: BTreeMap<String, Web>,
    outcome: &Outcome,
    started: Instant,
    enough: usize,
) -> BTreeMap<String, Web> {
    let numbers = (1..=BACKENDS).flat_map(|pod| [(1, pod), (2, pod)]);
    let mut idle: VecDeque<&Host> = numbers.map(|(node, pod)| bed.pod(node, pod)).collect();
    let mut ready: VecDeque<&Host> = idle.drain(..READY).collect();
    let mut terminating: VecDeque<(Option<Duration>, &Host)> = VecDeque::new();
    let note = |text: String| outcome.events.lock().unwrap().push((started.elapsed(), text));
    let mut next = Instant::now() + STEP;
    while outcome.answers.load(Ordering::Relaxed) < enough {
        if let Some((known, pod)) = terminating.front_mut()
            && known.is_none()
            && is_drained(bed, pod)
        {
            *known = Some(started.elapsed());
            note(format!("{} drains on both nodes", pod.name));
        }
        if let Some((Some(known), pod)) = terminating.front().copied()
            && outcome.begun.lock().unwrap().values().all(|begun| *begun > known)
        {
            drop(webs.remove(&pod.name));
            note(format!("{} stopped", pod.name));
            terminating.pop_front();
            idle.push_back(pod);
        }
        if Instant::now() >= next
            && let Some(comes) = idle.pop_front()
        {
            webs.insert(comes.name.clone(), Web::start(comes));
            let goes = ready.pop_front().unwrap();
            ready.push_back(comes);
            terminating.push_back((None, goes));
            next = Instant::now() + STEP;
            for service in services(&ready, &terminating) {
                bed.manifests.apply(&service).unwrap();
            }
            note(format!("{} ready, {} terminating", comes.name, goes.name));
        }
        thread::sleep(Duration::from_millis(10));
    }
    webs
}

/// The askers: by every kind of frontend, from outside, from pods of both nodes and from a node;
/// each address of a client asks one way to the pods of a Service.
fn askers(bed: &Bed) -> Vec<Asker<'_>> {
    let client = |number| &bed.cluster.client(number).unwrap().namespace;
    let pod = |node, pod| &bed.pod(node, pod).namespace;
    let mk = |name, from, (address, port): (&str, u16), ports, aborts| {
        let target = SocketAddr::new(ip(address), port);
        Asker { name, from, target, ports, aborts }
    };
    let few = Some((20_000, 20_040));
    vec![
        mk("outside, external", client(1), ("198.51.100.10", 80), None, false),
        mk("outside, node port of 6", client(1), ("fd00:192::11", 30_010), None, true),
        mk("outside, external, few ports", client(2), ("198.51.100.10", 80), few, false),
        mk("outside, external of 6, few", client(2), ("fd00:203::10", 80), few, true),
        mk("outside, local", client(3), ("198.51.100.11", 80), None, false),
        mk("outside, local of 6, few", client(3), ("fd00:203::11", 80), few, false),
        mk("pod, cluster", pod(1, 5), ("10.96.0.10", 80), None, false),
        mk("pod, cluster of 6, few", pod(1, 5), ("fd00:96::10", 80), few, false),
        mk("pod, local", pod(1, 6), ("198.51.100.11", 80), None, false),
        mk("pod, local of 6, few", pod(1, 6), ("fd00:203::11", 80), few, false),
        mk("pod elsewhere, cluster", pod(2, 5), ("10.96.0.10", 80), None, true),
        mk("pod elsewhere, external, few", pod(2, 6), ("198.51.100.10", 80), few, false),
        mk("node, cluster", bed.node(), ("10.96.0.10", 80), None, false),
    ]
}

/// A kube-ipvs on each node.
fn proxies(bed: &Bed) -> Vec<Proxy> {
    let folder = bed.manifests.path().to_str().unwrap();
    let range = format!("--cluster-cidr={POD_RANGE_IPV4},{POD_RANGE_IPV6}");
    let start = |node: &Host| {
        let arguments = ["--manifests", folder, "--hostname-override", &node.name, &range];
        let mut proxy = Proxy::start_with(&node.namespace, &arguments).unwrap();
        proxy.wait_until_in_sync().unwrap();
        proxy
    };
    bed.cluster.nodes().iter().map(start).collect()
}

#[test]
fn a_rolling_update_cuts_no_connection() {
    let nodes = vec![NodeSpec { pods: BACKENDS + 2 }; 2];
    let bed = Bed::with(&ClusterSpec { nodes, clients: 3, ..ClusterSpec::default() });
    let first: VecDeque<&Host> =
        [(1, 1), (2, 1), (1, 2), (2, 2)].map(|(node, pod)| bed.pod(node, pod)).into();
    for service in services(&first, &VecDeque::new()) {
        bed.manifests.apply(&service).unwrap();
    }
    let _proxies = proxies(&bed);
    let askers = askers(&bed);
    let enough = usize::try_from(amount(3_000, 100_000)).unwrap();
    let (outcome, stop, started) = (Outcome::default(), AtomicBool::new(false), Instant::now());
    let webs = first.iter().map(|pod| (pod.name.clone(), Web::start(pod))).collect();
    let (told, halt) = (&outcome, &stop);
    let _they_serve_until_all_have_asked = thread::scope(|scope| {
        for asker in &askers {
            scope.spawn(move || asker.run(told, started, halt));
        }
        let webs = roll(&bed, webs, told, started, enough);
        stop.store(true, Ordering::Relaxed);
        webs
    });
    println!("{outcome}");
    assert!(outcome.losses.lock().unwrap().is_empty());
}
