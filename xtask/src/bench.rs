//! `cargo xtask bench`: what a cluster's whole state costs on real kernels, or what the program
//! itself needs for it.
//!
//! In reading order: this (what runs where), `schema` (the JSON of one guest), `results` (the JSON
//! of all guests), `targets` (what is aimed at), `page` (docs/performance.md).

mod page;
mod results;
#[path = "../../benches/at_scale/schema.rs"]
mod schema;
mod targets;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::architecture::Architecture;
use crate::build;
use crate::test::LEGACY;
use crate::vm::accel::AccelChoice;
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
/// File that the guest leaves.
const REPORT: &str = "at-scale.json";

/// Choice of what to measure, where, and what becomes of it.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// Measurement to take.
    #[arg(long, value_enum, default_value_t)]
    what: Measurement,
    /// The guests to measure in.
    #[arg(long, value_enum, default_value_t)]
    lane: LaneChoice,
    /// The kernels, one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["6.1", "6.12"])]
    kernel: Vec<Kernel>,
    /// Sizes: number of services, and of endpoints each; without it, 1000x10, 10000x10, 50000x10
    /// and 5000x50.
    #[arg(long, value_delimiter = ',', value_name = "SERVICESxENDPOINTS")]
    sizes: Vec<String>,
    /// Watch for seconds instead of minutes, and build quickly: to see that it works.
    #[arg(long)]
    short: bool,
    /// The file that gets everything as JSON.
    #[arg(long, value_name = "FILE", default_value = "target/bench/performance.json")]
    json: PathBuf,
    /// Measure nothing; take these files of earlier runs instead, of one machine.
    #[arg(long, value_delimiter = ',', value_name = "FILE")]
    from: Vec<PathBuf>,
    /// Remark for readers of the page on how it was measured.
    #[arg(long, value_name = "TEXT", default_value = "")]
    remark: String,
    /// Write docs/performance.md and its JSON.
    #[arg(long)]
    write_docs: bool,
    /// At scale, have one local route in the place of an address for each Service (serviceRoutes).
    #[arg(long)]
    routes: bool,
    /// For packets, have iptables mean that of x_tables.
    #[arg(long)]
    legacy: bool,
    /// For the footprint, SERVICESxENDPOINTS, of which there may be several; for the herd, how many
    /// followers; for packets, options of the benchmark.
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
}

/// Measurements that there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// The loop on the kernel: the first sync, changes, restarts and repairs, beside the raw cost.
    #[default]
    AtScale,
    /// Mode iptables beside mode ipvs and a bare iptables-restore, printed.
    Modes,
    /// Delays of changes beside a large Service that changes again and again, and beside a change of the
    /// scheduler, printed.
    HeldUp,
    /// The program's memory and processor time, fed by an API server.
    Footprint,
    /// The cost of many nodes to the API server that they follow. Needs no kernel.
    Herd,
    /// The instructions that a packet costs on its way through a node, printed.
    Packets,
}

/// Kind of guest in which something was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Lane {
    /// User-mode-linux, at native speed.
    Uml,
    /// qemu; emulated, unless KVM works.
    Qemu,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum LaneChoice {
    /// A kernel that is a program of this machine: native speed.
    Uml,
    /// A virtual machine, which is emulated where KVM does not work.
    Qemu,
    /// Both.
    #[default]
    All,
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

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uml => "uml",
            Self::Qemu => "qemu",
        })
    }
}

impl LaneChoice {
    fn lanes(self) -> &'static [Lane] {
        match self {
            Self::Uml => &[Lane::Uml],
            Self::Qemu => &[Lane::Qemu],
            Self::All => &[Lane::Uml, Lane::Qemu],
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

/// The same of what packets cost: bare IPVS and the program on one way, in a counted guest.
pub(crate) fn short_form_of_packets() -> Result<()> {
    packets(&BenchArguments { kernel: vec![Kernel::V6_1], ..BenchArguments::short("") })
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode> {
    match arguments.what {
        Measurement::AtScale => {}
        Measurement::Modes => {
            return printed(arguments, "--modes", MODE_SIZES).map(|()| ExitCode::SUCCESS);
        }
        Measurement::HeldUp => {
            return printed(arguments, "--held-up", HELD_UP_SIZE).map(|()| ExitCode::SUCCESS);
        }
        Measurement::Footprint => return footprint(arguments),
        Measurement::Herd => return herd(arguments),
        Measurement::Packets => return packets(arguments).map(|()| ExitCode::SUCCESS),
    }
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
    Ok(ExitCode::SUCCESS)
}

impl BenchArguments {
    /// One small size, where the bed has been already.
    fn short(size: &str) -> Self {
        Self {
            what: Measurement::AtScale,
            lane: LaneChoice::Uml,
            kernel: vec![Kernel::V6_12],
            sizes: vec![size.to_owned()],
            short: true,
            json: build::workspace().join("target/bench/short.json"),
            from: Vec::new(),
            remark: String::new(),
            write_docs: false,
            routes: false,
            legacy: false,
            arguments: Vec::new(),
        }
    }
}

/// Measures in every lane on every kernel. What has been measured is in the file even if what
/// comes later fails.
fn at_scale(arguments: &BenchArguments) -> Result<Results> {
    eprintln!("bench: building");
    let profile = if arguments.short { build::QUICK } else { build::RELEASE };
    let program = build::bench_program("at_scale", profile)?;
    let (mut results, commit) = (Results::of_this_machine()?, build::commit()?);
    for lane in arguments.lane.lanes() {
        for kernel in &arguments.kernel {
            let started = Instant::now();
            let (verdict, report) = in_guest(*lane, *kernel, &program, arguments)?;
            eprintln!("bench: {lane}, Linux {kernel}: {} s", started.elapsed().as_secs());
            let sizes = report.sizes.iter().map(Measured::label).collect();
            let commits = vec![Commit { commit: commit.clone(), sizes }];
            let (profile, lane, series) = (profile.to_owned(), *lane, kernel.to_string());
            results.runs.push(Run { commits, profile, lane, series, report });
            results.write(&arguments.json)?;
            if verdict != Verdict::Exited(0) {
                let file = arguments.json.display();
                bail!(
                    "measuring in lane {lane} on Linux {kernel}: {verdict}; {file} has the sizes before"
                );
            }
        }
    }
    eprintln!("bench: {} has everything", arguments.json.display());
    Ok(results)
}

/// Returns how it ended, and what it had measured until then.
fn in_guest(
    lane: Lane,
    kernel: Kernel,
    program: &Path,
    arguments: &BenchArguments,
) -> Result<(Verdict, Report)> {
    let output = tempfile::tempdir()?;
    let guest = Guest {
        kernel,
        accel: lane.accel(),
        memory: MEMORY.to_owned(),
        limit: LIMIT,
        output: Some(output.path().to_owned()),
        ..Guest::default()
    };
    let mut options = vec!["--json".to_owned(), format!("/job/out/{REPORT}")];
    if !arguments.sizes.is_empty() {
        options.extend(["--sizes".to_owned(), arguments.sizes.join(",")]);
    }
    options.extend(arguments.short.then(|| "--short".to_owned()));
    options.extend(arguments.routes.then(|| "--routes".to_owned()));
    let verdict = guest.run(&program.to_string_lossy(), &options, &mut std::io::stdout())?;
    let report = std::fs::read(output.path().join(REPORT))
        .with_context(|| format!("{lane}, Linux {kernel}: {verdict}, and it left no report"))?;
    let report = serde_json::from_slice(&report).context("the guest's report cannot be read")?;
    Ok((verdict, report))
}

fn write_docs(results: &Results) -> Result<()> {
    let docs = build::workspace().join("docs");
    results.write(&docs.join("performance.json"))?;
    std::fs::write(docs.join("performance.md"), page::write(results))?;
    eprintln!("bench: docs/performance.md and its JSON are written");
    Ok(())
}

/// Runs a part of the benchmark that prints what it has measured, with these sizes unless others are named.
fn printed(arguments: &BenchArguments, part: &str, sizes: &str) -> Result<()> {
    eprintln!("bench: building");
    let profile = if arguments.short { build::QUICK } else { build::RELEASE };
    let program = build::bench_program("at_scale", profile)?;
    let mut options = vec![part.to_owned(), "--sizes".to_owned()];
    let is_default = arguments.sizes.is_empty();
    options.push(if is_default { sizes.to_owned() } else { arguments.sizes.join(",") });
    options.extend(arguments.short.then(|| "--short".to_owned()));
    for lane in arguments.lane.lanes() {
        for kernel in &arguments.kernel {
            let guest = Guest {
                kernel: *kernel,
                accel: lane.accel(),
                memory: MEMORY.to_owned(),
                limit: LIMIT,
                ..Guest::default()
            };
            let verdict =
                guest.run(&program.to_string_lossy(), &options, &mut std::io::stdout())?;
            if verdict != Verdict::Exited(0) {
                bail!("{part} in lane {lane} on Linux {kernel}: {verdict}");
            }
        }
    }
    Ok(())
}

fn footprint(arguments: &BenchArguments) -> Result<ExitCode> {
    eprintln!("bench: building");
    let daemon = build::daemon(build::RELEASE, Architecture::default())?;
    let program = build::bench_program("footprint", build::RELEASE)?;
    let guest = Guest {
        kernel: arguments.kernel.first().copied().unwrap_or_default(),
        memory: MEMORY.to_owned(),
        limit: Duration::from_secs(1_800),
        files: vec![GuestFile { host: daemon, guest: "/job/kube-ipvs".into() }],
        ..Guest::default()
    };
    print_of(&guest, &program, arguments)
}

/// Counts instructions. What is counted is the kernel's work, which no profile changes.
fn packets(arguments: &BenchArguments) -> Result<()> {
    eprintln!("bench: building");
    let (program, daemon) = build::bench_program_and_daemon("packets")?;
    let options = arguments.short.then(|| "--short".to_owned()).into_iter();
    let options: Vec<String> = options.chain(arguments.arguments.iter().cloned()).collect();
    for kernel in &arguments.kernel {
        let guest = Guest {
            kernel: *kernel,
            accel: AccelChoice::Counted,
            limit: LIMIT,
            files: vec![GuestFile { host: daemon.clone(), guest: "/job/kube-ipvs".into() }],
            ..Guest::default()
        };
        println!("# Linux {kernel}, {}\n", if arguments.legacy { "x_tables" } else { "nf_tables" });
        let setup = arguments.legacy.then(|| LEGACY.to_owned());
        let guest = Guest { setup, ..guest };
        let verdict = guest.run(&program.to_string_lossy(), &options, &mut std::io::stdout())?;
        if verdict != Verdict::Exited(0) {
            bail!("counting what packets cost on Linux {kernel}: {verdict}");
        }
    }
    Ok(())
}

fn herd(arguments: &BenchArguments) -> Result<ExitCode> {
    eprintln!("bench: building");
    let profile = if arguments.short { build::QUICK } else { build::RELEASE };
    let program = build::bench_program("herd", profile)?;
    let status = Command::new(program).args(&arguments.arguments).status().context("herd")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a program that prints what it has measured.
fn print_of(guest: &Guest, program: &Path, arguments: &BenchArguments) -> Result<ExitCode> {
    let verdict =
        guest.run(&program.to_string_lossy(), &arguments.arguments, &mut std::io::stdout())?;
    eprintln!("bench: {verdict}");
    Ok(ExitCode::from(verdict.exit_code()))
}
