//! A lasting program inside a namespace.

use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Interval between looks at a program that was told to end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A running program. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    name: String,
}

impl Daemon {
    pub(crate) fn new(child: Child, name: String) -> Self {
        Self { child, name }
    }

    /// The process, for its pipes where the command asked for some.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns true if the program has not ended yet.
    ///
    /// # Errors
    /// When the kernel does not know the process.
    pub fn is_running(&mut self) -> Result<bool> {
        let ended = self.child.try_wait().with_context(|| format!("looking at {}", self.name))?;
        Ok(ended.is_none())
    }

    /// Asks the program to end (SIGTERM) and waits for it.
    ///
    /// # Errors
    /// When it is still there after `limit`; then it is killed.
    pub fn terminate(mut self, limit: Duration) -> Result<ExitStatus> {
        if self.is_running()? {
            let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
            let pid = pid.with_context(|| format!("{} has no process number", self.name))?;
            kill_process(pid, Signal::TERM)
                .with_context(|| format!("sending SIGTERM to {}", self.name))?;
        }
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("{} did not end within {limit:?} of SIGTERM", self.name);
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail only when the process has already ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
