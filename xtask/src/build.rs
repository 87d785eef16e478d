//! Cargo, called for its effects: checks, tests, and the programs that go into a guest.

use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The profile of what guests run: optimised a little, since emulated machines are slow, and
/// building must stay quick.
pub(crate) const QUICK: &str = "bed";
/// The profile of what is measured: what people run.
pub(crate) const RELEASE: &str = "release";

/// Where in a package tests are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tests {
    /// A program of their own in `tests`.
    Program(&'static str),
    /// Beside the code of a library, those whose names contain this.
    Inside(&'static str),
}

// === impl Tests ===

impl Tests {
    /// What tells them from the others in their program.
    pub(crate) fn filter(self) -> Option<&'static str> {
        match self {
            Self::Program(_) => None,
            Self::Inside(module) => Some(module),
        }
    }
}

impl fmt::Display for Tests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(name) | Self::Inside(name) => f.write_str(name),
        }
    }
}

/// Runs cargo in the workspace, its output on this terminal.
pub(crate) fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let status = command(arguments)
        .envs(environment.iter().copied())
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed", arguments.join(" "));
    }
    Ok(())
}

/// Runs cargo and hands what it writes to standard output over as it comes.
pub(crate) fn cargo_into(
    arguments: &[&str],
    environment: &[(&str, &str)],
    output: &mut dyn Write,
) -> Result<()> {
    let mut child = command(arguments)
        .envs(environment.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let mut stdout = child.stdout.take().context("cargo has no output")?;
    let mut buffer = [0; 4_096];
    loop {
        let length = stdout.read(&mut buffer).context("cannot read cargo's output")?;
        if length == 0 {
            break;
        }
        output.write_all(buffer.get(..length).unwrap_or_default())?;
    }
    if !child.wait()?.success() {
        bail!("`cargo {}` failed", arguments.join(" "));
    }
    Ok(())
}

/// Builds the daemon for a guest.
pub(crate) fn daemon() -> Result<PathBuf> {
    program(&["build", "--package", "kube-ipvs", "--bin", "kube-ipvs"], "kube-ipvs", QUICK)
}

/// Builds a program of the bed for a guest.
pub(crate) fn bed_program(name: &str) -> Result<PathBuf> {
    program(&["build", "--package", "kube-ipvs-bed", "--bin", name], name, QUICK)
}

/// Builds the measurement that needs a real kernel.
pub(crate) fn bench_program(name: &str, profile: &str) -> Result<PathBuf> {
    let features = "kube-ipvs/kernel-tests";
    let arguments = ["build", "--package", "kube-ipvs", "--features", features, "--bench", name];
    program(&arguments, name, profile)
}

/// Builds tests that need a real kernel.
pub(crate) fn test_program(package: &str, tests: Tests) -> Result<PathBuf> {
    let feature = format!("{package}/kernel-tests");
    let mut arguments = vec!["test", "--no-run", "--package", package, "--features", &feature];
    match tests {
        Tests::Program(name) => arguments.extend(["--test", name]),
        Tests::Inside(_) => arguments.push("--lib"),
    }
    match tests {
        Tests::Program(name) => program(&arguments, name, QUICK),
        Tests::Inside(_) => program(&arguments, &package.replace('-', "_"), QUICK),
    }
}

/// Builds, and finds the executable in what cargo reports about it.
fn program(arguments: &[&str], target: &str, profile: &str) -> Result<PathBuf> {
    let mut all = arguments.to_vec();
    all.extend(["--profile", profile, "--message-format=json-render-diagnostics"]);
    let mut report = Vec::new();
    cargo_into(&all, &[], &mut report)?;
    executable(&String::from_utf8_lossy(&report), target)
        .with_context(|| format!("cargo built no executable `{target}`"))
}

fn executable(report: &str, target: &str) -> Option<PathBuf> {
    report
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| {
            message.pointer("/target/name").and_then(|name| name.as_str()) == Some(target)
        })
        .filter_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)))
        .next_back()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace()).stdin(Stdio::null());
    command
}

/// The workspace's own folder.
pub(crate) fn workspace() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_by_its_targets_name() {
        let report = r#"{"reason":"compiler-artifact","target":{"name":"ipvs"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"kernel"},"executable":"/t/deps/kernel-12"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(report, "kernel"), Some(PathBuf::from("/t/deps/kernel-12")));
        assert_eq!(executable(report, "ipvs"), None);
    }
}
