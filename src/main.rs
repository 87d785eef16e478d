//! kube-ipvs, the program.

use std::process::ExitCode;

use config::cli::{self, Answer, Invocation};
use config::{Configuration, LogFormat, Logging};
use console::harmless::HarmlessLines;
use kube_ipvs::{app, switch};

fn main() -> ExitCode {
    console::commands::completion::answer_shell();
    let arguments = match cli::invocation(std::env::args_os()) {
        Ok(Invocation::Run(arguments)) => *arguments,
        Ok(Invocation::Switch(arguments)) => {
            app::logging::start(Logging { format: LogFormat::Text, verbosity: 0 });
            return ended(switch::run(&arguments, &mut HarmlessLines(std::io::stdout())));
        }
        Ok(Invocation::Console(words)) => return console::commands::run(words),
        Err(Answer::Help(flags)) => {
            return Answer::Asked(console::commands::overview() + &flags).print();
        }
        Err(answer) => return answer.print(),
    };
    if arguments.given.is_empty()
        && let Err(error) = switch::require_none_beside()
    {
        app::logging::start(Logging { format: LogFormat::Text, verbosity: 0 });
        return ended(Err(error));
    }
    let configuration = match Configuration::load(&arguments) {
        Ok(configuration) => configuration,
        Err(error) => {
            app::logging::start(Logging { format: LogFormat::Text, verbosity: 0 });
            tracing::error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let log = app::logging::start(configuration.logging);
    ended(app::run(configuration, arguments, log))
}

fn ended(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
