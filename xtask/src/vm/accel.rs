//! Accelerators, which run a guest's instructions: the processor itself, or software; or the
//! guest's kernel is a program of this machine.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::boot::{Limits, Machine};
use super::image::Image;
use super::{cache_directory, progress};
use crate::architecture::Architecture;

/// Time limit of a probe boot with KVM. Where KVM works, user space is up in about a second.
const PROBE_LIMIT: Duration = Duration::from_secs(8);

/// Accelerator that a person can ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccelChoice {
    /// KVM if a guest boots with it on this machine, software emulation otherwise.
    #[default]
    Auto,
    /// Software emulation.
    Tcg,
    /// Hardware virtualisation.
    Kvm,
    /// Software emulation where one nanosecond of the guest's clock is one instruction, to count costs. A busy machine
    /// slows it down and changes no count.
    Counted,
    /// Debian's user-mode Linux: the kernel is a process of this machine. Code runs at native speed; system calls and
    /// new processes do not. iptables is that for x_tables.
    Uml,
}

/// Accelerator that a guest really runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accel {
    Tcg,
    Kvm,
    Counted,
    Uml,
}

impl Accel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
            Self::Counted => "counted",
            Self::Uml => "uml",
        }
    }
}

/// The accelerator for a choice. That /dev/kvm exists does not mean that guests run on it, so the
/// first use boots one, and the answer is remembered for this host kernel.
pub(crate) fn choose(
    choice: AccelChoice,
    architecture: Architecture,
    image: &Image,
) -> Result<Accel> {
    match choice {
        AccelChoice::Auto if architecture != Architecture::Amd64 => return Ok(Accel::Tcg),
        AccelChoice::Kvm | AccelChoice::Uml if architecture != Architecture::Amd64 => {
            bail!(
                "no accelerator but tcg and counted runs a guest of {architecture}: name one of them by --accel"
            )
        }
        AccelChoice::Tcg => return Ok(Accel::Tcg),
        AccelChoice::Kvm => return Ok(Accel::Kvm),
        AccelChoice::Counted => return Ok(Accel::Counted),
        AccelChoice::Uml => return Ok(Accel::Uml),
        AccelChoice::Auto => {}
    }
    let may_use_kvm = File::options().read(true).write(true).open("/dev/kvm").is_ok();
    if !may_use_kvm {
        return Ok(Accel::Tcg);
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = cache_directory().join("accel");
    if let Some(accel) = recall(&std::fs::read_to_string(&memory).unwrap_or_default(), &host) {
        return Ok(accel);
    }
    progress!("booting a guest to see if KVM works on this machine");
    let accel = if probe(image)? { Accel::Kvm } else { Accel::Tcg };
    progress!(
        "guests run on {} from now on; remove {} to try KVM again",
        accel.name(),
        memory.display()
    );
    std::fs::write(&memory, remember(accel, &host))?;
    Ok(accel)
}

fn remember(accel: Accel, host: &str) -> String {
    format!("{} {}\n", accel.name(), host.trim())
}

/// Returns the accelerator that was remembered for this host kernel.
fn recall(remembered: &str, host: &str) -> Option<Accel> {
    [Accel::Tcg, Accel::Kvm].into_iter().find(|&accel| remembered == remember(accel, host))
}

/// True if a guest comes up with KVM.
fn probe(image: &Image) -> Result<bool> {
    let scratch = tempfile::tempdir()?;
    let machine = Machine {
        architecture: Architecture::Amd64,
        kernel: image.kernel.clone(),
        initrd: image.base.clone(),
        accel: Accel::Kvm,
        cpus: 1,
        memory: "1G".to_owned(),
        disk: None,
        log: scratch.path().join("log"),
    };
    let limits = Limits { up: PROBE_LIMIT, end: PROBE_LIMIT };
    // The base image holds no program, so the guest ends by itself right after it is up. qemu
    // refusing KVM is an answer too.
    let outcome = machine.boot(limits, Path::new(scratch.path()), &mut std::io::sink());
    Ok(outcome.is_ok_and(|outcome| outcome.report.up))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_of_another_architecture_is_emulated() {
        let image = Image { kernel: "/k".into(), base: "/b".into() };
        let choose = |choice| choose(choice, Architecture::Arm64, &image);
        assert_eq!(choose(AccelChoice::Auto).unwrap(), Accel::Tcg);
        assert_eq!(choose(AccelChoice::Counted).unwrap(), Accel::Counted);
        assert!(choose(AccelChoice::Kvm).is_err() && choose(AccelChoice::Uml).is_err());
    }

    #[test]
    fn what_is_remembered_holds_for_the_same_host_kernel_only() {
        for accel in [Accel::Tcg, Accel::Kvm] {
            let remembered = remember(accel, "6.1.0-40\n");
            assert_eq!(recall(&remembered, "6.1.0-40\n"), Some(accel));
            assert_eq!(recall(&remembered, "6.1.0-41\n"), None);
        }
        assert_eq!(recall("", "6.1.0-40\n"), None);
    }
}
