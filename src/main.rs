//! kube-ipvs, the program.

use std::process::ExitCode;

use kube_ipvs::config::Configuration;
use kube_ipvs::{app, cli};

fn main() -> ExitCode {
    let arguments = match cli::parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(answer) => return answer.print(),
    };
    let configuration = match Configuration::load(&arguments) {
        Ok(configuration) => configuration,
        Err(error) => {
            app::start_logging(arguments.v.unwrap_or_default());
            tracing::error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    app::start_logging(configuration.logging.verbosity);
    match app::run(configuration) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
