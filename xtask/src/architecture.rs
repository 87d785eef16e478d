//! The architectures that there are programs for.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::vm::{host_packages, host_tool};

/// An architecture, by the name that OCI and Debian have for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    #[default]
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

    /// Folder of Debian's libraries below /usr/lib.
    pub(crate) fn library_folder(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// Installs what builds for the target: the compiler for the C parts of dependencies (ring), the
    /// linker, and Rust's standard library.
    pub(crate) fn install_target(self) -> Result<()> {
        host_packages::install_missing(match self {
            Self::Amd64 => &["musl-tools"],
            Self::Arm64 => &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
        })?;
        let target = self.target();
        host_tool::output(Command::new("rustup").args(["target", "add", target]))
            .with_context(|| format!("cannot install Rust's standard library for {target}"))?;
        Ok(())
    }

    /// Command of this machine for a statically linked program: for arm64 through qemu-user.
    pub(crate) fn command(self, program: &Path) -> Command {
        match self {
            Self::Amd64 => Command::new(program),
            Self::Arm64 => {
                let mut command = Command::new("qemu-aarch64");
                command.arg(program);
                command
            }
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_for_arm64_starts_through_qemu() {
        let shown = |it: Architecture| host_tool::shown(&it.command(Path::new("/a/program")));
        assert_eq!(shown(Architecture::Amd64), "/a/program");
        assert_eq!(shown(Architecture::Arm64), "qemu-aarch64 /a/program");
    }
}
