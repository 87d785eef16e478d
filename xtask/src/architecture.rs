//! The architectures that there are programs for.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
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

    /// Debian's packages with the compiler for the C parts of dependencies (ring), and with the linker.
    pub(crate) fn compiler(self) -> &'static [&'static str] {
        match self {
            Self::Amd64 => &["musl-tools"],
            Self::Arm64 => &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
        }
    }

    /// Fails unless programs can be built for the target. It installs nothing: the error has the command.
    pub(crate) fn ensure_target(self) -> Result<()> {
        let target = self.target();
        ensure!(
            has_target(target)?,
            "cannot build kube-ipvs for {self}: the Rust toolchain has no standard library for {target}. Install it with \
             `rustup target add {target}`"
        );
        let missing = host_packages::missing(self.compiler())?.join(" ");
        ensure!(
            missing.is_empty(),
            "cannot build kube-ipvs for {self}: Debian's packages for its C compiler and linker are not installed: \
             {missing}. As root, run `apt-get install --no-install-recommends {missing}`"
        );
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

/// True if the toolchain has the standard library for a target.
pub(crate) fn has_target(target: &str) -> Result<bool> {
    let mut rustc = Command::new("rustc");
    let folder = host_tool::output(rustc.args(["--print", "target-libdir", "--target", target]))?;
    Ok(Path::new(String::from_utf8_lossy(&folder).trim()).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_toolchain_has_the_target_that_built_this_and_none_for_another_system() {
        assert!(has_target("x86_64-unknown-linux-gnu").unwrap());
        assert!(!has_target("sparc-unknown-none-elf").unwrap());
    }

    #[test]
    fn a_program_for_arm64_starts_through_qemu() {
        let shown = |it: Architecture| host_tool::shown(&it.command(Path::new("/a/program")));
        assert_eq!(shown(Architecture::Amd64), "/a/program");
        assert_eq!(shown(Architecture::Arm64), "qemu-aarch64 /a/program");
    }
}
