//! Debian packages on the host: those the bed takes from it (qemu, and the tools that go into the
//! guest), and others that a task asks for.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{host_tool, progress};
use crate::architecture::Architecture;

/// Packages with what prepares guests of every architecture, also those that a Debian usually has.
const PREPARING: [&str; 6] = ["debian-archive-keyring", "kmod", "lz4", "tar", "xz-utils", "zstd"];
/// Packages that guests consist of: this machine's, or those of Debian for another architecture.
pub(super) const OF_GUESTS: [&str; 22] = [
    "bash",
    "busybox-static",
    "conntrack",
    "dash",
    "ethtool",
    "ipset",
    "iproute2",
    "iptables",
    "iputils-ping",
    "ipvsadm",
    "kmod",
    "libc6",
    "libgcc-s1",
    "mount",
    "ncurses-base",
    "netbase",
    "nftables",
    "procps",
    "socat",
    "tcpdump",
    "util-linux",
    "wireguard-tools",
];

/// Installs what is missing and returns the versions of all packages, as one text that changes
/// whenever one of them does.
pub(crate) fn ensure(architecture: Architecture) -> Result<String> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("guests need a host of x86_64, and this host is {}", std::env::consts::ARCH);
    }
    let packages = packages(architecture);
    install_missing(&packages)?;
    let versions = installed(&packages)?;
    Ok(versions.iter().map(|(package, version)| format!("{package} {version}\n")).collect())
}

/// Every package that is needed on the host for guests of this architecture.
fn packages(architecture: Architecture) -> Vec<&'static str> {
    let more: &[&str] = match architecture {
        Architecture::Amd64 => &["qemu-system-x86"],
        Architecture::Arm64 => &["qemu-system-arm", "qemu-user"],
    };
    let guests: &[&str] = match architecture {
        Architecture::Amd64 => &OF_GUESTS,
        Architecture::Arm64 => &[],
    };
    [&PREPARING[..], more, guests].concat()
}

/// Installs those that are missing.
pub(crate) fn install_missing(packages: &[&'static str]) -> Result<()> {
    let missing_before = missing(packages)?;
    if !missing_before.is_empty() {
        install(&missing_before)?;
        let still_missing = missing(packages)?;
        if !still_missing.is_empty() {
            bail!(
                "apt-get install succeeded, but dpkg lists these packages as not installed: {}",
                still_missing.join(" ")
            );
        }
    }
    Ok(())
}

/// Returns those that are not installed.
pub(crate) fn missing(packages: &[&'static str]) -> Result<Vec<&'static str>> {
    Ok(missing_from(packages, &installed(packages)?))
}

fn installed(packages: &[&str]) -> Result<BTreeMap<String, String>> {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${db:Status-Status} ${Package} ${Version}\\n"]).args(packages);
    // It exits with 1 when it does not know one of them, which is no failure here.
    let output = host_tool::output_whatever_status(&mut query)
        .context("cannot list installed packages; the host must be Debian 12 or later")?;
    Ok(parse_installed(&String::from_utf8_lossy(&output.stdout)))
}

fn parse_installed(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("installed ")?.split(' ');
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        })
        .collect()
}

fn missing_from(
    packages: &[&'static str],
    installed: &BTreeMap<String, String>,
) -> Vec<&'static str> {
    packages.iter().copied().filter(|&package| !installed.contains_key(package)).collect()
}

fn install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    let by_hand = format!("apt-get update && apt-get install --no-install-recommends {names}");
    let as_root = as_root()
        .with_context(|| format!("cannot install missing packages; as root, run: {by_hand}"))?;
    progress!("installing host packages: {names}");
    update(as_root);
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    host_tool::output(&mut apt_get(as_root, &arguments))
        .with_context(|| format!("cannot install missing packages; try as root: {by_hand}"))?;
    Ok(())
}

/// Downloads a package into a folder without installing it, and returns its file.
pub(crate) fn download(package: &str, folder: &Path) -> Result<PathBuf> {
    let get = || host_tool::output(apt_get(&[], &["download", package]).current_dir(folder));
    if get().is_err() {
        update(as_root()?);
        get()?;
    }
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(&format!("{package}_")) && name.ends_with(".deb")
    };
    let entries = std::fs::read_dir(folder)?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths
        .find(is_it)
        .with_context(|| format!("apt-get download succeeded without a file {package}_*.deb"))
}

/// Returns the words before a command that make it run as root.
fn as_root() -> Result<&'static [&'static str]> {
    if is_root() {
        Ok(&[])
    } else if on_path("sudo") {
        Ok(&["sudo"])
    } else {
        bail!("this needs root, and there is no sudo")
    }
}

/// Updates apt's lists. One unreachable foreign source must not stop us: if the list we need is old or missing, what
/// follows fails and says so.
fn update(as_root: &[&str]) {
    if let Err(error) = host_tool::output(&mut apt_get(as_root, &["update"])) {
        progress!("continuing with the package lists of before: {error:#}");
    }
}

/// `apt-get` without questions, waiting for another apt that is at work.
fn apt_get(as_root: &[&str], arguments: &[&str]) -> Command {
    let mut words = as_root.iter().chain(&["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    let mut command = Command::new(words.next().copied().unwrap_or("apt-get"));
    command.args(words).args(["-qq", "-o", "DPkg::Lock::Timeout=300"]).args(arguments);
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Finds a program of the host. The person's PATH does not count: a user's lacks `sbin`, and what
/// stands in front of Debian's own directories is not what the packages brought.
pub(crate) fn find_program(name: &str) -> Result<PathBuf> {
    find_program_below(Path::new("/"), name)
}

/// Finds a program of the system whose root this is.
pub(super) fn find_program_below(root: &Path, name: &str) -> Result<PathBuf> {
    ["usr/sbin", "usr/bin", "sbin", "bin"]
        .into_iter()
        .map(|directory| root.join(directory).join(name))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "no program `{name}` below {} in usr/sbin, usr/bin, sbin or bin, although its package is installed",
                root.display()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_package_counts_as_missing() {
        let installed = parse_installed(
            "installed ipset 7.17-1\nconfig-files ipvsadm 1:1.31-1\nnot-installed  \ninstalled tar 1.34\n",
        );
        assert_eq!(installed.get("ipset").map(String::as_str), Some("7.17-1"));
        let packages = packages(Architecture::Amd64);
        let missing = missing_from(&packages, &installed);
        assert!(missing.contains(&"ipvsadm") && !missing.contains(&"ipset"));
        assert_eq!(missing.len(), packages.len() - 2);
    }

    #[test]
    fn a_guest_of_arm64_consists_of_nothing_of_the_host() {
        let packages = packages(Architecture::Arm64);
        assert!(packages.contains(&"qemu-system-arm") && packages.contains(&"xz-utils"));
        assert!(!packages.contains(&"ipvsadm") && !packages.contains(&"qemu-system-x86"));
    }

    #[test]
    fn apt_is_started_through_sudo_when_asked() {
        let command = apt_get(&["sudo"], &["update"]);
        let expected =
            "sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update";
        assert_eq!(host_tool::shown(&command), expected);
    }
}
