//! `cargo xtask bench`: what a cluster's whole state costs on real kernels, or what the program
//! itself needs for it.
//!
//! In reading order: this (what runs where), `schema` (the JSON of one guest), `results` (the JSON
//! of all guests), `targets` (what is aimed at), `page` (docs/internals/performance.md).

mod page;
mod results;
#[path = "../../benches/at_scale/schema.rs"]
mod schema;
mod targets;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::architecture::Architecture;
use crate::build;
use crate::vm::accel::AccelChoice;
use crate::vm::distribution::Distribution;
use crate::vm::guest::{Guest, GuestFile};
use crate::vm::kernel::Kernel;
use crate::vm::verdict::Verdict;
use results::{Commit, Results, Run};
use schema::{Measured, Report};

/// The largest cluster takes a quarter of an hour at native speed, and two hours emulated.
const LIMIT: Duration = Duration::from_secs(4 * 3_600);
/// Enough for half a million real servers and the processes that read or serve them.
const MEMORY: &str = "6G";
/// Sizes at which modes are compared.
const MODE_SIZES: &str = "1000x2,10000x2";
/// Size of the cluster beside which something holds changes up.
const HELD_UP_SIZE: &str = "10000x10";
/// Size at which another program is measured beside kube-ipvs.
const PEER_SIZES: &str = "1000x10";
/// File that the guest leaves.
const REPORT: &str = "at-scale.json";

/// Choice of what to measure, where, and what becomes of it.
#[derive(Debug, Default, Args)]
pub(crate) struct BenchArguments {
    /// Measurement to take.
    #[arg(long, value_enum, default_value_t)]
    what: Measurement,
    /// Kinds of guest to measure in.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["uml", "qemu"])]
    lane: Vec<Lane>,
    /// Kernels, one after another.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["6.1", "6.12"])]
    kernel: Vec<Kernel>,
    /// Numbers of Services, and of endpoints of each. Default: 1000x10, 10000x10, 50000x10 and 5000x50.
    #[arg(long, value_delimiter = ',', value_name = "SERVICESxENDPOINTS")]
    sizes: Vec<String>,
    /// Measure for seconds instead of minutes, in a quick build: to see that the benchmark works.
    #[arg(long)]
    short: bool,
    /// File for the results in JSON.
    #[arg(long, value_name = "FILE", default_value = "target/bench/performance.json")]
    json: PathBuf,
    /// Measure nothing: read the results from these files of earlier runs on one machine.
    #[arg(long, value_delimiter = ',', value_name = "FILE")]
    from: Vec<PathBuf>,
    /// Remark for the page on how the results were measured.
    #[arg(long, value_name = "TEXT", default_value = "")]
    remark: String,
    /// Write docs/internals/performance.md and its JSON.
    #[arg(long)]
    write_docs: bool,
    /// At scale: use one local route instead of an address for each Service (serviceRoutes).
    #[arg(long)]
    routes: bool,
    /// Compare kube-ipvs with this kube-proxy in one guest with an API server: first sync, restart, changes, CPU at rest,
    /// memory. Flags of the kube-proxy follow `--`.
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,
    /// Packets: print connections per second instead of instructions, in the guests of --lane.
    #[arg(long)]
    rate: bool,
    /// Packets: use iptables for x_tables.
    #[arg(long)]
    legacy: bool,
    /// Footprint: one or more SERVICESxENDPOINTS. Herd: number of followers. Packets: options of the benchmark.
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
}

/// Measurements that there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// The reconcile loop: first sync, changes, restarts and repairs, with the kernel's own cost.
    #[default]
    AtScale,
    /// iptables mode, IPVS mode and a bare iptables-restore, printed.
    Modes,
    /// Delays of changes while a large Service keeps changing, and while the scheduler changes, printed.
    HeldUp,
    /// Memory and CPU time of kube-ipvs with an API server.
    Footprint,
    /// Cost of many nodes to their API server. Needs no kernel.
    Herd,
    /// Instructions per packet on its way through a node, printed.
    Packets,
}

/// Kind of guest in which something is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Lane {
    /// User-mode Linux, at native speed.
    Uml,
    /// A virtual machine of qemu; emulated, unless KVM works.
    Qemu,
}

impl Lane {
    /// For the page.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Uml => "native",
            Self::Qemu => "emulated",
        }
    }

    fn accel(self) -> AccelChoice {
        match self {
            Self::Uml => AccelChoice::Uml,
            Self::Qemu => AccelChoice::Auto,
        }
    }
}

/// Runs it with a small cluster and for a short time, at native speed: for the suite, which wants to
/// know that it works, and that the state is exact after every step.
pub(crate) fn short_form() -> Result<()> {
    at_scale(&BenchArguments::short("300x10")).map(drop)
}

/// The same of the comparison of modes.
pub(crate) fn short_form_of_modes() -> Result<()> {
    printed(&BenchArguments::short("300x2"), "--modes", MODE_SIZES)
}

/// The same of what holds other changes up.
pub(crate) fn short_form_of_held_up() -> Result<()> {
    printed(&BenchArguments::short("300x2"), "--held-up", HELD_UP_SIZE)
}

/// The same of a program beside it, for which it stands in itself, under a name of its own.
pub(crate) fn short_form_of_peer() -> Result<()> {
    let (_, daemon) = build::bench_program_and_daemon("footprint")?;
    let folder = tempfile::tempdir()?;
    let peer = folder.path().join("stand-in");
    std::fs::copy(daemon, &peer).context("cannot copy the program")?;
    beside(&BenchArguments::short("300x2"), &peer)
}

/// The same of what packets cost: bare IPVS and the program on one way, in a counted guest.
pub(crate) fn short_form_of_packets() -> Result<()> {
    packets(&BenchArguments { kernel: vec![Kernel::V6_1], ..BenchArguments::short("") })
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<()> {
    if let Some(peer) = &arguments.peer {
        return beside(arguments, peer);
    }
    match arguments.what {
        Measurement::AtScale => results(arguments),
        Measurement::Modes => printed(arguments, "--modes", MODE_SIZES),
        Measurement::HeldUp => printed(arguments, "--held-up", HELD_UP_SIZE),
        Measurement::Footprint => footprint(arguments),
        Measurement::Herd => herd(arguments),
        Measurement::Packets => packets(arguments),
    }
}

/// Measures at scale, or takes what was measured before, and writes the page if that is wanted.
fn results(arguments: &BenchArguments) -> Result<()> {
    let mut results = match arguments.from.split_first() {
        Some((first, others)) => {
            let mut results = Results::read(first)?;
            for path in others {
                results.add(Results::read(path)?)?;
            }
            results
        }
        None => at_scale(arguments)?,
    };
    if !arguments.remark.is_empty() {
        results.remark.clone_from(&arguments.remark);
    }
    if arguments.write_docs {
        write_docs(&results)?;
    }
    Ok(())
}

impl BenchArguments {
    /// One small size, where the bed has been already.
    fn short(size: &str) -> Self {
        Self {
            lane: vec![Lane::Uml],
            kernel: vec![Kernel::V6_12],
            sizes: vec![size.to_owned()],
            short: true,
            json: build::workspace().join("target/bench/short.json"),
            ..Self::default()
        }
    }

    fn profile(&self) -> &'static str {
        if self.short { build::QUICK } else { build::RELEASE }
    }

    fn program(&self, name: &str) -> Result<PathBuf> {
        eprintln!("bench: building");
        build::bench_program(name, self.profile())
    }

    /// Every lane on every kernel.
    fn guests(&self) -> impl Iterator<Item = (Lane, Kernel)> {
        let on_kernels = |lane| self.kernel.iter().map(move |kernel| (lane, *kernel));
        self.lane.iter().copied().flat_map(on_kernels)
    }

    /// Options of a measurement in a guest: sizes, or else these, and whether it is short.
    fn options(&self, sizes: &str) -> Vec<String> {
        let named = self.sizes.join(",");
        let sizes = if named.is_empty() { sizes } else { named.as_str() };
        let mut options = Vec::new();
        if !sizes.is_empty() {
            options.extend(["--sizes".to_owned(), sizes.to_owned()]);
        }
        options.extend(self.short.then(|| "--short".to_owned()));
        options
    }
}

/// Measures in every lane on every kernel. What has been measured is in the file even if what
/// comes later fails.
fn at_scale(arguments: &BenchArguments) -> Result<Results> {
    let program = arguments.program("at_scale")?;
    let (mut results, commit) = (Results::of_this_machine()?, build::commit()?);
    let file = arguments.json.display();
    for (lane, kernel) in arguments.guests() {
        let output = tempfile::tempdir()?;
        let mut options = arguments.options("");
        options.extend(["--json".to_owned(), format!("/job/out/{REPORT}")]);
        options.extend(arguments.routes.then(|| "--routes".to_owned()));
        let guest = Guest { output: Some(output.path().to_owned()), ..guest(kernel, lane.accel()) };
        let ended = measure(&guest, &program, &options);
        let report = std::fs::read(output.path().join(REPORT));
        let report =
            report.with_context(|| format!("the guest left no report in {REPORT} ({ended:?})"))?;
        let report: Report = serde_json::from_slice(&report)
            .with_context(|| format!("cannot decode the guest's {REPORT}"))?;
        let sizes = report.sizes.iter().map(Measured::label).collect();
        let commits = vec![Commit { commit: commit.clone(), sizes }];
        let (profile, series) = (arguments.profile().to_owned(), kernel.to_string());
        results.runs.push(Run { commits, profile, lane, series, report });
        results.write(&arguments.json)?;
        ended.with_context(|| format!("a measurement failed; {file} has the earlier ones"))?;
    }
    eprintln!("bench: all results are in {file}");
    Ok(results)
}

fn write_docs(results: &Results) -> Result<()> {
    let docs = build::workspace().join("docs/internals");
    results.write(&docs.join("performance.json"))?;
    std::fs::write(docs.join("performance.md"), page::write(results))?;
    eprintln!("bench: wrote docs/internals/performance.md and performance.json");
    Ok(())
}

/// Runs a part of the benchmark that prints what it has measured, with these sizes unless others are named.
fn printed(arguments: &BenchArguments, part: &str, sizes: &str) -> Result<()> {
    let program = arguments.program("at_scale")?;
    let options = [&[part.to_owned()], &arguments.options(sizes)[..]].concat();
    let mut guests = arguments.guests();
    guests.try_for_each(|(lane, kernel)| measure(&guest(kernel, lane.accel()), &program, &options))
}

fn footprint(arguments: &BenchArguments) -> Result<()> {
    let daemon = build::daemon(build::RELEASE, Architecture::default())?;
    let program = build::bench_program("footprint", build::RELEASE)?;
    let kernel = arguments.kernel.first().copied().unwrap_or_default();
    let guest = Guest { files: vec![in_job(daemon)], ..guest(kernel, AccelChoice::default()) };
    measure(&guest, &program, &arguments.arguments)
}

/// Measures kube-ipvs and another program from outside, in the guest of the first lane that was chosen.
fn beside(arguments: &BenchArguments, peer: &Path) -> Result<()> {
    let (program, daemon) = match arguments.short {
        true => build::bench_program_and_daemon("footprint")?,
        false => (
            build::bench_program("footprint", build::RELEASE)?,
            build::daemon(build::RELEASE, Architecture::default())?,
        ),
    };
    let sizes = match arguments.sizes.is_empty() {
        true => PEER_SIZES.to_owned(),
        false => arguments.sizes.join(","),
    };
    let extent = if arguments.short { "short" } else { "long" };
    let name = peer
        .file_name()
        .with_context(|| format!("--peer names no file: {}", peer.display()))?
        .to_string_lossy();
    let there = format!("/job/peer/{name}");
    let mut options = vec!["beside".to_owned(), sizes, extent.to_owned(), there.clone()];
    options.extend(arguments.arguments.clone());
    let files = vec![in_job(daemon), GuestFile { host: peer.to_owned(), guest: there }];
    let kernel = arguments.kernel.first().copied().unwrap_or_default();
    // User mode has no nf_tables for IPv4, which a kube-proxy of today needs.
    let accel = match arguments.lane[..] {
        [lane] => lane.accel(),
        _ => AccelChoice::default(),
    };
    measure(&Guest { files, ..guest(kernel, accel) }, &program, &options)
}

/// Counts instructions, or takes the time. What is measured is the kernel's work, which no profile changes.
fn packets(arguments: &BenchArguments) -> Result<()> {
    let (program, daemon) = build::bench_program_and_daemon("packets")?;
    let short = arguments.short.then(|| "--short".to_owned());
    let rate = arguments.rate.then(|| "--rate".to_owned());
    let options = short.into_iter().chain(rate).chain(arguments.arguments.clone());
    let options: Vec<String> = options.collect();
    let counted = |kernel: &Kernel| (AccelChoice::Counted, *kernel);
    let guests: Vec<(AccelChoice, Kernel)> = match arguments.rate {
        true => arguments.guests().map(|(lane, kernel)| (lane.accel(), kernel)).collect(),
        false => arguments.kernel.iter().map(counted).collect(),
    };
    for (accel, kernel) in guests {
        let is_legacy = arguments.legacy || accel == AccelChoice::Uml;
        println!("# Linux {kernel}, {}\n", if is_legacy { "x_tables" } else { "nf_tables" });
        let distribution = if is_legacy { Distribution::Legacy } else { Distribution::Debian };
        let guest = Guest {
            kernel,
            accel,
            limit: LIMIT,
            files: vec![in_job(daemon.clone())],
            setup: distribution.setup(),
            ..Guest::default()
        };
        measure(&guest, &program, &options)?;
    }
    Ok(())
}

fn herd(arguments: &BenchArguments) -> Result<()> {
    let program = arguments.program("herd")?;
    let status = Command::new(program)
        .args(&arguments.arguments)
        .status()
        .context("cannot start the herd")?;
    ensure!(status.success(), "the herd failed: {status}");
    Ok(())
}

/// Guest with memory and time for the largest clusters.
fn guest(kernel: Kernel, accel: AccelChoice) -> Guest {
    Guest { kernel, accel, memory: MEMORY.to_owned(), limit: LIMIT, ..Guest::default() }
}

/// The daemon where measurements look for it.
fn in_job(daemon: PathBuf) -> GuestFile {
    GuestFile { host: daemon, guest: "/job/kube-ipvs".into() }
}

/// Runs a measurement in a guest, with its output on this terminal.
fn measure(guest: &Guest, program: &Path, options: &[String]) -> Result<()> {
    let started = Instant::now();
    let verdict = guest.run(&program.to_string_lossy(), options, &mut std::io::stdout())?;
    let (accel, kernel) = (guest.accel, guest.kernel);
    eprintln!("bench: Linux {kernel} ({accel:?}): {} s", started.elapsed().as_secs());
    ensure!(
        verdict == Verdict::Exited(0),
        "the measurement on Linux {kernel} ({accel:?}) failed: {verdict}"
    );
    Ok(())
}
