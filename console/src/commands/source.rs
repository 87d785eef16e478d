//! Flags of a program that does not run: where Services come from, and how they would be served.

use std::ffi::OsString;

use clap::Args;

use crate::outcome::Failure;
use config::Configuration;

/// Flags that kube-ipvs would be started with.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct SourceArguments {
    /// Flags of kube-ipvs, such as --config, --kubeconfig or --manifests, instead of asking a
    /// running kube-ipvs
    #[arg(last = true, value_name = "FLAGS OF KUBE-IPVS")]
    flags: Vec<String>,
}

impl SourceArguments {
    /// True if there are flags.
    pub(super) fn is_given(&self) -> bool {
        !self.flags.is_empty()
    }

    /// Returns the configuration that they lead to.
    pub(super) fn configuration(&self) -> Result<Configuration, Failure> {
        configuration_of(self.flags.iter().map(OsString::from))
    }
}

/// Returns the configuration that a program with these flags would have.
pub(super) fn configuration_of(
    flags: impl IntoIterator<Item = OsString>,
) -> Result<Configuration, Failure> {
    let words = ["kube-ipvs".into()].into_iter().chain(flags);
    let arguments = config::cli::parse(words);
    let arguments = arguments.map_err(|answer| Failure::Asked(answer.text().to_owned()))?;
    Configuration::load(&arguments).map_err(|error| Failure::Asked(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(flags: &[&str]) -> Result<Configuration, Failure> {
        SourceArguments { flags: flags.iter().map(|it| (*it).to_owned()).collect() }.configuration()
    }

    #[test]
    fn flags_mean_what_they_mean_to_the_program() {
        let configuration =
            configuration(&["--manifests=/etc/services", "--hostname-override=node-7"]).unwrap();
        assert_eq!(configuration.manifests.as_deref(), Some("/etc/services".as_ref()));
        assert_eq!(&*configuration.settings.node_name, "node-7");
    }

    #[test]
    fn a_wrong_flag_is_a_mistake_in_what_was_asked() {
        let failure = configuration(&["--manifest=/etc/services"]).unwrap_err();
        assert!(
            matches!(&failure, Failure::Asked(text) if text.contains("--manifest")),
            "{failure}"
        );
    }
}
