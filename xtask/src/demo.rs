//! `cargo xtask demo`: the main job, shown on a real kernel.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;

use crate::architecture::Architecture;
use crate::build::{self, Tests};
use crate::image::program::for_tests;
use crate::vm::accel::AccelChoice;
use crate::vm::distribution::Distribution;
use crate::vm::guest::{Guest, GuestFile};
use crate::vm::kernel::Kernel;
use crate::vm::verdict::Verdict;

/// Kernel that the demo runs on.
#[derive(Debug, Default, Args)]
pub(crate) struct DemoArguments {
    /// Kernel to boot.
    #[arg(long, value_enum, default_value_t)]
    kernel: Kernel,
    /// Architecture of the guest. arm64 is emulated.
    #[arg(long, value_enum, default_value_t)]
    arch: Architecture,
    /// Switch the node from IPVS mode to iptables mode and back, under traffic.
    #[arg(long)]
    switch: bool,
    /// Keep the node running under traffic, with a shell to try the commands of kube-ipvs.
    #[arg(long, conflicts_with = "switch")]
    stay: bool,
    /// Run on a host with the modules of RHEL 10, without iptables, ipset and nft.
    #[arg(long, conflicts_with_all = ["switch", "stay"])]
    enterprise_linux: bool,
    /// Show connections in the kernel's flow table while their endpoint is removed.
    #[arg(long, conflicts_with_all = ["switch", "stay", "enterprise_linux"])]
    fast_path: bool,
    /// Accelerator of the guest. Without KVM, uml is the fastest.
    #[arg(long, value_enum, default_value_t)]
    accel: AccelChoice,
}

/// Programs of the guest.
#[derive(Debug)]
struct Programs {
    daemon: PathBuf,
    /// The demo itself.
    program: PathBuf,
}

/// Tests for which cargo builds the demo, with the features of what is tested.
const BESIDE: Tests = Tests::Program("plain");

pub(crate) fn run(arguments: &DemoArguments) -> Result<ExitCode> {
    if arguments.stay {
        let (guest, program, arguments) = prepare(arguments, build(arguments)?);
        guest.on_terminal(&program.to_string_lossy(), &arguments)?;
        return Ok(ExitCode::SUCCESS);
    }
    let verdict = show(arguments, &mut std::io::stdout())?;
    Ok(ExitCode::from(verdict.exit_code()))
}

/// Runs it, with its output on this console.
pub(crate) fn show(arguments: &DemoArguments, console: &mut dyn Write) -> Result<Verdict> {
    show_with(arguments, build(arguments)?, console)
}

fn show_with(
    arguments: &DemoArguments,
    programs: Programs,
    console: &mut dyn Write,
) -> Result<Verdict> {
    let (guest, program, arguments) = prepare(arguments, programs);
    let started = Instant::now();
    let verdict = guest.run(&program.to_string_lossy(), &arguments, console)?;
    eprintln!("demo: {verdict} ({} s after the build)", started.elapsed().as_secs());
    Ok(verdict)
}

/// Runs it, and fails unless it went well.
pub(crate) fn check(kernel: Kernel, arch: Architecture) -> Result<()> {
    let arguments = DemoArguments { kernel, arch, ..DemoArguments::default() };
    let verdict = show(&arguments, &mut std::io::stdout())?;
    ensure!(verdict == Verdict::Exited(0), "{verdict}");
    Ok(())
}

/// Runs it in user mode with the program as it is released, and fails unless it went well. Its output comes at the end.
pub(crate) fn check_released() -> Result<()> {
    let (kernel, accel) = (Kernel::V6_12, AccelChoice::Uml);
    let arguments = DemoArguments { kernel, accel, ..DemoArguments::default() };
    let program = build::for_guests(&[BESIDE], arguments.arch)?.demo()?;
    let programs = Programs { daemon: for_tests()?.to_owned(), program };
    let mut output = Vec::new();
    let verdict = show_with(&arguments, programs, &mut output);
    std::io::stdout().write_all(&output)?;
    let verdict = verdict?;
    ensure!(verdict == Verdict::Exited(0), "{verdict}");
    Ok(())
}

fn build(arguments: &DemoArguments) -> Result<Programs> {
    eprintln!("demo: building");
    let daemon = build::daemon(build::QUICK, arguments.arch)?;
    let program = build::bed_program("demo", arguments.arch)?;
    Ok(Programs { daemon, program })
}

/// Returns the guest, and the program in it with its arguments.
fn prepare(arguments: &DemoArguments, programs: Programs) -> (Guest, PathBuf, Vec<String>) {
    let Programs { daemon, program } = programs;
    let distribution = if arguments.enterprise_linux {
        Distribution::EnterpriseLinux
    } else {
        Distribution::Debian
    };
    let guest = Guest {
        setup: distribution.setup(),
        environment: distribution.variable().into_iter().collect(),
        architecture: arguments.arch,
        kernel: arguments.kernel,
        accel: arguments.accel,
        files: vec![
            GuestFile { host: daemon, guest: "/job/kube-ipvs".into() },
            GuestFile {
                host: build::workspace().join("deploy/examples"),
                guest: "/job/examples".into(),
            },
        ],
        limit: Duration::from_secs(if arguments.switch { 900 } else { 300 }),
        ..Guest::default()
    };
    let options = [
        (arguments.switch, "--switch"),
        (arguments.stay, "--stay"),
        (arguments.fast_path, "--fast-path"),
    ];
    let option = options.into_iter().find_map(|(is_given, option)| is_given.then_some(option));
    let arguments = ["/job/kube-ipvs", "/job/examples"].into_iter().chain(option);
    (guest, program, arguments.map(str::to_owned).collect())
}
