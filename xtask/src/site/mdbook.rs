//! The generator of the site.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::program::Program;
use crate::vm::host_tool;

const MDBOOK: Program = Program { name: "mdbook", requirements: include_str!("../../mdbook.txt") };

/// Builds the book of a folder with a `book.toml`.
pub(crate) fn build(book: &Path) -> Result<()> {
    let mut command = Command::new(MDBOOK.ensure()?);
    command.arg("build").arg(book).env_remove("RUST_LOG");
    let output = host_tool::output_whatever_status(&mut command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    // It goes on after some errors, such as a tag in a document that nothing closes.
    if !output.status.success() || [" WARN ", "ERROR "].iter().any(|level| said.contains(level)) {
        bail!("mdbook failed or warned ({}):\n{}", output.status, host_tool::last_lines(&said, 20));
    }
    Ok(())
}
