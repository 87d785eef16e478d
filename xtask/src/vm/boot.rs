//! One guest, from its start to its end: a qemu process, or a kernel that is a process itself.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::accel::Accel;
use super::host_tool::{last_lines, shown};
use super::user_mode;
use super::verdict::{End, Report};
use crate::architecture::Architecture;

/// Arguments of the kernel in every guest: an end instead of a restart after a panic, an oops as bad as a
/// panic, and nothing that costs time under emulation.
const KERNEL_ARGUMENTS: &str = "panic=-1 oops=panic mitigations=off nokaslr \
    random.trust_cpu=on cryptomgr.notests quiet loglevel=4";
/// Arguments that leave out a kernel's guards against its programs, which take a fifth of their time under emulation.
/// Where instructions are counted, the kernel has the guards that people's kernels have.
const UNGUARDED: &str =
    "lsm= audit=0 hardened_usercopy=off init_on_alloc=0 randomize_kstack_offset=off";
/// Time between two looks at the guest's output and report.
const POLL: Duration = Duration::from_millis(20);

/// One guest machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) architecture: Architecture,
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: PathBuf,
    pub(crate) accel: Accel,
    pub(crate) cpus: u8,
    /// Memory, as qemu's `-m` takes it.
    pub(crate) memory: String,
    /// A raw disk for what the guest hands back.
    pub(crate) disk: Option<PathBuf>,
    /// File that gets the kernel's log.
    pub(crate) log: PathBuf,
}

/// Time limits of a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Until user space is up.
    pub(crate) up: Duration,
    /// Until the program has ended.
    pub(crate) end: Duration,
}

/// Result of a guest that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BootResult {
    pub(crate) report: Report,
    pub(crate) end: End,
    /// Time until user space was up.
    pub(crate) up_after: Option<Duration>,
    /// Time that it took in all.
    pub(crate) ended_after: Duration,
}

impl Machine {
    /// Boots the guest, copies its console to `console` as it comes, and waits until it has
    /// reported how its program ended, or is over otherwise. Fails when qemu cannot do its part.
    /// `scratch` is a directory of its own for this one boot.
    pub(crate) fn boot(
        &self,
        limits: Limits,
        scratch: &Path,
        console: &mut dyn Write,
    ) -> Result<BootResult> {
        let start = Instant::now();
        let (output, report_file) = (scratch.join("output"), scratch.join("report"));
        let errors = scratch.join("errors");
        let mut copied = Copied { file: File::create_new(&output)?, to: console };
        File::create_new(&report_file)?;
        // Claimed until the guest is over.
        let mut processor = None;
        let mut command = match self.accel {
            Accel::Tcg | Accel::Kvm | Accel::Counted => {
                let mut arguments = self.arguments();
                arguments.extend(channel_arguments(&output, &report_file, &self.log));
                arguments.extend(words(&["-append", &self.kernel_arguments()]));
                self.qemu(&arguments)
            }
            Accel::Uml => {
                let processor = processor.insert(user_mode::Processor::claim()?);
                user_mode::command(self, processor, scratch)?
            }
        };
        command.stdin(Stdio::null()).stderr(File::create(&errors)?);
        let mut process = Process::start(&mut command)?;
        let mut up_after = None;
        loop {
            // Asked before the last look at what it wrote, so that nothing is missed.
            let exited = process.0.try_wait().context("cannot wait for the guest's process")?;
            let report = Report::parse(&String::from_utf8_lossy(&std::fs::read(&report_file)?));
            copied.advance()?;
            let ended_after = start.elapsed();
            if report.up && up_after.is_none() {
                up_after = Some(ended_after);
            }
            let outcome = |end| BootResult { report, end, up_after, ended_after };
            if report.is_final() {
                return Ok(outcome(End::Itself));
            }
            if let Some(status) = exited {
                if !status.success() && !report.up {
                    let errors = std::fs::read_to_string(&errors).unwrap_or_default();
                    bail!("the guest's process failed ({status}): {}", last_lines(&errors, 8));
                }
                return Ok(outcome(End::Itself));
            }
            let limit = if report.up { limits.end } else { limits.up.min(limits.end) };
            if ended_after > limit {
                return Ok(outcome(End::TimeLimit(limit)));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Boots the guest with its program on this terminal and waits until it is switched off. `scratch` is
    /// a directory of its own for this boot.
    pub(crate) fn boot_on_terminal(&self, scratch: &Path) -> Result<()> {
        // Claimed until the guest is over.
        let mut processor = None;
        let mut command = match self.accel {
            Accel::Tcg | Accel::Kvm | Accel::Counted => {
                let mut arguments = self.arguments();
                let kernel_arguments = format!("{} vm.shell", self.kernel_arguments());
                arguments.extend(words(&["-serial", "mon:stdio", "-append", &kernel_arguments]));
                self.qemu(&arguments)
            }
            Accel::Uml => {
                let processor = processor.insert(user_mode::Processor::claim()?);
                user_mode::command_on_terminal(self, processor, scratch)
            }
        };
        let mut process = Process::start(&mut command)?;
        let status = process.0.wait().context("cannot wait for the guest's process")?;
        if !status.success() {
            bail!("the guest's process failed ({status})");
        }
        Ok(())
    }

    fn arguments(&self) -> Vec<OsString> {
        let (board, emulated) = match self.architecture {
            // Without cmpxchg16b: qemu before 8 leaves garbage in the flags after it, and when an
            // interrupt saves them just then, the guest goes on with random trap and direction
            // flags. The kernel has another way for processors that lack it.
            // An old model, because newer features make emulation slower.
            Architecture::Amd64 => ("q35", "Nehalem,+rdrand,-cx16"),
            // Without pointer authentication, which makes emulation slower.
            Architecture::Arm64 => ("virt", "cortex-a72"),
        };
        let (accel, cpu) = match self.accel {
            Accel::Kvm => ("kvm", "host"),
            // qemu counts instructions in one thread only.
            Accel::Counted => ("tcg,thread=single", emulated),
            Accel::Tcg | Accel::Uml => ("tcg,thread=multi", emulated),
        };
        let cpus = self.cpus.to_string();
        let mut arguments = words(&["-M", board, "-nodefaults", "-no-user-config", "-no-reboot"]);
        arguments.extend(words(&["-display", "none", "-accel", accel, "-cpu", cpu]));
        arguments.extend(words(&["-smp", &cpus, "-m", &self.memory]));
        if self.accel == Accel::Counted {
            // 2^0 ns for each instruction. A guest that has nothing to do does not wait for the
            // machine's clock.
            arguments.extend(words(&["-icount", "shift=0,sleep=off"]));
        }
        arguments.extend(["-kernel".into(), self.kernel.clone().into()]);
        arguments.extend(["-initrd".into(), self.initrd.clone().into()]);
        if let Some(disk) = &self.disk {
            // What is on it is worth nothing after a crash, so no write needs to reach a disk.
            let drive = with_path("if=none,id=out,format=raw,cache=unsafe,file=", disk);
            arguments.extend(["-drive".into(), drive]);
            arguments.extend(words(&["-device", "virtio-blk-pci,drive=out"]));
        }
        arguments
    }

    /// The kernel's log goes to the board's serial line.
    fn kernel_arguments(&self) -> String {
        let serial = match self.architecture {
            Architecture::Amd64 => "ttyS0",
            Architecture::Arm64 => "ttyAMA0",
        };
        let unguarded = if self.accel == Accel::Tcg { UNGUARDED } else { "" };
        format!("console={serial} {KERNEL_ARGUMENTS} {unguarded}")
    }

    fn qemu(&self, arguments: &[OsString]) -> Command {
        let program = match self.architecture {
            Architecture::Amd64 => "qemu-system-x86_64",
            Architecture::Arm64 => "qemu-system-aarch64",
        };
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", program]).args(arguments);
        command
    }
}

/// The program's output and the report go into files, which take whatever comes: a console that is
/// connected to a pipe loses output when the reader is too slow.
fn channel_arguments(output: &Path, report: &Path, log: &Path) -> Vec<OsString> {
    let mut arguments = words(&["-device", "virtio-serial-pci"]);
    arguments.extend(["-chardev".into(), with_path("file,id=output,path=", output)]);
    arguments.extend(words(&["-device", "virtconsole,chardev=output,nr=0"]));
    arguments.extend(["-chardev".into(), with_path("file,id=report,path=", report)]);
    arguments.extend(words(&["-device", "virtserialport,chardev=report,nr=2,name=report"]));
    arguments.extend(["-chardev".into(), with_path("file,id=log,path=", log)]);
    arguments.extend(words(&["-serial", "chardev:log"]));
    arguments
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// An option that ends in a path. qemu ends an option at a comma, and reads two of them as one.
fn with_path(option: &str, path: &Path) -> OsString {
    format!("{option}{}", path.to_string_lossy().replace(',', ",,")).into()
}

/// A guest's process, which ends when this does, also when this one is killed: it is started
/// through setpriv.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Result<Self> {
        let child = command
            .spawn()
            .with_context(|| format!("cannot start a guest by `{}`", shown(command)))?;
        Ok(Self(child))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Output that the guest has written so far, passed on as it grows.
struct Copied<'a> {
    file: File,
    to: &'a mut dyn Write,
}

impl Copied<'_> {
    fn advance(&mut self) -> Result<()> {
        let mut new = Vec::new();
        self.file.read_to_end(&mut new).context("cannot read the guest's output")?;
        if !new.is_empty() {
            self.to.write_all(&new).context("cannot print the guest's output")?;
            self.to.flush().context("cannot print the guest's output")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_paths_do_not_end_an_option() {
        assert_eq!(with_path("file,path=", Path::new("/a,b")), OsString::from("file,path=/a,,b"));
    }

    fn mk_machine() -> Machine {
        Machine {
            architecture: Architecture::Amd64,
            kernel: "/k".into(),
            initrd: "/i".into(),
            accel: Accel::Tcg,
            cpus: 1,
            memory: "2G".to_owned(),
            disk: None,
            log: "/log".into(),
        }
    }

    #[test]
    fn the_accelerator_decides_the_cpu() {
        let mut machine = mk_machine();
        assert!(machine.arguments().contains(&"Nehalem,+rdrand,-cx16".into()));
        assert!(!machine.arguments().contains(&"-drive".into()));
        machine.accel = Accel::Kvm;
        machine.disk = Some("/disk".into());
        assert!(machine.arguments().contains(&"host".into()));
        assert!(machine.arguments().contains(&"-drive".into()));
    }

    #[test]
    fn the_architecture_decides_the_emulator_and_the_board() {
        let shown = |machine: &Machine| shown(&machine.qemu(&machine.arguments()));
        let amd64 = mk_machine();
        assert!(shown(&amd64).contains("qemu-system-x86_64 -M q35 "), "{}", shown(&amd64));
        assert!(amd64.kernel_arguments().starts_with("console=ttyS0 panic=-1 "));
        let arm64 = Machine { architecture: Architecture::Arm64, ..amd64 };
        assert!(shown(&arm64).contains("qemu-system-aarch64 -M virt "), "{}", shown(&arm64));
        assert!(shown(&arm64).contains("-accel tcg,thread=multi -cpu cortex-a72 "));
        assert!(arm64.kernel_arguments().starts_with("console=ttyAMA0 panic=-1 "));
    }
}
