//! `deploy/image/packages`: the packages of Debian that the image of a commit has.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::architecture::Architecture;
use crate::build;
use crate::vm::debian::Package;

const FILE: &str = "deploy/image/packages";
const HEAD: &str = "# Packages of Debian in the image: architecture, name, version, SHA-256.
# Written by `cargo xtask image --pin`.
";

/// Returns a line for each package.
pub(super) fn of(architecture: Architecture, packages: &[Package]) -> Result<BTreeSet<String>> {
    let line = |package: &Package| {
        let contents = fs::read(&package.file);
        let contents =
            contents.with_context(|| format!("cannot read {}", package.file.display()))?;
        let (name, version) = (package.field("Package"), package.field("Version"));
        let digest = HEXLOWER.encode(&Sha256::digest(contents));
        Ok(format!("{architecture} {name} {version} {digest}"))
    };
    packages.iter().map(line).collect()
}

/// Compares packages that were downloaded with those of the file.
///
/// # Errors
/// When they differ: they would make another image.
pub(super) fn compare(architecture: Architecture, found: &BTreeSet<String>) -> Result<()> {
    let mut pinned = read()?;
    pinned.retain(|line| line.starts_with(&format!("{architecture} ")));
    ensure!(
        pinned == *found,
        "the packages of Debian differ from {FILE}, which lists those of this commit's image. To take the new ones, \
         run `cargo xtask image --pin` and commit the file:\n{}",
        differences(&pinned, found)
    );
    Ok(())
}

/// Writes the file, and returns what is another than before.
pub(super) fn write(lines: &BTreeSet<String>) -> Result<String> {
    let before = read().unwrap_or_default();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(path(), format!("{HEAD}{text}")).with_context(|| format!("cannot write {FILE}"))?;
    Ok(match differences(&before, lines) {
        none if none.is_empty() => format!("{FILE} has not changed"),
        some => format!("{FILE}:\n{some}"),
    })
}

fn read() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(path()).with_context(|| format!("cannot read {FILE}"))?;
    Ok(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
}

fn path() -> PathBuf {
    build::workspace().join(FILE)
}

fn differences(before: &BTreeSet<String>, after: &BTreeSet<String>) -> String {
    let gone = before.difference(after).map(|line| format!("- {line}"));
    let new = after.difference(before).map(|line| format!("+ {line}"));
    gone.chain(new).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_packages_are_named() {
        let package = |architecture: Architecture, version: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let control = format!("Package: kmod\nVersion: {version}\n");
            let package = Package { file: file.path().to_owned(), control };
            of(architecture, &[package]).unwrap()
        };
        let before = package(Architecture::Amd64, "1");
        let after = package(Architecture::Amd64, "2");
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(
            differences(&before, &after),
            format!("- amd64 kmod 1 {empty}\n+ amd64 kmod 2 {empty}")
        );
        let error = compare(Architecture::Amd64, &after).unwrap_err().to_string();
        assert!(error.contains("+ amd64 kmod 2") && !error.contains("arm64"), "{error}");
    }

    #[test]
    fn every_architecture_is_in_the_file() {
        let lines = read().unwrap();
        for architecture in super::super::architectures(&[]) {
            for name in super::super::PACKAGES {
                let beginning = format!("{architecture} {name} ");
                assert!(lines.iter().any(|line| line.starts_with(&beginning)), "{beginning}");
            }
        }
    }
}
