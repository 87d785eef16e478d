//! Debian's packages for an image or a guest of any architecture: what is asked for, with all that it
//! depends on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::private_apt::{KEYRING, PrivateApt, source_line};
use super::{apt_sources, host_tool};
use crate::architecture::Architecture;

/// The stable release. What an image has is in its SBOM.
pub(crate) const STABLE: &str = "trixie";

/// A package in its file.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) file: PathBuf,
    /// Its fields, as `dpkg-deb --field` prints them.
    pub(crate) control: String,
}

/// Fetches packages of a release with all that they depend on, and others `alone`. Returns them in the order of their
/// names. They stay in `folder`.
pub(crate) fn fetch(
    suite: &str,
    architecture: Architecture,
    names: &[&str],
    alone: &[&str],
    folder: &Path,
) -> Result<Vec<Package>> {
    let mirrors = apt_sources::debian_mirrors(Path::new("/etc/apt"))?;
    let mirror = mirrors.first().context(
        "cannot fetch packages: no Debian mirror in /etc/apt/sources.list and /etc/apt/sources.list.d; add one",
    )?;
    let architecture = architecture.to_string();
    let work = folder.join(format!("packages-{architecture}"));
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    fs::create_dir_all(&work)?;
    let source = source_line(mirror, suite, &architecture, Path::new(KEYRING));
    let apt = PrivateApt::set_up(&work, &source, &architecture)?;
    host_tool::output(apt.command("apt-get").arg("update"))?;
    let mut install = apt.command("apt-get");
    install.args(["install", "--yes", "--download-only", "--no-install-recommends"]);
    host_tool::output(install.args(names))?;
    let downloaded = work.join("cache/archives");
    if !alone.is_empty() {
        let mut download = apt.command("apt-get");
        host_tool::output(download.arg("download").args(alone).current_dir(&downloaded))?;
    }
    let mut packages = BTreeMap::new();
    for entry in fs::read_dir(&downloaded)?.flatten() {
        let file = entry.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            let mut dpkg = Command::new("dpkg-deb");
            let control = host_tool::output(dpkg.arg("--field").arg(&file))?;
            let control =
                String::from_utf8(control).context("the control file of a package is not UTF-8")?;
            let package = Package { file, control };
            packages.insert(package.field("Package").to_owned(), package);
        }
    }
    for name in names.iter().chain(alone) {
        if !packages.contains_key(*name) {
            bail!(
                "apt-get succeeded without downloading {name} of {suite} for {architecture} from {mirror}; see \
                 whether the mirror has it"
            );
        }
    }
    Ok(packages.into_values().collect())
}

impl Package {
    /// One of its fields; empty if it has none of this name.
    pub(crate) fn field(&self, name: &str) -> &str {
        let mut fields = self.control.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| *field == name).map_or("", |(_, value)| value.trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_names() {
        let control =
            "Package: kmod\nVersion: 34.2-2\nPre-Depends: none\nDepends: libc6\n".to_owned();
        let package = Package { file: PathBuf::new(), control };
        let fields = ["Package", "Version", "Depends", "Source"].map(|name| package.field(name));
        assert_eq!(fields, ["kmod", "34.2-2", "libc6", ""]);
    }
}
