//! The base image of a kernel: the kernel as qemu starts it, and the root file system that every
//! guest begins with.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::host_packages::{self, find_program};
use super::kernel::Kernel;
use super::kernel_package::{self, KernelPackage};
use super::tree::Tree;
use super::{cache_directory, host_tool, modules, progress, vmlinux};

/// Host programs that guests have, besides busybox for everything small.
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
    "xtables-legacy-multi",
    "xtables-nft-multi",
];

/// Names under which kmod does its different jobs.
const MODULE_TOOLS: [&str; 6] = ["depmod", "insmod", "lsmod", "modinfo", "modprobe", "rmmod"];

/// Host files and directories that programs read at run time, where the host has them.
const DATA: [&str; 10] = [
    "/etc/ethertypes",
    "/etc/iproute2",
    "/etc/protocols",
    "/etc/services",
    "/lib/terminfo/l/linux",
    "/lib/terminfo/v/vt100",
    "/lib/terminfo/v/vt220",
    "/usr/lib/x86_64-linux-gnu/xtables",
    "/usr/share/iproute2",
    // Rust programs load it; nothing else in the image does.
    "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
];

const INIT: &str = include_str!("init.sh");

/// The text of everything that decides what an image holds. A change of any makes a new image.
const RECIPE: [&str; 5] = [
    include_str!("image.rs"),
    include_str!("modules.rs"),
    include_str!("tree.rs"),
    include_str!("vmlinux.rs"),
    INIT,
];

/// Files that a guest is booted from.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// The uncompressed kernel.
    pub(crate) kernel: PathBuf,
    /// The base root file system, a cpio archive that more archives can be appended to.
    pub(crate) base: PathBuf,
}

/// The image of a kernel, made first if there is none or its recipe has changed. `fresh` fetches
/// the kernel anew as well.
pub(crate) fn prepare(kernel: Kernel, fresh: bool) -> Result<Image> {
    let packages = host_packages::ensure()?;
    let directory = cache_directory().join(kernel.series());
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("{} cannot be made", directory.display()))?;
    // Several runs may be started at once: one prepares, the others wait for it.
    let lock = File::create(directory.join("lock"))?;
    if lock.try_lock().is_err() {
        progress!("kernel {kernel}: waiting for another preparation");
        lock.lock()?;
    }
    let recipe_file = directory.join("recipe");
    if fresh {
        remove_if_there(&recipe_file)?;
        let package = directory.join("package");
        if package.exists() {
            std::fs::remove_dir_all(&package)?;
        }
    }
    let image = Image { kernel: directory.join("vmlinux"), base: directory.join("base.cpio") };
    let recipe = fingerprint(&packages);
    let is_current = std::fs::read_to_string(&recipe_file).is_ok_and(|made| made == recipe);
    if is_current && image.kernel.is_file() && image.base.is_file() {
        return Ok(image);
    }
    let start = Instant::now();
    let package = kernel_package::ensure(kernel, &directory)?;
    progress!("kernel {kernel}: making the image of {}", package.release);
    remove_if_there(&recipe_file)?;
    make(&package, &image)?;
    std::fs::write(&recipe_file, recipe)?;
    progress!("kernel {kernel}: image ready after {:.1} s", start.elapsed().as_secs_f64());
    Ok(image)
}

/// The release of a kernel that was prepared, as `uname -r` prints it.
pub(crate) fn release(kernel: Kernel) -> Result<String> {
    Ok(kernel_package::ensure(kernel, &cache_directory().join(kernel.series()))?.release)
}

fn remove_if_there(file: &Path) -> Result<()> {
    if file.exists() {
        std::fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    Ok(())
}

/// Changes whenever an image made now would differ from one made before.
fn fingerprint(packages: &str) -> String {
    let mut hasher = DefaultHasher::new();
    RECIPE.hash(&mut hasher);
    packages.hash(&mut hasher);
    format!("{:016x}\n", hasher.finish())
}

fn make(package: &KernelPackage, image: &Image) -> Result<()> {
    let compressed = std::fs::read(package.vmlinuz())
        .with_context(|| format!("{} cannot be read", package.vmlinuz().display()))?;
    replace(&image.kernel, |file| Ok(std::fs::write(file, vmlinux::extract(&compressed)?)?))?;

    let mut tree = user_space()?;
    let module_root = tempfile::tempdir()?;
    modules::lay_out(package, module_root.path())?;
    tree.add_from_host("/lib/modules", &module_root.path().join("lib/modules"))?;
    replace(&image.base, |file| tree.write(BufWriter::new(File::create(file)?)))
}

/// Writes a file under another name first, so that a guest starting meanwhile never sees half of
/// it.
fn replace(target: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let partial = target.with_extension("partial");
    write(&partial).with_context(|| format!("{} cannot be made", target.display()))?;
    std::fs::rename(&partial, target)?;
    Ok(())
}

/// The root file system without modules.
fn user_space() -> Result<Tree> {
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
        let path = find_program(program)?;
        tree.add_from_host(&path.to_string_lossy(), &path)?;
    }
    for data in DATA {
        if Path::new(data).exists() {
            tree.add_from_host(data, Path::new(data))?;
        }
    }
    tree.add_libraries()?;
    add_names_of_programs(&mut tree)?;
    add_busybox(&mut tree)?;
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
fn add_busybox(tree: &mut Tree) -> Result<()> {
    let busybox = find_program("busybox")?;
    tree.add_from_host("/usr/bin/busybox", &busybox)?;
    let applets = host_tool::output(Command::new(&busybox).arg("--list"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_follows_the_packages() {
        assert_eq!(fingerprint("ipset 7.17\n"), fingerprint("ipset 7.17\n"));
        assert_ne!(fingerprint("ipset 7.17\n"), fingerprint("ipset 7.18\n"));
    }

    #[test]
    fn a_replaced_file_keeps_its_old_content_when_writing_fails() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("base.cpio");
        replace(&target, |file| Ok(std::fs::write(file, "old")?)).unwrap();
        let failed = replace(&target, |file| {
            std::fs::write(file, "half")?;
            anyhow::bail!("no space")
        });
        assert!(format!("{:#}", failed.unwrap_err()).contains("no space"));
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "old");
    }
}
