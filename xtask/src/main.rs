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
    /// Measure the cost of a cluster's state on a real kernel.
    Bench(bench::BenchArguments),
    /// Render deploy/ with Helm and kustomize, compare both, and test the alerts with promtool.
    Chart,
    /// Run a node with kube-ipvs, pods and a client in a throw-away virtual machine.
    Demo(demo::DemoArguments),
    /// Write the generated documents: docs/config.md, docs/events.md, docs/metrics.md, and the chart's README, schema and
    /// copies of the alerts and of the dashboard.
    Docs,
    /// Make all files of a release, with their digests, in target/dist.
    Dist(dist::DistArguments),
    /// Make the container image for all architectures, without a container runtime.
    Image(image::ImageArguments),
    /// Test on every kernel of Debian with both kinds of iptables, and print the table of docs/internals/kernels.md.
    Matrix(test::matrix::MatrixArguments),
    /// Test the console's pages in a browser, and write their pictures in docs/pictures.
    Page,
    /// Run the demo, and draw its output as an animation in docs/pictures.
    Record,
    /// Build the site of the documents in target/site, and check its links.
    Site,
    /// Disturb and kill kube-ipvs at random on a real kernel, for hours.
    Soak(test::SoakArguments),
    /// Run all checks and tests, or some tiers of them.
    Test(test::TestArguments),
    /// Run the scripts of vagrant/ in an emulated Debian, and check the resulting node.
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
