//! The base image of a kernel: the kernel as qemu starts it, and the root file system that every
//! guest begins with.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::kernel::Kernel;
use super::kernel_package::{self, Build, KernelPackage};
use super::user_space::Origin;
use super::{cache_directory, host_packages, modules, progress, user_space, vmlinux};
use crate::architecture::Architecture;

/// The text of everything that decides what an image holds. A change of any makes a new image.
const RECIPE: [&str; 6] = [
    include_str!("image.rs"),
    include_str!("modules.rs"),
    include_str!("tree.rs"),
    include_str!("user_space.rs"),
    include_str!("vmlinux.rs"),
    user_space::INIT,
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
pub(crate) fn prepare(kernel: Kernel, architecture: Architecture, fresh: bool) -> Result<Image> {
    let packages = host_packages::ensure(architecture)?;
    let directory = directory(kernel, architecture);
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    // Several runs may be started at once: one prepares, the others wait for it.
    let lock = File::create(directory.join("lock"))?;
    if lock.try_lock().is_err() {
        progress!("kernel {kernel}: waiting for another process that prepares it");
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
    let package = kernel_package::ensure(kernel, Build::Cloud(architecture), &directory)?;
    progress!("kernel {kernel}: making the image of {}", package.release);
    remove_if_there(&recipe_file)?;
    make(&package, &Origin::of(architecture, &directory)?, &image)?;
    std::fs::write(&recipe_file, recipe)?;
    progress!("kernel {kernel}: image ready after {:.1} s", start.elapsed().as_secs_f64());
    Ok(image)
}

/// The release of a kernel that was prepared, as `uname -r` prints it.
pub(crate) fn release(kernel: Kernel, architecture: Architecture) -> Result<String> {
    let directory = directory(kernel, architecture);
    Ok(kernel_package::ensure(kernel, Build::Cloud(architecture), &directory)?.release)
}

/// The directory of a kernel's package and image.
fn directory(kernel: Kernel, architecture: Architecture) -> PathBuf {
    cache_directory().join(match architecture {
        Architecture::Amd64 => kernel.series().to_owned(),
        Architecture::Arm64 => format!("{kernel}-arm64"),
    })
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

fn make(package: &KernelPackage, origin: &Origin, image: &Image) -> Result<()> {
    let kernel = std::fs::read(package.vmlinuz())
        .with_context(|| format!("cannot read {}", package.vmlinuz().display()))?;
    let kernel = match origin.architecture {
        Architecture::Amd64 => vmlinux::extract(&kernel)?,
        // It is not compressed: qemu starts it as it is.
        Architecture::Arm64 => kernel,
    };
    replace(&image.kernel, |file| Ok(std::fs::write(file, &kernel)?))?;

    let mut tree = user_space::lay_out(origin)?;
    let module_root = tempfile::tempdir()?;
    modules::lay_out(package, module_root.path())?;
    tree.add_from_host("/lib/modules", &module_root.path().join("lib/modules"))?;
    replace(&image.base, |file| tree.write(BufWriter::new(File::create(file)?)))
}

/// Writes a file under another name first, so that a guest starting meanwhile never sees half of
/// it.
fn replace(target: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let partial = target.with_extension("partial");
    write(&partial).with_context(|| format!("cannot create {}", target.display()))?;
    std::fs::rename(&partial, target)?;
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
    fn images_of_amd64_are_where_they_always_were() {
        let name =
            |architecture| directory(Kernel::V6_12, architecture).file_name().unwrap().to_owned();
        assert_eq!(name(Architecture::Amd64), "6.12");
        assert_eq!(name(Architecture::Arm64), "6.12-arm64");
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
