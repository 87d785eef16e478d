//! Commands: their arguments, what they ask, and how people read it. One module for each.

pub mod completion;
pub mod connections;
pub mod diff;
pub mod drain;
pub mod events;
pub mod explain;
pub mod plan;
pub mod preflight;
pub mod service;
pub mod services;
pub mod source;
pub mod status;
pub mod support_bundle;
pub mod top;
pub mod trace;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use super::answers::events::counted;
use super::answers::{Answer, FailureAnswer};
use super::client::Client;
use super::outcome::{Failure, Verdict};
use super::output::{Colour, Format, Output};

/// Command line of a command.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(
    name = "kube-ipvs",
    about = "Asks the running kube-ipvs of this network namespace.",
    disable_help_subcommand = true
)]
pub struct CommandLine {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Options {
    /// Format of the output
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
    /// Socket of the program, instead of the one that its configuration names
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    colour: Colour,
}

#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
enum Command {
    Status(status::Arguments),
    Events(events::Arguments),
    Services(services::Arguments),
    Service(service::Arguments),
    Explain(explain::Arguments),
    Diff(diff::Arguments),
    Plan(plan::Arguments),
    Drain(drain::DrainArguments),
    Undrain(drain::UndrainArguments),
    Preflight(preflight::Arguments),
    SupportBundle(support_bundle::Arguments),
    Trace(trace::Arguments),
    Connections(connections::Arguments),
    Top(top::Arguments),
    Completion(completion::Arguments),
}

/// Surroundings of a command.
pub struct Session {
    options: Options,
    /// Its output.
    pub output: Output,
}

/// Carries out the command of a command line, whose first word is the program's name, and returns its
/// exit code. What went wrong is on stderr then.
#[must_use]
pub fn run(words: Vec<OsString>) -> ExitCode {
    let wants_json = wants_json(&words);
    let command = match CommandLine::try_parse_from(words) {
        Ok(command) => command,
        Err(answer) if answer.use_stderr() && wants_json => {
            return report(&Failure::Asked(answer.to_string()), Format::Json);
        }
        Err(answer) => {
            // Also the text of --help comes this way. Its reader may be gone.
            let _ = answer.print();
            let is_mistake = answer.use_stderr();
            return if is_mistake {
                Failure::Asked(String::new()).code()
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    command.run()
}

/// True if a command line that cannot be read asks for JSON.
fn wants_json(words: &[OsString]) -> bool {
    let is_option = |word: &OsString| word == "-o" || word == "--output";
    let pairs = words.iter().zip(words.iter().skip(1));
    pairs.into_iter().any(|(option, format)| is_option(option) && format == "json")
        || words.iter().any(|word| word == "-ojson" || word == "-o=json" || word == "--output=json")
}

/// Says on stderr why a command could not be carried out, and returns its exit code.
fn report(failure: &Failure, format: Format) -> ExitCode {
    match format {
        Format::Text => anstream::eprintln!("{}: {failure}", super::output::bad("Error")),
        Format::Json => {
            let answer = Answer::new(FailureAnswer::from(failure));
            // Words and a name: that can be written.
            eprintln!("{}", serde_json::to_string_pretty(&answer).unwrap_or_default());
        }
    }
    failure.code()
}

// === impl CommandLine ===

impl CommandLine {
    fn run(self) -> ExitCode {
        let output = Output::stdout(self.options.output, self.options.colour);
        let mut session = Session { options: self.options, output };
        match self.command.run(&mut session) {
            Ok(verdict) => verdict.code(),
            Err(failure) => report(&failure, session.output.format()),
        }
    }
}

impl Command {
    fn run(self, session: &mut Session) -> Result<Verdict, Failure> {
        match self {
            Self::Status(arguments) => status::run(&arguments, session),
            Self::Events(arguments) => events::run(&arguments, session),
            Self::Services(arguments) => services::run(&arguments, session),
            Self::Service(arguments) => service::run(&arguments, session),
            Self::Explain(arguments) => explain::run(&arguments, session),
            Self::Diff(arguments) => diff::run(&arguments, session),
            Self::Plan(arguments) => plan::run(&arguments, session),
            Self::Drain(arguments) => drain::drain(&arguments, session),
            Self::Undrain(arguments) => drain::undrain(&arguments, session),
            Self::Preflight(arguments) => preflight::run(&arguments, session),
            Self::SupportBundle(arguments) => support_bundle::run(&arguments, session),
            Self::Trace(arguments) => trace::run(&arguments, session),
            Self::Connections(arguments) => connections::run(&arguments, session),
            Self::Top(arguments) => top::run(&arguments, session),
            Self::Completion(arguments) => completion::run(&arguments, session),
        }
    }
}

// === impl Session ===

impl Session {
    /// Returns the running program.
    ///
    /// # Errors
    /// When it cannot be found.
    pub fn client(&self) -> Result<Client, Failure> {
        Client::find(self.options.socket.as_deref())
    }
}

/// Returns a number of things: `1 connection`, `2 connections`.
fn counted_many(number: u64, noun: &str) -> String {
    counted(usize::try_from(number).unwrap_or(usize::MAX), noun)
}

/// Ignores that the output has no reader any more, as with `| head`.
fn written(result: io::Result<()>) -> Result<(), Failure> {
    has_reader(result).map(drop)
}

/// True if the output was written; false if it has no reader any more.
fn has_reader(result: io::Result<()>) -> Result<bool, Failure> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::Unanswered(format!("cannot write the output: {error}"))),
    }
}
