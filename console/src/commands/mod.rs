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
pub mod sets;
pub mod source;
pub mod status;
pub mod support_bundle;
pub mod top;
pub mod trace;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum as _};

use super::answers::{Answer, FailureAnswer};
use super::client::Client;
use super::outcome::{Failure, Verdict};
use super::output::{Colour, Format, Output};
use config::cli::SwitchArguments;

/// Command line of a command.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(
    name = "kube-ipvs",
    about = "Queries the running kube-ipvs of this network namespace.",
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
    /// Socket of kube-ipvs (default: the one of its configuration)
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// When to use colours
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "WHEN",
        visible_alias = "color"
    )]
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
    Sets(sets::Arguments),
    SupportBundle(support_bundle::Arguments),
    Trace(trace::Arguments),
    Connections(connections::Arguments),
    Top(top::Arguments),
    Completion(completion::Arguments),
}

/// Surroundings of a command.
pub struct Session {
    options: Options,
    pub output: Output,
}

/// Carries out the command of a command line, whose first word is the program's name, and returns its
/// exit code. What went wrong is on stderr then.
#[must_use]
pub fn run(words: Vec<OsString>) -> ExitCode {
    let format = wanted_format(&words);
    let command = match CommandLine::try_parse_from(words) {
        Ok(command) => command,
        Err(answer) if answer.use_stderr() && format != Format::Text => {
            return report(&Failure::Asked(answer.to_string()), format);
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

/// Returns the format that a command line asks for, which cannot be read as a whole.
fn wanted_format(words: &[OsString]) -> Format {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let mut wanted = Format::Text;
    for (place, word) in words.iter().enumerate() {
        let value = match *word {
            "-o" | "--output" => words.get(place + 1).copied(),
            word => word.strip_prefix("--output=").or_else(|| {
                word.strip_prefix("-o").map(|value| value.strip_prefix('=').unwrap_or(value))
            }),
        };
        wanted = value.and_then(|value| Format::from_str(value, false).ok()).unwrap_or(wanted);
    }
    wanted
}

/// Returns the commands, each with what it does, as `kube-ipvs --help` shows them before kube-proxy's flags.
#[must_use]
pub fn overview() -> String {
    let console = CommandLine::command();
    let switch = SwitchArguments::command().name("switch");
    let commands: Vec<&clap::Command> = console.get_subcommands().chain([&switch]).collect();
    let width = commands.iter().map(|it| it.get_name().len()).max().unwrap_or_default();
    let mut text = "Commands for a running kube-ipvs (kube-ipvs COMMAND --help):\n".to_owned();
    for command in commands {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        text += &format!("  {:width$}  {about}\n", command.get_name());
    }
    text + "\nWithout a command, kube-ipvs serves, with kube-proxy's flags:\n\n"
}

/// Says on stderr why a command could not be carried out, and returns its exit code.
fn report(failure: &Failure, format: Format) -> ExitCode {
    match format {
        Format::Text => {
            anstream::eprintln!("{}: {failure}", super::output::bad("Error"));
        }
        format => {
            let answer = Answer::new(FailureAnswer::from(failure));
            // Words and a name: that can be written.
            eprint!("{}", format.document(&answer).unwrap_or_default());
        }
    }
    failure.code()
}

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
            Self::Sets(arguments) => sets::run(&arguments, session),
            Self::SupportBundle(arguments) => support_bundle::run(&arguments, session),
            Self::Trace(arguments) => trace::run(&arguments, session),
            Self::Connections(arguments) => connections::run(&arguments, session),
            Self::Top(arguments) => top::run(&arguments, session),
            Self::Completion(arguments) => completion::run(&arguments, session),
        }
    }
}

impl Session {
    /// Returns the running program.
    pub fn client(&self) -> Result<Client, Failure> {
        let client = Client::find(self.options.socket.as_deref())?;
        Ok(if self.output.format() == Format::Text { client } else { client.verbatim() })
    }
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
