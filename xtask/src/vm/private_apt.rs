//! apt with lists, cache and sources of its own, for any suite and architecture. It changes nothing on
//! the machine, and needs nothing that is installed.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

/// Debian's keys, where the machine has them as a file.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// One source in the one-line format, bound to Debian's keys where the machine has them as a file;
/// otherwise apt's own trusted keys decide.
pub(crate) fn source_line(mirror: &str, suite: &str, architecture: &str, keyring: &Path) -> String {
    let signed_by =
        if keyring.is_file() { format!(" signed-by={}", keyring.display()) } else { String::new() };
    format!("deb [arch={architecture}{signed_by}] {mirror} {suite} main\n")
}

/// apt with its state in a directory of ours.
pub(crate) struct PrivateApt {
    options: Vec<String>,
}

impl PrivateApt {
    /// `source` is a line of [`source_line`] for the same architecture.
    pub(crate) fn set_up(directory: &Path, source: &str, architecture: &str) -> Result<Self> {
        let lists = directory.join("lists");
        let cache = directory.join("cache");
        let sources = directory.join("sources.list");
        // As if nothing was installed: what is asked for comes with all that it depends on.
        let installed = directory.join("installed");
        std::fs::create_dir_all(lists.join("partial"))?;
        std::fs::create_dir_all(cache.join("archives/partial"))?;
        std::fs::write(&sources, source)?;
        std::fs::write(&installed, "")?;
        let options = [
            format!("Dir::Etc::sourcelist={}", sources.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            // The machine's pins are about what it installs, and nothing is installed here.
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", lists.display()),
            format!("Dir::State::status={}", installed.display()),
            format!("Dir::Cache={}", cache.display()),
            format!("APT::Architecture={architecture}"),
            format!("APT::Architectures={architecture}"),
            // apt's own user could not write below a directory of ours.
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=2".to_owned(),
        ];
        Ok(Self { options: options.into() })
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-qq");
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_bound_to_the_keyring_that_exists() {
        let keyring = tempfile::NamedTempFile::new().unwrap();
        let path = keyring.path().display();
        assert_eq!(
            source_line("http://mirror/debian", "trixie", "arm64", keyring.path()),
            format!("deb [arch=arm64 signed-by={path}] http://mirror/debian trixie main\n")
        );
        assert_eq!(
            source_line(
                "http://mirror/debian",
                "trixie",
                "arm64",
                Path::new("/nowhere/keyring.gpg")
            ),
            "deb [arch=arm64] http://mirror/debian trixie main\n"
        );
    }
}
