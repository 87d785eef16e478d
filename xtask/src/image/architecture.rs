//! The architectures that there are programs for.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::source::Source;
use crate::build;
use crate::vm::{host_packages, host_tool, progress};

/// An architecture, by the name that OCI and Debian have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    /// Rust's target. The C library is musl, which is linked in.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-musl",
            Self::Arm64 => "aarch64-unknown-linux-musl",
        }
    }

    /// Packages with what compiles the C parts of dependencies (ring), and links.
    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Amd64 => &["musl-tools"],
            Self::Arm64 => &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
        }
    }

    /// Builds the static program.
    pub(crate) fn build(self, source: &Source) -> Result<PathBuf> {
        host_packages::install_missing(self.packages())?;
        let target = self.target();
        host_tool::output(Command::new("rustup").args(["target", "add", target]))
            .with_context(|| format!("Rust's standard library for {target}"))?;
        progress!("building the program for {self}");
        let arguments = ["build", "--release", "--locked", "--package", "kube-ipvs", "--target"];
        let flags = without_paths()?;
        let environment = [("KUBE_IPVS_COMMIT", source.short_commit()), ("RUSTFLAGS", &flags)];
        build::cargo(&[&arguments[..], &[target]].concat(), &environment)?;
        let program = build::workspace().join("target").join(target).join("release/kube-ipvs");
        // The names of functions stay, for backtraces; line numbers, most of the size, do not.
        let stripped = program.with_extension("stripped");
        let mut strip = Command::new(self.strip());
        strip.args(["--strip-debug", "-o"]).arg(&stripped).arg(&program);
        host_tool::output(&mut strip)?;
        fs::metadata(&stripped).with_context(|| format!("read {}", stripped.display()))?;
        Ok(stripped)
    }

    fn strip(self) -> &'static str {
        match self {
            Self::Amd64 => "strip",
            Self::Arm64 => "aarch64-linux-gnu-strip",
        }
    }
}

/// Flags by which texts of errors name files by the same paths whatever the machine's are.
fn without_paths() -> Result<String> {
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
        .context("neither CARGO_HOME nor HOME is set")?;
    let workspace = build::workspace().display().to_string();
    Ok(format!("--remap-path-prefix={home}=/cargo --remap-path-prefix={workspace}=/project"))
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        })
    }
}
