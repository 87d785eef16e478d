//! A named network namespace, and what can be done inside it.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::daemon::Daemon;

/// Directory in which iproute2 keeps namespaces that have a name.
const NAMES: &str = "/run/netns";

/// A network namespace with a name, so that `ip netns exec NAME` works for debugging.
///
/// It disappears when this value is dropped and the last process and socket inside is gone.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    /// An open handle outlives the name, so that entering never depends on the file system.
    handle: File,
}

/// Namespace to which the thread returns that drops this.
struct WayBack(File);

impl Namespace {
    /// Creates a namespace with its loopback up. The name is made unique: it holds the process
    /// number, a running number and `label`.
    ///
    /// # Errors
    /// When `ip netns add` fails (no root, no iproute2), with its words.
    pub fn create(label: &str) -> Result<Self> {
        let mut created = Self::create_bare(&[label.to_owned()])?;
        let namespace = created.pop().context("`ip netns add` left no namespace")?;
        namespace.configure_links(&["link set lo up".to_owned()])?;
        Ok(namespace)
    }

    /// Creates one namespace for each label, in order, in a single process, with the loopback
    /// still down.
    pub(crate) fn create_bare(labels: &[String]) -> Result<Vec<Self>> {
        let prefix = unused_prefix();
        let names: Vec<String> = labels.iter().map(|label| format!("{prefix}-{label}")).collect();
        let lines: Vec<String> = names.iter().map(|name| format!("netns add {name}")).collect();
        let added = ip_batch(&lines);
        // What did come into being is owned at once, so that a failure half way leaves no litter.
        let created: Vec<Self> = names
            .into_iter()
            .filter_map(|name| File::open(path_of(&name)).ok().map(|handle| Self { name, handle }))
            .collect();
        added.context("creating network namespaces")?;
        if created.len() != labels.len() {
            bail!("asked for {} network namespaces, can open {}", labels.len(), created.len());
        }
        Ok(created)
    }

    /// The name for `ip netns exec`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that `setns` and `ip` know the namespace by.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(&self.name)
    }

    /// Runs `work` inside the namespace and hands back what it returns. The calling thread moves there and back.
    ///
    /// Sockets opened in there stay in the namespace for life and may be carried out, and threads that are
    /// started in there stay there. A panic in `work` goes on in the caller, so that assertions may stand inside.
    ///
    /// # Errors
    /// When the kernel does not let it in.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let outside =
            File::open("/proc/thread-self/ns/net").context("opening this thread's namespace")?;
        let _way_back = WayBack(outside);
        move_this_thread_into(&self.handle, &self.name)?;
        Ok(work())
    }

    /// Starts a lasting thread inside the namespace. Returns once the thread has arrived there.
    pub(crate) fn start_thread(
        &self,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<JoinHandle<()>> {
        let handle = self.handle.try_clone().context("copying a namespace handle")?;
        let name = self.name.clone();
        let (arrived, arrival) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || {
                let outcome = move_this_thread_into(&handle, &name);
                let inside = outcome.is_ok();
                if arrived.send(outcome).is_ok() && inside {
                    work();
                }
            })
            .with_context(|| format!("starting a thread for namespace {}", self.name))?;
        arrival.recv().context("the thread died on its way into the namespace")??;
        Ok(thread)
    }

    /// Runs a program inside the namespace to its end and returns what it printed. Other than with
    /// `ip netns exec`, `/sys` stays that of the machine.
    ///
    /// # Errors
    /// When it cannot be started or does not end with success; then with its standard error.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.command_with_input(program, arguments, "")
    }

    /// As [`Self::command`], with text for the program's standard input.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub fn command_with_input(
        &self,
        program: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<String> {
        self.enter(|| run(program, arguments, input))?
            .with_context(|| format!("in namespace {}", self.name))
    }

    /// Starts a lasting program inside the namespace; it is killed when the result is dropped.
    /// Environment, standard output and the rest are as `command` says.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(&self, mut command: Command) -> Result<Daemon> {
        // A child is born into the namespaces of the thread that forks it.
        let child = self.enter(|| command.spawn())?.with_context(|| {
            format!("starting {} in namespace {}", display(&command), self.name)
        })?;
        Ok(Daemon::new(child, display(&command)))
    }

    /// Changes links, addresses and routes: each line is one `ip` command without the word `ip`.
    /// All lines run in one process, in order, up to the first that fails.
    ///
    /// # Errors
    /// When a line fails, with what `ip` said and the lines.
    pub fn configure_links(&self, lines: &[String]) -> Result<()> {
        self.enter(|| ip_batch(lines))?.with_context(|| format!("in namespace {}", self.name))
    }

    /// Writes a setting below `/proc/sys`, such as `net/ipv4/ip_forward`.
    ///
    /// # Errors
    /// When the kernel has no such setting or refuses the value.
    pub fn set_sysctl(&self, setting: &str, value: &str) -> Result<()> {
        self.set_sysctls(&[(setting, value)])
    }

    /// Writes several settings, in order, up to the first that fails.
    ///
    /// # Errors
    /// As [`Self::set_sysctl`].
    pub fn set_sysctls(&self, settings: &[(&str, &str)]) -> Result<()> {
        // `/proc/sys/net` shows the namespace of the thread that opens the file.
        self.enter(|| {
            settings.iter().try_for_each(|(setting, value)| {
                fs::write(sysctl_path(setting), value)
                    .with_context(|| format!("writing {value} to {setting} in {}", self.name))
            })
        })?
    }

    /// Reads a setting below `/proc/sys`, without the line's end.
    ///
    /// # Errors
    /// When the kernel has no such setting.
    pub fn sysctl(&self, setting: &str) -> Result<String> {
        let value = self
            .enter(|| fs::read_to_string(sysctl_path(setting)))?
            .with_context(|| format!("reading {setting} in {}", self.name))?;
        Ok(value.trim_end().to_owned())
    }

    /// Returns true if the kernel has a setting here; many come with a module.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn has_sysctl(&self, setting: &str) -> Result<bool> {
        self.enter(|| sysctl_path(setting).exists())
    }
}

impl Drop for Namespace {
    /// Does what `ip netns delete` does, without a process: unmounts the name and unlinks it.
    fn drop(&mut self) {
        let path = self.path();
        let removed = unmount(&path, UnmountFlags::DETACH)
            .map_err(Into::into)
            .and_then(|()| fs::remove_file(&path));
        if let Err(error) = removed {
            eprintln!("cannot remove network namespace {}: {error}", path.display());
        }
    }
}

impl Drop for WayBack {
    fn drop(&mut self) {
        if let Err(error) = move_this_thread_into(&self.0, "of before") {
            eprintln!("{error:#}");
            // Whatever the thread did from now on, it would do it in the wrong place.
            process::abort();
        }
    }
}

fn move_this_thread_into(handle: &File, name: &str) -> Result<()> {
    move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("entering network namespace {name} (are we root?)"))
}

fn path_of(name: &str) -> PathBuf {
    Path::new(NAMES).join(name)
}

fn sysctl_path(setting: &str) -> PathBuf {
    Path::new("/proc/sys").join(setting)
}

/// A prefix that no living process uses and that no killed one with our number left behind.
fn unused_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    loop {
        let prefix = format!("bed{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mine = format!("{prefix}-");
        let taken = fs::read_dir(NAMES).is_ok_and(|entries| {
            entries
                .filter_map(Result::ok)
                .any(|entry| entry.file_name().to_string_lossy().starts_with(&mine))
        });
        if !taken {
            return prefix;
        }
    }
}

/// Runs `ip` once for many lines: under emulation a process costs more than all it configures.
fn ip_batch(lines: &[String]) -> Result<()> {
    let mut text = lines.join("\n");
    text.push('\n');
    run("ip", &["-batch", "-"], &text).with_context(|| format!("the lines were:\n{text}"))?;
    Ok(())
}

/// Runs a program in the namespace of the calling thread.
fn run(program: &str, arguments: &[&str], input: &str) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    let output = feed(&mut command, input).with_context(|| display(&command))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}: {}", display(&command), output.status, said.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn feed(command: &mut Command, input: &str) -> std::io::Result<Output> {
    if input.is_empty() {
        return command.stdin(Stdio::null()).output();
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let stdin = child.stdin.take();
    thread::scope(|scope| {
        // Written on the side: a program that prints while it reads would otherwise wait for us
        // to read while we wait for it. One that stops reading early tells so by its status.
        scope.spawn(move || stdin.map(|mut pipe| pipe.write_all(input.as_bytes())));
        child.wait_with_output()
    })
}

fn display(command: &Command) -> String {
    let arguments = command.get_args().map(|argument| argument.to_string_lossy());
    std::iter::once(command.get_program().to_string_lossy())
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}
