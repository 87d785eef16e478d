//! kube-ipvs at work on a small cluster: every example Service is asked, and one is changed while
//! traffic flows.
//!
//! ```text
//! demo PROGRAM EXAMPLES [--switch | --stay | --fast-path]
//! ```
//!
//! `PROGRAM` is kube-ipvs, `EXAMPLES` the folder of example manifests. With `--switch`, the node changes
//! its mode under traffic instead, with Services of its own. With `--stay`, traffic goes on, and a shell on
//! the node has the terminal until it ends. With `--fast-path`, the flow table carries connections. Ends with success only if
//! everything that was expected came true. Needs root, and a kernel with IPVS for itself.

mod change;
mod fast_path;
mod report;
mod services;
mod state;
mod stay;
mod switch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use bed::{Cluster, ClusterSpec, Manifests, PodCables, Protocol, Proxy, Server};

use crate::report::Report;

/// Ports that the examples' pods listen on.
const POD_PORTS: [(Protocol, u16); 2] = [(Protocol::Tcp, 8080), (Protocol::Udp, 5353)];

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let mut report = Report::start();
    let done = match arguments.as_slice() {
        [program, examples] => run(&mut report, program, examples, &[], show),
        [program, examples, option] if option == Path::new("--fast-path") => {
            let words = ["--rule-backend=nftables", "--fast-path=offload"];
            run(&mut report, program, examples, &words, show_fast_path)
        }
        [program, _, option] if option == Path::new("--switch") => run_switch(&mut report, program),
        [program, examples, option] if option == Path::new("--stay") => {
            stay::run(&report, program, examples)
        }
        _ => {
            eprintln!("usage: demo PROGRAM EXAMPLES [--switch | --stay | --fast-path]");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) if report.all_held() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: cannot go on: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Part of the demo that kube-ipvs runs for.
type Show = fn(&mut Report, &Path, &Cluster, &Manifests) -> Result<()>;

fn run(
    report: &mut Report,
    program: &Path,
    examples: &Path,
    words: &[&str],
    show: Show,
) -> Result<()> {
    let Node { cluster, manifests, proxy, _servers } =
        Node::start(report, program, examples, words)?;
    let shown = show(report, program, &cluster, &manifests);
    if shown.is_err() || !report.all_held() {
        println!("\nkube-ipvs has logged:\n{}", proxy.log()?.trim_end());
    }
    shown?;
    report.step("stopping kube-ipvs");
    let stopped = proxy.stop().map(drop);
    report.expect("it ends well within 10 s of SIGTERM", stopped);
    report.step(&report.summary());
    Ok(())
}

/// The first node of a cluster, with kube-ipvs and the examples.
struct Node {
    cluster: Cluster,
    manifests: Manifests,
    proxy: Proxy,
    _servers: Vec<Server>,
}

impl Node {
    /// Starts the program with these arguments, beside those of a manifest folder.
    fn start(report: &Report, program: &Path, examples: &Path, arguments: &[&str]) -> Result<Self> {
        report.step("loading the modules that every node has loaded");
        load_modules()?;
        report.step("laying out 2 nodes with 2 pods each, and a client outside");
        let cluster = Cluster::build(&ClusterSpec::default())?;
        let servers = cluster
            .pods()
            .map(|pod| Server::start(pod, &POD_PORTS))
            .collect::<Result<Vec<_>>>()
            .context("starting the servers in the pods")?;
        let manifests = Manifests::new()?;
        let copied = copy_examples(examples, &manifests)?;
        report.step(&format!("starting kube-ipvs on node1 with {copied} manifests"));
        let node = &cluster.node(1)?.namespace;
        let proxy = Proxy::start_program(program, node, &manifests, arguments)?;
        Ok(Self { cluster, manifests, proxy, _servers: servers })
    }
}

fn run_switch(report: &mut Report, program: &Path) -> Result<()> {
    load_modules()?;
    report.step("laying out 2 nodes with 2 pods each, and a client outside");
    let cluster = Cluster::build(&ClusterSpec::default())?;
    let manifests = Manifests::new()?;
    switch::show(report, &cluster, program, &manifests)?;
    report.step(&report.summary());
    Ok(())
}

/// Everything that is shown while kube-ipvs runs.
fn show(
    report: &mut Report,
    program: &Path,
    cluster: &Cluster,
    manifests: &Manifests,
) -> Result<()> {
    report.step("asking every Service 12 times, from the client outside and from a pod");
    services::ask_all(report, cluster)?;
    report.step("what node1 holds now");
    state::print(&cluster.node(1)?.namespace, program)?;
    report.step("taking a pod of `web` away and putting it back, under traffic");
    change::under_traffic(report, cluster, manifests)
}

/// The same with rules in nf_tables, and a flow table.
fn show_fast_path(
    report: &mut Report,
    program: &Path,
    cluster: &Cluster,
    manifests: &Manifests,
) -> Result<()> {
    report.step("asking every Service 12 times, from the client outside and from a pod");
    services::ask_all(report, cluster)?;
    fast_path::show(report, program, cluster, manifests)
}

/// IPVS itself is for kube-ipvs to load.
fn load_modules() -> Result<()> {
    let mut command = Command::new("modprobe");
    let modules = ["nf_conntrack"].iter().chain(PodCables::of_host().modules());
    command.arg("-a").args(modules);
    let status = command.status().context("cannot start modprobe")?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Returns how many there are.
fn copy_examples(examples: &Path, manifests: &Manifests) -> Result<usize> {
    let context = || format!("reading the examples in {}", examples.display());
    let mut copied = 0;
    for entry in fs::read_dir(examples).with_context(context)? {
        let path = entry.with_context(context)?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            manifests.write(&name, &fs::read_to_string(&path).with_context(context)?)?;
            copied += 1;
        }
    }
    if copied == 0 {
        bail!("there are no examples in {}", examples.display());
    }
    Ok(copied)
}
