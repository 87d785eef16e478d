//! The console's pages in a browser, which is Debian's: a suite of `cargo xtask test`, and `cargo xtask page`.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::test::output::passed;
use crate::vm::host_packages;

/// Set to a folder, it makes the test keep what it sees.
const PICTURES: &str = "KUBE_IPVS_SCREENSHOTS";

/// Tests that need the browser.
pub(crate) const TESTS: &str = "page::tests::browser::";

/// Runs the tests, and keeps what they see as the pictures of the documentation.
pub(crate) fn look() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("docs").join("pictures");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    let folder = folder.to_str().context("the path of docs/pictures is not UTF-8")?;
    run(&[(PICTURES, folder)])
}

/// Runs the tests.
pub(crate) fn check() -> Result<()> {
    run(&[])
}

/// Installs the browser if there is none, and runs the tests with it.
fn run(environment: &[(&str, &str)]) -> Result<()> {
    host_packages::install_missing(&["chromium-headless-shell", "fonts-dejavu-core"])?;
    let tests = ["--quiet", "--lib", "--", TESTS];
    ensure!(passed(&tests, environment)? > 0, "cargo ran no tests whose names contain {TESTS}");
    Ok(())
}
