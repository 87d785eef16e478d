//! Network namespaces that sockets belong to.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::Error;

/// A network namespace, held open.
///
/// A socket belongs for good to the namespace that its thread was in when it was opened; the
/// thread may go elsewhere afterwards.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// The one the calling thread is in.
    ///
    /// # Errors
    /// When `/proc/thread-self/ns/net` cannot be opened.
    pub fn current() -> Result<Self, Error> {
        Self::at(Path::new("/proc/thread-self/ns/net"))
    }

    /// The one that a process is in.
    ///
    /// # Errors
    /// When there is no such process, or its namespace may not be opened.
    pub fn of_process(process: u32) -> Result<Self, Error> {
        Self::at(Path::new(&format!("/proc/{process}/ns/net")))
    }

    /// The one at a path, such as `/run/netns/blue` made by `ip netns add blue`.
    ///
    /// # Errors
    /// When the path cannot be opened.
    pub fn at(path: &Path) -> Result<Self, Error> {
        File::open(path).map(Self).map_err(|error| Error::system("open a network namespace", error))
    }

    /// Runs `work` in this namespace, on a thread of its own, and returns what it returns.
    ///
    /// # Errors
    /// When the namespace may not be entered (`CAP_SYS_ADMIN` is needed), or the thread died.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
                        .map_err(|error| Error::system("setns", error))?;
                    Ok(work())
                })
                .join()
                .unwrap_or_else(|_| {
                    Err(Error::system(
                        "a thread in the network namespace",
                        std::io::Error::other("it panicked"),
                    ))
                })
        })
    }
}
