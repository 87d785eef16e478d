//! `cargo xtask vagrant`: proves what can be proven of `vagrant/` without its machines.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Runs the checks of `vagrant/check`: the cheap one first, then the one with an emulated machine.
pub(crate) fn run() -> Result<()> {
    for script in ["smoke.sh", "run.sh"] {
        let status = Command::new("bash").arg(check(script)).status();
        let status = status.context("cannot start bash")?;
        ensure!(status.success(), "vagrant/check/{script} failed: {status}");
    }
    Ok(())
}

fn check(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../vagrant/check").join(script)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::host_tool;

    #[test]
    fn every_check_of_the_smoke_test_fails_with_some_fault() {
        host_tool::output(Command::new("bash").arg(check("smoke.sh"))).unwrap();
    }
}
