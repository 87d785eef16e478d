//! Cost of a cluster on a real kernel: `cargo xtask bench`.
//!
//! Measures each size in fresh network namespaces and processes of its own. The least that it can
//! cost (the same state from plain batches) stands beside the cost of the real loop, from the first
//! sync to nothing at all for a minute and to the repair of what others broke. Times are of the
//! machine it runs on; ratios and counts are what to compare. Nothing fails because of a time, only
//! because the kernel refused something, a restart wrote something, or a comparison found something
//! left to do.

mod bare;
mod checker;
mod cluster;
mod cost;
mod damage;
mod held_up;
mod kind;
mod metered;
mod modes;
mod node;
mod ours;
mod raw;
mod report;
mod schema;
mod usage;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bed::Namespace;
use clap::{Parser, ValueEnum};

use cluster::Size;
use kind::Kind;
use ours::Extent;
use schema::{Line, Measured, Report};

/// Number of first syncs and of restarts that are measured, of which the middle one counts.
const RUNS: usize = 3;

/// Measures what a cluster costs, on this machine's kernel. Needs root, IPVS and ipset.
#[derive(Debug, Parser)]
struct Arguments {
    /// Sizes: number of services, and of endpoints each.
    #[arg(long, value_delimiter = ',', value_name = "SERVICESxENDPOINTS", default_values = [
        "1000x10", "10000x10", "50000x10", "5000x50",
    ])]
    sizes: Vec<Size>,
    /// Watch for seconds instead of minutes.
    #[arg(long)]
    short: bool,
    /// Measure mode iptables beside mode ipvs and a bare iptables-restore.
    #[arg(long)]
    modes: bool,
    /// Measure delays of changes beside a large Service that changes again and again, and beside a change
    /// of the scheduler.
    #[arg(long, conflicts_with = "modes")]
    held_up: bool,
    #[command(flatten)]
    kind: Kind,
    /// The file that gets everything as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    /// Stage that a process of its own runs, for the first size.
    #[arg(hide = true)]
    stage: Option<Stage>,
}

/// Stage of the benchmark that runs in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stage {
    Raw,
    First,
    Again,
    Rest,
    Few,
    Bare,
    BareInOne,
    Checker,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.stage {
        Some(stage) => measure_stage(stage, &arguments),
        None if arguments.modes => modes::measure(&arguments),
        None if arguments.held_up => node::logged(|| held_up::measure(&arguments)),
        None => measure(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("at_scale: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    let mut report = Report::of_this_machine(arguments.short)?;
    let nothing = Size { services: 0, endpoints: 1 };
    (report.nothing, _) = first_and_again(nothing, arguments)?;
    if is_user_mode()? {
        never_load_modules()?;
    }
    for size in &arguments.sizes {
        let started = Instant::now();
        let (raw, _) = first_syncs(Stage::Raw, *size, arguments)?;
        let (mut ours, namespace) = first_and_again(*size, arguments)?;
        ours.extend(in_process_of_its_own(
            Stage::Rest,
            *size,
            arguments.kind,
            arguments,
            &namespace,
        )?);
        let Size { services, endpoints } = *size;
        let measured = Measured { services, endpoints, raw, ours };
        print!("{measured}");
        eprintln!("at_scale: {size}: {} s", started.elapsed().as_secs());
        report.sizes.push(measured);
        // The next size takes many minutes: what is measured must not be lost with it.
        if let Some(path) = &arguments.json {
            report.write(path)?;
        }
    }
    Ok(())
}

/// Measures first syncs and restarts. Returns the last namespace, with the complete state.
fn first_and_again(size: Size, arguments: &Arguments) -> Result<(Vec<Line>, Namespace)> {
    let (mut lines, namespace) = first_syncs(Stage::First, size, arguments)?;
    let again = || in_process_of_its_own(Stage::Again, size, arguments.kind, arguments, &namespace);
    lines.extend(middle(arguments, "restart", again)?);
    Ok((lines, namespace))
}

/// Measures first syncs, each in a fresh namespace, and returns the last one.
fn first_syncs(stage: Stage, size: Size, arguments: &Arguments) -> Result<(Vec<Line>, Namespace)> {
    let mut namespace = None;
    let lines = middle(arguments, "first_sync", || {
        namespace = None;
        wait_until_quiet();
        let fresh = namespace.insert(Namespace::create("first-sync")?);
        in_process_of_its_own(stage, size, arguments.kind, arguments, fresh)
    })?;
    Ok((lines, namespace.context("nothing was measured")?))
}

/// Measures several times, and returns the run that is the middle one by the processor time of a line.
/// user-mode-linux counts it in ticks of 10 ms, and what falls into each is chance.
fn middle(
    arguments: &Arguments,
    line: &str,
    mut measure: impl FnMut() -> Result<Vec<Line>>,
) -> Result<Vec<Line>> {
    let count = if arguments.short { 1 } else { RUNS };
    let mut runs = Vec::new();
    for _ in 0..count {
        let lines = measure()?;
        let decides = lines.iter().find(|it| it.name == line);
        runs.push((decides.with_context(|| format!("no line {line}"))?.cpu_ms, lines));
    }
    runs.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    Ok(runs.swap_remove(count / 2).1)
}

/// True if the kernel is a program of another machine.
fn is_user_mode() -> Result<bool> {
    let processor = std::fs::read_to_string("/proc/cpuinfo").context("read /proc/cpuinfo")?;
    Ok(processor.contains("User Mode Linux"))
}

/// By now all that are needed are there. Debian's user-mode-linux 6.1 is made with `CONFIG_BPFILTER`
/// and without its module, and has a program look for it at each request to x_tables, which takes it
/// some 50 ms.
fn never_load_modules() -> Result<()> {
    std::fs::write("/proc/sys/kernel/modprobe", "\n").context("have no modules loaded")
}

fn in_process_of_its_own(
    stage: Stage,
    size: Size,
    kind: Kind,
    arguments: &Arguments,
    namespace: &Namespace,
) -> Result<Vec<Line>> {
    let stage = stage.to_possible_value().context("a stage without a name")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([stage.get_name(), "--sizes", &size.to_string()]).args(kind.arguments());
    if arguments.short {
        command.arg("--short");
    }
    let output = namespace.enter(|| command.stderr(Stdio::inherit()).output())??;
    ensure!(output.status.success(), "{size}, {}: {}", stage.get_name(), output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn measure_stage(stage: Stage, arguments: &Arguments) -> Result<()> {
    let size = *arguments.sizes.first().context("no size")?;
    let extent = if arguments.short { Extent::SHORT } else { Extent::LONG };
    let kind = arguments.kind;
    let lines = match stage {
        Stage::Checker => return checker::run(size, kind),
        Stage::Raw => raw::measure(size, extent, kind.routes)?,
        Stage::First => node::logged(|| ours::first(size, extent, kind))?,
        Stage::Again => node::logged(|| ours::again(size, extent, kind))?,
        Stage::Rest => node::logged(|| ours::rest(size, extent, kind))?,
        Stage::Few => node::logged(|| modes::few(size, extent, kind))?,
        Stage::Bare => modes::bare(extent, kind, false)?,
        Stage::BareInOne => modes::bare(extent, kind, true)?,
    };
    println!("{}", serde_json::to_string(&lines)?);
    Ok(())
}

/// Waits until the processor is idle. The kernel frees a removed namespace's 100,000 objects in the
/// background, which would slow the next measurement.
fn wait_until_quiet() {
    let deadline = Instant::now() + Duration::from_secs(120);
    while Instant::now() < deadline {
        let before = usage::busy();
        std::thread::sleep(Duration::from_secs(1));
        if usage::busy().saturating_sub(before) < Duration::from_millis(100) {
            return;
        }
    }
}
