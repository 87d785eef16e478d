//! `cargo xtask test`: everything that must hold, on this machine and on real kernels.
//!
//! A suite that was asked for and cannot run is a failure, never a skip. The last line counts.

mod guests;
pub(crate) mod matrix;
pub(crate) mod output;
pub(crate) mod package;

use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::architecture::Architecture;
use crate::bench;
use crate::build;
use crate::chart;
use crate::dashboard;
use crate::demo;
use crate::dependencies;
use crate::dist;
use crate::image;
use crate::image::program;
use crate::page;
use crate::scripts;
use crate::site;
use crate::vm::accel::AccelChoice;
use crate::vm::host_packages;
use crate::vm::kernel::Kernel;
use output::{Tally, Tee, Timed};

/// Choice of what is tested, and where.
#[derive(Debug, Args)]
pub(crate) struct TestArguments {
    /// Tiers to run. Default: all but the switch tier and the arm64 tier.
    #[arg(long, value_enum, value_delimiter = ',')]
    tier: Vec<Tier>,
    /// Kernels to run on. The kernel tier runs on each; the bed tier on the newest in user-mode Linux, and on the first
    /// in qemu. Default: the kernel tier runs on the oldest and the newest; the bed tier on the newest in user-mode
    /// Linux, and on one in between in qemu; the switch tier on all, and the arm64 tier on the newest.
    #[arg(long, value_enum, value_delimiter = ',')]
    kernel: Vec<Kernel>,
    /// Accelerator of the bed tier. Default: user-mode Linux, and then that of `vm run` for tests that depend on the
    /// kind of iptables.
    #[arg(long, value_enum)]
    accel: Option<AccelChoice>,
    /// Run only tests whose names contain this.
    #[arg(value_name = "FILTER")]
    filter: Option<String>,
}

/// Tests that take longer are named in the summary.
const SLOW: Duration = Duration::from_secs(10);

/// Programs whose tests wait for most of their time, so that many run at once: with two threads,
/// this one takes 75 s, 4 s of them of processor time.
const WAITING: [&str; 1] = ["kubernetes"];
const THREADS_OF_WAITING: &str = "8";
/// Program of the planner's properties.
const PROPERTIES: &str = "properties";
/// The short forms of the benches.
const BENCHES: [guests::Check; 5] = [
    guests::Check {
        name: "at scale, the short form",
        work: bench::short_form,
        accel: AccelChoice::Uml,
    },
    guests::Check {
        name: "modes, the short form",
        work: bench::short_form_of_modes,
        accel: AccelChoice::Uml,
    },
    guests::Check {
        name: "held up, the short form",
        work: bench::short_form_of_held_up,
        accel: AccelChoice::Uml,
    },
    guests::Check {
        name: "a peer, the short form",
        work: bench::short_form_of_peer,
        accel: AccelChoice::Uml,
    },
    guests::Check {
        name: "packets, the short form",
        work: bench::short_form_of_packets,
        accel: AccelChoice::Counted,
    },
];
/// The demo with the program as it is released.
const DEMO: [guests::Check; 1] = [guests::Check {
    name: "demo, as released",
    work: demo::check_released,
    accel: AccelChoice::Uml,
}];
/// Words of cargo for tests whose output is passed on.
const ALL: [&str; 6] = {
    let [test, workspace, features, all] = build::TEST;
    [test, workspace, features, all, "--quiet", "--no-fail-fast"]
};
/// Options that leave out what needs a guest, a browser or Helm.
const LEFT_OUT: [&str; 7] =
    ["--", "--skip", guests::INSIDE, "--skip", page::TESTS, "--skip", chart::TESTS];

/// The long form of what is random.
#[derive(Debug, Args)]
pub(crate) struct SoakArguments {
    /// Kernels to run on.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["6.1", "6.12"])]
    kernel: Vec<Kernel>,
    /// Accelerator of the guests. Emulation takes many times longer.
    #[arg(long, value_enum, default_value_t = AccelChoice::Uml)]
    accel: AccelChoice,
    /// Use iptables for x_tables, as user-mode Linux always does.
    #[arg(long)]
    legacy: bool,
    /// Seed that an earlier run has printed, to repeat it.
    #[arg(long)]
    seed: Option<u64>,
    /// Run only tests with this in their name: disturbance, killed, load, rollout, tenant, or the start of a test's name
    /// such as load::a_switch.
    #[arg(value_name = "NAME")]
    filter: Option<String>,
}

/// The groups of checks, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Tier {
    /// Formatting, clippy, rustdoc, dependencies, packages, the dashboard, shell scripts and the site, without warnings.
    Lint,
    /// Unit, table, property, codec and scenario tests, on this machine.
    Host,
    /// The libraries and adapters against real kernels.
    Kernel,
    /// Nodes, pods and clients with real traffic and kube-ipvs itself, on a real kernel.
    Bed,
    /// The demo and a part of the bed with the program as it is released: optimised, and linked statically. The bed leaves
    /// that part to it if both run.
    Released,
    /// Switches between modes under load, and all flows of userspace mode, on every kernel and with both kinds of
    /// iptables. Takes more than an hour in emulated guests, so it runs only by name.
    Switch,
    /// The libraries, the adapters, packets by every scheduler and the demo on an emulated arm64 kernel. Takes half an
    /// hour, so it runs only by name.
    Arm64,
}

/// One row of the summary.
#[derive(Debug)]
struct SuiteResult {
    name: String,
    tally: Tally,
    /// Duration of each test, if they ran one at a time.
    timed: Vec<Timed>,
    /// Reason that it counts as failed although no test did.
    broken: Option<String>,
    took: Duration,
}

pub(crate) fn run(arguments: &TestArguments) -> Result<ExitCode> {
    let started = Instant::now();
    let filter = arguments.filter.as_deref();
    let wanted = |tier: Tier| match arguments.tier.as_slice() {
        // Who chooses tests waits for no release build: the bed has them, too.
        [] if tier == Tier::Released => filter.is_none(),
        [] => !matches!(tier, Tier::Switch | Tier::Arm64),
        named => named.contains(&tier),
    };
    let outcomes = thread::scope(|scope| {
        if wanted(Tier::Released) && filter.is_none() {
            // What it says of itself, the first test that needs it says.
            scope.spawn(program::for_tests);
        }
        tiers(arguments, &wanted)
    })?;
    Ok(summarise(&outcomes, filter.is_some(), started.elapsed()))
}

/// Runs the tiers that are wanted, one after the other.
fn tiers(arguments: &TestArguments, wanted: &dyn Fn(Tier) -> bool) -> Result<Vec<SuiteResult>> {
    let filter = arguments.filter.as_deref();
    let mut outcomes = Vec::new();
    if wanted(Tier::Lint) && filter.is_none() {
        outcomes.extend(lint(wanted(Tier::Released)));
    }
    let run_by = |suite: guests::Suite| match arguments.accel {
        Some(accel) if suite.tier == Tier::Bed => suite.run_by(accel),
        _ => Some(suite),
    };
    let suites = guests::suites().into_iter().filter(|suite| wanted(suite.tier));
    let beside = |suite: guests::Suite| match wanted(Tier::Released) {
        true => suite.beside_released(),
        false => suite,
    };
    let suites: Vec<guests::Suite> = suites.filter_map(run_by).map(beside).collect();
    let kernels = guests::Kernels::of(&arguments.kernel);
    if wanted(Tier::Host) {
        thread::scope(|scope| {
            // Downloads and probes, which mostly wait, beside what is built.
            scope.spawn(|| guests::prepare(&suites, &kernels));
            outcomes.extend(host(filter));
            if filter.is_none() {
                outcomes.push(check("pages in a browser", page::check));
                outcomes.push(check("chart and kustomization", chart::check));
            }
        });
    }
    for architecture in [Architecture::Amd64, Architecture::Arm64] {
        let is_of = |suite: &&guests::Suite| suite.tier.architecture() == architecture;
        let suites: Vec<guests::Suite> = suites.iter().filter(is_of).copied().collect();
        // They show that the benches work, and that the state is exact after every step, whatever they measure.
        let has_checks =
            |tier| wanted(tier) && filter.is_none() && architecture == Architecture::Amd64;
        let benches = if has_checks(Tier::Bed) { &BENCHES[..] } else { &[] };
        let demo = if has_checks(Tier::Released) { &DEMO[..] } else { &[] };
        let checks = [benches, demo].concat();
        if !suites.is_empty() {
            outcomes.extend(guests::run(&suites, &checks, architecture, &kernels, filter)?);
        }
    }
    if wanted(Tier::Arm64) && filter.is_none() {
        outcomes.push(check("demo on arm64", || demo::check(kernels.newest, Architecture::Arm64)));
    }
    Ok(outcomes)
}

/// A fault of every kind at every step; what other programs break at random, and being killed at
/// random points: for hours.
pub(crate) fn soak(arguments: &SoakArguments) -> Result<ExitCode> {
    let started = Instant::now();
    let SoakArguments { kernel, accel, legacy, seed, filter } = arguments;
    let mut outcomes = match filter {
        None => vec![faults(), properties(None, "300000", &[])],
        Some(_) => Vec::new(),
    };
    outcomes.extend(guests::soak(kernel, *accel, *legacy, *seed, filter.as_deref())?);
    Ok(summarise(&outcomes, false, started.elapsed()))
}

// === the tiers ===

fn lint(is_released_built: bool) -> Vec<SuiteResult> {
    let cargo = |name: &str, arguments: &[&str], environment: &[(&str, &str)]| {
        check(name, || build::cargo(arguments, environment))
    };
    thread::scope(|scope| {
        // The last crates leave a processor to what needs no compiler.
        let others = scope.spawn(|| {
            vec![
                check("image", image::check),
                check("release", dist::check),
                check("dashboard", dashboard::check),
                check("scripts", scripts::check),
                check("site", site::check),
            ]
        });
        let mut outcomes = vec![
            cargo("formatting", &["fmt", "--all", "--check"], &[]),
            cargo(
                "clippy",
                &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-Dwarnings"],
                &[],
            ),
            cargo(
                "rustdoc",
                &["doc", "--workspace", "--no-deps", "--all-features"],
                &[("RUSTDOCFLAGS", "-Dwarnings")],
            ),
            check("dependencies", dependencies::check),
            check("packages", package::check),
        ];
        // What is tested is built with whatever features the tests want of its dependencies. The released tier builds the
        // program by itself.
        if !is_released_built {
            let arguments = ["check", "--quiet", "--package", "kube-ipvs"];
            outcomes.push(cargo("the program by itself", &arguments, &[]));
        }
        outcomes.extend(joined(others));
        outcomes
    })
}

/// All that needs no guest, browser or Helm. Built with the features that guests' tests have, or else everything
/// would be built twice: what needs one is left out by name.
fn host(filter: Option<&str>) -> Vec<SuiteResult> {
    announce("host tests");
    let started = Instant::now();
    let mut output = Tee::default();
    let programs = match build_tests() {
        Ok(programs) => programs,
        Err(error) => return vec![SuiteResult::new("host", output, Some(error), started)],
    };
    thread::scope(|scope| {
        // On one thread, it takes half as long as the others.
        let properties = scope.spawn(|| properties(filter, "2000", &["--test-threads", "1"]));
        let result = tests_and_documentation(&programs, filter, &mut output);
        let host = SuiteResult::new("host", output, result.err(), started);
        vec![host, joined(properties)]
    })
}

/// Builds all tests at once, what guests run as well: what one processor cannot share is built beside the rest.
/// Returns the programs that run here.
fn build_tests() -> Result<Vec<String>> {
    // Shells that complete the program's commands.
    host_packages::install_missing(&["zsh", "fish"])?;
    build::cargo(&[&ALL[..], &["--no-run", "--tests"]].concat(), &[])?;
    build::host_programs()
}

fn tests_and_documentation(
    programs: &[String],
    filter: Option<&str>,
    output: &mut Tee,
) -> Result<()> {
    let programs = programs.iter().map(String::as_str).filter(|name| *name != PROPERTIES);
    let (waiting, busy): (Vec<&str>, Vec<&str>) = programs.partition(|name| WAITING.contains(name));
    let tests = |targets: &[&str], programs: &[&str], options: &[&str], output: &mut dyn Write| {
        let programs = programs.iter().flat_map(|name| ["--test", name]);
        let words = ALL.iter().chain(targets).copied().chain(programs).chain(filter);
        let words: Vec<&str> = words.chain(LEFT_OUT).chain(options.iter().copied()).collect();
        build::cargo_into(&words, &[], output)
    };
    let mut of_waiting = Vec::new();
    let options = ["--test-threads", THREADS_OF_WAITING];
    let (busy, waited) = thread::scope(|scope| {
        let waiting = scope.spawn(|| tests(&[], &waiting, &options, &mut of_waiting));
        (tests(&["--lib", "--bins"], &busy, &[], output), joined(waiting))
    });
    output.write_all(&of_waiting)?;
    let documentation: Vec<&str> = ALL.iter().copied().chain(["--doc"]).chain(filter).collect();
    build::cargo_into(&documentation, &[], output).and(busy).and(waited)
}

/// The event loop with a fault at every step, all of them, against the kernel in memory.
fn faults() -> SuiteResult {
    let arguments = [&build::TEST[..], &["--test", "scenarios", "--", "faults::"]].concat();
    tests("faults at every step", &arguments, &[("KUBE_IPVS_SOAK", "1")])
}

/// The planner's properties, each with enough inputs to reach most unforeseen cases.
fn properties(filter: Option<&str>, cases: &str, options: &[&str]) -> SuiteResult {
    let words = ALL.iter().copied().chain(["--test", PROPERTIES]).chain(filter).chain(["--"]);
    let arguments: Vec<&str> = words.chain(options.iter().copied()).collect();
    tests("properties of the planner", &arguments, &[("PROPTEST_CASES", cases)])
}

/// Tests beside others, whose output it does not interrupt.
fn tests(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> SuiteResult {
    announce(&format!("{name} begin"));
    let started = Instant::now();
    let mut output = Tee::at_the_end(name);
    let result = build::cargo_into(arguments, environment, &mut output);
    SuiteResult::new(name, output, result.err(), started)
}

// === what they are made of ===

fn check(name: &str, work: impl FnOnce() -> Result<()>) -> SuiteResult {
    announce(name);
    let started = Instant::now();
    let broken = work().err().map(|error| format!("{error:#}"));
    let tally = Tally {
        passed: usize::from(broken.is_none()),
        failed: usize::from(broken.is_some()),
        ignored: 0,
        programs: 1,
    };
    SuiteResult { name: name.to_owned(), tally, timed: Vec::new(), broken, took: started.elapsed() }
}

/// Returns the result of a thread beside this one.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn announce(what: &str) {
    eprintln!("\n=== {what}");
}

#[expect(clippy::print_stdout, reason = "the summary is what was asked for")]
fn summarise(outcomes: &[SuiteResult], filtered: bool, took: Duration) -> ExitCode {
    println!("\n=== summary");
    let (mut passed, mut failed) = (0, 0);
    for outcome in outcomes {
        println!("{outcome}");
        passed += outcome.tally.passed;
        failed += outcome.tally.failed;
        // Something is wrong, even if no test was there to say so: a test that is ignored, or a
        // suite without any (a filter may leave none).
        let silent = outcome.tally.programs == 0 || (outcome.tally.passed == 0 && !filtered);
        let wrong = outcome.broken.is_some() || silent || outcome.tally.ignored > 0;
        if outcome.tally.failed == 0 && wrong {
            failed += 1;
        }
    }
    let timed = outcomes.iter().flat_map(|it| it.timed.iter().map(move |timed| (timed, &it.name)));
    let mut slowest: Vec<_> = timed.filter(|(timed, _)| timed.took >= SLOW).collect();
    slowest.sort_by_key(|(timed, _)| std::cmp::Reverse(timed.took));
    for (timed, suite) in slowest {
        println!("{:>4} s {} of {suite}", timed.took.as_secs(), timed.test);
    }
    println!("in {} s", took.as_secs());
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Tier {
    /// The architecture of its guests.
    fn architecture(self) -> Architecture {
        match self {
            Self::Arm64 => Architecture::Arm64,
            Self::Lint | Self::Host | Self::Kernel | Self::Bed | Self::Released | Self::Switch => {
                Architecture::Amd64
            }
        }
    }
}

impl SuiteResult {
    fn new(name: &str, output: Tee, broken: Option<anyhow::Error>, started: Instant) -> Self {
        let took = started.elapsed();
        let (tally, timed) = output.finish();
        let broken = broken.map(|error| format!("{error:#}"));
        Self { name: name.to_owned(), tally, timed, broken, took }
    }
}

impl fmt::Display for SuiteResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<40} {:>4} passed", self.name, self.tally.passed)?;
        if self.tally.failed > 0 {
            write!(f, ", {} failed", self.tally.failed)?;
        }
        if self.tally.ignored > 0 {
            write!(f, ", {} ignored", self.tally.ignored)?;
        }
        write!(f, " ({} s)", self.took.as_secs())?;
        // With the log of a guest that died: a run that fails once is not had again.
        for (number, line) in self.broken.iter().flat_map(|reason| reason.lines()).enumerate() {
            write!(f, "{}{line}", if number == 0 { ": " } else { "\n    | " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_all_of_the_reason() {
        let outcome = SuiteResult {
            name: "guest".to_owned(),
            tally: Tally::default(),
            timed: Vec::new(),
            broken: Some("the kernel panicked; from its log:\nBUG: one\nRIP: two".to_owned()),
            took: Duration::from_secs(4),
        };
        let row = outcome.to_string();
        assert!(
            row.ends_with(
                "(4 s): the kernel panicked; from its log:\n    | BUG: one\n    | RIP: two"
            ),
            "{row}"
        );
    }
}
