//! A terminal for a program that draws a screen.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use vt100::Parser;

use crate::daemon::Daemon;
use crate::namespace::Namespace;

/// Size of the screen.
const LINES: NonZeroU16 = NonZeroU16::new(24).unwrap();
const COLUMNS: NonZeroU16 = NonZeroU16::new(120).unwrap();

/// A program on a terminal of its own.
pub struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<Parser>>,
    daemon: Daemon,
}

impl Terminal {
    /// Starts a program in a namespace, on a new terminal.
    ///
    /// # Errors
    /// When there is no terminal to be had, or the program cannot be started.
    pub fn start(namespace: &Namespace, mut command: Command) -> Result<Self> {
        let (ours, theirs) = open().context("open a terminal")?;
        let (input, output) = (theirs.try_clone()?, theirs.try_clone()?);
        command.env("TERM", "xterm-256color");
        command.stdin(input).stdout(output).stderr(Stdio::from(theirs));
        let daemon = namespace.spawn(command)?;
        let screen = Arc::new(Mutex::new(Parser::new(LINES, COLUMNS, 0)));
        let (mut output, drawn) = (ours.try_clone()?, Arc::clone(&screen));
        // It ends when the program has closed the terminal.
        thread::Builder::new().name("terminal".to_owned()).spawn(move || {
            let mut buffer = [0; 4_096];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                let text = buffer.get(..length).unwrap_or_default();
                drawn.lock().process(text);
            }
        })?;
        Ok(Self { keyboard: ours, screen, daemon })
    }

    /// Types something.
    ///
    /// # Errors
    /// When the terminal takes nothing.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        self.keyboard.write_all(keys.as_bytes()).context("type on the terminal")
    }

    /// The lines of the screen, without the spaces at their ends.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.screen
            .lock()
            .screen()
            .rows(0, COLUMNS.get())
            .map(|row| row.trim_end().to_owned())
            .collect()
    }

    /// True while the program has the whole screen, which it gives back at its end.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.screen.lock().screen().alternate_screen()
    }

    /// Process number of the program.
    pub fn process(&mut self) -> u32 {
        self.daemon.child().id()
    }

    /// Waits until the program ends by itself.
    ///
    /// # Errors
    /// When it goes on for longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let child = self.daemon.child();
        crate::eventually(limit, "the program on the terminal ends", || {
            child.try_wait()?.context("it goes on")
        })
    }
}

/// Opens both ends of a terminal: ours, and the program's.
fn open() -> Result<(File, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let (ws_row, ws_col) = (LINES.get(), COLUMNS.get());
    let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
    let path = ptsname(&ours, Vec::new())?.into_string()?;
    let theirs = OpenOptions::new().read(true).write(true).open(path)?;
    tcsetwinsize(theirs.as_fd(), size)?;
    Ok((ours.into(), theirs.into()))
}
