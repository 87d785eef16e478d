//! `cargo xtask …`: everything a person or CI types for this project.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod architecture;
mod bench;
mod build;
mod chart;
mod dashboard;
mod demo;
mod dependencies;
mod dist;
mod docs;
mod image;
mod page;
mod program;
mod recording;
mod scripts;
mod site;
mod test;
mod vagrant;
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
    /// Measure what a cluster's whole state costs on a real kernel.
    Bench(bench::BenchArguments),
    /// Render deploy/ with Helm and kustomize, and compare what they make of it.
    Chart,
    /// Show the main job: a node, pods and a client in a throw-away virtual machine.
    Demo(demo::DemoArguments),
    /// Write docs/config.md, docs/metrics.md and the schema of the chart anew, from what the program says of itself.
    Docs,
    /// Make everything that a release has, with its digests, in one folder.
    Dist(dist::DistArguments),
    /// Make the program's image, for each architecture, without a container runtime.
    Image(image::ImageArguments),
    /// Test on every kernel that Debian has, with both kinds of iptables, and make the table of docs/internals/kernels.md.
    Matrix(test::matrix::MatrixArguments),
    /// Look at the console's pages in a browser, and write the pictures in docs/pictures anew.
    Page,
    /// Draw the output of the demo anew, as a moving picture in docs/pictures.
    Record,
    /// Build the documents as a site of static pages, and follow its links.
    Site,
    /// Disturb and kill the program at random on a real kernel, for hours.
    Soak(test::SoakArguments),
    /// Run every check and test there is.
    Test(test::TestArguments),
    /// Run the scripts of vagrant/ in an emulated machine, and check what they leave.
    Vagrant,
    /// Run programs on a real kernel with IPVS, in a throw-away virtual machine.
    #[command(subcommand)]
    Vm(vm::command::VmTask),
}

fn main() -> ExitCode {
    let succeeds = |()| ExitCode::SUCCESS;
    let outcome = match Arguments::parse().task {
        Task::Bench(arguments) => bench::run(&arguments).map(succeeds),
        Task::Chart => chart::check().map(succeeds),
        Task::Demo(arguments) => demo::run(&arguments),
        Task::Docs => docs::write().map(succeeds),
        Task::Dist(arguments) => dist::run(&arguments).map(succeeds),
        Task::Image(arguments) => image::run(&arguments).map(succeeds),
        Task::Matrix(arguments) => test::matrix::run(&arguments),
        Task::Page => page::look().map(succeeds),
        Task::Record => recording::record().map(succeeds),
        Task::Site => site::build().map(succeeds),
        Task::Soak(arguments) => test::soak(&arguments),
        Task::Test(arguments) => test::run(&arguments),
        Task::Vagrant => vagrant::run().map(succeeds),
        Task::Vm(task) => vm::command::run(task),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::from(vm::verdict::EXIT_BED_FAILED)
    })
}
