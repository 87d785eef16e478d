//! The root file system of a guest without modules, from Debian's packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::host_packages::{self, find_program_below};
use super::tree::Tree;
use super::{debian, host_tool, progress};
use crate::architecture::Architecture;

/// Programs that guests have, besides busybox for everything small.
const PROGRAMS: &[&str] = &[
    "bash",
    "bridge",
    "conntrack",
    "dash",
    "ethtool",
    "ip",
    "ipset",
    "ipvsadm",
    "ipvsadm-restore",
    "ipvsadm-save",
    "kmod",
    "mount",
    "nft",
    "nsenter",
    "pgrep",
    "ping",
    "pkill",
    "ps",
    "setpriv",
    "socat",
    "ss",
    "sysctl",
    "tc",
    "tcpdump",
    "umount",
    "unshare",
    "wg",
    "xtables-legacy-multi",
    "xtables-nft-multi",
];

/// Names under which kmod does its different jobs.
const MODULE_TOOLS: [&str; 6] = ["depmod", "insmod", "lsmod", "modinfo", "modprobe", "rmmod"];

/// Files and directories that programs read at run time, where the origin has them.
const DATA: [&str; 8] = [
    "/etc/ethertypes",
    "/etc/iproute2",
    "/etc/protocols",
    "/etc/services",
    "/lib/terminfo/l/linux",
    "/lib/terminfo/v/vt100",
    "/lib/terminfo/v/vt220",
    "/usr/share/iproute2",
];

/// The same, in the folder of libraries.
const LIBRARIES: [&str; 2] = [
    "xtables",
    // Rust programs load it; nothing else in the image does.
    "libgcc_s.so.1",
];

/// Folder of libraries that convert between character sets: a third of all, and nothing here loads one.
const CONVERSIONS: &str = "gconv";

pub(super) const INIT: &str = include_str!("init.sh");

/// Debian's files that a guest is made of: this machine's own, or those of packages for another
/// architecture.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) architecture: Architecture,
    root: PathBuf,
    /// Holds the root, if that is for this one image.
    _work: Option<TempDir>,
}

impl Origin {
    /// This machine for its own architecture. For another, Debian's packages are fetched and unpacked in `folder`.
    pub(super) fn of(architecture: Architecture, folder: &Path) -> Result<Self> {
        if architecture == Architecture::Amd64 {
            return Ok(Self { architecture, root: PathBuf::from("/"), _work: None });
        }
        progress!("downloading packages of Debian for {architecture}");
        let work = tempfile::tempdir_in(folder)
            .with_context(|| format!("cannot create a folder in {}", folder.display()))?;
        let root = work.path().join("root");
        let packages = host_packages::OF_GUESTS;
        let fetched = debian::fetch(debian::STABLE, architecture, &packages, &[], work.path());
        for package in fetched? {
            let mut dpkg = Command::new("dpkg-deb");
            host_tool::output(dpkg.arg("-x").arg(&package.file).arg(&root))?;
        }
        Ok(Self { architecture, root, _work: Some(work) })
    }

    fn add_program(&self, tree: &mut Tree, name: &str) -> Result<()> {
        let path = find_program_below(&self.root, name)?;
        let place = path
            .strip_prefix(&self.root)
            .with_context(|| format!("{} is not below {}", path.display(), self.root.display()))?;
        tree.add_from_host(&place.to_string_lossy(), &path)
    }

    fn add_if_there(&self, tree: &mut Tree, place: &str) -> Result<()> {
        let path = self.root.join(place.trim_start_matches('/'));
        if path.exists() { tree.add_from_host(place, &path) } else { Ok(()) }
    }

    /// Adds the libraries of the programs that are in the tree. Packages of another architecture were chosen
    /// with what they depend on, so that all of theirs are needed.
    fn add_libraries(&self, tree: &mut Tree) -> Result<()> {
        let folder = format!("/usr/lib/{}", self.architecture.library_folder());
        match self.architecture {
            Architecture::Amd64 => {
                for library in LIBRARIES {
                    self.add_if_there(tree, &format!("{folder}/{library}"))?;
                }
                tree.add_libraries()
            }
            Architecture::Arm64 => {
                let path = self.root.join(folder.trim_start_matches('/'));
                std::fs::remove_dir_all(path.join(CONVERSIONS))
                    .with_context(|| format!("no {CONVERSIONS} in {folder}"))?;
                tree.add_from_host(&folder, &path)?;
                self.add_if_there(tree, "/usr/lib/ld-linux-aarch64.so.1")
            }
        }
    }
}

/// The root file system without modules.
pub(super) fn lay_out(origin: &Origin) -> Result<Tree> {
    let mut tree = Tree::default();
    for directory in ["dev", "proc", "sys", "tmp", "run", "root", "mnt", "etc", "var", "job/out"] {
        tree.add_directory(directory)?;
    }
    for directory in ["bin", "sbin", "lib", "lib64"] {
        tree.add_directory(&format!("usr/{directory}"))?;
        tree.add_link(directory, &format!("usr/{directory}"))?;
    }
    tree.add_link("var/run", "../run")?;
    for program in PROGRAMS {
        origin.add_program(&mut tree, program)?;
    }
    for data in DATA {
        origin.add_if_there(&mut tree, data)?;
    }
    origin.add_libraries(&mut tree)?;
    add_names_of_programs(&mut tree)?;
    add_busybox(&mut tree, origin)?;
    tree.add_text("init", 0o755, INIT.to_owned())?;
    tree.add_text("vm/environment", 0o644, String::new())?;
    tree.add_text("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/bash\n".to_owned())?;
    tree.add_text("etc/group", 0o644, "root:x:0:\n".to_owned())?;
    tree.add_text("etc/hosts", 0o644, "127.0.0.1 localhost guest\n::1 localhost\n".to_owned())?;
    let name_services = "hosts: files\nprotocols: files\nservices: files\n";
    tree.add_text("etc/nsswitch.conf", 0o644, name_services.to_owned())?;
    Ok(tree)
}

fn add_names_of_programs(tree: &mut Tree) -> Result<()> {
    for tool in MODULE_TOOLS {
        tree.add_link(&format!("usr/sbin/{tool}"), "../bin/kmod")?;
    }
    for family in ["iptables", "ip6tables"] {
        for action in ["", "-save", "-restore"] {
            for (kind, program) in [
                // As on Debian: nftables unless asked otherwise.
                ("", "xtables-nft-multi"),
                ("-nft", "xtables-nft-multi"),
                ("-legacy", "xtables-legacy-multi"),
            ] {
                tree.add_link(&format!("usr/sbin/{family}{kind}{action}"), program)?;
            }
        }
    }
    // busybox as `sh` would run its own applets where a program of that name is wanted.
    tree.add_link("usr/bin/sh", "dash")
}

/// busybox under the name of every applet for which there is no real program.
fn add_busybox(tree: &mut Tree, origin: &Origin) -> Result<()> {
    let busybox = find_program_below(&origin.root, "busybox")?;
    tree.add_from_host("/usr/bin/busybox", &busybox)?;
    let applets = host_tool::output(origin.architecture.command(&busybox).arg("--list"))?;
    for applet in String::from_utf8_lossy(&applets).lines() {
        let is_there = ["bin", "sbin"]
            .iter()
            .any(|directory| tree.contains(&format!("usr/{directory}/{applet}")));
        if !is_there {
            tree.add_link(&format!("usr/bin/{applet}"), "busybox")?;
        }
    }
    Ok(())
}
