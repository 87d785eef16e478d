//! Fetching a Debian kernel with apt, without changing anything on the machine.
//!
//! Suites that the machine is not configured with can be used (`private_apt`). The mirror's address and
//! the keys are the machine's.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::kernel::Kernel;
use super::private_apt::{KEYRING, PrivateApt, source_line};
use super::{apt_sources, host_tool, progress};
use crate::architecture::Architecture;

/// The two ways in which Debian ships a kernel series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// For cloud machines of an architecture: the smallest that has all of IPVS, ipset and netfilter.
    Cloud(Architecture),
    /// Program of this machine, with the C library that it was linked to: a newer Debian's does not
    /// start with an older one's.
    UserMode,
}

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

    /// The compressed kernel: beside its modules, where the image is made of packages.
    pub(crate) fn vmlinuz(&self) -> PathBuf {
        let in_boot = self.directory.join("boot").join(format!("vmlinuz-{}", self.release));
        if in_boot.is_file() { in_boot } else { self.modules().join("vmlinuz") }
    }

    /// The directory of the kernel's modules.
    pub(crate) fn modules(&self) -> PathBuf {
        self.directory.join("lib/modules").join(&self.release)
    }
}

/// The unpacked package of a kernel below `cache`, fetched unless it is there already.
pub(crate) fn ensure(kernel: Kernel, build: Build, cache: &Path) -> Result<KernelPackage> {
    let finished = cache.join("package");
    if finished.is_dir() {
        return KernelPackage::open(&finished);
    }
    let mirrors = apt_sources::debian_mirrors(Path::new("/etc/apt"))?;
    if mirrors.is_empty() {
        bail!(
            "cannot fetch kernel {kernel}: no Debian mirror in /etc/apt/sources.list and \
             /etc/apt/sources.list.d; add one, for example for the suite {}",
            kernel.suites().first().unwrap_or(&"stable")
        );
    }
    let mut failures = Vec::new();
    for suite in kernel.suites() {
        for mirror in &mirrors {
            let work = tempfile::tempdir_in(cache)
                .with_context(|| format!("cannot create a folder in {}", cache.display()))?;
            let architecture = build.architecture().to_string();
            let source = source_line(mirror, suite, &architecture, Path::new(KEYRING));
            match fetch(kernel, build, &source, work.path()) {
                Ok(unpacked) => {
                    KernelPackage::open(&unpacked)?;
                    std::fs::rename(&unpacked, &finished)?;
                    return KernelPackage::open(&finished);
                }
                Err(error) => failures.push(format!("{suite} of {mirror}: {error:#}")),
            }
        }
    }
    bail!("cannot fetch kernel {kernel} from any suite:\n  {}", failures.join("\n  "));
}

/// Downloads and unpacks the package from one source.
fn fetch(kernel: Kernel, build: Build, source: &str, work: &Path) -> Result<PathBuf> {
    let apt = PrivateApt::set_up(work, source, &build.architecture().to_string())?;
    progress!("kernel {kernel}: reading the package list");
    host_tool::output(apt.command("apt-get").arg("update"))?;
    let shown = host_tool::output(apt.command("apt-cache").args(["show", &build.package()]))?;
    let of_newest = build.packages(&String::from_utf8_lossy(&shown), kernel.series());
    // Of a series that is not the suite's newest, packages stay for some time without one that names them.
    let older = || {
        let start = format!("linux-image-{kernel}.");
        let names = host_tool::output(apt.command("apt-cache").args(["pkgnames", &start])).ok()?;
        let end = format!("-cloud-{}", build.architecture());
        newest_image(&String::from_utf8_lossy(&names), &start, &end).map(|name| vec![name])
    };
    let is_cloud = matches!(build, Build::Cloud(_));
    let mut packages = of_newest.or_else(|| is_cloud.then(older).flatten()).with_context(|| {
        format!("apt-cache shows no {} of the series {kernel}", build.package())
    })?;
    if let (true, Some(image)) = (is_cloud, packages.first()) {
        let shown = host_tool::output(apt.command("apt-cache").args(["show", image]))?;
        packages.extend(parts_of_image(&String::from_utf8_lossy(&shown)));
    }
    progress!("kernel {kernel}: downloading {}", packages.join(" and "));
    host_tool::output(apt.command("apt-get").arg("download").args(&packages).current_dir(work))?;
    let unpacked = work.join("unpacked");
    let archives = std::fs::read_dir(work)?.flatten().map(|entry| entry.path());
    for archive in archives.filter(|path| path.extension().is_some_and(|it| it == "deb")) {
        host_tool::output(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&unpacked))?;
    }
    link_modules(&unpacked)?;
    Ok(unpacked)
}

/// Some releases keep modules below /usr, where the tools for modules do not look.
fn link_modules(unpacked: &Path) -> Result<()> {
    let expected = unpacked.join("lib/modules");
    for place in ["usr/lib/modules", "usr/lib/uml/modules"] {
        if !expected.exists() && unpacked.join(place).is_dir() {
            std::fs::create_dir_all(unpacked.join("lib"))?;
            std::os::unix::fs::symlink(Path::new("..").join(place), &expected)?;
        }
    }
    Ok(())
}

impl Build {
    /// The package to ask for.
    fn package(self) -> String {
        match self {
            Self::Cloud(architecture) => format!("linux-image-cloud-{architecture}"),
            Self::UserMode => "user-mode-linux".to_owned(),
        }
    }

    fn architecture(self) -> Architecture {
        match self {
            Self::Cloud(architecture) => architecture,
            Self::UserMode => Architecture::Amd64,
        }
    }

    /// Returns the packages to download, from what apt shows of this one; none, if it is of another
    /// series.
    fn packages(self, shown: &str, series: &str) -> Option<Vec<String>> {
        match self {
            Self::Cloud(_) => image_package(shown, series).map(|package| vec![package]),
            Self::UserMode => {
                let of_series = |version: &str| {
                    let rest = version.strip_prefix(series);
                    rest.is_some_and(|rest| rest.starts_with("um") || rest.starts_with('.'))
                };
                shown
                    .lines()
                    .filter_map(|line| line.strip_prefix("Version: "))
                    .any(of_series)
                    .then(|| vec![self.package(), "libc6".to_owned()])
            }
        }
    }
}

/// The package that the meta package of the wanted series depends on.
fn image_package(shown: &str, series: &str) -> Option<String> {
    let wanted = format!("linux-image-{series}.");
    dependencies(shown).find(|package| package.starts_with(&wanted)).map(str::to_owned)
}

/// Returns the package of the greatest patch level, which stands between this start and this end of names.
fn newest_image(names: &str, start: &str, end: &str) -> Option<String> {
    let patch_level = |name: &&str| {
        let rest = name.strip_prefix(start)?.strip_suffix(end)?;
        rest.split_once('+')?.0.parse::<u32>().ok()
    };
    let patched = names.lines().filter(|name| patch_level(name).is_some());
    patched.max_by_key(patch_level).map(str::to_owned)
}

/// The packages with the kernel and its modules, where the image is made of them: since 7.2.
fn parts_of_image(shown: &str) -> BTreeSet<String> {
    let is_part = |package: &&str| {
        package.starts_with("linux-binary-") || package.starts_with("linux-modules-")
    };
    dependencies(shown).filter(is_part).map(str::to_owned).collect()
}

fn dependencies(shown: &str) -> impl Iterator<Item = &str> {
    let lines = shown.lines().filter_map(|line| line.strip_prefix("Depends:"));
    let each = lines.flat_map(|dependencies| dependencies.split(','));
    each.filter_map(|dependency| dependency.split_whitespace().next())
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
    fn of_an_older_series_the_greatest_patch_level_counts() {
        let names = "linux-image-6.18.9+deb13-cloud-amd64\nlinux-image-6.18.15+deb13-cloud-amd64\n\
            linux-image-6.18.20+deb13-amd64\nlinux-image-6.18.5+deb13-cloud-amd64\n\
            linux-image-6.18.15+deb13-cloud-amd64-dbg\n";
        let found = newest_image(names, "linux-image-6.18.", "-cloud-amd64");
        assert_eq!(found.as_deref(), Some("linux-image-6.18.15+deb13-cloud-amd64"));
        assert_eq!(newest_image(names, "linux-image-6.18.", "-cloud-arm64"), None);
        let none = newest_image("linux-image-cloud-amd64\n", "linux-image-6.18.", "-cloud-amd64");
        assert_eq!(none, None);
    }

    #[test]
    fn an_image_may_be_made_of_packages() {
        let shown = "Package: linux-image-7.3.4+deb13-cloud-amd64\nDepends: dracut | initramfs-tools, \
            linux-base-7.3.4+deb13-cloud-amd64 (= 7.3.4-1), linux-binary-7.3.4+deb13-cloud-amd64 (= 7.3.4-1), \
            linux-modules-7.3.4+deb13-cloud-amd64 (= 7.3.4-1)\n";
        let parts =
            ["linux-binary-7.3.4+deb13-cloud-amd64", "linux-modules-7.3.4+deb13-cloud-amd64"];
        assert_eq!(parts_of_image(shown), parts.map(str::to_owned).into());
        assert!(parts_of_image(SHOWN).is_empty());
    }

    #[test]
    fn each_build_has_its_package() {
        assert_eq!(Build::Cloud(Architecture::Amd64).package(), "linux-image-cloud-amd64");
        assert_eq!(Build::Cloud(Architecture::Arm64).package(), "linux-image-cloud-arm64");
        assert_eq!(Build::UserMode.architecture(), Architecture::Amd64);
    }

    #[test]
    fn the_kernel_that_is_a_program_is_known_by_its_version() {
        let shown = "Package: user-mode-linux\nVersion: 6.12um1+b21\n";
        let found = Build::UserMode.packages(shown, "6.12").unwrap();
        assert_eq!(found, ["user-mode-linux", "libc6"]);
        assert_eq!(Build::UserMode.packages(shown, "6.1"), None);
        assert_eq!(Build::UserMode.packages(shown, "7"), None);
        assert!(Build::UserMode.packages("Version: 7.2um1\n", "7").is_some());
    }
}
