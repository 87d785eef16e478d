//! kube-ipvs, the program.

use std::process::ExitCode;

use kube_ipvs::config::{Configuration, LogFormat, Logging};
use kube_ipvs::{app, cli};

fn main() -> ExitCode {
    let arguments = match cli::parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(answer) => return answer.print(),
    };
    let configuration = match Configuration::load(&arguments) {
        Ok(configuration) => configuration,
        Err(error) => {
            app::logging::start(Logging { format: LogFormat::Text, verbosity: 0 });
            tracing::error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let verbosity = app::logging::start(configuration.logging);
    match app::run(configuration, arguments, verbosity) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
