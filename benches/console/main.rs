//! Cost of the console's answers on a large node, and what they cost a change on its way to the kernel:
//! `cargo xtask bench --what console [-- SERVICESxENDPOINTS]`.
//!
//! The real program in a network namespace, fed by an API server over TLS, on real IPVS. Answers are asked
//! for over the socket, as commands do; `top` and a few commands run as processes of their own. Times are of
//! the machine: compare them within a run. Nothing fails because of a time.

mod changes;
#[path = "../footprint/cluster.rs"]
mod cluster;
mod questions;
mod report;
mod usage;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use apiserver::Credentials;
use bed::{Namespace, Proxy, Terminal};
use kube_ipvs::console::client::Client;

use changes::Changes;
use cluster::Size;
use questions::QUESTIONS;
use report::Times;
use usage::Usage;

const SIZE: Size = Size { services: 10_000, endpoints: 10 };

/// Longest time until everything is written.
const PATIENCE: Duration = Duration::from_secs(900);

/// Place of the program's socket.
const SOCKET: &str = "/run/kube-ipvs/bench.sock";

/// Path of the program.
const PROGRAM: &str = "/job/kube-ipvs";

/// Changes that are timed without questions, and beside each kind of question.
const CHANGES: u32 = 60;

/// Time for which `top` is watched, and nothing.
const WATCH: Duration = Duration::from_secs(60);

/// Pause between two questions while changes are timed: far more often than people ask, and without any.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::ZERO];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let size = arguments.iter().find_map(|text| Size::parse(text)).unwrap_or(SIZE);
    match measure(size) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("console: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(size: Size) -> Result<()> {
    let node = Namespace::create("node")?;
    node.configure_links(&["link set lo up".to_owned()])?;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 6443));
    let server = node.enter(|| cluster::serve(size, listen))??;
    let kubeconfig = tempfile::NamedTempFile::new()?;
    fs::write(kubeconfig.path(), server.kubeconfig(&Credentials::Anonymous))?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.path().display());
    let arguments = [
        &kubeconfig,
        "--hostname-override=node1",
        "--cluster-cidr=10.128.0.0/9",
        &format!("--console-socket={SOCKET}"),
        // A change waits for no other.
        "--ipvs-min-sync-period=0s",
    ];
    let mut proxy = Proxy::start_with(&node, &arguments)?;
    proxy.wait_until_in_sync_within(PATIENCE)?;
    let process = proxy.process();
    let client = Client::find(Some(Path::new(SOCKET))).map_err(|it| anyhow::anyhow!("{it}"))?;
    let all = size.all_endpoints();
    println!("{} Services with {} endpoints each, {all} in all\n", size.services, size.endpoints);
    answers(&client, process)?;
    commands(&node)?;
    top(&node, process)?;
    let changes = Changes::watch(&node, &server, size)?;
    beside_questions(&client, changes)
}

/// Times each question alone.
fn answers(client: &Client, process: u32) -> Result<()> {
    println!(
        "| Answer over the socket | Asked | Median | 99th percentile | Longest | Processor time each |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for question in &QUESTIONS {
        (question.ask)(client)?;
        let (mut times, before) = (Times::default(), Usage::of(process)?);
        for _ in 0..question.n_times {
            let began = Instant::now();
            (question.ask)(client)?;
            times.add(began.elapsed());
        }
        let used = Usage::of(process)?.since(&before) / question.n_times;
        println!(
            "| `{}` | {} | {times} | {} |",
            question.name,
            question.n_times,
            report::text(used)
        );
    }
    println!();
    Ok(())
}

/// Times commands as processes of their own: starting one is most of it.
fn commands(node: &Namespace) -> Result<()> {
    println!("| Command | Run | Median | 99th percentile | Longest |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    let commands: [(&[&str], u32); 4] = [
        (&["--version"], 10),
        (&["status"], 20),
        (&["services", "-A"], 3),
        (&["explain", "default/service-17"], 10),
    ];
    for (words, n_times) in commands {
        let mut times = Times::default();
        for _ in 0..n_times {
            let mut command = Command::new(PROGRAM);
            command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
            if words != ["--version"] {
                command.args(["--socket", SOCKET]);
            }
            let began = Instant::now();
            let status = node.enter(|| command.status())??;
            times.add(began.elapsed());
            ensure!(status.code().is_some_and(|code| code < 2), "{words:?}: {status}");
        }
        println!("| `kube-ipvs {}` | {n_times} | {times} |", words.join(" "));
    }
    println!();
    Ok(())
}

/// Watches the processor time of the program and of `top`, and of the program alone.
fn top(node: &Namespace, process: u32) -> Result<()> {
    let share = |used: Duration| used.as_secs_f64() / WATCH.as_secs_f64() * 100.0;
    let watch = |process: u32| -> Result<Duration> {
        let before = Usage::of(process)?;
        thread::sleep(WATCH);
        Ok(Usage::of(process)?.since(&before))
    };
    let alone = share(watch(process)?);
    let mut command = Command::new(PROGRAM);
    command.args(["top", "--socket", SOCKET]);
    let mut terminal = Terminal::start(node, command)?;
    bed::eventually(Duration::from_secs(60), "top has rows", || {
        let has_rows = terminal.lines().iter().any(|line| line.contains("default/service-"));
        if has_rows { Ok(()) } else { bail!("{:?}", terminal.lines()) }
    })?;
    // The first readings are over.
    thread::sleep(Duration::from_secs(10));
    let (client, before) = (terminal.process(), Usage::of(process)?);
    let of_client = share(watch(client)?);
    let beside = Usage::of(process)?.since(&before);
    let with_top = share(beside);
    terminal.press("q")?;
    terminal.wait(Duration::from_secs(30))?;
    println!("| Share of a processor, over {} s | |\n| --- | ---: |", WATCH.as_secs());
    println!("| the program, with nothing to do | {alone:.2} % |");
    println!("| the program, while `top` refreshes | {with_top:.2} % |");
    println!("| `top` itself | {of_client:.2} % |\n");
    Ok(())
}

/// Times changes alone, and beside each kind of question.
fn beside_questions(client: &Client, mut changes: Changes<'_>) -> Result<()> {
    // The first ones touch memory for the first time.
    changes.time(5)?;
    let alone = changes.time(CHANGES)?;
    println!(
        "| One Service's way to the kernel | Questions meanwhile | Median | 99th percentile | Longest | Median, of that alone |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    println!("| alone | 0 | {alone} | 1.00 |");
    for pause in PAUSES {
        for question in &QUESTIONS {
            let (is_over, n_asked) = (AtomicBool::new(false), AtomicUsize::new(0));
            let times = thread::scope(|scope| {
                let asking = scope.spawn(|| -> Result<()> {
                    while !is_over.load(Ordering::Relaxed) {
                        (question.ask)(client)?;
                        n_asked.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(pause);
                    }
                    Ok(())
                });
                let times = changes.time(CHANGES);
                is_over.store(true, Ordering::Relaxed);
                asking.join().map_err(|_| anyhow::anyhow!("asking has panicked"))??;
                times
            })?;
            let ratio = times.median().as_secs_f64() / alone.median().as_secs_f64();
            let how = if pause.is_zero() { "again and again" } else { "with pauses of 100 ms" };
            let n_asked = n_asked.load(Ordering::Relaxed);
            println!("| beside `{}`, {how} | {n_asked} | {times} | {ratio:.2} |", question.name);
        }
    }
    changes.end().context("end watching addresses")
}
