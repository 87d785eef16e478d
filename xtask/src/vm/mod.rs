//! The virtual machine bed: a real kernel with IPVS on a machine that has none.
//!
//! [`guest::Guest::run`] boots one of Debian's own kernels in qemu with a fresh root file system in
//! memory, runs one program in it as root, and says how that ended. What has to be there for it
//! (host packages, the kernel, the base image) is made on the way and kept below `target/vm`.
//!
//! In reading order: `command` (what a person types), `guest` (one run, from start to verdict), `distribution` (what it
//! is made into), `nft` (what some get),
//! `boot` (one guest's process), `verdict` (how a run ended), `accel` (KVM where it works), `image`
//! (the base image) and what that is made from: `host_packages`, `debian`, `kernel_package`, `vmlinux`,
//! `modules`, `user_space`, `tree`; `user_mode` (a kernel that is a program, in qemu's place).

use std::path::{Path, PathBuf};

pub(crate) mod accel;
pub(crate) mod apt_sources;
mod boot;
pub(crate) mod command;
pub(crate) mod debian;
pub(crate) mod distribution;
pub(crate) mod guest;
pub(crate) mod host_packages;
pub(crate) mod host_tool;
pub(crate) mod image;
pub(crate) mod kernel;
mod kernel_package;
mod modules;
pub(crate) mod nft;
pub(crate) mod private_apt;
mod scratch;
mod tree;
mod user_mode;
mod user_space;
pub(crate) mod verdict;
mod vmlinux;

/// Returns the directory of everything that is prepared once: the workspace's own `target/vm`,
/// whatever `CARGO_TARGET_DIR` says, so that all builds on a machine share one kernel and one
/// image.
fn cache_directory() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).join("target/vm")
}

/// Tells the person who waits what is being done.
macro_rules! progress {
    ($($argument:tt)*) => {
        eprintln!("vm: {}", format_args!($($argument)*))
    };
}
pub(crate) use progress;
