//! The process of a credential plugin: its output has a limit, and it leaves no process behind.
//!
//! Its process group is killed when it ends, whatever the cause, when no request waits for it any more
//! ([`KillOnDrop`]), and when it takes too long or prints too much. The kernel kills the plugin itself when
//! kube-ipvs ends in any other way. What a plugin has started with `setsid` is left: it is of no group that is
//! known, and may be an agent that is to last, such as gpg's. Nothing waits for such a process, though it may hold
//! the plugin's output open.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process_group,
    set_parent_process_death_signal, waitid,
};

/// Most bytes that a plugin may print. A token or a certificate has some thousands.
const LONGEST_OUTPUT: usize = 1 << 20;

/// Bytes that are read at a time: as many as a pipe holds.
const CHUNK: usize = 64 << 10;

/// Shortest and longest pause between two looks at a plugin.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Exit status and output of a plugin.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
}

/// Reason why a plugin has not ended by itself.
#[derive(Debug)]
pub(super) enum NotFinished {
    /// No directory of `PATH` has it.
    NotFound,
    /// It could not be started or watched.
    Failed(io::Error),
    /// It did not end in time and was killed.
    Hung,
    /// It printed more than [`LONGEST_OUTPUT`] and was killed.
    TooLong,
    /// No request waited for it any more, and it was killed or not even started.
    Unwanted,
}

/// The process group of a plugin, which any thread may kill.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct ProcessGroup(Arc<Mutex<GroupState>>);

/// Kills the group of a plugin when it is dropped.
#[derive(Debug)]
pub(in super::super) struct KillOnDrop(pub(in super::super) ProcessGroup);

#[derive(Debug, Default)]
struct GroupState {
    /// The group, from the plugin's start until just before its process is reaped: then its number may become
    /// another one's.
    group: Option<Pid>,
    is_unwanted: bool,
}

/// A plugin that runs.
struct Plugin {
    process: Child,
    group: ProcessGroup,
    stdout: Option<ChildStdout>,
    output: Vec<u8>,
}

/// Runs a plugin to its end, with nothing to read and its errors unread. To be called where it may take as long
/// as `timeout`.
pub(super) fn run(
    command: &mut Command,
    group: &ProcessGroup,
    timeout: Duration,
) -> Result<Finished, NotFinished> {
    let deadline = Instant::now() + timeout;
    let mut plugin = Plugin::start(command, group)?;
    let ended = plugin.watch(deadline);
    let status = plugin.end();
    if group.0.lock().is_unwanted {
        return Err(NotFinished::Unwanted);
    }
    ended?;
    let stdout = String::from_utf8_lossy(&plugin.output).into_owned();
    Ok(Finished { status: status.map_err(NotFinished::Failed)?, stdout })
}

impl GroupState {
    fn kill(&self) {
        if let Some(group) = self.group {
            // The only error that is possible is that all of its processes are gone.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.is_unwanted = true;
        state.kill();
    }
}

impl Plugin {
    fn start(command: &mut Command, group: &ProcessGroup) -> Result<Self, NotFinished> {
        if group.0.lock().is_unwanted {
            return Err(NotFinished::Unwanted);
        }
        die_with_parent(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut process = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => NotFinished::NotFound,
            _ => NotFinished::Failed(error),
        })?;
        let stdout = process.stdout.take();
        let mut state = group.0.lock();
        state.group = Some(Pid::from_child(&process));
        if state.is_unwanted {
            state.kill();
        }
        drop(state);
        Ok(Self { process, group: group.clone(), stdout, output: Vec::new() })
    }

    /// Reads until the plugin has ended. What holds its output open after that is not waited for.
    fn watch(&mut self, deadline: Instant) -> Result<(), NotFinished> {
        if let Some(stdout) = &self.stdout {
            ioctl_fionbio(stdout, true).map_err(|error| NotFinished::Failed(error.into()))?;
        }
        let mut pause = PAUSES.0;
        loop {
            // In this order: when it has ended, all that it printed is there to be read.
            let has_ended = self.has_ended().map_err(NotFinished::Failed)?;
            self.read()?;
            if has_ended {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(NotFinished::Hung);
            }
            thread::sleep(pause);
            pause = PAUSES.1.min(pause * 2);
        }
    }

    /// True if the plugin has ended. Its process stays unreaped, and with it the group's number its own.
    fn has_ended(&self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(Pid::from_child(&self.process)), options) {
            Ok(ended) => Ok(ended.is_some()),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what is there.
    fn read(&mut self) -> Result<(), NotFinished> {
        let Some(stdout) = &mut self.stdout else { return Ok(()) };
        let mut chunk = vec![0; CHUNK];
        loop {
            match stdout.read(&mut chunk) {
                Ok(0) => {
                    self.stdout = None;
                    return Ok(());
                }
                Ok(read) => self.output.extend(chunk.iter().take(read)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(NotFinished::Failed(error)),
            }
            if self.output.len() > LONGEST_OUTPUT {
                return Err(NotFinished::TooLong);
            }
        }
    }

    /// Kills what is left of the group, and reaps the plugin.
    fn end(&mut self) -> io::Result<ExitStatus> {
        let mut state = self.group.0.lock();
        state.kill();
        state.group = None;
        drop(state);
        self.process.wait()
    }
}

/// Has the kernel kill the plugin when the thread ends that starts it, as it does with kube-ipvs. The thread
/// waits for the plugin otherwise.
fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let in_child = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before.
        if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    #[expect(unsafe_code, reason = "std has no safe form for system calls between fork and exec")]
    // SAFETY: the closure makes two system calls and nothing else: it takes no memory and no lock, either of
    // which another thread may have held when the process was forked.
    let _ = unsafe { command.pre_exec(in_child) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMPLE: Duration = Duration::from_secs(30);

    fn run_script(
        script: &str,
        group: &ProcessGroup,
        timeout: Duration,
    ) -> Result<Finished, NotFinished> {
        run(Command::new("sh").args(["-c", script]), group, timeout)
    }

    /// Waits until the processes are gone whose numbers the files of a folder have.
    fn assert_none_is_left(folder: &tempfile::TempDir) {
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert!(!files.is_empty());
        for file in files {
            let pid = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let stat = format!("/proc/{}/stat", pid.trim());
            let waiting = Instant::now();
            while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")) {
                assert!(waiting.elapsed() < AMPLE, "process {pid} is left");
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    #[test]
    fn a_plugin_that_ends_leaves_no_process_behind() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let begun = Instant::now();
        let script = format!("sleep 1000 & echo $! >{at}/child; echo $$ >{at}/plugin; echo done");
        let finished = run_script(&script, &ProcessGroup::default(), AMPLE).unwrap();
        assert_eq!((finished.status.success(), finished.stdout.as_str()), (true, "done\n"));
        assert!(begun.elapsed() < AMPLE, "its child holds the pipe, and is not waited for");
        assert_none_is_left(&folder);
    }

    #[test]
    fn a_plugin_that_hangs_is_killed_with_what_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("sleep 1000 & echo $! >{}/child; wait", folder.path().display());
        let hung = run_script(&script, &ProcessGroup::default(), Duration::from_millis(500));
        assert!(matches!(hung, Err(NotFinished::Hung)), "{hung:?}");
        assert_none_is_left(&folder);
    }

    #[test]
    fn a_process_of_another_session_that_holds_the_output_is_not_waited_for() {
        for (rest, is_finished) in [("echo done", true), ("sleep 1000", false)] {
            let begun = Instant::now();
            let script = format!("setsid sleep 20 & {rest}");
            let ended = run_script(&script, &ProcessGroup::default(), Duration::from_millis(500));
            assert_eq!(ended.is_ok(), is_finished, "{ended:?}");
            assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        }
    }

    #[test]
    fn a_plugin_prints_at_most_1_mib() {
        let printing = |bytes: usize| {
            let script = format!("head -c {bytes} /dev/zero");
            run_script(&script, &ProcessGroup::default(), AMPLE)
        };
        assert_eq!(printing(LONGEST_OUTPUT).unwrap().stdout.len(), LONGEST_OUTPUT);
        assert!(matches!(printing(LONGEST_OUTPUT + 1), Err(NotFinished::TooLong)));
        let endless = run_script("yes", &ProcessGroup::default(), AMPLE);
        assert!(matches!(endless, Err(NotFinished::TooLong)), "{endless:?}");
    }

    #[test]
    fn a_plugin_that_nobody_waits_for_is_killed_or_not_started() {
        let folder = tempfile::tempdir().unwrap();
        let child = folder.path().join("child");
        let script = format!("sleep 1000 & echo $! >{}; wait", child.display());
        let group = ProcessGroup::default();
        let waiting = KillOnDrop(group.clone());
        let ended = thread::scope(|scope| {
            let running = scope.spawn(|| run_script(&script, &group, AMPLE));
            let begun = Instant::now();
            while !std::fs::read_to_string(&child).is_ok_and(|text| text.ends_with('\n')) {
                assert!(begun.elapsed() < AMPLE);
                thread::sleep(Duration::from_millis(10));
            }
            drop(waiting);
            running.join().unwrap()
        });
        assert!(matches!(ended, Err(NotFinished::Unwanted)), "{ended:?}");
        assert_none_is_left(&folder);
        let again = run_script("echo done", &group, AMPLE);
        assert!(matches!(again, Err(NotFinished::Unwanted)), "{again:?}");
    }

    /// As when kube-ipvs is killed: the thread that started it ends.
    #[test]
    fn a_plugin_ends_with_what_has_started_it() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("plugin");
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut command = Command::new("sleep");
                let plugin = Plugin::start(command.arg("1000"), &ProcessGroup::default()).unwrap();
                std::fs::write(&pid, plugin.process.id().to_string()).unwrap();
            });
        });
        assert_none_is_left(&folder);
    }
}
