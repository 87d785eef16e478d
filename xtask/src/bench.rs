//! `cargo xtask bench`: what a cluster's whole state costs on a real kernel, or what the program
//! itself needs for it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::build;
use crate::vm::guest::{Guest, GuestFile};
use crate::vm::kernel::Kernel;

/// Where it is measured, and how much.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// What to measure.
    #[arg(long, value_enum, default_value_t)]
    what: Measurement,
    /// The kernel to boot.
    #[arg(long, value_enum, default_value_t)]
    kernel: Kernel,
    /// How many services, and how many endpoints each.
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
}

/// What there is to measure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// The kernel's part: writing, reading, changes, beside the raw cost of the same.
    #[default]
    AtScale,
    /// The program's memory and processor time, fed by an API server.
    Footprint,
    /// Many addresses on the interface: in which order and with which flags.
    Addresses,
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode> {
    eprintln!("bench: building");
    let mut guest =
        Guest { kernel: arguments.kernel, limit: Duration::from_secs(1_800), ..Guest::default() };
    let program = match arguments.what {
        Measurement::AtScale => build::bench_program("at_scale")?,
        Measurement::Addresses => build::bench_program("addresses")?,
        Measurement::Footprint => {
            let daemon = build::daemon()?;
            guest.files.push(GuestFile { host: daemon, guest: "/job/kube-ipvs".into() });
            build::bench_program("footprint")?
        }
    };
    let verdict =
        guest.run(&program.to_string_lossy(), &arguments.arguments, &mut std::io::stdout())?;
    eprintln!("bench: {verdict}");
    Ok(ExitCode::from(verdict.exit_code()))
}
