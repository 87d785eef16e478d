//! A kernel that is a program of this machine: Debian's user-mode-linux.
//!
//! It runs the guest's programs, and itself, at the speed of this machine's processor, where qemu
//! without KVM takes ten times as long and more: the guest to measure processor time in. It has
//! one processor, system calls and new processes are slow, and nf_tables cannot do IPv4.
//!
//! It starts from the same image as the others do, with other modules and another first process.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::boot::Machine;
use super::host_packages::{find_program, install_missing};
use super::image::Image;
use super::kernel::Kernel;
use super::kernel_package::{self, Build, KernelPackage};
use super::tree::Tree;
use super::{cache_directory, host_tool, modules, progress};

const INIT: &str = include_str!("init-user-mode.sh");
/// Makes room for what newer processors have in their registers.
const REGISTERS: &str = include_str!("user_mode_registers.c");

/// The program, beside which its parts are.
const PROGRAM: &str = "linux";
/// The loader of its C library, which it names by this: relative to its directory.
const LOADER: &str = "loader";
/// The loader that a Debian program names.
const USUAL_LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
const LIBRARIES: [&str; 2] = ["libc.so.6", "ld-linux-x86-64.so.2"];
const REGISTERS_LIBRARY: &str = "registers.so";

/// The text of everything that decides what is prepared here.
const RECIPE: [&str; 3] = [include_str!("user_mode.rs"), INIT, REGISTERS];

/// The image of a kernel that is a program, made first unless it is there, on top of `base`.
pub(crate) fn prepare(kernel: Kernel, base: &Image) -> Result<Image> {
    let directory = cache_directory().join(format!("{kernel}-uml"));
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let lock = File::create(directory.join("lock"))?;
    lock.lock()?;
    let image = Image { kernel: directory.join(PROGRAM), base: directory.join("base.cpio") };
    let recipe_file = directory.join("recipe");
    let recipe = fingerprint(&base.base)?;
    if std::fs::read_to_string(&recipe_file).is_ok_and(|made| made == recipe) {
        return Ok(image);
    }
    let package = kernel_package::ensure(kernel, Build::UserMode, &directory)?;
    progress!("kernel {kernel}: making the image of user-mode Linux {}", package.release);
    make(&package, base, &image)?;
    std::fs::write(&recipe_file, recipe)?;
    Ok(image)
}

/// A processor of this machine that no other guest is bound to, as long as this lives.
#[derive(Debug)]
pub(crate) struct Processor {
    number: usize,
    /// Locked. Without it, there was none left, and guests share this one.
    _claim: Option<File>,
}

/// The command for a guest, whose console is `output` in `scratch` and whose report is beside it.
pub(crate) fn command(machine: &Machine, processor: &Processor, scratch: &Path) -> Result<Command> {
    let mut command = without_console(machine, processor, scratch);
    command.args(["con=null", "con0=null,fd:1"]).stdout(File::create(&machine.log)?);
    Ok(command)
}

/// The command for a guest whose console is this terminal.
pub(crate) fn command_on_terminal(
    machine: &Machine,
    processor: &Processor,
    scratch: &Path,
) -> Command {
    let mut command = without_console(machine, processor, scratch);
    command.args(["con=null", "con0=fd:0,fd:1", "quiet", "vm.shell"]);
    command
}

fn without_console(machine: &Machine, processor: &Processor, scratch: &Path) -> Command {
    let directory = machine.kernel.parent().unwrap_or(Path::new("/"));
    let libraries = directory.join("libraries");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    // The processes that it starts outlive it when it is killed, unless it has a namespace for
    // them, which ends with its first process: that one is a shell, which waits.
    command.args(["unshare", "--pid", "--fork", "--kill-child"]);
    command.args(["sh", "-c", "\"$@\"; exit $?", "user-mode-linux"]);
    // With one processor of its own, it need not wait for another to hear of every system call.
    command.arg("taskset").args(["--cpu-list", &processor.number.to_string()]);
    command.arg("env").arg(format!("LD_LIBRARY_PATH={}", libraries.display()));
    // Where the guest's memory is.
    command.arg("TMPDIR=/dev/shm");
    if has_large_registers() {
        command.arg(format!("LD_PRELOAD={}", directory.join(REGISTERS_LIBRARY).display()));
    }
    command.arg(format!("./{PROGRAM}")).arg(format!("mem={}", machine.memory));
    command.arg(argument("initrd", &machine.initrd)).arg(argument("vm.host", scratch));
    if let Some(disk) = &machine.disk {
        command.arg(argument("vm.disk", disk));
    }
    // Its own command socket, which no program uses.
    command.arg(argument("uml_dir", scratch));
    // Those of series 7 are called by a filter of system calls instead of by ptrace: 9 µs instead of 13.
    command.arg("seccomp=auto");
    command.args(["panic=-1", "oops=panic", "loglevel=4"]).current_dir(directory);
    command
}

fn argument(name: &str, value: &Path) -> String {
    format!("{name}={}", value.display())
}

impl Processor {
    /// The last one that is free of those that this process may use: the first is the busiest.
    pub(crate) fn claim() -> Result<Self> {
        const STATUS: &str = "/proc/self/status";
        let status =
            std::fs::read_to_string(STATUS).with_context(|| format!("cannot read {STATUS}"))?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let allowed = list
            .and_then(parse_processors)
            .with_context(|| format!("{STATUS} lists no allowed CPUs: {list:?}"))?;
        for number in &allowed {
            let path = cache_directory().join(format!("processor-{number}"));
            let claim =
                File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
            if claim.try_lock().is_ok() {
                return Ok(Self { number: *number, _claim: Some(claim) });
            }
        }
        let number = allowed.first().copied().unwrap_or_default();
        Ok(Self { number, _claim: None })
    }
}

/// From a list such as `0-3,6`, as the kernel writes them, the last one first; `None` if it is none,
/// or empty.
fn parse_processors(list: &str) -> Option<Vec<usize>> {
    let mut processors = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        processors.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    processors.reverse();
    (!processors.is_empty()).then_some(processors)
}

/// Changes whenever an image made now would differ from one made before.
fn fingerprint(base: &Path) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    RECIPE.hash(&mut hasher);
    let metadata = std::fs::metadata(base)?;
    (metadata.len(), metadata.modified()?).hash(&mut hasher);
    Ok(format!("{:016x}\n", hasher.finish()))
}

fn make(package: &KernelPackage, base: &Image, image: &Image) -> Result<()> {
    let directory = image.kernel.parent().context("the image has no directory")?;
    let program = std::fs::read(package.directory.join("usr/bin/linux.uml"))
        .context("cannot read usr/bin/linux.uml of the package user-mode-linux")?;
    std::fs::write(&image.kernel, with_loader(program, LOADER)?)?;
    executable(&image.kernel)?;
    let libraries = directory.join("libraries");
    std::fs::create_dir_all(&libraries)?;
    for library in LIBRARIES {
        std::fs::copy(find_library(&package.directory, library)?, libraries.join(library))?;
    }
    std::fs::copy(libraries.join("ld-linux-x86-64.so.2"), directory.join(LOADER))?;
    executable(&directory.join(LOADER))?;
    if has_large_registers() {
        build_registers_library(directory)?;
    }

    let mut tree = Tree::default();
    let module_root = tempfile::tempdir()?;
    modules::lay_out(package, module_root.path())?;
    tree.add_from_host("/lib/modules", &module_root.path().join("lib/modules"))?;
    tree.add_text("init", 0o755, INIT.to_owned())?;
    let partial = image.base.with_extension("partial");
    std::fs::copy(&base.base, &partial)?;
    tree.write(BufWriter::new(File::options().append(true).open(&partial)?))?;
    std::fs::rename(partial, &image.base)?;
    Ok(())
}

fn executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755))?)
}

fn find_library(package: &Path, name: &str) -> Result<PathBuf> {
    ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"]
        .into_iter()
        .map(|directory| package.join(directory).join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("cannot find {name} of Debian's libc6"))
}

/// The program with another loader: it cannot be handed to one (`loader linux …`), since it takes
/// its place in memory for the beginning of the machine's.
fn with_loader(mut program: Vec<u8>, loader: &str) -> Result<Vec<u8>> {
    let length = USUAL_LOADER.len();
    ensure!(loader.len() < length, "the path of the loader is too long for usr/bin/linux.uml");
    let place = program
        .windows(length)
        .position(|window| window == USUAL_LOADER)
        .context("usr/bin/linux.uml names no loader")?;
    let name = loader.bytes().chain(std::iter::repeat(0));
    for (old, new) in program.iter_mut().skip(place).take(length).zip(name) {
        *old = new;
    }
    Ok(program)
}

/// True if this processor has registers for matrices (AMX). Kernels before 6.2 or so, as programs,
/// have no room for them and end at the first program that they start.
fn has_large_registers() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" amx_tile"))
}

fn build_registers_library(directory: &Path) -> Result<()> {
    let source = directory.join("user_mode_registers.c");
    std::fs::write(&source, REGISTERS)?;
    install_missing(&["gcc", "libc6-dev"])?;
    let mut compiler = Command::new(find_program("cc")?);
    compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(directory.join(REGISTERS_LIBRARY));
    host_tool::output(compiler.arg(&source))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_from_behind() {
        assert_eq!(parse_processors("\t0-3,6\n"), Some(vec![6, 3, 2, 1, 0]));
        assert_eq!(parse_processors("\t5\n"), Some(vec![5]));
        for none in ["", "a", "1-", "3-1"] {
            assert_eq!(parse_processors(none), None, "{none}");
        }
    }

    #[test]
    fn the_loader_is_replaced_and_nothing_else() {
        let program = [b"\x7fELF..".as_slice(), USUAL_LOADER, b"rest".as_slice()].concat();
        let changed = with_loader(program.clone(), LOADER).unwrap();
        assert_eq!(changed.len(), program.len());
        assert!(changed.starts_with(b"\x7fELF..loader\0\0") && changed.ends_with(b"\0rest"));
        assert!(with_loader(b"no program".to_vec(), LOADER).is_err());
    }
}
