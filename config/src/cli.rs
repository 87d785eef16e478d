//! The command line: every flag of kube-proxy's, with its name and meaning, and a few of our own.
//!
//! [`config::reference`](crate::reference) has all flags, [`Arguments`] the types of those that are
//! no field. This module makes clap's command of both, and answers `--help`, `--version` and mistakes.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, FromArgMatches as _, Parser};
use plan::mode::Mode;
use syntax::page;

use crate::arguments::Arguments;
use crate::flags::{self, FlagEntry};
use crate::read::Documents;
use crate::reference::RETIRED;
use crate::setting::Flag;
use crate::text::go_bool;

/// Longest line of `--help`, also where the terminal's width is not known.
const HELP_WIDTH: usize = 100;

/// Word for the command that switches a running program.
const SWITCH: &str = "switch";

/// Request of a command line.
#[derive(Debug, Clone)]
pub enum Invocation {
    /// To serve, or another action of kube-proxy's flags.
    Run(Box<Arguments>),
    /// `kube-ipvs switch`.
    Switch(SwitchArguments),
    /// A command of the operator's console, such as `kube-ipvs status`, which reads its words itself.
    Console(Vec<OsString>),
}

/// Arguments of `kube-ipvs switch`.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(
    name = "kube-ipvs switch",
    about = "Switches the running kube-ipvs of this network namespace to another mode.",
    after_help = concat!(
        "The switch lasts until kube-ipvs is restarted: it then starts in the mode of its configuration. What \
         happens to connections: ",
        page!("modes")
    ),
    next_line_help = true
)]
pub struct SwitchArguments {
    /// Mode to serve in: ipvs, iptables or userspace
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub to: Mode,
    /// Dry run: reports what a switch would do, and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Returns once kube-ipvs has accepted the request, instead of waiting until nothing of the former mode is left
    #[arg(long)]
    pub no_wait: bool,
}

/// The command line is answered already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The text that was asked for, such as the version.
    Asked(String),
    /// The description of the flags.
    Help(String),
    /// The mistake, and how to use the program.
    Wrong(String),
}

/// Reads a command line, whose first word is the program's name.
pub fn invocation(words: impl IntoIterator<Item = OsString>) -> Result<Invocation, Answer> {
    let words: Vec<OsString> = words.into_iter().map(with_hyphens).collect();
    // As with many programs: `kube-ipvs help status`, and `kube-ipvs help`.
    let words = match words.get(1) {
        Some(word) if word == "help" => {
            let asked = words.iter().skip(2).take(1).cloned().chain(["--help".into()]);
            words.iter().take(1).cloned().chain(asked).collect()
        }
        _ => words,
    };
    // kube-proxy takes no such word, so that no command line of its is meant.
    if words.get(1).is_some_and(|word| word == SWITCH) {
        let parsed = SwitchArguments::try_parse_from(words.into_iter().skip(1));
        return parsed.map(Invocation::Switch).map_err(|error| Answer::from(&error));
    }
    if words.get(1).is_some_and(is_command) {
        return Ok(Invocation::Console(words));
    }
    parse(words).map(|arguments| Invocation::Run(Box::new(arguments)))
}

/// Reads a command line of flags alone.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Arguments, Answer> {
    let matches = command().try_get_matches_from(words.into_iter().map(with_hyphens));
    let matches = matches.map_err(|error| match Answer::from(&error) {
        Answer::Asked(text) => Answer::Help(text),
        answer => answer,
    })?;
    let mut arguments =
        Arguments::from_arg_matches(&matches).map_err(|error| Answer::from(&error))?;
    arguments.given = given(&matches);
    answer_version(&arguments)?;
    Ok(arguments)
}

/// True for a word that is no flag. kube-proxy takes none.
fn is_command(word: &OsString) -> bool {
    !word.is_empty() && !word.as_encoded_bytes().starts_with(b"-")
}

/// Reads the name of a mode.
pub fn mode(word: &str) -> Result<Mode, String> {
    Mode::named(word).ok_or_else(|| "must be ipvs, iptables or userspace".to_owned())
}

/// The command line as it is read: like Go's flags, which take a boolean with or without `=true`,
/// a value that begins with a hyphen, and of a flag given twice the last one.
pub fn command() -> Command {
    let flags = flags::all();
    let typed = Arguments::augment_args(Command::new("flags that are no field"));
    let mut typed: BTreeMap<String, Arg> = typed
        .get_arguments()
        .map(|arg| (arg.get_id().to_string().replace('_', "-"), arg.clone()))
        .collect();
    typed.insert("help".to_owned(), Arg::new("help").short('h').action(ArgAction::HelpLong));
    let arg = |entry: &FlagEntry| {
        let name = entry.flag.name;
        let arg = typed.get(name).cloned().unwrap_or_else(|| of_field(&entry.flag));
        described(arg.long(name), entry)
    };
    let mut entries: Vec<&FlagEntry> = flags.values().collect();
    entries.sort_by_key(|entry| (entry.flag.heading, entry.flag.name));
    let retired = RETIRED.iter().filter_map(|setting| {
        let flag = setting.flag?;
        Some(Arg::new(flag.name).long(flag.name).value_name(flag.value).hide(true))
    });
    Command::new("kube-ipvs")
        .disable_help_flag(true)
        .about("Programs IPVS from Services and EndpointSlices, as kube-proxy does in IPVS mode.")
        .after_help(concat!("All flags, and the fields of the --config file: ", page!("config")))
        .next_line_help(true)
        .max_term_width(HELP_WIDTH)
        .args(entries.into_iter().map(arg))
        .args(retired)
        .args_override_self(true)
        .mut_args(read_as_in_go)
}

/// The argument of a field, whose values are checked, and kept as they are.
fn of_field(flag: &Flag) -> Arg {
    let name = flag.name;
    let check = move |text: &str| {
        Documents::default().set_flag(name, text).unwrap_or(Ok(()))?;
        Ok::<_, String>(text.to_owned())
    };
    let action = if flag.is_list { ArgAction::Append } else { ArgAction::Set };
    let arg = Arg::new(flag.name).action(action).value_parser(check);
    // As with `-v`.
    let mut letters = flag.name.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) => arg.short(letter),
        _ => arg,
    }
}

/// The argument as `--help` shows it.
fn described(arg: Arg, entry: &FlagEntry) -> Arg {
    let arg = arg.help(entry.help()).help_heading(entry.flag.heading.text());
    if arg.get_action().takes_values() { arg.value_name(entry.flag.value) } else { arg }
}

fn read_as_in_go(arg: Arg) -> Arg {
    let is_bool = arg.get_value_names().is_some_and(|names| names == ["BOOL"]);
    if is_bool {
        arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_parser(go_bool)
    } else if arg.get_action().takes_values() && arg.get_num_args().is_none() {
        arg.allow_hyphen_values(true)
    } else {
        arg
    }
}

fn answer_version(arguments: &Arguments) -> Result<(), Answer> {
    let version = arguments.reported_version();
    match arguments.version.as_deref() {
        None => Ok(()),
        Some(reported) if reported.starts_with('v') => Ok(()),
        Some("raw") => {
            let arch = std::env::consts::ARCH;
            Err(Answer::Asked(format!("kube-ipvs version={version} arch={arch}\n")))
        }
        Some(other) => match go_bool(other) {
            Ok(false) => Ok(()),
            Ok(true) => Err(Answer::Asked(format!("kube-ipvs {version}\n"))),
            Err(problem) => Err(Answer::Wrong(format!("Error: --version: {problem}\n"))),
        },
    }
}

impl Answer {
    #[must_use]
    pub fn text(&self) -> &str {
        let (Self::Asked(text) | Self::Help(text) | Self::Wrong(text)) = self;
        text
    }

    /// Prints it where it belongs: what was asked for is a success, everything else is not.
    pub fn print(&self) -> ExitCode {
        // Write errors are ignored: the reader may have closed its end.
        match self {
            Self::Asked(text) | Self::Help(text) => {
                let _ = std::io::stdout().write_all(text.as_bytes());
                ExitCode::SUCCESS
            }
            Self::Wrong(text) => {
                let _ = std::io::stderr().write_all(text.as_bytes());
                ExitCode::FAILURE
            }
        }
    }
}

impl From<&clap::Error> for Answer {
    fn from(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        if error.use_stderr() { Self::Wrong(text) } else { Self::Asked(text) }
    }
}

/// Go's flags take underscores for hyphens.
fn with_hyphens(word: OsString) -> OsString {
    match word.to_str() {
        Some(text) if text.starts_with("--") => {
            let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
            (name.replace('_', "-") + value).into()
        }
        _ => word,
    }
}

fn given(matches: &ArgMatches) -> Vec<(String, Vec<String>)> {
    let on_the_command_line =
        |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    let values = |id: &clap::Id| {
        let values = matches.get_raw(id.as_str()).into_iter().flatten();
        values.map(|value| value.to_string_lossy().into_owned()).collect()
    };
    let ids = matches.ids().filter(on_the_command_line);
    ids.map(|id| (id.as_str().replace('_', "-"), values(id))).collect()
}
