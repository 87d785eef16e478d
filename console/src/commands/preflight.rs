//! `kube-ipvs preflight`: can this host serve, and what would a takeover change.

use clap::Args;
use plan::mode::Mode;

use super::{Session, written};
use crate::answers::{Content, mode};
use crate::outcome::{Failure, Verdict};
use crate::output::{bad, good, notable, table};
use crate::process;
use config::{Arguments as Flags, Configuration};
use node::preflight::{self, Check, CheckState, Preflight};

/// Checks the prerequisites of this host, and what a takeover from the current proxy would change
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Examples:\n  \
    kube-ipvs preflight\n  \
    kube-ipvs preflight --config /etc/kube-proxy/config.conf --mode iptables\n\n\
    Needs no running kube-ipvs, but its privileges. Creates and removes the objects that kube-ipvs \
    probes at startup; kernel modules stay loaded. Exit code: 1 if a check failed.")]
pub struct Arguments {
    /// Configuration file to check (default: that of the running kube-ipvs, else the defaults)
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// Mode to check (default: the configuration's)
    #[arg(long, value_name = "MODE", value_parser = config::cli::mode)]
    mode: Option<Mode>,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let (configuration, place) = arguments.configuration()?;
    let preflight = preflight::run(&configuration, &place);
    let verdict = Verdict::from(preflight.can_serve);
    written(session.output.show(preflight, text))?;
    Ok(verdict)
}

impl Arguments {
    /// Returns the configuration to check for, and where it comes from, in words.
    fn configuration(&self) -> Result<(Configuration, String), Failure> {
        let (flags, place) = match (&self.config, process::find(process::PROC.as_ref())) {
            (Some(file), _) => {
                (Flags { config: Some(file.clone()), ..Flags::default() }, format!("file {file}"))
            }
            (None, Ok(running)) => {
                let place =
                    format!("of the running kube-ipvs (process {})", running.pid.as_raw_nonzero());
                (running.arguments, place)
            }
            (None, Err(_)) => (Flags::default(), "defaults".to_owned()),
        };
        let unusable = |error: config::ConfigurationError| {
            Failure::Asked(format!("invalid configuration ({place}): {error}"))
        };
        let configuration = Configuration::load(&flags).map_err(unusable)?;
        let configuration = match self.mode {
            Some(mode) => configuration.for_mode(&flags, mode).map_err(unusable)?,
            None => configuration,
        };
        Ok((configuration, place))
    }
}

impl Content for Preflight {
    const KIND: &'static str = "Preflight";
}

fn text(answer: &Preflight) -> String {
    let rows = answer.checks.iter().map(|check| {
        let Check { name, state, found, remedy } = check;
        let state = match state {
            CheckState::Ok => good(state.name()),
            CheckState::Note => state.name().to_owned(),
            CheckState::Warning => notable(state.name()),
            CheckState::Failed => bad(state.name()),
        };
        let advice = match remedy {
            Some(remedy) => format!("\n\t\t→ {}", one_line(remedy)),
            None => String::new(),
        };
        [state, name.clone(), one_line(found) + &advice]
    });
    let conclusion = match answer.can_serve {
        true => good("this host can serve"),
        false => bad("this host cannot serve"),
    };
    format!(
        "{}\n{conclusion} in {} (configuration: {})\n",
        table(&["STATE", "CHECK", "FOUND"], rows),
        mode::title(&answer.mode),
        answer.configuration
    )
}

/// Text of programs may have several lines, and tabs.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_is_a_line_with_its_advice_below() {
        let check = |name: &str, state, found: &str, remedy: Option<&str>| Check {
            name: name.to_owned(),
            state,
            found: found.to_owned(),
            remedy: remedy.map(str::to_owned),
        };
        let mut answer = Preflight {
            mode: "ipvs".to_owned(),
            configuration: "defaults".to_owned(),
            can_serve: true,
            checks: vec![
                check("kernel", CheckState::Ok, "Linux 6.12", None),
                check("idle connections", CheckState::Warning, "IPVS\nforgets", Some("raise it")),
            ],
        };
        let plain = |answer: &Preflight| anstream::adapter::strip_str(&text(answer)).to_string();
        assert_eq!(
            plain(&answer),
            "STATE     CHECK              FOUND\n\
             ok        kernel             Linux 6.12\n\
             warning   idle connections   IPVS forgets\n\
             \x20                            → raise it\n\n\
             this host can serve in IPVS mode (configuration: defaults)\n"
        );
        answer.can_serve = false;
        assert!(
            plain(&answer)
                .ends_with("this host cannot serve in IPVS mode (configuration: defaults)\n")
        );
    }

    #[test]
    fn a_file_and_a_mode_are_taken_before_what_runs() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n";
        std::fs::write(&file, text).unwrap();
        let config = file.to_str().map(str::to_owned);
        let arguments = Arguments { config: config.clone(), mode: Some(Mode::Iptables) };
        let (configuration, place) = arguments.configuration().unwrap();
        assert_eq!(configuration.settings.mode, Mode::Iptables);
        assert_eq!(place, format!("file {}", file.display()));
        std::fs::write(&file, "kind: Nothing\n").unwrap();
        let refused = Arguments { config, mode: None }.configuration().unwrap_err();
        assert!(matches!(refused, Failure::Asked(_)), "{refused}");
    }
}
