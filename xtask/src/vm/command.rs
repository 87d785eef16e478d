//! `cargo xtask vm …`: what a person types.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use super::accel::AccelChoice;
use super::guest::{Guest, GuestFile};
use super::kernel::Kernel;
use super::verdict::Verdict;
use super::{image, progress};
use crate::architecture::Architecture;

#[derive(Debug, Subcommand)]
pub(crate) enum VmTask {
    /// Run a program as root in a fresh guest, and exit with its exit code.
    ///
    /// Other exit codes: 120 the setup failed, 121 the guest ended before its user space was up, 122 kernel panic,
    /// 123 the guest ended without a report, 124 time limit, 125 the guest could not be prepared or started.
    Run(RunArguments),
    /// Open a shell in a fresh guest.
    Shell(GuestArguments),
    /// Fetch kernels and make their images, so that later runs start at once.
    Prepare(PrepareArguments),
}

#[derive(Debug, Args)]
pub(crate) struct GuestArguments {
    /// Kernel to boot.
    #[arg(long, value_enum, default_value_t)]
    kernel: Kernel,
    /// Architecture of the guest and its programs. arm64 is emulated.
    #[arg(long, value_enum, default_value_t)]
    arch: Architecture,
    /// Accelerator of the guest.
    #[arg(long, value_enum, default_value_t)]
    accel: AccelChoice,
    /// CPUs of the guest.
    #[arg(long, default_value_t = 1)]
    cpus: u8,
    /// Memory of the guest.
    #[arg(long, default_value = "2G")]
    memory: String,
    /// File or directory for the guest; below /job unless NAME is absolute.
    #[arg(long = "file", value_name = "PATH[:NAME]")]
    files: Vec<GuestFile>,
    /// Environment variable for the guest. Variables that start with RUST_ are always passed on.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    environment: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    guest: GuestArguments,
    /// Directory for the files that the program leaves in /job/out.
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Shell commands to run before the program.
    #[arg(long, value_name = "SHELL")]
    setup: Option<String>,
    /// Time limit in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit: u64,
    /// File for the kernel's log.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Program: a file of the host if it has a slash, otherwise a program of the guest.
    program: String,
    /// Arguments of the program.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PrepareArguments {
    /// Kernels to prepare.
    #[arg(long = "kernel", value_enum, value_delimiter = ',', default_value = "6.1")]
    kernels: Vec<Kernel>,
    /// Architecture of the guests.
    #[arg(long, value_enum, default_value_t)]
    arch: Architecture,
    /// Fetch kernels again, and make their images again.
    #[arg(long)]
    fresh: bool,
}

/// Does what was asked for. The exit code is the program's, or one of ours.
pub(crate) fn run(task: VmTask) -> Result<ExitCode> {
    match task {
        VmTask::Run(arguments) => run_program(arguments),
        VmTask::Shell(arguments) => {
            arguments.into_guest().shell()?;
            Ok(ExitCode::SUCCESS)
        }
        VmTask::Prepare(arguments) => {
            for kernel in arguments.kernels {
                let image = image::prepare(kernel, arguments.arch, arguments.fresh)?;
                progress!("kernel {kernel}: the image {} is ready", image.base.display());
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run_program(arguments: RunArguments) -> Result<ExitCode> {
    let guest = Guest {
        output: arguments.output,
        setup: arguments.setup,
        limit: Duration::from_secs(arguments.limit),
        log: arguments.log,
        ..arguments.guest.into_guest()
    };
    let verdict = guest.run(&arguments.program, &arguments.arguments, &mut std::io::stdout())?;
    if verdict != Verdict::Exited(0) {
        progress!("{verdict}");
    }
    Ok(ExitCode::from(verdict.exit_code()))
}

impl GuestArguments {
    fn into_guest(self) -> Guest {
        // What a person sets for cargo test (backtraces, log levels) is meant for the guest too.
        let mut environment: Vec<(String, String)> =
            std::env::vars().filter(|(name, _)| name.starts_with("RUST_")).collect();
        environment.extend(self.environment);
        Guest {
            architecture: self.arch,
            kernel: self.kernel,
            accel: self.accel,
            cpus: self.cpus,
            memory: self.memory,
            files: self.files,
            environment,
            ..Guest::default()
        }
    }
}

fn parse_variable(text: &str) -> Result<(String, String)> {
    let (name, value) =
        text.split_once('=').context("an environment variable has the form NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
