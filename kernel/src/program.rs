//! Running another program, without a shell, and for no longer than it may take.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tracing::debug;

/// See [`so_far`].
static COUNT: AtomicU64 = AtomicU64::new(0);
static MICROSECONDS: AtomicU64 = AtomicU64::new(0);

/// The programs that this process has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProgramsRun {
    /// Number of programs.
    pub count: u64,
    /// Time that they took, one after the other.
    pub took: Duration,
}

/// Exit status and output that a program left behind.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Reason why there is nothing that a program left behind.
#[derive(Debug)]
pub(crate) enum NotRun {
    /// No directory of `PATH` has it.
    NotFound,
    /// It could not be started or watched.
    Failed(io::Error),
    /// It did not end in time and was killed.
    Hung,
}

/// Those that were run so far.
pub(crate) fn so_far() -> ProgramsRun {
    ProgramsRun {
        count: COUNT.load(Ordering::Relaxed),
        took: Duration::from_micros(MICROSECONDS.load(Ordering::Relaxed)),
    }
}

/// Runs a program in the calling thread's network namespace, with `input` as its standard input.
///
/// A program that has not ended after `timeout` is killed.
pub(crate) fn run(
    program: &str,
    arguments: &[&str],
    input: &str,
    timeout: Duration,
) -> Result<Finished, NotRun> {
    let began = Instant::now();
    let finished = finish(Command::new(program).args(arguments), input, timeout);
    let words: Vec<&str> = [&[program], arguments].concat();
    debug!("ran {} in {:?}", words.join(" "), began.elapsed());
    let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    COUNT.fetch_add(1, Ordering::Relaxed);
    MICROSECONDS.fetch_add(took, Ordering::Relaxed);
    finished
}

/// Runs a prepared program to its end, as [`run`] does. With one that is killed, the programs are killed that it
/// has started.
fn finish(command: &mut Command, input: &str, timeout: Duration) -> Result<Finished, NotRun> {
    let deadline = Instant::now() + timeout;
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = child.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => NotRun::NotFound,
        _ => NotRun::Failed(error),
    })?;
    let finished = feed_and_collect(&mut child, input, deadline);
    if finished.is_err() {
        // It may have ended by itself meanwhile; waiting for it keeps no zombie behind.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
    }
    finished
}

fn feed_and_collect(child: &mut Child, input: &str, deadline: Instant) -> Result<Finished, NotRun> {
    // A thread for each pipe, since the capacity of a pipe is limited: one thread for all three
    // could wait for a program that waits for it. The threads are not joined when time is up, since
    // a child of the program may still hold its end of a pipe.
    if let Some(mut stdin) = child.stdin.take() {
        let input = input.to_owned();
        // A program that ends without reading everything says why by its exit and its words.
        thread::spawn(move || stdin.write_all(input.as_bytes()));
    }
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let stdout = receive(&stdout, deadline)?;
    let stderr = receive(&stderr, deadline)?;
    loop {
        if let Some(status) = child.try_wait().map_err(NotRun::Failed)? {
            return Ok(Finished { status, stdout, stderr });
        }
        if Instant::now() >= deadline {
            return Err(NotRun::Hung);
        }
        // It has closed its output, so it is about to end.
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reads a pipe to its end on a thread of its own.
fn collect(pipe: Option<impl Read + Send + 'static>) -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes));
        // The receiver is gone if time was up.
        let _ = sender.send(read.map(|_| bytes));
    });
    receiver
}

fn receive(receiver: &Receiver<io::Result<Vec<u8>>>, deadline: Instant) -> Result<String, NotRun> {
    let left = deadline.saturating_duration_since(Instant::now());
    match receiver.recv_timeout(left) {
        Ok(Ok(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Ok(Err(error)) => Err(NotRun::Failed(error)),
        Err(RecvTimeoutError::Timeout) => Err(NotRun::Hung),
        Err(RecvTimeoutError::Disconnected) => {
            Err(NotRun::Failed(io::Error::other("the thread that reads its output died")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMPLE: Duration = Duration::from_secs(30);

    #[test]
    fn input_goes_in_and_output_comes_out_however_long() {
        let input = "a line that is there many times\n".repeat(100_000);
        let finished = run("cat", &[], &input, AMPLE).unwrap();
        assert!(finished.status.success());
        assert!(finished.stdout == input && finished.stderr.is_empty());
    }

    #[test]
    fn arguments_are_not_interpreted_and_failures_have_their_words() {
        let finished = run("ls", &["--", "/nowhere at all; echo"], "", AMPLE).unwrap();
        assert!(!finished.status.success());
        assert!(finished.stderr.contains("/nowhere at all; echo"), "{}", finished.stderr);
    }

    #[test]
    fn a_program_that_reads_nothing_of_its_input_is_no_failure() {
        let finished = run("true", &[], &"x".repeat(1 << 20), AMPLE).unwrap();
        assert!(finished.status.success());
    }

    #[test]
    fn a_program_that_is_not_there_is_told_from_one_that_cannot_start() {
        assert!(matches!(run("no-such-program", &[], "", AMPLE), Err(NotRun::NotFound)));
        assert!(matches!(run("/", &[], "", AMPLE), Err(NotRun::Failed(_))));
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let start = Instant::now();
        let hung = run("sleep", &["1000"], "", Duration::from_millis(200));
        assert!(matches!(hung, Err(NotRun::Hung)));
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn with_a_program_that_hangs_those_are_killed_that_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let child = folder.path().join("child");
        let script = format!("sleep 1000 & echo $! >{}; wait", child.display());
        let hung = run("sh", &["-c", &script], "", Duration::from_millis(500));
        assert!(matches!(hung, Err(NotRun::Hung)));
        let child = std::fs::read_to_string(child).unwrap();
        let is_running = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
            stat.is_ok_and(|stat| !stat.contains(") Z"))
        };
        let start = Instant::now();
        while is_running() {
            assert!(start.elapsed() < AMPLE);
            thread::sleep(Duration::from_millis(10));
        }
    }
}
