//! Network namespace a socket was opened in, so that it is opened there again or not at all.

use crate::error::Error;

/// The network namespace that a thread was in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home {
    /// Device and inode; none if that could not be told.
    namespace: Option<(u64, u64)>,
}

impl Home {
    /// The calling thread's.
    pub(crate) fn here() -> Self {
        let found = rustix::fs::stat("/proc/thread-self/ns/net");
        Self { namespace: found.ok().map(|found| (found.st_dev, found.st_ino)) }
    }

    /// Asserts that the calling thread is there.
    ///
    /// # Errors
    /// When it is elsewhere, or that cannot be told.
    pub(crate) fn must_be_here(self) -> Result<(), Error> {
        if self.namespace.is_some() && self == Self::here() {
            return Ok(());
        }
        let elsewhere = "this thread is not in the network namespace that it belongs to";
        Err(Error::system("open a socket again", std::io::Error::other(elsewhere)))
    }
}
