//! Cargo, called for its effects: checks, tests, and the programs that go into a guest.

use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::architecture::Architecture;
use crate::vm::{host_packages, host_tool};

/// The profile of what is tested: quick to build.
pub(crate) const QUICK: &str = "dev";
/// The profile of what is measured: what people run.
pub(crate) const RELEASE: &str = "release";

/// Features of what exists only where there is a real kernel, a browser, or Helm. Every build of tests has
/// all of them, so that nothing is built again for want of another's.
const ALL_TESTS: &str = "kube-ipvs/kernel-tests,kube-ipvs/browser-tests,kube-ipvs/chart-tests,\
    kube-ipvs-bed/kernel-tests,ipset-netlink/kernel-tests,ipvs-rs/kernel-tests,\
    nftables-netlink/kernel-tests";

/// Arguments of cargo for all tests. They name the whole workspace, since a package that is built
/// by itself is built again wherever it, or a dependency of it, is to have other features.
pub(crate) const TEST: [&str; 4] = ["test", "--workspace", "--features", ALL_TESTS];

/// Option of cargo by which it reports what it has built, a JSON object a line.
const MESSAGES: &str = "--message-format=json-render-diagnostics";

/// Place of tests in a package.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tests {
    /// A program of their own in `tests`.
    Program(&'static str),
    /// Beside the code of a library, those whose names contain this.
    Inside(&'static str),
}

/// Artifacts that `for_guests` has built, as cargo reports them.
#[derive(Debug)]
pub(crate) struct ForGuests(String);

/// Message of cargo about something that it has built.
#[derive(Debug, Deserialize)]
struct Artifact {
    /// Path of the package and its name: `path+file:///x/ipvs#ipvs-rs@0.1.0`.
    package_id: String,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    #[serde(default, rename = "required-features")]
    required_features: Vec<String>,
}

/// Metadata of the workspace, as cargo reports it.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    /// True if it is a build of tests, also of tests beside the code that they test.
    test: bool,
}

impl Tests {
    /// Returns the part of a name that tells these tests from the others in their program.
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

impl ForGuests {
    pub(crate) fn daemon(&self) -> Result<PathBuf> {
        let is_wanted = |artifact: &Artifact| artifact.is("kube-ipvs", "bin", false);
        executable(&self.0, is_wanted).context("cargo built no executable `kube-ipvs`")
    }

    /// Returns the demo, which cargo builds for the tests of its package.
    pub(crate) fn demo(&self) -> Result<PathBuf> {
        let is_wanted = |artifact: &Artifact| artifact.is("kube-ipvs-bed", "bin", false);
        executable(&self.0, is_wanted).context("cargo built no executable of kube-ipvs-bed")
    }

    pub(crate) fn tests(&self, package: &str, tests: Tests) -> Result<PathBuf> {
        let is_wanted = |artifact: &Artifact| match tests {
            Tests::Program(name) => {
                artifact.target.name == name && artifact.is(package, "test", true)
            }
            Tests::Inside(_) => artifact.is(package, "lib", true),
        };
        executable(&self.0, is_wanted)
            .with_context(|| format!("cargo built no tests {tests} of {package}"))
    }
}

impl Artifact {
    fn is(&self, package: &str, kind: &str, test: bool) -> bool {
        // The name is left out where the folder has the same.
        let (folder, version) = self.package_id.rsplit_once('#').unwrap_or_default();
        let named = version.split_once('@').map(|(name, _)| name);
        let name = named.or_else(|| folder.rsplit_once('/').map(|(_, name)| name));
        name == Some(package)
            && self.target.kind.iter().any(|it| it == kind)
            && self.profile.test == test
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
    let mut stdout = child.stdout.take().context("cannot read cargo's output: it has no pipe")?;
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
pub(crate) fn daemon(profile: &str, architecture: Architecture) -> Result<PathBuf> {
    let arguments = ["build", "--package", "kube-ipvs", "--bin", "kube-ipvs"];
    let arguments = [&arguments[..], &target(architecture)?].concat();
    program(&arguments, "kube-ipvs", profile)
}

/// Builds the daemon for a target, as it is released. It takes what other work leaves of the processors, as tests run
/// beside it.
pub(crate) fn released(target: &str, environment: &[(&str, &str)]) -> Result<PathBuf> {
    let arguments = ["build", "--locked", "--package", "kube-ipvs", "--bin", "kube-ipvs"];
    let form = ["--quiet", MESSAGES, "--profile", RELEASE, "--target", target];
    let cargo = command(&[&arguments[..], &form].concat());
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(cargo.get_program()).args(cargo.get_args());
    nice.current_dir(workspace()).stdin(Stdio::null()).envs(environment.iter().copied());
    let report = host_tool::output(&mut nice)?;
    ForGuests(String::from_utf8_lossy(&report).into_owned()).daemon()
}

/// Builds a program of the bed for a guest.
pub(crate) fn bed_program(name: &str, architecture: Architecture) -> Result<PathBuf> {
    let arguments = ["build", "--package", "kube-ipvs-bed", "--bin", name];
    program(&[&arguments[..], &target(architecture)?].concat(), name, QUICK)
}

/// Builds the measurement that needs a real kernel.
pub(crate) fn bench_program(name: &str, profile: &str) -> Result<PathBuf> {
    // What is only to be seen to work has the features of what is tested, and is there already.
    let package: &[&str] =
        if profile == QUICK { &["--workspace"] } else { &["--package", "kube-ipvs"] };
    let features = if profile == QUICK { ALL_TESTS } else { "kube-ipvs/kernel-tests" };
    let arguments = [&["build", "--features", features, "--bench", name], package].concat();
    program(&arguments, name, profile)
}

/// Builds a measurement that needs a real kernel, and the daemon that it starts, in one go and with the
/// features of what is tested.
pub(crate) fn bench_program_and_daemon(name: &str) -> Result<(PathBuf, PathBuf)> {
    let bench = ["build", "--workspace", "--features", ALL_TESTS, "--bench", name];
    let report = report(&[&bench[..], &["--profile", QUICK]].concat())?;
    let program = executable(&report, |artifact| artifact.target.name == name)
        .with_context(|| format!("cargo built no executable `{name}`"))?;
    Ok((program, ForGuests(report).daemon()?))
}

/// The names of the programs in `tests` that need no real kernel.
pub(crate) fn host_programs() -> Result<Vec<String>> {
    let mut metadata = Vec::new();
    cargo_into(&["metadata", "--no-deps", "--format-version=1"], &[], &mut metadata)?;
    let metadata: Metadata =
        serde_json::from_slice(&metadata).context("cannot read the output of `cargo metadata`")?;
    let targets = metadata.packages.into_iter().flat_map(|package| package.targets);
    let for_hosts = targets.filter(|it| it.kind == ["test"] && it.required_features.is_empty());
    Ok(for_hosts.map(|target| target.name).collect())
}

/// The commit that is checked out, with a mark if files differ from it.
pub(crate) fn commit() -> Result<String> {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty"]).current_dir(workspace());
    Ok(String::from_utf8_lossy(&host_tool::output(&mut git)?).trim().to_owned())
}

/// Builds tests that need a real kernel, and the daemon that they start, in one go.
pub(crate) fn for_guests(tests: &[Tests], architecture: Architecture) -> Result<ForGuests> {
    let mut arguments = [&TEST[..], &["--no-run"], &target(architecture)?].concat();
    for tests in tests {
        match tests {
            Tests::Program(name) => arguments.extend(["--test", name]),
            // Cargo takes it once.
            Tests::Inside(_) if arguments.contains(&"--lib") => {}
            Tests::Inside(_) => arguments.push("--lib"),
        }
    }
    report(&arguments).map(ForGuests)
}

/// Arguments of cargo for the guests of an architecture: this machine's own has its C library, and for
/// another, what builds for it is made sure of first.
fn target(architecture: Architecture) -> Result<Vec<&'static str>> {
    match architecture {
        Architecture::Amd64 => Ok(Vec::new()),
        Architecture::Arm64 => {
            host_packages::install_missing(architecture.compiler())?;
            architecture.ensure_target()?;
            Ok(vec!["--target", architecture.target()])
        }
    }
}

/// Builds, and finds the executable in what cargo reports about it.
fn program(arguments: &[&str], target: &str, profile: &str) -> Result<PathBuf> {
    let report = report(&[arguments, &["--profile", profile]].concat())?;
    let is_wanted = |artifact: &Artifact| artifact.target.name == target;
    executable(&report, is_wanted).with_context(|| format!("cargo built no executable `{target}`"))
}

/// Builds, and returns what cargo reports about it, a JSON object a line.
fn report(arguments: &[&str]) -> Result<String> {
    let mut report = Vec::new();
    cargo_into(&[arguments, &[MESSAGES]].concat(), &[], &mut report)?;
    Ok(String::from_utf8_lossy(&report).into_owned())
}

fn executable(report: &str, is_wanted: impl Fn(&Artifact) -> bool) -> Option<PathBuf> {
    report
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter(is_wanted)
        .filter_map(|artifact| artifact.executable)
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

    fn artifact(package: &str, name: &str, kind: &str, test: bool, executable: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/{package}","target":{{"name":"{name}","kind":["{kind}"]}},"profile":{{"test":{test}}},"executable":{executable}}}"#
        )
    }

    #[test]
    fn programs_that_need_a_kernel_are_not_for_hosts() {
        let programs = host_programs().unwrap();
        assert!(programs.iter().any(|name| name == "scenarios"), "{programs:?}");
        assert!(!programs.iter().any(|name| name == "bed" || name == "kernel"), "{programs:?}");
    }

    #[test]
    fn executables_are_told_by_package_name_and_kind() {
        let ipvs = "ipvs#ipvs-rs@0.1.0";
        let report = [
            artifact(ipvs, "ipvs", "lib", false, "null"),
            artifact(ipvs, "kernel", "test", true, r#""/t/kernel-1""#),
            artifact("ipset#ipset-netlink@0.1.0", "kernel", "test", true, r#""/t/kernel-2""#),
            artifact("kube-ipvs#0.1.0", "kube_ipvs", "lib", true, r#""/t/kube_ipvs-3""#),
            artifact("kube-ipvs#0.1.0", "kube-ipvs", "bin", false, r#""/t/kube-ipvs""#),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let built = ForGuests(report.join("\n"));
        assert_eq!(built.daemon().unwrap(), Path::new("/t/kube-ipvs"));
        let kernel = Tests::Program("kernel");
        assert_eq!(built.tests("ipvs-rs", kernel).unwrap(), Path::new("/t/kernel-1"));
        assert_eq!(built.tests("ipset-netlink", kernel).unwrap(), Path::new("/t/kernel-2"));
        let inside = built.tests("kube-ipvs", Tests::Inside("kernel")).unwrap();
        assert_eq!(inside, Path::new("/t/kube_ipvs-3"));
        assert!(built.tests("kube-ipvs", kernel).is_err());
        assert!(built.tests("ipvs-rs", Tests::Inside("kernel")).is_err());
    }
}
