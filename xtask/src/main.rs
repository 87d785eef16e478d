//! `cargo xtask …`: everything a person or CI types for this project.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod vm;

/// The project's tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run programs on a real kernel with IPVS, in a throw-away virtual machine.
    #[command(subcommand)]
    Vm(vm::command::VmTask),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Vm(task) => vm::command::run(task),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::from(vm::verdict::EXIT_BED_FAILED)
    })
}
