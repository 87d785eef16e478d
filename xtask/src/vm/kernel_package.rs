//! Fetching a Debian kernel with apt, without changing anything on the machine.
//!
//! apt works here with lists, cache and sources of its own, so suites that the machine is not
//! configured with can be used. The mirror's address and the keys are the machine's.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::kernel::Kernel;
use super::{apt_sources, host_tool, progress};

/// Debian's kernel for cloud machines: the smallest that has all of IPVS, ipset and netfilter.
const META_PACKAGE: &str = "linux-image-cloud-amd64";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An unpacked kernel package.
#[derive(Clone, Debug)]
pub(crate) struct KernelPackage {
    /// The directory that holds `boot` and `lib`.
    pub(crate) directory: PathBuf,
    /// The kernel release, as `uname -r` says it.
    pub(crate) release: String,
}

impl KernelPackage {
    /// The package below `directory`, if it is complete.
    fn open(directory: &Path) -> Result<Self> {
        let modules = directory.join("lib/modules");
        let entries = std::fs::read_dir(&modules)
            .with_context(|| format!("the kernel package has no {}", modules.display()))?;
        let release = entries
            .flatten()
            .find_map(|entry| entry.file_name().into_string().ok())
            .with_context(|| format!("{} is empty", modules.display()))?;
        Ok(Self { directory: directory.to_owned(), release })
    }

    /// The compressed kernel.
    pub(crate) fn vmlinuz(&self) -> PathBuf {
        self.directory.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The directory of the kernel's modules.
    pub(crate) fn modules(&self) -> PathBuf {
        self.directory.join("lib/modules").join(&self.release)
    }
}

/// The unpacked package of a kernel below `cache`, fetched unless it is there already.
pub(crate) fn ensure(kernel: Kernel, cache: &Path) -> Result<KernelPackage> {
    let finished = cache.join("package");
    if finished.is_dir() {
        return KernelPackage::open(&finished);
    }
    let mirrors = apt_sources::debian_mirrors(Path::new("/etc/apt"));
    if mirrors.is_empty() {
        bail!(
            "no apt source of this machine (/etc/apt/sources.list, /etc/apt/sources.list.d) names a \
             Debian mirror, so there is nowhere to get kernel {kernel} from; add one, for example \
             for the suite {}",
            kernel.suites().first().unwrap_or(&"stable")
        );
    }
    let mut failures = Vec::new();
    for suite in kernel.suites() {
        for mirror in &mirrors {
            let work = tempfile::tempdir_in(cache).context("no room for the kernel package")?;
            match fetch(kernel, mirror, suite, work.path()) {
                Ok(unpacked) => {
                    KernelPackage::open(&unpacked)?;
                    std::fs::rename(&unpacked, &finished)?;
                    return KernelPackage::open(&finished);
                }
                Err(error) => failures.push(format!("{suite} of {mirror}: {error:#}")),
            }
        }
    }
    bail!("kernel {kernel} could not be fetched from any suite:\n  {}", failures.join("\n  "));
}

/// Downloads and unpacks the package from one suite of one mirror.
fn fetch(kernel: Kernel, mirror: &str, suite: &str, work: &Path) -> Result<PathBuf> {
    let apt = PrivateApt::set_up(work, &source_line(mirror, suite, Path::new(KEYRING)))?;
    progress!("kernel {kernel}: reading the package list of {suite}");
    host_tool::output(apt.command("apt-get").arg("update"))?;
    let shown = host_tool::output(apt.command("apt-cache").args(["show", META_PACKAGE]))?;
    let package = image_package(&String::from_utf8_lossy(&shown), kernel.series())
        .with_context(|| format!("{suite} has no {META_PACKAGE} of the series {kernel}"))?;
    progress!("kernel {kernel}: downloading {package}");
    host_tool::output(apt.command("apt-get").args(["download", &package]).current_dir(work))?;
    let archive = std::fs::read_dir(work)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("apt-get downloaded {package} but left no package file"))?;
    let unpacked = work.join("unpacked");
    host_tool::output(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&unpacked))?;
    // Some releases keep modules below /usr, where the tools for modules do not look.
    if !unpacked.join("lib").exists() && unpacked.join("usr/lib/modules").is_dir() {
        std::os::unix::fs::symlink("usr/lib", unpacked.join("lib"))?;
    }
    Ok(unpacked)
}

/// One source in the one-line format, bound to Debian's keys where the machine has them as a file;
/// otherwise apt's own trusted keys decide.
fn source_line(mirror: &str, suite: &str, keyring: &Path) -> String {
    let signed_by =
        if keyring.is_file() { format!(" signed-by={}", keyring.display()) } else { String::new() };
    format!("deb [arch=amd64{signed_by}] {mirror} {suite} main\n")
}

/// The package that the meta package of the wanted series depends on.
fn image_package(shown: &str, series: &str) -> Option<String> {
    let wanted = format!("linux-image-{series}.");
    shown
        .lines()
        .filter_map(|line| line.strip_prefix("Depends:"))
        .flat_map(|dependencies| dependencies.split(','))
        .filter_map(|dependency| dependency.split_whitespace().next())
        .find(|package| package.starts_with(&wanted))
        .map(str::to_owned)
}

/// apt with its state in a directory of ours.
struct PrivateApt {
    options: Vec<String>,
}

impl PrivateApt {
    fn set_up(directory: &Path, source: &str) -> Result<Self> {
        let lists = directory.join("lists");
        let cache = directory.join("cache");
        let sources = directory.join("sources.list");
        std::fs::create_dir_all(lists.join("partial"))?;
        std::fs::create_dir_all(cache.join("archives/partial"))?;
        std::fs::write(&sources, source)?;
        let options = [
            format!("Dir::Etc::sourcelist={}", sources.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            // The machine's pins are about what it installs, and nothing is installed here.
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", lists.display()),
            format!("Dir::Cache={}", cache.display()),
            // apt's own user could not write below a directory of ours.
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=2".to_owned(),
        ];
        Ok(Self { options: options.into() })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-qq");
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "Package: linux-image-cloud-amd64\nVersion: 6.12.95-1~bpo12+1\n\
        Depends: initramfs-tools | linux-initramfs-tool, linux-image-6.12.95+deb12-cloud-amd64 (= 6.12.95-1~bpo12+1)\n";

    #[test]
    fn the_image_package_is_found_by_its_series() {
        let found = image_package(SHOWN, "6.12");
        assert_eq!(found.as_deref(), Some("linux-image-6.12.95+deb12-cloud-amd64"));
        assert_eq!(image_package(SHOWN, "6.1"), None);
    }

    #[test]
    fn a_source_is_bound_to_the_keyring_that_exists() {
        let keyring = tempfile::NamedTempFile::new().unwrap();
        let path = keyring.path().display();
        assert_eq!(
            source_line("http://mirror/debian", "trixie", keyring.path()),
            format!("deb [arch=amd64 signed-by={path}] http://mirror/debian trixie main\n")
        );
        assert_eq!(
            source_line("http://mirror/debian", "trixie", Path::new("/nowhere/keyring.gpg")),
            "deb [arch=amd64] http://mirror/debian trixie main\n"
        );
    }
}
