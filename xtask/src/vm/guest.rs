//! One run of a program in a guest, from the image to the verdict.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use super::accel::{self, Accel, AccelChoice};
use super::boot::{Limits, Machine};
use super::image::{self, Image};
use super::kernel::Kernel;
use super::scratch::Scratch;
use super::tree::Tree;
use super::verdict::Verdict;
use super::{cache_directory, host_tool, progress, user_mode};
use crate::architecture::Architecture;
use anyhow::{Context, Result, bail};

/// Time limit until user space is up. A boot takes a few seconds; a machine that is busy otherwise
/// may need several times that.
const UP_LIMIT: Duration = Duration::from_secs(120);
/// The output disk's size: more than any guest has memory for. Only what is written takes space.
const DISK_SIZE: u64 = 64 << 30;

/// A throw-away virtual machine and what it is given. Every run starts from a fresh root.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    /// Its architecture: that of its programs, too.
    pub(crate) architecture: Architecture,
    /// The kernel to boot.
    pub(crate) kernel: Kernel,
    /// Accelerator of its instructions.
    pub(crate) accel: AccelChoice,
    /// Number of processors. More than one is slower and less reliable under emulation.
    pub(crate) cpus: u8,
    /// Its memory, which also holds all files, as qemu's `-m` takes it: `2G`.
    pub(crate) memory: String,
    /// Time limit of a run in all.
    pub(crate) limit: Duration,
    /// Host files and directories it gets, besides the program.
    pub(crate) files: Vec<GuestFile>,
    /// Environment variables of setup and program.
    pub(crate) environment: Vec<(String, String)>,
    /// Shell text to run before the program. If it fails, the program is not started.
    pub(crate) setup: Option<String>,
    /// The host directory that gets what is left in the guest's `/job/out`.
    pub(crate) output: Option<PathBuf>,
    /// The host file that gets the kernel's log.
    pub(crate) log: Option<PathBuf>,
}

/// A host file or directory and its place in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestFile {
    pub(crate) host: PathBuf,
    /// An absolute path.
    pub(crate) guest: String,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            architecture: Architecture::default(),
            kernel: Kernel::default(),
            accel: AccelChoice::default(),
            cpus: 1,
            memory: "2G".to_owned(),
            limit: Duration::from_secs(600),
            files: Vec::new(),
            environment: Vec::new(),
            setup: None,
            output: None,
            log: None,
        }
    }
}

impl FromStr for GuestFile {
    type Err = anyhow::Error;

    /// `PATH[:NAME]`; a relative name, and the file's own if there is none, is below `/job`.
    fn from_str(text: &str) -> Result<Self> {
        let (host, name) = match text.rsplit_once(':') {
            Some((host, name)) => (Path::new(host), name.to_owned()),
            None => (Path::new(text), file_name(Path::new(text))?),
        };
        let guest = if name.starts_with('/') { name } else { format!("/job/{name}") };
        Ok(Self { host: host.to_owned(), guest })
    }
}

impl Guest {
    /// Runs a program as root in a fresh guest, in the directory `/job` and without input, and
    /// passes on to `console` what it writes to standard output and standard error.
    ///
    /// A program with a slash in its name is a host file and is brought along with its libraries;
    /// any other is looked for in the guest's PATH. Prepares what is missing first. Fails when the
    /// bed does, so that nothing is known about the program; everything else is a verdict.
    pub(crate) fn run(
        &self,
        program: &str,
        arguments: &[String],
        console: &mut dyn Write,
    ) -> Result<Verdict> {
        let mut job = self.job()?;
        job.add_program(program, arguments)?;
        let scratch = Scratch::make(&cache_directory())?;
        let machine = self.machine(job, &scratch.directory)?;
        let limits = Limits { up: UP_LIMIT, end: self.limit };
        let mut verdict = self.attempt(&machine, limits, &scratch.directory, console)?;
        if matches!(verdict, Verdict::NeverUp { .. }) {
            progress!("{verdict}\nvm: booting it once more");
            verdict = self.attempt(&machine, limits, &scratch.directory, console)?;
        }
        Ok(verdict)
    }

    /// Boots a fresh guest with a shell on this terminal.
    pub(crate) fn shell(&self) -> Result<()> {
        self.on_terminal("bash", &["--norc".to_owned(), "-i".to_owned()])
    }

    /// Boots a fresh guest in which this program, as of [`Guest::run`], has this terminal.
    pub(crate) fn on_terminal(&self, program: &str, arguments: &[String]) -> Result<()> {
        let mut job = self.job()?;
        job.add_program(program, arguments)?;
        let scratch = Scratch::make(&cache_directory())?;
        self.machine(job, &scratch.directory)?.boot_on_terminal(&scratch.directory)
    }

    /// Returns the files that the guest gets besides the base image, but for the program.
    fn job(&self) -> Result<Job> {
        let mut job = Job(Tree::default());
        for file in &self.files {
            job.0.add_from_host(&file.guest, &file.host)?;
        }
        let mut environment = String::new();
        for (name, value) in &self.environment {
            if !is_variable_name(name) {
                bail!(
                    "`{name}` is not the name of an environment variable: letters, digits and underscores only"
                );
            }
            environment.push_str(&format!("export {name}={}\n", quoted(value)));
        }
        job.0.add_text("vm/environment", 0o644, environment)?;
        job.0.add_text("vm/limit", 0o644, format!("{}\n", self.limit.as_secs()))?;
        job.0.add_text("vm/setup", 0o644, self.setup.clone().unwrap_or_default())?;
        Ok(job)
    }

    /// Fetches and makes the files that it is booted from, and finds its accelerator. That is done once:
    /// a later run starts at once.
    pub(crate) fn prepare(&self) -> Result<(Image, Accel)> {
        let image = image::prepare(self.kernel, self.architecture, false)?;
        let accel = accel::choose(self.accel, self.architecture, &image)?;
        if accel == Accel::Uml {
            return Ok((user_mode::prepare(self.kernel, &image)?, accel));
        }
        Ok((image, accel))
    }

    fn machine(&self, mut job: Job, scratch: &Path) -> Result<Machine> {
        let (image, accel) = self.prepare()?;
        job.0.add_libraries()?;
        let initrd = scratch.join("initrd");
        std::fs::copy(&image.base, &initrd)
            .with_context(|| format!("cannot copy the base image {}", image.base.display()))?;
        let file = OpenOptions::new().append(true).open(&initrd)?;
        job.0.write(BufWriter::new(file))?;
        let disk = match &self.output {
            None => None,
            Some(_) => {
                let disk = scratch.join("disk");
                File::create_new(&disk)?.set_len(DISK_SIZE)?;
                Some(disk)
            }
        };
        let log = match &self.log {
            None => scratch.join("log"),
            // qemu would create it too, but say less about why it cannot.
            Some(log) => {
                File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
                std::path::absolute(log)?
            }
        };
        Ok(Machine {
            architecture: self.architecture,
            kernel: image.kernel,
            initrd,
            accel,
            cpus: self.cpus,
            memory: self.memory.clone(),
            disk,
            log,
        })
    }

    fn attempt(
        &self,
        machine: &Machine,
        limits: Limits,
        scratch: &Path,
        console: &mut dyn Write,
    ) -> Result<Verdict> {
        let boot = tempfile::tempdir_in(scratch)?;
        let outcome = machine.boot(limits, boot.path(), console)?;
        let log = std::fs::read(&machine.log).unwrap_or_default();
        let verdict = Verdict::judge(outcome.report, outcome.end, &String::from_utf8_lossy(&log));
        self.tell(machine.accel, outcome.up_after, outcome.ended_after);
        if let (Some(disk), Some(directory)) = (&machine.disk, &self.output) {
            if outcome.report.output_lost {
                bail!("the guest could not hand over the files of /job/out; {verdict}");
            }
            if outcome.report.exit.is_some() {
                unpack(disk, directory)?;
            }
        }
        Ok(verdict)
    }

    fn tell(&self, accel: Accel, up_after: Option<Duration>, ended_after: Duration) {
        let up = up_after
            .map_or("never up".to_owned(), |up| format!("up after {:.1} s", up.as_secs_f64()));
        let ended = ended_after.as_secs_f64();
        progress!("kernel {} on {}: {up}, over after {ended:.1} s", self.kernel, accel.name());
    }
}

/// The files of one run.
struct Job(Tree);

impl Job {
    fn add_program(&mut self, program: &str, arguments: &[String]) -> Result<()> {
        let mut command = "exec ".to_owned();
        if program.contains('/') {
            let place = format!("/job/{}", file_name(Path::new(program))?);
            self.0.add_from_host(&place, Path::new(program))?;
            command.push_str(&quoted(&place));
        } else {
            command.push_str(&quoted(program));
        }
        for argument in arguments {
            command.push(' ');
            command.push_str(&quoted(argument));
        }
        command.push('\n');
        self.0.add_text("vm/command", 0o644, command)
    }
}

fn unpack(disk: &Path, directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let mut tar = Command::new("tar");
    tar.args(["--no-same-owner", "-xf"]).arg(disk).arg("-C").arg(directory);
    host_tool::output(&mut tar).context("cannot unpack the files of the guest's /job/out")?;
    Ok(())
}

fn file_name(path: &Path) -> Result<String> {
    let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
    Ok(name.to_string_lossy().into_owned())
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// A word that a shell takes as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_their_places() {
        let place = |text: &str| {
            let file: GuestFile = text.parse().unwrap();
            (file.host.to_string_lossy().into_owned(), file.guest)
        };
        let pair = |host: &str, guest: &str| (host.to_owned(), guest.to_owned());
        assert_eq!(place("target/debug/tool"), pair("target/debug/tool", "/job/tool"));
        assert_eq!(place("a/tool:other"), pair("a/tool", "/job/other"));
        assert_eq!(place("a/tool:/usr/bin/tool"), pair("a/tool", "/usr/bin/tool"));
        assert!("..".parse::<GuestFile>().is_err());
    }

    #[test]
    fn words_survive_a_shell() {
        let words = ["it's", "$HOME `x`", "", "a\nb", "*"];
        let command = format!("printf '%s|' {}", words.map(quoted).join(" "));
        let output = host_tool::output(Command::new("sh").args(["-c", &command])).unwrap();
        assert_eq!(String::from_utf8(output).unwrap(), "it's|$HOME `x`||a\nb|*|");
    }

    #[test]
    fn variable_names() {
        assert!(is_variable_name("RUST_LOG") && is_variable_name("_a1"));
        assert!(!is_variable_name("") && !is_variable_name("1A") && !is_variable_name("A;reboot"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let mut job = Job(Tree::default());
        let error = job.add_program("/nowhere/program", &[]).unwrap_err();
        assert!(error.to_string().contains("/nowhere/program"), "{error}");
    }
}
