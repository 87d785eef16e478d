//! Notifications of the kernel that something in a watched directory changed (inotify(7)): for the folder of manifests,
//! and for the configuration file.
//!
//! The kernel is not asked what changed: every notification leads to the same look at the whole
//! directory, so that a lost one (`IN_Q_OVERFLOW`) costs nothing.

use std::io;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

/// Notifications are thrown away in portions of this many bytes.
const BUFFER_BYTES: usize = 4096;

/// An inotify instance.
///
/// The runtime has no word for it. It is held as what it behaves like: the reading end of a pipe,
/// which the kernel writes notifications to.
#[derive(Debug)]
pub struct Inotify {
    instance: Receiver,
}

/// A watched directory. Another directory by the same name is another one here too: the kernel
/// does not give a number out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchDescriptor(i32);

impl Inotify {
    /// Makes an instance that watches nothing yet.
    ///
    /// # Errors
    /// When the user has too many instances (`fs.inotify.max_user_instances`).
    pub fn new() -> io::Result<Self> {
        let instance = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self { instance: Receiver::from_owned_fd_unchecked(instance)? })
    }

    /// Watches a directory. For one that is watched already this changes nothing.
    pub fn add(&self, directory: &Path) -> io::Result<WatchDescriptor> {
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::MOVE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        Ok(WatchDescriptor(inotify::add_watch(&self.instance, directory, flags)?))
    }

    /// Forgets a directory. One that does not exist any more is forgotten already.
    pub fn remove(&self, WatchDescriptor(number): WatchDescriptor) {
        let _ = inotify::remove_watch(&self.instance, number);
    }

    /// Returns when something changed since the last call.
    pub async fn changed(&self) {
        let mut buffer = [0; BUFFER_BYTES];
        let mut seen = false;
        while !seen {
            if self.instance.readable().await.is_err() {
                // The runtime is shutting down.
                return std::future::pending().await;
            }
            while matches!(self.instance.try_read(&mut buffer), Ok(1..)) {
                seen = true;
            }
        }
    }
}
