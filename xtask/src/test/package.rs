//! Check that the libraries can be published: they are packaged as for the registry, and all that
//! their packages contain compiles with the packages of the others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::build;
use crate::vm::host_tool;

/// Names of the packages that are published, sorted.
const PUBLISHED: [&str; 4] = ["ipset-netlink", "ipvs-rs", "netlink-batch", "nftables-netlink"];

/// Metadata of the workspace, as cargo reports it.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    version: String,
    /// Registries that it may be published in; all of them if absent.
    publish: Option<Vec<String>>,
}

/// Packages the libraries, and compiles them as a workspace of packages. No other package of ours
/// may be one that can be published. Changes that are not committed are packaged, too.
///
/// Cargo's own verification is not used. It keeps the first package that it sees of a version, and
/// compiles the others with that one ever after.
pub(super) fn check() -> Result<()> {
    let metadata = metadata()?;
    let packages = package(&metadata)?;
    let folder = metadata.target_directory.join("unpacked");
    unpack(&packages, &metadata.target_directory.join("package"), &folder)?;
    let (manifest, target) = (folder.join("Cargo.toml"), folder.join("target"));
    let (Some(manifest), Some(target)) = (manifest.to_str(), target.to_str()) else {
        bail!("{} is not UTF-8", folder.display());
    };
    let mut arguments = vec!["check", "--quiet", "--offline", "--workspace", "--all-targets"];
    arguments.extend(["--all-features", "--manifest-path", manifest, "--target-dir", target]);
    build::cargo(&arguments, &[])
}

/// Packages the libraries. Returns the files, in the order of their names.
pub(crate) fn make() -> Result<Vec<PathBuf>> {
    let metadata = metadata()?;
    let folder = metadata.target_directory.join("package");
    let file = |it: &Package| folder.join(format!("{}-{}.crate", it.name, it.version));
    Ok(package(&metadata)?.into_iter().map(file).collect())
}

fn package(metadata: &Metadata) -> Result<Vec<&Package>> {
    let mut packages: Vec<&Package> =
        metadata.packages.iter().filter(|it| it.publish.as_deref() != Some(&[])).collect();
    packages.sort_by(|one, other| one.name.cmp(&other.name));
    let names: Vec<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    ensure!(
        names == PUBLISHED,
        "packages without `publish = false`: {names:?}; expected: {PUBLISHED:?}"
    );

    let mut arguments = vec!["package", "--quiet", "--offline", "--allow-dirty", "--no-verify"];
    arguments.extend(PUBLISHED.iter().flat_map(|name| ["--package", name]));
    build::cargo(&arguments, &[])?;
    Ok(packages)
}

fn metadata() -> Result<Metadata> {
    let mut output = Vec::new();
    build::cargo_into(&["metadata", "--no-deps", "--format-version=1"], &[], &mut output)?;
    serde_json::from_slice(&output).context("cannot read the output of `cargo metadata`")
}

/// Unpacks archives from `archives` and makes a workspace of them, in which each depends on the
/// others. What was built of their dependencies before stays.
fn unpack(packages: &[&Package], archives: &Path, folder: &Path) -> Result<()> {
    let (mut members, mut patches) = (Vec::new(), String::new());
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for Package { name, version, .. } in packages {
        let unpacked = format!("{name}-{version}");
        let former = folder.join(&unpacked);
        if former.exists() {
            fs::remove_dir_all(&former)
                .with_context(|| format!("cannot remove {}", former.display()))?;
        }
        let archive = archives.join(format!("{unpacked}.crate"));
        // Touched, because all files of a package have the same old date, and cargo goes by dates.
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--gzip", "--touch"]).arg("--file").arg(archive);
        host_tool::output(tar.arg("--directory").arg(folder))?;
        patches += &format!("{name} = {{ path = \"{unpacked}\" }}\n");
        members.push(unpacked);
    }
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = {members:?}\n\n[patch.crates-io]\n{patches}"
    );
    let path = folder.join("Cargo.toml");
    fs::write(&path, manifest).with_context(|| format!("cannot write {}", path.display()))?;
    // The versions of everything else that all tests have.
    let lock = build::workspace().join("Cargo.lock");
    fs::copy(&lock, folder.join("Cargo.lock"))
        .with_context(|| format!("cannot copy {}", lock.display()))?;
    Ok(())
}
