//! `kube-ipvs completion`: commands, options, Services, namespaces and endpoints, completed by the shell.
//!
//! The script that it prints has the shell ask this program for each word: what there is to complete
//! is known here.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};

use super::{CommandLine, Session, written};
use crate::answers::drains::{Drains, Target};
use crate::answers::names::Names;
use crate::answers::service::ServiceState;
use crate::client::Client;
use crate::outcome::{Failure, Verdict};
use config::cli::SwitchArguments;

/// Variable by which a shell says that it asks for completions.
const VARIABLE: &str = "KUBE_IPVS_COMPLETE";

/// Prints a script that has a shell complete commands, options, Services, namespaces and endpoints
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Examples:\n  \
    source <(kube-ipvs completion bash)\n  \
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
    names("services", begun)
}

/// Returns the namespaces with Services that begin like this.
pub(super) fn namespaces(begun: &OsStr) -> Vec<CompletionCandidate> {
    names("namespaces", begun)
}

/// Returns the words that `drain` takes: Services, and behind one its endpoints.
pub(super) fn to_drain(begun: &OsStr) -> Vec<CompletionCandidate> {
    let Some(service) = service_before(begun, env::args_os()) else { return services(begun) };
    let asked = client().and_then(|it| it.get("/v1/service", &[("service", &service)]));
    let endpoints = asked.map(|service: ServiceState| {
        let all = service.frontends.into_iter().flat_map(|frontend| frontend.endpoints);
        all.map(|it| it.endpoint.to_string()).collect::<BTreeSet<_>>()
    });
    candidates(endpoints, begun)
}

/// Returns the endpoints that are drained manually and begin like this.
pub(super) fn drained(begun: &OsStr) -> Vec<CompletionCandidate> {
    let asked = client().and_then(|it| it.get("/v1/drains", &[]));
    let endpoints = asked.map(|Drains { drains }| {
        let targets = drains.into_iter().map(|drain| drain.target);
        targets.map(|Target { address, port, .. }| match port {
            Some(port) => SocketAddr::new(address, port.get()).to_string(),
            None => address.to_string(),
        })
    });
    candidates(endpoints, begun)
}

fn names(of: &str, begun: &OsStr) -> Vec<CompletionCandidate> {
    let prefix = begun.to_string_lossy();
    let asked = client().and_then(|it| it.get("/v1/names", &[("of", of), ("prefix", &prefix)]));
    candidates(asked.map(|it: Names| it.names), begun)
}

/// Returns those words that begin like this; none if they are not known.
fn candidates(
    words: Result<impl IntoIterator<Item = String>, Failure>,
    begun: &OsStr,
) -> Vec<CompletionCandidate> {
    let begun = begun.to_string_lossy();
    let words = words.into_iter().flatten();
    words.filter(|word| word.starts_with(&*begun)).map(Into::into).collect()
}

/// Returns the program that the command line is about, as far as it has been typed.
fn client() -> Result<Client, Failure> {
    Client::find(socket(env::args_os()).as_deref())
}

/// Returns the socket that a command line names.
fn socket(words: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let (mut found, mut is_next) = (None, false);
    for word in words {
        let text = word.to_string_lossy();
        if is_next {
            found = Some(PathBuf::from(&word));
        } else if let Some(path) = text.strip_prefix("--socket=") {
            found = Some(PathBuf::from(path));
        }
        is_next = text == "--socket";
    }
    found
}

/// Returns the Service that a command line names before the word that has begun.
fn service_before(begun: &OsStr, words: impl Iterator<Item = OsString>) -> Option<String> {
    let is_service = |word: &OsString| {
        let text = word.to_string_lossy();
        let is_name = |part: &str| !part.is_empty() && !part.starts_with(['-', '.']);
        word != begun
            && text.split('/').count() == 2
            && text.split('/').all(is_name)
            && !text.contains(':')
    };
    words.filter(is_service).last().map(|word| word.to_string_lossy().into_owned())
}

fn script(shell: Shell) -> Result<String, Failure> {
    let unknown = || Failure::Asked("no completions for this shell".to_owned());
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

    #[test]
    fn the_words_before_name_the_socket_and_the_service() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let socket = |text: &str| socket(words(text).into_iter());
        assert_eq!(socket("kube-ipvs -- kube-ipvs service sho"), None);
        assert_eq!(socket("-- kube-ipvs --socket /run/x service s"), Some("/run/x".into()));
        assert_eq!(socket("-- kube-ipvs drain --socket=y/x s"), Some("y/x".into()));
        let before =
            |begun: &str, text: &str| service_before(begun.as_ref(), words(text).into_iter());
        assert_eq!(before("10", "/usr/bin/kube-ipvs -- kube-ipvs drain 10"), None);
        let named = "./kube-ipvs -- kube-ipvs --socket /run/x drain shop/cart 10";
        assert_eq!(before("10", named), Some("shop/cart".to_owned()));
        assert_eq!(before("shop/c", "kube-ipvs -- kube-ipvs drain shop/c"), None);
    }
}
