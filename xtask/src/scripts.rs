//! Checks of shell scripts that need not run them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::vm::{host_packages, host_tool};

/// Checks the syntax of every script of the project, and looks for mistakes that shells let pass.
pub(crate) fn check() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut scripts = vec![root.join(".ci/run")];
    find(&root, &mut scripts)?;
    scripts.sort();
    for script in &scripts {
        // With another shell's words, it would be refused for no reason.
        if shell(script)? == "bash" {
            host_tool::output(Command::new("bash").arg("-n").arg(script))?;
        }
    }
    host_packages::install_missing(&["shellcheck"])?;
    // A script that reads another one names it as if it stood in that one's folder.
    let mut shellcheck = Command::new(host_packages::find_program("shellcheck")?);
    shellcheck.args(["--external-sources", "--source-path=SCRIPTDIR"]).args(&scripts);
    let answer = host_tool::output_whatever_status(&mut shellcheck)?;
    if !answer.status.success() {
        bail!("shellcheck reports:\n{}", String::from_utf8_lossy(&answer.stdout));
    }
    Ok(())
}

/// The scripts below a folder, but for what is hidden or built.
fn find(folder: &Path, scripts: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        if name.to_string_lossy().starts_with('.') || name == "target" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            find(&path, scripts)?;
        } else if path.extension().is_some_and(|extension| extension == "sh") {
            scripts.push(path);
        }
    }
    Ok(())
}

/// The shell that a script is for, by its first line; bash, if that does not say.
fn shell(script: &Path) -> Result<String> {
    let text =
        fs::read_to_string(script).with_context(|| format!("cannot read {}", script.display()))?;
    let first = text.lines().next().unwrap_or_default();
    let named = first.strip_prefix("#!").and_then(|line| line.rsplit(['/', ' ']).next());
    Ok(named.unwrap_or("bash").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_names_the_shell() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script.sh");
        for (first, expected) in [
            ("#!/usr/bin/env bash", "bash"),
            ("#!/bin/sh", "sh"),
            ("#!/bin/busybox sh", "sh"),
            ("# read by others", "bash"),
        ] {
            fs::write(&script, first).unwrap();
            assert_eq!(shell(&script).unwrap(), expected, "{first}");
        }
    }

    #[test]
    fn scripts_are_found_where_they_are_written_and_not_where_they_are_built() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "a/target", ".hidden"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        for name in ["a/one.sh", "a/two.rs", "a/target/three.sh", ".hidden/four.sh"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let mut found = Vec::new();
        find(folder.path(), &mut found).unwrap();
        assert_eq!(found, [folder.path().join("a/one.sh")]);
    }
}
