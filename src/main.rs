//! kube-ipvs, the program.

use std::process::ExitCode;

use clap::Parser as _;
use kube_ipvs::app;
use kube_ipvs::cli::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    app::start_logging(arguments.verbosity);
    match app::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
