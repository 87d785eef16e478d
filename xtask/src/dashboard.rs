//! Check of the dashboard by Grafana's own types: the npm package `@grafana/schema`, and TypeScript.
//!
//! No package of a Grafana server is to be had from Debian, PyPI or npm, so the dashboard is not loaded into one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::build;
use crate::vm::{host_packages, host_tool};

const DASHBOARD: &str = "deploy/grafana/kube-ipvs.json";

/// Versions of the packages, and their hashes, as npm reads them.
const PACKAGES: &str = include_str!("dashboard/package.json");
const LOCKED: &str = include_str!("dashboard/package-lock.json");

/// Types, before the dashboard as a literal.
const TYPES: &str = include_str!("dashboard/check.ts");

/// Options of the compiler. The declarations of the package itself are not ours to check.
const OPTIONS: [&str; 10] = [
    "--noEmit",
    "--strict",
    "--skipLibCheck",
    "--pretty",
    "false",
    "--module",
    "esnext",
    "--moduleResolution",
    "bundler",
    "typed.ts",
];

/// Changes that make a dashboard wrong: the types must refuse each.
const WRONG: [(&str, &str); 4] = [
    ("\"unit\":", "\"unitt\":"),
    ("\"mode\": \"absolute\"", "\"mode\": \"absolut\""),
    ("\"type\": \"stat\"", "\"type\": \"statt\""),
    ("\"legendFormat\":", "\"legend\":"),
];

/// Checks that Grafana knows every property of the dashboard, and takes its value.
pub(crate) fn check() -> Result<()> {
    let folder = packages().context("cannot install Grafana's types and TypeScript from npm")?;
    let dashboard = fs::read_to_string(build::workspace().join(DASHBOARD)).context(DASHBOARD)?;
    if let Err(error) = compile(&folder, &dashboard) {
        bail!(
            "{DASHBOARD} does not have Grafana's types (subtract {} from line numbers): {error:#}",
            TYPES.lines().count()
        );
    }
    for (right, wrong) in WRONG {
        let changed = dashboard.replace(right, wrong);
        ensure!(
            changed != dashboard,
            "{DASHBOARD} has no {right}, which the check of the types replaces; choose another text in WRONG"
        );
        ensure!(
            compile(&folder, &changed).is_err(),
            "Grafana's types accept {wrong}, so they check nothing"
        );
    }
    Ok(())
}

/// Compiles the dashboard as a literal of its type.
fn compile(folder: &Path, dashboard: &str) -> Result<()> {
    fs::write(folder.join("typed.ts"), format!("{TYPES}{dashboard}"))?;
    let mut compiler = Command::new(node()?);
    compiler.arg("node_modules/typescript/bin/tsc").args(OPTIONS).current_dir(folder);
    let output = host_tool::output_whatever_status(&mut compiler)?;
    // It says what it finds on its standard output.
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// Returns the folder with the packages, which are installed once.
fn packages() -> Result<PathBuf> {
    let folder = build::workspace().join("target/dashboard");
    let installed = folder.join("installed.json");
    if fs::read_to_string(&installed).is_ok_and(|text| text == LOCKED) {
        return Ok(folder);
    }
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("package.json"), PACKAGES)?;
    fs::write(folder.join("package-lock.json"), LOCKED)?;
    let node = node()?;
    let mut install = Command::new(node.with_file_name("npm"));
    install.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&folder);
    host_tool::output(&mut install)?;
    fs::write(installed, LOCKED)?;
    Ok(folder)
}

/// Finds Node.js, which has npm beside it; installs Debian's if there is none.
fn node() -> Result<PathBuf> {
    let find = || {
        let node = host_packages::find_program("node")?;
        ensure!(node.with_file_name("npm").exists(), "no npm in the folder of {}", node.display());
        Ok(node)
    };
    if find().is_err() {
        host_packages::install_missing(&["nodejs", "npm"])?;
    }
    find()
}
