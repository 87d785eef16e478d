//! `nft` of Debian's releases, by which tests read rules back, beside that of the guest.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::guest::GuestFile;
use super::{cache_directory, debian, host_tool, progress};
use crate::architecture::Architecture;

/// Releases that clusters run: nft 0.9.8, 1.0.6 and 1.1.3.
const SUITES: [&str; 3] = ["bullseye", "bookworm", debian::STABLE];
/// Folder of a guest with a folder for each. Tests know it by a variable.
const PLACE: &str = "/opt/nft";
pub(crate) const VARIABLE: [&str; 2] = ["KUBE_IPVS_NFT", PLACE];

/// Loader of programs.
const LOADER: &str = "ld-linux-x86-64.so.2";
const LIBRARIES: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];

/// Returns what a guest gets, fetched unless it is there already.
pub(crate) fn files() -> Result<Vec<GuestFile>> {
    let of_suite = |suite: &&str| {
        let host = cache_directory().join("nft").join(suite);
        if !host.is_dir() {
            fetch(suite, &host).with_context(|| format!("cannot fetch nft of Debian {suite}"))?;
        }
        Ok(GuestFile { host, guest: format!("{PLACE}/{suite}") })
    };
    SUITES.iter().map(of_suite).collect()
}

/// Fills a folder with the program, its libraries and a script that starts it with these.
fn fetch(suite: &str, folder: &Path) -> Result<()> {
    progress!("downloading nft of Debian {suite}");
    let parent =
        folder.parent().with_context(|| format!("{} has no parent folder", folder.display()))?;
    fs::create_dir_all(parent)?;
    let work = tempfile::tempdir_in(parent)
        .with_context(|| format!("cannot create a folder in {}", parent.display()))?;
    let (root, filled) = (work.path().join("root"), work.path().join("filled"));
    for package in debian::fetch(suite, Architecture::Amd64, &["nftables"], &[], work.path())? {
        let mut dpkg = Command::new("dpkg-deb");
        host_tool::output(dpkg.arg("-x").arg(&package.file).arg(&root))?;
    }
    fs::create_dir(&filled)?;
    fs::copy(root.join("usr/sbin/nft"), filled.join("program"))
        .context("cannot copy usr/sbin/nft of the package")?;
    for library in LIBRARIES.iter().filter_map(|it| fs::read_dir(root.join(it)).ok()).flatten() {
        let path = library?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_file() && name.to_string_lossy().contains(".so") {
            fs::copy(&path, filled.join(name)).with_context(|| path.display().to_string())?;
        }
    }
    let start = format!(
        "#!/bin/sh\nexec {PLACE}/{suite}/{LOADER} --library-path {PLACE}/{suite} {PLACE}/{suite}/program \"$@\"\n"
    );
    fs::write(filled.join("nft"), start)?;
    fs::set_permissions(filled.join("nft"), fs::Permissions::from_mode(0o755))?;
    fs::rename(&filled, folder).with_context(|| format!("cannot move nft to {}", folder.display()))
}
