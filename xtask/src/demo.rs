//! `cargo xtask demo`: the main job, shown on a real kernel.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use crate::build;
use crate::vm::guest::{Guest, GuestFile};
use crate::vm::kernel::Kernel;

/// Kernel that the demo runs on.
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// The kernel to boot.
    #[arg(long, value_enum, default_value_t)]
    kernel: Kernel,
}

pub(crate) fn run(arguments: &DemoArguments) -> Result<ExitCode> {
    eprintln!("demo: building");
    let daemon = build::daemon(build::QUICK)?;
    let program = build::bed_program("demo")?;
    let started = Instant::now();
    let guest = Guest {
        kernel: arguments.kernel,
        files: vec![
            GuestFile { host: daemon, guest: "/job/kube-ipvs".into() },
            GuestFile {
                host: build::workspace().join("deploy/examples"),
                guest: "/job/examples".into(),
            },
        ],
        limit: Duration::from_secs(300),
        ..Guest::default()
    };
    let arguments = ["/job/kube-ipvs", "/job/examples"].map(str::to_owned);
    let verdict = guest.run(&program.to_string_lossy(), &arguments, &mut std::io::stdout())?;
    eprintln!("demo: {verdict} ({} s after the build)", started.elapsed().as_secs());
    Ok(ExitCode::from(verdict.exit_code()))
}
