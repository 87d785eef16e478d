//! `cargo xtask page`: the console's pages in a browser, which is Debian's.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::test::output::Tee;
use crate::vm::host_packages;

/// Set to a folder, it makes the test keep what it sees.
const PICTURES: &str = "KUBE_IPVS_SCREENSHOTS";
/// The test, which needs the browser.
const TEST: &str = "a_browser_shows_every_page_and_keeps_figures_up_to_date";

/// Installs the browser if there is none, and runs the test with it.
pub(crate) fn look() -> Result<ExitCode> {
    host_packages::install_missing(&["chromium-headless-shell", "fonts-dejavu-core"])?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("docs").join("pictures");
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let folder = folder.to_str().context("the path of the pictures is not text")?;
    let tests = ["--quiet", "--lib", "--", "--ignored", TEST];
    let arguments = [&build::TEST[..], &tests].concat();
    let mut output = Tee::default();
    build::cargo_into(&arguments, &[(PICTURES, folder)], &mut output)?;
    let passed = output.finish().0.passed;
    ensure!(passed == 1, "{passed} tests instead of 1: is it still named {TEST}?");
    Ok(ExitCode::SUCCESS)
}
