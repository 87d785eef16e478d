//! The program as it is released: optimised, and linked statically.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, ensure};

use super::source::Source;
use crate::architecture::{Architecture, has_target};
use crate::build;
use crate::vm::{host_packages, host_tool, progress};

/// Rust's target for glibc, which every toolchain for this machine has.
const GLIBC: &str = "x86_64-unknown-linux-gnu";

/// Builds the static program.
pub(super) fn build(architecture: Architecture, source: &Source) -> Result<PathBuf> {
    architecture.ensure_target()?;
    progress!("building kube-ipvs for {architecture}");
    let commit = [("KUBE_IPVS_COMMIT", source.short_commit())];
    compile(architecture, architecture.target(), &without_paths()?, &commit)
}

/// Returns the program for tests, built at the first call: with musl as it is released, or with glibc where the toolchain
/// lacks musl's target.
pub(crate) fn for_tests() -> Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build_for_tests().map_err(|error| format!("{error:#}")));
    built.as_deref().map_err(|error| anyhow!("cannot build the program as it is released: {error}"))
}

fn build_for_tests() -> Result<PathBuf> {
    let architecture = Architecture::Amd64;
    let (musl, flags) = (architecture.target(), without_paths()?);
    if has_target(musl)? {
        host_packages::install_missing(architecture.compiler())?;
        return compile(architecture, musl, &flags, &[]);
    }
    progress!("the Rust toolchain lacks {musl}: the program is linked with glibc, statically");
    compile(architecture, GLIBC, &format!("{flags} -Ctarget-feature=+crt-static"), &[])
}

fn compile(
    architecture: Architecture,
    target: &str,
    flags: &str,
    environment: &[(&str, &str)],
) -> Result<PathBuf> {
    // Line numbers are most of the size, and left out below.
    let settings = [("RUSTFLAGS", flags), ("CARGO_PROFILE_RELEASE_DEBUG", "false")];
    let program = build::released(target, &[&settings[..], environment].concat())?;
    // The names of functions stay, for backtraces; line numbers of Rust's own library do not.
    let stripped = program.with_extension("stripped");
    let mut strip = Command::new(strip(architecture));
    strip.args(["--strip-debug", "-o"]).arg(&stripped).arg(&program);
    host_tool::output(&mut strip)?;
    ensure_static(&stripped)?;
    Ok(stripped)
}

/// Fails if a program names a loader or a library.
fn ensure_static(program: &Path) -> Result<()> {
    let mut readelf = Command::new("readelf");
    readelf.env("LC_ALL", "C").args(["--program-headers", "--dynamic", "--wide"]).arg(program);
    let output = host_tool::output(&mut readelf)?;
    let text = String::from_utf8_lossy(&output);
    let needs = |line: &&str| line.trim_start().starts_with("INTERP") || line.contains("(NEEDED)");
    let needed: Vec<&str> = text.lines().filter(needs).map(str::trim).collect();
    ensure!(
        text.contains("LOAD") && needed.is_empty(),
        "{} is not linked statically; `readelf` printed: {}",
        program.display(),
        needed.join("; ")
    );
    Ok(())
}

fn strip(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Amd64 => "strip",
        Architecture::Arm64 => "aarch64-linux-gnu-strip",
    }
}

/// Flags by which texts of errors name files by the same paths whatever the machine's are.
fn without_paths() -> Result<String> {
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
        .context("cannot find cargo's folder: neither CARGO_HOME nor HOME is set")?;
    let workspace = build::workspace().display().to_string();
    Ok(format!("--remap-path-prefix={home}=/cargo --remap-path-prefix={workspace}=/project"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_libraries_is_not_static() {
        let program = std::env::current_exe().unwrap();
        let error = ensure_static(&program).unwrap_err().to_string();
        assert!(error.contains("INTERP") && error.contains("libc.so"), "{error}");
    }
}
