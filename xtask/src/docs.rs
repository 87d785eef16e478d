//! `cargo xtask docs`: documents that are made from the program. Tests compare them with it, and
//! write them where they are asked to.

use std::process::ExitCode;

use anyhow::Result;

use crate::build;

/// Set to anything, it makes the tests write the documents.
const WRITE: &str = "KUBE_IPVS_WRITE_DOCS";
/// Beginning of those tests' names.
const PAGES: &str = "the_page_";

/// Writes them, then compares them.
pub(crate) fn write() -> Result<ExitCode> {
    let tests = ["--lib", "--test", "config", "--", PAGES];
    let arguments = [&build::TEST[..], &["--quiet"], &tests].concat();
    build::cargo(&arguments, &[(WRITE, "1")])?;
    build::cargo(&arguments, &[])?;
    Ok(ExitCode::SUCCESS)
}
