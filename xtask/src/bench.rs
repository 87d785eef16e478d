//! `cargo xtask bench`: what a cluster's whole state costs on a real kernel.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::build;
use crate::vm::guest::Guest;
use crate::vm::kernel::Kernel;

/// Where it is measured, and how much.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// The kernel to boot.
    #[arg(long, value_enum, default_value_t)]
    kernel: Kernel,
    /// How many services, and how many endpoints each.
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode> {
    eprintln!("bench: building");
    let program = build::bench_program()?;
    let guest =
        Guest { kernel: arguments.kernel, limit: Duration::from_secs(900), ..Guest::default() };
    let verdict =
        guest.run(&program.to_string_lossy(), &arguments.arguments, &mut std::io::stdout())?;
    eprintln!("bench: {verdict}");
    Ok(ExitCode::from(verdict.exit_code()))
}
