//! kube-ipvs and another program for the same configuration, such as a kube-proxy that the reader has, seen from outside:
//! `cargo xtask bench --peer FILE`.
//!
//! Each has a node, a pod and a client of its own, and the same API server. Something is in force once a connection of the
//! client gets the answer of the right endpoint, so that no program's own word counts. One pod has the addresses of all
//! endpoints, and says by which one it was reached.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use apiserver::{Credentials, Server};
use bed::{Cluster, ClusterSpec, Daemon, NodeSpec, PodCables};
use serde_json::json;

use crate::cluster::{self, Size};
use crate::{PATIENCE, TICKS_A_SECOND, kibibytes};

/// Addresses of all endpoints, those of [`cluster::slice`] and [`Place::new_endpoint`] among them.
const ENDPOINTS: &str = "10.128.0.0/10";
/// Number of Services that are asked, spread over all.
const ASKED: u32 = 100;
/// Longest time that an answer may take.
const ANSWER: Duration = Duration::from_millis(500);
/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(2);
/// Pause before a change, longer than the least time between two syncs, which is a second by default.
const BETWEEN: Duration = Duration::from_millis(1_500);
/// Part of a processor below which a program is at rest, and how long that is looked at.
const REST: f64 = 0.05;
const LOOK: Duration = Duration::from_secs(2);
/// Time after which a program is measured at rest even if it is not.
const RESTLESS: Duration = Duration::from_secs(300);
/// Time that a program has to end. kube-proxy ends at once.
const END: Duration = Duration::from_secs(30);

/// Time at rest, and number of changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    at_rest: Duration,
    changes: u32,
}

/// A program with its flags.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) flags: Vec<String>,
}

/// Figures of a program.
#[derive(Debug)]
struct Figures {
    first_sync: Duration,
    first_sync_cpu: f64,
    first_sync_started: u64,
    changes: Vec<Duration>,
    /// In percent of a processor.
    rest_cpu: f64,
    rest_started: u64,
    resident_kib: u64,
    peak_kib: u64,
    restart: Duration,
}

/// A node with its API server, a pod and a client.
struct Place {
    size: Size,
    cluster: Cluster,
    server: Server,
    kubeconfig: tempfile::NamedTempFile,
}

/// A running program.
struct Running {
    daemon: Daemon,
    process: u32,
}

impl Extent {
    pub(crate) const LONG: Self = Self { at_rest: Duration::from_secs(60), changes: 30 };
    pub(crate) const SHORT: Self = Self { at_rest: Duration::from_secs(5), changes: 3 };
}

/// Measures both, one after the other, and prints a table.
pub(crate) fn measure(sizes: &[Size], extent: Extent, peer: &Program) -> Result<()> {
    let ours = Program { path: bed::program(), flags: Vec::new() };
    for size in sizes.iter().copied() {
        ensure!(size.services > 0 && size.endpoints > 0, "a Service with an endpoint is needed");
        let one = |program: &Program| {
            let figures = Place::build(size).and_then(|place| place.measure(program, extent));
            figures.with_context(|| program.path.display().to_string())
        };
        let (ours, peers) = (one(&ours)?, one(peer)?);
        print(size, [&ours, &peers], peer);
    }
    Ok(())
}

fn print(size: Size, both: [&Figures; 2], peer: &Program) {
    let name = peer.path.file_name().unwrap_or_default().to_string_lossy();
    println!("\n{} Services of {} endpoints each\n", size.services, size.endpoints);
    println!("| | kube-ipvs | {name} {} |\n| --- | ---: | ---: |", peer.flags.join(" "));
    let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
    let row = |title: &str, cell: &dyn Fn(&Figures) -> String| {
        println!("| {title} | {} | {} |", cell(both[0]), cell(both[1]));
    };
    row("first sync, until Services answer", &|it| seconds(it.first_sync));
    row("… processor time", &|it| format!("{:.2} s", it.first_sync_cpu));
    row("… programs and threads started", &|it| it.first_sync_started.to_string());
    row("restart, until a change before it is in force", &|it| seconds(it.restart));
    row("one change, median", &|it| milliseconds(middle(&it.changes)));
    row("… longest", &|it| milliseconds(it.changes.iter().max().copied().unwrap_or_default()));
    row("at rest, of a processor", &|it| format!("{:.2} %", it.rest_cpu));
    row("… programs and threads started a minute", &|it| it.rest_started.to_string());
    row("memory at rest", &|it| mebibytes(it.resident_kib));
    row("… at its peak", &|it| mebibytes(it.peak_kib));
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1_000.0)
}

fn mebibytes(kibibytes: u64) -> String {
    format!("{:.1} MiB", kibibytes as f64 / 1_024.0)
}

fn middle(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

impl Place {
    fn build(size: Size) -> Result<Self> {
        let cluster = Cluster::build(&ClusterSpec {
            nodes: vec![NodeSpec { pods: 1 }],
            clients: 1,
            ipv6: false,
            pod_cables: PodCables::of_host(),
        })?;
        let pod = cluster.pod(1, 1)?;
        pod.namespace.configure_links(&[format!("route add local {ENDPOINTS} dev lo")])?;
        let node = &cluster.node(1)?.namespace;
        node.configure_links(&[format!("route add {ENDPOINTS} via {}", pod.ipv4)])?;
        let listener =
            pod.namespace.enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8_080)))??;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = say_address(stream);
            }
        });
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 6_443));
        let server = node.enter(|| cluster::serve(size, listen))??;
        server.apply(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"},
            "spec": {"podCIDR": ENDPOINTS, "podCIDRs": [ENDPOINTS]},
            "status": {"addresses": [
                {"type": "InternalIP", "address": cluster.node(1)?.ipv4.to_string()},
            ]},
        }))?;
        let kubeconfig = tempfile::NamedTempFile::new()?;
        fs::write(kubeconfig.path(), server.kubeconfig(&Credentials::Anonymous))?;
        Ok(Self { size, cluster, server, kubeconfig })
    }

    fn measure(&self, program: &Program, extent: Extent) -> Result<Figures> {
        let (began, started) = (Instant::now(), started()?);
        let mut running = self.start(program)?;
        let n_asked = ASKED.min(self.size.services);
        for index in 1..=n_asked {
            let service = self.size.services * index / n_asked - 1;
            self.wait(&mut running, service, |_| true)?;
        }
        let first_sync = began.elapsed();
        self.settle(&running)?;
        let (first_sync_cpu, first_sync_started) = (running.cpu()?, self::started()? - started);
        let changes = (0..extent.changes).map(|number| self.change(&mut running, number));
        let changes = changes.collect::<Result<Vec<_>>>()?;
        self.settle(&running)?;
        let (cpu, started) = (running.cpu()?, self::started()?);
        thread::sleep(extent.at_rest);
        let seconds = extent.at_rest.as_secs_f64();
        let rest_cpu = (running.cpu()? - cpu) / seconds * 100.0;
        let started = (self::started()? - started) as f64;
        let rest_started = (started * 60.0 / seconds).round() as u64;
        let status = fs::read_to_string(format!("/proc/{}/status", running.process))?;
        let (resident_kib, peak_kib) =
            (kibibytes(&status, "VmRSS:")?, kibibytes(&status, "VmHWM:")?);
        running.daemon.terminate(END)?;
        // A change while the program is away shows the end of its restart.
        let (service, endpoint) = (self.size.services - 1, new_endpoint(extent.changes));
        self.lead(service, endpoint)?;
        let began = Instant::now();
        let mut running = self.start(program)?;
        self.wait(&mut running, service, |answer| answer == endpoint)?;
        let restart = began.elapsed();
        running.daemon.terminate(END)?;
        Ok(Figures {
            first_sync,
            first_sync_cpu,
            first_sync_started,
            changes,
            rest_cpu,
            rest_started,
            resident_kib,
            peak_kib,
            restart,
        })
    }

    fn start(&self, program: &Program) -> Result<Running> {
        let mut command = Command::new(&program.path);
        command
            .arg(format!("--kubeconfig={}", self.kubeconfig.path().display()))
            .args(["--hostname-override=node1", &format!("--cluster-cidr={ENDPOINTS}")])
            // The kernel's own limits are not a network namespace's to set.
            .args(["--conntrack-max-per-core=0", "--conntrack-min=0"])
            .args(&program.flags);
        let log = File::create(self.log()).context("make a log")?;
        command.stdout(log.try_clone()?).stderr(log);
        let mut daemon = self.cluster.node(1)?.namespace.spawn(command)?;
        let process = daemon.child().id();
        Ok(Running { daemon, process })
    }

    fn log(&self) -> PathBuf {
        self.kubeconfig.path().with_extension("log")
    }

    /// Has a Service one endpoint, another than before. Returns the time until it answers.
    fn change(&self, running: &mut Running, number: u32) -> Result<Duration> {
        let (service, endpoint) = (number * 7 % self.size.services, new_endpoint(number));
        thread::sleep(BETWEEN);
        let began = Instant::now();
        self.lead(service, endpoint)?;
        self.wait(running, service, |answer| answer == endpoint)?;
        Ok(began.elapsed())
    }

    fn lead(&self, service: u32, endpoint: IpAddr) -> Result<()> {
        let mut slice = cluster::slice(service, 1);
        let address = slice.pointer_mut("/endpoints/0/addresses/0").context("no address")?;
        *address = json!(endpoint.to_string());
        self.server.apply(slice)?;
        Ok(())
    }

    /// Asks a Service until it answers so.
    fn wait(
        &self,
        running: &mut Running,
        service: u32,
        is_right: impl Fn(IpAddr) -> bool,
    ) -> Result<()> {
        let address = cluster::service(service);
        let address = address.pointer("/spec/clusterIP").and_then(|it| it.as_str());
        let address: IpAddr = address.context("a Service without an address")?.parse()?;
        let began = Instant::now();
        let client = &self.cluster.client(1)?.namespace;
        while !client.enter(|| ask((address, 80).into()))?.is_some_and(&is_right) {
            if began.elapsed() > PATIENCE || !running.daemon.is_running()? {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = lines.get(lines.len().saturating_sub(20)..).unwrap_or_default();
                bail!("service-{service} is not served; the log ends so:\n{}", last.join("\n"));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Waits until the program is at rest, or is not going to be.
    fn settle(&self, running: &Running) -> Result<()> {
        let began = Instant::now();
        loop {
            let before = running.cpu()?;
            thread::sleep(LOOK);
            if running.cpu()? - before < REST * LOOK.as_secs_f64() {
                return Ok(());
            }
            if began.elapsed() > RESTLESS {
                eprintln!("footprint: {}: not at rest within {RESTLESS:?}", self.size.services);
                return Ok(());
            }
        }
    }
}

impl Running {
    /// Processor seconds of it, and of programs that it started and waited for.
    fn cpu(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process))?;
        // proc_pid_stat(5): after the name in parentheses, the 12th to the 15th are utime, stime, cutime and cstime.
        let (_, fields) = stat.rsplit_once(") ").context("/proc/PID/stat has no name")?;
        let ticks = fields.split_whitespace().skip(11).take(4).map(str::parse::<f64>);
        Ok(ticks.sum::<Result<f64, _>>()? / TICKS_A_SECOND)
    }
}

/// Number of processes and threads that the kernel has started: in a guest hardly any but a program's.
fn started() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    let line = stat.lines().find_map(|line| line.strip_prefix("processes "));
    Ok(line.context("/proc/stat has no line `processes`")?.trim().parse()?)
}

/// An endpoint that no Service has at first: 10.160.0.1 and on.
fn new_endpoint(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0aa0_0001 + number).into()
}

fn say_address(mut stream: TcpStream) -> Result<()> {
    let address = stream.local_addr()?.ip().to_string();
    Ok(stream.write_all(address.as_bytes())?)
}

/// The address of the endpoint that a connection reaches, if one does.
fn ask(service: SocketAddr) -> Option<IpAddr> {
    let mut stream = TcpStream::connect_timeout(&service, ANSWER).ok()?;
    stream.set_read_timeout(Some(ANSWER)).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.parse().ok()
}
