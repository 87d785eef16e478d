//! The static program of an image.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::source::Source;
use crate::architecture::Architecture;
use crate::build;
use crate::vm::{host_tool, progress};

/// Builds the static program.
pub(super) fn build(architecture: Architecture, source: &Source) -> Result<PathBuf> {
    architecture.install_target()?;
    let target = architecture.target();
    progress!("building kube-ipvs for {architecture}");
    let arguments = ["build", "--release", "--locked", "--package", "kube-ipvs", "--target"];
    let flags = without_paths()?;
    let environment = [("KUBE_IPVS_COMMIT", source.short_commit()), ("RUSTFLAGS", &flags)];
    build::cargo(&[&arguments[..], &[target]].concat(), &environment)?;
    let program = build::workspace().join("target").join(target).join("release/kube-ipvs");
    // The names of functions stay, for backtraces; line numbers, most of the size, do not.
    let stripped = program.with_extension("stripped");
    let mut strip = Command::new(strip(architecture));
    strip.args(["--strip-debug", "-o"]).arg(&stripped).arg(&program);
    host_tool::output(&mut strip)?;
    fs::metadata(&stripped).with_context(|| format!("cannot read {}", stripped.display()))?;
    Ok(stripped)
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
