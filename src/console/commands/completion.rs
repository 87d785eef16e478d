//! `kube-ipvs completion`: commands, options and names of Services, completed by the shell.
//!
//! The script that it prints has the shell ask this program for each word: what there is to complete
//! is known here.

use std::ffi::OsStr;

use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};

use super::{CommandLine, Session, written};
use crate::cli::SwitchArguments;
use crate::console::answers::names::Names;
use crate::console::client::Client;
use crate::console::outcome::{Failure, Verdict};

/// Variable by which a shell says that it asks for completions.
const VARIABLE: &str = "KUBE_IPVS_COMPLETE";

/// Prints a script that has a shell complete commands, options and names of Services
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Examples:\n  source <(kube-ipvs completion bash)\n  \
    kube-ipvs completion fish > ~/.config/fish/completions/kube-ipvs.fish")]
pub struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let script = script(arguments.shell)?;
    written(session.output.write(&script))?;
    Ok(Verdict::Yes)
}

/// Answers a shell that asks for completions, and ends the process then.
pub fn answer_shell() {
    CompleteEnv::with_factory(all_commands).var(VARIABLE).complete();
}

/// Returns the names of Services that begin like this; none if the program cannot be asked.
pub(super) fn services(begun: &OsStr) -> Vec<CompletionCandidate> {
    let prefix = begun.to_string_lossy();
    let asked = Client::find(None)
        .and_then(|client| client.get::<Names>("/v1/names", &[("prefix", &prefix)]));
    asked.map_or_else(|_| Vec::new(), |it| it.names.into_iter().map(Into::into).collect())
}

fn script(shell: Shell) -> Result<String, Failure> {
    let unknown = || Failure::Asked("there are no completions for this shell".to_owned());
    let name = match shell {
        Shell::Bash => "bash",
        Shell::Zsh => "zsh",
        Shell::Fish => "fish",
    };
    let shells = Shells::builtins();
    let completer = shells.completer(name).ok_or_else(unknown)?;
    let mut script = Vec::new();
    let program = "kube-ipvs";
    completer
        .write_registration(VARIABLE, program, program, program, &mut script)
        .map_err(|error| Failure::Asked(error.to_string()))?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

fn all_commands() -> clap::Command {
    CommandLine::command().subcommand(SwitchArguments::command().name("switch"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_a_script_that_asks_this_program() {
        for shell in Shell::value_variants() {
            let script = script(*shell).unwrap();
            assert!(script.contains(VARIABLE) && script.contains("kube-ipvs"), "{script}");
        }
    }

    #[test]
    fn commands_are_completed() {
        let words = ["kube-ipvs", "stat"].map(Into::into).to_vec();
        let found = clap_complete::engine::complete(&mut all_commands(), words, 1, None).unwrap();
        let found: Vec<_> = found.iter().map(|it| it.get_value().to_owned()).collect();
        assert_eq!(found, ["status"]);
    }
}
